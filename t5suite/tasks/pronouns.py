"""Sentences with a starred pronoun, in the original T5's forms of WSC and WNLI (arXiv:1910.10683, appendix B).

>>> mark_wsc_pronoun("Mark told Pete that he won .", 4, "he")
'Mark told Pete that *he* won .'
>>> mark_wnli_pronoun("The cup fell, so it broke.", "The cup broke.")
('The cup fell, so *it* broke.', 'The cup')
"""

import re

from t5suite.base.errors import DataError

WNLI_PRONOUNS = frozenset({"he", "she", "they", "it", "her", "his", "their", "them", "him"})
ARTICLES = ("a", "an", "the")
CLOSING_MARKS = ".,!?"

# Two sentences of WSC whose pronoun position is wrong in the data: sentence -> sentence with X for the pronoun.
_PONY = (
    "The boy continued to whip the pony , and eventually the pony threw him over. "
    'John laughed out quite loud. "Good for him," he said. '
)
_FARLEY = (
    "When they had eventually calmed down a bit , and had gotten home, Mr. Farley put the magic pebble in an iron "
    "safe . Some day they might want to use it , but really for now, what more could they wish for?"
)
MISPLACED_PRONOUNS = {
    _PONY: _PONY.replace("for him,", "for X ,").rstrip(" "),
    _FARLEY: _FARLEY.replace("use it ,", "use X ,"),
}


def mark_wsc_pronoun(text: str, index: int, pronoun: str) -> str:
    """WSC's sentence with its word at `index` starred; words are split at each space: two spaces enclose an empty word.

    >>> mark_wsc_pronoun("Mark told Pete that he won .", 4, "he")
    'Mark told Pete that *he* won .'

    The marking goes through a stand-alone `X`, so every other stand-alone X of the text is starred too, and a
    pronoun that ends the text leaves a space after it: both as in the original.

    Raises:
      DataError: `index` is outside the text or 0, or the word there is not `pronoun`.
    """
    if text in MISPLACED_PRONOUNS:
        with_placeholder = MISPLACED_PRONOUNS[text]
    else:
        words = text.split(" ")
        if not 0 < index < len(words):
            raise DataError(f"span2_index {index} is not between 1 and {len(words) - 1}, the last word of {text!r}")
        if words[index] != pronoun:
            raise DataError(f"word {index} of {text!r} is {words[index]!r}, but span2_text is {pronoun!r}")
        with_placeholder = " ".join([" ".join(words[:index]), "X", " ".join(words[index + 1 :])])
    return with_placeholder.replace(" X ", f" *{pronoun}* ")


def mark_wnli_pronoun(premise: str, hypothesis: str) -> tuple[str, str]:
    """The premise with its pronoun starred, and the phrase that the hypothesis puts in the pronoun's place.

    >>> mark_wnli_pronoun("The cup fell, so it broke.", "The cup broke.")
    ('The cup fell, so *it* broke.', 'The cup')

    As the original T5's released conversion does it (arXiv:1910.10683, appendix B), quirks included.

    Each pronoun of the premise is rated by how much of the words around it reappears in the hypothesis; the best
    one (the first of equals) is starred. The referent is the text between that matching context; it is empty
    where the hypothesis shares no context with the premise (once in WNLI's 71 validation rows).

    Raises:
      DataError: the premise has no pronoun.
    """
    premise_words = _plain_words(premise)
    hypothesis_words = _plain_words(hypothesis)
    positions = [i for i, word in enumerate(premise_words) if word in WNLI_PRONOUNS]
    if not positions:
        raise DataError(f"no pronoun ({', '.join(sorted(WNLI_PRONOUNS))}) in {premise!r}")
    contexts = {i: _matching_context(premise_words, i, hypothesis_words) for i in positions}
    best = max(positions, key=lambda i: sum(map(len, contexts[i])))
    before, after = contexts[best]
    referent = _text_between(before, after, " ".join(hypothesis_words))
    return _star_word(premise, best), _as_written(_from_last_article(referent), hypothesis)


def _plain_words(text: str) -> list[str]:
    """Lower-cased words, each without one closing mark."""
    words = (re.sub(r"[.,?!]$", "", word) for word in text.strip().lower().split(" "))
    return [word for word in words if word]


def _matching_context(words, position, hypothesis_words) -> tuple[list[str], list[str]]:
    """The longest run of words before `position`, and after it, that the hypothesis contains."""
    before = words[:position]
    after = words[position + 1 :]
    backwards = _shared_start(before[::-1], " ".join(hypothesis_words[::-1]))
    forwards = _shared_start(after, " ".join(hypothesis_words))
    return before[len(before) - backwards :], after[:forwards]


def _shared_start(words, text: str) -> int:
    """How many words from the start of `words`, joined by spaces, `text` contains."""
    for count in range(1, len(words) + 1):
        if " ".join(words[:count]) not in text:
            return count - 1
    return len(words)


def _text_between(before, after, text: str) -> str:
    """The part of `text` between the two contexts; else before the second, else after the first."""
    if not before and not after:
        return ""
    match = (
        _search(before, "(.+)", after, text) or _search([], "^(.+)", after, text) or _search(before, "(.+)$", [], text)
    )
    if match is None:
        return ""
    return match.group(1) or ""


def _search(before, gap: str, after, text: str) -> re.Match | None:
    """A gap between words in a text.

    As in the original, the words are read as regular expressions (so `$5` and `(so old)` do not match themselves), or
    literally if they are not valid ones.
    """
    try:
        return re.search(" ".join([*before, gap, *after]), text)
    except re.error:
        return re.search(" ".join([*map(re.escape, before), gap, *map(re.escape, after)]), text)


def _from_last_article(phrase: str) -> str:
    """The phrase from the article that starts furthest right; matching sometimes takes in too much before it."""
    words = phrase.split(" ")
    article_places = [words.index(article) for article in ARTICLES if article in words]
    return " ".join(words[max(article_places, default=0) :])


def _as_written(phrase: str, hypothesis: str) -> str:
    """The phrase in the hypothesis' own spelling, without closing mark or possessive ending."""
    pattern = " ".join(re.escape(word) + f"[{CLOSING_MARKS}]?" for word in phrase.split(" "))
    match = re.search(pattern, hypothesis, re.IGNORECASE)
    if not match:
        raise DataError(f"cannot find {phrase!r} in {hypothesis!r}")
    spelled = match.group(0)
    if spelled.endswith(tuple(CLOSING_MARKS)):
        spelled = spelled[:-1]
    return re.sub(r"('s|')$", "", spelled)


def _star_word(text: str, position: int) -> str:
    """Stars the word at `position`; a closing mark is separated by a space (`*it* .`)."""
    words = text.split(" ")
    word = words[position]
    if word.endswith(tuple(CLOSING_MARKS)):
        starred = f"*{word[:-1]}* {word[-1]}"
    else:
        starred = f"*{word}*"
    return " ".join([*words[:position], starred, *words[position + 1 :]])

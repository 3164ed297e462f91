"""Long texts are shortened before they are tokenized, where it is proved that the ids that are kept do not change.

    >>> texts = without_unread_part(t5_tokenizer, ["word " * 2_000_000], length=64)
    >>> len(texts[0])
    4094
    >>> t5_tokenizer(texts, max_length=64, truncation=True) == t5_tokenizer(whole_texts, max_length=64, truncation=True)
    True

A text may end at two kinds of places:

* **Before white space after another character**, if no token spans such a place: the pre-tokenizer divides there, or
  no piece of the vocabulary has a space inside. What stands before it is tokenized alone, whatever follows.
* **Anywhere in a word, for a Unigram model** (arXiv:1804.10959), which takes the likeliest division of the whole word.
  A division of any longer text has a border at one of `n` consecutive places, if no piece is longer than `n`
  characters, and its pieces before that border are the likeliest division of the text up to there. So the first ids are
  the same for every continuation if the texts that end at these `n` places have the same first ids.

Runs of white space are one division to a pre-tokenizer that splits at it, and a run of characters that no piece holds,
at the end of a word, is one unknown token to Unigram: they are condensed if the text's beginning has too few ids.

Any other text (BPE without spaces, a token of the user's that contains a space) stays whole, and takes its time: one
cell of 10 MB took 47 s and 3.7 GB, of which 64 tokens were kept.
"""

import functools
import itertools
import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

# Shorter texts, in characters, are tokenized whole.
LONG = 16_384
# Characters per token that the first attempt takes; each further one takes four times as many.
CHARACTERS_PER_TOKEN = 16
GROWTH = 4
# Characters before and behind which nothing composes with a place inside a word.
MARGIN = 16
# Characters per character of a normalized text among which consecutive places are looked for.
WINDOW = 3
# Tokenizers without a backend of `tokenizers` whose tokens are bytes: none spans two characters.
OF_BYTES = ("ByT5Tokenizer",)
SPACE_MARK = "▁"
SPACES = " \n\t"
# A place before white space: a combining mark must not follow.
PLACE = r"(?<=\S)[{}](?=\s|[^\W_])"
SPACE_RUN = re.compile(r"[ \n\t\r]{2,}")
# A character for private use, which no vocabulary has.
UNKNOWN = "\U0010fffd"
# Hangul's parts compose with each other though they are letters.
JAMO = re.compile("[\u1100-\u11ff\ua960-\ua97f\ud7b0-\ud7ff]")


class Divisions(NamedTuple):
    """Where a tokenizer's tokens never depend on what follows.

    Attributes:
      place: a pattern of the places before white space; None without any.
      drops_spaces: white space only divides, however long it is.
      longest_piece: characters of the longest piece of a Unigram model; None for other models.
      characters: those of which a Unigram model's pieces consist, if runs of others are one token; else None.
      added_tokens: tokens that are looked for in the text before anything else.
    """

    place: re.Pattern | None = None
    drops_spaces: bool = False
    longest_piece: int | None = None
    characters: frozenset[str] | None = None
    added_tokens: tuple[str, ...] = ()


def without_unread_part(tokenizer, texts: Sequence[str], length: int, kept_end: int = 0) -> list[str]:
    """The texts; a long one without a part that has no effect on its first `length` ids and last `kept_end` ids.

    A text that lost its end still has more than `length` ids, without special tokens.
    """
    return [_shortened(tokenizer, text, length, kept_end) if len(text) > LONG else text for text in texts]


def _shortened(tokenizer, text: str, length: int, kept_end: int) -> str:
    divisions = divisions_of(tokenizer, len(tokenizer))
    if divisions.place is None and divisions.longest_piece is None:
        return text
    size = max(LONG // 4, CHARACTERS_PER_TOKEN * length)
    is_condensed = False
    while size < len(text) // 2:
        tail = _tail(tokenizer, divisions, text, size, kept_end)
        head = None if tail is None else _head(tokenizer, divisions, text[: len(text) - len(tail)], size, length)
        if head is not None:
            return head + tail
        if is_condensed:
            size *= GROWTH
        else:
            text = condensed(text, divisions, tokenizer)
            is_condensed = True
    return text


def _head(tokenizer, divisions: Divisions, text: str, size: int, length: int) -> str | None:
    """The beginning of a text, at most `size` characters, if its first ids are the text's."""
    end = _last_place(divisions, text, size // 2, size)
    if end is not None:
        return text[:end] if _count(tokenizer, text[:end]) > length else None
    if divisions.longest_piece and _count(tokenizer, text[:size]) > length:
        return text[:size] if _is_settled(tokenizer, divisions, text, size, length) else None
    return None


def _tail(tokenizer, divisions: Divisions, text: str, size: int, kept_end: int) -> str | None:
    """The end of a text that has its last `kept_end` ids; None if it has no place to begin at, or too few ids."""
    if not kept_end:
        return ""
    start = _last_place(divisions, text, len(text) - size, len(text) - size // 2)
    is_enough = start is not None and _count(tokenizer, text[start:]) >= kept_end
    return text[start:] if is_enough else None


def _last_place(divisions: Divisions, text: str, start: int, end: int) -> int | None:
    places = () if divisions.place is None else divisions.place.finditer(text, start, end)
    return max((match.start() for match in places), default=None)


def _is_settled(tokenizer, divisions: Divisions, text: str, size: int, length: int) -> bool:
    """Whether the first ids of a text do not depend on what follows character `size`, which is inside a word."""
    longest = divisions.longest_piece
    start = max(0, size - WINDOW * longest - MARGIN)
    around = text[start : size + MARGIN]
    # Control tokens are spelled out where a text holds them (`tokens`), which divides a word in another way.
    longest_token = max(map(len, divisions.added_tokens), default=0)
    near = text[: size + longest_token]
    if any(character.isspace() or character == SPACE_MARK for character in around):
        return False
    if any(token in near for token in divisions.added_tokens):
        return False
    places = consecutive_places(around, longest, tokenizer.backend_tokenizer.normalizer)
    if places is None:
        return False
    ends = [text[: start + place] for place in places]
    rows = tokenizer(ends, add_special_tokens=False, verbose=False)["input_ids"]
    return all(len(row) > length and row[:length] == rows[0][:length] for row in rows)


def consecutive_places(text: str, count: int, normalizer) -> list[int] | None:
    """Places inside a text that are `count` consecutive ones of its normalized form; None if it has no such places.

    >>> consecutive_places("e\u0301" * 20, 2, nfc)          # not between a letter and its accent
    [24, 22]

    The first and the last MARGIN characters may compose with what surrounds the text: no place is there.
    """
    inside = range(len(text) - MARGIN, MARGIN - 1, -1)
    if normalizer is None:
        return list(inside)[:count] if len(inside) >= count else None
    normalized = normalizer.normalize_str(text)
    place_by_length: dict[int, int] = {}
    for place in inside:
        beginning = normalizer.normalize_str(text[:place])
        if beginning + normalizer.normalize_str(text[place:]) == normalized:
            place_by_length.setdefault(len(beginning), place)
    longest = max(place_by_length, default=0)
    lengths = range(longest, longest - count, -1)
    if not all(length in place_by_length for length in lengths):
        return None
    return [place_by_length[length] for length in lengths]


def condensed(text: str, divisions: Divisions, tokenizer) -> str:
    """The text with shorter runs of white space and of unknown characters, which has the same ids.

    >>> condensed("one  \\n two 你好世界", divisions_of(t5_tokenizer, 32100), t5_tokenizer)
    'one two 界'
    """
    if not divisions.drops_spaces:
        return text
    text = SPACE_RUN.sub(" ", text)
    if divisions.characters is None or text.isascii():
        return text
    in_tokens = set(itertools.chain.from_iterable(divisions.added_tokens))
    unknown = [c for c in set(text) - divisions.characters - in_tokens if _stays_unknown(c, tokenizer)]
    if not unknown:
        return text
    # Only at the end of a word: sums of scores behind the run would be rounded otherwise, which decides ties. The last
    # character stays, as a mark that follows may compose with it.
    of_run = f"[{re.escape(''.join(unknown))}]"
    return re.sub(f"(?<!{of_run}){of_run}{{2,}}(?=\\s|$)", lambda match: match[0][-1], text)


def _stays_unknown(character: str, tokenizer) -> bool:
    """Whether the normalizer leaves a character as it is, alone and after another one."""
    if unicodedata.category(character)[0] not in "LNPS" or JAMO.match(character):
        return False
    normalizer = tokenizer.backend_tokenizer.normalizer
    return normalizer is None or normalizer.normalize_str(f"a{character}a") == f"a{character}a"


def _count(tokenizer, text: str) -> int:
    return len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


@functools.lru_cache(maxsize=8)
def divisions_of(tokenizer, vocabulary_size: int) -> Divisions:
    """The places of a tokenizer, by what its parts are and what its vocabulary holds.

    Args:
      vocabulary_size: `len(tokenizer)`, which tokens of the user's change.
    """
    added_tokens = tuple(token.content for token in tokenizer.added_tokens_decoder.values())
    if any(character.isspace() for character in itertools.chain.from_iterable(added_tokens)):
        return Divisions()
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        is_of_bytes = type(tokenizer).__name__ in OF_BYTES
        return Divisions(place_before(SPACES) if is_of_bytes else None, added_tokens=added_tokens)
    pieces = backend.get_vocab(with_added_tokens=False)
    place = place_before(_dividing_spaces(backend, pieces))
    if type(backend.model).__name__ != "Unigram":
        return Divisions(place, added_tokens=added_tokens)
    characters = frozenset(itertools.chain.from_iterable(pieces))
    is_fused = UNKNOWN not in characters and len(backend.model.tokenize(UNKNOWN * 2)) == 1
    return Divisions(
        place,
        drops_spaces=_divides(backend, " \n\t  "),
        longest_piece=max(map(len, pieces), default=1),
        characters=characters if is_fused else None,
        added_tokens=added_tokens,
    )


def place_before(spaces: str) -> re.Pattern | None:
    """A pattern of the places before any of these characters; None without any."""
    return re.compile(PLACE.format(spaces)) if spaces else None


def _dividing_spaces(backend, pieces) -> str:
    """The white space that no token spans: what the pre-tokenizer divides at, else a space that no piece holds."""
    spaces = "".join(space for space in SPACES if _divides(backend, space))
    if spaces:
        return spaces
    has_inner_space = any(SPACE_MARK in piece.lstrip(SPACE_MARK) for piece in pieces)
    return "" if has_inner_space else " "


def _divides(backend, space: str) -> bool:
    """Whether the pre-tokenizer divides two words, or two numbers, into two at white space."""
    if backend.pre_tokenizer is None:
        return False
    texts = (f"ab{space}cd", f"1{space}2")
    normalized = [backend.normalizer.normalize_str(text) if backend.normalizer else text for text in texts]
    return all(len(backend.pre_tokenizer.pre_tokenize_str(text)) == 2 for text in normalized)

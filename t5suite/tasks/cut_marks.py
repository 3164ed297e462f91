"""Marks in texts that are shown to people, where a model stops reading.

>>> with_cut(byt5, "It rains.", room=2)
'It [cut: 7 more tokens]  rains.'
>>> without_cut("It [cut: 7 more tokens]  rains.")
'It rains.'
"""

import re

from t5suite.tasks.tokens import control_names, encoded, holds, spelling_backend

CUT_TOKENS = "cut_tokens"  # the column of rows that `t5suite predict` wrote, in which one counts
CUT_MARK = re.compile(r" \[cut: \d+ more tokens\] ")


def cut_mark(count: int) -> str:
    """The mark before the tokens that are not read.

    >>> cut_mark(7)
    ' [cut: 7 more tokens] '
    """
    return f" [cut: {count} more tokens] "


def with_cut(tokenizer, text: str, room: int, kept_end: int = 0, template: str = "") -> str:
    """A whole text, with a mark where it is cut for being longer than `room` tokens (those around it not counted).

    >>> with_cut(byt5, "It rains.", room=2)
    'It [cut: 7 more tokens]  rains.'

    The mark alone has a space on both sides, so that the text without it is the row's own.

    Args:
      kept_end: how many last tokens are read in spite of the cut: sentinels at the text's end.
    """
    cut_count = num_cut(tokenizer, text, room, kept_end, template)
    if not cut_count:
        return text
    place = place_after(tokenizer, text, max(room - kept_end, 0), template)
    return text[:place] + cut_mark(cut_count) + text[place:]


def num_cut(tokenizer, text: str, room: int, kept_end: int = 0, template: str = "") -> int:
    """How many tokens of a text are not read for being beyond `room`; arguments as `with_cut`.

    >>> num_cut(byt5, "It rains.", room=2), num_cut(byt5, "It rains.", room=9)
    (7, 0)
    """
    count = _count_tokens(tokenizer, text, template)
    return count - max(room, kept_end) if count > room else 0


def without_cut(text: str) -> str:
    """A text without the mark.

    >>> without_cut("It [cut: 7 more tokens]  rains.")
    'It rains.'
    """
    return CUT_MARK.sub("", text)


def _count_tokens(tokenizer, text: str, template: str) -> int:
    row = encoded(tokenizer, [text], template=template, add_special_tokens=False, verbose=False)
    return len(row["input_ids"][0])


def place_after(tokenizer, text: str, token_count: int, template: str = "") -> int:
    """The character at which the text's first tokens end.

    >>> place_after(byt5, "It rains.", 2)
    2
    """
    if getattr(tokenizer, "is_fast", False):
        offsets = _offsets(tokenizer, text, template)
        return offsets[token_count - 1][1] if token_count else 0
    # The longest beginning of at most so many tokens, by bisection.
    low = 0
    high = len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if _count_tokens(tokenizer, text[:middle], template) <= token_count:
            low = middle
        else:
            high = middle - 1
    return low


def _offsets(tokenizer, text: str, template: str) -> list[tuple[int, int]]:
    """Where each token of a text starts and ends."""
    names = control_names(tokenizer, template)
    if holds(text, names):
        return spelling_backend(tokenizer, names).encode(text, add_special_tokens=False).offsets
    return tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)["offset_mapping"]

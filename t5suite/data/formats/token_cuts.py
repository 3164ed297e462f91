"""Texts cut by tokens: their first, their last, or pieces of a given length, as texts again.

    >>> first_tokens("The centre of the city is old.", 3, tokenizer)
    'The centre of'

A fast tokenizer says which characters a token covers, so that a cut keeps every character as it is; for others the
tokens are decoded.
"""

import re


def first_tokens(text: str, count: int, tokenizer) -> str:
    """The text of the first `count` tokens."""
    return _between(text, 0, max(count, 0), tokenizer)


def last_tokens(text: str, count: int, tokenizer) -> str:
    """The text of the last `count` tokens."""
    total = len(_ids(text, tokenizer))
    return _between(text, max(total - max(count, 0), 0), total, tokenizer)


def pieces(text: str, count: int, tokenizer) -> list[str]:
    """The text in pieces, one behind the other, each of `count` tokens at most when it is tokenized by itself.

    >>> pieces("a b c d e", 2, word_tokenizer)
    ['a b', ' c d', ' e']
    """
    starts = _token_starts(text, tokenizer)
    found, at = [], 0
    while at < len(starts):
        size = min(count, len(starts) - at)
        piece = _piece(text, starts, at, size)
        while size > 1 and len(_ids(piece, tokenizer)) > count:
            size -= 1
            piece = _piece(text, starts, at, size)
        found.append(piece)
        at += size
    return found


def _piece(text: str, starts: list[int], at: int, size: int) -> str:
    """From the start of token `at` to that of token `at + size`, so that pieces make up the whole text."""
    end = starts[at + size] if at + size < len(starts) else len(text)
    return text[0 if at == 0 else starts[at] : end]


def _token_starts(text: str, tokenizer) -> list[int]:
    """Where each token begins in the text; for a tokenizer that does not know, where each word does."""
    if tokenizer.is_fast:
        return [
            start
            for start, _ in tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        ]
    return [match.start() for match in re.finditer(r"\S+", text)]


def count_tokens(text: str, tokenizer) -> int:
    """Tokens of a text, end-of-sequence and the like not counted."""
    return len(_ids(text, tokenizer))


def _ids(text: str, tokenizer) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def _between(text: str, start: int, end: int, tokenizer) -> str:
    if start >= end:
        return ""
    if not tokenizer.is_fast:
        ids = _ids(text, tokenizer)
        return text if end >= len(ids) and start == 0 else tokenizer.decode(ids[start:end])
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    if end >= len(offsets):
        return text if start == 0 else text[offsets[start][0] :]
    return text[0 if start == 0 else offsets[start][0] : offsets[end - 1][1]]

"""Texts cut by tokens: their first, their last, or pieces of a given length, as texts again.

    >>> first_tokens("The centre of the city is old.", 3, tokenizer)
    'The centre of'

A fast tokenizer says which characters a token covers, so that a cut keeps every character as it is; for others the
tokens are decoded.
"""


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
    found, rest = [], text
    while rest.strip():
        size = count
        piece = first_tokens(rest, size, tokenizer)
        while size > 1 and len(_ids(piece, tokenizer)) > count:
            size -= 1
            piece = first_tokens(rest, size, tokenizer)
        if not piece or not rest.startswith(piece):
            return [*found, rest]
        found.append(piece)
        rest = rest[len(piece) :]
    return found


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

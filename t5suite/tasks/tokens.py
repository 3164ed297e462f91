"""Texts -> token ids, in which control tokens that a text happens to hold are text.

    >>> encoded(byt5, ["a</s>"])["input_ids"]           # "a", "<", "/", "s", ">", and the end of the sequence
    [[100, 63, 50, 118, 65, 1]]
    >>> byt5(["a</s>"])["input_ids"]
    [[100, 1, 1]]

A row with `</s>`, `<pad>`, `<unk>`, `[SEP]` or `<|endoftext|>` in it (HTML, say) must not end a sequence: T5's own
SentencePiece spells such text out. Tokens that stand for something in a text stay tokens: sentinels, mask tokens,
languages' codes, marks that were added to a vocabulary. So do control tokens that are written in the task's own prefix
and forms. Texts without a control token get exactly the tokenizer's ids.
"""

import functools
import itertools
import json
import re
import unicodedata
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

# The tokens that frame sequences, by their names in transformers; `mask` stands for something in a text.
CONTROL_NAMES = ("bos", "eos", "unk", "sep", "pad", "cls")
# Some vocabularies pad with a common piece, such as `!`: only what is written as a mark counts.
MARK = re.compile(r"[<\[{|].+[>\]}|]", re.DOTALL)
HIDDEN = "\0\0"  # cannot be typed, and T5's normalizer removes it
_spelling_backends: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def control_names(tokenizer, template: str = "") -> tuple[str, ...]:
    """The control tokens that count as text in a row: all but those in the task's own `template`.

    >>> control_names(t5_tokenizer), control_names(t5_tokenizer, "__input__ </s>")
    (('</s>', '<unk>', '<pad>'), ('<unk>', '<pad>'))
    """
    names = [getattr(tokenizer, f"{name}_token", None) for name in CONTROL_NAMES]
    return tuple(dict.fromkeys(name for name in names if name and MARK.fullmatch(name) and name not in template))


def encoded(tokenizer, texts=None, pairs=None, *, template: str = "", text_target=None, **settings) -> dict:
    """As `tokenizer(...)` of a list of texts (or `text_target`): `input_ids`, and `token_type_ids` where it gives them.

    Args:
      pairs: the second text of each, for encoders.
      template: the task's own texts around rows, whose control tokens stay tokens.
      settings: `max_length` with `truncation`, `add_special_tokens`, `verbose`.
    """
    side = "text" if text_target is None else "text_target"
    parts = [texts if text_target is None else text_target]
    if pairs is not None:
        parts.append(pairs)
    names = control_names(tokenizer, template)
    spelled = [any(holds(text, names) for text in row) for row in zip(*parts, strict=True)]
    if not any(spelled):
        return _called(tokenizer, side, *parts, **settings)
    plain_parts = [list(itertools.compress(part, [not is_spelled for is_spelled in spelled])) for part in parts]
    plain_rows = _rows_of(_called(tokenizer, side, *plain_parts, **settings)) if plain_parts[0] else iter(())
    spelling = Spelling(tokenizer, names, side)
    frame = spelling.frame(len(parts))
    rows = []
    for row, is_spelled in zip(zip(*parts, strict=True), spelled, strict=True):
        if is_spelled:
            rows.append(framed([spelling.ids(text) for text in row], frame, **settings))
        else:
            rows.append(next(plain_rows))
    return {column: [row[column] for row in rows] for column in rows[0]}


def _rows_of(columns) -> Iterator[dict]:
    """A tokenizer's columns -> rows of those that models read."""
    names = [name for name in ("input_ids", "token_type_ids") if name in columns]
    for values in zip(*(columns[name] for name in names), strict=True):
        yield dict(zip(names, values, strict=True))


def _called(tokenizer, name: str, first, *second, **settings) -> dict:
    return tokenizer(text_target=first, **settings) if name == "text_target" else tokenizer(first, *second, **settings)


def holds(text: str, names: Sequence[str]) -> bool:
    """Whether a text, as a vocabulary may normalize it, holds one of the names.

    >>> holds("a </s> b", ("</s>",)), holds("a ＜/s＞ b", ("</s>",)), holds("a <b> c", ("</s>",))
    (True, True, False)
    """
    if not text.isascii():
        normal = unicodedata.normalize("NFKC", text)
        text = f"{text}\n{INVISIBLE.sub('', normal)}"
    return any(name in text for name in names)


INVISIBLE = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f\u00ad\u200b-\u200f\u2060\ufeff]")


class Frame(NamedTuple):
    """The special tokens before, between and after texts, and each part's token type (None: the model has none)."""

    around: list[list[int]]
    types: list[list[int]] | None
    text_types: list[int] | None


class Spelling:
    """A tokenizer that spells control tokens out.

    Args:
      names: those tokens.
      side: `text`, or `text_target` for tokenizers that write another language than they read.
    """

    def __init__(self, tokenizer, names: Sequence[str], side: str = "text"):
        self.tokenizer, self.names, self.side = tokenizer, tuple(names), side

    @functools.cached_property
    def backend(self):
        """`spelling_backend`: None for a tokenizer written in Python."""
        return spelling_backend(self.tokenizer, self.names)

    def ids(self, text: str) -> list[int]:
        """The ids of a text, without the tokens around it."""
        if self.backend is not None:
            return self.backend.encode(text, add_special_tokens=False).ids
        ids = []
        for part, is_token in parts_of(text, tokens_in_text(self.tokenizer, self.names)):
            if is_token:
                ids.append(self.tokenizer.convert_tokens_to_ids(part))
            elif part:
                settings = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
                ids += _called(self.tokenizer, self.side, [part], **settings)["input_ids"][0]
        return ids

    def frame(self, count: int) -> Frame:
        """What the tokenizer puts around `count` texts (1 or 2)."""
        probes = [["a"], ["b"]][:count]
        bare = [_called(self.tokenizer, self.side, probe, add_special_tokens=False)["input_ids"][0] for probe in probes]
        whole = _called(self.tokenizer, self.side, *probes)
        ids = list(whole["input_ids"][0])
        types = list(whole["token_type_ids"][0]) if "token_type_ids" in whole else None
        around, around_types, text_types, at = [], [], [], 0
        for part in bare:
            start = next(i for i in range(at, len(ids) + 1) if ids[i : i + len(part)] == list(part))
            around.append(ids[at:start])
            around_types.append(types[at:start] if types else [])
            text_types.append(types[start] if types else 0)
            at = start + len(part)
        around.append(ids[at:])
        around_types.append(types[at:] if types else [])
        return Frame(around, around_types if types else None, text_types if types else None)


def framed(
    parts: list[list[int]], frame: Frame, max_length=None, truncation=False, add_special_tokens=True, **_
) -> dict:
    """One row of texts' ids with the tokens around them, the longer text cut first as transformers does.

    >>> framed([[5, 6, 7]], Frame([[], [1]], None, None), max_length=3, truncation=True)
    {'input_ids': [5, 6, 1]}
    """
    around = frame.around if add_special_tokens else [[] for _ in frame.around]
    if truncation and max_length is not None:
        room = max_length - sum(map(len, around))
        parts = [part[:size] for part, size in zip(parts, sizes_after_cut([*map(len, parts)], room), strict=True)]
    ids, types = list(around[0]), list(frame.types[0]) if frame.types else []
    for place, part in enumerate(parts):
        ids += [*part, *around[place + 1]]
        if frame.types:
            types += [frame.text_types[place]] * len(part) + (frame.types[place + 1] if add_special_tokens else [])
    return {"input_ids": ids, **({"token_type_ids": types} if frame.types else {})}


def sizes_after_cut(sizes: list[int], room: int) -> list[int]:
    """How much of each text is kept: the longer loses tokens until both fit; where they are equal, the first.

    >>> sizes_after_cut([10], 4), sizes_after_cut([10, 3], 8), sizes_after_cut([9, 9], 7)
    ([4], [5, 3], [3, 4])
    """
    if len(sizes) == 1:
        return [min(sizes[0], max(room, 0))]
    shorter, longer = sorted(sizes)
    if shorter + longer > room:
        longer = max(shorter, room - shorter)
        if shorter + longer > room:
            shorter, longer = room // 2, room - room // 2
    return [shorter, longer] if sizes[0] <= sizes[1] else [longer, shorter]


def spelling_backend(tokenizer, names: tuple[str, ...]):
    """A `tokenizers.Tokenizer` that has no such control tokens; None for a tokenizer written in Python."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    key = (names, backend.get_vocab_size(with_added_tokens=True))
    cached = _spelling_backends.get(tokenizer)
    if cached is None or cached[0] != key:
        cached = (key, tokenizer_of(without_names(backend.to_str(), names)))
        _spelling_backends[tokenizer] = cached
    return cached[1]


def without_names(backend: str, names: Sequence[str]) -> str:
    """A `tokenizers` JSON in which these tokens keep their ids, under names that no text holds."""
    settings = json.loads(backend)
    settings["truncation"] = settings["padding"] = None
    hidden: Callable[[str], str] = lambda piece: f"{HIDDEN}{piece}" if piece in names else piece
    for token in settings["added_tokens"]:
        if token["content"] in names:
            token |= {"content": hidden(token["content"]), "normalized": False}
    model = settings["model"]
    if isinstance(model["vocab"], list):  # unigram: [piece, score]; <unk> is known by its number
        model["vocab"] = [[hidden(piece), score] for piece, score in model["vocab"]]
    else:
        model["vocab"] = {hidden(piece): number for piece, number in model["vocab"].items()}
        if model.get("unk_token") is not None:
            model["unk_token"] = hidden(model["unk_token"])
    return json.dumps(settings)


def tokenizer_of(backend: str):
    """The `tokenizers.Tokenizer` of a JSON, with exactly the scores in it.

    `tokenizers` 0.23 reads some of them wrong in the last bit (serde_json), so it breaks ties such as `-------`
    differently from the process that wrote them (test_runs_of_one_character).
    """
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_str(backend)
    model = json.loads(backend)["model"]
    if model["type"] == "Unigram" and not model.get("alpha"):
        pieces = [tuple(piece) for piece in model["vocab"]]
        tokenizer.model = tokenizers.models.Unigram(pieces, model["unk_id"], model.get("byte_fallback", False))
    return tokenizer


def tokens_in_text(tokenizer, names: Sequence[str]) -> dict:
    """The added tokens of a tokenizer written in Python that stay tokens in a text, by their text."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    return {token.content: token for token in added if token.content not in names}


def parts_of(text: str, tokens: dict) -> list[tuple[str, bool]]:
    """`(part, whether it is one of the tokens)` of a text; tokens take the spaces that they absorb.

    >>> parts_of("a <x> b", {"<x>": AddedToken("<x>", lstrip=True)})
    [('a', False), ('<x>', True), (' b', False)]
    """
    if not tokens:
        return [(text, False)]
    longest_first = sorted(tokens, key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, longest_first))})", text)
    for at in range(1, len(parts), 2):
        token = tokens[parts[at]]
        if token.lstrip:
            parts[at - 1] = parts[at - 1].rstrip()
        if token.rstrip:
            parts[at + 1] = parts[at + 1].lstrip()
    return [(part, bool(at % 2)) for at, part in enumerate(parts)]


# Where a model stops reading a text that is shown whole.
CUT_MARK = re.compile(r" \[cut: \d+ more tokens\] ")


def cut_mark(count: int) -> str:
    """The mark before the tokens that are not read.

    >>> cut_mark(7)
    ' [cut: 7 more tokens] '
    """
    return f" [cut: {count} more tokens] "


def with_cut(tokenizer, text: str, room: int, kept: int = 0, template: str = "") -> str:
    """A whole text, with a mark where it is cut for being longer than `room` tokens (those around it not counted).

    >>> with_cut(byt5, "It rains.", room=2)
    'It [cut: 7 more tokens]  rains.'

    The mark alone has a space on both sides, so that the text without it is the row's own.

    Args:
      kept: how many last tokens are read in spite of the cut: sentinels at the text's end.
    """
    count = len(encoded(tokenizer, [text], template=template, add_special_tokens=False, verbose=False)["input_ids"][0])
    if count <= room:
        return text
    at = _cut_place(tokenizer, text, max(room - kept, 0), template)
    return text[:at] + cut_mark(count - max(room, kept)) + text[at:]


def without_cut(text: str) -> str:
    """A text without the mark.

    >>> without_cut("It [cut: 7 more tokens]  rains.")
    'It rains.'
    """
    return CUT_MARK.sub("", text)


def _cut_place(tokenizer, text: str, room: int, template: str) -> int:
    """The character at which the text's first `room` tokens end."""
    if getattr(tokenizer, "is_fast", False):
        names = control_names(tokenizer, template)
        if holds(text, names):
            offsets = spelling_backend(tokenizer, names).encode(text, add_special_tokens=False).offsets
        else:
            settings = {"add_special_tokens": False, "return_offsets_mapping": True, "verbose": False}
            offsets = tokenizer(text, **settings)["offset_mapping"]
        return offsets[room - 1][1] if room else 0
    low, high = 0, len(text)  # the longest start of at most `room` tokens
    while low < high:
        middle = (low + high + 1) // 2
        start = encoded(tokenizer, [text[:middle]], template=template, add_special_tokens=False, verbose=False)
        if len(start["input_ids"][0]) <= room:
            low = middle
        else:
            high = middle - 1
    return low

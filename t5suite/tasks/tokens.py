"""Texts -> token ids, in which control tokens that a text happens to hold are text.

    >>> encoded(byt5, ["a</s>"])["input_ids"]           # "a", "<", "/", "s", ">", and the end of the sequence
    [[100, 63, 50, 118, 65, 1]]
    >>> byt5(["a</s>"])["input_ids"]
    [[100, 1, 1]]

A row with `</s>`, `<pad>`, `<unk>`, `[SEP]` or `<|endoftext|>` in it (HTML, say) must not end a sequence: T5's own
SentencePiece spells such text out. Tokens that stand for something in a text stay tokens: sentinels, mask tokens,
languages' codes, marks that were added to a vocabulary. So do control tokens that are written in the task's own prefix
and forms. Texts without a control token get exactly the tokenizer's ids. `cut_ids` and `target_ids` bound their number.
"""

import functools
import itertools
import json
import re
import unicodedata
import weakref
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from t5suite.tasks.long_texts import without_unread_part

# The tokens that frame sequences, by their names in transformers; `mask` stands for something in a text.
CONTROL_NAMES = ("bos", "eos", "unk", "sep", "pad", "cls")
# Some vocabularies pad with a common piece, such as `!`: only what is written as a mark counts.
MARK = re.compile(r"[<\[{|].+[>\]}|]", re.DOTALL)
# More special tokens than a tokenizer puts around a text.
LONGEST_FRAME = 8
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
    rows = list(zip(*parts, strict=True))
    names = control_names(tokenizer, template)
    are_spelled = [any(holds(text, names) for text in row) for row in rows]
    if not any(are_spelled):
        return _called(tokenizer, side, *parts, **settings)
    plain_rows: Iterator[dict] = iter(())
    if not all(are_spelled):
        are_plain = [not is_spelled for is_spelled in are_spelled]
        plain_parts = [list(itertools.compress(part, are_plain)) for part in parts]
        plain_rows = _rows_of(_called(tokenizer, side, *plain_parts, **settings))
    spelling = Spelling(tokenizer, names, side)
    frame = spelling.frame(len(parts))
    encoded_rows = []
    for row, is_spelled in zip(rows, are_spelled, strict=True):
        if is_spelled:
            encoded_rows.append(framed([spelling.ids(text) for text in row], frame, **settings))
        else:
            encoded_rows.append(next(plain_rows))
    return {column: [row[column] for row in encoded_rows] for column in encoded_rows[0]}


def _rows_of(columns) -> Iterator[dict]:
    """A tokenizer's columns -> rows of those that models read."""
    names = [name for name in ("input_ids", "token_type_ids") if name in columns]
    for values in zip(*(columns[name] for name in names), strict=True):
        yield dict(zip(names, values, strict=True))


def _called(tokenizer, name: str, first, *second, **settings) -> dict:
    return tokenizer(text_target=first, **settings) if name == "text_target" else tokenizer(first, *second, **settings)


def target_ids(tokenizer, max_length: int, kept_end: int, texts: list[str], template: str) -> list:
    """Targets as ids of at most `max_length`, each with end-of-sequence; long ones are cut as by `cut_ids`.

    >>> target_ids(gemma, 16, 0, ["positive"], template="")               # "positive<eos>"
    [[30843, 1]]
    >>> gemma(["positive"])["input_ids"]                                  # "<bos>positive"
    [[2, 30843]]

    Where the tokenizer itself ends no text, as Gemma's, its <bos> is left out, too: T5Gemma's decoder starts with it.
    """
    end = tokenizer.eos_token_id
    if end is None or _ends_texts(tokenizer):
        return cut_ids(tokenizer, max_length, kept_end, text_target=texts, template=template)
    texts = without_unread_part(tokenizer, texts, max_length, kept_end)
    settings = {"template": template, "add_special_tokens": False, "verbose": False}
    rows = encoded(tokenizer, text_target=texts, **settings)["input_ids"]
    return [_cut([*row, end], max_length, num_last=kept_end) for row in rows]


def _ends_texts(tokenizer) -> bool:
    """Whether a tokenizer puts its end token after a target, or before the language code at its end (mBART's)."""
    (ids,) = cut_ids(tokenizer, LONGEST_FRAME, 0, text_target=[""])
    return tokenizer.eos_token_id in ids


def cut_ids(tokenizer, max_length: int, kept_end: int, texts=None, *, text_target=None, template: str = "") -> list:
    """Texts, or `text_target`, as ids of at most `max_length`.

    One that is cut keeps its last `kept_end` tokens before end-of-sequence. Control tokens in them are text, but for
    those of `template` (`encoded`).

    >>> cut_ids(t5, 4, 1, text_target=["<extra_id_0> cat sat on"])      # "<extra_id_0> cat on</s>"
    [[32099, 1712, 30, 1]]
    """
    if texts is not None:
        texts = without_unread_part(tokenizer, texts, max_length, kept_end)
    if text_target is not None:
        text_target = without_unread_part(tokenizer, text_target, max_length, kept_end)
    sides = {"texts": texts, "text_target": text_target, "template": template}
    if not kept_end:
        return encoded(tokenizer, **sides, max_length=max_length, truncation=True)["input_ids"]
    rows = encoded(tokenizer, **sides, verbose=False)["input_ids"]
    return [_cut(row, max_length, num_last=kept_end) for row in rows]


def _cut(row: list[int], max_length: int, num_last: int) -> list[int]:
    """Ids of at most `max_length`: the first ones, the last `num_last` before end-of-sequence, and that."""
    if len(row) <= max_length:
        return row
    end = min(num_last + 1, max_length)
    return [*row[: max_length - end], *row[-end:]]


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
        self.tokenizer = tokenizer
        self.names = tuple(names)
        self.side = side

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
        whole_row = _called(self.tokenizer, self.side, *probes)
        ids = list(whole_row["input_ids"][0])
        spans = _spans_of(bare, ids)
        around = _outside(ids, spans)
        if "token_type_ids" not in whole_row:
            return Frame(around, None, None)
        types = list(whole_row["token_type_ids"][0])
        return Frame(around, _outside(types, spans), [types[start] for start, _ in spans])


def _spans_of(parts: Sequence[Sequence[int]], ids: list[int]) -> list[tuple[int, int]]:
    """Start and end of each part in the ids, one behind the other."""
    spans = []
    end = 0
    for part in parts:
        start = next(i for i in range(end, len(ids) + 1) if ids[i : i + len(part)] == list(part))
        end = start + len(part)
        spans.append((start, end))
    return spans


def _outside(values: list[int], spans: list[tuple[int, int]]) -> list[list[int]]:
    """What is before, between and after the spans."""
    starts = [0, *(end for _, end in spans)]
    ends = [*(start for start, _ in spans), len(values)]
    return [values[start:end] for start, end in zip(starts, ends, strict=True)]


def framed(
    parts: list[list[int]], frame: Frame, max_length=None, truncation=False, add_special_tokens=True, **_
) -> dict:
    """One row of texts' ids with the tokens around them, the longer text cut first as transformers does.

    >>> framed([[5, 6, 7]], Frame([[], [1]], None, None), max_length=3, truncation=True)
    {'input_ids': [5, 6, 1]}
    """
    nothing_around = [[] for _ in frame.around]
    around = frame.around if add_special_tokens else nothing_around
    if truncation and max_length is not None:
        room = max_length - sum(map(len, around))
        sizes = sizes_after_cut([len(part) for part in parts], room)
        parts = [part[:size] for part, size in zip(parts, sizes, strict=True)]
    row = {"input_ids": _interleaved(around, parts)}
    if frame.types is not None:
        types_around = frame.types if add_special_tokens else nothing_around
        types = [[text_type] * len(part) for text_type, part in zip(frame.text_types, parts, strict=True)]
        row["token_type_ids"] = _interleaved(types_around, types)
    return row


def _interleaved(around: list[list[int]], parts: list[list[int]]) -> list[int]:
    """The parts, with what stands before, between and after them."""
    values = list(around[0])
    for part, after in zip(parts, around[1:], strict=True):
        values += [*part, *after]
    return values


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
        shorter = room // 2
        longer = room - shorter
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

    def hidden(piece: str) -> str:
        return f"{HIDDEN}{piece}" if piece in names else piece

    settings = json.loads(backend)
    settings["truncation"] = None
    settings["padding"] = None
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
    for place in range(1, len(parts), 2):
        token = tokens[parts[place]]
        if token.lstrip:
            parts[place - 1] = parts[place - 1].rstrip()
        if token.rstrip:
            parts[place + 1] = parts[place + 1].lstrip()
    return [(part, place % 2 == 1) for place, part in enumerate(parts)]

"""Examples -> token ids of bounded length, and generated ids -> texts.

>>> tokenize_rows({"sentence": ["Good."], "label": [1]}, task=sst2, tokenizer=t5, lengths=Lengths(512, 16))
{'input_ids': [[3, 7, 7, 17, 357, 7142, 10, 1804, 5, 1]], 'labels': [[1465, 1]]}
>>> decode_ids([[0, 1465, 1, -100, -100]], t5)
['positive']
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from t5suite.tasks.formatters import Example
from t5suite.tasks.long_texts import without_unread_part
from t5suite.tasks.tokens import encoded

# The label of a position that the loss ignores.
IGNORED_ID = -100
# More special tokens than a tokenizer puts around a text.
LONGEST_FRAME = 8


class Lengths(NamedTuple):
    """The longest sequences, in tokens, with end-of-sequence; a cut one keeps its `kept_end` tokens before it."""

    source: int
    target: int
    kept_end: int = 0


def tokenize_rows(rows: dict[str, list], *, task, tokenizer, lengths: Lengths, split: str = "train") -> dict:
    """A batch of rows, by column -> ragged `input_ids` and `labels`, one of each per example.

    >>> tokenize_rows({"sentence": ["Good."], "label": [1]}, task=sst2, tokenizer=t5, lengths=Lengths(512, 16))
    {'input_ids': [[3, 7, 7, 17, 357, 7142, 10, 1804, 5, 1]], 'labels': [[1465, 1]]}

    Longer sequences lose tokens on the right; the end-of-sequence token and sentinels that end `input_format` stay.
    """
    lengths = task.lengths(lengths)
    fits = bind_fits(tokenizer, lengths, task.template)
    examples = []
    for row in by_row(rows):
        examples.extend(task.examples(row, split, fits))
    return tokenize_examples(examples, tokenizer, lengths, task.template)


def by_row(rows: dict[str, list]) -> Iterator[dict]:
    """A batch by column -> its rows.

    >>> list(by_row({"a": [1, 2], "b": [3, 4]}))
    [{'a': 1, 'b': 3}, {'a': 2, 'b': 4}]
    """
    return (dict(zip(rows, values)) for values in zip(*rows.values()))


def bind_fits(tokenizer, lengths: Lengths, template: str) -> Callable[[str], bool]:
    """Whether a text, end-of-sequence token included, is no longer than the longest source kept."""

    def fits(text: str) -> bool:
        beginnings = without_unread_part(tokenizer, [text], lengths.source)
        (ids,) = encoded(tokenizer, beginnings, template=template, verbose=False)["input_ids"]
        return len(ids) <= lengths.source

    return fits


def tokenize_examples(examples: Sequence[Example], tokenizer, lengths: Lengths, template: str) -> dict:
    """`tokenize_rows` for finished examples."""
    if not examples:
        return {"input_ids": [], "labels": []}
    inputs = [example.inputs for example in examples]
    targets = [example.targets for example in examples]
    return {
        "input_ids": cut_ids(tokenizer, lengths.source, lengths.kept_end, inputs, template=template),
        "labels": target_ids(tokenizer, lengths, targets, template),
    }


def target_ids(tokenizer, lengths: Lengths, texts: list[str], template: str) -> list:
    """Targets as ids of at most `lengths.target`, each with end-of-sequence; long ones are cut as by `cut_ids`.

    >>> target_ids(gemma, Lengths(512, 16), ["positive"], template="")    # "positive<eos>"
    [[30843, 1]]
    >>> gemma(["positive"])["input_ids"]                                  # "<bos>positive"
    [[2, 30843]]

    Where the tokenizer itself ends no text, as Gemma's, its <bos> is left out, too: T5Gemma's decoder starts with it.
    """
    end = tokenizer.eos_token_id
    if end is None or _ends_texts(tokenizer):
        return cut_ids(tokenizer, lengths.target, lengths.kept_end, text_target=texts, template=template)
    texts = without_unread_part(tokenizer, texts, lengths.target, lengths.kept_end)
    settings = {"template": template, "add_special_tokens": False, "verbose": False}
    rows = encoded(tokenizer, text_target=texts, **settings)["input_ids"]
    return [_cut([*row, end], lengths.target, num_last=lengths.kept_end) for row in rows]


def _ends_texts(tokenizer) -> bool:
    """Whether a tokenizer puts its end token after a target, or before the language code at its end (mBART's)."""
    (ids,) = cut_ids(tokenizer, LONGEST_FRAME, 0, text_target=[""])
    return tokenizer.eos_token_id in ids


def cut_ids(tokenizer, max_length: int, kept_end: int, texts=None, *, text_target=None, template: str = "") -> list:
    """Texts, or `text_target`, as ids of at most `max_length`.

    One that is cut keeps its last `kept_end` tokens before end-of-sequence. Control tokens in them are text, but for
    those of `template` (`tokens.encoded`).

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


def decode_ids(sequences, tokenizer) -> list[str]:
    """Generated ids -> texts: the tokens before the first end-of-sequence token, without padding and -100.

    >>> decode_ids([[0, 1465, 1, -100, -100]], t5_tokenizer)
    ['positive']

    Nothing else is removed: with a sentinel or unknown piece the text is not a label, as it should be.
    """
    dropped_ids = {IGNORED_ID, tokenizer.pad_token_id, tokenizer.bos_token_id}
    texts = []
    for sequence in sequences:
        before_end = itertools.takewhile(lambda token: token != tokenizer.eos_token_id, map(int, sequence))
        ids = [token for token in before_end if token not in dropped_ids]
        texts.append(tokenizer.decode(ids, clean_up_tokenization_spaces=False))
    return texts

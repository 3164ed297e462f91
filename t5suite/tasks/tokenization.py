"""Examples -> token ids of bounded length, and generated ids -> texts.

>>> tokenize_rows({"sentence": ["Good."], "label": [1]}, task=sst2, tokenizer=t5, lengths=Lengths(512, 16))
{'input_ids': [[3, 7, 7, 17, 357, 7142, 10, 1804, 5, 1]], 'labels': [[1465, 1]]}
>>> decode_ids([[0, 1465, 1, -100, -100]], t5)
['positive']
"""

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from t5suite.tasks.long_texts import without_unread_part
from t5suite.tasks.tokens import cut_ids, encoded, target_ids

# The label of a position that the loss ignores.
IGNORED_ID = -100


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
    if not examples:
        return {"input_ids": [], "labels": []}
    inputs = [example.inputs for example in examples]
    targets = [example.targets for example in examples]
    return {
        "input_ids": cut_ids(tokenizer, lengths.source, lengths.kept_end, inputs, template=task.template),
        "labels": target_ids(tokenizer, lengths.target, lengths.kept_end, targets, task.template),
    }


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

"""Parts of a split: fewer rows, few-shot rows, and a part of the training split kept for selection.

    >>> select_rows(10, limit=3, seed=0)
    array([2, 4, 6])

Everything is a function of the seed and the row numbers, so a run's subset is reproducible.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from t5suite.base.errors import ConfigError, DataError
from t5suite.data.rows.own_rows import OPTIONAL_COLUMNS, Columns, Rows, RowSource
from t5suite.data.rows.row_checks import ROW_ERRORS, error_of_row
from t5suite.runs.trained_splits import HELD_OUT, NOT_HELD_OUT
from t5suite.tasks.cells import value_at
from t5suite.tasks.registry import Task

_STREAMS = {"train": 1, "validation": 2, "test": 3, "selection": 5, "held_out": 6}


def select_rows(num_rows: int, *, limit: int | None = None, seed: int, role="train"):
    """Row numbers, ascending, of a random subset: at most `limit` of the rows.

    Raises:
      ConfigError: a limit below 1.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"--max_{'eval' if role == 'validation' else role}_samples {limit}: must be at least 1")
    if limit is None or limit >= num_rows:
        return np.arange(num_rows)
    return np.sort(np.random.default_rng((seed, _STREAMS[role])).permutation(num_rows)[:limit])


def selection_share(text: str) -> float | None:
    """The share of the training split that `--selection_split` holds out; None for 'validation'.

    >>> selection_share("train[5%]"), selection_share("validation")
    (0.05, None)
    """
    if text == "validation":
        return None
    match = re.fullmatch(r"train\[(\d+(?:\.\d+)?)%\]", text)
    share = float(match.group(1)) / 100 if match else 0
    if not 0 < share < 1:
        raise ConfigError(f"--selection_split {text!r}: write 'validation', or a share such as 'train[5%]'")
    return share


def split_for_selection(inputs: Sequence, share: float, seed: int):
    """(rows to train on, rows to select checkpoints on), both ascending and disjoint, rows with equal inputs in one.

    Args:
      inputs: of each row; only whether two are equal matters.

    Raises:
      DataError: one of the two would be empty.
    """
    is_held_out = held_out_rows(inputs, share, seed, "selection")
    if is_held_out.all():
        raise DataError(
            f"--selection_split: {len(inputs)} training rows with {len(set(inputs))} different inputs are too few to "
            f"hold out {share:.1%}"
        )
    return np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)


def input_digests(
    rows: Iterable[dict], task: Task, place: Callable[[int], str], columns: Sequence[str] = ()
) -> list[bytes]:
    """A hash of what a task reads of each row, equal for equal cells; many long texts would fill the memory.

    Args:
      place: the number of a row -> its file and line.
      columns: further ones that are read.

    Raises:
      DataError: a formatter of the user's own makes no example of a row.
    """
    digests = []
    for i, row in enumerate(rows):
        try:
            text = "\x00".join(_input_texts(row, task, columns))
        except ROW_ERRORS as error:
            raise error_of_row(task, place(i), error) from None
        digests.append(hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=16).digest())
    return digests


def input_hashes(rows: Iterable[dict], task: Task) -> np.ndarray:
    """The first 64 bits of `input_digests`, uint64 [R]: two of 100,000 inputs share them with a chance below 1e-9."""
    digests = input_digests(rows, task, lambda row: f"{task.name} row {row}")
    return np.frombuffer(b"".join(digest[:8] for digest in digests), np.uint64)


def _input_texts(row: dict, task: Task, columns: Sequence[str]) -> list[str]:
    """What a task reads of a row, column by column.

    A missing cell is an empty one. A formatter of the user's own may read every column, and may train on some rows: the
    inputs that it makes for evaluation stand for the columns; of running text, which has no inputs, the targets.
    """
    if task.has_own_formatter:
        return [example.inputs or example.targets for example in task.examples(row, "validation")]
    optional_columns = OPTIONAL_COLUMNS.get(task.entry.get("formatter"), ())
    read_columns = dict.fromkeys((*task.input_columns, *optional_columns, *columns))
    cells = (value_at(row, column) for column in read_columns)
    return ["" if cell is None else str(cell) for cell in cells]


@dataclass(frozen=True)
class HeldOutRows:
    """A source without validation rows: a part of its training rows is held out for validation, and never trained on.

    Rows with equal inputs stay on one side, so that no training input is in the validation rows.

    Attributes:
      task: makes the inputs of the rows.
      share: the held-out share of the training rows, between 0 and 1.
      seed: decides which rows.
    """

    source: RowSource
    columns: Columns
    task: Task
    share: float
    seed: int

    @property
    def roles(self) -> tuple[str, ...]:
        """The source's splits, and 'validation'."""
        return ("train", "validation", *(role for role in self.source.roles if role != "train"))

    def read(self, role: str, tokenizer=None) -> Rows:
        """All rows of a split; those of 'train' and 'validation' together are the source's training rows.

        Raises:
          DataError: all rows have the same input, or there are too few.
        """
        if role not in ("train", "validation"):
            return self.source.read(role, tokenizer)
        rows = self.source.read("train", tokenizer)
        columns = (*self.columns.texts, *self.columns.optional)
        inputs = input_digests(rows.rows, self.task, rows.places.__getitem__, columns)
        self._check_inputs_differ(rows, inputs, columns)
        is_held_out = self._are_held_out(rows, inputs)
        if role == "validation":
            row_numbers = np.flatnonzero(is_held_out)
            origin = f"{rows.origin}{HELD_OUT}"
        else:
            row_numbers = np.flatnonzero(~is_held_out)
            origin = f"{rows.origin}{NOT_HELD_OUT}"
        held_out_inputs = sorted(inputs[i] for i in np.flatnonzero(is_held_out))
        return rows._replace(
            rows=[rows.rows[i] for i in row_numbers],
            places=[rows.places[i] for i in row_numbers],
            origin=origin,
            held_out_sha256=hashlib.sha256(b"".join(held_out_inputs)).hexdigest(),
        )

    def _check_inputs_differ(self, rows: Rows, inputs: list[bytes], columns: Sequence[str]) -> None:
        """Refuses rows that all have the same input, by their `input_digests`."""
        if len(set(inputs)) == 1 and len(inputs) > 1:
            text = " ".join(_input_texts(rows.rows[0], self.task, columns))
            raise DataError(
                f"{rows.origin}: all {len(inputs)} rows have the same input ({text!r:.80}), and rows with equal inputs "
                f"are not divided between training and validation; {self._way_out()}"
            )

    def _are_held_out(self, rows: Rows, inputs: list[bytes]) -> np.ndarray:
        """Which of the training rows are held out, as booleans; refuses too few rows."""
        held_out = held_out_rows(inputs, self.share, self.seed)
        if not held_out.any() or held_out.all():
            raise DataError(
                f"{rows.origin}: too few rows ({len(rows.rows)}) to keep {self.share:.1%} of them for validation; "
                "give validation rows, a larger --validation_split, or --no_eval"
            )
        return held_out

    def _way_out(self) -> str:
        """What to do where all rows have the same input."""
        if self.columns.fixed_by is not None:
            return "give validation rows, or --no_eval"
        return f"check --text_column ({', '.join(self.columns.texts)}), or give validation rows or --no_eval"


def held_out_rows(keys: Sequence, share: float, seed: int, stream: str = "held_out") -> np.ndarray:
    """Which rows are held out, as booleans: whole groups of equal keys, in random order, those that fit.

    >>> held_out_rows(["a", "b", "a", "c"], share=0.25, seed=0)
    array([False,  True, False, False])
    """
    groups: dict = {}
    for i, key in enumerate(keys):
        groups.setdefault(key, []).append(i)
    most_rows = max(1, round(len(keys) * share))
    is_held_out = np.zeros(len(keys), dtype=bool)
    num_held_out = 0
    places = list(groups.values())
    for group in np.random.default_rng((seed, _STREAMS[stream])).permutation(len(places)):
        if num_held_out + len(places[group]) <= most_rows:
            is_held_out[places[group]] = True
            num_held_out += len(places[group])
    if not is_held_out.any():
        is_held_out[min(places, key=len)] = True
    return is_held_out

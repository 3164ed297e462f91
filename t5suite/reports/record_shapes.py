"""What the files of a record must look like, checked once when they are read: they may be a stranger's.

>>> first_problem({"tasks": {"rte": {"accuracy": "75"}}, "averages": {}}, RESULTS_SHAPE)
"'tasks.rte.accuracy' is '75', not a finite number or null"

A shape is a `Kind` of value, a `TableShape` or a `ListOf` one shape. Keys that no shape names may be anything.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from t5suite.base.script_flags import LIMIT, flags_of

# Methods by which a split can be answered.
METHODS = ("generate", "score", "classify", "loss")
# Flags of Hugging Face's arguments that verification reads; others may hold whatever these arguments make of them.
FLAGS_OF_ANSWERING = (
    "seed", "per_device_eval_batch_size", "generation_num_beams", "generation_max_length", "use_cache",
    "bf16", "fp16", "tf32",
)  # fmt: skip


class Shape(Protocol):
    """What a value of JSON must look like."""

    def problems(self, value, place: str) -> Iterator[str]:
        """One sentence for each part that is something else; `place` is the key: `scored.rte.n`."""
        ...


@dataclass(frozen=True)
class Kind:
    """A value without parts.

    Attributes:
      title: what it is, for messages.
      fits: whether a value is one.
    """

    title: str
    fits: Callable[[object], bool]

    def problems(self, value, place: str) -> Iterator[str]:
        if not self.fits(value):
            yield f"{place!r} is {value!r:.60}, not {self.title}"


@dataclass(frozen=True)
class TableShape:
    """A table.

    Attributes:
      keys: the shapes of some keys, which may be absent.
      other_keys: the shape of all others; None: anything.
      needed: keys that must be there.
    """

    keys: Mapping[str, Shape] = field(default_factory=dict)
    other_keys: Shape | None = None
    needed: tuple[str, ...] = ()

    def problems(self, value, place: str) -> Iterator[str]:
        if not isinstance(value, dict):
            yield f"{place!r} is {value!r:.60}, not a table"
            return
        for key in self.needed:
            if key not in value:
                yield f"{place!r} has no {key!r}"
        for key, part in value.items():
            shape = self.keys.get(key, self.other_keys)
            if shape is not None:
                yield from shape.problems(part, f"{place}.{key}" if place else key)


@dataclass(frozen=True)
class ListOf:
    """A list whose entries have one shape."""

    entry: Shape

    def problems(self, value, place: str) -> Iterator[str]:
        if not isinstance(value, list):
            yield f"{place!r} is {value!r:.60}, not a list"
            return
        for number, part in enumerate(value):
            yield from self.entry.problems(part, f"{place}.{number}")


@dataclass(frozen=True)
class OrNull:
    """A shape, or null."""

    shape: Shape

    def problems(self, value, place: str) -> Iterator[str]:
        if value is not None:
            yield from self.shape.problems(value, place)


@dataclass(frozen=True)
class IfTable:
    """A table's shape; a value that is no table may be anything."""

    shape: TableShape

    def problems(self, value, place: str) -> Iterator[str]:
        if isinstance(value, dict):
            yield from self.shape.problems(value, place)


def first_problem(value, shape: Shape) -> str:
    """The first part of a value that does not have the shape; empty if all have."""
    return next(shape.problems(value, ""), "")


def is_text(value) -> bool:
    """Whether a value is a text."""
    return isinstance(value, str)


def is_count(value) -> bool:
    """Whether a value is a whole number that libraries can count to."""
    return type(value) is int and 0 <= value < LIMIT


def is_whole(value) -> bool:
    """Whether a value is a whole number that fits into the libraries' integers."""
    return type(value) is int and -LIMIT <= value < LIMIT


def is_finite(value) -> bool:
    """Whether a value is a number that a float can hold; True is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def is_score(value) -> bool:
    """Whether a value is a score: null stands for one that is not defined."""
    return value is None or is_finite(value)


def is_truth(value) -> bool:
    """Whether a value is true or false."""
    return isinstance(value, bool)


def is_method(value) -> bool:
    """Whether a value names how a split was answered."""
    return value in METHODS


def is_pair_of_names(value) -> bool:
    """Whether a value is a list of two texts: a benchmark, and its tasks."""
    return isinstance(value, list) and len(value) == 2 and all(map(is_text, value))


def settings_shape() -> TableShape:
    """The shapes of the suite's own flags, and of those of Hugging Face's that say how rows were answered, by type."""
    shapes = {}
    for name, flag in flags_of("fine_tune_t5.py").items():
        kind = KINDS_OF_FLAGS.get(flag["type"])
        is_read = flag.get("ours") or name in FLAGS_OF_ANSWERING
        if is_read and kind is not None and not flag["list"]:
            shapes[name] = OrNull(kind)
    return TableShape(
        {**shapes, "plug_ins": OrNull(TableShape(other_keys=ListOf(TableShape({"name": TEXT}, needed=("name",)))))}
    )


TEXT = Kind("a text", is_text)
TRUTH = Kind("true or false", is_truth)
COUNT = Kind("a whole number of at least 0", is_count)
SCORE = Kind("a finite number or null", is_score)
WHOLE = Kind("a whole number", is_whole)
KINDS_OF_FLAGS = {
    "str": TEXT,
    "int": WHOLE,
    "float": Kind("a finite number", is_finite),
    "bool": TRUTH,
}
HASHES = TableShape(other_keys=TEXT)
REPOSITORIES = TableShape(other_keys=TableShape({"commit": TEXT}, needed=("commit",)))
SPLIT = TableShape(
    {
        "n": COUNT,
        "method": Kind(f"one of {', '.join(METHODS)}", is_method),
        "max_answer_tokens": OrNull(COUNT),
        "rows_sha256": OrNull(TEXT),
    }
)
# What the manifest and task.json say of a tokenizer.
TOKENIZER = TableShape(
    {"pieces": COUNT, "vocabulary": TEXT, "special_tokens": TableShape()},
    needed=("pieces", "vocabulary"),
)
MANIFEST_SHAPE = TableShape(
    {
        "settings": settings_shape(),
        "working_directory": OrNull(TEXT),
        "versions": TableShape(other_keys=OrNull(TEXT)),
        "hardware": OrNull(TableShape()),
        "libraries": OrNull(TableShape({"off": OrNull(ListOf(TEXT))})),
        "hub": TableShape({"models": REPOSITORIES, "datasets": REPOSITORIES}),
        "data": TableShape(other_keys=IfTable(TableShape({"files": OrNull(HASHES)}))),
        "trained_on": OrNull(Kind("a list of a benchmark and its tasks", is_pair_of_names)),
        "tasks": OrNull(TableShape(other_keys=TableShape())),
        "best_per_task": OrNull(TableShape()),
        "encoding": OrNull(TableShape({"source_lang_column": OrNull(TEXT), "target_lang_column": OrNull(TEXT)})),
        "answering": OrNull(TableShape({"dtype": TEXT, "autocast": TEXT, "tf32": TRUTH, "device": TEXT})),
        "tokenizer": OrNull(TOKENIZER),
        "scored": OrNull(TableShape(other_keys=SPLIT)),
        "files": OrNull(HASHES),
        "model_files": OrNull(HASHES),
        "withheld": OrNull(ListOf(TEXT)),
        "record_sha256": OrNull(TEXT),
    }
)
RESULTS_SHAPE = TableShape(
    {
        "tasks": TableShape(other_keys=TableShape(other_keys=SCORE)),
        "averages": TableShape(other_keys=SCORE),
        "groups": OrNull(
            TableShape(other_keys=TableShape(other_keys=TableShape(other_keys=TableShape(other_keys=SCORE))))
        ),
    },
    needed=("tasks", "averages"),
)
TASK_CARD_SHAPE = TableShape({"tokenizer": OrNull(TOKENIZER)})
CONFIGURATION_SHAPE = TableShape(
    {
        "auto_map": OrNull(TableShape()),
        "dtype": OrNull(TEXT),
        "torch_dtype": OrNull(TEXT),
        "decoder_start_token_id": OrNull(WHOLE),
        "pad_token_id": OrNull(WHOLE),
    }
)

r"""Super-NaturalInstructions: an instance and its task's instruction as one text, in Tk-Instruct's encodings.

>>> demonstration("Positive Example 1", {"input": "India", "output": "New Delhi"}, False)
' Positive Example 1 -\nInput: India.\n Output: New Delhi.\n\n'

The form is exactly that of Tk-Instruct (arXiv:2204.07705, table 2; `yizhongw/Tk-Instruct`, `ni_collator.py`): every
part ends in punctuation, a full stop where it had none. Demonstrations are added one after the other as long as the
whole fits into the source length, and none after the first that does not. If a row has several references, a training
example takes one of them, drawn for each row from (seed, the row's `idx`).
"""

import string
from collections.abc import Callable, Mapping

import numpy as np

from t5suite.base.errors import DataError
from t5suite.tasks.cells import cell

# Random streams, so that a row's reference and encoding are drawn independently.
_REFERENCE_STREAM = 1
_ENCODING_STREAM = 2
ENCODING_KEYS = ("add_task_definition", "num_pos_examples", "num_neg_examples", "add_explanation", "add_task_name")


def fits_always(text: str) -> bool:
    """As a model without a limit on the length of its inputs."""
    return True


def check_instance(row) -> None:
    """Raises a `DataError` that names the part of an instance that is missing or invalid."""
    for column in ("task", "definition", "input"):
        cell(row, column, str)
    for column in ("positive_examples", "negative_examples"):
        for i, example in enumerate(cell(row, column, list)):
            if not _is_demonstration(example):
                raise DataError(f"column {column!r}: {i} holds {example!r:.100}, not an example's input and output")


def _is_demonstration(example) -> bool:
    if not isinstance(example, Mapping):
        return False
    has_texts = isinstance(example.get("input"), str) and isinstance(example.get("output"), str)
    return has_texts and isinstance(example.get("explanation"), str | None)


def instruction_text(row, settings: dict, fits: Callable[[str], bool] = fits_always) -> str:
    """What the model reads for a row.

    Args:
      row: `task`, `definition`, `positive_examples`, `negative_examples` and `input`.
      settings: the entry's `instruction`.
      fits: whether a text is short enough for the model; the default keeps every demonstration.
    """
    encoding = encoding_of(row, settings)
    definition = ""
    if encoding["add_task_definition"]:
        definition = _closed(f"Definition: {row['definition'].strip()}") + "\n\n"
    instance = _closed(f"Now complete the following example -\nInput: {row['input'].strip()}") + "\nOutput: "
    positive: list[str] = []
    for text in _demonstrations(row, "Positive", encoding):
        if not fits(definition + " ".join(positive) + text + instance):
            break
        positive.append(text)
    negative: list[str] = []
    for text in _demonstrations(row, "Negative", encoding):
        if not fits(definition + " ".join(positive) + " ".join(negative) + text + instance):
            break
        negative.append(text)
    task_name = f"{row['task']}. " if encoding["add_task_name"] else ""
    return task_name + definition + "".join(positive + negative) + instance


def _demonstrations(row, kind: str, encoding: dict) -> list[str]:
    """The demonstrations of a kind that the encoding asks for.

    Args:
      kind: Positive or Negative.
    """
    count = encoding["num_pos_examples"] if kind == "Positive" else encoding["num_neg_examples"]
    examples = row[f"{kind.lower()}_examples"][:count]
    return [
        demonstration(f"{kind} Example {number}", example, encoding["add_explanation"])
        for number, example in enumerate(examples, start=1)
    ]


def demonstration(title: str, example: dict, explains: bool) -> str:
    r"""One example of a task, with its explanation if requested and present.

    >>> demonstration("Positive Example 1", {"input": "India", "output": "New Delhi"}, False)
    ' Positive Example 1 -\nInput: India.\n Output: New Delhi.\n\n'
    """
    lines = [
        _closed(f" {title} -\nInput: {example['input'].strip()}"),
        _closed(f" Output: {example['output'].strip()}"),
    ]
    if explains and example.get("explanation") is not None:
        lines.append(_closed(f" Explanation: {example['explanation'].strip()}"))
    return "\n".join(lines) + "\n\n"


def drawn_reference(row, references: list[str], settings: dict) -> str:
    """The reference of a training example: a function of the seed and the row's `idx`."""
    if len(references) == 1:
        return references[0]
    return references[int(_generator(row, settings, _REFERENCE_STREAM).integers(len(references)))]


def encoding_of(row, settings: dict) -> dict:
    """The encoding of the row's instruction: from the settings, or (`tk_instruct`) one of five, drawn for the row."""
    if not settings["tk_instruct"]:
        return {key: settings[key] for key in ENCODING_KEYS}
    return MIXED_ENCODINGS[int(_generator(row, settings, _ENCODING_STREAM).integers(len(MIXED_ENCODINGS)))]


def _generator(row, settings: dict, stream: int) -> "np.random.Generator":
    number = row.get("idx", 0)
    if not isinstance(number, (int, np.integer)) or number < 0:
        raise DataError(f"column 'idx' holds {number!r}, not the row's number")
    return np.random.default_rng((settings["seed"], stream, int(number)))


def _closed(text: str) -> str:
    """The text, ending in ASCII punctuation."""
    return text if text[-1] in string.punctuation else text + "."


def _encoding(definition: bool, positive: int, negative: int, explanation: bool) -> dict:
    return dict(zip(ENCODING_KEYS, (definition, positive, negative, explanation, False), strict=True))


# Tk-Instruct's mixture: definition; examples; both; both with negative examples; both with explanations.
MIXED_ENCODINGS = [
    _encoding(True, 0, 0, False),
    _encoding(False, 2, 0, False),
    _encoding(True, 2, 0, False),
    _encoding(True, 2, 2, False),
    _encoding(True, 2, 0, True),
]

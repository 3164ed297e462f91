r"""Super-NaturalInstructions: an instance and its task's instruction as one text, in Tk-Instruct's encodings.

>>> demonstration("Positive Example 1", {"input": "India", "output": "New Delhi"}, False)
' Positive Example 1 -\nInput: India.\n Output: New Delhi.\n\n'

The form is exactly that of Tk-Instruct (arXiv:2204.07705, table 2; `yizhongw/Tk-Instruct`, `ni_collator.py`): every
part ends in punctuation, a full stop where it had none. Positive demonstrations are added one after the other up to the
first with which the whole does not fit into the source length, then negative ones likewise. If a row has several
references, a training example takes one of them, drawn for each row from the seed and the row's `idx`, or its input
where it has none.
"""

import string
import zlib
from collections.abc import Callable, Mapping

import numpy as np

from t5suite.base.errors import DataError
from t5suite.tasks.cells import cell

# Random streams, so that a row's reference and encoding are drawn independently.
_REFERENCE_STREAM = 1
_ENCODING_STREAM = 2
ENCODING_KEYS = ("add_task_definition", "num_pos_examples", "num_neg_examples", "add_explanation", "add_task_name")


def fits_always(text: str) -> bool:
    """True: every text fits into a model without a limit on the length of its inputs."""
    return True


def check_instance(row) -> None:
    """Raises a `DataError` that names the part of an instance that is missing or invalid."""
    for column in ("task", "definition", "input"):
        cell(row, column, str)  # raises
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
      settings: the task's `instruction`: `seed`, `tk_instruct` and ENCODING_KEYS, as the flags of these names.
      fits: whether a text is short enough for the model; the default keeps every demonstration.
    """
    encoding = encoding_of(row, settings)
    definition = ""
    if encoding["add_task_definition"]:
        definition = _closed(f"Definition: {row['definition'].strip()}") + "\n\n"
    instance = _closed(f"Now complete the following example -\nInput: {row['input'].strip()}") + "\nOutput: "
    positive = _those_that_fit(_demonstrations(row, "Positive", encoding), definition, instance, fits)
    before_negative = definition + " ".join(positive)
    negative = _those_that_fit(_demonstrations(row, "Negative", encoding), before_negative, instance, fits)
    task_name = f"{row['task']}. " if encoding["add_task_name"] else ""
    return task_name + definition + "".join(positive + negative) + instance


def _those_that_fit(demonstrations: list[str], before: str, instance: str, fits: Callable[[str], bool]) -> list[str]:
    """The demonstrations up to the first with which the text is too long.

    As in Tk-Instruct, the text that is measured has spaces between demonstrations, and not the task's name: the model
    reads one without these spaces, and with the name.

    Args:
      before: what stands before these demonstrations.
    """
    fitting: list[str] = []
    for text in demonstrations:
        if not fits(before + " ".join(fitting) + text + instance):
            break
        fitting.append(text)
    return fitting


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
    """The reference of a training example: a function of the seed and the row."""
    if len(references) == 1:
        return references[0]
    return references[int(_generator(row, settings, _REFERENCE_STREAM).integers(len(references)))]


def encoding_of(row, settings: dict) -> dict:
    """What is in a row's instruction, by ENCODING_KEYS: as the settings say, or (`tk_instruct`) one of MIXED_ENCODINGS,
    drawn for the row."""
    if not settings["tk_instruct"]:
        return {key: settings[key] for key in ENCODING_KEYS}
    return MIXED_ENCODINGS[int(_generator(row, settings, _ENCODING_STREAM).integers(len(MIXED_ENCODINGS)))]


def _generator(row, settings: dict, stream: int) -> "np.random.Generator":
    number = row.get("idx")
    if number is None:
        number = zlib.crc32(row["input"].encode("utf-8", "surrogatepass"))
    if not isinstance(number, (int, np.integer)) or number < 0:
        raise DataError(f"column 'idx' holds {number!r}, not the row's number")
    return np.random.default_rng((settings["seed"], stream, int(number)))


def _closed(text: str) -> str:
    """The text, ending in ASCII punctuation."""
    return text if text[-1] in string.punctuation else text + "."


def _encoding(definition: bool = True, positive: int = 2, negative: int = 0, explanation: bool = False) -> dict:
    return {
        "add_task_definition": definition,
        "num_pos_examples": positive,
        "num_neg_examples": negative,
        "add_explanation": explanation,
        "add_task_name": False,
    }


# Tk-Instruct's mixture: definition; examples; both; both with negative examples; both with explanations.
MIXED_ENCODINGS = [
    _encoding(positive=0),
    _encoding(definition=False),
    _encoding(),
    _encoding(negative=2),
    _encoding(explanation=True),
]

"""Super-NaturalInstructions: an instance and its task's instruction as one text, in Tk-Instruct's encodings.

    >>> instruction_text(row, {"add_task_definition": True, "num_pos_examples": 1, ...})
    'Definition: Name the capital.\\n\\n Positive Example 1 -\\nInput: India.\\n Output: New Delhi.\\n\\n
    Now complete the following example -\\nInput: Peru.\\nOutput: '

The form is that of Tk-Instruct (arXiv:2204.07705, table 2; `yizhongw/Tk-Instruct`, `ni_collator.py`), to the character:
every part ends in punctuation, a full stop where it had none. Demonstrations are added one after the other as long as
the whole fits into the source length, and none after the first that does not. Where a row has several references, a
training example takes one of them, drawn anew for each row from (seed, the row's `idx`).
"""

import string
from collections.abc import Callable

import numpy as np

from t5suite.base.errors import DataError

# Streams of random numbers, so that the reference of a row and its encoding are drawn independently.
_REFERENCE, _ENCODING = 1, 2
ENCODING_KEYS = ("add_task_definition", "num_pos_examples", "num_neg_examples", "add_explanation", "add_task_name")


def instruction_text(row, settings: dict, fits: Callable[[str], bool] = lambda text: True) -> str:
    """What the model reads for a row.

    Args:
      row: `task`, `definition`, `positive_examples`, `negative_examples` and `input`.
      settings: the entry's `instruction`.
      fits: whether a text is short enough for the model; the default keeps every demonstration.
    """
    chosen = encoding_of(row, settings)
    asked = _closed(f"Now complete the following example -\nInput: {row['input'].strip()}") + "\nOutput: "
    definition = ""
    if chosen["add_task_definition"]:
        definition = _closed(f"Definition: {row['definition'].strip()}") + "\n\n"
    kept = {"Positive": [], "Negative": []}
    for kind, count in (("Positive", chosen["num_pos_examples"]), ("Negative", chosen["num_neg_examples"])):
        for number, example in enumerate(row[f"{kind.lower()}_examples"][:count], start=1):
            text = demonstration(f"{kind} Example {number}", example, chosen["add_explanation"])
            before = " ".join(kept["Positive"]) + " ".join(kept["Negative"])
            if not fits(definition + before + text + asked):
                break
            kept[kind].append(text)
    name = f"{row['task']}. " if chosen["add_task_name"] else ""
    return name + definition + "".join(kept["Positive"] + kept["Negative"]) + asked


def demonstration(title: str, example: dict, explains: bool) -> str:
    r"""One example of a task, with its explanation if asked for and given.

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
    """The reference that a training example writes: a function of the seed and the row's `idx`."""
    if len(references) == 1:
        return references[0]
    return references[int(_random(row, settings, _REFERENCE).integers(len(references)))]


def encoding_of(row, settings: dict) -> dict:
    """How the row's instruction is written: as the settings say, or (`tk_instruct`) one of five, drawn for the row."""
    if not settings["tk_instruct"]:
        return {key: settings[key] for key in ENCODING_KEYS}
    return MIXED_ENCODINGS[int(_random(row, settings, _ENCODING).integers(len(MIXED_ENCODINGS)))]


def _random(row, settings: dict, stream: int):
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

"""A row of a task -> the (inputs, targets) pairs that the model reads and writes.

    >>> join_columns({"question": "Why?", "sentence": "Because."}, ["qnli question: ", "sentence: "],
    ...              ["question", "sentence"])
    'qnli question: Why? sentence: Because.'

Values are inserted untouched: no stripping, no lower-casing, newlines stay, an empty value leaves its prefix and the
space behind it. Texts equal the original T5's to the character (arXiv:1910.10683, appendix D, and the released
preprocessors where the two differ). Every formatter takes `(row, entry, split)` and returns a list of `Example`s.
"""

import numbers
import re
import string
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from t5suite.base.errors import DataError
from t5suite.tasks.instructions import drawn_reference, instruction_text
from t5suite.tasks.pronouns import mark_wnli_pronoun, mark_wsc_pronoun
from t5suite.tasks.targets import UNKNOWN_TARGET, is_labelled, label_text, value_at


class Example(NamedTuple):
    """One pair of texts: what the encoder reads and what the decoder is to write."""

    inputs: str
    targets: str


def as_list(value) -> list:
    """A string or a list of strings, as a list: prefixes and columns come in both forms."""
    return [value] if isinstance(value, str) else list(value)


# What a cell may be, by the kind asked for: also as NumPy and Arrow deliver it.
KINDS = {
    object: (object, "value"),
    str: (str, "text"),
    int: (numbers.Integral, "whole number"),
    list: ((list, tuple, np.ndarray), "list"),
}


_NOTHING = object()


def cell(row, column: str, kind: type = object):
    """`value_at` of type `kind`, or a `DataError` that names the column, its value and those that the row has."""
    value = value_at(row, column, _NOTHING)
    if value is _NOTHING:
        raise DataError(f"the row has no column {column!r}; its columns are {', '.join(map(str, row))}")
    types, name = KINDS[kind]
    if not isinstance(value, types) or (kind is int and isinstance(value, bool)):
        raise DataError(f"column {column!r} holds {value!r}, not a {name}")
    return value


def join_columns(row, prefixes, columns) -> str:
    """`' '.join(prefix_i + row[column_i])`."""
    parts = []
    for prefix, column in zip(as_list(prefixes), as_list(columns), strict=True):
        value = cell(row, column)
        if value is None or isinstance(value, (list, dict, bytes)):
            raise DataError(f"column {column!r} holds {value!r:.200}, not a text")
        parts.append(prefix + str(value))
    return " ".join(parts)


def columns(row, entry, split):
    """The task's prefixes and columns; one example a row.

    >>> columns({"sentence": "Good.", "label": 1}, DATASET_VALS["glue"]["sst2"], "train")
    [Example(inputs='sst2 sentence: Good.', targets='positive')]
    """
    return [Example(join_columns(row, entry["prefix"], entry["text_column_name"]), label_text(row, entry))]


def multirc(row, entry, split):
    """As `columns`, then markup is removed from the whole text: `<br>` becomes a space, `<b>` and `</b>` nothing.

    >>> multirc({"question": "Q?", "answer": "A", "paragraph": "<b>Sent 1: </b>Hi.<br>", "label": 1}, entry, "train")
    [Example(inputs='multirc question: Q? answer: A paragraph: Sent 1: Hi. ', targets='True')]
    """
    (example,) = columns(row, entry, split)
    return [Example(re.sub("</?b>", "", example.inputs.replace("<br>", " ")), example.targets)]


def clean_record_passage(passage: str) -> str:
    r"""ReCoRD's bullet points as sentences.

    >>> clean_record_passage('It ended.\n@highlight\nOne point\n@highlight\nAnother')
    'It ended. One point. Another'
    """
    passage = re.sub(r"([.?!\"'])\n@highlight\n", r"\1 ", passage)
    return passage.replace("\n@highlight\n", ". ")


def record(row, entry, split):
    """One example per answer, in training and evaluation alike; none of the answers known -> one with `<unk>`.

    The entities are joined in the order given (the sources sort them).

    >>> record({"query": "@placeholder won.", "entities": ["A", "B"], "passage": "A beat B.", "answers": ["A"]}, ...)
    [Example(inputs='record query: @placeholder won. entities: A, B passage: A beat B.', targets='A')]
    """
    readable = {
        "query": cell(row, "query", str),
        "entities": ", ".join(map(str, cell(row, "entities", list))),
        "passage": clean_record_passage(cell(row, "passage", str)),
    }
    inputs = join_columns(readable, entry["prefix"], entry["text_column_name"])
    column = entry["label_column_name"]
    answers = [] if row.get(column) is None else cell(row, column, list)
    if len(answers) == 0:
        answers = [UNKNOWN_TARGET]
    return [Example(inputs, str(answer)) for answer in answers]


def wsc(row, entry, split):
    """The pronoun is starred and the target is what it refers to; training uses true-label rows only.

    A false row names a wrong referent, so it teaches nothing to write; evaluation keeps every row and compares
    the written referent with the row's candidate and label (`metrics.wsc_verdict`).

    >>> wsc({"text": "Ann sat as she ate .", "span1_text": "Ann", "span2_index": 3, "span2_text": "she", ...}, ...)
    [Example(inputs='wsc: Ann sat as *she* ate .', targets='Ann')]
    """
    if split == "train" and row.get(entry["label_column_name"]) != 1:
        return []
    text = mark_wsc_pronoun(cell(row, "text", str), cell(row, "span2_index", int), cell(row, "span2_text", str))
    return [Example(as_list(entry["prefix"])[0] + text, cell(row, "span1_text", str))]


def wnli_simple(row, entry, split):
    """WNLI's rows in WSC's form, for evaluation: the premise with its pronoun starred, and the hypothesis' referent.

    >>> wnli_simple({"sentence1": "The cup fell, so it broke.", "sentence2": "The cup broke.", "label": 1}, ...)
    [Example(inputs='wsc: The cup fell, so *it* broke.', targets='The cup')]
    """
    premise_column, hypothesis_column = entry["text_column_name"]
    text, referent = mark_wnli_pronoun(cell(row, premise_column, str), cell(row, hypothesis_column, str))
    return [Example(as_list(entry["prefix"])[0] + text, referent)]


def dpr(row, entry, split):
    """Definite pronoun resolution in WSC's form; the target is the right one of two candidates.

    Only the first ` pronoun` followed by a space, full stop or comma is starred; where there is none (a pronoun at
    the sentence's beginning, or before a question mark) the sentence stays as it is. The pronoun is read as a regular
    expression, as in the original, and literally where it is none.

    >>> dpr({"sentence": "Bees sting as they fly.", "pronoun": "they", "candidates": ["Bees", "They"], "label": 0}, ...)
    [Example(inputs='wsc: Bees sting as *they* fly.', targets='Bees')]
    """
    pronoun, sentence = cell(row, "pronoun", str), cell(row, "sentence", str)
    try:
        text = re.sub(rf" ({pronoun})( |\.|,)", r" *\1*\2", sentence, count=1)
    except re.error:
        text = re.sub(rf" ({re.escape(pronoun)})( |\.|,)", r" *\1*\2", sentence, count=1)
    candidates = cell(row, "candidates", list)
    label = row.get(entry["label_column_name"], -1)
    if label not in range(-1, len(candidates)):
        raise DataError(f"label {label!r} is not the position of one of the {len(candidates)} candidates")
    return [Example(as_list(entry["prefix"])[0] + text, UNKNOWN_TARGET if label == -1 else candidates[label])]


def instruction(row, entry, split):
    r"""Alpaca's rows: an instruction, and what it is about if anything is; the task's columns are read for the first.

    >>> instruction({"instruction": "Name it.", "input": "a cat", "output": "Tom "}, entry, "train")
    [Example(inputs='Name it.\ninput: a cat\noutput:', targets='Tom')]
    """
    asked = join_columns(row, entry["prefix"], entry["text_column_name"])
    about = f"input: {row['input']}\n" if row.get("input") else ""
    return [Example(f"{asked}\n{about}output:", label_text(row, entry).strip())]


def document(row, entry, split):
    """Running text, which is all there is to learn: nothing to read, and the text to write.

    >>> document({"text": "It rains."}, {"text_column_name": "text"}, "train")
    [Example(inputs='', targets='It rains.')]
    """
    return [Example("", cell(row, entry["text_column_name"], str))]


def pad_punctuation(text: str) -> str:
    """Spaces around every ASCII punctuation mark, then single spaces; those at the ends stay.

    >>> pad_punctuation("U.S. (2-1)?")
    'U . S . ( 2 - 1 ) ? '
    """
    return SPACES.sub(" ", PUNCTUATION.sub(r" \1 ", text))


def squad(row, entry, split):
    """Question and context with padded punctuation; the target is the first answer, padded too.

    >>> squad({"question": "Who won?", "context": "Ann won.", "answers": {"text": ["Ann"]}}, entry, "train")
    [Example(inputs='question: Who won ? context: Ann won . ', targets='Ann')]
    """
    parts = []
    for prefix, column in zip(as_list(entry["prefix"]), as_list(entry["text_column_name"]), strict=True):
        parts.append(prefix + pad_punctuation(cell(row, column, str)))
    labelled = is_labelled(row, entry)
    target = pad_punctuation(str(cell(row, entry["label_column_name"], list)[0])) if labelled else UNKNOWN_TARGET
    return [Example(SPACES.sub(" ", " ".join(parts)), target)]


def discoeval(row, entry, split):
    """As `columns`; RST's sentences are lists of texts.

    >>> discoeval({"sentence_1": ["He", "left ."], "sentence_2": ["."], "label": 3}, entry, "train")
    [Example(inputs='rst sentence1: He left . sentence2: .', targets='NS-Summary')]
    """
    texts = {column: cell(row, column) for column in as_list(entry["text_column_name"])}
    whole = {
        name: " ".join(map(str, text)) if isinstance(text, (list, tuple)) else text for name, text in texts.items()
    }
    return [Example(join_columns(whole, entry["prefix"], entry["text_column_name"]), label_text(row, entry))]


def super_ni(row, entry, split, fits=lambda text: True):
    """An instance with its task's instruction; training takes one of its references, evaluation shows the first.

    >>> super_ni(row, DATASET_VALS["super_ni"]["english"], "test")
    [Example(inputs='Definition: Name the capital.\\n\\n Positive Example 1 -\\nInput: ...', targets='Lima')]
    """
    settings = entry["instruction"]
    check_instance(row)
    inputs = instruction_text(row, settings, fits)
    if not is_labelled(row, entry):
        return [Example(inputs, UNKNOWN_TARGET)]
    label = value_at(row, entry["label_column_name"])
    references = [str(text) for text in (label if isinstance(label, (list, tuple, np.ndarray)) else [label])]
    return [Example(inputs, drawn_reference(row, references, settings) if split == "train" else references[0])]


def check_instance(row) -> None:
    """Raises a `DataError` that names the part of an instance that is missing, or is none."""
    for column in ("task", "definition", "input"):
        cell(row, column, str)
    for column in ("positive_examples", "negative_examples"):
        for i, example in enumerate(cell(row, column, list)):
            parts = [example.get(key) for key in ("input", "output")] if isinstance(example, Mapping) else [None]
            explanation = example.get("explanation") if isinstance(example, Mapping) else None
            if not all(isinstance(part, str) for part in parts) or not isinstance(explanation, str | None):
                raise DataError(f"column {column!r}: {i} holds {example!r:.100}, not an example's input and output")


# What the original matches with `[[:punct:]]` and `\s` of RE2, which know ASCII only.
PUNCTUATION = re.compile(f"([{re.escape(string.punctuation)}])")
SPACES = re.compile(r"[ \t\n\f\r]+")

FORMATTERS = {
    "columns": columns,
    "multirc": multirc,
    "record": record,
    "wsc": wsc,
    "wnli_simple": wnli_simple,
    "dpr": dpr,
    "squad": squad,
    "discoeval": discoeval,
    "super_ni": super_ni,
    "instruction": instruction,
    "document": document,
}

# The columns that a formatter reads besides the entry's own text and label columns.
FORMATTER_COLUMNS = {
    "wsc": ["span1_text", "span2_index", "span2_text"],
    "dpr": ["pronoun", "candidates"],
    "super_ni": ["task", "definition"],
}

# Formatters that leave parts out where the whole would be too long; they take `fits`, which says what is.
FITTED_FORMATTERS = {"super_ni"}

"""A row of a task -> the (inputs, targets) pairs that the model reads and writes.

    >>> join_columns({"question": "Why?", "sentence": "Because."}, ["qnli question: ", "sentence: "],
    ...              ["question", "sentence"])
    'qnli question: Why? sentence: Because.'

Values are inserted unchanged: no stripping, no lower-casing, newlines stay, an empty value leaves its prefix and the
space after it. Texts equal the original T5's to the character (arXiv:1910.10683, appendix D, and the released
preprocessors where the two differ). Every formatter takes `(row, entry, split)` and returns a list of `Example`s.
"""

import re
import string
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from t5suite.base.errors import DataError
from t5suite.base.lookup import load_object
from t5suite.tasks.cells import as_list, cell, null_text_message
from t5suite.tasks.instructions import check_instance, drawn_reference, fits_always, instruction_text
from t5suite.tasks.pronouns import mark_wnli_pronoun, mark_wsc_pronoun
from t5suite.tasks.targets import (
    INVALID_CLASS,
    UNKNOWN_TARGET,
    answers_of,
    class_number,
    is_labelled,
    label_of,
    label_text,
    label_words,
)

# What the original matches with RE2's `[[:punct:]]` and `\s`, which match ASCII only.
PUNCTUATION = re.compile(f"([{re.escape(string.punctuation)}])")
SPACES = re.compile(r"[ \t\n\f\r]+")


class Example(NamedTuple):
    """One pair of texts: what the encoder reads and what the decoder should write."""

    inputs: str
    targets: str


def join_columns(row, prefixes, columns) -> str:
    """`' '.join(prefix_i + row[column_i])`."""
    parts = []
    for prefix, column in zip(as_list(prefixes), as_list(columns), strict=True):
        value = cell(row, column)
        if value is None:
            raise DataError(null_text_message(column))
        if isinstance(value, (list, dict, bytes)):
            raise DataError(f"column {column!r} holds {value!r:.200}, not a text")
        parts.append(prefix + str(value))
    return " ".join(parts)


def columns(row, entry, split):
    """The task's prefixes and columns; one example a row.

    >>> columns({"sentence": "Good.", "label": 1}, DATASET_VALS["glue"]["sst2"], "train")
    [Example(inputs='sst2 sentence: Good.', targets='positive')]
    """
    return [Example(join_columns(row, entry["prefix"], entry["text_column_name"]), label_text(row, entry))]


def token_labels(row, entry, split):
    """Words, and a label for each: lists, or texts that are split at white space.

    >>> entry = {"prefix": "names: ", "text_column_name": "tokens", "label_column_name": "tags", "labels": ["O", "B"]}
    >>> token_labels({"tokens": ["Ann", "sings"], "tags": [1, 0]}, entry, "train")
    [Example(inputs='names: Ann sings', targets='B O')]

    Raises:
      DataError: the numbers of labels and words differ, or a word is empty.
    """
    words = words_of(row, entry)
    if not is_labelled(row, entry):
        return [Example(entry["prefix"] + " ".join(words), UNKNOWN_TARGET)]
    labels = label_of(row, entry)
    labels = labels.split() if isinstance(labels, str) else list(labels)
    if len(labels) != len(words):
        raise DataError(
            f"{len(labels)} labels in column {entry['label_column_name']!r} for {len(words)} words in column "
            f"{entry['text_column_name']!r} ({' '.join(words):.60}): each word needs one"
        )
    class_ids = [class_number(label, entry) for label in labels]
    if INVALID_CLASS in class_ids:
        raise DataError(f"column {entry['label_column_name']!r} holds {labels!r:.200}: some of its words have no label")
    names = label_words(entry["labels"])
    return [Example(entry["prefix"] + " ".join(words), " ".join(names[class_id] for class_id in class_ids))]


def words_of(row, entry) -> list[str]:
    """The words of a row whose words have labels.

    Raises:
      DataError: there are no words, or one is empty or contains white space.
    """
    column = entry["text_column_name"]
    value = cell(row, column)
    words = value.split() if isinstance(value, str) else list(cell(row, column, list))
    if not words:
        raise DataError(f"column {column!r} holds no word, where each word has a label")
    for word in words:
        if not _is_one_word(word):
            raise DataError(f"column {column!r} holds {word!r}, where each word has a label")
    return words


def _is_one_word(word) -> bool:
    return isinstance(word, str) and len(word.split()) == 1


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
    """One example per answer, in both training and evaluation; without known answers, one with `<unk>`.

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
    is_hidden = row.get(entry["label_column_name"]) is None
    answers = [] if is_hidden else answers_of(row, entry)
    return [Example(inputs, str(answer)) for answer in answers or [UNKNOWN_TARGET]]


def wsc(row, entry, split):
    """The pronoun is starred and the target is what it refers to; training uses true-label rows only.

    A false row names a wrong referent, so it has no target to learn; evaluation keeps every row and compares
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

    Only the first ` pronoun` followed by a space, full stop or comma is starred; if there is none (a pronoun at
    the sentence's beginning, or before a question mark) the sentence is unchanged. The pronoun is read as a regular
    expression, as in the original, or literally if it is not a valid one.

    >>> dpr({"sentence": "Bees sting as they fly.", "pronoun": "they", "candidates": ["Bees", "They"], "label": 0}, ...)
    [Example(inputs='wsc: Bees sting as *they* fly.', targets='Bees')]
    """
    pronoun = cell(row, "pronoun", str)
    sentence = cell(row, "sentence", str)
    try:
        text = re.sub(rf" ({pronoun})( |\.|,)", r" *\1*\2", sentence, count=1)
    except re.error:
        text = re.sub(rf" ({re.escape(pronoun)})( |\.|,)", r" *\1*\2", sentence, count=1)
    candidates = cell(row, "candidates", list)
    label = row.get(entry["label_column_name"])
    if label is None:
        label = INVALID_CLASS
    if label not in range(-1, len(candidates)):
        raise DataError(f"label {label!r} is not the position of one of the {len(candidates)} candidates")
    target = UNKNOWN_TARGET if label == INVALID_CLASS else str(candidates[label])
    return [Example(as_list(entry["prefix"])[0] + text, target)]


def document(row, entry, split):
    """Running text: empty inputs, and the text as targets.

    >>> document({"text": "It rains."}, {"text_column_name": "text"}, "train")
    [Example(inputs='', targets='It rains.')]
    """
    return [Example("", cell(row, entry["text_column_name"], str))]


def pad_punctuation(text: str) -> str:
    """Spaces around every ASCII punctuation mark, then single spaces; those at the ends are kept.

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
    target = UNKNOWN_TARGET
    if is_labelled(row, entry):
        target = pad_punctuation(str(answers_of(row, entry)[0]))
    return [Example(SPACES.sub(" ", " ".join(parts)), target)]


def super_ni(row, entry, split, fits=fits_always):
    """An instance with its task's instruction; training draws one of its references, evaluation takes the first.

    >>> super_ni(row, DATASET_VALS["super_ni"]["english"], "test")
    [Example(inputs='Definition: Name the capital.\\n\\n Positive Example 1 -\\nInput: ...', targets='Lima')]
    """
    settings = entry["instruction"]
    check_instance(row)
    inputs = instruction_text(row, settings, fits)
    if not is_labelled(row, entry):
        return [Example(inputs, UNKNOWN_TARGET)]
    label = label_of(row, entry)
    labels = label if isinstance(label, (list, tuple, np.ndarray)) else [label]
    references = [str(reference) for reference in labels]
    target = drawn_reference(row, references, settings) if split == "train" else references[0]
    return [Example(inputs, target)]


def formatter_of(entry: Mapping) -> Callable:
    """The function that an entry of the registry names, or `columns`."""
    formatter = FORMATTERS[entry.get("formatter") or "columns"]
    return load_object(formatter, "FORMATTERS") if isinstance(formatter, str) else formatter


# Functions (row, entry, split) -> examples, or `module:name` of one that is loaded when it is used.
FORMATTERS = {
    "columns": columns,
    "multirc": multirc,
    "record": record,
    "wsc": wsc,
    "wnli_simple": wnli_simple,
    "dpr": dpr,
    "squad": squad,
    "super_ni": super_ni,
    "document": document,
    "token_labels": token_labels,
    "joined_lists": "t5suite.contrib.formatters:joined_lists",
    "instruction": "t5suite.contrib.formatters:instruction",
}
# The functions above, also where FORMATTERS has one of the user's under a name of theirs.
SHIPPED_FORMATTERS = dict(FORMATTERS)

# The columns that a formatter reads besides the entry's own text and label columns.
FORMATTER_COLUMNS = {
    "wsc": ["span1_text", "span2_index", "span2_text"],
    "dpr": ["pronoun", "candidates"],
    "super_ni": ["task", "definition"],
}

# Those columns, by formatter, of which the target alone is made: no input has them.
TARGET_COLUMNS = {"wsc": ["span1_text"]}

# Formatters that drop parts if the whole is too long; they take `fits`, which checks the length.
FITTED_FORMATTERS = {"super_ni"}

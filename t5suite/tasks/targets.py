"""Labels -> target texts, and generated texts -> the values that metrics compare.

    >>> label_text({"label": 1}, DATASET_VALS["glue"]["sst2"])
    'positive'
    >>> parse_class("positive", ["negative", "positive"])
    1

Class labels are looked up exactly: case and white space count, and a text that is not a label is class -1, never
another class (arXiv:1910.10683, section 2.1: "we always count it as wrong").
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

import numpy as np

from t5suite.base.errors import DataError
from t5suite.tasks.cells import cell, value_at, with_value_at
from t5suite.tasks.metrics import NUMBER_METRICS, SET_METRICS, label_set

UNKNOWN_TARGET = "<unk>"
INVALID_CLASS = -1
TOKEN_LABELS = "token_labels"
INVALID_NUMBER = -1.0
PLAIN_DECIMAL = re.compile(r"-?\d+(\.\d+)?", re.ASCII)
DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+")
THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?")
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
# The most digits after the point that `target_decimals` may ask for.
MOST_DECIMALS = 20
# What makes a task of sets of labels, for messages.
FLAG_OF_SETS = "--metrics micro_f1,macro_f1,subset_accuracy"
# What stands between labels in other people's files, and around the labels of a list that was written as a text.
SEPARATORS = re.compile("[,;|]")
MARKS_OF_LISTS = " []'\""


def nearest_fifth(value) -> str:
    """STS-B's scores in steps of 0.2, halves to even, in float32 as the original computes them.

    >>> nearest_fifth(3.25), nearest_fifth(0.5), nearest_fifth(-1)
    ('3.2', '0.4', '-1.0')
    """
    return f"{float(np.round(np.float32(value) * np.float32(5)) / np.float32(5)):.1f}"


def plain_decimal(number) -> str:
    """A number (or its text) as the data writes it, without an exponent; it reads back as the same float.

    >>> plain_decimal("158.250"), plain_decimal(158.25), plain_decimal(-3), plain_decimal(1e-05), plain_decimal("1e3")
    ('158.250', '158.25', '-3', '0.00001', '1000.0')
    """
    text = str(int(number)) if isinstance(number, (bool, np.bool_)) else str(number).strip()
    return text if PLAIN_DECIMAL.fullmatch(text) else f"{Decimal(repr(float(text))):f}"


def rounded_decimal(text: str, decimals: int) -> str:
    """A decimal with so many digits after the point, halves to even; never a negative zero.

    >>> rounded_decimal("2.675", 2), rounded_decimal("-0.04", 1), rounded_decimal("158.25", 0)
    ('2.68', '0.0', '158')
    """
    return f"{Decimal(text):z.{decimals}f}"


def label_words(labels) -> list[str]:
    """The target words in the order of their ids; a word for -1 (unlabelled rows) is excluded.

    >>> label_words({0: "no", 1: "yes", -1: "other"})
    ['no', 'yes']
    """
    if isinstance(labels, dict):
        return [labels[key] for key in sorted(labels) if key != INVALID_CLASS]
    return list(labels)


def value_kind(entry) -> str:
    """'class', 'number', 'text' or 'labels' (one for every word): the kind of target, and how a prediction is read."""
    if entry.get("formatter") == TOKEN_LABELS:
        return "labels"
    if entry.get("labels") is not None:
        return "class"
    if entry.get("target") or NUMBER_METRICS & set(entry["metric_names"]):
        return "number"
    return "text"


def has_free_numbers(entry) -> bool:
    """Whether targets are numbers on no grid: any value may occur, -1 too.

    >>> has_free_numbers(DATASET_VALS["glue"]["stsb"])
    False
    """
    return value_kind(entry) == "number" and entry.get("target") is None


def label_of(row, entry):
    """The value of the label column; -1 if there is none. A list of answers is without its empty cells.

    >>> label_of({"answers": ["Ann", None]}, {"label_column_name": "answers"})
    ['Ann']
    """
    label = value_at(row, entry["label_column_name"], INVALID_CLASS)
    is_list_of_answers = isinstance(label, (list, tuple)) and entry.get("formatter") != TOKEN_LABELS
    return _without_empty_cells(label) if is_list_of_answers else label


def answers_of(row, entry) -> list:
    """The answers in the label column, which holds a list, without its empty cells.

    Raises:
      DataError: there is no such column, or it holds no list.
    """
    return _without_empty_cells(cell(row, entry["label_column_name"], list))


def _without_empty_cells(parts) -> list:
    return [part for part in parts if part is not None]


def label_text(row, entry) -> str:
    """The target text of a row; an unlabelled row (-1, or no label column) gives `<unk>` (numbers: `-1.0`)."""
    kind = value_kind(entry)
    if kind == "number":
        return number_text(value_at(row, entry["label_column_name"]), entry)
    label = label_of(row, entry)
    if kind == "class":
        index = class_number(label, entry)
        return UNKNOWN_TARGET if index == INVALID_CLASS else label_words(entry["labels"])[index]
    if _is_hidden(label):
        return UNKNOWN_TARGET
    text = _free_text(label, entry["label_column_name"])
    if not has_label_sets(entry):
        return text
    return label_set_text(label, entry["label_column_name"]) or UNKNOWN_TARGET


def has_label_sets(entry) -> bool:
    """Whether a row has several labels: a metric of sets is among the entry's.

    >>> has_label_sets({"labels": None, "metric_names": ["micro_f1"]})
    True
    """
    return value_kind(entry) == "text" and not SET_METRICS.isdisjoint(entry["metric_names"])


def label_set_text(labels, column: str) -> str:
    """The target text of several labels: each once, in the order of the alphabet, whatever the row's.

    >>> label_set_text("late, broken", "faults"), label_set_text(["late", "broken"], "faults")
    ('broken, late', 'broken, late')

    Raises:
      DataError: a label of a list has a comma in it.
    """
    if isinstance(labels, (list, tuple)):
        with_comma = next((label for label in map(str, labels) if "," in label), None)
        if with_comma is not None:
            raise DataError(
                f"column {column!r} holds the label {with_comma!r}: a comma stands between labels, not in one"
            )
    return ", ".join(sorted(labels_of_cell(labels)))


def parts_of_text(text: str) -> list[str]:
    """What may be the labels of a text, whatever separates them.

    >>> parts_of_text("late; broken"), parts_of_text("['late', 'broken']")
    (['late', 'broken'], ['late', 'broken'])
    """
    marks = MARKS_OF_LISTS if text.startswith("[") else None
    parts = [part.strip(marks) for part in SEPARATORS.split(text)]
    return [part for part in parts if part]


def labels_of_cell(labels) -> frozenset[str]:
    """The labels that a cell of sets holds: a list, or a text with commas between them.

    >>> sorted(labels_of_cell("late, broken")), sorted(labels_of_cell(["late"]))
    (['broken', 'late'], ['late'])
    """
    if isinstance(labels, (list, tuple)):
        return label_set([str(label) for label in labels])
    return label_set(str(labels))


def rows_by_label(cells: Iterable) -> dict[str, list[int]]:
    """The numbers of the rows that have a label, for each label of the cells of sets, in the order of the alphabet.

    >>> rows_by_label(["late, broken", ["late"]])
    {'broken': [0], 'late': [0, 1]}
    """
    row_numbers: dict[str, list[int]] = {}
    for i, cell_of_row in enumerate(cells):
        for label in labels_of_cell(cell_of_row):
            row_numbers.setdefault(label, []).append(i)
    return dict(sorted(row_numbers.items()))


def _free_text(label, column: str) -> str:
    """A label that is a text, or a list of correct texts, of which the first is the target."""
    if isinstance(label, (list, tuple)):
        label = label[0]
    if isinstance(label, Mapping):
        fields = [f"{column}.{name}" for name in label]
        hint = f"; a field of it is {' or '.join(fields)[:200]}" if fields else ""
        raise DataError(f"column {column!r} holds {label!r:.200}, not a text{hint}")
    if isinstance(label, (bytes, list, tuple)):
        raise DataError(f"column {column!r} holds {label!r:.200}, not a text")
    return str(label)


def label_id(row, entry) -> int:
    """The class id of a row's label: an id (also as digits), a label word or a boolean that spells one; -1 if none.

    >>> label_id({"label": "yes"}, {"label_column_name": "label", "labels": ["no", "yes"]})
    1
    """
    return class_number(label_of(row, entry), entry)


def class_number(label, entry) -> int:
    """As `label_id`, from the label itself."""
    words = label_words(entry["labels"])
    if label is None:
        return INVALID_CLASS
    if isinstance(label, bool):
        label = label_of_value(label, words)
    if isinstance(label, str) and label in words:
        return words.index(label)
    if is_id_in_digits(label, words):
        label = int(label)
    if not isinstance(label, bool) and _is_whole(label) and (label == INVALID_CLASS or 0 <= label < len(words)):
        return int(label)
    choices = ", ".join(f"{i} {word}" for i, word in enumerate(words))
    if any(map(is_number_word, words)):  # then ids are no labels
        choices = ", ".join(words)
    raise DataError(
        f"label {label!r} in column {entry['label_column_name']!r} is none of {choices} (-1: unlabelled)"
        f"{_hint_about_label(label, words)}"
    )


def _hint_about_label(label, words: list[str]) -> str:
    """What a label may be that is not among the words: one of them in another case, or several."""
    similar = same_but_for_case(label, words)
    if similar and similar == label.strip():
        return (
            f"; its outer spaces, which no label has, are all that differs from {similar!r}: take them out of the rows"
        )
    if similar:
        return (
            f"; it differs from {similar!r} in case or spaces only: write labels as the rows do, or make the rows alike"
        )
    texts = label if isinstance(label, (list, tuple)) else [label]
    parts = {part for text in texts if isinstance(text, str) for part in parts_of_text(text)}
    if parts and parts <= set(words):
        return f"; rows with several labels: {FLAG_OF_SETS} without --labels, and commas between the labels of a cell"
    return ""


def is_id_in_digits(label, words: Sequence[str]) -> bool:
    """Whether a text is a class id: its digits mean nothing else, as no label word is a number."""
    is_digits = isinstance(label, str) and label.isascii() and label.isdecimal()
    return is_digits and not any(is_number_word(word) for word in words)


def is_number_word(word: str) -> bool:
    """Whether a label word is a number in plain decimals, as `3`, `-1` and `0.5` are."""
    return PLAIN_DECIMAL.fullmatch(word) is not None


def label_of_value(value, labels: Sequence[str]):
    """The label word that a number or a boolean spells, so that it is the label that it looks like.

    >>> label_of_value(3, ["1", "2", "3"]), label_of_value(2.0, ["1", "2"]), label_of_value(True, ["true", "false"])
    ('3', '2', 'true')
    >>> label_of_value(1, ["bad", "good"]), label_of_value(-1, ["1", "2"])    # a class id, and an unlabelled row
    (1, -1)
    >>> label_of_value(True, ["no", "yes"])    # nobody says which one it is: `class_number` refuses it
    True
    """
    if isinstance(value, bool):
        spelled = same_but_for_case(str(value), list(labels))
        if spelled is not None:
            return spelled
        word = label_of_value(int(value), labels)
        return word if isinstance(word, str) else value
    word_of_number = {float(word): word for word in labels if is_number_word(word)}
    is_number = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    if not is_number or not word_of_number:
        return value
    if str(value) in labels:
        return str(value)
    if value == INVALID_CLASS and value not in word_of_number:
        return INVALID_CLASS
    return word_of_number.get(value, str(value))


def class_names(feature) -> list[str]:
    """The names of a column of class labels or of lists of them; an empty list for other columns.

    >>> class_names(datasets.List(datasets.ClassLabel(names=["late", "rude"])))
    ['late', 'rude']

    Args:
      feature: what a data set's `features` have for the column; None if they have nothing.
    """
    in_lists = getattr(feature, "feature", None)
    return getattr(feature, "names", None) or getattr(in_lists, "names", None) or []


def words_of_ids(names: Sequence[str], labels: Sequence[str] | None) -> list[str]:
    """The label words of a data set's class ids: its own names if they are labels, or the labels are some of them; else
    the labels by their places.

    >>> words_of_ids(["pos", "neg"], ["neg", "pos"]), words_of_ids(["1 star", "2 stars"], ["bad", "good"])
    (['pos', 'neg'], ['bad', 'good'])
    """
    if labels is None or set(names) <= set(labels) or set(labels) <= set(names):
        return list(names)
    return list(labels)


def with_words_of_ids(row: dict, column: str, words: Sequence[str]) -> dict:
    """The row with label words in place of class ids; -1 (unlabelled) stays. The column may be a dotted name.

    >>> with_words_of_ids({"labels": [1, 0]}, "labels", ["bad", "good"])
    {'labels': ['good', 'bad']}

    Raises:
      DataError: there are class ids, and no word for one of them.
    """
    label = value_at(row, column)
    if label is None:
        return row
    if isinstance(label, (list, tuple)):
        return with_value_at(row, column, [_word_of_id(class_id, words, column) for class_id in label])
    return with_value_at(row, column, _word_of_id(label, words, column))


def _word_of_id(label, words: Sequence[str], column: str):
    if not isinstance(label, int) or label < 0 or not words:
        return label
    if label >= len(words):
        raise DataError(
            f"column {column!r} holds the class id {label}, but there are {len(words)} labels ({', '.join(words)}): "
            "name a label for every class of the data set"
        )
    return words[label]


def _is_whole(label) -> bool:
    if isinstance(label, float):
        return label.is_integer()
    return isinstance(label, (int, np.integer))


def same_but_for_case(label, words: list[str]) -> str | None:
    """The word that a label equals but for capitals and outer spaces; None if there is none.

    >>> same_but_for_case("Negative ", ["negative", "positive"])
    'negative'
    """
    if not isinstance(label, str):
        return None
    return next((word for word in words if word.strip().casefold() == label.strip().casefold()), None)


def number_text(label, entry) -> str:
    """The target text of a number; an unlabelled row (None) gives `-1.0`.

    >>> number_text(0.00125, {"label_column_name": "label", "target_decimals": 4})
    '0.0012'
    """
    label = INVALID_NUMBER if label is None else label
    number = checked_number(label, entry)
    if entry.get("target") is not None:
        return TARGETS[entry["target"]](number)
    text = plain_decimal(label)
    decimals = entry.get("target_decimals")
    return text if decimals is None else rounded_decimal(text, decimals)


def checked_number(label, entry) -> float:
    """A label as a number.

    Raises:
      DataError: it is not a finite number.
    """
    try:
        number = float(label)
    except (TypeError, ValueError, OverflowError):
        number = np.nan
    if not abs(number) <= LARGEST_FLOAT32:
        column = entry["label_column_name"]
        raise DataError(f"label {label!r} in column {column!r} is not a finite number{hint_on_commas(label)}")
    return number


def label_number(row, entry) -> float:
    """The number of a row's label, as the data has it, or on the grid of the entry's target; -1.0 without a label.

    >>> label_number({"label": 2.33}, {"label_column_name": "label", "target_decimals": 1})
    2.33
    """
    label = value_at(row, entry["label_column_name"])
    if label is None:
        return INVALID_NUMBER
    return float(number_text(label, entry)) if entry.get("target") else checked_number(label, entry)


def hint_on_commas(label) -> str:
    """The end of a message about a number with a decimal comma, or commas between thousands; empty for others.

    >>> hint_on_commas("3,5"), hint_on_commas("1,234,567")
    ('; it has a decimal comma: write 3.5', '; it has commas between thousands: write 1234567')
    """
    number = label.strip() if isinstance(label, str) else ""
    with_point = number.replace(",", ".")
    without_commas = number.replace(",", "")
    may_be_thousands = THOUSANDS.fullmatch(number)
    may_be_decimal = DECIMAL_COMMA.fullmatch(number)
    if may_be_thousands and may_be_decimal:
        return f"; write {without_commas} if its comma is between thousands, {with_point} if it is a decimal comma"
    if may_be_thousands:
        return f"; it has commas between thousands: write {without_commas}"
    if may_be_decimal:
        return f"; it has a decimal comma: write {with_point}"
    return ""


def is_labelled(row, entry) -> bool:
    """Whether the row has a label: hidden test labels are -1 (on STS-B's grid: -1.0), hidden answers an empty list.

    Numbers that are on no grid may be -1; they are hidden where there is no value. A set of labels is hidden where the
    cell names none, as white space and commas alone do not.
    """
    if has_free_numbers(entry):
        return value_at(row, entry["label_column_name"]) is not None
    label = label_of(row, entry)
    if _is_hidden(label):
        return False
    return not has_label_sets(entry) or bool(labels_of_cell(label))


def _is_hidden(label) -> bool:
    """Whether a label stands for none: no value, -1, or a list without another part."""
    if isinstance(label, (list, tuple, np.ndarray)):
        return all(part is None or part == INVALID_CLASS for part in label)
    return label is None or label == INVALID_CLASS


def are_hidden_numbers(labels: Iterable) -> bool:
    """Whether the numbers of a test split stand for hidden ones: all are -1.

    >>> are_hidden_numbers([-1, -1.0, "-1"]), are_hidden_numbers([-1, 3.5])    # cells of CSV and decimals are texts
    (True, False)
    """
    return all(map(_is_hidden_number, labels))


def _is_hidden_number(label) -> bool:
    try:
        return float(label) == INVALID_NUMBER
    except (TypeError, ValueError):
        return False


def parse_class(text: str, words: list[str]) -> int:
    """The id of the label equal to `text`; -1 if `text` is not a label."""
    return words.index(text) if text in words else INVALID_CLASS


def parse_number(text: str) -> float:
    """`float(text)`, or -1.0 where that fails; no clipping (arXiv:1910.10683's code does the same).

    >>> parse_number("2.6"), parse_number("3,4")
    (2.6, -1.0)
    """
    try:
        return float(text)
    except ValueError:
        return INVALID_NUMBER


def is_number(text: str) -> bool:
    """Whether `text` reads as a number other than nan."""
    try:
        return not np.isnan(float(text))
    except ValueError:
        return False


# Targets of numbers that are on a grid; others are written as the data writes them.
TARGETS = {"nearest_fifth": nearest_fifth}
SHIPPED_TARGETS = dict(TARGETS)

# What a model may choose from when candidates are scored, by the name of the target.
NUMBER_GRIDS = {"nearest_fifth": [f"{step / 5:.1f}" for step in range(26)]}

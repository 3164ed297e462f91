"""Whether the rows of a split are rows of a task; errors name the file and line.

>>> check_rows(load_task("glue", "sst2"), "train", [{"sentence": "Good.", "label": 7}], lambda i: "a.jsonl:1")
DataError: a.jsonl:1: label 7 in column 'label' is none of 0 negative, 1 positive (-1: unlabelled)
"""

import itertools
import logging
import re
from collections.abc import Callable
from decimal import Decimal

from t5suite.base.errors import DataError
from t5suite.base.lookup import listed, suggestion
from t5suite.constants import OWN_BENCHMARK
from t5suite.tasks.cells import value_at
from t5suite.tasks.entry_metrics import function_name, metrics_by_reported_name
from t5suite.tasks.metrics import CLASS_METRICS
from t5suite.tasks.postprocessors import cell_at
from t5suite.tasks.registry import Task
from t5suite.tasks.scored_labels import MOST_NAMED_LABELS
from t5suite.tasks.targets import (
    FLAG_OF_SETS,
    MOST_DECIMALS,
    has_label_sets,
    label_number,
    label_of,
    parts_of_text,
    plain_decimal,
    rounded_decimal,
    rows_by_label,
)

logger = logging.getLogger(__name__)

_NOTHING = object()
# What separates labels in other people's files, or begins a list as Python or JSON writes it, but is part of a label
# here.
OTHER_SIGNS = ("|", ";", "['", '["')
NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
# What a formatter raises for a row of another form.
ROW_ERRORS = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError)
LABELLED_WORDS = {True: "labelled", False: "unlabelled"}
# Words for kinds of values, of which a column has one.
KIND_WORDS = {
    str: "text",
    int: "number",
    float: "number",
    Decimal: "number",
    bool: "true or false",
    list: "list",
    dict: "object",
}


def check_rows(task: Task, role: str, rows, place: Callable[[int], str]) -> int:
    """Formats every row once, so that an invalid one stops the run before training; counts rows with an empty text.

    Args:
      role: 'train', 'validation' or 'test'.
      place: the number of a row -> its file and line.

    Raises:
      DataError: a column is missing, a label does not belong to the task, a row lacks a required label, and so on.
    """
    empty_rows_by_column: dict[str, set[int]] = {column: set() for column in task.text_columns}
    all_empty = True
    are_labelled: bool | None = None
    for i, row in enumerate(rows):
        try:
            texts = _texts_of(task, row)
            are_labelled = _check_labelled(task, role, row, are_labelled)
            _check_metrics_of_lists(task, row)
            if role != "train" and are_labelled:
                _check_columns_of_scores(task, row)
            task.examples(row, role)
        except ROW_ERRORS as error:
            raise error_of_row(task, place(i), error) from None
        empty = [_is_empty(text) for text in texts]
        for column in itertools.compress(task.text_columns, empty):
            empty_rows_by_column[column].add(i)
        all_empty = all_empty and all(empty)
    check_rounding(task, rows, place)
    if role == "train" and task.benchmark == OWN_BENCHMARK:
        if not task.writes_plainly:
            _note_lists_of_answers(task, rows, place)
            _note_sets_as_texts(task, rows, place)
            _note_texts_as_classes(task, rows)
        _note_numbers(task, rows)
        _note_spellings_of_numbers(task, rows, place)
        _note_label_sets(task, rows, place)
    return _report_empty_texts(task, role, empty_rows_by_column, all_empty, place)


def error_of_row(task: Task, place: str, error: Exception) -> DataError:
    """What a row's formatter has raised, as an error that names the row's place."""
    if isinstance(error, DataError):
        return DataError(f"{place}: {error}")
    what = f"{type(error).__name__}: {error}"
    return DataError(f"{place}: not a row of {task.benchmark}/{task.name} ({what:.200})")


def _check_metrics_of_lists(task: Task, row) -> None:
    """Rejects several correct texts where a metric of classes would score them."""
    if task.value_kind != "text" or not isinstance(label_of(row, task.entry), (list, tuple)):
        return
    unfit_names = [name for name in task.entry["metric_names"] if function_name(name, task.entry) in CLASS_METRICS]
    if unfit_names:
        raise DataError(
            f"column {task.entry['label_column_name']!r} is a list of correct texts, which the metric "
            f"{', '.join(unfit_names)} of classes cannot score; for answers in text: squad_f1,squad_exact_match"
        )


def _check_columns_of_scores(task: Task, row) -> None:
    """Rejects a row without a column by which rows are scored apart or in groups."""
    for column in task.entry.get("report_by") or []:
        if value_at(row, column, _NOTHING) is _NOTHING:
            raise DataError(f"no column {column!r}, which report_by names; {suggestion(column, row)}")
    if task.entry.get("group_by"):
        cell_at(row, task.entry["group_by"])


def _note_lists_of_answers(task: Task, rows, place: Callable[[int], str]) -> None:
    """Warns of targets that are lists, of which a model learns one text, where they might be meant as sets."""
    for i, row in enumerate(rows):
        answers = label_of(row, task.entry)
        if isinstance(answers, (list, tuple)) and len(answers) > 1:
            logger.warning(
                "%s: %r is a list: its first text is learned, the others count as correct answers. For sets of labels "
                "give %s",
                place(i),
                task.entry["label_column_name"],
                FLAG_OF_SETS,
            )
            return


def _note_sets_as_texts(task: Task, rows, place: Callable[[int], str]) -> None:
    """Warns of texts that look like sets of labels where each is learned and scored as it is written."""
    cells = [label_of(row, task.entry) for row in rows]
    if not look_like_label_sets(cells):
        return
    first = next(i for i, cell in enumerate(cells) if len(parts_of_text(cell)) > 1)
    logger.warning(
        "%s: %r holds %.100r, which looks like a set of labels, but is learned and scored as one text, in this order. "
        "For sets of labels give %s, and write commas between the labels of a cell",
        place(first),
        task.entry["label_column_name"],
        cells[first],
        FLAG_OF_SETS,
    )


def _note_texts_as_classes(task: Task, rows) -> None:
    """Warns of metrics of classes where the targets are no class words: most of them are texts of their own."""
    metrics = [name for name, metric in metrics_by_reported_name(task.entry).items() if metric in CLASS_METRICS]
    if not metrics:
        return
    num_texts = len({str(label_of(row, task.entry)) for row in rows})
    if 2 * num_texts > len(rows):
        logger.warning(
            "%r holds %d different texts in %d rows, each of which is a class of its own in %s; for the words that an "
            "answer has in common with its target give --metrics squad_f1",
            task.entry["label_column_name"],
            num_texts,
            len(rows),
            ", ".join(metrics),
        )


def look_like_label_sets(cells: list) -> bool:
    """Whether all cells are texts made of few parts, in more combinations than there are parts.

    Parts are few if a cell has two of its own or more, on average; one stands alone in a cell, none twice in one, and
    not all of them are numbers. Their order says nothing: some come in two orders, or each one stands alone in a cell.

    >>> look_like_label_sets(["late", "late; broken", "rude", "broken; late", "broken; rude", "rude"])
    True
    >>> look_like_label_sets(["push a", "push a; add", "pop", "push a; pop", "push a; add; pop", "pop"])
    False
    """
    orders: dict[frozenset[str], set[tuple[str, ...]]] = {}
    for cell in cells:
        if not isinstance(cell, str):
            return False
        parts = tuple(parts_of_text(cell))
        if len(set(parts)) < len(parts):
            return False
        if parts:  # none in [] and the like
            orders.setdefault(frozenset(parts), set()).add(parts)
    labels = frozenset().union(*orders)
    single_labels = frozenset().union(*(parts for parts in orders if len(parts) == 1))
    are_few = 2 * len(labels) <= len(cells) and len(labels) < len(orders)
    come_in_any_order = single_labels == labels or any(len(same_parts) > 1 for same_parts in orders.values())
    return are_few and bool(single_labels) and come_in_any_order and not all(map(NUMBER.fullmatch, labels))


def _note_numbers(task: Task, rows) -> None:
    """Warns of targets that all are numbers where they are learned as texts and scored by common words."""
    if task.value_kind != "text" or "rouge" not in task.entry["metric_names"]:
        return
    column = task.entry["label_column_name"]
    if len(rows) and all(NUMBER.fullmatch(str(value_at(row, column, None))) for row in rows):
        logger.warning(
            "%r holds numbers, which are learned and scored as texts. For a regression give --metrics "
            "pearson,spearman; for classes give --labels",
            column,
        )


def _note_spellings_of_numbers(task: Task, rows, place: Callable[[int], str]) -> None:
    """Warns of whole numbers of which some have a point (`5.0`) and some have none: a model learns both spellings."""
    is_as_written = task.entry.get("target") is None and task.entry.get("target_decimals") is None
    if task.value_kind != "number" or not is_as_written:
        return
    column = task.entry["label_column_name"]
    first_spellings: dict[bool, str] = {}
    for i, row in enumerate(rows):
        text = plain_decimal(value_at(row, column))
        if float(text).is_integer():
            first_spellings.setdefault("." in text, f"{text} ({place(i)})")
    if len(first_spellings) == 2:
        logger.warning(
            "%r has whole numbers in two spellings, %s, which are learned as they are: write all in one way",
            column,
            " and ".join(first_spellings.values()),
        )


def _note_label_sets(task: Task, rows, place: Callable[[int], str]) -> None:
    """Logs which labels the cells of a task of sets hold, and warns of a cell that another sign may separate."""
    if not has_label_sets(task.entry):
        return
    column = task.entry["label_column_name"]
    cells = [label_of(row, task.entry) for row in rows]
    labels = rows_by_label(cells)
    names = ", ".join(list(labels)[:MOST_NAMED_LABELS])
    if len(labels) > MOST_NAMED_LABELS:
        names += ", ..."
    logger.info(
        "labels in %r are separated by commas: %d labels in %d rows (%s)", column, len(labels), len(rows), names
    )
    _warn_of_other_signs(cells, column, place)
    _warn_of_similar_labels(labels, column, place)


def _warn_of_similar_labels(labels: dict[str, list[int]], column: str, place: Callable[[int], str]) -> None:
    """Warns of labels of sets that differ in case or spaces only, such as a spreadsheet's autocorrection makes.

    Args:
      labels: with the numbers of their rows.
    """
    descriptions: dict[str, list[str]] = {}
    for label, row_numbers in sorted(labels.items(), key=lambda item: len(item[1])):
        description = f"{label!r} ({len(row_numbers)} rows, first: {place(row_numbers[0])})"
        descriptions.setdefault("".join(label.casefold().split()), []).append(description)
    groups = [" and ".join(group) for group in descriptions.values() if len(group) > 1]
    if groups:
        logger.warning(
            "%r has labels that differ in case or spaces only, each of which is learned and scored as another label: "
            "%s; if they are the same, make the rows alike",
            column,
            listed(groups, MOST_NAMED_LABELS),
        )


def _warn_of_other_signs(cells: list, column: str, place: Callable[[int], str]) -> None:
    """Warns of the first cell with a sign that separates labels in other people's files, or begins a list of them."""
    ambiguous_rows = []
    for i, cell in enumerate(cells):
        if isinstance(cell, str) and any(sign in cell for sign in OTHER_SIGNS):
            ambiguous_rows.append(i)
    if not ambiguous_rows:
        return
    first = ambiguous_rows[0]
    signs = [sign for sign in OTHER_SIGNS if sign in cells[first]]
    logger.warning(
        "%s: %r holds %.100r: only commas separate labels, so %s is part of a label (%d such rows); if it is not to "
        "be, write commas alone between the labels: late, broken",
        place(first),
        column,
        cells[first],
        " and ".join(signs),
        len(ambiguous_rows),
    )


def _texts_of(task: Task, row) -> list:
    """The values of the task's text columns."""
    texts = [value_at(row, column, _NOTHING) for column in task.text_columns]
    if _NOTHING in texts:
        column = task.text_columns[texts.index(_NOTHING)]
        cure = form_hint(row)
        if not cure and task.benchmark != OWN_BENCHMARK:
            cure = (
                f", which are not those of {task.benchmark}/{task.name}; name your own: --text_column, --target_column"
            )
        raise DataError(f"no column {column!r}; the row has {', '.join(map(repr, row)):.500}{cure}")
    return texts


def _is_empty(text) -> bool:
    return text in (None, []) or (isinstance(text, str) and not text.strip())


def _check_labelled(task: Task, role: str, row, are_labelled: bool | None) -> bool:
    """Whether the rows of a split are labelled, all of them or none.

    Args:
      are_labelled: whether those before this row are; None for the first row.
    """
    is_labelled = task.is_labelled(row)
    is_scored = bool(task.entry["metric_names"])
    if not is_labelled and (role == "train" or (role == "validation" and is_scored)):
        cure = "remove unlabelled rows, or put them into --test_file"
        if has_label_sets(task.entry):
            cure += "; one with no label of a set has a label for that, such as none"
        raise DataError(f"{_label_in_words(task, row)}: a {role} row must be labelled ({cure})")
    if are_labelled is None:
        return is_labelled
    if is_labelled is not are_labelled and is_scored:
        raise DataError(
            f"{_label_in_words(task, row)}: the row is {LABELLED_WORDS[is_labelled]}, but those before it are "
            f"{LABELLED_WORDS[are_labelled]}; label the unlabelled rows, remove them, or put them into a file of their "
            "own"
        )
    return are_labelled


def _label_in_words(task: Task, row) -> str:
    """What the label column of a row has: `column 'label' is empty`."""
    column = task.entry["label_column_name"]
    label = value_at(row, column)
    content = "is empty" if label is None else f"holds {label!r:.60}"
    return f"column {column!r} {content}"


def _report_empty_texts(task: Task, role: str, rows_by_column: dict[str, set[int]], all_empty: bool, place) -> int:
    """How many rows have an empty text, which is logged with the columns.

    Args:
      rows_by_column: the rows in which each text column is empty.

    Raises:
      DataError: no row has a text.
    """
    row_numbers = sorted(set().union(*rows_by_column.values()))
    if not row_numbers:
        return 0
    if all_empty:
        names = ", ".join(map(repr, task.text_columns))
        raise DataError(
            f"{place(0)}: no row has a text in {names}: empty cells and white space alone; check --text_column"
        )
    # Published rows are scored unchanged; QQP has empty questions.
    level = logging.INFO if task.entry.get("hub_path") else logging.WARNING
    counts = [f"{len(rows)} in {column!r}" for column, rows in rows_by_column.items() if rows]
    logger.log(
        level,
        "%s/%s %s: %d rows with an empty text (%s; first: %s)",
        task.benchmark,
        task.name,
        role,
        len(row_numbers),
        ", ".join(counts),
        place(row_numbers[0]),
    )
    return len(row_numbers)


def check_rounding(task: Task, rows, place: Callable[[int], str]) -> None:
    """Refuses `target_decimals` that make one target of different numbers.

    Raises:
      DataError: it does; names two such rows, and the decimals that keep all numbers apart.
    """
    decimals = task.entry.get("target_decimals")
    if decimals is None:
        return
    column = task.entry["label_column_name"]
    row_of_number: dict[float, int] = {}
    for i, row in enumerate(rows):
        if task.is_labelled(row):
            row_of_number.setdefault(label_number(row, task.entry), i)
    texts = [plain_decimal(value_at(rows[i], column)) for i in row_of_number.values()]
    row_of_target: dict[str, int] = {}
    for text, i in zip(texts, row_of_number.values(), strict=True):
        target = rounded_decimal(text, decimals)
        first = row_of_target.setdefault(target, i)
        if first != i:
            raise DataError(
                f"{place(i)}: target_decimals {decimals} makes one target, {target}, of "
                f"{value_at(rows[first], column)} ({place(first)}) and {value_at(rows[i], column)}; "
                f"{_sufficient_decimals(texts, decimals)}"
            )


def _sufficient_decimals(texts: list[str], decimals: int) -> str:
    """What keeps different numbers apart, for the message."""
    for count in range(decimals + 1, MOST_DECIMALS + 1):
        if len({rounded_decimal(text, count) for text in texts}) == len(texts):
            return f"target_decimals {count} keeps all {len(texts)} numbers apart"
    return "without target_decimals, targets are as the data writes them"


def form_hint(row: dict) -> str:
    """How to read a row that another tool has written, for the end of a message; '' if its form is not known.

    >>> form_hint({"translation": {"en": "Hello", "ro": "Salut"}})
    '; --data_format translation --source_id en --target_id ro reads such rows'
    """
    languages = row.get("translation")
    if not isinstance(languages, dict) or len(languages) < 2:
        return ""
    source, target = list(languages)[:2]
    return f"; --data_format translation --source_id {source} --target_id {target} reads such rows"


def check_same_columns(rows: list[dict], places: list[str], first_line: int) -> None:
    """Checks that the lines of a file have the columns of its first line.

    `Dataset.from_list` takes the first row's columns, and drops others silently.
    """
    for place, row in zip(places, rows, strict=True):
        differing_columns = sorted(row.keys() ^ rows[0].keys())
        if differing_columns:
            raise DataError(f"{place}: other columns than in line {first_line}: {', '.join(differing_columns)}")


def changed_type(rows: list[dict], places: list[str]) -> str | None:
    """Where a column first holds another kind of value than before; None if only nested values differ.

    >>> changed_type([{"text": "a"}, {"text": 3.5}], ["a.jsonl:1", "a.jsonl:2"])
    "a.jsonl:2: column 'text' holds 3.5 (number), but in a.jsonl:1 'a' (text); a column has one kind of value"
    """
    first_of_column: dict[str, tuple[str, str, object]] = {}
    for place, row in zip(places, rows, strict=True):
        for column, value in row.items():
            if value is None:
                continue
            kind = KIND_WORDS.get(type(value), type(value).__name__)
            first_kind, first_place, first_value = first_of_column.setdefault(column, (kind, place, value))
            if kind != first_kind:
                return (
                    f"{place}: column {column!r} holds {value!r:.60} ({kind}), but in {first_place} "
                    f"{first_value!r:.60} ({first_kind}); a column has one kind of value"
                )
    return None

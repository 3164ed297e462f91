"""Generated texts -> what the metrics compare.

    >>> judged = values(task, examples, ["positive", "bad"])   # sst2
    >>> judged.predictions, judged.references
    ([1, -1], [1, 0])

The functions in `POSTPROCESSORS` take `(task, examples, predictions)`, an `ExampleSet` and one prediction per example,
and return a `Judged`. `is_right` and `correctness` judge single examples, for tables that show them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from t5suite.base.errors import DataError
from t5suite.tasks.cells import value_at
from t5suite.tasks.formatters import pad_punctuation
from t5suite.tasks.metrics import label_set, normalize_answer, wsc_verdict
from t5suite.tasks.targets import (
    INVALID_CLASS,
    answers_of,
    has_label_sets,
    is_number,
    label_id,
    label_number,
    label_of,
)
from t5suite.tasks.templates import unfilled

# The largest error of a number that counts as right, on T5's grid for STS-B: half a step.
CLOSE = 0.1
# The same for other numbers, whose scale is not known: a share of the reference.
CLOSE_SHARE = 0.02
# What floating-point numbers add to the error, as a share of the reference: 3.2 - 3.1 is a little above 0.1.
ROUNDING = 1e-9
_NOTHING = object()


class Judged(NamedTuple):
    """What a metric function takes: predictions and references of equal length, and groups if any."""

    predictions: list
    references: list
    groups: list | None = None


def values(task, examples, predictions) -> Judged:
    """Each prediction as `task.parse` reads it, against the row's own label; an entry without `postprocess` has this.

    With `references_by`, this is `answers_of_questions`. With `group_by`, the values of that column are the groups.
    """
    if task.entry.get("references_by"):
        return answers_of_questions(task, examples, predictions)
    references = [_reference(task, row, example) for row, example in examples.pairs()]
    group_column = task.entry.get("group_by")
    groups = None
    if group_column:
        groups = [cell_at(row, group_column) for row, _ in examples.pairs()]
    return Judged([task.parse(text) for text in predictions], references, groups)


def first_answer(task, examples, predictions) -> Judged:
    """ReCoRD: a query has one example per answer, and every row has all its answers.

    The first prediction of each (passage, query) is scored against all answers of its row. Passage and query are
    identified by their ids in `idx`, or by their texts if a row has not both ids.
    """
    prediction_of_query = {}
    answers_of_query = {}
    for (row, _), text in zip(examples.pairs(), predictions, strict=True):
        query = _identity_of_query(row)
        if query not in prediction_of_query:
            prediction_of_query[query] = task.parse(text)
            answers_of_query[query] = answers_of(row, task.entry)
    return Judged(list(prediction_of_query.values()), list(answers_of_query.values()))


def _identity_of_query(row) -> tuple:
    """A row's passage and query, by their ids or their texts."""
    ids = row.get("idx")
    if isinstance(ids, Mapping) and {"passage", "query"} <= ids.keys():
        return _checked_hashable((ids["passage"], ids["query"]), "idx")
    return _checked_hashable((row["passage"], row["query"]), "passage, query")


def answers_of_questions(task, examples, predictions) -> Judged:
    """Rows with equal `references_by` are one question: its first prediction is scored against all rows' answers."""
    prediction_of_question = {}
    answers_of_question: dict = {}
    for (row, example), text in zip(examples.pairs(), predictions, strict=True):
        question = cell_at(row, task.entry["references_by"])
        prediction_of_question.setdefault(question, task.parse(text))
        answers = answers_of_question.setdefault(question, [])
        reference = _reference(task, row, example)
        if isinstance(reference, list):
            answers += reference
        else:
            answers.append(reference)
    return Judged(list(prediction_of_question.values()), list(answers_of_question.values()))


def squad_answers(task, examples, predictions) -> Judged:
    """SQuAD: each answer counts both unchanged and in the original T5's form, with spaces around punctuation.

    A model that was trained on that form writes it (`U . S .`), others do not (`U.S.`), and SQuAD's normalisation,
    which deletes punctuation, does not make the two equal.
    """
    references = []
    for row, _ in examples.pairs():
        answers = list(map(str, answers_of(row, task.entry)))
        references.append(list(dict.fromkeys([*answers, *map(pad_punctuation, answers)])))
    return Judged([task.parse(text) for text in predictions], references)


def wsc_verdicts(task, examples, predictions) -> Judged:
    """Whether each written referent means the row's candidate, scored against the row's label."""
    column = task.entry["label_column_name"]
    verdicts = []
    labels = []
    for (row, example), text in zip(examples.pairs(), predictions, strict=True):
        if row[column] not in (0, 1):
            raise DataError(f"label {row[column]!r} in column {column!r} is neither 0 nor 1")
        verdicts.append(_verdict(task, text, example.targets))
        labels.append(int(row[column]))
    return Judged(verdicts, labels)


def _verdict(task, prediction: str, target: str) -> int:
    """`wsc_verdict` on the referents inside of the task's output form."""
    return wsc_verdict(unfilled(prediction, task.entry), unfilled(target, task.entry))


def cell_at(row, path: str) -> Any:
    """A row's value at a dotted path, as something hashable.

    >>> cell_at({"idx": {"question": 4}}, "idx.question")
    4
    """
    value = value_at(row, path, _NOTHING)
    if value is _NOTHING:
        raise DataError(f"a row has no {path!r}, which groups the predictions; its columns are {', '.join(row)}")
    if isinstance(value, list):
        value = tuple(value)
    return _checked_hashable(value, path)


def _checked_hashable(value, path: str):
    """The value, by which rows are told apart.

    Raises:
      DataError: it cannot be compared by its hash.
    """
    try:
        hash(value)
    except TypeError:
        raise DataError(f"{path!r} holds {value!r:.100}, by which rows cannot be told apart") from None
    return value


def _reference(task, row, example):
    """What a row's prediction is compared with: a class's id, a number, a text or list of texts, or words' labels."""
    if task.value_kind == "class":
        return label_id(row, task.entry)
    if task.value_kind == "number":
        return label_number(row, task.entry)
    target = label_of(row, task.entry)
    if task.value_kind == "text" and isinstance(target, (list, tuple)) and not has_label_sets(task.entry):
        return [str(answer) for answer in target]
    return task.parse(example.targets)  # one text, or words' labels


def is_right(task, row, target: str, prediction: str) -> bool | None:
    """Whether `prediction` is right for an example of the row, by `correctness`; None for a row without a label.

    >>> is_right(load_task("glue", "rte"), {"label": 0, ...}, "entailment", "entailment")
    True

    Of WSC, it is right if the verdict on the written referent equals the label.

    Args:
      target: the example's own; a free text may have further references in the row.
    """
    if not task.is_labelled(row):
        return None
    if task.entry.get("postprocess") == "wsc_verdict":
        return _verdict(task, prediction, target) == int(label_of(row, task.entry))
    return correctness(task, prediction, [target, *task.references(row)]) == "right"


def is_invalid(task, prediction: str, labels_of_sets: Sequence[str] | None = None) -> bool:
    """Whether a text is not a label where one is expected, not a number, or not a set of the labels that it may have.

    >>> is_invalid(load_task("glue", "stsb"), "3.x"), is_invalid(load_task("glue", "rte"), "entailment")
    (True, False)

    Args:
      labels_of_sets: of a task of sets, where they are known; else no set is invalid.
    """
    if task.value_kind == "class":
        return task.parse(prediction) == INVALID_CLASS
    if task.value_kind == "number":
        return not is_number(unfilled(prediction, task.entry))
    if labels_of_sets is not None:
        labels = label_set(unfilled(prediction, task.entry))
        return not labels or not labels.issubset(labels_of_sets)
    return False


def correctness(task, prediction: str, references: list[str]) -> str:
    """'right', 'wrong', or 'invalid': a text that is not a label, or not a number where one is expected.

    Classes: by the label. Numbers: `is_close`. Labels of words: the same text. Free texts: equal to a reference,
    ignoring articles, punctuation and case, as in SQuAD. Sets of labels: the same set.

    Args:
      references: the target, and of a free text the others.
    """
    if is_invalid(task, prediction):
        return "invalid"
    return "right" if _agrees(task, prediction, references) else "wrong"


def _agrees(task, prediction: str, references: list[str]) -> bool:
    """Whether a valid prediction agrees with the first reference; a free text, with any of them."""
    if task.value_kind == "class":
        return task.parse(prediction) == task.parse(references[0])
    if task.value_kind == "number":
        return is_close(task, task.parse(prediction), task.parse(references[0]))
    if task.value_kind == "labels":
        return prediction == references[0]
    if has_label_sets(task.entry):
        return label_set(unfilled(prediction, task.entry)) == label_set(unfilled(references[0], task.entry))
    answer = normalize_answer(unfilled(prediction, task.entry))
    return answer in [normalize_answer(unfilled(reference, task.entry)) for reference in references]


def is_close(task, prediction: float, reference: float) -> bool:
    """Whether a number counts as right in tables of examples: within CLOSE on a grid, else within CLOSE_SHARE.

    >>> is_close(load_task("glue", "stsb"), 3.1, 3.2)
    True
    """
    is_on_grid = task.has_candidates  # among numbers, those of T5's grid for STS-B have candidates
    largest_error = CLOSE if is_on_grid else CLOSE_SHARE * abs(reference)
    return abs(prediction - reference) <= largest_error + ROUNDING * abs(reference)


POSTPROCESSORS = {
    "values": values,
    "first_answer": first_answer,
    "squad_answers": squad_answers,
    "wsc_verdict": wsc_verdicts,
}
SHIPPED_POSTPROCESSORS = dict(POSTPROCESSORS)

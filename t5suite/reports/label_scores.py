"""Scores by label, of tasks of classes, and of those that label words or give a row several labels.

>>> label_scores(evaluation)
{'of': 'spans', 'labels': [{'label': 'DRUG', 'count': 12, 'precision': 75.0, 'recall': 50.0, 'f1': 60.0}, ...],
 'other_answers': 0}
"""

from collections.abc import Sequence

from t5suite.reports.answers import has_known_classes
from t5suite.reports.evaluations import TaskEvaluation
from t5suite.tasks.entry_metrics import metrics_by_reported_name
from t5suite.tasks.metrics import LabelCounts, counts_of_labels, counts_of_spans, counts_of_words
from t5suite.tasks.registry import Task
from t5suite.tasks.targets import has_label_sets


def label_scores(evaluation: TaskEvaluation) -> dict | None:
    """What is counted (`words`, `spans`, `rows`), and each label's number of them, precision, recall and F1 in points.

    Answers that are no label of the task (`other_answers`) are counted together: a model may write the texts of rows.
    None for tasks of other kinds, and without known labels. With `span_f1`, spans are scored by their type.
    """
    if has_known_classes(evaluation):
        return _scores_of_classes(evaluation)
    judged = evaluation.judged
    counted = kind_of_count(evaluation)
    if judged is None or counted is None:
        return None
    counts = COUNTS[counted](judged.predictions, judged.references)
    labels = _labels_of_task(evaluation.task, counted, counts)
    other_answers = counts.keys() - set(labels)
    return {
        "of": counted,
        "labels": [_score(label, counts[label]) for label in labels],
        "other_answers": sum(counts[answer].predicted for answer in other_answers),
    }


def _scores_of_classes(evaluation: TaskEvaluation) -> dict:
    """The scores of every label of a task that gives a row one of them, in the task's order."""
    words = evaluation.task.label_words
    judged = evaluation.judged
    counts = counts_of_classes(judged.predictions, judged.references, len(words))
    return {
        "of": "rows",
        "labels": [_score(word, of_label) for word, of_label in zip(words, counts, strict=True)],
        "other_answers": sum(prediction not in range(len(words)) for prediction in judged.predictions),
    }


def counts_of_classes(predictions: Sequence[int], references: Sequence[int], num_classes: int) -> list[LabelCounts]:
    """The counts of each class id; an answer that is no label (-1) is of none.

    >>> counts_of_classes([0, 0, -1], [0, 1, 1], 2)
    [LabelCounts(right=1, predicted=2, correct=1), LabelCounts(right=0, predicted=0, correct=2)]
    """
    counts = [LabelCounts() for _ in range(num_classes)]
    for prediction, reference in zip(predictions, references, strict=True):
        counts[reference].correct += 1
        if prediction in range(num_classes):
            counts[prediction].predicted += 1
        if prediction == reference:
            counts[reference].right += 1
    return counts


def _labels_of_task(task: Task, counted: str, counts: dict[str, LabelCounts]) -> list[str]:
    """Those of the counted labels that the task's entry or its rows have."""
    labels = set(task.label_words or ())
    if counted == "spans":
        labels = {label[2:] for label in labels}
    return [label for label in sorted(counts) if label in labels or counts[label].correct]


def kind_of_count(evaluation: TaskEvaluation) -> str | None:
    """What a task's labels are of: words, spans of words, or rows that have several; None for one label a row."""
    entry = evaluation.task.entry
    if has_label_sets(entry):
        return "rows"
    if evaluation.task.value_kind != "labels":
        return None
    if "span_f1" in metrics_by_reported_name(entry).values():
        return "spans"
    return "words"


COUNTS = {"rows": counts_of_labels, "spans": counts_of_spans, "words": counts_of_words}


def _score(label: str, counts: LabelCounts) -> dict:
    """A label's scores; None where nothing is predicted (precision), correct (recall), or either (F1)."""
    return {
        "label": label,
        "count": counts.correct,
        "precision": _share(counts.right, counts.predicted),
        "recall": _share(counts.right, counts.correct),
        "f1": _share(2 * counts.right, counts.predicted + counts.correct),
    }


def _share(count: int, total: int) -> float | None:
    if not total:
        return None
    return 100 * count / total

"""What the labels of scored rows say about their scores: labels without a row, and labels that nothing was trained on.

>>> absent_labels_in_words(load_task("super_glue", "cb"), [{"label": 0}, {"label": 1}])
"no row has these labels, which count as 0: 'neutral'; right answers alone score mean_3class_f1 66.7"
"""

from collections.abc import Callable, Iterable, Sequence

from t5suite.base.lookup import closest, listed
from t5suite.tasks.entry_metrics import metrics_by_reported_name
from t5suite.tasks.metrics import CLASS_METRICS, METRICS
from t5suite.tasks.registry import Task
from t5suite.tasks.targets import label_id, label_of, rows_by_label

MOST_NAMED_LABELS = 10
# Metrics in which a label counts whether or not a row has it.
METRICS_OF_EACH_LABEL = CLASS_METRICS - {"matthews_correlation", "mcc"}


def absent_labels_in_words(task: Task, rows: Iterable) -> str:
    """The labels that no row has, and what right answers alone score; '' where no metric of the task counts them.

    Args:
      rows: labelled ones.
    """
    if task.value_kind != "class":
        return ""
    references = [label_id(row, task.entry) for row in rows]
    labels_of_rows = {task.label_words[number] for number in references}
    absent_labels = [repr(label) for label in task.label_words if label not in labels_of_rows]
    if not absent_labels:
        return ""
    scores = {
        name: METRICS[metric](references, references, num_classes=len(task.label_words))
        for name, metric in metrics_by_reported_name(task.entry).items()
        if metric in METRICS_OF_EACH_LABEL
    }
    best_scores = [f"{name} {points:.1f}" for name, points in scores.items() if points < 100]
    if not best_scores:
        return ""
    return (
        f"no row has these labels, which count as 0: {listed(absent_labels, MOST_NAMED_LABELS)}; right answers alone "
        f"score {', '.join(best_scores)}"
    )


def unlearned_labels_in_words(
    task: Task, rows: Iterable, learned_labels: Sequence[str], place: Callable[[int], str]
) -> str:
    """The labels of sets in scored rows that no row of the last training has: no answer is right for them; '' without.

    Each has the count of its rows, the first place and the closest label of the training.

    >>> unlearned_labels_in_words(faults, [{"faults": "Late"}], ["late"], "row {}".format)
    "no row of the model's last training has these labels: 'Late' (1 rows, first: row 0; did you mean 'late'?)"

    Args:
      rows: labelled ones.
      place: the number of a row -> its file and line.
    """
    labels = rows_by_label(label_of(row, task.entry) for row in rows)
    descriptions = []
    for label in sorted(labels.keys() - set(learned_labels)):
        row_numbers = labels[label]
        nearest = closest(label, learned_labels)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        descriptions.append(f"{label!r} ({len(row_numbers)} rows, first: {place(row_numbers[0])}{hint})")
    if not descriptions:
        return ""
    return f"no row of the model's last training has these labels: {listed(descriptions, MOST_NAMED_LABELS)}"

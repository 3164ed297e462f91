"""What the labels of scored rows say about their scores."""

from collections.abc import Callable, Iterable, Sequence

from t5suite.base.lookup import closest, listed
from t5suite.data.rows.row_checks import MOST_NAMED_LABELS
from t5suite.tasks.registry import Task
from t5suite.tasks.targets import label_of, rows_by_label


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

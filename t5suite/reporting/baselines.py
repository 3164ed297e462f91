"""What a model that always gives the most frequent label would score on the rows that the run was scored on.

>>> majority(evaluation)
{'label': 'entailment', 'share': 52.7, 'scores': {'accuracy': 52.7}}
"""

import collections
import math

from t5suite.reporting.evaluations import Evaluation, measured
from t5suite.tasks.entries import metric_functions


def majority(evaluation: Evaluation) -> dict | None:
    """The most frequent label's share and scores; None where the task has no closed label set, or no known labels.

    Of labels that are equally frequent the first in the task's list counts.
    """
    task, judged = evaluation.task, evaluation.judged
    if judged is None or task.value_kind != "class":
        return None
    counts = collections.Counter(judged.references)
    label = max(range(len(task.label_words)), key=lambda c: counts[c])
    constant = judged._replace(predictions=[label] * len(judged.references))
    scores = {}
    for name, function in metric_functions(task.entry).items():
        if name in evaluation.scores:
            value = measured(task, function, constant)
            scores[name] = None if math.isnan(value) else value
    share = 100 * counts[label] / len(judged.references)
    return {"label": task.label_words[label], "share": share, "scores": scores}


def confusion(evaluation: Evaluation) -> dict | None:
    """Rows by label (down) and answer (across, `invalid` last where there are any); None without a closed label set.

    >>> confusion(evaluation)["counts"]
    [[120, 26], [60, 71]]
    """
    task, judged = evaluation.task, evaluation.judged
    if judged is None or task.value_kind != "class":
        return None
    words, invalid = task.label_words, [p not in range(len(task.label_words)) for p in judged.predictions]
    answers = [*words, "invalid"] if any(invalid) else list(words)
    counts = [[0] * len(answers) for _ in words]
    for prediction, reference, is_invalid in zip(judged.predictions, judged.references, invalid):
        counts[reference][-1 if is_invalid else prediction] += 1
    return {"labels": list(words), "answers": answers, "counts": counts}

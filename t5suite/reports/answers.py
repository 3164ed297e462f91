"""What a report shows of a run's answers: examples with verdicts, the majority baseline, the confusion matrix.

>>> shown_examples(evaluation, 10)["verdicts"], majority_baseline(evaluation)["label"]
({'invalid': 1, 'wrong': 86, 'right': 190}, 'entailment')
>>> confusion_matrix(evaluation)["counts"]
[[120, 26], [60, 71]]
"""

import collections
import math
import re

from t5suite.reports.evaluations import TaskEvaluation
from t5suite.reports.formatting import shortened, significant
from t5suite.tasks.entry_metrics import metric_functions
from t5suite.tasks.postprocessors import correctness, is_invalid
from t5suite.tasks.registry import Task
from t5suite.tasks.targets import has_label_sets

# Of a task of numbers, valid answers to labelled rows are neither right nor wrong: they are at a distance. A free text
# that no reference equals may be as good as one.
VERDICTS = ("invalid", "wrong", "different", "numeric", "right", "unlabelled")
LONGEST_TEXT = 1200
# A key that is a line of a file, an entry or a row of one.
PLACE_IN_FILE = re.compile(r":\d+$| (entry|row) \d+$")


def shown_examples(evaluation: TaskEvaluation, max_examples: int) -> dict:
    """`{"total", "verdicts": {verdict: how many}, "shown", "examples": [...]}`, at most `max_examples` of them.

    They come in the order of VERDICTS; each kind in the rows' order, but numbers the farthest from the truth first.
    """
    by_verdict: dict[str, list] = {verdict: [] for verdict in VERDICTS}
    numbers = []
    for example in evaluation.examples:
        verdict = example_verdict(evaluation, example)
        shown_example = _shown_example(example, verdict)
        if evaluation.task.value_kind == "number" and verdict in ("right", "wrong"):
            distance = _distance(evaluation, example)
            shown_example |= {"verdict": "numeric", "off_by": significant(distance)}
            numbers.append((distance, shown_example))
        else:
            by_verdict[verdict].append(shown_example)
    numbers.sort(key=lambda number: number[0], reverse=True)
    by_verdict["numeric"] = [shown_example for _, shown_example in numbers]
    examples = []
    for members in by_verdict.values():
        examples += members
    first_examples = examples[:max_examples]
    counts = {verdict: len(members) for verdict, members in by_verdict.items() if members}
    return {
        "total": len(examples),
        "verdicts": counts,
        "shown": len(first_examples),
        "examples": first_examples,
    }


def _distance(evaluation: TaskEvaluation, example: dict) -> float:
    """How far an answer's number is from the true one."""
    parse = evaluation.task.parse
    return abs(parse(example["prediction"]) - parse(example["target"]))


def _shown_example(example: dict, verdict: str) -> dict:
    """An example with its verdict, shortened texts, and where its row is: a place in a file, or a number."""
    place = f"row {example['row']}"
    if PLACE_IN_FILE.search(example["key"]):
        place = example["key"]
    facts = {name: value for name, value in example.items() if name not in ("right", "read")}
    return {
        **facts,
        "inputs": _shortened_text(example["read"]),
        "target": _shortened_text(example["target"]),
        "prediction": _shortened_text(example["prediction"]),
        "where": place,
        "verdict": verdict,
    }


def _shortened_text(text: str | None) -> str | None:
    if text is None:
        return None
    return shortened(text, LONGEST_TEXT)


def example_verdict(evaluation: TaskEvaluation, example: dict) -> str:
    """'right', 'wrong' (of free text 'different'), 'invalid' (`tasks.postprocessors`), or 'unlabelled'.

    Without the row, its target alone decides, although the row may have further references.
    """
    if example["target"] is None:
        return "unlabelled"
    if is_invalid(evaluation.task, example["prediction"]):
        return "invalid"
    is_right = example["right"]
    if is_right is None:
        is_right = correctness(evaluation.task, example["prediction"], [example["target"]]) == "right"
    if is_right:
        return "right"
    if _is_free_text(evaluation.task):
        return "different"
    return "wrong"


def _is_free_text(task: Task) -> bool:
    """Whether an answer is right if it equals a reference; sets of labels and WSC's referents are judged otherwise."""
    is_judged_otherwise = has_label_sets(task.entry) or task.entry.get("postprocess") == "wsc_verdict"
    return task.value_kind == "text" and not is_judged_otherwise


def has_known_classes(evaluation: TaskEvaluation) -> bool:
    """Whether the task has a closed label set, and the rows' labels are known."""
    return evaluation.judged is not None and evaluation.task.value_kind == "class"


def majority_baseline(evaluation: TaskEvaluation) -> dict | None:
    """The share and scores of the most frequent label, or set of labels; None for other answers, or unknown labels.

    If several are equally frequent, the first in the task's list counts, of sets the first in the alphabet.
    """
    judged = evaluation.judged
    if has_known_classes(evaluation):
        words = dict(enumerate(evaluation.task.label_words))
    elif judged is not None and has_label_sets(evaluation.task.entry):
        words = {text: text for text in sorted(set(judged.references))}
    else:
        return None
    counts = collections.Counter(judged.references)
    label = max(words, key=lambda answer: counts[answer])
    constant = [label] * len(judged.references)
    scores = {}
    for name, function in metric_functions(evaluation.task.entry).items():
        if name not in evaluation.scores:
            continue
        value = function(constant, judged.references, groups=judged.groups, num_classes=evaluation.num_classes)
        if math.isnan(value):
            value = None
        scores[name] = value
    return {"label": words[label], "share": 100 * counts[label] / len(judged.references), "scores": scores}


def confusion_matrix(evaluation: TaskEvaluation) -> dict | None:
    """Rows by label (down) and answer (across, `invalid` last where there are any); None without a closed label set.

    >>> confusion_matrix(evaluation)
    {'labels': ['negative', 'positive'], 'answers': ['negative', 'positive'], 'counts': [[120, 26], [60, 71]]}
    """
    if not has_known_classes(evaluation):
        return None
    words = list(evaluation.task.label_words)
    classes = range(len(words))
    judged = evaluation.judged
    answers = list(words)
    if any(prediction not in classes for prediction in judged.predictions):
        answers.append("invalid")
    counts = [[0] * len(answers) for _ in words]
    for prediction, reference in zip(judged.predictions, judged.references, strict=True):
        column = -1
        if prediction in classes:
            column = prediction
        counts[reference][column] += 1
    return {"labels": words, "answers": answers, "counts": counts}

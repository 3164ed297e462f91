"""Scores in points, 0 to 100 (correlations -100 to 100), computed in process: nothing is fetched to score.

    >>> METRICS["accuracy"]([1, 0, -1], [1, 0, 1])
    66.66666666666667

Every function takes `(predictions, references)` of equal length, and as keywords `groups` (one hashable a prediction,
for grouped metrics) and `num_classes`; it returns one number. Predictions of class -1 are texts that are no label:
they stay in and count as wrong. A score that is not defined (a correlation of constants) is NaN.

Definitions are those of the original T5's evaluation (arXiv:1910.10683, section 2.3; GLUE arXiv:1804.07461, SuperGLUE
arXiv:1905.00537, ReCoRD arXiv:1810.12885, MultiRC NAACL 2018, SQuAD arXiv:1606.05250). `as_evaluate_metric` wraps
one as an `evaluate.Metric`.
"""

import collections
import math
import warnings

import numpy as np

from t5suite.benchmark_entries.metric_groups import METRIC_GROUPS as METRIC_GROUPS
from t5suite.tasks.text_metrics import (
    bleu,
    chrf,
    instruction_exact_match,
    instruction_rouge_l,
    rouge1,
    rouge2,
    rouge_geometric_mean,
    rouge_l,
    rouge_l_sum,
    squad_exact_match,
    squad_f1,
)
from t5suite.tasks.text_metrics import normalize_answer as normalize_answer

DETERMINERS = frozenset(
    [
        "a",
        "an",
        "few",
        "her",
        "his",
        "each",
        "every",
        "many",
        "much",
        "my",
        "our",
        "some",
        "that",
        "the",
        "their",
        "these",
        "this",
        "those",
        "which",
        "whose",
        "your",
    ]
)


def accuracy(predictions, references, **_):
    """Share of predictions equal to their reference (or to one of them, where the reference is a list)."""
    return 100 * float(np.mean([_equal(p, r) for p, r in zip(predictions, references, strict=True)]))


def matthews_correlation(predictions, references, **_):
    """Matthews' correlation; a prediction of -1 is a class of its own.

    >>> matthews_correlation([1, 0, 1, 0], [1, 0, 0, 0])
    57.735026918962575
    """
    from sklearn.metrics import matthews_corrcoef

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "A single label was found")
        return 100 * float(matthews_corrcoef(references, predictions))


def f1(predictions, references, *, num_classes=None, **_):
    """Binary F1 of class 1 for two classes, where an invalid prediction is the wrong class; else macro F1."""
    return _precision_recall_f1(predictions, references, num_classes, "f1_score")


def precision(predictions, references, *, num_classes=None, **_):
    """Precision of class 1 for two classes, else macro; 0 where nothing was predicted."""
    return _precision_recall_f1(predictions, references, num_classes, "precision_score")


def recall(predictions, references, *, num_classes=None, **_):
    """Recall of class 1 for two classes, else macro."""
    return _precision_recall_f1(predictions, references, num_classes, "recall_score")


def f1_macro(predictions, references, *, num_classes=None, **_):
    """Unweighted mean of the classes' F1; -1 is no class but costs recall."""
    return _macro(predictions, references, num_classes, "f1_score")


def precision_macro(predictions, references, *, num_classes=None, **_):
    """Unweighted mean of the classes' precision."""
    return _macro(predictions, references, num_classes, "precision_score")


def recall_macro(predictions, references, *, num_classes=None, **_):
    """Unweighted mean of the classes' recall."""
    return _macro(predictions, references, num_classes, "recall_score")


def mean_3class_f1(predictions, references, **_):
    """CB's F1: the mean over exactly the classes 0, 1 and 2; an absent class contributes 0.

    >>> mean_3class_f1([0, 0], [0, 0])
    33.33333333333333
    """
    return _macro(predictions, references, 3, "f1_score")


def pearson(predictions, references, **_):
    """Pearson's correlation; NaN where either side is constant or holds a NaN."""
    return _correlation("pearsonr", predictions, references)


def spearman(predictions, references, **_):
    """Spearman's rank correlation; NaN where either side is constant or holds a NaN."""
    return _correlation("spearmanr", predictions, references)


def exact_match(predictions, references, **_):
    """As `accuracy`: the name that reading comprehension uses."""
    return accuracy(predictions, references)


def grouped_exact_match(predictions, references, *, groups, **_):
    """MultiRC's exact match: share of groups (questions) all of whose predictions are right.

    >>> grouped_exact_match([1, 0, 1], [1, 0, 0], groups=["q1", "q1", "q2"])
    50.0
    """
    right = {}
    for prediction, reference, group in zip(predictions, references, groups, strict=True):
        right[group] = right.get(group, True) and _equal(prediction, reference)
    return 100 * float(np.mean(list(right.values())))


def gender_parity(predictions, references, *, groups, **_):
    """AX-g's parity: share of minimal pairs whose predictions agree; NaN where no pair is whole.

    A pair is two successive rows of a group (rows with the same hypothesis).

    >>> gender_parity([1, 1, 0, 1], [1, 1, 0, 0], groups=["p", "p", "q", "q"])
    50.0
    """
    of_group = collections.defaultdict(list)
    for prediction, group in zip(predictions, groups, strict=True):
        of_group[group].append(prediction)
    agreements = [first == second for group in of_group.values() for first, second in zip(group[::2], group[1::2])]
    return 100 * float(np.mean(agreements)) if agreements else math.nan


def invalid_rate(predictions, references=None, **_):
    """Share of predictions that are no label (-1)."""
    return 100 * float(np.mean([prediction == -1 for prediction in predictions]))


def wsc_verdict(prediction: str, referent: str) -> int:
    """1 if a written referent means the row's candidate, 0 if not, -1 for an empty one.

    Both lose their determiners and case; they agree when the words of one are among those of the other, unless just
    one of them is possessive.

    >>> wsc_verdict("the fuzzy bunny", "Bunny"), wsc_verdict("Tom's", "Tom"), wsc_verdict(" the", "Tom")
    (1, 0, -1)
    """
    written, expected = _without_determiners(prediction), _without_determiners(referent)
    if not written:
        return -1
    if ("'" in written) != ("'" in expected):
        return 0
    written_words, expected_words = set(written.split(" ")), set(expected.split(" "))
    return int(written_words <= expected_words or expected_words <= written_words)


def _equal(prediction, reference) -> bool:
    if isinstance(reference, (list, tuple)):
        return prediction in reference
    return bool(prediction == reference)


def _classes(references, num_classes):
    """The class values that scores are averaged over."""
    return list(range(num_classes)) if num_classes else sorted(set(references), key=str)


def _precision_recall_f1(predictions, references, num_classes, function_name):
    if num_classes != 2 and not set(references) <= {0, 1}:
        return _macro(predictions, references, num_classes, function_name)
    import sklearn.metrics

    wrong_if_invalid = [p if p in (0, 1) else 1 - r for p, r in zip(predictions, references, strict=True)]
    score = getattr(sklearn.metrics, function_name)(references, wrong_if_invalid, zero_division=0)
    return 100 * float(score)


def _macro(predictions, references, num_classes, function_name):
    import sklearn.metrics

    classes = {value: i for i, value in enumerate(_classes(references, num_classes))}
    score = getattr(sklearn.metrics, function_name)(
        [classes[reference] for reference in references],
        [classes.get(prediction, -1) for prediction in predictions],
        labels=list(range(len(classes))),
        average="macro",
        zero_division=0,
    )
    return 100 * float(score)


def _correlation(name, predictions, references):
    import scipy.stats

    if len(predictions) < 2:
        return math.nan
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return 100 * float(getattr(scipy.stats, name)(references, predictions)[0])


def _without_determiners(text):
    return " ".join(word for word in text.strip().lower().split(" ") if word not in DETERMINERS)


METRICS = {
    "accuracy": accuracy,
    "matthews_correlation": matthews_correlation,
    "f1": f1,
    "precision": precision,
    "recall": recall,
    "f1_macro": f1_macro,
    "precision_macro": precision_macro,
    "recall_macro": recall_macro,
    "mean_3class_f1": mean_3class_f1,
    "pearson": pearson,
    "spearman": spearman,
    "exact_match": exact_match,
    "grouped_exact_match": grouped_exact_match,
    "gender_parity": gender_parity,
    "squad_f1": squad_f1,
    "squad_exact_match": squad_exact_match,
    "bleu": bleu,
    "chrf": chrf,
    "rouge1": rouge1,
    "rouge2": rouge2,
    "rougeL": rouge_l,
    "rougeLsum": rouge_l_sum,
    "rouge_geometric_mean": rouge_geometric_mean,
    "instruction_rougeL": instruction_rouge_l,
    "instruction_exact_match": instruction_exact_match,
}

# Metrics that read texts, so they are none for tasks of classes or numbers.
TEXT_METRICS = {"squad_f1", "squad_exact_match", "bleu", "chrf", "rouge1", "rouge2", "rougeL", "rougeLsum"}
TEXT_METRICS |= {"rouge_geometric_mean", "instruction_rougeL", "instruction_exact_match"}

# Other systems' names for the same function; a task that asks for one gets its score under the name it asked for.
METRIC_ALIASES = {
    "mcc": "matthews_correlation",
    "pearsonr": "pearson",
    "spearmanr": "spearman",
    "sacrebleu": "bleu",
}

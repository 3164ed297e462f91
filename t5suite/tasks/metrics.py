"""Scores in points, 0 to 100 (correlations -100 to 100), computed in process, without downloads.

    >>> METRICS["accuracy"]([1, 0, -1], [1, 0, 1])
    66.66666666666667

Every function takes `(predictions, references)` of equal length, and the keywords `groups` (a hashable per prediction,
for grouped metrics) and `num_classes`; it returns one number. Predictions of class -1 are texts that are not a label:
they are kept and count as wrong. An undefined score (a correlation of constants) is NaN.

Definitions are those of the original T5's evaluation (arXiv:1910.10683, section 2.3; GLUE arXiv:1804.07461, SuperGLUE
arXiv:1905.00537, ReCoRD arXiv:1810.12885, MultiRC NAACL 2018, SQuAD arXiv:1606.05250).
"""

import collections
import dataclasses
import functools
import itertools
import json
import math
import re
import string
import warnings

import numpy as np

BIO = re.compile(r"O|[BI]-.+")  # begin, inside, outside of a span
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
DETERMINERS = frozenset(
    "a an few her his each every many much my our some that the their these this those which whose your".split()
)


def accuracy(predictions, references, **_):
    """Share of predictions equal to their reference (or to one of them, where the reference is a list)."""
    return 100 * float(np.mean([_equal(p, r) for p, r in zip(predictions, references, strict=True)]))


def matthews_correlation(predictions, references, **_):
    """Matthews' correlation; a prediction of -1 is a separate class.

    >>> matthews_correlation([1, 0, 1, 0], [1, 0, 0, 0])
    57.735026918962575
    """
    from sklearn.metrics import matthews_corrcoef

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "A single label was found")
        return 100 * float(matthews_corrcoef(references, predictions))


def mean_3class_f1(predictions, references, **_):
    """CB's F1: the mean over exactly the classes 0, 1 and 2; an absent class contributes 0.

    >>> mean_3class_f1([0, 0], [0, 0])
    33.33333333333333
    """
    return _macro("f1_score", predictions, references, num_classes=3)


def pearson(predictions, references, **_):
    """Pearson's correlation; NaN where either side is constant, or a value is not finite."""
    return _correlation("pearsonr", predictions, references)


def spearman(predictions, references, **_):
    """Spearman's rank correlation; NaN where either side is constant, or a value is not finite."""
    return _correlation("spearmanr", predictions, references)


def neg_mean_absolute_error(predictions, references, **_):
    """Minus the mean absolute error, in the targets' unit (scikit-learn's scorer); NaN where a value is not finite.

    >>> neg_mean_absolute_error([3.0, 1.0], [2.0, 4.0])
    -2.0
    """
    from sklearn.metrics import mean_absolute_error

    if not _are_finite(predictions, references):
        return math.nan
    return -float(mean_absolute_error(references, predictions))


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
    """AX-g's parity: share of minimal pairs whose predictions agree; NaN if no pair is complete.

    A pair is two successive rows of a group (rows with the same hypothesis).

    >>> gender_parity([1, 1, 0, 1], [1, 1, 0, 0], groups=["p", "p", "q", "q"])
    50.0
    """
    by_group = collections.defaultdict(list)
    for prediction, group in zip(predictions, groups, strict=True):
        by_group[group].append(prediction)
    agreements = []
    for group_predictions in by_group.values():
        pairs = zip(group_predictions[::2], group_predictions[1::2])
        agreements.extend(first == second for first, second in pairs)
    return 100 * float(np.mean(agreements)) if agreements else math.nan


def invalid_rate(predictions, references=None, **_):
    """Share of predictions that are not a label (-1)."""
    return 100 * float(np.mean([prediction == -1 for prediction in predictions]))


def wsc_verdict(prediction: str, referent: str) -> int:
    """1 if a written referent means the row's candidate, 0 if not, -1 for an empty one.

    Determiners and case are ignored; the two agree if the words of one are among those of the other, unless only one
    of them is possessive.

    >>> wsc_verdict("the fuzzy bunny", "Bunny"), wsc_verdict("Tom's", "Tom"), wsc_verdict(" the", "Tom")
    (1, 0, -1)
    """
    written = _without_determiners(prediction)
    if not written:
        return -1
    expected = _without_determiners(referent)
    if ("'" in written) != ("'" in expected):
        return 0
    written_words = set(written.split(" "))
    expected_words = set(expected.split(" "))
    return int(written_words <= expected_words or expected_words <= written_words)


def _equal(prediction, reference) -> bool:
    return prediction in reference if isinstance(reference, (list, tuple)) else bool(prediction == reference)


def _precision_recall_f1(function_name, predictions, references, *, num_classes=None, **_):
    """Two classes: scikit-learn's score of class 1, where -1 counts as the wrong class. More classes: their mean."""
    if not _is_binary(references, num_classes):
        return _macro(function_name, predictions, references, num_classes=num_classes)
    import sklearn.metrics

    wrong_if_invalid = [p if p in (0, 1) else 1 - r for p, r in zip(predictions, references, strict=True)]
    score = getattr(sklearn.metrics, function_name)(references, wrong_if_invalid, zero_division=0)
    return 100 * float(score)


def _is_binary(references, num_classes: int | None) -> bool:
    """Whether the task has two classes; the references decide only where its number of classes is not known.

    >>> _is_binary([0, 1], 3), _is_binary([0, 1], None)
    (False, True)
    """
    return set(references) <= {0, 1} if num_classes is None else num_classes == 2


def _macro(function_name, predictions, references, *, num_classes=None, **_):
    """The mean over the classes of scikit-learn's score of each; -1 is no class, but a wrong answer to its reference.

    Args:
      num_classes: None averages over the classes of the references, which may be texts then.
    """
    import sklearn.metrics

    averaged = sorted(set(references), key=str) if num_classes is None else range(num_classes)
    classes = {value: i for i, value in enumerate(averaged)}
    score = getattr(sklearn.metrics, function_name)(
        [classes[reference] for reference in references],
        [classes.get(prediction, -1) for prediction in predictions],
        labels=list(range(len(classes))),
        average="macro",
        zero_division=0,
    )
    return 100 * float(score)


def _are_finite(predictions, references) -> bool:
    """Whether all numbers of both sides are finite: ranks alone would give an answer of `inf` a place."""
    return bool(np.isfinite([*predictions, *references]).all())


def _correlation(name, predictions, references):
    import scipy.stats

    if len(predictions) != len(references):  # scipy would repeat a single value
        raise ValueError(f"{len(predictions)} predictions for {len(references)} references")
    if len(predictions) < 2 or not _are_finite(predictions, references):
        return math.nan
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return 100 * float(getattr(scipy.stats, name)(references, predictions)[0])


def _without_determiners(text):
    return " ".join(word for word in text.strip().lower().split(" ") if word not in DETERMINERS)


def squad_f1(predictions, references, **_):
    """Mean over questions of the best token F1 against any reference, after SQuAD's normalisation."""
    return _squad(_token_f1, predictions, references)


def squad_exact_match(predictions, references, **_):
    """Share of questions whose answer equals a reference after SQuAD's normalisation."""
    return _squad(_equal_texts, predictions, references)


def bleu(predictions, references, **_):
    """sacrebleu's corpus BLEU, tokenizer `intl`, exponential smoothing, case-sensitive."""
    import sacrebleu

    texts, streams = _texts_and_streams(predictions, references)
    return sacrebleu.corpus_bleu(texts, streams, tokenize="intl", smooth_method="exp").score


def chrf(predictions, references, **_):
    """sacrebleu's corpus chrF2."""
    import sacrebleu

    return sacrebleu.corpus_chrf(*_texts_and_streams(predictions, references)).score


def rouge_geometric_mean(predictions, references, **_):
    """SCROLLS' summary score: the geometric mean of the mean ROUGE-1, ROUGE-2 and ROUGE-L (arXiv:2201.03533)."""
    means = [_rouge(key, predictions, references) for key in ("rouge1", "rouge2", "rougeL")]
    return float(np.prod(means) ** (1 / 3))


def instruction_rouge_l(predictions, references, **_):
    """Tk-Instruct's ROUGE-L: words are stemmed; the best reference counts (`compute_metrics.py`).

    >>> instruction_rouge_l(["He runs"], ["he running"])
    100.0
    """
    return _rouge("rougeL", predictions, references, stems=True)


def instruction_exact_match(predictions, references, **_):
    """Tk-Instruct's exact match: without case, punctuation and spaces at the ends, but with articles.

    >>> instruction_exact_match(["Yes."], ["yes"]), instruction_exact_match(["the yes"], ["yes"])
    (100.0, 0.0)
    """
    matches = [
        any(_plain(prediction) == _plain(answer) for answer in answers)
        for prediction, answers in zip(predictions, _reference_lists(references), strict=True)
    ]
    return 100 * float(np.mean(matches))


def json_match(predictions, references, **_):
    """Share of predictions equal to a reference as JSON, whatever white space and order of keys; `1.0` equals `1`.

    >>> json_match(['{ "b": [1], "a": true }', '{"a": 1'], ['{"a":true,"b":[1]}', '{"a": 1}'])
    50.0
    """
    pairs = zip(predictions, _reference_lists(references), strict=True)
    matches = [_canonical(prediction) in map(_canonical, answers) for prediction, answers in pairs]
    return 100 * float(np.mean(matches))


def _canonical(text: str) -> str:
    """The canonical form of a JSON value; other text unchanged."""
    try:
        return json.dumps(json.loads(text, parse_float=_json_number), sort_keys=True)
    except (ValueError, RecursionError):
        return text


def _json_number(text: str) -> int | float:
    """A number of JSON, which has one kind of number: `1.0` and `1e0` are 1."""
    number = float(text)
    if number.is_integer():
        return int(number)
    return number


def label_set(labels) -> frozenset[str]:
    """The set of labels that a text names between commas, or that a list has.

    >>> sorted(label_set("late, broken, late")), sorted(label_set(["broken", "late"]))
    (['broken', 'late'], ['broken', 'late'])
    """
    texts = [labels] if isinstance(labels, str) else labels
    words = itertools.chain.from_iterable(text.split(",") for text in texts)
    return frozenset(word.strip() for word in words) - {""}


def subset_accuracy(predictions, references, **_):
    """Share of rows whose set of labels is exactly right; the order in the text does not count.

    >>> subset_accuracy(["late, broken", "late"], ["broken, late", "late, broken"])
    50.0
    """
    matches = [label_set(p) == label_set(r) for p, r in zip(predictions, references, strict=True)]
    return 100 * float(np.mean(matches))


def micro_f1(predictions, references, **_):
    """F1 of sets of labels, all labels of all rows counted together; what is no label counts as wrong.

    >>> micro_f1(["late, broken", "late"], ["broken, late", "late, broken"])
    85.71428571428571
    """
    counts = list(counts_of_labels(predictions, references).values())
    right = sum(of_label.right for of_label in counts)
    predicted = sum(of_label.predicted for of_label in counts)
    correct = sum(of_label.correct for of_label in counts)
    return 100 * _f1(right, predicted, correct)


def macro_f1(predictions, references, **_):
    """The mean of each label's F1, over the labels that the references have.

    >>> macro_f1(["late", "late"], ["late", "broken"])
    33.33333333333333
    """
    counts = counts_of_labels(predictions, references).values()
    scores = [f1_of_counts(of_label) for of_label in counts if of_label.correct]
    # Labels come from sets of texts, whose order differs from process to process: fsum is the same in any order.
    return 100 * math.fsum(scores) / len(scores) if scores else math.nan


@dataclasses.dataclass
class LabelCounts:
    """In how many rows (of words and spans: how often) a label is predicted, is correct, and is both (right)."""

    right: int = 0
    predicted: int = 0
    correct: int = 0


def counts_of_labels(predictions, references) -> dict[str, LabelCounts]:
    """The counts of each label of sets of labels."""
    counts = collections.defaultdict(LabelCounts)
    for prediction, reference in zip(predictions, references, strict=True):
        predicted = label_set(prediction)
        correct = label_set(reference)
        for label in predicted:
            counts[label].predicted += 1
        for label in correct:
            counts[label].correct += 1
        for label in predicted & correct:
            counts[label].right += 1
    return counts


def counts_of_words(predictions, references) -> dict[str, LabelCounts]:
    """The counts of each label of words; a word without a label has none predicted.

    >>> counts_of_words([["O", "B"], ["O"]], [["O", "O"], ["O", "B"]])["O"]
    LabelCounts(right=2, predicted=2, correct=3)
    """
    counts = collections.defaultdict(LabelCounts)
    for predicted, correct in _all_word_pairs(predictions, references):
        counts[correct].correct += 1
        if predicted:
            counts[predicted].predicted += 1
        if predicted == correct:
            counts[correct].right += 1
    return counts


def counts_of_spans(predictions, references) -> dict[str, LabelCounts]:
    """The counts of each type of spans, which are right as in `span_f1`.

    >>> counts_of_spans([["B-X", "I-X", "B-Y"]], [["B-X", "I-X", "O"]])["Y"]
    LabelCounts(right=0, predicted=1, correct=0)
    """
    evaluation = _evaluation_of_spans(predictions, references)
    if evaluation is None:
        return {}
    counts = {}
    for span_type, schemes in evaluation["entities"].items():
        strict = schemes["strict"]
        counts[span_type] = LabelCounts(right=strict.correct, predicted=strict.actual, correct=strict.possible)
    return counts


def f1_of_counts(counts: LabelCounts) -> float:
    """A label's F1, from 0 to 1."""
    return _f1(counts.right, counts.predicted, counts.correct)


def _f1(right: int, predicted: int, correct: int) -> float:
    """F1 from counts; 0 where nothing is predicted or correct."""
    return 2 * right / max(1, predicted + correct)


def token_accuracy(predictions, references, **_):
    """Share of words with the right label; a word without a label is wrong.

    >>> token_accuracy([["O", "B"], ["O"]], [["O", "O"], ["O", "B"]])
    50.0
    """
    pairs = _all_word_pairs(predictions, references)
    return 100 * float(np.mean([predicted == correct for predicted, correct in pairs]))


def token_f1_macro(predictions, references, **_):
    """The mean, over the labels that the references have, of a word's F1.

    >>> token_f1_macro([["A", "A"]], [["A", "B"]])
    33.33333333333333
    """
    from sklearn.metrics import f1_score

    pairs = _all_word_pairs(predictions, references)
    predicted, correct = zip(*pairs, strict=True)
    labels = sorted(set(correct))
    return 100 * float(f1_score(correct, predicted, labels=labels, average="macro", zero_division=0))


def span_f1(predictions, references, **_):
    """F1 of spans in BIO labels that are right in type and both ends (nervaluate's strict); NaN if there are no spans.

    >>> span_f1([["B-X", "I-X", "O"]], [["B-X", "O", "B-X"]])
    0.0
    """
    evaluation = _evaluation_of_spans(predictions, references)
    return math.nan if evaluation is None else 100 * float(evaluation["overall"]["strict"].f1)


def _evaluation_of_spans(predictions, references) -> dict | None:
    """nervaluate's counts and scores of spans in BIO labels; None if there are no spans.

    Returns:
      `["overall"][scheme]` and `["entities"][span_type][scheme]`; the scheme "strict" asks for the type and both ends.
    """
    from nervaluate import Evaluator

    predicted = []
    for labels, correct_labels in zip(predictions, references, strict=True):
        pairs = _word_pairs(labels, correct_labels, missing="O")
        predicted.append([label if BIO.fullmatch(label) else "O" for label, _ in pairs])
    correct = [list(labels) for labels in references]
    all_labels = set(itertools.chain.from_iterable([*predicted, *correct]))
    types = sorted({label[2:] for label in all_labels} - {""})
    if not types:
        return None
    return Evaluator(correct, predicted, tags=types, loader="list").evaluate()


def _all_word_pairs(predictions, references) -> list[tuple[str, str]]:
    """`_word_pairs` of all rows."""
    pairs = []
    for predicted_labels, correct_labels in zip(predictions, references, strict=True):
        pairs.extend(_word_pairs(predicted_labels, correct_labels))
    return pairs


def _word_pairs(predicted_labels, correct_labels, missing: str = "") -> list[tuple[str, str]]:
    """Each word's predicted and correct label; labels beyond the last word are dropped."""
    num_missing = max(0, len(correct_labels) - len(predicted_labels))
    padded_labels = [*predicted_labels, *[missing] * num_missing]
    return list(zip(padded_labels, correct_labels))  # ends with the last word


def normalize_answer(text: str) -> str:
    """SQuAD's normal form: lower case, no ASCII punctuation, no articles, single spaces.

    >>> normalize_answer("The U.S. Army")
    'us army'
    """
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", _plain(text)).split())


def _plain(text: str) -> str:
    """Lower case, no ASCII punctuation, single spaces."""
    return " ".join(text.lower().translate(_NO_PUNCTUATION).split())


def _equal_texts(prediction: str, answer: str) -> float:
    return float(prediction == answer)


def _squad(score, predictions, references):
    values = []
    for prediction, answers in zip(predictions, references, strict=True):
        answers = [answers] if isinstance(answers, str) else answers
        values.append(max(score(normalize_answer(prediction), normalize_answer(answer)) for answer in answers))
    return 100 * float(np.mean(values))


def _token_f1(prediction, answer):
    prediction_tokens = prediction.split()
    answer_tokens = answer.split()
    common = sum((collections.Counter(prediction_tokens) & collections.Counter(answer_tokens)).values())
    if common == 0:
        return 0.0
    precision = common / len(prediction_tokens)
    recall = common / len(answer_tokens)
    return 2 * precision * recall / (precision + recall)


def _reference_lists(references):
    return [[reference] if isinstance(reference, str) else list(reference) for reference in references]


def _texts_and_streams(predictions, references):
    """The answers, and sacrebleu's streams of references: the i-th one of each row, None where a row has fewer.

    Raises:
      ValueError: the numbers of answers and of rows differ, which sacrebleu does not check.
    """
    rows = list(zip(predictions, _reference_lists(references), strict=True))
    streams = itertools.zip_longest(*(answers for _, answers in rows))
    return [text for text, _ in rows], [list(stream) for stream in streams]


@functools.cache
def _scorer(key: str, stems: bool):
    from rouge_score import rouge_scorer

    return rouge_scorer.RougeScorer([key], use_stemmer=stems)


def _rouge(key, predictions, references, stems=False, **_):
    """rouge-score's F1 with the best reference, the mean over rows."""
    scorer = _scorer(key, stems)
    best = []
    for prediction, answers in zip(predictions, _reference_lists(references), strict=True):
        lines = prediction.replace(" . ", " .\n")
        best.append(max(scorer.score(answer.replace(" . ", " .\n"), lines)[key].fmeasure for answer in answers))
    return 100 * float(np.mean(best))


def _of(function, kind: str, name: str):
    metric = functools.partial(function, kind)
    metric.__name__ = name
    return metric


# F1, precision and recall: of class 1 for two classes, where an invalid prediction is the wrong class, else macro (the
# unweighted mean of the task's classes, those that no row at hand has included; -1 is not a class but lowers recall);
# 0 where nothing was predicted. ROUGE: the mean F1, no stemming, the best reference counts; Lsum's sentences are split
# at ` . `, as the original T5 does.
METRICS = {
    "accuracy": accuracy, "matthews_correlation": matthews_correlation,
    "f1": _of(_precision_recall_f1, "f1_score", "f1"),
    "precision": _of(_precision_recall_f1, "precision_score", "precision"),
    "recall": _of(_precision_recall_f1, "recall_score", "recall"), "f1_macro": _of(_macro, "f1_score", "f1_macro"),
    "precision_macro": _of(_macro, "precision_score", "precision_macro"),
    "recall_macro": _of(_macro, "recall_score", "recall_macro"), "mean_3class_f1": mean_3class_f1, "pearson": pearson,
    "spearman": spearman, "neg_mean_absolute_error": neg_mean_absolute_error, "exact_match": accuracy,
    "grouped_exact_match": grouped_exact_match,
    "gender_parity": gender_parity, "squad_f1": squad_f1, "squad_exact_match": squad_exact_match, "bleu": bleu,
    "chrf": chrf, **{name: _of(_rouge, name, name) for name in ("rouge1", "rouge2", "rougeL", "rougeLsum")},
    "rouge_geometric_mean": rouge_geometric_mean, "instruction_rougeL": instruction_rouge_l,
    "instruction_exact_match": instruction_exact_match, "json_match": json_match, "token_accuracy": token_accuracy,
    "token_f1_macro": token_f1_macro, "span_f1": span_f1, "micro_f1": micro_f1, "macro_f1": macro_f1,
    "subset_accuracy": subset_accuracy,
}  # fmt: skip
# The functions above, also where METRICS has one of the user's under a name of theirs.
SHIPPED_METRICS = dict(METRICS)

# Metrics of a label for every word; tasks with such labels take no others.
TOKEN_METRICS = {"token_accuracy", "token_f1_macro", "span_f1"}

# Metrics of numbers; a task that names one, and has no labels, is a regression. Errors are in the unit of the targets,
# not in points: where scores are averaged (over a task's metrics, or over tasks), they are left out.
ERRORS = {"neg_mean_absolute_error"}
NUMBER_METRICS = {"pearson", "spearman", "pearsonr", "spearmanr"} | ERRORS

# Metrics of one class a row.
CLASS_METRICS = {"matthews_correlation", "mcc", "mean_3class_f1", "f1", "precision", "recall"}
CLASS_METRICS |= {"f1_macro", "precision_macro", "recall_macro"}

# Metrics of several labels a row; a task that names one joins a row's labels in one text.
SET_METRICS = {"micro_f1", "macro_f1", "subset_accuracy"}

# Metrics that read texts, so they are not for tasks with classes or numbers.
TEXT_METRICS = {"squad_f1", "squad_exact_match", "bleu", "chrf", "rouge1", "rouge2", "rougeL", "rougeLsum"}
TEXT_METRICS |= {"rouge_geometric_mean", "instruction_rougeL", "instruction_exact_match", "json_match"}
TEXT_METRICS |= SET_METRICS

# Other systems' names for the same function; a task that names one gets its score under that name.
METRIC_ALIASES = {"mcc": "matthews_correlation", "pearsonr": "pearson", "spearmanr": "spearman", "sacrebleu": "bleu"}

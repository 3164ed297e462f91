"""Scores of texts in points, 0 to 100: SQuAD's, BLEU, chrF, ROUGE, and those of instruction following.

    >>> squad_f1(["the Broncos"], [["Denver Broncos", "Broncos"]])
    100.0

Every function takes `(predictions, references)` of equal length and ignores other keywords; a reference is a text or a
list of texts, of which the best counts (BLEU and chrF take them all, as sacrebleu does).
"""

import collections
import functools
import re
import string

import numpy as np


def squad_f1(predictions, references, **_):
    """Mean over questions of the best token F1 against any reference, after SQuAD's normalisation."""
    return _squad(_token_f1, predictions, references)


def squad_exact_match(predictions, references, **_):
    """Share of questions whose answer equals a reference after SQuAD's normalisation."""
    return _squad(lambda p, r: float(p == r), predictions, references)


def bleu(predictions, references, **_):
    """sacrebleu's corpus BLEU, tokenizer `intl`, exponential smoothing, case-sensitive."""
    import sacrebleu

    return sacrebleu.corpus_bleu(list(predictions), _streams(references), tokenize="intl", smooth_method="exp").score


def chrf(predictions, references, **_):
    """sacrebleu's corpus chrF2."""
    import sacrebleu

    return sacrebleu.corpus_chrf(list(predictions), _streams(references)).score


def rouge1(predictions, references, **_):
    """Mean ROUGE-1 F1, no stemming; the best reference counts."""
    return _rouge("rouge1", predictions, references)


def rouge2(predictions, references, **_):
    """Mean ROUGE-2 F1, no stemming; the best reference counts."""
    return _rouge("rouge2", predictions, references)


def rouge_l(predictions, references, **_):
    """Mean ROUGE-L F1 over whole texts, no stemming; the best reference counts."""
    return _rouge("rougeL", predictions, references)


def rouge_l_sum(predictions, references, **_):
    """Mean ROUGE-Lsum F1; sentences are split at ` . `, as the original T5 does."""
    return _rouge("rougeLsum", predictions, references)


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


def normalize_answer(text: str) -> str:
    """SQuAD's normal form: lower case, no ASCII punctuation, no articles, single spaces.

    >>> normalize_answer("The U.S. Army")
    'us army'
    """
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", _plain(text)).split())


def _plain(text: str) -> str:
    """Lower case, no ASCII punctuation, single spaces."""
    return " ".join(text.lower().translate(_NO_PUNCTUATION).split())


def _squad(score, predictions, references):
    values = []
    for prediction, answers in zip(predictions, references, strict=True):
        answers = [answers] if isinstance(answers, str) else answers
        values.append(max(score(normalize_answer(prediction), normalize_answer(answer)) for answer in answers))
    return 100 * float(np.mean(values))


def _token_f1(prediction, answer):
    prediction_tokens, answer_tokens = prediction.split(), answer.split()
    common = sum((collections.Counter(prediction_tokens) & collections.Counter(answer_tokens)).values())
    if common == 0:
        return 0.0
    precision_, recall_ = common / len(prediction_tokens), common / len(answer_tokens)
    return 2 * precision_ * recall_ / (precision_ + recall_)


def _reference_lists(references):
    return [[reference] if isinstance(reference, str) else list(reference) for reference in references]


def _streams(references):
    """References row by row -> sacrebleu's streams, the i-th references of all rows together (None where missing)."""
    lists = _reference_lists(references)
    return [[row[i] if i < len(row) else None for row in lists] for i in range(max(map(len, lists)))]


@functools.cache
def _scorer(key: str, stems: bool):
    from rouge_score import rouge_scorer

    return rouge_scorer.RougeScorer([key], use_stemmer=stems)


def _rouge(key, predictions, references, stems=False):
    scorer = _scorer(key, stems)
    best = []
    for prediction, answers in zip(predictions, _reference_lists(references), strict=True):
        lines = prediction.replace(" . ", " .\n")
        best.append(max(scorer.score(answer.replace(" . ", " .\n"), lines)[key].fmeasure for answer in answers))
    return 100 * float(np.mean(best))


_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)

"""What values of metrics are in.

>>> metric_unit("accuracy"), metric_unit("nll"), metric_unit("word_share")
('points', 'nats a target token', 'as its metric returns it')
"""

from t5suite.reports.formatting import NOTHING, points, significant
from t5suite.tasks.entry_metrics import RATES
from t5suite.tasks.metrics import ERRORS, METRIC_ALIASES, METRICS

POINTS = "points"
NATS = "nats a target token"
TARGETS_UNIT = "the targets' unit"
NO_UNIT = "no unit"
# Values of a user's metrics: some are from 0 to 1, others from 0 to 100.
AS_RETURNED = "as its metric returns it"
METRICS_IN_NATS = ("nll", "nll_text", "unigram_nll", "unigram_nll_text", "loss")
# What is in points beside the metrics.
OTHER_POINTS = ("average", "pair_accuracy", *RATES)


def metric_unit(metric: str) -> str:
    """What a metric's values are in.

    >>> metric_unit("neg_mean_absolute_error"), metric_unit("perplexity"), metric_unit("average")
    ("the targets' unit", 'no unit', 'points')
    """
    if metric in METRICS_IN_NATS:
        return NATS
    if metric in ERRORS:
        return TARGETS_UNIT
    if metric in METRICS or metric in METRIC_ALIASES or metric in OTHER_POINTS:
        return POINTS
    if metric == "perplexity":
        return NO_UNIT
    return AS_RETURNED


def other_units(metrics) -> str:
    """The metrics that are not in points, each with its unit; empty if all are in points.

    >>> other_units(["accuracy", "nll", "word_share"])
    'nll: nats a target token; word_share: as its metric returns it'
    """
    texts = []
    for metric in dict.fromkeys(metrics):
        unit = metric_unit(metric)
        if unit != POINTS:
            texts.append(f"{metric}: {unit}")
    return "; ".join(texts)


def metric_text(value: float | None, metric: str, unknown: str = NOTHING, sign: str = "") -> str:
    """A value in a table of text: two decimals, or four digits where values may be of any size.

    >>> metric_text(71.476, "accuracy"), metric_text(-0.00345, "neg_mean_absolute_error")
    ('71.48', '-0.00345')
    >>> metric_text(0.5, "accuracy", sign="+"), metric_text(0.00012, "word_share", sign="+")
    ('+0.50', '+0.00012')
    """
    if metric_unit(metric) in (TARGETS_UNIT, AS_RETURNED):
        text = significant(value)
    else:
        text = points(value)
    if text == NOTHING:
        return unknown
    return text if text.startswith("-") else sign + text

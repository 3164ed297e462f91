"""Tests of two systems on the same rows: paired bootstrap for any metric, McNemar's exact test for right and wrong.

>>> mcnemar(only_a=3, only_b=12)                    # rows that one of the two has right
0.03515625
>>> paired_bootstrap(statistic_a, statistic_b)
{'difference': 4.3, 'low': 0.7, 'high': 7.9, 'p': 0.0196, 'resamples': 10000, 'units': 277}

The bootstrap draws rows (or groups of rows) with replacement, the same ones for both, and takes the metrics'
difference each time (Efron and Tibshirani 1993, chapters 13 and 15; for NLP: Koehn 2004, aclanthology.org/W04-3250).
p is two-sided: twice the share of the resamples on the other side of zero, the observed sample counted as one of them.
McNemar's exact test asks whether the rows that only one has right fall evenly (Fagerland et al. 2013,
doi:10.1186/1471-2288-13-91): a binomial test.
"""

import math

import numpy as np

from t5suite.reporting.metric_sums import Statistic
from t5suite.reporting.resampling import LEVEL, resampled_values


def paired_bootstrap(a: Statistic, b: Statistic) -> dict | None:
    """The difference b - a in points with its interval and p; None with fewer than two units, or where it is no number.

    The two are over the same units, in the same order.
    """
    if a.num_units != b.num_units:
        raise AssertionError(f"{a.num_units} and {b.num_units} units: the two are not over the same rows")
    difference = b.value() - a.value()
    if a.num_units < 2 or not math.isfinite(difference):
        return None
    of_a, of_b = resampled_values([a, b])
    drawn = of_b - of_a
    drawn = drawn[np.isfinite(drawn)]
    if len(drawn) < len(of_a) / 2:
        return None
    # Sums over the same rows in another order differ in their last bits, which are no difference.
    drawn[np.abs(drawn) < 1e-9] = 0.0
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    below, above = int((drawn <= 0).sum()), int((drawn >= 0).sum())
    p = min(1.0, 2 * (1 + min(below, above)) / (1 + len(drawn)))
    return {
        "difference": float(difference),
        "low": float(low),
        "high": float(high),
        "p": float(p),
        "resamples": len(of_a),
        "units": a.num_units,
    }


def mcnemar(only_a: int, only_b: int) -> float:
    """Two-sided p that rows which one of the two has right belong to either with the same chance.

    >>> mcnemar(0, 0), mcnemar(5, 0)
    (1.0, 0.0625)
    """
    from scipy.stats import binomtest

    if only_a + only_b == 0:
        return 1.0
    return float(binomtest(only_a, only_a + only_b, 0.5).pvalue)


def right_units(statistic: Statistic) -> np.ndarray | None:
    """Whether each unit is right, for metrics that are a share of right ones; None for others.

    A unit of several rows (accuracy over MultiRC's questions) is no single right or wrong.
    """
    if statistic.units is None or statistic.units.shape[1] != 2 or not (statistic.units[:, 1] == 1).all():
        return None
    values = statistic.units[:, 0]
    return values == 1 if np.isin(values, (0, 1)).all() else None

"""Numbers in a table's cells, rounded, and the whole ones behind them.

>>> points(53.333333333333336), points(None), short_number(253696)
('53.33', '–', '254 k')
"""

import math

NOTHING = "–"
# Metrics that stand in a column beside the others.
RATES = ("invalid_rate",)


def points(value) -> str:
    """A score with two decimals."""
    return NOTHING if value is None or not math.isfinite(value) else f"{value:.2f}"


def interval(found: dict | None) -> str:
    """An interval with what it is over.

    >>> interval({"low": 47.5, "high": 53.3, "over": "seeds"})
    '47.50 to 53.30'
    """
    return NOTHING if not found else f"{points(found['low'])} to {points(found['high'])}"


def significant(value, digits: int = 4) -> str:
    """A number of any size.

    >>> significant(0.00031234), significant(117028.6)
    ('0.0003123', '117,029')
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def short_number(value) -> str:
    """A count in thousands, millions or billions."""
    if value is None:
        return NOTHING
    for limit, word in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            scaled = value / limit
            return f"{scaled:.0f} {word}" if scaled >= 100 else f"{scaled:.1f} {word}"
    return f"{value:g}"

"""How a score is written for readers.

>>> format_points(91.256)
'91.26'
"""

import math


def format_points(value: float | None) -> str:
    """Two decimals, or `nan`.

    >>> format_points(None)
    'nan'
    """
    return "nan" if value is None or math.isnan(value) else f"{value:.2f}"

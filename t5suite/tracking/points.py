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


def average_title(name: str) -> str:
    """What an average is called: the tasks' own, of no published suite, has no name besides.

    >>> average_title("glue"), average_title("average")
    ('average glue', 'average')
    """
    return "average" if name == "average" else f"average {name}"

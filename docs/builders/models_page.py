"""docs/models.md: its table of model types, generated from `MATRIX`.

>>> row("NLLB")[:4]
['NLLB', '`m2m_100`', '`facebook/nllb-200-distilled-600M`', 'yes']
"""

import re
from pathlib import Path

from docs.builders.markdown import code, table
from t5suite.models.matrix import MATRIX, WORK

PAGE = Path(__file__).resolve().parent.parent / "models.md"
MADE = re.compile(r"(<!-- made by docs/builders/models_page.py: (\w+) -->\n).*?(<!-- end -->)", re.S)


def page() -> str:
    """The page's expected text: its own words around the tables, one for each family."""
    return MADE.sub(lambda made: f"{made[1]}\n{_table(made[2])}\n\n{made[3]}", PAGE.read_text(encoding="utf-8"))


def row(name: str) -> list[str]:
    """A row's cells."""
    kind = MATRIX[name]
    cells = [kind.cell(work) for work in WORK]
    return [name, code(kind.model_type), code(kind.example), *cells, kind.needs]


def _table(family: str) -> str:
    heads = ["model", "type", "for example", *WORK.values(), "needs"]
    return table(heads, (row(name) for name, kind in MATRIX.items() if kind.family == family))

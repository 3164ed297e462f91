"""docs/models.md: its tables of model types, generated from `MATRIX`.

>>> shared("causal")["CTranslate2"], "ONNX" in shared("causal")
('no', False)

What all models of a family share stands in one line above its table; a column is what they differ in.
"""

import re
from pathlib import Path

from docs.builders.markdown import code, table
from docs.builders.model_table import MATRIX, WORK

PAGE = Path(__file__).resolve().parent.parent / "models.md"
MADE = re.compile(r"(<!-- made by docs/builders/models_page.py: (\w+) -->\n).*?(<!-- end -->)", re.S)


def page() -> str:
    """The page's expected text: its own words around the tables, one for each family."""
    return MADE.sub(lambda made: f"{made[1]}\n{_table(made[2])}\n\n{made[3]}", PAGE.read_text(encoding="utf-8"))


def shared(family: str) -> dict[str, str]:
    """`{column: the cell that all models of the family have}`."""
    kinds = [kind for kind in MATRIX.values() if kind.family == family]
    return {head: kinds[0].cell(work) for work, head in WORK.items() if len({kind.cell(work) for kind in kinds}) == 1}


def _table(family: str) -> str:
    kinds = {name: kind for name, kind in MATRIX.items() if kind.family == family}
    same = shared(family)
    columns = {head: work for work, head in WORK.items() if head not in same}
    needs = ["needs"] if any(kind.needs for kind in kinds.values()) else []
    rows = []
    for name, kind in kinds.items():
        cells = [kind.cell(work) for work in columns.values()]
        rows.append([name, code(kind.model_type), code(kind.example), *cells, *([kind.needs] if needs else [])])
    said = {cell: ", ".join(head for head in same if same[head] == cell) for cell in same.values()}
    line = "; ".join(f"{heads}: {cell}" for cell, heads in said.items())
    return f"All of them: {line}.\n\n" + table(["model", "type", "for example", *columns, *needs], rows)

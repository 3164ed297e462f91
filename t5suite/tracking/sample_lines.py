"""The lines of `samples.jsonl`, some rows' answers at each evaluation, as trackers show them.

    >>> lines = SampleLines("runs/a")
    >>> lines.tables(20)
    {'samples/rte': [{'row': 0, 'input': 'rte sentence1: ...', 'target': 'entailment', 'prediction': 'x', 'right': False}]}
    >>> print(markdown(lines.tables(20)["samples/rte"]))
    | row | input | target | prediction | right |
    |---|---|---|---|---|
    | 0 | rte sentence1: ... | entailment | x | False |

A step has its rows in the room of its evaluation: `samples/<task>`, and `final_samples/<task>` of the last one.
"""  # noqa: E501

import json
from pathlib import Path

from t5suite.base.redaction import printable
from t5suite.tracking.metric_lines import MetricLines

SAMPLES = "samples.jsonl"
COLUMNS = ("row", "input", "target", "prediction", "right")


class SampleLines:
    """The samples of a run, read as they come; asked for step after step, it forgets those before."""

    def __init__(self, directory):
        self._lines = MetricLines(Path(directory) / SAMPLES)
        self._by_step: dict[int, list[dict]] = {}

    def tables(self, step: int) -> dict[str, list[dict]]:
        """The step's samples by the name that trackers give them."""
        for line in self._lines.new_lines():
            self._by_step.setdefault(line["step"], []).append(line)
        self._by_step = {at: lines for at, lines in self._by_step.items() if at >= step}
        return tables_of(self._by_step.get(step, []))

    def steps(self) -> list[int]:
        """The steps that have samples."""
        self.tables(0)
        return sorted(self._by_step)


def tables_of(lines: list[dict]) -> dict[str, list[dict]]:
    """The lines of a step as one table a task."""
    tables: dict[str, list[dict]] = {}
    for line in lines:
        room = "final_samples" if line.get("final") else "samples"
        tables.setdefault(f"{room}/{line.get('task')}", []).append({name: line.get(name) for name in COLUMNS})
    return tables


def cells(table: list[dict]) -> list[list]:
    """A table's rows as lists, in the order of COLUMNS."""
    return [[line[name] for name in COLUMNS] for line in table]


def markdown(table: list[dict]) -> str:
    """A table as Markdown."""
    return markdown_table(COLUMNS, cells(table))


def markdown_table(columns, rows) -> str:
    """A table as Markdown; line breaks and bars within cells do not break it.

    >>> print(markdown_table(["task", "f1"], [["rte", 71.0]]))
    | task | f1 |
    |---|---|
    | rte | 71.0 |
    """
    shown = [[_cell(value) for value in row] for row in [columns, *rows]]
    lines = [f"| {' | '.join(row)} |" for row in shown]
    return "\n".join([lines[0], "|" + "---|" * len(shown[0]), *lines[1:]])


def result_rows(results: dict) -> list[list]:
    """`results.json` as rows of task, metric and points.

    >>> result_rows({"tasks": {"rte": {"accuracy": 71.0}}, "averages": {"glue": 80.0}})
    [['rte', 'accuracy', 71.0], ['average', 'glue', 80.0]]
    """
    rows = [[task, metric, value] for task, metrics in results["tasks"].items() for metric, value in metrics.items()]
    return rows + [["average", name, value] for name, value in results.get("averages", {}).items()]


def as_text(value: dict) -> str:
    """A JSON value as Markdown."""
    return "```json\n" + printable(json.dumps(value, indent=2, ensure_ascii=False)) + "\n```"


def _cell(value) -> str:
    text = "" if value is None else str(value)
    return printable(text.replace("\\", "\\\\").replace("|", "\\|").replace("\r", " ").replace("\n", "<br>"))

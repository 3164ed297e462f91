"""Tables of samples and results, and JSON, in the forms that trackers take: lists of rows, or Markdown.

>>> result_rows({"tasks": {"rte": {"accuracy": 71.0}}, "averages": {}})
[['rte', 'accuracy', 71.0]]
"""

import json

from t5suite.base.redaction import printable
from t5suite.tracking.metric_lines import COLUMNS

RESULT_COLUMNS = ("task", "metric", "points")


def sample_rows(samples: list[dict]) -> list[list]:
    """A table of samples as lists, in the order of COLUMNS."""
    return [[sample[column] for column in COLUMNS] for sample in samples]


def samples_as_markdown(samples: list[dict]) -> str:
    """A table of samples as Markdown."""
    return markdown_table(COLUMNS, sample_rows(samples))


def result_rows(results: dict) -> list[list]:
    """`results.json` as rows of RESULT_COLUMNS.

    >>> result_rows({"tasks": {"rte": {"accuracy": 71.0}}, "averages": {"glue": 80.0}})
    [['rte', 'accuracy', 71.0], ['average', 'glue', 80.0]]
    """
    rows = [[task, metric, score] for task, metrics in results["tasks"].items() for metric, score in metrics.items()]
    averages = [["average", suite, score] for suite, score in results.get("averages", {}).items()]
    return rows + averages


def results_as_markdown(results: dict) -> str:
    """`results.json` as Markdown."""
    return markdown_table(RESULT_COLUMNS, result_rows(results))


def markdown_table(columns, rows) -> str:
    """A table as Markdown; line breaks and bars within cells do not break it.

    >>> print(markdown_table(["task", "f1"], [["rte", 71.0]]))
    | task | f1 |
    |---|---|
    | rte | 71.0 |
    """
    header, *lines = (f"| {' | '.join(map(_cell_text, row))} |" for row in [columns, *rows])
    return "\n".join([header, "|" + "---|" * len(columns), *lines])


def json_as_markdown(content: dict) -> str:
    """A JSON value as a block of Markdown."""
    return "```json\n" + printable(json.dumps(content, indent=2, ensure_ascii=False)) + "\n```"


def _cell_text(cell) -> str:
    text = "" if cell is None else str(cell)
    return printable(text.replace("\\", "\\\\").replace("|", "\\|").replace("\r", " ").replace("\n", "<br>"))

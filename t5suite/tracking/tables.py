"""Tables of samples and results, and JSON, in the forms that trackers take: lists of rows, or Markdown.

>>> result_rows({"tasks": {"rte": {"accuracy": 71.0}}, "averages": {}})
[['rte', 'accuracy', 71.0]]
"""

import json

from t5suite.base.redaction import printable
from t5suite.tracking.metric_lines import SAMPLE_COLUMNS

RESULT_COLUMNS = ("task", "metric", "points")


def sample_rows(samples: list[dict]) -> list[list]:
    """A table of samples as lists, in the order of SAMPLE_COLUMNS.

    >>> sample_rows([{"row": 7, "input": "Good.", "target": "positive", "prediction": "negative", "right": False}])
    [[7, 'Good.', 'positive', 'negative', False]]
    """
    return [[sample[column] for column in SAMPLE_COLUMNS] for sample in samples]


def samples_as_markdown(samples: list[dict]) -> str:
    """A table of samples as Markdown."""
    return markdown_table(SAMPLE_COLUMNS, sample_rows(samples))


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
    """A table of JSON values as a block of Markdown, in which control characters are `\\u009b` (`printable`)."""
    return "```json\n" + printable(json.dumps(content, indent=2, ensure_ascii=False)) + "\n```"


def _cell_text(cell) -> str:
    """A cell in one line, without a bar that would end it."""
    text = "" if cell is None else str(cell)
    escaped = text.replace("\\", "\\\\").replace("|", "\\|")  # backslashes first: a bar's escape is one
    line = escaped.replace("\r", " ").replace("\n", "<br>")
    return printable(line)  # other control characters: `\u001b`, whose backslash is no escape

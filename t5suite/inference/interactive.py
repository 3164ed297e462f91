"""The prompt loop: what is typed is answered, until the end of file (Ctrl-D).

    >>> converse(job, predictor)
    sentence1: It rains.
    sentence2: It is wet.
    entailment

A task's columns are asked for one by one; with `--raw`, or without a task, the finished text. An empty first line asks
again.
"""

import contextlib
import json
import sys

from t5suite.base.errors import DataError
from t5suite.base.redaction import printable, redacted
from t5suite.inference.rows import Row
from t5suite.inference.running import Job

PROMPT = "input"


def converse(job: Job, predictor, read=None, write=print, as_json: bool = False) -> int:
    """Asks and answers until there is nothing more to read; returns how many rows were answered.

    Args:
      read: prompt -> a line; raises EOFError at the end. Default: Python's `input`.
      as_json: answers are lines as files have them.
    """
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  arrow keys and history for `input`
    read = read or input
    columns = [PROMPT] if job.raw or job.task is None else job.task.text_columns
    answered = 0
    while True:
        try:
            value = _ask(columns, read)
        except EOFError:
            return answered
        if value is None:
            continue
        row = Row(answered, "what was typed", value[PROMPT] if columns == [PROMPT] else value)
        try:
            line = job.lines([job.request(row)], predictor)[0]
        except DataError as error:
            print(printable(redacted(f"error: {error}")), file=sys.stderr)
            continue
        for text in [json.dumps(line, ensure_ascii=False)] if as_json else shown(line):
            write(printable(text))
        answered += 1


def _ask(columns: list[str], read) -> dict | None:
    """The row that was typed; None after an empty first line."""
    value = {}
    for column in columns:
        value[column] = read(f"{column}: ")
        if not value[column] and len(value) == 1:
            return None
    return value


def shown(line: dict) -> list[str]:
    """An answer as lines of text.

    >>> shown({"row": 0, "prediction": "yes", "probabilities": {"no": 0.1, "yes": 0.9}})
    ['yes', '  90.0 %  yes', '  10.0 %  no']
    """
    if "probabilities" in line:
        ordered = sorted(line["probabilities"].items(), key=lambda item: -item[1])
        return [line["prediction"], *(f"  {100 * share:4.1f} %  {text}" for text, share in ordered)]
    if "predictions" in line:
        return [f"{answer['score']:9.4f}  {answer['text']}" for answer in line["predictions"]]
    score = f"  ({line['score']:.4f})" if "score" in line else ""
    return [line["prediction"] + score]

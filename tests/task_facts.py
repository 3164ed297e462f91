"""What `t5suite tasks` tells of a task."""

import functools
import json

from t5suite.testing import cli_output


@functools.cache
def task_facts(benchmark: str, name: str, task_file: str | None = None) -> dict:
    """Splits, metrics, columns, labels, and an example with its made-up row.

    >>> task_facts("glue", "rte")["metrics"]
    ['accuracy']
    """
    words = ["--benchmark", benchmark, "--dataset_name", name, "--json"]
    return json.loads(cli_output("tasks", *words, *(["--task_file", task_file] if task_file else [])))


def example_row(benchmark: str, name: str) -> dict:
    """A made-up row of a task, its texts named after their columns."""
    return dict(task_facts(benchmark, name)["example"]["row"])

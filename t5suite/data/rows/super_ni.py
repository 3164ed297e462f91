"""Super-NaturalInstructions from its task files and split lists, as rows.

    >>> instances = read_instances("natural-instructions", "test", DATASET_VALS["super_ni"]["english"]["instruction"])
    >>> instances.rows[0]["task"], instances.rows[0]["output"]
    ('task1356_xlsum_title_generation', ['Brexit: Ministers warned of legal action'])

`DIR/tasks/<task>.json` and `DIR/splits/<lists>/{train,test}_tasks.txt`, as in the repository
`allenai/natural-instructions`. A training task gives at most so many instances, drawn by seed and task; a test task its
first ones, for its first 100 are the official test instances (arXiv:2204.07705; Tk-Instruct's `ni_dataset.py`).
"""

import hashlib
import json
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.lookup import suggestion
from t5suite.data.rows.jsonl import file_sha256

OFFICIAL_TEST_INSTANCES = 100


class Instances(NamedTuple):
    """Rows, `file: instance` of each, and the SHA-256 of everything that was read."""

    rows: list[dict]
    places: list[str]
    digest: str


def read_instances(directory, split: str, settings: dict) -> Instances:
    """The instances of a split's tasks, in the order of its list.

    Args:
      split: 'train' or 'test'.
      settings: an entry's `instruction`.

    Raises:
      ConfigError: there is no such directory or list.
      DataError: a task's file is missing, or is none.
    """
    list_file = _list_file(Path(directory), settings["task_lists"], split)
    names = [(i, line.strip()) for i, line in enumerate(list_file.read_text("utf-8").splitlines(), 1) if line.strip()]
    if not names:
        raise DataError(f"{list_file}: the list is empty")
    rows, places, digests = [], [], [file_sha256(list_file)]
    for number, name in names:
        path = Path(directory) / "tasks" / f"{name}.json"
        if not path.is_file():
            missing = sum(not (path.parent / f"{other}.json").is_file() for _, other in names)
            raise DataError(
                f"{list_file}:{number}: no file {path} ({missing} of {len(names)} tasks are missing); "
                "--task_lists names another list"
            )
        task = read_task_file(path)
        digests.append(file_sha256(path))
        for chosen in chosen_instances(name, len(task["Instances"]), split, settings):
            rows.append(_row(name, task, task["Instances"][chosen], len(rows)))
            places.append(f"{path}: instance {chosen}")
    return Instances(rows, places, hashlib.sha256("\n".join(digests).encode()).hexdigest())


def read_task_file(path) -> dict:
    """A task's file as it is, its parts checked.

    Raises:
      DataError: it is not JSON, or lacks a part, or a part has another form.
    """
    try:
        task = json.loads(Path(path).read_text("utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not JSON ({error})") from None
    for key in ("Definition", "Positive Examples", "Negative Examples", "Categories", "Instances"):
        value = task.get(key) if isinstance(task, dict) else None
        if not isinstance(value, list) and not (key == "Definition" and isinstance(value, str)):
            raise DataError(f"{path}: not a task of Super-NaturalInstructions ({key!r} is no list)")
    for key in ("Positive Examples", "Negative Examples", "Instances"):
        for i, example in enumerate(task[key]):
            if not isinstance(example, dict) or not isinstance(example.get("input"), str) or "output" not in example:
                raise DataError(f"{path}: {key} {i} has no 'input' and 'output'")
    return task


def chosen_instances(name: str, count: int, split: str, settings: dict) -> list[int]:
    """Which of a task's instances are read: the first ones for evaluation, random ones for training.

    >>> chosen_instances("task1146_country_capital", 200, "test", {"max_num_instances_per_eval_task": 3, ...})
    [0, 1, 2]
    """
    if split == "train":
        limit = settings["max_num_instances_per_task"]
        if limit is None or limit >= count:
            return list(range(count))
        order = np.random.default_rng((settings["seed"], zlib.crc32(name.encode()))).permutation(count)
        return sorted(int(i) for i in order[:limit])
    limit = settings["max_num_instances_per_eval_task"]
    return list(range(min(count, OFFICIAL_TEST_INSTANCES, count if limit is None else limit)))


def _list_file(directory: Path, lists: str, split: str) -> Path:
    if not (directory / "tasks").is_dir() or not (directory / "splits").is_dir():
        raise ConfigError(
            f"--data_dir {directory}: Super-NaturalInstructions is read from DIR/tasks and DIR/splits, which are as "
            "allenai/natural-instructions has them"
        )
    file = directory / "splits" / lists / f"{split}_tasks.txt"
    if not file.is_file():
        there = sorted(folder.name for folder in (directory / "splits").iterdir() if folder.is_dir())
        raise ConfigError(f"--task_lists {lists!r}: no file {file}; {suggestion(lists, there)}")
    return file


def _row(name: str, task: dict, instance: dict, number: int) -> dict:
    output, definition = instance["output"], task["Definition"]
    return {
        "idx": number,
        "task": name,
        "category": task["Categories"][0] if task["Categories"] else "",
        "definition": definition if isinstance(definition, str) else definition[0] if definition else "",
        "positive_examples": [_example(example) for example in task["Positive Examples"]],
        "negative_examples": [_example(example) for example in task["Negative Examples"]],
        "id": str(instance.get("id", "")),
        "input": instance["input"],
        "output": output if isinstance(output, list) else [output],
    }


def _example(example: dict) -> dict:
    output = example["output"]
    explanation = example.get("explanation")
    return {
        "input": example["input"],
        "output": output if isinstance(output, str) else str(output[0]) if output else "",
        "explanation": explanation if isinstance(explanation, str) else None,
    }

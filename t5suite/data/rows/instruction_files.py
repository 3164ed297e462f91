"""Super-NaturalInstructions: the instances of its tasks as rows.

    >>> instances = read_instances("natural-instructions", "test", DATASET_VALS["super_ni"]["english"]["instruction"])
    >>> instances.rows[0]["task"], instances.rows[0]["output"]
    ('task1356_xlsum_title_generation', ['Brexit: Ministers warned of legal action'])

Its repository has `DIR/tasks/<task>.json` and `DIR/splits/<lists>/{train,test}_tasks.txt`, as in
`allenai/natural-instructions`. A training task gives a limited number of instances, drawn by seed and task; a test
task its first ones (arXiv:2204.07705; Tk-Instruct's `ni_dataset.py`).
"""

import hashlib
import json
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.files import file_sha256
from t5suite.base.lookup import suggestion
from t5suite.data.rows.own_rows import Rows

OFFICIAL_TEST_INSTANCES = 100
TYPES_BY_KEY = {
    "Definition": (list, str),
    "Positive Examples": list,
    "Negative Examples": list,
    "Categories": list,
    "Instances": list,
}
EXAMPLE_KEYS = ("Positive Examples", "Negative Examples", "Instances")


def read_instances(directory, split: str, settings: dict) -> Rows:
    """The instances of a split's tasks, in the order of its list.

    Args:
      split: 'train' or 'test'.
      settings: an entry's `instruction`.

    Raises:
      ConfigError: there is no such directory or list.
      DataError: a task's file is missing or invalid.
    """
    list_file = _list_file(Path(directory), settings["task_lists"], split)
    digests = [file_sha256(list_file)]
    rows: list[dict] = []
    places: list[str] = []
    for name, path in _task_files(Path(directory), list_file):
        task = read_task_file(path)
        digests.append(file_sha256(path))
        for instance in chosen_instances(name, len(task["Instances"]), split, settings):
            rows.append(_row(name, task, task["Instances"][instance], len(rows)))
            places.append(f"{path}: instance {instance}")
    origin = f"{directory} {settings['task_lists']} {split}"
    digest = hashlib.sha256("\n".join(digests).encode()).hexdigest()
    return Rows(rows, places, origin, f"sha256:{digest}")


def _list_file(directory: Path, lists: str, split: str) -> Path:
    if not (directory / "tasks").is_dir() or not (directory / "splits").is_dir():
        raise ConfigError(
            f"--data_dir {directory}: Super-NaturalInstructions is read from DIR/tasks and DIR/splits, "
            "as in allenai/natural-instructions"
        )
    file = directory / "splits" / lists / f"{split}_tasks.txt"
    if not file.is_file():
        folders = sorted(folder.name for folder in (directory / "splits").iterdir() if folder.is_dir())
        raise ConfigError(f"--task_lists {lists!r}: no file {file}; {suggestion(lists, folders)}")
    return file


def _task_files(directory: Path, list_file: Path) -> Iterator[tuple[str, Path]]:
    """The name and the file of each task of a list; a file that is missing is an error when its turn comes."""
    lines = list_file.read_text("utf-8").splitlines()
    names = [(number, line.strip()) for number, line in enumerate(lines, start=1) if line.strip()]
    if not names:
        raise DataError(f"{list_file}: the list is empty")
    paths = [directory / "tasks" / f"{name}.json" for _, name in names]
    for (number, name), path in zip(names, paths, strict=True):
        if not path.is_file():
            missing_count = sum(not path.is_file() for path in paths)
            raise DataError(
                f"{list_file}:{number}: no file {path} ({missing_count} of {len(names)} tasks are missing); "
                "--task_lists names another list"
            )
        yield name, path


def read_task_file(path) -> dict:
    """The content of a task's file, with its parts checked.

    Raises:
      DataError: it is not JSON, or a part is missing or has the wrong type.
    """
    try:
        task = json.loads(Path(path).read_text("utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not JSON ({error})") from None
    for key, types in TYPES_BY_KEY.items():
        part = task.get(key) if isinstance(task, dict) else None
        if not isinstance(part, types):
            raise DataError(f"{path}: not a task of Super-NaturalInstructions ({key!r} is not a list)")
    for key in EXAMPLE_KEYS:
        for i, example in enumerate(task[key]):
            if not _has_input_and_output(example):
                raise DataError(f"{path}: {key} {i} has no 'input' and 'output'")
    return task


def _has_input_and_output(example) -> bool:
    return isinstance(example, dict) and isinstance(example.get("input"), str) and "output" in example


def chosen_instances(name: str, count: int, split: str, settings: dict) -> list[int]:
    """Which of a task's instances are read: the first ones for evaluation, random ones for training.

    >>> chosen_instances("task1146_country_capital", 200, "test", {"max_num_instances_per_eval_task": 3, ...})
    [0, 1, 2]
    """
    if split != "train":
        limit = settings["max_num_instances_per_eval_task"]
        return list(range(min(count, OFFICIAL_TEST_INSTANCES, count if limit is None else limit)))
    limit = settings["max_num_instances_per_task"]
    if limit is None or limit >= count:
        return list(range(count))
    order = np.random.default_rng((settings["seed"], zlib.crc32(name.encode()))).permutation(count)
    return sorted(int(i) for i in order[:limit])


def _row(name: str, task: dict, instance: dict, number: int) -> dict:
    output = instance["output"]
    definition = task["Definition"]
    if isinstance(definition, list):
        definition = _first_of(definition)
    return {
        "idx": number,
        "task": name,
        "category": _first_of(task["Categories"]),
        "definition": definition,
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
        "output": output if isinstance(output, str) else str(_first_of(output)),
        "explanation": explanation if isinstance(explanation, str) else None,
    }


def _first_of(values):
    """The first of a list, or an empty text."""
    return values[0] if values else ""

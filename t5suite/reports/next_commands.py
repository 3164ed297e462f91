"""The commands that a finished run's model is used with: the last lines that a run prints.

>>> next_commands("runs/reviews", manifest)
['t5suite predict --model_name_or_path runs/reviews --input reviews.csv',
 't5suite serve --model_name_or_path runs/reviews',
 't5suite report runs/reviews']
"""

import shlex
from collections.abc import Mapping
from pathlib import Path

from t5suite.base.file_names import FORMATS_BY_SUFFIX, unpacked_suffix
from t5suite.base.terminal import Terminal
from t5suite.data.rows.file_rows import format_by_name
from t5suite.reports.finished_runs import has_weights
from t5suite.runs.directory import BEST_FOLDER
from t5suite.tasks.entry_checks import names_own_function
from t5suite.tasks.registry import Task
from t5suite.tasks.task_card import HEADED, TaskCard, read_task_card

# The file that the command names is the user's own, if there is one: new rows first, those of training last.
FILE_FLAGS = ("test_file", "validation_file", "train_file")
# Files of these formats hold rows that `t5suite predict` reads as fine-tuning does.
PREDICTED_FORMATS = ("jsonl", "csv", "tsv", "parquet")
NO_FILE = "ROWS.jsonl"


def next_commands(directory, manifest: dict) -> list[str]:
    """How the model is used: answers for a file of rows, a server, a report; fine-tuning of a pre-trained one.

    Nothing for a run without a model, or for one whose tasks have functions that are not a task file's.

    Args:
      manifest: the run's; its settings name the files of the user's own rows.
    """
    card = read_task_card(directory)
    settings = manifest["settings"]
    is_pre_trained = "objective" in settings
    if not has_weights(directory) or (card is None and not is_pre_trained):
        return []
    model = ["--model_name_or_path", str(_weights_of_scores(directory, card, manifest))]
    if settings.get("model_class"):
        model += ["--model_class", str(settings["model_class"])]
    if card is None:
        # The format says that the rows are the user's own: `input` and `output`, not columns of a benchmark.
        return [shlex.join(["t5suite", "fine_tune", *model, "--data_format", "jsonl", "--train_file", NO_FILE])]
    task = next(iter(card.tasks.values()))
    task_flags = flags_of_task_file(task, manifest)
    if task_flags is None:
        return []
    if len(card.tasks) > 1 and not task_flags:
        task_flags = {"dataset_name": task.name}
    for name, value in task_flags.items():
        model += [f"--{name}", value]
    file = _rows_to_answer(settings)
    predict = ["t5suite", "predict", *model, "--input", file]
    if card.family not in HEADED and not card.scores_by_labels(task):
        for name, value in writing_flags(settings).items():
            predict += [f"--{name}", str(value)]
    if file != NO_FILE:
        predict += flags_of_file(file, settings)
    return [
        shlex.join(predict),
        shlex.join(["t5suite", "serve", *model]),
        shlex.join(["t5suite", "report", str(directory)]),
    ]


def _weights_of_scores(directory, card: TaskCard | None, manifest: Mapping) -> Path:
    """The folder of the weights that have the scores of the first task: with `--select per_task` its best ones.

    A folder `best/` may also be left from a run with other flags.
    """
    run = Path(directory)
    if card is None or manifest["settings"].get("select") != "per_task":
        return run
    task = next(iter(card.tasks))
    if task not in (manifest.get("best_per_task") or {}):
        return run
    best = run / BEST_FOLDER / task
    return best if has_weights(best) else run


def flags_of_task_file(task: Task, manifest: Mapping) -> dict[str, str] | None:
    """The flags that name a task of a run in the Python file whose functions the model's folder lacks.

    Empty for a run whose tasks have no functions of their own; None where these are not a task file's (`--data_class`).

    >>> flags_of_task_file(task, {"settings": {"task_file": "tasks.py"}, "tasks": {"films": {"formatter": "shout"}}})
    {'benchmark': 'mine', 'dataset_name': 'films', 'task_file': 'tasks.py'}
    """
    if not any(map(names_own_function, manifest.get("tasks", {}).values())):
        return {}
    file = manifest["settings"].get("task_file")
    if not file or Path(file).suffix != ".py":
        return None
    return {"benchmark": task.benchmark, "dataset_name": task.name, "task_file": str(file)}


def writing_flags(settings: Mapping) -> dict[str, int]:
    """The flags of `t5suite predict` with which it writes as the run's evaluation did.

    >>> writing_flags({"generation_num_beams": 4, "generation_max_length": None})
    {'num_beams': 4}
    """
    values = {
        "num_beams": settings.get("generation_num_beams"),
        "max_new_tokens": settings.get("generation_max_length"),
    }
    return {name: value for name, value in values.items() if value}


def flags_of_file(file: str, settings: dict) -> list[str]:
    """With which flags `t5suite predict` reads a file as the run did, where the file alone does not say it.

    >>> flags_of_file("rows.dat", {"data_format": "csv", "delimiter": "bar"})
    ['--input_type', 'csv', '--delimiter', 'bar']
    >>> flags_of_file("rows.csv.gz", {"data_format": "csv", "delimiter": None})
    []
    >>> flags_of_file("rows.txt", {"benchmark": "glue"})  # a benchmark's rows are JSON lines
    ['--input_type', 'jsonl']
    """
    flags = []
    data_format = settings.get("data_format") or format_by_name(file)
    format_of_name = FORMATS_BY_SUFFIX.get(unpacked_suffix(file))
    if data_format != format_of_name:
        flags += ["--input_type", data_format]
    if settings.get("delimiter") is not None:
        flags += ["--delimiter", settings["delimiter"]]
    return flags


def print_next_commands(directory, manifest: dict) -> None:
    """Prints them on the standard output, one a line."""
    commands = next_commands(directory, manifest)
    if not commands:
        return
    terminal = Terminal()  # quiet where the user's own prints alone are shown
    for line in ("", "next, with your own rows in place of the file:", *(f"  {command}" for command in commands)):
        terminal.print(line, highlight=False, soft_wrap=True)


def _rows_to_answer(settings: dict) -> str:
    """A file of the run's own rows that exists; else a name to be replaced."""
    for flag in FILE_FLAGS:
        file = settings.get(flag)
        is_readable = settings.get("data_format") in (None, *PREDICTED_FORMATS)
        if is_readable and isinstance(file, str) and Path(file).is_file():
            return file
    return NO_FILE

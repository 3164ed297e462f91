"""What to pass to a `FineTuner` that was given no data, by what the model's folder says of its task.

>>> print(needed_data("runs/topics", read_task_card("runs/topics")))
there are no rows to train on or to score: the model was trained on own/topics, give the data again:
FineTuner('runs/topics', 'topics.csv', text_column='text', target_column='label', labels='sport,news')
"""

from pathlib import Path

from t5suite.data.rows.formats import PLACES
from t5suite.runs.directory import MANIFEST, read_json
from t5suite.tasks.task_card import TaskCard

NOTHING = "there are no rows to train on or to score"
# What settings say of the columns of one's own rows, beside where those are.
COLUMNS = ("text_column", "target_column", "labels", "metrics", "source_id", "target_id", "prefix")
UNSAID = {"source_id": "s", "target_id": "t"}


def needed_data(model: str | None, card: TaskCard | None) -> str:
    """The message, with a call that would do.

    Args:
      model: the folder or name that the tuner was made of; None for a model in memory.
    """
    shown = "model" if model is None else repr(model)
    if card is None:
        return (
            f"{NOTHING}: give them as FineTuner({shown}, data), where data is a file or folder of rows, a DataFrame, a "
            "list of dicts, or benchmark/task such as 'glue/rte'"
        )
    tasks = list(card.tasks.values())
    name = f"{tasks[0].benchmark}/{','.join(card.tasks)}"
    return f"{NOTHING}: the model was trained on {name}, give the data again: {_call(model, shown, tasks[0])}"


def _call(model: str | None, shown: str, task) -> str:
    """A call with the run's own settings where its manifest has them, else with the task's columns and labels."""
    settings = _settings(model)
    place = next((settings[name] for name in ("train_dir", *PLACES) if settings.get(name)), None)
    if place is not None:
        given = {name: settings.get(name) for name in COLUMNS if settings.get(name) != UNSAID.get(name)}
    else:
        words = task.label_words
        given = {"text_column": ",".join(task.text_columns), "target_column": task.entry["label_column_name"]}
        given["labels"] = ",".join(words) if words else None
    flags = "".join(f", {name}={value!r}" for name, value in given.items() if value is not None)
    data = place or "rows.csv"
    return f"FineTuner({shown}, {data!r}{flags})"


def _settings(model: str | None) -> dict:
    """Of a run's folder, what its manifest says; nothing of another model."""
    manifest = Path(model or "") / MANIFEST
    return read_json(manifest).get("settings", {}) if model and manifest.is_file() else {}

"""A run's rows, read again from where the run read them.

>>> found, why = rows_again(task, "validation", "validation", read_manifest("runs/reviews"))
>>> found.rows[0], found.numbers[0], found.places[0]
({'text': 'I hated the soup.', 'label': 'bad'}, 4, 'reviews.csv:6')

Rows count only if their fingerprint, such as the SHA-256 of their file, is that of the run. A relative path is looked
for from here, from where the run was started, and in `--data_dir`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import UserError
from t5suite.data.formats.from_settings import PLACES, format_source
from t5suite.data.sources import DataOptions, LoadedSplit, load_split
from t5suite.data.subsets import select_rows
from t5suite.tasks.registry import Task

FILES = ("train_file", "validation_file", "test_file")


class RowsAgain(NamedTuple):
    """The rows that a run evaluated, in its order.

    Attributes:
      numbers: of the rows in their source.
      places: where rows of one's own stand, 'reviews.csv:6'; none of other rows.
    """

    rows: list[dict]
    numbers: list[int]
    places: list[str]


def rows_again(
    task: Task, role: str, split: str, manifest: dict, data_dir: str | None = None
) -> tuple[RowsAgain | None, str]:
    """`(the rows, "")`, or `(None, why not)`.

    Args:
      data_dir: where to look first.
    """
    told = (manifest.get("data") or {}).get(f"{task.name}.{split}") or {}
    reasons = []
    for settings in settings_by_place(manifest, data_dir):
        loaded, places, why = _loaded(task, role, split, settings, told)
        if loaded is not None:
            limit = settings.get("max_predict_samples" if is_extra_test(task, role) else "max_eval_samples")
            drawn = select_rows(len(loaded.rows), limit=limit, seed=settings.get("seed") or 0, role=role)
            numbers = [int(number) for number in drawn]
            found = [loaded.rows[number] for number in numbers], numbers, [places[n] for n in numbers if places]
            return RowsAgain(*found), ""
        reasons.append(why)
    return None, next((why for why in reasons if CHANGED in why), reasons[0])


def settings_by_place(manifest: dict, data_dir: str | None) -> Iterator[dict]:
    """The run's settings, once for each place where its files may be now."""
    settings = manifest["settings"]
    named = {name: settings[name] for name in (*PLACES, "data_dir") if isinstance(settings.get(name), str)}
    if data_dir:
        moved = {name: str(Path(data_dir, Path(path).name)) for name, path in named.items() if name in FILES}
        yield {**settings, **moved, **({"train_dir": data_dir} if "train_dir" in named else {}), "data_dir": data_dir}
    yield settings
    started = manifest.get("working_directory")
    if started and Path(started) != Path.cwd():
        there = {name: str(Path(started, path)) for name, path in named.items()}
        if "hub_path" in there and not Path(there["hub_path"]).exists():
            there.pop("hub_path")
        yield {**settings, **there}


def is_extra_test(task: Task, role: str) -> bool:
    """Whether rows are test rows beside validation rows."""
    return role == "test" and bool(task.splits("validation"))


def _loaded(task: Task, role: str, split: str, settings: dict, told: dict):
    """`(the split, its rows' places, "")` if its fingerprint is that of the run, else `(None, [], why not)`."""
    try:
        loaded, places = _own_rows(role, settings) if settings.get("data_format") else (None, [])
        loaded = loaded or load_split(task, role, split, _options(settings))
    except (UserError, OSError, ImportError) as error:
        return None, [], f"the rows of {task.name} {split} could not be read again ({str(error)[:200]})"
    # The hub's fingerprint says how a data set was loaded, too; its targets, compared next, say what it holds.
    is_told = told.get("fingerprint") in (None, loaded.fingerprint)
    if not is_told and not loaded.fingerprint.startswith("datasets:"):
        what = f"{', '.join(changed_files(loaded, told.get('files') or {}))} {CHANGED}"
        return None, [], f"the rows of {task.name} {split} are not those of the run any more: {what}"
    return loaded, places, ""


def changed_files(loaded: LoadedSplit, told: dict[str, str]) -> list[str]:
    """The files whose hash is not that of the run; where that told of one file alone, where the rows are."""
    hashes = {Path(path).name: value for path, value in told.items()}
    others = [path for path, value in loaded.files.items() if hashes.get(Path(path).name) != value]
    return others if told and others else [loaded.origin.replace(f" {HELD_OUT}", "")]


def _options(settings: dict) -> DataOptions:
    files = {name: settings.get(name) for name in FILES}
    return DataOptions(settings.get("data_dir"), data_revision=settings.get("data_revision"), **files)


def _own_rows(role: str, settings: dict) -> tuple[LoadedSplit, list[str]]:
    """Rows of `--data_format`, and the file and line of each."""
    found = format_source(settings).read(role)
    return LoadedSplit(found.rows, found.origin, found.fingerprint, 0, found.files), [*map(_short, found.places)]


def _short(place: str) -> str:
    """A place without its folders.

    >>> _short("/home/ada/reviews.csv:6")
    'reviews.csv:6'
    """
    return place.rsplit("/", 1)[-1]


CHANGED = "has changed since"
# What `HeldOutRows` says at the end of an origin.
HELD_OUT = "(held-out rows)"

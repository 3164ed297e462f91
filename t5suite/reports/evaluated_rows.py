"""The rows that a run evaluated, read again from where the run read them.

>>> rte = ScoredSplit("rte", load_task("glue", "rte"), "validation", "validation")
>>> again = read_rows_again(rte, manifest, settings_by_place(manifest))
>>> again.rows.rows[0]["sentence1"], again.rows.numbers[0], again.changed_source
('Dana Reeve, the widow of the actor ...', 0, '')

A relative path is tried in `--data_dir`, from the working directory, and from where the run was started. Rows are those
of the run if their fingerprint is; the hub's is not compared, because it also depends on how a data set was loaded.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import UserError
from t5suite.base.script_flags import flags_marked
from t5suite.data.rows.formats import format_source
from t5suite.data.rows.sources import DataOptions, LoadedSplit, load_split
from t5suite.data.rows.subsets import select_rows
from t5suite.reports.finished_runs import data_facts, hub_commits
from t5suite.runs.trained_splits import origin_of_all_rows
from t5suite.tasks.registry import Task

FILES = tuple(name for name in flags_marked("rows") if name.endswith("_file"))
LANG_COLUMNS = ("source_lang_column", "target_lang_column")
LONGEST_ERROR = 200


@dataclass(frozen=True)
class ScoredSplit:
    """A split of a task that a run was scored on.

    Attributes:
      name: as results name it (`mnli_matched`, `rte.test`).
      role: 'validation' or 'test'.
      split: its name in the source, such as `validation_matched`.
    """

    name: str
    task: Task
    role: str
    split: str

    @property
    def key(self) -> str:
        """Task and split (`mnli.validation_matched`), as manifests and files of predictions name it."""
        return f"{self.task.name}.{self.split}"


class EvaluatedRows(NamedTuple):
    """The rows that a run evaluated, in its order.

    Attributes:
      numbers: of the rows in their source.
      places: file and line of each row of `--data_format`; empty for others.
    """

    rows: list[dict]
    numbers: list[int]
    places: list[str]


class RowsAgain(NamedTuple):
    """What is now where a run has read the rows of a split.

    Attributes:
      rows: those of the run, or else the first ones that are there; None: nothing can be read.
      changed_source: the files that have changed since; empty: the rows are those of the run.
      error: why nothing can be read.
      data_dir: the folder of the place that they are from.
    """

    rows: EvaluatedRows | None
    changed_source: str = ""
    error: str = ""
    data_dir: str | None = None


def has_fingerprint_of_run(loaded: LoadedSplit, rows: EvaluatedRows, facts: dict) -> bool:
    """Whether rows are those of the run, by what their source was; the hub's pass, and are compared by their targets.

    Args:
      rows: those of the split that are evaluated.
      facts: what the manifest's `data` says of the split.
    """
    if loaded.fingerprint.startswith("datasets:"):
        return True
    return facts.get("fingerprint") in (None, loaded.fingerprint)


def read_rows_again(
    scored: ScoredSplit,
    manifest: dict,
    places: Iterable[dict],
    are_those_of_run: Callable[[LoadedSplit, EvaluatedRows, dict], bool] = has_fingerprint_of_run,
) -> RowsAgain:
    """The rows of a split: those of the run from the first place that has them, else what is there.

    Args:
      places: where to look, as `settings_by_place`.
      are_those_of_run: as `has_fingerprint_of_run`.
    """
    facts = data_facts(manifest).get(scored.key) or {}
    errors = []
    changed = []
    for settings in places:
        try:
            settings_of_rows = {**settings, **lang_columns_of(manifest), "data_revision": data_revisions(manifest)}
            with without_advice():
                loaded, places_of_rows = load_evaluated_rows(scored, settings_of_rows)
            rows = drawn_rows(scored, loaded, places_of_rows, settings)
        except (UserError, OSError, ImportError) as error:
            errors.append(str(error)[:LONGEST_ERROR])
            continue
        if are_those_of_run(loaded, rows, facts):
            return RowsAgain(rows, data_dir=settings.get("data_dir"))
        changed.append(RowsAgain(rows, changed_source(loaded, facts), data_dir=settings.get("data_dir")))
    # Rows that have changed say more than places where there are none.
    if changed:
        return changed[0]
    return RowsAgain(None, error=errors[0])


@contextlib.contextmanager
def without_advice() -> Iterator[None]:
    """Keeps warnings about rows and folders back: they are for a training, and the run has said them."""
    rows_logger = logging.getLogger("t5suite.data.rows")
    level = rows_logger.level
    rows_logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        rows_logger.setLevel(level)


def settings_by_place(manifest: dict, data_dir: str | None = None) -> Iterator[dict]:
    """The run's settings, once for each place where its files may be now.

    Args:
      data_dir: the first place.
    """
    settings = manifest["settings"]
    if data_dir:
        yield settings_in_folder(settings, data_dir)
    yield settings
    started = manifest.get("working_directory")
    if started and Path(started) != Path.cwd():
        yield {**settings, **paths_from(paths_of_rows(settings), started)}


def settings_in_folder(settings: dict, folder: str) -> dict:
    """A run's settings, all of its rows in a folder."""
    return {**settings, **paths_in_folder(paths_of_rows(settings), folder)}


def paths_of_rows(settings: dict) -> dict[str, str]:
    """The files and folders of rows that settings name."""
    paths = {}
    for name in (*flags_marked("rows"), "data_dir"):
        path = settings.get(name)
        if isinstance(path, str):
            paths[name] = path
    return paths


def paths_in_folder(paths: dict[str, str], folder: str) -> dict[str, str]:
    """The paths of rows if all of them have moved into a folder."""
    moved = {}
    for name, path in paths.items():
        if name in FILES:
            moved[name] = str(Path(folder, Path(path).name))
    if "train_dir" in paths:
        moved["train_dir"] = folder
    return {**moved, "data_dir": folder}


def paths_from(paths: dict[str, str], directory: str) -> dict[str, str]:
    """The paths, relative ones from a directory; a name on the hub is no path."""
    moved = {name: str(Path(directory, path)) for name, path in paths.items()}
    if "hub_path" in moved and not Path(moved["hub_path"]).exists():
        moved.pop("hub_path")
    return moved


def data_revisions(manifest: dict) -> str | None:
    """The commits of the hub's data sets that a run has read, as `--data_revision` takes them."""
    hub = manifest.get("hub") or {}
    return hub_commits(hub, "datasets") or manifest["settings"].get("data_revision")


def lang_columns_of(manifest: dict) -> dict[str, str]:
    """The columns of rows' languages that a run has read; a model's own are no settings of the run."""
    encoding = manifest.get("encoding") or {}
    return {name: encoding[name] for name in LANG_COLUMNS if encoding.get(name)}


def load_evaluated_rows(scored: ScoredSplit, settings: dict) -> tuple[LoadedSplit, list[str]]:
    """A split as the settings say; of `--data_format` also each row's file and line."""
    if settings.get("data_format"):
        options = DataOptions(own_sources={scored.task.name: format_source(settings, scored.task)})
    else:
        files = {name: settings.get(name) for name in FILES}
        options = DataOptions(settings.get("data_dir"), data_revision=settings.get("data_revision"), **files)
    loaded = load_split(scored.task, scored.role, scored.split, options)
    return loaded, loaded.places


def changed_source(loaded: LoadedSplit, facts: dict) -> str:
    """The files that differ from those of the run; if it did not record them, where the rows are from."""
    files = changed_files_of(loaded, facts)
    if files:
        return ", ".join(files)
    return origin_of_all_rows(loaded.origin)


def changed_files_of(loaded: LoadedSplit, facts: dict) -> list[str]:
    """The files that differ from those that the run has read, if it recorded them."""
    recorded = facts.get("files") or {}
    if not recorded:
        return []
    hashes = {Path(path).name: sha256 for path, sha256 in recorded.items()}
    return [path for path, sha256 in loaded.files.items() if hashes.get(Path(path).name) != sha256]


def drawn_rows(scored: ScoredSplit, loaded: LoadedSplit, places: list[str], settings: dict) -> EvaluatedRows:
    """The rows that the run's seed has drawn from a split."""
    is_predicted = scored.name.endswith(".test") or settings.get("do_predict")
    limit = settings.get("max_eval_samples")
    if scored.role == "test" and is_predicted:
        limit = settings.get("max_predict_samples")
    seed = settings.get("seed") or 0
    drawn = select_rows(len(loaded.rows), limit=limit, seed=seed, role=scored.role)
    numbers = [int(number) for number in drawn]
    rows = [loaded.rows[number] for number in numbers]
    drawn_places = []
    if places:
        drawn_places = [places[number] for number in numbers]
    return EvaluatedRows(rows, numbers, drawn_places)

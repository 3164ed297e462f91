"""The rows that a run evaluated, read again from where the run read them.

>>> rows, reason = read_rows_again(ScoredSplit("rte", load_task("glue", "rte"), "validation", "validation"), manifest)
>>> rows.rows[0]["sentence1"], rows.numbers[0], reason
('Dana Reeve, the widow of the actor ...', 0, '')

A relative path is tried in `--data_dir`, from the working directory, and from where the run was started. Rows are used
only if their fingerprint is that of the run; the hub's is not compared, because it also depends on how a data set was
loaded.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import UserError
from t5suite.base.script_flags import flags_marked
from t5suite.data.rows.formats import format_source
from t5suite.data.rows.own_rows import places_without_folders
from t5suite.data.rows.sources import DataOptions, LoadedSplit, load_split
from t5suite.data.rows.subsets import select_rows
from t5suite.reports.finished_runs import data_facts, hub_commits
from t5suite.tasks.registry import Task

FILES = tuple(name for name in flags_marked("rows") if name.endswith("_file"))
CHANGED = "has changed since"
# What `HeldOutRows` appends to an origin.
HELD_OUT = "(held-out rows)"
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


def read_rows_again(
    scored: ScoredSplit, manifest: dict, data_dir: str | None = None
) -> tuple[EvaluatedRows | None, str]:
    """`(the rows, "")`, or `(None, why not)`.

    Args:
      data_dir: where to look first.
    """
    title = f"the rows of {scored.task.name} {scored.split}"
    facts = data_facts(manifest).get(scored.key) or {}
    unreadable = []
    changed = []
    for settings in settings_by_place(manifest, data_dir):
        try:
            loaded, places = load_evaluated_rows(scored, settings, data_revisions(manifest))
        except (UserError, OSError, ImportError) as error:
            unreadable.append(f"{title} could not be read again ({str(error)[:LONGEST_ERROR]})")
            continue
        if is_changed(loaded, facts):
            source = changed_source(loaded, facts)
            changed.append(f"{title} are not those of the run any more: {source} {CHANGED}")
            continue
        return drawn_rows(scored, loaded, places, settings), ""
    # Rows that have changed say more than places where there are none.
    if changed:
        return None, changed[-1]
    return None, unreadable[0]


def settings_by_place(manifest: dict, data_dir: str | None) -> Iterator[dict]:
    """The run's settings, once for each place where its files may be now."""
    settings = manifest["settings"]
    paths = {}
    for name in (*flags_marked("rows"), "data_dir"):
        path = settings.get(name)
        if isinstance(path, str):
            paths[name] = path
    if data_dir:
        yield {**settings, **paths_in_folder(paths, data_dir)}
    yield settings
    started = manifest.get("working_directory")
    if started and Path(started) != Path.cwd():
        yield {**settings, **paths_from(paths, started)}


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


def load_evaluated_rows(scored: ScoredSplit, settings: dict, revisions: str | None) -> tuple[LoadedSplit, list[str]]:
    """A split as the settings say; of `--data_format` also each row's file and line."""
    if settings.get("data_format"):
        rows = format_source({**settings, "data_revision": revisions}).read(scored.role)
        places = places_without_folders(rows.places)
        return LoadedSplit(rows.rows, rows.origin, rows.fingerprint, 0, rows.files), places
    files = {name: settings.get(name) for name in FILES}
    options = DataOptions(settings.get("data_dir"), data_revision=revisions, **files)
    return load_split(scored.task, scored.role, scored.split, options), []


def is_changed(loaded: LoadedSplit, facts: dict) -> bool:
    """Whether rows are not those of the run; the hub's are compared later, by their targets."""
    if loaded.fingerprint.startswith("datasets:"):
        return False
    return facts.get("fingerprint") not in (None, loaded.fingerprint)


def changed_source(loaded: LoadedSplit, facts: dict) -> str:
    """The files that differ from those of the run; if it did not record them, where the rows are from."""
    files = changed_files_of(loaded, facts)
    if files:
        return ", ".join(files)
    return loaded.origin.replace(f" {HELD_OUT}", "")


def changed_files_of(loaded: LoadedSplit, facts: dict) -> list[str]:
    """The files that differ from those that the run has read, if it recorded them."""
    recorded = facts.get("files") or {}
    if not recorded:
        return []
    hashes = {Path(path).name: sha256 for path, sha256 in recorded.items()}
    return [path for path, sha256 in loaded.files.items() if hashes.get(Path(path).name) != sha256]


def drawn_rows(scored: ScoredSplit, loaded: LoadedSplit, places: list[str], settings: dict) -> EvaluatedRows:
    """The rows that the run's seed has drawn from a split."""
    is_extra_test = scored.role == "test" and scored.task.splits("validation")
    limit = settings.get("max_eval_samples")
    if is_extra_test:
        limit = settings.get("max_predict_samples")
    seed = settings.get("seed") or 0
    drawn = select_rows(len(loaded.rows), limit=limit, seed=seed, role=scored.role)
    numbers = [int(number) for number in drawn]
    rows = [loaded.rows[number] for number in numbers]
    drawn_places = []
    if places:
        drawn_places = [places[number] for number in numbers]
    return EvaluatedRows(rows, numbers, drawn_places)

"""A run's directory: the run itself, and the files in it that say what produced it, its state and its results.

    >>> run = open_run("runs/glue-rte-t5-small", settings, argv=["--benchmark", "glue"])      # runs.opening
    >>> run.update(status="finished")
    >>> read_results(run.directory)["averages"]
    {'glue': 84.1}

`manifest.json` explains a run: its id, command, settings, versions, commit, data fingerprints, hardware and times.
"""

import contextlib
import datetime
import hashlib
import itertools
import logging
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.files import read_json, write_json
from t5suite.base.lookup import check_name
from t5suite.base.provenance import loaded_code_changes
from t5suite.base.redaction import redacted_value
from t5suite.constants import OWN_BENCHMARK
from t5suite.runs.settings import changed_data, data_identity

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
RESULTS = "results.json"
METRICS = "metrics.jsonl"
# The model below an adapter, where the run keeps it.
BASE_FOLDER = "base"
# The weights of each task's best step, where the run keeps them.
BEST_FOLDER = "best"
# The manifest's required keys, and the types of the keys that are read.
REQUIRED_KEYS = ("run_id", "settings")
MANIFEST_TYPES = {
    **dict.fromkeys(("run_id", "fingerprint", "status", "code_sha256"), str),
    **dict.fromkeys(("settings", "versions", "commit", "data", "hub"), dict),
    **dict.fromkeys(("changes", "restarts", "weights_trained_on"), list),
}
# What messages call a setting that is no flag but follows from several.
DERIVED_SETTINGS = {
    "update_size": "update_size (per_device_train_batch_size x gradient_accumulation_steps x processes)"
}


@dataclass
class Run:
    """An opened run directory; only the main process writes.

    Attributes:
      resumed: the directory held this run before.
      changed: settings that differ from before, as `--extend` or `--allow_changed` permits.
      allowed: what `--allow_changed` names.
    """

    directory: Path
    manifest: dict
    is_main: bool = True
    resumed: bool = False
    changed: dict[str, tuple] = field(default_factory=dict)
    allowed: frozenset[str] = frozenset()

    @property
    def run_id(self) -> str:
        """The id that manifest, trackers and error messages use."""
        return self.manifest["run_id"]

    @property
    def finished(self) -> bool:
        """Whether the run has finished."""
        return has_finished(self.directory, self.manifest)

    @property
    def hub_before(self) -> dict:
        """What earlier starts of this run have read from the hub; a new run has read nothing."""
        return (self.manifest.get("hub") or {}) if self.resumed else {}

    def checkpoint_details(self, selects_by: dict) -> dict:
        """What its checkpoints record about it.

        Args:
          selects_by: the rows and metrics by which it selects them.
        """
        return {"run_id": self.run_id, "details": {"settings": self.manifest["fingerprint"], "selects_by": selects_by}}

    def update(self, **entries) -> None:
        """Adds entries to the manifest and writes it; the first call creates the directory."""
        self.manifest.update(redacted_value(entries, by_name=False))
        if self.is_main:
            self.directory.mkdir(parents=True, exist_ok=True)
            write_json(self.directory / MANIFEST, self.manifest)

    def keep_code(self) -> None:
        """Saves the code's diff from its commit as `diff.patch`, and as `diff-2.patch` if it has changed since.

        Where untracked files are the only difference, the manifest names them, and there is no such file.
        """
        changes = loaded_code_changes()
        if not self.is_main or changes is None or not any(changes):
            return
        diff, untracked = changes
        digest = hashlib.sha256(diff.encode()).hexdigest()
        recorded = self.manifest.get("code_changes", [])
        if recorded and recorded[-1]["sha256"] == digest and recorded[-1]["untracked"] == untracked:
            return
        entry = {"sha256": digest, "untracked": untracked, "at": current_time()}
        if diff:
            number = 1 + sum("file" in earlier for earlier in recorded)
            entry["file"] = "diff.patch" if number == 1 else f"diff-{number}.patch"
            (self.directory / entry["file"]).write_text(diff, encoding="utf-8")
        self.update(code_changes=[*recorded, entry])

    def use_data(self, described: dict) -> None:
        """Records what the run is trained on and scored on.

        Raises:
          ConfigError: the data differ from those that this run began with (`--allow_changed data` accepts them).
        """
        described = redacted_value(described, by_name=False)
        before = self.manifest.get("data", {})
        changes = changed_data(before, described) if data_identity(before) else {}
        if changes:
            examples = differences_text(dict(itertools.islice(changes.items(), 3)))
            if "data" not in self.allowed:
                allowed = ",".join([*sorted(self.allowed), "data"])
                raise ConfigError(
                    f"--output_dir {self.directory}: the data differ from those of run {self.run_id} ({examples}). "
                    f"Restore them, give a new --output_dir, or continue with --allow_changed {allowed}"
                )
            logger.warning("the data have changed since run %s began (%s)", self.run_id, examples)
            self.note_changes({"data": (None, list(changes))})
            if any(self.directory.glob("checkpoint-*")):  # which were trained on the earlier rows
                self.manifest["weights_trained_on"] = trained_splits_of_run(self.manifest)
        self.update(data=described)

    def finish(self) -> None:
        """Records that the run has finished."""
        self.update(status="finished", finished=current_time())

    def note_software(self, software: dict) -> None:
        """Warns and records that a run resumes with other software: its results may not be bitwise the same.

        Args:
          software: that of this process (`loaded_software`).
        """
        before = software_of(self.manifest)
        changes = {
            name: (before.get(name), version)
            for name, version in software_of(software).items()
            if before.get(name) != version
        }
        if "code_sha256" not in self.manifest:  # an earlier version began the run
            changes.pop("code_sha256", None)
        if changes:
            listed = ", ".join(f"{name} {then} then, {now} now" for name, (then, now) in changes.items())
            logger.warning("run %s resumes with other software (%s): no bitwise equality", self.run_id, listed)
            self.manifest.update(software)
            self.note_changes(changes)

    def note_changes(self, changes: dict[str, tuple]) -> None:
        """Records in the manifest what the run was before."""
        entry = {"changed": {name: list(values) for name, values in changes.items()}, "at": current_time()}
        self.manifest["changes"] = [*self.manifest.get("changes", []), entry]


def run_id_of(directory) -> str | None:
    """The id of the run that writes into a directory, as its manifest says; None without one."""
    with contextlib.suppress(OSError, DataError, KeyError, TypeError):
        return read_json(Path(directory) / MANIFEST)["run_id"]
    return None


def has_finished(directory, manifest: dict) -> bool:
    """Whether a run has finished; while it goes on (`--extend`), its results are those of earlier settings."""
    return manifest.get("status") == "finished" and (Path(directory) / RESULTS).is_file()


def has_trained(directory) -> bool:
    """Whether a run has logged steps or written checkpoints: what other settings or data would be at odds with."""
    directory = Path(directory)
    return (directory / METRICS).is_file() or any(directory.glob("checkpoint-*"))


def software_of(manifest: dict) -> dict:
    """Versions, commit and hash of the code that a manifest names, in one table."""
    software = {**manifest.get("versions", {}), **(manifest.get("commit") or {})}
    if "code_sha256" in manifest:
        software["code_sha256"] = manifest["code_sha256"]
    return software


def base_kept_by_run(folder: Path) -> Path | None:
    """The base model that a run keeps for its adapters; None if it keeps none.

    Args:
      folder: of an adapter: the run's, a checkpoint's, or that of a task's best weights.
    """
    for run_folder in (folder, folder.parent, folder.parent.parent):
        if (run_folder / BASE_FOLDER / "config.json").is_file():
            return run_folder / BASE_FOLDER
    return None


def tasks_named(manifest: dict) -> tuple[str | None, str | None]:
    """`(benchmark, dataset_name)` that a run trains or scores, whatever unused flags say.

    >>> tasks_named({"settings": {"benchmark": "mini", "dataset_name": "sentiment"}, "trained_on": ["own", "reviews"]})
    ('own', 'reviews')
    """
    settings = manifest["settings"]
    trained_on = manifest.get("trained_on") or (settings.get("benchmark"), settings.get("dataset_name"))
    return trained_on[0], trained_on[1]


def trained_splits_of_run(manifest: dict) -> list[dict]:
    """The training splits of a run, then those of its weights before it, as manifests describe them."""
    splits = manifest.get("data", {}).items()
    own_splits = [split for name, split in splits if name.endswith(".train") and isinstance(split, dict)]
    return [*own_splits, *manifest.get("weights_trained_on", [])]


def read_manifest(directory) -> dict:
    """A run's manifest.

    Raises:
      ConfigError: it is not a manifest: not JSON, or a required key is missing.
    """
    path = Path(directory) / MANIFEST
    try:
        manifest = read_json(path)
    except (OSError, DataError) as error:
        raise ConfigError(f"{error}; restore it, or begin a run in another directory") from None
    for key, type_of_key in MANIFEST_TYPES.items():
        entry = manifest.get(key) if isinstance(manifest, dict) else None
        if entry is None and key not in REQUIRED_KEYS:
            continue
        if not isinstance(entry, type_of_key):
            problem = "is missing" if entry is None else f"is {entry!r:.60}"
            raise ConfigError(f"{path} is not a run's manifest: {key!r} {problem}; begin a run in another directory")
    return {key: entry for key, entry in manifest.items() if entry is not None or key not in MANIFEST_TYPES}


def differences_text(pairs: dict[str, tuple]) -> str:
    """What a run had, and what it would have now.

    >>> differences_text({"eval_steps": (50.0, 100.0), "schedule": ("constant", None)})
    "eval_steps 50 there, 100 here; schedule 'constant' there, not given here"
    """
    return "; ".join(
        f"{DERIVED_SETTINGS.get(name, name)} {_as_given(before)} there, {_as_given(now)} here"
        for name, (before, now) in pairs.items()
    )


def _as_given(value: object) -> str:
    """A setting's value in a message: without the `.0` of a whole number."""
    if value is None:
        return "not given"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return repr(value)


def new_run_id() -> str:
    """The sweep agent's id, else eight random characters."""
    return sweep_run_id() or secrets.token_hex(4)


def sweep_run_id() -> str | None:
    """The run id that a sweep agent put into the environment; it becomes part of paths.

    Raises:
      ConfigError: it cannot be one (`../x`).
    """
    run_id = os.environ.get("WANDB_RUN_ID")
    return check_name(run_id, "run", where="WANDB_RUN_ID") if run_id else None


def default_output_dir(benchmark: str, dataset_name: str, model: str | None, suffix: str = "") -> str:
    """`runs/<benchmark>-<task>-<model>`, and the sweep's run id if an agent set one; your own rows have no benchmark.

    >>> default_output_dir("glue", "rte", "google/t5-v1_1-small"), default_output_dir("pre_train", "", None, "ul2")
    ('runs/glue-rte-t5-v1_1-small', 'runs/pre_train-tiny-ul2')
    """
    model_name = Path(model).name if model else "tiny"
    shown_benchmark = "" if benchmark == OWN_BENCHMARK else benchmark
    parts = [shown_benchmark, dataset_name.replace(",", "+"), model_name, suffix, sweep_run_id()]
    return str(Path("runs") / "-".join(part for part in parts if part))


def read_results(directory) -> dict:
    """A run's `results.json`.

    Raises:
      DataError: it does not hold a run's results.
    """
    path = Path(directory) / RESULTS
    try:
        results = read_json(path)
    except DataError as error:
        raise DataError(f"{error}; delete it, and the run's own command evaluates again") from None
    if not isinstance(results, dict) or not all(isinstance(results.get(key), dict) for key in ("tasks", "averages")):
        raise DataError(
            f"{path}: not a run's results ('tasks' and 'averages' must be tables); delete it, and the run's own "
            "command evaluates again"
        )
    return results


def current_time() -> str:
    """The time in UTC, to the second, as manifests have it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")

"""A run's directory: who owns it, what produced it, and its state.

    >>> run = open_run("runs/glue-rte-t5-small", settings, argv=["--benchmark", "glue"])
    >>> run.update(status="finished")

`manifest.json` explains a run: its id, command, settings, versions, commit, data fingerprints, hardware and times. A
directory belongs to one configuration and one state of the data: another one is rejected, with both run ids and the
differences, unless `--allow_changed` names them.
"""

import contextlib
import datetime
import hashlib
import itertools
import json
import logging
import os
import secrets
import sys
from dataclasses import dataclass, field
from pathlib import Path

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.files import whole_file
from t5suite.base.lookup import check_name, refuse_links_out
from t5suite.base.provenance import code_changes, code_sha256, git_commit, hardware, packages, versions
from t5suite.base.redaction import redacted, redacted_value
from t5suite.base.script_flags import TABLE_FILE, flags_marked
from t5suite.runs.lock import RunLock
from t5suite.runs.settings import (
    EXTENDABLE_SETTINGS,
    changed_between,
    data_identity,
    parse_allowed,
    public_settings,
    settings_fingerprint,
    without_secrets,
)

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
RESULTS = "results.json"
METRICS = "metrics.jsonl"
# What this process was asked to do (`finished_run`), and the environment variables that identify its command.
COMMAND: dict[str, str | None] = {}
VARIABLES = ("T5SUITE_DATA_DIR", "T5SUITE_RUN_DIR", "WANDB_", "ACCELERATE_", "HF_", "CUDA_", "WORLD_SIZE")
ASIDE = "or --overwrite_output_dir, which moves the old run to DIR.old-1 and keeps it"
# The manifest's required keys, and the types of the keys that are read.
NEEDED = ("run_id", "settings")
CHECKPOINT_MANIFESTS = "checkpoint-*/checkpoint.json"
MANIFEST_KINDS = {
    **dict.fromkeys(("run_id", "fingerprint", "status", "code_sha256"), str),
    **dict.fromkeys(("settings", "versions", "commit", "data", "hub"), dict),
    **dict.fromkeys(("changes", "restarts"), list),
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
        return self.manifest.get("status") == "finished" and (self.directory / RESULTS).is_file()

    @property
    def hub_before(self) -> dict:
        """What earlier starts of this run have read from the hub; a new run has read nothing."""
        return (self.manifest.get("hub") or {}) if self.resumed else {}

    @property
    def checkpoint_details(self) -> dict:
        """What its checkpoints record about it."""
        return {"run_id": self.run_id, "details": {"settings": self.manifest["fingerprint"]}}

    def update(self, **entries) -> None:
        """Adds entries to the manifest and writes it; the first call creates the directory."""
        self.manifest.update(redacted_value(entries, by_name=False))
        if self.is_main:
            self.directory.mkdir(parents=True, exist_ok=True)
            write_json(self.directory / MANIFEST, self.manifest)

    def keep_code(self) -> None:
        """Saves the code's diff from its commit as `diff.patch`, and as `diff-2.patch` if it has changed since."""
        found = code_changes()
        if not self.is_main or found is None or not any(found):
            return
        diff, untracked = found
        digest = hashlib.sha256(diff.encode()).hexdigest()
        known = self.manifest.get("code_changes", [])
        if known and known[-1]["sha256"] == digest and known[-1]["untracked"] == untracked:
            return
        name = "diff.patch" if not known else f"diff-{len(known) + 1}.patch"
        (self.directory / name).write_text(diff, encoding="utf-8")
        self.update(code_changes=[*known, {"file": name, "sha256": digest, "untracked": untracked, "at": _now()}])

    def use_data(self, described: dict) -> None:
        """Records what the run is trained on and scored on.

        Raises:
          ConfigError: the data differ from those that this run began with (`--allow_changed data` accepts them).
        """
        described = redacted_value(described, by_name=False)
        there, here = data_identity(self.manifest.get("data", {})), data_identity(described)
        differing = [name for name in sorted({*there, *here}) if there.get(name) != here.get(name)]
        if there and differing:
            shown = _differences({name: (there.get(name), here.get(name)) for name in differing[:3]})
            if "data" not in self.allowed:
                raise ConfigError(
                    f"--output_dir {self.directory}: the data differ from those of run {self.run_id} ({shown}). "
                    "Restore them, give a new --output_dir, or continue with --allow_changed data"
                )
            logger.warning("the data have changed since run %s began (%s)", self.run_id, shown)
            self.note_changes({"data": (None, differing)})
        self.update(data=described)

    def finish(self) -> None:
        """Records that the run has finished."""
        self.update(status="finished", finished=_now())

    def note_software(self, found: dict) -> None:
        """Warns and records that a run resumes with other software: its results may not be bitwise the same."""
        there, here = software_of(self.manifest), software_of(found)
        changes = {name: (there.get(name), value) for name, value in here.items() if there.get(name) != value}
        if "code_sha256" not in self.manifest:  # an earlier version began the run
            changes.pop("code_sha256", None)
        if changes:
            shown = ", ".join(f"{name} {before} then, {now} now" for name, (before, now) in changes.items())
            logger.warning("run %s resumes with other software (%s): no bitwise equality", self.run_id, shown)
            self.manifest |= found
            self.note_changes(changes)

    def note_changes(self, changes: dict[str, tuple]) -> None:
        """Records in the manifest what the run was before."""
        entry = {"changed": {name: list(values) for name, values in changes.items()}, "at": _now()}
        self.manifest["changes"] = [*self.manifest.get("changes", []), entry]


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


def open_run(
    output_dir,
    settings: dict,
    argv=(),
    is_main: bool = True,
    need_new: bool = False,
    extend: bool = False,
    allow_changed: str | None = None,
    overwrite: bool = False,
) -> Run:
    """The run of `settings` in `output_dir`: a new one, or the one that is there already. Nothing is written yet.

    Args:
      settings: every flag by name; those that do not affect the result are ignored when runs are compared.
      need_new: reject a directory with a run in it, even this one (`--resume none`).
      extend: settings that say how long the run is may have grown (`--extend`); a finished run is then unfinished.
      allow_changed: settings (or `data`) that may differ from before.
      overwrite: another run, and with `need_new` this one, is moved to `output_dir.old-1` (2, 3, ...) and kept.

    Raises:
      ConfigError: the directory holds another run, or files that are not a run's.
    """
    directory = Path(output_dir)
    allowed = parse_allowed(allow_changed, {**_settings_there(directory), **settings})
    try:
        return _opened(directory, settings, argv, is_main, need_new, extend, allowed)
    except ConfigError:
        if not overwrite or not (directory / MANIFEST).is_file():
            raise
    with RunLock(directory).acquire():  # no process is using it
        names = (directory.with_name(f"{directory.name}.old-{n}") for n in itertools.count(1))
        kept = directory.rename(next(name for name in names if not name.exists()))
    logger.info("--overwrite_output_dir: the run that was in %s is now in %s", directory, kept)
    return _opened(directory, settings, argv, is_main, need_new, extend, allowed)


def _settings_there(directory: Path) -> dict:
    """The settings of the run that is there already; none where its manifest cannot be read."""
    with contextlib.suppress(OSError, ConfigError, DataError):
        return read_manifest(directory)["settings"]
    return {}


def _opened(directory: Path, settings: dict, argv, is_main: bool, need_new: bool, extend: bool, allowed) -> Run:
    is_of_a_run = any(directory.glob(CHECKPOINT_MANIFESTS))  # its manifest was deleted, and is rebuilt
    if not (directory / MANIFEST).is_file() and not is_of_a_run:
        found = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
        shown = [name for name in found if not name.startswith(".")][:3]
        if shown:
            what = f"not empty ({', '.join(shown)}, ...) and without {MANIFEST}"
            raise ConfigError(f"--output_dir {directory}: {what}; give a new one")
        return Run(directory, _new_manifest(new_run_id(), settings, argv), is_main, allowed=allowed)
    refuse_links_out(directory, "--output_dir")
    manifest = _manifest_of(directory, settings, argv)
    if need_new:
        run_id = manifest["run_id"]
        raise ConfigError(
            f"--output_dir {directory} holds run {run_id}; --resume none needs a new --output_dir, {ASIDE}"
        )
    run = Run(directory, manifest, is_main, resumed=True, allowed=allowed)
    # It failed (a mistyped flag, missing data) before there was anything to lose.
    starts_again = manifest.get("status") == "failed" and not has_trained(directory)
    changes = changed_between(manifest["settings"], public_settings(settings))
    if changes and starts_again:
        logger.info("run %s failed before its first step: it starts again with other settings", run.run_id)
        manifest.pop("data", None)
    elif changes:
        _check_changes(run, changes, extend)
    if changes or not run.finished:
        manifest |= {"status": "running", **COMMAND}
    if changes:
        run.changed = changes
        manifest |= {"settings": public_settings(settings), "fingerprint": settings_fingerprint(settings)}
        run.note_changes(changes)
    if not run.finished:
        run.note_software({"versions": versions(), "commit": git_commit(), "code_sha256": code_sha256()})
    return run


def finished_run(directory: str | None, script: str, asked: dict) -> Run | None:
    """The run that this same command finished there earlier; None if that is not certain.

    The command is identified by what its words and files ask for, the working directory, the environment, the table of
    flags and the versions. Their hash is written to the manifest of the run that this process starts or resumes.

    Args:
      asked: `{flag: value}` as written.
    """
    of_suite = {name: os.environ[name] for name in sorted(os.environ) if name.startswith(VARIABLES)}
    is_code = any(":" in str(value) or str(value).endswith(".py") for value in asked.values())
    facts = [script, asked, os.getcwd(), of_suite, TABLE_FILE.read_text(encoding="utf-8"), versions()]
    digest = hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()
    COMMAND["asked"] = None if is_code or asked.keys() & set(flags_marked("fresh")) else digest
    if directory and COMMAND["asked"] and (Path(directory) / MANIFEST).is_file():
        with contextlib.suppress(ConfigError):
            run = Run(Path(directory), read_manifest(directory))
            return run if run.finished and run.manifest.get("asked") == digest else None
    return None


def _new_manifest(run_id: str, settings: dict, argv) -> dict:
    return {
        "run_id": run_id,
        "status": "running",
        "fingerprint": settings_fingerprint(settings),
        "started": _now(),
        "command": [sys.argv[0], *without_secrets(argv)],
        "working_directory": redacted(os.getcwd()),
        "settings": public_settings(settings),
        "versions": versions(),
        "commit": git_commit(),
        "code_sha256": code_sha256(),
        **COMMAND,
        "packages": packages(),
        "hardware": hardware(),
    }


def _manifest_of(directory: Path, settings: dict, argv) -> dict:
    """The manifest; a damaged or deleted one is rebuilt if a checkpoint says that the run had these settings."""
    try:
        return read_manifest(directory)
    except ConfigError as error:
        for path in sorted(directory.glob(CHECKPOINT_MANIFESTS), key=os.path.getmtime, reverse=True):
            with contextlib.suppress(DataError, KeyError, TypeError):  # the run's checkpoints are verified later on
                saved = read_json(path)
                run_id, fingerprint = saved["run_id"], saved["details"]["settings"]
                break
        else:
            raise
        if fingerprint != settings_fingerprint(settings):
            raise ConfigError(
                f"{error}; or give the flags of run {run_id}, which wrote {path.parent}, and it is rebuilt"
            ) from None
        logger.warning(
            "%s. It is rebuilt: %s has the same flags. Whether the data have changed is not checked",
            error,
            path.parent,
        )
        return _new_manifest(run_id, settings, argv)


def tasks_named(manifest: dict) -> tuple[str | None, str | None]:
    """`(benchmark, dataset_name)` that a run trains or scores, whatever unused flags say.

    >>> tasks_named({"settings": {"benchmark": "mini", "dataset_name": "sentiment"}, "trained_on": ["own", "reviews"]})
    ('own', 'reviews')
    """
    settings = manifest["settings"]
    named = manifest.get("trained_on") or (settings.get("benchmark"), settings.get("dataset_name"))
    return named[0], named[1]


def read_manifest(directory) -> dict:
    """A run's manifest.

    Raises:
      ConfigError: it is not a manifest: not JSON, or a required key is missing.
    """
    path = Path(directory) / MANIFEST
    try:
        manifest = read_json(path)
    except (OSError, DataError) as error:
        raise ConfigError(f"{error}; restore it, or give a new --output_dir") from None
    for name, kind in MANIFEST_KINDS.items():
        found = manifest.get(name) if isinstance(manifest, dict) else None
        if found is None and name not in NEEDED:
            continue
        if not isinstance(found, kind):
            wrong = "is missing" if found is None else f"is {found!r:.60}"
            raise ConfigError(f"{path} is not a run's manifest: {name!r} {wrong}; give a new --output_dir")
    return {name: value for name, value in manifest.items() if value is not None or name not in MANIFEST_KINDS}


def hub_before(output_dir, resume: str, overwrite: bool) -> dict:
    """What a run that these flags would resume has read from the hub, before the run is opened; {} without one.

    Args:
      resume, overwrite: `--resume`, `--overwrite_output_dir`.
    """
    if resume == "none" or overwrite or not (Path(output_dir) / MANIFEST).is_file():
        return {}
    try:
        return read_manifest(output_dir).get("hub", {})
    except ConfigError:  # a damaged manifest is reported when the run is opened
        return {}


def _check_changes(run: Run, changes: dict[str, tuple], extend: bool) -> None:
    """Rejects changes that neither `--extend` nor `--allow_changed` covers."""
    longer = {name: values for name, values in changes.items() if name in EXTENDABLE_SETTINGS}
    for name, (there, here) in longer.items() if extend else ():
        if isinstance(there, (int, float)) and 0 < (here or 0) < there:
            raise ConfigError(f"--extend: --{name} {here} is less than the {there} that the run had")
    refused = [name for name in changes if name not in run.allowed and not (extend and name in longer)]
    if not refused:
        return
    shown = _differences({name: changes[name] for name in refused[:6]}) + ("; ..." if len(refused) > 6 else "")
    cures = f" (or --allow_changed {','.join(refused)} to continue that run anyway)"
    if set(refused) <= set(longer):
        cures = " (or --extend to make that run longer)"
    begun, here = run.manifest.get("versions", {}).get("t5suite"), versions()["t5suite"]
    if begun and begun != here:
        cures = f"; t5suite {begun} began that run and can resume it, this is {here}"
    raise ConfigError(
        f"--output_dir {run.directory} holds another run ({run.run_id}; this one would be {new_run_id()}): "
        f"{shown}. Give a new --output_dir, {ASIDE}{cures}"
    )


def _differences(pairs: dict[str, tuple]) -> str:
    return "; ".join(f"{name} {there!r} there, {here!r} here" for name, (there, here) in pairs.items())


def new_run_id() -> str:
    """The sweep agent's id, else eight random characters."""
    return sweep_run_id() or secrets.token_hex(4)


def sweep_run_id() -> str | None:
    """The run id that a sweep agent put into the environment; it becomes part of paths.

    Raises:
      ConfigError: it cannot be one (`../x`).
    """
    found = os.environ.get("WANDB_RUN_ID")
    return check_name(found, "run", where="WANDB_RUN_ID") if found else None


def default_output_dir(benchmark: str, dataset_name: str, model: str | None, suffix: str = "") -> str:
    """`runs/<benchmark>-<task>-<model>`, and the sweep's run id if an agent set one.

    >>> default_output_dir("glue", "rte", "google/t5-v1_1-small"), default_output_dir("pre_train", "", None, "ul2")
    ('runs/glue-rte-t5-v1_1-small', 'runs/pre_train-tiny-ul2')
    """
    parts = [benchmark, dataset_name.replace(",", "+"), Path(model).name if model else "tiny", suffix, sweep_run_id()]
    return str(Path("runs") / "-".join(filter(None, parts)))


def read_results(directory) -> dict:
    """A run's `results.json`.

    Raises:
      DataError: it does not hold a run's results.
    """
    path = Path(directory) / RESULTS
    cure = "delete it, and the run's own command evaluates again"
    try:
        results = read_json(path)
    except DataError as error:
        raise DataError(f"{error}; {cure}") from None
    if not isinstance(results, dict) or not all(isinstance(results.get(key), dict) for key in ("tasks", "averages")):
        raise DataError(f"{path}: not a run's results ('tasks' and 'averages' must be tables); {cure}")
    return results


def read_json(path):
    """A JSON file's content.

    Raises:
      DataError: it is not JSON; the message names the file.
    """
    content = Path(path).read_bytes()
    try:
        return json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: " + (f"not JSON ({error})" if content else "the file is empty")) from None


def write_json(path, value) -> None:
    """Writes JSON atomically (`whole_file`); NaN is rejected."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")

"""Opens a run's directory: a new run, the run that is there already, or none, because it is another's.

    >>> run = open_run("runs/glue-rte-t5-small", settings, argv=["--benchmark", "glue"])
    >>> run.resumed, run.run_id
    (True, '3fa94c10')

A directory belongs to one configuration and one state of the data: another one is rejected, with both run ids and the
differences, unless `--allow_changed` names them.
"""

import contextlib
import functools
import hashlib
import itertools
import json
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.files import read_json
from t5suite.base.lookup import refuse_links_out
from t5suite.base.provenance import hardware, loaded_software, versions
from t5suite.base.redaction import redacted
from t5suite.base.script_flags import TABLE_FILE, flags_marked
from t5suite.runs.directory import MANIFEST, Run, current_time, differences_text, has_trained, new_run_id, read_manifest
from t5suite.runs.lock import RunLock, is_former_self, slurm_record
from t5suite.runs.settings import (
    EXTENDABLE_SETTINGS,
    changed_between,
    parse_allowed,
    public_settings,
    settings_fingerprint,
    without_secrets,
)

logger = logging.getLogger(__name__)

# What this process was asked to do (`finished_run`), and the environment variables that identify its command.
COMMAND: dict[str, str | None] = {}
VARIABLES = ("T5SUITE_DATA_DIR", "T5SUITE_RUN_DIR", "WANDB_", "ACCELERATE_", "HF_", "CUDA_", "WORLD_SIZE")
ASIDE = "or --overwrite_output_dir, which moves the old run to DIR.old-1 and keeps it"
CHECKPOINT_MANIFESTS = "checkpoint-*/checkpoint.json"
# What a manifest says of the model, its data and libraries: a run that starts again may have others.
NOTED_AT_START = ("data", "tokenizer", "teacher", "libraries", "hub")
# Settings that say which rows a run scores, and all that say which rows it reads.
SETTINGS_OF_SCORED_ROWS = ("do_predict", "validation_file", "test_file", "max_eval_samples", "max_predict_samples")
SETTINGS_OF_ROWS = (*SETTINGS_OF_SCORED_ROWS, "max_train_samples", "validation_split", "selection_split")
# More differing settings are not named.
MOST_NAMED_CHANGES = 6


def open_run(
    output_dir,
    settings: dict,
    argv=(),
    need_new: bool = False,
    extend: bool = False,
    allow_changed: str | None = None,
    overwrite: bool = False,
    is_default: bool = False,
) -> Run:
    """The run of `settings` in `output_dir`: a new one, or the one that is there already. Nothing is written yet.

    Args:
      settings: every flag by name; those that do not affect the result are ignored when runs are compared.
      need_new: reject a directory with a run in it, even this one (`--resume none`); a Slurm job that was requeued
        resumes the run that it began with these settings.
      extend: settings that say how long the run is may have grown (`--extend`); a finished run is then unfinished.
      allow_changed: settings (or `data`) that may differ from before.
      overwrite: another run, and with `need_new` this one, is moved to `output_dir.old-1` (2, 3, ...) and kept.
      is_default: nobody named the directory; a raised length makes its run longer, without `extend`, too.

    Raises:
      ConfigError: the directory holds another run, or files that are not a run's.
    """
    directory = Path(output_dir)
    allowed = parse_allowed(allow_changed, {**_settings_of_old_run(directory), **settings})
    new_or_resumed = functools.partial(
        _new_or_resumed_run, directory, settings, argv, need_new, extend, allowed, is_default
    )
    try:
        return new_or_resumed()
    except ConfigError:
        if not overwrite or not (directory / MANIFEST).is_file():
            raise
    _move_aside(directory)
    return new_or_resumed()


def _settings_of_old_run(directory: Path) -> dict:
    """The settings of the run that is there already; none where its manifest cannot be read."""
    with contextlib.suppress(OSError, ConfigError, DataError):
        return read_manifest(directory)["settings"]
    return {}


def _move_aside(directory: Path) -> None:
    """Renames a run's directory to `DIR.old-1` (2, 3, ...).

    Raises:
      ConfigError: another process uses it, or the current directory is in it.
    """
    if Path.cwd().is_relative_to(directory.resolve()):
        raise ConfigError(
            f"--output_dir {directory} --overwrite_output_dir: the current directory is in the run's directory, which "
            "would be moved aside; start from another one, or give a new --output_dir"
        )
    with RunLock(directory).acquire():  # no process is using it
        old_directory = directory.rename(_unused_name(directory))
    logger.info("--overwrite_output_dir: the run that was in %s is now in %s", directory, old_directory)


def _unused_name(directory: Path) -> Path:
    """`DIR.old-1`, or the first number after it that is free."""
    names = (directory.with_name(f"{directory.name}.old-{number}") for number in itertools.count(1))
    return next(name for name in names if not name.exists())


def _new_or_resumed_run(
    directory: Path,
    settings: dict,
    argv,
    need_new: bool,
    extend: bool,
    allowed: frozenset[str],
    is_default: bool,
) -> Run:
    # Where only the manifest was deleted, checkpoints show whose directory it is, and it is rebuilt.
    holds_run = (directory / MANIFEST).is_file() or any(directory.glob(CHECKPOINT_MANIFESTS))
    if not holds_run:
        _check_is_empty(directory)
        return Run(directory, _new_manifest(new_run_id(), settings, argv), allowed=allowed)
    refuse_links_out(directory)
    manifest = _read_or_rebuild_manifest(directory, settings, argv)
    if need_new and not is_of_this_job(manifest, settings):
        run_id = manifest["run_id"]
        raise ConfigError(
            f"--output_dir {directory} holds run {run_id}; --resume none needs a new --output_dir, {ASIDE}"
        )
    changes = changed_between(manifest["settings"], public_settings(settings))
    run = Run(directory, manifest, resumed=True, changed=changes, allowed=allowed)
    _resume(run, settings, argv, extend, is_default)
    return run


def is_of_this_job(manifest: Mapping, settings: Mapping[str, object]) -> bool:
    """Whether this Slurm job, before it was requeued, began this run with these settings; it may be longer since."""
    if not is_former_self(manifest):
        return False
    is_changed = bool(changed_between(manifest["settings"], public_settings(settings)))
    return not is_changed or bool(_raised_lengths(manifest, settings))


def _check_is_empty(directory: Path) -> None:
    """Refuses a file, a place in one, and a directory with files in it, which would be mixed with a run's."""
    for place in (directory, *directory.parents):
        if place.exists() and not place.is_dir():
            raise ConfigError(f"--output_dir {directory}: {place} is a file; name a folder")
    files = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
    visible = [name for name in files if not name.startswith(".")][:3]
    if visible:
        raise ConfigError(
            f"--output_dir {directory}: not empty ({', '.join(visible)}, ...) and without {MANIFEST}; give a new one"
        )


def _resume(run: Run, settings: dict, argv, extend: bool, is_default: bool) -> None:
    """Checks what has changed since the run began, and brings its manifest up to date.

    Raises:
      ConfigError: a change that was not asked for.
    """
    if run.changed and starts_again(run):
        logger.info("run %s failed before its first step: it starts again with other settings", run.run_id)
        for name in NOTED_AT_START:
            run.manifest.pop(name, None)
    elif run.changed:
        check_changes(run, extend, is_default)
    if run.finished and not run.changed:
        return
    # Settings that change no result, such as --share_rows, are those of this command, too.
    described_command = _described_command(argv)
    run.manifest.update({"status": "running", **COMMAND, **described_command, "settings": public_settings(settings)})
    if run.changed:
        run.manifest["fingerprint"] = settings_fingerprint(settings)
        run.note_changes(run.changed)
    run.note_software(loaded_software())


def starts_again(run: Run) -> bool:
    """Whether a run failed (a mistyped flag, missing data) before there was anything to lose."""
    return run.manifest.get("status") == "failed" and not has_trained(run.directory)


def check_changes(run: Run, extend: bool, is_default: bool) -> None:
    """Rejects changes that neither `--extend` nor `--allow_changed` covers.

    Args:
      is_default: nobody named the directory; a raised length needs no `extend`.

    Raises:
      ConfigError: it names the settings, and the ways on.
    """
    permitted = run.allowed | _permitted_lengths(run, extend, is_default)
    refused = [name for name in run.changed if name not in permitted]
    if not refused:
        return
    differences = differences_text({name: run.changed[name] for name in refused[:MOST_NAMED_CHANGES]})
    if len(refused) > MOST_NAMED_CHANGES:
        differences += "; ..."
    new_directory = "Give a new --output_dir"
    if is_default:
        new_directory = "Give --resume none for a new directory beside it, an --output_dir of its own"
        flags = _flags_of_run_with_these_settings(run)
        if flags is not None:
            new_directory = (
                f"The run of these settings is in another directory: {flags} goes on there. Else give --resume none "
                "for a new directory, an --output_dir of its own"
            )
    raise ConfigError(
        f"--output_dir {run.directory} holds another run ({run.run_id}; this one would be {new_run_id()}): "
        f"{differences}. {new_directory}, {ASIDE}{_way_to_continue(run, refused)}"
    )


def _flags_of_run_with_these_settings(run: Run) -> str | None:
    """What goes on with the first of `DIR-2`, `DIR-3`, ... that has the changed settings, up to the run's length."""
    settings = {**run.manifest["settings"], **{name: now for name, (_, now) in run.changed.items()}}
    for number in itertools.count(2):
        directory = run.directory.with_name(f"{run.directory.name}-{number}")
        if not (directory / MANIFEST).is_file():
            return None
        with contextlib.suppress(ConfigError):
            changes = changed_between(read_manifest(directory)["settings"], settings)
            if not changes:
                return f"--output_dir {directory}"
            if changes.keys() <= set(EXTENDABLE_SETTINGS):
                return f"--output_dir {directory} --extend"
    return None


def _permitted_lengths(run: Run, extend: bool, is_default: bool) -> set[str]:
    """The changed settings that say how long the run is, and may differ.

    Raises:
      ConfigError: `--extend` with a length below the run's.
    """
    permitted = set()
    if extend and "max_steps" in run.changed:
        _check_steps_grow(run.changed["max_steps"][1], run.manifest.get("total_steps"))
    for name, (before, now) in run.changed.items():
        if name not in EXTENDABLE_SETTINGS:
            continue
        if extend and _is_raised(now, before):
            raise ConfigError(f"--extend: --{name} {now} is less than the {before} that the run had")
        if extend or (is_default and _is_raised(before, now)):
            permitted.add(name)
    return permitted


def _check_steps_grow(max_steps: object, total_steps: object) -> None:
    """Refuses fewer updates than those of the run, whose length may be counted in epochs.

    Args:
      total_steps: updates of the run, as its manifest says; None: not known.
    """
    if _is_raised(max_steps, total_steps):
        raise ConfigError(f"--extend: --max_steps {max_steps} is less than the {total_steps} updates that the run had")


def _is_raised(shorter: object, longer: object) -> bool:
    """Whether the second of two numbers of steps, epochs or minutes is larger; -1 and None are no length."""
    are_numbers = isinstance(shorter, (int, float)) and isinstance(longer, (int, float))
    return are_numbers and 0 < shorter < longer


def lengths_since(output_dir, settings: dict) -> dict:
    """The lengths of the run in `output_dir`, if it had exactly these settings before it was made longer; else {}.

    >>> lengths_since("runs/reviews", {"max_steps": 60, "seed": 1})      # --extend has made it 90 since
    {'max_steps': 90}
    """
    try:
        manifest = read_manifest(output_dir)
    except ConfigError:  # no run is there, or a damaged one, which is reported when it is opened
        return {}
    return _raised_lengths(manifest, settings)


def _raised_lengths(manifest: Mapping, settings: Mapping[str, object]) -> dict:
    """`lengths_since` for the run of a manifest."""
    longer = {}
    for name, (there, here) in changed_between(manifest["settings"], public_settings(settings)).items():
        lengths_before = [entry.get("changed", {}).get(name, (None,))[0] for entry in manifest.get("changes", [])]
        if name not in EXTENDABLE_SETTINGS or here not in lengths_before:
            return {}
        longer[name] = there
    return longer


def _way_to_continue(run: Run, refused: list[str]) -> str:
    """How the run could go on in spite of these settings."""
    version_before = run.manifest.get("versions", {}).get("t5suite")
    version_now = versions()["t5suite"]
    if version_before and version_before != version_now:
        return f"; t5suite {version_before} began that run and can resume it, this is {version_now}"
    is_shortened = any(_is_raised(now, before) for before, now in (run.changed[name] for name in refused))
    if set(refused) <= set(EXTENDABLE_SETTINGS) and not is_shortened:
        return " (or --extend to make that run longer)"
    allowed = [*sorted(run.allowed - {"data"}), *refused]
    if "data" in run.allowed or not {*flags_marked("rows"), *SETTINGS_OF_ROWS}.isdisjoint(refused):
        allowed.append("data")
    way = f" (or --allow_changed {','.join(allowed)} to continue that run anyway)"
    model = _scored_model(run)
    if model and run.finished and set(refused) <= set(SETTINGS_OF_SCORED_ROWS):
        way += f"; t5suite evaluate --model_name_or_path {model} scores other rows with its model"
    return way


def _scored_model(run: Run) -> object:
    """The model whose scores a fine-tuning run or an evaluation has; None for pre-training, or if no flag names it."""
    settings = run.manifest["settings"]
    if "max_source_length" not in settings:
        return None
    if settings.get("eval_only") or settings.get("predict_only"):
        return settings.get("model_name_or_path")
    return run.directory


def _described_command(argv) -> dict:
    """The command and the directory in which it was given, as a manifest has them."""
    return {"command": [sys.argv[0], *without_secrets(argv)], "working_directory": redacted(os.getcwd())}


def _new_manifest(run_id: str, settings: dict, argv) -> dict:
    return {
        "run_id": run_id,
        "status": "running",
        "fingerprint": settings_fingerprint(settings),
        "started": current_time(),
        **_described_command(argv),
        "settings": public_settings(settings),
        "follows_data_seed": True,  # in earlier versions --data_seed had no effect
        **loaded_software(),
        **COMMAND,
        **slurm_record(),
        "hardware": hardware(),
    }


def _read_or_rebuild_manifest(directory: Path, settings: dict, argv) -> dict:
    """The manifest; a damaged or deleted one is rebuilt if a checkpoint says that the run had these settings."""
    try:
        return read_manifest(directory)
    except ConfigError as error:
        writer = _writer_of_newest_checkpoint(directory)
        if writer is None:
            raise
        if writer.fingerprint != settings_fingerprint(settings):
            raise ConfigError(
                f"{error}; or give the flags of run {writer.run_id}, which wrote {writer.checkpoint}, and it is rebuilt"
            ) from None
        logger.warning(
            "%s. It is rebuilt: %s has the same flags. Whether the data have changed is not checked",
            error,
            writer.checkpoint,
        )
        return _new_manifest(writer.run_id, settings, argv)


class CheckpointWriter(NamedTuple):
    """The run that wrote a checkpoint, and the fingerprint of its settings."""

    checkpoint: Path
    run_id: str
    fingerprint: str


def _writer_of_newest_checkpoint(directory: Path) -> CheckpointWriter | None:
    """What the newest readable manifest of a checkpoint says; the checkpoints are verified later on."""
    for path in sorted(directory.glob(CHECKPOINT_MANIFESTS), key=os.path.getmtime, reverse=True):
        with contextlib.suppress(DataError, KeyError, TypeError):
            content = read_json(path)
            return CheckpointWriter(path.parent, content["run_id"], content["details"]["settings"])
    return None


def finished_run(directory: str | None, script: str, flags: dict) -> Run | None:
    """The run that this same command finished there earlier; None if that is not certain.

    The command is identified by what its words and files ask for, the working directory, the environment, the table of
    flags and the versions. Their hash is written to the manifest of the run that this process starts or resumes.

    Args:
      flags: `{flag: value}` as written.
    """
    runs_code = any(":" in str(value) or str(value).endswith(".py") for value in flags.values())
    is_repeatable = not runs_code and not flags.keys() & set(flags_marked("fresh"))
    COMMAND["asked"] = _command_digest(script, flags) if is_repeatable else None
    if not is_repeatable or not directory or not (Path(directory) / MANIFEST).is_file():
        return None
    with contextlib.suppress(ConfigError):
        run = Run(Path(directory), read_manifest(directory))
        if run.finished and run.manifest.get("asked") == COMMAND["asked"]:
            return run
    return None


def _command_digest(script: str, flags: dict) -> str:
    variables = {name: os.environ[name] for name in sorted(os.environ) if name.startswith(VARIABLES)}
    facts = [script, flags, os.getcwd(), variables, TABLE_FILE.read_text(encoding="utf-8"), versions()]
    return hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()


def hub_before(output_dir, resume: str, overwrite: bool) -> dict:
    """What a run that these flags would resume has read from the hub, before the run is opened; {} without one.

    Args:
      resume, overwrite: `--resume`, `--overwrite_output_dir`.
    """
    if overwrite or not (Path(output_dir) / MANIFEST).is_file():
        return {}
    try:
        manifest = read_manifest(output_dir)
    except ConfigError:  # a damaged manifest is reported when the run is opened
        return {}
    if resume == "none" and not is_former_self(manifest):
        return {}
    return manifest.get("hub", {})

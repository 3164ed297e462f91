"""The directory of a run: a new one or an earlier start's, locked against other processes; how the run ended is noted.

>>> settings = all_settings(*arguments, plug_ins=plug_ins)
>>> with run_directory(args, settings, argv, resume) as run:
...     run.update(model=describe(model))
"""

import contextlib
import dataclasses
import logging
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from t5suite.base.errors import CheckpointError, ConfigError, DataError, DiskError, Preempted, TemporaryError
from t5suite.base.files import file_sha256
from t5suite.base.libraries import Libraries
from t5suite.data.corpora.store import MANIFEST as CORPUS
from t5suite.models.added_tokens import parse_tokens
from t5suite.models.tokenizer_checks import TOKENIZER_KEY, describe_tokenizer, tokenizer_differences
from t5suite.runs.choosing import directory_for
from t5suite.runs.directory import MANIFEST, METRICS, RESULTS, Run
from t5suite.runs.lock import LOCK_FILE, RunLock, living_owner
from t5suite.runs.opening import open_run
from t5suite.runs.settings import FILE_CONTENTS, allowed_names, contents_hash
from t5suite.runs.trained_splits import trained_splits_of_model
from t5suite.training.checkpoints.folders import checkpoints, clean_leftovers
from t5suite.training.plug_ins import NO_PLUG_INS, PlugIns
from t5suite.training.processes.lost_ranks import watching_ranks
from t5suite.training.processes.ranks import RankLog, Ranks, attached
from t5suite.training.processes.signals import stop_requests
from t5suite.training.uploads import warn_of_late_uploads

# Lines of the log name the run, whichever module of it writes them.
logger = logging.getLogger("t5suite.training.run")

REFUSALS = (ConfigError, DataError, CheckpointError, DiskError, TemporaryError)
# A process that has locked a directory writes its manifest at once.
MANIFEST_SECONDS = 5.0
# What a later start could use: steps, scores, and tokenized text.
WORTH_KEEPING = (METRICS, "checkpoint-*", RESULTS, f"**/{CORPUS}")


def all_settings(*arguments, plug_ins: PlugIns = NO_PLUG_INS, contents: Mapping[str, object] | None = None) -> dict:
    """Every flag of the argument dataclasses by name, as the user gave it, and the user's plug-ins.

    Args:
      contents: what the files say that flags of tasks name, by flag (`Plan.contents`).
    """
    settings = {}
    for part in arguments:
        for spec in dataclasses.fields(part):
            if spec.init and not spec.name.startswith("_"):
                settings[spec.name] = getattr(part, spec.name)
    settings["update_size"] = update_size(arguments[-1])
    if plug_ins.described:
        settings["plug_ins"] = plug_ins.described
    contents = {**(contents or {}), **contents_of_files(settings)}
    if contents:
        settings[FILE_CONTENTS] = {flag: contents_hash(content) for flag, content in contents.items()}
    return settings


def contents_of_files(settings: Mapping[str, object]) -> dict[str, object]:
    """What the files say that flags of the model and of an objective name, by flag."""
    contents = {}
    for flag, read in {"add_tokens": parse_tokens, "collocations": file_sha256}.items():
        value = settings.get(flag)
        if value is not None and os.path.isfile(value):
            contents[flag] = read(value)
    return contents


def update_size(args) -> int:
    """Examples per update, over micro-batches and ranks."""
    return args.train_batch_size * args.gradient_accumulation_steps * max(1, args.world_size)


@contextlib.contextmanager
def run_directory(args, settings: dict, argv, resume: str, default: str | None = None):
    """The run of `--output_dir`: a new one, or this same run from an earlier start; a finished one is only read.

    Args:
      default: the name of the directory if no flag names one (`choose_output_dir` has been called). Another process
        may take the directory that was free; then the next one is chosen.

    Raises:
      ConfigError: another run is there, or another process writes into it.
    """
    ranks = Ranks.of_process()
    with contextlib.ExitStack() as stack:
        run = None
        while run is None:
            try:
                run = opened_run(args, settings, argv, resume, ranks, is_default=default is not None)
                if not run.finished:
                    stack.enter_context(owned(run, ranks))
            except ConfigError:
                run = None
                directory_before = args.output_dir
                if default is not None:
                    ranks.together(_await_manifest, directory_before)
                    choose_output_dir(args, settings, resume, default)
                if args.output_dir == directory_before:
                    raise
        if resume == "none":
            # The same command would begin anew, or be refused.
            command = f"the same command with --output_dir {args.output_dir} and without --resume none"
            stack.enter_context(stop_requests().resumed_by(command))
        if run.finished:
            warn_of_late_uploads(run, settings)
        yield run


def check_run_directory(args, settings: dict, argv, resume: str, default: str | None = None) -> None:
    """Refuses for `--dry_run` the directory that `run_directory` would refuse; writes nothing.

    Args:
      default: as in `run_directory`.

    Raises:
      ConfigError: another run is there, or files of something else.
    """
    is_moved_aside = args.overwrite_output_dir and (Path(args.output_dir) / MANIFEST).is_file()
    if not is_moved_aside:
        opened_run(args, settings, argv, resume, Ranks.of_process(), is_default=default is not None)


def _await_manifest(directory: str) -> None:
    """Waits until the process that has just locked a directory has written there whose run it is.

    A directory with files of something else has no owner: it is not waited for.
    """
    deadline = time.monotonic() + MANIFEST_SECONDS
    while not (Path(directory) / MANIFEST).is_file() and time.monotonic() < deadline:
        if living_owner(directory) is None:
            return
        time.sleep(0.05)


def choose_output_dir(args, settings: dict, resume: str, default: str) -> None:
    """Sets `--output_dir`, which no flag names, by data, model, seed and objective: see `runs.choosing`.

    Args:
      default: the name without a number, such as `runs/glue-rte-t5-small`.
    """
    # --overwrite_output_dir takes the directory of this run, which --resume none would leave alone.
    need_new = resume == "none" and not args.overwrite_output_dir
    allowed = allowed_names(args.allow_changed)
    args.output_dir = Ranks.of_process().together(directory_for, default, settings, allowed, need_new)
    settings["output_dir"] = args.output_dir


def opened_run(args, settings: dict, argv, resume: str, ranks: Ranks, is_default: bool) -> Run:
    """The run in `--output_dir`, the same on all ranks; nothing is written yet."""
    run = ranks.together(
        open_run,
        args.output_dir,
        settings,
        argv,
        need_new=resume == "none",
        extend=args.extend,
        allow_changed=args.allow_changed,
        overwrite=args.overwrite_output_dir,
        is_default=is_default,
    )
    run.is_main = args.process_index == 0
    return run


@contextlib.contextmanager
def owned(run: Run, ranks: Ranks):
    """Locks the run's directory against other processes, logs to it, and notes in it how the run ended.

    A new run that is refused leaves no files.
    """
    lock = RunLock(run.directory)
    new_folders = [folder for folder in (run.directory, *run.directory.parents) if not folder.exists()]
    log = attached() or RankLog(ranks.rank, for_one_run=True).attach()
    watch = watching_ranks(ranks, stop_requests()) if ranks.world_size > 1 else contextlib.nullcontext()
    try:
        ranks.together(take_directory, run, lock)
        log.open(run.directory)
        with watch:
            yield run
    except BaseException as error:
        log.note_end(error)
        if ranks.is_main and not lock.held:
            raise
        is_refused = isinstance(error, REFUSALS) and ranks.world_size == 1
        if is_refused and not run.resumed and not has_useful_files(run.directory):
            remove_directory(run.directory, new_folders)
        else:
            note_end(run, error)
        raise
    finally:
        log.end()
        lock.release()


def take_directory(run: Run, lock: RunLock) -> None:
    """Locks the directory, and writes the manifest of a new run: the main process does it."""
    lock.acquire(run.run_id)
    if not run.resumed and (run.directory / MANIFEST).exists():
        lock.release()
        raise ConfigError(f"--output_dir {run.directory}: another process has started a run there in the meantime")
    clean_leftovers(run.directory)
    if not run.resumed:
        run.update()  # before anything else is written: a directory without a manifest would belong to no run
    run.keep_code()


def has_useful_files(directory: Path) -> bool:
    """Whether a directory has files that a later start could use."""
    return any(next(directory.glob(pattern), None) for pattern in WORTH_KEEPING)


def note_end(run: Run, error: BaseException) -> None:
    """Writes to the manifest how a run ended; a failure after its end, in an upload say, does not change the status."""
    was_stopped = isinstance(error, Preempted) or stop_requests().explains(error)
    with contextlib.suppress(OSError):
        if run.manifest.get("status") != "finished":
            run.update(
                status="preempted" if was_stopped else "failed",
                ended=f"{type(error).__name__}: {error}"[:1000],
            )


def remove_directory(directory: Path, new_folders: list[Path]) -> None:
    """Deletes what a run has written into a directory, and of the directory and its parents those that it has made."""
    with contextlib.suppress(OSError):  # the refusal matters more; another run may use a parent folder, too
        for path in [*directory.iterdir()] * 2:  # a thread of a corpus's build may be writing its last file
            is_of_the_run = directory in new_folders or path.name == LOCK_FILE or not path.name.startswith(".")
            if not is_of_the_run:  # a hidden file that was there before
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        for folder in new_folders:
            folder.rmdir()


def follow_data_seed(run: Run, args) -> None:
    """Has `--data_seed` decide the order of the examples, except in a run that began with an earlier version.

    There it had no effect: such a run keeps its order, that of `--seed`.
    """
    if args.data_seed is None:
        return
    began_without = run.resumed and not run.manifest.get("follows_data_seed") and "data_seed" not in run.changed
    args.ignores_data_seed = began_without
    if began_without:
        logger.warning(
            "--data_seed %s has no effect: run %s began with an earlier version, which ordered examples by --seed %s",
            args.data_seed,
            run.run_id,
            args.seed,
        )
    else:
        run.update(follows_data_seed=True)


def note_weights(run: Run, name: str | None) -> None:
    """Writes to the manifest what the weights that a run begins with were trained on; one that goes on has it there.

    Args:
      name: the model, checkpoint or file whose weights they are.
    """
    if not checkpoints(run.directory):
        run.update(weights_trained_on=trained_splits_of_model(name))


def note_libraries(run: Run, libraries: Libraries) -> None:
    """Writes to the manifest which fast paths are off and what is used untested; warns if a resumed run has changed it.

    A fast path and its plain code agree up to rounding, so that such a run does not go on bit for bit.
    """
    earlier = run.manifest.get("libraries")
    described = libraries.described
    if earlier is not None and earlier != described:
        logger.warning("the libraries are used in another way than before the restart: %s, now %s", earlier, described)
    run.update(libraries=described)


def note_tokenizer(run: Run, tokenizer) -> None:
    """Writes to the manifest what identifies the tokenizer.

    Raises:
      ConfigError: the run began with another one; says what differs.
    """
    description = run.manifest.get(TOKENIZER_KEY)
    lines = tokenizer_differences(description, tokenizer) if description else []
    if lines:
        raise ConfigError(
            f"--output_dir {run.directory}: this run began with another tokenizer: {'; '.join(lines)}. Restore it, or "
            "start another run with --output_dir"
        )
    run.update(**{TOKENIZER_KEY: describe_tokenizer(tokenizer)})

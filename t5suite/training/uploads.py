"""`--push_to_hub`: checkpoints and the finished run are uploaded without stopping training.

    >>> uploads = HubUploads(args)
    >>> uploads.push_checkpoint("ada/x", Path("runs/x/checkpoint-400"), 400, announce)

Names and strategies are those of transformers' trainer. What differs from transformers 5.23: a repository that takes no
upload is refused before training; the card is the run's own and is uploaded last, with the results and what `t5suite
verify` needs; the manifest goes without folders and machine (`runs.public_record`), and training arguments (which may
hold a token) and logs not at all.
"""

import concurrent.futures
import contextlib
import fnmatch
import functools
import glob
import logging
import math
import os
import queue
import shlex
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalTokenNotFoundError,
    RemoteEntryNotFoundError,
)
from transformers.trainer_utils import HubStrategy
from transformers.utils import PushInProgress

from t5suite.base.errors import EXIT_IO, ConfigError, UserError
from t5suite.base.files import write_json
from t5suite.base.hub import hub_reachable
from t5suite.base.libraries import require_proved
from t5suite.base.model_files import table_or_empty
from t5suite.base.redaction import redacted
from t5suite.models.adapter_files import BASE_FILE, folder_of_base, is_adapter
from t5suite.runs.directory import BASE_FOLDER, MANIFEST, read_manifest
from t5suite.runs.public_record import RECORD_HASH, public_manifest
from t5suite.runs.trained_inputs import TRAINED_INPUTS
from t5suite.training.processes.signals import stop_requests

logger = logging.getLogger(__name__)

UPLOADING = ".uploading"
# How long a run that was asked to stop waits for the upload of an earlier checkpoint.
STOP_SECONDS = 8.0
# Not uploaded from a run's directory: hidden files, and files that describe the machine, the code or the rows; of its
# folders, only the one that the hub's leaderboards read is, and the base model of an adapter. From a checkpoint: what
# is not the model.
NOT_OF_THE_RUN = ("_*", ".*", "manifest.json", "diff*.patch", "samples.jsonl", "incidents.jsonl", TRAINED_INPUTS)
FOLDERS_OF_THE_RUN = [".eval_results/*.yaml"]
# Answers, and rows that `--share_rows` keeps.
FOLDERS_OF_ANSWERS = ("predictions", "rows")
HINT_AT_SHARING = " (answers to rows of your own, and these rows: --share_rows)"
NOT_OF_THE_MODEL = [
    *("optimizer*", "scheduler*", "scaler*", "rank-*.json", "stream-rank-*.json", "rng_state*", "*state.json"),
    *("position.json", "progress.json", "checkpoint.json", "*/*", "latest", "zero_to_fp32.py", "training_args.bin"),
]


class UploadError(UserError):
    """The model was trained and saved, but not uploaded (exit 74)."""

    exit_code = EXIT_IO


class HubClient(HfApi):
    """The hub's client; what it uploads in the background does not keep the process from ending, as HfApi's would.

    Args:
      at_end: called at the end of a process that has uploaded in the background.
    """

    def __init__(self, at_end: Callable[[], None]):
        super().__init__(library_name="t5suite")
        self._at_end = at_end
        self._work = queue.SimpleQueue()
        self._worker: threading.Thread | None = None

    def run_as_future(self, fn: Callable, *args, **kwargs) -> Future:
        """Calls the function in a thread, after those of earlier calls."""
        future: Future = Future()
        self._work.put((future, functools.partial(fn, *args, **kwargs)))
        if self._worker is None:
            self._worker = threading.Thread(target=self._run, name="uploads", daemon=True)
            self._worker.start()
            # While a thread that is no daemon runs, the worker may start threads, as an upload does.
            threading.Thread(target=self._wait_for_end, name="end of uploads").start()
        return future

    def _run(self) -> None:
        while True:
            future, call = self._work.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

    def _wait_for_end(self) -> None:
        threading.main_thread().join()
        self._at_end()


class HubUploads:
    """Uploads checkpoints and the finished run without stopping training.

    Attributes:
      in_progress: what is being uploaded.
    """

    def __init__(self, args):
        self.args = args
        self.in_progress = PushInProgress()
        # One for all uploads: it makes them one after the other, and the hub refuses a commit during another one.
        self.api = HubClient(self._end)

    @contextlib.contextmanager
    def refusals(self):
        """Wraps the creation of the repository, before anything is trained; gives the name that flags give it.

        Raises:
          ConfigError: the hub cannot be reached, there is no token, or the hub rejects the name or the token.
        """
        name = self.args.hub_model_id or Path(self.args.output_dir).absolute().name
        later = "or train without --push_to_hub"
        if not hub_reachable():
            raise ConfigError(f"--push_to_hub: the hub cannot be reached (or HF_HUB_OFFLINE is set); fix that, {later}")
        try:
            yield name
        except (HFValidationError, LocalTokenNotFoundError, HfHubHTTPError) as error:
            raise ConfigError(f"--push_to_hub: {name!r}: {hub_problem(error)}, {later}") from None

    def make_repository(self, token: str | None = None, private: bool | None = None) -> str:
        """Makes the repository and the branch that are missing, and returns the repository's name.

        Args:
          token, private: in place of the flags.

        Raises:
          ConfigError: the hub refuses it, it is public though `--hub_private_repo` was given, or uploads are not proved
            with the installed client.
        """
        require_proved("background_uploads")
        token = token or self.args.hub_token
        if private is None:
            private = self.args.hub_private_repo
        branch = self.args.hub_revision
        with self.refusals() as name:
            repository = self.api.create_repo(name, token=token, private=private, exist_ok=True).repo_id
            is_of_pull_request = bool(branch) and branch.startswith("refs/")
            if not is_of_pull_request:  # its author may write there alone
                # The client takes a repository that the token can only read for one that is there already.
                self.api.auth_check(repository, token=token, write=True)
            if private and not self.api.model_info(repository, token=token).private:
                raise ConfigError(
                    f"--hub_private_repo: {repository} was there before and is public, as the upload would be; make it "
                    "private in its settings, or name another one by --hub_model_id"
                )
            if branch and not is_of_pull_request:
                self.api.create_branch(repository, branch=branch, token=token, exist_ok=True)
        return repository

    def push_checkpoint(self, repository: str, checkpoint: Path, step: int, announce) -> None:
        """Starts to upload a checkpoint's model, and the checkpoint itself if `--hub_strategy` says so.

        Args:
          announce: called before anything is uploaded.
        """
        strategy = HubStrategy(self.args.hub_strategy)
        if strategy == HubStrategy.END:
            return
        self._forget_ended_jobs()
        is_busy = bool(self.in_progress.jobs)
        if is_busy and not self.args.hub_always_push:
            logger.info("%s is not uploaded: the previous upload is still running", checkpoint.name)
            return
        place = Path(self.args.output_dir) / UPLOADING
        try:
            folder = hard_linked_copy(checkpoint, place, keep_earlier=is_busy)
        except OSError as error:  # of a full disk, say: the checkpoint itself is good
            shutil.rmtree(place / checkpoint.name, ignore_errors=True)
            logger.warning("--push_to_hub: %s is not uploaded: no copy of it in %s: %.300s", checkpoint, place, error)
            return
        announce()
        self.in_progress.jobs += self._start_jobs(repository, folder, step, strategy)

    def wait(self) -> None:
        """Returns when no checkpoint is being uploaded any more."""
        if not self.in_progress.is_done():
            logger.info("waiting for the upload of a checkpoint")
            self.in_progress.wait_until_done()

    def _end(self) -> None:
        """At the end of the process: waits for what is being uploaded, but not for long if it was asked to stop."""
        deadline = math.inf
        unfinished = concurrent.futures.wait(self.in_progress.jobs, 0).not_done
        while unfinished and time.monotonic() < deadline:
            if stop_requests().requested:  # also by a signal that comes during the wait
                deadline = min(deadline, time.monotonic() + STOP_SECONDS)
            unfinished = concurrent.futures.wait(self.in_progress.jobs, 0.5).not_done
        self._forget_ended_jobs()
        if unfinished:
            logger.warning("--push_to_hub: an upload did not end within %.0f s of the stop", STOP_SECONDS)

    def _start_jobs(self, repository: str, folder: Path, step: int, strategy: HubStrategy) -> list:
        """Uploads in threads: the model to the root of the repository, the whole checkpoint to a folder in it.

        Below an adapter the run's own base model goes first; the hub takes a file that it has only once.
        """
        message = f"Training in progress, step {step}"
        jobs = []
        base = Path(self.args.output_dir) / BASE_FOLDER
        if is_adapter(folder) and base.is_dir():
            jobs.append(self._upload(repository, base, message, path_in_repo=BASE_FOLDER, run_as_future=True))
        jobs.append(self._upload(repository, folder, message, ignore_patterns=NOT_OF_THE_MODEL, run_as_future=True))
        checkpoint_folders = {
            HubStrategy.CHECKPOINT: "last-checkpoint",
            HubStrategy.ALL_CHECKPOINTS: folder.name,
        }
        if strategy in checkpoint_folders:
            path_in_repo = checkpoint_folders[strategy]
            message += ", checkpoint"
            jobs.append(self._upload(repository, folder, message, path_in_repo=path_in_repo, run_as_future=True))
        return jobs

    def push_run(self, repository: str, message: str | None, *, blocking: bool = True, **options):
        """Uploads the finished run: model, card, results, and what others need to verify them.

        The files are shown first. They are taken from a folder beside the run's files, which stays if the upload fails.
        Files of an earlier scored run's upload that this run does not have are deleted in the same upload.

        Args:
          options: `token` and `revision`, which override the flags.

        Raises:
          UploadError: the upload failed.
        """
        self._forget_ended_jobs()
        settings = self._settings(**options)
        directory = Path(self.args.output_dir)
        place = directory / UPLOADING
        shutil.rmtree(place, ignore_errors=True)
        try:
            folder = staged_run(directory, place / "run")
        except OSError as error:  # of a full disk, say
            shutil.rmtree(place, ignore_errors=True)
            command = upload_command(repository, directory)
            problem = f"no copy of its files in {place} ({error}); upload them as they are"
            raise not_uploaded(repository, problem, command, settings["revision"]) from None
        log_files(repository, folder)
        warn_of_base_elsewhere(self.args.output_dir)
        try:
            patterns = self._files_of_earlier_run(repository, place / "earlier", settings)
            options = {"delete_patterns": patterns or None, "run_as_future": not blocking}
            upload = self._upload(repository, folder, message, **options, **settings)
        except Exception as error:
            command = ["hf", "upload", repository, str(folder)]
            problem = f"{hub_problem(error)}, and then"
            raise not_uploaded(repository, problem, command, settings["revision"]) from None
        if blocking:
            shutil.rmtree(place, ignore_errors=True)
        else:
            self.in_progress.jobs.append(upload)
        return upload

    def _files_of_earlier_run(self, repository: str, folder: Path, settings: dict) -> list[str]:
        """Patterns of the files of an earlier scored run in the repository; none if it has no manifest of ours.

        Args:
          folder: where that run's manifest is downloaded.
        """
        try:
            path = self.api.hf_hub_download(repository, MANIFEST, local_dir=folder, **settings)
        except RemoteEntryNotFoundError:
            return []
        manifest = table_or_empty(Path(path))
        if RECORD_HASH not in manifest:  # of another program
            return []
        names = [glob.escape(name) for name in (MANIFEST, *manifest.get("files", ()))]
        return [*names, *FOLDERS_OF_THE_RUN, BASE_FILE, f"{BASE_FOLDER}/*"]

    def _settings(self, token: str | None = None, revision: str | None = None) -> dict:
        """Token and revision of an upload: these, else those of the flags."""
        return {"token": token or self.args.hub_token, "revision": revision or self.args.hub_revision}

    def _upload(self, repository: str, folder, message: str | None, **options):
        settings = {**self._settings(), **options}
        return self.api.upload_folder(repo_id=repository, folder_path=str(folder), commit_message=message, **settings)

    def _forget_ended_jobs(self) -> None:
        """Logs those that failed: training continues, and the next upload includes what they had."""
        jobs = self.in_progress.jobs
        ended_jobs = [job for job in jobs if job.done()]
        self.in_progress.jobs = [job for job in jobs if job not in ended_jobs]
        for job in ended_jobs:
            if not job.cancelled() and job.exception() is not None:
                logger.warning("--push_to_hub: an upload failed: %s", hub_problem(job.exception()))


def not_uploaded(repository: str, problem: str, command: list[str], revision: str | None) -> UploadError:
    """The error of a finished run that was not uploaded, with the command that uploads it."""
    if revision:
        command = [*command, "--revision", revision]
    return UploadError(
        f"--push_to_hub: the run is finished, but {repository} was not uploaded: {problem}: {shlex.join(command)}"
    )


def upload_command(repository: str, directory: Path) -> list[str]:
    """The command that uploads a run's files as they are, without its answers and rows."""
    command = ["hf", "upload", repository, str(directory)]
    for path in files_of_run(directory):
        command += ["--include", path.relative_to(directory).as_posix()]
    return command


def warn_of_late_uploads(run, settings: dict) -> None:
    """Warns of flags that come too late: a run that has finished without them is not uploaded, and keeps no rows.

    Args:
      settings: those of the present command.
    """
    names = [name for name in ("push_to_hub", "share_rows") if settings.get(name)]
    late_names = [name for name in names if not run.manifest["settings"].get(name)]
    if "push_to_hub" in late_names:
        repository = settings["hub_model_id"] or run.directory.absolute().name
        command = upload_command(repository, run.directory)
        if settings["hub_private_repo"]:
            command.append("--private")
        if settings["hub_revision"]:
            command += ["--revision", settings["hub_revision"]]
        command_text = shlex.join(command)
        logger.warning("--push_to_hub has no effect: the run has finished; its files are uploaded by: %s", command_text)
    if "share_rows" in late_names:
        logger.warning("--share_rows has no effect: the run has finished without it; give a new --output_dir")


def staged_run(directory, folder: Path) -> Path:
    """The files of a run that are uploaded, linked into a folder, with a manifest for others.

    Answers to rows of the author's own, and these rows, are left out unless the run has `--share_rows`.
    """
    directory = Path(directory)
    manifest = manifest_of_scores(directory)
    paths = files_of_run(directory)
    if manifest:
        paths += [path for path in paths_of_answers(directory) if may_be_shared(path, manifest)]
    for path in paths:
        place = folder / path.relative_to(directory)
        place.parent.mkdir(parents=True, exist_ok=True)
        link(str(path), str(place))
    if manifest:
        names = {path.relative_to(directory).as_posix() for path in paths}
        withheld = sorted(set(manifest.get("files", ())) - names)
        log_withheld(withheld)
        write_json(folder / MANIFEST, public_manifest(manifest, withheld))
    return folder


def manifest_of_scores(directory: Path) -> dict:
    """The manifest of a run whose scores can be verified; empty for another one (pre-training's)."""
    if not (directory / MANIFEST).is_file():
        return {}
    manifest = read_manifest(directory)
    return manifest if manifest.get("scored") else {}


def files_of_run(directory: Path) -> list[Path]:
    """What is uploaded of every run: the files at its root that are not private, the scores for leaderboards, and the
    base model that an adapter's run keeps."""
    paths = []
    for path in sorted(directory.iterdir()):
        is_private = any(fnmatch.fnmatchcase(path.name, pattern) for pattern in NOT_OF_THE_RUN)
        if path.is_file() and not is_private:
            paths.append(path)
    patterns = list(FOLDERS_OF_THE_RUN)
    if is_adapter(directory):
        patterns.append(f"{BASE_FOLDER}/*")
    for pattern in patterns:
        paths += sorted(directory.glob(pattern))
    return paths


def paths_of_answers(directory: Path) -> list[Path]:
    """The files of answers and of rows."""
    return [path for name in FOLDERS_OF_ANSWERS for path in sorted(directory.glob(f"{name}/*.jsonl"))]


def may_be_shared(path: Path, manifest: dict) -> bool:
    """Whether a file of answers or rows may be uploaded: rows of the author's own need `--share_rows`."""
    if manifest["settings"].get("share_rows"):
        return True
    public_names = [facts.get("file") for facts in manifest["scored"].values() if facts.get("own_rows") is False]
    return path.name in public_names


def log_withheld(names: list[str]) -> None:
    """Shows which files are not uploaded, and how those could be that hold answers or rows."""
    of_answers = [name for name in names if name.startswith(tuple(f"{folder}/" for folder in FOLDERS_OF_ANSWERS))]
    of_weights = [name for name in names if name not in of_answers]
    if of_answers:
        logger.info("--push_to_hub: not uploaded: %s%s", ", ".join(of_answers), HINT_AT_SHARING)
    if of_weights:
        logger.info("--push_to_hub: not uploaded: %s (weights of --select per_task)", ", ".join(of_weights))


def log_files(repository: str, folder: Path) -> None:
    """Shows which files are about to be uploaded, with their sizes."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    sizes = [f"{path.relative_to(folder).as_posix()} ({path.stat().st_size:,})" for path in files]
    logger.info("--push_to_hub: to %s (bytes): %s", repository, ", ".join(sizes))


def warn_of_base_elsewhere(directory) -> None:
    """Warns of an adapter whose base model is another folder of this machine than the uploaded one."""
    base = folder_of_base(Path(directory))
    if base is not None and base != Path(directory, BASE_FOLDER).absolute():
        logger.warning(
            "--push_to_hub: the adapter's base model, %s, is not uploaded, and others need it: upload that folder, "
            "too, or the merged model of `t5suite export`",
            base,
        )


def link(source: str, target: str) -> None:
    """Makes a hard link, or a copy on a file system without links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def hard_linked_copy(checkpoint: Path, folder: Path, keep_earlier: bool = False) -> Path:
    """A copy of the checkpoint made of hard links, which take no space and which rotation does not delete.

    Args:
      folder: the copy is made in it.
      keep_earlier: keep the copies of earlier checkpoints, which are still being uploaded.
    """
    if not keep_earlier:
        shutil.rmtree(folder, ignore_errors=True)
    return Path(shutil.copytree(checkpoint, folder / checkpoint.name, copy_function=link, dirs_exist_ok=True))


def hub_problem(error: BaseException) -> str:
    """The problem and what to do about it, without secrets.

    >>> hub_problem(LocalTokenNotFoundError())
    'no token; log in by `hf auth login`, or set HF_TOKEN'
    """
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, LocalTokenNotFoundError):
        return "no token; log in by `hf auth login`, or set HF_TOKEN"
    if status in (401, 403):
        return (
            f"the hub refuses it ({status}); log in by `hf auth login`, or set HF_TOKEN to a token that may write there"
        )
    if isinstance(error, HFValidationError):
        return "is not a valid name for the hub; give --hub_model_id OWNER/NAME"
    message = " ".join(str(error).split()) or type(error).__name__
    return f"{redacted(message)[:300]}; try again"

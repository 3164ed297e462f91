"""`--push_to_hub`: the model, with its card, to a repository on the hub.

    python fine_tune_t5.py --dataset_name rte --push_to_hub --hub_model_id ada/rte-t5-small
    ada/rte-t5-small: README.md, model.safetensors, config.json, tokenizer.json, task.json, results.json, metrics.jsonl

Names and strategies (`--hub_strategy`) are the trainer's own, and so is the making of the repository. What differs from
transformers 5.23: the card is the run's own and comes last, with the results (theirs is a draft, written before
there are any); the training arguments, which may hold a token, are not written; logs, manifest, code changes and
predictions stay where they are; checkpoints are uploaded from links, which rotation does not take away.
"""

import contextlib
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError
from transformers.trainer_utils import HubStrategy
from transformers.utils import PushInProgress

from t5suite.base.errors import EXIT_IO, ConfigError, UserError
from t5suite.base.hub import hub_reachable
from t5suite.base.redaction import redacted

logger = logging.getLogger(__name__)

UPLOADING = ".uploading"
# Of a run's directory: hidden files, folders, and what tells of the machine or the code. Of a checkpoint: what is not
# the model.
NOT_OF_THE_RUN = ["_*", ".*", "*/*", "manifest.json", "diff*.patch", "samples.jsonl", "incidents.jsonl"]
NOT_OF_THE_MODEL = [
    *("optimizer*", "scheduler*", "scaler*", "rank-*.json", "rng_state*", "*state.json", "position.json"),
    *("progress.json", "checkpoint.json", "*/*", "latest", "zero_to_fp32.py", "training_args.bin"),
]
STEP = "Training in progress, step {step}"


class UploadError(UserError):
    """The model was trained and saved, but not uploaded (exit 74)."""

    exit_code = EXIT_IO


class HubUploads:
    """Uploads that neither stop a training nor tell secrets.

    Attributes:
      in_progress: what is being uploaded, None before the first.
    """

    def __init__(self, args):
        self.args = args
        self.in_progress: PushInProgress | None = None

    @contextlib.contextmanager
    def refusals(self):
        """Around the making of the repository, before anything is trained.

        Raises:
          ConfigError: the hub cannot be reached, knows no token, or refuses the name.
        """
        name = self.args.hub_model_id or Path(self.args.output_dir).absolute().name
        later = f"or train without --push_to_hub and upload afterwards: hf upload {name} {self.args.output_dir}"
        if not hub_reachable():
            offline = " (HF_HUB_OFFLINE is set)" if os.environ.get("HF_HUB_OFFLINE") else ""
            raise ConfigError(f"--push_to_hub: the hub cannot be reached{offline}; mend that, {later}")
        try:
            yield
        except (HFValidationError, LocalTokenNotFoundError, HfHubHTTPError) as error:
            raise ConfigError(f"--push_to_hub: {name!r}: {hub_problem(error)}, {later}") from None

    def push_checkpoint(self, repository: str, checkpoint: Path, step: int, announce: Callable[[], object]) -> None:
        """Begins to upload a checkpoint's model, and the checkpoint itself where `--hub_strategy` says so.

        Args:
          announce: called before anything is uploaded.
        """
        strategy = HubStrategy(self.args.hub_strategy)
        if strategy == HubStrategy.END:
            return
        busy = self.in_progress is not None and not self.in_progress.is_done()
        if busy and not self.args.hub_always_push:
            logger.info("%s is not uploaded: the one before is still under way", checkpoint.name)
            return
        self._tell_of_failures()
        announce()
        folder = linked(checkpoint, Path(self.args.output_dir) / UPLOADING, keep_others=busy)
        message = STEP.format(step=step)
        jobs = [self._upload(repository, folder, message, ignore_patterns=NOT_OF_THE_MODEL, run_as_future=True)]
        if strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
            place = "last-checkpoint" if strategy == HubStrategy.CHECKPOINT else checkpoint.name
            message += ", checkpoint"
            jobs.append(self._upload(repository, folder, message, path_in_repo=place, run_as_future=True))
        earlier = self.in_progress.jobs if busy else []
        self.in_progress = PushInProgress([*earlier, *jobs])

    def push_run(self, repository: str, message: str | None, *, blocking: bool = True, **options):
        """Uploads what the run's directory holds: the model as it was saved, its card, its results.

        Args:
          options: `token` and `revision` in place of the flags'.

        Raises:
          UploadError: the hub has not taken it.
        """
        self._tell_of_failures()
        directory = self.args.output_dir
        shutil.rmtree(Path(directory) / UPLOADING, ignore_errors=True)
        options = {name: value for name, value in options.items() if value}
        try:
            return self._upload(
                repository, directory, message, ignore_patterns=NOT_OF_THE_RUN, run_as_future=not blocking, **options
            )
        except Exception as error:
            raise UploadError(
                f"--push_to_hub: the run is finished, but {repository} was not uploaded: {hub_problem(error)}, "
                f"and then: hf upload {repository} {directory}"
            ) from None

    def _upload(self, repository: str, folder, message: str | None, **options):
        settings = {"token": self.args.hub_token, "revision": self.args.hub_revision, **options}
        return HfApi(library_name="t5suite").upload_folder(
            repo_id=repository, folder_path=str(folder), commit_message=message, **settings
        )

    def _tell_of_failures(self) -> None:
        """Training goes on without an upload that failed; the next one has what it had, and more."""
        for job in self.in_progress.jobs if self.in_progress is not None else []:
            if job.done() and job.exception() is not None:
                logger.warning("--push_to_hub: a checkpoint was not uploaded: %s", hub_problem(job.exception()))


def linked(checkpoint: Path, folder: Path, keep_others: bool = False) -> Path:
    """The checkpoint once more, as links that take no room."""
    if not keep_others:
        shutil.rmtree(folder, ignore_errors=True)
    target = folder / checkpoint.name
    shutil.copytree(checkpoint, target, copy_function=_link, dirs_exist_ok=True)
    return target


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)  # another file system, or one that has no links


def hub_problem(error: BaseException) -> str:
    """What is the matter and what to do, without secrets.

    >>> hub_problem(LocalTokenNotFoundError())
    'no token; log in by `hf auth login`, or set HF_TOKEN'
    """
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, LocalTokenNotFoundError):
        return "no token; log in by `hf auth login`, or set HF_TOKEN"
    if status in (401, 403):
        return f"the hub refuses it ({status}); log in by `hf auth login`, or set HF_TOKEN to a token that may write"
    if isinstance(error, HFValidationError):
        return "is no name that the hub takes; give --hub_model_id OWNER/NAME"
    lines = " ".join(str(error).split()) or type(error).__name__
    return f"{redacted(lines)[:300]}; try again"

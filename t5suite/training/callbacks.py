"""Trainer callbacks: they write metrics and remember the best step of each task.

>>> trainer.add_callback(MetricsCallback(run_dir, trackers))

Others clip gradients by value, lower the learning rate at a plateau, and end training after a time limit.
`HubUploads` sends checkpoints and the finished run to the hub.
"""

import contextlib
import itertools
import json
import logging
import math
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import torch
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError
from torch import nn
from transformers import TrainerCallback
from transformers.integrations.neftune import neftune_post_forward_hook
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import HubStrategy
from transformers.utils import PushInProgress

from t5suite.base.errors import EXIT_IO, CheckpointError, ConfigError, DataError, UserError
from t5suite.base.files import named_errors
from t5suite.base.hub import hub_reachable
from t5suite.base.redaction import redacted
from t5suite.data.rows.jsonl import without_nan
from t5suite.models.adapters import inner_model
from t5suite.optim.optimizers import PlateauLR
from t5suite.runs.directory import MANIFEST, METRICS, read_json
from t5suite.tasks.postprocessors import is_right
from t5suite.tasks.tokens import CUT_MARK
from t5suite.tracking.metric_lines import SAMPLES
from t5suite.training.checkpoints.committing import restore_weights
from t5suite.training.checkpoints.manifests import Manifest, damage
from t5suite.training.eval_sets import report_metrics

logger = logging.getLogger(__name__)


class StepLines(TrainerCallback):
    """Writes one JSON object per line, each with its `step`; lines written after the resumed checkpoint are dropped.

    >>> lines = StepLines(run_dir, "metrics.jsonl")
    >>> lines.add({"step": 10, "train/loss": 0.4})
    """

    def __init__(self, directory, name: str):
        self.path = Path(directory) / name
        self.num_lines, self.begun, self.last = 0, False, None

    def remember(self) -> dict:
        """The number of lines so far; they are on the disk before the checkpoint that counts them."""
        if self.path.is_file():
            with self.path.open("rb") as file:
                os.fsync(file.fileno())
        return {"num_lines": self.num_lines, "run_id": self.run_id()}

    def recall(self, remembered: dict) -> None:
        """Takes up the count of a checkpoint; the lines of another run's are not in this directory."""
        is_same_run = self.run_id() is not None and remembered.get("run_id") == self.run_id()
        self.num_lines = remembered["num_lines"] if is_same_run or self.path.is_file() else 0

    def run_id(self) -> str | None:
        """The id of the run that writes into the directory, as its manifest says."""
        with contextlib.suppress(OSError, DataError, KeyError, TypeError):
            return read_json(self.path.parent / MANIFEST)["run_id"]
        return None

    def trim(self, step: int) -> dict | None:
        """Keeps the lines that the checkpoint counted, up to its step, and returns the last of them."""
        counted, self.num_lines = self.num_lines, 0
        if not self.path.is_file():
            if counted:
                logger.warning("%s is gone, and with it %d earlier lines", self.path, counted)
            return None
        with self.path.open("r+b") as file:
            sizes = []
            for line in itertools.islice(file, counted):
                if not (line.startswith(b"{") and line.endswith(b"}\n")):
                    logger.warning("%s:%d is not a line of JSON: %.60r", self.path, len(sizes) + 1, line)
                if line.endswith(b"\n"):
                    sizes.append(len(line))
            if len(sizes) < counted:
                logger.warning("%s: %d of the %d earlier lines remain", self.path, len(sizes), counted)
            end, last = sum(sizes), None
            while sizes and last is None:
                file.seek(end - sizes[-1])
                text = file.read(sizes[-1])
                try:
                    line = json.loads(text)
                    last = line if line["step"] <= step else None
                except (ValueError, KeyError, TypeError):  # a process that died while writing leaves half a line
                    logger.warning("%s:%d is dropped: %.60r", self.path, len(sizes), text)
                if last is None:
                    end -= sizes.pop()
            file.truncate(end)
        self.num_lines = len(sizes)
        return last

    def add(self, line: dict) -> None:
        with named_errors(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
        self.num_lines += 1

    def on_train_begin(self, args, state, control, **kwargs):
        """Keeps what an interrupted run wrote up to the checkpoint that it resumes from."""
        self.begun = True
        if state.is_world_process_zero:
            self.last = self.trim(state.global_step)

    def trim_final(self) -> None:
        """Where nothing was trained: drops what an interrupted evaluation wrote."""
        if not self.begun:
            self.trim(-1)


class MetricsCallback(StepLines):
    """One line of `metrics.jsonl` per log, which trackers read. On resume, lines after the resumed step are dropped."""

    def __init__(self, directory, trackers):
        super().__init__(directory, METRICS)
        self.trackers = trackers
        self.started = time.perf_counter()
        self.seconds_before = 0.0

    @property
    def seconds(self) -> float:
        """Seconds of training so far, those before a restart included."""
        return round(self.seconds_before + time.perf_counter() - self.started, 3)

    def remember(self) -> dict:
        return {**super().remember(), "seconds": self.seconds}

    def recall(self, remembered: dict) -> None:
        super().recall(remembered)
        if self.num_lines:
            self.seconds_before = remembered.get("seconds", 0.0)

    def on_train_begin(self, args, state, control, **kwargs):
        """Rewrites lines that a damaged or deleted file has lost, as far as the checkpoint's log history has them."""
        counted = self.num_lines
        super().on_train_begin(args, state, control)
        if not state.is_world_process_zero:
            return
        self.seconds_before = self.last["seconds"] if self.last else self.seconds_before
        if counted > self.num_lines:
            logs = state.log_history[self.num_lines - counted :]
            for log in logs:
                line = {"step": log["step"], "epoch": round(log["epoch"], 6), "seconds": self.seconds_before}
                self.add(line | without_nan(_named(log)))
            steps = f", of steps {logs[0]['step']} to {logs[-1]['step']}," if logs else ""
            logger.warning("%s: %d lines%s are written again from the checkpoint", self.path, len(logs), steps)
        self.trackers.begin()

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Writes one line; names without a prefix get `train/`."""
        if state.is_world_process_zero and logs:
            self.write(_named(logs), state)

    def on_final(self, metrics: dict, state) -> None:
        """Writes the scores of the final weights, with the prefix `final/`."""
        if state.is_world_process_zero and metrics:
            self.trim_final()
            self.write(metrics, state)

    def write(self, metrics: dict, state) -> None:
        line = {
            "step": state.global_step,
            "epoch": round(state.epoch or 0.0, 6),
            "seconds": self.seconds,
            **without_nan(metrics),
        }
        self.add(line)


def note_final(trainer, report, eval_sets) -> None:
    """Has the callbacks write the run's last evaluation, `final/...`, and its samples."""
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, MetricsCallback):
            callback.on_final(report_metrics(report, "final"), trainer.state)
        elif hasattr(callback, "on_final"):
            callback.on_final(report, eval_sets, trainer.state)


def _named(logs: dict) -> dict:
    return {
        name if "/" in name else f"train/{name}": value
        for name, value in logs.items()
        if name not in ("epoch", "total_flos", "step") and isinstance(value, (int, float))
    }


class BestPerTaskCallback(TrainerCallback):
    """Remembers each task's best step (the earliest on a tie), and saves its weights if asked to.

    Args:
      report_of: returns the report of the latest evaluation.
      save_weights: a function folder -> None that saves the model with a manifest, or None to keep no weights.
    """

    def __init__(self, directory, report_of, save_weights=None):
        self.directory, self.report_of, self.save_weights = Path(directory), report_of, save_weights
        self.best: dict[str, dict] = {}

    def remember(self) -> dict:
        return self.best

    def recall(self, remembered: dict) -> None:
        """Takes up the best steps of the checkpoint that a run resumes from.

        Raises:
          CheckpointError: the weights of a best step are missing or damaged.
        """
        self.best = remembered
        for task, best in remembered.items() if self.save_weights else ():
            restore_weights(self.folder(task))
            self.check_undamaged(task, best["step"])

    def check_weights(self, task: str) -> None:
        """Refuses to score a task with other weights than those of its best step.

        Raises:
          CheckpointError: they are missing, damaged, or of another step; with the way out.
        """
        step = self.best[task]["step"]
        self.check_undamaged(task, step)
        step_there = Manifest.read(self.folder(task)).step
        if step_there != step:  # a former process went further, and this one has found no better step after `step`
            self._refuse(task, step, f"were replaced by those of step {step_there}")

    def check_undamaged(self, task: str, step: int) -> None:
        """Refuses a task whose best weights are missing, or have changed since they were written.

        Raises:
          CheckpointError: with the way out.
        """
        reason = damage(self.folder(task))
        if reason:
            self._refuse(task, step, f"are damaged: {reason}" if self.folder(task).is_dir() else "are missing")

    def _refuse(self, task: str, step: int, problem: str) -> None:
        raise CheckpointError(
            f"--select per_task: {self.folder(task)}: the weights of step {step}, the best of {task}, {problem}; bring "
            "back a copy of them; or take one checkpoint for all tasks: --select average --allow_changed select; or "
            "start anew with another --output_dir"
        )

    def on_evaluate(self, args, state, control, **kwargs):
        for task, value in self.report_of().by_task.items():
            best = self.best.get(task)
            if not math.isfinite(value) or (best is not None and value <= best["value"]):
                continue
            self.best[task] = {"step": state.global_step, "value": value}
            if self.save_weights:
                self.save_weights(self.folder(task))

    def folder(self, task: str) -> Path:
        return self.directory / "best" / task


class NoteLength(TrainerCallback):
    """Tells others, a sweep for one, after how many steps the run ends.

    Args:
      note: called with the number of steps when training begins.
    """

    def __init__(self, note: Callable[[int], None]):
        self.note = note

    def on_train_begin(self, args, state, control, **kwargs):
        self.note(state.max_steps)


# Steps between two checks of rank 0's clock when several ranks train: each check makes them wait for one another.
STEPS_BETWEEN_VOTES = 10


class ClipGradValueCallback(TrainerCallback):
    """Clips every element of the complete gradient to [-value, value] before the update (`--clip_grad_value`)."""

    def __init__(self, value: float):
        self.value = value

    def on_train_begin(self, args, state, control, **kwargs):
        """Refuses DeepSpeed, which does not expose its gradients."""
        if getattr(args, "deepspeed", None):
            raise ConfigError("--clip_grad_value cannot clip DeepSpeed's gradients; use --max_grad_norm")

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        torch.nn.utils.clip_grad_value_(model.parameters(), self.value)


class PlateauCallback(TrainerCallback):
    """Passes each evaluation's result to a `PlateauLR`: the number that selects checkpoints, higher is better."""

    def on_evaluate(self, args, state, control, metrics=None, lr_scheduler=None, **kwargs):
        """Ignores an evaluation before the first step (`--eval_on_start`)."""
        if isinstance(lr_scheduler, PlateauLR) and metrics and state.global_step > 0:
            lr_scheduler.observe(metrics["eval_selection"])


class MaxMinutesCallback(TrainerCallback, ExportableState):
    """Ends training after `--max_minutes`, at the end of a step, with an evaluation and a checkpoint.

    Training and its evaluations count, summed over restarts (the checkpoint keeps the sum). With several ranks, rank
    0's clock decides for all, every `STEPS_BETWEEN_VOTES` steps. Schedules count steps: for a schedule to end with the
    time budget, set `--max_steps` to what the budget allows.
    """

    def __init__(self):
        self.seconds_before = 0.0
        self.started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds so far, those before a restart included."""
        return self.seconds_before + time.perf_counter() - self.started

    def state(self) -> dict:
        return {"args": {}, "attributes": {"seconds_before": self.seconds}}

    def on_train_begin(self, args, state, control, **kwargs):
        """Starts the clock; adds its state if the checkpoint was written without `--max_minutes`."""
        self.started = time.perf_counter()
        state.stateful_callbacks.setdefault(type(self).__name__, self.state())

    def on_step_end(self, args, state, control, **kwargs):
        """Ends training as `--max_steps` would, when the time is up."""
        over = self.seconds >= 60 * args.max_minutes
        if args.world_size > 1:
            if state.global_step % STEPS_BETWEEN_VOTES:
                return
            vote = torch.tensor([float(over)], device=args.device)
            torch.distributed.broadcast(vote, src=0)
            over = bool(vote.item())
        if over:
            logger.info("--max_minutes %s: the time is up after step %d", args.max_minutes, state.global_step)
            control.should_training_stop = control.should_log = True
            control.should_evaluate = args.eval_strategy.value != "no"
            control.should_save = args.save_strategy.value != "no"


def limit_callbacks(args) -> list[TrainerCallback]:
    clip = [] if args.clip_grad_value is None else [ClipGradValueCallback(args.clip_grad_value)]
    return [PlateauCallback(), *clip, *([] if args.max_minutes is None else [MaxMinutesCallback()])]


# ---------------------------------------------------------------------------------------------------------------------
# Samples: the evaluation's own answers to rows spread evenly over the split, the same rows every time


# Longer texts are cut, to keep tables readable.
LONGEST_TEXT = 2000


class SampleCallback(StepLines):
    """Writes some rows' answers after each evaluation to `samples.jsonl`, for trackers; a resumed run repeats none.

    >>> read_jsonl(run_dir / "samples.jsonl")[0]
    {'step': 20, 'task': 'rte', 'row': 0, 'input': 'rte sentence1: ...', 'target': 'entailment',
     'prediction': 'entailment', 'right': True}

    Args:
      num_samples: rows of each split; 0: none.
      sets: what is evaluated during training, in the order of the report.
      report_of: returns the report of the latest evaluation.
    """

    def __init__(self, directory, num_samples: int, sets, report_of):
        super().__init__(directory, SAMPLES)
        self.num_samples, self.sets, self.report_of = num_samples, sets, report_of

    def on_evaluate(self, args, state, control, **kwargs):
        self.write(self.report_of(), self.sets, state)

    def on_final(self, report, eval_sets, state) -> None:
        """Writes the samples of the last evaluation, which has the final weights."""
        if state.is_world_process_zero:
            self.trim_final()
        self.write(report, eval_sets, state, final=True)

    def write(self, report, eval_sets, state, **also) -> None:
        if not (self.num_samples and report is not None and state.is_world_process_zero):
            return
        for eval_set in eval_sets:
            for line in samples_of(eval_set, report.results[eval_set.name], self.num_samples):
                self.add({"step": state.global_step, "task": eval_set.name, **also, **line})


def samples_of(eval_set, result, num_samples: int) -> list[dict]:
    """The answers of some examples of a split, as plain values."""
    found = [dict(sample) for sample in result.samples]
    for i in () if found else chosen(len(result.predictions), num_samples):
        row, example, prediction = eval_set.row_of_example[i], eval_set.examples[i], result.predictions[i]
        found.append(
            {
                "row": row,
                "input": eval_set.shown_inputs(i),
                "target": example.targets if eval_set.labelled else None,
                "prediction": prediction,
                "right": is_right(eval_set.task, eval_set.rows[row], example.targets, prediction),
            }
        )
    for sample in found:
        for name, value in sample.items():
            if isinstance(value, str) and len(value) > LONGEST_TEXT:
                sample[name] = without_end(value)
    return found


def without_end(text: str) -> str:
    """A long text without its end; a mark there that says where the model stops reading is kept, and is never torn."""
    mark = CUT_MARK.search(text)
    end = LONGEST_TEXT
    if mark and mark.start() < end < mark.end():
        end = mark.start()
    num_hidden = len(text) - end
    ending = ""
    if mark and mark.start() >= end:
        num_hidden -= len(mark[0])
        ending = mark[0].rstrip()
    return f"{text[:end]} ... ({num_hidden} more characters){ending}"


def chosen(num_examples: int, num_samples: int) -> list[int]:
    """Indices of evenly spread examples.

    >>> chosen(100, 4), chosen(2, 4)
    ([0, 25, 50, 75], [0, 1])
    """
    count = min(num_examples, num_samples)
    return [i * num_examples // count for i in range(count)]


class NeftuneCallback(TrainerCallback):
    """NEFTune (arXiv:2310.05914), `--neftune_noise_alpha 5`: noise on the input's embeddings while training.

    Uniform noise of up to alpha / sqrt(tokens x width) is added to each embedding that the encoder, or a model's only
    stack, gets. The noise is Hugging Face's, but their trainer hooks the module that `get_input_embeddings` returns,
    which no T5 or BART of transformers 5.23 ever calls (`test_the_stock_hook_still_misses_t5` fails once it does).
    """

    def __init__(self, alpha: float):
        self.alpha = alpha
        self.hooks = []

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.on_train_end(args, state, control)
        for module in input_embeddings(model):
            module.neftune_noise_alpha = self.alpha
            self.hooks.append(module.register_forward_hook(neftune_post_forward_hook))

    def on_train_end(self, args, state, control, **kwargs):
        for hook in self.hooks:
            hook.remove()
        self.hooks = []


def input_embeddings(model) -> list[nn.Module]:
    """The modules that turn a model's input tokens into vectors.

    >>> input_embeddings(t5) == [t5.encoder.embed_tokens], input_embeddings(gpt2) == [gpt2.transformer.wte]
    (True, True)
    """
    inner = inner_model(model)
    matrix = inner.get_input_embeddings().weight
    stack = inner.get_encoder() if inner.config.is_encoder_decoder else inner
    return [module for module in stack.modules() if isinstance(module, nn.Embedding) and module.weight is matrix]


# ---------------------------------------------------------------------------------------------------------------------
# `--push_to_hub`. Names and strategies are those of transformers' trainer, which also creates the repository. What
# differs from transformers 5.23: the card is the run's own and is uploaded last, with the results; training arguments
# (which may hold a token), logs, manifest and predictions are not uploaded.


UPLOADING = ".uploading"
# Not uploaded from a run's directory: hidden files, folders, and files that describe the machine or the code. From a
# checkpoint: what is not the model.
NOT_OF_THE_RUN = ["_*", ".*", "*/*", "manifest.json", "diff*.patch", "samples.jsonl", "incidents.jsonl"]
NOT_OF_THE_MODEL = [
    *("optimizer*", "scheduler*", "scaler*", "rank-*.json", "rng_state*", "*state.json", "position.json"),
    *("progress.json", "checkpoint.json", "*/*", "latest", "zero_to_fp32.py", "training_args.bin"),
]


class UploadError(UserError):
    """The model was trained and saved, but not uploaded (exit 74)."""

    exit_code = EXIT_IO


class HubUploads:
    """Uploads checkpoints and the finished run without stopping training.

    Attributes:
      in_progress: what is being uploaded, None before the first.
    """

    def __init__(self, args):
        self.args = args
        self.in_progress: PushInProgress | None = None

    @contextlib.contextmanager
    def refusals(self):
        """Wraps the creation of the repository, before anything is trained.

        Raises:
          ConfigError: the hub cannot be reached, there is no token, or the hub rejects the name.
        """
        name = self.args.hub_model_id or Path(self.args.output_dir).absolute().name
        later = f"or train without --push_to_hub and upload afterwards: hf upload {name} {self.args.output_dir}"
        if not hub_reachable():
            raise ConfigError(f"--push_to_hub: the hub cannot be reached (or HF_HUB_OFFLINE is set); fix that, {later}")
        try:
            yield
        except (HFValidationError, LocalTokenNotFoundError, HfHubHTTPError) as error:
            raise ConfigError(f"--push_to_hub: {name!r}: {hub_problem(error)}, {later}") from None

    def push_checkpoint(self, repository: str, checkpoint: Path, step: int, announce) -> None:
        """Starts to upload a checkpoint's model, and the checkpoint itself if `--hub_strategy` says so.

        Args:
          announce: called before anything is uploaded.
        """
        strategy = HubStrategy(self.args.hub_strategy)
        if strategy == HubStrategy.END:
            return
        busy = self.in_progress is not None and not self.in_progress.is_done()
        if busy and not self.args.hub_always_push:
            logger.info("%s is not uploaded: the previous upload is still running", checkpoint.name)
            return
        self._log_failures()
        announce()
        folder = linked(checkpoint, Path(self.args.output_dir) / UPLOADING, keep_others=busy)
        message = f"Training in progress, step {step}"
        jobs = [self._upload(repository, folder, message, ignore_patterns=NOT_OF_THE_MODEL, run_as_future=True)]
        if strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
            place = "last-checkpoint" if strategy == HubStrategy.CHECKPOINT else checkpoint.name
            message += ", checkpoint"
            jobs.append(self._upload(repository, folder, message, path_in_repo=place, run_as_future=True))
        self.in_progress = PushInProgress([*(self.in_progress.jobs if busy else []), *jobs])

    def push_run(self, repository: str, message: str | None, *, blocking: bool = True, **options):
        """Uploads the run's directory: the saved model, its card and its results.

        Args:
          options: `token` and `revision`, which override the flags.

        Raises:
          UploadError: the upload failed.
        """
        self._log_failures()
        folder = self.args.output_dir
        shutil.rmtree(Path(folder) / UPLOADING, ignore_errors=True)
        options = {name: value for name, value in options.items() if value}
        options |= {"ignore_patterns": NOT_OF_THE_RUN, "run_as_future": not blocking}
        try:
            return self._upload(repository, folder, message, **options)
        except Exception as error:
            raise UploadError(
                f"--push_to_hub: the run is finished, but {repository} was not uploaded: {hub_problem(error)}, "
                f"and then: hf upload {repository} {folder}"
            ) from None

    def _upload(self, repository: str, folder, message: str | None, **options):
        settings = {"token": self.args.hub_token, "revision": self.args.hub_revision, **options}
        return HfApi(library_name="t5suite").upload_folder(
            repo_id=repository, folder_path=str(folder), commit_message=message, **settings
        )

    def _log_failures(self) -> None:
        """Training continues after a failed upload; the next upload includes what it had."""
        for job in self.in_progress.jobs if self.in_progress is not None else []:
            if job.done() and job.exception() is not None:
                logger.warning("--push_to_hub: a checkpoint was not uploaded: %s", hub_problem(job.exception()))


def linked(checkpoint: Path, folder: Path, keep_others: bool = False) -> Path:
    """A copy of the checkpoint made of hard links, which take no space and which rotation does not delete."""

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:  # a file system without links
            shutil.copy2(source, target)

    if not keep_others:
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
        return f"the hub refuses it ({status}); log in by `hf auth login`, or set HF_TOKEN to a token that may write"
    if isinstance(error, HFValidationError):
        return "is not a valid name for the hub; give --hub_model_id OWNER/NAME"
    lines = " ".join(str(error).split()) or type(error).__name__
    return f"{redacted(lines)[:300]}; try again"

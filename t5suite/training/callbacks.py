"""What happens beside the steps: metrics are written down, and the best step of each task is remembered.

>>> trainer.add_callback(MetricsCallback(run_dir, trackers))

Those around the update clip gradients by value, lower rates at a plateau, end training after so many minutes.
"""

import json
import logging
import math
import os
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import TrainerCallback
from transformers.integrations.neftune import neftune_post_forward_hook
from transformers.trainer_callback import ExportableState

from t5suite.base.errors import ConfigError
from t5suite.base.files import named_errors
from t5suite.data.rows.jsonl import without_nan
from t5suite.models.adapters import inner_model
from t5suite.optim.optimizers import PlateauLR
from t5suite.runs.directory import METRICS
from t5suite.tasks.postprocessors import is_right
from t5suite.tracking.metric_lines import SAMPLES

logger = logging.getLogger(__name__)


class StepLines:
    """A file of one JSON object a line, each with its `step`; what an interrupted run wrote too much is cut off.

    >>> lines = StepLines(run_dir, "metrics.jsonl")
    >>> lines.add({"step": 10, "train/loss": 0.4})
    """

    def __init__(self, directory, name: str):
        self.path = Path(directory) / name
        self.num_lines = 0

    def remember(self) -> dict:
        """The lines so far, which are on the disk before the checkpoint that counts them."""
        if self.path.is_file():
            with self.path.open("rb") as file:
                os.fsync(file.fileno())
        return {"num_lines": self.num_lines}

    def recall(self, remembered: dict) -> None:
        """How many lines there were."""
        self.num_lines = remembered["num_lines"]

    def trim(self, step: int) -> dict | None:
        """Keeps the lines that the checkpoint counted, up to its step, and returns the last of them.

        Nothing is written but the file's new end: a million lines take 0.2 s.
        """
        if not self.path.is_file():
            self.num_lines = 0
            return None
        counted = self.num_lines
        with self.path.open("r+b") as file:
            self.num_lines, end = count_lines(file, counted)
            if self.num_lines < counted:
                logger.warning("%s: %d of the %d lines of before are left", self.path, self.num_lines, counted)
            last = None
            while end and last is None:
                start = line_start(file, end)
                file.seek(start)
                last = _line_up_to(file.read(end - start), step)
                if last is None:
                    self.num_lines, end = self.num_lines - 1, start
            file.truncate(end)
        return last

    def add(self, line: dict) -> None:
        """Writes one line."""
        with named_errors(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
        self.num_lines += 1


class LinesCallback(TrainerCallback):
    """One that writes a file of lines, of which a checkpoint remembers how many there were.

    Args:
      name: the file, below the run's directory.
    """

    def __init__(self, directory, name: str):
        self.lines = StepLines(directory, name)

    def remember(self) -> dict:
        """The lines so far."""
        return self.lines.remember()

    def recall(self, remembered: dict) -> None:
        """How many lines there were."""
        self.lines.recall(remembered)


class MetricsCallback(LinesCallback):
    """One line of `metrics.jsonl` per log, then the trackers. On resume, lines after the resumed step are dropped."""

    def __init__(self, directory, trackers):
        super().__init__(directory, METRICS)
        self.trackers = trackers
        self.started = time.perf_counter()
        self.seconds_before = 0.0
        self.begun = False

    def on_train_begin(self, args, state, control, **kwargs):
        """Keeps what an interrupted run wrote up to the checkpoint that it goes on from."""
        self.begun = True
        if not state.is_world_process_zero:
            return
        counted = self.lines.num_lines if self.lines.path.is_file() else 0
        last = self.lines.trim(state.global_step)
        self.seconds_before = last["seconds"] if last else 0.0
        if counted > self.lines.num_lines:
            self._restore(state.log_history[self.lines.num_lines - counted :])
        self.trackers.begin(state.global_step)

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Writes one line; names without a room get `train/`."""
        if not state.is_world_process_zero or not logs:
            return
        self.write(_named(logs), state)

    def _restore(self, logs: list[dict]) -> None:
        """Writes lines again that a damaged file has lost, as far as the checkpoint has what was logged."""
        for log in logs:
            line = {"step": log["step"], "epoch": round(log["epoch"], 6), "seconds": self.seconds_before}
            self.lines.add(line | without_nan(_named(log)))
        steps = f", of steps {logs[0]['step']} to {logs[-1]['step']}," if logs else ""
        logger.warning("%s: %d lines%s are written again from the checkpoint", self.lines.path, len(logs), steps)

    def on_final(self, metrics: dict, state) -> None:
        """The scores of the weights that the run ends with, in the room `final/`."""
        if not state.is_world_process_zero or not metrics:
            return
        if not self.begun:
            self.lines.trim(-1)  # of an evaluation that was interrupted before
        self.write(metrics, state)

    def write(self, metrics: dict, state) -> None:
        """One line, and the trackers."""
        line = {
            "step": state.global_step,
            "epoch": round(state.epoch or 0.0, 6),
            "seconds": round(self.seconds_before + time.perf_counter() - self.started, 3),
            **without_nan(metrics),
        }
        self.lines.add(line)
        self.trackers.log(without_nan(metrics), state.global_step)


def note_final(trainer, report, eval_sets) -> None:
    """Has the callbacks write down the run's last evaluation, `final/...`, and its samples."""
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, MetricsCallback):
            callback.on_final(trainer.metrics_of(report, "final"), trainer.state)
        elif hasattr(callback, "on_final"):
            callback.on_final(report, eval_sets, trainer.state)


def _named(logs: dict) -> dict:
    """What was logged, by the names that `metrics.jsonl` has."""
    return {
        name if "/" in name else f"train/{name}": value
        for name, value in logs.items()
        if name not in ("epoch", "total_flos", "step") and isinstance(value, (int, float))
    }


class BestPerTaskCallback(TrainerCallback):
    """Remembers each task's best step (the earliest of equals), and keeps its weights where asked.

    Args:
      save_weights: a function folder -> None that saves the model, or None to keep no weights.
    """

    def __init__(self, directory, save_weights=None):
        self.directory = Path(directory)
        self.save_weights = save_weights
        self.best: dict[str, dict] = {}
        self.report_of = None

    def remember(self) -> dict:
        """The table, for a checkpoint."""
        return self.best

    def recall(self, remembered: dict) -> None:
        """The table of the run that goes on."""
        self.best = remembered

    def on_evaluate(self, args, state, control, **kwargs):
        """Compares each task's value with its best so far."""
        report = self.report_of()
        for task, value in report.by_task.items():
            best = self.best.get(task)
            if math.isnan(value) or (best is not None and value <= best["value"]):
                continue
            self.best[task] = {"step": state.global_step, "value": value}
            if self.save_weights:
                self.save_weights(str(self.folder(task)))

    def folder(self, task: str) -> Path:
        """Where a task's best weights are kept."""
        return self.directory / "best" / task


def count_lines(file, most: int) -> tuple[int, int]:
    """`(lines, the offset behind the last of them)` of the first `most` whole lines of a file that is open for bytes.

    >>> count_lines(io.BytesIO(b"one\\ntwo\\nthr"), 5)
    (2, 8)
    """
    count, end, offset = 0, 0, 0
    file.seek(0)
    while count < most and (piece := file.read(PIECE)):
        ends = np.flatnonzero(np.frombuffer(piece, np.uint8) == NEWLINE)[: most - count]
        if len(ends):
            count, end = count + len(ends), offset + int(ends[-1]) + 1
        offset += len(piece)
    return count, end


def line_start(file, end: int) -> int:
    """Where the line begins that ends before the offset `end`."""
    start = end - 1  # its own newline
    while start > 0:
        size = min(start, 1 << 12)
        file.seek(start - size)
        found = file.read(size).rfind(b"\n")
        if found >= 0:
            return start - size + found + 1
        start -= size
    return 0


def _line_up_to(text: bytes, step: int) -> dict | None:
    """A line, unless it is a later step's, or broken: a process that died while writing leaves half of one."""
    try:
        line = json.loads(text)
        return line if line["step"] <= step else None
    except (ValueError, KeyError, TypeError):
        logger.warning("a broken line is left out: %.60r", text)
        return None


NEWLINE = ord("\n")
PIECE = 4 << 20


# ---------------------------------------------------------------------------------------------------------------------
# Limits of an update and of a run


# Steps between two looks at rank 0's clock where several ranks train: each look makes them wait for one another.
STEPS_BETWEEN_VOTES = 10


class ClipGradValueCallback(TrainerCallback):
    """Every element of a gradient into [-value, value] just before the update.

    The trainer's hook for this comes when gradients are complete: accumulated, averaged over ranks, unscaled (fp16) and
    clipped by norm. The gradient norm that is logged is the one before any clipping.
    """

    def __init__(self, value: float):
        self.value = value

    def on_train_begin(self, args, state, control, **kwargs):
        """DeepSpeed keeps gradients to itself, so there is nothing to clip here."""
        if getattr(args, "deepspeed", None):
            raise ConfigError("--clip_grad_value has no hold on DeepSpeed's gradients; use --max_grad_norm")

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        """Clips in place."""
        torch.nn.utils.clip_grad_value_(model.parameters(), self.value)


class PlateauCallback(TrainerCallback):
    """Tells a `PlateauLR` what every evaluation came to: the number that selects checkpoints, more being better."""

    def on_evaluate(self, args, state, control, metrics=None, lr_scheduler=None, **kwargs):
        """An evaluation before the first step (`--eval_on_start`) says nothing about the rate."""
        if isinstance(lr_scheduler, PlateauLR) and metrics and state.global_step > 0:
            lr_scheduler.observe(metrics["eval_selection"])


class MaxMinutesCallback(TrainerCallback, ExportableState):
    """Ends training after `--max_minutes`, at the end of a step, with an evaluation and a checkpoint.

    Minutes are those of training with its evaluations, summed over restarts (the checkpoint remembers them). With
    several ranks, rank 0's clock decides for all, every `STEPS_BETWEEN_VOTES` steps. Schedules go by steps: one that
    is meant to end with the budget needs `--max_steps` to be what the budget allows.
    """

    def __init__(self):
        self.seconds_before = 0.0
        self.started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds so far, those before a restart included."""
        return self.seconds_before + time.perf_counter() - self.started

    def state(self) -> dict:
        """What a checkpoint remembers."""
        return {"args": {}, "attributes": {"seconds_before": self.seconds}}

    def on_train_begin(self, args, state, control, **kwargs):
        """Starts the clock; a checkpoint from before there was a budget gets a place to remember it."""
        self.started = time.perf_counter()
        state.stateful_callbacks.setdefault(type(self).__name__, self.state())

    def on_step_end(self, args, state, control, **kwargs):
        """Looks at the clock, and asks for an end as `--max_steps` would bring it."""
        if not self._over(args, state.global_step):
            return
        logger.info("--max_minutes %s are over after step %d", args.max_minutes, state.global_step)
        control.should_training_stop = True
        control.should_log = True
        control.should_evaluate = args.eval_strategy.value != "no"
        control.should_save = args.save_strategy.value != "no"

    def _over(self, args, step: int) -> bool:
        over = self.seconds >= 60 * args.max_minutes
        if args.world_size <= 1:
            return over
        if step % STEPS_BETWEEN_VOTES:
            return False
        vote = torch.tensor([float(over)], device=args.device)
        torch.distributed.broadcast(vote, src=0)
        return bool(vote.item())


def limit_callbacks(args) -> list[TrainerCallback]:
    """The callbacks that the flags ask for."""
    callbacks = [PlateauCallback()]
    if args.clip_grad_value is not None:
        callbacks.append(ClipGradValueCallback(args.clip_grad_value))
    if args.max_minutes is not None:
        callbacks.append(MaxMinutesCallback())
    return callbacks


# ---------------------------------------------------------------------------------------------------------------------
# Samples: answers of the evaluation itself (nothing is generated twice), of rows that are spread evenly over the split
# and the same every time, so that one sees how they change.


# Longer texts are cut: a table is to be read.
LONGEST_TEXT = 2000


class SampleCallback(LinesCallback):
    """Writes some rows' answers after each evaluation to `samples.jsonl` and the trackers; a resumed run has each once.

    >>> read_jsonl(run_dir / "samples.jsonl")[0]
    {'step': 20, 'task': 'rte', 'row': 0, 'input': 'rte sentence1: ...', 'target': 'entailment',
     'prediction': 'entailment', 'right': True}

    Args:
      num_samples: rows of each split; 0: none.
      sets: what is evaluated during training, in the order of the report.
      report_of: gives the report of the evaluation that just was.
    """

    def __init__(self, directory, trackers, num_samples: int, sets, report_of):
        super().__init__(directory, SAMPLES)
        self.trackers, self.num_samples, self.sets, self.report_of = trackers, num_samples, sets, report_of
        self.begun = False

    def on_train_begin(self, args, state, control, **kwargs):
        """Keeps what an interrupted run wrote up to the checkpoint that it goes on from."""
        self.begun = True
        if state.is_world_process_zero:
            self.lines.trim(state.global_step)

    def on_evaluate(self, args, state, control, **kwargs):
        """The evaluation's samples."""
        self.write(self.report_of(), self.sets, state)

    def on_final(self, report, eval_sets, state) -> None:
        """The samples of the last evaluation, with the weights that the run ends with."""
        if not self.begun and state.is_world_process_zero:
            self.lines.trim(-1)
        self.write(report, eval_sets, state, final=True)

    def write(self, report, eval_sets, state, **also) -> None:
        """Adds the lines of one evaluation."""
        if not (self.num_samples and report is not None and state.is_world_process_zero):
            return
        lines = [
            {"step": state.global_step, "task": eval_set.name, **also, **line}
            for eval_set in eval_sets
            for line in samples_of(eval_set, report.results[eval_set.name], self.num_samples)
        ]
        for line in lines:
            self.lines.add(line)
        if lines:
            self.trackers.samples(lines, state.global_step)


def samples_of(eval_set, result, num_samples: int) -> list[dict]:
    """The answers of some examples of a split, as plain values."""
    if result.samples:
        return [{name: _short(value) for name, value in sample.items()} for sample in result.samples]
    found = []
    for i in chosen(len(result.predictions), num_samples):
        row, example = eval_set.rows[eval_set.row_of_example[i]], eval_set.examples[i]
        line = {
            "row": eval_set.row_of_example[i],
            "input": example.inputs,
            "target": example.targets if eval_set.labelled else None,
            "prediction": result.predictions[i],
            "right": is_right(eval_set.task, row, example.targets, result.predictions[i]),
        }
        found.append({name: _short(value) for name, value in line.items()})
    return found


def chosen(num_examples: int, num_samples: int) -> list[int]:
    """Examples spread evenly.

    >>> chosen(100, 4), chosen(2, 4)
    ([0, 25, 50, 75], [0, 1])
    """
    count = min(num_examples, num_samples)
    return [i * num_examples // count for i in range(count)]


def _short(value):
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        return f"{value[:LONGEST_TEXT]} ... ({len(value) - LONGEST_TEXT} more characters)"
    return value


# ---------------------------------------------------------------------------------------------------------------------
# NEFTune


class NeftuneCallback(TrainerCallback):
    """NEFTune (arXiv:2310.05914), `--neftune_noise_alpha 5`: noise on the input's embeddings while training.

    Uniform noise of up to alpha / sqrt(tokens x width) is added to each embedding that the encoder, or a model's only
    stack, is given; it is drawn from torch's random numbers, which checkpoints keep. The noise is Hugging Face's, only
    its place is ours: their trainer hooks the module that `get_input_embeddings` names, which no T5 or BART of
    transformers 5.23 ever calls (each stack has a module of its own over the same matrix), so that the flag would do
    nothing there (`test_the_stock_hook_still_misses_t5` tells when that is gone).
    """

    def __init__(self, alpha: float):
        self.alpha = alpha
        self.hooks = []

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        """Hooks the modules that look up the input's tokens."""
        self.on_train_end(args, state, control)
        for module in input_embeddings(model):
            module.neftune_noise_alpha = self.alpha
            self.hooks.append(module.register_forward_hook(neftune_post_forward_hook))

    def on_train_end(self, args, state, control, **kwargs):
        """Takes the hooks away."""
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

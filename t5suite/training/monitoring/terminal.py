"""Progress on the terminal: a bar if bars are on, else one line per log; and which library messages are shown.

    step 300/1000 · loss 3.412 · grad norm 0.81 · lr 2.0e-03 · 0.56 s/step · 117k tokens/s · MFU 31.2% · 6m32s left
    step 300/1000 · evaluation · rte: accuracy 71.12 · cb: mean_3class_f1 80.40, accuracy 84.00 · average 76.66

A line above a metric's first value explains it (`LEGEND`). The bar shows the last loss, learning rate, score, tokens
and steps per second, and the time left; evaluations are printed above it. `metrics.jsonl` contains everything.
"""

import logging
import math
import sys
import warnings

from tqdm.auto import tqdm
from transformers import PrinterCallback, ProgressCallback

from t5suite.base.terminal import short_time, show
from t5suite.training.callback import Callback

# Evaluation metrics that a line omits unless they are notable.
ASIDE = ("loss", "truncated_rate", "invalid_rate")
# Metrics of a step on the bar: keys of SHOWN.
OF_THE_BAR = ("loss", "learning_rate", "tokens_per_second")
BAR = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{postfix}, {rate_fmt}, {remaining} left"
# A line shows the time spent waiting for data from this percentage on.
SLOW_DATA = 5.0


def shows_bars(args) -> bool:
    """Whether bars are drawn: by default on a terminal and in a notebook; `--disable_tqdm` turns them on or off."""
    asked = "disable_tqdm" in getattr(args, "flags_given", ())
    return not args.disable_tqdm and (asked or somebody_watches())


def somebody_watches() -> bool:
    """Whether standard error is a terminal, or this is a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


class AboveBars(logging.StreamHandler):
    """Prints log lines above the bar instead of into it."""

    def emit(self, record):
        with tqdm.external_write_mode(self.stream):
            super().emit(record)


def show_progress(trainer, show_bar: bool) -> None:
    """Replaces the trainer's progress callbacks, which print logs as Python dictionaries, by ours."""
    for callback in list(trainer.callback_handler.callbacks):
        table = type(callback).__name__ == "NotebookProgressCallback"
        if table or isinstance(callback, (Progress, PrinterCallback, ProgressCallback)):
            trainer.remove_callback(callback)
    trainer.add_callback(Progress(show_bar))


class Progress(Callback):
    """The bar, or the lines; only on the main process.

    Args:
      show_bar: draw a bar; above it print only the lines of evaluations and of the end of training.
    """

    def __init__(self, show_bar: bool):
        self.show_bar, self.bar = show_bar, None
        self._shown: dict[str, str] = {}
        self._explained: set[str] = set()

    def on_train_begin(self, args, state, control, **kwargs):
        self._shown = {}
        if self.show_bar and state.is_world_process_zero:
            form = {"unit": "step", "dynamic_ncols": True, "bar_format": BAR}
            self.bar = tqdm(total=state.max_steps, initial=state.global_step, **form)

    def on_step_end(self, args, state, control, **kwargs):
        if self.bar is not None:
            self.bar.update(state.global_step - self.bar.n)

    def on_train_end(self, args, state, control, **kwargs):
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    def on_log(self, args, state, control, logs=None, **kwargs):
        if not state.is_world_process_zero or not logs:
            return
        line = terminal_line(logs, state.global_step, state.max_steps)
        new = {name: what for name, what in LEGEND.items() if name in logs and name not in self._explained}
        self._explained |= new.keys()
        lines = ([f"({'; '.join(new.values())})"] if new else []) + ([line] if line else [])
        if self.bar is None:
            for line in lines:
                show(line)
            return
        self._shown |= bar_figures(logs)
        self.bar.set_postfix_str(", ".join(self._shown.values()))
        for line in () if "loss" in logs else lines:
            self.bar.write(line)


def is_evaluation(logs: dict) -> bool:
    """Whether a log comes from an evaluation."""
    return any(name.startswith("eval/") for name in logs)


def terminal_line(logs: dict, step: int, max_steps: int) -> str:
    """A log as a line; other metrics are only in `metrics.jsonl`.

    >>> terminal_line({"loss": 3.41234, "learning_rate": 2e-3, "mfu": 31.24, "seconds_left": 392}, 300, 1000)
    'step 300/1000 · loss 3.412 · lr 2.0e-03 · MFU 31.2% · 6m32s left'
    >>> terminal_line({"eval/nll": 2.31, "eval/accuracy": 51.07}, 300, 1000)
    'step 300/1000 · held out: nll 2.310 · accuracy 51.1%'
    >>> terminal_line({"eval/accuracy": 91.2, "eval/invalid_rate": 0.0, "eval/loss": 0.3, "eval/average": 91.2}, 3, 9)
    'step 3/9 · evaluation · accuracy 91.20 · loss 0.300'
    """
    if "eval/nll" in logs:
        parts = ["held out: " + " · ".join(_shown(logs))]
    elif is_evaluation(logs):
        parts = ["evaluation", *scores_of(logs)]
    elif "train_runtime" in logs:
        parts = [f"trained in {short_time(logs['train_runtime'])}", f"mean loss {logs['train_loss']:.3f}"]
    else:
        parts = _shown(logs)
    return f"step {step}/{max_steps} · {' · '.join(parts)}" if parts else ""


def scores_of(logs: dict) -> list[str]:
    """An evaluation's scores, by task if there are several, and the rate of invalid answers if it is not 0.

    >>> scores_of({"eval/rte/accuracy": 71.1, "eval/cb/f1": 80.0, "eval/cb/invalid_rate": 2.0, "eval/average": 75.5})
    ['rte: accuracy 71.10', 'cb: f1 80.00, invalid 2.0%', 'average 75.50']
    """
    by_task: dict[str, dict[str, float]] = {}
    for name, value in logs.items():
        if name.startswith("eval/") and name != "eval/average":
            task, _, metric = name.removeprefix("eval/").rpartition("/")
            by_task.setdefault(task, {})[metric] = value
    tasks = {}
    for task, metrics in by_task.items():
        invalid = metrics.get("invalid_rate", 0.0)
        tasks[task] = [f"{name} {value:.2f}" for name, value in metrics.items() if name not in ASIDE]
        tasks[task] += [f"invalid {invalid:.1f}%"] if invalid > 0 else []
    if list(tasks) == [""]:
        loss = by_task[""].get("loss")
        return tasks[""] + ([f"loss {loss:.3f}"] if loss is not None else [])
    parts = [f"{task}: {', '.join(scores)}" if task else ", ".join(scores) for task, scores in tasks.items() if scores]
    return parts + ([f"average {logs['eval/average']:.2f}"] if "eval/average" in logs else [])


def bar_figures(logs: dict) -> dict[str, str]:
    """What the bar shows for a log: metrics of a step, or the score.

    >>> bar_figures({"loss": 0.41, "tokens_per_second": 8123.0}), bar_figures({"eval/f1": 80.0, "eval/average": 80.0})
    ({'loss': 'loss 0.410', 'tokens_per_second': '8.1k tokens/s'}, {'score': 'score 80.00'})
    """
    if "eval/nll" in logs:
        return {"eval/nll": SHOWN["eval/nll"](logs["eval/nll"])}
    score = logs.get("eval/average", math.nan)
    if is_evaluation(logs) and not math.isnan(score):
        return {"score": f"score {score:.2f}"}
    return {name: SHOWN[name](logs[name]) for name in OF_THE_BAR if name in logs}


def short_number(value: float) -> str:
    """A count in short form.

    >>> [short_number(value) for value in (950, 8123, 117_028, 19_700_000, 3.2e9)]
    ['950', '8.1k', '117k', '19.7M', '3.2B']
    """
    for size, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.{0 if size == 1e3 and value >= 1e4 else 1}f}{suffix}"
    return f"{value:.0f}"


def _shown(logs: dict) -> list[str]:
    shown = [form(logs[name]) for name, form in SHOWN.items() if logs.get(name) is not None]
    return [part for part in shown if part is not None]


SHOWN = {
    "loss": lambda value: f"loss {value:.3f}",
    "accuracy": lambda value: f"accuracy {value:.1f}%",
    "grad_norm": lambda value: f"grad norm {value:.2f}",
    "weight_norm": lambda value: f"weight norm {value:.1f}",
    "learning_rate": lambda value: f"lr {value:.1e}",
    "seconds_per_step": lambda value: f"{value:.3g} s/step",
    "tokens_per_second": lambda value: f"{short_number(value)} tokens/s",
    "mfu": lambda value: f"MFU {value:.1f}%",
    "data_wait": lambda value: f"waiting for data {value:.0f}%" if value >= SLOW_DATA else None,
    "peak_memory_gb": lambda value: f"{value:.3g} GB",
    "tokens_seen": lambda value: f"{short_number(value)} tokens seen",
    "seconds_left": lambda value: f"{short_time(value)} left",
    "eval/nll": lambda value: f"nll {value:.3f}",
    "eval/nll_text": lambda value: f"excluding sentinels {value:.3f}",
    "eval/accuracy": lambda value: f"accuracy {value:.1f}%",
}

# {metric: its explanation}, printed once, before the first line that contains it.
LEGEND = {
    "loss": "loss: mean since the line before, cross-entropy in nats a target token",
    "accuracy": "accuracy: of target tokens, each after the right ones",
    "grad_norm": "grad norm: before clipping",
    "learning_rate": "lr: learning rate",
    "tokens_per_second": "tokens: of inputs, without padding",
    "mfu": "MFU: share of the devices' peak FLOP/s",
    "data_wait": "waiting for data: share of the time",
    "peak_memory_gb": "GB: the most memory taken",
    "eval/nll": "nll: nats a held-out target token",
}


# Library messages that contain a text of LIBRARY_NOISE are hidden without `--verbose`, each for the reason given
# there. All others are shown, because they may matter.


# The libraries' loggers that need the filter.
LOGGERS = (
    "transformers.trainer", "transformers.trainer_utils", "transformers.configuration_utils",
    "transformers.modeling_utils", "transformers.generation.utils", "transformers.generation.configuration_utils",
    "transformers.tokenization_utils_base", "accelerate.accelerator", "accelerate.utils.other",
    "torch.distributed.elastic.multiprocessing.redirects", "DeepSpeed",
)  # fmt: skip


def is_shown(record: logging.LogRecord) -> bool:
    """Whether a record is shown: a filter for loggers."""
    return not is_noise(record.getMessage())


def is_noise(message: str) -> bool:
    """Whether a message is library noise."""
    return any(text in message for text in LIBRARY_NOISE)


def quiet_libraries(verbose: bool = False) -> None:
    """Hides library noise in logs and in Python's warnings; `verbose` undoes it."""
    for name in LOGGERS:
        log = logging.getLogger(name)
        log.removeFilter(is_shown)
        if not verbose:
            log.addFilter(is_shown)
    shown = getattr(warnings.showwarning, "passed_on", warnings.showwarning)

    def showwarning(message, *args, **kwargs):
        if verbose or not is_noise(str(message)):
            shown(message, *args, **kwargs)

    showwarning.passed_on, warnings.showwarning = shown, showwarning


# {text: why it can be ignored}
LIBRARY_NOISE = {
    "missing keys in the checkpoint": "tied weights are stored once: that their other names lack is expected",
    "mtime may not be reliable": "checkpoints are sorted by their step where two were written within a second",
    "arguments do not match the ones in the `trainer_state.json`": "whether a run is the same is decided by all its "
    "settings (`runs`); the trainer compares three, and takes a share of the steps for another number",
    "Gradient accumulation steps mismatch: GradientAccumulationPlugin": "the trainer accumulates itself, so that "
    "accelerate, which is told of no accumulation, wonders about DeepSpeed's",
    "Setting accelerator to CPU. If you have GPU": "DeepSpeed looks for one whenever another library imports it; "
    "`t5suite doctor` says what is computed on",
}

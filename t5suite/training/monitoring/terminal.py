"""Progress on the terminal: a bar if bars are on, else one line per log.

    step 300/1000 · loss 3.412 · grad norm 0.81 · lr 2.0e-03 · 0.56 s/step · 117k tokens/s · MFU 31.2% · 6m32s left
    step 300/1000 · evaluation · rte: accuracy 71.12 · cb: mean_3class_f1 80.40, accuracy 84.00 · average 76.66

A line above a metric's first value explains it (`LEGEND`). The bar shows the last loss, learning rate, score, tokens
and steps per second, and the time left; evaluations are printed above it. `metrics.jsonl` contains everything.
"""

import logging
import math
import sys

from tqdm.auto import tqdm
from transformers import PrinterCallback, ProgressCallback

from t5suite.base.terminal import in_notebook, short_time, show
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
    flag_is_given = "disable_tqdm" in getattr(args, "flags_given", ())
    return not args.disable_tqdm and (flag_is_given or somebody_watches())


def somebody_watches() -> bool:
    """Whether standard error is a terminal, or this is a notebook."""
    return sys.stderr.isatty() or in_notebook()


def evaluation_bar(turns, name: str):
    """A progress bar over the batches of an evaluation."""
    return tqdm(turns, desc=f"evaluating {name}", leave=False)


class AboveBars(logging.StreamHandler):
    """Prints log lines above the bar instead of into it."""

    def emit(self, record):
        with tqdm.external_write_mode(self.stream):
            super().emit(record)


def show_progress(trainer, show_bar: bool) -> None:
    """Replaces the trainer's progress callbacks, which print logs as Python dictionaries, by ours."""
    for callback in list(trainer.callback_handler.callbacks):
        is_notebook_table = type(callback).__name__ == "NotebookProgressCallback"
        if is_notebook_table or isinstance(callback, (Progress, PrinterCallback, ProgressCallback)):
            trainer.remove_callback(callback)
    trainer.add_callback(Progress(show_bar))


class Progress(Callback):
    """The bar, or the lines; only on the main process.

    Args:
      show_bar: draw a bar; above it print only the lines of evaluations and of the end of training.
    """

    def __init__(self, show_bar: bool):
        self.show_bar = show_bar
        self.bar = None
        self._figures: dict[str, str] = {}
        self._explained: set[str] = set()

    def on_train_begin(self, args, state, control, **kwargs):
        self._figures = {}
        if self.show_bar and state.is_world_process_zero:
            self.bar = tqdm(
                total=state.max_steps,
                initial=state.global_step,
                unit="step",
                dynamic_ncols=True,
                bar_format=BAR,
            )

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
        explanation = self._explanation_of_new(logs)
        line = terminal_line(logs, state.global_step, state.max_steps)
        lines = [text for text in (explanation, line) if text]
        if self.bar is None:
            for text in lines:
                show(text)
            return
        self._figures |= bar_figures(logs)
        self.bar.set_postfix_str(", ".join(self._figures.values()))
        if "loss" not in logs:
            for text in lines:
                self.bar.write(text)

    def _explanation_of_new(self, logs: dict) -> str:
        """Explains the metrics that are shown for the first time."""
        new_names = [name for name in LEGEND if name in logs and name not in self._explained]
        self._explained.update(new_names)
        return f"({'; '.join(LEGEND[name] for name in new_names)})" if new_names else ""


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
        parts = ["held out: " + " · ".join(_figures_of_step(logs))]
    elif is_evaluation(logs):
        parts = ["evaluation", *scores_of(logs)]
    elif "train_runtime" in logs:
        parts = [f"trained in {short_time(logs['train_runtime'])}", f"mean loss {logs['train_loss']:.3f}"]
    else:
        parts = _figures_of_step(logs)
    return f"step {step}/{max_steps} · {' · '.join(parts)}" if parts else ""


def scores_of(logs: dict) -> list[str]:
    """An evaluation's scores, by task if there are several, and the rate of invalid answers if it is not 0.

    >>> scores_of({"eval/rte/accuracy": 71.1, "eval/cb/f1": 80.0, "eval/cb/invalid_rate": 2.0, "eval/average": 75.5})
    ['rte: accuracy 71.10', 'cb: f1 80.00, invalid 2.0%', 'average 75.50']
    """
    metrics_of_task: dict[str, dict[str, float]] = {}
    for name, value in logs.items():
        if name.startswith("eval/") and name != "eval/average":
            task, _, metric = name.removeprefix("eval/").rpartition("/")
            metrics_of_task.setdefault(task, {})[metric] = value
    if list(metrics_of_task) == [""]:
        return _scores_of_only_task(metrics_of_task[""])
    parts = []
    for task, metrics in metrics_of_task.items():
        scores = ", ".join(_scores_of_task(metrics))
        if scores:
            parts.append(f"{task}: {scores}" if task else scores)
    if "eval/average" in logs:
        parts.append(f"average {logs['eval/average']:.2f}")
    return parts


def _scores_of_task(metrics: dict[str, float]) -> list[str]:
    scores = [f"{name} {value:.2f}" for name, value in metrics.items() if name not in ASIDE]
    invalid_rate = metrics.get("invalid_rate", 0.0)
    if invalid_rate > 0:
        scores.append(f"invalid {invalid_rate:.1f}%")
    return scores


def _scores_of_only_task(metrics: dict[str, float]) -> list[str]:
    """Its loss is shown, too; the average would be the score again."""
    scores = _scores_of_task(metrics)
    if metrics.get("loss") is not None:
        scores.append(f"loss {metrics['loss']:.3f}")
    return scores


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
            decimals = 0 if size == 1e3 and value >= 1e4 else 1
            return f"{value / size:.{decimals}f}{suffix}"
    return f"{value:.0f}"


def _figures_of_step(logs: dict) -> list[str]:
    figures = [form(logs[name]) for name, form in SHOWN.items() if logs.get(name) is not None]
    return [figure for figure in figures if figure is not None]


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
    "loss": "loss: mean since the line before, in nats a target token or label; an encoder of numbers: squared error",
    "accuracy": "accuracy: of target tokens, each after the right ones",
    "grad_norm": "grad norm: before clipping",
    "learning_rate": "lr: learning rate",
    "tokens_per_second": "tokens: of inputs, without padding",
    "mfu": "MFU: share of the devices' peak FLOP/s",
    "data_wait": "waiting for data: share of the time",
    "peak_memory_gb": "GB: the most memory taken",
    "eval/nll": "nll: nats a held-out target token",
}

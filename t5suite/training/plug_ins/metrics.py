"""Metrics of the user's own: of batches while training, of texts when evaluating.

    def certainty(outputs, batch):                                            # my_metrics.py
        return {"certainty": outputs.logits.softmax(-1).amax(-1)}             # [B, T]

    def length_match(predictions, targets):
        right = sum(len(a.split()) == len(b.split()) for a, b in zip(predictions, targets))
        return {"length_match": 100 * right / len(targets)}

    python fine_tune_t5.py --batch_metrics my_metrics:certainty --metrics my_metrics:length_match

What `batch_metrics` gives is averaged over the whole update that is logged, over micro-batches and ranks: a tensor of
the labels' shape over the labels that count (not -100), one of [B] over rows, a single number over micro-batches, each
by its number of labels. It is called without gradients, and in updates that are logged only.

`metrics` has one prediction and one target an example, and with a parameter `rows` the example's row; its points (more
being better) stand beside the task's own in `results.json` and `metrics.jsonl`, and `--metric_for_best_model` may name
one. Shapes: B rows, T target tokens.
"""

import inspect
import math
from collections.abc import Callable

import torch

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import suggestion
from t5suite.data.collators import IGNORED
from t5suite.data.module_batches import as_module_sees

# What the trainer logs by itself.
TAKEN = ("loss", "grad_norm", "learning_rate", "epoch", "step", "total_flos", "skipped_updates")


# ---------------------------------------------------------------------------------------------------------------------
# While training


class MeasuredLoss:
    """A loss that also calls `batch_metrics`.

    Attributes:
      watching: whether the update is one that will be logged.
      batch: of the next call.
      counts: `{name: [sum, weight]}` of the update so far; None before its first batch. Replaced, never changed: an
        update that runs again after a lack of memory goes back to an older one.
    """

    def __init__(self, loss, batch_metrics: Callable):
        self.loss = loss
        self.batch_metrics = batch_metrics
        self.watching = False
        self.batch = None
        self.counts = None

    def __call__(self, outputs, labels, num_items_in_batch=None) -> torch.Tensor:
        loss = self.loss(outputs, labels, num_items_in_batch=num_items_in_batch)
        if self.watching:
            with torch.no_grad():
                found = weighted(self.batch_metrics(outputs, self.batch), labels)
            before = self.counts or {}
            self.counts = {name: pair + before.get(name, 0.0) for name, pair in found.items()}
        return loss


def weighted(values, labels) -> dict[str, torch.Tensor]:
    """What `batch_metrics` gave as `{name: [sum, weight]}`.

    >>> weighted({"length": torch.tensor([3.0, 5.0])}, torch.tensor([[7, -100], [8, 9]]))
    {'length': tensor([8., 2.])}

    Raises:
      ConfigError: it gave no table of numbers, or a name that the trainer logs.
    """
    if not isinstance(values, dict):
        raise ConfigError(f"--batch_metrics: it gave {values!r:.80}, not {{name: tensor}}")
    kept = labels.ne(IGNORED)
    rows_kept = kept.reshape(len(kept), -1).any(dim=1)
    found = {}
    for name, value in values.items():
        if name in TAKEN:
            raise ConfigError(f"--batch_metrics: {name!r} is logged by the trainer; give it another name")
        value = torch.as_tensor(value, device=labels.device).detach().double()
        if value.shape == labels.shape:
            weights = kept
        elif value.shape == rows_kept.shape:
            weights = rows_kept
        elif value.ndim == 0:
            value, weights = value.reshape(1), kept.sum().reshape(1)
        else:
            raise ConfigError(
                f"--batch_metrics: {name!r} has shape {tuple(value.shape)}; it may be a number, one a row "
                f"[{len(labels)}], or one a label {list(labels.shape)}"
            )
        # A padded row's number may be none (0/0): it does not count.
        total = torch.where(weights > 0, value * weights, 0.0).sum()
        found[name] = torch.stack([total, weights.sum().double()])
    return found


class Measuring:
    """A mixin that stands before a `transformers.Trainer`: logs what `batch_metrics` finds."""

    def measure(self, batch_metrics: Callable) -> None:
        """From now on the updates that are logged are measured."""
        self.compute_loss_func = MeasuredLoss(self.compute_loss_func, batch_metrics)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Keeps the batch, out of which the trainer takes the labels."""
        if isinstance(self.compute_loss_func, MeasuredLoss):
            self.compute_loss_func.batch = as_module_sees(inputs)
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def begin_update(self) -> None:
        """Before the first micro-batch of an update."""
        loss = self.compute_loss_func
        if isinstance(loss, MeasuredLoss):
            step, interval = self.state.global_step + 1, max(int(self.state.logging_steps or 1), 1)
            by_steps = self.args.logging_strategy == "steps"
            loss.watching = not by_steps or step % interval == 0 or (step == 1 and self.args.logging_first_step)
            loss.counts = None
        super().begin_update()

    def log(self, logs: dict, start_time: float | None = None) -> None:
        """Adds the means over the last update."""
        loss = self.compute_loss_func
        if "loss" in logs and isinstance(loss, MeasuredLoss) and loss.counts:
            for name in sorted(loss.counts):
                total, weight = self.ranks.sum(loss.counts[name].tolist())
                logs[name] = total / weight if weight else math.nan
            loss.counts = None
        super().log(logs, start_time)


# ---------------------------------------------------------------------------------------------------------------------
# When evaluating


def add_metrics(data, functions, wanted: str | None = None) -> None:
    """Binds `metrics` functions to every labelled set of `data`; tries them out on the targets first.

    Args:
      wanted: the metric that selects checkpoints, by `--metric_for_best_model`; None or the tasks' own names leave it
        to the tasks.

    Raises:
      ConfigError: a function gives no points, or none is called `wanted`.
    """
    wanted = wanted and wanted.removeprefix("eval_").removeprefix("eval/")
    sets = {id(part): part for part in [*data.scored, *data.selecting] if part.labelled and part.method != "loss"}
    for eval_set in sets.values():
        points = [bound_metrics(function, eval_set) for function in functions]
        names = [name for function in points for name in function([e.targets for e in eval_set.examples])]
        eval_set.compute_metrics = _joined(eval_set.compute_metrics, points)
        if wanted in names:
            eval_set.selected_by = wanted
        elif wanted not in (None, "loss", "average", "selection"):
            _check_own(eval_set.task, wanted, names)


def _check_own(task, wanted: str, names: list[str]) -> None:
    try:
        task.with_metric_to_optimize(wanted)
    except ConfigError:
        known = [*names, *task.entry["metric_names"], "loss", "average"]
        raise ConfigError(f"--metric_for_best_model: no metric {wanted!r}; {suggestion(wanted, known)}") from None


def _joined(own: Callable, functions: list[Callable]) -> Callable:
    def compute(prediction):
        metrics = own(prediction)
        for function in functions:
            found = function(prediction.predictions)
            twice = sorted(set(found) & set(metrics))
            if twice:
                raise ConfigError(f"--metrics: there are two metrics {twice[0]!r}; give one of them another name")
            metrics = {**metrics, **found}
        return metrics

    return compute


def bound_metrics(function: Callable, eval_set) -> Callable:
    """Predictions of a set's examples -> the function's points, checked."""
    targets = [example.targets for example in eval_set.examples]
    rows = {"rows": [eval_set.rows[row] for row in eval_set.row_of_example]} if _takes_rows(function) else {}
    name = getattr(function, "__name__", type(function).__name__)

    def points(predictions) -> dict[str, float]:
        found = function(list(predictions), list(targets), **rows)
        if not isinstance(found, dict):
            raise ConfigError(f"--metrics {name}: it gave {found!r:.80}, not {{name: points}}")
        for metric, value in found.items():
            if "/" in metric or metric == "loss":
                raise ConfigError(f"--metrics {name}: {metric!r} cannot be a metric's name")
            if not isinstance(value, (int, float)):
                raise ConfigError(f"--metrics {name}: {metric} is {value!r:.80}, not a number")
        return {metric: float(value) for metric, value in found.items()}

    return points


def _takes_rows(function) -> bool:
    try:
        return "rows" in inspect.signature(function).parameters
    except ValueError:
        return False

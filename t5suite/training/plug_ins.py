"""The user's own functions and callbacks in a run (docs/python.md).

    def hide_words(batch):                                      # my_data.py
        ids_BS = batch["input_ids"].clone()
        for row, generator in enumerate(row_generators(batch, seed=0)):
            hidden_S = torch.rand(ids_BS.shape[1], generator=generator) < 0.1
            ids_BS[row, hidden_S & (ids_BS[row] > 1)] = 2
        return {**batch, "input_ids": ids_BS}

    python fine_tune_t5.py --batch_transform my_data:hide_words

| what | gets | returns |
|---|---|---|
| `batch_transform` | a collated batch `{name: tensor}` | the batch that the model is trained on |
| `batch_metrics` | the model's outputs, the batch | `{name: tensor}`, logged as `train/<name>` |
| `metrics` | predictions, targets (texts), and `rows=` if its signature has it | `{name: points}`, higher is better |
| `metrics` of `evaluate` | predictions and references, as a task's own metrics | `{name: number}`, reported as it is |
| `callbacks` | | instances of `t5suite.Callback`, or of any other `TrainerCallback` |

A `batch_transform` must be a function of the batch alone, row by row: then neither a restart nor the split into
micro-batches and ranks changes what an update learns. Random numbers come from `row_generators`; drawing from the
global generators is refused. `batch_metrics` are called without gradients in updates that are logged, and averaged over
the update: a tensor of the labels' shape over the labels that count (not -100), one of [B] over rows, a single number
over micro-batches, weighted by their numbers of labels.

Only what the user names is imported, never what a checkpoint names. Shapes: B rows, S source and T target tokens.
"""

import contextlib
import functools
import hashlib
import inspect
import math
import random
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from transformers import TrainerCallback

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import suggestion
from t5suite.data.batches.collators import IGNORED
from t5suite.tasks.entry_metrics import optimised_metrics
from t5suite.tasks.evaluate_metrics import EvaluateMetric, evaluate_names
from t5suite.training.callback import save_states

# What the user provides


class PlugIns(NamedTuple):
    """What the user adds to a run; nothing by default.

    Attributes:
      transforms_evaluation: whether evaluation's batches go through `batch_transform`, too.
      callbacks: added after the suite's own; a `t5suite.Callback` carries its state over a restart.
      model_class: what `--model_class` names, only for the manifest.
    """

    batch_transform: Callable | None = None
    transforms_evaluation: bool = False
    batch_metrics: Callable | None = None
    metrics: tuple[Callable, ...] = ()
    callbacks: tuple[TrainerCallback, ...] = ()
    model_class: type | None = None

    @property
    def described(self) -> dict[str, list[dict]]:
        """What the manifest says about them, by subject: names, and the SHA-256 of the files that they are in.

        >>> PlugIns(batch_transform=shorter).described
        {'batch_transform': [{'name': 'my_data:shorter', 'sha256': '9f86...'}]}
        """
        found = {}
        for subject in ("batch_transform", "batch_metrics", "metrics", "callbacks", "model_class"):
            value = getattr(self, subject)
            parts = value if isinstance(value, tuple) else () if value is None else (value,)
            if parts:
                found[subject] = [describe_object(part) for part in parts]
        return found


def describe_object(thing) -> dict[str, str | None]:
    """A function, class or instance by name, and the SHA-256 of its file; None if it has no file (a notebook).

    >>> describe_object(collections.OrderedDict)["name"]
    'collections:OrderedDict'
    """
    if isinstance(thing, EvaluateMetric):
        described = {"name": thing.name, "sha256": thing.digest}
        return described if thing.commit is None else {**described, "commit": thing.commit}
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    try:
        digest = file_digest(inspect.getsourcefile(named))
    except (TypeError, OSError):
        digest = None
    return {"name": f"{named.__module__}:{named.__qualname__}", "sha256": digest}


def file_digest(path) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def check_callbacks(callbacks, places: list[str] | None = None) -> tuple[TrainerCallback, ...]:
    """Callbacks, each an instance of `TrainerCallback`; classes are called without arguments.

    Args:
      places: where each was named, for errors.

    Raises:
      ConfigError: one is not a callback, or two have the same class, whose states a checkpoint could not distinguish.
    """
    made = []
    for i, given in enumerate(callbacks):
        place = places[i] if places else f"callbacks[{i}]"
        if isinstance(given, type):
            try:
                given = given()
            except TypeError as error:
                raise ConfigError(f"{place}: its class must need no arguments ({error})") from None
        if not isinstance(given, TrainerCallback):
            raise ConfigError(f"{place}: a {type(given).__name__}, which is not a transformers.TrainerCallback")
        if type(given).__name__ in [type(other).__name__ for other in made]:
            raise ConfigError(f"{place}: there are two callbacks of class {type(given).__name__}")
        made.append(given)
    return tuple(made)


def add_plug_in_callbacks(trainer, callbacks) -> None:
    """Adds them to a trainer, after its own.

    Raises:
      ConfigError: one has the name of a callback of the suite that a checkpoint remembers.
    """
    saved_names = save_states(trainer.callback_handler.callbacks)
    for callback in check_callbacks(callbacks):
        if type(callback).__name__ in saved_names:
            raise ConfigError(f"--callbacks: {type(callback).__name__} is the suite's own; give the class another name")
        trainer.add_callback(callback)


NO_PLUG_INS = PlugIns()
NO_LABEL = ""  # an answer that is no label of any task


class TransformedCollator:
    """A collator whose batches go through `transform`; all other attributes are the collator's.

    Raises:
      ConfigError: the result is not a batch of the same rows, or random numbers were drawn.
    """

    def __init__(self, collator, transform: Callable[[dict], Mapping], where: str = "--batch_transform"):
        self.collator, self.transform, self.where = collator, transform, where

    def __getattr__(self, name):
        if name in ("collator", "transform", "where"):  # not set yet while a worker unpickles
            raise AttributeError(name)
        return getattr(self.collator, name)

    def __call__(self, features):
        batch = self.collator(features)
        rows = _rows_of(batch)
        before = _random_state()
        made = self.transform(batch)
        if not isinstance(made, Mapping) or not made:
            raise ConfigError(f"{self.where}: it returned {made!r:.80}, not a batch {{name: tensor}}")
        if _random_state() != before:
            raise ConfigError(
                f"{self.where}: it draws from global random numbers, which a resumed run cannot repeat; "
                "draw from row_generators(batch, seed) of t5suite.training.plug_ins"
            )
        if _rows_of(made) != rows:
            raise ConfigError(f"{self.where}: it gave {_rows_of(made)} rows for {rows}; it must keep the batch's rows")
        return dict(made)


def with_transform(collator, plug_ins: PlugIns):
    """The collator whose batches are trained on."""
    return TransformedCollator(collator, plug_ins.batch_transform) if plug_ins.batch_transform else collator


def row_generators(batch: Mapping, seed: int = 0) -> list[torch.Generator]:
    """One random generator per row, seeded by the row's own ids and `seed`: the same in every batch, rank and run.

    >>> first, second = row_generators({"input_ids": ids_BS, "attention_mask": mask_BS}, seed=3)
    >>> torch.rand(2, generator=first)
    tensor([0.6410, 0.2214])
    """
    ids_BS = batch["input_ids"]
    mask_BS = batch.get("attention_mask")
    generators = []
    for row in range(len(ids_BS)):
        ids = ids_BS[row] if mask_BS is None else ids_BS[row][mask_BS[row].bool()]
        digest = hashlib.sha256(f"{seed} {ids.tolist()}".encode()).digest()
        generators.append(torch.Generator().manual_seed(int.from_bytes(digest[:8], "little")))
    return generators


def _rows_of(batch: Mapping) -> int | None:
    """How many rows all tensors of a batch have; None if they differ."""
    found = {len(value) for value in batch.values() if torch.is_tensor(value) and value.ndim}
    return found.pop() if len(found) == 1 else None


def _random_state() -> tuple:
    numpy_state = np.random.get_state(legacy=False)["state"]
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), numpy_state["key"].tobytes(), numpy_state["pos"]


# Names that the trainer logs itself.
TAKEN = ("loss", "grad_norm", "learning_rate", "epoch", "step", "total_flos", "skipped_updates")


class MeasuredLoss:
    """A loss that also calls `batch_metrics`.

    Attributes:
      watching: whether the update will be logged.
      batch: the next call's batch.
      counts: `{name: [sum, weight]}` of the update so far; None before its first batch. Replaced, never changed: an
        update that is repeated after running out of memory returns to an older one.
    """

    def __init__(self, loss, batch_metrics: Callable):
        self.loss, self.batch_metrics = loss, batch_metrics
        self.watching, self.batch, self.counts, self._step = False, None, None, None

    def watch(self, step: int, logged: bool) -> None:
        if step != self._step:
            self._step, self.counts = step, None
        self.watching = logged
        if hasattr(self.loss, "watch"):
            self.loss.watch(step, logged)

    def means(self, ranks) -> dict[str, float]:
        """The means over the last update and all ranks, which the call clears."""
        found, self.counts = self.counts or {}, None
        sums = {name: ranks.sum(found[name].tolist()) for name in sorted(found)}
        inner = self.loss.means(ranks) if hasattr(self.loss, "means") else {}
        return inner | {name: total / weight if weight else math.nan for name, (total, weight) in sums.items()}

    def __call__(self, outputs, labels, num_items_in_batch=None) -> torch.Tensor:
        loss = self.loss(outputs, labels, num_items_in_batch=num_items_in_batch)
        if self.watching:
            with torch.no_grad():
                found = weighted(self.batch_metrics(outputs, self.batch), labels)
            before = self.counts or {}
            self.counts = {name: pair + before.get(name, 0.0) for name, pair in found.items()}
        return loss


def weighted(values, labels) -> dict[str, torch.Tensor]:
    """The result of `batch_metrics` as `{name: [sum, weight]}`.

    >>> weighted({"length": torch.tensor([3.0, 5.0])}, torch.tensor([[7, -100], [8, 9]]))
    {'length': tensor([8., 2.])}
    """
    if not isinstance(values, dict):
        raise ConfigError(f"--batch_metrics: it returned {values!r:.80}, not {{name: tensor}}")
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
                f"--batch_metrics: {name!r} has shape {tuple(value.shape)}; it may be a number, one per row "
                f"[{len(labels)}], or one per label {list(labels.shape)}"
            )
        # A padded row's number may be NaN (0/0): it does not count.
        total = torch.where(weights > 0, value * weights, 0.0).sum()
        found[name] = torch.stack([total, weights.sum().double()])
    return found


def add_metrics(data, functions, wanted: str | None = None) -> None:
    """Binds `metrics` functions to every labelled set of `data`; first tries them on the targets.

    Args:
      wanted: the metric that selects checkpoints, by `--metric_for_best_model`; None or the tasks' own names leave it
        to the tasks.

    Raises:
      ConfigError: a function returns no points, or no metric is named `wanted`.
    """
    wanted = wanted and wanted.removeprefix("eval_").removeprefix("eval/")
    for eval_set in scored_sets(data):
        points = [bound_metrics(function, eval_set) for function in functions]
        names = []
        for function, score in zip(functions, points, strict=True):
            if isinstance(function, EvaluateMetric):
                names += tried(score, eval_set)
            else:
                names += score([example.targets for example in eval_set.examples])
        eval_set.compute_metrics = _joined(eval_set.compute_metrics, points)
        if wanted in names:
            eval_set.selected_by = wanted
        elif wanted not in (None, "loss", "average", "selection"):
            try:
                eval_set.task.with_metric_to_optimize(wanted)
            except ConfigError:
                known = [*names, *eval_set.task.entry["metric_names"], "loss", "average"]
                message = f"--metric_for_best_model: no metric {wanted!r}; {suggestion(wanted, known)}"
                raise ConfigError(message) from None


def try_evaluate_metrics(data) -> None:
    """Scores the targets themselves by the metrics of `evaluate` that tasks name: a broken one shows before training.

    Raises:
      ConfigError: one fails, or returns no value of the name that selects checkpoints.
    """
    for eval_set in scored_sets(data):
        task = eval_set.task
        if not evaluate_names(task.entry):
            continue
        scores = tried(functools.partial(task.score, eval_set.rows, split=eval_set.role), eval_set)
        selected_by = task.entry["metric_to_optimize"]
        if not set(optimised_metrics(task.entry)) & set(scores):
            raise ConfigError(f"{eval_set.name}: no metric {selected_by!r}; {suggestion(selected_by, scores)}")


def tried(score: Callable[[list[str]], dict], eval_set) -> dict[str, float]:
    """The scores of a set's targets, taken as answers; a model may also write what is no label, which is tried, too.

    Raises:
      ConfigError: a metric fails.
    """
    targets = [example.targets for example in eval_set.examples]
    scores = score(targets)
    if eval_set.task.value_kind == "class" and eval_set.method == "generate":
        try:
            score([NO_LABEL, *targets[1:]])
        except ConfigError as error:
            raise ConfigError(
                f"{error}. It fails on an answer that is no label, which it gets as -1: let compute() take it, or "
                "choose among the labels with --eval_method score"
            ) from None
    return scores


def scored_sets(data) -> list:
    """The labelled sets whose answers are scored, each once."""
    sets = {id(part): part for part in [*data.scored, *data.selecting] if part.labelled and part.method != "loss"}
    return list(sets.values())


def _evaluate_points(metric: EvaluateMetric, eval_set) -> Callable:
    """Predictions of a set's examples -> the metric's values; it sees what the task's own metrics see."""

    def points(predictions) -> dict[str, float]:
        judged = eval_set.task.judged(eval_set.example_set, predictions)
        return metric(judged.predictions, judged.references)

    return points


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
    if isinstance(function, EvaluateMetric):
        return _evaluate_points(function, eval_set)
    targets = [example.targets for example in eval_set.examples]
    name, rows = getattr(function, "__name__", type(function).__name__), {}
    with contextlib.suppress(ValueError):  # a builtin has no signature
        if "rows" in inspect.signature(function).parameters:
            rows = {"rows": [row for row, _ in eval_set.example_set.pairs()]}

    def points(predictions) -> dict[str, float]:
        found = function(list(predictions), list(targets), **rows)
        if not isinstance(found, dict):
            raise ConfigError(f"--metrics {name}: it returned {found!r:.80}, not {{name: points}}")
        for metric, value in found.items():
            if "/" in metric or metric == "loss" or not isinstance(value, (int, float)):
                raise ConfigError(f"--metrics {name}: {metric!r}: {value!r:.80} is not a metric's name and number")
        return {metric: float(value) for metric, value in found.items()}

    return points

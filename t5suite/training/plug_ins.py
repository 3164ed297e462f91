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
| `metrics` | predictions, targets (texts), and `rows=` if its signature has it | `{name: number}`, higher is better |
| `metrics` of `evaluate` | predictions and references, as a task's own metrics | `{name: number}`, reported as it is |
| `callbacks` | | instances of `t5suite.Callback`, or of any other `TrainerCallback` |

A `batch_transform` must be a function of the batch alone, row by row: then neither a restart nor the split into
micro-batches and ranks changes what an update learns. Random numbers come from `row_generators`; drawing from the
global generators is refused. `batch_metrics` are called without gradients in updates that are logged, and averaged over
the update: a tensor of the labels' shape over the labels that count (not -100), one of [B] over rows, a single number
over micro-batches, weighted by their numbers of labels.

Only what the user names is imported, never what a checkpoint names. Shapes: B rows, S source and T target tokens.
"""

import dataclasses
import functools
import hashlib
import random
from collections.abc import Callable, Mapping

import numpy as np
import torch
from transformers import TrainerCallback

from t5suite.base.errors import ConfigError
from t5suite.training.callback import names_of_suite_callbacks
from t5suite.training.plug_in_descriptions import describe_object


@dataclasses.dataclass(frozen=True)
class PlugIns:
    """What the user adds to a run; nothing by default.

    Attributes:
      callbacks: added after the suite's own; a `t5suite.Callback` carries its state over a restart.
      model_class: what `--model_class` names, only for the manifest.
    """

    batch_transform: Callable | None = None
    batch_metrics: Callable | None = None
    metrics: tuple[Callable, ...] = ()
    callbacks: tuple[TrainerCallback, ...] = ()
    model_class: type | None = None

    @functools.cached_property
    def described(self) -> dict[str, list[dict]]:
        """What the manifest says about them, by subject, each as by `describe_object`.

        A callback is described by its class: its attributes are its state, which changes while it is trained.

        >>> PlugIns(batch_transform=shorter).described
        {'batch_transform': [{'name': 'my_data:shorter', 'sha256': '9f86...'}]}
        """
        objects = {
            "batch_transform": [self.batch_transform],
            "batch_metrics": [self.batch_metrics],
            "metrics": self.metrics,
            "callbacks": [type(callback) for callback in self.callbacks],
            "model_class": [self.model_class],
        }
        described = {}
        for subject, parts in objects.items():
            descriptions = [describe_object(part) for part in parts if part is not None]
            if descriptions:
                described[subject] = descriptions
        return described


def check_callbacks(callbacks, places: list[str] | None = None) -> tuple[TrainerCallback, ...]:
    """Callbacks, each an instance of `TrainerCallback`; classes are called without arguments.

    Args:
      places: where each was named, for errors.

    Raises:
      ConfigError: one is not a callback, or two have the same class, whose states a checkpoint could not distinguish.
    """
    by_class_name: dict[str, TrainerCallback] = {}
    for i, callback in enumerate(callbacks):
        place = places[i] if places else f"callbacks[{i}]"
        if isinstance(callback, type):
            try:
                callback = callback()
            except TypeError as error:
                raise ConfigError(f"{place}: its class must need no arguments ({error})") from None
        class_name = type(callback).__name__
        if not isinstance(callback, TrainerCallback):
            raise ConfigError(f"{place}: a {class_name}, which is not a transformers.TrainerCallback")
        if class_name in by_class_name:
            raise ConfigError(f"{place}: there are two callbacks of class {class_name}")
        by_class_name[class_name] = callback
    return tuple(by_class_name.values())


def add_plug_in_callbacks(trainer, callbacks) -> None:
    """Adds them to a trainer, after its own.

    Raises:
      ConfigError: one has the name of a callback of the suite: a checkpoint could not tell their states apart.
    """
    names_of_suite = names_of_suite_callbacks()
    for callback in check_callbacks(callbacks):
        if type(callback).__name__ in names_of_suite:
            raise ConfigError(f"--callbacks: {type(callback).__name__} is the suite's own; give the class another name")
        trainer.add_callback(callback)


NO_PLUG_INS = PlugIns()


class TransformedCollator:
    """A collator whose batches go through `transform`; all other attributes are the collator's.

    Raises:
      ConfigError: the result is not a batch of the same rows, or random numbers were drawn.
    """

    def __init__(self, collator, transform: Callable[[dict], Mapping]):
        self.collator = collator
        self.transform = transform

    def __getattr__(self, name):
        if name in ("collator", "transform"):  # not set yet while a worker unpickles
            raise AttributeError(name)
        return getattr(self.collator, name)

    def __call__(self, features):
        batch = self.collator(features)
        num_rows = _num_rows(batch)
        random_state = _random_state()
        transformed = self.transform(batch)
        if not isinstance(transformed, Mapping) or not transformed:
            raise ConfigError(f"--batch_transform: it returned {transformed!r:.80}, not a batch {{name: tensor}}")
        if _random_state() != random_state:
            raise ConfigError(
                "--batch_transform: it draws from global random numbers, which a resumed run cannot repeat; "
                "draw from row_generators(batch, seed) of t5suite.training.plug_ins"
            )
        if _num_rows(transformed) != num_rows:
            raise ConfigError(
                f"--batch_transform: it gave {_num_rows(transformed)} rows for {num_rows}; "
                "it must keep the batch's rows"
            )
        return dict(transformed)


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


def _num_rows(batch: Mapping) -> int | None:
    """How many rows all tensors of a batch have; None if they differ."""
    counts = {len(tensor) for tensor in batch.values() if torch.is_tensor(tensor) and tensor.ndim}
    return counts.pop() if len(counts) == 1 else None


def _random_state() -> tuple:
    numpy_state = np.random.get_state(legacy=False)["state"]
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), numpy_state["key"].tobytes(), numpy_state["pos"]

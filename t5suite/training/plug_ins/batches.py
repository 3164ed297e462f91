"""`batch_transform`: a function of the user's own between the collator and the model.

    def hide_words(batch):                                      # my_data.py
        ids_BS = batch["input_ids"].clone()
        for row, generator in enumerate(row_generators(batch, seed=0)):
            hidden_S = torch.rand(ids_BS.shape[1], generator=generator) < 0.1
            ids_BS[row, hidden_S & (ids_BS[row] > 1)] = 2
        return {**batch, "input_ids": ids_BS}

    python fine_tune_t5.py --batch_transform my_data:hide_words

It is given what the collator made (`input_ids` and `attention_mask` [B, S], `labels` [B, T] with -100 where nothing is
to be learned, for encoder-decoders `decoder_input_ids` [B, T]) and nothing else, and gives what the model is called
with. It must be a function of the batch alone, row by row: then neither a restart nor the cut into micro-batches and
ranks changes what an update learns. Random numbers come from `row_generators`; drawing from the global ones is refused,
for a resumed run would draw others. Shapes: B rows, S source and T target tokens.
"""

import hashlib
import random
from collections.abc import Callable, Mapping

import numpy as np
import torch

from t5suite.base.errors import ConfigError
from t5suite.training.plug_ins.functions import PlugIns


class TransformedCollator:
    """A collator whose batches go through `transform`; everything else of it is the collator's.

    Raises:
      ConfigError: what comes back is no batch of the same rows, or random numbers were drawn.
    """

    def __init__(self, collator, transform: Callable[[dict], Mapping], where: str = "--batch_transform"):
        self.collator = collator
        self.transform = transform
        self.where = where

    def __getattr__(self, name):
        if name in ("collator", "transform", "where"):  # not there yet while a worker unpickles
            raise AttributeError(name)
        return getattr(self.collator, name)

    def __call__(self, features):
        batch = self.collator(features)
        rows = _rows(batch)
        before = _random_state()
        made = self.transform(batch)
        if not isinstance(made, Mapping) or not made:
            raise ConfigError(f"{self.where}: it gave {made!r:.80}, not a batch {{name: tensor}}")
        if _random_state() != before:
            raise ConfigError(
                f"{self.where}: it draws from global random numbers, which a resumed run cannot repeat; "
                "draw from row_generators(batch, seed) of t5suite.training.plug_ins.batches"
            )
        if _rows(made) != rows:
            raise ConfigError(f"{self.where}: it made {_rows(made)} rows of {rows}; it must keep the batch's rows")
        return dict(made)


def with_transform(collator, plug_ins: PlugIns):
    """The collator whose batches are trained on."""
    return TransformedCollator(collator, plug_ins.batch_transform) if plug_ins.batch_transform else collator


def row_generators(batch: Mapping, seed: int = 0) -> list[torch.Generator]:
    """One random generator a row, seeded by the row's own ids and `seed`: the same in every batch, rank and run.

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


def _rows(batch: Mapping) -> int | None:
    """The rows that all tensors of a batch have; None where they differ."""
    found = {len(value) for value in batch.values() if torch.is_tensor(value) and value.ndim}
    return found.pop() if len(found) == 1 else None


def _random_state() -> tuple:
    numpy_state = np.random.get_state(legacy=False)["state"]
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), numpy_state["key"].tobytes(), numpy_state["pos"]

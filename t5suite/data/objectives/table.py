"""What an entry of `OBJECTIVES` says of an objective.

    OBJECTIVES["prefix_lm"].family        "seq2seq"
    OBJECTIVES["prefix_lm"].heeds         ("noise_density",)         flags that change what it makes

Shape suffixes: B rows, L tokens of a block.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Objective:
    """A pre-training objective: what it is called for, and the functions that make it.

    >>> from t5suite.data.objectives import OBJECTIVES, datum_rng
    >>> inputs, targets = OBJECTIVES["span_corruption"]([5, 6, 7, 8], datum_rng(0, 0), [32099, 32098], eos_id=1)
    >>> inputs.tolist(), targets.tolist()
    ([5, 6, 7, 32099, 1], [32099, 8, 1])

    Attributes:
      family: "seq2seq", "causal" or "masked": the kind of model that learns it.
      description: one line.
      reference: the paper.
      batch: (tokens_BL, rng, **settings) -> (inputs, targets), both `Ragged`, for seq2seq. `rng` is what
        `random_keys` takes: one Generator, a sequence of one for each row, or `DatumRngs`.
      block: (inputs_length, targets_length, **settings) -> `block_lengths.Block`: the raw tokens of a block and the
        longest inputs and targets it may become.
      needs: settings of `batch` that the tokenizer or the lengths give (sentinel_ids, eos_id, ...).
      heeds: settings of `batch` that a user chooses (noise_density, ...); any other has no effect.
      weights: how often each of its denoisers is to be chosen, where it has several (UL2); `batch` and `block` then
        take a setting `denoiser`, its number.
    """

    family: str
    description: str
    reference: str
    batch: Callable
    block: Callable | None = None
    needs: tuple[str, ...] = ()
    heeds: tuple[str, ...] = ()
    weights: tuple[float, ...] = (1.0,)

    def __call__(self, tokens, rng, *args, **settings) -> tuple[np.ndarray, np.ndarray]:
        """One datum: tokens [L] -> (inputs, targets), both int64."""
        inputs, targets = self.batch(np.asarray(tokens)[None], rng, *args, **settings)
        return inputs.values, targets.values

    def unheeded(self, names: Iterable[str]) -> list[str]:
        """Those of the settings that have no effect here.

        >>> from t5suite.data.objectives import OBJECTIVES
        >>> OBJECTIVES["prefix_lm"].unheeded(["noise_density", "mean_span_length"])
        ['mean_span_length']
        """
        return [name for name in names if name not in self.heeds]

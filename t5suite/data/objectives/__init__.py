"""Pre-training objectives: token ids in, (inputs, targets) out. NumPy only.

Span corruption (arXiv:1910.10683 sec. 3.1.4, table 3) on eight tokens, two of them spans of noise:

    tokens    [ 37, 1712,  13, 8, 5234, 19, 1424,  5]       "The centre of the ..."
    mask      [  0,    0,   1, 1,    0,  0,    0,  1]       1 = noise
    inputs    [ 37, 1712, 32099, 5234, 19, 1424, 32098, 1]  each run of noise  -> one sentinel, then EOS
    targets   [32099, 13, 8, 32098, 5, 1]                   each run of clean  -> one sentinel, then EOS

Shape suffixes: B rows, L tokens of a block, I inputs, T targets, K spans, G gaps between tokens.
All lengths are in tokens. Errors that a user can fix raise ConfigError, a ValueError. Randomness comes from a
`numpy.random.Generator`; `datum_rng(seed, index)` makes the generator of a datum, so workers, batch sizes and restarts
never change the data.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from t5suite.data.objectives import denoisers, masked
from t5suite.data.objectives.corruption import Ragged, corrupt, corrupt_batch, corrupt_ragged, sentinel_ids
from t5suite.data.objectives.denoisers import UL2_DENOISERS, BlockLengths
from t5suite.data.objectives.masked import MASK_UNITS
from t5suite.data.objectives.random_numbers import DatumRngs, datum_rng
from t5suite.data.objectives.spans import corrupted_lengths, noise_counts, noise_mask, noise_masks, span_lengths
from t5suite.data.objectives.vocabulary import (
    MaskVocabulary,
    marked_word_flags,
    mask_vocabulary,
    sentence_end_flags,
    word_start_flags,
)

__all__ = [
    "MASK_UNITS", "OBJECTIVES", "UL2_DENOISERS", "BlockLengths", "DatumRngs", "MaskVocabulary", "Objective", "Ragged",
    "corrupt", "corrupt_batch", "corrupt_ragged", "corrupted_lengths", "datum_rng", "marked_word_flags",
    "mask_vocabulary", "noise_counts", "noise_mask", "noise_masks", "sentence_end_flags", "sentinel_ids",
    "span_lengths", "word_start_flags",
]  # fmt: skip


@dataclass(frozen=True)
class Objective:
    """A pre-training objective: its model family, its reference, and its functions.

    >>> from t5suite.data.objectives import OBJECTIVES, datum_rng
    >>> inputs, targets = OBJECTIVES["span_corruption"]([5, 6, 7, 8], datum_rng(0, 0), [32099, 32098], eos_id=1)
    >>> inputs.tolist(), targets.tolist()
    ([5, 6, 7, 32099, 1], [32099, 8, 1])

    Attributes:
      family: "seq2seq", "causal" or "masked": the kind of model that is trained with it.
      batch: (tokens_BL, rng, **settings) -> (inputs, targets), both `Ragged`, for seq2seq. `rng` as in
        `random_keys`: one Generator, a sequence of one for each row, or `DatumRngs`.
      block: (inputs_length, targets_length, **settings) -> `denoisers.BlockLengths`: the raw tokens of a block and the
        longest inputs and targets made from it.
      needs: settings of `batch` that the tokenizer or the lengths give (sentinel_ids, eos_id, ...).
      uses: settings of `batch` that a user chooses (noise_density, ...); any other has no effect.
      weights: the probability of each of its denoisers, if it has several (UL2); `batch` and `block` then take a
        setting `denoiser`, its number.
    """

    family: str
    reference: str
    batch: Callable
    block: Callable | None = None
    needs: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    weights: tuple[float, ...] = (1.0,)

    def __call__(self, tokens, rng, *args, **settings) -> tuple[np.ndarray, np.ndarray]:
        """One datum: tokens [L] -> (inputs, targets), both int64."""
        inputs, targets = self.batch(np.asarray(tokens)[None], rng, *args, **settings)
        return inputs.values, targets.values


OBJECTIVES = {
    "span_corruption": Objective(
        "seq2seq", "arXiv:1910.10683 sec. 3.1.4", denoisers.span_corruption, denoisers.span_corruption_block,
        needs=("sentinel_ids", "eos_id"), uses=("noise_density", "mean_span_length"),
    ),
    "iid_denoising": Objective(
        "seq2seq", "arXiv:1910.10683 sec. 3.3.2", denoisers.iid_denoising, denoisers.iid_denoising_block,
        needs=("sentinel_ids", "eos_id", "targets_length"), uses=("noise_density",),
    ),
    "unit_denoising": Objective(
        "seq2seq", "arXiv:2010.01825", denoisers.unit_denoising, denoisers.unit_denoising_block,
        needs=("sentinel_ids", "eos_id", "targets_length", "word_start_V"),
        uses=("noise_density", "mask_units", "collocations", "mean_span_length"),
    ),
    "sentence_deshuffling": Objective(
        "seq2seq", "arXiv:1910.13461 sec. 2.2", denoisers.sentence_deshuffling, denoisers.whole_text_block,
        needs=("eos_id", "sentence_end_V", "word_start_V"),
    ),
    "prefix_lm": Objective(
        "seq2seq", "arXiv:1910.10683 sec. 3.3.1", denoisers.prefix_lm, denoisers.prefix_lm_block, needs=("eos_id",),
        uses=("noise_density",),
    ),
    "full_lm": Objective(
        "seq2seq", "arXiv:1910.10683 sec. 3.2.2", denoisers.full_lm, denoisers.full_lm_block, needs=("eos_id",)
    ),
    "ul2": Objective(
        "seq2seq", "arXiv:2205.05131", denoisers.ul2, denoisers.ul2_block, needs=("sentinel_ids", "eos_id"),
        uses=("mode_token_ids",), weights=tuple(denoiser.weight for denoiser in UL2_DENOISERS),
    ),
    "masked_lm": Objective(
        "masked", "arXiv:1810.04805 sec. 3.1", masked.masked_lm_batch, needs=("vocabulary",),
        uses=("noise_density", "mask_units", "exact_count", "mean_span_length", "collocations"),
    ),
    "causal_lm": Objective("causal", "arXiv:2005.14165 sec. 2", masked.causal_lm_batch),
}  # fmt: skip

"""Blocks of tokens -> a span-corruption batch of torch tensors of fixed shape.

Shape suffixes: B rows, L tokens of a block, I inputs, T targets.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from t5suite.data.collators import IGNORED
from t5suite.data.objectives import corrupt_batch, corrupted_lengths, datum_rng, noise_counts, noise_masks, span_lengths
from t5suite.errors import ConfigError


@dataclass
class SpanCorruptionCollator:
    """Corrupts blocks with noise that depends on (seed, index) alone, so batch size and workers never change the data.

    >>> collate = SpanCorruptionCollator(sentinel_ids=[32099, 32098], eos_token_id=1, inputs_length=12, seed=0)
    >>> collate.tokens_length, collate.targets_length
    (12, 4)
    >>> batch = collate([{"input_ids": np.arange(2, 14), "index": 7}])
    >>> batch["input_ids"].tolist()
    [[2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 32099, 1]]
    >>> batch["labels"].tolist(), batch["decoder_input_ids"].tolist()
    ([[32099, 12, 13, 1]], [[0, 32099, 12, 13]])

    Every example is `{"input_ids": [tokens_length], "index": j}`, j being the run-long number of the datum; the batch
    has `input_ids` and `attention_mask` [B, inputs_length], `labels`, `decoder_input_ids` [B, targets_length] (int64).

    `tokens_length`, the raw tokens a block must have, follows from `span_lengths`; `targets_length` None means just
    enough. Nothing is padded unless the lengths leave room: at density 0.5, or with a larger `targets_length`; then
    inputs end in `pad_token_id` under a zero of the attention mask, labels in -100.

    Raises ValueError when made: too few sentinels, or targets longer than `targets_length`; when called: a block of
    another length, or an example without "index" (Trainer drops it unless `remove_unused_columns=False`).
    """

    sentinel_ids: Sequence[int]
    eos_token_id: int
    inputs_length: int = 512
    targets_length: int | None = None
    noise_density: float = 0.15
    mean_span_length: float = 3.0
    seed: int = 0
    decoder_start_token_id: int = 0
    pad_token_id: int = 0
    tokens_length: int = field(init=False)

    def __post_init__(self):
        noise = self.noise_density, self.mean_span_length
        self.tokens_length = span_lengths(self.inputs_length, *noise)[0]
        num_inputs, num_targets = corrupted_lengths(self.tokens_length, *noise)
        if self.targets_length is None:
            self.targets_length = num_targets
        _check_fits("inputs", num_inputs, self.inputs_length, self.tokens_length)
        _check_fits("targets", num_targets, self.targets_length, self.tokens_length)
        num_spans = max(noise_counts(self.tokens_length, *noise)[1], 1)
        if num_spans > len(self.sentinel_ids):
            raise ConfigError(
                f"blocks of {self.tokens_length} tokens have {num_spans} spans, but the tokenizer has "
                f"{len(self.sentinel_ids)} sentinels: lower --noise_density ({self.noise_density}) or --inputs_length "
                f"({self.inputs_length}), or raise --mean_span_length ({self.mean_span_length})"
            )

    def __call__(self, examples):
        if not examples:
            return self._batch_that_counts_for_nothing()
        tokens_BL = self._stack(examples)
        rngs = [datum_rng(self.seed, example["index"]) for example in examples]
        mask_BL = noise_masks(*tokens_BL.shape, self.noise_density, self.mean_span_length, rngs)
        inputs_BI, targets_BT = corrupt_batch(tokens_BL, mask_BL, self.sentinel_ids, self.eos_token_id)
        return self._tensors(inputs_BI, targets_BT)

    def _batch_that_counts_for_nothing(self):
        """For a rank left without rows, where an epoch's last batch is smaller than the number of ranks."""
        batch = self([{"input_ids": np.full(self.tokens_length, self.pad_token_id), "index": 0}])
        return {**batch, "labels": torch.full_like(batch["labels"], IGNORED)}

    def _stack(self, examples):
        for example in examples:
            if "index" not in example:
                raise ConfigError(
                    'an example has no "index", which its noise is drawn from: set remove_unused_columns=False in the '
                    "training arguments, and use a dataset that numbers its examples (BlockDataset)"
                )
            if len(example["input_ids"]) != self.tokens_length:
                raise ConfigError(
                    f"example {example['index']} has {len(example['input_ids'])} tokens: --inputs_length "
                    f"{self.inputs_length} needs blocks of {self.tokens_length}"
                )
        return np.stack([np.asarray(example["input_ids"]) for example in examples])

    def _tensors(self, inputs_BI, targets_BT):
        input_ids = _pad(inputs_BI, self.inputs_length, self.pad_token_id)
        attention_mask = _pad(np.ones_like(inputs_BI), self.inputs_length, 0)
        labels = _pad(targets_BT, self.targets_length, IGNORED)
        decoder_input_ids = np.empty_like(labels)
        decoder_input_ids[:, 0] = self.decoder_start_token_id
        decoder_input_ids[:, 1:] = _pad(targets_BT, self.targets_length, self.pad_token_id)[:, :-1]
        batch = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "labels": labels,
            "decoder_input_ids": decoder_input_ids,
        }
        return {name: torch.from_numpy(array) for name, array in batch.items()}


def _check_fits(side, needed, given, tokens_length):
    if needed > given:
        raise ConfigError(
            f"blocks of {tokens_length} tokens become {needed} {side}, more than --{side}_length {given}: "
            f"set --{side}_length {needed}, or change --inputs_length"
        )


def _pad(ids_BX, length, value):
    short_by = length - ids_BX.shape[1]
    return ids_BX if short_by == 0 else np.pad(ids_BX, ((0, 0), (0, short_by)), constant_values=value)

"""Span corruption a row at a time, the way it is usually told: the peer of the batched collator.

    inputs, targets = corrupt_row(tokens, rng)          568 tokens -> 512 and 114

Break marks among the gaps are shuffled, their running sum numbers the segments, segments' lengths take turns, each
run becomes a sentinel, and what is left of it is filtered out (arXiv:1910.10683 sec. 3.1.4).
"""

import numpy as np
import torch

FIRST_SENTINEL, EOS = 32099, 1


def plain_noise_mask(length, noise_density, mean_span_length, rng):
    """Bool [length]; the law is that of `t5suite.data.objectives.noise_mask`."""
    num_noise = min(max(int(np.round(length * noise_density)), 1), length - 1)
    num_spans = max(int(np.round(num_noise / mean_span_length)), 1)
    noise_lengths = segment_lengths(num_noise, num_spans, rng)
    clean_lengths = segment_lengths(length - num_noise, num_spans, rng)
    boundaries = np.cumsum(np.stack([clean_lengths, noise_lengths], axis=1).reshape(-1))[:-1]
    is_boundary = np.zeros(length, dtype=np.int64)
    is_boundary[boundaries] = 1
    return np.cumsum(is_boundary) % 2 == 1


def segment_lengths(num_tokens, num_segments, rng):
    """Lengths of a random division into non-empty segments."""
    breaks = np.arange(num_tokens - 1) < num_segments - 1
    rng.shuffle(breaks)
    segment_of_token = np.cumsum(np.concatenate([[False], breaks]))
    return np.unique(segment_of_token, return_counts=True)[1]


def plain_side(tokens, hidden):
    """One side: runs of hidden tokens become sentinels that count down, and EOS ends it."""
    starts = hidden & ~np.concatenate([[False], hidden[:-1]])
    with_sentinels = np.where(starts, FIRST_SENTINEL + 1 - np.cumsum(starts), tokens)
    return np.concatenate([with_sentinels[starts | ~hidden], [EOS]])


def corrupt_row(tokens, rng, noise_density=0.15, mean_span_length=3.0):
    mask = plain_noise_mask(len(tokens), noise_density, mean_span_length, rng)
    return plain_side(tokens, mask), plain_side(tokens, ~mask)


def plain_collate(examples, rng, noise_density=0.15, mean_span_length=3.0, start_id=0):
    """The tensors that `T5DataCollator` makes, row by row."""
    rows = [corrupt_row(np.asarray(e["input_ids"]), rng, noise_density, mean_span_length) for e in examples]
    input_ids, labels = (torch.from_numpy(np.stack(side)) for side in zip(*rows))
    return {
        "input_ids": input_ids,
        "attention_mask": torch.ones_like(input_ids),
        "labels": labels,
        "decoder_input_ids": torch.cat([torch.full((len(rows), 1), start_id), labels[:, :-1]], dim=1),
    }

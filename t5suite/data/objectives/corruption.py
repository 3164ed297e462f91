"""Tokens and a mask of noise -> inputs and targets with sentinels.

Shape suffixes: B rows, L tokens of a block, I inputs, T targets.
"""

import re

import numpy as np

from t5suite.errors import ConfigError


def corrupt(tokens, mask, sentinel_ids, eos_id=None):
    """Replace noise by sentinels in the inputs, and clean text by sentinels in the targets.

    >>> inputs, targets = corrupt([37, 1712, 13, 8, 5], [0, 0, 1, 1, 0], sentinel_ids=[32099, 32098], eos_id=1)
    >>> inputs.tolist(), targets.tolist()
    ([37, 1712, 32099, 5, 1], [32099, 13, 8, 32098, 1])

    Each maximal run becomes one sentinel; numbering starts at `sentinel_ids[0]` on each side. A mask that ends clean
    (as above) closes the targets with one more sentinel; a mask that starts with noise gives targets that start with
    raw tokens, so that their sentinels are one behind those of the inputs.

    tokens, mask: [L]. Returns two int64 arrays; `eos_id`, when given, ends both.
    Raises ValueError where the shapes differ, or a side needs more sentinels than there are.
    Source: arXiv:1910.10683 sec. 3.1.4.
    """
    tokens, mask = np.asarray(tokens), np.asarray(mask)
    if tokens.ndim != 1:
        raise ValueError(f"tokens have shape {tokens.shape}: `corrupt` takes one row, `corrupt_batch` takes several")
    inputs_1I, targets_1T = corrupt_batch(tokens[None], mask[None], sentinel_ids, eos_id)
    return inputs_1I[0], targets_1T[0]


def corrupt_batch(tokens_BL, mask_BL, sentinel_ids, eos_id=None):
    """`corrupt` for B rows at once, without a loop over rows: (inputs [B, I], targets [B, T]), int64.

    All rows must come out equally long, as they do with the masks of `noise_masks`; ValueError otherwise.
    """
    tokens_BL, mask_BL = np.asarray(tokens_BL), np.asarray(mask_BL, dtype=bool)
    if tokens_BL.ndim != 2 or tokens_BL.shape != mask_BL.shape:
        raise ValueError(f"tokens of shape {tokens_BL.shape} need a mask of the same shape, not {mask_BL.shape}")
    sentinel_ids = np.asarray(sentinel_ids, dtype=np.int64)
    starts = _run_starts(mask_BL), _run_starts(~mask_BL)
    _check_sentinels(*starts, len(sentinel_ids))
    inputs_BI = _replace_runs(tokens_BL, mask_BL, starts[0], sentinel_ids, eos_id, side="inputs")
    targets_BT = _replace_runs(tokens_BL, ~mask_BL, starts[1], sentinel_ids, eos_id, side="targets")
    return inputs_BI, targets_BT


def _run_starts(hidden_BL):
    starts_BL = hidden_BL.copy()
    starts_BL[:, 1:] &= ~hidden_BL[:, :-1]
    return starts_BL


def _check_sentinels(noise_starts_BL, clean_starts_BL, num_sentinels):
    for_inputs = int(noise_starts_BL.sum(axis=1).max(initial=0))
    for_targets = int(clean_starts_BL.sum(axis=1).max(initial=0))
    if max(for_inputs, for_targets) > num_sentinels:
        raise ConfigError(
            f"the inputs need {for_inputs} sentinels and the targets {for_targets}, but the tokenizer has "
            f"{num_sentinels}: lower --noise_density or --inputs_length, raise --mean_span_length, or use a tokenizer "
            "with more <extra_id_N> tokens"
        )


def _replace_runs(tokens_BL, hidden_BL, starts_BL, sentinel_ids, eos_id, side):
    """Each run of hidden tokens becomes the next sentinel of its row; `starts_BL` marks the first token of each run."""
    runs_per_row = starts_BL.sum(axis=1)
    first_run = np.cumsum(runs_per_row) - runs_per_row
    ranks = np.arange(runs_per_row.sum()) - np.repeat(first_run, runs_per_row)
    values_BL = tokens_BL.astype(np.int64)
    values_BL[starts_BL] = sentinel_ids[ranks]
    kept_BL = starts_BL | ~hidden_BL
    lengths = kept_BL.sum(axis=1)
    width = int(lengths.max(initial=0))
    if (lengths != width).any():
        raise ValueError(
            f"the {side} of a batch must be equally long, but come out between {lengths.min()} and {width} tokens: "
            "corrupt rows of equal noise and span counts together, or one at a time with `corrupt`"
        )
    out = np.empty((len(lengths), width + (eos_id is not None)), dtype=np.int64)
    out[:, :width] = values_BL[kept_BL].reshape(len(lengths), width)
    if eos_id is not None:
        out[:, width] = eos_id
    return out


def sentinel_ids(tokenizer):
    """Ids of `<extra_id_0>`, `<extra_id_1>`, ... in a tokenizer, in that order.

    >>> sentinel_ids(t5_tokenizer)[:3]      # doctest: +SKIP
    [32099, 32098, 32097]

    They are looked up by name: a T5 checkpoint has more embedding rows (32128) than its tokenizer has pieces (32100),
    so no sum with the vocabulary size finds them. mT5's pieces carry a leading U+2581, which is accepted.
    `tokenizer` is anything with `get_vocab()`. Raises ValueError where there are none, or a number is missing.
    """
    ids = {}
    for token, token_id in tokenizer.get_vocab().items():
        match = re.fullmatch(r"(\u2581?)<extra_id_(\d+)>", token)
        if match and not (match[1] and int(match[2]) in ids):
            ids[int(match[2])] = token_id
    if not ids:
        name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
        raise ConfigError(
            f"the tokenizer {name} has no sentinels: span corruption needs tokens <extra_id_0>, <extra_id_1>, ... "
            "(T5 tokenizers have 100; add them with `tokenizer.add_special_tokens`)"
        )
    missing = sorted(set(range(len(ids))) - set(ids))
    if missing:
        raise ConfigError(f"the tokenizer has {len(ids)} sentinels but lacks <extra_id_{missing[0]}>")
    return [ids[number] for number in range(len(ids))]

"""Pre-training objectives: token ids in, (inputs, targets) out. NumPy only.

Span corruption (arXiv:1910.10683 sec. 3.1.4, table 3) on eight tokens, two of them spans of noise:

    tokens    [ 37, 1712,  13, 8, 5234, 19, 1424,  5]       "The centre of the ..."
    mask      [  0,    0,   1, 1,    0,  0,    0,  1]       1 = noise
    inputs    [ 37, 1712, 32099, 5234, 19, 1424, 32098, 1]  each run of noise  -> one sentinel, then EOS
    targets   [32099, 13, 8, 32098, 5, 1]                   each run of clean  -> one sentinel, then EOS

Shape suffixes: B rows, L tokens of a block, I inputs, T targets, K spans, G gaps between tokens.
All lengths are in tokens. What a user can mend raises ConfigError, which is a ValueError. Randomness comes in as a
`numpy.random.Generator`; `datum_rng(seed, index)` makes the one that belongs to a datum, so that workers, batch sizes
and restarts never change the data.
"""

import re

import numpy as np

from t5suite.errors import ConfigError

# ---------------------------------------------------------------------------------------------------------------------
# Lengths


def span_lengths(inputs_length, noise_density=0.15, mean_span_length=3.0):
    """How many raw tokens fill the inputs after corruption, and how long the targets are.

    >>> span_lengths(512, 0.15, 3)
    (568, 114)

    568 tokens hold 85 tokens of noise in 28 spans: inputs 568 - 85 + 28 + EOS = 512, targets 85 + 28 + EOS = 114.
    The largest T is taken whose inputs still fit. At `noise_density` 0.5, targets that would be longer than the inputs
    cost one token; inputs and targets may then both come out one short (`corrupted_lengths`).

    Returns `(tokens_length, targets_length)`, both in tokens, EOS included in the targets.
    Raises ValueError for inputs_length < 1, a density outside [0, 1), a mean span below 1.
    Source: T5's span-length helper (arXiv:1910.10683; round is half to even, in double precision).
    """
    _check_noise(noise_density, mean_span_length)
    if inputs_length < 1:
        raise ConfigError(f"inputs_length is {inputs_length}: it must be at least 1 token")

    def lengths(num_tokens):
        num_noise = round(num_tokens * noise_density)
        num_spans = round(num_noise / mean_span_length)
        return num_tokens - num_noise + num_spans + 1, num_noise + num_spans + 1

    num_tokens = inputs_length - 1
    while lengths(num_tokens + 1)[0] <= inputs_length:
        num_tokens += 1
    num_inputs, num_targets = lengths(num_tokens)
    if noise_density == 0.5 and num_targets > num_inputs:
        return num_tokens - 1, num_targets - 1
    return num_tokens, num_targets


def noise_counts(length, noise_density=0.15, mean_span_length=3.0):
    """Number of noise tokens and of noise spans in a block: no chance is involved.

    >>> noise_counts(568, 0.15, 3)
    (85, 28)
    >>> noise_counts(190, 0.15, 3)    # single precision: 28.5 rounds up here, and down in `span_lengths`
    (29, 10)

    At least one token is noise and at least one is clean; a density of 0 or fewer than two tokens give (0, 0).
    There are never more spans than noise tokens or than clean tokens (the original fails there: density 0.9, span 1).
    Raises ValueError as `span_lengths` does.
    Source: T5's random-span mask (arXiv:1910.10683), which rounds half to even in float32.
    """
    _check_noise(noise_density, mean_span_length)
    if noise_density == 0 or length < 2:
        return 0, 0
    num_noise = int(np.rint(np.float32(length) * np.float32(noise_density)))
    num_noise = min(max(num_noise, 1), length - 1)
    num_spans = max(int(np.rint(np.float32(num_noise) / np.float32(mean_span_length))), 1)
    return num_noise, min(num_spans, num_noise, length - num_noise)


def corrupted_lengths(length, noise_density=0.15, mean_span_length=3.0):
    """Lengths that a block of `length` tokens really comes out with, EOS included on both sides.

    >>> corrupted_lengths(568, 0.15, 3)
    (512, 114)
    >>> span_lengths(11, 0.5, 3), corrupted_lengths(14, 0.5, 3)    # one short on both sides
    ((14, 11), (10, 10))

    Equal to `span_lengths` for the usual settings; elsewhere (float32 rounding, density 0.5) it may differ by 1 or 2.
    """
    num_noise, num_spans = noise_counts(length, noise_density, mean_span_length)
    num_target_sentinels = num_spans or min(length, 1)  # a block without noise is one clean run
    return length - num_noise + num_spans + 1, num_noise + num_target_sentinels + 1


def _check_noise(noise_density, mean_span_length):
    if not 0 <= noise_density < 1:
        raise ConfigError(f"noise_density is {noise_density}: it must be at least 0 and below 1 (T5: 0.15)")
    if not mean_span_length >= 1:
        raise ConfigError(f"mean_span_length is {mean_span_length}: it must be at least 1 token (T5: 3)")


# ---------------------------------------------------------------------------------------------------------------------
# Masks


def datum_rng(seed, index):
    """The generator of one datum: a function of (seed, index) alone.

    >>> datum_rng(0, 7).integers(100, size=3).tolist() == datum_rng(0, 7).integers(100, size=3).tolist()
    True

    A counter-based generator keyed by the pair: distinct pairs have distinct streams, and making one costs 9 us
    (a seeded PCG64: 17 us). Raises ValueError where either is outside [0, 2**64).
    Source: Philox4x64 (Salmon et al. 2011, doi:10.1145/2063384.2063405).
    """
    seed, index = int(seed), int(index)
    if not (0 <= seed < 2**64 and 0 <= index < 2**64):
        raise ValueError(f"seed {seed} and index {index} must both be at least 0 and below 2**64")
    return np.random.Generator(np.random.Philox(key=seed << 64 | index))


def noise_mask(length, noise_density, mean_span_length, rng):
    """Which tokens of one block are noise.

    >>> noise_mask(12, 0.25, 1.5, datum_rng(0, 0)).astype(int).tolist()
    [0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1]

    Noise and clean tokens are each cut into the same number of non-empty runs, every composition being equally
    likely, and interleaved, clean first: the first token is never noise, the last always is (from two tokens on).
    Counts are those of `noise_counts`. Returns a bool array [length]; 4 (length - 2) bytes are drawn from `rng`.
    Source: T5's random-span mask (arXiv:1910.10683).
    """
    return noise_masks(1, length, noise_density, mean_span_length, rng)[0]


def noise_masks(batch, length, noise_density, mean_span_length, rng):
    """`noise_mask` for `batch` rows at once, bool [batch, length], without a loop over rows.

    `rng` is one Generator for all rows (row by row, it gives what `noise_mask` would), or a sequence of one Generator
    per row. A uniform choice of k cuts among G gaps is the k smallest of G random keys.
    """
    num_noise, num_spans = noise_counts(length, noise_density, mean_span_length)
    if num_spans == 0:
        return np.zeros((batch, length), dtype=bool)
    num_clean = length - num_noise
    keys_BG = _shuffle_keys(batch, length - 2, rng)
    clean_BK = _random_runs(keys_BG[:, : num_clean - 1], num_clean, num_spans)
    noise_BK = _random_runs(keys_BG[:, num_clean - 1 :], num_noise, num_spans)
    runs_BK2 = np.stack([clean_BK, noise_BK], axis=2)
    is_noise = np.tile([False, True], batch * num_spans)
    return np.repeat(is_noise, runs_BK2.reshape(-1)).reshape(batch, length)


def _shuffle_keys(batch, num_keys, rng):
    """Random uint32 keys [batch, num_keys] from one generator, or from one for each row."""
    if isinstance(rng, np.random.Generator):
        raw = rng.bytes(4 * batch * num_keys)
    else:
        if len(rng) != batch:
            raise ValueError(f"{len(rng)} generators for {batch} rows: give one for all rows or one for each")
        raw = b"".join([row_rng.bytes(4 * num_keys) for row_rng in rng])
    return np.frombuffer(raw, dtype="<u4").reshape(batch, num_keys)


def _random_runs(keys_BG, num_tokens, num_runs):
    """Lengths [B, num_runs], all at least 1, of a uniform random composition of `num_tokens` (G = num_tokens - 1)."""
    (batch, num_gaps), num_cuts = keys_BG.shape, num_runs - 1
    if num_cuts == 0:
        return np.full((batch, 1), num_tokens)
    threshold_B1 = np.partition(keys_BG, num_cuts - 1, axis=1)[:, num_cuts - 1 : num_cuts]
    cut_BG = keys_BG <= threshold_B1
    if np.count_nonzero(cut_BG) != batch * num_cuts:
        _break_ties(cut_BG, keys_BG, num_cuts)
    cuts_BK = np.flatnonzero(cut_BG).reshape(batch, num_cuts) - num_gaps * np.arange(batch)[:, None] + 1
    return np.diff(cuts_BK, axis=1, prepend=0, append=num_tokens)


def _break_ties(cut_BG, keys_BG, num_cuts):
    """Among keys equal to the threshold (one row of 10**7 at 568 tokens) the earlier gap is cut."""
    for row in np.flatnonzero(cut_BG.sum(axis=1) != num_cuts):
        cut_BG[row] = False
        cut_BG[row, np.argsort(keys_BG[row], kind="stable")[:num_cuts]] = True


# ---------------------------------------------------------------------------------------------------------------------
# Corruption


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


# ---------------------------------------------------------------------------------------------------------------------
# Objectives, one datum at a time: (tokens [L], rng, sentinel_ids, eos_id, ...) -> (inputs, targets)


def span_corruption(tokens, rng, sentinel_ids, eos_id=None, noise_density=0.15, mean_span_length=3.0):
    """One block of tokens -> (inputs, targets), the noise drawn from `rng`.

    >>> tokens = [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]
    >>> inputs, targets = span_corruption(tokens, datum_rng(0, 0), [32099, 32098], eos_id=1, noise_density=0.25)
    >>> inputs.tolist(), targets.tolist()
    ([2, 3, 4, 5, 6, 7, 8, 9, 10, 32099, 1], [32099, 11, 12, 13, 1])
    """
    mask = noise_mask(len(tokens), noise_density, mean_span_length, rng)
    return corrupt(tokens, mask, sentinel_ids, eos_id)


OBJECTIVES = {
    "span_corruption": span_corruption,
}

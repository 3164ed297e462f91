"""Tokens and a mask of noise -> inputs and targets with sentinels.

Shape suffixes: B rows, L tokens of a block, I inputs, T targets.
"""

import re
from typing import NamedTuple

import numpy as np

from t5suite.base.errors import ConfigError


def corrupt(tokens, mask, sentinel_ids, eos_id=None):
    """Replace noise by sentinels in the inputs, and clean text by sentinels in the targets.

    >>> inputs, targets = corrupt([37, 1712, 13, 8, 5], [0, 0, 1, 1, 0], sentinel_ids=[32099, 32098], eos_id=1)
    >>> inputs.tolist(), targets.tolist()
    ([37, 1712, 32099, 5, 1], [32099, 13, 8, 32098, 1])

    Each maximal run becomes one sentinel; numbering starts at `sentinel_ids[0]` on each side. A mask that ends clean
    (as above) closes the targets with one more sentinel; a mask that starts with noise gives targets that start with
    raw tokens, so that their sentinels are one behind those of the inputs.

    tokens, mask: [L]. Returns two int64 arrays; `eos_id`, when given, ends both.
    Raises ValueError if the shapes differ, or a side needs more sentinels than there are.
    Source: arXiv:1910.10683 sec. 3.1.4.
    """
    tokens = np.asarray(tokens)
    mask = np.asarray(mask)
    if tokens.ndim != 1:
        raise ValueError(f"tokens have shape {tokens.shape}: `corrupt` takes one row, `corrupt_batch` takes several")
    inputs, targets = corrupt_ragged(tokens[None], mask[None], sentinel_ids, eos_id)
    return inputs.values, targets.values


def corrupt_batch(tokens_BL, mask_BL, sentinel_ids, eos_id=None):
    """`corrupt` for B rows at once, without a loop over rows: (inputs [B, I], targets [B, T]), int64.

    All rows must come out equally long, as they do with the masks of `noise_masks`; ValueError otherwise.
    `corrupt_ragged` takes any masks.
    """
    sides = corrupt_ragged(tokens_BL, mask_BL, sentinel_ids, eos_id)
    for side, name in zip(sides, ("inputs", "targets")):
        if (side.lengths != side.lengths[:1]).any():
            shortest, longest = np.sort(side.lengths - (eos_id is not None))[[0, -1]]
            raise ValueError(
                f"the {name} of a batch must be equally long, but come out between {shortest} and {longest} tokens: "
                "corrupt rows of equal noise and span counts together, or any rows with `corrupt_ragged`"
            )
    return tuple(side.padded(int(side.lengths.max(initial=0)), 0) for side in sides)


def corrupt_ragged(tokens_BL, mask_BL, sentinel_ids, eos_id=None):
    """`corrupt` for B rows at once, without a loop over rows: (inputs, targets), both `Ragged`, int64.

    >>> inputs, targets = corrupt_ragged([[5, 6, 7], [8, 9, 10]], [[0, 1, 1], [0, 1, 0]], [32099, 32098])
    >>> [row.tolist() for row in inputs.rows()], [row.tolist() for row in targets.rows()]
    ([[5, 32099], [8, 32099, 10]], [[32099, 6, 7], [32099, 9, 32098]])

    Raises ConfigError where a row has more runs than there are sentinels.
    """
    tokens_BL = np.asarray(tokens_BL)
    mask_BL = np.asarray(mask_BL, dtype=bool)
    if tokens_BL.ndim != 2 or tokens_BL.shape != mask_BL.shape:
        raise ValueError(f"tokens of shape {tokens_BL.shape} need a mask of the same shape, not {mask_BL.shape}")
    noise_runs = Runs.of(mask_BL)
    clean_runs = Runs.of(~mask_BL)
    for_inputs, for_targets = (int(runs.counts_B.max(initial=0)) for runs in (noise_runs, clean_runs))
    if max(for_inputs, for_targets) > len(sentinel_ids):
        raise ConfigError(
            f"the inputs need {for_inputs} sentinels and the targets {for_targets}, but the tokenizer has "
            f"{len(sentinel_ids)}: {remedies_of_few_sentinels(sentinel_ids, LESS_NOISE, LONGER_SPANS)}"
        )
    sentinel_ids = np.asarray(sentinel_ids, dtype=np.int64)
    tokens_BL = ended(tokens_BL, eos_id)
    return tuple(_replace(tokens_BL, runs, sentinel_ids, eos_id is not None) for runs in (noise_runs, clean_runs))


def ended(tokens_BL, eos_id):
    """Rows with EOS, if given, after each, in the narrowest dtype that fits both."""
    if eos_id is None:
        return tokens_BL
    batch, length = tokens_BL.shape
    ended_BL = np.empty((batch, length + 1), dtype=np.promote_types(tokens_BL.dtype, np.min_scalar_type(eos_id)))
    ended_BL[:, :length], ended_BL[:, length] = tokens_BL, eos_id
    return ended_BL


def _replace(tokens_BL, hidden, sentinel_ids, with_eos):
    """Each run of hidden tokens becomes the next sentinel of its row.

    The source position of every output is a running sum of ones, with a jump after each run: 0.15 ms for 128 rows of
    568 tokens (a pass over a mask takes 0.5).
    """
    batch, width = tokens_BL.shape
    first_run_B = np.cumsum(hidden.counts_B) - hidden.counts_B
    row_of_run = np.repeat(np.arange(batch), hidden.counts_B)
    jumps = hidden.lengths - 1
    jumped = np.cumsum(jumps)
    places = hidden.starts + with_eos * row_of_run - (jumped - jumps)
    total = tokens_BL.size - int(jumped[-1]) if len(jumped) else tokens_BL.size
    steps = np.ones(total + 1, dtype=np.int64)
    steps[0] = 0
    steps[places + 1] += jumps
    values = np.cumsum(steps, out=steps)[:total]
    values[:] = tokens_BL.reshape(-1).take(values)
    values[places] = sentinel_ids[np.arange(len(places)) - first_run_B[row_of_run]]
    jumped_B = np.bincount(row_of_run, weights=jumps, minlength=batch).astype(np.int64)
    return Ragged(values, width - jumped_B)


def keep(tokens_BL, kept_BL, eos_id=None):
    """The marked tokens of each row, and then `eos_id`, if given, as `Ragged`, int64.

    >>> keep(np.array([[5, 6], [7, 8]]), np.array([[True, True], [False, True]]), eos_id=1).values.tolist()
    [5, 6, 1, 8, 1]
    """
    kept_too_BL = np.ones((len(kept_BL), kept_BL.shape[1] + (eos_id is not None)), dtype=bool)
    kept_too_BL[:, : kept_BL.shape[1]] = kept_BL
    return Ragged(ended(tokens_BL, eos_id)[kept_too_BL].astype(np.int64), np.count_nonzero(kept_too_BL, axis=1))


LAST_BYTE = 258  # 0xFF, after the three special tokens
BYTE_SENTINELS = list(range(LAST_BYTE, LAST_BYTE - 100, -1))
# What makes fewer spans, in messages on too few sentinels.
LESS_NOISE = "lower --inputs_length or --noise_density"
LONGER_SPANS = "raise --mean_span_length"


def remedies_of_few_sentinels(sentinel_ids, *fewer_spans: str) -> str:
    """The end of a message on too few sentinels: what to do; ByT5's are bytes, which cannot become more.

    >>> remedies_of_few_sentinels([32099, 32098], LESS_NOISE)
    'lower --inputs_length or --noise_density, or give the tokenizer more (--num_sentinels)'
    """
    remedies = list(fewer_spans)
    if list(sentinel_ids) != BYTE_SENTINELS:
        remedies.append("give the tokenizer more (--num_sentinels)")
    *first_remedies, last_remedy = remedies
    if not first_remedies:
        return last_remedy
    return f"{', '.join(first_remedies)}, or {last_remedy}"


def sentinel_ids(tokenizer):
    """Ids of `<extra_id_0>`, `<extra_id_1>`, ... in a tokenizer, in that order.

    >>> sentinel_ids(t5_tokenizer)[:3]      # doctest: +SKIP
    [32099, 32098, 32097]

    They are looked up by name: a T5 checkpoint has more embedding rows (32128) than its tokenizer has pieces (32100),
    so they cannot be computed from the vocabulary size. mT5's pieces have a leading U+2581, which is accepted. ByT5 was
    trained with the last 100 byte ids, counted down (arXiv:2105.13626, section 3.1), and not with its tokenizer's
    extra ids.
    `tokenizer` is anything with `get_vocab()`. Raises ValueError if there are none, or a number is missing.
    """
    if type(tokenizer).__name__ == "ByT5Tokenizer":
        return list(BYTE_SENTINELS)
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
# Maximal runs of tokens, such as spans of noise, over the rows of a batch laid end to end.


class Runs(NamedTuple):
    """Maximal runs of marked tokens, within rows.

    >>> runs = Runs.of(np.array([[False, True, True, False, True], [False, False, False, True, True]]))
    >>> runs.starts.tolist(), runs.lengths.tolist(), runs.counts_B.tolist()
    ([1, 4, 8], [2, 1, 2], [2, 1])

    `starts` is the first token of each, counted over all rows, `lengths` its tokens, `counts_B` the runs of each row.
    """

    starts: np.ndarray
    lengths: np.ndarray
    counts_B: np.ndarray

    @classmethod
    def of(cls, mask_BL):
        """The runs of a mask, bool [B, L]."""
        start_BL = mask_BL.copy()
        end_BL = mask_BL.copy()
        start_BL[:, 1:] &= ~mask_BL[:, :-1]
        end_BL[:, :-1] &= ~mask_BL[:, 1:]
        starts = np.flatnonzero(start_BL)
        counts_B = np.bincount(starts // max(mask_BL.shape[1], 1), minlength=len(mask_BL))
        return cls(starts, np.flatnonzero(end_BL) + 1 - starts, counts_B)


# ---------------------------------------------------------------------------------------------------------------------
# Rows of different lengths, as one flat array.


class Ragged(NamedTuple):
    """Rows laid end to end in `values`, row b having `lengths[b]` of them.

    >>> ragged = Ragged(np.array([5, 6, 1, 7, 1]), np.array([3, 2]))
    >>> [row.tolist() for row in ragged.rows()]
    [[5, 6, 1], [7, 1]]
    >>> ragged.padded(4, -100).tolist()
    [[5, 6, 1, -100], [7, 1, -100, -100]]
    """

    values: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, rows_BX):
        """Rows that are equally long."""
        return cls(rows_BX.reshape(-1), np.full(len(rows_BX), rows_BX.shape[1]))

    def starts(self):
        """Where each row begins in `values`, [B]."""
        return np.cumsum(self.lengths) - self.lengths

    def rows(self):
        """One array a row."""
        return np.split(self.values, self.starts()[1:]) if len(self.lengths) else []

    def padded(self, width, fill):
        """[B, width], rows padded on the right; no copy if every row has that length.

        Raises ValueError where a row is longer.
        """
        longest = self.lengths.max(initial=0)
        if longest > width:
            raise ValueError(f"a row of {longest} does not fit a width of {width}")
        if len(self.values) == len(self.lengths) * width:
            return self.values.reshape(len(self.lengths), width)
        padded_BX = np.full((len(self.lengths), width), fill, dtype=self.values.dtype)
        padded_BX[np.arange(width) < self.lengths[:, None]] = self.values
        return padded_BX

    def marks(self, width):
        """Int64 [B, width]: 1 where `padded` has a row's own values, 0 for padding."""
        return (np.arange(width) < self.lengths[:, None]).astype(np.int64)

    def prepended(self, value):
        """Every row with `value` in front."""
        return Ragged(np.insert(self.values, self.starts(), value), self.lengths + 1)

    def take(self, order):
        """The rows of these numbers, in this order.

        >>> Ragged(np.array([5, 6, 1, 7, 1]), np.array([3, 2])).take(np.array([1, 0])).values.tolist()
        [7, 1, 5, 6, 1]
        """
        lengths = self.lengths[order]
        ends = np.cumsum(lengths)
        shifts = np.repeat(self.starts()[order] - (ends - lengths), lengths)
        return Ragged(self.values[np.arange(len(shifts)) + shifts], lengths)

    @classmethod
    def concatenated(cls, parts):
        """The rows of all parts, one part after the other."""
        return cls(*(np.concatenate(arrays) for arrays in zip(*parts)))

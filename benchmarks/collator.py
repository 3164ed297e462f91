"""How fast span corruption is collated, against the algorithm written plainly a row at a time.

    python -m benchmarks.collator

Both make the same tensors of 128 blocks of 568 tokens (512 inputs, 114 targets), on one thread, new noise in every
batch; they take turns, and processor time is counted. Before anything is timed, it is checked that both obey the same
law: equal counts, equal tokens from equal masks, and no difference between their span lengths and positions that a
test would notice.
"""

import itertools

import numpy as np
from scipy import stats

from benchmarks.harness import Goal, Work, run
from benchmarks.plain_span_corruption import EOS, FIRST_SENTINEL, plain_collate, plain_noise_mask, plain_side
from t5suite.data.batches.pre_training_collator import T5DataCollator
from t5suite.data.objectives import DatumRngs, corrupt_batch, datum_rng, noise_masks

SENTINELS = list(range(FIRST_SENTINEL, FIRST_SENTINEL - 100, -1))
NOISE = 0.15, 3.0
SMALLEST_P = 1e-4  # about ten tests: an honest contender fails once in a thousand runs


def check_same_law(length, num_rows):
    """`{statistic: p-value}` of two-sample tests, ours against the plain one; AssertionError where they differ."""
    ours_NL = noise_masks(num_rows, length, *NOISE, DatumRngs(7, range(num_rows)))
    rng = np.random.default_rng(7)
    plain_NL = np.stack([plain_noise_mask(length, *NOISE, rng) for _ in range(num_rows)])
    ours, plain = _statistics(ours_NL), _statistics(plain_NL)
    assert set(ours["noise tokens"]) == set(plain["noise tokens"]) and set(ours["spans"]) == set(plain["spans"])
    p_values = {}
    for name in ("first noise span", "middle noise span", "first clean span", "middle clean span"):
        p_values[f"length of the {name}"] = _chi_square_p(ours[name], plain[name])
    for name in ("first start", "middle start", "last start"):
        p_values[f"position of the {name}"] = stats.ks_2samp(ours[name], plain[name]).pvalue
    for name, p in p_values.items():
        assert p > SMALLEST_P, f"{name}: p = {p}"
    tokens_NL = np.random.default_rng(0).integers(2, 32000, ours_NL[:100].shape)
    inputs_NI, targets_NT = corrupt_batch(tokens_NL, ours_NL[:100], SENTINELS, EOS)
    for row, (tokens, mask) in enumerate(zip(tokens_NL, ours_NL)):
        np.testing.assert_array_equal(inputs_NI[row], plain_side(tokens, mask))
        np.testing.assert_array_equal(targets_NT[row], plain_side(tokens, ~mask))
    return p_values


def _statistics(mask_NL):
    """One number a row each, so that the rows' independence is the samples'."""
    num_rows, length = mask_NL.shape
    padded = np.pad(mask_NL, ((0, 0), (1, 1))).astype(np.int8)
    starts_NK = np.nonzero(np.diff(padded, axis=1) == 1)[1].reshape(num_rows, -1)
    ends_NK = np.nonzero(np.diff(padded, axis=1) == -1)[1].reshape(num_rows, -1)
    middle = starts_NK.shape[1] // 2
    return {
        "noise tokens": mask_NL.sum(axis=1),
        "spans": np.full(num_rows, starts_NK.shape[1]),
        "first noise span": ends_NK[:, 0] - starts_NK[:, 0],
        "middle noise span": ends_NK[:, middle] - starts_NK[:, middle],
        "first clean span": starts_NK[:, 0],
        "middle clean span": starts_NK[:, middle] - ends_NK[:, middle - 1],
        "first start": starts_NK[:, 0],
        "middle start": starts_NK[:, middle],
        "last start": starts_NK[:, -1],
    }


def _chi_square_p(ours, plain):
    """Two-sample chi-square over values; those seen fewer than 20 times are pooled into one cell."""
    counts = np.stack([np.bincount(sample, minlength=1 + max(ours.max(), plain.max())) for sample in (ours, plain)])
    common = counts.sum(axis=0) >= 20
    cells = np.concatenate([counts[:, common], counts[:, ~common].sum(axis=1, keepdims=True)], axis=1)
    return stats.chi2_contingency(cells[:, cells.sum(axis=0) > 0]).pvalue


def collation(device: str, batch_size=128, batches=20, rows=10_000) -> Work:
    """C1. Each is given the blocks as its own data set gives them: an array of all, or one for each row."""
    p_values = check_same_law(568, rows)
    collator = T5DataCollator(sentinel_ids=SENTINELS, eos_token_id=EOS)
    blocks_BL = np.random.default_rng(0).integers(2, 32000, (batch_size, collator.tokens_length)).astype(np.uint16)
    rng, indices = np.random.default_rng(0), itertools.count()
    examples = [{"input_ids": block} for block in blocks_BL]

    def repeat(collate):
        for _ in range(batches):
            batch = collate()
        return batch

    contenders = {
        "ours": lambda: repeat(lambda: collator(numbered(blocks_BL, indices))),
        "row by row": lambda: repeat(lambda: plain_collate(examples, rng)),
    }
    shapes = [{name: tensor.shape for name, tensor in call().items()} for call in contenders.values()]
    assert shapes[0] == shapes[1], shapes
    check_same_bits(collator, blocks_BL)
    return Work(
        f"collate {batch_size} x {collator.tokens_length}",
        contenders,
        {"row by row": Goal(0.1)},
        f"equal tokens; the same law, smallest p of {len(p_values)}: {min(p_values.values()):.3f}",
        calls=batches,
        figures={"tokens": batch_size * collator.tokens_length, "p_values": p_values},
    )


def numbered(blocks_BL, indices) -> list[dict]:
    """Blocks as a data set gives them."""
    return [{"input_ids": block, "index": index} for block, index in zip(blocks_BL, indices)]


def check_same_bits(collator, blocks_BL):
    """The collator's batch is what masks give that are drawn for each row by itself; AssertionError else."""
    batch = collator(numbered(blocks_BL, range(len(blocks_BL))))
    mask_BL = noise_masks(*blocks_BL.shape, *NOISE, [datum_rng(0, row) for row in range(len(blocks_BL))])
    inputs_BI, targets_BT = corrupt_batch(blocks_BL, mask_BL, SENTINELS, EOS)
    np.testing.assert_array_equal(batch["input_ids"].numpy(), inputs_BI)
    np.testing.assert_array_equal(batch["labels"].numpy(), targets_BT)


WORKS = {"C1": collation}

if __name__ == "__main__":
    run(__doc__, WORKS)

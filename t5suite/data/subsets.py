"""Parts of a split: fewer rows, few-shot rows, and a part of the training split kept for selection.

    >>> select_rows(10, limit=3, seed=0)
    array([2, 4, 6])

Everything is a function of the seed and the row numbers, so that a run's subset can be made again.
"""

import re

import numpy as np

from t5suite.base.errors import ConfigError, DataError

_STREAMS = {"train": 1, "validation": 2, "test": 3, "few_shot": 4, "selection": 5}


def select_rows(num_rows: int, *, limit: int | None = None, fraction: float | None = None, seed: int, role="train"):
    """Row numbers, ascending, of a random subset: `fraction` of the rows, and at most `limit` of those.

    Raises:
      ConfigError: a fraction outside (0, 1] or a limit below 1.
    """
    if fraction is not None and not 0 < fraction <= 1:
        raise ConfigError(f"--train_fraction {fraction}: must be more than 0 and at most 1")
    if limit is not None and limit < 1:
        raise ConfigError(f"--max_{'eval' if role == 'validation' else role}_samples {limit}: must be at least 1")
    kept = num_rows if fraction is None else max(1, round(num_rows * fraction))
    kept = kept if limit is None else min(kept, limit)
    if kept >= num_rows:
        return np.arange(num_rows)
    return np.sort(np.random.default_rng((seed, _STREAMS[role])).permutation(num_rows)[:kept])


def few_shot_rows(classes: list, shots: int, seed: int):
    """Row numbers, ascending, of `shots` rows of each class.

    >>> few_shot_rows([0, 0, 1, 1, 1], shots=1, seed=0)
    array([1, 2])

    Raises:
      DataError: a class has fewer rows than that.
    """
    if shots < 1:
        raise ConfigError(f"--few_shot {shots}: must be at least 1")
    order = np.random.default_rng((seed, _STREAMS["few_shot"])).permutation(len(classes))
    kept = []
    for value in sorted(set(classes), key=str):
        rows = [int(i) for i in order if classes[i] == value][:shots]
        if len(rows) < shots:
            raise DataError(f"--few_shot {shots}: class {value!r} has only {len(rows)} rows")
        kept.extend(rows)
    return np.sort(np.array(kept))


def selection_share(text: str) -> float | None:
    """The share of the training split that `--selection_split` takes away; None for 'validation'.

    >>> selection_share("train[5%]"), selection_share("validation")
    (0.05, None)
    """
    if text == "validation":
        return None
    match = re.fullmatch(r"train\[(\d+(?:\.\d+)?)%\]", text)
    share = float(match.group(1)) / 100 if match else 0
    if not 0 < share < 1:
        raise ConfigError(f"--selection_split {text!r}: write 'validation', or a share such as 'train[5%]'")
    return share


def split_for_selection(num_rows: int, share: float, seed: int):
    """(rows to train on, rows that select checkpoints), both ascending, without a row in common.

    Raises:
      DataError: one of the two would be empty.
    """
    held_out = max(1, round(num_rows * share))
    if held_out >= num_rows:
        raise DataError(f"--selection_split: {num_rows} training rows are too few to keep {share:.1%} aside")
    order = np.random.default_rng((seed, _STREAMS["selection"])).permutation(num_rows)
    return np.sort(order[held_out:]), np.sort(order[:held_out])

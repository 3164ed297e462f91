"""Which inputs a model was trained on, by hashes that its run keeps: other files may hold some of them.

>>> keep_trained_inputs(Path("runs/reviews"), hashes)
>>> trained_inputs_of_model("runs/reviews/checkpoint-400")
array([  77034826490718,  91204419482115, ...], dtype=uint64)
"""

from pathlib import Path

import numpy as np

from t5suite.base.files import whole_file
from t5suite.runs.trained_splits import run_of_model

TRAINED_INPUTS = "trained_inputs.npy"
# A run keeps no more: 8 MB. The smallest hashes of more inputs are a random part of them.
MOST_INPUTS = 1_000_000


def trained_inputs_of_model(name) -> np.ndarray:
    """The hashes that a model's run keeps, uint64 [I]; empty where there are none.

    Args:
      name: a run, a checkpoint of one, a task's best weights, or a file in one of these.
    """
    folder = run_of_model(name)
    if folder is None:
        return np.zeros(0, np.uint64)
    try:
        return np.load(folder / TRAINED_INPUTS)
    except (OSError, ValueError, EOFError):  # of an earlier version, from the hub, or damaged
        return np.zeros(0, np.uint64)


def keep_trained_inputs(directory: Path, hashes: np.ndarray) -> None:
    """Writes the hashes of the inputs that a run's weights were trained on.

    Args:
      hashes: uint64 [I], ascending.
    """
    with whole_file(directory / TRAINED_INPUTS) as temporary, open(temporary, "wb") as file:
        np.save(file, hashes[:MOST_INPUTS])

"""Fine-tunes, and notes each time that training rows are tokenized: `token_cache_worker.py NOTES FLAG ...`, alone or by
torchrun."""

import os
import sys

import fine_tune_t5
from t5suite.data.batches import training_data


def noting(path: str):
    """`bind_encoding`, which adds a line to a file for training rows."""
    bind = training_data.bind_encoding

    def bound(encoding, task, split):
        if split == "train":
            with open(path, "a", encoding="utf-8") as notes:
                notes.write(f"{os.environ.get('RANK', 0)}\n")
        return bind(encoding, task, split)

    return bound


if __name__ == "__main__":
    training_data.bind_encoding = noting(sys.argv[1])
    fine_tune_t5.main(sys.argv[2:])

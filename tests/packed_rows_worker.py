"""Trains `law_worker`'s tiny T5 on rows that examples share; run in this process, or by torchrun on two ranks.

torchrun --nproc_per_node 2 tests/packed_rows_worker.py out.json
"""

import json
import os
import sys

import law_worker

from t5suite.data.batches.packed_rows import with_packed_rows
from t5suite.models.attention import accept_packed_batches


def packing_trainer(batch_size, accumulation, most=0, row_lengths=(None, None), **settings):
    """`law_worker.make_trainer`, its batches packed."""
    trainer = law_worker.make_trainer(batch_size, accumulation, **settings)
    accept_packed_batches(trainer.model)
    trainer.data_collator = with_packed_rows(
        trainer.data_collator, trainer.train_dataset, trainer.data.order, batch_size, most, row_lengths
    )
    return trainer


def history(batch_size, accumulation, **settings) -> dict:
    """Loss and gradient norm of every update."""
    trainer = packing_trainer(batch_size, accumulation, **settings)
    trainer.train()
    lines = [line for line in trainer.state.log_history if "loss" in line]
    found = {key: [line[key] for line in lines] for key in ("loss", "grad_norm")}
    return {**found, "world_size": trainer.accelerator.num_processes}


def main(out):
    report = {"plain": history(4, 1), "accumulated": history(2, 2, most=2)}
    if int(os.environ.get("RANK", 0)) == 0:
        with open(out, "w") as file:
            json.dump(report, file)


if __name__ == "__main__":
    main(sys.argv[1])

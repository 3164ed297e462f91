"""How fast a fine-tuning batch is made, against `DataCollatorForSeq2Seq` in a `DataLoader` over a `datasets.Dataset`.

    python -m benchmarks.fine_tuning_collator

Both go through the same 8,192 rows of MNLI's lengths in the same order, 32 at a time, on one thread, in the process
that would train (`dataloader_num_workers` 0, the default of both). Before anything is timed, every tensor of an epoch
is compared bit by bit.
"""

from collections import deque

import datasets
import numpy as np
import torch
from torch.utils.data import DataLoader
from transformers import DataCollatorForSeq2Seq, T5Config, T5ForConditionalGeneration

from benchmarks.harness import Goal, Work, run
from benchmarks.plain_rows import mnli_like_rows, padding_tokenizer
from t5suite.data.batches.collators import Seq2SeqCollator
from t5suite.data.batches.features import TokenArrays
from t5suite.data.batches.samplers import EpochDataLoader, GlobalBatchSampler, shuffled_order


def collation(device: str, num_rows=8192, batch_size=32) -> Work:
    """C7."""
    rows = datasets.Dataset.from_list(mnli_like_rows(num_rows, vocabulary=32_000, seed=0))
    config = T5Config(d_model=8, d_ff=8, d_kv=4, num_heads=2, num_layers=1, decoder_start_token_id=0)
    pads = DataCollatorForSeq2Seq(padding_tokenizer(), model=T5ForConditionalGeneration(config))
    arrays, order = TokenArrays.from_dataset(rows), shuffled_order(num_rows, seed=0)

    def sampler():
        return GlobalBatchSampler(order, batch_size, accumulation=1)

    def ours():
        collator = Seq2SeqCollator(pad_token_id=0, decoder_start_token_id=0)
        return EpochDataLoader(arrays, batch_sampler=sampler(), collate_fn=collator)

    def theirs():
        return DataLoader(rows, batch_sampler=sampler(), collate_fn=pads)

    for mine, plain in zip(ours(), theirs(), strict=True):
        assert set(mine) == set(plain), (set(mine), set(plain))
        assert all(torch.equal(mine[name], plain[name]) and mine[name].dtype == plain[name].dtype for name in mine)
    batches = -(-num_rows // batch_size)
    return Work(
        f"fine-tuning batches of {batch_size} rows",
        {"ours": lambda: deque(ours(), maxlen=0), "DataCollatorForSeq2Seq": lambda: deque(theirs(), maxlen=0)},
        {"DataCollatorForSeq2Seq": Goal(0.02, 0.03)},
        f"equal tensors, bit by bit, in all {batches} batches of an epoch",
        calls=batches,
        figures={"rows": num_rows, "tokens a row": float(np.mean(arrays.input_ids.lengths))},
    )


WORKS = {"C7": collation}

if __name__ == "__main__":
    run(__doc__, WORKS)

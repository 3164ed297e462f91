"""What an epoch of fine-tuning costs, against `Seq2SeqTrainer` as its examples use it, and with its length grouping.

    python -m benchmarks.fine_tuning [--device cuda]

All train the same T5 from the same weights on the same rows of MNLI's lengths for one epoch, with the same optimizer,
rate, clipping and batch size; they differ in which rows share a batch and in how batches are made and weighed. Before
anything is timed, the loss of every row in its batch is compared with that of the row alone.
"""

import copy
import logging
import tempfile
from types import SimpleNamespace

import datasets
import numpy as np
import torch
from transformers import (
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.utils import logging as transformers_logging

from benchmarks.harness import Goal, Work, run
from benchmarks.plain_rows import mnli_like_rows, padding_tokenizer
from t5suite.data.batches.features import TokenArrays
from t5suite.data.batches.training_data import Mixing
from t5suite.training.fine_tuning_data import Data
from t5suite.training.fine_tuning_trainer import make_trainer
from t5suite.training.flags.fine_tuning import SuiteTrainingArguments
from t5suite.training.losses import token_loss
from t5suite.training.trainer import SuiteTrainer

SHARED = {
    "num_train_epochs": 1,
    "learning_rate": 1e-3,
    "lr_scheduler_type": "constant",
    "save_strategy": "no",
    "eval_strategy": "no",
    "disable_tqdm": True,
    "seed": 0,
    "report_to": "none",
}


def make_model(device: str, vocabulary: int) -> T5ForConditionalGeneration:
    """2 + 2 layers, 96 wide: a step of 16 rows takes about 0.05 s."""
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=vocabulary, d_model=96, d_kv=32, d_ff=384, num_heads=3, num_layers=2, decoder_start_token_id=0
    )
    return T5ForConditionalGeneration(config).to(device)


def their_trainer(model, rows, batch_size: int, device: str, **settings) -> Seq2SeqTrainer:
    args = Seq2SeqTrainingArguments(
        output_dir=tempfile.gettempdir(),
        per_device_train_batch_size=batch_size,
        use_cpu=device == "cpu",
        **SHARED,
        **settings,
    )
    model, tokenizer = copy.deepcopy(model), padding_tokenizer()
    collator = DataCollatorForSeq2Seq(tokenizer, model=model)
    return Seq2SeqTrainer(
        model=model, args=args, train_dataset=rows, data_collator=collator, processing_class=tokenizer
    )


def our_trainer(model, arrays: TokenArrays, batch_size: int, device: str, **settings) -> SuiteTrainer:
    """As `fine_tune_t5.py` makes it, over these rows."""
    args = SuiteTrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=batch_size,
        use_cpu=device == "cpu",
        **SHARED,
        **settings,
    )
    sets = [SimpleNamespace(task=SimpleNamespace(name="rows"))]
    data = Data(sets, [arrays], eval_sets=[], test_sets=[], selecting=[], described={}, missing=[])
    trainer, _ = make_trainer(copy.deepcopy(model), None, args, data, Mixing())
    return trainer


@torch.no_grad()
def summed_loss(trainer) -> tuple[float, int, int]:
    """Nats over all target tokens of an epoch, those tokens, and input tokens with their padding."""
    model = copy.deepcopy(trainer.model).eval()
    total, targets, places = 0.0, 0, 0
    for batch in trainer.get_train_dataloader():
        batch = {name: value.to(model.device) for name, value in batch.items() if torch.is_tensor(value)}
        labels = batch.pop("labels")
        total += float(token_loss(model(**batch).logits, labels, num_items=1))
        targets, places = targets + int(labels.ne(-100).sum()), places + batch["input_ids"].numel()
    return total, targets, places


def epoch(device: str, num_rows=512, batch_size=16, vocabulary=2048) -> Work:
    """C5."""
    transformers_logging.set_verbosity_error()
    logging.getLogger("t5suite").setLevel(logging.ERROR)
    rows = datasets.Dataset.from_list(mnli_like_rows(num_rows, vocabulary, seed=0))
    arrays, model = TokenArrays.from_dataset(rows), make_model(device, vocabulary)
    makers = {
        "ours": lambda: our_trainer(model, arrays, batch_size, device),
        "Seq2SeqTrainer": lambda: their_trainer(model, rows, batch_size, device),
        "Seq2SeqTrainer, group_by_length": lambda: their_trainer(
            model, rows, batch_size, device, train_sampling_strategy="group_by_length"
        ),
    }
    found = {name: summed_loss(make()) for name, make in makers.items()}
    losses = [total for total, _, _ in found.values()]
    assert np.ptp(losses) < 1e-6 * losses[0] and len({targets for _, targets, _ in found.values()}) == 1, found
    tokens = int(arrays.input_ids.lengths.sum())
    return Work(
        f"an epoch of {num_rows} rows, {batch_size} at a time",
        {name: lambda make=make: make().train() for name, make in makers.items()},
        {"Seq2SeqTrainer": Goal(0.55, 0.58), "Seq2SeqTrainer, group_by_length": Goal(0.90, 0.95)},
        f"equal losses over all targets, to {np.ptp(losses) / losses[0]:.1e}",
        figures={"useful share of input tokens": {name: tokens / places for name, (_, _, places) in found.items()}},
    )


WORKS = {"C5": epoch}

if __name__ == "__main__":
    run(__doc__, WORKS)

"""Trains and evaluates a tiny T5 and writes down what happened; run in this process, or by torchrun on two ranks.

torchrun --nproc_per_node 2 tests/law_worker.py out.json
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import datasets
import torch
from transformers import set_seed

from t5suite import load_task
from t5suite.data.batches.encodings import TextEncoding
from t5suite.data.batches.features import TokenArrays
from t5suite.data.batches.samplers import shuffled_order
from t5suite.data.batches.training_data import tokenize_split
from t5suite.data.rows.sources import DataOptions, load_split
from t5suite.models.loading import load_model
from t5suite.tasks.registry import Lengths
from t5suite.testing import tiny_tokenizer
from t5suite.training.eval_sets import make_eval_set
from t5suite.training.fine_tuning import make_collator, make_evaluator
from t5suite.training.flags.fine_tuning import SuiteTrainingArguments
from t5suite.training.trainer import SuiteTrainer

EVALUATION_SIZES = (1, 3, 8, 13, 17)
# Rows that do not fill the last update, whatever the cut: 8 + 8 + 5.
TRAINING_ROWS = 21
LENGTHS = Lengths(64, 16)


def tiny_model(tokenizer, seed=0):
    """A one-layer T5 without dropout, its weights large enough that outputs differ from row to row."""
    set_seed(seed)
    model = load_model(
        tokenizer=tokenizer, config_overrides="d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2,dropout_rate=0"
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    return model


def make_trainer(batch_size, accumulation, epochs=2, label_smoothing=0.0, **settings) -> SuiteTrainer:
    """A trainer over 21 rows of differing length, three updates an epoch at an update size of 8."""
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer)
    task = load_task("mini", "entailment")
    rows = load_split(task, "validation", "validation", DataOptions()).rows.select(range(TRAINING_ROWS))
    features = tokenize_split(rows, task, TextEncoding(tokenizer, LENGTHS), "train")
    args = SuiteTrainingArguments(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=accumulation, num_train_epochs=epochs, learning_rate=1e-2, optim="sgd",
        logging_steps=1, label_smoothing_factor=label_smoothing, eval_strategy="no", save_strategy="no",
        disable_tqdm=True, use_cpu=True, seed=0, **{"schedule": "constant", **settings},
    )  # fmt: skip
    return trainer_of(model, args, features, tokenizer)


def reported_by_two_ranks(worker: str, timeout: int = 300) -> dict:
    """What a worker's file writes as JSON to its first argument, run by two gloo processes."""
    out = os.path.join(tempfile.mkdtemp(), "out.json")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", worker, out]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent.parent)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(Path(out).read_text())


def trainer_of(model, args, features, tokenizer, loss=None) -> SuiteTrainer:
    """A trainer over these rows, shuffled by seed 0."""
    return SuiteTrainer(
        model=model, args=args, train_dataset=TokenArrays.concatenate([features]),
        epoch_order=shuffled_order(len(features), 0), collator=make_collator(model), loss=loss,
        processing_class=tokenizer,
    )  # fmt: skip


def train_history(batch_size, accumulation, **settings) -> dict:
    """Loss and gradient norm of every update, and the sum of absolute weights at the end."""
    trainer = make_trainer(batch_size, accumulation, **settings)
    trainer.train()
    lines = [line for line in trainer.state.log_history if "loss" in line]
    return {
        "loss": [line["loss"] for line in lines],
        "grad_norm": [line["grad_norm"] for line in lines],
        "learning_rate": [line["learning_rate"] for line in lines],
        "weights": sum(float(p.detach().double().abs().sum()) for p in trainer.model.parameters()),
        "world_size": trainer.accelerator.num_processes,
        "chunked": trainer.chunked is not None,
    }


def evaluations(batch_size=4) -> dict:
    """Metrics, loss and predictions of n rows, by method and n."""
    trainer = make_trainer(8, 1)
    tokenizer = trainer.processing_class
    evaluator = make_evaluator(make_collator(trainer.model), tokenizer, trainer.args, trainer.accelerator, False)
    evaluator.batch_size = batch_size
    found = {}
    for benchmark, name in (("mini", "entailment"), ("mini", "similarity")):
        task = load_task(benchmark, name)
        rows = load_split(task, "validation", "validation", DataOptions()).rows
        for n in EVALUATION_SIZES:
            for method in ("generate", "score"):
                part = datasets.Dataset.from_list(rows.select(range(n)).to_list())
                eval_set = make_eval_set(name, task, "validation", part, TextEncoding(tokenizer, LENGTHS), method)
                result = evaluator.evaluate(trainer.model, [eval_set]).results[name]
                found[f"{name} {method} {n}"] = {
                    "rows": result.num_rows,
                    "predictions": result.predictions,
                    "metrics": {k: repr(v) for k, v in result.metrics.items()},
                    "loss": result.loss,
                    "truncated": result.truncated,
                }
    return found


def main(out):
    report = {"train": train_history(4, 1), "train_accumulated": train_history(2, 2), "evaluate": evaluations()}
    report["train_whole_logits"] = train_history(2, 2, loss_chunk_tokens=0)
    report["scheduled"] = train_history(2, 2, schedule="linear")
    if int(os.environ.get("RANK", 0)) == 0:
        with open(out, "w") as file:
            json.dump(report, file)


if __name__ == "__main__":
    main(sys.argv[1])

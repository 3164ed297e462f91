"""Trains and evaluates a tiny T5 and writes down what happened; run in this process, or by torchrun on two ranks.

torchrun --nproc_per_node 2 tests/law_worker.py out.json
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from t5suite import load_task, testing

EVALUATION_SIZES = (1, 3, 8, 13, 17)
# Rows that do not fill the last update, whatever the cut: 8 + 8 + 5.
TRAINING_ROWS = 21


def make_trainer(batch_size, accumulation, epochs=2, label_smoothing=0.0, **settings):
    """A trainer over 21 rows of differing length, three updates an epoch at an update size of 8."""
    defaults = {"optim": "sgd", "schedule": "constant"}
    cut = {"per_device_train_batch_size": batch_size, "gradient_accumulation_steps": accumulation}
    flags = {"num_train_epochs": epochs, "label_smoothing_factor": label_smoothing, **cut}
    return testing.tiny_trainer(**defaults | flags | settings)


def reported_by_two_ranks(worker: str, timeout: int = 300) -> dict:
    """What a worker's file writes as JSON to its first argument, run by two gloo processes."""
    out = os.path.join(tempfile.mkdtemp(), "out.json")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", worker, out]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent.parent)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(Path(out).read_text())


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
    results = {}
    for name in ("entailment", "similarity"):
        task, rows = load_task("mini", name), testing.tiny_rows(name)
        for n in EVALUATION_SIZES:
            for method in ("generate", "score"):
                evaluation = testing.evaluate_rows(trainer, rows[:n], task, method, batch_size=batch_size)
                metrics = {key: repr(value) for key, value in evaluation.metrics.items()}
                results[f"{name} {method} {n}"] = evaluation._asdict() | {"metrics": metrics}
    return results


def main(out):
    report = {"train": train_history(4, 1), "train_accumulated": train_history(2, 2), "evaluate": evaluations()}
    report["train_whole_logits"] = train_history(2, 2, reference_code="loss_chunks")
    report["scheduled"] = train_history(2, 2, schedule="linear")
    if int(os.environ.get("RANK", 0)) == 0:
        with open(out, "w") as file:
            json.dump(report, file)


if __name__ == "__main__":
    main(sys.argv[1])

"""Trains modules of the user's own and writes down what happened; in this process, or by torchrun on two ranks.

torchrun --nproc_per_node 2 tests/plug_in_worker.py out.json
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import fine_tune_t5
from t5suite.data.rows.jsonl import read_jsonl

COMMON = """--dataset_name entailment --max_train_samples 21 --max_eval_samples 13 --num_train_epochs 2 --optim sgd
    --learning_rate 0.05 --train_sampling_strategy random --logging_steps 1 --use_cpu --disable_tqdm True
    --save_strategy no --load_best_model_at_end False --seed 0 --batch_transform plug_in_modules:hide_words
    --batch_metrics plug_in_modules:certainty""".split()
PLUG_INS = {
    "labels": ["--model_class", "plug_in_modules:Pooled"],
    "classes": ["--model_class", "plug_in_modules:Classifier", "--model_family", "masked"],
}


def history(kind: str, batch_size: int, accumulation: int) -> dict:
    """Losses, gradient norms and batch metrics of every update; the loss of the evaluation; predictions."""
    directory = Path(os.environ.get("PLUG_IN_RUNS") or tempfile.mkdtemp()) / f"{kind}-{batch_size}x{accumulation}"
    sizes = ["--per_device_train_batch_size", str(batch_size), "--gradient_accumulation_steps", str(accumulation)]
    results = fine_tune_t5.main(
        [*COMMON, *PLUG_INS[kind], *sizes, "--per_device_eval_batch_size", "4", "--output_dir", str(directory)]
    )
    lines = read_jsonl(directory / "metrics.jsonl")
    steps = [line for line in lines if "train/loss" in line]
    found = {name: [line[f"train/{name}"] for line in steps] for name in ("loss", "grad_norm", *MEASURED)}
    found["eval_loss"] = [line["eval/loss"] for line in lines if "eval/loss" in line]
    [predictions] = (directory / "predictions").iterdir()
    return {**found, "rows": [line["row"] for line in read_jsonl(predictions)], "results": results}


MEASURED = ("certainty", "input_length", "mean_loss")


def main(out):
    report = {kind: history(kind, 4, 1) for kind in PLUG_INS}
    if int(os.environ.get("RANK", 0)) == 0:
        Path(out).write_text(json.dumps(report))


if __name__ == "__main__":
    os.environ["PLUG_IN_RUNS"] = str(Path(sys.argv[1]).parent)
    main(sys.argv[1])

"""Does pre-training help? A small T5 is pre-trained on text, then it and a scratch twin are fine-tuned alike.

    python -m benchmarks.pretrained_vs_scratch --text texts/ --data_dir data --tokenizer spiece_folder \\
        --tasks sst2 cola --seeds 1 2 3 --output_dir runs/pretrained_vs_scratch

Both arms have the same architecture, tokenizer, rows, updates, batch, optimizer and seeds; only the weights that they
start from differ. Runs that are finished are not repeated, so an interrupted benchmark goes on. The table shows mean
and standard deviation over the seeds, in points; `results.json` in the output directory has every number.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent
MODEL = "d_model=128,d_kv=32,d_ff=512,num_layers=3,num_decoder_layers=2,num_heads=4"
PRE_TRAINING = (
    "--text_unit paragraph --validation_fraction 0.03 --max_eval_samples 2048 --inputs_length 64 "
    "--per_device_train_batch_size 16 --max_steps 4800 --eval_steps 800 --save_strategy no "
    "--optimizer adafactor --learning_rate 2e-2 --warmup_steps 0.02"
)
FINE_TUNING = (
    "--per_device_train_batch_size 32 --max_steps 300 --optimizer adafactor --learning_rate 3e-3 --warmup_steps 0.1"
)


def run(script: str, *flags: str, ranks: int = 1, threads: int = 1) -> dict:
    """Runs an entry script to its end, on so many processes, and returns its results."""
    output_dir = Path(flags[flags.index("--output_dir") + 1])
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)] if ranks > 1 else []
    command = [sys.executable, *launcher, str(ROOT / script), *flags, "--disable_tqdm", "True"]
    print("$", *command[1:], file=sys.stderr, flush=True)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    return json.loads((output_dir / "results.json").read_text(encoding="utf-8"))


def compare(options) -> dict:
    """Every run; `{"pre_train": {...}, "scores": {task: {arm: {metric: [points by seed]}}}}`."""
    out, config = Path(options.output_dir), ["--config_overrides", options.model]
    tokenizer, pre_trained = ["--tokenizer_name", options.tokenizer], out / "pre_train"
    pre_training = run(
        "pre_train_t5.py", "--train_file", *options.text, *tokenizer, *config, *options.pre_training.split(),
        "--output_dir", str(pre_trained), ranks=options.processes,
    )["tasks"]["pre_train"]  # fmt: skip
    arms = {"scratch": [*tokenizer, *config], "pre-trained": ["--model_name_or_path", str(pre_trained)]}

    def fine_tune(job) -> dict:
        task, arm, seed = job
        return run(
            "fine_tune_t5.py", "--benchmark", "glue", "--dataset_name", task, "--data_dir", options.data_dir,
            *arms[arm], *options.fine_tuning.split(), "--seed", str(seed), "--save_strategy", "no",
            "--load_best_model_at_end", "False", "--eval_strategy", "epoch", "--eval_method", "score",
            "--output_dir", str(out / f"{task}-{arm}-{seed}"),
        )["tasks"][task]  # fmt: skip

    jobs = [(task, arm, seed) for task in options.tasks for arm in arms for seed in options.seeds]
    scores: dict = {}
    with ThreadPoolExecutor(options.processes) as pool:
        for (task, arm, _), metrics in zip(jobs, pool.map(fine_tune, jobs)):
            for metric, points in metrics.items():
                scores.setdefault(task, {}).setdefault(arm, {}).setdefault(metric, []).append(points)
    return {"pre_train": pre_training, "scores": scores}


def table(found: dict) -> str:
    """Markdown: one line a task and metric.

    >>> print(table({"scores": {"sst2": {"scratch": {"accuracy": [60.0, 62.0]}, "pre-trained": {"accuracy": [70.0, 72.0]}}}}))
    | task | metric | scratch | pre-trained | seeds |
    |---|---|---|---|---|
    | sst2 | accuracy | 61.00 ± 1.41 | 71.00 ± 1.41 | 2 |
    """  # noqa: E501
    lines = ["| task | metric | scratch | pre-trained | seeds |", "|---|---|---|---|---|"]
    for task, arms in found["scores"].items():
        for metric in arms["scratch"]:
            cells = [_mean_and_deviation(arms[arm][metric]) for arm in ("scratch", "pre-trained")]
            lines.append(f"| {task} | {metric} | {cells[0]} | {cells[1]} | {len(arms['scratch'][metric])} |")
    return "\n".join(lines)


def _mean_and_deviation(points: list[float]) -> str:
    deviation = f" ± {statistics.stdev(points):.2f}" if len(points) > 1 else ""
    return f"{statistics.mean(points):.2f}{deviation}"


def main(argv=None) -> int:
    """Runs and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", nargs="+", required=True, help="files to pre-train on")
    parser.add_argument("--data_dir", required=True, help="a mirror of GLUE")
    parser.add_argument("--tokenizer", required=True, help="hub name or folder")
    parser.add_argument("--tasks", nargs="+", default=["sst2", "cola"])
    parser.add_argument("--processes", type=int, default=2, help="ranks of the pre-training; fine-tunings at once")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--output_dir", default="runs/pretrained_vs_scratch")
    parser.add_argument("--model", default=MODEL, help="--config_overrides of both arms")
    parser.add_argument("--pre_training", default=PRE_TRAINING, help="flags of pre_train_t5.py")
    parser.add_argument("--fine_tuning", default=FINE_TUNING, help="flags of fine_tune_t5.py, for both arms")
    options = parser.parse_args(argv)
    return conclude(compare(options), table, options.output_dir)


def conclude(found: dict, table, output_dir: str) -> int:
    """Writes what was found to `results.json`, and prints its table."""
    Path(output_dir, "results.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())

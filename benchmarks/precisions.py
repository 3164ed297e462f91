"""Seconds of a pre-training step in float32, TF32 and bfloat16, as it is and compiled: whole runs of `pre_train_t5.py`.

    python -m benchmarks.precisions --device cuda                          # T5 v1.1 base, 128 x 512/114, some minutes
    python -m benchmarks.precisions --device cuda --text texts/*.jsonl.gz --tokenizer t5-small    # on real text
    python -m benchmarks.precisions                                        # the same code on a tiny model

Each case is a run of its own, one after the other, of `--steps` updates with `--optimizer adamw_rms`, dropout 0, and the
text read and hidden as in any run. Told are the medians of what the run itself logs, without its first log, in which
graphs are compiled and memory is found: seconds a step, useful input tokens a second, model FLOP/s utilisation (FLOPs
counted exactly, 3 x forward; of the data sheet's bf16 peak, on a CPU of the measured matrix product), the share of time
in which it waited for data, and the most memory. The loss at the end is told, too: all cases should come to about the same.
"""  # noqa: E501

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks.ceilings import ceilings
from benchmarks.harness import environment

ROOT = Path(__file__).resolve().parent.parent
CASES = {
    "float32": "--tf32 False",
    "float32, compiled": "--tf32 False --torch_compile True",
    "TF32": "--tf32 True",
    "TF32, compiled": "--tf32 True --torch_compile True",
    "bf16": "--bf16 --tf32 True",
    "bf16, compiled": "--bf16 --tf32 True --torch_compile True",
}
# A CPU has no TF32, and refuses the flag.
ON_CPU = {name: words.replace("--tf32 False", "").replace("--tf32 True", "") for name, words in CASES.items()}
BASE = "--config_name t5-v1_1-base --inputs_length 512 --per_device_train_batch_size 128"
BASE_STEPS, TINY_STEPS = 60, 12
VOCABULARY = "vocab_size=32128"
TINY = (
    "--config_name t5-v1_1-small --inputs_length 64 --per_device_train_batch_size 4 --use_cpu --config_overrides "
    "d_model=32,d_kv=8,d_ff=64,num_heads=4,num_layers=2,num_decoder_layers=2"
)
SHARED = (
    "--dropout_rate 0 --optimizer adamw_rms --learning_rate 2e-3 --schedule constant --eval_strategy no "
    "--save_strategy no --max_eval_samples 8 --report_to none --disable_tqdm True --num_samples 0"
)
# Column: its key in metrics.jsonl, what it is multiplied by, digits.
FIGURES = {
    "s a step": ("seconds_per_step", 1, 4),
    "tokens/s": ("tokens_per_second", 1, 0),
    "MFU, %": ("mfu", 1, 1),
    "waits for data, %": ("data_wait", 1, 1),
    "memory, GB": ("peak_memory_gb", 1, 2),
    "loss": ("loss", 1, 3),
}


def command(case: str, options, folder: Path) -> list[str]:
    """The run of a case."""
    cuda = options.device == "cuda"
    words = [sys.executable, str(ROOT / "pre_train_t5.py"), *SHARED.split(), *(BASE if cuda else TINY).split()]
    words += (CASES if cuda else ON_CPU)[case].split()
    if cuda and not options.tokenizer:
        words += ["--config_overrides", VOCABULARY]  # the bundled tokenizer has 621 pieces
    if options.text:
        words += ["--train_file", *options.text]
    if options.tokenizer:
        words += ["--tokenizer_name", options.tokenizer]
    steps = options.steps
    return [*words, "--max_steps", str(steps), "--logging_steps", str(max(1, steps // 6)), "--output_dir", str(folder)]


def measured(case: str, options, folder: Path) -> dict[str, float]:
    """What a case's run logged."""
    environment = dict(os.environ) if options.device == "cuda" else {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        command(case, options, folder), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    )
    if run.returncode:
        raise SystemExit(f"{case}: pre_train_t5.py ended with {run.returncode}\n{run.stderr[-3000:]}")
    lines = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return figures([line for line in lines if "train/seconds_per_step" in line])


def figures(logs: list[dict]) -> dict[str, float]:
    """Medians of all logs but the first; the most memory, and the last loss.

    >>> figures([{"train/seconds_per_step": 9.0}, {"train/seconds_per_step": 0.2, "train/loss": 5.0}])
    {'s a step': 0.2, 'loss': 5.0}
    """
    found = {}
    for column, (name, factor, _) in FIGURES.items():
        values = [factor * line[f"train/{name}"] for line in logs[1:] if f"train/{name}" in line]
        if values:
            choose = {"memory, GB": max, "loss": lambda each: each[-1]}.get(column, statistics.median)
            found[column] = choose(values)
    return found


def table(found: dict[str, dict]) -> str:
    """Markdown, one line a case.

    >>> print(table({"bf16": {"s a step": 0.12, "loss": 5.0}}))
    | | s a step | tokens/s | MFU, % | waits for data, % | memory, GB | loss |
    |---|---|---|---|---|---|---|
    | bf16 | 0.1200 |  |  |  |  | 5.000 |
    """
    lines = [f"| | {' | '.join(FIGURES)} |", "|---" * (len(FIGURES) + 1) + "|"]
    for case, told in found.items():
        cells = [f"{told[name]:,.{digits}f}" if name in told else "" for name, (_, _, digits) in FIGURES.items()]
        lines.append(f"| {case} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(argv=None) -> int:
    """Runs every case and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--steps", type=int, help=f"updates of a case; default: {BASE_STEPS}, on a CPU {TINY_STEPS}")
    parser.add_argument("--text", nargs="+", help="files to train on; default: the bundled text")
    parser.add_argument("--tokenizer", help="hub name or folder; default: the bundled one, with 32,128 rows")
    parser.add_argument("--only", nargs="+", choices=tuple(CASES), default=tuple(CASES), metavar="CASE")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    options = parser.parse_args(argv)
    options.steps = options.steps or (BASE_STEPS if options.device == "cuda" else TINY_STEPS)
    torch.set_num_threads(1)
    limits = ceilings(options.device)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(options.only):
            if options.device == "cpu" and case.startswith("TF32"):
                continue
            found[case] = measured(case, options, Path(folder) / str(number))
            print(f"{case}: {found[case]}", file=sys.stderr, flush=True)
    print(table(found))
    if options.json:
        report = {
            "environment": environment(options.device),
            "ceilings": limits,
            "steps": options.steps,
            "cases": found,
        }
        options.json.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

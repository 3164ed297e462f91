"""How much of full fine-tuning's gain do adapters reach? One pre-trained checkpoint, four ways to use it, task by task.

    python -m benchmarks.adapters --output_dir runs/adapters                    # mini, from a checkpoint of its own
    python -m benchmarks.adapters --benchmark glue --tasks sst2 --data_dir data --model runs/pre_train \\
        --common "--max_train_samples 4000 --max_eval_samples 872" --output_dir runs/adapters_sst2

`untuned` scores the checkpoint as it is; `full` trains all of it; `lora` and `prompt_tuning` leave it frozen. All arms
choose among the task's labels (`--eval_method score`), have the same rows, batches, updates and seed, and end with the
checkpoint that was best on the rows that are scored; rates and optimizers are each arm's own. Runs that are finished
are not repeated. `gain` is the share of full fine-tuning's gain over the untuned checkpoint, of the tasks' mean.

The default checkpoint is the bundled tiny T5 after two stages over rows of `adapter_rows` (12 minutes on one core):
questions in other words than the benchmark's, then continuations of text in which its label words occur. Span
corruption alone is not enough at this size: docs/log.md.
"""

import argparse
import itertools
import json
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.adapter_rows import write_rows
from benchmarks.pretrained_vs_scratch import conclude, run

TASKS = ["sentiment", "entailment", "similarity"]
STAGES = {
    "questions": "--max_steps 6000 --learning_rate 1.5e-2",
    "continuations": "--max_steps 4000 --learning_rate 8e-3",
}
STAGE = (
    "--metrics exact_match --optimizer adafactor --schedule linear --warmup_steps 100 --per_device_train_batch_size 32 "
    "--train_sampling_strategy random --eval_strategy steps --eval_steps 1000 --save_total_limit 1 --logging_steps 200"
)
COMMON = (
    "--per_device_train_batch_size 32 --max_steps 1000 --eval_strategy steps --eval_steps 250 --save_total_limit 1 "
    "--train_sampling_strategy random --schedule linear --warmup_steps 50 --eval_method score --logging_steps 100"
)
ARMS = {
    "untuned": "--eval_only",
    "full": "--optimizer adamw --learning_rate 1e-3",
    "lora": "--adapter lora --lora_r 8 --lora_alpha 8 --optimizer adamw --learning_rate 5e-3",
    "prompt_tuning": (
        "--adapter prompt_tuning --adapter_args num_virtual_tokens=60 --optimizer adamw --learning_rate 0.1"
    ),
}
UNTRAINED = ("untuned",)


def compare(options) -> dict:
    """Every run; `{arm: {"trained": parameters, "share": %, "scores": {task: points}}}`."""
    out = Path(options.output_dir)
    model = options.model or pre_trained(out)
    data = ["--data_dir", options.data_dir] if options.data_dir else []

    def fine_tune(job) -> tuple[float, dict]:
        arm, task = job
        folder = out / f"{task}-{arm}"
        common = [] if arm in UNTRAINED else f"{COMMON} {options.common}".split()
        untrained = ["--eval_method", "score", *_evaluation_flags(options.common)] if arm in UNTRAINED else []
        results = run(
            "fine_tune_t5.py", "--benchmark", options.benchmark, "--dataset_name", task, *data,
            "--model_name_or_path", model, *common, *untrained, *getattr(options, arm).split(),
            "--seed", str(options.seed), "--output_dir", str(folder),
        )["tasks"][task]  # fmt: skip
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        return next(iter(results.values())), manifest["model"]

    jobs = [(arm, task) for task in options.tasks for arm in ARMS]
    found: dict = {arm: {"scores": {}} for arm in ARMS}
    with ThreadPoolExecutor(options.processes) as pool:
        for (arm, task), (score, described) in zip(jobs, pool.map(fine_tune, jobs)):
            trained = 0 if arm in UNTRAINED else described["trainable"]
            found[arm] |= {"trained": trained, "share": 100 * trained / described["parameters"]}
            found[arm]["scores"][task] = score
    return found


def pre_trained(out: Path) -> str:
    """The bundled tiny T5 from random weights, through both stages; where it lies."""
    folder, start = None, []
    for stage, rows in write_rows(out / "rows").items():
        folder = str(out / stage)
        run(
            "fine_tune_t5.py", "--data_format", "jsonl", "--train_dir", str(rows), *STAGE.split(),
            *STAGES[stage].split(), *start, "--output_dir", folder,
        )  # fmt: skip
        start = ["--model_name_or_path", folder]
    return folder


def gains(found: dict) -> dict[str, float]:
    """Per arm, its share of full fine-tuning's gain, in percent of the tasks' mean.

    >>> gains({"untuned": {"scores": {"a": 50}}, "full": {"scores": {"a": 90}}, "lora": {"scores": {"a": 88}}})
    {'untuned': 0.0, 'full': 100.0, 'lora': 95.0}
    """
    means = {arm: statistics.mean(entry["scores"].values()) for arm, entry in found.items()}
    whole = means["full"] - means["untuned"]
    return {arm: 100 * (mean - means["untuned"]) / whole if whole else float("nan") for arm, mean in means.items()}


def table(found: dict) -> str:
    """Markdown: one line an arm."""
    tasks = list(found["full"]["scores"])
    lines = [f"| arm | trained | {' | '.join(tasks)} | gain |", "|---|---|" + "---|" * (len(tasks) + 1)]
    for arm, gain in gains(found).items():
        entry = found[arm]
        scores = " | ".join(f"{entry['scores'][task]:.2f}" for task in tasks)
        lines.append(f"| {arm} | {entry['trained']} ({entry['share']:.2f}%) | {scores} | {gain:.1f}% |")
    return "\n".join(lines)


def _evaluation_flags(common: str) -> list[str]:
    """Of the common flags, those that an evaluation uses."""
    words = common.split()
    return [word for flag, value in itertools.pairwise(words) if flag == "--max_eval_samples" for word in (flag, value)]


def main(argv=None) -> int:
    """Runs and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", default="runs/adapters")
    parser.add_argument("--model", help="a checkpoint; default: one is made first")
    parser.add_argument("--benchmark", default="mini")
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--data_dir", help="a mirror of the benchmark")
    parser.add_argument("--common", default="", help="further flags of every arm that is trained")
    parser.add_argument("--processes", type=int, default=1, help="runs at once")
    parser.add_argument("--seed", type=int, default=42)
    for arm, flags in ARMS.items():
        parser.add_argument(f"--{arm}", default=flags, help="its own flags of fine_tune_t5.py")
    options = parser.parse_args(argv)
    return conclude(compare(options), table, options.output_dir)


if __name__ == "__main__":
    sys.exit(main())

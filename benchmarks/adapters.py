"""How much of full fine-tuning's gain do adapters reach? One pre-trained checkpoint, four ways to use it, task by task.

    python -m benchmarks.adapters --output_dir runs/adapters                    # mini, from its own pre-training
    python -m benchmarks.adapters --benchmark glue --tasks sst2 --data_dir data --model runs/pre_train \\
        --common "--max_train_samples 4000 --max_eval_samples 872" --output_dir runs/adapters_sst2

`untuned` scores the checkpoint as it is; `full` trains all of it; `lora` and `prompt_tuning` leave it frozen. All arms
choose among the task's labels (`--eval_method score`), have the same rows, batches, updates and seed, and end with the
checkpoint that was best on the rows that are scored; rates and optimizers are each arm's own. LoRA also trains the
embedding rows of the label words, some of which the checkpoint has never seen. Runs that are finished are not
repeated. `gain` is the share of full fine-tuning's gain over the untuned checkpoint, of the tasks' mean.
"""

import argparse
import itertools
import json
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.pretrained_vs_scratch import conclude, run
from t5suite.models.loading import load_tokenizer
from t5suite.tasks.registry import load_task

TASKS = ["sentiment", "entailment", "similarity"]
COMMON = (
    "--per_device_train_batch_size 32 --max_steps 2500 --eval_strategy steps --eval_steps 250 --save_total_limit 1 "
    "--train_sampling_strategy random --schedule linear --warmup_steps 100 --eval_method score --logging_steps 100"
)
ARMS = {
    "untuned": "--eval_only",
    "full": "--optimizer adamw --learning_rate 1e-3",
    "lora": "--adapter lora --lora_r 8 --lora_alpha 8 --adapter_args trainable_token_indices={label_tokens} "
    "--optimizer adamw --learning_rate 2e-2",
    "prompt_tuning": "--adapter prompt_tuning --num_virtual_tokens 60 --optimizer adamw --learning_rate 0.5",
}
UNTRAINED = ("untuned",)


def compare(options) -> dict:
    """Every run; `{arm: {"trained": parameters, "share": %, "scores": {task: points}}}`."""
    out = Path(options.output_dir)
    model = options.model
    if model is None:
        model = str(out / "pre_train")
        run("pre_train_t5.py", "mini_pre_train.yaml", "--output_dir", model)
    data = ["--data_dir", options.data_dir] if options.data_dir else []

    def fine_tune(job) -> tuple[float, dict]:
        arm, task = job
        folder = out / f"{task}-{arm}"
        common = [] if arm in UNTRAINED else f"{COMMON} {options.common}".split()
        untrained = ["--eval_method", "score", *_evaluation_flags(options.common)] if arm in UNTRAINED else []
        own = getattr(options, arm).replace("{label_tokens}", label_tokens(options.benchmark, task, model))
        results = run(
            "fine_tune_t5.py", "--benchmark", options.benchmark, "--dataset_name", task, *data,
            "--model_name_or_path", model, *common, *untrained, *own.split(),
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


def label_tokens(benchmark: str, task: str, model: str) -> str:
    """The pieces of a task's labels, whose embeddings a model has not learnt that never saw the words.

    >>> label_tokens("mini", "sentiment", "runs/pre_train")
    '(1,304,373)'
    """
    texts = load_task(benchmark, task).candidates({})
    ids = {number for text in texts for number in load_tokenizer(model)(text)["input_ids"]}
    return f"({','.join(map(str, sorted(ids)))})"


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
    """Of the common flags, those that an evaluation heeds."""
    words = common.split()
    return [word for flag, value in itertools.pairwise(words) if flag == "--max_eval_samples" for word in (flag, value)]


def main(argv=None) -> int:
    """Runs and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", default="runs/adapters")
    parser.add_argument("--model", help="a checkpoint; default: mini's is pre-trained first")
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

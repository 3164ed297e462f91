"""Four whole jobs with the bundled model and benchmark, each checked by its result: does this environment work?

    $ python -m tools.whole_jobs build/jobs
    {"job": "fine-tuning with beams", "passed": true, "result": "256 answers of four beams equal transformers' own"}

Where a check has a reference, that is plain transformers, which this process uses without the suite. A JSON line a job;
the exit code is 1 if one failed. Minutes on one core, no network.
"""

import argparse
import gzip
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROWS = ROOT / "t5suite/data/mini/similarity/validation.jsonl.gz"
NUM_ROWS, MAX_NEW_TOKENS, BATCH = 256, 8, 32
FINE_TUNING = ("fine_tune_t5.py", "mini.yaml", "--dataset_name", "similarity", "--eval_strategy", "no", "--use_cpu")
# Checkpoints at steps 100 and 200; the killed run dies between them.
RESUMED = (
    *FINE_TUNING,
    "--max_steps",
    "200",
    "--save_strategy",
    "steps",
    "--save_steps",
    "100",
    "--dropout_rate",
    "0.1",
)
PRE_TRAINING = ("pre_train_t5.py", "mini_pre_train.yaml", "--max_steps", "60", "--logging_steps", "10", "--use_cpu")
# Seconds that any command may take; a job takes about twenty.
LONGEST = 900


class JobError(Exception):
    """A job's result is not what it must be."""


def main(argv=None) -> int:
    """Runs the jobs; 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m tools.whole_jobs", description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="where the runs are written; emptied before")
    folder = parser.parse_args(argv).folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    passed = [passes(name, job, folder) for name, job in JOBS.items()]
    return 0 if all(passed) else 1


def passes(name: str, job, folder: Path) -> bool:
    """Runs one job and prints its line."""
    try:
        line = {"job": name, "passed": True, "result": job(folder)}
    except (JobError, OSError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
        line = {"job": name, "passed": False, "result": f"{type(error).__name__}: {error}"}
    print(json.dumps(line), flush=True)
    return line["passed"]


def fine_tuning_with_beams(folder: Path) -> str:
    """Answers of `t5suite predict` with four beams are those of transformers' `generate`."""
    run(*FINE_TUNING, "--max_steps", "400", "--output_dir", folder / "run")
    texts = input_texts()
    answers = suite_answers(folder / "run", texts, folder / "beams.jsonl", num_beams=4)
    compare(answers, plain_answers(folder / "run", texts, num_beams=4))
    if len(set(answers)) < 3:
        raise JobError(f"nothing was learned: all answers are among {sorted(set(answers))}")
    return f"{len(answers)} answers of four beams equal transformers' own; {len(set(answers))} different ones"


def kill_and_resume(folder: Path) -> str:
    """A run that is killed after its first checkpoint and started again ends with the same weights, bit for bit."""
    run(*RESUMED, "--output_dir", folder / "uninterrupted")
    killed = folder / "killed"
    kill_after(killed / "checkpoint-100", *RESUMED, "--output_dir", killed)
    if (killed / "checkpoint-200").exists():
        raise JobError("the run ended before it was killed")
    run(*RESUMED, "--output_dir", killed)
    weights = [(path / "model.safetensors").read_bytes() for path in (folder / "uninterrupted", killed)]
    if weights[0] != weights[1]:
        raise JobError("the resumed run's weights differ from those of the uninterrupted run")
    return f"killed by SIGKILL after step 100, resumed to step 200: the same {len(weights[0]):,} bytes of weights"


def pre_training(folder: Path) -> str:
    """The loss of training is finite and falls."""
    run(*PRE_TRAINING, "--output_dir", folder / "pre_training")
    lines = (folder / "pre_training/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    losses = [row["train/loss"] for row in map(json.loads, lines) if "train/loss" in row]
    if len(losses) < 3 or not all(map(math.isfinite, losses)) or losses[-1] > 0.9 * losses[0]:
        raise JobError(f"losses {losses}")
    return f"loss {losses[0]:.3f} at first, {losses[-1]:.3f} at last"


def export(folder: Path) -> str:
    """Plain transformers load what is exported, and give the answers that the suite gives with the run's model."""
    run("-m", "t5suite", "export", "--model_name_or_path", folder / "run", "--output_dir", folder / "exported")
    texts = input_texts()
    answers = suite_answers(folder / "run", texts, folder / "greedy.jsonl", num_beams=1)
    compare(answers, plain_answers(folder / "exported", texts, num_beams=1))
    return f"{len(answers)} greedy answers of the exported model equal those of the run's"


def input_texts() -> list[str]:
    """Inputs as the task's entry makes them of the validation rows."""
    with gzip.open(ROWS, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file][:NUM_ROWS]
    return [f"similarity sentence1: {row['sentence1']} sentence2: {row['sentence2']}" for row in rows]


def suite_answers(model: Path, texts: list[str], output: Path, num_beams: int) -> list[str]:
    """Answers of `t5suite predict` to finished texts."""
    lines = output.with_suffix(".txt")
    lines.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    run(
        "-m",
        "t5suite",
        "predict",
        "--model_name_or_path",
        model,
        "--use_cpu",
        "--raw",
        "--input",
        lines,
        "--output",
        output,
        "--num_beams",
        str(num_beams),
        "--max_new_tokens",
        str(MAX_NEW_TOKENS),
    )
    return [json.loads(line)["prediction"] for line in output.read_text(encoding="utf-8").splitlines()]


def plain_answers(model: Path, texts: list[str], num_beams: int) -> list[str]:
    """Answers of transformers alone: its tokenizer, its model, its `generate`."""
    import torch
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForSeq2SeqLM.from_pretrained(model, dtype=torch.float32).eval()
    answers = []
    for start in range(0, len(texts), BATCH):
        batch = tokenizer(texts[start : start + BATCH], padding=True, return_tensors="pt")
        with torch.no_grad():
            ids = network.generate(
                **batch, num_beams=num_beams, do_sample=False, max_new_tokens=MAX_NEW_TOKENS, use_cache=True
            )
        answers += tokenizer.batch_decode(ids, skip_special_tokens=True)
    if any(name.partition(".")[0] == "t5suite" for name in sys.modules):
        raise JobError("the reference is no plain transformers: the suite is loaded, too")
    return answers


def compare(answers: list[str], expected: list[str]) -> None:
    """Raises where answers differ."""
    different = [pair for pair in zip(answers, expected, strict=True) if pair[0] != pair[1]]
    if different:
        raise JobError(f"{len(different)} of {len(expected)} answers differ; (ours, transformers'): {different[:3]}")


def run(*words) -> None:
    """Runs Python with these words, from the checkout."""
    done = subprocess.run(command(words), cwd=ROOT, env=surroundings(), capture_output=True, text=True, timeout=LONGEST)
    if done.returncode != 0:
        raise JobError(f"{words[:3]} ended with {done.returncode}: {done.stderr[-2000:]}")


def kill_after(path: Path, *words) -> None:
    """Starts Python with these words and kills it once a file is there."""
    process = subprocess.Popen(
        command(words), cwd=ROOT, env=surroundings(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + LONGEST
    while not path.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    if process.wait() != -signal.SIGKILL:
        raise JobError(f"the run ended with {process.returncode} before it could be killed")


def command(words) -> list[str]:
    """A command line of this environment's Python."""
    return [sys.executable, *map(str, words)]


def surroundings() -> dict[str, str]:
    """The environment's variables: no network, and the checkout's code."""
    return {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false"}


JOBS = {
    "fine-tuning with beams": fine_tuning_with_beams,
    "kill and resume": kill_and_resume,
    "pre-training": pre_training,
    "export": export,
}

if __name__ == "__main__":
    sys.exit(main())

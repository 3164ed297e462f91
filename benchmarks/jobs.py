"""Whole jobs, from the start of a command to its end, against what people use today (`benchmarks.stock`).

    python -m benchmarks.jobs --only J1 J6                 # processor seconds of whole processes, by turns
    T5SUITE_BEFORE=/tmp/older python -m benchmarks.jobs    # an older checkout of ours as one more contender

The model is a T5 of 5.4M parameters (4 + 4 layers, width 128, T5's vocabulary), with the same weights for both sides;
rows are GLUE's (`T5SUITE_DATA_DIR`), text is real where there is any (`benchmarks.texts`); a job whose rows
are missing is left out. Every command begins with empty caches.
"""

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from transformers import T5Config, T5ForConditionalGeneration

from benchmarks.harness import OURS, Work, run
from benchmarks.texts import documents, t5_tokenizer

ROOT = Path(__file__).resolve().parent.parent
BEFORE = os.environ.get("T5SUITE_BEFORE")
GLUE = {
    "mrpc": (["sentence1", "sentence2"], ["not_equivalent", "equivalent"]),
    "sst2": (["sentence"], ["negative", "positive"]),
    "rte": (["sentence1", "sentence2"], ["entailment", "not_entailment"]),
    "mnli": (["hypothesis", "premise"], ["entailment", "neutral", "contradiction"]),
}
QUIET = "--disable_tqdm True --report_to none --use_cpu".split()
PLAIN = [*QUIET, "--learning_rate", "1e-3", "--lr_scheduler_type", "constant", "--save_strategy", "no"]


@functools.cache
def place() -> Path:
    """Where models, texts and outputs of this measurement lie."""
    return Path(tempfile.mkdtemp(prefix="jobs-"))


@functools.cache
def model() -> str:
    folder = place() / "model"
    tokenizer = t5_tokenizer()
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=len(tokenizer), d_model=128, d_kv=32, d_ff=256, num_layers=4, num_heads=4, decoder_start_token_id=0
    )
    T5ForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@functools.cache
def text(megabytes: float) -> str:
    path = place() / f"text-{megabytes}.txt"
    lines = [" ".join(document.split()) for document in documents(megabytes)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def data(task: str, split: str) -> Path | None:
    """A local file of GLUE rows; None where there is none."""
    folder = Path(os.environ.get("T5SUITE_DATA_DIR", "/nowhere")) / "glue" / task
    return next((path for path in (folder / f"{split}.jsonl", folder / f"{split}.jsonl.gz") if path.is_file()), None)


def command(*words, tree: Path = ROOT) -> None:
    """Runs `python WORDS` of a tree to its end, with caches of its own; `{out}` is a new folder."""
    out = Path(tempfile.mkdtemp(dir=place()))
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment |= {
        "HF_HOME": f"{out}/hf",
        "XDG_CACHE_HOME": f"{out}/cache",
        "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "disabled",
    }
    given = [str(word).replace("{out}", f"{out}/run").replace("{tree}", str(tree)) for word in words]
    done = subprocess.run([sys.executable, *given], env=environment, cwd=out, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(given)} ended with {done.returncode}: {done.stderr[-2000:]}")
    shutil.rmtree(out)


def contenders(ours: list, **peers: list) -> dict:
    """Calls by name: ours, an older checkout's, and the peers' (`benchmarks.stock`)."""
    found = {OURS: functools.partial(command, *ours)}
    if BEFORE:
        found["before"] = functools.partial(command, *ours, tree=Path(BEFORE))
    stock = ["-m", "benchmarks.stock"]
    return found | {name.replace("_", " "): functools.partial(command, *stock, *words) for name, words in peers.items()}


def glue(task: str, *flags) -> list:
    folder = os.environ["T5SUITE_DATA_DIR"]
    where = ["--benchmark", "glue", "--dataset_name", task, "--data_dir", folder, "--model_name_or_path", model()]
    return ["{tree}/fine_tune_t5.py", *where, "--output_dir", "{out}", *PLAIN, *flags]


def stock(task: str, *splits: str) -> list:
    columns, labels = GLUE[task]
    files = [word for split in splits for word in (f"--{split}", data(task, split))]
    return ["fine_tune", "--model", model(), "--task", task, "--columns", *columns, "--labels", *labels, *files]


def needs(*found) -> bool:
    if not all(found):
        print("left out: needs GLUE's rows (T5SUITE_DATA_DIR)", file=sys.stderr)
    return all(found)


def fine_tune(device: str) -> Work | None:
    """J1."""
    if not needs(data("mrpc", "train")):
        return None
    ours = glue("mrpc", "--num_train_epochs", 1, "--per_device_train_batch_size", 16, "--eval_strategy", "epoch",
                "--load_best_model_at_end", "False")  # fmt: skip
    theirs = [*stock("mrpc", "train", "validation"), "--output_dir", "{out}"]
    calls = contenders(ours, stock=theirs, stock_group_by_length=[*theirs, "--sampling", "group_by_length"])
    return Work("MRPC: an epoch, answers, saved", calls, {}, "the same rows, weights, rate and batch size")


def evaluate(task: str, device: str) -> Work | None:
    """J2."""
    if not needs(data(task, "validation")):
        return None
    theirs = stock(task, "validation")
    calls = contenders(glue(task, "--eval_only"), stock_8_rows=theirs, stock_64_rows=[*theirs, "--eval_batch_size", 64])
    return Work(f"evaluate {task} by generation", calls, {}, "the same rows and weights")


def pre_train(device: str) -> Work:
    """J3."""
    ours = ["{tree}/pre_train_t5.py", "--model_name_or_path", model(), "--train_file", text(4), "--inputs_length", 256]
    ours += [
        "--per_device_train_batch_size",
        16,
        "--max_steps",
        60,
        "--eval_strategy",
        "no",
        *PLAIN,
        "--output_dir",
        "{out}",
    ]
    theirs = [
        "pre_train",
        "--model",
        model(),
        "--text",
        text(4),
        "--length",
        284,
        "--max_steps",
        60,
        "--output_dir",
        "{out}",
    ]
    return Work(
        "60 updates of 16 x 256 from text", contenders(ours, nanoT5_s_way=theirs), {}, "the same text and sizes"
    )


def corpus(megabytes: float, device: str) -> Work:
    """J4, J7c."""
    ours = [
        "-m",
        "t5suite",
        "corpus",
        "build",
        "--input",
        text(megabytes),
        "--tokenizer_name",
        model(),
        "--output_dir",
        "{out}",
    ]
    theirs = ["corpus", "--model", model(), "--text", text(megabytes), "--output_dir", "{out}"]
    return Work(f"a corpus of {megabytes} MB", contenders(ours, datasets=theirs), {}, "the same text")


def sweep(device: str) -> Work:
    """J5: four trials of two steps; the stock scripts one after the other."""
    settings = {"benchmark": "mini", "dataset_name": "sentiment", "max_steps": 2, "max_train_samples": 64}
    settings |= {"max_eval_samples": 64, "use_cpu": True, "disable_tqdm": True, "model_name_or_path": model()}
    parameters = {name: {"value": value} for name, value in settings.items()}
    parameters["learning_rate"] = {"values": [1e-4, 3e-4, 1e-3, 3e-3]}
    content = {"method": "grid", "metric": {"name": "eval/accuracy", "goal": "maximize"}, "parameters": parameters}
    path = place() / "sweep.yaml"
    content["command"] = [sys.executable, "-m", "fine_tune_t5", "${args}"]
    path.write_text(json.dumps(content), encoding="utf-8")
    folder = ROOT / "t5suite" / "data" / "mini" / "sentiment"
    theirs = ["fine_tune", "--model", model(), "--max_steps", 2, "--max_train_samples", 64, "--task", "mini"]
    theirs += [
        "--train",
        folder / "train.jsonl.gz",
        "--validation",
        folder / "validation.jsonl.gz",
        "--output_dir",
        "{out}",
    ]
    calls = contenders(["-m", "t5suite", "sweep", str(path), "--sweep_dir", "{out}"])
    calls["stock"] = lambda: [
        command("-m", "benchmarks.stock", *theirs, "--learning_rate", rate) for rate in (1e-4, 3e-4, 1e-3, 3e-3)
    ]
    return Work("four trials of two steps", calls, {}, "the same rows and rates")


def first_step(device: str, task: str = "sentiment") -> Work:
    """J6."""
    ours = [
        "{tree}/fine_tune_t5.py",
        "--benchmark",
        "mini",
        "--dataset_name",
        task,
        "--model_name_or_path",
        model(),
        "--max_steps",
        1,
    ]
    ours += [
        "--max_train_samples",
        64,
        "--eval_strategy",
        "no",
        "--per_device_train_batch_size",
        16,
        *PLAIN,
        "--output_dir",
        "{out}",
    ]
    rows = ROOT / "t5suite" / "data" / "mini" / task / "train.jsonl.gz"
    theirs = [
        "fine_tune",
        "--model",
        model(),
        "--task",
        task,
        "--train",
        rows,
        "--max_steps",
        1,
        "--max_train_samples",
        64,
    ]
    return Work(
        "start to the end of one step", contenders(ours, stock=[*theirs, "--output_dir", "{out}"]), {}, "the same rows"
    )


def rows(number: int, device: str) -> Work | None:
    """J7."""
    if not needs(data("mnli", "train")):
        return None
    ours = glue("mnli", "--max_train_samples", number, "--max_steps", 1, "--eval_strategy", "no")
    theirs = [*stock("mnli", "train"), "--max_train_samples", number, "--max_steps", 1, "--output_dir", "{out}"]
    return Work(f"load and tokenize {number} rows", contenders(ours, stock=theirs), {}, "the same rows")


WORKS = {
    "J1": fine_tune,
    "J2": functools.partial(evaluate, "sst2"),
    "J2r": functools.partial(evaluate, "rte"),
    "J3": pre_train,
    "J4": functools.partial(corpus, 15),
    "J5": sweep,
    "J6": first_step,
    "J7": functools.partial(rows, 4000),
    "J7c": functools.partial(corpus, 1),
}

if __name__ == "__main__":
    try:
        run(__doc__, WORKS)
    finally:
        shutil.rmtree(place(), ignore_errors=True)

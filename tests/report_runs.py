"""Run directories as finished runs leave them, without a training: real rows of the bundled tasks, made-up answers.

>>> directory = make_run(folder / "s1", "sentiment", seed=1, wrong=0.2)
"""

import json
import random
from pathlib import Path

from t5suite import Task, load_task
from t5suite.data.rows.formats import OWN_BENCHMARK, Wishes, format_source, own_entry
from t5suite.data.rows.jsonl import without_nan
from t5suite.data.rows.sources import DataOptions, load_split
from t5suite.data.rows.subsets import select_rows
from t5suite.testing import write_rows

SETTINGS = {"model_name_or_path": "google-t5/t5-small", "max_source_length": 512, "learning_rate": 1e-3,
            "max_steps": 30, "output_dir": "somewhere"}  # fmt: skip


def answers(task, examples, wrong: float, invalid: float, drawn) -> list[str]:
    found = []
    for example in examples:
        chance = drawn.random()
        others = [word for word in task.label_words or ["0.0", "1.0", "4.8"] if word != example.targets]
        is_wrong = invalid <= chance < invalid + wrong
        found.append("no label" if chance < invalid else drawn.choice(others) if is_wrong else example.targets)
    return found


def curve_lines(seed: int, metrics: dict) -> list[dict]:
    """What a run of 30 steps logs; the last evaluation is the results'."""
    drawn, lines = random.Random(seed), []
    for step in (10, 20, 30):
        base = {"step": step, "epoch": step / 30, "seconds": float(step)}
        lines.append({**base, "train/loss": 3 / step + drawn.random() / 10, "train/tokens_per_second": 900.0 + step,
                      "train/seconds_per_step": 0.5, "train/mfu": 30.0 + drawn.random()})  # fmt: skip
        share = 1.0 if step == 30 else step / 40
        scores = {f"eval/{name}": None if value is None else value * share for name, value in metrics.items()}
        lines.append({**base, **scores})
    return [*lines, {"step": 30, "epoch": 1.0, "seconds": 31.0, "train/train_runtime": 30.5, "train/train_loss": 0.7}]


def make_run(directory, name: str, seed=1, wrong=0.2, invalid=0.02, benchmark="mini", limit=40, data_dir=None,
             predictions=None, finished=True, metrics_file=True, **settings) -> Path:  # fmt: skip
    """A run directory; `predictions` replaces the made-up answers."""
    task = load_task(benchmark, name)
    role = "validation" if task.splits("validation") else "test"
    (result, split), *_ = task.splits(role).items()
    loaded = load_split(task, role, split, DataOptions(data_dir=data_dir))
    rows = [loaded.rows[int(number)] for number in select_rows(len(loaded.rows), limit=limit, seed=seed, role=role)]
    examples = [(at, example) for at, row in enumerate(rows) for example in task.examples(row, role)]
    texts = predictions or answers(task, [example for _, example in examples], wrong, invalid, random.Random(seed))
    lines, seen = [], {}
    for (at, example), text in zip(examples, texts, strict=True):
        line = {"row": at, "example": seen.setdefault(at, 0), "prediction": text, "target": example.targets}
        seen[at] += 1
        lines.append({**line, "idx": rows[at]["idx"]} if "idx" in rows[at] else line)
    manifest = {
        "run_id": f"id{seed}", "status": "finished" if finished else "running", "started": "2026-01-01T00:00:00",
        "command": ["fine_tune_t5.py", "--seed", str(seed), "--run_name", "it's"],
        "settings": {**SETTINGS, "benchmark": benchmark, "dataset_name": name, "seed": seed, "data_dir": data_dir,
                     "max_eval_samples": limit, **settings},
        "versions": {"python": "3.11", "torch": "2.13"}, "commit": {"commit": "abcdef0123456789"},
        "hardware": {"platform": "Linux", "cores": 2, "gpus": []}, "tasks": {name: task.entry},
        "model": {"class": "T5ForConditionalGeneration", "parameters": 60506624, "trainable": 60506624},
        "data": {f"{name}.{split}": {"origin": loaded.origin, "fingerprint": loaded.fingerprint, "used": len(rows)}},
        "training": {"train_runtime": 30.5}, "marks": {result: ["subset"]},
    }  # fmt: skip
    scores = without_nan(task.score(rows, texts, role))
    metrics = curve_lines(seed, scores) if metrics_file else None
    return written(directory, manifest, f"{task.name}.{split}", lines, {result: scores} if finished else None, metrics)


def written(directory, manifest, split, lines, tasks, metrics=None) -> Path:
    """The files of a run; without `tasks` it is not finished."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "manifest.json").write_text(json.dumps(manifest))
    if lines:
        write_rows(directory / "predictions" / f"{split}.jsonl", lines)
    if tasks:
        (directory / "results.json").write_text(json.dumps({"tasks": tasks, "averages": {}}))
    if metrics:
        write_rows(directory / "metrics.jsonl", metrics)
    return directory


def make_pre_training_run(directory, seed=1) -> Path:
    settings = {"objective": "span_corruption", "seed": seed, "learning_rate": 0.003}
    nll = [(10, 6.0), (20, 5.5)]
    lines = [{"step": step, "epoch": 0.1, "seconds": 1.0, "eval/nll": value, "eval/loss": value} for step, value in nll]
    results = {"pre_train": {"nll": 5.5, "perplexity": 244.69, "accuracy": 7.1}}
    return written(directory, {"run_id": "p", "status": "finished", "settings": settings}, "", None, results, lines)


def make_own_run(
    directory, name: str, seed=1, wrong=0.3, limit=None, role="validation", keeps=False, **settings
) -> Path:
    """A run over rows of your own (`--data_format`), whose files are there.

    Args:
      keeps: its predictions file has the texts, as that of rows in memory does.
    """
    settings = {**SETTINGS, "benchmark": "mini", "dataset_name": "sentiment", "seed": seed, "max_eval_samples": limit,
                "max_predict_samples": None, "labels": "bad,good", "validation_split": 0.3, "data_format": None,
                **settings}  # fmt: skip
    found = format_source({**settings, "data_format": settings["data_format"] or "jsonl"}).read(role)
    columns = {"text_column_name": "input", "label_column_name": "output", "prefix": "review: "}
    task = Task(OWN_BENCHMARK, name, own_entry(columns, Wishes(labels=("bad", "good"))) | {"splits": {role: role}})
    rows = [found.rows[int(i)] for i in select_rows(len(found.rows), limit=limit, seed=seed, role=role)]
    examples = [example for row in rows for example in task.examples(row, role)]
    texts = answers(task, examples, wrong, 0.0, random.Random(seed))
    lines = [{"row": at, "example": 0, "prediction": text, "target": example.targets}
             | ({"inputs": example.inputs} if keeps else {})
             for at, (example, text) in enumerate(zip(examples, texts, strict=True))]  # fmt: skip
    manifest = {
        "run_id": f"own{seed}", "status": "finished", "settings": settings, "command": ["fine_tune_t5.py"],
        "working_directory": str(Path.cwd()), "tasks": {name: task.entry}, "trained_on": [OWN_BENCHMARK, name],
        "data": {f"{name}.{role}": {"origin": found.origin, "fingerprint": found.fingerprint, "used": len(rows),
                                    "files": found.files}},
        "marks": {name: ["subset"]} if limit else {},
    }  # fmt: skip
    return written(directory, manifest, f"{name}.{role}", lines, {name: without_nan(task.score(rows, texts, role))})

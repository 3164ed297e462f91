"""Run directories as finished runs leave them, without a training: real rows of the bundled tasks, made-up answers.

>>> directory = make_run(folder / "s1", "sentiment", seed=1, wrong=0.2)
"""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import scipy.stats

from t5suite import Task, load_task
from t5suite.data.rows.formats import OWN_BENCHMARK, Wishes, format_source, own_entry
from t5suite.data.rows.jsonl import without_nan
from t5suite.data.rows.sources import DataOptions, load_split
from t5suite.data.rows.subsets import select_rows
from t5suite.reports.finishing import finish_run
from t5suite.runs.directory import Run
from t5suite.testing import write_rows
from t5suite.training.eval_sets import Report, Result

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


def plain_scores(targets: Sequence[str], texts: Sequence[str], label_words: Sequence[str] | None) -> dict:
    """Points of a bundled task, by counting and by SciPy; an answer that is no number counts as -1.

    >>> plain_scores(["a", "b", "a"], ["a", "a", "c"], ["a", "b"])
    {'accuracy': 33.333333333333336, 'invalid_rate': 33.333333333333336}
    """
    if label_words:
        right = sum(text == target for text, target in zip(texts, targets, strict=True))
        invalid = sum(text not in label_words for text in texts)
        return {"accuracy": 100 * right / len(texts), "invalid_rate": 100 * invalid / len(texts)}
    is_number = [text.replace(".", "", 1).isdigit() for text in texts]
    answers_given = [float(text) if valid else -1.0 for text, valid in zip(texts, is_number, strict=True)]
    references = [float(target) for target in targets]
    return {
        "pearson": 100 * float(scipy.stats.pearsonr(answers_given, references).statistic),
        "spearman": 100 * float(scipy.stats.spearmanr(answers_given, references).statistic),
        "invalid_rate": 100 * is_number.count(False) / len(texts),
    }


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
    scores = without_nan(plain_scores([example.targets for _, example in examples], texts, task.label_words))
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
    scores = plain_scores([example.targets for example in examples], texts, ["bad", "good"])
    return written(directory, manifest, f"{name}.{role}", lines, {name: scores})


class MadeRun(NamedTuple):
    """A finished run over several tasks, and what was put into it.

    Attributes:
      tasks: `{task: {metric: points}}`, as `results.json` has to have them.
      averages, groups: the other parts of `results.json`.
      logged: `{(name, step): value}` of all that was logged.
      samples: `{(name of the table, step): rows}` of the answers that were kept.
      scored: `{task: (rows, seconds, answers cut off in percent)}`.
    """

    directory: Path
    tasks: dict
    averages: dict
    groups: dict
    logged: dict
    samples: dict
    scored: dict


# How many of 37 answers are right, and how many are no label; numbers with their errors. No share of 37 is round.
COUNTS = {"sentiment": (29, 3), "entailment": (22, 6)}
ERRORS = (0.2, -0.4, 0.6, 0.0, -1.2, 0.8, 1.4)
ROWS_OF_TASK = 37
STEPS_LOGGED, STEPS_SCORED, LAST_STEP = (4, 8, 12, 16, 20, 24), (8, 20, 24), 24
SCORED_METRICS = (
    "sentiment/accuracy", "sentiment/invalid_rate", "entailment/accuracy", "entailment/invalid_rate",
    "similarity/pearson", "similarity/spearman", "similarity/invalid_rate", "sentiment/loss", "average",
)  # fmt: skip


def logged_values(seed: int) -> dict[tuple[str, int], float]:
    """What a run of 24 steps logs; no two values are equal, and none is round."""
    values = {}
    for step in STEPS_LOGGED:
        values["train/loss", step] = 3.1877 / step + 0.0717 * seed
        values["train/learning_rate", step] = 0.00213 / step + 1e-5 * seed
        values["train/tokens_per_second", step] = 90217.3 + 313.7 * step + seed
        values["train/seconds_per_step", step] = 0.51273 + step / 777 + seed / 1000
    for step in STEPS_SCORED:
        for place, name in enumerate(SCORED_METRICS):
            values[f"eval/{name}", step] = 7.1678 + 5.5779 * place + 1.2779 * step + 0.0611 * seed
    return values


def sample_rows(task: str, step: int) -> list[dict]:
    return [{"row": row + step, "input": f"{task} {row}|{step}\nend", "target": "x", "prediction": f"y{row}",
             "right": row == 2} for row in (2, 5)]  # fmt: skip


def make_mixture(directory, seed=1, counts=None, predicts=True, **settings) -> MadeRun:
    """A run over the bundled tasks, whose end (card, plot, table, results) the suite itself writes.

    Args:
      counts: instead of COUNTS.
      predicts: it has predictions; without them there are no intervals.
    """
    counts = {**COUNTS, **(counts or {})}
    directory, task_names = Path(directory), ("sentiment", "entailment", "similarity")
    eval_sets, results, tasks, scored = [], {}, {}, {}
    for place, name in enumerate(task_names):
        eval_set, texts = _eval_set(name, counts.get(name), seed)
        targets = [example.targets for example in eval_set.examples]
        tasks[name] = plain_scores(targets, texts, eval_set.task.label_words)
        seconds, num_cut_off = 11.27 + 3.19 * place + seed, place + seed
        results[name] = Result(
            name, tasks[name], texts, ROWS_OF_TASK, seconds, 0.5 + place, num_cut_off, "generate", ["subset"], True
        )
        scored[name] = ROWS_OF_TASK, seconds, 100 * num_cut_off / ROWS_OF_TASK
        eval_sets.append(eval_set)
    correlations = tasks["similarity"]["pearson"] + tasks["similarity"]["spearman"]
    parts_of_average = tasks["sentiment"]["accuracy"], tasks["entailment"]["accuracy"], correlations / 2
    averages = {"mini": sum(parts_of_average) / 3}
    parts = {"short": {"accuracy": 71.2678 + seed, "n": 17}, "long": {"accuracy": 83.9389 + seed, "n": 20}}
    groups = {"sentiment": {"size": parts}}
    values = logged_values(seed)
    final = {(f"final/{task}/{name}", LAST_STEP): value for task, of in tasks.items() for name, value in of.items()}
    directory.mkdir(parents=True)
    write_rows(directory / "metrics.jsonl", _lines(values) + _lines(final))
    samples = {("samples/sentiment", 8): sample_rows("sentiment", 8), ("samples/similarity", 24): sample_rows("b", 24)}
    kept = [{"step": step, "task": table.removeprefix("samples/"), **row}
            for (table, step), rows in samples.items() for row in rows]  # fmt: skip
    write_rows(directory / "samples.jsonl", kept)
    run = Run(directory, _manifest(eval_sets, seed, settings))
    report = Report(results, 0.0, dict.fromkeys(tasks, 0.0))
    whole = {"tasks": tasks, "averages": averages, "groups": groups}
    finish_run(run, SimpleNamespace(scored=eval_sets), report, whole, {}, "a mixture", is_model=True)
    if not predicts:
        for path in (directory / "predictions").iterdir():
            path.unlink()
    return MadeRun(directory, tasks, averages, groups, values | final, samples, scored)


def _lines(values: dict) -> list[dict]:
    """Lines of metrics: at each step one of training, then one of the evaluation."""
    lines: dict = {}
    for (name, step), value in values.items():
        is_of_training = name.startswith("train/")
        line = lines.setdefault((step, not is_of_training), {"step": step, "epoch": step / 24, "seconds": step / 2})
        line[name] = value
    return [lines[key] for key in sorted(lines)]


def _eval_set(name: str, counts: tuple[int, int] | None, seed: int) -> tuple[SimpleNamespace, list[str]]:
    """A bundled task's first rows as `training.eval_sets` has them, and answers to them."""
    task = load_task("mini", name)
    rows = load_split(task, "validation", "validation", DataOptions()).rows.select(range(ROWS_OF_TASK)).to_list()
    examples = [task.examples(row, "validation")[0] for row in rows]
    texts = []
    for place, example in enumerate(examples):
        if counts is None:
            # One answer is far out, which moves Pearson's correlation alone.
            error = ERRORS[(place + seed) % len(ERRORS)] if place != 30 else 6.0 + seed
            texts.append(f"{max(0.0, float(example.targets) + error):.1f}")
        elif place < counts[0]:
            texts.append(example.targets)
        elif place < sum(counts):
            texts.append("no label")
        else:
            texts.append(next(word for word in task.label_words if word != example.targets))
    eval_set = SimpleNamespace(
        name=name, task=task, role="validation", split="validation", rows=rows, examples=examples, labelled=True,
        row_of_example=list(range(ROWS_OF_TASK)), method="generate", encoding=None, max_target_tokens=6,
        shown_inputs=lambda place: examples[place].inputs,
    )  # fmt: skip
    return eval_set, texts


def _manifest(eval_sets: list, seed: int, settings: dict) -> dict:
    origin = {"origin": "the bundled rows", "fingerprint": None}
    return {
        "run_id": f"mixture{seed}", "status": "running", "fingerprint": "f", "started": "2026-01-01T00:00:00",
        "command": ["fine_tune_t5.py", "--seed", str(seed)],
        "settings": {**SETTINGS, "benchmark": "mini", "dataset_name": "all", "seed": seed, "max_steps": 24, **settings},
        "versions": {"t5suite": "0.1"}, "tasks": {part.name: part.task.entry for part in eval_sets},
        "model": {"class": "T5ForConditionalGeneration", "parameters": 60506624, "trainable": 1234567},
        "data": {f"{part.name}.validation": {**origin, "rows": 100 + place, "used": ROWS_OF_TASK}
                 for place, part in enumerate(eval_sets)},
        "training": {"train_runtime": 61.3678, "steps": 24},
        "mixing_rates": {"sentiment": 301, "entailment": 207, "similarity": 111},
    }  # fmt: skip

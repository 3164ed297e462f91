"""Run directories as finished runs leave them, with made-up answers to real rows of the bundled tasks, and reports of them.

>>> directory = make_run(folder / "s1", "sentiment", seed=1, wrong=0.2)
>>> reported(directory).data["scores"][0]["mean"]
77.5
"""

import contextlib
import functools
import io
import json
import math
import random
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import scipy.stats
from matplotlib.figure import Figure
from shown_tables import PageTables

import fine_tune_t5
from t5suite import Example, load_task
from t5suite.testing import TINY_T5, read_rows, run_cli, tiny_rows, tiny_run, write_rows

SETTINGS = {"model_name_or_path": "google-t5/t5-small", "max_source_length": 512, "learning_rate": 1e-3,
            "max_steps": 30, "output_dir": "somewhere"}  # fmt: skip


def answers(label_words, examples, wrong: float, invalid: float, drawn) -> list[str]:
    texts = []
    for example in examples:
        chance = drawn.random()
        wrong_words = [word for word in label_words or ["0.0", "1.0", "4.8"] if word != example.targets]
        if chance < invalid:
            texts.append("no label")
        elif chance < invalid + wrong:
            texts.append(drawn.choice(wrong_words))
        else:
            texts.append(example.targets)
    return texts


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


@functools.cache
def rows_folder(count: int) -> str:
    """A folder for `--data_dir` with so many validation rows of each bundled task, and a few training rows."""
    place = Path(tempfile.mkdtemp())
    for name in ("sentiment", "entailment", "similarity"):
        write_rows(place / "mini" / name / "train.jsonl", tiny_rows(name, "train", 16))
        write_rows(place / "mini" / name / "validation.jsonl", tiny_rows(name, "validation", count))
    return str(place)


def make_run(directory, name: str, seed=1, wrong=0.2, invalid=0.02, count=40, predictions=None, finished=True,
             metrics_file=True, **settings) -> Path:  # fmt: skip
    """A run over a bundled task; `predictions` replaces the made-up answers."""
    task, rows = load_task("mini", name), tiny_rows(name, "validation", count)
    examples = [task.examples(row, "validation")[0] for row in rows]
    texts = predictions or answers(task.label_words, examples, wrong, invalid, random.Random(seed))
    lines = [
        {"row": at, "example": 0, "prediction": text, "target": example.targets, "idx": rows[at]["idx"]}
        for at, (example, text) in enumerate(zip(examples, texts, strict=True))
    ]
    manifest = {
        "run_id": f"id{seed}", "status": "finished" if finished else "running", "started": "2026-01-01T00:00:00",
        "command": ["fine_tune_t5.py", "--seed", str(seed), "--run_name", "it's"],
        "settings": {**SETTINGS, "benchmark": "mini", "dataset_name": name, "seed": seed,
                     "data_dir": rows_folder(count), **settings},
        "versions": {"python": "3.11", "torch": "2.13"}, "commit": {"commit": "abcdef0123456789"},
        "hardware": {"platform": "Linux", "cores": 2, "gpus": []}, "tasks": {name: task.entry},
        "model": {"class": "T5ForConditionalGeneration", "parameters": 60506624, "trainable": 60506624},
        "data": {f"{name}.validation": {"origin": "some rows", "used": count}},
        "training": {"train_runtime": 30.5}, "marks": {name: ["subset"]},
    }  # fmt: skip
    scores = without_nan(plain_scores([example.targets for example in examples], texts, task.label_words))
    metrics = curve_lines(seed, scores) if metrics_file else None
    return written(directory, manifest, f"{name}.validation", lines, {name: scores} if finished else None, metrics)


def answers_again(directory, name: str, seed=1, wrong=0.2, invalid=0.02) -> Path:
    """Puts made-up answers and their scores in place of those of a real run; returns its directory."""
    path = Path(directory) / "predictions" / f"{name}.validation.jsonl"
    lines, manifest = read_rows(path), json.loads((Path(directory) / "manifest.json").read_text())
    label_words, targets = manifest["tasks"][name]["labels"], [line["target"] for line in lines]
    examples = [Example("", target) for target in targets]
    texts = answers(label_words, examples, wrong, invalid, random.Random(seed))
    write_rows(path, [{**line, "prediction": text} for line, text in zip(lines, texts, strict=True)])
    results = {"tasks": {name: plain_scores(targets, texts, label_words)}, "averages": {}}
    (Path(directory) / "results.json").write_text(json.dumps(results))
    return Path(directory)


def without_nan(scores: dict) -> dict:
    return {name: None if math.isnan(value) else value for name, value in scores.items()}


def written(directory, manifest, split, lines, tasks, metrics=None, averages=None) -> Path:
    """The files of a run; without `tasks` it is not finished."""
    directory = Path(directory)
    manifest = {"status": "finished" if tasks else "running", **manifest}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "manifest.json").write_text(json.dumps(manifest))
    if lines:
        write_rows(directory / "predictions" / f"{split}.jsonl", lines)
    if tasks:
        (directory / "results.json").write_text(json.dumps({"tasks": tasks, "averages": averages or {}}))
    if metrics:
        write_rows(directory / "metrics.jsonl", metrics)
    return directory


def make_pre_training_run(directory, seed=1) -> Path:
    settings = {"objective": "span_corruption", "seed": seed, "learning_rate": 0.003}
    nll = [(10, 6.0), (20, 5.5)]
    lines = [{"step": step, "epoch": 0.1, "seconds": 1.0, "eval/nll": value, "eval/loss": value} for step, value in nll]
    results = {"pre_train": {"nll": 5.5, "perplexity": 244.69, "accuracy": 7.1}}
    return written(directory, {"run_id": "p", "status": "finished", "settings": settings}, "", None, results, lines)


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


@functools.cache
def trained_mixture() -> Path:
    """A real run over the bundled tasks; its flags are MIXTURE_FLAGS."""
    return tiny_run(**MIXTURE_FLAGS, data_dir=rows_folder(ROWS_OF_TASK), output_dir=tempfile.mkdtemp()).directory


MIXTURE_FLAGS = {
    "benchmark": "mini", "dataset_name": "all", "config_overrides": TINY_T5, "from_scratch": True, "use_cpu": True,
    "per_device_train_batch_size": 8, "logging_steps": 1, "max_steps": 2, "max_eval_samples": ROWS_OF_TASK,
    "learning_rate": 1e-3,
}  # fmt: skip


def make_mixture(directory, seed=1, counts=None, **settings) -> MadeRun:
    """A real run over the bundled tasks, with numbers of which no two are equal in place of its own.

    Its model card and learning curves are still those of the real run.

    Args:
      counts: instead of COUNTS.
    """
    counts, directory = {**COUNTS, **(counts or {})}, Path(directory)
    shutil.copytree(trained_mixture(), directory)
    manifest = json.loads((directory / "manifest.json").read_text())
    tasks, scored, manifest_of_scored = {}, {}, {}
    for place, name in enumerate(("sentiment", "entailment", "similarity")):
        task, path = load_task("mini", name), directory / "predictions" / f"{name}.validation.jsonl"
        lines = read_rows(path)
        targets = [line["target"] for line in lines]
        texts = made_answers(targets, task.label_words, counts.get(name), seed)
        write_rows(path, [{**line, "prediction": text} for line, text in zip(lines, texts, strict=True)])
        tasks[name] = plain_scores(targets, texts, task.label_words)
        seconds, cut_off = 11.27 + 3.19 * place + seed, 100 * (place + seed) / ROWS_OF_TASK
        scored[name] = ROWS_OF_TASK, seconds, cut_off
        manifest_of_scored[name] = {
            **manifest["scored"][name], "n": ROWS_OF_TASK, "cut_off": cut_off, "seconds": seconds
        }  # fmt: skip
    correlations = tasks["similarity"]["pearson"] + tasks["similarity"]["spearman"]
    parts_of_average = tasks["sentiment"]["accuracy"], tasks["entailment"]["accuracy"], correlations / 2
    averages = {"mini": sum(parts_of_average) / 3}
    parts = {"short": {"accuracy": 71.2678 + seed, "n": 17}, "long": {"accuracy": 83.9389 + seed, "n": 20}}
    groups = {"sentiment": {"size": parts}}
    manifest |= {
        "run_id": f"mixture{seed}", "settings": {**manifest["settings"], "seed": seed, **settings},
        "model": {"class": "T5ForConditionalGeneration", "parameters": 60506624, "trainable": 1234567},
        "training": {"train_runtime": 61.3678, "steps": 24}, "scored": manifest_of_scored, "marks": {},
        "started": "2026-01-01T00:00:00",
    }  # fmt: skip
    (directory / "manifest.json").write_text(json.dumps(manifest))
    (directory / "results.json").write_text(json.dumps({"tasks": tasks, "averages": averages, "groups": groups}))
    values = logged_values(seed)
    final = {(f"final/{task}/{name}", LAST_STEP): value for task, of in tasks.items() for name, value in of.items()}
    write_rows(directory / "metrics.jsonl", _lines(values) + _lines(final))
    samples = {
        ("samples/sentiment", 8): sample_rows("sentiment", 8), ("samples/similarity", 24): sample_rows("b", 24),
        ("final_samples/sentiment", 24): sample_rows("final", 24),
    }  # fmt: skip
    sample_lines = []
    for (table, step), rows in samples.items():
        kind, task = table.split("/")
        is_final = {"final": True} if kind == "final_samples" else {}
        sample_lines += [{"step": step, "task": task, **row, **is_final} for row in rows]
    write_rows(directory / "samples.jsonl", sample_lines)
    return MadeRun(directory, tasks, averages, groups, values | final, samples, scored)


def ending_of(made: MadeRun) -> str:
    """The table that the command of a finished run prints again."""
    flags = {**MIXTURE_FLAGS, "data_dir": rows_folder(ROWS_OF_TASK), "output_dir": made.directory, "seed": 1}
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()):
        fine_tune_t5.main([f"--{name}={value}" for name, value in flags.items()])
    return output.getvalue()


def made_answers(targets: list[str], label_words, counts: tuple[int, int] | None, seed: int) -> list[str]:
    """Answers of which `counts` are right and no label; to numbers, the targets with an error."""
    texts = []
    for place, target in enumerate(targets):
        if counts is None:
            # One answer is far out, which moves Pearson's correlation alone.
            error = ERRORS[(place + seed) % len(ERRORS)] if place != 30 else 6.0 + seed
            texts.append(f"{max(0.0, float(target) + error):.1f}")
        elif place < counts[0]:
            texts.append(target)
        elif place < sum(counts):
            texts.append("no label")
        else:
            texts.append(next(word for word in label_words if word != target))
    return texts


def _lines(values: dict) -> list[dict]:
    """Lines of metrics: at each step one of training, then one of the evaluation."""
    lines: dict = {}
    for (name, step), value in values.items():
        is_of_training = name.startswith("train/")
        line = lines.setdefault((step, not is_of_training), {"step": step, "epoch": step / 24, "seconds": step / 2})
        line[name] = value
    return [lines[key] for key in sorted(lines)]


class Reported(NamedTuple):
    """All that `t5suite report` makes of some runs and sweeps.

    Attributes:
      output: the folder of the report's files; pictures are empty.
      printed: what it prints.
      data: report.json.
      html, markdown: the page and report.md.
      page: the page's tables.
      figures: `{name of the picture's file: matplotlib's figure}`.
    """

    output: Path
    printed: str
    data: dict
    html: str
    markdown: str
    page: PageTables
    figures: dict[str, Figure]


def reported(*directories, output=None, **flags) -> Reported:
    """Runs `t5suite report`; it draws, but no pixels are made."""
    output = Path(output or Path(tempfile.mkdtemp()) / "report")
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    printed = io.StringIO()
    with figures_instead_of_pixels() as drawn, contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        run_cli("report", *directories, "--output", output, *words)
    figures = {path.stem: drawn[int(path.read_bytes())] for path in sorted(output.glob("plots/*.png"))}
    html, markdown = (output / "report.html").read_text(), (output / "report.md").read_text()
    data = json.loads((output / "report.json").read_text())
    return Reported(output, printed.getvalue(), data, html, markdown, PageTables(html), figures)


@contextlib.contextmanager
def figures_instead_of_pixels():
    """A list of the figures that are saved inside the block; a picture's file has its figure's place in the list."""
    drawn = []

    def savefig(figure, file, format="png", **settings):
        if figure not in drawn:
            drawn.append(figure)
        content = str(drawn.index(figure)) if format == "png" else "<svg/>"
        file.write(content.encode()) if hasattr(file, "write") else Path(file).write_text(content)

    with mock.patch.object(Figure, "savefig", savefig):
        yield drawn

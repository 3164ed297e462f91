"""What a finished run leaves behind: results, predictions, a card, a table, and hints if it learnt nothing.

>>> results = build_results(report, "glue", ["cola", "rte"], eval_sets, published=False)
>>> results["tasks"]["rte"]
{'accuracy': 71.1, 'invalid_rate': 0.0}
"""

import logging
import math
from collections import Counter
from pathlib import Path

from t5suite.data.rows.formats import rows_stay
from t5suite.data.rows.jsonl import without_nan, write_jsonl
from t5suite.models.families import recognize_family
from t5suite.reports.cards import write_fine_tuned_card, write_pre_trained_card
from t5suite.reports.finished_runs import RATES
from t5suite.reports.plots import learning_curves
from t5suite.reports.tables import print_results
from t5suite.runs.directory import RESULTS, write_json
from t5suite.training.eval_sets import EvalSet, Report

logger = logging.getLogger(__name__)
# Percent of answers that are not labels: from here on, the score says nothing about what was learnt.
HARDLY_ANY_LABEL = 90.0


def build_results(
    report: Report, benchmark: str, average_over: list[str], eval_sets: list[EvalSet], published: bool
) -> dict:
    """`{"tasks": {task: {metric: points}}, "averages": {suite: points}}`; an undefined score stays NaN.

    A task that is reported in parts (`report_by`) has them under `groups`:
    `{task: {column: {value: {metric: points, ..., "n": rows}}}}`.

    Args:
      average_over: the tasks whose mean is the average; a task's own metrics, and MNLI's halves, are averaged first.
        Test splits count only if nothing else was scored.
      published: the average is the benchmark's published one and has its name, if no task or half is missing.
    """
    tasks = {name: dict(result.metrics) for name, result in report.results.items() if result.metrics}
    of_task: dict[str, list[float]] = {}
    counted = [eval_set for eval_set in eval_sets if not eval_set.name.endswith(".test")] or eval_sets
    num_splits = {eval_set.task.name: len(eval_set.task.splits(eval_set.role)) for eval_set in counted}
    for eval_set in counted:
        metrics = report.results[eval_set.name].metrics
        if any(name not in (*RATES, "loss") for name in metrics):
            of_task.setdefault(eval_set.task.name, []).append(eval_set.optimised(metrics))
    means = {name: sum(values) / len(values) for name, values in of_task.items() if len(values) == num_splits[name]}
    present, averages = [means[name] for name in average_over if name in means], {}
    if len(average_over) > 1 and present:
        name = benchmark if published else "average"
        if len(present) < len(average_over):
            name = f"{benchmark} ({len(present)} of {len(average_over)} tasks)"
        averages[name] = sum(present) / len(present)
    groups = {}
    for eval_set in eval_sets:
        predictions = report.results[eval_set.name].predictions
        if parts := eval_set.task.score_groups(eval_set.example_set, predictions):
            groups[eval_set.name] = parts
    return {"tasks": tasks, "averages": averages, **({"groups": groups} if groups else {})}


def write_results(directory, results: dict) -> None:
    """`results.json`: no timings and no paths in it; a NaN becomes null, with a note that says so."""
    found = {f"tasks.{name}.{metric}": value for name, of in results["tasks"].items() for metric, value in of.items()}
    found |= {f"averages.{name}": value for name, value in results["averages"].items()}
    why = "is not a number (a correlation of constants, or of a prediction that is NaN)"
    notes = [f"{name} {why}" for name, value in found.items() if not math.isfinite(value)]
    write_json(Path(directory) / RESULTS, {**without_nan(results), **({"notes": notes} if notes else {})})


def prediction_lines(eval_set: EvalSet, predictions: list[str], keeps_texts: bool = False):
    """The lines of a predictions file: one per example, with its row's number (and `idx`) and its own.

    Args:
      keeps_texts: the lines hold the input texts, too, for rows that cannot be read again (`rows_stay`).
    """
    seen: dict[int, int] = {}
    triples = zip(eval_set.row_of_example, eval_set.examples, predictions, strict=True)
    for place, (row, example, prediction) in enumerate(triples):
        line = {"row": row, "example": seen.setdefault(row, 0), "prediction": prediction}
        seen[row] += 1
        if "idx" in eval_set.rows[row]:
            line["idx"] = eval_set.rows[row]["idx"]
        if eval_set.task.entry.get("postprocess") == "wsc_verdict":
            line["candidate"] = example.targets
        elif eval_set.labelled:
            line["target"] = example.targets
        if keeps_texts:
            line["inputs"] = eval_set.shown_inputs(place)
        yield line


def finish_run(run, data, report: Report, results: dict, best: dict, title: str, is_model: bool) -> None:
    """Writes a run's outputs, marks the run as finished last, and shows the table."""
    keeps_texts = not rows_stay(run.manifest["settings"])
    for eval_set in data.scored:
        path = Path(run.directory) / "predictions" / f"{eval_set.task.name}.{eval_set.split}.jsonl"
        write_jsonl(path, prediction_lines(eval_set, report.results[eval_set.name].predictions, keeps_texts))
    scored = {}
    for eval_set in data.scored:
        result = report.results[eval_set.name]
        cut_off = 100 * result.truncated / max(1, len(result.predictions))
        scored[eval_set.name] = {
            "split": eval_set.split,
            "n": result.num_rows,
            "method": result.method,
            "labelled": result.labelled,
            "cut_off": cut_off if result.method == "generate" else None,
            "seconds": round(result.seconds, 3),
        }
    marks = {name: result.marks for name, result in report.results.items() if result.marks}
    run.update(title=title, best_per_task=without_nan(best), scored=scored, marks=marks)
    if is_model:
        learning_curves(run.directory, title)
        write_fine_tuned_card(run.directory, title, run.manifest, results, data.scored, report)
    write_results(run.directory, results)
    run.finish()
    print_results(run.directory, run.manifest, results)
    give_hints(report, data.scored, run)


def finish_pre_training(
    run, trainer, tokenizer, report, results: dict, title: str, objective: str, is_model: bool
) -> None:
    """Writes results and, of a run that trained a model, learning curves and model card, and shows the table."""
    run.update(title=title, seconds={name: round(result.seconds, 3) for name, result in report.results.items()})
    if is_model:
        learning_curves(run.directory, title)
        held_out = trainer.evaluator.collator([trainer.eval_sets[0].examples[0]])
        example = tokenizer.decode(held_out["input_ids"][0].tolist()[:40])
        family = recognize_family(trainer.accelerator.unwrap_model(trainer.model)).name
        write_pre_trained_card(run.directory, title, run.manifest, results, objective, family, example)
    write_results(run.directory, results)
    run.finish()
    print_results(run.directory, run.manifest, results)


def give_hints(report: Report, eval_sets: list[EvalSet], run=None) -> None:
    """Warns of each split whose answers are rarely labels, with the usual causes.

    Args:
      run: None where nothing was written.
    """
    updates = (run.manifest.get("training") or {}).get("steps") if run is not None else None
    for eval_set in eval_sets:
        task, result = eval_set.task, report.results[eval_set.name]
        rate = result.metrics.get("invalid_rate", 0.0)
        if not rate >= HARDLY_ANY_LABEL:
            continue
        (most, times), *_ = Counter(text.strip() for text in result.predictions).most_common(1) or [("", 0)]
        labels = f" ({', '.join(task.label_words)})" if 0 < len(task.label_words or []) <= 6 else ""
        said = f"{eval_set.name}: {rate:.0f}% of the answers are not labels{labels};"
        said += f" most often {most[:30]!r} ({times} times)."
        if run is not None:
            said += f" See {run.directory}/predictions/{task.name}.{eval_set.split}.jsonl."
        said += (
            f" Usual causes: too few updates{f' ({updates} here)' if updates else ''}, above all from random weights or"
            " for a model that was never trained on text-to-text tasks (t5-v1_1, mT5); label words (--labels, a task's"
            " `labels`) that differ from the target column's; a prefix that differs from that in training."
        )
        if task.has_candidates and result.method == "generate":
            said += " `--eval_method score` chooses among the labels, whatever the model would write."
        logger.warning(said)

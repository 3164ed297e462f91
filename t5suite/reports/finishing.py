"""What a finished run leaves behind: results, predictions, a card, a table, and hints where it learnt nothing.

>>> results = build_results(report, "glue", ["cola", "rte"], eval_sets, published=False)
>>> results["tasks"]["rte"]
{'accuracy': 71.1, 'invalid_rate': 0.0}
"""

import logging
import math
from collections import Counter
from pathlib import Path

from t5suite.data.rows.formats import rows_stay
from t5suite.data.rows.jsonl import file_sha256, without_nan, write_jsonl
from t5suite.models.families import family_of_model
from t5suite.reports.card_usage import write_fine_tuned_card, write_pre_trained_card
from t5suite.reports.plots import learning_curves, loss_curve
from t5suite.reports.tables import RATES, print_groups, print_results, print_table
from t5suite.runs.directory import RESULTS, read_results, write_json
from t5suite.training.eval_sets import EvalSet, Report, Result
from t5suite.training.pre_training_evaluation import NAME, HeldOut

logger = logging.getLogger(__name__)
# Percent of answers that are no label: with so many, the score says nothing of what was learnt.
HARDLY_ANY_LABEL = 90.0
# Fewer updates than these teach no model what an answer looks like.
FEW_UPDATES_FROM_RANDOM_WEIGHTS, FEW_UPDATES = 1000, 100
LONGEST_ANSWER, MOST_LABELS = 30, 6


def give_hints(report: Report, eval_sets: list[EvalSet], run=None) -> None:
    """Logs the hints as warnings; of a run, with what its manifest says of it."""
    manifest = run.manifest if run is not None else {}
    settings, updates = manifest.get("settings") or {}, (manifest.get("training") or {}).get("steps")
    trained_before = bool(settings.get("model_name_or_path")) and not settings.get("from_scratch")
    directory = None if run is None else run.directory
    for hint in hints_of(report, eval_sets, directory, updates, trained_before):
        logger.warning(hint)


def hints_of(report: Report, eval_sets: list[EvalSet], directory, updates: int | None, trained_before: bool) -> list:
    """One for each split whose answers are hardly ever labels.

    Args:
      directory: the run's, where predictions lie; None where nothing was written.
      updates: that were made; None where the model was only evaluated.
      trained_before: whether the weights that the run began with were a checkpoint's.
    """
    found = []
    for eval_set in eval_sets:
        result = report.results[eval_set.name]
        if result.metrics.get("invalid_rate", 0.0) >= HARDLY_ANY_LABEL:
            place = (
                ""
                if directory is None
                else f" Look at {directory}/predictions/{eval_set.task.name}.{eval_set.split}.jsonl."
            )
            causes = likely_causes(result, updates, trained_before)
            can_score = eval_set.task.has_candidates and result.method == "generate"
            cure = (
                " `--eval_method score` chooses among the labels, whatever the model would write." if can_score else ""
            )
            found.append(f"{_what_was_written(eval_set, result)}{place} {causes}{cure}")
    return found


def changed_files(manifest: dict) -> list[str]:
    """Files of rows that are not those any more that a finished run has read.

    >>> changed_files(read_manifest("runs/reviews"))         # a row was added to it since
    ['reviews.csv']
    """
    known = {facts.get("fingerprint") for facts in (manifest.get("data") or {}).values()}
    if not any(str(fingerprint).startswith("sha256:") for fingerprint in known):
        return []
    settings = manifest.get("settings") or {}
    named = [settings[name] for name in ("train_file", "validation_file", "test_file") if settings.get(name)]
    # Several files (a pattern) have one fingerprint together, and are passed over.
    files = [name for name in dict.fromkeys(named) if isinstance(name, str) and Path(name).is_file()]
    return [name for name in files if f"sha256:{file_sha256(name)}" not in known]


def warn_of_changed_files(run) -> None:
    """Says that a finished run's results are not those of the files as they are now."""
    changed = changed_files(run.manifest)
    if changed:
        cure = "these are the results of the rows before; to train on those of now give a new --output_dir"
        logger.warning("%s changed since: %s", " and ".join(changed), cure)


def likely_causes(result: Result, updates: int | None, trained_before: bool) -> str:
    """Why a model writes no labels, the likeliest first."""
    causes = []
    if updates is not None and updates < (FEW_UPDATES if trained_before else FEW_UPDATES_FROM_RANDOM_WEIGHTS):
        causes.append(f"a run that is too short ({updates} updates{'' if trained_before else ' from random weights'})")
    if updates is None:
        causes.append("a model that was not trained on this task, or with another prefix")
    if result.predictions and result.truncated == len(result.predictions):
        causes.append("answers that never end (all were cut off at the greatest length)")
    causes.append("label words (--labels, a task's `labels`) that are not those of the target column")
    if trained_before:
        causes.append("a base model that was never trained on text-to-text tasks (t5-v1_1, mT5: give it more updates)")
    return f"Usual causes: {'; '.join(causes)}."


def _what_was_written(eval_set: EvalSet, result: Result) -> str:
    answers = Counter(text.strip() for text in result.predictions)
    (most, times), *_ = answers.most_common(1) or [("", 0)]
    rate, words = result.metrics["invalid_rate"], eval_set.task.label_words or []
    labels = f" ({', '.join(words)})" if 0 < len(words) <= MOST_LABELS else ""
    shown = most if len(most) <= LONGEST_ANSWER else f"{most[:LONGEST_ANSWER]}..."
    return f"{eval_set.name}: {rate:.0f}% of the answers are no label{labels}; most often {shown!r} ({times} times)."


def group_scores(report: Report, eval_sets: list[EvalSet]) -> dict:
    """`{task: {column: {value: {metric: points, ..., "n": rows}}}}` of the tasks that are reported in parts."""
    found = {}
    for eval_set in eval_sets:
        predictions = report.results[eval_set.name].predictions
        groups = eval_set.task.score_groups(eval_set.rows, predictions, eval_set.role)
        if groups:
            found[eval_set.name] = groups
    return found


def print_finished(run, is_main: bool = True) -> dict:
    """The results of a run that was finished before, shown again."""
    logger.info("run %s in %s was finished before; these are its results", run.run_id, run.directory)
    warn_of_changed_files(run)
    return print_results(read_results(run.directory), str(run.directory), is_main)


def build_results(
    report: Report, benchmark: str, average_over: list[str], eval_sets: list[EvalSet], published: bool
) -> dict:
    """`{"tasks": {task: {metric: points}}, "averages": {suite: points}}`; a score that is no number stays NaN.

    A task that is reported in parts (`report_by`) has them under `groups`.

    Args:
      average_over: the tasks whose mean is the average; a task's own metrics, and MNLI's halves, are averaged first.
        Test splits count only where nothing else was scored.
      published: the average is the benchmark's published one and carries its name, if no task or half is missing.
    """
    tasks = {name: dict(result.metrics) for name, result in report.results.items() if result.metrics}
    values = _task_means(
        report, [eval_set for eval_set in eval_sets if not eval_set.name.endswith(".test")] or eval_sets
    )
    present = [values[name] for name in average_over if name in values]
    averages = {}
    if len(average_over) > 1 and present:
        complete = len(present) == len(average_over)
        name = benchmark if published and complete else "average"
        if not complete:
            name = f"{benchmark} ({len(present)} of {len(average_over)} tasks)"
        averages[name] = sum(present) / len(present)
    groups = group_scores(report, eval_sets)
    return {"tasks": tasks, "averages": averages, **({"groups": groups} if groups else {})}


def _task_means(report: Report, eval_sets: list[EvalSet]) -> dict[str, float]:
    """Each task's one number (its `metric_to_optimize`), the mean over its splits; none where a split is missing."""
    of_task: dict[str, list[float]] = {}
    num_splits = {eval_set.task.name: len(eval_set.task.splits(eval_set.role)) for eval_set in eval_sets}
    for eval_set in eval_sets:
        metrics = report.results[eval_set.name].metrics
        if any(name not in (*RATES, "loss") for name in metrics):
            of_task.setdefault(eval_set.task.name, []).append(eval_set.optimised(metrics))
    return {name: sum(values) / len(values) for name, values in of_task.items() if len(values) == num_splits[name]}


def write_results(directory, results: dict) -> None:
    """`results.json`: no timings and no paths in it; a NaN becomes null, with a note that says so."""
    notes = [
        f"{section}.{name}.{metric} is not a number (a correlation of constants, or of a prediction that is nan)"
        for section in ("tasks",)
        for name, metrics in results[section].items()
        for metric, value in metrics.items()
        if not math.isfinite(value)
    ]
    notes += [
        f"averages.{name} is not a number" for name, value in results["averages"].items() if not math.isfinite(value)
    ]
    content = without_nan(results)
    write_json(Path(directory) / RESULTS, {**content, "notes": notes} if notes else content)


def write_predictions(directory, eval_sets: list[EvalSet], report: Report, keeps_texts: bool = False) -> None:
    """`predictions/<task>.<split>.jsonl`: one line an example, with its row's number (and `idx`) and its own.

    Args:
      keeps_texts: the lines hold the input texts, too, for rows that cannot be read again (`rows_stay`).
    """
    for eval_set in eval_sets:
        path = Path(directory) / "predictions" / f"{eval_set.task.name}.{eval_set.split}.jsonl"
        write_jsonl(path, prediction_lines(eval_set, report.results[eval_set.name].predictions, keeps_texts))


def prediction_lines(eval_set: EvalSet, predictions: list[str], keeps_texts: bool = False):
    """The lines of a predictions file."""
    seen: dict[int, int] = {}
    for row, example, prediction in zip(eval_set.row_of_example, eval_set.examples, predictions, strict=True):
        line = {"row": row, "example": seen.setdefault(row, 0), "prediction": prediction}
        seen[row] += 1
        if "idx" in eval_set.rows[row]:
            line["idx"] = eval_set.rows[row]["idx"]
        if eval_set.task.entry.get("postprocess") == "wsc_verdict":
            line["candidate"] = example.targets
        elif eval_set.labelled:
            line["target"] = example.targets
        if keeps_texts:
            line["inputs"] = example.inputs
        yield line


def finish_run(run, data, report: Report, results: dict, best: dict, title: str, is_model: bool) -> None:
    """Writes what a run leaves behind, in the order that makes it finished last, and shows the table."""
    write_predictions(run.directory, data.scored, report, not rows_stay(run.manifest["settings"]))
    run.update(
        best_per_task=without_nan(best),
        seconds={name: round(result.seconds, 3) for name, result in report.results.items()},
        cut_off={name: result.truncated for name, result in report.results.items() if result.method == "generate"},
        eval_methods={name: result.method for name, result in report.results.items()},
        marks={name: result.marks for name, result in report.results.items() if result.marks},
    )
    if is_model:
        learning_curves(run.directory, title)
        write_fine_tuned_card(run.directory, title, run.manifest, results, data.scored, report)
    write_results(run.directory, results)
    run.finish()
    print_table(report, data.scored, results, f"{title}  ({run.directory})")
    print_groups(results.get("groups", {}))
    give_hints(report, data.scored, run)


def results_of(report, entropies: dict[str, float]) -> dict:
    """The scores, and what a model without context could reach at best."""
    return {"tasks": {NAME: {**report.results[NAME].metrics, **entropies}}, "averages": {}}


def example_text(held_out: HeldOut, collator, tokenizer, num_tokens: int = 40) -> tuple[str, str]:
    """The beginnings of a held-out example's inputs and targets, as text.

    >>> example_text(held_out, collator, tokenizer)
    ('The guard disobeyed the<extra_id_0> in the store at noon.', '<extra_id_0> chief<extra_id_1> ...')
    """
    batch = collator([held_out.examples[0]])
    targets = batch["labels"][0].numpy()
    sides = batch["input_ids"][0].tolist(), targets[targets >= 0].tolist()
    return tuple(tokenizer.decode(ids[:num_tokens]) for ids in sides)


def finish_pre_training(
    run, trainer, tokenizer, report, results: dict, title: str, objective: str, is_model: bool
) -> None:
    """Writes results, loss curve and model card, and shows the table.

    Args:
      is_model: whether the run trained a model, which then has a card.
    """
    if is_model:
        evaluator = trainer.evaluator
        example = example_text(trainer.eval_sets[0], evaluator.collator, tokenizer)
        loss_curve(run.directory, title)
        family = family_of_model(trainer.accelerator.unwrap_model(trainer.model))
    run.update(seconds={name: round(result.seconds, 3) for name, result in report.results.items()})
    if is_model:
        write_pre_trained_card(run.directory, title, run.manifest, results, objective, family, example[0])
    write_results(run.directory, results)
    run.finish()
    print_results(results, f"{title}  ({run.directory})")

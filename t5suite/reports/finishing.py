"""What a finished run leaves behind: results, predictions, a card, a table, and hints if it learnt nothing.

>>> results = build_results(report, "glue", ["cola", "rte"], eval_sets, published=False)
>>> results["tasks"]["rte"]
{'accuracy': 71.1, 'invalid_rate': 0.0}
"""

import logging
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from t5suite.base.files import write_json
from t5suite.data.rows.formats import rows_stay
from t5suite.data.rows.jsonl import without_nan, write_jsonl
from t5suite.data.rows.own_rows import rows_fingerprint
from t5suite.models.families import recognize_family
from t5suite.reports.averages import SplitFigure, averages_of, figure_of
from t5suite.reports.card_usage import NOT_SHOWN
from t5suite.reports.cards import write_fine_tuned_card, write_pre_trained_card
from t5suite.reports.learning_curves import write_learning_curves
from t5suite.reports.next_commands import print_next_commands
from t5suite.reports.shared_files import FILES_OF_MODEL, PREDICTIONS, ROWS, has_own_rows, has_public_text, hashes_of_run
from t5suite.reports.tables import print_results
from t5suite.runs.directory import RESULTS, read_manifest
from t5suite.runs.public_record import RECORD_HASH, record_sha256
from t5suite.tasks.entry_metrics import undefined_reason
from t5suite.training.eval_sets import EvalSet
from t5suite.training.evaluation_report import Report, Result

logger = logging.getLogger(__name__)

# Percent of answers that are not labels: from here on, the score says nothing about what was learnt.
HARDLY_ANY_LABEL = 90.0
# Tasks of more labels are hinted at without naming them.
MOST_NAMED_LABELS = 6
# How much of the most frequent answer a hint shows, in characters.
SHOWN_ANSWER = 30
# How much of a held-out text the card of a pre-trained model shows, in tokens.
EXAMPLE_TOKENS = 40


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
    figures = []
    for eval_set in eval_sets:
        figure = figure_of(report.results[eval_set.name].metrics, eval_set.optimised)
        figures.append(SplitFigure(eval_set.name, eval_set.task, eval_set.role, figure))
    results = {
        "tasks": {name: dict(result.metrics) for name, result in report.results.items() if result.metrics},
        "averages": averages_of(figures, benchmark, average_over, published),
    }
    groups = _scores_by_group(report, eval_sets)
    if groups:
        results["groups"] = groups
    return results


def _scores_by_group(report: Report, eval_sets: list[EvalSet]) -> dict[str, dict]:
    """The scores of the splits that are reported in parts."""
    groups = {}
    for eval_set in eval_sets:
        predictions = report.results[eval_set.name].predictions
        scores = eval_set.task.score_groups(eval_set.example_set, predictions)
        if scores:
            groups[eval_set.name] = scores
    return groups


def write_results(directory, results: dict) -> None:
    """`results.json`: no timings and no paths in it; a NaN becomes null, with a note that says so."""
    content = without_nan(results)
    notes = _notes_on_undefined_scores(results)
    if notes:
        content = {**content, "notes": notes}
    write_json(Path(directory) / RESULTS, content)


def _notes_on_undefined_scores(results: dict) -> list[str]:
    notes = []
    for task, metrics in results["tasks"].items():
        for metric, score in metrics.items():
            if not math.isfinite(score):
                notes.append(f"tasks.{task}.{metric} is not a number ({undefined_reason(metric)})")
    for suite, average in results["averages"].items():
        if not math.isfinite(average):
            notes.append(f"averages.{suite} is not a number (a mean of scores of which one is not)")
    return notes


def prediction_lines(eval_set: EvalSet, predictions: list[str], keeps_texts: bool = False) -> Iterator[dict]:
    """The lines of a predictions file: one per example, with its row's number (`idx`, `place`) and its own.

    Args:
      keeps_texts: the lines hold the input texts, too, for rows that cannot be read again (`rows_stay`).
    """
    has_candidates = eval_set.task.entry.get("postprocess") == "wsc_verdict"
    examples_of_row: Counter[int] = Counter()
    triples = zip(eval_set.row_of_example, eval_set.examples, predictions, strict=True)
    for position, (row, example, prediction) in enumerate(triples):
        line = {"row": row, "example": examples_of_row[row], "prediction": prediction}
        examples_of_row[row] += 1
        if "idx" in eval_set.rows[row]:
            line["idx"] = without_nan(eval_set.rows[row]["idx"])
        if eval_set.places:
            line["place"] = eval_set.places[row]
        if has_candidates:
            line["candidate"] = example.targets
        elif eval_set.labelled:
            line["target"] = example.targets
        if keeps_texts:
            line["inputs"] = eval_set.shown_inputs(position)
        yield line


def finish_run(
    run, data, report: Report, results: dict, best: dict, title: str, trained_model, choices: Sequence[dict]
) -> None:
    """Writes a run's outputs, marks the run as finished last, and shows the table.

    Args:
      trained_model: None where the run only scored one.
      choices: the evaluations that have chosen the weights (`fine_tuning_evaluation.choices_of_weights`).
    """
    settings = run.manifest["settings"]
    keeps_texts = not rows_stay(settings)
    scored = {}
    for eval_set in data.scored:
        result = report.results[eval_set.name]
        path = Path(run.directory) / PREDICTIONS / file_of_answers(eval_set)
        write_jsonl(path, prediction_lines(eval_set, result.predictions, keeps_texts))
        scored[eval_set.name] = _facts_of_split(eval_set, result, settings)
        if settings.get("share_rows") and scored[eval_set.name]["own_rows"]:
            write_jsonl(Path(run.directory) / ROWS / path.name, map(without_nan, eval_set.rows))
    run.update(
        title=title,
        best_per_task=without_nan(best),
        choices=list(choices),
        scored=scored,
        marks={name: result.marks for name, result in report.results.items() if result.marks},
    )
    if trained_model is not None:
        write_learning_curves(run.directory, title)
        write_fine_tuned_card(run.directory, title, run.manifest, results, data.scored, report, trained_model)
    write_results(run.directory, results)
    run.update(files=hashes_of_run(run.directory))
    model = settings.get("model_name_or_path")
    if trained_model is None and model and Path(model).is_dir():
        run.update(model_files=hashes_of_run(model, FILES_OF_MODEL))
    run.update(**{RECORD_HASH: record_sha256(read_manifest(run.directory))})
    run.finish()
    print_results(run.directory, run.manifest, results)
    give_hints(report, data.scored, run)
    if trained_model is not None:
        print_next_commands(run.directory, run.manifest)


def file_of_answers(eval_set: EvalSet) -> str:
    """The name of the file of a split's answers, and of its rows."""
    return f"{eval_set.task.name}.{eval_set.split}.jsonl"


def _facts_of_split(eval_set: EvalSet, result: Result, settings: dict) -> dict:
    """What the manifest records of a split that was scored, besides its scores: what `t5suite verify` needs."""
    cut_off = None
    if result.method == "generate":
        cut_off = 100 * result.truncated / max(1, len(result.predictions))
    return {
        "split": eval_set.split,
        "n": result.num_rows,
        "method": result.method,
        "labelled": result.labelled,
        "cut_off": cut_off,
        "seconds": round(result.seconds, 3),
        "max_answer_tokens": eval_set.max_target_tokens,
        "file": file_of_answers(eval_set),
        "rows_sha256": rows_fingerprint(eval_set.rows),
        "own_rows": has_own_rows(eval_set.task, eval_set.role, settings),
    }


def finish_pre_training(
    run, trainer, report: Report, results: dict, title: str, objective: str, is_model: bool
) -> None:
    """Writes results and, of a run that trained a model, learning curves and model card, and shows the table."""
    run.update(title=title, seconds={name: round(result.seconds, 3) for name, result in report.results.items()})
    if is_model:
        write_learning_curves(run.directory, title)
        example = NOT_SHOWN
        if has_public_text(run.manifest["settings"]):
            example = _held_out_text(trainer)
        family = recognize_family(trainer.accelerator.unwrap_model(trainer.model)).name
        write_pre_trained_card(run.directory, title, run.manifest, results, objective, family, example)
    write_results(run.directory, results)
    run.finish()
    print_results(run.directory, run.manifest, results)
    if is_model:
        print_next_commands(run.directory, run.manifest)


def _held_out_text(trainer) -> str:
    """The beginning of an input of held-out data."""
    first_example = trainer.eval_sets[0].examples[0]
    batch = trainer.evaluator.collator([first_example])
    ids = batch["input_ids"][0].tolist()
    return trainer.processing_class.decode(ids[:EXAMPLE_TOKENS])


def give_hints(report: Report, eval_sets: list[EvalSet], run=None) -> None:
    """Warns of each split whose answers are rarely labels, with the usual causes.

    Args:
      run: None where nothing was written.
    """
    for eval_set in eval_sets:
        result = report.results[eval_set.name]
        if result.metrics.get("invalid_rate", 0.0) >= HARDLY_ANY_LABEL:
            logger.warning(_hint(eval_set, result, run))


def _hint(eval_set: EvalSet, result: Result, run) -> str:
    """What the answers of a split were instead of labels, and the usual causes."""
    task = eval_set.task
    labels = ""
    if task.label_words and len(task.label_words) <= MOST_NAMED_LABELS:
        labels = f" ({', '.join(task.label_words)})"
    answer, times = _most_frequent_answer(result.predictions)
    are_numbers = task.value_kind == "number"
    kind = "numbers" if are_numbers else f"labels{labels}"
    hint = (
        f"{eval_set.name}: {result.metrics['invalid_rate']:.0f}% of the answers are not {kind};"
        f" most often {answer[:SHOWN_ANSWER]!r} ({times} times)."
    )
    updates = ""
    if run is not None:
        hint += f" See {run.directory}/predictions/{task.name}.{eval_set.split}.jsonl."
        training = run.manifest.get("training") or {}
        if training.get("steps"):
            updates = f" ({training['steps']} here)"
    hint += (
        f" Usual causes: too few updates{updates}, above all from random weights or"
        " for a model that was never trained on text-to-text tasks (t5-v1_1, mT5);"
    )
    if not are_numbers:
        hint += " label words (--labels, a task's `labels`) that differ from the target column's;"
    hint += " a prefix that differs from that in training."
    if task.has_candidates and result.method == "generate":
        hint += " `--eval_method score` chooses among the labels, whatever the model would write."
    return hint


def _most_frequent_answer(predictions: list[str]) -> tuple[str, int]:
    """An answer, and how often it was given."""
    if not predictions:
        return "", 0
    counts = Counter(text.strip() for text in predictions)
    (most_frequent,) = counts.most_common(1)
    return most_frequent

"""What a finished run leaves behind: results, predictions, a card, a table, and hints where it learnt nothing.

>>> results = build_results(report, "glue", ["cola", "rte"], eval_sets, published=False)
>>> results["tasks"]["rte"]
{'accuracy': 71.1, 'invalid_rate': 0.0}
"""

import json
import logging
import math
from collections import Counter
from pathlib import Path

from t5suite.data.batches.encodings import PromptEncoding, SegmentEncoding, TextEncoding, segments
from t5suite.data.objectives import OBJECTIVES
from t5suite.data.rows.formats import rows_stay
from t5suite.data.rows.jsonl import file_sha256, without_nan, write_jsonl
from t5suite.models.families import family_of_model
from t5suite.reports.cards import CardFacts, Scored, write_card
from t5suite.reports.plots import learning_curves, loss_curve
from t5suite.reports.tables import RATES, print_groups, print_results, print_table
from t5suite.runs.directory import RESULTS, read_results, write_json
from t5suite.training.eval_sets import EvalSet, Report, Result
from t5suite.training.pre_training_evaluation import NAME, HeldOut

SHOWN = 300  # characters of an example


def pipeline_tag(encoding: TextEncoding | None) -> str:
    """The hub's word for what such a model does."""
    return _kind(encoding)["tag"]


def usage_lines(eval_set, is_adapter: bool = False) -> list[str]:
    """Python that answers the first row of an evaluated split; without one, of a text called '...'."""
    encoding = eval_set.encoding if eval_set else None
    kind = _kind(encoding)
    if is_adapter:
        return _adapter_lines(eval_set, encoding, kind)
    return [
        f"from transformers import {kind['class']}, AutoTokenizer", "",
        f'model = {kind["class"]}.from_pretrained(".")', 'tokenizer = AutoTokenizer.from_pretrained(".")',
        *kind["lines"](eval_set, encoding),
    ]  # fmt: skip


def own_class_lines(model_class: str) -> list[str]:
    """Python that loads a model whose class is the user's own (`--model_class`)."""
    return [
        "from t5suite.models.loading import load_model, load_tokenizer", "",
        'tokenizer = load_tokenizer(".")',
        f'model = load_model(".", tokenizer=tokenizer, model_class="{model_class}")  # a plain module is model.module',
    ]  # fmt: skip


def _adapter_lines(eval_set, encoding, kind) -> list[str]:
    """PEFT finds the base model by the name that the adapter stores; it does not know the words of a head's labels."""
    name = kind["class"].replace("AutoModel", "AutoPeftModel")
    words = getattr(encoding, "words", ()) or ()
    labels = f", num_labels={max(1, len(words))}" if isinstance(encoding, SegmentEncoding) else ""
    lines = kind["lines"](eval_set, encoding)
    return [
        f"from peft import {name}", "from transformers import AutoTokenizer", "",
        f'model = {name}.from_pretrained("."{labels})', 'tokenizer = AutoTokenizer.from_pretrained(".")',
        *[line.replace("model.config.id2label", str(list(words))) for line in lines],
    ]  # fmt: skip


def _kind(encoding) -> dict:
    return next(kind for made, kind in KINDS.items() if isinstance(encoding, made))


def _shown(text: str) -> str:
    return repr(text.replace("`", "'")[:SHOWN])


def _inputs(eval_set) -> str:
    return eval_set.examples[0].inputs if eval_set and eval_set.examples else "..."


def _called(eval_set) -> str:
    """What `generate` is given: without a number of its own it stops after 20 tokens."""
    return f"**inputs, max_new_tokens={eval_set.max_target_tokens}" if eval_set else "**inputs"


def _text_lines(eval_set, encoding) -> list[str]:
    return [
        f'inputs = tokenizer({_shown(_inputs(eval_set))}, return_tensors="pt")',
        f"print(tokenizer.decode(model.generate({_called(eval_set)})[0], skip_special_tokens=True))",
    ]


def _prompt_lines(eval_set, encoding: PromptEncoding) -> list[str]:
    special = "" if encoding.lead else ", add_special_tokens=False"
    return [
        f"prompt = {_shown(_inputs(eval_set))} + {encoding.separator.rstrip(' ')!r}",
        f'inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False{special})',
        f'answer = model.generate({_called(eval_set)})[0, inputs["input_ids"].shape[1] :]',
        "print(tokenizer.decode(answer, skip_special_tokens=True).strip())",
    ]


def _segment_lines(eval_set, encoding: SegmentEncoding) -> list[str]:
    texts = segments(eval_set.rows[0], eval_set.task, eval_set.role) if eval_set.rows else ("...",)
    called = f'inputs = tokenizer({", ".join(map(_shown, texts))}, return_tensors="pt")'
    if encoding.words is None:
        return [called, "print(float(model(**inputs).logits))"]
    return [called, "print(model.config.id2label[int(model(**inputs).logits.argmax())])"]


# By the encoding of the family; the first that fits counts.
KINDS = {
    PromptEncoding: {"tag": "text-generation", "class": "AutoModelForCausalLM", "lines": _prompt_lines},
    SegmentEncoding: {
        "tag": "text-classification",
        "class": "AutoModelForSequenceClassification",
        "lines": _segment_lines,
    },
    object: {"tag": "text-generation", "class": "AutoModelForSeq2SeqLM", "lines": _text_lines},
}
LONGEST_ROW = 1000  # characters of a row that the command answers
ROWS_LOOKED_AT = 100


def write_fine_tuned_card(
    directory, title: str, manifest: dict, results: dict, eval_sets: list[EvalSet], report: Report
) -> Path:
    """Writes `README.md` into a run's directory.

    Args:
      eval_sets: what was scored, whose first rows are the examples.
      report: the scores, for what must be said of them.
    """
    example = next((eval_set for eval_set in eval_sets if eval_set.examples), None)
    encoding, settings = example.encoding if example else None, manifest["settings"]
    own = settings.get("model_class")
    adapted = "adapter" in manifest.get("model", {})
    facts = CardFacts(
        title=title,
        results=results,
        manifest=manifest,
        pipeline_tag=pipeline_tag(encoding),
        usage=own_class_lines(own) if own else usage_lines(example, adapted),
        predict=predict_lines(eval_sets, manifest),
        scored={eval_set.name: _scored(eval_set, report) for eval_set in eval_sets},
        base_model=base_of(manifest),
        family=next((family for kind, family in FAMILIES.items() if isinstance(encoding, kind)), "seq2seq"),
    )
    return write_card(directory, facts)


def base_of(manifest: dict) -> str | None:
    """What a model began with; None for random weights."""
    settings = manifest["settings"]
    began = None if settings.get("from_scratch") else settings.get("model_name_or_path")
    return manifest.get("model", {}).get("base") or began


def predict_lines(eval_sets: list[EvalSet], manifest: dict) -> list[str]:
    """The command that answers a row, in lines; none where no row is short, or the model answers nothing."""
    answering = [eval_set for eval_set in eval_sets if eval_set.method != "loss"]
    found = next(((eval_set, row) for eval_set in answering if (row := short_row(eval_set))), None)
    if found is None:
        return []
    eval_set, row = found
    flags = ["--model_name_or_path", "."]
    if len(manifest.get("tasks", {})) > 1:
        flags += ["--dataset_name", eval_set.task.name]
    if manifest["settings"].get("model_class"):
        flags += ["--model_class", manifest["settings"]["model_class"]]
    return [f"t5suite predict {' '.join(flags)} --input - <<'ROWS'", row, "ROWS"]


def short_row(eval_set: EvalSet) -> str | None:
    """The first row that is not long, as a line of JSON without its label."""
    label = eval_set.task.entry.get("label_column_name")
    for row in eval_set.rows[:ROWS_LOOKED_AT]:
        line = json.dumps(
            {name: value for name, value in row.items() if name != label}, ensure_ascii=False, default=str
        )
        if len(line) <= LONGEST_ROW:
            return line
    return None


def _scored(eval_set: EvalSet, report: Report) -> Scored:
    result = report.results[eval_set.name]
    first = eval_set.examples[0] if eval_set.examples else None
    return Scored(
        task=eval_set.task.name,
        split=eval_set.split,
        rows=result.num_rows,
        method=result.method,
        marks=tuple(result.marks),
        example=(first.inputs, first.targets if eval_set.labelled else "") if first else None,
    )


FAMILIES = {PromptEncoding: "causal", SegmentEncoding: "masked"}
HUB_PREFIX = "hub:"


def write_pre_trained_card(
    directory, title: str, manifest: dict, results: dict, objective: str, family: str, example: str
) -> Path:
    """Writes `README.md` into a run's directory.

    Args:
      objective: its name in `OBJECTIVES`.
      family: seq2seq, causal or masked.
      example: an input text of held-out data.
    """
    own = manifest["settings"].get("model_class")
    facts = CardFacts(
        title=title,
        results=results,
        manifest=manifest,
        pipeline_tag=PIPELINE_TAGS[family],
        usage=own_class_lines(own) if own else pre_trained_usage(family, example),
        predict=pre_trained_predict(family, example, own),
        fine_tune=fine_tune_lines(own),
        base_model=base_of(manifest),
        family=family,
        objective=f"{objective} ({OBJECTIVES[objective].reference})",
        hub_corpora=hub_corpora(manifest["settings"]),
    )
    return write_card(directory, facts)


def hub_corpora(settings: dict) -> list[str]:
    """The hub's names of the text that the flags name.

    >>> hub_corpora({"train_file": "hub:allenai/c4:en:train"})
    ['allenai/c4']
    """
    given = [settings.get(name) for name in ("train_file", "validation_file")]
    texts = [text for value in given for text in (value if isinstance(value, list) else [value]) if text]
    parts = [part.strip() for text in texts for part in str(text).split(",")]
    return sorted({part[len(HUB_PREFIX) :].split(":")[0] for part in parts if part.startswith(HUB_PREFIX)})


def pre_trained_usage(family: str, inputs: str) -> list[str]:
    """Python that does with a text what the model was trained for."""
    lines = [
        f"from transformers import {AUTO_CLASSES[family]}, AutoTokenizer", "",
        f'model = {AUTO_CLASSES[family]}.from_pretrained(".")', 'tokenizer = AutoTokenizer.from_pretrained(".")',
        f'inputs = tokenizer({inputs!r}, return_tensors="pt")',
    ]  # fmt: skip
    if family == "masked":
        return [*lines, "print(tokenizer.decode(model(**inputs).logits[0].argmax(-1)))"]
    return [*lines, "print(tokenizer.decode(model.generate(**inputs)[0]))"]


def pre_trained_predict(family: str, inputs: str, model_class: str | None = None) -> list[str]:
    """The command that goes on with a text, or fills it in; none for a masked model, which writes nothing."""
    if family == "masked":
        return []
    own = f" --model_class {model_class}" if model_class else ""
    row = json.dumps({"inputs": inputs}, ensure_ascii=False)
    return [f"t5suite predict --model_name_or_path .{own} --raw --input - <<'ROWS'", row, "ROWS"]


def fine_tune_lines(model_class: str | None = None) -> list[str]:
    """The command that fine-tunes the model, in a folder beside its own."""
    own = f" --model_class {model_class}" if model_class else ""
    return [
        f"python -m fine_tune_t5 --model_name_or_path .{own} \\",
        "  --benchmark mini --dataset_name sentiment --max_steps 100 --output_dir ../fine_tuned",
    ]


PIPELINE_TAGS = {"seq2seq": "text-generation", "masked": "fill-mask", "causal": "text-generation"}
AUTO_CLASSES = {"seq2seq": "AutoModelForSeq2SeqLM", "masked": "AutoModelForMaskedLM", "causal": "AutoModelForCausalLM"}
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

"""A run's `README.md`: its model card, by huggingface_hub's `ModelCard.from_template` from `card.md.jinja`.

>>> write_fine_tuned_card("runs/glue-rte-t5-small", "t5-small on rte", manifest, results, eval_sets, report)
PosixPath('runs/glue-rte-t5-small/README.md')

The same run makes the same card, to the byte; it is rewritten whenever the run finishes again.
"""

import shlex
from pathlib import Path

from huggingface_hub import ModelCard

from t5suite.base.files import whole_file
from t5suite.base.lookup import listed
from t5suite.base.redaction import printable, redacted
from t5suite.data.batches.encodings import PromptEncoding, SegmentEncoding
from t5suite.data.objectives import OBJECTIVES
from t5suite.reports.card_facts import CardFacts, ScoredResult
from t5suite.reports.card_metadata import hub_metadata, hub_name
from t5suite.reports.card_tables import (
    data_rows,
    first_examples,
    hub_rows,
    machine_rows,
    revision_flags,
    score_notes,
    score_rows,
    setting_rows,
    without_folders,
)
from t5suite.reports.card_usage import (
    fine_tune_lines,
    own_class_lines,
    pre_trained_predict_lines,
    pre_trained_usage_lines,
    predict_lines,
    usage_lines,
)
from t5suite.reports.learning_curves import LEARNING_CURVES
from t5suite.reports.markdown import block, code
from t5suite.tracking.tables import markdown_table

# Label words of a task that a card names.
MOST_LABELS = 12


def write_fine_tuned_card(directory, title: str, manifest: dict, results: dict, eval_sets, report) -> Path:
    """Writes `README.md` into the directory of a fine-tuning run.

    Args:
      eval_sets: what was scored, whose first rows are the examples.
      report: the scores with their marks.
    """
    example_set = next((eval_set for eval_set in eval_sets if eval_set.examples), None)
    family = card_family(example_set.encoding) if example_set else "seq2seq"
    own_class = manifest["settings"].get("model_class")
    if own_class:
        usage = own_class_lines(own_class)
    else:
        usage = usage_lines(example_set, family, is_adapter="adapter" in manifest.get("model", {}))
    facts = CardFacts(
        title=title,
        results=results,
        manifest=manifest,
        scored={eval_set.name: scored_result(eval_set, report.results[eval_set.name]) for eval_set in eval_sets},
        family=family,
        usage=usage,
        predict=predict_lines(eval_sets, manifest),
    )
    return write_card(directory, facts)


def card_family(encoding) -> str:
    """The family of models whose rows have this encoding."""
    if getattr(encoding, "whole", False):
        return "encoder"
    if isinstance(encoding, PromptEncoding):
        return "causal"
    return "masked" if isinstance(encoding, SegmentEncoding) else "seq2seq"


def scored_result(eval_set, result) -> ScoredResult:
    """What a card says of an evaluated split and its result."""
    example = None
    if eval_set.examples:
        targets = eval_set.examples[0].targets if eval_set.labelled else ""
        example = (eval_set.shown_inputs(0), targets)
    return ScoredResult(
        task=eval_set.task.name,
        split=eval_set.split,
        role=eval_set.role,
        rows=result.num_rows,
        method=result.method,
        marks=tuple(result.marks),
        example=example,
    )


def write_pre_trained_card(
    directory, title: str, manifest: dict, results: dict, objective: str, family: str, example: str
) -> Path:
    """Writes `README.md` into the directory of a pre-training run.

    Args:
      objective: its name in `OBJECTIVES`.
      family: seq2seq, causal or masked.
      example: an input text of held-out data.
    """
    own_class = manifest["settings"].get("model_class")
    facts = CardFacts(
        title=title,
        results=results,
        manifest=manifest,
        scored={name: ScoredResult(name, "held-out") for name in results["tasks"]},
        family=family,
        usage=own_class_lines(own_class) if own_class else pre_trained_usage_lines(family, example),
        predict=pre_trained_predict_lines(family, own_class, example),
        fine_tune=fine_tune_lines(own_class),
        objective=f"{objective} ({OBJECTIVES[objective].reference})",
    )
    return write_card(directory, facts)


def write_card(directory, facts: CardFacts) -> Path:
    """Writes the card through a temporary sibling, so that a reader never sees half of it."""
    path = Path(directory) / "README.md"
    with whole_file(path) as temporary:
        temporary.write_text(card_text(facts, path.with_name(LEARNING_CURVES).is_file()), encoding="utf-8")
    return path


def card_text(facts: CardFacts, has_curves: bool = False) -> str:
    """The card: metadata and sections, without secrets; `has_curves`: their plot is in the same folder."""
    manifest = facts.manifest
    words = [without_folders(word) for word in manifest.get("command", [])]
    separator = (manifest.get("encoding") or {}).get("answer_separator")
    card = ModelCard.from_template(
        hub_metadata(facts),
        template_path=str(Path(__file__).with_name("card.md.jinja")),
        facts=facts,
        summary=summary_sentence(facts),
        template=input_template,
        answers=answer_words,
        examples=first_examples(facts),
        separator=repr(separator) if separator else "",
        scores=score_rows(facts),
        notes=score_notes(facts),
        data=data_rows(manifest),
        settings=setting_rows(facts),
        hub=hub_rows(manifest),
        revisions=revision_flags(manifest),
        picture=LEARNING_CURVES if has_curves else "",
        command=f"python {shlex.join(words)}" if words else "(not recorded)",
        machine=machine_rows(manifest),
        base=hub_name(facts.base),
        code=code,
        block=lambda language, lines: "\n".join(block(language, lines)),
        table=markdown_table,
    )
    return printable(redacted(f"{card.content.rstrip()}\n"))


def summary_sentence(facts: CardFacts) -> str:
    """What the model is, in a sentence."""
    adapter = facts.model.get("adapter")
    training = f"pre-trained by {facts.objective}" if facts.objective else "fine-tuned"
    if adapter:
        training = f"an adapter ({adapter}), {training}"
    initial = "random weights"
    if facts.base:
        initial = code(hub_name(facts.base) or without_folders(facts.base))
    version = facts.manifest["versions"].get("t5suite") or ""
    return f"{model_size(facts.model)}{training} from {initial} with t5suite {version}."


def model_size(model: dict) -> str:
    """The class and the number of parameters, if they are known.

    >>> model_size({"class": "T5ForConditionalGeneration", "parameters": 60506624, "trainable": 1024})
    'T5ForConditionalGeneration, 60,506,624 parameters, of which 1,024 were trained; '
    """
    if "parameters" not in model:
        return ""
    text = f"{model['class']}, {model['parameters']:,} parameters"
    if model.get("trainable", model["parameters"]) != model["parameters"]:
        text += f", of which {model['trainable']:,} were trained"
    return f"{text}; "


def input_template(entry: dict) -> str:
    """The input text of a task, with the columns in braces.

    >>> entry = {"prefix": ["rte sentence1: ", "sentence2: "], "text_column_name": ["sentence1", "sentence2"]}
    >>> input_template(entry)
    'rte sentence1: {sentence1} sentence2: {sentence2}'
    """
    prefixes = entry.get("prefix") or ""
    columns = entry.get("text_column_name") or ""
    if isinstance(prefixes, str):
        prefixes = [prefixes]
        columns = [columns]
    text = " ".join(f"{prefix}{{{column}}}" for prefix, column in zip(prefixes, columns))
    if entry.get("input_format"):
        text = entry["input_format"].replace("__input__", text)
    return f"{text} (formatter {entry['formatter']})" if entry.get("formatter") else text


def answer_words(entry: dict) -> str:
    """The words of a task's labels."""
    labels = entry.get("labels")
    words = list(labels.values()) if isinstance(labels, dict) else list(labels or [])
    if words:
        return listed([code(str(word)) for word in words], MOST_LABELS)
    return "free text" if entry.get("target") is None else f"text (target {code(str(entry['target']))})"

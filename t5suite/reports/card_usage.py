"""How a finished model is used, for its card: Python with transformers alone, and commands.

>>> write_fine_tuned_card(run.directory, title, run.manifest, results, eval_sets, report)
PosixPath('runs/glue-rte-t5-small/README.md')
>>> pipeline_tag(eval_set.encoding)
'text-generation'
"""

import json
from pathlib import Path

from t5suite.data.batches.encodings import PromptEncoding, SegmentEncoding, TextEncoding, segments
from t5suite.data.objectives import OBJECTIVES
from t5suite.reports.card_facts import CardFacts, Scored
from t5suite.reports.cards import write_card
from t5suite.training.eval_sets import EvalSet, Report

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

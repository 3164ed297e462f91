"""A run's `README.md`: its model card, by huggingface_hub's `ModelCard.from_template` from `card.md.jinja`.

>>> write_fine_tuned_card("runs/glue-rte-t5-small", "t5-small on rte", manifest, results, eval_sets, report)
PosixPath('runs/glue-rte-t5-small/README.md')

The same run makes the same card, to the byte; it is rewritten whenever the run finishes again.
"""

import json
import math
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from t5suite.base.files import whole_file
from t5suite.base.lookup import listed
from t5suite.base.redaction import printable, redacted
from t5suite.base.script_flags import flags_marked
from t5suite.data.batches.encodings import LabelsEncoding, PromptEncoding, SegmentEncoding
from t5suite.data.objectives import OBJECTIVES
from t5suite.reports.formatting import average_title, points, shortened
from t5suite.reports.markdown import block, code
from t5suite.reports.plots import LEARNING_CURVES
from t5suite.runs.directory import tasks_named
from t5suite.tasks.task_card import HEADED
from t5suite.tasks.tokens import without_cut
from t5suite.tracking.metric_lines import markdown_table

# A path from the root or from a home; the two slashes of a URL do not count.
FOLDERS = re.compile(r"(?<![^\s=,:'\"(\[`])(?:~[\w.-]*/|/(?!/))[^\s,:'\")\]`]*")
# A name on the hub: OWNER/NAME, or one of the first models' without an owner.
HUB_NAME = re.compile(r"(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*")
# Where the hub's cache keeps a model: models--google--t5-v1_1-small/snapshots/4e79f2...
CACHED = re.compile(r"models--(.+?)/snapshots/")
ENGLISH = ("glue", "super_glue", "mini", "squad", "summarization")
# The names of https://huggingface.co/metrics, where ours differ.
METRIC_TYPES = {"pearson": "pearsonr", "spearman": "spearmanr", "mean_3class_f1": "f1", "bleu": "sacrebleu"}
NATS = ("nll", "nll_text", "unigram_nll", "unigram_nll_text", "loss")
METHODS = {"score": "the likeliest of the given answers is chosen", "loss": "loss alone is measured"}
SHOWN_LABELS = 12
# Hugging Face's flags count only if ours are not given.
BESIDE_OURS = {"optim": "optimizer", "lr_scheduler_type": "schedule"}
IN_THE_SUMMARY = ("model_name_or_path", "config_name")
AUTO_CLASSES = {"seq2seq": "AutoModelForSeq2SeqLM", "masked": "AutoModelForMaskedLM", "causal": "AutoModelForCausalLM"}
# Characters of an example, and of a row that the command answers.
SHOWN, LONGEST_ROW = 300, 1000


class Scored(NamedTuple):
    """What a name in the results refers to.

    Attributes:
      task, split: by their own names.
      rows: how many were scored.
      method: how answers were made: generate, score, classify, loss.
      marks: remarks on the score, such as 'subset'.
      example: `(inputs, targets)` of the first one.
    """

    task: str
    split: str
    rows: int | None = None
    method: str | None = None
    marks: Sequence[str] = ()
    example: tuple[str, str] | None = None


class CardFacts(NamedTuple):
    """A finished model.

    Attributes:
      title: what the model is called.
      results: as `results.json` has them.
      scored: by name in the results.
      family: seq2seq, causal or masked.
      usage: Python that uses the model, in lines.
      predict: the command that uses it, in lines; none if the model generates nothing.
      fine_tune: the command that trains it further, in lines; none if it is already trained for its task.
      objective: pre-training's, with its source.
    """

    title: str
    results: dict
    manifest: dict
    scored: Mapping[str, Scored]
    family: str = "seq2seq"
    usage: Sequence[str] = ()
    predict: Sequence[str] = ()
    fine_tune: Sequence[str] = ()
    objective: str | None = None

    @property
    def settings(self) -> dict:
        """Every flag by name."""
        return self.manifest["settings"]

    @property
    def tasks(self) -> dict:
        """The tasks' entries by name; empty for pre-training."""
        return self.manifest.get("tasks", {})

    @property
    def benchmark(self) -> str | None:
        """The tasks' benchmark; None for pre-training."""
        return tasks_named(self.manifest)[0] if self.tasks else None

    @property
    def base(self) -> str | None:
        """The model of the initial weights; None for random weights."""
        began = None if self.settings.get("from_scratch") else self.settings.get("model_name_or_path")
        return self.manifest.get("model", {}).get("base") or began


def write_fine_tuned_card(directory, title: str, manifest: dict, results: dict, eval_sets, report) -> Path:
    """Writes `README.md` into the directory of a fine-tuning run.

    Args:
      eval_sets: what was scored, whose first rows are the examples.
      report: the scores with their marks.
    """
    example = next((eval_set for eval_set in eval_sets if eval_set.examples), None)
    own_class, scored = manifest["settings"].get("model_class"), {}
    for eval_set in eval_sets:
        result, examples = report.results[eval_set.name], eval_set.examples
        first = (eval_set.shown_inputs(0), examples[0].targets if eval_set.labelled else "") if examples else None
        scored[eval_set.name] = Scored(
            eval_set.task.name, eval_set.split, result.num_rows, result.method, tuple(result.marks), first
        )
    encoding = example.encoding if example else None
    kinds = {PromptEncoding: "causal", SegmentEncoding: "masked"}
    family = next((name for kind, name in kinds.items() if isinstance(encoding, kind)), "seq2seq")
    family = "encoder" if getattr(encoding, "whole", False) else family
    usage = own_class_lines(own_class)
    if not own_class:
        usage = usage_lines(example, family, "adapter" in manifest.get("model", {}))
    predict = predict_lines(eval_sets, manifest)
    return write_card(directory, CardFacts(title, results, manifest, scored, family, usage, predict))


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
    flags = f"--model_name_or_path .{f' --model_class {own_class}' if own_class else ''}"
    answer = "model(**inputs).logits[0].argmax(-1)" if family == "masked" else "model.generate(**inputs)[0]"
    usage = [
        *_loading_lines(AUTO_CLASSES[family]),
        f'inputs = tokenizer({example!r}, return_tensors="pt")',
        f"print(tokenizer.decode({answer}))",
    ]
    row = json.dumps({"inputs": example}, ensure_ascii=False)
    facts = CardFacts(
        title=title,
        results=results,
        manifest=manifest,
        scored={name: Scored(name, "held-out") for name in results["tasks"]},
        family=family,
        usage=own_class_lines(own_class) if own_class else usage,
        predict=[] if family == "masked" else [f"t5suite predict {flags} --raw --input - <<'ROWS'", row, "ROWS"],
        fine_tune=[
            f"python -m fine_tune_t5 {flags} \\",
            "  --benchmark mini --dataset_name sentiment --max_steps 100 --output_dir ../fine_tuned",
        ],
        objective=f"{objective} ({OBJECTIVES[objective].reference})",
    )
    return write_card(directory, facts)


def own_class_lines(model_class: str | None = None) -> list[str]:
    """Python that loads what transformers alone cannot: an encoder with our head, the user's own class."""
    more = f', model_class="{model_class}"' if model_class else ""
    return [
        "from t5suite.models.loading import load_model, load_tokenizer",
        "",
        'tokenizer = load_tokenizer(".")',
        f'model = load_model(".", tokenizer=tokenizer{more})',
    ]


def _loading_lines(auto_class: str, adapted: bool = False, more: str = "") -> list[str]:
    """Python that loads model and tokenizer; PEFT finds an adapter's base by the name that the adapter stores."""
    peft_class = auto_class.replace("AutoModel", "AutoPeftModel")
    imports = [f"from transformers import {auto_class}, AutoTokenizer"]
    if adapted:
        imports = [f"from peft import {peft_class}", "from transformers import AutoTokenizer"]
    load = f'model = {peft_class if adapted else auto_class}.from_pretrained("."{more})'
    return [*imports, "", load, 'tokenizer = AutoTokenizer.from_pretrained(".")']


def usage_lines(eval_set, family: str, adapted: bool = False) -> list[str]:
    """Python that answers the first row of an evaluated split; without one, the text '...'."""
    shown = lambda text: repr(text.replace("`", "'")[:SHOWN])
    inputs = shown(without_cut(eval_set.shown_inputs(0)) if eval_set else "...")
    encoding = eval_set.encoding if eval_set else None
    # Without `max_new_tokens` `generate` stops after 20 tokens.
    generate = f"model.generate(**inputs{f', max_new_tokens={eval_set.max_target_tokens}' if eval_set else ''})[0]"
    if family == "causal":
        special = "" if encoding.lead else ", add_special_tokens=False"
        return [
            *_loading_lines(AUTO_CLASSES[family], adapted),
            f"prompt = {inputs} + {encoding.separator.rstrip(' ')!r}",
            f'inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False{special})',
            f'answer = {generate[:-3]}[0, inputs["input_ids"].shape[1] :]',
            "print(tokenizer.decode(answer, skip_special_tokens=True).strip())",
        ]
    if family in HEADED:
        texts = ("...",)
        if eval_set.examples:
            texts = encoding.texts_read(eval_set.examples[0], eval_set.rows[0], eval_set.task)
        labels = f", num_labels={max(1, len(encoding.words or ()))}" if adapted else ""
        # PEFT does not know the words of a head's labels.
        words = list(encoding.words or ()) if adapted else "model.config.id2label"
        answer = "float(model(**inputs).logits)"
        if encoding.words is not None:
            answer = f"{words}[int(model(**inputs).logits.argmax())]"
        loading = _loading_lines("AutoModelForSequenceClassification", adapted, labels)
        if family == "encoder":
            loading = own_class_lines()
        if isinstance(encoding, LabelsEncoding):
            if not adapted and family == "masked":
                loading = _loading_lines("AutoModelForTokenClassification")
            return [
                *loading,
                f"words = [{', '.join(map(shown, texts))}]",
                'inputs = tokenizer(words, is_split_into_words=True, return_tensors="pt")',
                "print([model.config.id2label[i] for i in model(**inputs).logits[0].argmax(-1).tolist()])  # by token",
            ]
        return [
            *loading,
            f'inputs = tokenizer({", ".join(map(shown, texts))}, return_tensors="pt")',
            f"print({answer})",
        ]
    return [
        *_loading_lines(AUTO_CLASSES[family], adapted),
        f'inputs = tokenizer({inputs}, return_tensors="pt")',
        f"print(tokenizer.decode({generate}, skip_special_tokens=True))",
    ]


def predict_lines(eval_sets, manifest: dict) -> list[str]:
    """The command that answers a row, in lines; none if no row is short, or the model gives no answers."""
    for eval_set in eval_sets:
        label = eval_set.task.entry.get("label_column_name")
        for row in eval_set.rows[:100] if eval_set.method != "loss" else ():
            columns = {name: value for name, value in row.items() if name != label}
            line = json.dumps(columns, ensure_ascii=False, default=str)
            if len(line) > LONGEST_ROW:
                continue
            flags = ["--model_name_or_path", "."]
            flags += ["--dataset_name", eval_set.task.name] if len(manifest.get("tasks", {})) > 1 else []
            own_class = manifest["settings"].get("model_class")
            flags += ["--model_class", own_class] if own_class else []
            return [f"t5suite predict {' '.join(flags)} --input - <<'ROWS'", line, "ROWS"]
    return []


def without_folders(text: str) -> str:
    """The text with every absolute path reduced to its last name."""
    return FOLDERS.sub(lambda found: f"…/{Path(found[0]).name}", str(text))


def hub_name(name: str | None) -> str | None:
    """The name on the hub of what a flag named; None for folders and for what is in memory.

    >>> hub_name("/cache/models--google--mt5-small/snapshots/73fb5d/")
    'google/mt5-small'
    """
    cached = CACHED.search(name or "")
    if cached:
        return cached[1].replace("--", "/")
    return name if name and not os.path.exists(name) and HUB_NAME.fullmatch(name) else None


def card_data(facts: CardFacts) -> ModelCardData:
    """The metadata of a model; a NaN score is only in the table, because the index cannot represent it."""
    adapter, base = facts.manifest.get("model", {}).get("adapter"), hub_name(facts.base)
    pipeline_tag = "text-generation"
    if facts.family in HEADED:
        pipeline_tag = "fill-mask" if facts.objective else "text-classification"
    results, datasets = [], set()
    for name, metrics in facts.results["tasks"].items():
        scored = facts.scored[name]
        entry, path = facts.tasks.get(scored.task, {}), None
        role = next((role for role, split in (entry.get("splits") or {}).items() if split == scored.split), "")
        # A file that replaces the hub's rows is another data set.
        if not facts.settings.get(f"{role}_file") and facts.settings.get("data_format") in (None, "hub"):
            path = entry.get("hub_path") or facts.settings.get("hub_path")
        datasets |= {path} if path else set()
        called = f"{facts.benchmark}/{scored.task}" if facts.benchmark else "held-out text"
        for metric, value in metrics.items():
            if value is not None and math.isfinite(value):
                results.append(
                    EvalResult(
                        task_type="text-classification" if entry.get("labels") else pipeline_tag,
                        task_name=name,
                        dataset_type=path or re.sub("[/_ ]", "-", called),
                        dataset_name=called,
                        dataset_config=entry.get("hub_name") if path else None,
                        dataset_split=scored.split,
                        metric_type=METRIC_TYPES.get(metric, metric),
                        metric_name=f"{metric} ({_unit(metric)})",
                        metric_value=value,
                    )
                )
    tags = ["t5suite", facts.objective and facts.objective.split(" ")[0], facts.benchmark, adapter]
    tags += ["text2text-generation"] if facts.family == "seq2seq" else []
    return ModelCardData(
        language=["en"] if facts.benchmark in ENGLISH else None,
        license="unknown",  # the hub's word for a licence that is not stated
        library_name="t5suite" if facts.settings.get("model_class") else "peft" if adapter else "transformers",
        pipeline_tag=pipeline_tag,
        tags=[tag for tag in tags if tag],
        datasets=sorted(datasets) or None,
        metrics=list(dict.fromkeys(result.metric_type for result in results)) or None,
        base_model=base,
        base_model_relation=("adapter" if adapter else "finetune") if base else None,
        model_name=facts.title,
        eval_results=results or None,
    )


def _unit(metric: str) -> str:
    return "nats a target token" if metric in NATS else "no unit" if "perplexity" in metric else "points"


def write_card(directory, facts: CardFacts) -> Path:
    """Writes the card through a temporary sibling, so that a reader never sees half of it."""
    path = Path(directory) / "README.md"
    with whole_file(path) as temporary:
        temporary.write_text(card_text(facts, path.with_name(LEARNING_CURVES).is_file()), encoding="utf-8")
    return path


def card_text(facts: CardFacts, has_curves: bool = False) -> str:
    """The card: metadata and sections, without secrets; `has_curves`: their plot is in the same folder."""
    manifest, scored = facts.manifest, facts.scored
    words = [without_folders(word) for word in manifest.get("command", [])]
    examples = {
        part.task: [shortened(text, 160) for text in part.example] for part in reversed(scored.values()) if part.example
    }
    scores, notes = [], []
    for name, metrics in facts.results["tasks"].items():
        part = scored[name]
        said = [*part.marks, *([METHODS[part.method]] if part.method in METHODS else [])]
        notes += [f"{name}: {', '.join(said)}."] if said else []
        for metric, value in metrics.items():
            shown, unit = points(value, "nan"), _unit(metric)
            if (facts.objective or unit != "points") and shown != "nan":
                shown = f"{value:.4f}"
            scores.append([name, part.split, "" if part.rows is None else f"{part.rows:,}", metric, shown, unit])
    for name, value in facts.results.get("averages", {}).items():
        scores.append([average_title(name), "", "", "average", points(value, "nan"), "points"])
    if manifest.get("missing_tasks"):
        notes.append(f"skipped because data are missing: {', '.join(manifest['missing_tasks'])}.")
    if facts.objective:
        notes.append("`unigram`: the best that a model without context could do.")
    separator = (manifest.get("encoding") or {}).get("answer_separator")
    # Enough of a hash to identify it; the manifest has all of it.
    short = lambda text: code(re.sub(r"([0-9a-f]{16})[0-9a-f]+$", r"\1", text)) if text else ""
    rows = []
    for split, part in manifest.get("data", {}).items():
        if isinstance(part, dict):
            if "origin" in part:
                origin, counts = without_folders(part["origin"]), [part.get("rows", ""), part.get("used", "")]
                rows.append([split, origin, *counts, short(part.get("fingerprint"))])
            for source in part.get("sources", []):
                if isinstance(source, dict) and "name" in source:
                    count, hashed = source.get("documents", ""), short(source.get("sha256"))
                    rows.append([split, without_folders(source["name"]), count, "", hashed])
    settings = [[name, without_folders(value)] for name, value in shown_settings(facts.settings).items()]
    rates = manifest.get("mixing_rates") or {}
    if len(rates) > 1:
        shares = ", ".join(f"{name} {100 * rate / (sum(rates.values()) or 1):.1f}%" for name, rate in rates.items())
        settings.append(["share of the examples", shares])
    if steps := manifest.get("training", {}).get("steps"):
        settings.append(["updates made", f"{steps:,}"])
    card = ModelCard.from_template(
        card_data(facts),
        template_path=str(Path(__file__).with_name("card.md.jinja")),
        facts=facts,
        summary=_summary(facts),
        template=template,
        answers=answers,
        examples=examples,
        separator=repr(separator) if separator else "",
        scores=scores,
        notes=notes,
        data=rows,
        settings=settings,
        hub=hub_rows(manifest),
        revisions=revision_flags(manifest),
        picture=LEARNING_CURVES if has_curves else "",
        command=f"python {shlex.join(words)}" if words else "(not recorded)",
        machine=_machine(manifest),
        base=hub_name(facts.base),
        code=code,
        block=lambda language, lines: "\n".join(block(language, lines)),
        table=markdown_table,
    )
    return printable(redacted(f"{card.content.rstrip()}\n"))


def hub_rows(manifest: dict) -> list[list]:
    """The hub's repositories that a run has read: kind, name, the revision that was asked for, the commit."""
    rows = []
    for section, entries in (manifest.get("hub") or {}).items():
        for name, entry in entries.items():
            rows.append([section, name, entry["revision"] or "", code(entry["commit"])])
    return rows


def revision_flags(manifest: dict) -> str:
    """The flags by which a run reads the same commits of the hub again.

    Pre-training has no flag for data sets: their names hold a revision, `hub:allenai/c4@COMMIT:en:train`.

    >>> revision_flags({"settings": {"data_revision": None}, "hub": {"datasets": {"a/b": {"commit": "bcdcba79"}}}})
    '--data_revision a/b=bcdcba79'
    """
    flags = []
    for section, flag in (("models", "model_revision"), ("datasets", "data_revision")):
        entries = (manifest.get("hub") or {}).get(section, {})
        pairs = [f"{name}={entry['commit']}" for name, entry in entries.items() if "@" not in name]
        if pairs and flag in manifest["settings"]:
            flags.append(f"--{flag} {','.join(pairs)}")
    return " ".join(flags)


def _summary(facts: CardFacts) -> str:
    """What the model is, in a sentence."""
    model, version = facts.manifest.get("model", {}), facts.manifest["versions"].get("t5suite") or ""
    how = f"pre-trained by {facts.objective}" if facts.objective else "fine-tuned"
    if model.get("adapter"):
        how = f"an adapter ({model['adapter']}), {how}"
    base = f"from {code(hub_name(facts.base) or without_folders(facts.base))}" if facts.base else "from random weights"
    size = f"{model['class']}, {model['parameters']:,} parameters; " if "parameters" in model else ""
    if model.get("trainable", model.get("parameters")) != model.get("parameters"):
        size = size.replace(";", f", of which {model['trainable']:,} were trained;")
    return f"{size}{how} {base} with t5suite {version}."


def template(entry: dict) -> str:
    """The input text of a task, with the columns in braces.

    >>> template({"prefix": ["rte sentence1: ", "sentence2: "], "text_column_name": ["sentence1", "sentence2"]})
    'rte sentence1: {sentence1} sentence2: {sentence2}'
    """
    prefixes, columns = entry.get("prefix") or "", entry.get("text_column_name") or ""
    if isinstance(prefixes, str):
        prefixes, columns = [prefixes], [columns]
    text = " ".join(f"{prefix}{{{column}}}" for prefix, column in zip(prefixes, columns))
    if entry.get("input_format"):
        text = entry["input_format"].replace("__input__", text)
    return f"{text} (formatter {entry['formatter']})" if entry.get("formatter") else text


def answers(entry: dict) -> str:
    """The words of a task's labels."""
    labels = entry.get("labels")
    words = list(labels.values()) if isinstance(labels, dict) else list(labels or [])
    if not words:
        return "free text" if entry.get("target") is None else f"text (target {code(str(entry['target']))})"
    return listed([code(str(word)) for word in words], SHOWN_LABELS)


def shown_settings(settings: dict) -> dict:
    """The settings that a reader asks for first; `manifest.json` has all.

    >>> shown_settings({"optim": "adamw_torch", "optimizer": "adafactor", "seed": 42, "max_steps": -1})
    {'seed': 42, 'optimizer': 'adafactor'}
    """
    idle = [theirs for theirs, ours in BESIDE_OURS.items() if settings.get(ours) is not None]
    idle += ["num_train_epochs"] if (settings.get("max_steps") or 0) > 0 else []
    names = [name for name in ("update_size", *flags_marked("report")) if name not in (*idle, *IN_THE_SUMMARY)]
    return {name: settings[name] for name in names if settings.get(name) not in (None, False, "", -1, [])}


def _seconds_of_scoring(manifest: dict) -> float | None:
    """Of the last evaluation: fine-tuning has them by split under `scored`, pre-training by text under `seconds`."""
    seconds = [facts.get("seconds") for facts in manifest.get("scored", {}).values()]
    seconds += manifest.get("seconds", {}).values()
    timed = [value for value in seconds if value is not None]
    return sum(timed) if timed else None


def _machine(manifest: dict) -> list[list]:
    """Hardware, seconds and versions; unknown values are omitted."""
    names = ("hardware", "training", "commit", "libraries")
    hardware, trained, commit, libraries = (manifest.get(name) or {} for name in names)
    seconds, begun = trained.get("train_runtime"), trained.get("from_step")
    since = f" (since update {begun:,}, where it resumed)" if begun else ""
    scoring = _seconds_of_scoring(manifest)
    rows = [
        ["processor", f"{hardware.get('cores', '?')} cores, {hardware.get('platform', '?')}"],
        ["accelerators", ", ".join(hardware.get("gpus", [])) or "none"],
        ["seconds of training", "" if seconds is None else f"{seconds:.1f}{since}"],
        ["seconds of scoring", "" if scoring is None else f"{scoring:.1f}"],
        *([name, version] for name, version in manifest["versions"].items()),
        ["commit", (commit.get("commit") or "")[:12] + (", with changes" if commit.get("changed") else "")],
        ["fast paths off", ", ".join(libraries.get("off", []))],
        ["used with untested libraries", ", ".join(libraries.get("untested", {}))],
        ["SHA-256 of the code", (manifest.get("code_sha256") or "")[:16]],
    ]
    return [row for row in rows if row[1]]

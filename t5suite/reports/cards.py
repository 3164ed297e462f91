"""A run's `README.md`: its model card, by huggingface_hub's `ModelCard.from_template` from `card.md.jinja`.

>>> write_card("runs/glue-rte-t5-small", facts)
PosixPath('runs/glue-rte-t5-small/README.md')

The same run makes the same card, to the byte; it is written anew whenever the run comes to an end again.
"""

import math
import os
import platform
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from t5suite.base.files import whole_file
from t5suite.base.redaction import printable, redacted
from t5suite.base.script_flags import flags_marked
from t5suite.reports.tables import average_title, block, cell, code, format_points, shortened, table
from t5suite.runs.directory import tasks_named

# Pre-training's scores that are no points, by name.
NATS = ("nll", "nll_text", "unigram_nll", "unigram_nll_text", "loss")


class Scored(NamedTuple):
    """What stands behind a name in the results.

    Attributes:
      task, split: by their own names.
      rows: how many were scored.
      method: how answers were made: generate, score, classify, loss.
      marks: what must be said of the score, such as 'subset'.
      example: `(inputs, targets)` of the first one.
    """

    task: str
    split: str
    rows: int | None = None
    method: str | None = None
    marks: Sequence[str] = ()
    example: tuple[str, str] | None = None


@dataclass(frozen=True)
class CardFacts:
    """A finished model.

    Attributes:
      title: what the model is called.
      results: as `results.json` has them.
      usage: Python that uses the model, in lines.
      predict: the command that does, in lines; none where there is none.
      fine_tune: the command that trains it further, in lines; none where it is trained for its task already.
      scored: by name in the results.
      family: seq2seq, causal or masked.
      objective: pre-training's, with its source.
    """

    title: str
    results: dict
    manifest: dict
    pipeline_tag: str
    usage: Sequence[str] = ()
    predict: Sequence[str] = ()
    fine_tune: Sequence[str] = ()
    scored: Mapping[str, Scored] = field(default_factory=dict)
    base_model: str | None = None
    family: str = "seq2seq"
    objective: str | None = None
    hub_corpora: Sequence[str] = ()

    @property
    def settings(self) -> dict:
        """Every flag by name."""
        return self.manifest["settings"]

    @property
    def tasks(self) -> dict:
        """The tasks' entries by name."""
        return self.manifest.get("tasks", {})

    @property
    def data(self) -> dict:
        """What the run noted of its data."""
        return self.manifest.get("data", {})

    @property
    def benchmark(self) -> str | None:
        """The tasks' benchmark; None for pre-training."""
        return tasks_named(self.manifest)[0] if self.tasks else None

    @property
    def adapter(self) -> str | None:
        """The kind of adapter, if it is one."""
        return self.manifest.get("model", {}).get("adapter")

    @property
    def library(self) -> str:
        """What loads the model."""
        if self.settings.get("model_class"):
            return "t5suite"
        return "peft" if self.adapter else "transformers"

    @property
    def tags(self) -> list[str]:
        """Words to find the model by."""
        kind = self.objective.split(" ")[0] if self.objective else None
        found = ["t5suite", kind, self.benchmark, self.adapter]
        return [tag for tag in found if tag] + (["text2text-generation"] if self.family == "seq2seq" else [])

    def unit_of(self, metric: str) -> str:
        """What a score is counted in."""
        if metric in NATS:
            return "nats a target token"
        return "no unit" if "perplexity" in metric else "points"


# A path from the root or from a home; the two slashes of an address are none.
FOLDERS = re.compile(r"(?<![^\s=,:'\"(\[`])(?:~[\w.-]*/|/(?!/))[^\s,:'\")\]`]*")
# A name on the hub: OWNER/NAME, or one of the first models' without an owner.
HUB_NAME = re.compile(r"(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*")
# Where the hub's cache keeps a model: models--google--t5-v1_1-small/snapshots/4e79f2...
CACHED = re.compile(r"models--(.+?)/snapshots/")


def without_folders(text: str) -> str:
    """The text with the last name alone of every absolute path."""
    return FOLDERS.sub(lambda found: f"…/{Path(found[0]).name}", str(text))


def hub_name(name: str | None) -> str | None:
    """The name on the hub of what a flag named; None for folders and for what is in memory.

    >>> hub_name("/cache/models--google--mt5-small/snapshots/73fb5d/")
    'google/mt5-small'
    """
    cached = CACHED.search(name or "")
    if cached:
        return cached[1].replace("--", "/")
    if not name or os.path.exists(name) or not HUB_NAME.fullmatch(name):
        return None
    return name


HELD_OUT = "held-out text"
UNKNOWN = "unknown"  # the hub's word for a licence that nobody has stated


def card_data(facts: CardFacts) -> ModelCardData:
    """The metadata of a model."""
    results = eval_results(facts)
    base = hub_name(facts.base_model)
    relation = ("adapter" if facts.adapter else "finetune") if base else None
    return ModelCardData(
        language=languages(facts),
        license=UNKNOWN,
        library_name=facts.library,
        pipeline_tag=facts.pipeline_tag,
        tags=list(facts.tags),
        datasets=datasets_of(facts) or None,
        metrics=list(dict.fromkeys(result.metric_type for result in results)) or None,
        base_model=base,
        base_model_relation=relation,
        model_name=facts.title,
        eval_results=results or None,
    )


def eval_results(facts: CardFacts) -> list[EvalResult]:
    """Every number of the results; one that is none is left to the table, for an index has no word for it."""
    found = []
    for name, metrics in facts.results["tasks"].items():
        scored = facts.scored.get(name, Scored(name, "validation"))
        entry = facts.tasks.get(scored.task, {})
        place = dataset_of(facts, scored, entry)
        for metric, value in metrics.items():
            if value is not None and math.isfinite(value):
                found.append(
                    EvalResult(
                        task_type=task_type(facts, entry),
                        task_name=name,
                        metric_type=METRIC_TYPES.get(metric, metric),
                        metric_name=f"{metric} ({facts.unit_of(metric)})",
                        metric_value=value,
                        **place,
                    )
                )
    return found


def dataset_of(facts: CardFacts, scored: Scored, entry: dict) -> dict:
    """Name, configuration, split and revision of the rows that were scored; a name of our own for those of no hub."""
    split = f"{scored.task}.{scored.split}"
    path = hub_path_of(facts, split, entry)
    name = f"{facts.benchmark}/{scored.task}" if facts.benchmark else HELD_OUT
    if path is None:
        own = name.replace("/", "-").replace("_", "-").replace(" ", "-")
        return {"dataset_type": own, "dataset_name": name, "dataset_split": scored.split}
    return {
        "dataset_type": path,
        "dataset_name": name,
        "dataset_config": entry.get("hub_name"),
        "dataset_split": scored.split,
        "dataset_revision": facts.settings.get("data_revision") if is_from_hub(facts, split, path) else None,
    }


def hub_path_of(facts: CardFacts, split: str, entry: dict) -> str | None:
    """The hub's name of a split's data: read from there, or from a mirror of it; None where a file replaced it."""
    path = entry.get("hub_path") or facts.settings.get("hub_path")
    role = next((role for role, own in (entry.get("splits") or {}).items() if split.endswith(f".{own}")), "")
    replaced = facts.settings.get(f"{role}_file") or facts.settings.get("data_format") not in (None, "hub")
    return None if replaced else path


def is_from_hub(facts: CardFacts, split: str, path: str) -> bool:
    """Whether the rows came from the hub itself, of which a revision was named."""
    return str(facts.data.get(split, {}).get("origin", "")).startswith(path)


def datasets_of(facts: CardFacts) -> list[str]:
    """The hub's names of what the model was trained on and scored on."""
    found = [
        hub_path_of(facts, split, facts.tasks.get(split.split(".")[0], {}))
        for split, described in facts.data.items()
        if isinstance(described, dict) and "origin" in described
    ]
    return sorted({path for path in [*found, *facts.hub_corpora] if path})


def languages(facts: CardFacts) -> list[str] | None:
    """ISO 639-1 codes, where the tasks say which; None where nothing does."""
    found = [LANGUAGES.get((facts.benchmark, name)) or LANGUAGES.get(facts.benchmark) for name in facts.tasks]
    if not found or not all(found):
        return None
    return sorted({code for codes in found for code in codes})


def task_type(facts: CardFacts, entry: dict) -> str:
    """The hub's word for a task."""
    if entry.get("labels"):
        return "text-classification"
    return TASK_TYPES.get(facts.benchmark) or facts.pipeline_tag


_ENGLISH = ["en"]
LANGUAGES = {
    **dict.fromkeys("glue super_glue mini squad summarization scrolls".split(), _ENGLISH),
    ("super_ni", "english"): _ENGLISH,
    ("translation", "wmt14_en_de"): ["en", "de"],
    ("translation", "wmt14_en_fr"): ["en", "fr"],
    ("translation", "wmt16_en_ro"): ["en", "ro"],
}
TASK_TYPES = {"squad": "question-answering", "translation": "translation", "summarization": "summarization"}
# The names of https://huggingface.co/metrics, where ours are others.
METRIC_TYPES = {
    "pearson": "pearsonr",
    "spearman": "spearmanr",
    "mean_3class_f1": "f1",
    "f1_macro": "f1",
    "precision_macro": "precision",
    "recall_macro": "recall",
    "squad_f1": "squad",
    "squad_exact_match": "squad",
    "rouge1": "rouge",
    "rouge2": "rouge",
    "rougeL": "rouge",
    "rougeLsum": "rouge",
    "bleu": "sacrebleu",
}
CARD = "README.md"
# Pictures that a run may leave beside its card, and what they show.
CURVES = {"loss_curve.png": "loss over the updates", "learning_curves.png": "losses and scores over the updates"}
SHOWN_LABELS = 12
FIGURES = 4  # of numbers that are no points, behind the point
METHODS = {"score": "the likeliest of the given answers is chosen", "loss": "loss alone is measured"}


def write_card(directory, facts: CardFacts) -> Path:
    """Writes the card through a temporary sibling, so that a reader never sees half of it."""
    path = Path(directory) / CARD
    pictures = [name for name in CURVES if (Path(directory) / name).is_file()]
    with whole_file(path) as temporary:
        temporary.write_text(card_text(facts, pictures), encoding="utf-8")
    return path


def card_text(facts: CardFacts, pictures: Sequence[str] = ()) -> str:
    """The card: metadata and sections, without secrets.

    Args:
      pictures: names in `CURVES` of the files beside it.

    Raises:
      ValueError: the metadata are not what the hub reads, which is an error of ours.
    """
    manifest, scored = facts.manifest, facts.scored
    words = [without_folders(word) for word in manifest.get("command", [])]
    known = [part for part in reversed(scored.values()) if part.example]
    examples = {part.task: [shortened(text, 160) for text in part.example] for part in known}
    notes = [
        f"{name}: {', '.join(_notes(scored[name]))}." for name in facts.results["tasks"] if _notes(scored.get(name))
    ]
    if manifest.get("missing_tasks"):
        notes.append(f"left out for want of data: {', '.join(manifest['missing_tasks'])}.")
    if facts.objective:
        notes.append("`unigram`: the best that a model without context could do.")
    separator = (manifest.get("encoding") or {}).get("answer_separator")
    splits, corpora = _data(facts)
    card = ModelCard.from_template(
        card_data(facts),
        template_path=str(Path(__file__).with_name("card.md.jinja")),
        facts=facts,
        summary=_summary(facts),
        template=template,
        answers=answers,
        examples=examples,
        separator=repr(separator) if separator else "",
        scores=_scores(facts),
        notes=notes,
        groups=_groups(facts),
        splits=splits,
        corpora=corpora,
        settings=_training(facts),
        pictures=[(name, CURVES[name]) for name in pictures],
        command=f"python {shlex.join(words)}" if words else "(not noted)",
        machine=_machine(facts),
        marked="; ".join(f"{name} ({', '.join(part.marks)})" for name, part in scored.items() if part.marks),
        base=hub_name(facts.base_model),
        code=code,
        block=lambda language, lines: "\n".join(block(language, lines)),
        table=lambda head, rows: "\n".join(table(head, rows)),
    )
    return printable(redacted(f"{card.content.rstrip()}\n"))


def _summary(facts: CardFacts) -> str:
    """What the model is, in a paragraph."""
    model, version = facts.manifest.get("model", {}), facts.manifest["versions"].get("t5suite") or ""
    how = f"pre-trained by {facts.objective}" if facts.objective else "fine-tuned"
    if facts.adapter:
        how = f"an adapter ({facts.adapter}), {how}"
    base = facts.base_model and f"from {code(hub_name(facts.base_model) or without_folders(facts.base_model))}"
    size = f"{model['class']}, {model['parameters']:,} parameters" if "parameters" in model else ""
    if model.get("trainable", model.get("parameters")) != model.get("parameters"):
        size += f", of which {model['trainable']:,} were trained"
    start = base or "from random weights"
    return f"{size}; {how} {start} with t5suite {version}.".replace(" .", ".").removeprefix("; ")


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
    shown = ", ".join(code(str(word)) for word in words[:SHOWN_LABELS])
    return shown + (f" and {len(words) - SHOWN_LABELS} more" if len(words) > SHOWN_LABELS else "")


def _notes(scored: Scored | None) -> list[str]:
    """What must be said of a score."""
    if scored is None:
        return []
    return [*scored.marks, *([METHODS[scored.method]] if scored.method in METHODS else [])]


def _scores(facts: CardFacts) -> list[list]:
    """The numbers of `results.json`."""
    rows = []
    for name, metrics in facts.results["tasks"].items():
        scored = facts.scored.get(name, Scored(name, "held-out"))
        count = "" if scored.rows is None else f"{scored.rows:,}"
        rows += [
            [name, scored.split, count, metric, _number(facts, metric, value), facts.unit_of(metric)]
            for metric, value in metrics.items()
        ]
    for name, value in facts.results.get("averages", {}).items():
        rows.append([average_title(name), "", "", "average", _number(facts, "average", value), "points"])
    return rows


def _number(facts: CardFacts, metric: str, value) -> str:
    """A score as its table shows it; `nan` for one that is none."""
    if facts.unit_of(metric) == "points" and not facts.objective:
        return format_points(value)
    return "nan" if value is None or not math.isfinite(value) else f"{value:.{FIGURES}f}"


def _groups(facts: CardFacts) -> list[list]:
    """Scores of parts, such as those of Super-NaturalInstructions by category."""
    return [
        [f"{name}: {column}", value, f"{metrics.get('n', '')}", metric, format_points(points)]
        for name, columns in facts.results.get("groups", {}).items()
        for column, values in columns.items()
        for value, metrics in values.items()
        for metric, points in metrics.items()
        if metric != "n"
    ]


def _data(facts: CardFacts) -> tuple[list, list]:
    """Where the rows and the text came from, how many there are, and what identifies them."""
    parts = {name: part for name, part in facts.data.items() if isinstance(part, dict)}
    splits = [
        [name, without_folders(part["origin"]), part.get("rows", ""), part.get("used", ""),
         _short(part.get("fingerprint"))]
        for name, part in parts.items()
        if "origin" in part
    ]  # fmt: skip
    corpora = [
        [split, without_folders(source["name"]), source.get("documents", ""), _short(source.get("sha256"))]
        for split, part in parts.items()
        for source in part.get("sources", [])
        if isinstance(source, dict) and "name" in source
    ]
    return splits, corpora


def _short(fingerprint: str | None) -> str:
    """Enough of a hash to tell it by; the manifest has it whole."""
    kind, _, digest = (fingerprint or "").rpartition(":")
    return code(f"{kind}:{digest[:16]}" if kind else digest[:16]) if digest else ""


def _training(facts: CardFacts) -> list[list]:
    """Settings, shares of tasks, updates."""
    rates = facts.manifest.get("mixing_rates") or {}
    total, trained = sum(rates.values()) or 1, facts.manifest.get("training", {})
    rows = [[name, without_folders(cell(value))] for name, value in shown_settings(facts.settings).items()]
    if len(rates) > 1:
        shares = ", ".join(f"{name} {100 * rate / total:.1f}%" for name, rate in rates.items())
        rows.append(["share of the examples", shares])
    return rows + ([["updates made", f"{trained['steps']:,}"]] if trained.get("steps") else [])


def shown_settings(settings: dict) -> dict:
    """The settings that a reader asks for first and that say something; `manifest.json` has all.

    >>> shown_settings({"optim": "adamw_torch", "optimizer": "adafactor", "seed": 42, "max_steps": -1})
    {'optimizer': 'adafactor', 'seed': 42}
    """
    idle = [theirs for theirs, ours in BESIDE_OURS.items() if settings.get(ours) is not None]
    idle += ["model_name_or_path", "config_name"]  # told above
    if (settings.get("max_steps") or 0) > 0:
        idle.append("num_train_epochs")
    return {
        name: settings[name]
        for name in ("update_size", *flags_marked("report"))
        if name not in idle and settings.get(name) not in (None, False, "", -1, [], DEFAULTS.get(name))
    }


# Hugging Face's flags count only where ours are not given.
BESIDE_OURS = {"optim": "optimizer", "lr_scheduler_type": "schedule"}
# Not shown while they are this.
DEFAULTS = {"label_smoothing_factor": 0.0, "z_loss": 0.0, "weight_decay": 0.0, "mixing_temperature": 1.0}


def _machine(facts: CardFacts) -> list[list]:
    """Hardware, seconds and versions; what is not known is left out."""
    manifest = facts.manifest
    hardware, trained, commit = (manifest.get(name) or {} for name in ("hardware", "training", "commit"))
    scoring = sum(seconds for seconds in manifest.get("seconds", {}).values() if seconds)
    changed = ", with changes" if commit.get("changed") else ""
    rows = [
        ["processor", f"{hardware.get('cores', '?')} cores, {hardware.get('platform', platform.system())}"],
        ["accelerators", ", ".join(hardware.get("gpus", [])) or "none"],
        ["processes", processes(facts.settings)],
        ["seconds of training", seconds_text(trained)],
        ["seconds of scoring", f"{scoring:.1f}" if scoring else ""],
        *[[name, version] for name, version in manifest["versions"].items() if version],
        ["commit", commit["commit"][:12] + changed if commit.get("commit") else ""],
    ]
    return [row for row in rows if row[1]]


def processes(settings: dict) -> str:
    """How many processes shared an update, where the settings say so.

    >>> processes({"update_size": 32, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2})
    '2'
    """
    each = (settings.get("per_device_train_batch_size") or 0) * (settings.get("gradient_accumulation_steps") or 1)
    whole = settings.get("update_size") or 0
    return str(whole // each) if each and whole % each == 0 and whole >= each else ""


def seconds_text(trained: dict) -> str:
    """How long training took; of a run in several parts, which one is meant."""
    if trained.get("train_runtime") is None:
        return ""
    begun = trained.get("from_step")
    return f"{trained['train_runtime']:.1f}" + (f" (since update {begun:,}, where it went on)" if begun else "")

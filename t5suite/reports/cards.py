"""A run's `README.md`: its model card, by huggingface_hub's `ModelCard.from_template` from `card.md.jinja`.

>>> write_card("runs/glue-rte-t5-small", facts)
PosixPath('runs/glue-rte-t5-small/README.md')

The same run makes the same card, to the byte; it is written anew whenever the run comes to an end again.
"""

import math
import platform
import shlex
from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import ModelCard

from t5suite.base.files import whole_file
from t5suite.base.redaction import printable, redacted
from t5suite.base.script_flags import flags_marked
from t5suite.reports.card_facts import CardFacts, Scored, card_data, hub_name, without_folders
from t5suite.reports.markdown import block, cell, code, shortened, table
from t5suite.reports.tables import average_title, format_points

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
    examples = {part.task: [*map(shortened, part.example)] for part in reversed(scored.values()) if part.example}
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
    """Hardware, seconds, energy and versions; what is not known is left out."""
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
        ["energy of training", energy_text(trained.get("energy"))],
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


def energy_text(energy: dict | None) -> str:
    """What counters of the devices counted; never an estimate."""
    if not energy or energy.get("joules") is None:
        return "not measured" + (f" ({energy['why']})" if energy and energy.get("why") else "")
    joules, seconds = energy["joules"], energy["seconds"]
    return (
        f"{joules / 3600:.2f} Wh ({joules:,.0f} J), measured over {seconds:,.0f} s of training: "
        f"{', '.join(energy['of'])}" + (f"; {energy['why']}" if energy.get("why") else "")
    )

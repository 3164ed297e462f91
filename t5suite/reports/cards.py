"""A run's `README.md`: its model card, by huggingface_hub's `ModelCard`.

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

SHOWN_LABELS = 12
FIGURES = 4  # of numbers that are no points, behind the point


def summary(facts: CardFacts) -> list[str]:
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
    return [f"{size}; {how} {start} with t5suite {version}.".replace(" .", ".").removeprefix("; "), ""]


def usage(facts: CardFacts) -> list[str]:
    """Python, and the command, that use the model; both run in the model's folder."""
    lines = ["## Use", "", 'In the model\'s folder (elsewhere, its path or name on the hub in place of `"."`):', ""]
    lines += [*block("python", facts.usage), ""]
    own = facts.settings.get("model_class")
    if own:
        lines += [f"`{own}` must be importable: its file in the working directory or on `PYTHONPATH`.", ""]
    if facts.predict:
        lines += ["or, for files of any size, with t5suite:", "", *block("bash", facts.predict), ""]
    if facts.fine_tune:
        lines += ["To fine-tune it, here on a task that t5suite brings along (`t5suite tasks` lists others):", ""]
        lines += [*block("bash", facts.fine_tune), ""]
    return lines


def text_formats(facts: CardFacts) -> list[str]:
    """What the model reads and writes, task by task."""
    if not facts.tasks:
        return []
    lines = ["## Text", ""]
    for name, entry in facts.tasks.items():
        scored = next((part for part in facts.scored.values() if part.task == name), None)
        lines += [f"* **{name}** reads {code(template(entry))} and writes {answers(entry)}."]
        if scored and scored.example:
            inputs, targets = (code(shortened(text)) for text in scored.example)
            lines += [f"  Such as {inputs}" + (f" → {targets}." if scored.example[1] else ".")]
    encoding = facts.manifest.get("encoding") or {}
    if encoding.get("answer_separator"):
        lines += ["", f"Between text and answer stands {encoding['answer_separator']!r}."]
    return [*lines, ""]


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


def scores(facts: CardFacts) -> list[str]:
    """The numbers of `results.json`, and what must be said of them."""
    rows, notes = [], []
    for name, metrics in facts.results["tasks"].items():
        scored = facts.scored.get(name, Scored(name, "held-out"))
        count = "" if scored.rows is None else f"{scored.rows:,}"
        rows += [
            [name, scored.split, count, metric, number(facts, metric, value), facts.unit_of(metric)]
            for metric, value in metrics.items()
        ]
        notes += [f"* {name}: {', '.join(_notes(scored))}."] if _notes(scored) else []
    for name, value in facts.results.get("averages", {}).items():
        rows.append([average_title(name), "", "", "average", number(facts, "average", value), "points"])
    missing = facts.manifest.get("missing_tasks")
    notes += [f"* left out for want of data: {', '.join(missing)}."] if missing else []
    if facts.objective:
        notes += ["* `unigram`: the best that a model without context could do."]
    body = table(["name", "split", "rows", "metric", "value", "in"], rows) if rows else ["Nothing was scored."]
    return ["## Scores", "", *body, "", *(notes + [""] if notes else []), *_groups(facts)]


def number(facts: CardFacts, metric: str, value) -> str:
    """A score as its table shows it; `nan` for one that is none."""
    if facts.unit_of(metric) == "points" and not facts.objective:
        return format_points(value)
    return "nan" if value is None or not math.isfinite(value) else f"{value:.{FIGURES}f}"


def _notes(scored: Scored) -> list[str]:
    methods = {"score": "the likeliest of the given answers is chosen", "loss": "loss alone is measured"}
    return [*scored.marks, *([methods[scored.method]] if scored.method in methods else [])]


def _groups(facts: CardFacts) -> list[str]:
    """Scores of parts, such as those of Super-NaturalInstructions by category."""
    rows = [
        [f"{name}: {column}", value, f"{metrics.get('n', '')}", metric, format_points(points)]
        for name, columns in facts.results.get("groups", {}).items()
        for column, values in columns.items()
        for value, metrics in values.items()
        for metric, points in metrics.items()
        if metric != "n"
    ]
    return [*table(["by", "part", "rows", "metric", "points"], rows), ""] if rows else []


def data(facts: CardFacts) -> list[str]:
    """Where the rows or the text came from, how many there are, and what identifies them."""
    rows = [_split_row(name, part) for name, part in facts.data.items() if isinstance(part, dict) and "origin" in part]
    lines = table(["split", "source", "rows", "used", "fingerprint"], rows) if rows else []
    corpora = [
        [split, without_folders(source["name"]), f"{source.get('documents', '')}", _short(source.get("sha256"))]
        for split, part in facts.data.items()
        if isinstance(part, dict)
        for source in part.get("sources", [])
        if isinstance(source, dict) and "name" in source
    ]
    lines += table(["split", "source", "documents", "fingerprint"], corpora) if corpora else []
    return ["## Data", "", *lines, ""] if lines else []


def _split_row(name: str, part: dict) -> list:
    origin = without_folders(part["origin"])
    return [name, origin, f"{part.get('rows', '')}", f"{part.get('used', '')}", _short(part.get("fingerprint"))]


def _short(fingerprint: str | None) -> str:
    """Enough of a hash to tell it by; the manifest has it whole."""
    kind, _, digest = (fingerprint or "").rpartition(":")
    return code(f"{kind}:{digest[:16]}" if kind else digest[:16]) if digest else ""


def training(facts: CardFacts) -> list[str]:
    """Settings, and where the curves are."""
    rates = facts.manifest.get("mixing_rates") or {}
    total = sum(rates.values()) or 1
    rows = [[name, without_folders(cell(value))] for name, value in shown_settings(facts.settings).items()]
    if len(rates) > 1:
        shares = ", ".join(f"{name} {100 * rate / total:.1f}%" for name, rate in rates.items())
        rows.append(["share of the examples", shares])
    trained = facts.manifest.get("training", {})
    if trained.get("steps"):
        rows.append(["updates made", f"{trained['steps']:,}"])
    return ["## Training", "", *table(["setting", "value"], rows), ""]


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
        if name not in idle and settings.get(name) not in (None, False, "", -1, []) and not _is_default(name, settings)
    }


def _is_default(name: str, settings: dict) -> bool:
    return name in DEFAULTS and settings.get(name) == DEFAULTS[name]


def command(facts: CardFacts) -> list[str]:
    """The command as it was given; of folders elsewhere, the last name."""
    words = [without_folders(word) for word in facts.manifest.get("command", [])]
    return ["## Command", "", *block("bash", [f"python {shlex.join(words)}" if words else "(not noted)"]), ""]


def limits(facts: CardFacts) -> list[str]:
    """What is known to limit the model, and what its owner has to say."""
    told = "; ".join(f"{name} ({', '.join(part.marks)})" for name, part in facts.scored.items() if part.marks)
    known = ["* It was trained for the text above and for no other."] if facts.tasks else []
    known += [f"* Scores with a remark are no published comparison: {told}."] if told else []
    base = hub_name(facts.base_model)
    bound = f" and by those of `{base}`" if base else ""
    return [
        "## Limits and licence", "", *known,
        "* To fill: for whom the model is, for what it must not be used, which biases its data have.",
        f"* To fill: the licence (`license: unknown` above). It is bound by the terms of the data{bound}.", "",
    ]  # fmt: skip


# Hugging Face's flags count only where ours are not given.
BESIDE_OURS = {"optim": "optimizer", "lr_scheduler_type": "schedule"}
# Not shown while they are this.
DEFAULTS = {"label_smoothing_factor": 0.0, "z_loss": 0.0, "weight_decay": 0.0, "mixing_temperature": 1.0}


def machine(facts: CardFacts) -> list[str]:
    """Hardware, seconds, energy and versions, as a table."""
    manifest = facts.manifest
    hardware, trained = manifest.get("hardware", {}), manifest.get("training", {})
    scoring = sum(seconds for seconds in manifest.get("seconds", {}).values() if seconds)
    rows = [
        ["processor", f"{hardware.get('cores', '?')} cores, {hardware.get('platform', platform.system())}"],
        ["accelerators", ", ".join(hardware.get("gpus", [])) or "none"],
        ["processes", processes(facts.settings)],
        ["seconds of training", seconds_text(manifest)],
        ["seconds of scoring", f"{scoring:.1f}" if scoring else ""],
        ["energy of training", energy_text(trained.get("energy"))],
        *[[name, version] for name, version in manifest["versions"].items() if version],
        ["commit", commit_text(manifest.get("commit"))],
    ]
    return ["## Machine", "", *table(["", ""], [row for row in rows if row[1]]), ""]


def processes(settings: dict) -> str:
    """How many processes shared an update, where the settings say so.

    >>> processes({"update_size": 32, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2})
    '2'
    """
    each = (settings.get("per_device_train_batch_size") or 0) * (settings.get("gradient_accumulation_steps") or 1)
    whole = settings.get("update_size") or 0
    return str(whole // each) if each and whole % each == 0 and whole >= each else ""


def seconds_text(manifest: dict) -> str:
    """How long training took; of a run in several parts, which one is meant."""
    trained = manifest.get("training", {})
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


def commit_text(commit: dict | None) -> str:
    """The code's commit, and whether it was changed."""
    if not commit or not commit.get("commit"):
        return ""
    return commit["commit"][:12] + (", with changes" if commit.get("changed") else "")


CARD = "README.md"
# Pictures that a run may leave beside its card, and what they show.
CURVES = {"loss_curve.png": "loss over the updates", "learning_curves.png": "losses and scores over the updates"}
ELSEWHERE = [
    "In the run's directory `metrics.jsonl` has losses and scores over the updates, `manifest.json` every setting,",
    "version and hash of the data.",
]


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
    curves = [line for name in pictures for line in (f"![{CURVES[name]}]({name})", "")]
    lines = [
        f"# {facts.title}", "",
        *summary(facts),
        *usage(facts),
        *text_formats(facts),
        *scores(facts),
        *data(facts),
        *training(facts),
        *curves,
        *ELSEWHERE, "",
        *command(facts),
        *machine(facts),
        *limits(facts),
    ]  # fmt: skip
    text = printable(redacted(f"---\n{card_data(facts).to_yaml()}\n---\n\n" + "\n".join(lines)))
    ModelCard(text)  # reads back what it says, the index too
    return text

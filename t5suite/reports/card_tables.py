"""The rows of a model card's tables: scores, data, settings, hardware.

>>> score_rows(facts)[0]
['rte', 'validation', '277', 'accuracy', '66.79', 'points']
"""

import re

from t5suite.base.redaction import without_folders
from t5suite.base.script_flags import flags_marked
from t5suite.reports.card_facts import CardFacts, ScoredResult
from t5suite.reports.finished_runs import data_facts, hub_commits
from t5suite.reports.formatting import average_title, points, shortened
from t5suite.reports.markdown import code
from t5suite.reports.run_facts import is_python_call
from t5suite.reports.units import POINTS, metric_unit
from t5suite.runs.settings import idle_length

METHODS = {"score": "the likeliest of the given answers is chosen", "loss": "loss alone is measured"}
# Characters of an example's inputs and targets.
LONGEST_EXAMPLE = 160
# Enough of a hash to identify it; the manifest has all of it.
LONG_HASH = re.compile(r"([0-9a-f]{16})[0-9a-f]+$")
# Hugging Face's flags count only if ours are not given.
OUR_FLAGS = {"optim": "optimizer", "lr_scheduler_type": "schedule"}
IN_THE_SUMMARY = ("model_name_or_path", "config_name")
NOT_SET = (None, "", -1, [])
# Settings whose defaults have no effect without a teacher, with one task, or with proportions in their place.
OF_TEACHER = ("distillation_alpha", "distillation_temperature")
OF_RATES = ("mixing", "mixing_limit", "mixing_temperature")
PROPORTIONS = "data_sampling_proportion"


def score_rows(facts: CardFacts) -> list[list[str]]:
    """Name, split, rows, metric, value and unit of every score and average."""
    rows = []
    for name, metrics in facts.results["tasks"].items():
        scored = facts.scored[name]
        row_count = ""
        if scored.rows is not None:
            row_count = f"{scored.rows:,}"
        for metric, value in metrics.items():
            score = score_text(facts, metric, value)
            rows.append([name, scored.split, row_count, metric, score, metric_unit(metric)])
    for name, value in facts.results.get("averages", {}).items():
        rows.append([average_title(name), "", "", "average", points(value, "nan"), POINTS])
    return rows


def score_text(facts: CardFacts, metric: str, value: float | None) -> str:
    """A score; what is not in points has four decimals."""
    if facts.objective or metric_unit(metric) != POINTS:
        return points(value, "nan", digits=4)
    return points(value, "nan")


def score_notes(facts: CardFacts) -> list[str]:
    """Remarks on the scores."""
    notes = []
    for name in facts.results["tasks"]:
        remarks = score_remarks(facts.scored[name])
        if remarks:
            notes.append(f"{name}: {', '.join(remarks)}.")
    missing_tasks = facts.manifest.get("missing_tasks")
    if missing_tasks:
        notes.append(f"skipped because data are missing: {', '.join(missing_tasks)}.")
    if facts.objective:
        notes.append("`unigram`: the best that a model without context could do.")
    return notes


def score_remarks(scored: ScoredResult) -> list[str]:
    """A score's marks, and how its answers were made if they were not generated."""
    remarks = list(scored.marks)
    if scored.method in METHODS:
        remarks.append(METHODS[scored.method])
    return remarks


def first_examples(facts: CardFacts) -> dict[str, list[str]]:
    """`{task: [inputs, targets]}`, shortened, of each task's first split that has an example."""
    examples: dict[str, list[str]] = {}
    for scored in facts.scored.values():
        if scored.example and scored.task not in examples:
            examples[scored.task] = [shortened(text, LONGEST_EXAMPLE) for text in scored.example]
    return examples


def data_rows(manifest: dict) -> list[list]:
    """Split, source, rows or documents, how many were used, and fingerprint of what was read."""
    rows = []
    for split, facts in data_facts(manifest).items():
        if "origin" in facts:
            origin = without_folders(facts["origin"])
            fingerprint = short_hash(facts.get("fingerprint"))
            rows.append([split, origin, facts.get("rows", ""), facts.get("used", ""), fingerprint])
        rows += source_rows(split, facts.get("sources", []))
    return rows


def source_rows(split: str, sources: list) -> list[list]:
    """The files or streams of a corpus."""
    rows = []
    for source in sources:
        if isinstance(source, dict) and "name" in source:
            name = without_folders(source["name"])
            rows.append([split, name, source.get("documents", ""), "", short_hash(source.get("sha256"))])
    return rows


def short_hash(text: str | None) -> str:
    """The beginning of a hash, as inline code."""
    if not text:
        return ""
    return code(LONG_HASH.sub(r"\1", text))


def hub_rows(manifest: dict) -> list[list]:
    """The hub's repositories that a run has read: kind, name, the revision that was asked for, the commit."""
    hub = manifest.get("hub") or {}
    rows = []
    for section, entries in hub.items():
        for name, entry in entries.items():
            rows.append([section, name, entry["revision"] or "", code(entry["commit"])])
    return rows


def revision_flags(manifest: dict) -> str:
    """The flags, or arguments of a call from Python, by which a run reads the same commits of the hub again.

    Pre-training has no flag for data sets: their names hold a revision, `hub:allenai/c4@COMMIT:en:train`.

    >>> revision_flags({"settings": {"data_revision": None}, "hub": {"datasets": {"a/b": {"commit": "bcdcba79"}}}})
    '--data_revision a/b=bcdcba79'
    """
    hub = manifest.get("hub") or {}
    revisions = {}
    for section, flag in (("models", "model_revision"), ("datasets", "data_revision")):
        commits = hub_commits(hub, section)
        if commits and flag in manifest["settings"]:
            revisions[flag] = commits
    if is_python_call(manifest.get("command", [])):
        return ", ".join(f"{flag}={commits!r}" for flag, commits in revisions.items())
    return " ".join(f"--{flag} {commits}" for flag, commits in revisions.items())


def setting_rows(facts: CardFacts) -> list[list]:
    """The settings that a reader asks for first, the mixture's shares, and the number of updates."""
    rates = facts.manifest.get("mixing_rates") or {}
    is_mixture = len(rates) > 1
    settings = shown_settings(facts.settings)
    if not is_mixture:
        settings = {name: value for name, value in settings.items() if name not in (*OF_RATES, PROPORTIONS)}
    rows = [[name, without_folders(value)] for name, value in settings.items()]
    if is_mixture:
        total = sum(rates.values()) or 1
        shares = [f"{task} {100 * rate / total:.1f}%" for task, rate in rates.items()]
        rows.append(["share of the examples", ", ".join(shares)])
    updates = facts.manifest.get("training", {}).get("steps")
    if updates:
        rows.append(["updates made", f"{updates:,}"])
    return rows


def shown_settings(settings: dict) -> dict:
    """The settings that a reader asks for first; `manifest.json` has all.

    >>> shown_settings({"optim": "adamw_torch", "optimizer": "adafactor", "seed": 0, "max_steps": -1, "bf16": False})
    {'seed': 0, 'optimizer': 'adafactor'}
    """
    hidden = {name for name, our_flag in OUR_FLAGS.items() if settings.get(our_flag) is not None}
    hidden.update(IN_THE_SUMMARY)
    hidden.add(idle_length(settings))
    if settings.get("teacher") is None:
        hidden.update(OF_TEACHER)
    if settings.get(PROPORTIONS):
        hidden.update(OF_RATES)
    names = [name for name in ("update_size", *flags_marked("report")) if name not in hidden]
    return {name: settings[name] for name in names if _is_set(settings.get(name))}


def _is_set(value) -> bool:
    """Whether a setting has a value: 0 is one, False is none."""
    return value is not False and value not in NOT_SET


def machine_rows(manifest: dict) -> list[list]:
    """Hardware, seconds and versions; unknown values are omitted."""
    hardware = manifest.get("hardware") or {}
    training = manifest.get("training") or {}
    libraries = manifest.get("libraries") or {}
    code_hash = manifest.get("code_sha256") or ""
    rows = [
        ["processor", f"{hardware.get('cores', '?')} cores, {hardware.get('platform', '?')}"],
        ["accelerators", ", ".join(hardware.get("gpus", [])) or "none"],
        ["seconds of training", training_seconds(training)],
        ["seconds of scoring", scoring_seconds(manifest)],
    ]
    rows += [[name, version] for name, version in manifest["versions"].items()]
    rows += [
        ["commit", commit_text(manifest.get("commit") or {})],
        ["fast paths off", ", ".join(libraries.get("off", []))],
        ["used with untested libraries", ", ".join(libraries.get("untested", {}))],
        ["SHA-256 of the code", code_hash[:16]],
    ]
    return [row for row in rows if row[1]]


def commit_text(commit: dict) -> str:
    """The beginning of a commit's hash, and whether the code had changes.

    >>> commit_text({"commit": "abcdef0123456789", "changed": True})
    'abcdef012345, with changes'
    """
    text = (commit.get("commit") or "")[:12]
    if commit.get("changed"):
        text += ", with changes"
    return text


def training_seconds(training: dict) -> str:
    """The seconds of training, of all starts, and since which update they count; empty if they are unknown.

    >>> training_seconds({"train_runtime": 61.37, "seconds_from_step": 0, "from_step": 200})
    '61.4'
    """
    seconds = training.get("train_runtime")
    if seconds is None:
        return ""
    text = f"{seconds:.1f}"
    first_update = training.get("seconds_from_step", training.get("from_step"))
    if first_update:
        text += f" (since update {first_update:,})"
    return text


def scoring_seconds(manifest: dict) -> str:
    """Of the last evaluation: fine-tuning has them by split under `scored`, pre-training by text under `seconds`."""
    seconds = [facts.get("seconds") for facts in manifest.get("scored", {}).values()]
    seconds += manifest.get("seconds", {}).values()
    timed = [value for value in seconds if value is not None]
    if not timed:
        return ""
    return f"{sum(timed):.1f}"

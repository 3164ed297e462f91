"""What a model card is made of: the results, the manifest, and what each name in the results refers to."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from t5suite.data.corpora.sources import hub_arguments, is_hub_name
from t5suite.reports.finished_runs import data_facts
from t5suite.runs.directory import tasks_named
from t5suite.tasks.registry import Task

# A name on the hub: OWNER/NAME, or one of the first models' without an owner.
HUB_NAME = re.compile(r"(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*")
# Where the hub's cache keeps a model: models--google--t5-v1_1-small/snapshots/4e79f2...
CACHED = re.compile(r"models--(.+?)/snapshots/")


@dataclass(frozen=True)
class ScoredResult:
    """What a name in the results refers to.

    Attributes:
      task, split: by their own names.
      role: 'validation' or 'test'; empty for held-out text.
      rows: how many were scored.
      method: how answers were made: generate, score, classify, loss.
      marks: remarks on the score, such as 'subset'.
      example: `(inputs, targets)` of the first one.
    """

    task: str
    split: str
    role: str = ""
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
      scored: by name in the results.
      family: seq2seq, causal, masked or encoder.
      usage: Python that uses the model, in lines.
      predict: the command that uses it, in lines; none if the model generates nothing.
      fine_tune: the command that trains it further, in lines; none if it is already trained for its task.
      objective: pre-training's, with its source.
      base_header: the metadata of the base model's card, where it can be read.
      data_headers: those of the cards of the hub's data sets that were read, by name.
    """

    title: str
    results: dict
    manifest: dict
    scored: Mapping[str, ScoredResult]
    family: str = "seq2seq"
    usage: Sequence[str] = ()
    predict: Sequence[str] = ()
    fine_tune: Sequence[str] = ()
    objective: str | None = None
    base_header: Mapping = field(default_factory=dict)
    data_headers: Mapping[str, Mapping] = field(default_factory=dict)

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
        if not self.tasks:
            return None
        benchmark, _ = tasks_named(self.manifest)
        return benchmark

    @property
    def model(self) -> dict:
        """What the manifest says of the model."""
        return self.manifest.get("model", {})

    @property
    def base(self) -> str | None:
        """The model of the initial weights; None for random weights."""
        base = self.model.get("base")
        if base:
            return base
        if self.settings.get("from_scratch"):
            return None
        return self.settings.get("model_name_or_path")


def hub_name(name: str | None) -> str | None:
    """The name on the hub of what a flag named; None for folders and for what is in memory.

    >>> hub_name("/cache/models--google--mt5-small/snapshots/73fb5d/")
    'google/mt5-small'
    """
    if not name:
        return None
    cached = CACHED.search(name)
    if cached:
        return cached[1].replace("--", "/")
    if HUB_NAME.fullmatch(name) and not os.path.exists(name):
        return name
    return None


def data_set_of_rows(facts: CardFacts, task: str, role: str) -> str | None:
    """The hub's data set that a task's rows are from; None for rows from elsewhere.

    Args:
      role: train, validation or test.
    """
    # A file that replaces the hub's rows is another data set.
    is_file = facts.settings.get(f"{role}_file")
    if is_file or facts.settings.get("data_format") not in (None, "hub"):
        return None
    entry = facts.tasks.get(task, {})
    return hub_name(entry.get("hub_path") or facts.settings.get("hub_path"))


def data_sets_of_tasks(facts: CardFacts) -> list[str]:
    """The hub's data sets that a fine-tuned model was trained on, in the order of the alphabet."""
    data_sets = set()
    for name, entry in facts.tasks.items():
        if Task(facts.benchmark, name, entry).splits("train"):
            data_sets.add(data_set_of_rows(facts, name, "train"))
    return sorted(filter(None, data_sets))


def data_sets_of_corpora(facts: CardFacts) -> list[str]:
    """The hub's data sets that a model was pre-trained on, in the order of the alphabet."""
    texts = list(facts.settings.get("train_file") or [])
    for name, corpus in data_facts(facts.manifest).items():
        if name.startswith("train"):
            texts += [source["name"] for source in corpus["sources"]]
    data_sets = {hub_name(hub_arguments(text)["path"]) for text in texts if is_hub_name(text)}
    return sorted(filter(None, data_sets))


def hub_commit(facts: CardFacts, section: str, name: str) -> str | None:
    """The commit that the run has read of a repository; None if it has not read it from the hub.

    Args:
      section: models or datasets.
    """
    hub = facts.manifest.get("hub") or {}
    entry = hub.get(section, {}).get(name, {})
    return entry.get("commit")

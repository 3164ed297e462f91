"""What a model card is made from: a run's manifest and results, and what only the run itself knew.

>>> facts = CardFacts("t5-small on glue/rte", results, manifest, pipeline_tag="text-generation", usage=lines)
>>> facts.adapter, facts.library
(None, 'transformers')
>>> without_folders("--data_dir=/home/ada/data --output_dir runs/rte")
'--data_dir=…/data --output_dir runs/rte'
"""

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import EvalResult, ModelCardData

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

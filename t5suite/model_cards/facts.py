"""What a card is made from: a run's manifest and results, and what only the run itself knew.

>>> facts = CardFacts("t5-small on glue/rte", results, manifest, pipeline_tag="text-generation", usage=lines)
>>> facts.adapter, facts.library
(None, 'transformers')
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

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

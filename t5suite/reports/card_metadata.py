"""A model card's metadata, as the hub reads and indexes them.

>>> metadata = hub_metadata(facts)
>>> metadata.base_model, metadata.datasets, metadata.eval_results[0].metric_value
('google-t5/t5-small', ['nyu-mll/glue'], 66.8)
"""

import math
import re

from huggingface_hub import EvalResult, ModelCardData
from huggingface_hub.repocard_data import eval_results_to_model_index

from t5suite.reports.card_facts import (
    CardFacts,
    data_set_of_rows,
    data_sets_of_corpora,
    data_sets_of_tasks,
    hub_name,
)
from t5suite.reports.card_task import languages, pipeline_tag
from t5suite.reports.units import metric_unit

# The names of https://huggingface.co/metrics, where ours differ.
METRIC_TYPES = {"pearson": "pearsonr", "spearman": "spearmanr", "mean_3class_f1": "f1", "bleu": "sacrebleu"}


class HubMetadata(ModelCardData):
    """Metadata with an entry of the index for each result; the client makes one of all results of a split."""

    def to_dict(self) -> dict:
        """The metadata as they stand on the card."""
        header = super().to_dict()
        if not self.eval_results:
            return header
        results_by_task: dict[str, list[EvalResult]] = {}
        for result in self.eval_results:
            results_by_task.setdefault(result.task_name, []).append(result)
        entries = []
        for results in results_by_task.values():
            (model,) = eval_results_to_model_index(self.model_name, results)
            entries += model["results"]
        return {**header, "model-index": [{"name": self.model_name, "results": entries}]}


def hub_metadata(facts: CardFacts) -> HubMetadata:
    """The metadata of a model."""
    base = hub_base(facts)
    data_sets = data_sets_of_corpora(facts) if facts.objective else data_sets_of_tasks(facts)
    results = eval_results(facts)
    metrics = dict.fromkeys(result.metric_type for result in results)
    return HubMetadata(
        language=languages(facts) or None,
        **licence(facts),
        library_name=library_name(facts),
        pipeline_tag=pipeline_tag(facts),
        tags=hub_tags(facts),
        datasets=data_sets or None,
        metrics=list(metrics) or None,
        base_model=base,
        base_model_relation=relation_to_base(facts, base),
        model_name=facts.title,
        eval_results=results or None,
    )


def hub_base(facts: CardFacts) -> str | None:
    """The model on the hub that was trained; of a folder (a trimmed model, a run) the one that its own card names."""
    base = hub_name(facts.base)
    if base is None and not facts.model.get("adapter"):
        stated = facts.base_header.get("base_model")
        base = hub_name(stated if isinstance(stated, str) else None)
    return base


def licence(facts: CardFacts) -> dict:
    """The base model's licence as its card states it, by the hub's keys; `unknown`, the hub's word, without one."""
    header = facts.base_header
    identifier = header.get("license")
    if not identifier or not isinstance(identifier, str):
        return {"license": "unknown"}
    stated = {"license": identifier}
    if header.get("license_name"):
        stated["license_name"] = header["license_name"]
    link = _licence_link(facts)
    if link:
        stated["license_link"] = link
    return stated


def _licence_link(facts: CardFacts) -> str | None:
    """The address of a licence without an identifier; a file of the base's repository gets its whole address."""
    link = facts.base_header.get("license_link")
    if not link or re.match("https?://", link):
        return link
    base = hub_name(facts.base)
    if base is None:
        return None
    return f"https://huggingface.co/{base}/blob/main/{link}"


def relation_to_base(facts: CardFacts, base: str | None) -> str | None:
    """The hub's word for what was made of the base; None without one on the hub."""
    if not base:
        return None
    if facts.model.get("adapter"):
        return "adapter"
    return "finetune"


def library_name(facts: CardFacts) -> str:
    """The library that loads the model."""
    if facts.settings.get("model_class"):
        return "t5suite"
    if facts.model.get("adapter"):
        return "peft"
    return "transformers"


def hub_tags(facts: CardFacts) -> list[str]:
    """Words by which the model is found: ours, the objective, the benchmark, the adapter."""
    objective = None
    if facts.objective:
        objective = facts.objective.split(" ")[0]
    tags = ["t5suite", objective, facts.benchmark, facts.model.get("adapter")]
    if facts.family == "seq2seq":
        tags.append("text2text-generation")
    return [tag for tag in tags if tag]


def eval_results(facts: CardFacts) -> list[EvalResult]:
    """Every score; one that is NaN is only in the card's table, because the index cannot represent it."""
    entries = []
    for name, metrics in facts.results["tasks"].items():
        for metric, value in metrics.items():
            if value is not None and math.isfinite(value):
                entries.append(eval_result(facts, name, metric, value))
    return entries


def eval_result(facts: CardFacts, name: str, metric: str, value: float) -> EvalResult:
    """A score with the data that it is of."""
    scored = facts.scored[name]
    entry = facts.tasks.get(scored.task, {})
    task_type = pipeline_tag(facts)
    if entry.get("labels") and task_type == "text-generation":
        task_type = "text-classification"
    title = "held-out text"
    if facts.benchmark:
        title = f"{facts.benchmark}/{scored.task}"
    data_set = data_set_of_rows(facts, scored.task, scored.role)
    configuration = None
    if data_set:
        names = entry if entry.get("hub_path") else facts.settings
        configuration = names.get("hub_name")
    return EvalResult(
        task_type=task_type,
        task_name=name,
        dataset_type=data_set or re.sub("[/_ ]", "-", title),
        dataset_name=title,
        dataset_config=configuration,
        dataset_split=scored.split,
        metric_type=METRIC_TYPES.get(metric, metric),
        metric_name=f"{metric} ({metric_unit(metric)})",
        metric_value=value,
    )

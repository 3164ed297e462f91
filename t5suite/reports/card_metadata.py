"""A model card's metadata, as the hub reads and indexes them.

>>> metadata = hub_metadata(facts)
>>> metadata.base_model, metadata.datasets, metadata.eval_results[0].metric_value
('google-t5/t5-small', ['nyu-mll/glue'], 66.8)
"""

import math
import os
import re

from huggingface_hub import EvalResult, ModelCardData

from t5suite.reports.card_facts import CardFacts, data_set_of_rows
from t5suite.reports.card_task import languages, pipeline_tag
from t5suite.reports.units import metric_unit

# A name on the hub: OWNER/NAME, or one of the first models' without an owner.
HUB_NAME = re.compile(r"(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*")
# Where the hub's cache keeps a model: models--google--t5-v1_1-small/snapshots/4e79f2...
CACHED = re.compile(r"models--(.+?)/snapshots/")
# The names of https://huggingface.co/metrics, where ours differ.
METRIC_TYPES = {"pearson": "pearsonr", "spearman": "spearmanr", "mean_3class_f1": "f1", "bleu": "sacrebleu"}


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


def hub_metadata(facts: CardFacts) -> ModelCardData:
    """The metadata of a model."""
    base = hub_base(facts)
    results = eval_results(facts)
    metrics = dict.fromkeys(result.metric_type for result in results)
    data_sets = {hub_data_set(facts, name) for name in facts.results["tasks"]}
    return ModelCardData(
        language=languages(facts) or None,
        **licence(facts),
        library_name=library_name(facts),
        pipeline_tag=pipeline_tag(facts),
        tags=hub_tags(facts),
        datasets=sorted(filter(None, data_sets)) or None,
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


def hub_data_set(facts: CardFacts, name: str) -> str | None:
    """The hub's data set that a result is of; None for rows from elsewhere."""
    scored = facts.scored[name]
    return data_set_of_rows(facts, scored.task, scored.role)


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
    data_set = hub_data_set(facts, name)
    configuration = None
    if data_set:
        configuration = entry.get("hub_name")
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

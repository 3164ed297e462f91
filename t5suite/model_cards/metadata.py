"""The YAML at a card's head, as the hub reads it: what the model is, made from, and how it scored.

    >>> data = card_data(facts)
    >>> data.to_dict()["model-index"][0]["results"][0]["metrics"]
    [{'type': 'accuracy', 'value': 71.1, 'name': 'accuracy (points)'}]

`huggingface_hub` checks it and writes it; `model-index` has the numbers of `results.json` as they are there. Keys and
their meaning: https://github.com/huggingface/hub-docs/blob/main/modelcard.md.
"""

import math

from huggingface_hub import EvalResult, ModelCardData

from t5suite.model_cards.facts import CardFacts, Scored
from t5suite.model_cards.public_names import hub_name

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
    **dict.fromkeys("glue super_glue mini squad summarization scrolls hyperpartisan discoeval".split(), _ENGLISH),
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

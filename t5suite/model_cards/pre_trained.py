"""The card of a pre-trained model.

>>> write_pre_trained_card(run.directory, title, run.manifest, results, "span_corruption", "seq2seq", example)
PosixPath('runs/pre_train-t5-small/README.md')
"""

import json
from pathlib import Path

from t5suite.data.objectives import OBJECTIVES
from t5suite.model_cards.facts import CardFacts
from t5suite.model_cards.fine_tuned import base_of
from t5suite.model_cards.usage import own_class_lines
from t5suite.model_cards.writing import write_card

HUB_PREFIX = "hub:"


def write_pre_trained_card(
    directory, title: str, manifest: dict, results: dict, objective: str, family: str, example: str
) -> Path:
    """Writes `README.md` into a run's directory.

    Args:
      objective: its name in `OBJECTIVES`.
      family: seq2seq, causal or masked.
      example: an input text of held-out data.
    """
    own = manifest["settings"].get("model_class")
    facts = CardFacts(
        title=title,
        results=results,
        manifest=manifest,
        pipeline_tag=PIPELINE_TAGS[family],
        usage=own_class_lines(own) if own else usage_lines(family, example),
        predict=predict_lines(family, example, own),
        fine_tune=fine_tune_lines(own),
        base_model=base_of(manifest),
        family=family,
        objective=f"{objective} ({OBJECTIVES[objective].reference})",
        hub_corpora=hub_corpora(manifest["settings"]),
    )
    return write_card(directory, facts)


def hub_corpora(settings: dict) -> list[str]:
    """The hub's names of the text that the flags name.

    >>> hub_corpora({"train_file": "hub:allenai/c4:en:train"})
    ['allenai/c4']
    """
    given = [settings.get(name) for name in ("train_file", "validation_file")]
    texts = [text for value in given for text in (value if isinstance(value, list) else [value]) if text]
    parts = [part.strip() for text in texts for part in str(text).split(",")]
    return sorted({part[len(HUB_PREFIX) :].split(":")[0] for part in parts if part.startswith(HUB_PREFIX)})


def usage_lines(family: str, inputs: str) -> list[str]:
    """Python that does with a text what the model was trained for."""
    lines = [
        f"from transformers import {AUTO_CLASSES[family]}, AutoTokenizer", "",
        f'model = {AUTO_CLASSES[family]}.from_pretrained(".")', 'tokenizer = AutoTokenizer.from_pretrained(".")',
        f'inputs = tokenizer({inputs!r}, return_tensors="pt")',
    ]  # fmt: skip
    if family == "masked":
        return [*lines, "print(tokenizer.decode(model(**inputs).logits[0].argmax(-1)))"]
    return [*lines, "print(tokenizer.decode(model.generate(**inputs)[0]))"]


def predict_lines(family: str, inputs: str, model_class: str | None = None) -> list[str]:
    """The command that goes on with a text, or fills it in; none for a masked model, which writes nothing."""
    if family == "masked":
        return []
    own = f" --model_class {model_class}" if model_class else ""
    row = json.dumps({"inputs": inputs}, ensure_ascii=False)
    return [f"t5suite predict --model_name_or_path .{own} --raw --input - <<'ROWS'", row, "ROWS"]


def fine_tune_lines(model_class: str | None = None) -> list[str]:
    """The command that fine-tunes the model, in a folder beside its own."""
    own = f" --model_class {model_class}" if model_class else ""
    return [
        f"python -m fine_tune_t5 --model_name_or_path .{own} \\",
        "  --benchmark mini --dataset_name sentiment --max_steps 100 --output_dir ../fine_tuned",
    ]


PIPELINE_TAGS = {"seq2seq": "text-generation", "masked": "fill-mask", "causal": "text-generation"}
AUTO_CLASSES = {"seq2seq": "AutoModelForSeq2SeqLM", "masked": "AutoModelForMaskedLM", "causal": "AutoModelForCausalLM"}

"""What a pre-training run leaves behind: `results.json`, the model card, an example.

>>> results_of(report, entropies)
{'tasks': {'pre_train': {'nll': 2.31, 'perplexity': 10.1, ..., 'unigram_nll': 5.71, ...}}, 'averages': {}}
"""

from pathlib import Path

import numpy as np

from t5suite.data.objectives import OBJECTIVES
from t5suite.models.families import family_of_model
from t5suite.tracking import reports
from t5suite.tracking.plots import loss_curve
from t5suite.training.pre_training_evaluation import NAME, HeldOut

SHOWN_SETTINGS = (
    "inputs_length noise_density mean_span_length optimizer optim learning_rate schedule lr_scheduler_type "
    "per_device_train_batch_size gradient_accumulation_steps num_train_epochs max_steps seed"
).split()


def results_of(report, entropies: dict[str, float]) -> dict:
    """The scores, and what a model without context could reach at best."""
    return {"tasks": {NAME: {**report.results[NAME].metrics, **entropies}}, "averages": {}}


def example_text(held_out: HeldOut, collator, tokenizer, num_tokens: int = 40) -> tuple[str, str]:
    """The beginnings of a held-out example's inputs and targets, as text.

    >>> example_text(held_out, collator, tokenizer)
    ('The guard disobeyed the<extra_id_0> in the store at noon.', '<extra_id_0> chief<extra_id_1> ...')
    """
    batch = collator([held_out.examples[0]])
    targets = batch["labels"][0].numpy()
    sides = batch["input_ids"][0].tolist(), targets[targets >= 0].tolist()
    return tuple(tokenizer.decode(ids[:num_tokens]) for ids in sides)


def finish_run(run, trainer, tokenizer, report, results: dict, title: str, objective: str, is_model: bool) -> None:
    """Writes results, loss curve and model card, and shows the table.

    Args:
      is_model: whether the run trained a model, which then has a card.
    """
    if is_model:
        evaluator = trainer.evaluator
        example = example_text(trainer.eval_sets[0], evaluator.collator, tokenizer)
        loss_curve(run.directory, title)
        family = family_of_model(trainer.accelerator.unwrap_model(trainer.model))
        _write_model_card(run.directory, title, objective, family, results, run.manifest, example[0])
    run.update(seconds={name: round(result.seconds, 3) for name, result in report.results.items()})
    reports.write_results(run.directory, results)
    run.finish()
    reports.print_results(results, f"{title}  ({run.directory})")


def _write_model_card(directory, title: str, objective: str, family: str, results, manifest, example: str) -> None:
    """`README.md`: what the model is, how to use it, its scores and how it was made."""
    version = manifest["versions"].get("t5suite") or ""
    settings, source = manifest["settings"], OBJECTIVES[objective].reference
    lines = [
        "---", "library_name: transformers", f"pipeline_tag: {PIPELINE_TAGS[family]}", "tags: [t5suite]", "---", "",
        f"# {title}", "", f"Pre-trained with t5suite {version} by {objective} ({source}).".replace("  ", " "), "",
        "## Use", "", "```python", *_usage(family, example), "```", "",
        "## Scores", "", "Held-out text, in nats a target token; `unigram`: the best a model without context could do.",
        "", "| metric | value |", "|---|---|",
        *[f"| {name} | {value:.4f} |" for name, value in results["tasks"][NAME].items() if np.isfinite(value)], "",
        "![loss curve](loss_curve.png)", "",
        "## Training", "", "| setting | value |", "|---|---|",
        *[f"| {name} | {value} |" for name, value in _shown_settings(settings).items()], "",
        "`manifest.json` has every setting, version and data fingerprint.", "",
    ]  # fmt: skip
    (Path(directory) / "README.md").write_text("\n".join(lines), encoding="utf-8")


def _shown_settings(settings: dict) -> dict:
    """Hugging Face's flags for optimizer and schedule count only where ours are not given."""
    beside_ours = {"optim": "optimizer", "lr_scheduler_type": "schedule"}
    return {
        name: settings[name]
        for name in SHOWN_SETTINGS
        if settings.get(name) is not None and settings.get(beside_ours.get(name)) is None
    }


def _usage(family: str, inputs: str) -> list[str]:
    lines = [
        f"from transformers import {AUTO_CLASSES[family]}, AutoTokenizer", "",
        f'model = {AUTO_CLASSES[family]}.from_pretrained(".")', 'tokenizer = AutoTokenizer.from_pretrained(".")',
        f'inputs = tokenizer({inputs!r}, return_tensors="pt")',
    ]  # fmt: skip
    if family == "masked":
        return [*lines, "print(tokenizer.decode(model(**inputs).logits[0].argmax(-1)))"]
    return [*lines, "print(tokenizer.decode(model.generate(**inputs)[0]))"]


PIPELINE_TAGS = {"seq2seq": "text2text-generation", "masked": "fill-mask", "causal": "text-generation"}
AUTO_CLASSES = {"seq2seq": "AutoModelForSeq2SeqLM", "masked": "AutoModelForMaskedLM", "causal": "AutoModelForCausalLM"}

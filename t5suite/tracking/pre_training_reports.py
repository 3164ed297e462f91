"""What a pre-training run leaves behind: `results.json`, the model card, an example.

>>> results_of(report, entropies)
{'tasks': {'pre_train': {'nll': 2.31, 'perplexity': 10.1, ..., 'unigram_nll': 5.71, ...}}, 'averages': {}}
"""

from t5suite.model_cards.pre_trained import write_pre_trained_card
from t5suite.models.families import family_of_model
from t5suite.tracking import reports
from t5suite.tracking.plots import loss_curve
from t5suite.training.pre_training.evaluation import NAME, HeldOut


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
    run.update(seconds={name: round(result.seconds, 3) for name, result in report.results.items()})
    if is_model:
        write_pre_trained_card(run.directory, title, run.manifest, results, objective, family, example[0])
    reports.write_results(run.directory, results)
    run.finish()
    reports.print_results(results, f"{title}  ({run.directory})")

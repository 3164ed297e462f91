"""The batches that a run trains on, as a `--batch_transform` of its own sees them."""

from unittest import mock

import pre_train_t5
from t5suite import FineTuner
from t5suite.training import fine_tuning_trainer
from t5suite.training.plug_ins import PlugIns, with_transform

RECORDED = []


def record(batch):
    RECORDED.append({name: tensor.clone() for name, tensor in batch.items()})
    return batch


def pre_training_batches(*words) -> list[dict]:
    """Pre-trains with these words of the command line; the collated batches in the order of the run."""
    RECORDED.clear()
    pre_train_t5.main([*map(str, words), "--batch_transform", "recorded_batches:record"])
    return list(RECORDED)


def fine_tuning_batches(model=None, data=None, **flags) -> list[dict]:
    """Fine-tunes; the collated batches in the order of the run."""
    RECORDED.clear()
    FineTuner(model, data, batch_transform=record, **flags).train()
    return list(RECORDED)


def recording_evaluations():
    """A context in which batches of evaluations are recorded, too."""
    make_evaluator = fine_tuning_trainer.evaluator_of

    def evaluator_of(trainer, collator, tokenizer):
        return make_evaluator(trainer, with_transform(collator, PlugIns(batch_transform=record)), tokenizer)

    return mock.patch.object(fine_tuning_trainer, "evaluator_of", evaluator_of)

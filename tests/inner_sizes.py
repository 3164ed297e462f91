"""Contexts in which an inner part of a run has another size or setting than flags give it.

They stand here once: who moves such a part edits this file alone.
"""

import functools
from unittest import mock

from t5suite.data.batches.pre_training_collator import T5DataCollator
from t5suite.training.evaluation import EvaluatorSettings
from t5suite.training.losses import move_loss_into_model


def loss_in_chunks(tokens: int | None):
    """A T5's loss is computed so many target tokens at a time; None: as many as a run takes."""
    chunks = functools.partial(move_loss_into_model, chunk_tokens=tokens)
    return mock.patch("t5suite.training.trainer.move_loss_into_model", chunks)


def evaluating_by_tokens(number: int):
    """An evaluator's batches have so many tokens."""
    return mock.patch("t5suite.training.fine_tuning_trainer.batch_tokens", return_value=number)


def evaluating_without_loss():
    """An evaluator computes answers alone, as benchmarks have it."""
    settings = functools.partial(EvaluatorSettings, loss=False)
    return mock.patch("t5suite.training.fine_tuning_trainer.EvaluatorSettings", settings)


def keeping_rows_from(number: int):
    """Tokenized rows are kept where there are at least so many."""
    return mock.patch("t5suite.data.batches.training_data.FEWEST_ROWS", number)


def packed_rows_of(length: int):
    """Packed rows of pre-training take this many input and target tokens; evaluations' rows are not packed."""

    def make_collator(*arguments, **settings) -> T5DataCollator:
        lengths = {"row_inputs_length": length, "row_targets_length": length} if settings.get("pack") else {}
        return T5DataCollator(*arguments, **settings, **lengths)

    return mock.patch("t5suite.training.pre_training_collators.T5DataCollator", make_collator)

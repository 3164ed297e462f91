"""The trainer of a pre-training run, over numbered blocks of text or over a stream of them.

>>> trainer = make_pre_trainer(model, tokenizer, args, text, train_collator, eval_collator)
>>> trainer.train()
"""

from collections.abc import Callable

from t5suite.base.libraries import Libraries
from t5suite.training.checkpoints.data_positions import ExampleOrder, StreamSource
from t5suite.training.loss_counts import GuessCounts
from t5suite.training.losses import WatchedLoss
from t5suite.training.monitoring.rates import weight_norm
from t5suite.training.monitoring.terminal import evaluation_bar, shows_bars
from t5suite.training.plug_ins import add_plug_in_callbacks
from t5suite.training.pre_training_data import PreTrainingData
from t5suite.training.pre_training_evaluation import PreTrainingEvaluator
from t5suite.training.trainer import SuiteTrainer


class PreTrainer(SuiteTrainer):
    """A `SuiteTrainer` over indices that run on through all epochs: an epoch is a part of its endless data set.

    Its logs also have accuracy on the targets of the step, norm of the weights, rates, tokens seen, time left.
    """

    counts_tokens = True

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        loss = WatchedLoss(self.compute_loss_func)
        self.compute_loss_func = loss
        self.add_callback(GuessCounts(loss, self.args.device, self.ranks))

    def num_examples(self, dataloader) -> int:
        """Blocks per epoch, which the trainer multiplies by the epochs."""
        return self.data.length

    def log(self, logs: dict, start_time: float | None = None) -> None:
        """Adds the accuracy since the last log, and the norm of the weights."""
        if "loss" in logs:
            norm = weight_norm(self.accelerator.unwrap_model(self.model))
            measured = {"accuracy": self.compute_loss_func.accuracy(self.ranks), "weight_norm": norm}
            logs |= {name: value for name, value in measured.items() if value is not None}
        super().log(logs, start_time)


def make_pre_trainer(
    model,
    tokenizer,
    args,
    data: PreTrainingData,
    train_collator,
    eval_collator,
    *,
    callbacks=(),
    libraries: Libraries | None = None,
) -> PreTrainer:
    """A trainer over the examples, or over a stream; without either, one that evaluates only.

    Args:
      callbacks: the user's own (`plug_ins`), added after the suite's.
    """
    blocks = None
    order: ExampleOrder | StreamSource = ExampleOrder()
    if data.stream is not None:
        order = StreamSource(data.stream, args.max_steps)
    elif data.examples.train is not None:
        blocks = data.examples.train
        order = ExampleOrder(epoch_blocks(data.examples.blocks_an_epoch))

    def make_evaluator(trainer: PreTrainer) -> PreTrainingEvaluator:
        return PreTrainingEvaluator(
            eval_collator,
            args.per_device_eval_batch_size,
            trainer.accelerator,
            evaluation_bar if trainer.is_world_process_zero() and shows_bars(args) else None,
            tokenizer=tokenizer,
            num_samples=args.num_samples,
        )

    trainer = PreTrainer(
        model=model,
        args=args,
        train_dataset=blocks,
        data=order,
        collator=train_collator,
        make_evaluator=make_evaluator,
        eval_sets=[data.examples.held_out],
        selection_metric="loss",
        processing_class=tokenizer,
        libraries=libraries,
    )
    add_plug_in_callbacks(trainer, callbacks)
    return trainer


def epoch_blocks(num_blocks: int) -> Callable[[int], range]:
    """Epoch -> the indices of its data, which run on through all epochs, in order; the data set shuffles.

    >>> epoch_blocks(3)(1)
    range(3, 6)
    """
    return lambda epoch: range(epoch * num_blocks, (epoch + 1) * num_blocks)

"""A tiny trainer whose losses, gradients and memory can be made to fail at a given step."""

import copy
import functools
import gc
import json
import tempfile

import law_worker
import torch
from transformers import TrainerCallback

from t5suite import load_task
from t5suite.data.batches.encodings import TextEncoding
from t5suite.data.batches.features import TokenArrays
from t5suite.data.batches.samplers import shuffled_order
from t5suite.data.batches.training_data import tokenize_split
from t5suite.data.rows.sources import DataOptions, load_split
from t5suite.testing import tiny_tokenizer
from t5suite.training.fine_tuning import make_collator
from t5suite.training.flags.fine_tuning import SuiteTrainingArguments
from t5suite.training.trainer import SuiteTrainer

# What has been imported stays: every `train` collects garbage, which takes half a second over all of it.
gc.freeze()


class Watched:
    """Rows that keep in mind which of them were asked for, micro-batch by micro-batch."""

    def __init__(self, rows):
        self.rows, self.given = rows, []

    def __len__(self):
        return len(self.rows)

    def __getitems__(self, indices):
        self.given.append([f"mini.train:{index}" for index in indices])
        return self.rows.__getitems__(indices)


class Recorder(TrainerCallback):
    """`{step: (weights, optimizer state, rates)}` after every update; step 0 is the start."""

    def __init__(self):
        self.at = {}

    def on_step_begin(self, args, state, control, model=None, optimizer=None, lr_scheduler=None, **kwargs):
        self.at.setdefault(0, self.look(model, optimizer, lr_scheduler))

    def on_step_end(self, args, state, control, model=None, optimizer=None, lr_scheduler=None, **kwargs):
        self.at[state.global_step] = self.look(model, optimizer, lr_scheduler)

    @staticmethod
    def look(model, optimizer, scheduler):
        copied = lambda value: value.clone() if torch.is_tensor(value) else value
        moments = optimizer.state_dict()["state"]
        state = {number: {key: copied(value) for key, value in entry.items()} for number, entry in moments.items()}
        return {name: p.clone() for name, p in model.state_dict().items()}, state, scheduler.get_last_lr()


@functools.cache
def parts():
    tokenizer = tiny_tokenizer()
    task = load_task("mini", "entailment")
    rows = load_split(task, "validation", "validation", DataOptions()).rows.select(range(law_worker.TRAINING_ROWS))
    features = tokenize_split(rows, task, TextEncoding(tokenizer, law_worker.LENGTHS), "train")
    return tokenizer, TokenArrays.concatenate([features]), law_worker.tiny_model(tokenizer)


def make(batch_size=8, accumulation=1, guard=None, **settings):
    """A trainer of six updates over 21 rows, with a recorder; `guard`: attributes of its guard."""
    tokenizer, features, model = parts()
    given = {"num_train_epochs": 2, "learning_rate": 1e-2, "optim": "adamw_torch", "weight_decay": 0.1, **settings}
    args = SuiteTrainingArguments(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=accumulation, logging_steps=given.pop("logging_steps", 1), eval_strategy="no",
        save_strategy="no", disable_tqdm=True, use_cpu=True, seed=0, **given,
    )  # fmt: skip
    trainer = SuiteTrainer(
        model=copy.deepcopy(model), args=args, train_dataset=Watched(features),
        epoch_order=shuffled_order(len(features), 0), collator=make_collator(model),
        name_example="mini.train:{}".format, processing_class=tokenizer,
    )  # fmt: skip
    trainer.recorder = Recorder()
    trainer.add_callback(trainer.recorder)
    for name, value in (guard or {}).items():
        setattr(trainer.updates, name, value)
    return trainer


def equal(one, other) -> bool:
    """Whether two nests of tensors are the same to the bit (nan equals nan)."""
    if torch.is_tensor(one):
        same = one.shape == other.shape and one.dtype == other.dtype
        return same and bool((one.reshape(-1).view(torch.uint8) == other.reshape(-1).view(torch.uint8)).all())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other


def at_steps(trainer, steps, change):
    """The loss of every micro-batch of these updates (1 is the first) goes through `change`."""
    loss_of = trainer.compute_loss_func

    def loss(outputs, labels, num_items_in_batch=None):
        found = loss_of(outputs, labels, num_items_in_batch)
        return change(found) if trainer.state.global_step + 1 in steps else found

    trainer.compute_loss_func = loss


class FailsBackward(torch.autograd.Function):
    """The identity, with a backward pass that runs out of memory."""

    @staticmethod
    def forward(context, value):
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 bytes")


def limit_rows(trainer, rows, from_step=1, where="loss", first=False):
    """From a step on, a pass over more rows than that runs out of memory.

    Args:
      where: at the end of the `model`'s forward pass, in the `loss`, or in the `backward` pass.
      first: only passes before the update's last micro-batch do.
    """
    loss_of, forward = trainer.compute_loss_func, trainer.model.forward

    def is_due(number):
        last = trainer.accelerator.gradient_state.sync_gradients
        return trainer.state.global_step + 1 >= from_step and number > rows and not (first and last)

    def limited_forward(*args, **kwargs):
        outputs = forward(*args, **kwargs)
        if is_due(len(kwargs["input_ids"])):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 bytes")
        return outputs

    def limited_loss(outputs, labels, num_items_in_batch=None):
        loss = loss_of(outputs, labels, num_items_in_batch)
        if not is_due(len(labels)):
            return loss
        if where == "backward":
            return FailsBackward.apply(loss)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 bytes")

    if where == "model":
        trainer.model.forward = limited_forward
    else:
        trainer.compute_loss_func = limited_loss


def losses(trainer) -> list:
    """`(loss, gradient norm)` of every log."""
    return [(line["loss"], line["grad_norm"]) for line in trainer.state.log_history if "loss" in line]


def given_in(trainer, step) -> list[str]:
    """The examples that this rank was given for an update (1 is the first)."""
    size = trainer.args.gradient_accumulation_steps
    given = trainer.train_dataset.given[(step - 1) * size : step * size]
    return [name for micro_batch in given for name in micro_batch]


def incidents(trainer) -> list[dict]:
    path = trainer.updates.incidents.path
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

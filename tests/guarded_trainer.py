"""A tiny trainer whose losses, gradients and memory can be made to fail at a given step."""

import gc

import torch
from transformers import TrainerCallback

from t5suite.testing import read_rows, tiny_trainer

# What has been imported stays: every `train` collects garbage, which takes half a second over all of it.
gc.freeze()


class Watched:
    """Rows that keep in mind which of them were asked for, micro-batch by micro-batch."""

    def __init__(self, rows):
        self.rows, self.asked = rows, []

    def __len__(self):
        return len(self.rows)

    def __getitems__(self, indices):
        self.asked.append(list(indices))
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


def make(batch_size=8, accumulation=1, guard=None, **settings):
    """A trainer of six updates over 21 rows, with a recorder; `guard`: attributes of its guard."""
    defaults = {"num_train_epochs": 2, "optim": "adamw_torch", "weight_decay": 0.1}
    cut = {"per_device_train_batch_size": batch_size, "gradient_accumulation_steps": accumulation}
    trainer = tiny_trainer(**defaults | cut | settings)
    trainer.train_dataset = Watched(trainer.train_dataset)
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
        value = loss_of(outputs, labels, num_items_in_batch)
        return change(value) if trainer.state.global_step + 1 in steps else value

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


def examples_in(trainer, step) -> list[int]:
    """The examples that this rank read for an update (1 is the first)."""
    size = trainer.args.gradient_accumulation_steps
    micro_batches = trainer.train_dataset.asked[(step - 1) * size : step * size]
    return [index for micro_batch in micro_batches for index in micro_batch]


def incidents(trainer) -> list[dict]:
    path = trainer.updates.incidents.path
    return read_rows(path) if path.exists() else []

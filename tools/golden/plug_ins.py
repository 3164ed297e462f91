"""What traced runs add to the suite: a callback, and a gradient scaler."""

import math

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from transformers import TrainerCallback

BAD_STEP = 7
SCALE = 2.0**10


class NanGradient(TrainerCallback):
    """Makes one parameter's gradient NaN in one step: the update must be skipped."""

    def __init__(self):
        self.step = 0

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        parameter = next(iter(model.parameters()))
        parameter.register_hook(lambda gradient: gradient * math.nan if self.step == BAD_STEP else gradient)

    def on_step_begin(self, args, state, control, **kwargs):
        self.step = state.global_step + 1


def install_gradient_scaler() -> None:
    """A stand-in for fp16 on a CPU: every accelerator gets torch's gradient scaler, over float32."""
    plain_init = Accelerator.__init__

    def init_with_scaler(accelerator, *args, **kwargs):
        plain_init(accelerator, *args, **kwargs)
        accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=5)

    Accelerator.__init__ = init_with_scaler
    Accelerator.unscale_gradients = unscale_gradients


def unscale_gradients(accelerator, optimizer=None) -> None:
    """What accelerate does under fp16."""
    for wrapped in [optimizer] if optimizer is not None else accelerator._optimizers:
        while isinstance(wrapped, AcceleratedOptimizer):
            wrapped = wrapped.optimizer
        accelerator.scaler.unscale_(wrapped)

"""Optimizers by name (`--optimizer`); without the flag, Hugging Face's `--optim` decides.

    >>> OPTIMIZERS["adafactor"](model.parameters(), learning_rate=1e-3)
    Adafactor (...)

Every function takes the parameters (or groups of them) and the learning rate, and returns a `torch.optim.Optimizer`.
"""

from transformers.optimization import Adafactor


def adafactor(parameters, learning_rate: float) -> Adafactor:
    """Adafactor as T5 was trained with (arXiv:1804.04235, alg. 4 and section 8; T5's released configurations).

    No first moment, second-moment decay 1 - t^-0.8, updates clipped at an RMS of 1, steps relative to the size of the
    parameter (`learning_rate * max(1e-3, RMS(parameter))`). `--optim adafactor` is another thing: the trainer turns
    the relative steps off there, and a learning rate of 1e-3 then means a far smaller step.
    """
    return Adafactor(
        parameters,
        lr=learning_rate,
        eps=(1e-30, 1e-3),
        clip_threshold=1.0,
        decay_rate=-0.8,
        beta1=None,
        weight_decay=0.0,
        scale_parameter=True,
        relative_step=False,
        warmup_init=False,
    )


OPTIMIZERS = {
    "adafactor": adafactor,
}

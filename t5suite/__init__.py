"""t5suite: fine-tune, pre-train and compare text-to-text models.

    >>> import t5suite
    >>> task = t5suite.load_task("glue", "rte")
    >>> task.examples({"sentence1": "It rains.", "sentence2": "It is wet.", "label": 0})
    [Example(inputs='rte sentence1: It rains. sentence2: It is wet.', targets='entailment')]

Names are imported on first use, so that `import t5suite` and `t5suite --help` load no torch.
"""

import importlib
import os

# OpenMP's threads spin while they wait, which starves whoever shares the cores: 150 steps of the bundled model took
# 84 s beside one other job and 5.7 s with this (docs/log.md). It works only if it is set before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.2.0"

_HOMES = {
    "Callback": "t5suite.training.callback",
    "DATASET_VALS": "t5suite.constants", "MIXTURES": "t5suite.constants", "Example": "t5suite.tasks.formatters",
    "FineTuner": "t5suite.fine_tuner", "Task": "t5suite.tasks.registry", "load_task": "t5suite.tasks.registry",
}  # fmt: skip

__all__ = [*_HOMES, "__version__"]


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError(f"module 't5suite' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__():
    return sorted(__all__)

"""What victims have imported before they are forked. Imports only: nothing may be computed, no thread be started.

>>> import faults.preloaded
"""

import importlib

MODULES = (
    "t5suite",
    "torch",
    "torch.distributed",
    "torch.utils.tensorboard",
    "datasets",
    "scipy.stats",
    "sklearn.metrics",
    "rich._emoji_codes",
    "torch.profiler._cupti_monitor",
    "torch.utils.serialization",
    "transformers.models.t5.modeling_t5",
    "transformers.models.t5.tokenization_t5",
    "transformers.models.mt5",
    "transformers.integrations",
    "fine_tune_t5",
    "pre_train_t5",
    "faults.victims",
    "faults.traces",
    "faults.patches",
    "faults.suite",
)

for name in MODULES:
    importlib.import_module(name)

"""Which messages of libraries are hidden without `--log_level info`, each for the reason given here.

All others are shown, because they may matter.
"""

import logging
import warnings

# The libraries' loggers that need the filter.
NOISY_LOGGERS = (
    "transformers.trainer", "transformers.trainer_utils", "transformers.configuration_utils",
    "transformers.modeling_utils", "transformers.generation.utils", "transformers.generation.configuration_utils",
    "transformers.tokenization_utils_base", "accelerate.accelerator", "accelerate.utils.other",
    "torch.distributed.elastic.multiprocessing.redirects", "DeepSpeed",
)  # fmt: skip
# {text: why it can be ignored}
LIBRARY_NOISE = {
    "missing keys in the checkpoint": "tied weights are stored once: that their other names lack is expected",
    "mtime may not be reliable": "checkpoints are sorted by their step where two were written within a second",
    "arguments do not match the ones in the `trainer_state.json`": "whether a run is the same is decided by all its "
    "settings (`runs`); the trainer compares three, and takes a share of the steps for another number",
    "Gradient accumulation steps mismatch: GradientAccumulationPlugin": "the trainer accumulates itself, so that "
    "accelerate, which is told of no accumulation, wonders about DeepSpeed's",
    "Setting accelerator to CPU. If you have GPU": "DeepSpeed looks for one whenever another library imports it; "
    "`t5suite doctor` says what is computed on",
}


def is_shown(record: logging.LogRecord) -> bool:
    """Whether a record is shown: a filter for loggers."""
    return not is_noise(record.getMessage())


def is_noise(message: str) -> bool:
    """Whether a message is library noise."""
    return any(text in message for text in LIBRARY_NOISE)


def quiet_libraries(verbose: bool = False) -> None:
    """Hides library noise in logs and in Python's warnings; `verbose` undoes it."""
    for name in NOISY_LOGGERS:
        noisy_logger = logging.getLogger(name)
        noisy_logger.removeFilter(is_shown)
        if not verbose:
            noisy_logger.addFilter(is_shown)
    unfiltered = getattr(warnings.showwarning, "passed_on", warnings.showwarning)

    def showwarning(message, *args, **kwargs):
        if verbose or not is_noise(str(message)):
            unfiltered(message, *args, **kwargs)

    showwarning.passed_on = unfiltered
    warnings.showwarning = showwarning

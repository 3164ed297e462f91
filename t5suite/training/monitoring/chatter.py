"""What libraries say that does not concern the user, and is left out unless `--verbose` asks for it.

    >>> hush()
    >>> warnings.warn("`torch.jit.script` is deprecated. Please switch to `torch.compile` ...")      # not shown
    >>> warnings.warn("Casting complex values to real discards the imaginary part")                  # shown

Only messages that hold a text of the tables, exactly, are left out, each for a reason that stands beside it. Anything
else is shown: a warning that nobody has looked at may matter.
"""

import logging
import warnings

# Where a library's own logger is the one to be asked.
LOGGERS = (
    "transformers.trainer",
    "transformers.trainer_utils",
    "transformers.configuration_utils",
    "transformers.modeling_utils",
    "transformers.generation.utils",
    "transformers.generation.configuration_utils",
    "transformers.tokenization_utils_base",
    "accelerate.accelerator",
    "accelerate.utils.other",
    "torch.distributed.elastic.multiprocessing.redirects",
    "DeepSpeed",
)


def is_news(record: logging.LogRecord) -> bool:
    """Whether a record is shown: a filter for loggers."""
    return not is_chatter(record.getMessage())


def is_chatter(message: str) -> bool:
    """Whether a message is one of those that say nothing to the user."""
    return any(text in message for text in CHATTER)


def hush(verbose: bool = False) -> None:
    """Leaves out what libraries say of no concern, in their logs and in Python's warnings; `verbose` undoes it."""
    for name in LOGGERS:
        log = logging.getLogger(name)
        log.removeFilter(is_news)
        if not verbose:
            log.addFilter(is_news)
    shown = getattr(warnings.showwarning, "passed_on", warnings.showwarning)
    warnings.showwarning = shown if verbose else _selective(shown)


def _selective(show):
    def showwarning(message, category, filename, lineno, file=None, line=None):
        if not is_chatter(str(message)):
            show(message, category, filename, lineno, file, line)

    showwarning.passed_on = show
    return showwarning


# {text: why it is no news}
CHATTER = {
    "missing keys in the checkpoint": "tied weights are stored once: that their other names lack is expected",
    "mtime may not be reliable": "checkpoints are sorted by their step where two were written within a second",
    "arguments do not match the ones in the `trainer_state.json`": "whether a run is the same is decided by all its "
    "settings (`runs`); the trainer compares three, and takes a share of the steps for another number",
    "Gradient accumulation steps mismatch: GradientAccumulationPlugin": "the trainer accumulates itself, so that "
    "accelerate, which is told of no accumulation, wonders about DeepSpeed's",
    "Setting accelerator to CPU. If you have GPU": "DeepSpeed looks for one whenever another library imports it; "
    "`t5suite doctor` says what is computed on",
    "You are using a model of type `own_module`": "a tokenizer beside a module of the user's own has no need to know "
    "the type of that module's configuration",
}

"""Helpers of `t5suite.FineTuner`: its inputs, its process state, its answers.

>>> inputs_of("t5-v1_1-small", "reviews.csv", {"text_column": "text"}).flags
{'config_name': 't5-v1_1-small', 'data_format': 'csv', 'train_file': 'reviews.csv', 'text_column': 'text'}
>>> inputs_of("t5-small", [{"input": "a", "output": "b"}], {}).rows
{'train': [{'input': 'a', 'output': 'b'}]}
>>> process = OwnProcess()
>>> with process.entered(), interruptible():
...     train()

Several `FineTuner`s may share one process, such as a notebook's kernel. transformers and accelerate keep device and
precision per process, from the latest training arguments: each tuner restores its own while it works.
"""

import contextlib
import functools
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import torch
from accelerate.state import AcceleratorState, PartialState
from transformers import PreTrainedModel
from transformers.trainer_callback import ProgressCallback
from transformers.utils import logging as transformers_logging

from t5suite.base.errors import ConfigError, Preempted
from t5suite.base.hub_commits import HubReads, reading_as
from t5suite.base.lookup import suggestion
from t5suite.base.script_flags import flags_marked, flags_of
from t5suite.data.corpora.readers import without_compression
from t5suite.data.rows.files import FORMATS_BY_SUFFIX, SPLIT_NAMES
from t5suite.data.rows.own_rows import as_rows
from t5suite.inference.decoding_settings import DecodingSettings
from t5suite.inference.jobs import WINDOW, Job
from t5suite.inference.predictor import Answer, Predictor
from t5suite.inference.rows import Row
from t5suite.inference.settings import candidate_labels
from t5suite.models.adapters import is_adapted
from t5suite.models.families import recognize_family
from t5suite.models.generation_settings import set_generation_tokens, set_special_tokens
from t5suite.models.loading import check_vocabulary
from t5suite.models.presets import PRESETS
from t5suite.models.t5.output_layer import T5_TYPES
from t5suite.models.t5.packing import accept_packed_batches
from t5suite.models.vocabulary import ensure_padding
from t5suite.models.weight_values import check_finite, separate_memory
from t5suite.tasks.formatters import FITTED_FORMATTERS
from t5suite.tasks.tokenization import bind_fits
from t5suite.training.checkpoints.states import random_state, restore_random_state
from t5suite.training.monitoring.library_noise import NOISY_LOGGERS, is_shown
from t5suite.training.monitoring.terminal import somebody_watches
from t5suite.training.plug_ins import PlugIns, check_callbacks
from t5suite.training.processes.signals import SET_UP, stop_requests
from t5suite.training.sharding.process_state import keeping_process_state

logger = logging.getLogger(__name__)

SCRIPT = "fine_tune_t5"
# Presets that are also names of hub models: there they have trained weights.
HUB_PRESETS = ("t5-small", "t5-base", "t5-large", "t5-3b", "t5-11b")
# Flags that `data` sets only if the user does not.
YIELDING = ("data_format", "labels")
# Environment variables that transformers and accelerate set for later code.
NOTED = ("ACCELERATE_", "FSDP_")


class Inputs(NamedTuple):
    """The arguments, taken apart.

    Attributes:
      flags: by name, including those that `model` and `data` stand for.
      model: a model that is in memory; None where flags say which.
      rows: `{split: rows}` that are in memory.
      names_data: whether any argument names training data.
    """

    flags: dict[str, Any]
    model: Any = None
    rows: dict[str, list[dict]] | None = None
    names_data: bool = False


def inputs_of(model: Any, data: Any, flags: Mapping[str, Any]) -> Inputs:
    """`FineTuner(model, data, **flags)` taken apart."""
    for name, entry in flags_of(SCRIPT).items():
        if "python" in entry and flags.get(name) not in (None, False, "none"):
            raise ConfigError(f"{name}={flags[name]!r}: it is a flag of the script; in Python {entry['python']}")
    model_flags, model = _model_flags(model)
    data_flags, rows = _data_flags(data, flags)
    found = model_flags | data_flags
    for name in found.keys() & flags.keys() - set(YIELDING):
        raise ConfigError(f"{name} is given twice: {found[name]!r:.100} and {flags[name]!r:.100}")
    names_data = data is not None or any(name in flags for name in ("config", *flags_marked("data")))
    return Inputs(found | dict(flags), model, rows, names_data)


def argv_of(flags: Mapping[str, Any]) -> list[str]:
    """Flags as a command line has them; a comma-separated text there may be a list here.

    >>> argv_of({"labels": ["bad", "good"], "max_steps": 10, "early_stopping_patience": None})
    ['--labels=bad,good', '--max_steps=10', '--early_stopping_patience=None']
    """
    known, words = flags_of(SCRIPT), []
    for name, value in flags.items():
        if isinstance(value, (list, tuple)) and name in known and not known[name]["list"]:
            items = [str(item) for item in value]
            if any("," in item for item in items):
                raise ConfigError(f"{name}: {value!r:.200} holds a comma, which separates the items of this setting")
            value = ",".join(items)
        words.append(f"--{name}={list(value) if isinstance(value, tuple) else value}")
    return words


def callables_of(flags: Mapping[str, Any]) -> tuple[dict[str, Any], PlugIns]:
    """`(the other flags, plug-ins that are objects)`; those that are `module:Name` stay flags.

    >>> callables_of({"metrics": ["accuracy", exact_length], "seed": 1})
    ({'metrics': ['accuracy'], 'seed': 1}, PlugIns(metrics=(<function exact_length>,), ...))
    """
    kept, found = dict(flags), {}
    for name in ("batch_transform", "batch_metrics", "metrics", "callbacks"):
        given = kept.pop(name, None)
        several = list(given) if isinstance(given, (list, tuple)) else [] if given is None else [given]
        words = [part for part in several if isinstance(part, str)]
        found[name] = [part for part in several if not isinstance(part, str)]
        if words:
            kept[name] = words if isinstance(given, (list, tuple)) else given
        for part in found[name] if name != "callbacks" else ():
            if not callable(part):
                raise ConfigError(f"{name}: {type(part).__name__} is not a function")
        if name.startswith("batch_") and len(several) > 1:
            raise ConfigError(f"{name}: one function, not {len(several)}")
    transform, measured = (next(iter(found[name]), None) for name in ("batch_transform", "batch_metrics"))
    if transform is not None and "transform_evaluation" in kept:
        found["transforms_evaluation"] = bool(kept.pop("transform_evaluation"))
    found |= {"batch_transform": transform, "batch_metrics": measured, "metrics": tuple(found["metrics"])}
    return kept, PlugIns(**found | {"callbacks": check_callbacks(found["callbacks"])})


def joined(named: PlugIns, given: PlugIns) -> PlugIns:
    """The plug-ins that flags name, and those that are objects."""
    return PlugIns(
        batch_transform=given.batch_transform or named.batch_transform,
        transforms_evaluation=given.transforms_evaluation or named.transforms_evaluation,
        batch_metrics=given.batch_metrics or named.batch_metrics,
        metrics=named.metrics + given.metrics,
        callbacks=check_callbacks(named.callbacks + given.callbacks),
        model_class=named.model_class,
    )


def _model_flags(model: Any) -> tuple[dict, Any]:
    """`(flags, model in memory)`."""
    if model is None:
        return {}, None
    if isinstance(model, type):
        return {"model_class": f"{model.__module__}:{model.__qualname__}"}, None
    if not isinstance(model, (str, os.PathLike)):
        return {}, model
    name = os.fspath(model)
    is_there = Path(name).exists()
    if ":" in name and not is_there and not name.startswith((".", "/")):
        return {"model_class": name}, None
    if name in PRESETS and name not in HUB_PRESETS and not is_there:
        return {"config_name": name}, None
    return {"model_name_or_path": name}, None


def _data_flags(data: Any, flags: Mapping[str, Any]) -> tuple[dict, dict | None]:
    """`(flags, rows in memory by split)`."""
    if data is None:
        return {}, None
    if isinstance(data, (str, os.PathLike)):
        return _named_data(os.fspath(data), flags), None
    splits = {"train": data}
    if isinstance(data, Mapping):
        splits = {_role(name): part for name, part in data.items()}
        if len(splits) < len(data):
            raise ConfigError(f"data: two of {', '.join(map(str, data))} are names of one split")
        named = [role for role, part in splits.items() if isinstance(part, (str, os.PathLike))]
        if named and len(named) < len(splits):
            raise ConfigError(f"data: {', '.join(named)} in files, other splits in memory; give all in one way")
        if named:
            files = {f"{role}_file": os.fspath(part) for role, part in splits.items()}
            return {"data_format": _format_of(next(iter(files.values()))), **files}, None
    rows = {role: as_rows(part, f"data[{role!r}]") for role, part in splits.items()}
    features = getattr(next(iter(splits.values())), "features", None) or {}
    label = features.get(flags.get("target_column") or "output")  # a `datasets.ClassLabel` has names
    words = list(getattr(label, "names", None) or [])
    return {"data_format": "jsonl", **({"labels": words} if words else {})}, rows


def _named_data(name: str, flags: Mapping[str, Any]) -> dict:
    """A file or folder of rows, or `benchmark/task`."""
    path = Path(name)
    if path.is_dir():
        return {"data_format": flags.get("data_format") or _format_in(path), "train_dir": name}
    if path.is_file() or any(mark in name for mark in "*?["):
        return {"data_format": flags.get("data_format") or _format_of(name), "train_file": name}
    benchmark, slash, task = name.partition("/")
    if not slash or Path(without_compression(name)).suffix in FORMATS_BY_SUFFIX or task.count("/"):
        raise ConfigError(f"data {name!r}: no such file or folder, and no benchmark/task such as 'glue/rte'")
    return {"benchmark": benchmark, "dataset_name": task}


def _format_of(name: str) -> str:
    suffix = Path(without_compression(str(name))).suffix
    if suffix not in FORMATS_BY_SUFFIX:
        raise ConfigError(f"data {str(name)!r}: give data_format=..., its name does not show it")
    return FORMATS_BY_SUFFIX[suffix]


def _format_in(folder: Path) -> str:
    """The one kind of file in a folder and its subfolders."""
    names = [path.name for path in [*folder.glob("*"), *folder.glob("*/*")] if path.is_file()]
    found = {FORMATS_BY_SUFFIX.get(Path(without_compression(name)).suffix) for name in names} - {None}
    if len(found) != 1:
        kinds = f"files of {' and '.join(sorted(found))}" if found else "no file of rows"
        raise ConfigError(f"data {str(folder)!r} has {kinds}; give data_format=...")
    return found.pop()


def _role(name: str) -> str:
    for role, names in SPLIT_NAMES.items():
        if name in names:
            return role
    raise ConfigError(f"data: no split {name!r}; {suggestion(name, SPLIT_NAMES)}")


def made_ready(model, tokenizer):
    """The model itself, in float32, with its tokenizer's special tokens.

    Raises:
      ConfigError: it is not a model, PEFT itself wrapped it, or it has fewer embeddings than pieces.
    """
    if type(model).__name__.startswith("Peft") and not is_adapted(model):
        raise ConfigError("model: PEFT has wrapped it already; give its base model, and adapter='lora' and the like")
    if not (isinstance(model, PreTrainedModel) or is_adapted(model)):
        raise ConfigError(f"model: {type(model).__name__} is neither a model nor the name of one")
    if tokenizer is None:
        raise ConfigError("model: an object comes without a tokenizer; give tokenizer=..., an object or a name")
    ensure_padding(tokenizer)
    if any(parameter.dtype in (torch.bfloat16, torch.float16) for parameter in model.parameters()):
        logger.warning("the model's weights become float32; bf16=True still computes in bfloat16")
        model.float()
    check_finite(model, f"model: {type(model).__name__} in memory")
    separate_memory(model)
    set_special_tokens(model.config, tokenizer, recognize_family(model).special_tokens, False)
    check_vocabulary(model, len(tokenizer))
    set_generation_tokens(model)
    if model.config.model_type in T5_TYPES and not is_adapted(model):
        accept_packed_batches(model)
    return model


def lines_of(
    predictor: Predictor, text, rows: Sequence, decoding: DecodingSettings, labels=None, scores=False, raw=False
):
    """The answers to rows, one line per row, as `t5suite predict` writes them.

    Args:
      text: from `inference.settings.text_settings`: the task, if known, and how texts are made.
      labels: choose among these instead of writing; `task`: among the task's own.
    """
    labels = candidate_labels(labels, text)
    fitted = text.task is not None and text.task.entry.get("formatter") in FITTED_FORMATTERS
    fits = bind_fits(predictor.encoding.tokenizer, text.lengths, text.task.template) if fitted else None
    longest = decoding.max_new_tokens or text.max_new_tokens
    job = Job(text.task, raw, decoding, longest, labels, scores, False, text.family, fits, text.languages)
    requests = [job.request(Row(i, f"row {i}", value)) for i, value in enumerate(rows)]
    windows = [requests[i : i + WINDOW] for i in range(0, len(requests), WINDOW)]
    return [line for window in windows for line in job.lines(window, predictor)]


def answer_of(line: dict, several: bool, scores: bool):
    """A line as Python has it: a text, or the texts of several answers; with scores, `Answer`s.

    >>> answer_of({"row": 0, "prediction": "a", "score": -0.5}, several=False, scores=True)
    Answer(text='a', score=-0.5, truncated=False)
    """
    parts = line["predictions"] if several else [{"text": line["prediction"], **line}]
    answers = [Answer(part["text"], part.get("score"), part.get("truncated", False)) for part in parts]
    found = answers if scores else [answer.text for answer in answers]
    return found if several else found[0]


class OwnProcess:
    """One tuner's process state, as if it were alone: random numbers, shared states, log filters, progress bars.

    Args:
      bars: whether `datasets` draws progress bars; None: on a terminal and in a notebook. Those of transformers
        (weights read and written) are always off.
    """

    def __init__(self, bars: bool | None = None):
        self._shared: list[dict] | None = None
        self._bars = bars
        self._hub_reads = HubReads()

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Restores this tuner's process state; at the end, that of all other code."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(keeping_process_state())
            stack.callback(_restore_environment, dict(os.environ))
            stack.callback(restore_random_state, random_state())
            stack.enter_context(reading_as(self._hub_reads))
            only_shown = functools.partial(is_shown)  # an entry script's own filter is another object, and stays
            for log in map(logging.getLogger, NOISY_LOGGERS):
                log.addFilter(only_shown)
                stack.callback(log.removeFilter, only_shown)
            if transformers_logging.is_progress_bar_enabled():
                stack.callback(transformers_logging.enable_progress_bar)
            transformers_logging.disable_progress_bar()
            if not (somebody_watches() if self._bars is None else self._bars):
                if not datasets.are_progress_bars_disabled():
                    stack.callback(datasets.enable_progress_bars)
                datasets.disable_progress_bars()
            for kind, state in zip((PartialState, AcceleratorState), self._shared or (), strict=False):
                kind._shared_state.clear()
                kind._shared_state.update(state)
            try:
                yield
            finally:
                self._shared = [dict(kind._shared_state) for kind in (PartialState, AcceleratorState)]


@contextlib.contextmanager
def borrowed(model):
    """Puts back what training and evaluation change of a model besides its weights: classes, modes, `use_cache`.

    >>> with borrowed(model):
    ...     trainer.train()                       # quick dropout in place of torch's, a configuration without a cache
    """
    modules = list(model.modules())
    classes = [type(module) for module in modules]
    modes = [module.training for module in modules]
    configs = [module.config for module in modules if hasattr(getattr(module, "config", None), "use_cache")]
    caches = [config.use_cache for config in configs]
    try:
        yield
    finally:
        for module, module_class, mode in zip(modules, classes, modes, strict=True):
            module.__class__ = module_class
            module.training = mode
        for config, use_cache in zip(configs, caches, strict=True):
            config.use_cache = use_cache


def _restore_environment(was: dict[str, str]) -> None:
    for name in [name for name in os.environ if name.startswith(NOTED)]:
        del os.environ[name]
    os.environ.update({name: value for name, value in was.items() if name.startswith(NOTED)})


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C (a notebook's stop button) ends training after the current step, with a checkpoint; a second one at once.

    Raises:
      KeyboardInterrupt: when everything is saved. If signals are caught already (by an entry script), and in
        threads, which cannot catch them, nothing is changed.
    """
    stop = stop_requests()
    if stop.installed is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    stop.restore()  # forgets an earlier run's stop request
    before = signal.getsignal(signal.SIGINT)

    def handle(number, frame):
        signal.signal(signal.SIGINT, before)
        if stop.current_phase == SET_UP:
            raise KeyboardInterrupt
        stop.request("SIGINT")
        print("interrupted: finishing and saving the current step; press again to end at once", file=sys.stderr)

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    except Preempted as error:
        raise KeyboardInterrupt(str(error)) from None
    finally:
        signal.signal(signal.SIGINT, before)
        stop.restore()


def plain_progress(trainer) -> None:
    """A bar instead of transformers' table for notebooks, whose columns are made for its own names of metrics."""
    for callback in list(trainer.callback_handler.callbacks):
        if type(callback).__name__ == "NotebookProgressCallback":
            trainer.remove_callback(callback)
            trainer.add_callback(ProgressCallback)

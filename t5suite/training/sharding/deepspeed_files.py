"""`--deepspeed` and `--deepspeed_overrides` -> one DeepSpeed configuration, and where it comes from.

    >>> config, source = read_deepspeed("zero2", "zero_optimization.overlap_comm=false")
    >>> config["zero_optimization"]["stage"], config["zero_optimization"]["overlap_comm"], source
    (2, False, 'zero_stage2_config.json with --deepspeed_overrides')

A name, a packaged file's own name (from any folder), a file of one's own, or a mapping. Only the keys of the part that
DeepSpeed closes itself (`zero_optimization`, `bf16`, `fp16`, `aio`, ...) can be checked by name.
"""

import copy
import json
import logging
from collections.abc import Mapping
from pathlib import Path

from t5suite.base.errors import ConfigError
from t5suite.base.files import shipped_file, shipped_folder
from t5suite.base.lookup import closest, suggestion
from t5suite.base.yaml_files import read_json_text

logger = logging.getLogger(__name__)

FOLDER = "deepspeed_configs"
# `--deepspeed NAME` -> the packaged file.
NAMES = {
    "zero1": "zero_stage1_config.json",
    "zero2": "zero_stage2_config.json",
    "zero2_offload": "zero_stage2_offload_config.json",
    "zero3": "zero_stage3_config.json",
    "zero3_offload": "zero_stage3_offload_config.json",
    "zero3_nvme": "zero_stage3_nvme_config.json",
}
# Keys at the top of a file (deepspeed 0.19.8, `runtime/config.py` and `runtime/constants.py`).
TOP_KEYS = frozenset(
    """train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps gradient_clipping optimizer
    scheduler bf16 bfloat16 fp16 torch_autocast zero_optimization zero_allow_untested_optimizer
    zero_force_ds_cpu_optimizer communication_data_type seq_parallel_communication_data_type prescale_gradients
    gradient_predivide_factor gradient_allreduce_op managed_gradient_accumulation disable_allgather data_types aio
    activation_checkpointing steps_per_print wall_clock_breakdown dump_state memory_breakdown flops_profiler
    comms_logger tensorboard wandb csv_monitor comet autotuning elasticity compression_training data_efficiency
    curriculum_learning checkpoint data_types timers compile tensor_parallel sequence_parallel_size pipeline
    dataloader_drop_last disable_python_gc use_data_before_expert_parallelism log_level amp sparse_attention
    hybrid_engine zenflow nebula graph_harvesting""".split()
)


def read_deepspeed(given, overrides: str | None = None) -> tuple[dict, str]:
    """`(configuration, what messages call it)`; the file itself is left as it is.

    Args:
      given: one of `NAMES`, a file, JSON text, or a mapping.
      overrides: `section.key=value` pairs with commas between; values are JSON, or text.

    Raises:
      ConfigError: no such name or file; no JSON; a key that DeepSpeed does not have.
    """
    if isinstance(given, Mapping):
        config, source = copy.deepcopy(dict(given)), "--deepspeed"
    else:
        config, source = _read(str(given))
    if overrides:
        for path, value in parse_overrides(overrides).items():
            set_key(config, path, value)
        source += " with --deepspeed_overrides"
    check_keys(config, source)
    return config, source


def _read(given: str) -> tuple[dict, str]:
    if given.lstrip().startswith("{"):
        return _parse(given, "--deepspeed"), "--deepspeed"
    path = Path(given)
    if given in NAMES:
        path = shipped_file(FOLDER, NAMES[given])
    elif not path.is_file():
        path = shipped_file(FOLDER, path.name)
    if path is None:
        shipped = [*NAMES, *(file.name for file in sorted(shipped_folder(FOLDER).glob("*.json")))]
        raise ConfigError(f"--deepspeed {given:.200}: no such file or name; {suggestion(given, shipped)}")
    try:
        return _parse(path.read_text(encoding="utf-8"), path), path.name if path.parent.name == FOLDER else given
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--deepspeed {given}: cannot be read ({error})") from None


def _parse(text: str, place) -> dict:
    config = read_json_text(text, place)
    if not isinstance(config, dict):
        raise ConfigError(f"{place}: expected an object of DeepSpeed's settings, found {type(config).__name__}")
    return config


def parse_overrides(text: str) -> dict:
    """Dotted keys and their values.

    >>> parse_overrides("zero_optimization.overlap_comm=true,gradient_clipping=0.5")
    {'zero_optimization.overlap_comm': True, 'gradient_clipping': 0.5}

    Raises:
      ConfigError: a part without `=`, an empty key, or a key given twice.
    """
    settings = {}
    for part in text.split(","):
        path, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not all(path.split(".")):
            raise ConfigError(f"--deepspeed_overrides {text!r}: {part.strip()!r} is not section.key=value")
        if path in settings:
            raise ConfigError(f"--deepspeed_overrides {text!r}: {path} stands there twice")
        settings[path] = _value(value)
    return settings


def _value(text: str):
    """JSON where it is some; words such as `auto` and `cpu`, and Python's True and None, as what they say."""
    try:
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(text, text))
    except ValueError:
        return text


def set_key(config: dict, path: str, value) -> None:
    """Sets `zero_optimization.overlap_comm` and the like, making sections that are not there.

    Raises:
      ConfigError: a part of the path is a value, not a section.
    """
    *sections, key = path.split(".")
    for depth, name in enumerate(sections):
        config = config.setdefault(name, {})
        if not isinstance(config, dict):
            raise ConfigError(f"--deepspeed_overrides {path}: {'.'.join(sections[: depth + 1])} is no section")
    config[key] = value


def get_key(config: Mapping, path: str):
    """The value at a dotted path; None where there is none.

    >>> get_key({"zero_optimization": {"stage": 2}}, "zero_optimization.stage")
    2
    """
    for name in path.split("."):
        if not isinstance(config, Mapping) or name not in config:
            return None
        config = config[name]
    return config


def check_keys(config: Mapping, source: str) -> None:
    """Refuses keys that DeepSpeed does not have.

    The top of a file is open: DeepSpeed passes over what it does not know without a word, and versions differ. There
    a key like one that we know is refused, any other is named in a warning.

    Raises:
      ConfigError: with the closest names.
    """
    for key in config:
        if key not in TOP_KEYS and closest(key, TOP_KEYS):
            raise ConfigError(f"{source}: DeepSpeed has no setting {key!r}; {suggestion(key, TOP_KEYS)}")
        if key not in TOP_KEYS:
            logger.warning("%s: %r is no setting of DeepSpeed that we know of; it is passed on", source, key)
    for section, known in closed_sections().items():
        values = get_key(config, section)
        if values is not None and not isinstance(values, Mapping):
            raise ConfigError(f"{source}: {section} is {values!r:.60}, and should be an object")
        for key in values or {}:
            if key not in known:
                raise ConfigError(f"{source}: DeepSpeed's {section} has no setting {key!r}; {suggestion(key, known)}")


def closed_sections() -> dict[str, frozenset[str]]:
    """Section -> the keys that the installed DeepSpeed takes there.

    Raises:
      ConfigError: DeepSpeed is not installed.
    """
    try:
        from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
        from deepspeed.runtime.swap_tensor.aio_config import AIO_DEFAULT_DICT
        from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
        from deepspeed.runtime.zero.offload_config import (
            DeepSpeedZeroOffloadOptimizerConfig,
            DeepSpeedZeroOffloadParamConfig,
        )
    except ImportError as error:
        raise ConfigError(f"--deepspeed: {error}; pip install 't5suite[deepspeed]'") from None
    models = {
        "zero_optimization": DeepSpeedZeroConfig,
        "zero_optimization.offload_optimizer": DeepSpeedZeroOffloadOptimizerConfig,
        "zero_optimization.offload_param": DeepSpeedZeroOffloadParamConfig,
        "bf16": DeepSpeedBF16Config,
        "fp16": DeepSpeedFP16Config,
    }
    names = {section: frozenset(_names(model)) for section, model in models.items()}
    return {**names, "aio": frozenset(AIO_DEFAULT_DICT)}


def _names(model) -> set[str]:
    return {name for key, spec in model.model_fields.items() for name in (key, spec.alias) if name}

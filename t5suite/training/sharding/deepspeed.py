"""`--deepspeed` and `--deepspeed_overrides` -> one DeepSpeed configuration, consistent with our flags.

    >>> config, source = read_deepspeed("zero2", "zero_optimization.overlap_comm=false")
    >>> config["zero_optimization"]["stage"], config["zero_optimization"]["overlap_comm"], source
    (2, False, 'zero_stage2_config.json with --deepspeed_overrides')
    >>> agree({"zero_optimization": {"stage": 2}, "gradient_clipping": 0.5}, "ds.json", args)
    >>> args.max_grad_norm                                       # set in the file, and by no flag
    0.5

A configuration is a name, a packaged file's own name (from any folder), your own file, JSON, or a mapping. The flags
fill in its "auto" and missing values. Its other values replace flags at their defaults; a contradiction with a given
flag is an error that names both. DeepSpeed itself would silently use its own optimizer and scheduler, and not clip.
"""

import copy
import json
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from t5suite.base.errors import ConfigError
from t5suite.base.files import shipped_file, shipped_folder
from t5suite.base.lookup import closest, suggestion
from t5suite.base.yaml_files import read_json_text

logger = logging.getLogger(__name__)

FOLDER = "deepspeed_configs"
# `--deepspeed NAME` -> the packaged file.
FILES = [file.name for file in sorted(shipped_folder(FOLDER).glob("*.json"))]
NAMES = {name.removesuffix("_config.json").replace("_stage", ""): name for name in FILES}
# Top-level keys of a file (deepspeed 0.19.8, `runtime/config.py` and `runtime/constants.py`).
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

# What `intra_op_parallelism` was called in older versions, and is still in published files.
OLD_AIO_KEY = "thread_count"
# Keys of a file -> the flags that set the same thing.
FLAG_BY_KEY = {
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps", "gradient_clipping": "max_grad_norm",
    "bf16.enabled": "bf16", "fp16.enabled": "fp16", "optimizer.params.lr": "learning_rate",
    "optimizer.params.weight_decay": "weight_decay", "optimizer.params.eps": "adam_epsilon",
    "scheduler.params.warmup_max_lr": "learning_rate", "scheduler.params.warmup_num_steps": "warmup_steps",
    "scheduler.params.total_num_steps": "max_steps",
}  # fmt: skip
# Sections that DeepSpeed would use instead of these flags.
FLAGS_REPLACED_BY_SECTION = {
    "optimizer": ("optimizer", "optim", "optim_args"),
    "scheduler": ("schedule", "lr_scheduler_type", "lr_scheduler_kwargs"),
}
# Set where a file has no value, because DeepSpeed's defaults would ignore a flag or hide a non-finite update.
LEFT_TO_FLAGS = {
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto", "bf16.enabled": "auto", "bf16.check_grad_overflow": True, "fp16.enabled": "auto",
}  # fmt: skip
GATHER = "zero_optimization.stage3_gather_16bit_weights_on_model_save"
WORDS_OF_JSON = {"True": "true", "False": "false", "None": "null"}


def read_deepspeed(choice, overrides: str | None = None, source: str = "--deepspeed") -> tuple[dict, str]:
    """`(configuration, its name in messages)`; the file itself is not changed.

    Args:
      choice: one of `NAMES`, a file, JSON text, or a mapping.
      overrides: comma-separated `section.key=value` pairs; values are JSON, or text.
      source: the name of a mapping or text in messages.

    Raises:
      ConfigError: no such name or file; invalid JSON; a key that DeepSpeed does not have.
    """
    place = choice
    if isinstance(choice, Mapping):
        config = copy.deepcopy(dict(choice))
    elif choice.lstrip().startswith("{"):
        config = read_json_text(choice, "--deepspeed")
    else:
        place = _file_of_choice(choice)
        config = read_json_text(place.read_bytes(), place)
        is_packaged = place.parent.name == FOLDER
        source = place.name if is_packaged else choice
    if not isinstance(config, dict):
        raise ConfigError(f"{place}: expected an object of DeepSpeed's settings, found {type(config).__name__}")
    if overrides:
        for path, value in parse_deepspeed_overrides(overrides).items():
            set_key(config, path, value)
        source += " with --deepspeed_overrides"
    check_keys(config, source)
    return config, source


def _file_of_choice(choice: str) -> Path:
    """The file that `--deepspeed` names: your own, or a packaged one by its name."""
    file = Path(choice)
    if choice in NAMES or not file.is_file():
        file = shipped_file(FOLDER, NAMES.get(choice, file.name))
    if file is None:
        raise ConfigError(f"--deepspeed {choice:.200}: no such file or name; {suggestion(choice, [*NAMES, *FILES])}")
    return file


def parse_deepspeed_overrides(text: str) -> dict:
    """Dotted keys and their values.

    >>> parse_deepspeed_overrides("zero_optimization.overlap_comm=true,gradient_clipping=0.5")
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
            raise ConfigError(f"--deepspeed_overrides {text!r}: {path} is given twice")
        try:
            settings[path] = json.loads(WORDS_OF_JSON.get(value, value))
        except ValueError:  # a word such as `auto` or `cpu`
            settings[path] = value
    return settings


def set_key(config: dict, path: str, value) -> None:
    """Sets a dotted key such as `zero_optimization.overlap_comm`, and creates missing sections.

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
    """The value at a dotted path; None if it is missing.

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

    DeepSpeed silently ignores unknown top-level keys, and its versions differ. An unknown key there
    is refused if it is similar to a known one; otherwise a warning names it.

    Raises:
      ConfigError: names the closest keys.
    """
    for key in config:
        if key not in TOP_KEYS and closest(key, TOP_KEYS):
            raise ConfigError(f"{source}: DeepSpeed has no setting {key!r}; {suggestion(key, TOP_KEYS)}")
        if key not in TOP_KEYS:
            logger.warning("%s: %r is not a known DeepSpeed setting; it is passed on unchanged", source, key)
    try:
        from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
        from deepspeed.runtime.swap_tensor.aio_config import AIO_DEFAULT_DICT
        from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    except ImportError as error:
        raise ConfigError(f"--deepspeed: {error}; pip install 't5suite[deepspeed]'") from None
    sections = {"zero_optimization": DeepSpeedZeroConfig, "bf16": DeepSpeedBF16Config, "fp16": DeepSpeedFP16Config}
    for section, model in sections.items():
        _check_section(config, section, model, source)
    for key in _section_of(config, "aio", source):
        if key == OLD_AIO_KEY:
            logger.warning("%s: aio.%s has no effect in this DeepSpeed: it is intra_op_parallelism there", source, key)
        elif key not in AIO_DEFAULT_DICT:
            raise _unknown_key("aio", key, AIO_DEFAULT_DICT, source)


def _section_of(config: Mapping, section: str, source: str) -> Mapping:
    """The settings of a section; none if it is missing."""
    settings = config.get(section) or {}
    if not isinstance(settings, Mapping):
        raise ConfigError(f"{source}: {section} is {settings!r:.60}, and should be an object")
    return settings


def _check_section(config: Mapping, section: str, model: type, source: str) -> None:
    """Refuses keys of a section that DeepSpeed does not have; values are checked again when the ranks are known."""
    settings = _section_of(config, section, source)
    try:
        model(**settings)
    except ValueError as error:
        unknown_keys = [problem["loc"] for problem in error.errors() if problem["type"] == "extra_forbidden"]
        if unknown_keys:
            known_keys = {*model.model_fields, "device", "nvme_path", "pin_memory"}
            raise _unknown_key(section, ".".join(unknown_keys[0]), known_keys, source) from None


def _unknown_key(section: str, path: str, known_keys: Iterable[str], source: str) -> ConfigError:
    """The error for a key of a section that DeepSpeed does not have, with the closest ones."""
    nearest = suggestion(path.rpartition(".")[2], known_keys)
    return ConfigError(f"{source}: DeepSpeed's {section} has no setting {path!r}; {nearest}")


def agree(config: dict, source: str, args) -> None:
    """Fills the configuration from the flags and the flags from the configuration, in place.

    Raises:
      ConfigError: they contradict each other (it names both), the configuration shards nothing, or a bad nvme_path.
    """
    stage = get_key(config, "zero_optimization.stage")
    if stage not in (1, 2, 3):
        raise ConfigError(f"{source}: zero_optimization.stage is {stage}; choose 1, 2 or 3, or leave --deepspeed out")
    _check_replaced_flags(config, source, args)
    _take_values(config, source, args)
    for path, value in LEFT_TO_FLAGS.items():
        if get_key(config, path) is None:
            set_key(config, path, value)
    if stage == 3:
        _gather_weights_for_saving(config, source)
    for part in ("offload_optimizer", "offload_param"):
        _check_offload_folder(config, part, source)
    for lock in compiled(os.environ, "lock"):
        logger.warning("%s: DeepSpeed waits until it is gone; if no other run compiles now, delete it", lock)


def _check_replaced_flags(config: Mapping, source: str, args) -> None:
    """Refuses a flag in whose place DeepSpeed would take a section of the configuration."""
    for section, flags in FLAGS_REPLACED_BY_SECTION.items():
        if section not in config:
            continue
        for flag in flags:
            if is_given(args, flag):
                raise ConfigError(
                    f"{source}: its section {section!r} would take the place of --{flag} {getattr(args, flag)}; "
                    f"leave out the section or the flag"
                )


def _take_values(config: Mapping, source: str, args) -> None:
    """Gives flags at their defaults the configuration's values.

    Raises:
      ConfigError: a flag that was given has another value.
    """
    settings = [(path, flag, get_key(config, path)) for path, flag in FLAG_BY_KEY.items()]
    betas = get_key(config, "optimizer.params.betas")
    if isinstance(betas, (list, tuple)) and len(betas) == 2:
        for i, beta in enumerate(betas):
            settings.append((f"optimizer.params.betas[{i}]", f"adam_beta{i + 1}", beta))
    for path, flag, value in settings:
        value_of_flag = getattr(args, flag)
        if value in (None, "auto", value_of_flag):
            continue
        if is_given(args, flag):
            raise ConfigError(
                f'{source}: {path} is {value}, and --{flag} is {value_of_flag}; leave one of them out ("auto" in a '
                "file leaves it to the flag)"
            )
        setattr(args, flag, value)


def _gather_weights_for_saving(config: dict, source: str) -> None:
    """Has ZeRO-3 gather the weights when a model is saved."""
    if get_key(config, GATHER) is True:
        return
    if get_key(config, GATHER) is False:
        logger.warning("%s: %s is set to true: checkpoints and the final model hold whole weights", source, GATHER)
    set_key(config, GATHER, True)


def _check_offload_folder(config: Mapping, part: str, source: str) -> None:
    """Refuses offloading to a disk whose folder is not there; packaged files cannot know it."""
    section = get_key(config, f"zero_optimization.{part}") or {}
    if section.get("device") != "nvme":
        return
    folder = section.get("nvme_path")
    if not (os.path.isdir(folder or "") and os.access(folder, os.W_OK)):
        raise ConfigError(
            f"{source}: zero_optimization.{part}.nvme_path is {folder!r}, not a writable folder; give one on a "
            f"local disk: --deepspeed_overrides zero_optimization.{part}.nvme_path=/scratch/me"
        )


def operations_to_compile(config: Mapping, is_on_cpu: bool, environ: Mapping[str, str]) -> list[str]:
    """DeepSpeed's operations that a run with this configuration compiles at its start, because no run did so before.

    >>> folder = {"TORCH_EXTENSIONS_DIR": "/an/empty/folder"}
    >>> operations_to_compile({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}, True, folder)
    ['deepspeed_shm_comm', 'cpu_adam']
    """
    optimizer_device = get_key(config, "zero_optimization.offload_optimizer.device")
    parameter_device = get_key(config, "zero_optimization.offload_param.device")
    operations = ["deepspeed_shm_comm"] if is_on_cpu else []
    if optimizer_device in ("cpu", "nvme"):
        operations.append("cpu_adam")
    if "nvme" in (optimizer_device, parameter_device):
        operations.append("async_io")
    compiled_operations = {path.stem for path in compiled(environ, "*.so")}
    return [name for name in operations if name not in compiled_operations]


def note_compiling(config: Mapping, is_on_cpu: bool, environ: Mapping[str, str]) -> None:
    """Says before a silence of minutes that DeepSpeed compiles, what, and where it is kept for later runs."""
    names = operations_to_compile(config, is_on_cpu, environ)
    if names:
        logger.warning(
            "DeepSpeed compiles %s now: minutes in which nothing is shown. Later runs on this machine find the result "
            "in %s",
            " and ".join(names),
            extensions_folder(environ),
        )


def extensions_folder(environ: Mapping[str, str]) -> Path:
    """The folder of the operations that torch and DeepSpeed compile."""
    return Path(environ.get("TORCH_EXTENSIONS_DIR") or "~/.cache/torch_extensions").expanduser()


def compiled(environ: Mapping[str, str], name: str) -> list[Path]:
    """Files in the build directories of the operations that DeepSpeed compiles: `*.so`, or `lock`.

    A process killed while it compiles or loads one leaves a lock, and torch silently waits for it forever.
    """
    return sorted(extensions_folder(environ).glob(f"**/{name}"))


def is_given(args, flag: str) -> bool:
    """Whether a flag's value is not its default."""
    return getattr(args, flag) != type(args).__dataclass_fields__[flag].default

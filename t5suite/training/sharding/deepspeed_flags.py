"""A DeepSpeed configuration and our flags say the same, or the run does not begin.

    >>> agree({"zero_optimization": {"stage": 2}, "gradient_clipping": 0.5}, "ds.json", args)
    >>> args.max_grad_norm                                       # the file says it, and no flag does
    0.5
    >>> agree({"zero_optimization": {"stage": 2}, "gradient_clipping": 0.5}, "ds.json", args_with_max_grad_norm_2)
    ConfigError: ds.json: gradient_clipping is 0.5, and --max_grad_norm is 2.0; leave one of them out ...

What a file leaves open ("auto", or not there) the flags say. What a file says counts where no flag says anything else;
a flag counts as given where it is not at its default. DeepSpeed itself would take its own optimizer and scheduler, and
its own default of no clipping, without a word.
"""

import logging
import os

from t5suite.base.errors import ConfigError
from t5suite.training.sharding.deepspeed_files import get_key, set_key

logger = logging.getLogger(__name__)

# What a file may say that is a flag's business -> that flag.
SAME = {
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "max_grad_norm",
    "bf16.enabled": "bf16",
    "fp16.enabled": "fp16",
    "optimizer.params.lr": "learning_rate",
    "optimizer.params.weight_decay": "weight_decay",
    "optimizer.params.eps": "adam_epsilon",
    "scheduler.params.warmup_max_lr": "learning_rate",
    "scheduler.params.warmup_num_steps": "warmup_steps",
    "scheduler.params.total_num_steps": "max_steps",
}
# A section that DeepSpeed would use in place of what these flags ask for.
REPLACED = {
    "optimizer": ("optimizer", "optim", "optim_args"),
    "scheduler": ("schedule", "lr_scheduler_type", "lr_scheduler_kwargs"),
}
# Filled in where a file has nothing, for DeepSpeed's own defaults would pass over a flag or hide a broken update.
LEFT_TO_FLAGS = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16.enabled": "auto",
    "bf16.check_grad_overflow": True,
    "fp16.enabled": "auto",
}
GATHER = "zero_optimization.stage3_gather_16bit_weights_on_model_save"


def agree(config: dict, source: str, args) -> None:
    """Fills the configuration from the flags and the flags from the configuration, in place.

    Raises:
      ConfigError: they contradict each other (both are named), or the configuration shards nothing.
    """
    stage = get_key(config, "zero_optimization.stage")
    if stage not in (1, 2, 3):
        raise ConfigError(f"{source}: zero_optimization.stage is {stage}; choose 1, 2 or 3, or leave --deepspeed out")
    for section, flags in REPLACED.items():
        for flag in flags:
            if section in config and is_given(args, flag):
                raise ConfigError(
                    f"{source}: its section {section!r} would take the place of --{flag} {getattr(args, flag)}; "
                    f"leave out the section or the flag"
                )
    for path, flag in SAME.items():
        _settle(args, flag, get_key(config, path), f"{source}: {path}")
    betas = get_key(config, "optimizer.params.betas")
    if isinstance(betas, (list, tuple)) and len(betas) == 2:
        _settle(args, "adam_beta1", betas[0], f"{source}: optimizer.params.betas[0]")
        _settle(args, "adam_beta2", betas[1], f"{source}: optimizer.params.betas[1]")
    for path, value in LEFT_TO_FLAGS.items():
        if get_key(config, path) is None:
            set_key(config, path, value)
    if stage == 3 and get_key(config, GATHER) is not True:
        if get_key(config, GATHER) is False:
            logger.warning("%s: %s is set to true: checkpoints and the final model hold whole weights", source, GATHER)
        set_key(config, GATHER, True)
    _check_offload(config, source)


def _settle(args, flag: str, value, place: str) -> None:
    present = getattr(args, flag)
    if value is None or value == "auto" or value == present:
        return
    if is_given(args, flag):
        raise ConfigError(
            f'{place} is {value}, and --{flag} is {present}; leave one of them out ("auto" in a file leaves it to the '
            "flag)"
        )
    setattr(args, flag, value)


def is_given(args, flag: str) -> bool:
    """Whether a flag's value is not its default."""
    return getattr(args, flag) != type(args).__dataclass_fields__[flag].default


def _check_offload(config: dict, source: str) -> None:
    """NVMe offload needs a folder of this machine's, which no packaged file can know."""
    uses_nvme = False
    for part in ("offload_optimizer", "offload_param"):
        section = get_key(config, f"zero_optimization.{part}") or {}
        folder = section.get("nvme_path")
        if section.get("device") != "nvme":
            continue
        uses_nvme = True
        if not (folder and os.path.isdir(folder) and os.access(folder, os.W_OK)):
            raise ConfigError(
                f"{source}: zero_optimization.{part}.nvme_path is {folder!r}, which is no folder to write into; give "
                f"one on a local disk: --deepspeed_overrides zero_optimization.{part}.nvme_path=/scratch/me"
            )
    if uses_nvme:
        check_async_io(source)


def check_async_io(source: str) -> None:
    """Offload to NVMe goes through DeepSpeed's own asynchronous input and output, which is built on first use.

    Raises:
      ConfigError: it cannot be built here.
    """
    from deepspeed.accelerator import get_accelerator

    if not get_accelerator().create_op_builder("AsyncIOBuilder").is_compatible(verbose=False):
        raise ConfigError(f"{source}: offload to NVMe needs libaio and its headers (libaio-dev) and a C++ compiler")


def check_train_batch_size(config: dict, source: str, args) -> None:
    """The whole batch, where a file names it, is what the flags and the ranks make.

    Raises:
      ConfigError: it is not.
    """
    named = get_key(config, "train_batch_size")
    parts = args.per_device_train_batch_size, args.gradient_accumulation_steps, args.world_size
    made = parts[0] * parts[1] * parts[2]
    if named not in (None, "auto", made):
        raise ConfigError(
            f"{source}: train_batch_size is {named}, and --per_device_train_batch_size {parts[0]} x "
            f'--gradient_accumulation_steps {parts[1]} x {parts[2]} processes are {made}; write "auto" there'
        )

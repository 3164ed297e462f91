"""The flags of sharded training, made consistent before and after Hugging Face's training arguments read them.

    >>> resolve_sharding(args)      # before: one DeepSpeed configuration or None, from any source
    >>> begin_sharding(args)        # after: ranks are known

`accelerate launch` passes its configuration file and its flags on as environment variables. The stock trainer silently
uses some of them, ignores others (accumulation), and lets flags override them. Here each variable counts as the
corresponding flag, and an error names both sides of a contradiction. Its default values "no" and 1 are ignored.
"""

import os

from t5suite.base.errors import ConfigError
from t5suite.training.sharding.deepspeed import agree, is_given, note_compiling, read_deepspeed
from t5suite.training.sharding.process_state import leave_group_at_exit, prepare_for_deepspeed, start_deepspeed

# Environment variables that `accelerate launch` sets.
PRECISION = "ACCELERATE_MIXED_PRECISION"
ACCUMULATION = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"
DEEPSPEED = "ACCELERATE_USE_DEEPSPEED"
DEEPSPEED_FILE = "ACCELERATE_DEEPSPEED_CONFIG_FILE"
FSDP = "ACCELERATE_USE_FSDP"
TRUE = ("1", "true", "yes", "on", "y", "t")


def resolve_sharding(args) -> None:
    """Replaces `--deepspeed` by the configuration itself, from any source; flags at their defaults get its values.

    Raises:
      ConfigError: two sources contradict each other (it names both), or settings lack what they belong to.
    """
    if str(args.fsdp).lower() in ("true", "false", ""):
        args.fsdp = str(args.fsdp).lower() == "true" or None
    adopt_accelerate_settings(args)
    _check_fsdp_config(args)
    if args.use_cpu:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # DeepSpeed reads it when imported
    if args.deepspeed or is_set(DEEPSPEED):
        prepare_for_deepspeed()
    choice, source = deepspeed_of_environment(args.deepspeed) or (args.deepspeed, "--deepspeed")
    if not choice:
        if args.deepspeed_overrides:
            raise ConfigError(f"--deepspeed_overrides {args.deepspeed_overrides}: there is no --deepspeed to change")
        return
    config, source = read_deepspeed(choice, args.deepspeed_overrides, source)
    if args.fsdp:
        raise ConfigError(f"--fsdp and {source} exclude each other; leave one of them out")
    if args.clip_grad_value is not None:
        raise ConfigError(f"--clip_grad_value does not work with DeepSpeed ({source}); use --max_grad_norm")
    agree(config, source, args)
    args.deepspeed = config
    args.deepspeed_overrides = None
    args.deepspeed_source = source


def begin_sharding(args) -> None:
    """Initializes DeepSpeed's process group before a model is created, and leaves gloo's group when the process exits.

    Raises:
      ConfigError: the file's total batch size differs from the flags', or FSDP version 1 is requested.
    """
    leave_group_at_exit()
    if (args.fsdp_plugin_args or {}).get("fsdp_version", 2) != 2:
        raise ConfigError("--fsdp_config: only version 2 is supported (FSDP2); leave its version out")
    if not args.deepspeed:
        return
    size_in_file = args.deepspeed.get("train_batch_size", "auto")
    size = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    if size_in_file not in ("auto", size):
        raise ConfigError(
            f"{args.deepspeed_source}: train_batch_size is {size_in_file}, and --per_device_train_batch_size "
            f"{args.per_device_train_batch_size} x --gradient_accumulation_steps {args.gradient_accumulation_steps} x "
            f'{args.world_size} processes are {size}; write "auto" there'
        )
    note_compiling(args.deepspeed, args.use_cpu, os.environ)
    start_deepspeed()


def is_set(name: str) -> bool:
    """Whether an environment variable is set to a true value."""
    return os.environ.get(name, "").lower() in TRUE


def adopt_accelerate_settings(args) -> None:
    """Takes precision and accumulation from the environment, in place; checks that FSDP is set once, as version 2.

    Raises:
      ConfigError: a flag contradicts it (it names both), or a setting is not supported.
    """
    _adopt_precision(args)
    _adopt_accumulation(args)
    if is_set(FSDP):
        _check_fsdp(args)
        # Otherwise only one rank would load the weights at first, but all ranks read them before training (as under
        # ZeRO-3, `process_state.start_deepspeed`).
        os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"


def _adopt_precision(args) -> None:
    precision = os.environ.get(PRECISION, "no").lower()
    if precision == "no":
        return
    if precision not in ("fp16", "bf16"):
        raise ConfigError(f"{PRECISION}={precision} (accelerate's configuration): choose no or bf16 (fp16 at own risk)")
    contrary_flag = "bf16" if precision == "fp16" else "fp16"
    if getattr(args, contrary_flag):
        raise ConfigError(
            f"--{contrary_flag} and {PRECISION}={precision} (accelerate's configuration) ask for different "
            "precisions; leave one of them out"
        )
    setattr(args, precision, True)


def _adopt_accumulation(args) -> None:
    steps = os.environ.get(ACCUMULATION, "")
    if steps.isdigit() and int(steps) > 1 and int(steps) != args.gradient_accumulation_steps:
        if is_given(args, "gradient_accumulation_steps"):
            raise ConfigError(
                f"--gradient_accumulation_steps {args.gradient_accumulation_steps} and {ACCUMULATION}={steps} "
                "(accelerate's configuration) differ; leave one of them out"
            )
        args.gradient_accumulation_steps = int(steps)


def _check_fsdp(args) -> None:
    """Refuses FSDP that is configured twice, beside DeepSpeed, or in a version or form that is not supported."""
    source = f"accelerate's configuration ({FSDP}=true)"
    if args.fsdp:
        raise ConfigError(f"--fsdp and {source} both configure FSDP; leave one of them out")
    if args.deepspeed or is_set(DEEPSPEED):
        raise ConfigError(f"DeepSpeed and {source} exclude each other; leave one of them out")
    version = os.environ.get("FSDP_VERSION", "1")
    if version != "2":
        raise ConfigError(f"{source}: fsdp_version is {version}; only FSDP2 is supported: write fsdp_version: 2")
    for name in ("TP", "CP", "SP"):
        size = os.environ.get(f"PARALLELISM_CONFIG_{name}_SIZE", "1")
        if size != "1":
            raise ConfigError(
                f"{source}: parallelism_config_{name.lower()}_size is {size}; only dp_ sizes may exceed 1"
            )


def _check_fsdp_config(args) -> None:
    """Refuses settings of an FSDP that no flag asks for: transformers reads them with `--fsdp` alone."""
    if not args.fsdp_config or args.fsdp:
        return
    if is_set(FSDP):
        raise ConfigError(
            f"--fsdp_config: accelerate's configuration ({FSDP}=true) has the settings of FSDP; change them there"
        )
    raise ConfigError(f"--fsdp_config {args.fsdp_config!s:.200}: there is no --fsdp True to change")


def deepspeed_of_environment(flag_value) -> tuple[dict, str] | None:
    """`(configuration, its name in messages)` if accelerate is configured to use DeepSpeed, else None.

    Args:
      flag_value: `--deepspeed`.

    Raises:
      ConfigError: both are set.
    """
    if not is_set(DEEPSPEED):
        return None
    file = os.environ.get(DEEPSPEED_FILE, "none")
    source = f"{file} ({DEEPSPEED_FILE})" if file != "none" else f"accelerate's configuration ({DEEPSPEED}=true)"
    if flag_value:
        raise ConfigError(f"--deepspeed and {source} both configure DeepSpeed; leave one of them out")
    if file != "none":
        return read_deepspeed(file)[0], source
    from accelerate.utils import DeepSpeedPlugin

    config = DeepSpeedPlugin().deepspeed_config
    # Else accelerate would treat the merged configuration as a file that conflicts with these variables.
    os.environ["ACCELERATE_CONFIG_DS_FIELDS"] = ""
    # accelerate sets it to infinity to silence a report; JSON, and so our manifest, has no infinity.
    return {key: value for key, value in config.items() if key != "steps_per_print"}, source

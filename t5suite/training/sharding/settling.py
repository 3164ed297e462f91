"""The flags of sharded training, settled before and after Hugging Face's training arguments look at them.

>>> config = settle_sharding(args)         # before: one DeepSpeed configuration or None, whoever gave it
>>> begin_sharding(args)                   # after: ranks are known
"""

import os

from t5suite.base.errors import ConfigError
from t5suite.training.sharding.accelerate_settings import (
    DEEPSPEED,
    adopt_accelerate_settings,
    deepspeed_of_environment,
    is_set,
)
from t5suite.training.sharding.deepspeed_files import check_keys, parse_overrides, read_deepspeed, set_key
from t5suite.training.sharding.deepspeed_flags import agree, check_train_batch_size
from t5suite.training.sharding.process_state import prepare_for_deepspeed, start_deepspeed


def settle_sharding(args) -> None:
    """`--deepspeed` becomes the configuration itself, wherever it came from; flags take over what it alone says.

    Raises:
      ConfigError: two sources contradict each other; both are named.
    """
    if str(args.fsdp).lower() in ("true", "false", ""):
        args.fsdp = str(args.fsdp).lower() == "true" or None
    adopt_accelerate_settings(args)
    if args.use_cpu:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # which DeepSpeed reads when it is imported
    if args.deepspeed or is_set(DEEPSPEED):
        prepare_for_deepspeed()
    found = deepspeed_of_environment(args.deepspeed)
    if found:
        config, source = found
        for path, value in parse_overrides(args.deepspeed_overrides).items() if args.deepspeed_overrides else ():
            set_key(config, path, value)
        check_keys(config, source)
    elif args.deepspeed:
        config, source = read_deepspeed(args.deepspeed, args.deepspeed_overrides)
    elif args.deepspeed_overrides:
        raise ConfigError(f"--deepspeed_overrides {args.deepspeed_overrides}: there is no --deepspeed to change")
    else:
        return
    if args.fsdp:
        raise ConfigError(f"--fsdp and {source} exclude each other; leave one of them out")
    if args.clip_grad_value is not None:
        raise ConfigError(f"--clip_grad_value has no hold on DeepSpeed's gradients ({source}); use --max_grad_norm")
    agree(config, source, args)
    args.deepspeed, args.deepspeed_overrides, args.deepspeed_source = config, None, source


def begin_sharding(args) -> None:
    """DeepSpeed learns of the ranks before a model is made.

    Raises:
      ConfigError: the file's whole batch is another than the flags'; or FSDP's first version is asked for.
    """
    if (args.fsdp_plugin_args or {}).get("fsdp_version", 2) != 2:
        raise ConfigError("--fsdp_config: only version 2 is supported (FSDP2); leave its version out")
    if not args.deepspeed:
        return
    check_train_batch_size(args.deepspeed, args.deepspeed_source, args)
    start_deepspeed()

"""The flags of optimizer and schedule -> the two objects that the trainer steps.

    >>> optimizer = build_optimizer(args, model)
    >>> scheduler = build_scheduler(args, optimizer, num_training_steps=1000)

Only for `--optimizer` and `--schedule` of our own tables; for Hugging Face's names the trainer builds both itself.
"""

import inspect
import logging
import typing

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers.optimization import TYPE_TO_SCHEDULER_FUNCTION
from transformers.trainer_utils import SchedulerType
from transformers.training_args import OptimizerNames

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import find
from t5suite.base.script_flags import flags_needing
from t5suite.optim.optimizers import NEED_WHOLE_TENSORS, OPTIMIZERS, is_adam, make_optimizer
from t5suite.optim.schedulers import make_scheduler
from t5suite.optim.schedules import SCHEDULES, has_warmup, schedule_settings
from t5suite.optim.settings import (
    check_library,
    check_optim_args,
    parse_settings,
    read_value,
    setting_types,
    settings_for,
    typed_settings,
)
from t5suite.training.sharding.deepspeed import is_given

logger = logging.getLogger(__name__)

# For Hugging Face's schedules that watch evaluations. Our number is better when higher and often negative, while their
# defaults are for losses and for relative changes.
WATCHING = {"mode": "max", "threshold_mode": "abs"}
GIVEN_BY_THE_TRAINER = ("optimizer", "num_warmup_steps", "num_training_steps", "last_epoch")
# Schedules that set absolute learning rates: `--learning_rate` should be 1.0.
ABSOLUTE_RATES = ("inverse_sqrt_t5", "relative_step")


def resolve_names(args) -> None:
    """Moves Hugging Face's names from our flags to theirs; checks names and settings.

    `--optimizer adamw_torch_fused` means `--optim adamw_torch_fused`; if both tables have a name, ours wins.

    Raises:
      ConfigError: a name, setting or value that neither has.
    """
    args.optimizer, args.optim = _ours_or_theirs(args.optimizer, args.optim, OPTIMIZERS, OptimizerNames, "optimizer")
    args.schedule, args.lr_scheduler_type = _ours_or_theirs(
        args.schedule, args.lr_scheduler_type, SCHEDULES, SchedulerType, "schedule"
    )
    if args.optimizer is not None:
        settings_for(OPTIMIZERS[args.optimizer], args.optim_args, "--optim_args")
    else:
        theirs = getattr(args.optim, "value", args.optim)
        check_library(theirs)
        check_optim_args(theirs, args.optim_args)
    given = args.lr_scheduler_kwargs
    if isinstance(given, str) and not given.lstrip().startswith("{"):
        pairs = parse_settings(given, "--lr_scheduler_kwargs")
        args.lr_scheduler_kwargs = {name: read_value(value) for name, value in pairs.items()}


def check_schedule(args) -> None:
    """Refuses settings that the schedule does not have, and a schedule that waits for evaluations that never come."""
    watches = args.schedule == "plateau"
    if args.schedule is not None:
        schedule_settings(args.schedule, args.lr_scheduler_kwargs, args.learning_rate)
    else:
        kind = SchedulerType(args.lr_scheduler_type)
        watches = kind in (SchedulerType.REDUCE_ON_PLATEAU, SchedulerType.GREEDY)
        function = TYPE_TO_SCHEDULER_FUNCTION[kind]
        parameters, hints = inspect.signature(function).parameters, typing.get_type_hints(function)
        known = {name: hints.get(name, bool | float | str) for name in parameters if name not in GIVEN_BY_THE_TRAINER}
        if not any(spec.kind is spec.VAR_KEYWORD for spec in parameters.values()):
            owner = f"{kind.value} (--lr_scheduler_type; ours are behind --schedule)"
            typed_settings(known, owner, args.lr_scheduler_kwargs, "--lr_scheduler_kwargs")
        if watches:
            args.lr_scheduler_kwargs = {**WATCHING, **(args.lr_scheduler_kwargs or {})}
    if watches and args.eval_strategy.value == "no":
        raise ConfigError("this schedule follows the evaluations, and --eval_strategy no makes none; choose steps")


def build_optimizer(args, model) -> torch.optim.Optimizer:
    """The optimizer `--optimizer` with `--learning_rate`, `--weight_decay`, `--adam_*` and `--optim_args`."""
    name = args.optimizer
    defaults = {"weight_decay": args.weight_decay}
    if is_adam(name):
        defaults["betas"] = (args.adam_beta1, args.adam_beta2)
        if is_given(args, "adam_epsilon"):  # ours have their own eps
            defaults["eps"] = args.adam_epsilon
    idle = {"optim", *(() if is_adam(name) else flags_needing("Adam"))}
    idle |= {"weight_decay"} - setting_types(OPTIMIZERS[name]).keys()
    for flag in sorted(idle):
        if is_given(args, flag):
            logger.warning("--%s has no effect: --optimizer %s does not use it; see --optim_args", flag, name)
    return make_optimizer(name, model, args.learning_rate, args.optim_args, defaults)


def warn_of_endless_warmup(args, num_training_steps: int) -> None:
    """Logs that a run ends before its learning rate is reached."""
    name = args.schedule or str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    if name in SCHEDULES and not has_warmup(name):
        return
    warmup_steps = args.get_warmup_steps(num_training_steps)
    if is_given(args, "warmup_steps") and warmup_steps >= num_training_steps > 0:
        logger.warning(
            "--warmup_steps %d of %d updates: the run ends before the learning rate is reached",
            warmup_steps,
            num_training_steps,
        )


def build_scheduler(args, optimizer, num_training_steps: int) -> LambdaLR:
    """The scheduler of `--schedule` with `--warmup_steps` and `--lr_scheduler_kwargs`."""
    name, settings = args.schedule, {}
    if sets_its_own_rates(optimizer):
        for flag in ("schedule", "learning_rate", "lr_scheduler_kwargs"):
            if is_given(args, flag):
                logger.warning("--%s has no effect: --optim_args relative_step=True sets its own rates", flag)
        name, settings = "relative_step", {"warmup_init": optimizer.param_groups[0]["warmup_init"]}
    else:
        if is_given(args, "lr_scheduler_type"):
            logger.warning("--lr_scheduler_type has no effect with --schedule %s", name)
        settings = schedule_settings(name, args.lr_scheduler_kwargs, args.learning_rate)
        if name in ABSOLUTE_RATES and args.learning_rate != 1.0:
            logger.warning(
                "--schedule %s sets absolute learning rates (--learning_rate 1.0); here they are multiplied by %s",
                name,
                args.learning_rate,
            )
    if is_given(args, "warmup_steps") and not has_warmup(name):
        logger.warning("--warmup_steps has no effect: --schedule %s does not use it", name)
    return make_scheduler(optimizer, name, num_training_steps, args.get_warmup_steps(num_training_steps), settings)


def sets_its_own_rates(optimizer) -> bool:
    """Whether this is Adafactor with relative steps, which follows no schedule."""
    groups = getattr(optimizer, "param_groups", None)  # DeepSpeed's placeholder has none
    return bool(groups and groups[0].get("relative_step"))


# Prefixes of Hugging Face's names for optimizers that need whole tensors.
THEIRS_NEED_WHOLE_TENSORS = ("adafactor", "galore", "apollo", "stable_adamw", "lomo", "adalomo", "grokadamw")


def check_parallelism(name: str | None, accelerator, optim=None) -> None:
    """Refuses optimizers that need whole tensors if ZeRO or FSDP shards them.

    Args:
      optim: `--optim`, which applies without `--optimizer`.
    """
    kind = accelerator.distributed_type.value
    theirs = str(getattr(optim, "value", optim))
    if name is None and theirs.startswith(THEIRS_NEED_WHOLE_TENSORS):
        name = theirs
    elif name not in NEED_WHOLE_TENSORS:
        return
    if kind in ("DEEPSPEED", "FSDP"):
        raise ConfigError(
            f"--optimizer {name} works on whole tensors (their RMS, rows or singular values), and {kind} gives it "
            "pieces; choose --optimizer adamw, or train without sharding"
        )


def _ours_or_theirs(name, theirs, table, names, what: str):
    """`(our name or None, Hugging Face's name)` for the value of `--optimizer` or `--schedule`."""
    if name is None:
        return None, theirs
    hugging_face = [member.value for member in names]
    if name in table or name not in hugging_face:
        find(name, {**dict.fromkeys(hugging_face), **table}, what, where=f"--{what}")
        return name, theirs
    return None, name

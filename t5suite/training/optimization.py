"""The flags of optimizer and schedule -> settings of the optimizer, and the schedule.

    >>> optimizer_defaults(args)
    {'weight_decay': 0.01, 'betas': (0.9, 0.999)}
    >>> scheduler = build_scheduler(args, optimizer, num_training_steps=1000)

Only for `--optimizer` and `--schedule` of our own tables; for Hugging Face's names the trainer builds both itself.
"""

import inspect
import logging
import math
import typing

import torch
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau
from transformers import Trainer, get_scheduler
from transformers.optimization import TYPE_TO_SCHEDULER_FUNCTION, GreedyLR
from transformers.trainer_utils import SchedulerType
from transformers.training_args import OptimizerNames

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import find
from t5suite.base.script_flags import flags_needing
from t5suite.optim.optimizers import NEED_WHOLE_TENSORS, OPTIMIZERS, is_adam
from t5suite.optim.schedulers import PlateauLR, make_scheduler
from t5suite.optim.schedules import SCHEDULES, has_warmup, schedule_settings
from t5suite.optim.settings import (
    check_fits,
    check_library,
    check_optim_args,
    parse_settings,
    read_value,
    refused_optimizers,
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
# Hugging Face's schedules that follow the scores of evaluations.
FOLLOWING_EVALUATIONS = (SchedulerType.REDUCE_ON_PLATEAU, SchedulerType.GREEDY)
# Those without a warm-up.
THEIRS_WITHOUT_WARMUP = (SchedulerType.CONSTANT, *FOLLOWING_EVALUATIONS)
# Schedules that set absolute learning rates: `--learning_rate` should be 1.0.
ABSOLUTE_RATES = ("inverse_sqrt_t5", "relative_step")
# Prefixes of Hugging Face's names for optimizers that need whole tensors.
THEIRS_NEED_WHOLE_TENSORS = ("adafactor", "stable_adamw", "grokadamw")
# Prefixes of Hugging Face's names for optimizers that read no --adam_* flag (transformers 5.23, trainer_optimizer.py).
THEIRS_WITHOUT_ADAM = ("adafactor", "adagrad", "grokadamw", "rmsprop", "sgd")
# Hugging Face's names of torch's optimizers that have settings.
TORCH_OPTIMIZERS_WITH_SETTINGS = (OptimizerNames.SGD, OptimizerNames.ADAGRAD, OptimizerNames.RMSPROP)
# Updates of the schedule that is made only to see whether its settings are complete.
STEPS_OF_TRIAL = 1000


def sort_out_names(args) -> None:
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
        hugging_face_name = getattr(args.optim, "value", args.optim)
        check_fits(hugging_face_name)
        check_library(hugging_face_name)
        check_optim_args(hugging_face_name, args.optim_args)
    settings = args.lr_scheduler_kwargs
    if isinstance(settings, str) and not settings.lstrip().startswith("{"):
        pairs = parse_settings(settings, "--lr_scheduler_kwargs")
        args.lr_scheduler_kwargs = {name: read_value(value) for name, value in pairs.items()}


def try_hugging_face_optimizer(args) -> None:
    """Refuses `--optim_args` of which torch makes no optimizer: a run would only see it once the model is loaded.

    Raises:
      ConfigError: with what torch says.
    """
    if args.optimizer is not None or args.optim not in TORCH_OPTIMIZERS_WITH_SETTINGS or not args.optim_args:
        return
    optimizer_class, settings = Trainer.get_optimizer_cls_and_kwargs(args)
    try:
        optimizer_class([torch.nn.Parameter(torch.zeros(1))], **settings)
    except ValueError as error:
        raise ConfigError(f"--optim {args.optim.value} with --optim_args {args.optim_args}: {error}") from None


def check_schedule(args) -> None:
    """Refuses settings that a schedule does not have or lacks, and one that follows evaluations where none are made."""
    if args.schedule is not None:
        schedule_settings(args.schedule, args.lr_scheduler_kwargs, args.learning_rate)
    else:
        kind = SchedulerType(args.lr_scheduler_type)
        if follows_evaluations(args):
            args.lr_scheduler_kwargs = {**WATCHING, **(args.lr_scheduler_kwargs or {})}
            _check_mode(kind, args.lr_scheduler_kwargs["mode"])
        check_hugging_face_settings(kind, args.lr_scheduler_kwargs, args.learning_rate)
    if follows_evaluations(args) and args.eval_strategy.value == "no":
        raise ConfigError("this schedule follows the evaluations, and --eval_strategy no makes none; choose steps")


def _check_mode(kind: SchedulerType, mode) -> None:
    """Refuses a schedule that takes lower scores for better ones: of a loss, ours is the negative."""
    if mode != WATCHING["mode"]:
        raise ConfigError(
            f"--lr_scheduler_kwargs mode={mode}: the score that {kind.value} follows is better when higher, also for "
            "--metric_for_best_model loss, whose negative it is; leave mode out"
        )


def follows_evaluations(args) -> bool:
    """Whether the learning rate depends on the scores of evaluations."""
    if args.schedule is not None:
        return args.schedule == "plateau"
    return SchedulerType(args.lr_scheduler_type) in FOLLOWING_EVALUATIONS


def check_hugging_face_settings(kind: SchedulerType, settings: dict | None, learning_rate: float) -> None:
    """Refuses `--lr_scheduler_kwargs` of which transformers makes no schedule: a run would only see it once it trains.

    Raises:
      ConfigError: a setting that the schedule does not have, as far as its signature says; else with what transformers
        says.
    """
    function = TYPE_TO_SCHEDULER_FUNCTION[kind]
    parameters = inspect.signature(function).parameters
    if not any(spec.kind is spec.VAR_KEYWORD for spec in parameters.values()):
        hints = typing.get_type_hints(function)
        types = {name: hints.get(name, bool | float | str) for name in parameters if name not in GIVEN_BY_THE_TRAINER}
        owner = f"{kind.value} (--lr_scheduler_type; ours are behind --schedule)"
        typed_settings(types, owner, settings, "--lr_scheduler_kwargs")
        if not types:  # there is nothing to try
            return
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))]} for _ in range(2)]  # with weight decay, and without
    optimizer = torch.optim.SGD(groups, lr=learning_rate)
    try:
        get_scheduler(kind, optimizer, 0, STEPS_OF_TRIAL, settings)
    except (TypeError, ValueError, ZeroDivisionError) as error:
        settings_text = f"with --lr_scheduler_kwargs {settings}" if settings else "without --lr_scheduler_kwargs"
        raise ConfigError(f"--lr_scheduler_type {kind.value} {settings_text}: {error}") from None


def warn_of_idle_adam_flags(args) -> None:
    """Warns of `--adam_*` flags that Hugging Face's `--optim` does not read."""
    name = getattr(args.optim, "value", args.optim)
    idle_flags = ()
    if name.startswith(THEIRS_WITHOUT_ADAM):
        idle_flags = flags_needing("Adam")
    elif "lion" in name:
        idle_flags = ("adam_epsilon",)
    for flag in idle_flags:
        if is_given(args, flag):
            logger.warning("--%s has no effect: --optim %s does not use it; see --optim_args", flag, name)


def optimizer_defaults(args) -> dict:
    """The settings that `--weight_decay` and `--adam_*` give to `--optimizer`; warns of flags that it does not use."""
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
    return defaults


def warn_of_endless_warmup(args, num_training_steps: int) -> None:
    """Logs that a run ends before its learning rate is reached."""
    if args.schedule is None:
        warms_up = args.lr_scheduler_type not in THEIRS_WITHOUT_WARMUP
    else:
        warms_up = has_warmup(args.schedule)
    if not warms_up:
        return
    warmup_steps = args.get_warmup_steps(num_training_steps)
    if is_given(args, "warmup_steps") and warmup_steps >= num_training_steps > 0:
        logger.warning(
            "--warmup_steps %d of %d updates: the run ends before the learning rate is reached",
            warmup_steps,
            num_training_steps,
        )


def warn_of_idle_warmup(args) -> None:
    """Warns of `--warmup_steps` where Hugging Face's schedule has no warm-up."""
    if is_given(args, "warmup_steps") and args.lr_scheduler_type in THEIRS_WITHOUT_WARMUP:
        kind = SchedulerType(args.lr_scheduler_type).value
        logger.warning("--warmup_steps has no effect: --lr_scheduler_type %s does not use it", kind)


def build_scheduler(args, optimizer, num_training_steps: int) -> LambdaLR:
    """The scheduler of `--schedule` with `--warmup_steps` and `--lr_scheduler_kwargs`."""
    if sets_its_own_rates(optimizer):
        name = "relative_step"
        settings = {"warmup_init": optimizer.param_groups[0]["warmup_init"]}
        warn_of_relative_steps(args)
    else:
        name = args.schedule
        settings = schedule_settings(name, args.lr_scheduler_kwargs, args.learning_rate)
        warn_of_rates(args)
    if is_given(args, "warmup_steps") and not has_warmup(name):
        logger.warning("--warmup_steps has no effect: --schedule %s does not use it", name)
    return make_scheduler(optimizer, name, num_training_steps, args.get_warmup_steps(num_training_steps), settings)


def forget_scores(lr_scheduler) -> None:
    """Has a schedule that watches evaluations compare with no value before the next one; others compare none."""
    if isinstance(lr_scheduler, PlateauLR):
        lr_scheduler.forget_best()
    elif isinstance(lr_scheduler, (ReduceLROnPlateau, GreedyLR)):
        lr_scheduler.best = -math.inf if lr_scheduler.mode == "max" else math.inf
        lr_scheduler.num_bad_epochs = 0
        if isinstance(lr_scheduler, GreedyLR):
            lr_scheduler.num_good_epochs = 0


def warn_of_relative_steps(args) -> None:
    """Warns of flags that have no effect where Adafactor sets the learning rates."""
    for flag in ("schedule", "learning_rate", "lr_scheduler_kwargs"):
        if is_given(args, flag):
            logger.warning("--%s has no effect: --optim_args relative_step=True sets its own rates", flag)


def warn_of_rates(args) -> None:
    """Warns of flags that do not go well with a schedule of our table."""
    if is_given(args, "lr_scheduler_type"):
        logger.warning("--lr_scheduler_type has no effect with --schedule %s", args.schedule)
    if args.schedule in ABSOLUTE_RATES and args.learning_rate != 1.0:
        logger.warning(
            "--schedule %s sets absolute learning rates (--learning_rate 1.0); here they are multiplied by %s",
            args.schedule,
            args.learning_rate,
        )


def sets_its_own_rates(optimizer) -> bool:
    """Whether this is Adafactor with relative steps, which follows no schedule."""
    groups = getattr(optimizer, "param_groups", None)  # DeepSpeed's placeholder has none
    return bool(groups and groups[0].get("relative_step"))


def check_parallelism(name: str | None, accelerator, optim=None) -> None:
    """Refuses optimizers that need whole tensors if ZeRO or FSDP shards them.

    Args:
      optim: `--optim`, which applies without `--optimizer`.
    """
    kind = accelerator.distributed_type.value
    hugging_face_name = str(getattr(optim, "value", optim))
    if name is None and hugging_face_name.startswith(THEIRS_NEED_WHOLE_TENSORS):
        name = hugging_face_name
    elif name not in NEED_WHOLE_TENSORS:
        return
    if kind in ("DEEPSPEED", "FSDP"):
        raise ConfigError(
            f"--optimizer {name} works on whole tensors (their RMS, rows or singular values), and {kind} gives it "
            "pieces; choose --optimizer adamw, or train without sharding"
        )


def _ours_or_theirs(name, hugging_face_name, table, names, flag: str):
    """`(our name or None, Hugging Face's name)` for the value of `--optimizer` or `--schedule`."""
    if name is None:
        return None, hugging_face_name
    hugging_face_names = [member.value for member in names]
    if name in table or name not in hugging_face_names:
        fit_names = [fit_name for fit_name in hugging_face_names if fit_name not in refused_optimizers()]
        find(name, {**dict.fromkeys(fit_names), **table}, flag, where=f"--{flag}")
        return name, hugging_face_name
    return None, name

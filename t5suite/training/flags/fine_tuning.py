"""The flags of the entry scripts, as dataclasses.

    >>> arguments = FineTuningArguments(*parse_arguments(FINE_TUNING_ARGUMENTS, ["--benchmark", "glue"]))
    >>> arguments.data.benchmark
    'glue'

All fields of Hugging Face's `Seq2SeqTrainingArguments` are flags too, with the same names; if a default differs,
the field is redefined here. Every flag has a default.
"""

import logging
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from transformers import Seq2SeqTrainingArguments
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from t5suite.base.errors import ConfigError
from t5suite.base.model_files import check_model_files
from t5suite.base.reference_code import FAST_PATHS, reference_code
from t5suite.base.yaml_files import read_json_text
from t5suite.models.placement import APPLE_GPU_IS_IDLE, has_accelerator
from t5suite.optim.schedules import SCHEDULES
from t5suite.tracking.trackers import AIM_REPO, tracker_names
from t5suite.training.checkpoints.starts import parse_reset
from t5suite.training.flags.adapters import AdapterArguments
from t5suite.training.flags.data import DataArguments, DataFormatArguments, InstructionArguments
from t5suite.training.flags.fields import facts, flag
from t5suite.training.flags.model import ModelArguments
from t5suite.training.flags.plug_ins import PlugInArguments
from t5suite.training.monitoring.profiling import ProfileCallback, parse_steps
from t5suite.training.optimization import check_schedule, sort_out_names, try_hugging_face_optimizer
from t5suite.training.processes.ranks import check_meeting_place
from t5suite.training.sharding.settings import begin_sharding, resolve_sharding

logger = logging.getLogger(__name__)
# The default of --per_device_eval_batch_size when rows are counted.
EVAL_ROWS = 64
# Of `torch.compile`, which looks at the name when the first batch is compiled.
COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
# Advice, by a part of transformers' message.
ADVICE = {
    "requires Ampere": "; leave --tf32 out here (t5suite doctor shows what torch sees)",
    "one of fp16 and bf16": "; leave --fp16 out: --bf16 has float32's range",
}


@dataclass
class ModeArguments:
    """Flags of both scripts: evaluation only, and resuming."""

    eval_only: bool = flag(False, "Score the model without training it.", "common apart", theme="evaluation")
    resume: str = flag("auto", "auto: newest checkpoint; none: fresh; or a path.", "common fresh", theme="resuming")


@dataclass
class TrackingArguments:
    """What is sent to trackers, shown on the terminal, and measured."""

    shared_facts = facts(theme="tracking")

    wandb_project: str | None = flag(
        None, "Project in W&B and Trackio. Default: $WANDB_PROJECT, else t5suite.", needs="a tracker"
    )
    aim_repo: str = flag(AIM_REPO, "Aim's repository, a folder for all runs.", needs="Aim")
    experiment_name: str | None = flag(
        None, "Aim's (and MLflow's) experiment. Default: --wandb_project, else t5suite.", needs="a tracker"
    )
    num_samples: int = flag(8, "Answers of a task kept at each evaluation; 0: none.", bounds="[0, inf) rows")
    profile: str | None = flag(
        None, "Steps FIRST:LAST, such as 10:12, of which a trace and a memory snapshot are written.", needs="training"
    )


def add_profile(trainer, directory) -> None:
    """Adds the callback of `--profile` if it is given; on every rank."""
    if trainer.args.profile is not None:
        trainer.add_callback(ProfileCallback(trainer.args.profile, directory, trainer.args.process_index))


@dataclass
class EvaluationArguments(ModeArguments):
    """What is evaluated, and how."""

    shared_facts = facts(theme="evaluation")

    eval_method: Literal["generate", "score", "loss"] = flag(
        "generate",
        "Generate answers, score label candidates, or the loss alone.",
        "common report",
        needs="evaluation, a choice of method",
    )
    select: Literal["average", "per_task"] = flag(
        "average", "Results at the best average, or each task's own best step.", needs="training, several tasks"
    )
    early_stopping_patience: int | None = flag(
        None,
        "Evaluations without improvement before training stops.",
        "common",
        bounds="[1, inf) evaluations",
        needs="training",
    )
    predict_only: bool = flag(False, "Only predict test splits.", "apart", python="call tuner.evaluate(split='test')")
    eval_checkpoints: Literal["none", "all"] = flag(
        "none", "all: a table of every checkpoint's scores.", "apart fresh", change="nothing", python="a FineTuner each"
    )
    dry_run: bool = flag(False, "Show settings and steps.", "common fresh", change="nothing", python="tuner.summary()")
    share_rows: bool = flag(
        False,
        "Keep the scored rows of your own in rows/; --push_to_hub uploads them, with their answers.",
        theme="output",
        change="nothing",
    )


@dataclass
class DistillationArguments:
    """Knowledge distillation from a teacher model."""

    shared_facts = facts(theme="training", needs="training")

    teacher: str | None = flag(None, "A model to learn from besides the targets: a folder or hub name.", "report")
    distillation_alpha: float = flag(
        0.5, "The teacher's share of the loss; the targets have the rest.", "report", bounds="(0, 1] a share"
    )
    distillation_temperature: float = flag(
        2.0, "Of both models' softmax in the teacher's part.", "report", bounds="(0, inf) a number"
    )

    def __post_init__(self):
        for name in ("distillation_alpha", "distillation_temperature"):
            if self.teacher is None and getattr(self, name) != self.__dataclass_fields__[name].default:
                raise ConfigError(f"--{name} {getattr(self, name)}: it belongs to --teacher, which is not given")
        if self.teacher is not None:
            check_model_files("--teacher", self.teacher)


@dataclass
class UpdateArguments:
    """How weights are updated, and when training ends."""

    shared_facts = facts(theme="training", needs="training")

    learning_rate: float = flag(5e-4, "For T5 1e-4 to 1e-3.", "common report", bounds="[0, inf) a rate")
    per_device_train_batch_size: int = flag(
        32, "Examples of a device's batch.", "common report", bounds="[1, inf) examples", change="layout"
    )
    optimizer: str | None = flag(None, "adamw, adamw_rms, adafactor (T5's), or one of --optim.", "common report")
    schedule: str | None = flag(None, f"{', '.join(SCHEDULES)}, or a name of --lr_scheduler_type.", "common report")
    clip_grad_value: float | None = flag(
        None, "Clip each gradient element to +-this, after --max_grad_norm.", bounds="(0, inf) a number"
    )
    max_minutes: float | None = flag(
        None, "Train at most so long, restarts included, then finish.", bounds="(0, inf) minutes", change="length"
    )
    max_skipped_updates: int = flag(
        3, "Non-finite updates in a row before training stops.", bounds="[1, inf) updates", change="nothing"
    )
    loss_spikes: Literal["log", "skip", "off"] = flag("log", "Loss spikes: log them, or skip their updates.")
    z_loss: float = flag(
        0.0, "Weight of log(Z)^2 (T5: 1e-4).", "report", bounds="[0, inf) a number", needs="training, a loss of tokens"
    )


@dataclass
class ResumingArguments:
    """What a run resumes from, and what may differ."""

    shared_facts = facts(theme="resuming", marks="fresh", needs="training")

    reset: str | None = flag(None, "Of the --resume checkpoint, drop any of optimizer,schedule,step,data.")
    extend: bool = flag(False, "Continue the run of --output_dir with more steps, epochs or minutes.")
    overwrite_output_dir: bool = flag(False, "Move another run aside to DIR.old-1, begin anew.", "common fresh")
    allow_changed: str | None = flag(None, "Settings (or data) that may differ on resuming: 'learning_rate,data'.")
    trust_checkpoint: bool = flag(False, "Take a DeepSpeed checkpoint without a manifest: it can run code.")


@dataclass
class SpeedArguments:
    """Flags that make steps faster or save memory."""

    shared_facts = facts(theme="speed")

    reference_code: str | None = flag(
        None,
        f"Plain code in place of fast paths: all, or some of {','.join(FAST_PATHS)}.",
        needs="fast paths",
    )
    allow_untested_libraries: bool = flag(
        False, "Use code that was not tested with the installed versions of libraries."
    )


@dataclass
class SelectionArguments:
    """Evaluation batch sizes, when to evaluate, and model selection."""

    shared_facts = facts(theme="evaluation")

    per_device_eval_batch_size: int | None = flag(
        None, "Rows evaluated at once. Default: by tokens, or 64.", bounds="[1, inf) examples", needs="evaluation"
    )
    eval_strategy: IntervalStrategy | str = flag("epoch", "no, steps or epoch.", "common")
    load_best_model_at_end: bool = flag(True, "End with the best checkpoint, not the last.")
    metric_for_best_model: str | None = flag(None, "Default: the task's own, or average.", "common")


@dataclass
class OutputArguments:
    """What is written, and which checkpoints are kept."""

    shared_facts = facts(theme="output", change="nothing")

    output_dir: str | None = flag(
        None,
        "The run's directory. Default: runs/BENCHMARK-TASK-MODEL, or runs/FILE-MODEL for your own data.",
        "common intro",
    )
    save_total_limit: int | None = flag(2, "Checkpoints kept, with the best.", "common", bounds="[1, inf) checkpoints")
    keep_every: int | None = flag(None, "Keep checkpoints at multiples of this step, too.", bounds="[1, inf) updates")


@dataclass
class SuiteTrainingArguments(
    UpdateArguments,
    SelectionArguments,
    OutputArguments,
    ResumingArguments,
    TrackingArguments,
    SpeedArguments,
    Seq2SeqTrainingArguments,
):
    """Hugging Face's training arguments, with defaults that suit T5's fine-tuning."""

    shared_facts = facts(theme="training")

    save_strategy: SaveStrategy | str = flag("epoch", "no, steps, epoch or best.", "common", theme="output")
    train_sampling_strategy: Literal["group_by_length", "random", "sequential"] = flag(
        "group_by_length", "The order of the examples. sequential: of a single task."
    )
    logging_steps: float = flag(
        50,
        "Steps between lines of metrics.jsonl.",
        "common",
        theme="tracking",
        bounds="(0, inf) updates or a share",
        needs="logs by steps",
    )
    logging_nan_inf_filter: bool = flag(
        False, "Off: a non-finite loss is reported.", theme="rest", change="nothing", needs="Hugging Face's losses"
    )
    ddp_find_unused_parameters: bool | None = flag(False, "Look for weights without a gradient.", theme="devices")
    seed: int = flag(42, "Seed of all randomness.", "common report", bounds="[0, 4294967295] a whole number")
    deepspeed: dict | str | None = flag(
        None, "zero1, zero2, zero3, zero2_offload, ..., or a file.", "common report", theme="devices", needs="training"
    )
    deepspeed_overrides: str | None = flag(
        None, "Single keys of --deepspeed: zero_optimization.overlap_comm=false,key=value.", theme="devices"
    )
    # Both are on: with False a run trains and evaluates all the same, and says so.
    do_train: bool = flag(
        True, "A run trains, unless --eval_only.", theme="rest", change="nothing", needs="Hugging Face's scripts"
    )
    do_eval: bool = flag(
        True, "A run evaluates as --eval_strategy says.", theme="rest", change="nothing", needs="Hugging Face's scripts"
    )
    restore_callback_states_from_checkpoint: bool = flag(True, "Callbacks go on as they stood.", theme="rest")

    # A run that began with an earlier version, in which --data_seed had no effect.
    ignores_data_seed = False

    def __post_init__(self):
        self._settle_output_dir()
        reference_code(self.reference_code)
        if self.torch_compile_mode not in (None, *COMPILE_MODES):
            raise ConfigError(f"--torch_compile_mode {self.torch_compile_mode}: choose from {', '.join(COMPILE_MODES)}")
        self._settle_evaluation_batches()
        self._settle_saving()
        sort_out_names(self)
        parse_reset(self.reset)
        metric = _name_in_results(self.metric_for_best_model)
        self._check_direction(metric)
        # Otherwise Trainer sets it to `loss` below.
        self.metric_for_best_model = "selection"
        self.greater_is_better = True
        do_eval = self.do_eval  # Trainer sets it, too
        self._settle_device()
        check_meeting_place()
        if self.save_on_each_node:
            raise ConfigError(
                "--save_on_each_node True: all nodes share the run's directory, in which the first process writes; "
                "leave it out"
            )
        for file in (self.fsdp_config, self.accelerator_config):
            if isinstance(file, str) and os.path.isfile(file):
                read_json_text(Path(file).read_bytes(), Path(file))
        resolve_sharding(self)
        try:
            super().__post_init__()
        except (ValueError, ImportError) as error:
            raise ConfigError(f"{error}{_advice_on(error)}") from None
        self.metric_for_best_model = metric
        self.do_eval = do_eval
        begin_sharding(self)
        try_hugging_face_optimizer(self)
        check_schedule(self)
        if self.profile is not None:
            parse_steps(self.profile)
        tracker_names(self.report_to)

    @property
    def order_seed(self) -> int:
        """The seed of the order of the training examples."""
        return self.seed if self.data_seed is None or self.ignores_data_seed else self.data_seed

    @property
    def n_gpu(self) -> int:
        """At most 1: `DataParallel`, the trainer's way of using more in a process, scales the loss by their number."""
        return min(self.gpus_in_reach, 1)

    @property
    def gpus_in_reach(self) -> int:
        """How many GPUs a process without a launcher sees; 1 at most with a launcher."""
        return super().n_gpu

    def _settle_output_dir(self) -> None:
        self.output_dir = self.output_dir or os.environ.get("T5SUITE_RUN_DIR")  # set by a sweep for its trial
        self.output_dir_given = self.output_dir is not None
        self.output_dir = self.output_dir or "runs"

    def _settle_device(self) -> None:
        """Takes the CPU where no accelerator is used, whatever `--use_cpu` says; warns of an idle one."""
        self.use_cpu_given = self.use_cpu
        if has_accelerator():
            return
        if not self.use_cpu and torch.backends.mps.is_available():
            logger.warning("%s, as with --use_cpu", APPLE_GPU_IS_IDLE)
        # Otherwise transformers 5.23 treats torchrun's processes without a GPU as separate single-process runs.
        self.use_cpu = True

    def _settle_evaluation_batches(self) -> None:
        """A given batch size counts rows, for every --eval_method; without one, tokens are counted where that works."""
        self.evaluates_by_tokens = self.per_device_eval_batch_size is None
        if self.evaluates_by_tokens:
            self.per_device_eval_batch_size = EVAL_ROWS

    def _check_direction(self, metric: str | None) -> None:
        """Refuses to select by the lowest score; the loss counts as its negative, so that its lowest is the best."""
        if self.greater_is_better is False and metric != "loss":
            metric_flag = "--metric_for_best_model" if metric is None else f"--metric_for_best_model {metric}"
            raise ConfigError(
                f"--greater_is_better False: of {metric_flag} the highest score is the best; have the metric return "
                "its negative, or select by --metric_for_best_model loss"
            )

    def _settle_saving(self) -> None:
        """To load the best checkpoint at the end, saves when the model is evaluated (--save_strategy best stays)."""
        self.eval_strategy = IntervalStrategy(self.eval_strategy)
        self.save_strategy = SaveStrategy(self.save_strategy)
        self.saving_asked = {"save_strategy": self.save_strategy, "save_steps": self.save_steps}
        self.best_is_asked = self.load_best_model_at_end
        if self.eval_strategy == IntervalStrategy.NO and self.save_strategy == SaveStrategy.BEST:
            raise ConfigError(
                "--save_strategy best saves what an evaluation finds best, and --eval_strategy no makes none; choose "
                "epoch or steps"
            )
        if self.eval_strategy == IntervalStrategy.NO or self.save_strategy == SaveStrategy.NO:
            self.load_best_model_at_end = False
        elif self.load_best_model_at_end and self.save_strategy in (SaveStrategy.EPOCH, SaveStrategy.STEPS):
            self.save_strategy = SaveStrategy(self.eval_strategy.value)
            if self.eval_strategy == IntervalStrategy.STEPS and self.eval_steps is None:
                self.save_steps = self.logging_steps  # transformers evaluates then
            elif self.eval_strategy == IntervalStrategy.STEPS:
                self.save_steps = self.eval_steps

    def save_as_asked(self) -> None:
        """Saves as the flags of saving say, once it is known that no evaluation decides it (`--no_eval`).

        Raises:
          ConfigError: `--save_steps` is above 1 and not whole.
        """
        self.save_strategy = self.saving_asked["save_strategy"]
        self.save_steps = self.saving_asked["save_steps"]
        if self.save_strategy != SaveStrategy.STEPS or self.save_steps < 1:
            return
        if self.save_steps != int(self.save_steps):
            raise ConfigError(f"--save_steps {self.save_steps:g}: give a whole number of updates, or a share below 1")
        self.save_steps = int(self.save_steps)


def warn_of_idle_saving_flags(args: SuiteTrainingArguments) -> None:
    """Warns of flags of saving that have no effect."""
    warn_of_idle_choice(args)
    warn_of_idle_save_steps(args)
    warn_of_idle_keep_every(args)


def warn_of_idle_choice(args: SuiteTrainingArguments) -> None:
    """Warns if `--load_best_model_at_end` was given, and there is no checkpoint or no evaluation to choose by."""
    is_idle = args.best_is_asked and not args.load_best_model_at_end
    if not is_idle or "load_best_model_at_end" not in args.flags_given:
        return
    reason = "--save_strategy no writes no checkpoint"
    if args.eval_strategy == IntervalStrategy.NO:
        reason = "--eval_strategy no evaluates nothing"
    logger.warning("--load_best_model_at_end has no effect: %s, and the last weights are kept", reason)


def warn_of_idle_save_steps(args: SuiteTrainingArguments) -> None:
    """Warns if given flags do not decide when checkpoints are written, mostly because evaluations do."""
    asked_values = args.saving_asked
    idle_names = [name for name in asked_values if asked_values[name] != getattr(args, name)]
    if args.save_strategy != SaveStrategy.STEPS:
        idle_names.append("save_steps")
    idle_names = [name for name in asked_values if name in idle_names and name in args.flags_given]
    if not idle_names:
        return
    flag_words = " ".join(f"--{name} {_flag_text(asked_values[name])}" for name in idle_names)
    if not args.load_best_model_at_end or args.save_strategy == SaveStrategy.BEST:
        strategy = args.save_strategy.value
        logger.warning("%s has no effect: it belongs to --save_strategy steps, and this is %s", flag_words, strategy)
        return
    interval = f"--eval_strategy {args.eval_strategy.value}"
    if args.eval_strategy == IntervalStrategy.STEPS:
        interval += f" --eval_steps {args.eval_steps:g}"
    asked_strategy = asked_values["save_strategy"]
    evaluate_when_saving = f"--eval_strategy {asked_strategy.value}"
    save_without_best = "--load_best_model_at_end False"
    if "save_steps" in idle_names:
        evaluate_when_saving = f"--eval_strategy steps --eval_steps {asked_values['save_steps']:g}"
        if asked_strategy != SaveStrategy.STEPS:
            save_without_best += " --save_strategy steps"
    logger.warning(
        "%s has no effect: the best checkpoint is loaded at the end, so each is written when the model is evaluated, "
        "by %s; give %s, or %s",
        flag_words,
        interval,
        evaluate_when_saving,
        save_without_best,
    )


def warn_of_idle_keep_every(args: SuiteTrainingArguments) -> None:
    """Warns if no checkpoint is at a multiple of `--keep_every`; the last update has one, too.

    Only where `--max_steps` and `--save_strategy steps` say beforehand at which updates checkpoints are.
    """
    if args.keep_every is None or args.save_strategy != SaveStrategy.STEPS or args.max_steps <= 0:
        return
    interval = args.save_steps
    if interval < 1:
        interval = math.ceil(interval * args.max_steps)
    interval = int(interval)
    if math.lcm(args.keep_every, interval) <= args.max_steps or args.max_steps % args.keep_every == 0:
        return
    advice = ""
    num_intervals = min(max(1, round(args.keep_every / interval)), args.max_steps // interval)
    if num_intervals > 0:
        advice = f"; give a multiple of {interval}, such as {num_intervals * interval}"
    logger.warning(
        "--keep_every %d has no effect: checkpoints are written every %d updates and at the end, and none of these is "
        "a multiple of %d in %d updates%s",
        args.keep_every,
        interval,
        args.keep_every,
        args.max_steps,
        advice,
    )


def _flag_text(value: SaveStrategy | float) -> str:
    return value.value if isinstance(value, SaveStrategy) else f"{value:g}"


def _name_in_results(metric: str | None) -> str | None:
    """A metric's name without `eval/` (as it is logged) or `eval_` (as in Trainer)."""
    return metric.removeprefix("eval_").removeprefix("eval/") if metric else metric


def _advice_on(error: Exception) -> str:
    for part, advice in ADVICE.items():
        if part in str(error):
            return advice
    return ""


class FineTuningArguments(NamedTuple):
    """All flags of `fine_tune_t5.py`, by subject; the order is that of the help text."""

    model: ModelArguments
    data: DataArguments
    adapter: AdapterArguments
    formats: DataFormatArguments
    instruction: InstructionArguments
    plug_ins: PlugInArguments
    evaluation: EvaluationArguments
    distillation: DistillationArguments
    training: SuiteTrainingArguments


FINE_TUNING_ARGUMENTS = tuple(FineTuningArguments.__annotations__.values())

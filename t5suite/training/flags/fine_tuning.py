"""The flags of the entry scripts, as dataclasses.

    >>> arguments = FineTuningArguments(*parse_arguments(FINE_TUNING_ARGUMENTS, ["--benchmark", "glue"]))
    >>> arguments.data.benchmark
    'glue'

Everything of Hugging Face's `Seq2SeqTrainingArguments` is a flag too, under its own name; where a default differs from
theirs, the field stands here again with the reason in its help text. Every flag has a default.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from transformers import Seq2SeqTrainingArguments
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from t5suite.base.errors import ConfigError
from t5suite.base.reference_code import FAST_PATHS, reference_code
from t5suite.base.yaml_files import read_json_text
from t5suite.optim.schedules import SCHEDULES
from t5suite.tracking.trackers import AIM_REPO, Identity, tracker_names
from t5suite.training.checkpoints.starts import parse_reset
from t5suite.training.flags.data import DataArguments, DataFormatArguments, InstructionArguments
from t5suite.training.flags.fields import flag
from t5suite.training.flags.model import AdapterArguments, ModelArguments
from t5suite.training.flags.plug_ins import PlugInArguments
from t5suite.training.monitoring.rates import ProfileCallback, parse_steps
from t5suite.training.optimization import check_schedule, resolve_names
from t5suite.training.processes.ranks import check_meeting_place
from t5suite.training.sharding.settings import begin_sharding, resolve_sharding


@dataclass
class ModeArguments:
    """Without a heading of its own: `--help` has these flags below those of evaluation and of resuming."""

    eval_only: bool = flag(False, "Score the model without training it.", "common", theme="evaluation")
    resume: str = flag(
        "auto",
        "auto: go on from the newest complete checkpoint; none: a fresh run; or a checkpoint's path.",
        "common",
        theme="resuming",
        change="nothing",
    )


@dataclass
class TrackingArguments:
    """What trackers are told, what is shown on the terminal, and what is measured."""

    _theme = "tracking"

    wandb_project: str | None = flag(
        None, "Project in W&B and Trackio. Default: $WANDB_PROJECT, else t5suite.", change="nothing"
    )
    wandb_entity: str | None = flag(
        None, "User or team in W&B. Default: $WANDB_ENTITY, else the key's.", change="nothing"
    )
    run_group: str | None = flag(None, "Runs of one group stand together in trackers.", change="nothing")
    run_tags: str | None = flag(None, "Tags in trackers, with commas between.", change="nothing")
    aim_repo: str = flag(AIM_REPO, "Aim's repository, a folder for all runs.", change="nothing")
    experiment_name: str | None = flag(
        None, "Aim's (and MLflow's) experiment. Default: --wandb_project, else t5suite.", change="nothing"
    )
    num_samples: int = flag(
        8,
        "Rows a task whose answers are kept at each evaluation (samples.jsonl, trackers); 0: none.",
        bounds="[0, inf) rows or examples",
        change="nothing",
    )
    profile: str | None = flag(
        None,
        "Steps FIRST:LAST, such as 10:12, of which a trace and a memory snapshot are written.",
        needs="training",
        change="nothing",
    )
    verbose: bool = flag(
        False,
        "Show what libraries log, warn of and draw bars for, too.",
        change="nothing",
        python="choose what loggers show: logging.getLogger('transformers').setLevel(logging.INFO)",
    )
    peak_tflops: float | None = flag(
        None,
        "The device's peak for MFU, where its name does not tell (bf16, dense).",
        bounds="(0, inf) TFLOP/s; H200: 989, A100: 312",
        needs="training",
        change="nothing",
    )

    def check_tracking(self) -> None:
        """Called once the other settings are there.

        Raises:
          ConfigError: an unknown tracker; a range that makes no sense.
        """
        if self.profile is not None:
            parse_steps(self.profile)
        tracker_names(self.report_to)


def add_profile(trainer, directory) -> None:
    """`--profile`, where it is asked for; on every rank."""
    if trainer.args.profile is not None:
        trainer.add_callback(ProfileCallback(trainer.args.profile, directory, trainer.args.process_index))


def identity_of(args) -> Identity:
    """What trackers call the run."""
    tags = tuple(tag.strip() for tag in (args.run_tags or "").split(",") if tag.strip())
    return Identity(
        args.run_name,
        args.run_group,
        tags,
        args.wandb_project,
        args.wandb_entity,
        args.experiment_name,
        args.aim_repo,
    )


@dataclass
class EvaluationArguments(ModeArguments):
    """What is evaluated, and how."""

    _theme = "evaluation"

    eval_method: Literal["generate", "score", "loss"] = flag(
        "generate",
        "Write the answer (generate), choose the likeliest label (score), or the loss alone (loss).",
        "common report",
        needs="evaluation, a choice of method",
    )
    select: Literal["average", "per_task"] = flag(
        "average",
        "A mixture's results at the step best on average, or each task at its own best step.",
        needs="training, several tasks",
    )
    early_stopping_patience: int | None = flag(
        None,
        "Stop after this many evaluations in a row without a better one.",
        "common",
        bounds="[1, inf) evaluations",
        needs="training",
    )
    predict_only: bool = flag(
        False, "Predict the test splits without training.", python="call tuner.evaluate(split='test')"
    )
    eval_checkpoints: Literal["none", "all"] = flag(
        "none",
        "all: score every checkpoint of --output_dir into one table of steps by tasks.",
        change="nothing",
        python="make a FineTuner of each checkpoint folder and evaluate it",
    )
    dry_run: bool = flag(
        False,
        "Show the configuration, three pairs, lengths and steps, then stop.",
        "common",
        change="nothing",
        python="look at tuner.summary() and tuner.plan",
    )


# Rows that a device evaluates at once, where they are counted and nothing else is said.
EVAL_ROWS = 64


@dataclass
class SuiteTrainingArguments(TrackingArguments, Seq2SeqTrainingArguments):
    """Hugging Face's training arguments, with defaults that suit T5's fine-tuning."""

    _theme = "training"

    output_dir: str | None = flag(
        None,
        "The run's directory. Default: runs/<benchmark>-<task>-<model>.",
        "common",
        theme="output",
        change="nothing",
    )
    learning_rate: float = flag(
        5e-4,
        "T5 takes larger steps than BERT: 1e-4 to 1e-3.",
        "common report",
        bounds="[0, inf) a rate; 1e-3 is large",
        needs="training",
    )
    per_device_train_batch_size: int = flag(
        32,
        "Examples a device takes at once.",
        "common report",
        bounds="[1, inf) examples",
        needs="training",
        change="layout",
    )
    per_device_eval_batch_size: int | None = flag(
        None,
        "Rows a device evaluates at once. Default: --eval_batch_tokens, else 64.",
        theme="evaluation",
        bounds="[1, inf) examples",
        needs="evaluation",
    )
    eval_batch_tokens: int | None = flag(
        None,
        "Tokens, padding counted, evaluated at once where a T5 scores or writes greedily. Default: 2048 on "
        "a CPU, 32768 on a GPU; 0: count rows.",
        theme="evaluation",
        bounds="[0, inf) 0: rows, all at once, or any shape",
        needs="evaluation, answers, a T5",
    )
    reference_code: str | None = flag(
        None,
        f"Plain code in the place of fast paths: all, or some of {','.join(FAST_PATHS)}. The same results, "
        "but for rounding, and slower.",
        needs="evaluation, answers, fast paths, a T5",
    )
    eval_loss: bool = flag(
        True,
        "Tell an evaluation's loss, also where it takes a pass of its own and selects nothing.",
        theme="evaluation",
        needs="evaluation, answers",
    )
    eval_strategy: IntervalStrategy | str = flag("epoch", "no, steps or epoch.", "common", theme="evaluation")
    save_strategy: SaveStrategy | str = flag("epoch", "no, steps, epoch or best.", "common", theme="output")
    save_total_limit: int | None = flag(
        2,
        "Checkpoints kept, the best one among them.",
        "common",
        theme="output",
        bounds="[1, inf) checkpoints",
        change="nothing",
    )
    keep_every: int | None = flag(
        None,
        "Checkpoints at multiples of this step stay, beside --save_total_limit others.",
        theme="output",
        bounds="[1, inf) updates",
        change="nothing",
    )
    load_best_model_at_end: bool = flag(True, "End with the best checkpoint, not the last.", theme="evaluation")
    metric_for_best_model: str | None = flag(
        None, "Default: the task's metric_to_optimize; a mixture's average; or loss.", "common", theme="evaluation"
    )
    train_sampling_strategy: str = flag("group_by_length", "group_by_length, random or sequential.")
    logging_steps: float = flag(
        50,
        "Steps between two lines of metrics.jsonl.",
        "common",
        theme="tracking",
        bounds="(0, inf) updates, or below 1 the share of all",
        change="nothing",
    )
    logging_nan_inf_filter: bool = flag(
        False, "Off: a loss that is not finite is reported and stops the run.", theme="rest", change="nothing"
    )
    ddp_find_unused_parameters: bool | None = flag(
        False, "Look for weights without a gradient in every step; T5 uses all of its own.", theme="devices"
    )
    seed: int = flag(
        42,
        "Decides weights, order of examples, dropout and subsets.",
        "common report",
        bounds="[0, 4294967295] a whole number",
    )
    deepspeed: dict | str | None = flag(
        None,
        "zero1, zero2, zero2_offload, zero3, zero3_offload, zero3_nvme, or a file of DeepSpeed's settings.",
        "common report",
        theme="devices",
        needs="training",
    )
    deepspeed_overrides: str | None = flag(
        None, "Single keys of --deepspeed: zero_optimization.overlap_comm=false,key=value.", theme="devices"
    )
    optimizer: str | None = flag(
        None,
        "adamw, adamw_rms, adafactor (as T5 was trained with) or muon, with settings in --optim_args "
        "'betas=(0.9,0.95)'; or a name of --optim. Default: what --optim says.",
        "common report",
        needs="training",
    )
    schedule: str | None = flag(
        None,
        f"{', '.join(SCHEDULES)}, with settings in --lr_scheduler_kwargs 'min_lr=1e-5'; or a name of "
        "--lr_scheduler_type. Default: what --lr_scheduler_type says.",
        "common report",
        needs="training",
    )
    clip_grad_value: float | None = flag(
        None,
        "Clip each gradient element to +-this, after --max_grad_norm (0: no clipping by norm).",
        bounds="(0, inf) a number",
        needs="training",
    )
    max_minutes: float | None = flag(
        None,
        "Train at most so long, restarts included; then evaluate, save and end as a finished run.",
        bounds="(0, inf) minutes",
        needs="training",
        change="length",
    )
    reset: str | None = flag(
        None,
        "What does not go on from the --resume checkpoint: any of optimizer,schedule,step,data.",
        theme="resuming",
        needs="training",
        change="nothing",
    )
    extend: bool = flag(
        False,
        "Make a run longer: same --output_dir, more --max_steps, --num_train_epochs, --max_minutes.",
        theme="resuming",
        needs="training",
        change="nothing",
    )
    allow_changed: str | None = flag(
        None,
        "Go on with a run although these settings, or its data, have changed: 'learning_rate,data'.",
        theme="resuming",
        needs="training",
        change="nothing",
    )
    trust_checkpoint: bool = flag(
        False,
        "Resume from a DeepSpeed checkpoint without a manifest, which can run code.",
        theme="resuming",
        needs="training",
        change="nothing",
    )
    max_skipped_updates: int = flag(
        3,
        "Stop after this many updates in a row whose loss or gradient is not finite.",
        bounds="[1, inf) updates",
        needs="training",
        change="nothing",
    )
    loss_spikes: Literal["log", "skip", "rollback", "off"] = flag(
        "log",
        "Updates far out of the ordinary: note them, skip them, or go back to the last checkpoint.",
        needs="training",
    )
    restore_callback_states_from_checkpoint: bool = flag(
        True, "A resumed run knows how long early stopping has waited, and the like.", theme="rest"
    )
    print_summary: bool = flag(
        False,
        "First print parameters by module and the memory of a step, before weights are loaded.",
        theme="output",
        change="nothing",
        python="call tuner.summary()",
    )
    compile_cache: str | None = flag(
        None,
        "Where --torch_compile keeps code for other runs and ranks; none: torch's own place, a temporary "
        "one. Default: $TORCHINDUCTOR_CACHE_DIR, else $XDG_CACHE_HOME/t5suite/compiled.",
        theme="speed",
        change="nothing",
    )
    length_buckets: int | None = flag(
        None,
        "Pad training batches to at most this many shapes. Default: 8 with --torch_compile, which compiles "
        "each; else 0, as long as each batch's longest.",
        theme="speed",
        bounds="[0, inf) 0: rows, all at once, or any shape",
    )
    cudnn_attention: bool = flag(
        False,
        "Let sdpa take cuDNN's kernel. Off: it plans for a second at each new shape, and on Hopper some of "
        "its gradients are nan (pytorch issue 196678).",
        theme="speed",
    )
    z_loss: float = flag(
        0.0,
        "Weight of log(Z)^2 in the loss; T5 was trained with 1e-4.",
        "report",
        bounds="[0, inf) a small number",
        needs="training, a loss of tokens",
    )
    loss_chunk_tokens: int | None = flag(
        None,
        "Target tokens of a T5 whose logits are held at once while training. Default: as many as are quick "
        "on the device; 0: those of the whole batch.",
        theme="speed",
        bounds="[0, inf) 0: rows, all at once, or any shape",
        needs="training",
    )

    def __post_init__(self):
        self.output_dir = self.output_dir or os.environ.get("T5SUITE_RUN_DIR")  # where a sweep wants its trial
        self.output_dir_given = self.output_dir is not None
        self.output_dir = self.output_dir or "runs"
        reference_code(self.reference_code)
        self._settle_eval_batches()
        self._reconcile_strategies()
        resolve_names(self)
        parse_reset(self.reset)
        metric = self.metric_for_best_model
        if metric:  # as it is logged, as Trainer writes it, or by its own name
            metric = metric.removeprefix("eval_").removeprefix("eval/")
        self.metric_for_best_model, self.greater_is_better = "selection", True  # else theirs becomes `loss` below
        if not torch.accelerator.is_available():
            # Else transformers 5.23 takes torchrun's processes without a GPU for so many runs of one process each.
            self.use_cpu = True
        check_meeting_place()
        for file in (self.fsdp_config, self.accelerator_config):
            if isinstance(file, str) and os.path.isfile(file):
                read_json_text(Path(file).read_bytes(), Path(file))
        resolve_sharding(self)
        try:
            super().__post_init__()
        except (ValueError, ImportError) as error:
            raise ConfigError(with_cure(str(error))) from None
        self.metric_for_best_model = metric
        begin_sharding(self)
        check_schedule(self)
        self.check_tracking()

    def _settle_eval_batches(self):
        """A batch size that is given counts rows, whatever the method."""
        given, tokens = self.per_device_eval_batch_size is not None, self.eval_batch_tokens
        if tokens and given:
            why = f"--per_device_eval_batch_size {self.per_device_eval_batch_size} counts rows"
            raise ConfigError(f"--eval_batch_tokens {tokens}: {why}; leave it out")
        self.evaluates_by_tokens = tokens != 0 and not given
        if not given:
            self.per_device_eval_batch_size = EVAL_ROWS

    def _reconcile_strategies(self):
        """Checkpoints are taken when the model is evaluated, unless the user asked for something else."""
        self.eval_strategy = IntervalStrategy(self.eval_strategy)
        self.save_strategy = SaveStrategy(self.save_strategy)
        if self.eval_strategy == IntervalStrategy.NO:
            self.load_best_model_at_end = False
        elif self.load_best_model_at_end and self.save_strategy in (SaveStrategy.EPOCH, SaveStrategy.STEPS):
            self.save_strategy = SaveStrategy(self.eval_strategy.value)
            if self.eval_strategy == IntervalStrategy.STEPS and self.eval_steps is not None:
                self.save_steps = self.eval_steps


def with_cure(message: str) -> str:
    """What Hugging Face's training arguments say of values that do not go together, and what to do.

    >>> with_cure("At most one of fp16 and bf16 can be True, but not both")
    "At most one of fp16 and bf16 can be True, but not both; leave --fp16 out: --bf16 has float32's range"
    """
    cure = next((cure for part, cure in CURES.items() if part in message), None)
    return f"{message}; {cure}" if cure else message


# By a part of the message (transformers 5.23).
CURES = {
    "requires Ampere": "leave --tf32 out here (t5suite doctor shows what torch sees)",
    "one of fp16 and bf16": "leave --fp16 out: --bf16 has float32's range",
}


class FineTuningArguments(NamedTuple):
    """All flags of `fine_tune_t5.py`, by subject; the order is that of the help text."""

    model: ModelArguments
    data: DataArguments
    adapter: AdapterArguments
    formats: DataFormatArguments
    instruction: InstructionArguments
    plug_ins: PlugInArguments
    evaluation: EvaluationArguments
    training: SuiteTrainingArguments


FINE_TUNING_ARGUMENTS = tuple(FineTuningArguments.__annotations__.values())

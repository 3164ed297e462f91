"""The flags of the entry scripts, as dataclasses.

    >>> arguments = FineTuningArguments(*parse_arguments(FINE_TUNING_ARGUMENTS, ["--benchmark", "glue"]))
    >>> arguments.data.benchmark
    'glue'

Everything of Hugging Face's `Seq2SeqTrainingArguments` is a flag too, under its own name; where a default differs from
theirs, the field stands here again with the reason in its help text. Every flag has a default.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from transformers import Seq2SeqTrainingArguments
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from t5suite.base.errors import ConfigError
from t5suite.base.reference_code import FAST_PATHS, reference_code
from t5suite.base.yaml_files import check_model_files, read_json_text
from t5suite.models.placement import check_flags
from t5suite.optim.schedules import SCHEDULES
from t5suite.training.flags.adapters import AdapterArguments
from t5suite.training.flags.bounds import with_cure
from t5suite.training.flags.compiling import CompileArguments
from t5suite.training.flags.data_formats import DataFormatArguments
from t5suite.training.flags.instructions import InstructionArguments
from t5suite.training.flags.modes import ModeArguments
from t5suite.training.flags.plug_ins import PlugInArguments
from t5suite.training.flags.rows import RowArguments
from t5suite.training.flags.tracking import TrackingArguments
from t5suite.training.optimization import check_schedule, resolve_names
from t5suite.training.processes.ranks import check_meeting_place
from t5suite.training.resuming.resets import parse_reset
from t5suite.training.sharding.settings import begin_sharding, resolve_sharding

AttentionKernel = Literal["sdpa", "eager", "flash_attention_2", "flex_attention"]


@dataclass
class ModelArguments:
    """Which model: a hub name, a local folder, or one made from a configuration."""

    _argument_group_name = "model"

    model_name_or_path: str | None = field(
        default=None,
        metadata={"help": "Hub name or folder of a model. Default: the bundled tiny T5, made from its configuration."},
    )
    config_name: str | None = field(
        default=None,
        metadata={
            "help": "A preset (t5-v1_1-base, mini), a model type (bert, gpt2), a folder, .json file or hub name of a "
            "configuration, if not the model's. Implies --from_scratch."
        },
    )
    tokenizer_name: str | None = field(
        default=None,
        metadata={"help": "Hub name or folder of a tokenizer (a lone spiece.model suffices), if not the model's."},
    )
    from_scratch: bool = field(default=False, metadata={"help": "Take random weights instead of the trained ones."})
    config_overrides: str | None = field(
        default=None, metadata={"help": "Changes to the configuration: d_model=256,num_layers=4."}
    )
    dropout_rate: float | None = field(default=None, metadata={"help": "Dropout, if not the configuration's."})
    model_revision: str | None = field(default=None, metadata={"help": "Branch, tag or commit of the hub's model."})
    model_family: Literal["auto", "seq2seq", "causal", "masked"] = field(
        default="auto", metadata={"help": "What the model is trained as; auto: what its configuration says."}
    )
    init_checkpoint: str | None = field(
        default=None,
        metadata={
            "help": "Bare weights that replace the model's: a file (.safetensors, .pth, .bin, .index.json) or folder."
        },
    )
    allow_missing_keys: bool = field(
        default=False, metadata={"help": "Take a model or --init_checkpoint that lacks tensors, or has some too many."}
    )
    num_sentinels: int | None = field(
        default=None, metadata={"help": "Give the tokenizer this many sentinels (T5 has 100), and the model rows."}
    )
    add_tokens: str | None = field(
        default=None,
        metadata={"help": "Tokens that the tokenizer lacks: '<turn>,<speaker>', or a file with one in each line."},
    )
    attn_implementation: AttentionKernel | None = field(
        default=None,
        metadata={"help": "Attention kernels; default: sdpa where the model has it, else eager. A T5 has these two."},
    )
    device_map: str | None = field(
        default=None,
        metadata={
            "help": "Deal the layers out to this process's devices, one working at a time: balanced, auto (the same), "
            "sequential, or a JSON file {module: device number}. What fits none is offloaded (--eval_only)."
        },
    )
    max_memory: str | None = field(
        default=None, metadata={"help": "What --device_map may fill: 0=10GiB,1=10GiB,cpu=30GiB. Default: what is free."}
    )
    embedding_on_cpu: bool = field(
        default=False,
        metadata={"help": "Keep the embedding matrix, its gradient and moments on the CPU (untied output layer only)."},
    )
    load_in_8bit: bool = field(
        default=False, metadata={"help": "Keep the frozen matrices below an --adapter in 8 bits (bitsandbytes)."}
    )
    load_in_4bit: bool = field(
        default=False, metadata={"help": "Keep the frozen matrices below an --adapter in 4 bits (bitsandbytes, QLoRA)."}
    )
    freeze: str | None = field(
        default=None,
        metadata={
            "help": "What is not trained: any of encoder,decoder,embeddings,head,layers:N (the first N layers of each "
            "stack), encoder:N,decoder:N."
        },
    )
    freeze_regex: str | None = field(
        default=None, metadata={"help": "Freeze the parameters in whose names this regular expression is found."}
    )
    unfreeze_regex: str | None = field(
        default=None, metadata={"help": "Of what --freeze and --freeze_regex name, train these all the same."}
    )
    adapter_base: str | None = field(
        default=None,
        metadata={"help": "The base of an adapter (--model_name_or_path), if not where the adapter says that it is."},
    )
    model_class: str | None = field(
        default=None,
        metadata={
            "help": "module:Class of your own: a PreTrainedModel, or any torch.nn.Module whose forward returns a loss."
        },
    )
    model_class_args: str | None = field(
        default=None, metadata={"help": "What a plain module is made with: d_model=64,num_layers=2."}
    )
    trust_remote_code: bool = field(default=False, metadata={"help": "Run code that a hub repository brings along."})

    def __post_init__(self):
        for flag in ("model_name_or_path", "config_name", "tokenizer_name"):
            if getattr(self, flag):
                check_model_files(f"--{flag}", getattr(self, flag))
        check_flags(self.device_map, self.max_memory, self.embedding_on_cpu)
        if self.model_class_args and not self.model_class:
            raise ConfigError("--model_class_args has no effect: there is no --model_class")


@dataclass
class DataArguments(RowArguments):
    """Which task, and where its rows come from."""

    _argument_group_name = "task and data"

    benchmark: str = field(
        default="mini", metadata={"help": "glue, super_glue, squad, ... (see t5suite tasks), or one of --task_file."}
    )
    dataset_name: str = field(
        default="sentiment", metadata={"help": "A task, several with commas between, or a mixture such as all."}
    )
    task_file: str | None = field(
        default=None,
        metadata={"help": "Tasks of your own: YAML {benchmark: {task: entry}}, or Python with DATASET_VALS."},
    )
    data_dir: str | None = field(
        default_factory=lambda: os.environ.get("T5SUITE_DATA_DIR"),
        metadata={
            "help": "A mirror: DIR/<benchmark>/<task>/<split>.jsonl[.gz]. Default: $T5SUITE_DATA_DIR, else the hub."
        },
    )
    train_file: str | None = field(
        default=None,
        metadata={"help": "Training rows: a file of --data_format; without it, JSON lines in place of the task's own."},
    )
    validation_file: str | None = field(
        default=None, metadata={"help": "Likewise, validation rows: what scores are of."}
    )
    test_file: str | None = field(default=None, metadata={"help": "Likewise, test rows."})
    data_revision: str | None = field(default=None, metadata={"help": "Branch, tag or commit of the hub's data set."})
    max_source_length: int = field(
        default=512, metadata={"help": "Longest input in tokens; more is cut off on the right."}
    )
    max_target_length: int = field(default=512, metadata={"help": "Longest target in tokens."})
    token_cache: str | None = field(
        default=None,
        metadata={
            "help": "Where tokenized training sets of 5000 rows and more are kept for other ranks and runs; none: "
            "nowhere. Default: the cache of the datasets library."
        },
    )
    answer_separator: str | None = field(
        default=None,
        metadata={
            "help": "What stands between prompt and answer of a decoder-only model; \\n is a line break, \\t a tab, "
            "\\\\ a backslash. Default: what the model was trained with, else '\\nanswer: '."
        },
    )
    max_train_samples: int | None = field(default=None, metadata={"help": "At most this many training rows a task."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "At most this many evaluation rows a split."})
    max_predict_samples: int | None = field(default=None, metadata={"help": "At most this many test rows a split."})
    train_fraction: float | None = field(default=None, metadata={"help": "Share of the training rows, 0 to 1."})
    few_shot: int | None = field(default=None, metadata={"help": "This many training rows of each class."})
    mixing: Literal["proportional", "equal"] = field(
        default="proportional", metadata={"help": "How often a mixture's tasks are drawn."}
    )
    mixing_limit: float | None = field(default=None, metadata={"help": "No task counts for more examples than this."})
    mixing_temperature: float = field(default=1.0, metadata={"help": "Rates are taken to the power 1/temperature."})
    allow_missing_tasks: bool = field(
        default=False, metadata={"help": "Leave out members of a mixture that have no local training split."}
    )
    selection_split: str = field(
        default="validation",
        metadata={"help": "What selects checkpoints: validation, or a part never trained on: 'train[5%%]'."},
    )


@dataclass
class EvaluationArguments(ModeArguments):
    """What is evaluated, and how."""

    _argument_group_name = "evaluation, selection and modes"

    eval_method: Literal["generate", "score", "loss"] = field(
        default="generate",
        metadata={"help": "Write the answer (generate), choose the likeliest label (score), or the loss alone (loss)."},
    )
    select: Literal["average", "per_task"] = field(
        default="average",
        metadata={"help": "A mixture's results at the step best on average, or each task at its own best step."},
    )
    early_stopping_patience: int | None = field(
        default=None, metadata={"help": "Stop after this many evaluations in a row without a better one."}
    )
    predict_only: bool = field(default=False, metadata={"help": "Predict the test splits without training."})
    eval_checkpoints: Literal["none", "all"] = field(
        default="none",
        metadata={"help": "all: score every checkpoint of --output_dir into one table of steps by tasks."},
    )
    dry_run: bool = field(
        default=False, metadata={"help": "Show the configuration, three pairs, lengths and steps, then stop."}
    )


# Rows that a device evaluates at once, where they are counted and nothing else is said.
EVAL_ROWS = 64


@dataclass
class SuiteTrainingArguments(TrackingArguments, CompileArguments, Seq2SeqTrainingArguments):
    """Hugging Face's training arguments, with defaults that suit T5's fine-tuning."""

    _argument_group_name = "training"

    output_dir: str | None = field(
        default=None, metadata={"help": "The run's directory. Default: runs/<benchmark>-<task>-<model>."}
    )
    learning_rate: float = field(default=5e-4, metadata={"help": "T5 takes larger steps than BERT: 1e-4 to 1e-3."})
    per_device_train_batch_size: int = field(default=32, metadata={"help": "Examples a device takes at once."})
    per_device_eval_batch_size: int | None = field(
        default=None, metadata={"help": "Rows a device evaluates at once. Default: --eval_batch_tokens, else 64."}
    )
    eval_batch_tokens: int | None = field(
        default=None,
        metadata={
            "help": "Tokens, padding counted, evaluated at once where a T5 scores or writes greedily. Default: 2048 on "
            "a CPU, 32768 on a GPU; 0: count rows."
        },
    )
    reference_code: str | None = field(
        default=None,
        metadata={
            "help": f"Plain code in the place of fast paths: all, or some of {','.join(FAST_PATHS)}. The same results, "
            "but for rounding, and slower."
        },
    )
    eval_loss: bool = field(
        default=True,
        metadata={"help": "Tell an evaluation's loss, also where it takes a pass of its own and selects nothing."},
    )
    eval_strategy: IntervalStrategy | str = field(default="epoch", metadata={"help": "no, steps or epoch."})
    save_strategy: SaveStrategy | str = field(default="epoch", metadata={"help": "no, steps, epoch or best."})
    save_total_limit: int | None = field(default=2, metadata={"help": "Checkpoints kept, the best one among them."})
    keep_every: int | None = field(
        default=None, metadata={"help": "Checkpoints at multiples of this step stay, beside --save_total_limit others."}
    )
    load_best_model_at_end: bool = field(default=True, metadata={"help": "End with the best checkpoint, not the last."})
    metric_for_best_model: str | None = field(
        default=None, metadata={"help": "Default: the task's metric_to_optimize; a mixture's average; or loss."}
    )
    train_sampling_strategy: str = field(
        default="group_by_length", metadata={"help": "group_by_length, random or sequential."}
    )
    logging_steps: float = field(default=50, metadata={"help": "Steps between two lines of metrics.jsonl."})
    logging_nan_inf_filter: bool = field(
        default=False, metadata={"help": "Off: a loss that is not finite is reported and stops the run."}
    )
    ddp_find_unused_parameters: bool | None = field(
        default=False, metadata={"help": "Look for weights without a gradient in every step; T5 uses all of its own."}
    )
    seed: int = field(default=42, metadata={"help": "Decides weights, order of examples, dropout and subsets."})
    deepspeed: dict | str | None = field(
        default=None,
        metadata={
            "help": "zero1, zero2, zero2_offload, zero3, zero3_offload, zero3_nvme, or a file of DeepSpeed's settings."
        },
    )
    deepspeed_overrides: str | None = field(
        default=None, metadata={"help": "Single keys of --deepspeed: zero_optimization.overlap_comm=false,key=value."}
    )
    optimizer: str | None = field(
        default=None,
        metadata={
            "help": "adamw, adamw_rms, adafactor (as T5 was trained with) or muon, with settings in --optim_args "
            "'betas=(0.9,0.95)'; or a name of --optim. Default: what --optim says."
        },
    )
    schedule: str | None = field(
        default=None,
        metadata={
            "help": f"{', '.join(SCHEDULES)}, with settings in --lr_scheduler_kwargs 'min_lr=1e-5'; or a name of "
            "--lr_scheduler_type. Default: what --lr_scheduler_type says."
        },
    )
    clip_grad_value: float | None = field(
        default=None,
        metadata={"help": "Clip each gradient element to +-this, after --max_grad_norm (0: no clipping by norm)."},
    )
    max_minutes: float | None = field(
        default=None,
        metadata={"help": "Train at most so long, restarts included; then evaluate, save and end as a finished run."},
    )
    reset: str | None = field(
        default=None,
        metadata={"help": "What does not go on from the --resume checkpoint: any of optimizer,schedule,step,data."},
    )
    extend: bool = field(
        default=False,
        metadata={"help": "Make a run longer: same --output_dir, more --max_steps, --num_train_epochs, --max_minutes."},
    )
    allow_changed: str | None = field(
        default=None,
        metadata={"help": "Go on with a run although these settings, or its data, have changed: 'learning_rate,data'."},
    )
    trust_checkpoint: bool = field(
        default=False, metadata={"help": "Resume from a DeepSpeed checkpoint without a manifest, which can run code."}
    )
    max_skipped_updates: int = field(
        default=3, metadata={"help": "Stop after this many updates in a row whose loss or gradient is not finite."}
    )
    loss_spikes: Literal["log", "skip", "rollback", "off"] = field(
        default="log",
        metadata={"help": "Updates far out of the ordinary: note them, skip them, or go back to the last checkpoint."},
    )
    restore_callback_states_from_checkpoint: bool = field(
        default=True, metadata={"help": "A resumed run knows how long early stopping has waited, and the like."}
    )
    print_summary: bool = field(
        default=False,
        metadata={"help": "First print parameters by module and the memory of a step, before weights are loaded."},
    )
    length_buckets: int | None = field(
        default=None,
        metadata={
            "help": "Pad training batches to at most this many shapes. Default: 8 with --torch_compile, which compiles "
            "each; else 0, as long as each batch's longest."
        },
    )
    cudnn_attention: bool = field(
        default=False,
        metadata={
            "help": "Let sdpa take cuDNN's kernel. Off: it plans for a second at each new shape, and on Hopper some of "
            "its gradients are nan (pytorch issue 196678)."
        },
    )
    z_loss: float = field(default=0.0, metadata={"help": "Weight of log(Z)^2 in the loss; T5 was trained with 1e-4."})
    loss_chunk_tokens: int | None = field(
        default=None,
        metadata={
            "help": "Target tokens of a T5 whose logits are held at once while training. Default: as many as are quick "
            "on the device; 0: those of the whole batch."
        },
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
        # Every metric is turned into one number, more being better, under this name (`evaluation.selection_value`).
        self.selection_metric, self.metric_for_best_model = self.metric_for_best_model, "selection"
        if self.selection_metric:  # as it is logged, as Trainer writes it, or by its own name
            self.selection_metric = self.selection_metric.removeprefix("eval_").removeprefix("eval/")
        self.greater_is_better = True
        # Hugging Face's starts anew on weights that are not reset; micro-batches are halved in place without a flag.
        self.halving_asked_for, self.auto_find_batch_size = self.auto_find_batch_size, False
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
        begin_sharding(self)
        check_schedule(self)
        # Our trackers mirror metrics.jsonl; the trainer's own reporting callbacks stay off.
        self.trackers, self.report_to = self.report_to, []
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

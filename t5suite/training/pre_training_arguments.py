"""The flags of `pre_train_t5.py`, as dataclasses.

    >>> model, text, training = parse_arguments(PRE_TRAINING_ARGUMENTS, ["--train_file", "articles.txt.gz"])

The model's flags are those of fine-tuning; so are the trainer's, with defaults that suit pre-training.
"""

from dataclasses import dataclass, field

from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from t5suite.errors import ConfigError
from t5suite.training.arguments import ModelArguments, SuiteTrainingArguments

OWN_TEXT_INPUTS_LENGTH = 512
BUNDLED_TEXT_INPUTS_LENGTH = 128
SELECTION_METRICS = (None, "loss", "nll", "perplexity")
GENERATION_FLAGS = (
    "predict_with_generate",
    "generation_max_length",
    "generation_num_beams",
    "generation_config",
    "do_predict",
)


@dataclass
class PreTrainingArguments:
    """Which text, and what is hidden in it."""

    _argument_group_name = "text and corruption"

    train_file: str | None = field(
        default=None,
        metadata={
            "help": "Text to train on: .txt (one document a line) or .jsonl, each also .gz. Default: the bundled text."
        },
    )
    validation_file: str | None = field(
        default=None,
        metadata={"help": "Text to evaluate on. Default: --validation_fraction of the training text's blocks."},
    )
    text_column_name: str = field(default="text", metadata={"help": "Where a .jsonl file's rows hold the text."})
    validation_fraction: float = field(
        default=0.05,
        metadata={"help": "Share of the training blocks, from the end, held out where there is no --validation_file."},
    )
    inputs_length: int | None = field(
        default=None,
        metadata={"help": "Input tokens after corruption. Default: 512; on the short bundled text, 128."},
    )
    targets_length: int | None = field(
        default=None, metadata={"help": "Target tokens. Default: as many as the corruption makes."}
    )
    noise_density: float = field(default=0.15, metadata={"help": "Share of the tokens that is hidden."})
    mean_span_length: float = field(default=3.0, metadata={"help": "Mean length of a hidden span in tokens."})
    eval_only: bool = field(default=False, metadata={"help": "Score the model without training it."})
    resume: str = field(
        default="auto",
        metadata={
            "help": "auto: go on from the newest complete checkpoint; none: a fresh run; or a checkpoint's path."
        },
    )

    def __post_init__(self):
        if self.validation_file and not self.train_file and not self.eval_only:
            raise ConfigError(f"--validation_file {self.validation_file} needs a --train_file beside it")
        if not 0 < self.validation_fraction < 1:
            raise ConfigError(f"--validation_fraction {self.validation_fraction}: must lie between 0 and 1")
        if self.inputs_length is None:
            own_text = self.train_file or self.validation_file
            self.inputs_length = OWN_TEXT_INPUTS_LENGTH if own_text else BUNDLED_TEXT_INPUTS_LENGTH
        if self.inputs_length < 4:
            raise ConfigError(f"--inputs_length {self.inputs_length}: must be at least 4 tokens")


@dataclass
class PreTrainerArguments(SuiteTrainingArguments):
    """Hugging Face's training arguments, with defaults that suit pre-training."""

    output_dir: str | None = field(
        default=None, metadata={"help": "The run's directory. Default: runs/pre_train-<model>."}
    )
    learning_rate: float = field(
        default=3e-3, metadata={"help": "The largest. Suits small models; with 60M parameters or more take about 1e-3."}
    )
    per_device_train_batch_size: int = field(default=16, metadata={"help": "Blocks a device takes at once."})
    per_device_eval_batch_size: int = field(default=32, metadata={"help": "Blocks a device evaluates at once."})
    warmup_steps: float = field(default=0.1, metadata={"help": "Steps, or a share of all steps, to the full rate."})
    num_train_epochs: float = field(default=3.0, metadata={"help": "Passes over the training text."})
    eval_strategy: IntervalStrategy | str = field(default="steps", metadata={"help": "no, steps or epoch."})
    eval_steps: float | None = field(
        default=0.1, metadata={"help": "Steps, or a share of all steps, between two evaluations."}
    )
    save_strategy: SaveStrategy | str = field(default="steps", metadata={"help": "no, steps, epoch or best."})
    save_steps: float = field(
        default=0.1, metadata={"help": "Steps, or a share of all steps, between two checkpoints."}
    )
    load_best_model_at_end: bool = field(
        default=False, metadata={"help": "End with the best checkpoint; off: with the last."}
    )
    metric_for_best_model: str | None = field(default=None, metadata={"help": "loss, the only one there is."})
    train_sampling_strategy: str = field(
        default="random", metadata={"help": "random: every pass has an order of its own. All blocks are equally long."}
    )
    logging_steps: float = field(default=10, metadata={"help": "Steps between two lines of metrics.jsonl."})

    def __post_init__(self):
        super().__post_init__()
        if self.selection_metric not in SELECTION_METRICS:
            raise ConfigError(f"--metric_for_best_model {self.selection_metric}: pre-training is selected by loss")
        if self.train_sampling_strategy != "random":
            raise ConfigError(
                f"--train_sampling_strategy {self.train_sampling_strategy}: blocks are equally long and read in random "
                "order; leave the flag out"
            )
        for name in GENERATION_FLAGS:
            if getattr(self, name):
                raise ConfigError(f"--{name} {getattr(self, name)}: pre-training generates nothing; leave it out")


PRE_TRAINING_ARGUMENTS = (ModelArguments, PreTrainingArguments, PreTrainerArguments)

"""The flags of `pre_train_t5.py`, as dataclasses.

    >>> model, text, objective, run, training = parse_arguments(PRE_TRAINING_ARGUMENTS, ["--train_file", "a.txt.gz"])

The model's flags are those of fine-tuning; so are the trainer's, with defaults that suit pre-training.
"""

from dataclasses import dataclass, field
from typing import Literal

from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import find
from t5suite.data.objectives import OBJECTIVES
from t5suite.models.vocabulary import MODE_TOKENS
from t5suite.training.flags.fine_tuning import ModelArguments, SuiteTrainingArguments
from t5suite.training.flags.modes import ModeArguments
from t5suite.training.flags.plug_ins import TrainingPlugIns

OWN_TEXT_INPUTS_LENGTH = 512
BUNDLED_TEXT_INPUTS_LENGTH = 64
STREAMED_BY_DEFAULT = "hub:allenai/c4:en:train"
# Objectives that learn where a document ends.
SEPARATED = ("causal_lm", "full_lm")
SELECTION_METRICS = (None, "loss", "nll", "perplexity")
GENERATION_FLAGS = (
    "predict_with_generate",
    "generation_max_length",
    "generation_num_beams",
    "generation_config",
    "do_predict",
)


@dataclass
class TextArguments:
    """Which text: files, built corpora, or a stream. Without any of these flags, the bundled text."""

    _argument_group_name = "text"

    train_file: list[str] | None = field(
        default=None,
        metadata={
            "help": "Text to train on: files (.txt, .jsonl, .parquet, each also .gz or .zst), folders, patterns, "
            "or hub:NAME:CONFIG:SPLIT. Tokenized once, into the run's directory, unless --streaming."
        },
    )
    validation_file: list[str] | None = field(
        default=None, metadata={"help": "Text to evaluate on. Default: --validation_fraction of the documents."}
    )
    train_corpus: list[str] | None = field(
        default=None, metadata={"help": "Folders that `t5suite corpus build` made, in place of --train_file."}
    )
    corpus_weights: list[float] | None = field(
        default=None,
        metadata={
            "help": "How often each --train_corpus, or each --train_file as a corpus of its own, is drawn from. "
            "Default: after their sizes."
        },
    )
    streaming: bool = field(
        default=False,
        metadata={"help": "Tokenize while training, for text that is too large to tokenize first; needs --max_steps."},
    )
    shuffle_buffer_size: int = field(default=16384, metadata={"help": "Blocks of a stream that are shuffled together."})
    num_virtual_streams: int = field(
        default=64, metadata={"help": "Parts of a stream; a multiple of ranks x --dataloader_num_workers."}
    )
    text_column_name: str = field(
        default="text", metadata={"help": "Where the rows of a .jsonl, .parquet or hub dataset hold the text."}
    )
    text_unit: Literal["line", "paragraph", "file"] = field(
        default="line", metadata={"help": "What a document is in a .txt file."}
    )
    bad_lines: Literal["error", "skip"] = field(
        default="error", metadata={"help": "A line that cannot be read ends the run, or is counted and left out."}
    )
    tokenizer_engine: Literal["auto", "sentencepiece", "tokenizers"] = field(
        default="auto",
        metadata={
            "help": "What turns text into ids, the same either way: auto takes SentencePiece's encoder, seven times "
            "as fast, where its ids are the tokenizer's."
        },
    )
    validation_fraction: float = field(
        default=0.05, metadata={"help": "Share of the documents held out where there is no --validation_file."}
    )
    max_eval_samples: int | None = field(default=None, metadata={"help": "At most this many blocks are evaluated."})

    def __post_init__(self):
        if self.streaming and not self.train_file:
            self.train_file = [STREAMED_BY_DEFAULT]
        if self.train_file and self.train_corpus:
            raise ConfigError("--train_file and --train_corpus: give one of them")
        if self.streaming and self.train_corpus:
            raise ConfigError("--streaming with --train_corpus: a built corpus is tokenized already; leave one out")
        num_corpora = len(self.train_corpus or self.train_file or ())
        if self.corpus_weights is not None and len(self.corpus_weights) != num_corpora:
            raise ConfigError(
                f"--corpus_weights has {len(self.corpus_weights)} numbers for {num_corpora} --train_file or "
                "--train_corpus: give one for each"
            )

    @property
    def bundled(self) -> bool:
        """Whether the text is the bundled one."""
        return not (self.train_file or self.validation_file or self.train_corpus)


@dataclass
class ObjectiveArguments:
    """What is hidden in the text, and in which form it comes back."""

    _argument_group_name = "objective"

    objective: str = field(default="span_corruption", metadata={"help": ", ".join(OBJECTIVES) + "."})
    inputs_length: int | None = field(
        default=None,
        metadata={"help": "Input tokens of a block after corruption. Default: 512; on the short bundled text, 64."},
    )
    targets_length: int | None = field(
        default=None, metadata={"help": "Target tokens of a block. Default: as many as the objective makes."}
    )
    noise_density: float | None = field(
        default=None, metadata={"help": "Share of the tokens that is hidden. Default: the objective's (T5: 0.15)."}
    )
    mean_span_length: float | None = field(
        default=None, metadata={"help": "Mean length of a hidden span in tokens. Default: the objective's (T5: 3)."}
    )
    random_roll: bool = field(
        default=False, metadata={"help": "Turn the mask by a random offset, so that every position is hidden equally."}
    )
    mode_tokens: str | None = field(
        default=None,
        metadata={
            "help": "What stands for UL2's modes R, S, X in the inputs, such as '[NLU],[S2S],[NLG]'; none: nothing "
            "does. Default: [R],[S],[X]."
        },
    )
    mask_units: Literal["token", "word", "ngram", "pmi", "span"] | None = field(
        default=None,
        metadata={"help": "What masked_lm (default: token) and unit_denoising (default: word) hide as a whole."},
    )
    collocations: str | None = field(
        default=None, metadata={"help": "The table of --mask_units pmi, made by t5suite corpus collocations."}
    )
    sentence_pairs: Literal["next", "order"] | None = field(
        default=None,
        metadata={"help": "masked_lm also learns which sentences follow each other: next (BERT) or order (ALBERT)."},
    )
    sentence_language: str = field(
        default="en", metadata={"help": "How sentences of a --train_file are told apart: a language."}
    )
    document_separator: Literal["none", "eos"] | None = field(
        default=None,
        metadata={
            "help": "What stands between documents. Default: eos for causal_lm and full_lm, else none, as in T5."
        },
    )
    pack: bool = field(
        default=False, metadata={"help": "Several short examples in one row, which do not see each other."}
    )
    row_inputs_length: int | None = field(
        default=None, metadata={"help": "Input tokens of a packed row. Default: --inputs_length."}
    )
    row_targets_length: int | None = field(
        default=None, metadata={"help": "Target tokens of a packed row. Default: --targets_length."}
    )

    def __post_init__(self):
        find(self.objective, OBJECTIVES, "objective", where="--objective")
        if self.mode_tokens not in (None, "none") and len(self.modes) != 3:
            raise ConfigError(f"--mode_tokens {self.mode_tokens}: give three, such as {','.join(MODE_TOKENS)}, or none")

    @property
    def modes(self) -> tuple[str, ...]:
        """The tokens of UL2's modes R, S and X; none for other objectives."""
        if self.objective != "ul2" or self.mode_tokens == "none":
            return ()
        return tuple(self.mode_tokens.split(",")) if self.mode_tokens else MODE_TOKENS

    @property
    def separator(self) -> str:
        """What stands between documents."""
        return self.document_separator or ("eos" if self.objective in SEPARATED else "none")


@dataclass
class RunArguments(ModeArguments, TrainingPlugIns):
    """How the run goes, and what takes part in it."""

    _argument_group_name = "evaluation, selection and modes"

    dry_run: bool = field(
        default=False, metadata={"help": "Show the configuration, an example, lengths, steps and FLOPs, then stop."}
    )


def reconcile(text: TextArguments, objective: ObjectiveArguments, run: RunArguments) -> None:
    """What depends on flags of several groups: the default of `--inputs_length`, and files that lack their partner.

    Raises:
      ConfigError: text to evaluate on, but none to train on.
    """
    if objective.inputs_length is None:
        objective.inputs_length = BUNDLED_TEXT_INPUTS_LENGTH if text.bundled else OWN_TEXT_INPUTS_LENGTH
    if text.validation_file and not (text.train_file or text.train_corpus or run.eval_only):
        raise ConfigError(f"--validation_file {' '.join(text.validation_file)} needs a --train_file beside it")


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
        default="random", metadata={"help": "random: every pass has an order of its own. "}
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
        if self.length_buckets is not None:
            raise ConfigError(f"--length_buckets {self.length_buckets}: blocks are equally long; leave the flag out")
        for name in GENERATION_FLAGS:
            if getattr(self, name):
                raise ConfigError(f"--{name} {getattr(self, name)}: pre-training generates nothing; leave it out")


PRE_TRAINING_ARGUMENTS = (ModelArguments, TextArguments, ObjectiveArguments, RunArguments, PreTrainerArguments)

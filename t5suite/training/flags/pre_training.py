"""The flags of `pre_train_t5.py`, as dataclasses.

    >>> model, text, objective, run, training = parse_arguments(PRE_TRAINING_ARGUMENTS, ["--train_file", "a.txt.gz"])

The flags of the model and the trainer are those of fine-tuning, with the trainer's defaults chosen for pre-training.
"""

from dataclasses import dataclass
from typing import Literal

from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import find
from t5suite.data.corpora.sources import STREAMED_BY_DEFAULT
from t5suite.data.objectives import OBJECTIVES
from t5suite.models.vocabulary import MODE_TOKENS
from t5suite.training.flags.fields import facts, facts_of, flag
from t5suite.training.flags.fine_tuning import ModeArguments, ModelArguments, SuiteTrainingArguments
from t5suite.training.flags.plug_ins import TrainingPlugIns

OWN_TEXT_INPUTS_LENGTH = 512
BUNDLED_TEXT_INPUTS_LENGTH = 64
# Objectives that learn to predict the end of a document.
SEPARATED = ("causal_lm", "full_lm")
SELECTION_METRICS = (None, "loss", "nll", "perplexity")


@dataclass
class TextArguments:
    """The training text: files, built corpora, or a stream. Without any of these flags, the bundled text."""

    shared_facts = facts(theme="text")

    train_file: list[str] | None = flag(
        None,
        "Text: files (.txt, .jsonl, .parquet, .gz, .zst), folders, patterns, or hub:NAME:CONFIG:SPLIT.",
        "common intro",
        needs="training files",
    )
    validation_file: list[str] | None = flag(
        None, "Text to evaluate on. Default: --validation_fraction of the documents.", "common"
    )
    train_corpus: list[str] | None = flag(
        None, "Folders of t5suite corpus build or adopt, in place of --train_file.", "common"
    )
    corpus_weights: list[float] | None = flag(
        None,
        "How often each corpus or file is drawn from. Default: by size.",
        bounds="(0, inf) a weight",
        needs="several corpora",
    )
    streaming: bool = flag(False, "Tokenize while training, for large text; needs --max_steps.", "common")
    shuffle_buffer_size: int = flag(
        16384, "Blocks of a stream that are shuffled together.", bounds="[1, inf) rows", needs="a stream"
    )
    num_virtual_streams: int = flag(
        64, "A multiple of ranks x --dataloader_num_workers.", bounds="[1, inf) streams", needs="a stream"
    )
    text_column_name: str = flag("text", "The text's column in .jsonl, .parquet or a hub dataset.", needs="columns")
    text_unit: Literal["line", "paragraph", "file"] = flag(
        "line", "What a document is in a .txt file.", needs="plain text"
    )
    bad_lines: Literal["error", "skip"] = flag(
        "error", "A line that cannot be read ends the run, or is counted and left out.", needs="reading"
    )
    validation_fraction: float = flag(
        0.05, "Share of documents held out without --validation_file.", bounds="(0, 1) a share", needs="a held-out part"
    )
    max_eval_samples: int | None = flag(
        None,
        "At most this many blocks are evaluated. Default: all; of a stream without --validation_file 1024.",
        bounds="[1, inf) rows",
    )

    def __post_init__(self):
        if self.train_file and self.train_corpus:
            raise ConfigError("--train_file and --train_corpus: give one of them")
        if self.streaming and self.train_corpus:
            raise ConfigError("--streaming with --train_corpus: a built corpus is tokenized already; leave one out")
        if self.streaming and not self.train_file:
            self.train_file = [STREAMED_BY_DEFAULT]
        num_corpora = len(self.train_corpus or self.train_file or ())
        if self.corpus_weights is not None and len(self.corpus_weights) != num_corpora:
            raise ConfigError(
                f"--corpus_weights has {len(self.corpus_weights)} numbers for {num_corpora} --train_file or "
                "--train_corpus: give one for each"
            )

    @property
    def bundled(self) -> bool:
        """Whether the bundled text is used."""
        return not (self.train_file or self.validation_file or self.train_corpus)


@dataclass
class ObjectiveArguments:
    """The pre-training objective: what is masked, and the form of the targets."""

    shared_facts = facts(theme="objective")

    objective: str = flag("span_corruption", ", ".join(OBJECTIVES) + ".", "common intro", needs="blocks")
    inputs_length: int | None = flag(
        None,
        "Input tokens of a block. Default: 512; of the bundled text 64.",
        "common report",
        bounds="[4, inf) tokens",
        needs="blocks",
    )
    targets_length: int | None = flag(
        None, "Target tokens of a block. Default: as many as the objective makes.", "report", bounds="[1, inf) tokens"
    )
    noise_density: float | None = flag(None, "Share of tokens hidden (T5: 0.15).", "report", bounds="(0, 1) a share")
    mean_span_length: float | None = flag(None, "Mean length of a span (T5: 3).", "report", bounds="[1, inf) tokens")
    mode_tokens: str | None = flag(None, "UL2's mode tokens: '[NLU],[S2S],[NLG]', or none. Default: [R],[S],[X].")
    mask_units: Literal["token", "word", "ngram", "pmi", "span"] | None = flag(
        None, "What masked_lm (default: token) and unit_denoising (default: word) hide as a whole."
    )
    collocations: str | None = flag(
        None, "The table of --mask_units pmi, made by t5suite corpus collocations.", "fresh"
    )
    sentence_pairs: Literal["next", "order"] | None = flag(
        None, "masked_lm also learns which sentences follow each other: next (BERT) or order (ALBERT)."
    )
    sentence_language: str = flag(
        "en", "How sentences of a --train_file are told apart: a language.", needs="sentence pairs, reading"
    )
    document_separator: Literal["none", "eos"] | None = flag(
        None, "Between documents. Default: eos for causal_lm and full_lm, else none.", needs="reading, blocks"
    )
    pack: bool = flag(False, "Several short examples in one row, which do not see each other.")

    def __post_init__(self):
        find(self.objective, OBJECTIVES, "objective", where="--objective")
        if self.mode_tokens not in (None, "none"):
            modes = listed_modes(self.mode_tokens)
            if len(modes) != 3 or len(set(modes)) != 3 or "" in modes:
                example = ",".join(MODE_TOKENS)
                raise ConfigError(
                    f"--mode_tokens {self.mode_tokens}: give three that differ, such as {example}, or none"
                )

    @property
    def modes(self) -> tuple[str, ...]:
        """The tokens of UL2's modes R, S and X; empty for other objectives."""
        if self.objective != "ul2" or self.mode_tokens == "none":
            return ()
        return listed_modes(self.mode_tokens) if self.mode_tokens else MODE_TOKENS

    @property
    def separator(self) -> str:
        """The separator between documents."""
        return self.document_separator or ("eos" if self.objective in SEPARATED else "none")


def listed_modes(mode_tokens: str) -> tuple[str, ...]:
    """The tokens of a comma list.

    >>> listed_modes("[NLU], [S2S], [NLG]")
    ('[NLU]', '[S2S]', '[NLG]')
    """
    return tuple(token.strip() for token in mode_tokens.split(","))


@dataclass
class RunArguments(ModeArguments, TrainingPlugIns):
    """How the run proceeds, and its plug-ins."""

    shared_facts = facts(theme="evaluation")

    dry_run: bool = flag(False, "Show settings and steps.", "common fresh", change="nothing", python="tuner.summary()")


def reconcile(arguments) -> None:
    """Settles what depends on several groups: the default of `--inputs_length`.

    Args:
      arguments: an instance of each of PRE_TRAINING_ARGUMENTS.

    Raises:
      ConfigError: there is text to evaluate on, but none to train on; a stream without an end, or counted in epochs;
        sentence pairs of a stream; quantized matrices.
    """
    model, text, objective, run, training = arguments
    for name in ("load_in_8bit", "load_in_4bit"):
        if getattr(model, name):
            raise ConfigError(f"--{name}: pre-training trains the matrices themselves; leave it out")
    if objective.inputs_length is None:
        objective.inputs_length = BUNDLED_TEXT_INPUTS_LENGTH if text.bundled else OWN_TEXT_INPUTS_LENGTH
    if text.validation_file and not (text.train_file or text.train_corpus or run.eval_only):
        raise ConfigError(f"--validation_file {' '.join(text.validation_file)} needs a --train_file beside it")
    if text.streaming and training.max_steps <= 0 and not run.eval_only:
        raise ConfigError(
            f"--streaming with --max_steps {training.max_steps}: a stream has no end, so give the number of steps"
        )
    if text.streaming and not run.eval_only:
        _refuse_epochs(training)
    if text.streaming and objective.sentence_pairs:
        raise ConfigError(
            f"--sentence_pairs {objective.sentence_pairs} with --streaming: pairs are drawn from text that is "
            "tokenized first; leave --streaming out (--train_file, or --train_corpus)"
        )


def _refuse_epochs(training) -> None:
    """Raises ConfigError where evaluations, checkpoints or log lines wait for the end of an epoch of a stream."""
    for action in ("eval", "save", "logging"):
        if getattr(training, f"{action}_strategy") == "epoch":
            raise ConfigError(
                f"--streaming with --{action}_strategy epoch: a stream is one epoch, which ends with the last step; "
                f"give --{action}_strategy steps --{action}_steps N"
            )


@dataclass
class PreTrainerArguments(SuiteTrainingArguments):
    """Hugging Face's training arguments, with defaults that suit pre-training."""

    output_dir: str | None = flag(
        None, "The run's directory. Default: runs/pre_train-MODEL, or the next free one (-2, -3)."
    )
    learning_rate: float = flag(3e-3, "The largest. Suits small models; with 60M parameters or more take about 1e-3.")
    per_device_train_batch_size: int = flag(16, "Blocks a device takes at once.")
    per_device_eval_batch_size: int = flag(32, "Blocks a device evaluates at once.")
    warmup_steps: float = flag(0.1, "Steps, or a share of all steps, to the full rate.")
    num_train_epochs: float = flag(3.0, "Passes over the training text.")
    eval_strategy: IntervalStrategy | str = flag("steps", "no, steps or epoch.")
    eval_steps: float | None = flag(0.1, "Steps, or a share of all steps, between two evaluations.")
    save_strategy: SaveStrategy | str = flag("steps", "no, steps, epoch or best.")
    save_steps: float = flag(0.1, "Steps, or a share of all steps, between two checkpoints.")
    load_best_model_at_end: bool = flag(False, "End with the best checkpoint; off: with the last.")
    metric_for_best_model: str | None = flag(None, "loss, the only one there is.")
    train_sampling_strategy: str = flag("random", "random: every pass has an order of its own. ")
    logging_steps: float = flag(10, "Steps between two lines of metrics.jsonl.")

    def __post_init__(self):
        super().__post_init__()
        if self.metric_for_best_model not in SELECTION_METRICS:
            raise ConfigError(f"--metric_for_best_model {self.metric_for_best_model}: pre-training is selected by loss")
        if self.train_sampling_strategy != "random":
            raise ConfigError(
                f"--train_sampling_strategy {self.train_sampling_strategy}: blocks are equally long and read in "
                "random order; leave the flag out"
            )
        for name, facts_of_flag in facts_of(type(self)).items():
            if "generates" in facts_of_flag.get("marks", "") and getattr(self, name):
                raise ConfigError(f"--{name} {getattr(self, name)}: pre-training generates nothing; leave it out")

    def _check_direction(self, metric: str | None) -> None:
        """Any: pre-training is selected by loss, whose lowest value is the best."""


PRE_TRAINING_ARGUMENTS = (ModelArguments, TextArguments, ObjectiveArguments, RunArguments, PreTrainerArguments)

"""What a pre-training run trains on and is scored on: blocks of text, sentence pairs, or a stream.

    >>> data = data_of_text(arguments, text, tokenizer, train_collator)
    >>> data.examples.counts()
    {'an_epoch': 640, 'held_out': 33}

`pre_training_text` tokenizes files, `pre_training_streams` reads them during training.
"""

import logging
import sys
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from torch.utils.data import Dataset, Subset

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.lookup import load_object
from t5suite.data.corpora.block_layout import BlockLayout
from t5suite.data.corpora.blocks import BlockDataset, BlocksInOrder, MixedBlocks, spread
from t5suite.data.corpora.corpus_plan import separator_token_id
from t5suite.data.corpora.encoding import control_ids
from t5suite.data.streams.loader import StreamLoader
from t5suite.training.flags.pre_training import SEPARATED
from t5suite.training.pre_training_evaluation import HeldOut
from t5suite.training.pre_training_streams import StreamedText, make_stream_loader
from t5suite.training.pre_training_text import Text, TextSettings, corpus_directory, tokenized_anew_if_allowed
from t5suite.training.processes.ranks import Ranks

# Lines of the log name the step, whichever module of it writes them.
logger = logging.getLogger("t5suite.training.pre_training")

# How many blocks of a stream are scored by default.
STREAMED_EVAL_SAMPLES = 1024
# ByT5's ids of bytes that never occur in UTF-8 text, 0xF5 to 0xFF: its first sentinels.
UNUSED_BYTES = frozenset(range(248, 259))


@dataclass
class Examples:
    """What a run trains on and is scored on.

    `train` is endless, with indices that run on through all epochs; it is None for a stream or without training.
    """

    train: Dataset | None
    held_out: HeldOut
    blocks_an_epoch: int = 0

    def counts(self) -> dict[str, int]:
        """What the manifest says about them."""
        return {"an_epoch": self.blocks_an_epoch, "held_out": len(self.held_out.examples)}


class PreTrainingData(NamedTuple):
    """The data of a run: what the manifest says of them, the examples, and the stream, which is None for files."""

    described: dict
    examples: Examples
    stream: StreamLoader | None


@dataclass(frozen=True)
class Scoring:
    """How held-out text is scored.

    Attributes:
      control_ids: ids that are not text (`ids_without_text`).
      max_samples: the most blocks; None: all.
    """

    control_ids: Collection[int] = frozenset()
    max_samples: int | None = None


SCORE_ALL = Scoring()


def data_of_text(arguments, text: Text, tokenizer, collator) -> PreTrainingData:
    """The data of tokenized text: blocks of it, or sentence pairs."""
    _, text_args, objective_args, run_args, args = arguments
    if text_args.train_corpus and not run_args.eval_only:
        warn_of_missing_ends(text.described, objective_args.objective, objective_args.separator)
        warn_of_other_separators(text.described, tokenizer)
    scoring = Scoring(ids_without_text(tokenizer), text_args.max_eval_samples)
    if objective_args.sentence_pairs:
        examples = pair_data(text, collator, seed=args.order_seed, scoring=scoring)
    else:
        weights = text_args.corpus_weights
        examples = block_data(text, collator, seed=args.order_seed, weights=weights, scoring=scoring)
    return PreTrainingData({**text.described, "examples": examples.counts()}, examples, None)


def streamed_data(arguments, tokenizer, train_collator, eval_collator) -> PreTrainingData:
    """The data of `--streaming`: text that is tokenized during training, and the blocks of it that are scored."""
    _, text_args, _, run_args, args = arguments
    streamed = StreamedText.by_flags(text_args, TextSettings.by_flags(arguments))
    scoring = Scoring(ids_without_text(tokenizer), text_args.max_eval_samples)
    directory = corpus_directory(args)
    ranks = Ranks.of_process()
    described, examples = held_out_of_stream(args, streamed, tokenizer, directory, eval_collator, scoring, ranks)
    stream = None if run_args.eval_only else make_stream_loader(streamed, tokenizer, train_collator, args)
    return PreTrainingData(described, examples, stream)


def warn_of_missing_ends(described: dict, objective: str, separator: str) -> None:
    """Warns if an objective that learns where documents end trains on a corpus that was built without their ends.

    Args:
      described: what the manifest says of each corpus, by its name.
      separator: what is between the documents of text that the run itself reads.
    """
    if objective not in SEPARATED or separator == "none":
        return
    for name, corpus in described.items():
        if name.startswith("train") and corpus["settings"]["document_separator"] == "none":
            logger.warning(
                "--train_corpus %s was built without ends of documents, which --objective %s learns; build it again "
                "with --document_separator eos",
                corpus["path"],
                objective,
            )


def warn_of_other_separators(described: dict, tokenizer) -> None:
    """Warns if documents of a `--validation_file` end otherwise than those of a corpus that was built before.

    Args:
      described: what the manifest says of each corpus, by its name.
    """
    if "validation" not in described:
        return
    scored_separator = described["validation"]["settings"]["document_separator"]
    scored_id = separator_token_id(scored_separator, tokenizer)
    for name, corpus in described.items():
        separator = corpus["settings"]["document_separator"]
        if name != "validation" and separator_token_id(separator, tokenizer) != scored_id:
            logger.warning(
                "documents of --train_corpus %s end with --document_separator %s, those of --validation_file with %s: "
                "its score is of text that differs from training's; give both the same",
                corpus["path"],
                separator,
                scored_separator,
            )


def ids_without_text(tokenizer) -> frozenset[int]:
    """Ids that are not text: sentinels, end of sequence, modes; an unknown piece is text.

    >>> sorted(ids_without_text(t5_tokenizer))[:3]
    [0, 1, 32000]
    """
    unused_ids = UNUSED_BYTES if type(tokenizer).__name__ == "ByT5Tokenizer" else frozenset()
    return unused_ids | control_ids(tokenizer)


def blocks_to_score(rows: list, collator, scoring: Scoring) -> HeldOut:
    """Rows of held-out tokens as blocks, as long as the collator's objective takes them."""
    try:
        blocks = BlocksInOrder(
            rows,
            lengths=tuple(collator.tokens_lengths),
            weights=tuple(collator.weights),
            limit=scoring.max_samples,
        )
    except DataError as error:
        raise DataError(f"the held-out text (--validation_fraction, --validation_file): {error}") from None
    return HeldOut(blocks, scoring.control_ids)


def block_data(text: Text, collator, *, seed: int, weights=None, scoring: Scoring = SCORE_ALL) -> Examples:
    """Blocks as long as the collator's objective takes them.

    Args:
      weights: how often each corpus is drawn; None: as often as it has blocks.
    """
    held_out = blocks_to_score(text.validation, collator, scoring)
    if not text.train:
        return Examples(None, held_out)
    lengths = tuple(collator.tokens_lengths)
    layouts = [BlockLayout(len(tokens), lengths=lengths, weights=tuple(collator.weights)) for tokens in text.train]
    if len(text.train) == 1:
        train = BlockDataset(text.train[0], layouts[0], seed, sys.maxsize)
        return Examples(train, held_out, layouts[0].num_blocks)
    train = MixedBlocks(text.train, layouts, weights, seed)
    return Examples(train, held_out, train.num_blocks)


def pair_data(text: Text, collator, *, seed: int, scoring: Scoring = SCORE_ALL) -> Examples:
    """Sentence pairs for an encoder-only model."""
    if len(text.train) > 1 or len(text.validation) > 1:
        raise ConfigError("--sentence_pairs reads one corpus: build one from all the files")
    make_pairs = load_object("t5suite.contrib.sentence_pairs:sentence_pairs", "--sentence_pairs")

    def pairs(tokens, seed, num_examples=None):
        settings = (collator.inputs_length, collator.cls_token_id, collator.sep_token_id, collator.sentence_pairs)
        return make_pairs(tokens, *settings, seed, num_examples)

    validation = pairs(text.validation[0], seed=0)
    sample = Subset(validation, spread(len(validation), scoring.max_samples))
    held_out = HeldOut(sample, scoring.control_ids)
    if not text.train:
        return Examples(None, held_out)
    train = pairs(text.train[0], seed, sys.maxsize)
    return Examples(train, held_out, train.num_pairs)


def held_out_of_stream(
    args, streamed: StreamedText, tokenizer, directory: Path, collator, scoring: Scoring, ranks: Ranks
) -> tuple[dict, Examples]:
    """`(what the manifest says, what is scored)`, for text that is tokenized during training.

    Without validation files, the first documents of every corpus that the hash rule holds out are scored, as many as it
    takes for `scoring.max_samples` blocks; training skips these and all other held-out documents. Rank 0 reads them for
    all ranks.
    """
    described = streamed.describe()
    settings = streamed.settings
    if settings.validation_files:
        with ranks.main_first():
            text = tokenized_anew_if_allowed(args, tokenizer, directory, settings, trains=False)
        rows = text.validation
        described |= text.described
    else:
        num_blocks = scoring.max_samples or STREAMED_EVAL_SAMPLES
        block_length = max(collator.tokens_lengths)
        rows = ranks.together_without_limit(streamed.held_out_tokens, tokenizer, num_blocks, block_length)
        scoring = replace(scoring, max_samples=num_blocks)  # of shorter blocks, these tokens make more
    examples = Examples(None, blocks_to_score(rows, collator, scoring))
    described["examples"] = examples.counts()
    return described, examples

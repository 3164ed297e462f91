"""The text of a pre-training run: where it comes from, what is held out, and the examples that it becomes.

    >>> text = tokenized_text(tokenizer, "runs/x/corpus", TextOptions(), train_files=["articles.jsonl.gz"])
    >>> block_data(text, collator, seed=42).counts()
    {'an_epoch': 640, 'held_out': 33}

Files are tokenized once, into the run's directory; a corpus that `t5suite corpus build` made is mapped in place. Whole
documents are held out, chosen by their text, so that no training example ever contains a part of one.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch.utils.data import Dataset, Subset

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.lookup import load_object
from t5suite.data.corpora.blocks import BlockDataset, BlockLayout, BlocksInOrder, MixedBlocks, spread
from t5suite.data.corpora.building import build_corpus
from t5suite.data.corpora.documents import bundled_text
from t5suite.data.corpora.encoding import make_text_encoder
from t5suite.data.corpora.readers import TextOptions
from t5suite.data.corpora.store import TokenStore
from t5suite.data.corpora.stream_loader import StreamLoader, held_out_documents
from t5suite.data.corpora.streams import StreamCorpus, StreamSettings, open_source, stream_encoder
from t5suite.training.pre_training_evaluation import HeldOut

# How many blocks of a stream are scored by default.
STREAMED_EVAL_SAMPLES = 1024
DOCUMENTS_AT_ONCE = 64


class Text(NamedTuple):
    """Rows of tokens to train on, one for each corpus, held-out rows, and what the manifest says of each corpus."""

    train: list
    validation: list
    described: dict[str, dict]


def tokenized_text(
    tokenizer,
    directory,
    options: TextOptions,
    *,
    train_files: Sequence[str] = (),
    validation_files: Sequence[str] = (),
    corpora: Sequence[str] = (),
    apart: bool = False,
    validation_fraction: float = 0.05,
    document_separator: str = "none",
    split_sentences: str | None = None,
    tokenizer_engine: str = "auto",
    trains: bool = True,
) -> Text:
    """The text of files (by default the bundled one), or of built corpora, as memory-mapped rows of tokens.

    Args:
      directory: where text that is tokenized here is stored.
      apart: every entry of `train_files` is a separate corpus, to be mixed by weight.
      split_sentences: a language, where sentence pairs are to be made.
    """
    if not (train_files or validation_files or corpora):
        train_files, validation_files = [str(bundled_text("train"))], [str(bundled_text("validation"))]

    def built(files, name, fraction):
        return build_corpus(
            files,
            Path(directory) / name,
            tokenizer,
            options=options,
            validation_fraction=fraction,
            document_separator=document_separator,
            split_sentences=split_sentences,
            tokenizer_engine=tokenizer_engine,
        )

    fraction = 0.0 if validation_files else validation_fraction
    groups = [[name] for name in corpora or train_files] if apart or corpora else [list(train_files)]
    stores = {}
    for number, group in enumerate(groups if corpora or (train_files and (trains or not validation_files)) else ()):
        name = "train" if len(groups) == 1 else f"train-{number}"
        stores[name] = TokenStore.open(group[0]).check_once() if corpora else built(group, name, fraction)
        stores[name].check_tokenizer(tokenizer)
    held_out = list(stores.values())
    train = [store.split("train") for store in held_out] if trains else []
    if validation_files:
        stores["validation"] = built(validation_files, "validation", 1.0)
        held_out = [stores["validation"]]
    for store in held_out:
        if not store.manifest["splits"]["validation"]["tokens"]:
            raise DataError(
                f"{store.directory}: no document is held out at --validation_fraction {fraction}; raise it, or give a "
                "--validation_file"
            )
    names = ("sources", "splits", "tokenizer", "settings")
    described = {
        name: {"path": str(store.directory), **{key: store.manifest[key] for key in names}}
        for name, store in stores.items()
    }
    return Text(train, [store.split("validation") for store in held_out], described)


# ---------------------------------------------------------------------------------------------------------------------
# Examples


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


def block_data(
    text: Text, collator, *, seed: int, weights=None, control_ids=frozenset(), max_eval_samples: int | None = None
) -> Examples:
    """Blocks as long as the collator's objective takes them."""
    shape = {"lengths": tuple(collator.tokens_lengths), "weights": tuple(collator.weights)}
    held_out = HeldOut(BlocksInOrder(text.validation, **shape, limit=max_eval_samples), control_ids)
    if not text.train:
        return Examples(None, held_out)
    layouts = [BlockLayout(len(tokens), **shape) for tokens in text.train]
    if len(text.train) == 1:
        train = BlockDataset(text.train[0], layouts[0], seed, sys.maxsize)
        return Examples(train, held_out, layouts[0].num_blocks)
    train = MixedBlocks(text.train, layouts, weights, seed)
    return Examples(train, held_out, train.num_blocks)


def pair_data(text: Text, collator, *, seed: int, control_ids=frozenset(), max_eval_samples=None) -> Examples:
    """Sentence pairs for an encoder-only model."""
    if len(text.train) > 1:
        raise ConfigError("--sentence_pairs reads one corpus: build one from all the files")
    make_pairs = load_object("t5suite.contrib.sentence_pairs:sentence_pairs", "--sentence_pairs")

    def pairs(tokens, seed, num_examples=None):
        settings = (collator.inputs_length, collator.cls_token_id, collator.sep_token_id, collator.sentence_pairs)
        return make_pairs(tokens, *settings, seed, num_examples)

    validation = pairs(text.validation[0], seed=0)
    held_out = HeldOut(Subset(validation, spread(len(validation), max_eval_samples)), control_ids)
    if not text.train:
        return Examples(None, held_out)
    train = pairs(text.train[0], seed, sys.maxsize)
    return Examples(train, held_out, train.num_pairs)


# ---------------------------------------------------------------------------------------------------------------------
# Streams


def stream_data(
    tokenizer,
    directory,
    options: TextOptions,
    train_collator,
    eval_collator,
    args,
    *,
    inputs: Sequence[Sequence[str]],
    weights=None,
    validation_files: Sequence[str] = (),
    validation_fraction: float = 0.05,
    document_separator: str = "none",
    num_virtual_streams: int = 64,
    buffer_size: int = 16384,
    tokenizer_engine: str = "auto",
    control_ids=frozenset(),
    max_eval_samples: int | None = None,
    trains: bool = True,
) -> tuple[dict, Examples, StreamLoader | None]:
    """Text that is tokenized during training: `(what the manifest says, what is scored, the stream)`.

    Without validation files, the first documents that the hash rule holds out are scored, as many as it takes for
    `max_eval_samples` blocks; training skips these and all other held-out documents.

    Args:
      args: the training arguments: batch size, seed, ranks, workers.
      inputs: the files of each corpus.
    """
    sources = [open_source(group, options) for group in inputs]
    separator_id = tokenizer.eos_token_id if document_separator == "eos" else None
    described = {f"stream-{number}": source.describe() for number, source in enumerate(sources)}
    shape = {"lengths": tuple(eval_collator.tokens_lengths), "weights": tuple(eval_collator.weights)}
    if validation_files:
        text = tokenized_text(
            tokenizer,
            directory,
            options,
            validation_files=validation_files,
            document_separator=document_separator,
            tokenizer_engine=tokenizer_engine,
            trains=False,
        )
        rows, described = text.validation, {**described, **text.described}
    else:
        limit = max_eval_samples or STREAMED_EVAL_SAMPLES
        documents = held_out_documents(sources[0], validation_fraction)
        encoder = make_text_encoder(tokenizer, tokenizer_engine)
        rows = [_joined_tokens(documents, encoder, separator_id, limit * max(shape["lengths"]))]
    held_out = HeldOut(BlocksInOrder(rows, **shape, limit=max_eval_samples), control_ids)
    examples = Examples(None, held_out)
    described["examples"] = examples.counts()
    if not trains:
        return described, examples, None
    settings = StreamSettings(
        tuple(train_collator.tokens_lengths),
        tuple(train_collator.weights),
        args.seed,
        num_virtual_streams,
        buffer_size,
        0.0 if validation_files else validation_fraction,
        separator_id,
    )
    loader = StreamLoader(
        [StreamCorpus(source, weight) for source, weight in zip(sources, weights or [1.0] * len(sources), strict=True)],
        stream_encoder(tokenizer, sources, tokenizer_engine),
        settings,
        train_collator,
        args.per_device_train_batch_size,
        rank=args.process_index,
        world_size=args.world_size,
        num_workers=args.dataloader_num_workers,
    )
    return described, examples, loader


def _joined_tokens(documents: Iterator[str], encoder, separator_id: int | None, num_tokens: int) -> np.ndarray:
    """The first tokens of documents, each with the separator behind it, as a stream joins them for training."""
    end = [] if separator_id is None else [separator_id]
    tokens: list[int] = []
    while len(tokens) < num_tokens and (texts := list(islice(documents, DOCUMENTS_AT_ONCE))):
        for ids in encoder.encode(texts):
            tokens += [*ids, *end]
    return np.array(tokens[:num_tokens], dtype=np.int32)

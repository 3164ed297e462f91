"""Text that is tokenized during training (`--streaming`): its sources, and the loader that makes blocks of them.

>>> streamed = StreamedText.by_flags(text_args, settings)
>>> loader = make_stream_loader(streamed, tokenizer, collator, args)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from t5suite.data.corpora.corpus_plan import separator_token_id
from t5suite.data.corpora.encoding import TextEncoder
from t5suite.data.streams.encoder import stream_encoder
from t5suite.data.streams.loader import StreamLoader, held_out_documents
from t5suite.data.streams.settings import StreamCorpus, StreamSettings
from t5suite.data.streams.sources import open_source
from t5suite.training.pre_training_text import TextSettings

# How many documents are tokenized at once.
DOCUMENTS_AT_ONCE = 64


@dataclass(frozen=True)
class StreamedText:
    """The text of a stream.

    Attributes:
      sources: one for each corpus.
      weights: how often each corpus is drawn.
      num_virtual_streams, buffer_size: as in `StreamSettings`.
    """

    sources: Sequence
    weights: Sequence[float]
    settings: TextSettings
    num_virtual_streams: int = 64
    buffer_size: int = 16384

    @classmethod
    def by_flags(cls, text_args, settings: TextSettings) -> "StreamedText":
        """The files of `--train_file`: with `--corpus_weights`, each is a corpus."""
        weights = text_args.corpus_weights
        groups = [[name] for name in text_args.train_file] if weights else [text_args.train_file]
        sources = [open_source(group, settings.options) for group in groups]
        return cls(
            sources,
            weights or [1.0] * len(sources),
            settings,
            text_args.num_virtual_streams,
            text_args.shuffle_buffer_size,
        )

    def describe(self) -> dict[str, dict]:
        """What the manifest says of the sources."""
        return {f"stream-{number}": source.describe() for number, source in enumerate(self.sources)}

    def separator_id(self, tokenizer) -> int | None:
        """The id of the token after every document; None if there is none.

        Raises:
          ConfigError: the tokenizer has no end token.
        """
        return separator_token_id(self.settings.document_separator, tokenizer)

    def encoder(self, tokenizer) -> TextEncoder:
        """The encoder of all documents, those that are held out and those that are trained on."""
        return stream_encoder(tokenizer, self.sources, self.settings.tokenizer_engine)

    def held_out_tokens(self, tokenizer, num_blocks: int, block_length: int) -> list[np.ndarray]:
        """The first tokens of every corpus's held-out documents: as many blocks as its weight says, at least one."""
        encoder = self.encoder(tokenizer)
        separator_id = self.separator_id(tokenizer)
        rows = []
        for source, weight in zip(self.sources, self.weights, strict=True):
            blocks_of_source = max(1, round(num_blocks * weight / sum(self.weights)))
            rows.append(self._held_out_of_source(source, encoder, separator_id, blocks_of_source * block_length))
        return rows

    def _held_out_of_source(
        self, source, encoder: TextEncoder, separator_id: int | None, num_tokens: int
    ) -> np.ndarray:
        """The first tokens of a source's held-out documents, joined as a stream joins them for training."""
        documents = held_out_documents(source, self.settings.validation_fraction)
        end = [] if separator_id is None else [separator_id]
        tokens: list[int] = []
        while len(tokens) < num_tokens:
            texts = list(islice(documents, DOCUMENTS_AT_ONCE))
            if not texts:
                break
            for ids in encoder.encode(texts):
                if ids:
                    tokens += [*ids, *end]
        return np.array(tokens[:num_tokens], dtype=np.int32)


def make_stream_loader(streamed: StreamedText, tokenizer, collator, args) -> StreamLoader:
    """The loader of this rank's blocks.

    Args:
      args: the training arguments: batch size, seed of the order, ranks, workers.
    """
    settings = StreamSettings(
        tuple(collator.tokens_lengths),
        tuple(collator.weights),
        args.order_seed,
        streamed.num_virtual_streams,
        streamed.buffer_size,
        streamed.settings.held_out_fraction,
        streamed.separator_id(tokenizer),
    )
    corpora = [StreamCorpus(source, weight) for source, weight in zip(streamed.sources, streamed.weights, strict=True)]
    return StreamLoader(
        corpora,
        streamed.encoder(tokenizer),
        settings,
        collator,
        args.per_device_train_batch_size,
        rank=args.process_index,
        world_size=args.world_size,
        num_workers=args.dataloader_num_workers,
    )

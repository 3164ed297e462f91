"""The documents of one corpus that one virtual stream trains on, tokenized, pass after pass.

    >>> documents = StreamDocuments(open_source(["articles.jsonl"]), encoder, settings, Share(3, 64))
    >>> next(documents)
    ({'epoch': 0, 'source': [0, 48113, 0], 'counts': {'documents': 0, ...}}, array([8774, 296, 541, ...], dtype=int32))

Text is read ahead of the blocks that are made of it. So every document carries the counts before it, and `counts` are
those up to the last document that was taken.
"""

from collections.abc import Iterator

import numpy as np

from t5suite.base.errors import DataError
from t5suite.data.corpora.held_out import is_held_out
from t5suite.data.streams.settings import StreamSettings
from t5suite.data.streams.shares import Share
from t5suite.data.streams.sources import Item

# Text given to the tokenizer at once: enough for its batched path, but little is read ahead.
CHARACTERS_AT_ONCE = 1 << 16
NO_COUNTS = {"documents": 0, "tokens": 0, "held_out": 0, "empty": 0, "bad": 0}


class StreamDocuments(Iterator):
    """`(where it begins, ids)` of each document of a share of a source, without end; those without tokens are dropped.

    Args:
      position: where to begin: `{"epoch", "source", "counts"}`, as it came with a document; None or {}: at the start.
      report: called with every bad line or row, a `BadRecord`.

    Attributes:
      counts: what was read up to the last document that was taken, by kind.

    Raises:
      DataError: a bad line, unless the source skips those; a pass without any text.
    """

    def __init__(self, source, encoder, settings: StreamSettings, share: Share, position=None, report=None):
        position = position or {}
        self.source = source
        self.encoder = encoder
        self.settings = settings
        self.share = share
        self.report = report or (lambda bad_record: None)
        self.counts = dict(position.get("counts", NO_COUNTS))
        self._counts_ahead = dict(self.counts)
        self._documents = self._passes(position.get("epoch", 0), position.get("source"))

    def __next__(self) -> tuple[dict, np.ndarray]:
        return next(self._documents)

    def _passes(self, epoch: int, position) -> Iterator[tuple[dict, np.ndarray]]:
        empty_passes = 0
        most_empty_passes = self.source.most_empty_passes(self.share.count)
        while True:
            tokens_before = self._counts_ahead["tokens"]
            for batch in self._batches(self.source.read(self.share, epoch, position, self.settings.seed)):
                yield from self._tokenized(epoch, batch)
            is_empty = self._counts_ahead["tokens"] == tokens_before and position is None
            empty_passes = empty_passes + 1 if is_empty else 0
            if empty_passes > most_empty_passes:
                raise self._no_text()
            epoch += 1
            position = None

    def _no_text(self) -> DataError:
        counts = ", ".join(f"{number} {kind.replace('_', ' ')}" for kind, number in self._counts_ahead.items())
        return DataError(
            f"virtual stream {self.share.index} of {self.share.count} finds nothing to train on in {self.source!r}: "
            f"{counts}. Lower --num_virtual_streams (a stream takes every {self.share.count}th document or fewer), or "
            "give more text"
        )

    def _batches(self, items: Iterator[Item]) -> Iterator[list]:
        """Documents to train on, each with the counts before it, in batches that are tokenized at once."""
        batch = []
        characters = 0
        for item in items:
            kind = self._kind(item)
            if kind == "documents":
                batch.append((item, dict(self._counts_ahead)))
                characters += len(item.text)
            self._counts_ahead[kind] += 1
            if characters >= CHARACTERS_AT_ONCE:
                yield batch
                batch = []
                characters = 0
        if batch:
            yield batch

    def _kind(self, item: Item) -> str:
        if item.bad_record:
            if self.source.bad_lines == "error":
                raise DataError(item.bad_record.description())
            self.report(item.bad_record)
            return "bad"
        if item.text is None:
            return "empty"
        return "held_out" if is_held_out(item.text, self.settings.validation_fraction) else "documents"

    def _tokenized(self, epoch: int, batch: list) -> Iterator[tuple[dict, np.ndarray]]:
        """The documents' ids and where each begins."""
        end = [] if self.settings.separator_id is None else [self.settings.separator_id]
        ids_of_documents = self.encoder.encode([item.text for item, _ in batch])
        for (item, counts), ids in zip(batch, ids_of_documents, strict=True):
            if not len(ids):
                continue
            ids = np.asarray([*ids, *end] if end else ids, dtype=np.int32)
            counts["tokens"] = self._counts_ahead["tokens"]
            self._counts_ahead["tokens"] += len(ids)
            self.counts = {**counts, "documents": counts["documents"] + 1, "tokens": counts["tokens"] + len(ids)}
            yield {"epoch": epoch, "source": list(item.position), "counts": counts}, ids

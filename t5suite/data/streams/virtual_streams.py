"""Text -> blocks of tokens, shuffled, from any position: the virtual streams of a run.

    >>> source = open_source(["articles.jsonl", "books/"])
    >>> for item in source.read(Share(3, 64)):
    ...     print(item)
    Item(position=(0, 48113, 0), text='The centre of the city is old.', problem=None)
    >>> stream = VirtualStream([StreamCorpus(source)], encode, settings, index=5)
    >>> next(stream)
    Block(tokens=array([8774, 296, 541, ...], dtype=int32), denoiser=0, corpus=0, window={...}, given=1)

A run's text is cut into V virtual streams, whatever the number of processes that read them; run-long datum j is the
next block of stream j % V. A stream reads its share of every corpus in endless passes: its documents are tokenized,
joined without a separator (or with one) across documents and passes, and cut into blocks.

Shuffling is by windows: window w holds the next `buffer_size / V` blocks, in an order drawn from (seed, stream, w). A
position therefore does not contain a buffer: it is the place where the window begins and how many of its blocks have
been returned. The first windows of different streams have different lengths, so that they do not all end at once.
"""

import logging
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from t5suite.base.errors import DataError
from t5suite.data.corpora.corpus_mixture import CorpusMixture
from t5suite.data.corpora.held_out import is_held_out
from t5suite.data.streams.settings import StreamCorpus, StreamSettings
from t5suite.data.streams.shares import Share
from t5suite.data.streams.sources import Item

logger = logging.getLogger(__name__)
# Text given to the tokenizer at once: enough for its batched path, but little is read ahead.
CHARACTERS_AT_ONCE = 1 << 16
# Draws per chunk of a virtual stream's mixture of corpora; there are V streams, so chunks may be short.
MIXTURE_CHUNK = 256
# What random numbers are for, as parts of their seeds (FILE_ORDER is 1).
WINDOW_ORDER = 11
DENOISERS = 12
MIXTURE = 13
NO_COUNTS = {"documents": 0, "tokens": 0, "held_out": 0, "empty": 0, "bad": 0}


class Block(NamedTuple):
    """A block of tokens, and the stream's position after it.

    `window` is the position at which the block's window begins, None if an earlier block of the window had it; `given`
    counts the blocks returned from the window, this one included.
    """

    tokens: np.ndarray
    denoiser: int
    corpus: int
    window: dict | None
    given: int


class VirtualStream:
    """Endless blocks of stream `index`, from all corpora in proportion to their weights.

    `positions` has one for each corpus (`BlockStream`); `report` is called with every bad line's description.
    """

    def __init__(self, corpora: list[StreamCorpus], encoder, settings, index: int, positions=None, report=None):
        weights = [corpus.weight for corpus in corpora]
        self.mixture = CorpusMixture(weights, (settings.seed, MIXTURE, index), MIXTURE_CHUNK)
        positions = positions or [None] * len(corpora)
        self.given = sum(position["before"] + position["given"] for position in positions if position)
        self.parts = []
        for number, (corpus, position) in enumerate(zip(corpora, positions, strict=True)):
            blocks = settings.buffer_size * corpus.weight / sum(weights) / settings.num_virtual_streams
            size, key = max(1, round(blocks)), (number, index)
            self.parts.append(BlockStream(corpus.source, encoder, settings, key, size, position, report))

    def __next__(self) -> Block:
        corpus = self.mixture.corpus_of(self.given)[0]
        self.given += 1
        return next(self.parts[corpus])


class BlockStream:
    """The blocks of one corpus in one virtual stream.

    Args:
      key: (number of the corpus, number of the stream), part of every seed.
      window_size: blocks of a window.
      position: `{"epoch", "source", "token", "window", "before", "given", "counts"}`: in window `window`, whose text
        begins at a document's token, `given` blocks were returned; `before` counts those of earlier windows.
    """

    def __init__(self, source, encoder, settings: StreamSettings, key, window_size: int, position=None, report=None):
        self.source, self.encoder, self.settings, self.key = source, encoder, settings, key
        self.window_size, self.report = window_size, report or (lambda problem: None)
        self.share = Share(key[1], settings.num_virtual_streams)
        names, position = ("window", "before", "given", "token"), position or {}
        self.window, self.before, self.given, self.token = (position.get(name, 0) for name in names)
        self.counts = dict(position.get("counts", NO_COUNTS))
        self.documents = self._documents(position.get("epoch", 0), position.get("source"))
        self.waiting = deque()  # tokenized documents, each as (where it begins, its ids)
        self.blocks, self.start = None, None

    def __next__(self) -> Block:
        if self.blocks is None:  # the window in which a run stopped, which may be used up
            self._fill_window()
        if self.given == len(self.blocks):
            self.window, self.before, self.given = self.window + 1, self.before + len(self.blocks), 0
            self._fill_window()
        tokens, denoiser = self.blocks[self.given]
        self.given += 1
        start, self.start = self.start, None
        return Block(tokens, denoiser, self.key[0], start, self.given)

    def _fill_window(self) -> None:
        """Cuts the window's blocks and shuffles them."""
        settings, key, size = self.settings, (*self.key, self.window), self.window_size
        if self.window == 0:  # first windows grow from stream to stream, to spread out their ends
            size = 1 + (size - 1) * self.share.index // self.share.count
        weights = np.asarray(settings.denoiser_weights) / sum(settings.denoiser_weights)
        denoisers_N = settings.rng(DENOISERS, *key).choice(len(weights), size=size, p=weights)
        ends_N = np.cumsum(np.asarray(settings.lengths)[denoisers_N])
        document, _ = self._first_waiting()
        self.start = {**document, "token": self.token, "window": self.window, "before": self.before}
        blocks = np.split(self._take(int(ends_N[-1])), ends_N[:-1])
        self.start["read"] = dict(self.counts)
        order = settings.rng(WINDOW_ORDER, *key).permutation(size)
        self.blocks = [(blocks[i], int(denoisers_N[i])) for i in order]

    def _first_waiting(self) -> tuple[dict, np.ndarray]:
        if not self.waiting:
            self.waiting.append(next(self.documents))
        return self.waiting[0]

    def _take(self, count: int) -> np.ndarray:
        """The next `count` tokens."""
        parts = []
        while count:
            _, whole = self._first_waiting()
            ids = whole[self.token : self.token + count]
            parts.append(ids)
            count -= len(ids)
            self.token += len(ids)
            if self.token >= len(whole):
                self.waiting.popleft()
                self.token = 0
        return np.concatenate(parts)

    # The methods below read and count. Text read ahead of a window is counted ahead, too, so every document carries
    # the counts before it.

    def _documents(self, epoch: int, position) -> Iterator[tuple[dict, np.ndarray]]:
        """All documents from a position on, pass after pass."""
        empty_passes, most_empty_passes = 0, self.source.most_empty_passes(self.share.count)
        while True:
            tokens = self.counts["tokens"]
            for read in self._batches(self.source.read(self.share, epoch, position, self.settings.seed)):
                yield from self._tokenized(epoch, read)
            is_empty = self.counts["tokens"] == tokens and position is None
            empty_passes = empty_passes + 1 if is_empty else 0
            if empty_passes > most_empty_passes:
                counts = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in self.counts.items())
                raise DataError(
                    f"virtual stream {self.share.index} of {self.share.count} finds nothing to train on in "
                    f"{self.source!r}: {counts}. Lower --num_virtual_streams (a stream takes every "
                    f"{self.share.count}th document or fewer), or give more text"
                )
            epoch, position = epoch + 1, None

    def _batches(self, items: Iterator[Item]) -> Iterator[list]:
        """Documents to train on, each with the counts before it, in batches that are tokenized at once."""
        read, characters = [], 0
        for item in items:
            kind = self._kind(item)
            if kind == "documents":
                read.append((item, dict(self.counts)))
                characters += len(item.text)
            self.counts[kind] += 1
            if characters >= CHARACTERS_AT_ONCE:
                yield read
                read, characters = [], 0
        if read:
            yield read

    def _kind(self, item: Item) -> str:
        if item.problem:
            if self.source.bad_lines == "error":
                raise DataError(item.problem)
            self.report(item.problem)
            return "bad"
        if item.text is None:
            return "empty"
        return "held_out" if is_held_out(item.text, self.settings.validation_fraction) else "documents"

    def _tokenized(self, epoch: int, read: list) -> Iterator[tuple[dict, np.ndarray]]:
        """The documents' ids and where each begins; those without tokens are dropped."""
        end = [] if self.settings.separator_id is None else [self.settings.separator_id]
        tokens = self.counts["tokens"]
        for (item, counts), ids in zip(read, self.encoder.encode([item.text for item, _ in read]), strict=True):
            ids = np.asarray([*ids, *end] if end else ids, dtype=np.int32)
            if len(ids):
                yield {"epoch": epoch, "source": list(item.position), "counts": {**counts, "tokens": tokens}}, ids
            tokens += len(ids)
            self.counts["tokens"] = tokens

"""Text -> blocks of tokens, shuffled, from any position: the virtual streams of a run.

    >>> source = open_source(["articles.jsonl", "books/"])
    >>> for item in source.read(Share(3, 64)):
    ...     print(item)
    Item(position=(0, 48113, 0), text='The centre of the city is old.', bad_record=None)
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

from collections import deque
from typing import NamedTuple

import numpy as np

from t5suite.data.corpora.corpus_mixture import CorpusMixture
from t5suite.data.streams.documents import StreamDocuments
from t5suite.data.streams.settings import StreamCorpus, StreamSettings
from t5suite.data.streams.shares import Share

# Draws per chunk of a virtual stream's mixture of corpora; there are V streams, so chunks may be short.
MIXTURE_CHUNK = 256
# What random numbers are for, as parts of their seeds (FILE_ORDER is 1).
WINDOW_ORDER = 11
DENOISERS = 12
MIXTURE = 13


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

    `positions` has one for each corpus (`BlockStream`); `report` is called with every bad line or row.
    """

    def __init__(self, corpora: list[StreamCorpus], encoder, settings, index: int, positions=None, report=None):
        weights = [corpus.weight for corpus in corpora]
        self.mixture = CorpusMixture(weights, (settings.seed, MIXTURE, index), MIXTURE_CHUNK)
        positions = positions or [None] * len(corpora)
        self.given = sum(position["before"] + position["given"] for position in positions if position)
        self.parts = []
        for number, (corpus, position) in enumerate(zip(corpora, positions, strict=True)):
            blocks = settings.buffer_size * corpus.weight / sum(weights) / settings.num_virtual_streams
            window_size = max(1, round(blocks))
            key = (number, index)
            self.parts.append(BlockStream(corpus.source, encoder, settings, key, window_size, position, report))

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
        position = position or {}
        self.settings = settings
        self.key = key
        self.window_size = window_size
        self.share = Share(key[1], settings.num_virtual_streams)
        self.window = position.get("window", 0)
        self.before = position.get("before", 0)
        self.given = position.get("given", 0)
        self.token = position.get("token", 0)
        self.documents = StreamDocuments(source, encoder, settings, self.share, position, report)
        self.waiting = deque()  # tokenized documents, each as (where it begins, its ids)
        self.blocks = None
        self.start = None

    def __next__(self) -> Block:
        if self.blocks is None:  # the window in which a run stopped, which may be used up
            self._fill_window()
        if self.given == len(self.blocks):
            self.window += 1
            self.before += len(self.blocks)
            self.given = 0
            self._fill_window()
        tokens, denoiser = self.blocks[self.given]
        self.given += 1
        window_start = self.start
        self.start = None
        return Block(tokens, denoiser, self.key[0], window_start, self.given)

    def _fill_window(self) -> None:
        """Cuts the window's blocks and shuffles them."""
        settings = self.settings
        key = (*self.key, self.window)
        size = self.window_size
        if self.window == 0:  # first windows grow from stream to stream, to spread out their ends
            size = 1 + (size - 1) * self.share.index // self.share.count
        weights = np.asarray(settings.denoiser_weights) / sum(settings.denoiser_weights)
        denoisers_N = settings.rng(DENOISERS, *key).choice(len(weights), size=size, p=weights)
        ends_N = np.cumsum(np.asarray(settings.lengths)[denoisers_N])
        document_start, _ = self._first_waiting()
        self.start = {**document_start, "token": self.token, "window": self.window, "before": self.before}
        blocks = np.split(self._take(int(ends_N[-1])), ends_N[:-1])
        self.start["read"] = dict(self.documents.counts)
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
            _, document_ids = self._first_waiting()
            ids = document_ids[self.token : self.token + count]
            parts.append(ids)
            count -= len(ids)
            self.token += len(ids)
            if self.token >= len(document_ids):
                self.waiting.popleft()
                self.token = 0
        return np.concatenate(parts)

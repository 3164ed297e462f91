"""Documents -> blocks of tokens, shuffled, from any position: one virtual stream of a run.

    >>> stream = VirtualStream(corpora, encode, settings, index=5)
    >>> block = next(stream)
    >>> block.tokens, block.denoiser, block.corpus
    (array([8774, 296, 541, ...], dtype=int32), 0, 0)

A run's text is cut into V virtual streams, whatever the number of processes that read them; run-long datum j is the
next block of stream j % V. A stream reads its share of every corpus again and again, without an end: its documents are
tokenized, joined without a separator (or with one) across documents and passes, and cut into blocks.

Shuffling is by windows: window w holds the next `buffer_size / V` blocks, in an order drawn from (seed, stream, w). A
position therefore needs no buffer's contents: it is the place where the window begins and how many of its blocks have
been given out. The first windows of different streams are of different lengths, so that they do not all end at once.
"""

import functools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from t5suite.base.errors import ConfigError, DataError
from t5suite.data.corpora.documents import document_hash, held_out_below
from t5suite.data.corpora.stream_sources import Share

# Texts given to the tokenizer at once: many enough for its batched path, few enough that little is read ahead.
CHARACTERS_AT_ONCE = 1 << 16
# Draws a chunk of a virtual stream's mixture of corpora; there are V streams, so chunks may be short.
MIXTURE_CHUNK = 256
# What random numbers are for, as parts of their seeds.
WINDOW_ORDER, DENOISERS, MIXTURE = 11, 12, 13

Counts = dict[str, int]
NO_COUNTS: Counts = {"documents": 0, "tokens": 0, "held_out": 0, "empty": 0, "bad": 0}


@dataclass(frozen=True)
class StreamCorpus:
    """One of the corpora that a run streams.

    Args:
      source: a `FileSource` or `HubSource` (`open_source`).
      weight: its share of the blocks, relative to the others'.
    """

    source: object
    weight: float = 1.0


@dataclass(frozen=True)
class StreamSettings:
    """All that decides a stream's data beside the text; a resumed run must have the same.

    Args:
      lengths: tokens of a block, one entry for each denoiser.
      denoiser_weights: how often each denoiser comes up; empty means equally.
      num_virtual_streams: V; a multiple of ranks x workers.
      buffer_size: blocks that are shuffled among one another, over all virtual streams.
      validation_fraction: share of the documents that is held out and passed over.
      separator_id: a token put behind every document, e.g. end-of-sequence; None: nothing, as in T5.
    """

    lengths: tuple[int, ...]
    denoiser_weights: tuple[float, ...] = ()
    seed: int = 0
    num_virtual_streams: int = 64
    buffer_size: int = 4096
    validation_fraction: float = 0.0
    separator_id: int | None = None

    def __post_init__(self):
        weights = tuple(self.denoiser_weights) or (1.0,) * len(self.lengths)
        object.__setattr__(self, "lengths", tuple(int(length) for length in self.lengths))
        object.__setattr__(self, "denoiser_weights", weights)
        if not self.lengths or min(self.lengths) < 1:
            raise ConfigError(f"blocks of {self.lengths} tokens: give lengths of at least 1")
        if len(weights) != len(self.lengths) or min(weights) < 0 or sum(weights) <= 0:
            raise ConfigError(f"weights {weights} for blocks of {self.lengths} tokens: one positive number for each")
        if self.num_virtual_streams < 1 or self.buffer_size < 1:
            raise ConfigError(
                f"--num_virtual_streams {self.num_virtual_streams} and --shuffle_buffer_size {self.buffer_size} must "
                "be at least 1 each"
            )
        held_out_below(self.validation_fraction)
        if self.validation_fraction == 1:
            raise ConfigError("--validation_fraction 1.0 leaves nothing to train on")

    def describe(self) -> dict:
        """The settings as JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    def rng(self, *key: int) -> np.random.Generator:
        """Random numbers that depend on the seed and the key alone."""
        return np.random.default_rng((self.seed, *key))


class Block(NamedTuple):
    """A block of tokens, and where the stream stands when it has been given out.

    Attributes:
      window: the position at which the block's window begins; None if the block before told it.
      given: blocks given out of the window, this one included.
    """

    tokens: np.ndarray
    denoiser: int
    corpus: int
    window: dict | None
    given: int


class _Document(NamedTuple):
    """A tokenized document with the place at which it begins and what was counted before it."""

    epoch: int
    position: tuple[int, ...]
    counts: Counts
    ids: np.ndarray


class VirtualStream:
    """Blocks without an end, from all corpora after their weights.

    Args:
      encode: a list of texts -> a list of their ids, without end-of-sequence.
      index: which of the V streams.
      positions: one for each corpus, as the blocks told them (`BlockStream.go_on_from`); None: the beginning.
      report: called with every bad line's description.
    """

    def __init__(
        self, corpora: list[StreamCorpus], encode, settings: StreamSettings, index: int, positions=None, report=None
    ):
        weights = [corpus.weight for corpus in corpora]
        self.mixture = CorpusMixture(tuple(weights), (settings.seed, MIXTURE, index), MIXTURE_CHUNK)
        positions = positions or [None] * len(corpora)
        self.given = sum(position["before"] + position["given"] for position in positions if position)
        self.parts = []
        for number, corpus in enumerate(corpora):
            blocks = settings.buffer_size * corpus.weight / sum(weights) / settings.num_virtual_streams
            part = BlockStream(corpus.source, encode, settings, (number, index), max(1, round(blocks)), report)
            part.go_on_from(positions[number])
            self.parts.append(part)

    def __next__(self) -> Block:
        corpus = self.mixture.corpus_of(self.given)[0]
        block = next(self.parts[corpus])
        self.given += 1
        return block


class BlockStream:
    """The blocks of one corpus in one virtual stream.

    Args:
      key: (number of the corpus, number of the stream), part of every seed.
      window_size: blocks of a window.
    """

    def __init__(
        self, source, encode: Callable, settings: StreamSettings, key: tuple[int, int], window_size: int, report=None
    ):
        self.source = source
        self.encode = encode
        self.settings = settings
        self.key = key
        self.window_size = window_size
        self.report = report or (lambda problem: None)
        self.share = Share(key[1], settings.num_virtual_streams)
        self.held_out_below = held_out_below(settings.validation_fraction)
        self.go_on_from(None)

    def go_on_from(self, position: dict | None) -> None:
        """Stands where a run stood: in window `window`, whose text begins at a document's token, blocks given out.

        Args:
          position: `{"epoch", "source", "token", "window", "before", "given", "counts"}`, or None: the beginning.
            `before` is the number of blocks in the windows before this one.
        """
        position = position or {}
        self.window = position.get("window", 0)
        self.before = position.get("before", 0)
        self.given = position.get("given", 0)
        self.token = position.get("token", 0)
        self.counts = dict(position.get("counts", NO_COUNTS))
        self.waiting: deque[_Document] = deque()
        self.documents = self._documents(position.get("epoch", 0), position.get("source"))
        self.blocks, self.start = None, None

    def __next__(self) -> Block:
        if self.blocks is None:  # the window that a run stood in, which may have been given out to its end
            self._fill_window()
        if self.given == len(self.blocks):
            self.window, self.before, self.given = self.window + 1, self.before + len(self.blocks), 0
            self._fill_window()
        tokens, denoiser = self.blocks[self.given]
        self.given += 1
        start, self.start = self.start, None
        return Block(tokens, denoiser, self.key[0], start, self.given)

    def _fill_window(self) -> None:
        """Cuts the window's blocks and puts them into their order."""
        size = self._size_of_window()
        settings, key = self.settings, (*self.key, self.window)
        weights = np.asarray(settings.denoiser_weights) / sum(settings.denoiser_weights)
        denoisers_N = settings.rng(DENOISERS, *key).choice(len(weights), size=size, p=weights)
        ends_N = np.cumsum(np.asarray(settings.lengths)[denoisers_N])
        self.start = self._here()
        blocks = np.split(self._take(int(ends_N[-1])), ends_N[:-1])
        self.start["read"] = dict(self.counts)
        order = settings.rng(WINDOW_ORDER, *key).permutation(size)
        self.blocks = [(blocks[i], int(denoisers_N[i])) for i in order]

    def _size_of_window(self) -> int:
        """Blocks of the window; the first windows grow from stream to stream, so that their ends are spread out."""
        if self.window > 0:
            return self.window_size
        return 1 + (self.window_size - 1) * self.share.index // self.share.count

    def _here(self) -> dict:
        """The position of the next token, as the beginning of a window."""
        if not self.waiting:
            self.waiting.append(next(self.documents))
        document = self.waiting[0]
        return {
            "epoch": document.epoch,
            "source": list(document.position),
            "token": self.token,
            "window": self.window,
            "before": self.before,
            "counts": document.counts,
        }

    def _take(self, count: int) -> np.ndarray:
        """The next `count` tokens."""
        parts = []
        while count:
            if not self.waiting:
                self.waiting.append(next(self.documents))
            ids = self.waiting[0].ids[self.token : self.token + count]
            parts.append(ids)
            count -= len(ids)
            self.token += len(ids)
            if self.token >= len(self.waiting[0].ids):
                self.waiting.popleft()
                self.token = 0
        return np.concatenate(parts)

    # What follows reads and counts; what is read ahead of a window is counted ahead, too, which is why every document
    # carries the counts that were before it.

    def _documents(self, epoch: int, position) -> Iterator[_Document]:
        """All documents from a position on, pass after pass."""
        while True:
            found = False
            for document in self._documents_of_a_pass(epoch, position):
                found = True
                yield document
            if not found and position is None:
                raise DataError(
                    f"virtual stream {self.share.index} of {self.share.count} finds nothing to train on in "
                    f"{_named(self.source)}: {_shown(self.counts)}. Lower --num_virtual_streams (a stream takes every "
                    f"{self.share.count}th document or fewer), or give more text"
                )
            epoch, position = epoch + 1, None

    def _documents_of_a_pass(self, epoch: int, position) -> Iterator[_Document]:
        read, characters = [], 0
        for item in self.source.read(self.share, epoch, position, self.settings.seed):
            kind = self._kind(item)
            self.counts[kind] += 1
            if kind != "documents":
                continue
            before = {**self.counts, "documents": self.counts["documents"] - 1}
            read.append((item, before))
            characters += len(item.text)
            if characters >= CHARACTERS_AT_ONCE:
                yield from self._tokenized(epoch, read)
                read, characters = [], 0
        yield from self._tokenized(epoch, read)

    def _kind(self, item) -> str:
        if item.problem:
            if self.source.bad_lines == "error":
                raise DataError(item.problem)
            self.report(item.problem)
            return "bad"
        if item.text is None:
            return "empty"
        held_out = self.held_out_below and document_hash(item.text) < self.held_out_below
        return "held_out" if held_out else "documents"

    def _tokenized(self, epoch: int, read: list) -> Iterator[_Document]:
        """The documents' ids; those that give no token are left out."""
        if not read:
            return
        end = [] if self.settings.separator_id is None else [self.settings.separator_id]
        tokens = self.counts["tokens"]
        for (item, counts), ids in zip(read, self.encode([item.text for item, _ in read]), strict=True):
            ids = np.asarray([*ids, *end] if end else ids, dtype=np.int32)
            if len(ids):
                yield _Document(epoch, item.position, {**counts, "tokens": tokens}, ids)
            tokens += len(ids)
            self.counts["tokens"] = tokens


def _named(source) -> str:
    described = source.describe().items()
    return ", ".join(f"{name} {value}" for name, value in described if name not in ("names_and_sizes", "samples"))


def _shown(counts: Counts) -> str:
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if name != "tokens")


# ---------------------------------------------------------------------------------------------------------------------
# Which of several corpora a run's datum j comes from: a function of the weights, a seed and j alone.
#
# The run is cut into chunks. At every border of chunks each corpus has had its share, to within one block; inside a
# chunk the order is random. So no draw needs those before it, and a run that goes on finds its place at once.


# A corpus must come up at least so often in a chunk: with less, rounding could ask for a negative number of blocks.
LEAST_BLOCKS_A_CHUNK = 2


@dataclass(frozen=True)
class CorpusMixture:
    """A random-access mixture of corpora.

    Args:
      weights: one positive number a corpus; they need not sum to one.
      seed: a number or a tuple of numbers.
      chunk_size: draws a chunk; doubled until the smallest corpus comes up at least twice in each.

    Raises:
      ConfigError: no weights, or one that is not a positive number.
    """

    weights: tuple[float, ...]
    seed: int | tuple[int, ...] = 0
    chunk_size: int = 4096
    _borders: tuple[Fraction, ...] = field(init=False, repr=False)

    def __post_init__(self):
        if not self.weights or not all(0 < weight < float("inf") for weight in self.weights):
            raise ConfigError(f"corpus weights {tuple(self.weights)}: give one positive number for each corpus")
        total = sum(map(Fraction, self.weights))
        shares = [Fraction(weight) / total for weight in self.weights]
        chunk_size = self.chunk_size
        while min(shares) * chunk_size < LEAST_BLOCKS_A_CHUNK:
            chunk_size *= 2
        object.__setattr__(self, "chunk_size", chunk_size)
        object.__setattr__(self, "_borders", tuple(sum(shares[:count]) for count in range(len(shares) + 1)))

    def corpus_of(self, j: int) -> tuple[int, int]:
        """The corpus of datum j, and how many data before j came from it."""
        chunk, place = divmod(int(j), self.chunk_size)
        corpora_K, indices_K = _chunk(self, chunk)
        return int(corpora_K[place]), int(indices_K[place])

    def counts_before(self, chunk: int) -> list[int]:
        """How many data of each corpus the chunks before this one hold, in whole numbers without rounding error.

        >>> CorpusMixture((2, 1)).counts_before(1)
        [2730, 1366]
        """
        ends = [int(border * chunk * self.chunk_size) for border in self._borders]
        return [end - start for start, end in pairwise(ends)]


@functools.lru_cache(maxsize=256)  # a process serves many virtual streams, each in a chunk of its own
def _chunk(mixture: CorpusMixture, chunk: int) -> tuple[np.ndarray, np.ndarray]:
    """`(corpora_K, indices_K)` of a chunk's K draws."""
    before, after = mixture.counts_before(chunk), mixture.counts_before(chunk + 1)
    counts = [end - start for start, end in zip(before, after)]
    seed = mixture.seed if isinstance(mixture.seed, tuple) else (mixture.seed,)
    corpora_K = np.random.default_rng((*seed, chunk)).permutation(np.repeat(np.arange(len(counts)), counts))
    indices_K = np.empty_like(corpora_K)
    for corpus, (start, count) in enumerate(zip(before, counts)):
        indices_K[corpora_K == corpus] = np.arange(start, start + count)
    return corpora_K, indices_K

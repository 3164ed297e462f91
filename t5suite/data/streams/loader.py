"""Documents tokenized during training: the same data at every step for any number of workers and ranks.

    >>> settings = StreamSettings(lengths=collator.tokens_lengths, seed=42, validation_fraction=0.001)
    >>> corpus = StreamCorpus(open_source("hub:allenai/c4:en:train"))
    >>> loader = StreamLoader([corpus], encoder, settings, collator, batch_size=16, num_workers=2)
    >>> for batch in loader:                       # endless
    ...     ...
    >>> json.dumps(loader.state_dict())            # small; a run resumes exactly from it
    '{"version": 1, "num_given": 32, ...}'

Run-long datum j is element j // V of virtual stream j % V (`virtual_streams`). Rank r of W takes every W-th datum, and
worker k of its n every n-th of those; as V is a multiple of W * n, exactly one process reads each stream, and neither W
nor n changes what datum j is. An update of G data covers [u * G, (u + 1) * G), whatever the ranks.

Workers send messages of several blocks; the main process puts them in order and collates them (about 1 ms).
The position counts what training received, never what workers have prefetched.
"""

import copy
import logging
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from t5suite.base.errors import ConfigError, DataError, UserError, first_line
from t5suite.data.batches.samplers import ignore_in_worker, shielding_workers
from t5suite.data.corpora.held_out import is_held_out
from t5suite.data.streams.documents import NO_COUNTS
from t5suite.data.streams.positions import VERSION, check_same
from t5suite.data.streams.settings import StreamCorpus, StreamSettings
from t5suite.data.streams.shares import Share
from t5suite.data.streams.sources import BadRecord
from t5suite.data.streams.virtual_streams import Block, VirtualStream

logger = logging.getLogger(__name__)
BLOCKS_A_MESSAGE = 16
PROBLEMS_SHOWN = 10


class Message(NamedTuple):
    """What a worker sends: blocks in order, its first bad lines and rows in words, and the error that ended them."""

    blocks: list[Block]
    bad_records: list[str]
    error: UserError | OSError | None


class FirstBadRecords:
    """Descriptions of a worker's first PROBLEMS_SHOWN bad lines and rows.

    Made in the worker: finding a line number may read half the file, and all ranks would wait for the training process.
    """

    def __init__(self):
        self._num_reported = 0
        self._descriptions: list[str] = []

    def report(self, bad_record: BadRecord) -> None:
        self._num_reported += 1
        if self._num_reported <= PROBLEMS_SHOWN:
            self._descriptions.append(bad_record.description())

    def taken(self) -> list[str]:
        """Those since this was called last."""
        descriptions = self._descriptions
        self._descriptions = []
        return descriptions


@dataclass
class BlockMessages(IterableDataset):
    """The endless messages of one worker; it reads its virtual streams in turn.

    Worker k of n serves the data first + step * k, and every (step * n)-th after it.
    """

    make_stream: Callable
    num_streams: int
    first: int
    step: int
    positions: dict[int, list]

    def __iter__(self) -> Iterator[Message]:
        worker = get_worker_info()
        number, count = (worker.id, worker.num_workers) if worker else (0, 1)
        if worker:
            os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers themselves are the parallelism
        streams = {}
        bad_records = FirstBadRecords()
        datum = self.first + self.step * number
        while True:
            blocks = []
            error = None
            try:
                for _ in range(BLOCKS_A_MESSAGE):
                    index = datum % self.num_streams
                    if index not in streams:
                        positions = self.positions.get(index)
                        streams[index] = self.make_stream(index=index, positions=positions, report=bad_records.report)
                    blocks.append(next(streams[index]))
                    datum += self.step * count
            # Both without what cannot be sent. Others go through DataLoader, which leaves their text alone.
            except UserError as user_error:
                error = type(user_error)(str(user_error))
            except OSError as os_error:
                if os_error.errno is None:  # of a client of the network
                    raise
                error = OSError(os_error.errno, os_error.strerror, os_error.filename)
            yield Message(blocks, bad_records.taken(), error)
            if error:
                return


def check_shares(num_virtual_streams: int, world_size: int, num_workers: int) -> None:
    """Refuses a number of virtual streams that is no multiple of ranks x workers: one process reads each.

    >>> check_shares(64, world_size=4, num_workers=3)
    ConfigError: 64 virtual streams cannot be shared out over 4 ranks x 3 workers: ...
    """
    readers = world_size * max(1, num_workers)
    if num_virtual_streams % readers:
        raise ConfigError(
            f"{num_virtual_streams} virtual streams cannot be shared out over {world_size} ranks x {num_workers} "
            "workers: set --dataloader_num_workers so that their product divides it, or, for a new run, "
            f"--num_virtual_streams {-(-num_virtual_streams // readers) * readers}"
        )


class StreamLoader:
    """A rank's endless batches; iterating again continues where the last iteration stopped.

    Args:
      encoder: from `stream_encoder`: has `encode` and a `fingerprint`; it is sent to the workers.
      collator: makes a batch of `{"input_ids", "index"}`, with "denoiser" if there are several block lengths and
        "corpus" if there are several corpora.
    """

    def __init__(
        self,
        corpora: list[StreamCorpus],
        encoder,
        settings: StreamSettings,
        collator: Callable,
        batch_size: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        num_workers: int = 0,
    ):
        check_shares(settings.num_virtual_streams, world_size, num_workers)
        self.corpora = list(corpora)
        self.encoder = encoder
        self.settings = settings
        self.collator = collator
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.rank = rank
        self.world_size = world_size
        self.num_given = 0
        streams_of_rank = range(rank, settings.num_virtual_streams, world_size)
        self._positions = {index: [None] * len(corpora) for index in streams_of_rank}
        self._num_problems = 0
        self._running = None
        self._messages = None

    def __iter__(self) -> Iterator[dict]:
        self.close()
        self._running = self._batches()
        return self._running

    def close(self) -> None:
        """Ends the workers; the position stays."""
        if self._running is not None:
            self._running.close()
            self._running = None
            self._messages = None

    # Position

    def state_dict(self) -> dict:
        """The position after the last batch returned, as JSON: only this rank's streams.

        `num_given` counts the data of all ranks, which is the same on each between two updates; `data` is what
        they depend on; `streams` has each virtual stream's position in each corpus.
        """
        streams = {str(index): copy.deepcopy(positions) for index, positions in self._positions.items()}
        return {"version": VERSION, "num_given": self.num_given, "data": self.describe(), "streams": streams}

    def load_state_dict(self, state: dict) -> None:
        """Resumes from a rank's position, or from all ranks' (`merge_states`) if the number of ranks has changed.

        Raises ConfigError for other settings or missing positions, DataError for other text.
        """
        check_same(state, self.describe())
        if state["num_given"] % self.world_size:
            raise ConfigError(
                f"the run stopped at datum {state['num_given']}, from which {self.world_size} ranks cannot "
                "resume: choose a number of ranks that divides it"
            )
        for index in self._positions:
            if str(index) not in state["streams"]:
                raise ConfigError(f"no position of virtual stream {index}: the positions of all ranks are needed")
        self.close()
        self.num_given = state["num_given"]
        self._positions = {index: copy.deepcopy(state["streams"][str(index)]) for index in self._positions}

    def describe(self) -> dict:
        """What the data depend on; a run resumes only with the same."""
        reader_count = self.settings.num_virtual_streams
        corpora = []
        for source, weight in self.corpora:
            corpora.append({**source.describe(), **source.describe_deal(reader_count), "weight": weight})
        return {"settings": self.settings.describe(), "corpora": corpora, "tokenizer": self.encoder.fingerprint}

    def counts(self) -> dict[str, int]:
        """What this rank has read so far, windows in progress included; `epochs` is the largest number of passes begun.

        >>> loader.counts()
        {'documents': 5120, 'tokens': 2912256, 'held_out': 4, 'empty': 0, 'bad': 0, 'epochs': 1}
        """
        counts = dict(NO_COUNTS)
        epochs = 0
        for positions in self._positions.values():
            for position in positions:
                if position is None:  # nothing was read
                    continue
                for name in counts:
                    counts[name] += position["read"][name]
                epochs = max(epochs, position["epoch"] + 1)
        return {**counts, "epochs": epochs}

    # Batches

    def _batches(self) -> Iterator[dict]:
        blocks = self._blocks_in_order()
        while True:
            blocks_of_batch = [next(blocks) for _ in range(self.batch_size)]
            yield self.collator([self._received_example(block) for block in blocks_of_batch])

    def _received_example(self, block: Block) -> dict:
        """The example of a block; moves the position of its stream behind it."""
        index = self.num_given + self.rank
        example = {"input_ids": block.tokens, "index": index}
        if len(self.settings.lengths) > 1:
            example["denoiser"] = block.denoiser
        if len(self.corpora) > 1:
            example["corpus"] = block.corpus
        positions = self._positions[index % self.settings.num_virtual_streams]
        window = positions[block.corpus] if block.window is None else block.window
        positions[block.corpus] = {**window, "given": block.given}
        self.num_given += self.world_size
        return example

    def _blocks_in_order(self) -> Iterator[Block]:
        """One message from each worker in turn, their blocks interleaved."""
        with shielding_workers():
            messages = self._messages = iter(self._data_loader())
        while True:
            message_of_workers = [self._received(messages) for _ in range(max(1, self.num_workers))]
            for place in range(BLOCKS_A_MESSAGE):
                for message in message_of_workers:
                    if place == len(message.blocks):
                        raise message.error
                    yield message.blocks[place]

    def _received(self, messages) -> Message:
        try:
            message = next(messages)
        except RuntimeError as error:
            if "DataLoader worker (pid" not in str(error):
                raise
            raise ChildProcessError(
                f"a process that tokenizes during training has died ({first_line(error)}). If memory was "
                "short: lower --dataloader_num_workers or --shuffle_buffer_size"
            ) from error
        for description in message.bad_records:
            self._num_problems += 1
            if self._num_problems <= PROBLEMS_SHOWN:
                logger.warning("skipped: %s", description)
            if self._num_problems == PROBLEMS_SHOWN:
                logger.warning("no more skipped lines are shown")
        return message

    def _data_loader(self) -> DataLoader:
        dataset = BlockMessages(
            partial(VirtualStream, self.corpora, self.encoder, self.settings),
            self.settings.num_virtual_streams,
            self.num_given + self.rank,
            self.world_size,
            self._positions,
        )
        options = {}
        if self.num_workers:
            # Workers fork from a process without threads: a fork of this one could wait forever for a lock that one of
            # its threads held. That process imports what all of them need, which would take each of them seconds.
            context = multiprocessing.get_context("forkserver")
            needed = [name for name in sys.modules if name.startswith("t5suite.") or name == "datasets"]
            context.set_forkserver_preload(needed)
            options = {"multiprocessing_context": context, "prefetch_factor": 4, "worker_init_fn": ignore_in_worker}
        # Its own generator: else DataLoader draws from torch's, and a resumed run's dropout would differ.
        options["generator"] = torch.Generator().manual_seed(self.settings.seed)
        return DataLoader(dataset, batch_size=None, collate_fn=_unchanged, num_workers=self.num_workers, **options)


def _unchanged(message):
    return message


def held_out_documents(source, fraction: float) -> Iterator[str]:
    """The held-out documents of a source, read in its own order: the same for every run.

    Taking the first 100 at a fraction of 0.01 reads about 10,000 documents. Raises DataError if none is held out, or
    for a bad line, unless the source skips those.
    """
    num_documents = num_found = 0
    for item in source.read(Share(0, 1)):
        if item.bad_record and source.bad_lines == "error":
            raise DataError(item.bad_record.description())
        if item.text is not None:
            num_documents += 1
            if is_held_out(item.text, fraction):
                num_found += 1
                yield item.text
    if not num_found:
        raise DataError(
            f"{source.title}: none of {num_documents} documents is held out: raise --validation_fraction ({fraction}), "
            "or give a --validation_file"
        )

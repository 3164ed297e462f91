"""What a worker process does: it reads its virtual streams in turn and sends their blocks, several at once.

Worker k of n serves every n-th datum of its rank; the blocks of all workers, dealt out in turn, are the rank's data.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from torch.utils.data import IterableDataset, get_worker_info

from t5suite.base.errors import ConfigError, UserError
from t5suite.data.streams.virtual import Block

BLOCKS_A_MESSAGE = 16


@dataclass
class Message:
    """What a worker sends: blocks in order, descriptions of bad lines, and the error that ended them."""

    blocks: list[Block] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    error: tuple[type, str] | None = None


@dataclass
class BlockMessages(IterableDataset):
    """The messages of one worker, without an end.

    Attributes:
      first, step: worker k of n serves the data first + step * k, and every (step * n)-th after it.
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
        streams, datum, problems = {}, self.first + self.step * number, []
        while True:
            message = Message()
            try:
                for _ in range(BLOCKS_A_MESSAGE):
                    index = datum % self.num_streams
                    if index not in streams:
                        streams[index] = self.make_stream(
                            index=index, positions=self.positions.get(index), report=problems.append
                        )
                    message.blocks.append(next(streams[index]))
                    datum += self.step * count
            except UserError as error:
                message.error = type(error), str(error)
            message.problems = list(problems)
            problems.clear()
            yield message
            if message.error:
                return


def check_shares(num_virtual_streams: int, world_size: int, num_workers: int) -> None:
    """Every virtual stream is read by one process: their number must be a multiple of ranks x workers.

    >>> check_shares(64, world_size=4, num_workers=3)
    ConfigError: 64 virtual streams cannot be shared out over 4 ranks x 3 workers: ...
    """
    readers = world_size * max(1, num_workers)
    if num_virtual_streams % readers == 0:
        return
    larger = -(-num_virtual_streams // readers) * readers
    cure = f"set --num_virtual_streams {larger}"
    if num_virtual_streams % world_size == 0:
        a_rank = num_virtual_streams // world_size
        fitting = [count for count in range(1, a_rank + 1) if a_rank % count == 0 and count <= 4 * max(1, num_workers)]
        cure = f"set --dataloader_num_workers to one of {', '.join(map(str, [0, *fitting]))}; or, for a new run, {cure}"
    raise ConfigError(
        f"{num_virtual_streams} virtual streams cannot be shared out over {world_size} ranks x {num_workers} workers: "
        f"{cure}"
    )

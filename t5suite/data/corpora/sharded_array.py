"""Files of numbers, one after the other, as one read-only row that is mapped into memory.

>>> array = ShardedArray([FilePart("a.tokens.bin", 3), FilePart("b.tokens.bin", 2)], "<u2")
>>> array[2:4]
array([13,  8], dtype=uint16)

A file is opened when it is read, and at most OPEN_FILES of a process stay open, however many files a corpus has.
Shape suffix: R runs of a file's numbers.
"""

import functools
import mmap
import os
from typing import NamedTuple

import numpy as np

from t5suite.base.errors import ConfigError, DataError

# A map costs a file descriptor, of which a process has 1024 by default.
OPEN_FILES = 256


class FilePart(NamedTuple):
    """All the numbers of a file; only `.npy` files have a header."""

    path: str
    length: int

    def read(self, start: int, count: int, dtype: np.dtype, reader: int) -> np.ndarray:
        """The numbers from `start` on, at most `count`."""
        return _mapped(self.path, self.length, dtype, reader)[start : start + count]


class RunsPart(NamedTuple):
    """Runs of a file's numbers, one after the other, as one split of an adopted file has them.

    Attributes:
      length: numbers in all runs.
      runs_path: int64 [2, R] in a `.npy` file: where each run starts in this part, and where in the file.
    """

    path: str
    length: int
    file_length: int
    runs_path: str
    num_runs: int

    def read(self, start: int, count: int, dtype: np.dtype, reader: int) -> np.ndarray:
        """The numbers from `start` on, at most `count`, and no further than the end of a run."""
        starts_R, file_starts_R = _mapped(self.runs_path, 2 * self.num_runs, np.dtype("<i8"), reader)
        run = int(np.searchsorted(starts_R, start, side="right")) - 1
        end = int(starts_R[run + 1]) if run + 1 < self.num_runs else self.length
        first = int(file_starts_R[run]) + start - int(starts_R[run])
        return _mapped(self.path, self.file_length, dtype, reader)[first : first + min(count, end - start)]


class ShardedArray:
    """Files of numbers, one after the other, as one read-only row; a slice is read from disk on demand.

    >>> array = ShardedArray([FilePart("a.tokens.bin", 3), FilePart("b.tokens.bin", 2)], "<u2")
    >>> array[2:4]
    array([13,  8], dtype=uint16)

    Args:
      parts: `FilePart`s or `RunsPart`s.
      starts: added to the numbers of each part, such as the tokens before it.
      out_dtype: the type of slices.

    It pickles as the list of parts, so worker processes map the files again.
    """

    def __init__(self, parts, dtype, starts=None, out_dtype=None):
        filled_parts = [index for index, part in enumerate(parts) if part.length]
        self._parts = [parts[index] for index in filled_parts]
        self._ends = np.cumsum([part.length for part in self._parts], dtype=np.int64)
        self._starts = None if starts is None else np.asarray(starts, dtype=np.int64)[filled_parts]
        self.dtype = np.dtype(out_dtype or dtype)
        self._stored = np.dtype(dtype)
        # Its own maps: a corpus that was built again under the same name has other files.
        self._reader = int.from_bytes(os.urandom(8), "little")

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index):
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step < 1:
                raise ValueError(f"step {step}: the row is read forwards")
            return self._read(start, stop)[::step]
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"index {index} of {len(self)}")
        return self._read(position, position + 1)[0]

    def __array__(self, dtype=None, copy=None):
        return self._read(0, len(self)).astype(dtype or self.dtype, copy=False)

    def _read(self, start: int, stop: int) -> np.ndarray:
        """A copy of the numbers from `start` to `stop`."""
        out = np.empty(max(stop - start, 0), dtype=self.dtype)
        done = 0
        shard = int(np.searchsorted(self._ends, start, side="right"))
        while done < len(out):
            part = self._parts[shard]
            shard_end = int(self._ends[shard])
            shard_start = shard_end - part.length
            numbers = part.read(start + done - shard_start, len(out) - done, self._stored, self._reader)
            out[done : done + len(numbers)] = numbers
            if self._starts is not None:
                out[done : done + len(numbers)] += self._starts[shard]
            done += len(numbers)
            if start + done == shard_end:
                shard += 1
        return out


@functools.lru_cache(maxsize=OPEN_FILES)
def _mapped(path: str, length: int, dtype: np.dtype, reader: int) -> np.ndarray:
    """A file's numbers as `reader`'s view of the disk.

    Raises:
      DataError: it holds more or fewer than `length`.
    """
    if path.endswith(".npy"):
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    else:
        mapped = np.memmap(path, dtype=dtype, mode="r")
    if hasattr(mmap, "MADV_RANDOM"):
        # For a row of 1 KB the OS would read 128 KB ahead: 5120 rows of 10 GB took 2.2 s, and 0.03 s without.
        mapped.base.madvise(mmap.MADV_RANDOM)
    if mapped.size != length:
        raise DataError(f"{path}: holds {mapped.size} numbers, but the corpus says {length}")
    return mapped.view(np.ndarray)  # a view of memmap's own class costs 4 us more for every slice


class TokenSequence(ShardedArray):
    """The tokens of a split: `len`, `[start:stop]` -> int32 array, and where documents and sentences start.

    >>> tokens.document(1)
    array([  37, 6423,   19, ...,    5], dtype=int32)
    """

    def __init__(self, parts, dtype, documents: ShardedArray, sentences: ShardedArray | None = None):
        super().__init__(parts, dtype, out_dtype="int32")
        self.documents = documents
        self._sentences = sentences

    @property
    def sentences(self) -> ShardedArray:
        """The token at which each sentence starts; raises ConfigError for a corpus built without them."""
        if self._sentences is None:
            raise ConfigError("the corpus has no sentences: build it with --split_sentences")
        return self._sentences

    def document(self, number: int) -> np.ndarray:
        """The tokens of one document."""
        start = int(self.documents[number])
        is_last = number in (len(self.documents) - 1, -1)
        end = len(self) if is_last else int(self.documents[number + 1])
        return self[start:end]

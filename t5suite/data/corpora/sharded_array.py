"""Files of numbers, one after the other, as one read-only row that is mapped into memory.

>>> array = ShardedArray([("a.tokens.bin", 3), ("b.tokens.bin", 2)], "<u2")
>>> array[2:4]
array([13,  8], dtype=uint16)
"""

import mmap

import numpy as np

from t5suite.base.errors import ConfigError, DataError


class ShardedArray:
    """Files of numbers, one after the other, as one read-only row; a slice is read from disk on demand.

    >>> array = ShardedArray([("a.tokens.bin", 3), ("b.tokens.bin", 2)], "<u2")
    >>> array[2:4]
    array([13,  8], dtype=uint16)

    Args:
      parts: `(file, numbers in it)`; only `.npy` files have a header.
      starts: added to the numbers of each file, such as the tokens before it.
      out_dtype: the type of slices.

    It pickles as the list of files, so worker processes map them again.
    """

    def __init__(self, parts, dtype, starts=None, out_dtype=None):
        filled_parts = [index for index, (_, count) in enumerate(parts) if count]
        self._paths = [parts[index][0] for index in filled_parts]
        self._lengths = np.array([parts[index][1] for index in filled_parts], dtype=np.int64)
        self._ends = np.cumsum(self._lengths)
        self._starts = None if starts is None else np.asarray(starts, dtype=np.int64)[filled_parts]
        self.dtype = np.dtype(out_dtype or dtype)
        self._stored = np.dtype(dtype)
        self._maps = {}

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
            first = start + done - int(self._ends[shard] - self._lengths[shard])
            part = self._map(shard)[first : first + len(out) - done]
            out[done : done + len(part)] = part
            if self._starts is not None:
                out[done : done + len(part)] += self._starts[shard]
            done += len(part)
            shard += 1
        return out

    def _map(self, shard: int) -> np.ndarray:
        if shard in self._maps:
            return self._maps[shard]
        path = self._paths[shard]
        if path.endswith(".npy"):
            mapped = np.load(path, mmap_mode="r", allow_pickle=False)
        else:
            mapped = np.memmap(path, dtype=self._stored, mode="r")
        if hasattr(mmap, "MADV_RANDOM"):
            # For a row of 1 KB the OS would read 128 KB ahead: 5120 rows of 10 GB took 2.2 s, and 0.03 s without.
            mapped.base.madvise(mmap.MADV_RANDOM)
        if len(mapped) != self._lengths[shard]:
            raise DataError(f"{path}: holds {len(mapped)} numbers, but the corpus says {self._lengths[shard]}")
        self._maps[shard] = mapped
        return mapped

    def __getstate__(self):
        return {**self.__dict__, "_maps": {}}


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

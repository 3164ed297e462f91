"""Files whose size and SHA-256 are known from the bytes as they were written.

    >>> write_tensors("model.safetensors", {"weight": torch.zeros(2, 3)})
    Record(size=96, sha256='...')
    >>> write_json("state.json", {"step": 400})
    Record(size=17, sha256='...')

A file that is read back to be hashed could have been torn before. Here a thread hashes what another one writes (hashlib
lets go of Python's lock), tensor by tensor, so no second copy of a model is ever in memory, and the file is on the disk
(fsync) when its record is there. The bytes are those of `safetensors.torch.save_file`. With `wait=False` hash and fsync
go on while the next file is written, and what is returned is settled later:

    >>> records = {"a.safetensors": write_tensors("a.safetensors", tensors, wait=False)}
    >>> settle(records)
"""

import contextlib
import hashlib
import json
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from t5suite.base.errors import ConfigError

PIECE = 8 << 20  # bytes that are written and hashed at a time
MOST_WAITING = 16  # pieces copied from a GPU, that is, that may wait for their hash


@dataclass(frozen=True)
class Record:
    """What a file must be: its size in bytes and the SHA-256 of its content, in hexadecimal."""

    size: int
    sha256: str


class Pending:
    """The record of a file that is still being hashed and brought to the disk."""

    def __init__(self, future: Future):
        self._future = future

    def record(self) -> Record:
        """The record, once it is there.

        Raises:
          OSError: the disk did not take the file; with `filename` and `bytes_wanted`.
        """
        return self._future.result()


def settle(records: dict[str, "Record | Pending"]) -> None:
    """Waits for what is pending, and puts the records in its place."""
    for name, record in records.items():
        if isinstance(record, Pending):
            records[name] = record.record()


class HashedFile:
    """A new file that is hashed in another thread than the one that writes it.

    >>> with hashed_file("notes.txt", size=5) as file:
    ...     file.write(b"hello")
    >>> file.pending.record().size
    5

    Attributes:
      pending: the record to be, once all is written.
    """

    def __init__(self, path, size: int):
        self.path = Path(path)
        self.pending: Pending | None = None
        self._wanted = size
        self._file = open(path, "wb")  # noqa: SIM115
        self._hasher = ThreadPoolExecutor(1, thread_name_prefix="hash")
        self._sha256 = hashlib.sha256()
        self._size = 0
        self._hashing: deque[Future] = deque()

    def write(self, content, copied: bool = False) -> None:
        """Appends bytes, or anything with a buffer of bytes, which must not change before the record is there.

        Args:
          copied: it takes memory of its own until it is hashed, so not too much of it may wait.
        """
        view = memoryview(content)
        for start in range(0, len(view), PIECE):
            piece = view[start : start + PIECE]
            self._hashing.append(self._hasher.submit(self._sha256.update, piece))
            self._file.write(piece)
            self._size += len(piece)
            while copied and len(self._hashing) > MOST_WAITING:
                self._hashing.popleft().result()

    def finish(self) -> None:
        """All is written: brings it to the disk and waits for the hash, in a thread."""
        finisher = ThreadPoolExecutor(1, thread_name_prefix="sync")
        self.pending = Pending(finisher.submit(self._complete))
        finisher.shutdown(wait=False)

    def _complete(self) -> Record:
        with self._named_errors():
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        self._hasher.shutdown()
        return Record(self._size, self._sha256.hexdigest())

    def abandon(self) -> None:
        """Closes a file that could not be written; what its buffer still holds fails as the write before did."""
        self._hasher.shutdown(wait=False, cancel_futures=True)
        with contextlib.suppress(OSError):
            self._file.close()

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            error.filename = error.filename or str(self.path)
            error.bytes_wanted = self._wanted
            raise


@contextlib.contextmanager
def hashed_file(path, size: int) -> Iterator[HashedFile]:
    """A `HashedFile` that is finished at the end of the block, though perhaps not yet hashed and on the disk.

    Args:
      size: bytes that the file will have; an error says so.

    Raises:
      OSError: with `filename` and `bytes_wanted`.
    """
    file = HashedFile(path, size)
    try:
        with file._named_errors():
            yield file
    except BaseException:
        file.abandon()
        raise
    file.finish()


def write_bytes(path, content: bytes) -> Record:
    """Writes a small file."""
    with hashed_file(path, len(content)) as file:
        file.write(content)
    return file.pending.record()


def write_json(path, value) -> Record:
    """Writes JSON; numbers that JSON does not have are refused (ValueError)."""
    return write_bytes(path, (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())


def write_tensors(
    path, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None, wait: bool = True
) -> Record | Pending:
    """Writes a safetensors file, one tensor after the other, whatever device they are on.

    Tensors that are not contiguous are written in the order of their indices; those that share memory, each in full.

    Args:
      wait: False returns as soon as all is written; tensors must then not change before the record is settled.

    Raises:
      ConfigError: a tensor that the format does not have (sparse, quantized, sharded).
      OSError: see `hashed_file`.
    """
    names = sorted(tensors, key=lambda name: (-DTYPE_ORDER[_dtype(name, tensors[name])], name))
    header = _header(names, tensors, metadata)
    total = len(header) + sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    with hashed_file(path, total) as file:
        file.write(header)
        for name in names:
            content = _bytes_of(tensors[name])
            file.write(memoryview(content.numpy()), copied=content.data_ptr() != tensors[name].data_ptr())
    return file.pending.record() if wait else file.pending


def _header(names, tensors, metadata) -> bytes:
    """The length of the header in 8 bytes, and the header, filled up to a multiple of 8."""
    entries, start = {"__metadata__": metadata} if metadata else {}, 0
    for name in names:
        tensor = tensors[name]
        stop = start + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _dtype(name: str, tensor: torch.Tensor) -> str:
    whole = tensor.layout is torch.strided and not tensor.is_meta and not hasattr(tensor, "device_mesh")
    if tensor.dtype not in DTYPES or not whole:
        kind = f"{type(tensor).__name__} of {tensor.dtype}, {tensor.layout}, on {tensor.device}"
        raise ConfigError(f"tensor {name!r} cannot be saved in safetensors: it is a {kind}")
    return DTYPES[tensor.dtype]


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes, in its own memory where that is possible, [number of bytes]."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return plain.reshape(-1).view(torch.uint8)


# In the order in which safetensors sorts them (`Dtype` in its tensor.rs), wide types last.
DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.float32: "F32",
    torch.complex64: "C64",
    torch.float64: "F64",
    torch.int64: "I64",
    torch.uint64: "U64",
}
DTYPE_ORDER = {name: place for place, name in enumerate(DTYPES.values())}

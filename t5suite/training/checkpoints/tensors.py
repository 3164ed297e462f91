"""Files whose size and SHA-256 are known from the bytes as they were written.

    >>> write_tensors("model.safetensors", {"weight": torch.zeros(2, 3)})
    Record(size=96, sha256='...')
    >>> write_json("state.json", {"step": 400})
    Record(size=17, sha256='...')

A file that is read back to be hashed could have been torn before. Here a second thread hashes what the first one
writes (hashlib lets go of Python's lock), tensor by tensor, so no second copy of a model is ever in memory, and the
file is on the disk (fsync) when the function returns. The bytes are those of `safetensors.torch.save_file`.
"""

import contextlib
import hashlib
import json
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from t5suite.errors import ConfigError

PIECE = 8 << 20  # bytes that are written and hashed at a time
MOST_WAITING = 64  # pieces that may wait for their hash (and keep copies from a GPU alive) while the disk is busy


@dataclass(frozen=True)
class Record:
    """What a file must be: its size in bytes and the SHA-256 of its content, in hexadecimal."""

    size: int
    sha256: str


class HashedFile:
    """A file that is written in pieces, each hashed beside the writing.

    >>> with hashed_file("notes.txt", 5) as file:
    ...     file.write(b"hello")
    >>> file.record.size
    5
    """

    def __init__(self, path, hasher: ThreadPoolExecutor):
        self.path = Path(path)
        self.record: Record | None = None
        self._file = open(path, "wb")  # noqa: SIM115
        self._hasher = hasher
        self._sha256 = hashlib.sha256()
        self._waiting: deque = deque()
        self._size = 0

    def write(self, content) -> None:
        """Appends bytes, or anything with a buffer of bytes; it must not change until the file is closed."""
        view = memoryview(content)
        for start in range(0, len(view), PIECE):
            piece = view[start : start + PIECE]
            self._waiting.append(self._hasher.submit(self._sha256.update, piece))
            self._file.write(piece)
            self._size += len(piece)
            if len(self._waiting) > MOST_WAITING:
                self._waiting.popleft().result()

    def finish(self) -> None:
        """Brings the file to the disk and makes its record."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        while self._waiting:
            self._waiting.popleft().result()
        self.record = Record(self._size, self._sha256.hexdigest())

    def abandon(self) -> None:
        """Closes a file that could not be written; what its buffer still holds fails as the write before did."""
        with contextlib.suppress(OSError):
            self._file.close()


@contextlib.contextmanager
def hashed_file(path, size: int) -> Iterator[HashedFile]:
    """A `HashedFile` that is finished at the end of the block.

    Args:
      size: bytes that the file will have; an error says so (`bytes_wanted`).

    Raises:
      OSError: with `filename` and `bytes_wanted`.
    """
    file = None
    try:
        with ThreadPoolExecutor(1, thread_name_prefix="hash") as hasher:
            file = HashedFile(path, hasher)
            yield file
            file.finish()
    except BaseException as error:
        if file is not None:
            file.abandon()
        if isinstance(error, OSError):
            error.filename = error.filename or str(path)
            error.bytes_wanted = size
        raise


def write_bytes(path, content: bytes) -> Record:
    """Writes a small file."""
    with hashed_file(path, len(content)) as file:
        file.write(content)
    return file.record


def write_json(path, value) -> Record:
    """Writes JSON; numbers that JSON does not have are refused (ValueError)."""
    return write_bytes(path, (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())


def write_tensors(path, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> Record:
    """Writes a safetensors file, one tensor after the other, whatever device they are on.

    Tensors that are not contiguous are written in the order of their indices; those that share memory, each in full.

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
            file.write(_bytes_of(tensors[name]))
    return file.record


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


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return memoryview(plain.reshape(-1).view(torch.uint8).numpy())


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

"""Weights that `save_pretrained` writes, hashed as they are written.

>>> records = {}
>>> with recorded_weights(folder, records):
...     model.save_pretrained(folder)
>>> settle(records)
>>> records
{'model.safetensors': Record(size=242043056, sha256='...')}
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from transformers import modeling_utils

from t5suite.training.checkpoints.tensors import Pending, Record, write_tensors

# transformers 5.23 (`modeling_utils.save_pretrained`) writes every shard with the name it imported from safetensors.
# tests/test_checkpoint_writing.py tells when a version does not; such files are then hashed by reading them.
WRITER = "safe_save_file"


@contextlib.contextmanager
def recorded_weights(folder, records: dict[str, Record | Pending]) -> Iterator[None]:
    """In this block weights that `save_pretrained` writes below `folder` go through `write_tensors`, into `records`."""
    original = getattr(modeling_utils, WRITER, None)

    def write(tensors, filename, metadata=None):
        record = write_tensors(filename, tensors, metadata, wait=False)
        with contextlib.suppress(ValueError):  # elsewhere than below the folder: not part of the checkpoint
            records[Path(filename).relative_to(folder).as_posix()] = record

    if original is None:
        yield
        return
    setattr(modeling_utils, WRITER, write)
    try:
        yield
    finally:
        setattr(modeling_utils, WRITER, original)

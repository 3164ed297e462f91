"""Errors that say that memory ran out, on a device or on the host, whichever library raises them.

>>> is_out_of_memory(MemoryError())
True
"""

import errno

# Messages of out-of-memory errors other than `torch.OutOfMemoryError`; the last two, of files that are mapped, have the
# error's number: NCCL says so without it where the memory that it may lock is limited.
SIGNS = (
    "DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory", "std::bad_alloc",
    "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED",
    "Cannot allocate memory (12)", "Cannot allocate memory (os error 12)",
)  # fmt: skip


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out, on a device or on the host."""
    # torch's own class by its name: many commands do without torch.
    is_of_torch = type(error).__name__ == "OutOfMemoryError"
    is_of_system = isinstance(error, OSError) and error.errno == errno.ENOMEM
    if is_of_torch or is_of_system or isinstance(error, MemoryError):
        return True
    return any(sign in str(error) for sign in SIGNS)

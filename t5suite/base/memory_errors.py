"""Errors that say that memory ran out, on a device or on the host, whichever library raises them.

>>> is_out_of_memory(MemoryError())
True
"""

# Messages of out-of-memory errors other than `torch.OutOfMemoryError`.
SIGNS = (
    "DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory", "std::bad_alloc",
    "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED",
)  # fmt: skip


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out, on a device or on the host."""
    # torch's own class by its name: many commands do without torch.
    is_of_torch = type(error).__name__ == "OutOfMemoryError"
    return is_of_torch or isinstance(error, MemoryError) or any(sign in str(error) for sign in SIGNS)

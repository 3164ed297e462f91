"""Weights and moments that FSDP2 has cut into pieces, whole into a checkpoint and back; the bits do not change.

    >>> state = whole_state(optimizer.state_dict(), keep=rank == 0)     # every rank; a plain state on rank 0
    >>> optimizer.load_state_dict(state_in_pieces(state, optimizer))    # every rank gets its pieces

So a checkpoint of FSDP2 has the same files as one of a single process (no pickles among them), `from_pretrained` loads
it, and any number of ranks can go on from it. It costs rank 0 the memory of the whole state in main memory: 12 bytes a
parameter for Adam. A rank reads a checkpoint's file through the page cache and copies its own pieces alone.
"""

import torch
from torch.distributed.tensor import DTensor, distribute_tensor


def whole_state(state, keep: bool):
    """A nested state with every sharded tensor put together, in main memory; None in its place where not kept.

    Every rank must call it with a state of the same form.
    """
    if isinstance(state, DTensor):
        tensor = state.full_tensor()
        return tensor.cpu() if keep else None
    if isinstance(state, dict):
        return {key: whole_state(value, keep) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(whole_state(value, keep) for value in state)
    return state


def state_in_pieces(state: dict, optimizer) -> dict:
    """An optimizer's whole state, with tensors of a parameter's shape cut as that parameter is."""
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    moments = {
        number: {key: _like(value, parameter) for key, value in state["state"].get(number, {}).items()}
        for number, parameter in zip(numbers, parameters, strict=True)
        if number in state["state"]
    }
    return {**state, "state": moments}


def _like(value, parameter):
    if not (isinstance(parameter, DTensor) and torch.is_tensor(value) and value.shape == parameter.shape):
        return value
    # Without a source rank nothing is sent: each rank has the whole tensor and takes its piece.
    piece = distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
    return piece.to(parameter.to_local().device)

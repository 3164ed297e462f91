"""Two devices that are none: tensors on `twin:0` and `twin:1` are computed on the CPU, and refuse to meet.

    with twin_devices():
        weight = torch.randn(4, 4).to("twin:1")
        weight @ torch.randn(4, 4).to("twin:0")    # RuntimeError, as two GPUs would say

For a process of its own: torch keeps a backend for as long as it lives. Torch's Python backend (experimental, 2.13)
knows one device to autograd, so that for torch all such tensors are on `twin:0`; `Twin.place` is where they are for
everybody who asks in Python, and what is compared before every operation.
"""

import contextlib

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

KIND, COUNT = "twin", 2
CPU = torch.device("cpu")
COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
# Operations over lists, which torch takes one tensor at a time (or a device at a time) where the list mixes devices.
LIST_OPERATIONS = ("_foreach", "_fused_adam")


@contextlib.contextmanager
def twin_devices():
    """Within, `twin:0` and `twin:1` are the accelerators of this machine."""
    with Operations(), Factories():
        yield


class TwinModule(backend_registration._DummyBackendModule):
    def device_count(self):
        return COUNT


backend_registration._setup_privateuseone_for_python_backend(KIND, TwinModule())


class Twin(torch.Tensor):
    """A tensor on a twin device; `held` has its numbers."""

    @staticmethod
    def __new__(cls, held, place):
        first = torch.device(KIND, 0)
        twin = torch.Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), dtype=held.dtype, device=first
        )
        twin.held, twin.place = held, place
        return twin

    @property
    def device(self):
        return self.place

    def __repr__(self):
        return f"Twin({self.held}, {self.place})"

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func in (torch.Tensor.data_ptr, torch.Tensor.storage, torch.Tensor.untyped_storage, torch.Tensor.tolist):
            return getattr(args[0].held, func.__name__)()
        if func in (torch.Tensor.to, torch.Tensor.cpu):
            return moved(*args, **({"device": CPU} if func is torch.Tensor.cpu else kwargs))
        return super().__torch_function__(func, types, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return compute(func, args, dict(kwargs or {}))


class Move(torch.autograd.Function):
    """A copy on another device, whose gradient goes back."""

    @staticmethod
    def forward(ctx, tensor, place):
        ctx.back = tensor.device
        return put(held_by(tensor).clone(), place)

    @staticmethod
    def backward(ctx, gradient):
        return put(held_by(gradient), ctx.back), None


class Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return compute(func, args, dict(kwargs or {}))


class Factories(TorchFunctionMode):
    """`torch.tensor([...], device="twin:1")`, which dispatches nothing."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None:
            return func(*args, **{**kwargs, "device": CPU}).to(kwargs["device"])
        return func(*args, **kwargs)


def held_by(tensor):
    return tensor.held if isinstance(tensor, Twin) else tensor


def put(held, place):
    return Twin(held, place) if place.type == KIND else held


def named(device) -> torch.device:
    """A device with its number; a bare number is one of ours."""
    device = torch.device(device)
    return torch.device(KIND, device.index or 0) if device.type == KIND else device


def moved(tensor, *args, copy=False, **kwargs):
    """`Tensor.to`, in all of its forms."""
    like = next((value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)), None)
    device, dtype = (like.device, like.dtype) if like is not None else torch._C._nn._parse_to(*args, **kwargs)[:2]
    if device is not None and named(device) != tensor.device:
        tensor = Move.apply(tensor, named(device))
    if dtype is None or dtype == tensor.dtype:
        return tensor
    return torch.ops.aten._to_copy(tensor, dtype=dtype)


def compute(func, args, kwargs):
    """One operation on the CPU; its result is where its arguments are, or where `device` says.

    Raises:
      RuntimeError: arguments on several devices; numbers without dimensions may come from the CPU, as on GPUs.
    """
    places, numbers, strangers = set(), set(), []

    def look(value):
        if isinstance(value, Twin):
            (places if value.dim() else numbers).add(value.place)
        elif isinstance(value, torch.Tensor) and value.dim():
            strangers.append(value)

    tree_map(look, (args, kwargs))
    places = places or numbers
    wanted = kwargs.pop("device", None)
    if wanted is not None:
        kwargs["device"], wanted = CPU, named(wanted)
        if func is COPIES[0] and wanted.type == KIND and places:
            wanted = next(iter(places))  # torch says twin:0 of both
    kwargs.pop("pin_memory", None)
    lists = func.__name__.startswith(LIST_OPERATIONS)
    if not lists and func not in COPIES and (len(places) > 1 or (places and strangers)):
        raise RuntimeError(f"{func}: tensors on {sorted(map(str, places))}{' and on the CPU' if strangers else ''}")
    found = func(*tree_map(held_by, args), **tree_map(held_by, kwargs))
    if lists:
        return [put(one, like.device) for one, like in zip(found, args[0])] if found else found
    if isinstance(found, torch.Tensor) and found is held_by(args[0] if args else None):
        return args[0]  # it worked in place
    place = wanted or next(iter(places), CPU)
    return tree_map(lambda value: put(value, place) if isinstance(value, torch.Tensor) else value, found)

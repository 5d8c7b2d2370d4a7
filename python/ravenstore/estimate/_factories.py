"""How programs make tensors on the GPU and move them there, where PyTorch would ask the driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parameter import UninitializedTensorMixin

Undo = Callable[[], None]

GPU = torch.device("cuda", 0)

_FROM_DATA = ("tensor", "as_tensor", "asarray")
_TYPES = {
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "LongTensor": torch.int64,
    "IntTensor": torch.int32,
    "ShortTensor": torch.int16,
    "CharTensor": torch.int8,
    "ByteTensor": torch.uint8,
    "BoolTensor": torch.bool,
}


def replace(where: Any, name: str, value: Any) -> Undo:
    """Replaces an attribute; what undoes it."""
    before = where.__dict__.get(name)

    def undo() -> None:
        if before is None:
            delattr(where, name)
        else:
            setattr(where, name, before)

    setattr(where, name, value)
    return undo


def install() -> list[Undo]:
    """What undoes it, in the order in which it was done."""
    moves = {
        "to": _to_the_one_gpu(torch.Tensor.to),
        "cuda": lambda tensor, *_, **__: tensor.to(GPU),
        "pin_memory": lambda tensor, *_: tensor,
        "new_tensor": _new_tensor,
        "type": _to_type(torch.Tensor.type),
    }
    undo = [replace(torch.Tensor, name, function) for name, function in moves.items()]
    undo += [replace(torch.cuda, name, _TensorType(dtype)) for name, dtype in _TYPES.items()]
    undo += [replace(torch, name, _made_on_the_host(getattr(torch, name))) for name in _FROM_DATA]
    undo.append(replace(torch, "load", _loaded_to_the_host(torch.load)))
    undo.append(replace(torch, "Generator", _Generator))
    # What a parameter whose size is not known yet may be asked for.
    allowed: list[Any] = UninitializedTensorMixin._allowed_methods
    undo.append(replace(UninitializedTensorMixin, "_allowed_methods", [*allowed, *moves.values()]))
    return undo


def _to_the_one_gpu(to: Callable[..., Any]) -> Callable[..., Any]:
    """Tensor.to, which asks the driver for the current device where a device has no index."""

    def indexed(value: Any) -> Any:
        if isinstance(value, str) and value.startswith("cuda"):
            return GPU
        return GPU if isinstance(value, torch.device) and value.type == "cuda" else value

    def run(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        moved: torch.Tensor = to(
            tensor, *map(indexed, args), **{name: indexed(each) for name, each in kwargs.items()}
        )
        return moved

    return run


def _new_tensor(
    tensor: torch.Tensor, data: Any, *, dtype: Any = None, device: Any = None, **options: Any
) -> torch.Tensor:
    device = tensor.device if device is None else device
    return torch.tensor(data, dtype=dtype or tensor.dtype, device=device, **options)


class _TensorType:
    """torch.cuda.FloatTensor and its like: makes a tensor of sizes, or of data."""

    is_cuda = True

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, *arguments: Any) -> torch.Tensor:
        if all(isinstance(each, int) for each in arguments):
            return torch.empty(arguments, dtype=self.dtype, device=GPU)
        return torch.tensor(arguments[0], dtype=self.dtype, device=GPU)


def _to_type(to_type: Callable[..., Any]) -> Callable[..., Any]:
    """Tensor.type, to a type of the GPU or by its name."""

    def run(tensor: torch.Tensor, dtype: Any = None, *rest: Any, **options: Any) -> Any:
        if isinstance(dtype, str) and dtype.startswith("torch.cuda."):
            dtype = getattr(torch.cuda, dtype.removeprefix("torch.cuda."))
        if isinstance(dtype, _TensorType):
            return tensor.to(GPU, dtype.dtype)
        return to_type(tensor, dtype, *rest, **options)

    return run


def _device_that_is_set() -> torch.device | None:
    """That of the innermost `with torch.device(...)` or torch.set_default_device, if it is the GPU.
    PyTorch itself asks it for those functions alone that it knew when it was first asked."""
    for mode in reversed(torch.overrides._get_current_function_mode_stack()):
        if isinstance(mode, torch.utils._device.DeviceContext):
            return mode.device if mode.device.type == "cuda" else None
    return None


def _made_on_the_host(make: Callable[..., Any]) -> Callable[..., Any]:
    """torch.tensor and its like, which would make the tensor on the GPU from the host's bytes."""

    def run(
        data: Any, *args: Any, device: Any = None, requires_grad: bool = False, **kwargs: Any
    ) -> Any:
        if device is None:
            device = _device_that_is_set()
        if device is None:
            made = make(data, *args, **kwargs)
        else:
            made = make(data, *args, device="cpu", **kwargs).to(device)
        return made.requires_grad_() if requires_grad else made

    return run


def _loaded_to_the_host(load: Callable[..., Any]) -> Callable[..., Any]:
    """torch.load: a parameter that is set from what was loaded takes its shape alone."""

    def run(file: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        return load(file, "cpu", *args, **kwargs)

    return run


class _Generator(torch.Generator):
    """One for the GPU is one of the host, which a tensor without bytes does not ask."""

    def __new__(cls, device: Any = None) -> _Generator:
        return super().__new__(cls, "cpu")

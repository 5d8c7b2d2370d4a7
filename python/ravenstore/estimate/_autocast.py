"""Autocast for tensors without bytes.

PyTorch's kernels for the key of CUDA's autocast cast only what C++ takes to be on a CUDA device,
and it takes a Fake to be on meta. While a FakeGpu is open they are replaced by these, which cast as
they do: matrix products to the lower precision, what is easily out of range to fp32, and of
operators of several tensors all to the widest.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch

from ravenstore.estimate._trees import map_tensors, tensors_in

Undo = Callable[[], None]

_LOWER = frozenset(
    {
        *("_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d"),
        *("conv_transpose2d", "conv_transpose3d", "convolution", "prelu", "addmm", "addmv"),
        *("addr", "matmul", "einsum", "mm", "mv", "linalg_vecdot", "linear", "addbmm"),
        *("baddbmm", "bmm", "chain_matmul", "linalg_multi_dot", "_thnn_fused_lstm_cell"),
        *("_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"),
        *("_scaled_dot_product_flash_attention", "scaled_dot_product_attention"),
    }
)
_WIDEST = frozenset(
    {
        *("addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler"),
        *("index_put", "tensordot", "scatter_add"),
    }
)
# They read the lower precision and write fp32.
_SUMS = frozenset(
    {
        *("prod", "softmax", "log_softmax", "cumprod", "cumsum", "linalg_vector_norm"),
        *("linalg_matrix_norm", "sum"),
    }
)
# What autocast refuses, and what casts for itself here.
_LEFT = frozenset({"binary_cross_entropy", "_cudnn_rnn"})


def _eligible(tensor: torch.Tensor, fake: type[torch.Tensor]) -> bool:
    return type(tensor) is fake and tensor.is_floating_point() and tensor.dtype is not torch.float64


class _Casts:
    """Casts, of weights once while an autocast is open."""

    def __init__(self, fake: type[torch.Tensor]) -> None:
        self._fake = fake
        self._kept: dict[int, tuple[weakref.ref[Any], torch.Tensor]] = {}

    def clear(self) -> None:
        self._kept.clear()

    def to(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if not _eligible(tensor, self._fake) or tensor.dtype is dtype:
            return tensor
        keep = (
            dtype is not torch.float32
            and tensor.dtype is torch.float32
            and tensor.requires_grad
            and tensor.is_leaf
            and not tensor._is_view()
            and torch.is_autocast_cache_enabled()
        )
        if not keep:
            return tensor.to(dtype)
        kept = self._kept.get(id(tensor))
        if kept is not None and kept[0]() is tensor:
            return kept[1]
        cast = tensor.to(dtype)
        self._kept[id(tensor)] = (weakref.ref(tensor), cast)
        return cast

    def widest(self, tensors: list[torch.Tensor]) -> torch.dtype:
        wide = any(each.dtype is torch.float32 for each in tensors if _eligible(each, self._fake))
        return torch.float32 if wide else torch.get_autocast_dtype("cuda")


def _kernel(casts: _Casts, operator: Any, fake: type[torch.Tensor]) -> Callable[..., Any]:
    name = operator._schema.name.removeprefix("aten::")
    without = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(without):
            if name in _SUMS:
                if _eligible(args[0], fake) and not any(
                    isinstance(each, torch.dtype) for each in (*args, *kwargs.values())
                ):
                    kwargs = {**kwargs, "dtype": torch.float32}
                return operator(*args, **kwargs)
            if name in _LOWER:
                dtype = torch.get_autocast_dtype("cuda")
            elif name in _WIDEST:
                dtype = casts.widest(tensors_in(*args, *kwargs.values()))
            else:
                dtype = torch.float32

            def change(tensor: torch.Tensor) -> torch.Tensor:
                return casts.to(tensor, dtype)

            return operator(
                *(map_tensors(each, change) for each in args),
                **{key: map_tensors(each, change) for key, each in kwargs.items()},
            )

    return run


@functools.cache
def _operators() -> list[Any]:
    """Those with a kernel for CUDA's autocast."""
    found = []
    for name in torch._C._dispatch_get_all_op_names():
        packet, _, overload = name.removeprefix("aten::").partition(".")
        if (
            name.startswith("aten::")
            and packet not in _LEFT
            and "imname" not in overload
            and torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutocastCUDA")
        ):
            found.append(getattr(getattr(torch.ops.aten, packet), overload or "default"))
    return found


def install(fake: type[torch.Tensor]) -> list[Undo]:
    """Makes autocast cast; what undoes it."""
    casts = _Casts(fake)
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of kernels that are replaced
        for operator in _operators():
            library.impl(operator, _kernel(casts, operator, fake), "AutocastCUDA")
    clear = torch.clear_autocast_cache

    def clear_both() -> None:
        casts.clear()
        clear()

    torch.clear_autocast_cache = clear_both

    def restore() -> None:
        torch.clear_autocast_cache = clear

    return [library._destroy, restore]

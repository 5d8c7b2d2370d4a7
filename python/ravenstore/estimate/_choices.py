"""What PyTorch chooses by device, as it does on a GPU: attention, dropout, softmax, recurrent
layers, the optimizers' kinds.

Operators that PyTorch composes of others are replaced for the dispatch keys that only tensors
without bytes have while a FakeGpu is open.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from ravenstore.estimate._fake import FakeGpu

aten = torch.ops.aten
Undo = Callable[[], None]

_HALF = (torch.float16, torch.bfloat16)
_HEAD_MAX = 256
_MASK_UNIT = 16
_HEAD_UNIT = 8


# ---- Attention


def attention_kind(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    grouped: bool,
) -> str:
    """ "flash", "efficient" or "math": what PyTorch runs on an Ampere GPU or a later one."""
    same_width = query.size(-1) == key.size(-1) == value.size(-1)
    cuda = torch.backends.cuda
    plain = query.dim() == 4 and query.size(-2) > 0 and key.size(-2) > 0
    if (
        plain
        and cuda.flash_sdp_enabled()
        and mask is None
        and query.dtype in _HALF
        and same_width
        and query.size(-1) <= _HEAD_MAX
    ):
        return "flash"
    if (
        plain
        and cuda.mem_efficient_sdp_enabled()
        and not grouped
        and query.dtype in (*_HALF, torch.float32)
        and not (mask is not None and mask.requires_grad)
    ):
        return "efficient"
    return "math"


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    grouped = enable_gqa and query.size(-3) != key.size(-3)
    kind = attention_kind(query, key, value, attn_mask, grouped=grouped)
    if kind == "flash":
        return _flash(query, key, value, dropout_p, is_causal, scale)
    if kind == "efficient":
        needs_gradient = torch.is_grad_enabled() and any(
            each.requires_grad for each in (query, key, value)
        )
        bias = None if attn_mask is None else _bias_of(attn_mask, query, key)
        out, *_ = aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, needs_gradient, dropout_p, is_causal, scale=scale
        )
        return out
    if is_causal:
        shape = (query.size(-2), key.size(-2))
        attn_mask = torch.ones(shape, dtype=torch.bool, device=query.device).tril()
    bias = attn_mask
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        bias = torch.zeros_like(attn_mask, dtype=query.dtype)
    if bias is not None and not bias.requires_grad:
        # PyTorch adds it to the scores in place, but not to those of a subclass of tensors.
        attn_mask = None
    out, _ = aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, scale=scale, enable_gqa=enable_gqa
    )
    return out


def _flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> torch.Tensor:
    width = query.size(-1)
    missing = -width % _HEAD_UNIT
    if missing:
        query, key, value = (functional.pad(each, (0, missing)) for each in (query, key, value))
    out, *_ = aten._scaled_dot_product_flash_attention(
        query, key, value, dropout_p, is_causal, scale=scale or width**-0.5
    )
    return out[..., :width] if missing else out


def _bias_of(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """What is added to the scores: a mask of booleans becomes one of numbers, in aligned rows."""
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(mask.logical_not(), -1e9)
    missing = -mask.size(-1) % _MASK_UNIT
    if missing:
        mask = functional.pad(mask, (0, missing))[..., : mask.size(-1)]
    return mask.expand(query.size(0), query.size(1), query.size(2), key.size(2))


# ---- Dropout, softmax and recurrent layers


def _dropout(given: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if not train or p == 0 or given.numel() == 0:
        return given
    out, _ = aten.native_dropout(given, p, train)
    return out


def _softmax(kernel: Any) -> Callable[..., Any]:
    """A softmax, which on a GPU reads fp16 and writes fp32 in one kernel."""

    def run(given: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        widens = given.dtype is torch.float16 and dtype is torch.float32
        if dtype is not None and not widens:
            given = given.to(dtype)
        out: torch.Tensor = kernel(given, dim, widens)
        return out

    return run


# Kind, by cuDNN's number: (operator, gates of a cell).
_RECURRENT = (("rnn_relu", 1), ("rnn_tanh", 1), ("lstm", 4), ("gru", 3))
_LSTM = 2


def _recurrent(
    kind: int,
    given: torch.Tensor,
    states: Any,
    weights: list[torch.Tensor],
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    *,
    batch_first: bool = False,
    batch_sizes: list[int] | None = None,
) -> Any:
    state, cell = states if kind == _LSTM else (states, None)
    hidden = weights[0].size(0) // _RECURRENT[kind][1]
    projected = state.size(-1) if state.size(-1) != hidden else 0
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        given, state = given.to(dtype), state.to(dtype)
        cell = None if cell is None else cell.to(dtype)
        weights = [each.to(dtype) for each in weights]
    with torch.autocast("cuda", enabled=False):
        out, final, final_cell, *_ = aten._cudnn_rnn(
            *(given, weights, len(weights) // (layers * (2 if bidirectional else 1)), None),
            *(state, cell, kind, hidden, projected, layers, batch_first, dropout, train),
            *(bidirectional, batch_sizes or [], None),
        )
    return (out, final, final_cell) if kind == _LSTM else (out, final)


def _padded(kind: int) -> Callable[..., Any]:
    def run(
        given: torch.Tensor,
        states: Any,
        weights: list[torch.Tensor],
        has_biases: bool,
        layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        rest = (states, weights, layers, dropout, train, bidirectional)
        return _recurrent(kind, given, *rest, batch_first=batch_first)

    return run


def _packed(kind: int) -> Callable[..., Any]:
    def run(
        given: torch.Tensor,
        batch_sizes: torch.Tensor,
        states: Any,
        weights: list[torch.Tensor],
        has_biases: bool,
        layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
    ) -> Any:
        rest = (states, weights, layers, dropout, train, bidirectional)
        return _recurrent(kind, given, *rest, batch_sizes=batch_sizes.tolist())

    return run


# ---- Installed while a FakeGpu is open

_REPLACED: dict[str, Callable[..., Any]] = {
    "scaled_dot_product_attention": _attention,
    "dropout": _dropout,
    "softmax.int": _softmax(aten._softmax),
    "log_softmax.int": _softmax(aten._log_softmax),
    **{f"{name}.input": _padded(kind) for kind, (name, _) in enumerate(_RECURRENT)},
    **{f"{name}.data": _packed(kind) for kind, (name, _) in enumerate(_RECURRENT)},
}


def _has_kernel(func: Any, key: str) -> bool:
    has: bool = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)
    return has


@functools.cache
def composite(func: Any) -> Callable[..., Any] | None:
    """What the operator is composed of, where it is; without autograd it comes as it is. One with a
    kernel for the CPU, such as silu_backward, has one for a GPU as well."""
    name = func.name().removeprefix("aten::")
    if name in _REPLACED:
        return _REPLACED[name]
    if _has_kernel(func, "CompositeImplicitAutograd") and not _has_kernel(func, "CPU"):
        decompose: Callable[..., Any] = func.decompose
        return decompose
    return None


def install(gpu: FakeGpu, fake: type[torch.Tensor]) -> list[Undo]:
    """Makes PyTorch choose as on a GPU; what undoes it."""
    library = torch.library.Library("aten", "IMPL")
    for name, function in _REPLACED.items():
        library.impl(name, function, "AutogradCUDA")
    return [
        library._destroy,
        _optimizers_know(fake),
        _parameters_have_no_bytes(gpu),
    ]


def _optimizers_know(fake: type[torch.Tensor]) -> Undo:
    """Optimizers process lists of tensors together where these are of kinds that they know."""
    from torch.optim import optimizer
    from torch.utils import _foreach_utils

    lists: list[list[type]] = [
        optimizer._foreach_supported_types,
        _foreach_utils._foreach_supported_types,
    ]
    for known in lists:
        known.append(fake)

    def undo() -> None:
        for known in lists:
            known.remove(fake)

    return undo


def _parameters_have_no_bytes(gpu: FakeGpu) -> Undo:
    make = torch.nn.Parameter.__new__

    def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if type(data) is torch.Tensor and data.device.type == "cpu":
            data = gpu.empty(data.size(), data.dtype, stride=data.stride(), on_gpu=False)
        return make(cls, data, requires_grad)

    torch.nn.Parameter.__new__ = new

    def undo() -> None:
        torch.nn.Parameter.__new__ = make

    return undo

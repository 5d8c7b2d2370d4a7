"""Operators whose result is more than a shape: what the host reads of the GPU, sizes that depend on
bytes, and what has no shape rule."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ravenstore.estimate._estimate import CaptureRefused
from ravenstore.estimate._trees import bytes_of_all, map_tensors
from ravenstore.estimate._workspaces import (
    Convolution,
    count_rnn_dropout,
    count_workspace,
    is_in_order,
    rnn_workspace,
)

if TYPE_CHECKING:
    from ravenstore.estimate._fake import FakeGpu

aten = torch.ops.aten

# An operator without a shape rule runs on zeros in host memory, at most this many bytes of them.
_ZEROS_BYTES_MAX = 64 << 20
# The host reads at most this many values as real ones; a larger tensor has no bytes there, either.
_READ_VALUES_MAX = 1 << 22

Special = Callable[["FakeGpu", Any, tuple[Any, ...], dict[str, Any]], Any]
SPECIAL: dict[Any, Special] = {}
"""Operator: what to do instead of its shape rule alone."""


def _special(*operators: Any) -> Callable[[Special], Special]:
    def register(function: Special) -> Special:
        SPECIAL.update(dict.fromkeys(operators, function))
        return function

    return register


# ---- What the host reads

# Evaluated on the values that stand for their inputs: a loop that asks whether its loss is finite
# goes on.
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "mul")
_OF_ALL = ("any", "all", "_is_all_true", "_is_any_true")
_LOGIC = ("logical_not", "logical_and", "logical_or", "bitwise_not", "bitwise_and", "bitwise_or")
_EVALUATED = frozenset(f"aten::{name}" for name in (*_COMPARISONS, *_OF_ALL, *_LOGIC))
_CONSTANT: dict[str, Callable[[tuple[Any, ...]], Any]] = {
    "aten::zeros": lambda args: 0,
    "aten::zeros_like": lambda args: 0,
    "aten::new_zeros": lambda args: 0,
    "aten::ones": lambda args: 1,
    "aten::ones_like": lambda args: 1,
    "aten::new_ones": lambda args: 1,
    "aten::full_like": lambda args: args[1],
    "aten::zero_": lambda args: 0,
    "aten::full": lambda args: args[1],
    "aten::scalar_tensor": lambda args: args[0],
}
_COPIES = ("clone", "detach", "alias", "_to_copy", "contiguous")
_VIEWS = ("view", "select", "slice", "expand", "unsqueeze", "squeeze", "permute", "transpose")
_SAME = frozenset(f"aten::{name}" for name in (*_COPIES, *_VIEWS))


def value_of(tensor: torch.Tensor) -> Any:
    """What each of the tensor's values is taken to be: 1, or False, unless more is known."""
    value = getattr(tensor, "value", None)
    if value is not None:
        return bool(value) if tensor.dtype == torch.bool else value
    if tensor.dtype == torch.bool:
        return False
    return torch.ones((), dtype=tensor.dtype, device="cpu").item()


def on_host(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A real tensor of the values that stand for the tensor's."""
    return torch.full(
        tuple(tensor.shape), value_of(tensor), dtype=dtype or tensor.dtype, device="cpu"
    )


def _stand_in(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.tensor(value_of(value), dtype=value.dtype, device="cpu")
    return value


def note_value(func: Any, args: tuple[Any, ...], out: Any) -> None:
    """Keeps what is known of the values of `out`, a Fake."""
    name = func._schema.name
    if name in _EVALUATED:
        if not isinstance(out, torch.Tensor) or out.dtype != torch.bool:
            return
        try:
            out.value = func(*map(_stand_in, args)).item()
        except (RuntimeError, IndexError):
            return  # one value cannot stand for tensors of these shapes
    elif name in _CONSTANT:
        out.value = _CONSTANT[name](args)
    elif name == "aten::sum" and hasattr(args[0], "value"):
        out.value = args[0].value * (args[0].numel() // max(1, out.numel()))
    elif name == "aten::cumsum" and getattr(args[0], "value", None) == 0:
        out.value = 0
    elif name == "aten::_to_copy" and out.dtype == torch.bool:
        out.value = value_of(args[0])
    elif isinstance(out, torch.Tensor) and args and hasattr(args[0], "value"):
        # A view or a copy; of other results a truth value is the likeliest to be kept.
        if name in _SAME or out.dtype is args[0].dtype is torch.bool:
            out.value = args[0].value


@_special(aten._local_scalar_dense.default)
def _read_value(gpu: FakeGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return value_of(args[0])


@_special(aten.equal.default, aten.allclose.default)
def _are_equal(gpu: FakeGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return True


@_special(aten._to_copy.default)
def _to_copy(gpu: FakeGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    (source,) = args
    device, dtype = kwargs.get("device"), kwargs.get("dtype") or source.dtype
    here = gpu.is_fake(source) and gpu.has(source)
    if device is not None and gpu.is_fake(source):
        there = device.type != "cpu"
        # PyTorch takes a Fake to be on "meta", and asks for a copy to where it is already.
        if here == there and dtype == source.dtype and kwargs.get("memory_format") is None:
            return gpu.alias(source)
        if here and not there and source.numel() <= _READ_VALUES_MAX:
            return on_host(source, dtype)
    out = gpu.run_without_bytes(func, args, kwargs)
    if not gpu.is_fake(source) and source.dim() == 0:
        out.value = source.item()
    return out


@_special(aten.copy_.default)
def _copy(gpu: FakeGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Into a real tensor: it keeps what it has."""
    return args[0]


@_special(aten.fill_.Scalar)
def _fill(gpu: FakeGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    args[0].value = args[1]
    return args[0]


# ---- Sizes that depend on bytes: the largest that may be


@_special(aten.nonzero.default)
def _nonzero(gpu: FakeGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    _note_largest(gpu, func)
    return gpu.empty((args[0].numel(), args[0].dim()), torch.int64, on_gpu=gpu.any_on(args))


@_special(aten.masked_select.default)
def _masked_select(gpu: FakeGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    _note_largest(gpu, func)
    shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
    return gpu.empty((math.prod(shape),), args[0].dtype, on_gpu=gpu.any_on(args))


@_special(aten._unique2.default)
def _unique(gpu: FakeGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    _note_largest(gpu, func)
    (values,), on_gpu = args[:1], gpu.any_on(args)
    return (
        gpu.empty((values.numel(),), values.dtype, on_gpu=on_gpu),
        gpu.empty(tuple(values.shape), torch.int64, on_gpu=on_gpu),
        gpu.empty((values.numel(),), torch.int64, on_gpu=on_gpu),
    )


@_special(aten.bincount.default)
def _bincount(gpu: FakeGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    _note_largest(gpu, func)
    least = args[2] if len(args) > 2 else kwargs.get("minlength", 0)
    return gpu.empty((max(least, args[0].numel()),), torch.int64, on_gpu=gpu.any_on(args))


@_special(aten.repeat_interleave.Tensor)
def _repeats(gpu: FakeGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Of each place as many as its value, which is 1."""
    size = kwargs.get("output_size") or args[0].numel()
    return gpu.empty((size,), args[0].dtype, on_gpu=gpu.any_on(args))


@_special(aten.index.Tensor, aten.index_put.default, aten.index_put_.default)
def _index(gpu: FakeGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A mask selects as its non-zero places do, which are computed first."""
    if func is aten.index_put_.default:
        return args[0]
    places: list[Any] = []
    for index in args[1]:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            _note_largest(gpu, func)
            on_gpu = gpu.any_on((index,))
            places += [
                gpu.empty((index.numel(),), torch.int64, on_gpu=on_gpu) for _ in range(index.dim())
            ]
        else:
            places.append(index)
    if func is aten.index_put.default:
        return gpu.run_without_bytes(aten.clone.default, args[:1], {})
    return gpu.run_without_bytes(func, (args[0], places), kwargs)


@_special(aten._pack_padded_sequence.default)
def _pack(gpu: FakeGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Of the lengths, which the host has, the sizes of the steps are computed."""
    given, lengths, batch_first = args
    _, sizes = func(torch.zeros(given.shape[:2], device="cpu"), lengths, batch_first)
    shape = (int(lengths.sum()), *given.shape[2:])
    return gpu.empty(shape, given.dtype, on_gpu=gpu.has(given)), sizes


@_special(aten._pack_padded_sequence_backward.default)
def _unpack(gpu: FakeGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return gpu.empty(tuple(args[1]), args[0].dtype, on_gpu=gpu.has(args[0]))


def _note_largest(gpu: FakeGpu, func: Any) -> None:
    gpu.recorder.note(
        f"the size of what {func._schema.name} gives depends on the data: the largest was taken"
    )


# ---- Gradients that are summed

# What counts of references a gradient has in the call with which autograd sums two of them, if
# nothing else holds it: of its tensor, and of its storage.
_SUMMED_USES = (4, 2)


@_special(aten.add.Tensor)
def _add(gpu: FakeGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Autograd sums gradients in place, but not while there are dispatch modes."""
    first, second = args[:2]
    if (
        torch._C._current_graph_task_id() != -1
        and not torch.is_grad_enabled()
        and not kwargs
        and gpu.is_fake(first)
        and gpu.is_fake(second)
        and (first.shape, first.dtype) == (second.shape, second.dtype)
        and (first._use_count(), _storage_uses(first)) == _SUMMED_USES
    ):
        return gpu.alias(first)
    return gpu.run_without_bytes(func, args, kwargs)


def _storage_uses(tensor: torch.Tensor) -> int:
    storage = tensor.untyped_storage()
    uses: int = torch._C._storage_Use_Count(storage._cdata)
    return uses


# ---- The order of dimensions in memory

_ORDERS = {4: torch.channels_last, 5: torch.channels_last_3d}


def _order_of(given: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """A convolution gives channels last if its input or its weight is so."""
    order = _ORDERS.get(given.dim())
    if order is not None and any(is_in_order(each, order) for each in (given, weight)):
        return order
    return torch.contiguous_format


def in_order(func: Any, args: tuple[Any, ...], out: Any) -> Any:
    """What the shape rule of a convolution does not say."""
    if func is not aten.convolution.default:
        return out
    return out.contiguous(memory_format=_order_of(*args[:2]))


@_special(aten.convolution_backward.default)
def _convolution_backward(
    gpu: FakeGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Each gradient is computed before the next is made."""
    gradient, given, weight = args[:3]
    wanted = args[10]
    if not gpu.has(given):
        return gpu.run_without_bytes(func, args, kwargs)
    order = {"memory_format": _order_of(given, weight)}
    convolution = Convolution.of(given, weight, gradient, args[4], args[9])
    of_given = of_weight = of_bias = None
    if wanted[0]:
        of_given = gpu.run_without_bytes(aten.empty_like.default, (given,), order)
        gpu.recorder.use(convolution.input_gradient_workspace())
    if wanted[1]:
        of_weight = gpu.run_without_bytes(aten.empty_like.default, (weight,), order)
        gpu.recorder.use(convolution.weight_gradient_workspace())
    if wanted[2]:
        of_bias = gpu.empty(tuple(args[3]), gradient.dtype)
    return of_given, of_weight, of_bias


# ---- Not for tensors without bytes


@_special(aten._amp_foreach_non_finite_check_and_unscale_.default)
def _check_finite(gpu: FakeGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    return None


@_special(aten._amp_update_scale_.default, aten.record_stream.default, aten._pin_memory.default)
def _leave(gpu: FakeGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0]


@_special(aten.is_pinned.default)
def _is_pinned(gpu: FakeGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return False


def run_on_zeros(gpu: FakeGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """For an operator without a shape rule: meta tensors like its result on zeros. What it changes
    in place keeps its shape."""
    if func._schema.is_mutable and len(func._schema.returns) < 2:
        return args[0] if func._schema.returns else None
    if bytes_of_all(*args) > _ZEROS_BYTES_MAX:
        raise CaptureRefused(
            f"{func} has no shape rule in this PyTorch, and its inputs are too large to run it on "
            "the CPU: give a smaller batch, or measure the job on a GPU"
        )
    gpu.recorder.note(f"{func} has no shape rule in this PyTorch: it ran on zeros on the CPU")

    def zeros(tensor: torch.Tensor) -> torch.Tensor:
        return torch.zeros(tuple(tensor.shape), dtype=tensor.dtype, device="cpu")

    out = func(
        *(map_tensors(each, zeros) for each in args),
        **{
            name: map_tensors(each, zeros)
            for name, each in kwargs.items()
            if name not in ("device", "generator")
        },
    )
    with torch._C._DisableTorchDispatch():
        return map_tensors(out, lambda each: each.to("meta"))


# ---- Softmax and dropout


@_special(aten._safe_softmax.default)
def _safe_softmax(gpu: FakeGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A softmax, of which a copy has zeros in the rows that are masked whole."""
    given = args[0]
    softmax = gpu.run_without_bytes(aten.empty_like.default, (given,), {})
    masked = gpu.empty(tuple(given.shape), torch.bool, on_gpu=gpu.has(given))
    out = gpu.run_without_bytes(func, args, kwargs)
    del softmax, masked
    return out


@_special(aten.native_dropout.default)
def _dropout(gpu: FakeGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The kernel makes the mask before what it gives."""
    given, _, train = args
    if train is False:
        return gpu.run_without_bytes(func, args, kwargs)
    on_gpu = gpu.has(given)
    mask = gpu.empty(tuple(given.shape), torch.bool, stride=given.stride(), on_gpu=on_gpu)
    return gpu.run_without_bytes(aten.empty_like.default, (given,), {}), mask


# ---- cuDNN's recurrent layers

_RNN_KINDS = ("rnn", "rnn", "lstm", "gru")  # by cuDNN's number
_BITS = 8  # of a byte: dropout between layers keeps one for each value


@_special(aten._cudnn_rnn.default)
def _rnn(gpu: FakeGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given, weights, _, _, state, cell, kind, hidden, projected, layers, batch_first = args[:11]
    dropout, train, bidirectional, batch_sizes, _ = args[11:]
    ways = 2 if bidirectional else 1
    rows = given.shape[0] if batch_sizes else given.shape[0] * given.shape[1]
    gpu.recorder.sort = "recurrent"
    if dropout > 0 and train:
        count_rnn_dropout(gpu)
    by_step = _by_step(gpu, given, batch_first=batch_first)
    out = _like_of_steps(gpu, given, (projected or hidden) * ways, batch_first=batch_first)
    final = gpu.empty(tuple(state.shape), given.dtype)
    final_cell = gpu.empty(tuple(cell.shape) if cell is not None else (0,), given.dtype)
    workspace = gpu.recorder.allocate(rnn_workspace(rows, weights, state, bidirectional))
    # The last layer's output is not kept in addition to `out`.
    kept = gpu.overheads.rnn_reserve[_RNN_KINDS[kind]] * layers - 1
    bytes_kept = kept * rows * hidden * ways * given.element_size()
    if dropout > 0:
        bytes_kept += (layers - 1) * -(-rows * hidden * ways // _BITS)
    reserve = gpu.empty((bytes_kept if train else 0,), torch.uint8)
    gpu.recorder.free(workspace)
    del by_step
    return out, final, final_cell, reserve, gpu.empty((0,), given.dtype)


@_special(aten._cudnn_rnn_backward.default)
def _rnn_backward(gpu: FakeGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given, weights, _, _, state, cell, out, gradient = args[:8]
    batch_first, bidirectional, batch_sizes = args[14], args[17], args[18]
    rows = given.shape[0] if batch_sizes else given.shape[0] * given.shape[1]
    workspace = rnn_workspace(rows, weights, state, bidirectional)

    def like(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else gpu.empty(tuple(tensor.shape), tensor.dtype)

    if gradient is None:  # where the last state alone is used
        gradient = like(out)
    gradient_by_step = _by_step(gpu, gradient, batch_first=batch_first)
    by_step = _by_step(gpu, given, batch_first=batch_first)
    to_given = _like_of_steps(gpu, given, given.shape[-1], batch_first=batch_first)
    to_states = like(state), like(cell)
    gpu.recorder.use(workspace)
    del by_step
    by_step = _by_step(gpu, given, batch_first=batch_first)
    to_weights = [like(each) for each in weights]
    gpu.recorder.use(workspace)
    del by_step, gradient_by_step
    return to_given, *to_states, to_weights


def _by_step(gpu: FakeGpu, tensor: torch.Tensor, *, batch_first: bool) -> torch.Tensor | None:
    """The copy that cuDNN is given: it wants the values of one step in a row."""
    by_step = tensor.transpose(0, 1) if batch_first and tensor.dim() > 2 else tensor
    return None if by_step.is_contiguous() else gpu.empty(tuple(tensor.shape), tensor.dtype)


def _like_of_steps(
    gpu: FakeGpu, given: torch.Tensor, width: int, *, batch_first: bool
) -> torch.Tensor:
    """A new tensor of `width` values for each step, in cuDNN's order."""
    shape = (*given.shape[:-1], width)
    stride = (width, shape[0] * width, 1) if batch_first and given.dim() > 2 else None
    return gpu.empty(shape, given.dtype, stride=stride)


@_special(aten._grouped_mm.default)
def _grouped_matmul(gpu: FakeGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Its shape rule takes bfloat16 alone, the GPU more."""
    left, right = args[:2]
    offsets: Any = args[2] if len(args) > 2 else kwargs.get("offs")
    groups = () if left.dim() != right.dim() else (len(left if left.dim() == 3 else offsets),)
    shape = (*groups, left.shape[-2], right.shape[-1])
    out = gpu.empty(shape, kwargs.get("out_dtype") or left.dtype, on_gpu=gpu.any_on(args))
    count_workspace(gpu, func, args, out)
    return out

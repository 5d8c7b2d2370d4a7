"""What a model says of itself: its parameters, and the bytes that each kind of operation keeps for
backward. No memory is taken: one forward pass runs on the meta device, which has shapes alone.

Each storage counts once, for the operation that keeps it first. Attention counts as the fused
kernels do it, without the matrix of scores, where the program calls for it by
`scaled_dot_product_attention`; dropout keeps one byte an element, as on a GPU; and for what cuDNN
keeps of recurrent layers stands what each of these gives.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

_KINDS: dict[str, str] = {}
for _kind, _names in {
    "conv": "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d",
    "linear": "multi_head_attention_forward linear matmul __matmul__ mm bmm addmm baddbmm einsum",
    "batch_norm": "batch_norm instance_norm",
    "norm": "layer_norm group_norm rms_norm",
    "activation": "relu gelu silu tanh elu sigmoid leaky_relu hardswish relu6 mish softplus"
    " hardsigmoid hardtanh",
    "softmax": "softmax",
    "dropout": "dropout dropout1d dropout2d",
    "attention": "scaled_dot_product_attention",
    "embedding": "embedding",
    "rnn": "lstm gru rnn_tanh rnn_relu",
    "pool": "max_pool2d max_pool2d_with_indices boolean_dispatch avg_pool2d adaptive_avg_pool2d"
    " mean",
    "sum": "add __add__ __radd__ add_ sub __sub__",
    "product": "mul __mul__ __rmul__ div __truediv__ pow __pow__ square rsqrt sqrt exp cos sin neg",
    "copy": "cat concat stack contiguous reshape flatten clone roll repeat expand to float type"
    " masked_fill where index_select __getitem__ pad",
    "loss": "cross_entropy nll_loss mse_loss binary_cross_entropy_with_logits log_softmax",
}.items():
    for _name in _names.split():
        _KINDS[_name] = _kind
# The answers to a program that asks for a value, which a meta tensor does not have.
_ASKS: dict[str, Any] = {"__bool__": True, "item": 1, "__int__": 1, "__float__": 1.0}
KINDS = (*dict.fromkeys(_KINDS.values()), "recurred", "other")
"""The kinds of operation, in the order of a formula's coefficients."""


@dataclasses.dataclass(frozen=True)
class Layer:
    """One leaf module, as it was called."""

    kind: str
    elements: int
    """Of what it gave."""
    parameters: int


@dataclasses.dataclass(frozen=True)
class Description:
    """Of one model and one batch; bytes are those of the dtypes that the model has."""

    parameters: int
    """Bytes of parameters and buffers."""
    trainable: int
    """Bytes of the parameters that have a gradient."""
    tensors: int
    """How many parameters there are."""
    batch: int
    """Bytes of the batch."""
    kept: dict[str, int]
    """By kind of operation: bytes kept for backward, parameters not counted."""
    backward: int
    """The most that backward has at one time: what is still kept, the gradients that the operation
    is given and gives, and the parameters' gradients so far."""
    live: int
    """The most that lives at one time in a forward pass without gradients, parameters aside."""
    most: dict[str, int]
    """By kind of operation: the most bytes that one call reads, gives and, in recurrent layers, has
    inside."""
    blocks: int
    """Bytes kept inside of the repeated blocks (0: it has none)."""
    block: int
    """Bytes kept inside of the largest of them."""
    between: int
    """Bytes of what the blocks are given."""
    layers: tuple[Layer, ...]
    """The leaf modules in the order of their calls."""


class _Kept(torch.autograd.Function):
    """Gives a tensor of a shape, and keeps what it is given with what it gives."""

    @staticmethod
    def forward(ctx: Any, shape: Sequence[int], *given: torch.Tensor) -> torch.Tensor:
        out = given[0].new_empty(tuple(shape))
        ctx.save_for_backward(*given, out)
        return out


def _traced_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any,
    enable_gqa: bool = False, **__: Any
) -> Any:  # fmt: skip
    """No fused kernel takes fewer heads of keys than of queries in single precision."""
    shared = enable_gqa and key.shape[-3] != query.shape[-3]
    written_out = shared and query.dtype == torch.float32
    if written_out:
        key, value = (
            part.new_empty((*query.shape[:-2], *part.shape[-2:])) for part in (key, value)
        )
    columns = (key.shape[-2],) if written_out else ()
    sums = query.new_empty((*query.shape[:-1], *columns), dtype=torch.float32)
    return _Kept.apply((*query.shape[:-1], value.shape[-1]), query, key, value, sums)


def _dropped(given: torch.Tensor, p: float = 0.5, training: bool = True, *_: Any, **__: Any) -> Any:
    return torch.native_dropout(given, p, training)[0] if training and p > 0 else given


class _Watching(TorchFunctionMode):
    """Sees each call that a program makes of PyTorch, by its kind. What is called inside of another
    call is that one's."""

    def __init__(self) -> None:
        super().__init__()
        self.kind = ""
        self.instead: dict[str, Callable[..., Any]] = {
            "scaled_dot_product_attention": _traced_attention,
            "dropout": _dropped,
            "lstm": self.recur,
            "gru": self.recur,
        }
        self.inner = 0

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        if self.kind:
            return function(*args, **named)
        name = getattr(function, "__name__", "")
        if name in _ASKS and args[0].is_meta:
            return _ASKS[name]
        kind = self.kind = _KINDS.get(name, "other")
        try:
            out = self.instead.get(name, function)(*args, **named)
            self.called(kind, [*_tensors((args, named))], [*_tensors(out)])
        finally:
            self.kind = ""
        return out

    def called(self, kind: str, read: list[torch.Tensor], given: list[torch.Tensor]) -> None:
        raise NotImplementedError

    def recur(
        self, given: torch.Tensor, state: Any, weights: Sequence[torch.Tensor], _bias: bool,
        layers: int, _dropout: float, _training: bool, both_ways: bool, *_: Any
    ) -> Any:  # fmt: skip
        """An LSTM or a GRU over one padded batch."""
        first = state[0] if isinstance(state, (list, tuple)) else state
        width = first.shape[-1] * (2 if both_ways else 1)
        self.inner = layers * math.prod(given.shape[:-1]) * width * given.element_size()
        inner = _Kept.apply((layers, *given.shape[:-1], width), weights[0])
        self.kind = "recurred"
        out = _Kept.apply((*given.shape[:-1], width), given, inner[:0])
        return (out, *state) if isinstance(state, (list, tuple)) else (out, state)

    def attend(self, *args: Any, **named: Any) -> Any:
        """For attention that is called inside of another function, which no mode sees."""
        outer, self.kind = self.kind, "attention"
        try:
            return _traced_attention(*args, **named)
        finally:
            self.kind = outer


def _new(read: list[torch.Tensor], given: list[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Those of `given`, by storage, that are no views of what was read."""
    known = {_storage(tensor) for tensor in read}
    return {_storage(tensor): tensor for tensor in given if _storage(tensor) not in known}


class _Training(_Watching):
    """A forward pass that backward follows: what is kept for it, and by which kind."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.kept: collections.Counter[str] = collections.Counter()
        self.most: collections.Counter[str] = collections.Counter()
        self.parameters = {_storage(tensor): tensor for tensor in parameters}
        # Storages are held, for one that is freed may lend its identity to another.
        self.seen = dict(self.parameters)
        self.graded: set[int] = set()
        # Of each call: what is kept then, the gradients of its ends, those of its parameters.
        self.calls: list[tuple[int, int, int]] = []

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        if _storage(tensor) not in self.seen:
            self.seen[_storage(tensor)] = tensor
            self.kept[self.kind or "other"] += tensor.untyped_storage().nbytes()
        return tensor

    def called(self, kind: str, read: list[torch.Tensor], given: list[torch.Tensor]) -> None:
        new = _new(read, given)
        ends = sum(tensor.nbytes for tensor in new.values() if tensor.requires_grad)
        weights = 0
        for at, tensor in {_storage(tensor): tensor for tensor in read}.items():
            if at in self.parameters:
                if tensor.requires_grad and at not in self.graded:
                    self.graded.add(at)
                    weights += self.parameters[at].nbytes
            elif tensor.requires_grad:
                ends += tensor.nbytes
        self.calls.append((self.total, ends if new else 0, weights))
        inside = self.inner if kind == "rnn" else 0
        moved = inside + sum(tensor.nbytes for tensor in [*read, *new.values()])
        self.most[kind] = max(self.most[kind], moved)

    @property
    def total(self) -> int:
        return sum(self.kept.values())

    @property
    def backward(self) -> int:
        most = gradients = 0
        for kept, ends, weights in reversed(self.calls):
            gradients += weights
            most = max(most, kept + ends + gradients)
        return most


class _Inference(_Watching):
    """A forward pass without gradients: what lives at one time."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.here = {_storage(tensor) for tensor in parameters}
        self.now = self.live = 0

    def called(self, kind: str, read: list[torch.Tensor], given: list[torch.Tensor]) -> None:
        for at, tensor in _new(read, given).items():
            if at not in self.here:
                self.here.add(at)
                storage = tensor.untyped_storage()
                self.now += storage.nbytes()
                weakref.finalize(storage, self.freed, at, storage.nbytes())
        self.live = max(self.live, self.now)

    def freed(self, at: int, size: int) -> None:
        self.here.discard(at)
        self.now -= size


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _tensors(tree: Any) -> Iterable[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for part in tree:
            yield from _tensors(part)
    elif isinstance(tree, dict):
        yield from _tensors(list(tree.values()))


def repeated_blocks(model: torch.nn.Module) -> list[torch.nn.Module]:
    """What checkpointing by block wraps: the members of the lists of two or more modules of one
    class that lie in no other such list."""
    found: list[torch.nn.Module] = []
    inside: set[int] = set()
    for module in model.modules():
        members = list(module.children())
        listed = isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential))
        if id(module) in inside or not listed or len(members) < 2:
            continue
        if len({type(member) for member in members}) == 1 and list(members[0].children()):
            found += members
            inside.update(id(part) for member in members for part in member.modules())
    return found


def _attention(watching: _Watching) -> Any:
    return mock.patch.object(torch.nn.functional, "scaled_dot_product_attention", watching.attend)


def describe(
    model: torch.nn.Module,
    forward: Callable[[], Any],
    *,
    batch: Any = (),
    blocks: Sequence[torch.nn.Module] | None = None,
) -> Description:
    """Describes `model`, which is on the meta device, by what `forward()` does with it.

    `batch`: the tensors that forward is given; `blocks`: the modules that checkpointing would wrap,
    found by itself where they are None. Whatever `forward` raises, this does.
    """
    counting = _Training(model.parameters())
    layers: list[Layer] = []
    spans: list[tuple[int, int]] = []
    handles = []

    def leaf_called(module: torch.nn.Module, _given: Any, out: Any) -> None:
        elements = sum(tensor.numel() for tensor in _tensors(out))
        count = sum(parameter.numel() for parameter in module.parameters())
        layers.append(Layer(type(module).__name__, elements, count))

    def block_called(begun: list[int]) -> tuple[Callable[..., None], Callable[..., None]]:
        def before(_module: torch.nn.Module, given: Any) -> None:
            begun[:] = [counting.total, sum(tensor.nbytes for tensor in _tensors(given))]

        def after(_module: torch.nn.Module, _given: Any, _out: Any) -> None:
            spans.append((counting.total - begun[0], begun[1]))

        return before, after

    for module in model.modules():
        if not list(module.children()):
            handles.append(module.register_forward_hook(leaf_called))
    for block in repeated_blocks(model) if blocks is None else blocks:
        before, after = block_called([0, 0])
        handles.append(block.register_forward_pre_hook(before))
        handles.append(block.register_forward_hook(after))
    hooks = torch.autograd.graph.saved_tensors_hooks(counting.pack, lambda kept: kept)
    try:
        with torch.enable_grad(), hooks, counting, _attention(counting):
            forward()
    finally:
        for handle in handles:
            handle.remove()
    plain = _Inference(model.parameters())
    with torch.no_grad(), plain, _attention(plain):
        forward()
    parameters = {_storage(p): p for p in model.parameters()}.values()
    return Description(
        parameters=sum(p.nbytes for p in parameters) + sum(b.nbytes for b in model.buffers()),
        trainable=sum(p.nbytes for p in parameters if p.requires_grad),
        tensors=len(parameters),
        batch=sum(tensor.nbytes for tensor in _tensors(batch)),
        kept={kind: counting.kept[kind] for kind in KINDS if counting.kept[kind]},
        backward=counting.backward,
        live=plain.live,
        most={kind: counting.most[kind] for kind in KINDS if counting.most[kind]},
        blocks=sum(inside for inside, _ in spans),
        block=max((inside for inside, _ in spans), default=0),
        between=sum(given for _, given in spans),
        layers=tuple(layers),
    )

"""How large the parts of a training are, by its model and optimizer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import torch
from torch.optim import SGD, Adam, AdamW

from ravenstore._chunks import ParamState
from ravenstore._precision import Precision
from ravenstore._states import States, params_of, states_of

BLOCK_BYTES_MIN = 1 << 20
"""PyTorch's blocks of fewer bytes are not the store's."""

_MOVABLE = (Adam, AdamW, SGD)


def is_movable(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it is one that offload_optimizer takes unasked, or was before it was offloaded."""
    kind: type = type(optimizer)
    if isinstance(getattr(optimizer, "_ravenstore", None), States):
        kind = kind.__bases__[-1]
    return kind in _MOVABLE


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Of a training's parts, in bytes."""

    weights: int
    gradients: int
    states: int
    largest: int
    """Of the gradients of one parameter."""
    small: int
    """Of weights and gradients in blocks that are not the store's, as a LoRA's."""
    small_states: int
    """Of states in such blocks."""
    is_full: bool
    """Whether weights have 32 bits."""


def sizes_of(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, precision: Precision
) -> Sizes:
    """What of a training the device holds, counted once where tensors share memory."""
    tensors = [*model.parameters(), *model.buffers()]
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
    trained = [p for p in params_of(optimizer) if p.requires_grad]
    gradients = [p.numel() * p.itemsize for p in trained]
    states = list(state_bytes(optimizer, precision))
    of_small = [size for size in (*storages.values(), *gradients) if size < BLOCK_BYTES_MIN]
    small = [p.numel() * p.itemsize < BLOCK_BYTES_MIN for p in params_of(optimizer)]
    return Sizes(
        weights=sum(storages.values()),
        gradients=sum(gradients),
        states=sum(states),
        largest=max(gradients, default=0),
        small=sum(of_small),
        small_states=sum(size for size, is_small in zip(states, small, strict=True) if is_small),
        is_full=any(p.dtype == torch.float32 for p in trained),
    )


def state_bytes(optimizer: torch.optim.Optimizer, precision: Precision) -> Iterable[int]:
    """Of each parameter, what the optimizer keeps or will keep of its shape, in their order."""
    known = is_movable(optimizer)
    for group in optimizer.param_groups:
        count = states_of(group) if known and group.get("momentum") != 0 else 0
        for p in group["params"]:
            state = optimizer.state.get(p, {})
            # Of states that are away nothing is read.
            values = [] if isinstance(state, ParamState) else state.values()
            have = [v for v in values if isinstance(v, torch.Tensor)]
            if have and not precision.concerns(p):
                yield sum(v.numel() * v.itemsize for v in have if v.shape == p.shape)
            else:
                yield p.numel() * precision.bytes_per_element(p, count) * p.requires_grad


def logits_bytes(model: torch.nn.Module, tokens: int | None) -> int:
    """Of a whole loss: logits in three copies of 32 bits; 0 where that is not known."""
    words = getattr(getattr(model, "config", None), "vocab_size", None)
    return 12 * words * tokens if isinstance(words, int) and tokens else 0


def pass_bytes(model: torch.nn.Module, tokens: int | None) -> tuple[int, int]:
    """Of a transformers model that checkpoints its layers: bytes that a pass saves, the layers'
    inputs, and bytes of one layer whose backward pass recomputes it. (0, 0) if unknown."""
    config = getattr(model, "config", None)
    names = ("num_hidden_layers", "hidden_size", "intermediate_size")
    layers, width, inner = (getattr(config, name, None) for name in names)
    # transformers 5 renamed the property, and warns of the old name.
    new_name, name = "is_activation_checkpointing", "is_gradient_checkpointing"
    if not tokens or not getattr(model, new_name if hasattr(model, new_name) else name, False):
        return 0, 0
    if not (isinstance(layers, int) and isinstance(width, int) and isinstance(inner, int)):
        return 0, 0
    if any(getattr(config, name, None) for name in ("num_experts", "num_local_experts")):
        return 0, 0
    floats = [p for p in model.parameters() if p.is_floating_point()]
    bits = max(floats, key=torch.Tensor.numel).itemsize
    saved = layers * width * bits * tokens
    adapters = min((p.itemsize for p in floats if p.requires_grad), default=bits)
    if adapters <= bits:
        return saved, (16 * width + 5 * inner) * bits * tokens
    # Adapters alone are trained, in more bits: they save their inputs converted. The most is in the
    # MLP's second projection, where the adapter's output is added to the model's.
    norms, attention, inputs = 2 * (4 + bits), 4 * bits, 6 * adapters
    layer = (norms + attention + inputs) * width + (3 * bits + 2 * adapters) * inner
    return saved, layer * tokens

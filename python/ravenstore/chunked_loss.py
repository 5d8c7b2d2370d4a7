"""The loss of a causal language model without its logits: computed in chunks of tokens.

    ravenstore.chunk_loss(model)       # once, before the loop

The logits of a step, and what its loss makes of them, take some 12 bytes for each token and word of
the vocabulary: 11.7 GiB for 8,192 tokens and 128,256 words. In chunks they take a few hundred MiB.

PyTorch's linear_cross_entropy computes the chunks if this PyTorch has it. Else Liger's does, on a
GPU where liger-kernel is installed. The loss differs only by the order of its sums.

The model must be one of transformers, with its usual loss for causal language models and a plain
Linear as head. While the model trains, the head returns logits that the first operation on them
computes. The loss needs none. They can be used until the weights change. Evaluation, compiled
models, and models that change their logits before the loss compute them as before.

Threads: those of the model.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch.utils._pytree import tree_map_only

from ravenstore._watch import READS_NO_VALUE
from ravenstore.errors import Unsupported

_IGNORED = -100
_PAST_PYTHON = (
    "uses logits whose loss is computed in chunks, in a way that goes past Python: take away "
    "ravenstore.chunk_loss(model), or pass what the model gives through logits.clone() before"
)


class ChunkedLoss:
    """A model's loss in chunks, until remove()."""

    def __init__(self, model: Any, head: torch.nn.Linear, how: str) -> None:
        self.how = how
        """Whose implementation computes it."""
        self._model = model
        self._head = head

    def remove(self) -> None:
        """Gives the model its own head and loss back. More calls do nothing."""
        if isinstance(self._head, ChunkedHead):
            self._head.__class__ = torch.nn.Linear
            self._model.loss_function = self._model.loss_function.plain

    def __repr__(self) -> str:
        return f"<the loss of {type(self._model).__name__} in chunks, by {self.how}>"


def chunk_loss(model: torch.nn.Module) -> ChunkedLoss:
    """Has `model`, or the model of transformers that it wraps, compute its loss in chunks.

    Errors: Unsupported, with what is in the way: no such model, another head or loss, no
    implementation for this PyTorch and device.
    """
    inner, head = _find(model)
    if isinstance(head, ChunkedHead):
        raise Unsupported(f"the loss of {type(inner).__name__} is computed in chunks already")
    compute, how = _implementation(head.weight.device)
    loss = ChunkedLoss(inner, head, how)
    inner.loss_function = _Loss(inner.loss_function, compute)
    head.__class__ = ChunkedHead
    return loss


def _find(model: torch.nn.Module) -> tuple[Any, torch.nn.Linear]:
    """The causal language model within `model`, and its head."""
    # Wrappers, such as PEFT's, show what they wrap as their own: the last is the innermost.
    found: dict[int, Any] = {}
    for module in model.modules():
        of_model = hasattr(module, "loss_function") and hasattr(module, "get_output_embeddings")
        head = module.get_output_embeddings() if of_model else None
        if head is not None:
            found[id(head)] = module
    if len(found) != 1:
        what = "several models" if found else "no model"
        raise Unsupported(
            f"{type(model).__name__} has {what} of transformers for causal language modelling "
            "whose loss could be computed in chunks"
        )
    (inner,) = found.values()
    head = inner.get_output_embeddings()
    if type(head) not in (torch.nn.Linear, ChunkedHead):
        raise Unsupported(
            f"the head of {type(inner).__name__} is a {type(head).__name__}: only a plain Linear's "
            "loss can be computed in chunks"
        )
    name = getattr(inner.loss_function, "__name__", type(inner.loss_function).__name__)
    if not isinstance(head, ChunkedHead) and name != "ForCausalLMLoss":
        raise Unsupported(
            f"the loss of {type(inner).__name__} is {name}: only transformers' ForCausalLMLoss can "
            "be computed in chunks"
        )
    return inner, head


class _Loss:
    """The model's loss_function with chunks; called as transformers' ForCausalLMLoss."""

    def __init__(self, plain: Callable[..., Any], compute: Callable[..., torch.Tensor]) -> None:
        self.plain = plain
        self._compute = compute

    def __call__(
        self,
        logits: torch.Tensor,
        labels: torch.Tensor,
        vocab_size: int,
        num_items_in_batch: torch.Tensor | int | None = None,
        ignore_index: int = _IGNORED,
        shift_labels: torch.Tensor | None = None,
        **more: Any,
    ) -> Any:
        if isinstance(logits, LazyLogits) and logits._made is not None:
            logits = logits.logits()  # an operation may have changed them in place
        if not isinstance(logits, LazyLogits) or logits.shape[-1] != vocab_size:
            more |= {"num_items_in_batch": num_items_in_batch, "ignore_index": ignore_index}
            return self.plain(logits, labels, vocab_size, shift_labels=shift_labels, **more)
        if shift_labels is None:
            shift_labels = F.pad(labels, (0, 1), value=ignore_index)[..., 1:]
        hidden, weight, bias = logits.operands()
        target = shift_labels.reshape(-1).to(hidden.device)
        reduction = "mean" if num_items_in_batch is None else "sum"
        flat = hidden.reshape(-1, hidden.shape[-1])
        # The operands have autocast's type already.
        with torch.autocast(hidden.device.type, enabled=False):
            loss = self._compute(flat, weight, target, bias, reduction, ignore_index)
        if loss.requires_grad:
            loss.register_hook(_refuse_second_order)
        if num_items_in_batch is None:
            return loss
        if isinstance(num_items_in_batch, torch.Tensor):
            num_items_in_batch = num_items_in_batch.to(loss.device)
        return loss / num_items_in_batch


def _implementation(device: torch.device) -> tuple[Callable[..., torch.Tensor], str]:
    if hasattr(torch.nn, "LinearCrossEntropyOptions"):
        return _by_torch, f"PyTorch {torch.__version__}"
    if device.type == "cuda" and importlib.util.find_spec("liger_kernel") is not None:
        return _by_liger, "Liger"
    if device.type == "cuda":
        words = "or pip install liger-kernel"
    else:
        words = f"Liger's is for a GPU, and the model is on {device}"
    raise Unsupported(
        f"PyTorch {torch.__version__} has no loss in chunks (linear_cross_entropy with options): "
        f"take a newer one, {words}"
    )


def _by_torch(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None,
    reduction: str,
    ignored: int,
) -> torch.Tensor:
    options: Any = torch.nn.LinearCrossEntropyOptions
    compute: Any = F.linear_cross_entropy
    # Of 16 bits it would round the sum of all tokens to 16 bits: each token's is summed here.
    low = hidden.dtype.itemsize < 4
    loss: torch.Tensor = compute(
        hidden,
        weight,
        target,
        linear_bias=bias,
        reduction="none" if low else reduction,
        ignore_index=ignored,
        options=options(allow_retain_graph=True),
    )
    if not low:
        return loss
    total = loss.sum(dtype=torch.float32)
    return total if reduction == "sum" else total / (target != ignored).sum()


def _by_liger(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None,
    reduction: str,
    ignored: int,
) -> torch.Tensor:
    from liger_kernel.transformers import (  # type: ignore[import-not-found]
        LigerFusedLinearCrossEntropyLoss,
    )

    compute = LigerFusedLinearCrossEntropyLoss(ignore_index=ignored, reduction=reduction)
    loss: torch.Tensor = compute(weight, hidden, target, bias)
    return loss


class ChunkedHead(torch.nn.Linear):
    """A Linear that gives LazyLogits while it trains. Made of a Linear by its class alone: weights,
    names and checkpoints are as before."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - as Linear names it
        """The logits, or LazyLogits."""
        plain = (
            not self.training
            or not torch.is_grad_enabled()
            or not (input.requires_grad or self.weight.requires_grad)
            or torch.compiler.is_compiling()
        )
        if plain or type(input) is not torch.Tensor:
            return super().forward(input)
        return LazyLogits(input, self.weight, self.bias)


class LazyLogits(torch.Tensor):
    """The logits of a head that are computed when an operation uses them, once.

    Shape, type and device are known before. `float()` and `to(dtype)` wait as well: it is how
    accelerate passes on what a model gives. Keeps the head's input, and the logits once they are
    computed.
    """

    _made: torch.Tensor | None
    _head: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
    _autocast: torch.dtype | None
    _versions: list[int]

    @staticmethod
    def __new__(
        cls, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> LazyLogits:
        kind = hidden.device.type
        autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        return cls._of((hidden, weight, bias), autocast, autocast or hidden.dtype)

    @classmethod
    def _of(
        cls,
        head: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None],
        autocast: torch.dtype | None,
        dtype: torch.dtype,
    ) -> LazyLogits:
        hidden, weight, _ = head
        logits: LazyLogits = torch.Tensor._make_wrapper_subclass(
            cls,
            (*hidden.shape[:-1], weight.shape[0]),
            dtype=dtype,
            device=hidden.device,
            requires_grad=True,
        )
        with torch._C.DisableTorchFunctionSubclass():
            logits.register_hook(_refuse_gradient)
        logits._made = None
        logits._head = head
        logits._autocast = autocast
        logits._versions = _versions_of(head)
        return logits

    def operands(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Input, weight and bias, of the types in which the head multiplies them."""
        hidden, weight, bias = self._head
        dtype = self._autocast
        if dtype is None:
            return self._head
        return hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)

    def logits(self) -> torch.Tensor:
        """The logits, with their graph."""
        if self._made is None:
            if self._versions != _versions_of(self._head):
                raise RuntimeError(
                    "logits whose loss was computed in chunks are used after a step changed what "
                    "they are computed of: use them before optimizer.step(), and with updates in "
                    "the backward pass before backward(), or pass loss_chunks=False"
                )
            kind, dtype = self._head[0].device.type, self._autocast
            with torch.enable_grad(), torch.autocast(kind, dtype, enabled=dtype is not None):
                made = F.linear(*self._head)
            with torch._C.DisableTorchFunctionSubclass():
                self._made = made.to(self.dtype)
        return self._made

    @classmethod
    def __torch_function__(
        cls, function: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in READS_NO_VALUE:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **kwargs)
        if function in _OF_GRADIENTS:
            raise RuntimeError(
                f"{function.__name__}() of logits whose loss is computed in chunks, which have no "
                "gradient: pass loss_chunks=False, or do not call ravenstore.chunk_loss(model)"
            )
        dtype = _type_asked_for(function, args, kwargs)
        if dtype is not None and args[0]._made is None:
            return cls._of(args[0]._head, args[0]._autocast, dtype)
        args, kwargs = tree_map_only(LazyLogits, LazyLogits.logits, (args, kwargs))
        return function(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, function: Any, *_: Any, **__: Any) -> NoReturn:
        raise RuntimeError(f"{function} {_PAST_PYTHON}")

    def __repr__(self, **_: Any) -> str:
        with contextlib.suppress(RuntimeError):
            return repr(self.logits())
        return "<logits that are not computed>"


_OF_GRADIENTS = (torch.Tensor.retain_grad, torch.Tensor.register_hook)


def _versions_of(head: tuple[torch.Tensor | None, ...]) -> list[int]:
    return [tensor._version for tensor in head if tensor is not None]


def _refuse_second_order(_: torch.Tensor) -> None:
    """A backward pass that makes a graph of its own runs its hooks with gradients enabled."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "backward with create_graph=True of a loss in chunks, whose second derivatives are not "
            "known: pass loss_chunks=False, or do not call ravenstore.chunk_loss(model)"
        )


def _refuse_gradient(_: torch.Tensor) -> NoReturn:
    """The logits that are computed have a graph of their own: no gradient comes here but by a
    torch.autograd.Function, from where it would be lost."""
    raise RuntimeError(f"a torch.autograd.Function {_PAST_PYTHON}")


def _type_asked_for(function: Any, args: tuple[Any, ...], kwargs: Any) -> torch.dtype | None:
    """The type, where `function` does nothing but give LazyLogits another one."""
    if not args or not isinstance(args[0], LazyLogits):
        return None
    if function is torch.Tensor.float:
        return torch.float32
    if function is torch.Tensor.to and not kwargs and len(args) == 2:
        return args[1] if isinstance(args[1], torch.dtype) else None
    return None

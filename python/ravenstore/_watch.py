"""Finds out whether a training loop uses its gradients between a backward pass and the step."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves

# Attributes of a gradient that can be read without its values.
_ATTRIBUTES = (
    "device",
    "dtype",
    "grad_fn",
    "is_cpu",
    "is_cuda",
    "is_leaf",
    "is_meta",
    "is_nested",
    "is_quantized",
    "is_sparse",
    "is_sparse_csr",
    "itemsize",
    "layout",
    "nbytes",
    "ndim",
    "requires_grad",
    "shape",
    "_version",
)
_METHODS = (
    "dim",
    "element_size",
    "is_complex",
    "is_contiguous",
    "is_floating_point",
    "nelement",
    "numel",
    "size",
    "stride",
)
READS_NO_VALUE = {getattr(torch.Tensor, name).__get__ for name in _ATTRIBUTES} | {
    getattr(torch.Tensor, name) for name in _METHODS
}
"""As __torch_function__ gets them."""


class _Watched(torch.Tensor):
    """A gradient. It notes each operation of Python that uses its values."""

    watch: GradientWatch

    @classmethod
    def __torch_function__(
        cls, function: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function not in READS_NO_VALUE:
            how = f"{getattr(function, '__name__', function)}() was called on one"
            for leaf in tree_leaves((args, kwargs)):
                if isinstance(leaf, _Watched):
                    leaf.watch.use(how)
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **kwargs)


class GradientWatch:
    """Looks at the gradients of one step. Threads: one at a time; the caller has a lock.

    Between add() and finish() a parameter's gradient is a stand-in with the same memory. Uses are
    seen where Python calls an operation on it, where its values changed, where it was replaced,
    and where a second backward pass added to it.
    """

    def __init__(self) -> None:
        self.used: str | None = None
        """How a gradient was first used; None as long as none was."""
        self._seen: dict[torch.Tensor, tuple[_Watched, int]] = {}

    def use(self, how: str) -> None:
        """Notes a use."""
        self.used = self.used or how

    def add(self, p: torch.Tensor) -> None:
        """The gradient of `p` is complete."""
        if p in self._seen:
            self.use("a second backward pass added to them")
            return
        assert p.grad is not None
        if p.grad.requires_grad:
            self.use("backward(create_graph=True) made one with a graph")
            return
        if p.grad.layout is not torch.strided or type(p.grad) is not torch.Tensor:
            self.use(f"one is a {type(p.grad).__name__} of layout {p.grad.layout}")
            return
        stand_in = p.grad.as_subclass(_Watched)
        stand_in.watch = self
        p.grad = stand_in
        self._seen[p] = stand_in, stand_in._version

    def finish(self, params: list[torch.Tensor]) -> bool:
        """Gives every parameter its own gradient back, before the step uses it. Returns whether
        any of them had one."""
        saw_any = bool(self._seen)
        for p in params:
            stand_in, version = self._seen.get(p, (None, 0))
            if p.grad is None and stand_in is None:
                continue
            saw_any = True
            if stand_in is None or p.grad is not stand_in:
                self.use("one was set by hand or removed")
                continue
            if stand_in._version != version:
                self.use("one was changed in place")
            p.grad = stand_in.as_subclass(torch.Tensor)
        self._seen.clear()
        return saw_any

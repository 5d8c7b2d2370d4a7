"""What an offloaded optimizer refuses, in words that say what to do instead."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

import torch
from torch.utils._pytree import tree_leaves

from ravenstore._saved import SavedState
from ravenstore.errors import InvalidArgument
from ravenstore.store import Store

_PLAIN = (torch.Tensor, torch.nn.Parameter, SavedState)


def class_name(thing: object) -> str:
    kind = type(thing)
    return f"{kind.__module__}.{kind.__qualname__}"


def check_groups(groups: list[dict[str, Any]], in_backward: bool) -> None:
    for group in groups:
        if group.get("capturable"):
            raise ValueError(
                "capturable=True: a step that moves states cannot be captured into a CUDA graph or "
                "compiled; construct the optimizer with capturable=False"
            )
        if group.get("differentiable"):
            raise ValueError(
                "differentiable=True: autograd would keep states that leave; construct the "
                "optimizer with differentiable=False, or do not offload it"
            )
        for p in group["params"]:
            _check_param(p, in_backward)


def check_in_backward(in_backward: object) -> None:
    if in_backward not in (True, False, "auto"):
        raise InvalidArgument(f'in_backward is True, False or "auto", not {in_backward!r}')


def _check_param(p: torch.Tensor, in_backward: bool) -> None:
    if in_backward and (getattr(p, "_fsdp_flattened", False) or hasattr(p, "_is_flat_param")):
        raise TypeError(
            "in_backward=True: the model is wrapped in FSDP, which reduces gradients after they "
            "came; use in_backward=False"
        )
    if type(p) not in (torch.Tensor, torch.nn.Parameter):
        more = ": FSDP2 and tensor parallelism make such" if "DTensor" in class_name(p) else ""
        raise TypeError(
            f"a parameter is a {class_name(p)}{more}; offload_optimizer moves states of plain "
            "tensors only"
        )
    if p.device.type not in ("cpu", "cuda"):
        raise TypeError(f"a parameter is on {p.device}: cpu and cuda are supported")


def check_backend(store: Store, devices: Iterable[torch.device]) -> None:
    wanted = "cuda" if store.backend == "cuda" else "cpu"
    for device in devices:
        if device.type != wanted:
            raise ValueError(
                f"parameters are on {device}, but the store's daemon has the {store.backend} "
                f"backend, whose memory is {wanted}'s: move the model, or use another daemon"
            )


def refuse_subclasses(opt: object, state: Mapping[str, object]) -> None:
    """Raises TypeError if a state is a tensor subclass, as those of torchao's 8-bit optimizers."""
    for key, value in state.items():
        if isinstance(value, torch.Tensor) and type(value) not in _PLAIN:
            raise TypeError(
                f"{type(opt).__name__}: its state {key} is a {class_name(value)}, a tensor "
                "subclass, whose memory cannot move: leave this optimizer as it is"
            )


def refuse_compiled() -> None:
    """Raises in a function that torch.compile compiles, also when it left this call out."""
    from torch._C._dynamo.eval_frame import get_eval_frame_callback

    if torch.compiler.is_compiling() or get_eval_frame_callback() not in (None, False):
        raise RuntimeError(
            "optimizer.step() of an offloaded optimizer is inside of a function that torch.compile "
            "compiles: call it outside of that function"
        )


def refuse_capture() -> None:
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "optimizer.step() of an offloaded optimizer is captured into a CUDA graph, in which no "
            "states can move: capture only forward and backward"
        )


def user_of_gradients(params: Iterable[torch.Tensor]) -> str | None:
    """A DDP module or a GradScaler in use of this process, which uses gradients of `params` after
    the backward pass; None if there is none."""
    own = {id(p) for p in params}
    ddp, scaler = torch.nn.parallel.DistributedDataParallel, torch.amp.GradScaler
    for thing in gc.get_objects():
        kind = type(thing)
        if issubclass(kind, ddp) and "_modules" in vars(thing):
            if any(id(p) in own for p in thing.parameters()):
                return (
                    "the model is wrapped in DistributedDataParallel, which averages gradients "
                    "after they came"
                )
        elif issubclass(kind, scaler) and vars(thing).get("_scale") is not None:
            return "a GradScaler is in use, which unscales gradients after the backward pass"
    return None


def refuse_users_of_gradients(params: Iterable[torch.Tensor]) -> None:
    """Raises if user_of_gradients() finds one."""
    user = user_of_gradients(params)
    if user is not None:
        raise RuntimeError(f"in_backward=True: {user}; use in_backward=False")


class UsedGradient(torch.Tensor):
    """Stands where a gradient was that in_backward=True used and freed; has no memory.

    Every operation on it raises: adding another gradient, clipping, unscaling. `advice` refers to
    the function that gives the words after "gone: ".
    """

    advice: weakref.WeakMethod[Callable[[], str]]

    @staticmethod
    def __new__(
        cls, p: torch.Tensor, advice: weakref.WeakMethod[Callable[[], str]]
    ) -> UsedGradient:
        gradient: UsedGradient = torch.Tensor._make_wrapper_subclass(
            cls, p.shape, strides=p.stride(), dtype=p.dtype, device=p.device
        )
        gradient.advice = advice
        return gradient

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> NoReturn:
        gradients = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, UsedGradient)]
        advice = gradients[0].advice()
        words = advice() if advice is not None else "its optimizer is gone"
        raise RuntimeError(f"{function} uses a gradient that is gone: {words}")

    def __repr__(self, **_: Any) -> str:
        return "<a gradient that was used in the backward pass and freed>"


def has_gradient(p: torch.Tensor) -> bool:
    grad = p.grad
    if grad is None or type(grad) is UsedGradient:
        return False
    if grad.layout is not torch.strided:
        raise RuntimeError(
            "a gradient is sparse: an offloaded optimizer takes dense ones only; leave this "
            "optimizer as it is, or give its parameters dense gradients (Embedding(sparse=False))"
        )
    return True

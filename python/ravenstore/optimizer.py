"""Optimizer states that live in the store from their update to their next.

    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    ravenstore.offload_optimizer(optimizer)      # the training loop stays as it is

A step walks over chunks of states in parameter order: it gets a chunk, has the optimizer's own step
code update the parameters of that chunk, and puts it. So results are those of the plain optimizer,
bit for bit. The CPU runs ahead of the GPU: it gets the next chunks while the GPU still waits for
this one's bytes, and every put says when the chunk is needed next, so that the daemon brings it in
time. Gradients and parameters stay where they are.

Streams: PyTorch's current stream of each parameter's device. Nothing synchronises with the CPU, but
a get that finds no room waits until earlier chunks have left (bounded by the store's timeout).
Threads: as an optimizer's: one at a time.
Errors: StatesLost when the daemon or the device died; RuntimeError or TypeError, in words, for what
is not supported; else what the optimizer's own code raises.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer

from ravenstore._chunks import is_movable
from ravenstore._precision import Precision
from ravenstore._refusals import (
    check_backend,
    check_groups,
    check_in_backward,
    class_name,
    refuse_capture,
    refuse_compiled,
    refuse_users_of_gradients,
)
from ravenstore._sizes import state_bytes
from ravenstore._states import States, StatesLost, params_of, plain_step_of
from ravenstore._trial import check_parts
from ravenstore._units import Size, bytes_of
from ravenstore.store import Store

__all__ = ["StatesLost", "offload_optimizer"]

_CLASSES = (Adam, AdamW, SGD)
# A chunk that is updated, one that leaves, and two that come.
_WINDOW = 4
_CHUNK_BYTES_MIN = 64 << 10
# The daemon's granularity.
_BUDGET_BYTES_MIN = 2 << 20

# What _Offloaded calls with super(): it is always mixed into one of _CLASSES.
if TYPE_CHECKING:
    from torch.optim import Optimizer as _Base
else:
    _Base = object


def offload_optimizer(
    opt: Optimizer,
    store: Store | None = None,
    *,
    in_backward: bool | Literal["auto"] = False,
    chunk: Size = "64MiB",
    float32_states: bool = False,
    master_weights: bool = False,
    rounding: Literal["nearest", "stochastic"] = "nearest",
    seed: int = 0,
    elementwise: bool | None = None,
    on_device: Size = 0,
) -> Optimizer:
    """Moves the states of `opt` into the store, now and after every update; returns `opt` itself.

    opt: Adam, AdamW or SGD with momentum, before or after its first step; not a subclass. Its class
        is replaced by one of the same name that derives from it.
    store: where to; by default one of its own at the node's daemon, with a device budget of four
        chunks and two pages. Kept until the optimizer is gone. After StatesLost: call this again
        with a new store (or, without `store`, just load_state_dict), then load the checkpoint.
    in_backward: update a chunk's parameters as soon as their gradients are complete, in the
        backward pass, and free the gradients. optimizer.step() then ends the step: call it once
        after each backward pass. Not with DDP, FSDP, GradScaler, gradient accumulation or clipping.
        "auto": the first step keeps its gradients and updates after the pass. If nothing used a
        gradient in between, the later ones update in the backward pass, and a later use raises
        RuntimeError before it sees a wrong value; else all steps update after the pass.
    chunk: bytes of states that move together; the device holds about four of them.
    float32_states: of weights that are bfloat16: the update is computed in float32 and rounded.
    master_weights: and the float32 weights are kept, in 2 bytes a parameter more.
    rounding, seed: to "nearest", ties away from zero, or "stochastic" by bits that are a function
        of seed, step, parameter and element; the latter without master_weights.
    elementwise: for optimizers of other classes, whose step code runs on some parameters at a time.
        True: on runs of their elements, as each element's update is its own; False: on whole
        parameters. Both are tried on small tensors first, and a TypeError says what differs.
    on_device: bytes of states, about, that stay in PyTorch's memory on the device, spread evenly
        over the parameters. They take no host memory and no time on the link.
    Errors: TypeError or ValueError for an optimizer that is not supported; those of Store.connect
        and Store.create.
    """
    offload = getattr(opt, "_ravenstore", None)
    if isinstance(offload, States):
        if store is None or offload.lost is None:
            raise ValueError("the optimizer is offloaded already")
        offload.forget(opt, store)
        return opt
    chunk_bytes = bytes_of(chunk)
    precision = Precision(float32_states or master_weights, master_weights, rounding, seed)
    scheduled = _check(opt, in_backward, chunk_bytes, precision, elementwise)
    may_cut = type(opt) in _CLASSES or bool(elementwise)
    largest = max((p.numel() * 8 for p in params_of(opt) if not may_cut), default=0)
    budget = max(_WINDOW * max(chunk_bytes, largest), _BUDGET_BYTES_MIN)
    own = functools.partial(_own_store, budget)
    size = sum(state_bytes(opt, precision))
    part = min(bytes_of(on_device) / size, 1.0) if size else 0.0
    offload = States(opt, store, own, chunk_bytes, in_backward, precision, may_cut, part)
    opt.__class__ = _offloaded_class(type(opt))
    opt._ravenstore = offload
    opt._patch_step_function()
    if scheduled is not None:
        del opt.step
        _notify_schedulers(opt)
    offload.register_hooks(opt)
    offload.take(opt)
    return opt


def _own_store(budget: int) -> Store:
    """A store with room for `budget` bytes in use. The window's first and last chunk share pages
    with other chunks, which takes one page more. Another page stays free for the next chunk."""
    connect = functools.partial(Store.connect, name="optimizer states")
    with connect() as store:
        stats = store.stats()
    return connect(device_budget=min(budget + 2 * stats.page_bytes, stats.device_budget))


def _check(
    opt: Optimizer,
    in_backward: bool | Literal["auto"],
    chunk_bytes: int,
    precision: Precision,
    elementwise: bool | None,
) -> Any:
    """Raises for what is not supported. Gives the step() with which a scheduler has replaced the
    optimizer's, or None."""
    if type(opt) not in _CLASSES and elementwise is None:
        raise TypeError(
            f"offload_optimizer takes torch.optim.Adam, AdamW and SGD, not {class_name(opt)}: "
            "subclasses and other classes may use their states in ways that moving would break. "
            "Leave it as it is, or say elementwise=True if it updates each element by itself, "
            "elementwise=False if each parameter"
        )
    check_in_backward(in_backward)
    if chunk_bytes < _CHUNK_BYTES_MIN:
        raise ValueError(f"chunk is {chunk_bytes} bytes: it is at least {_CHUNK_BYTES_MIN}")
    _check_precision(opt, precision)
    check_groups(opt.param_groups, in_backward is True)
    if in_backward is True:
        refuse_users_of_gradients(params_of(opt))
    if type(opt) is SGD and all(group.get("momentum") == 0 for group in opt.param_groups):
        raise ValueError("SGD without momentum has no states: there is nothing to move")
    scheduled = vars(opt).get("step")
    if scheduled is not None and not hasattr(scheduled, "_wrapped_by_lr_sched"):
        raise TypeError(
            f"optimizer.step was replaced by {getattr(scheduled, '__qualname__', scheduled)}: call "
            "offload_optimizer before what replaces it"
        )
    if type(opt) not in _CLASSES:
        check_parts(opt, plain_step_of(opt), elementwise=bool(elementwise))
    return scheduled


def _check_precision(opt: Optimizer, precision: Precision) -> None:
    if precision.rounding not in ("nearest", "stochastic"):
        raise ValueError(f'rounding is "nearest" or "stochastic", not {precision.rounding!r}')
    if precision.rounding == "stochastic" and not precision.float32_states:
        raise ValueError('rounding="stochastic" is of updates in float32: pass float32_states=True')
    if precision.rounding == "stochastic" and precision.master_weights:
        raise ValueError(
            "master_weights=True keeps what rounding takes away, so that stochastic rounding gains "
            "nothing: pass one of the two"
        )
    if precision.float32_states and not any(map(precision.concerns, params_of(opt))):
        raise ValueError(
            "float32_states and master_weights are for bfloat16 weights, and there are none: the "
            "states have the weights' precision already"
        )


class _Offloaded(_Base):
    """What an offloaded optimizer does otherwise than its class."""

    _ravenstore: States
    param_groups: list[dict[str, Any]]

    def step(self, closure: Callable[[], float] | None = None) -> None:
        """Performs one step; see offload_optimizer. A closure is refused."""
        refuse_compiled()
        refuse_capture()
        if closure is not None:
            raise RuntimeError(
                "a closure is not supported by an offloaded optimizer: compute the loss and call "
                "backward() first, then step()"
            )
        self._ravenstore.step(self)

    def _init_group(self, *args: Any, **kwargs: Any) -> Any:
        if not self._ravenstore.is_stepping:
            raise RuntimeError(
                "the plain step() of an offloaded optimizer was called, through a reference from "
                "before offload_optimizer: call optimizer.step() instead"
            )
        return super()._init_group(*args, **kwargs)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the optimizer's. With in_backward=True gradients are always set to None."""
        self._ravenstore.check_stepped()
        super().zero_grad(set_to_none or self._ravenstore.in_backward)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the optimizer's."""
        super().add_param_group(param_group)
        try:
            check_groups(self.param_groups[-1:], self._ravenstore.in_backward)
            added = self.param_groups[-1]["params"]
            check_backend(self._ravenstore.store, {p.device for p in added})
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise
        self._ravenstore.register_hooks(self)

    def state_dict(self) -> dict[str, Any]:
        """As the optimizer's, whose tensors it shares: later steps change them. On the CPU, and
        read from the store one at a time when something uses them, such as torch.save. What is kept
        over later steps needs copy.deepcopy()."""
        hook = self.register_state_dict_post_hook(self._ravenstore.saved, prepend=True)
        try:
            return super().state_dict()
        finally:
            hook.remove()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As the optimizer's; states go into the store chunk by chunk."""
        loaded: dict[torch.Tensor, dict[str, Any]] = {}

        def strip(_: Any, given: dict[str, Any]) -> dict[str, Any]:
            return _without_states(given, self.param_groups, loaded, self._ravenstore.precision)

        def absorb(_: Any) -> None:
            self._ravenstore.load(self, loaded)

        # The last to see what is loaded, and the first after it.
        hooks = [
            self.register_load_state_dict_pre_hook(strip),
            self.register_load_state_dict_post_hook(absorb, prepend=True),
        ]
        try:
            super().load_state_dict(state_dict)
        finally:
            for hook in hooks:
                hook.remove()

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            "an offloaded optimizer cannot be copied or pickled, its states are in the store: save "
            "optimizer.state_dict() and load it into a new one"
        )


_offloaded_classes: dict[type, type] = {}


def _offloaded_class(base: type) -> type:
    if base not in _offloaded_classes:
        made = type(base.__name__, (_Offloaded, base), {"__doc__": base.__doc__})
        _offloaded_classes[base] = made
    return _offloaded_classes[base]


def _notify_schedulers(opt: Any) -> None:
    """Makes step() mark that it was called, as a scheduler made before the offload did to the plain
    step()."""
    function = type(opt).step
    reference = weakref.ref(opt)

    @functools.wraps(function)
    def step(*args: Any, **kwargs: Any) -> Any:
        alive = reference()
        assert alive is not None
        alive._opt_called = True
        return function(alive, *args, **kwargs)

    vars(step)["_wrapped_by_lr_sched"] = True
    opt.step = step


def _without_states(
    given: dict[str, Any],
    groups: list[dict[str, Any]],
    loaded: dict[torch.Tensor, dict[str, Any]],
    precision: Precision,
) -> dict[str, Any]:
    """`given` without what is moved, which goes to `loaded`, so that PyTorch does not bring it to
    the device."""
    numbers = [number for group in given["param_groups"] for number in group["params"]]
    params = [p for group in groups for p in group["params"]]
    by_number = dict(zip(numbers, params, strict=False))
    rest: dict[Any, Any] = {}
    for number, state in given["state"].items():
        p = by_number.get(number)
        if p is None or not isinstance(state, Mapping):
            rest[number] = state
            continue
        moved = {key: value for key, value in state.items() if is_movable(key, value, p.shape)}
        if p.is_floating_point() and not precision.concerns(p):
            moved = {key: value.to(p.dtype) for key, value in moved.items()}
        loaded[p] = moved
        rest[number] = {key: value for key, value in state.items() if key not in moved}
    return {**given, "state": rest}

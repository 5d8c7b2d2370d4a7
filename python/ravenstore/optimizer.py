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

import contextlib
import functools
import gc
import itertools
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer

from ravenstore._chunks import (
    AWAY,
    LAST,
    Chunk,
    ParamState,
    Piece,
    cut_into_pieces,
    is_movable,
)
from ravenstore._units import Size, bytes_of, size_text
from ravenstore.errors import Corrupt, Lost, RavenstoreError, Unavailable
from ravenstore.store import Store

__all__ = ["StatesLost", "offload_optimizer"]

_CLASSES = (Adam, AdamW, SGD)
# A chunk that is updated, one that leaves, and two that come.
_WINDOW = 4
_CHUNK_BYTES_MIN = 64 << 10
# The daemon's granularity.
_BUDGET_BYTES_MIN = 2 << 20
# Chunks that are open at once in a backward pass; parameters of neighbouring chunks may mix.
_OPEN_MAX = 2
# Orders of one step; the next step's follow.
_ORDERS_PER_TURN = 1 << 24

# What _Offloaded calls with super(): it is always mixed into one of _CLASSES.
if TYPE_CHECKING:
    from torch.optim import Optimizer as _Base
else:
    _Base = object

Bound = list[tuple[Piece, dict[str, Any]]]


class StatesLost(Lost):
    """States were in the store when the daemon or the device died. The message says which, and how
    far the step had come. Load a checkpoint of model and optimizer."""


def offload_optimizer(
    opt: Optimizer,
    store: Store | None = None,
    *,
    in_backward: bool = False,
    chunk: Size = "64MiB",
) -> Optimizer:
    """Moves the states of `opt` into the store, now and after every update; returns `opt` itself.

    opt: Adam, AdamW or SGD with momentum, before or after its first step; not a subclass. Its class
        is replaced by one of the same name that derives from it.
    store: where to; by default one of its own at the node's daemon, with a device budget of four
        chunks. Kept until the optimizer is gone. After StatesLost: call this again with a new store
        (or, without `store`, just load_state_dict), then load the checkpoint.
    in_backward: update each parameter as soon as its gradient is complete, in the backward pass,
        and free the gradient. optimizer.step() then ends the step: call it once after each backward
        pass. Not with DDP, FSDP, GradScaler, gradient accumulation or clipping.
    chunk: bytes of states that move together; the device holds about four of them.
    Errors: TypeError or ValueError for an optimizer that is not supported; those of Store.connect
        and Store.create.
    """
    offload = getattr(opt, "_ravenstore", None)
    if isinstance(offload, _Offload):
        if store is None or offload.lost is None:
            raise ValueError("the optimizer is offloaded already")
        offload.forget(opt, store)
        return opt
    if type(opt) not in _CLASSES:
        raise TypeError(
            f"offload_optimizer takes torch.optim.Adam, AdamW and SGD, not {_class_name(opt)}: "
            "subclasses and other classes may use their states in ways that moving would break. "
            "Leave it as it is, or use one of these"
        )
    chunk_bytes = bytes_of(chunk)
    if chunk_bytes < _CHUNK_BYTES_MIN:
        raise ValueError(f"chunk is {chunk_bytes} bytes: it is at least {_CHUNK_BYTES_MIN}")
    _check_groups(opt.param_groups, in_backward)
    if in_backward:
        _refuse_users_of_gradients(_params(opt))
    if all(group.get("momentum") == 0 for group in opt.param_groups):
        raise ValueError("SGD without momentum has no states: there is nothing to move")
    scheduled = vars(opt).get("step")
    if scheduled is not None and not hasattr(scheduled, "_wrapped_by_lr_sched"):
        raise TypeError(
            f"optimizer.step was replaced by {getattr(scheduled, '__qualname__', scheduled)}: call "
            "offload_optimizer before what replaces it"
        )
    own = functools.partial(
        Store.connect,
        name="optimizer states",
        device_budget=max(_WINDOW * chunk_bytes, _BUDGET_BYTES_MIN),
    )
    offload = _Offload(opt, store, own, chunk_bytes, in_backward)
    opt.__class__ = _offloaded_class(_CLASSES.index(type(opt)))
    opt._ravenstore = offload
    opt._patch_step_function()
    if scheduled is not None:
        del opt.step
        _tell_schedulers(opt)
    offload.take(opt)
    offload.register_hooks(opt)
    return opt


# ---- What is refused


def _class_name(thing: object) -> str:
    kind = type(thing)
    return f"{kind.__module__}.{kind.__qualname__}"


def _check_groups(groups: list[dict[str, Any]], in_backward: bool) -> None:
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


def _check_param(p: torch.Tensor, in_backward: bool) -> None:
    if in_backward and (getattr(p, "_fsdp_flattened", False) or hasattr(p, "_is_flat_param")):
        raise TypeError(
            "in_backward=True: the model is wrapped in FSDP, which reduces gradients after they "
            "came; use in_backward=False"
        )
    if type(p) not in (torch.Tensor, torch.nn.Parameter):
        more = ": FSDP2 and tensor parallelism make such" if "DTensor" in _class_name(p) else ""
        raise TypeError(
            f"a parameter is a {_class_name(p)}{more}; offload_optimizer moves states of plain "
            "tensors only"
        )
    if p.device.type not in ("cpu", "cuda"):
        raise TypeError(f"a parameter is on {p.device}: cpu and cuda are supported")


def _check_backend(store: Store, devices: Iterable[torch.device]) -> None:
    wanted = "cuda" if store.backend == "cuda" else "cpu"
    for device in devices:
        if device.type != wanted:
            raise ValueError(
                f"parameters are on {device}, but the store's daemon has the {store.backend} "
                f"backend, whose memory is {wanted}'s: move the model, or use another daemon"
            )


def _refuse_compiled() -> None:
    """Raises in a function that torch.compile compiles, also when it left this call out."""
    from torch._C._dynamo.eval_frame import get_eval_frame_callback

    if torch.compiler.is_compiling() or get_eval_frame_callback() not in (None, False):
        raise RuntimeError(
            "optimizer.step() of an offloaded optimizer is inside of a function that torch.compile "
            "compiles: call it outside of that function"
        )


def _refuse_capture() -> None:
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "optimizer.step() of an offloaded optimizer is captured into a CUDA graph, in which no "
            "states can move: capture only forward and backward"
        )


def _refuse_users_of_gradients(params: Iterable[torch.Tensor]) -> None:
    """Raises if the process has a DDP module with one of `params`, or a GradScaler in use."""
    own = {id(p) for p in params}
    ddp, scaler = torch.nn.parallel.DistributedDataParallel, torch.amp.GradScaler
    for thing in gc.get_objects():
        kind = type(thing)
        if issubclass(kind, ddp) and "_modules" in vars(thing):
            if any(id(p) in own for p in thing.parameters()):
                raise RuntimeError(
                    "in_backward=True: the model is wrapped in DistributedDataParallel, which "
                    "averages gradients after they came; use in_backward=False"
                )
        elif issubclass(kind, scaler) and vars(thing).get("_scale") is not None:
            raise RuntimeError(
                "in_backward=True: a GradScaler is in use, which unscales gradients after the "
                "backward pass; use in_backward=False"
            )


class _UsedGradient(torch.Tensor):
    """Stands where a gradient was that in_backward=True used and freed; has no memory.

    Every operation on it raises: adding another gradient, clipping, unscaling.
    """

    @staticmethod
    def __new__(cls, p: torch.Tensor) -> _UsedGradient:
        return torch.Tensor._make_wrapper_subclass(
            cls, p.shape, strides=p.stride(), dtype=p.dtype, device=p.device
        )

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function: Any, *_: Any, **__: Any) -> NoReturn:
        raise RuntimeError(
            f"{function} uses a gradient that is gone: with offload_optimizer(in_backward=True) "
            "the backward pass has updated the parameter and freed the gradient. Call "
            "optimizer.step() after every backward pass. Accumulating gradients over several "
            "passes, clipping them and GradScaler need in_backward=False"
        )

    def __repr__(self, **_: Any) -> str:
        return "<a gradient that was used in the backward pass and freed>"


def _has_gradient(p: torch.Tensor) -> bool:
    grad = p.grad
    if grad is None or type(grad) is _UsedGradient:
        return False
    if grad.layout is not torch.strided:
        raise RuntimeError(
            "a gradient is sparse: an offloaded optimizer takes dense ones only; leave this "
            "optimizer as it is, or give its parameters dense gradients (Embedding(sparse=False))"
        )
    return True


# ---- The optimizer's class


class _Offloaded(_Base):
    """What an offloaded optimizer does otherwise than its class."""

    _ravenstore: _Offload
    param_groups: list[dict[str, Any]]

    def step(self, closure: Callable[[], float] | None = None) -> None:
        """Performs one step; see offload_optimizer. A closure is refused."""
        _refuse_compiled()
        _refuse_capture()
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
        super().zero_grad(set_to_none or self._ravenstore.in_backward)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the optimizer's."""
        super().add_param_group(param_group)
        try:
            _check_groups(self.param_groups[-1:], self._ravenstore.in_backward)
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise
        self._ravenstore.register_hooks(self)

    def state_dict(self) -> dict[str, Any]:
        """As the optimizer's, with copies on the CPU, made chunk by chunk."""
        hook = self.register_state_dict_post_hook(
            lambda _, made: self._ravenstore.copied_to_cpu(made), prepend=True
        )
        try:
            return super().state_dict()
        finally:
            hook.remove()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As the optimizer's; states go into the store chunk by chunk."""
        loaded: dict[torch.Tensor, dict[str, Any]] = {}

        def strip(_: Any, given: dict[str, Any]) -> dict[str, Any]:
            return _without_states(given, self.param_groups, loaded)

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


@functools.cache
def _offloaded_class(index: int) -> type:
    base = _CLASSES[index]
    return type(base.__name__, (_Offloaded, base), {"__doc__": base.__doc__})


def _tell_schedulers(opt: Any) -> None:
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
        if p.is_floating_point():
            moved = {key: value.to(p.dtype) for key, value in moved.items()}
        loaded[p] = moved
        rest[number] = {key: value for key, value in state.items() if key not in moved}
    return {**given, "state": rest}


# ---- Moving


class _Offload:
    """The states of one optimizer in the store, and their way to its step code and back."""

    def __init__(
        self,
        opt: Any,
        store: Store | None,
        connect: Callable[[], Store],
        chunk_bytes: int,
        in_backward: bool,
    ) -> None:
        self.in_backward = in_backward
        self.lost: str | None = None
        self.is_stepping = False
        self._connect = None if store is not None else connect
        self.store = store if store is not None else connect()
        _check_backend(self.store, {p.device for p in _params(opt)})
        # The optimizer's step code itself: without hooks, which run once a step and not per chunk.
        self._plain_step: Callable[[Any], Any] = type(opt).step.__wrapped__
        self._chunk_bytes = chunk_bytes
        self._chunks: list[Chunk] = []
        self._pieces: dict[torch.Tensor, list[Piece]] = {}
        self._room = 0
        self._packing_device: torch.device | None = None
        self._turn = 0
        self._position = 0
        # In a backward pass: hooks of models on several devices come in several threads.
        self._lock = threading.RLock()
        self._hooked: set[torch.Tensor] = set()
        self._groups: dict[torch.Tensor, int] = {}
        self._task = -1
        self._was_checked = False
        self._updated: set[torch.Tensor] = set()
        self._open: dict[Chunk, set[Piece]] = {}
        self._packing: Bound = []

    # -- A step

    @torch.no_grad()
    def step(self, opt: Any) -> None:
        """One step over all parameters with gradients."""
        self._check_lost(opt)
        _check_groups(opt.param_groups, self.in_backward)
        self.finish_backward(opt)
        groups = _group_of(opt)
        ready = {p: group for p, group in groups.items() if _has_gradient(p)}
        with self._explained(opt):
            for chunk in list(self._chunks):
                pieces = [piece for piece in chunk.pieces if piece.param in ready]
                if pieces:
                    self._update_chunk(opt, chunk, pieces, ready)
            self._update_new(opt, ready)
            if self._position > 0:
                self._park_unused()
            for device in {chunk.device for chunk in self._chunks}:
                self.store.check(device=device.index or 0)
        for p in self._updated:
            if type(p.grad) is _UsedGradient:
                p.grad = None
        self._updated.clear()
        self._turn += 1
        self._position = 0

    def _update_chunk(
        self,
        opt: Any,
        chunk: Chunk,
        pieces: list[Piece],
        groups: Mapping[torch.Tensor, int],
    ) -> None:
        chunk.open()
        try:
            self._update(opt, chunk, pieces, groups)
        except Exception:
            with contextlib.suppress(RavenstoreError):
                chunk.close(chunk.order)
            raise
        self._close(chunk)

    def _update(
        self,
        opt: Any,
        chunk: Chunk,
        pieces: list[Piece],
        groups: Mapping[torch.Tensor, int],
    ) -> None:
        """Runs the optimizer's step code on pieces of an open chunk."""
        base = chunk.bytes()
        bound = [(piece, _bind(opt, piece, base)) for piece in pieces]
        bound = self._run_step(opt, bound, groups)
        fits = [_settle(piece, state, base) for piece, state in bound]
        if not all(fits):
            others = [piece for piece in chunk.pieces if piece not in pieces]
            chunk.lay_out(bound + [(piece, _bind(opt, piece, base)) for piece in others])
        self._keep(opt, bound)

    def _update_new(self, opt: Any, ready: Mapping[torch.Tensor, int]) -> None:
        """For parameters without states in the store: the step code makes them."""
        batch: list[Piece] = []

        def run() -> None:
            if batch:
                bound: Bound = [(piece, _bind(opt, piece, None)) for piece in batch]
                self._store_new(opt, self._run_step(opt, bound, ready))
                batch.clear()

        self._room = 0
        for p, group in ready.items():
            if p in self._pieces:
                continue
            for piece in self._cut(opt, p, group):
                if piece.begins_chunk:
                    run()
                batch.append(piece)
        run()

    def _run_step(self, opt: Any, bound: Bound, groups: Mapping[torch.Tensor, int]) -> Bound:
        """Has the optimizer's own step code update the pieces; their states after it."""
        working = [piece.working() for piece, _ in bound]
        states: defaultdict[torch.Tensor, Any] = defaultdict(dict)
        for tensor, (_, state) in zip(working, bound, strict=True):
            states[tensor] = state
        numbered = zip((groups[piece.param] for piece, _ in bound), working, strict=True)
        narrowed = [
            {**opt.param_groups[number], "params": [tensor for _, tensor in run]}
            for number, run in itertools.groupby(numbered, key=lambda item: item[0])
        ]
        saved = opt.param_groups, opt.state
        opt.param_groups, opt.state = narrowed, states
        self.is_stepping = True
        try:
            self._plain_step(opt)
        finally:
            self.is_stepping = False
            opt.param_groups, opt.state = saved
        return [(piece, states[tensor]) for tensor, (piece, _) in zip(working, bound, strict=True)]

    def _store_new(self, opt: Any, bound: Bound) -> None:
        """Makes a chunk of states that are in PyTorch's memory."""
        _keep_plain(opt, bound)
        chunk = Chunk(self.store, bound[0][0].param.device, self._chunk_bytes)
        chunk.lay_out(bound)
        self._chunks.append(chunk)
        self._keep(opt, bound)
        self._close(chunk)

    def _keep(self, opt: Any, bound: Bound) -> None:
        """Makes the optimizer's state of parameters whose last piece is in the store say so."""
        for piece, state in bound:
            if not piece.last or not state:
                continue
            values = {
                key: AWAY if is_movable(key, value, piece.shape) else value
                for key, value in state.items()
            }
            known = opt.state.get(piece.param)
            if isinstance(known, ParamState) and known.pieces is self._pieces[piece.param]:
                known.values_or_away = values
            else:
                pieces = self._pieces[piece.param]
                opt.state[piece.param] = ParamState(piece.param, pieces, values)

    def _close(self, chunk: Chunk) -> None:
        self._position += 1
        chunk.turn = self._turn
        chunk.close((self._turn + 1) * _ORDERS_PER_TURN + self._position)

    def _park_unused(self) -> None:
        """Tells the daemon of chunks that this step did not use, else they would seem to be needed
        first."""
        for chunk in self._chunks:
            if chunk.turn != self._turn and chunk.order != LAST:
                chunk.set_order(LAST)

    # -- Cutting

    def _cut(self, opt: Any, p: torch.Tensor, group: int) -> list[Piece]:
        state = opt.state.get(p)
        if state:
            sizes = [v.itemsize for key, v in state.items() if is_movable(key, v, p.shape)]
            bytes_per_element = sum(sizes)
        else:
            bytes_per_element = p.itemsize * _states_of(opt.param_groups[group])
        if p.device != self._packing_device:
            self._room = 0
            self._packing_device = p.device
        pieces, self._room = cut_into_pieces(p, bytes_per_element, self._chunk_bytes, self._room)
        self._pieces[p] = pieces
        return pieces

    def take(self, opt: Any) -> None:
        """Moves what states there are into the store."""
        batch: list[Piece] = []

        def store() -> None:
            if batch:
                self._store_new(opt, [(piece, _bind(opt, piece, None)) for piece in batch])
                batch.clear()

        groups = _group_of(opt)
        self._room = 0
        # Gradients come about from the last parameter to the first.
        for p in reversed(groups) if self.in_backward else groups:
            if not opt.state.get(p):
                continue
            for piece in self._cut(opt, p, groups[p]):
                if piece.begins_chunk:
                    store()
                batch.append(piece)
        store()
        for chunk in self._chunks:
            chunk.turn = self._turn - 1
        self._position = 0

    # -- In the backward pass

    def register_hooks(self, opt: Any) -> None:
        """With in_backward: has backward passes call on_gradient()."""
        if not self.in_backward:
            return
        reference = weakref.ref(opt)

        def hook(p: torch.Tensor) -> None:
            alive = reference()
            if alive is not None:
                self.on_gradient(alive, p)

        for p in _params(opt):
            if p not in self._hooked and p.requires_grad:
                p.register_post_accumulate_grad_hook(hook)
                self._hooked.add(p)

    @torch.no_grad()
    def on_gradient(self, opt: Any, p: torch.Tensor) -> None:
        """Updates `p`, whose gradient is complete, and frees the gradient."""
        with self._lock:
            self._begin_backward(opt)
            if p not in self._groups:
                return
            self._check_gradient(p)
            with self._explained(opt):
                if p in self._pieces:
                    self._update_in_backward(opt, p)
                else:
                    self._update_new_in_backward(opt, p)
            p.grad = _UsedGradient(p)
            self._updated.add(p)

    def _begin_backward(self, opt: Any) -> None:
        task = torch._C._current_graph_task_id()
        if task == self._task:
            return
        _refuse_capture()
        self._check_lost(opt)
        if not self._was_checked:
            _refuse_users_of_gradients(_params(opt))
            self._was_checked = True
        self._task = task
        self._groups = _group_of(opt)
        reference = weakref.ref(opt)

        def finish() -> None:
            alive = reference()
            if alive is not None:
                self.finish_backward(alive)

        engine = torch.autograd.Variable._execution_engine
        engine.queue_callback(finish)

    def _check_gradient(self, p: torch.Tensor) -> None:
        assert p.grad is not None
        _has_gradient(p)
        if p.grad.requires_grad:
            raise RuntimeError(
                "backward(create_graph=True) with in_backward=True: the update would change "
                "parameters that the second backward pass needs; use in_backward=False"
            )
        if p in self._updated:
            raise RuntimeError(
                "a second gradient of a parameter came before optimizer.step(): with "
                "in_backward=True the first one has updated the parameter already. Call "
                "optimizer.step() after every backward pass; to accumulate gradients use "
                "in_backward=False"
            )

    def _update_in_backward(self, opt: Any, p: torch.Tensor) -> None:
        for piece in self._pieces[p]:
            chunk = piece.chunk
            assert chunk is not None
            if chunk not in self._open:
                if len(self._open) >= _OPEN_MAX:
                    self._close_first()
                chunk.open()
                self._open[chunk] = {x for x in chunk.pieces if x.param in self._groups}
            self._update(opt, chunk, [piece], self._groups)
            self._open[chunk].discard(piece)
            if not self._open[chunk]:
                del self._open[chunk]
                self._close(chunk)

    def _close_first(self) -> None:
        chunk = next(iter(self._open))
        del self._open[chunk]
        self._close(chunk)

    def _update_new_in_backward(self, opt: Any, p: torch.Tensor) -> None:
        for piece in self._cut(opt, p, self._groups[p]):
            if piece.begins_chunk:
                self._store_packed(opt)
            bound: Bound = [(piece, _bind(opt, piece, None))]
            made = self._run_step(opt, bound, self._groups)
            _keep_plain(opt, made)
            self._packing += made

    def _store_packed(self, opt: Any) -> None:
        packed, self._packing = self._packing, []
        if packed:
            self._store_new(opt, packed)

    @torch.no_grad()
    def finish_backward(self, opt: Any) -> None:
        """Puts what a backward pass left open: chunks with parameters that got no gradient."""
        with self._lock, self._explained(opt):
            while self._open:
                self._close_first()
            self._store_packed(opt)
            self._room = 0

    # -- Saving and loading

    def copied_to_cpu(self, made: dict[str, Any]) -> dict[str, Any]:
        """A state_dict with copies on the CPU, each chunk got once."""
        copies: dict[torch.Tensor, dict[str, torch.Tensor]] = defaultdict(dict)
        away = {
            (piece, key)
            for state in made["state"].values()
            if isinstance(state, ParamState)
            for key, value in state.values_or_away.items()
            if value is AWAY
            for piece in state.pieces
        }
        for chunk in self._chunks:
            wanted = [(x, key) for x in chunk.pieces for key in x.slots if (x, key) in away]
            if not wanted:
                continue
            with chunk.read() as base:
                for piece, key in wanted:
                    mine = copies[piece.param]
                    if key not in mine:
                        mine[key] = piece.empty_state(key, torch.device("cpu"))
                    piece.cut(mine[key]).copy_(piece.view(base, key))

        def plain(state: Any) -> Any:
            if isinstance(state, ParamState):
                mine = copies[state.pieces[0].param]
                values = state.values_or_away
                return {key: mine[key] if v is AWAY else _on_cpu(v) for key, v in values.items()}
            if isinstance(state, dict):
                return {key: _on_cpu(value) for key, value in state.items()}
            return state

        # In the order of the parameters, whichever got its states first.
        numbers = sorted(
            made["state"], key=lambda key: (not isinstance(key, int), str(key).zfill(9))
        )
        return {**made, "state": {number: plain(made["state"][number]) for number in numbers}}

    def load(self, opt: Any, loaded: Mapping[torch.Tensor, dict[str, Any]]) -> None:
        """Replaces all states; what is not moved is in `opt.state` already."""
        if self.lost is not None and self._connect is None:
            raise StatesLost(f"{self.lost} First give it a store: offload_optimizer(opt, store)")
        self._drop()
        if self.lost is not None and self._connect is not None:
            self.store = self._connect()
            self.lost = None
        for p, moved in loaded.items():
            opt.state[p] = {**opt.state.get(p, {}), **moved}
        self.take(opt)

    def forget(self, opt: Any, store: Store) -> None:
        """After a loss: goes on with another store, and without the states that were lost."""
        _check_backend(store, {p.device for p in _params(opt)})
        for p in self._pieces:
            opt.state.pop(p, None)
        self._drop()
        self.store = store
        self._connect = None
        self.lost = None

    def _drop(self) -> None:
        self._open.clear()
        self._packing.clear()
        self._updated.clear()
        self._pieces.clear()
        chunks, self._chunks = self._chunks, []
        for chunk in chunks:
            with contextlib.suppress(Lost, Unavailable, Corrupt):
                chunk.free()

    # -- Failures

    def _check_lost(self, opt: Any) -> None:
        if self.lost is not None:
            raise StatesLost(self.lost)

    @contextlib.contextmanager
    def _explained(self, opt: Any) -> Iterator[None]:
        """Adds to an exception what became of the states."""
        try:
            yield
        except StatesLost:
            raise
        except (Lost, Unavailable, Corrupt) as error:
            self._open.clear()
            self.lost = f"{error} {self._loss(opt)}"
            raise StatesLost(self.lost) from error
        except Exception as error:
            self._unfinish()
            _add_note(error, self._progress())
            raise

    def _loss(self, opt: Any) -> str:
        names = _names(opt)
        gone = [name for p, name in names.items() if p in self._pieces]
        size = size_text(sum(chunk.size for chunk in self._chunks))
        return (
            f"Optimizer states were in the store and are lost: {size} of {len(gone)} of "
            f"{len(names)} parameters ({_listed(gone)}). {self._progress()} Go back to a "
            "checkpoint: load the model's and call optimizer.load_state_dict()."
        )

    def _progress(self) -> str:
        done = [chunk for chunk in self._chunks if chunk.turn == self._turn]
        return (
            f"This step had finished {len(done)} of {len(self._chunks)} chunks of states; the "
            "parameters of these are updated and consistent with their states, those of one more "
            "may be updated in part, the others are as before the step."
        )

    def _unfinish(self) -> None:
        """Forgets pieces of parameters whose states did not all reach the store."""
        self._packing.clear()
        for p, pieces in list(self._pieces.items()):
            if any(piece.chunk is None for piece in pieces):
                del self._pieces[p]
                for chunk in self._chunks:
                    chunk.pieces = [piece for piece in chunk.pieces if piece.param is not p]


def _params(opt: Any) -> Iterator[torch.Tensor]:
    return (p for group in opt.param_groups for p in group["params"])


def _group_of(opt: Any) -> dict[torch.Tensor, int]:
    groups = enumerate(opt.param_groups)
    return {p: number for number, group in groups for p in group["params"]}


def _names(opt: Any) -> dict[torch.Tensor, str]:
    names: dict[torch.Tensor, str] = {}
    for group in opt.param_groups:
        given = group.get("param_names")
        for i, p in enumerate(group["params"]):
            names[p] = str(given[i]) if given else str(len(names))
    return names


def _listed(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 8 else f"{', '.join(names[:7])}, ..., {names[-1]}"


def _states_of(group: Mapping[str, Any]) -> int:
    if "momentum" in group:
        return 1  # also without momentum, which may be turned on later
    return 3 if group["amsgrad"] else 2


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    return value


def _bind(opt: Any, piece: Piece, base: torch.Tensor | None) -> dict[str, Any]:
    """The states of a piece for the step code: views of its open chunk, and what is not there."""
    state = opt.state.get(piece.param) or {}
    values = state.values_or_away if isinstance(state, ParamState) else state
    bound: dict[str, Any] = {}
    for key, value in values.items():
        if value is AWAY:
            assert base is not None
            bound[key] = piece.view(base, key)
        elif is_movable(key, value, piece.param.shape):
            bound[key] = piece.cut(value).to(piece.param.device)
        elif isinstance(value, torch.Tensor) and not piece.whole:
            # Every piece counts its own steps, from the same number.
            bound[key] = value.clone()
        else:
            bound[key] = value
    return bound


def _keep_plain(opt: Any, bound: Bound) -> None:
    """Until states are in the store they are the optimizer's as usual: no failure loses them."""
    for piece, state in bound:
        if piece.whole and state:
            opt.state[piece.param] = state


def _settle(piece: Piece, state: dict[str, Any], base: torch.Tensor | None) -> bool:
    """Copies states that the step code or the user made into the open chunk; False if the chunk has
    no place for one."""
    for key, value in state.items():
        if not is_movable(key, value, piece.shape):
            continue
        slot = piece.slots.get(key)
        if slot is None or slot.dtype != value.dtype or base is None:
            return False
        if value.data_ptr() != base.data_ptr() + slot.offset:
            slot.of(base).copy_(value)
    return True


def _add_note(error: Exception, note: str) -> None:
    """error.add_note(), which Python 3.10 lacks."""
    if hasattr(error, "add_note"):
        error.add_note(note)
    else:
        error.args = (f"{error}\n{note}", *error.args[1:])

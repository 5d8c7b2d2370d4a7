"""One call that lets one device train what does not fit.

    plan = ravenstore.prepare(model, optimizer, device_budget="40GiB")
    for batch in data: ...                       # the loop stays as it is
    print(plan.explain())

It puts together what this package has: the optimizer's states live in host memory from one update
to the next (offload_optimizer), what autograd saves leaves the device as needed (offload), and the
loss over the vocabulary is computed in chunks of tokens (chunk_loss). It decides for each part by
its size, prints what it decided, and refuses what cannot fit with what would.

A daemon of the node is used where one serves. Else a private one starts, and says so.

Threads: what autograd saves in the thread that calls it. Streams: as those of the parts.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import sys
import time
import weakref
from types import TracebackType
from typing import Any, Literal, NoReturn

import torch

from ravenstore import _native
from ravenstore import embedded as _embedded
from ravenstore._link import link_rate
from ravenstore._precision import Precision
from ravenstore._refusals import check_in_backward, class_name
from ravenstore._rich import table
from ravenstore._sizes import (
    BLOCK_BYTES_MIN,
    Sizes,
    is_movable,
    logits_bytes,
    pass_bytes,
    sizes_of,
    state_bytes,
)
from ravenstore._states import States, unwrapped
from ravenstore._units import Duration, Size, budget_of, bytes_of, size_text, warn_if_cut
from ravenstore.chunked_loss import ChunkedLoss, chunk_loss
from ravenstore.errors import InvalidArgument, OutOfMemory, Unsupported
from ravenstore.offload import explain as explain_offload
from ravenstore.offload import is_attached, offload
from ravenstore.offload import step as step_of_offload
from ravenstore.optimizer import offload_optimizer
from ravenstore.store import Store

_MIB, _GIB = 1 << 20, 1 << 30
# GPU memory of a process without PyTorch's, and of a private daemon (measured on an H100).
_CONTEXT_BYTES = 768 * _MIB
_DAEMON_BYTES = 512 * _MIB
# For blocks that are not the store's, apart from weights, gradients and states.
_SMALL_BYTES = 256 * _MIB
# The window: bytes of states on the device. They come back during the forward pass, when no update
# needs the link. It has at least 16 chunks, so that the CPU runs ahead of the GPU, or this part of
# the memory that is left. Too low: the link idles. Too high: a step has no room for its tensors.
# 8B on an H100 with a link of 30 GB/s: 1.72 s a step with 1 GiB, 1.13 with 3 (plain: 1.02).
_WINDOW_PART = 0.4
_WINDOW_PART_KNOWN = 0.8  # if the memory of a whole step is known
_WINDOW_BYTES_MAX = 4 * _GIB
_CHUNKS = 16
_CHUNK_BYTES = 64 * _MIB
_CHUNK_BYTES_MIN = 64 << 10
_LINK_BYTES = 256 * _MIB
_LINK_SECONDS = 0.2
# After this number of steps, this part of the device memory that no step used is filled with
# states. Too low: more states move than must. Too high: a larger batch runs out of memory.
_STEPS_BEFORE_FILLING = 2
_FILLED_PART = 0.75
_FILLED_PART_KNOWN = 0.9  # if the caller gave the largest number of tokens of a pass
# The least that is filled: a 32nd of the states that move. Less gains too little time.
_FILLED_LEAST = 32
# Allowance for fragmentation: a 16th of PyTorch's peak.
_FRAGMENTED = 16
# explain() gives the median of the last 32 steps.
_TIMES = 32


@dataclasses.dataclass(frozen=True)
class Part:
    """What becomes of one part of a training's memory."""

    name: str
    bytes: int | None
    """None where it depends on the batch."""
    where: str
    note: str = ""


_HEAD = ("part", "bytes", "where", "")


class Plan:
    """What prepare() decided. Printable, and a table in a notebook. A context manager, which closes
    at its end."""

    def __init__(self, budget: int, backend: str, daemon: str, options: _Options) -> None:
        self.device_budget = budget
        self.backend = backend
        self.parts: list[Part] = []
        self.loss: ChunkedLoss | None = None
        """The loss in chunks, where it is."""
        self.transfer_seconds = 0.0
        """What the states' transfers take a step by the measured link; 0 where none move."""
        self.link_rate = 0.0
        """Bytes a second each way, both ways in parallel; 0 where nothing moves."""
        self.states_unknown = ""
        """Why the optimizer's states are not counted, where they are not."""
        self._daemon = daemon
        self._options = options
        self._scope: offload | None = None
        self._optimizer: weakref.ref[Any] | None = None
        self._ends: list[float] = []
        # Bytes that PyTorch's own blocks may take; the process's memory fraction before prepare().
        self._own_bytes = 0
        self._fraction_before: float | None = None

    def take(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Plan:
        """With prepare() before the model was made: what prepare(model, optimizer) does then.
        Returns the plan itself."""
        if self._optimizer is not None:
            raise InvalidArgument("the plan has a model already: make another one with prepare()")
        _take(self, model, optimizer, is_new=self._scope is not None)
        return self

    def step(self) -> None:
        """Says that the next step begins. Optional, as ravenstore.step()."""
        if self._scope is not None:
            step_of_offload()

    def close(self) -> None:
        """Ends the offloading of what autograd saves, lifts the limit on PyTorch's memory, and
        restores the model's own loss. The optimizer's states stay where they are. In the thread of
        prepare(). More calls do nothing."""
        scope, self._scope = self._scope, None
        if scope is not None:
            scope.__exit__(None, None, None)
        loss, self.loss = self.loss, None
        if loss is not None:
            loss.remove()
        before, self._fraction_before = self._fraction_before, None
        if before is not None:
            torch.cuda.set_per_process_memory_fraction(before)

    def __enter__(self) -> Plan:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()

    def __str__(self) -> str:
        return "\n".join([self._caption(), *_columns([_HEAD, *self._rows()])])

    def _repr_html_(self) -> str:
        return table(self._caption(), self._rows(), head=_HEAD)

    def _caption(self) -> str:
        budget = size_text(self.device_budget)
        return f"ravenstore.prepare: {budget} of {self.backend}, {self._daemon}"

    def _rows(self) -> list[tuple[str, str, str, str]]:
        return [
            (p.name, "by batch" if p.bytes is None else size_text(p.bytes), p.where, p.note)
            for p in self.parts
        ]

    def explain(self) -> str:
        """The plan, and measurements of the steps so far."""
        lines = [str(self)]
        steps = [b - a for a, b in zip(self._ends, self._ends[1:], strict=False)]
        if not steps:
            return "\n".join([*lines, "measured: nothing yet, no two steps have ended"])
        lines.append(f"measured: {statistics.median(steps[-_TIMES:]):.3f} s a step, median")
        optimizer = self._optimizer() if self._optimizer is not None else None
        states = getattr(optimizer, "_ravenstore", None)
        if isinstance(states, States):
            where = "in the backward pass" if states.in_backward else "after the backward pass"
            lines.append(f"  updates {where}: {states.why}")
            stats = states.store.stats()
            count = len(self._ends)
            lines.append(
                f"  optimizer states: {size_text(stats.bytes_out / count)} out, "
                f"{size_text(stats.bytes_in / count)} back a step, "
                f"{stats.stall_ns / 1e9 / count:.3f} s waited"
            )
            if stays := states.bytes_on_device():
                lines.append(f"  optimizer states that stay on the device: {size_text(stays)}")
        if self._scope is not None:
            moved = explain_offload()
            lines.append(
                f"  saved for backward, in all: {size_text(moved.bytes_out)} out, "
                f"{size_text(moved.bytes_in)} back, {moved.stall_seconds:.3f} s waited"
            )
        if self.backend == "cuda":
            peak = size_text(torch.cuda.max_memory_allocated())
            lines.append(f"  peak of PyTorch's memory: {peak} of {size_text(self.device_budget)}")
        return "\n".join(lines)

    def _count_steps(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = weakref.ref(optimizer)
        plan = weakref.ref(self)

        def ended(*_: Any) -> None:
            alive = plan()
            if alive is not None:
                alive._ends.append(time.perf_counter())
                alive._fill()

        optimizer.register_step_post_hook(ended)

    def _fill(self) -> None:
        """After the first steps: keeps states in device memory that no step has used."""
        optimizer = self._optimizer() if self._optimizer is not None else None
        states = getattr(optimizer, "_ravenstore", None)
        if not isinstance(states, States) or states.lost is not None:
            return
        if len(self._ends) == 1 and self._options.in_backward == "auto" and states.in_backward:
            # That step kept its gradients, and later ones do not.
            _forget_peak(self)
        if len(self._ends) == _STEPS_BEFORE_FILLING:
            part = _FILLED_PART_KNOWN if self._options.tokens else _FILLED_PART
            fill = int(_unused_bytes(self) * part)
            if fill >= states.bytes_in_store() // _FILLED_LEAST:
                states.keep_on_device(fill)
            if self.link_rate:
                self.transfer_seconds = states.bytes_in_store() / self.link_rate


@dataclasses.dataclass(frozen=True)
class _Options:
    host_budget: int
    device_budget: int | None
    """None: what is free."""
    in_backward: bool | Literal["auto"]
    loss_chunks: bool
    states: Literal["auto", "away", "stay"]
    saved: bool | Literal["auto"]
    tokens: int | None
    report: bool
    timeout: Duration
    precision: Precision
    # Of the daemon, once there is one:
    socket: str = ""
    is_private: bool = False
    host_bytes: int = 0
    """Host memory that the daemon gives this client."""


def prepare(
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    device_budget: Size = "auto",
    host_budget: Size | None = None,
    in_backward: bool | Literal["auto"] = "auto",
    loss_chunks: bool = True,
    states: Literal["auto", "away", "stay"] = "auto",
    saved: bool | Literal["auto"] = "auto",
    tokens: int | None = None,
    float32_states: bool = False,
    master_weights: bool = False,
    rounding: Literal["nearest", "stochastic"] = "nearest",
    seed: int = 0,
    socket: str | os.PathLike[str] | None = None,
    report: bool = True,
    timeout: Duration = 30.0,
) -> Plan:
    """Makes a training fit into `device_budget`; returns what was decided, and prints it.

    model, optimizer: before the first step, on their device. Left out, the plan is made before the
        model, whose weights are then the store's from the start, while host memory is pinned:
        `with ravenstore.prepare(device_budget=...) as plan:`, then plan.take(model, optimizer).
        A finished model's parameters and buffers move into the store's memory one at a time; they
        stay the same objects. Of other tensors that share their memory nothing is known: they keep
        the old.
    device_budget: bytes that this process and its private daemon may take on the device by the
        driver's count, or "auto": what is free.
    host_budget: bytes of host memory at most. By default what the daemon says; of a private one
        most of what is free.
    in_backward: as offload_optimizer's. With "auto" PyTorch's peak statistics of the device are
        reset after the first step, if later ones keep no gradients.
    loss_chunks: compute a causal language model's loss in chunks, see chunk_loss().
    states: where the optimizer's states live: "away", "stay", or by size.
    saved: let what autograd saves in this thread leave the device as needed, until Plan.close().
        "auto": yes, unless `tokens` and the model's shape say that it fits. Where it does not move,
        PyTorch's memory is limited instead, as by torch.cuda.set_per_process_memory_fraction().
    tokens: of one pass at most, if you know them: what a pass takes is counted with them.
    float32_states, master_weights, rounding, seed: as offload_optimizer's. States are away then.
    socket: the daemon's; by default the node's if one serves there, else a private one.
    report: print the plan to stderr.
    timeout: bounds the attach and every wait for room.

    Errors: OutOfMemory in words when weights, gradients and what must stay do not fit the budget,
    or the states not the host memory; InvalidArgument; those of offload_optimizer and offload.
    """
    precision = Precision(float32_states or master_weights, master_weights, rounding, seed)
    _check_arguments(model, optimizer, states, saved, in_backward, precision)
    where: Literal["auto", "away", "stay"] = "away" if precision.float32_states else states
    options = _Options(
        host_budget=bytes_of(host_budget) if host_budget is not None else 0,
        device_budget=None if device_budget == "auto" else budget_of(device_budget),
        in_backward=in_backward,
        loss_chunks=loss_chunks,
        states=where,
        saved=saved,
        tokens=tokens,
        report=report,
        timeout=timeout,
        precision=precision,
    )
    plan = _attached(options, socket, model, optimizer)
    if model is not None and optimizer is not None:
        _take(plan, model, optimizer, is_new=False)
    elif saved:
        # The model comes later.
        plan._own_bytes = _allocator_bytes(plan, _window_of(plan.device_budget, 0, 0))
        plan._scope = _open_scope(plan, plan._own_bytes)
    return plan


def _attached(
    options: _Options,
    socket: str | os.PathLike[str] | None,
    model: torch.nn.Module | None,
    optimizer: torch.optim.Optimizer | None,
) -> Plan:
    """A plan that has a daemon and a budget, and nothing decided."""
    path, daemon, own = _daemon(options, socket, model, optimizer)
    with Store.connect(
        socket=path, name="prepare", host_budget=options.host_budget, timeout=options.timeout
    ) as store:
        backend, stats = store.backend, store.stats()
    asked = options.device_budget
    if asked is None:
        asked = _free_bytes() if backend == "cuda" else stats.device_budget
    else:
        warn_if_cut(asked, stats.device_budget, stacklevel=3)  # the caller of prepare()
    budget = min(asked, stats.device_budget)
    options = dataclasses.replace(
        options, socket=path, is_private=own, host_bytes=stats.host_budget
    )
    return Plan(budget, backend, daemon, options)


def _check_arguments(
    model: torch.nn.Module | None,
    optimizer: torch.optim.Optimizer | None,
    states: str,
    saved: bool | Literal["auto"],
    in_backward: bool | Literal["auto"],
    precision: Precision,
) -> None:
    if (model is None) != (optimizer is None):
        raise InvalidArgument("prepare takes a model with its optimizer, or neither")
    if states not in ("auto", "away", "stay"):
        raise InvalidArgument(f'states is "auto", "away" or "stay", not {states!r}')
    if saved not in (True, False, "auto"):
        raise InvalidArgument(f'saved is True, False or "auto", not {saved!r}')
    check_in_backward(in_backward)
    if precision.float32_states and states == "stay":
        raise InvalidArgument('float32_states and master_weights need states="away" or "auto"')


def _daemon(
    options: _Options,
    socket: str | os.PathLike[str] | None,
    model: torch.nn.Module | None,
    optimizer: torch.optim.Optimizer | None,
) -> tuple[str, str, bool]:
    """The daemon's socket, what it is in words, and whether it is this process's own."""
    if socket is not None or not _embedded.wants_private("auto"):
        path = _embedded.socket_for(socket, "auto")
        Store.connect(socket=path, name="prepare", timeout=options.timeout).close()
        return path, f"by the daemon at {path}", False
    private = _embedded.private_socket()
    if private is not None:
        return private, "by this job's private daemon", True
    pool = options.host_budget or int(_embedded.available_host_bytes() * 0.85)
    ahead = 0
    if optimizer is not None:
        ahead = sum(state_bytes(unwrapped(optimizer), options.precision))
    flags = ["--pool-ahead", str(min(ahead, pool))] if ahead else []
    types = {p.device.type for p in model.parameters()} if model is not None else set()
    # Without a GPU the device is simulated, and as large as is asked for.
    kind, total = ("host", options.device_budget) if types == {"cpu"} else ("auto", None)
    started = _embedded.start(
        backend=kind,
        device_total=total,
        pool_size=pool,
        budget=options.device_budget,
        flags=flags,
        timeout=options.timeout,
        for_job=True,
    )
    words = f"by a private daemon of this job (host memory: {size_text(pool)})"
    return started.socket, words, True


def _free_bytes() -> int:
    """Bytes of the current device that are free or already this process's."""
    free, _ = torch.cuda.mem_get_info()
    return free + torch.cuda.memory_reserved() + _CONTEXT_BYTES


def _window_of(budget: int, room: int, part: float) -> int:
    """Bytes of the window. `room`: bytes of which it may have that part."""
    least = max(min(_CHUNKS * _CHUNK_BYTES, budget // 16), 2 * _MIB)
    return max(least, min(int(room * part), _WINDOW_BYTES_MAX))


def _fixed_bytes(plan: Plan) -> int:
    """Device memory that is neither PyTorch's large blocks nor states."""
    if plan.backend != "cuda":
        return 0
    return _CONTEXT_BYTES + _SMALL_BYTES + (_DAEMON_BYTES if plan._options.is_private else 0)


def _small_bytes(backend: str, sizes: Sizes, stay: bool) -> int:
    """Device memory in PyTorch's small blocks: weights, gradients, and states if they `stay`."""
    # A simulated device has the store's blocks alone.
    return sizes.small + (sizes.small_states if stay else 0) if backend == "cuda" else 0


def _allocator_bytes(plan: Plan, states: int) -> int:
    left = plan.device_budget - _fixed_bytes(plan) - states
    if left <= 0:
        raise OutOfMemory(
            f"device_budget is {size_text(plan.device_budget)}: contexts and a window of the "
            f"optimizer's states alone take {size_text(plan.device_budget - left)}"
        )
    return left


def _open_scope(plan: Plan, budget: int) -> offload:
    options = plan._options
    scope: offload
    if is_attached():
        # Its budgets hold until the process ends.
        scope = offload(timeout=options.timeout)
    else:
        host = options.host_budget or None
        scope = offload(budget, host_budget=host, socket=options.socket, timeout=options.timeout)
    scope.__enter__()
    return scope


def _take(
    plan: Plan, model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, is_new: bool
) -> None:
    """`is_new`: the scope was opened before the model was made."""
    options = plan._options
    optimizer = unwrapped(optimizer)
    _check_device(plan, model)
    _check_class(plan, optimizer)
    sizes = sizes_of(model, optimizer, options.precision)
    plan.loss, loss_words = _chunk_the_loss(plan, model)
    try:
        needs = _needs_of(plan, model, sizes)
        left = plan.device_budget - _fixed_bytes(plan) - sizes.weights
        half = (left - needs.gradients) // 2
        stay = options.states == "stay" or (options.states == "auto" and sizes.states <= half)
        if not is_movable(optimizer):
            stay = True
            plan.states_unknown = f"of {class_name(optimizer)}, which is not moved, nor counted"
        least = sizes.states if stay else min(_window_of(plan.device_budget, 0, 0), sizes.states)
        moves = is_new or _must_move(plan, needs, left - least)
        if moves:
            needs = dataclasses.replace(needs, saved=0, layer=0)
        room = left - needs.in_all
        # What was opened before the model was made left room for the least window.
        part = _WINDOW_PART if moves or not needs.saved else _WINDOW_PART_KNOWN
        window = _window_of(plan.device_budget, 0 if is_new else room, part)
        window = min(window, max(sizes.states, 2 * _MIB))
        excess = 0 if stay else _excess_of_host(plan, sizes)
        held = sizes.states if stay else window
        _refuse_what_cannot_fit(plan, sizes, needs.gradients, held)
        if excess and excess >= room - held:
            _refuse_what_host_cannot_take(plan, sizes)
        if needs.loss and needs.loss >= left - held - excess - needs.before_loss:
            _refuse_whole_loss(plan, needs, left - held - excess, loss_words)
        if not is_new:
            plan._own_bytes = _allocator_bytes(plan, 0 if stay else window)
            if moves:
                own_states = sizes.states if stay else excess
                kept = sizes.weights + needs.gradients + own_states
                small = _small_bytes(plan.backend, sizes, stay)
                plan._scope = _open_scope(plan, _saved_budget(plan, kept, small))
            else:
                _limit_pytorch(plan)
            if plan._scope is not None and explain_offload().way == "allocator":
                _move_into_the_store([*model.parameters(), *model.buffers()])
        if not stay and sizes.states:
            link_bytes = min(_LINK_BYTES, max(window, 4 * _MIB))
            plan.link_rate = link_rate(options.socket, link_bytes, _LINK_SECONDS)
            _move_states(plan, optimizer, window, excess)
            plan.transfer_seconds = (sizes.states - excess) / plan.link_rate
    except BaseException:
        plan.close()
        raise
    room = max(room - held - excess, 0)
    plan.parts += _parts(plan, sizes, needs, stay, excess, loss_words, room)
    plan._count_steps(optimizer)
    if options.report:
        print(plan, file=sys.stderr)


@dataclasses.dataclass(frozen=True)
class _Needs:
    """Device memory of a step in bytes, without weights and states. 0: unknown."""

    gradients: int
    loss: int
    saved: int
    layer: int
    """Of the layer that its backward pass recomputes."""
    has_gradients_with_loss: bool

    @property
    def before_loss(self) -> int:
        """In use when the loss is computed."""
        return self.saved + (self.gradients if self.has_gradients_with_loss else 0)

    @property
    def in_all(self) -> int:
        """The peak: in the loss, or in the last layer whose gradient is computed."""
        return max(self.before_loss + self.loss, self.saved + self.gradients + self.layer)


def _needs_of(plan: Plan, model: torch.nn.Module, sizes: Sizes) -> _Needs:
    options = plan._options
    in_backward = options.in_backward is True
    saved, layer = pass_bytes(model, options.tokens)
    return _Needs(
        gradients=2 * sizes.largest if in_backward else sizes.gradients,
        loss=0 if plan.loss is not None else logits_bytes(model, options.tokens),
        saved=saved,
        layer=layer,
        has_gradients_with_loss=not in_backward,
    )


def _must_move(plan: Plan, needs: _Needs, left: int) -> bool:
    """Whether what autograd saves may leave the device. `left`: bytes for a step."""
    saved = plan._options.saved
    return saved if saved != "auto" else needs.saved == 0 or needs.in_all > left


def _excess_of_host(plan: Plan, sizes: Sizes) -> int:
    """Bytes of states that host memory has no room for."""
    # A chunk that is at least 15/16 full takes all of its memory.
    in_chunks = sizes.states + sizes.states // 15
    return min(max(in_chunks - plan._options.host_bytes, 0), sizes.states)


def _limit_pytorch(plan: Plan) -> None:
    """If a budget was given, limits PyTorch's memory to its part of it. Nothing of it moves."""
    if plan.backend != "cuda" or plan._options.device_budget is None:
        return
    _, total = torch.cuda.mem_get_info()
    plan._fraction_before = torch.cuda.get_per_process_memory_fraction()
    torch.cuda.set_per_process_memory_fraction(min(plan._own_bytes / total, 1.0))


def _forget_peak(plan: Plan) -> None:
    if plan.backend == "cuda" and plan._scope is None:
        torch.cuda.reset_peak_memory_stats()


def _unused_bytes(plan: Plan) -> int:
    """Bytes of the device that PyTorch may have and no step has used. 0 if what autograd saves may
    move: the store fragments, and needs its free memory for large blocks."""
    if plan.backend != "cuda" or plan._scope is not None:
        return 0
    peak = torch.cuda.max_memory_allocated()
    return max(plan._own_bytes - peak - peak // _FRAGMENTED, 0)


def _check_device(plan: Plan, model: torch.nn.Module) -> None:
    wanted = "cuda" if plan.backend == "cuda" else "cpu"
    devices = {t.device for t in [*model.parameters(), *model.buffers()]}
    if {device.type for device in devices} != {wanted} or len(devices) != 1:
        names = ", ".join(sorted(map(str, devices))) or "nowhere"
        raise InvalidArgument(
            f"prepare takes a model on one device of the daemon's kind, {wanted}: this one is on "
            f"{names}. Move it there before, e.g. model.to({wanted!r})"
        )


def _check_class(plan: Plan, optimizer: torch.optim.Optimizer) -> None:
    """Raises if the states were to leave, and they are of a class that is not moved."""
    is_offloaded = isinstance(getattr(optimizer, "_ravenstore", None), States)
    if plan._options.states == "away" and not is_offloaded and not is_movable(optimizer):
        raise TypeError(
            'states="away", float32_states and master_weights take torch.optim.Adam, AdamW and '
            f"SGD, not {class_name(optimizer)}: leave them out, or call offload_optimizer with "
            "elementwise= before, which tries whether its states can move"
        )


def _refuse_what_cannot_fit(plan: Plan, sizes: Sizes, kept: int, on_device: int) -> None:
    budget = plan.device_budget
    needed = _fixed_bytes(plan) + sizes.weights + kept + on_device
    if needed >= budget:
        words = [f"more than device_budget={size_text(needed + needed // 8)!r} would"]
        smaller = needed - kept + 2 * sizes.largest
        if kept > 2 * sizes.largest and smaller < budget:
            words.append(
                "in_backward=True would, for loops that do not use gradients after backward()"
            )
        if sizes.is_full and needed - (sizes.weights + kept) // 2 < budget:
            words.append("weights in bfloat16 would")
        if on_device == sizes.states and plan._options.states == "stay":
            words.append('states="away" may')
        raise OutOfMemory(
            f"the training does not fit {size_text(budget)}: weights take "
            f"{size_text(sizes.weights)}, gradients {size_text(kept)}, states on the device "
            f"{size_text(on_device)}, contexts {size_text(_fixed_bytes(plan))}, and what a step "
            f"uses comes on top. {'; '.join(words)}"
        )


def _refuse_what_host_cannot_take(plan: Plan, sizes: Sizes) -> NoReturn:
    raise OutOfMemory(
        f"the optimizer's states take {size_text(sizes.states)} of host memory, the daemon gives "
        f"{size_text(plan._options.host_bytes)}, and the device has no room for the rest: a larger "
        "host_budget, host_pool.size of the daemon, weights and states in bfloat16, or SGD with "
        "momentum would do"
    )


def _refuse_whole_loss(plan: Plan, needs: _Needs, left: int, words: str) -> NoReturn:
    """`left`: bytes of a step."""
    left -= needs.before_loss
    asked = plan._options.tokens or 0
    more = size_text(plan.device_budget + (needs.loss - left) + needs.loss // 8)
    raise OutOfMemory(
        f"the loss of {asked} tokens takes {size_text(needs.loss)} whole ({words}), and "
        f"{size_text(left)} are left for it: {max(asked * left // needs.loss // 2, 0)} tokens a "
        f"pass would do, or about device_budget={more!r}"
    )


def _chunk_the_loss(plan: Plan, model: torch.nn.Module) -> tuple[ChunkedLoss | None, str]:
    if not plan._options.loss_chunks:
        return None, "switched off"
    try:
        loss = chunk_loss(model)
    except Unsupported as error:
        return None, error.message
    return loss, f"by {loss.how}"


def _saved_budget(plan: Plan, kept: int, small: int) -> int:
    """The budget of offload(): all of PyTorch's large blocks, or, without the native part, what
    autograd saves. `kept`: bytes of PyTorch's that never leave; `small`: those in small blocks."""
    try:
        _native.load()
    except Unsupported:
        return max(plan._own_bytes - kept, 2 * _MIB)
    return max(plan._own_bytes - small, 2 * _MIB)


def _move_into_the_store(tensors: list[torch.Tensor]) -> None:
    """Gives each storage of `tensors` memory that is the store's; one more at a time. Tensors that
    share memory go on sharing it."""
    sharing: dict[int, list[torch.Tensor]] = {}
    for tensor in tensors:
        sharing.setdefault(tensor.untyped_storage()._cdata, []).append(tensor)
    while sharing:
        _, group = sharing.popitem()
        whole = group[0].untyped_storage()
        if whole.nbytes() < BLOCK_BYTES_MIN:
            continue
        flat = torch.empty(0, dtype=torch.uint8, device=group[0].device)
        copy = flat.set_(whole).clone()
        del flat, whole
        for tensor in group:
            typed = copy.view(tensor.dtype)
            tensor.data = typed.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        if copy.is_cuda and (copy.numel() >= 256 * _MIB or not sharing):
            torch.cuda.empty_cache()


def _move_states(plan: Plan, optimizer: torch.optim.Optimizer, window: int, excess: int) -> None:
    """`excess`: bytes of states that host memory has no room for."""
    options = plan._options
    states = getattr(optimizer, "_ravenstore", None)
    if isinstance(states, States) and states.lost is None:
        return  # of an earlier plan: they are where they belong
    store = Store.connect(
        socket=options.socket,
        name="optimizer states",
        device_budget=window,
        host_budget=options.host_budget,
        timeout=options.timeout,
    )
    try:
        chunk = max(min(_CHUNK_BYTES, window // _CHUNKS), _CHUNK_BYTES_MIN)
        offload_optimizer(
            optimizer,
            store,
            in_backward=options.in_backward,
            chunk=chunk,
            float32_states=options.precision.float32_states,
            master_weights=options.precision.master_weights,
            rounding=options.precision.rounding,
            seed=options.precision.seed,
            on_device=excess,
        )
    except BaseException:
        store.close()
        raise


def _parts(
    plan: Plan,
    sizes: Sizes,
    needs: _Needs,
    stay: bool,
    excess: int,
    loss_words: str,
    room: int,
) -> list[Part]:
    options = plan._options
    after = "until the step" if options.in_backward is not True else "two parameters' at most"
    if options.in_backward == "auto" and not stay:
        after = "all in the first step, which shows whether they may go in the backward pass"
    if plan.states_unknown:
        states = Part("optimizer states", None, "device", plan.states_unknown)
    elif not sizes.states:
        states = Part("optimizer states", 0, "none")
    elif stay:
        why = "asked for" if options.states == "stay" else "they take at most half of what is left"
        states = Part("optimizer states", sizes.states, "device", why)
    else:
        cost = f"{plan.transfer_seconds:.3f} s of transfers a step, both ways in parallel, at "
        cost += f"{plan.link_rate / 1e9:.1f} GB/s each"
        cost += f"; {size_text(excess)} stay on the device" if excess else ""
        states = Part("optimizer states", sizes.states, "host", cost)
    if plan.loss is not None:
        loss = Part("loss", None, "device, in chunks", loss_words)
    else:
        loss = Part("loss", needs.loss or None, "device", f"whole: {loss_words}")
    if plan._scope is not None:
        how = explain_offload()
        saved = Part("saved for backward", None, "host as needed", f"{how.way}: {how.why}")
    else:
        why = "it fits" if options.saved == "auto" else "switched off"
        saved = Part("saved for backward", needs.saved or None, "device", why)
    return [
        Part("weights", sizes.weights, "device"),
        Part("gradients", needs.gradients, "device", after),
        states,
        loss,
        saved,
        Part("left for a step", room, "device"),
    ]


def _columns(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]

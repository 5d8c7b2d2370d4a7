"""One line that lets a model's forward pass use more memory than its device has free.

    with ravenstore.offload(device_budget="12GiB"):
        loss = model(x)
    loss.backward()

What autograd saves for the backward pass goes into the store: the daemon moves it to host memory
when the budget is needed, and brings it back before the backward pass wants it. The model, the
optimizer and the training loop stay as they are.

Two ways, of which `explain()` names the one in use:

- "allocator": PyTorch's own large blocks are the store's memory, from the first offload() on. What
  autograd saved is parked when PyTorch frees it, and nothing is ever copied on the device. It
  needs this package's native part, compiled for the PyTorch that runs.
- "copy": PyTorch's allocator stays, and what autograd saves is copied into the store. The budget
  is then that of the saved tensors alone. Without the native part for the PyTorch that runs the
  copies are made by Python's means, "copy (Python)", which costs more for each tensor.

Threads: scopes may be open in several threads; each is its own thread's, as autograd's hooks are.
Fork: a child of fork() (a DataLoader's worker) leaves everything alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import threading
import warnings
from collections.abc import Iterator
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Literal

from ravenstore import _fallback, _first_steps, _native
from ravenstore._page import page
from ravenstore._rich import table
from ravenstore._units import (
    Duration,
    Size,
    budget_of,
    bytes_of,
    nanoseconds_of,
    size_text,
    warn_if_cut,
)
from ravenstore.embedded import Embedded, check_choice, socket_for
from ravenstore.errors import InvalidArgument, Unavailable, Unsupported
from ravenstore.store import how_to_start

if TYPE_CHECKING:
    import torch

Way = Literal["allocator", "copy"]
WayInUse = Literal["allocator", "copy", "copy (Python)"]

MIN_BLOCK_BYTES = 1 << 20
"""Smaller blocks stay with PyTorch's allocator: a transfer of so few bytes costs more than it
frees."""


@dataclasses.dataclass(frozen=True)
class Tally:
    """Tensors and their bytes."""

    tensors: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.tensors} tensors, {size_text(self.bytes)}"


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What became of the tensors that autograd saved in this process, and why. Printable."""

    way: WayInUse
    why: str
    """Why this way and not the other."""
    backend: str
    device_budget: int
    saved: Tally
    """All that autograd saved under a scope: shared + kept + taken."""
    shared: Tally
    """Bytes that were saved already under another tensor: no cost."""
    kept: dict[str, Tally]
    """Left in PyTorch's memory, by reason."""
    taken: Tally
    """Given into the store's care."""
    live_bytes: int
    live_bytes_peak: int
    """Of what was taken: not released yet, and the most at any time."""
    bytes_out: int
    bytes_in: int
    """Moved from the device and back."""
    stall_seconds: float
    """This process's calls waited so long on the CPU."""
    used_bytes: int
    used_bytes_peak: int
    """Of the allocator: bytes of the blocks that the program holds, parked ones not, on the device
    that ever had the most."""
    plain_bytes_peak: int
    """The same with parked ones: what the program would hold without offload(). See
    max_memory_plain()."""
    advice: tuple[str, ...]

    @property
    def moved(self) -> bool:
        """False when everything fitted, and nothing had to leave."""
        return self.bytes_in > 0

    def __str__(self) -> str:
        lines = [
            f"way: {self.way} ({self.why}); backend {self.backend}, "
            f"device budget {size_text(self.device_budget)}",
            f"saved by autograd: {self.saved}",
            f"  taken into the store's care: {self.taken}; at once at most "
            f"{size_text(self.live_bytes_peak)}",
            f"  saved before under another tensor: {self.shared}",
            *(f"  left alone, {reason}: {tally}" for reason, tally in self.kept.items()),
            f"moved: {size_text(self.bytes_out)} out, {size_text(self.bytes_in)} back, "
            f"{self.stall_seconds:.3f} s waited",
        ]
        if self.way == "allocator":
            lines.append(
                f"in use: {size_text(self.used_bytes)} now, {size_text(self.used_bytes_peak)} peak;"
                f" without offload() {size_text(self.plain_bytes_peak)} (max_memory_plain)"
            )
        return "\n".join([*lines, *(f"advice: {words}" for words in self.advice)])

    def _repr_html_(self) -> str:
        first, *lines = str(self).splitlines()
        rows = [line.strip().partition(": ") for line in lines if not line.startswith("advice")]
        return table(first, [(name, words) for name, _, words in rows], self.advice)


@dataclasses.dataclass(frozen=True)
class _Settings:
    """What is the same for the whole process."""

    socket: str
    device_budget: int
    host_budget: int
    way: Way | None


class _Process:
    """This process's one attachment for PyTorch's memory."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.settings: _Settings | None = None
        self.native: ModuleType | _fallback.Module | None = None
        self.way: WayInUse = "copy"
        self.why = ""
        self.backend = ""
        self.scopes: dict[int, Any] = {}
        """By min_bytes: a scope of the native part counts until the process ends."""
        self.compiled_without_room = False
        """A compiled region's forward pass ran out of memory."""

    def attach(self, settings: _Settings, timeout: Duration) -> None:
        """Connects with the first settings; later ones must not differ."""
        with self.lock:
            if self.settings is None:
                self._connect(settings, timeout)
                self.settings = settings
                return
            for field in dataclasses.fields(_Settings):
                wanted, has = getattr(settings, field.name), getattr(self.settings, field.name)
                if wanted and wanted != has:
                    raise InvalidArgument(
                        f"this process's offload() has {field.name} {has!r}, and cannot change to "
                        f"{wanted!r}: one attachment serves all of PyTorch's memory"
                    )

    def _connect(self, settings: _Settings, timeout: Duration) -> None:
        native, missing = self._load(settings)
        # Store.connect() of the other one gives advice and warns itself.
        in_python = isinstance(native, _fallback.Module)
        try:
            self.backend = native.connect(
                settings.socket,
                None,
                settings.device_budget,
                settings.host_budget,
                max(1, nanoseconds_of(timeout)),
            )
        except Unavailable as error:
            if in_python:
                raise
            raise Unavailable(f"{error.message}. {how_to_start(settings.socket)}") from None
        self.native = native
        if not in_python:
            warn_if_cut(settings.device_budget, native.store_stats()["device_budget"], stacklevel=4)
        self.way, self.why = ("copy (Python)", missing) if missing else self._choose(settings)
        if self.way != (settings.way or "allocator"):
            warnings.warn(
                f"ravenstore.offload() makes copies of what autograd saves: {self.why}",
                RuntimeWarning,
                stacklevel=4,  # the code that opens the scope
            )

    @staticmethod
    def _load(settings: _Settings) -> tuple[Any, str]:
        """The native part, else what does with Python's means, and why there is no other."""
        try:
            return _native.load(), ""
        except Unsupported as error:
            if settings.way == "allocator" or isinstance(error, _native.TooOld):
                raise
            return _fallback.Module(), error.message

    def _choose(self, settings: _Settings) -> tuple[WayInUse, str]:
        assert isinstance(self.native, ModuleType)
        if settings.way == "copy":
            return "copy", "asked for"
        try:
            self.native.install(MIN_BLOCK_BYTES, settings.device_budget)
        except Unsupported as error:
            if settings.way == "allocator":
                raise
            return "copy", error.message
        _first_steps.watch(self.native.expect_to_stay)
        return "allocator", "PyTorch's large blocks are the store's"

    def saw(self, error: BaseException) -> None:
        """`error` left a scope. One for want of room inside of a compiled region gets a note."""
        import torch

        if not isinstance(error, torch.OutOfMemoryError) or not _is_of_compiled(error):
            return
        self.compiled_without_room = True
        if hasattr(error, "add_note"):  # from Python 3.11 on
            error.add_note(_WITHOUT_ROOM)

    def scope(self, min_bytes: int) -> Any:
        assert self.native is not None
        with self.lock:
            if min_bytes not in self.scopes:
                parks = self.way == "allocator"
                self.scopes[min_bytes] = self.native.scope(min_bytes, True, -1, parks)
            return self.scopes[min_bytes]


_COMPILED_NODE = "CompiledFunctionBackward"
"""As PyTorch's graphs name a region that torch.compile made."""
_NOTHING_OVERLAPS = (
    "nothing of it can leave while it runs, so that no transfer is hidden behind it. Compile block "
    "by block instead (torch.compile on each layer)."
)
_WITHOUT_ROOM = (
    "A region that is compiled as a whole saves all of its tensors at its end and found no room for"
    f" them: {_NOTHING_OVERLAPS}"
)


def _is_of_compiled(error: BaseException) -> bool:
    """Whether it comes out of the forward pass of a region that torch.compile made."""
    place = error.__traceback__
    while place is not None:
        if "_aot_autograd" in place.tb_frame.f_code.co_filename:
            return True
        place = place.tb_next
    return False


_process = _Process()


def _here() -> _Process:
    """The attachment of this very process: a child of fork() gets a new one."""
    global _process  # noqa: PLW0603
    if _process.pid != os.getpid():
        _process = _Process()
    return _process


class offload(contextlib.ContextDecorator):  # noqa: N801 - it is used as a function
    """While it is open, what autograd saves in this thread goes into the store.

    device_budget: bytes on each device, as an int or "12GiB". With the allocator: of all that
        PyTorch holds in blocks of at least 1 MiB; else of what autograd saves. By default what the
        daemon lets this user have.
    host_budget: the most bytes in host memory. By default what the daemon says.
    socket: the daemon's, by default $RAVENSTORE_SOCKET or the node's.
    embedded: whether a private daemon, started if there is none; "auto": where there is none of the
        node's. See ravenstore.embedded.
    min_bytes: tensors of smaller storages stay. By default 1 MiB with the allocator, else 128 KiB.
    way: "allocator" or "copy" to insist on one; by default the first if it can be had.
    timeout: bounds the attach and every wait for room.

    The backward pass may run at any time, also after the scope is closed. The first scope of a
    process decides on budgets, daemon and way, which hold until the process ends: what differs
    later is an InvalidArgument.

    Errors, on entry: Unavailable without a daemon, InvalidArgument, PermissionDenied, TimedOut;
    Unsupported when `way` cannot be had. In forward: torch.OutOfMemoryError when what is in use
    alone exceeds the budget. In backward: Lost when the daemon has died with what it held.
    """

    def __init__(
        self,
        device_budget: Size | None = None,
        *,
        host_budget: Size | None = None,
        socket: str | os.PathLike[str] | None = None,
        embedded: Embedded = "auto",
        min_bytes: Size | None = None,
        way: Way | None = None,
        timeout: Duration = 30.0,
    ) -> None:
        check_choice(socket, embedded)
        if way not in (None, "allocator", "copy"):
            raise InvalidArgument(f'way is "allocator", "copy" or None, not {way!r}')
        self._device_budget = budget_of(device_budget) if device_budget is not None else 0
        self._host_budget = bytes_of(host_budget) if host_budget is not None else 0
        self._min_bytes = bytes_of(min_bytes) if min_bytes is not None else None
        self._socket = os.fspath(socket) if socket is not None else None
        self._embedded: Embedded = embedded
        self._way: Way | None = way
        self._timeout = timeout
        self._open: list[torch.autograd.graph.saved_tensors_hooks] = []

    def __enter__(self) -> offload:
        import torch

        process = _here()
        if self._embedded is not True and self._socket is None and process.settings is not None:
            path = process.settings.socket
        else:
            budget = self._device_budget or None
            path = socket_for(self._socket, self._embedded, budget=budget, timeout=self._timeout)
        settings = _Settings(path, self._device_budget, self._host_budget, self._way)
        process.attach(settings, self._timeout)
        least = self._min_bytes
        if least is None:
            least = MIN_BLOCK_BYTES if process.way == "allocator" else 128 << 10
        scope = process.scope(least)
        hooks = torch.autograd.graph.saved_tensors_hooks(scope.pack, scope.unpack)
        hooks.__enter__()
        self._open.append(hooks)
        if process.way == "allocator" and isinstance(process.native, ModuleType):
            # An optimizer's first step that failed has left it said.
            process.native.expect_to_stay(False)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.pop().__exit__(kind, error, trace)
        if error is not None:
            _here().saw(error)

    def _recreate_cm(self) -> offload:
        return self


def step() -> None:
    """Says that the next training step begins. Optional: the store takes it that one ends when
    nothing that autograd saved is left. Errors: WrongState before the first offload()."""
    _attached().step()


def _attached() -> ModuleType | _fallback.Module:
    native = _here().native
    if native is None:
        from ravenstore.errors import WrongState

        raise WrongState("there was no ravenstore.offload() in this process yet")
    return native


def is_attached() -> bool:
    """Whether this process had an offload(), whose budgets hold since."""
    return _here().settings is not None


def block_stats(native: ModuleType | _fallback.Module) -> list[dict[str, int]]:
    """The allocator's figures of each device that PyTorch knows; none without the allocator."""
    import torch

    found = (native.block_stats(device) for device in range(max(1, torch.cuda.device_count())))
    return [stats for stats in found if stats is not None]


def max_memory_plain(device: int | torch.device | None = None) -> int:
    """The peak bytes that PyTorch would have had on `device` without offload(), by default on the
    current one: the value of torch.cuda.max_memory_allocated() in a plain run. Under offload() that
    function leaves out saved and parked tensors, on the device or off it.

    It counts from the last torch.cuda.reset_peak_memory_stats(), like PyTorch's figure. On the host
    backend these are the blocks of at least 1 MiB, since the first offload().
    Errors: WrongState before the first offload(); Unsupported where offload() makes copies.
    """
    import torch

    native = _attached()
    on_gpu = _here().backend == "cuda"
    index = device.index if isinstance(device, torch.device) else device
    if index is None:
        index = torch.cuda.current_device() if on_gpu else 0
    blocks = native.block_stats(index)
    if blocks is None:
        raise Unsupported(
            "max_memory_plain() is known with offload()'s allocator alone: with copies of what is "
            "saved PyTorch's figure is that of a run that saves nothing"
        )
    needed: int = blocks["needed_peak"]
    if not on_gpu:
        return needed
    small = torch.cuda.max_memory_allocated(index) - blocks["used_peak"]
    return needed + int(small)


def explain(html: str | os.PathLike[str] | None = None) -> Explanation:
    """What became of the tensors that autograd saved under the scopes of this process so far, and
    why. html: a file into which it is written as a page with diagrams as well. Errors: WrongState
    before the first offload(); Lost, Unavailable when the daemon is gone; OSError where the file
    cannot be written.
    """
    native, process = _attached(), _here()
    with process.lock:
        counts = [scope.stats() for scope in process.scopes.values()]
    store = native.store_stats()
    # A budget is a device's, so that the one with the most in use says how near it is.
    blocks = max(block_stats(native), key=lambda stats: stats["used_peak"], default={})
    kept: dict[str, Tally] = {}
    for count in counts:
        for reason, pair in count["kept"].items():
            kept[reason] = _sum(kept.get(reason, Tally(0, 0)), pair)
    summed = {
        name: _total(count[name] for count in counts)
        for name in ("saved", "deduplicated", "offered")
    }
    explained = Explanation(
        way=process.way,
        why=process.why,
        backend=process.backend,
        device_budget=store["device_budget"],
        saved=summed["saved"],
        shared=summed["deduplicated"],
        kept=dict(sorted(kept.items(), key=lambda item: -item[1].bytes)),
        taken=summed["offered"],
        live_bytes=sum(count["live_bytes"] for count in counts),
        live_bytes_peak=max((count["live_bytes_peak"] for count in counts), default=0),
        bytes_out=store["bytes_out"],
        bytes_in=store["bytes_in"],
        stall_seconds=store["stall_ns"] / 1e9,
        used_bytes=blocks.get("used", 0),
        used_bytes_peak=blocks.get("used_peak", 0),
        plain_bytes_peak=blocks.get("needed_peak", 0),
        advice=_advice(process, counts, summed, kept, store, blocks),
    )
    if html is not None:
        pathlib.Path(html).write_text(page(explained), encoding="utf-8")
    return explained


def _sum(tally: Tally, pair: tuple[int, int]) -> Tally:
    return Tally(tally.tensors + pair[0], tally.bytes + pair[1])


def _total(pairs: Iterator[tuple[int, int]]) -> Tally:
    total = Tally(0, 0)
    for pair in pairs:
        total = _sum(total, pair)
    return total


def _advice(
    process: _Process,
    counts: list[dict[str, Any]],
    summed: dict[str, Tally],
    kept: dict[str, Tally],
    store: dict[str, int],
    blocks: dict[str, int],
) -> tuple[str, ...]:
    words = []
    peak = max((count["live_bytes_peak"] for count in counts), default=0)
    readers = (count["largest_reader"] for count in counts)
    reader, size = max(readers, key=lambda pair: pair[1], default=("", 0))
    if reader == _COMPILED_NODE and size > peak / 2:
        words.append(
            f"one region that is compiled as a whole saves {size_text(min(size, peak))} at its end"
            f" and wants all of them back at once: {_NOTHING_OVERLAPS}"
        )
    elif process.compiled_without_room:
        words.append(_WITHOUT_ROOM)
    foreign = kept.get("not the store's memory")
    if foreign is not None and foreign.bytes > summed["saved"].bytes / 4:
        words.append(
            f"{size_text(foreign.bytes)} of what was saved lies in memory that PyTorch had before"
            " the first offload(): open the scope before the batch is made, or once earlier."
        )
    budget = store["device_budget"]
    if blocks and blocks["used_peak"] > budget * 0.95:
        words.append(
            f"the peak of {size_text(blocks['used_peak'])} is what the program holds at once, which"
            " no offloading lowers: smaller batches, checkpointing, or states kept away"
            " (ravenstore.offload_optimizer) do."
        )
    return tuple(words)

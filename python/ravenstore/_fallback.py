"""The copies of offload() for a PyTorch that the native part was not compiled for: hooks in Python.

What autograd saves is copied into the store when it is saved and read from there. The rules of what
stays are those of client/torch_saved.h, and so are the counts. Slower than the native part: some
tens of microseconds for each tensor.

Threads: any.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import re
import threading
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from ravenstore import store as _store
from ravenstore.errors import OutOfMemory, RavenstoreError, TimedOut

if TYPE_CHECKING:
    import torch

_SECOND_ROUND = 1 << 50
"""Order of what was read already: a graph that reads it once more (retain_graph) does so later."""


class Module:
    """Stands in for the native part's functions that offload.py calls; see python/native."""

    def __init__(self) -> None:
        self._connected: _store.Store | None = None

    @property
    def _store(self) -> _store.Store:
        assert self._connected is not None
        return self._connected

    def connect(
        self, socket: str, name: str | None, device_budget: int, host_budget: int, timeout_ns: int
    ) -> str:
        """Attaches; the backend. Errors: those of Store.connect()."""
        self._connected = _store.Store.connect(
            socket=socket,
            name=name,
            device_budget=device_budget,
            host_budget=host_budget,
            timeout=timeout_ns / 1e9,
        )
        return self._connected.backend

    def scope(self, min_bytes: int, hints: bool, _torch_bytes: int, _parks: bool) -> Scope:
        """A scope that copies all that it may take."""
        return Scope(self._store, min_bytes, hints)

    def store_stats(self) -> dict[str, int]:
        """Store.stats() as a dict."""
        return dataclasses.asdict(self._store.stats())

    def block_stats(self, _device: int) -> None:
        """There are no blocks."""

    def step(self) -> None:
        """Store.step()."""
        self._store.step()


class _Bytes:
    """The bytes of one storage, or of a part of it, in the store; freed with the last that needs
    them."""

    def __init__(self, scope: Scope, tensor: _store.Tensor, begin: int, order: int) -> None:
        self.tensor = tensor
        self.begin = begin
        self.size = tensor.size
        self.orders = [order]
        self.first_order = order
        scope.add_live(self.size)
        weakref.finalize(self, _release, scope, tensor).atexit = False  # type: ignore[misc]

    def next_order(self) -> int:
        return self.orders[-1] if self.orders else _SECOND_ROUND + self.first_order


def _release(scope: Scope, tensor: _store.Tensor) -> None:
    tensor.free()
    scope.add_live(-tensor.size)


@dataclasses.dataclass
class _Saved:
    """What stands in a graph for one saved tensor."""

    kept: torch.Tensor | None
    """The tensor itself, without its place in the graph, if it stays."""
    counter: torch.Tensor | None
    """Shares the tensor's version counter, and has no bytes."""
    version: int
    what: str
    bytes: _Bytes | None = None
    dtype: torch.dtype | None = None
    sizes: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    offset: int = 0
    """Elements from the beginning of `bytes`."""


class _Entry(NamedTuple):
    """What was saved of a tensor and its views, which share its version counter."""

    base: weakref.ref[torch.Tensor]
    address: int
    version: int
    bytes: weakref.ref[_Bytes]


class Scope:
    """The hooks of one offload(), and their counts."""

    def __init__(self, store: _store.Store, min_bytes: int, hints: bool) -> None:
        self._store = store
        self._min_bytes = min_bytes
        self._owner = os.getpid()
        self._hints = hints
        self._lock = threading.RLock()  # a finalizer may run inside of what holds it
        self._order = 0
        self._known: dict[int, list[_Entry]] = {}
        self._counts = {name: [0, 0] for name in ("saved", "deduplicated", "offered")}
        self._kept: dict[str, list[int]] = {}
        self._live = self._live_peak = 0
        self._reader = (0, 0)  # the last node that asked, and the bytes that it has
        self._largest_reader = ("", 0)

    def pack(self, tensor: torch.Tensor) -> _Saved:
        """The hook that autograd calls to save. Errors: torch.OutOfMemoryError, Lost."""
        plain = tensor.detach()
        size = _size_of(tensor)
        counter, version = _counter_of(plain)
        what = f"[{tensor.type()} {list(tensor.shape)}]"
        if tensor.grad_fn is not None:
            what += f", which is output {tensor.output_nr} of {_name_in_errors(tensor.grad_fn)},"
        reason = self._keeps(tensor)
        if reason is not None:
            self._count(self._kept.setdefault(reason, [0, 0]), size)
            self._count(self._counts["saved"], size)
            return _Saved(plain, counter, version, what)
        held = self._find(tensor, version)
        if held is None:
            held = self._adopt(tensor, version)
            self._count(self._counts["offered"], size)
        else:
            self._count(self._counts["deduplicated"], size)
            held.orders.append(self._next_order())
        self._count(self._counts["saved"], size)
        offset = tensor.storage_offset() - held.begin // tensor.element_size()
        return _Saved(None, counter, version, what, held, tensor.dtype,
                      tuple(tensor.shape), tensor.stride(), offset)  # fmt: skip

    def unpack(self, saved: _Saved) -> torch.Tensor:
        """The other hook. Errors: RuntimeError, in PyTorch's words, when the tensor was changed in
        place since; Lost, torch.OutOfMemoryError."""
        import torch

        if saved.counter is not None and saved.counter._version != saved.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: {saved.what} is at version {saved.counter._version}; expected "
                f"version {saved.version} instead. Hint: enable anomaly detection to find the "
                "operation that failed to compute its gradient, with "
                f"torch.autograd.set_detect_anomaly({_detect_anomaly_arguments()})."
            )
        if saved.kept is not None:
            return saved.kept
        held = saved.bytes
        assert held is not None and saved.dtype is not None
        self._count_read(math.prod(saved.sizes) * saved.dtype.itemsize)
        with self._lock:
            if held.orders:
                held.orders.pop()
        self._store.check(device=held.tensor.device)
        view = self._worded(held.tensor.get)
        flat = view.torch()
        # When the last array is gone; what backward wrote into it is not what was saved.
        view.put(order=held.next_order() if self._hints else None)
        flat = flat[: flat.numel() // saved.dtype.itemsize * saved.dtype.itemsize]
        with torch.no_grad():
            tensor = flat.view(saved.dtype).as_strided(saved.sizes, saved.strides, saved.offset)
            if saved.counter is None:
                return tensor
            # With the saved one's counter: a change of it is one of the tensor that was saved.
            counted = saved.counter.detach()
            counted.data = tensor
            return counted

    def stats(self) -> dict[str, Any]:
        """Counts since the scope was made, as the native part's."""
        with self._lock:
            return {
                **{name: tuple(pair) for name, pair in self._counts.items()},
                "live_bytes": self._live,
                "live_bytes_peak": self._live_peak,
                "largest_reader": self._largest_reader,
                "kept": {reason: tuple(pair) for reason, pair in self._kept.items()},
            }

    def add_live(self, size: int) -> None:
        """`size` more bytes are needed, or fewer."""
        with self._lock:
            self._live += size
            self._live_peak = max(self._live_peak, self._live)
            ended = size < 0 and self._live == 0
        if ended:
            with contextlib.suppress(RavenstoreError):  # the next save says so
                self._store.step()

    def _count(self, pair: list[int], size: int) -> None:
        with self._lock:
            pair[0] += 1
            pair[1] += size

    def _count_read(self, size: int) -> None:
        """Counts what one node of the graph asks for. A region that is compiled as a whole is one
        node."""
        import torch

        node = torch._C._current_autograd_node()
        if node is None:  # a program looks at a graph by itself
            return
        with self._lock:
            number = node._sequence_nr()
            size += self._reader[1] if self._reader[0] == number else 0
            self._reader = (number, size)
            if size > self._largest_reader[1]:
                self._largest_reader = (node.name(), size)

    def _next_order(self) -> int:
        with self._lock:
            self._order -= 1
            return self._order

    def _keeps(self, tensor: torch.Tensor) -> str | None:
        """Why it stays in PyTorch's memory; None if it need not."""
        import torch

        if os.getpid() != self._owner:
            return "a forked child"
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor) or (
            torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Python)
        ):
            return "subclass"
        if (
            tensor.layout != torch.strided
            or tensor.is_quantized
            or tensor.is_nested
            or tensor.is_conj()
            or tensor.is_neg()
            or _has_names(tensor)
        ):
            return "not plain memory"
        if tensor.device.type != ("cuda" if self._store.backend == "cuda" else "cpu"):
            return "other device"
        if tensor.numel() == 0 or tensor.untyped_storage().data_ptr() == 0:
            return "empty"
        if tensor.untyped_storage().nbytes() < self._min_bytes:
            return "small"
        base = tensor._base if tensor._base is not None else tensor
        if isinstance(base, torch.nn.Parameter) or (base.is_leaf and base.requires_grad):
            return "parameter"
        return None

    def _find(self, tensor: torch.Tensor, version: int) -> _Bytes | None:
        """What holds the same bytes already."""
        base = tensor._base if tensor._base is not None else tensor
        begin, end = _span(tensor)
        address = tensor.untyped_storage().data_ptr()
        with self._lock:
            entries = [entry for entry in self._known.get(id(base), []) if entry.base() is base]
            if not entries:
                self._known.pop(id(base), None)
            for entry in entries:
                held = entry.bytes()
                if held is None or (entry.address, entry.version) != (address, version):
                    continue
                if held.begin <= begin and end <= held.begin + held.size:
                    return held
        return None

    def _remember(self, tensor: torch.Tensor, version: int, held: _Bytes) -> None:
        base = tensor._base if tensor._base is not None else tensor
        known = self._known
        key = id(base)
        address = tensor.untyped_storage().data_ptr()
        entry = _Entry(weakref.ref(base), address, version, weakref.ref(held))
        with self._lock:
            entries = [one for one in known.get(key, []) if one.base() is base and one.bytes()]
            known[key] = [*entries, entry]
        weakref.finalize(held, _forget, known, key, entry).atexit = False  # type: ignore[misc]

    def _adopt(self, tensor: torch.Tensor, version: int) -> _Bytes:
        import torch

        storage = tensor.untyped_storage()
        begin, end = _span(tensor)
        if (end - begin) * 2 >= storage.nbytes():
            begin, end = 0, storage.nbytes()
        else:
            begin = begin // 512 * 512  # keeps the address's alignment
        raw = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        with torch.no_grad():
            raw.set_(storage, begin, (end - begin,))
        order = self._next_order()
        stored = self._worded(lambda: self._store.adopt(raw))
        stored.put(order=order if self._hints else None)
        held = _Bytes(self, stored, begin, order)
        self._remember(tensor, version, held)
        return held

    def _worded(self, call: Any) -> Any:
        """`call`'s result; want of room as PyTorch says it, so that who catches that does here."""
        import torch

        try:
            return call()
        except (OutOfMemory, TimedOut) as error:
            where = "CPU" if self._store.backend == "host" else "CUDA"
            raise torch.OutOfMemoryError(f"{where} out of memory. {error.message}") from None


def _forget(known: dict[int, list[_Entry]], key: int, entry: _Entry) -> None:
    left = [one for one in known.get(key, []) if one is not entry]
    if left:
        known[key] = left
    else:
        known.pop(key, None)


def _has_names(tensor: torch.Tensor) -> bool:
    """Whether its dimensions have names, which PyTorch 2.13 removed."""
    return hasattr(tensor, "has_names") and tensor.has_names()


def _detect_anomaly_arguments() -> str:
    """What PyTorch's own error about a changed tensor advises."""
    return "True, check_nan=False" if _torch_minor() >= (2, 11) else "True"


def _name_in_errors(node: Any) -> str:
    """A node of a graph as PyTorch's own errors name it."""
    name: str = node.name()
    return re.sub(r"Backward\d*$", "", name) if _torch_minor() >= (2, 13) else name


@functools.cache
def _torch_minor() -> tuple[int, int]:
    import torch

    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def _counter_of(plain: torch.Tensor) -> tuple[torch.Tensor | None, int]:
    """A tensor without bytes that shares the version counter of `plain`, and the version."""
    import torch

    if plain.is_inference():
        return None, 0
    counter = plain.detach()
    if type(counter) is torch.Tensor and counter.layout == torch.strided:
        counter.data = torch.empty(0, dtype=counter.dtype, device=counter.device)
    return counter, plain._version


def _size_of(tensor: torch.Tensor) -> int:
    import torch

    return tensor.numel() * tensor.element_size() if tensor.layout == torch.strided else 0


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """What of its storage a tensor touches, in bytes."""
    first = tensor.storage_offset()
    last = first + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return first * tensor.element_size(), (last + 1) * tensor.element_size()

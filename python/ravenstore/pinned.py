"""Pinned host memory from the node's pool, as torch tensors.

    batch = ravenstore.pinned_empty((256, 3, 224, 224), torch.float32)
    batch.to("cuda", non_blocking=True)

    with ravenstore.patch_dataloader():    # a DataLoader's pin thread takes it from there, too
        for images, labels in loader: ...

A block takes its size rounded up to 4 KiB, not to a power of two. All processes of a user share
what any of them freed: it is pinned once and warm for the next. It is on the NUMA node of the
device, and counts in the daemon's ledger (ravenctl clients) and in the user's host budget.

Owns: a tensor and its views keep their block; it is freed when the last of them is gone. The store
    stays attached until then, also if it is closed.
Streams: a freed block's bytes are used again, by any process of the user, only once all work is
    done that this process had enqueued by then on any stream of any of its devices. So a tensor may
    be dropped right after a copy with non_blocking=True.
Threads: any; the GIL is not held while a call waits.
Errors: ravenstore.OutOfMemory, also a MemoryError: "pinned memory is exhausted", and who holds it.
Fork: a child of fork() must not touch its parent's pinned tensors; its own come from a store of its
    own.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from ctypes import byref, c_void_p
from typing import TYPE_CHECKING, Any

from ravenstore import _abi, _arrays
from ravenstore._units import Duration, nanoseconds_of
from ravenstore.errors import Capturing, InvalidArgument, IsForked, Lost, check
from ravenstore.store import Store

if TYPE_CHECKING:
    import torch

_lock = threading.Lock()
_own: tuple[int, Store] | None = None  # this process's own store, with its pid


def _renew_lock() -> None:
    global _lock  # noqa: PLW0603 - a child of fork() has no thread that could release it
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def _own_store() -> Store:
    """The store that this process's blocks come from unless it names one. Never closed."""
    global _own  # noqa: PLW0603 - one a process
    with _lock:
        if _own is None or _own[0] != os.getpid():
            _own = (os.getpid(), Store.connect(name=f"pinned memory of {os.getpid()}"))
        return _own[1]


class _Block:
    """One block, from its allocation until the last array over it is gone; torch.from_dlpack takes
    it."""

    def __init__(self, store: Store, size: int, device: int, timeout: Duration | None) -> None:
        options = _abi.PinnedOptions(device=device, timeout_ns=nanoseconds_of(timeout or 0))
        address = c_void_p()
        pointer = store._usable()
        check(_abi.library().ravenstore_pinned_alloc(pointer, size, options, byref(address)))
        assert address.value is not None
        self.address: int = address.value
        self.size = size
        gate = _arrays.Gate()
        self._exported: _arrays.Exported | None = _arrays.Exported(self, (gate, store._gate))

        def free(address: int = self.address) -> None:
            # During a capture it comes back with a later block; with the daemon it is gone.
            with contextlib.suppress(Capturing, IsForked, Lost):
                check(_abi.library().ravenstore_pinned_free(pointer, address, None, 0))

        gate.close(free)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_arrays.CPU, 0)

    def __dlpack__(self, **_: Any) -> object:
        exported, self._exported = self._exported, None  # the array's from here on
        assert exported is not None, "one array takes the block"
        return _arrays.capsule_of(exported, self.address, self.size, (_arrays.CPU, 0))


def _device_number(device: int | str | torch.device | None) -> int:
    import torch

    if isinstance(device, int):
        return device
    index = None if device is None else torch.device(device).index
    if index is not None:
        return index
    return torch.cuda.current_device() if torch.cuda.is_initialized() else 0


def pinned_empty(
    shape: int | Sequence[int],
    dtype: torch.dtype | None = None,
    *,
    device: int | str | torch.device | None = None,
    store: Store | None = None,
    timeout: Duration | None = None,
) -> torch.Tensor:
    """A contiguous CPU tensor in pinned memory; its values are undefined.

    dtype: torch's default one unless said otherwise.
    device: the memory is on the NUMA node that it is nearest to; by default the current one.
    store: which attachment's budget it counts in; by default the process's own, made at the first
        call, at $RAVENSTORE_SOCKET or the node's daemon.
    timeout: how long to wait, at most, for memory that is on its way; by default the store's.
    Errors: OutOfMemory, TimedOut, Lost, InvalidArgument, those of Store.connect.
    """
    import torch

    sizes = (shape,) if isinstance(shape, int) else tuple(int(size) for size in shape)
    if any(size < 0 for size in sizes):
        raise InvalidArgument(f"a shape with a negative size: {sizes}")
    kind = torch.get_default_dtype() if dtype is None else dtype
    size = math.prod(sizes) * kind.itemsize
    if size == 0:
        return torch.empty(sizes, dtype=kind)
    block = _Block(store or _own_store(), size, _device_number(device), timeout)
    return torch.from_dlpack(block).view(kind).reshape(sizes)


def _pin_tensor(tensor: torch.Tensor, store: Store | None) -> torch.Tensor:
    import torch

    plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided
    lazy = plain and (tensor.is_conj() or tensor.is_neg())
    if not plain or lazy or tensor.device.type != "cpu" or tensor.requires_grad:
        return tensor.pin_memory()
    if tensor.numel() == 0 or (torch.cuda.is_available() and tensor.is_pinned()):
        return tensor
    pinned = pinned_empty(tensor.numel(), tensor.dtype, store=store)
    dense = torch.ops.aten.is_non_overlapping_and_dense(tensor)
    strides = tensor.stride() if dense else torch.empty(tensor.shape, device="meta").stride()
    return pinned.as_strided(tensor.shape, strides).copy_(tensor)


def pin_memory(batch: Any, *, store: Store | None = None) -> Any:
    """`batch` with every CPU tensor in it copied to pinned memory: tensors, and mappings and
    sequences of them. What has a pin_memory() of its own keeps it; all else is returned as it is.
    """
    import torch

    if isinstance(batch, torch.Tensor):
        return _pin_tensor(batch, store)
    if hasattr(batch, "pin_memory"):
        return batch.pin_memory()
    if isinstance(batch, Mapping):
        return {key: pin_memory(value, store=store) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(pin_memory(value, store=store) for value in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(pin_memory(value, store=store) for value in batch)
    return batch


@contextlib.contextmanager
def patch_dataloader(store: Store | None = None) -> Iterator[None]:
    """Inside, DataLoaders with pin_memory=True get their pinned memory from the node's pool: the
    pin thread of those with workers, and the iterator of those without.

    It replaces what PyTorch's pin thread calls for a tensor, in the whole process. A loader that is
    iterated inside is meant; one that still runs at the end goes on with PyTorch's own.
    """
    import torch.utils.data._utils.pin_memory as of_torch

    original = of_torch.pin_memory

    def pin(data: Any, device: Any = None) -> Any:
        # For containers PyTorch's own comes back here with each of their elements.
        if isinstance(data, of_torch.torch.Tensor):
            return _pin_tensor(data, store)
        return original(data, device)

    of_torch.pin_memory = pin
    try:
        yield
    finally:
        of_torch.pin_memory = original

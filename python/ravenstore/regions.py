"""Memory that sleeps: what PyTorch allocates within a region leaves the GPU, and comes back.

    with ravenstore.region("weights"):
        model = build().cuda()
    with ravenstore.region("cache"):
        cache = torch.empty(16 << 30, dtype=torch.uint8, device="cuda")

    ravenstore.sleep("weights")                  # its GPU memory is others' now
    ravenstore.sleep("cache", keep="nothing")    # nothing is copied
    ...
    ravenstore.wake("weights", "cache")          # at the same addresses

Within a region PyTorch's caching allocator has a memory pool of the tag's, whose memory is the
store's. Addresses stay, so that tensors, views, raw pointers and captured graphs are valid again
after the wake. `capture_graph(graph, "weights")` captures a graph whose own memory is the tag's.

While a tag sleeps, a kernel that reads its tensors ends with an illegal address: the GPU has no
memory there. On the host backend the process would end by a signal.

What registers memory with others (RDMA, NVSHMEM, NCCL's registered buffers) keeps addresses of
physical memory, which the store cannot see: call `stay(tensor)`. Its tag does not sleep then.

Owns: a tag's memory belongs to its tensors; a tag stays for the life of the process.
Streams: sleep waits for all work of the devices on which the tag has memory.
Threads: any. Errors: ravenstore's (WrongState, TimedOut, OutOfMemory, NotFound), in words.
Fork: a child has no tag.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import threading
from collections.abc import Iterator
from ctypes import byref, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any, Literal

from ravenstore import _abi, _native
from ravenstore._units import Duration, nanoseconds_of
from ravenstore.embedded import default_socket, socket_for
from ravenstore.errors import Capturing, InvalidArgument, NotFound, WrongState, check
from ravenstore.store import Store

if TYPE_CHECKING:
    import torch

Keep = Literal["bytes", "nothing"]


@dataclasses.dataclass(frozen=True)
class Tag:
    """What a tag has now."""

    bytes: int
    """Of its allocations, as PyTorch's allocator asked for them."""
    allocations: int
    asleep: bool


class _Region:
    """One tag's memory."""

    def __init__(self, tag: str) -> None:
        socket = os.fsencode(socket_for(None, "auto"))
        options = _abi.ConnectOptions(socket=socket, name=tag.encode())
        handle = c_void_p()
        check(_abi.library().ravenstore_region_open(options, byref(handle)))
        self.handle = handle
        self.pools: dict[int, Any] = {}  # PyTorch's, by device: it is asked for what is in none
        self.graph_pools: dict[Any, Any] = {}

    def info(self) -> _abi.RegionInfo:
        info = _abi.RegionInfo()
        check(_abi.library().ravenstore_region_get_info(self.handle, byref(info)))
        return info

    def take_orders(self, job: bytes, run: int) -> None:
        check(_abi.library().ravenstore_region_take_orders(self.handle, job, run))

    def memory_pool(self) -> Any:
        """PyTorch's pool on the current device, whose memory the region gives."""
        import torch

        device = torch.cuda.current_device()
        if device not in self.pools:
            self.pools[device] = torch.cuda.MemPool(_allocator().allocator())
        return self.pools[device]

    def release_free_blocks(self) -> None:
        """What PyTorch keeps for the next tensors goes back. It does not do so for a pool in use,
        so the next tensors have another one; tensors that are there stay where they are."""
        self.pools = {}

    def graph_pool(self, shared: Any) -> Any:
        """A pool for what a capture allocates. Not that of tensors: a replay writes to memory that
        was freed within the capture. `shared`: of a pool that other graphs have; None: of none.
        """
        import torch

        # The memory of graphs that are gone: a pool has one more use for each that has it.
        self.graph_pools = {k: pool for k, pool in self.graph_pools.items() if pool.use_count() > 1}
        key = object() if shared is None else getattr(shared, "id", shared)
        for name, pool in self.graph_pools.items():
            if key in (name, pool.id):
                return pool
        self.graph_pools[key] = torch.cuda.MemPool(_allocator().allocator())
        return self.graph_pools[key]


@functools.cache
def _allocator() -> Any:
    """Of all pools, which do not keep it alive themselves."""
    import torch

    return torch.cuda.memory.CUDAPluggableAllocator(
        _abi.library()._name, "ravenstore_region_alloc", "ravenstore_region_free"
    )


class _PoolUse(contextlib.ExitStack):
    """This thread's use of one of PyTorch's pools, which it may leave and enter again."""

    def __init__(self, pool: Any, device: int) -> None:
        super().__init__()
        self.pool = pool
        self.device = device

    def enter(self) -> None:
        import torch

        if self.pool is not None:
            self.enter_context(torch.cuda.use_mem_pool(self.pool, self.device))


class _Within(threading.local):
    use: _PoolUse | None = None


_lock = threading.Lock()
_regions: dict[str, _Region] = {}
_backend: str | None = None
_takes_orders: tuple[bytes, int] | None = None  # as which job, and which run of it


def _forget() -> None:
    global _lock, _takes_orders  # noqa: PLW0603 - a child has no thread that could release it
    _lock = threading.Lock()
    _takes_orders = None
    _regions.clear()


os.register_at_fork(after_in_child=_forget)


def _is_simulated() -> bool:
    global _backend  # noqa: PLW0603 - one daemon a process
    if _backend is None:
        with Store.connect(name="regions") as store:
            _backend = store.backend
    return _backend == "host"


def _region_of(tag: str) -> _Region:
    with _lock:
        found = _regions.get(tag)
        if found is None:
            known = ", ".join(map(repr, _regions)) or "none"
            raise NotFound(f"there is no region {tag!r}; this process has {known}")
        return found


def _open(tag: str) -> _Region:
    with _lock:
        if tag not in _regions:
            if _is_simulated():
                _native.load().serve_cpu_regions()
            _regions[tag] = _Region(tag)
            if _takes_orders is not None:
                _regions[tag].take_orders(*_takes_orders)
        return _regions[tag]


def opened() -> list[_Region]:
    with _lock:
        return list(_regions.values())


def takes_orders() -> bool:
    return _takes_orders is not None


def take_orders(job: bytes, run: int) -> None:
    """All tags do, those made later as well. See ravenstore/orders.py."""
    global _takes_orders  # noqa: PLW0603 - it is so for all tags
    with _lock:
        for each in _regions.values():
            each.take_orders(job, run)
        _takes_orders = (job, run)


_within = _Within()


@contextlib.contextmanager
def _entered(region: _Region | None) -> Iterator[None]:
    library = _abi.library()
    before = library.ravenstore_region_enter(region.handle if region else None)
    try:
        yield
    finally:
        library.ravenstore_region_enter(before)


@contextlib.contextmanager
def _in_pool(pool: Any) -> Iterator[None]:
    """This thread allocates from the pool; None: from PyTorch's own. PyTorch up to 2.10 takes the
    outer one of nested pools, so the thread leaves that meanwhile."""
    import torch

    outer = _within.use
    if outer is not None:
        outer.close()
    try:
        with _PoolUse(pool, torch.cuda.current_device()) as use:
            use.enter()
            _within.use = use
            yield
    finally:
        _within.use = outer
        if outer is not None:
            outer.enter()


@contextlib.contextmanager
def region(tag: str | None) -> Iterator[None]:
    """PyTorch's GPU memory that this thread allocates within is the tag's. The tag is made at the
    first use, at $RAVENSTORE_SOCKET or the node's daemon. Regions may be nested: the inner one
    counts. Within `region(None)` memory is of no tag.

    Errors: WrongState, while the tag sleeps; InvalidArgument; those of Store.connect.
    """
    of_tag = None if tag is None else _awake(tag)
    with contextlib.ExitStack() as entered:
        entered.enter_context(_entered(of_tag))
        if of_tag is None:
            if _within.use is not None:
                entered.enter_context(_in_pool(None))
        elif not _is_simulated():
            entered.enter_context(_in_pool(of_tag.memory_pool()))
        yield


def _awake(tag: str) -> _Region:
    if not tag or "/" in tag:
        raise InvalidArgument(f"a tag is a word without '/', not {tag!r}")
    of_tag = _open(tag)
    if of_tag.info().asleep:
        raise WrongState(f"{tag!r} is asleep: wake it before more is allocated there")
    return of_tag


@contextlib.contextmanager
def capture_graph(
    graph: torch.cuda.CUDAGraph, tag: str, *, pool: Any = None, **options: Any
) -> Iterator[None]:
    """As `torch.cuda.graph(graph, pool, **options)`; what the capture allocates is the tag's. Not
    within `region`, whose memory pool is filled meanwhile. Graphs of one tag that are captured with
    the same `pool` share memory. Errors: as region."""
    import torch

    of_tag = _awake(tag)
    with _entered(of_tag), torch.cuda.graph(graph, of_tag.graph_pool(pool).id, **options):
        yield


def is_capturing() -> bool:
    if _is_simulated():
        return False
    import torch

    return torch.cuda.is_current_stream_capturing()


def synchronize(devices: int) -> None:
    if _is_simulated():
        return
    import torch

    if is_capturing():
        raise Capturing("a stream is being captured: end the capture before a sleep or a wake")
    for device in range(devices.bit_length()):
        if devices >> device & 1:
            torch.cuda.synchronize(device)


def sleep(
    *tags: str,
    keep: Keep = "bytes",
    unchanged: bool = False,
    timeout: Duration | None = None,
    job: str | None = None,
) -> int:
    """The tags' tensors leave their devices, whose memory goes back to the driver. Returns how many
    bytes that were. Waits for the work of these devices, and until the memory is gone.

    keep: "nothing": the bytes are undefined after the wake, and nothing is copied.
    unchanged: nothing was written since the last wake: what was copied then is kept.
    timeout: of each tag, by default 30 s.
    job: the tags are those of other processes, of all that belong to that job: see `sleep_point`.
        Its name, the number of the process with which it began (ravenrun, torchrun), or that of one
        of its clients in ravenctl. Without tags all of its memory is meant, of a job under ravenrun
        --mode elastic as well. All processes have done it, or none.
    Errors: NotFound; WrongState (it sleeps already, or one of its tensors stays); TimedOut: there
        is no room for the copies, for instance. A tag of which that is said is awake, and so are
        those after it; those before it sleep. With a job, which process failed and why: Lost if it
        has ended, TimedOut if it did not come to a point where it may sleep.
    """
    if keep not in ("bytes", "nothing"):
        raise InvalidArgument(f"keep is 'bytes' or 'nothing', not {keep!r}")
    if unchanged and keep == "nothing":
        raise InvalidArgument("unchanged=True keeps bytes, and keep='nothing' does not")
    flags = _abi.RegionSleepFlag.KEEP_NOTHING if keep == "nothing" else 0
    if job is not None:
        if unchanged:
            raise InvalidArgument("unchanged=True is for this process's tags, not for a job's")
        return _order(job, tags, flags, timeout)
    flags |= _abi.RegionSleepFlag.UNCHANGED if unchanged else 0
    returned = 0
    for each in [_region_of(tag) for tag in tags]:
        synchronize(each.info().devices)
        each.release_free_blocks()
        bytes_ = c_uint64()
        check(
            _abi.library().ravenstore_region_sleep(
                each.handle, flags, nanoseconds_of(timeout or 0), byref(bytes_)
            )
        )
        returned += bytes_.value
    return returned


def wake(
    *tags: str,
    blocking: bool = True,
    in_order: bool = False,
    timeout: Duration | None = None,
    job: str | None = None,
) -> None:
    """The tags' tensors are where they were, in the order of the tags. No error if one is awake.

    blocking: returns when the bytes are there. Else only later work on the current stream has
        them.
    in_order: returns before. The tensors come in the order of their addresses, and none may be used
        before `wait_for(tensor)`. Another wake of the tag waits for all.
    timeout: of each tag, by default 30 s.
    job: as in sleep.
    Errors: NotFound; OutOfMemory or TimedOut without room, with the clients that hold it. That tag
        sleeps on, as do those after it; those before it are awake. They may be woken again.
    """
    if job is not None:
        if in_order or not blocking:
            raise InvalidArgument("a job's tags are woken as by blocking=True")
        _order(job, tags, _abi.OrderFlag.ORDER_WAKE, timeout)
        return
    flags = 0 if blocking else _abi.RegionWakeFlag.DO_NOT_WAIT
    flags |= _abi.RegionWakeFlag.IN_ORDER if in_order else 0
    for each in [_region_of(tag) for tag in tags]:
        synchronize(0)
        check(
            _abi.library().ravenstore_region_wake(
                each.handle, flags, nanoseconds_of(timeout or 0), _current_stream()
            )
        )


def wait_for(*tensors: torch.Tensor, timeout: Duration | None = None) -> None:
    """Later work on the current stream has the bytes of these tensors, whose tags were woken with
    `in_order`. Errors: NotFound for one that is no region's; WrongState if its tag sleeps;
    OutOfMemory or TimedOut without room: it may be called again, or the tag put to sleep."""
    for tensor in tensors:
        check(
            _abi.library().ravenstore_region_await(
                tensor.untyped_storage().data_ptr(),
                _current_stream(),
                nanoseconds_of(timeout or 0),
            )
        )


@contextlib.contextmanager
def wait_in_forward(module: torch.nn.Module) -> Iterator[None]:
    """Within, each of the module's parts waits for its own parameters and buffers before its
    forward. All of them are in regions. The bytes of the last parts come while the first ones
    compute."""

    def wait(part: torch.nn.Module, _: object) -> None:
        wait_for(*part.parameters(recurse=False), *part.buffers(recurse=False))

    with contextlib.ExitStack() as hooks:
        for part in module.modules():
            hooks.callback(part.register_forward_pre_hook(wait).remove)
        yield


def _order(job: str, tags: tuple[str, ...], flags: int, timeout: Duration | None) -> int:
    """To the job's processes; without tags for all of its memory. How many bytes went back."""
    returned = 0
    encoded: list[bytes | None] = [tag.encode() for tag in tags]
    for tag in encoded or [None]:
        bytes_ = c_uint64()
        check(
            _abi.library().ravenstore_order_job(
                os.fsencode(default_socket()),
                job.encode(),
                tag,
                flags,
                nanoseconds_of(timeout or 0),
                byref(bytes_),
            )
        )
        returned += bytes_.value
    return returned


def _current_stream() -> int | None:
    if _is_simulated():
        return None
    import torch

    return torch.cuda.current_stream().cuda_stream


def tags() -> dict[str, Tag]:
    """This process's tags."""
    with _lock:
        regions = dict(_regions)
    made = {tag: region.info() for tag, region in regions.items()}
    return {
        tag: Tag(bytes=info.bytes, allocations=info.allocations, asleep=bool(info.asleep))
        for tag, info in made.items()
    }


def read_asleep(tensor: torch.Tensor, *, timeout: Duration | None = None) -> torch.Tensor:
    """A copy on the CPU of a tensor whose tag sleeps. Meanwhile the GPU needs room for the block of
    PyTorch's in which the tensor is, and no work may allocate there. Errors: NotFound if it is no
    region's, or if its tag sleeps without its bytes; WrongState if it is awake; as wake."""
    import torch

    if not tensor.is_contiguous():
        raise InvalidArgument("only the bytes of a contiguous tensor can be read")
    with _entered(None):
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    check(
        _abi.library().ravenstore_region_read(
            tensor.data_ptr(), copy.nbytes, copy.data_ptr(), nanoseconds_of(timeout or 0)
        )
    )
    return copy


def detect_asleep() -> contextlib.AbstractContextManager[Any]:
    """Within, an operation of PyTorch's on a tensor whose tag sleeps raises WrongState, which names
    the operation and the tag. For debugging: each operation takes some microseconds more. Replays
    of graphs and kernels that are launched past PyTorch are not seen."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Detector(TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, _types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if not function.is_view:
                for each in tree_leaves((args, kwargs)):
                    if isinstance(each, torch.Tensor):
                        _refuse_if_asleep(each, function)
            return function(*args, **(kwargs or {}))

    return Detector()


def _refuse_if_asleep(tensor: torch.Tensor, function: object) -> None:
    import torch

    if tensor.numel() == 0 or not torch._C._has_storage(tensor):
        return
    handle = _abi.library().ravenstore_region_of(tensor.untyped_storage().data_ptr())
    for tag, each in list(_regions.items()):
        if each.handle.value == handle and each.info().asleep:
            raise WrongState(
                f"{function} uses a tensor of shape {tuple(tensor.shape)}, whose tag {tag!r} is"
                " asleep: wake it first"
            )


def stay(tensor: torch.Tensor, stays: bool = True) -> None:
    """The physical memory beneath the tensor, which was allocated in a region, stays there: for
    network cards and libraries that have registered it. Its tag does not sleep until
    `stay(tensor, False)`. Errors: NotFound if it is no region's; WrongState while the tag sleeps.
    """
    address = tensor.untyped_storage().data_ptr()
    check(_abi.library().ravenstore_region_keep_in_place(address, int(stays)))

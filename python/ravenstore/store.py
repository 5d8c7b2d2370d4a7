"""The explicit interface: a Store of tensors that may leave the device while not in use.

    with ravenstore.Store.connect(device_budget="12GiB") as store:
        tensor = store.create("1GiB", name="cache")      # in Userspace: its bytes can be used
        tensor.torch(torch.float32).zero_()
        tensor.put()                                     # in Ravenspace: it may leave the device
        with tensor.get() as view:                       # back, maybe elsewhere; put at the end
            view.torch(torch.float32).add_(1)
        tensor.free()

Owns: a Tensor is freed when it is freed, when its `with` ends, or when Python drops it; all of them
    when their Store is closed, and the daemon frees them when the process ends, however it does.
Arrays (torch tensors, memoryviews, whatever took a view's DLPack capsule) keep the bytes they show
    valid: a put, free or close while some live takes effect when the last of them is gone. Until
    then the tensor stays where it is. A bare `address` keeps nothing.
Streams: work on a tensor is ordered on a stream: `stream=` (a torch.cuda.Stream, a HostStream or a
    cudaStream_t as int), else PyTorch's current stream of the tensor's device if PyTorch uses CUDA,
    else the default stream; with the host backend the calling thread.
Threads: any, and the GIL is not held while a call waits.
Units: sizes are bytes or text such as "12GiB"; durations are seconds or timedelta.
Errors: ravenstore.errors, a class for each code. No call waits longer than its timeout, and two
    seconds more where the daemon is silent.
Fork: in a child of fork() the parent's store raises IsForked; the child connects again.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from ctypes import byref, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any

from ravenstore import _abi, _arrays, _cuda
from ravenstore._abi import Code, CreateFlag, GetFlag, Priority, PutFlag
from ravenstore._program import program_name
from ravenstore._units import Duration, Size, budget_of, bytes_of, nanoseconds_of, warn_if_cut
from ravenstore.embedded import DEFAULT_SOCKET, Embedded, socket_for
from ravenstore.errors import (
    InvalidArgument,
    IsForked,
    Lost,
    MustRecompute,
    OutOfMemory,
    Unavailable,
    Unsupported,
    WrongState,
    check,
)

if TYPE_CHECKING:
    import types

    import torch

    from ravenstore.named import OpenedSet, Published


@dataclasses.dataclass(frozen=True)
class Stats:
    """A client's figures since it connected; bytes and nanoseconds."""

    tensors: int  # that there are now
    gets: int
    hits: int  # gets that found the tensor on its device
    late_hits: int  # that found it on its way there
    misses: int  # that had to ask for it
    prefetches: int  # tensors brought before a get asked
    bytes_out: int  # device to host
    bytes_in: int  # host to device
    device_bytes: int  # that the tensors hold on the device
    host_bytes: int  # and in host memory
    device_budget: int
    host_budget: int
    stall_ns: int  # how long calls waited on the CPU
    pinned_bytes: int  # this client's blocks of pinned memory; part of host_bytes
    pinned_locked: int  # what is pinned for the blocks of all of this user's clients
    page_bytes: int  # of device memory, of several devices the largest


class HostStream:
    """A stream of the host backend, for programs and tests without a GPU."""

    def __init__(self) -> None:
        handle = _abi.library().ravenstore_host_stream_create()
        if not handle:
            raise OutOfMemory(_abi.library().ravenstore_last_error().decode())
        self._handle: int | None = handle
        self._kept: list[object] = []

    @property
    def handle(self) -> int:
        """ravenstore_host_stream_t as a number."""
        if self._handle is None:
            raise WrongState("the host stream is closed")
        return self._handle

    def run(self, function: Callable[[], object]) -> None:
        """Calls `function` on the stream's thread, after what was enqueued before."""
        callback = _abi.HOST_FUNCTION(lambda _: function() and None)
        self._kept.append(callback)
        _abi.library().ravenstore_host_stream_run(self.handle, callback, None)

    def synchronize(self) -> None:
        """Waits for the stream's work."""
        _abi.library().ravenstore_host_stream_synchronize(self.handle)
        self._kept.clear()

    def close(self) -> None:
        """Waits for the stream's work and ends it. More calls do nothing."""
        handle, self._handle = self._handle, None
        if handle is not None:
            _abi.library().ravenstore_host_stream_destroy(handle)
            self._kept.clear()

    def __enter__(self) -> HostStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


Stream = Any  # torch.cuda.Stream, HostStream, int or None


def _put_options(
    *,
    needed_in: Duration | None,
    order: int | None,
    recompute: Duration | None,
    priority: int,
    not_modified: bool,
    not_needed: bool,
) -> _abi.PutOptions | None:
    plain = needed_in is None and order is None and recompute is None
    if plain and not priority and not not_modified and not not_needed:
        return None
    flags = PutFlag(0)
    if needed_in is not None:
        flags |= PutFlag.NEEDED_IN
    if order is not None:
        flags |= PutFlag.ORDER
    if not_modified:
        flags |= PutFlag.NOT_MODIFIED
    if not_needed:
        flags |= PutFlag.NOT_NEEDED
    return _abi.PutOptions(
        flags=flags,
        needed_in_ns=nanoseconds_of(needed_in or 0),
        order=order or 0,
        recompute_ns=nanoseconds_of(recompute or 0),
        priority=priority,
    )


@dataclasses.dataclass(eq=False)
class _Hold:
    """One create's or get's hold of a tensor. It knows no tensor: a cycle would keep
    unreferenced tensors until the collector's next run."""

    address: int
    stream: int
    read_only: bool = False
    must_recompute: bool = False
    ended: bool = False
    gate: _arrays.Gate = dataclasses.field(default_factory=_arrays.Gate)


class View:
    """A tensor in Userspace, from its create or one get until the matching put.

    Context: `with tensor.get() as view:` puts at the end, also on an exception.
    """

    def __init__(self, tensor: Tensor, hold: _Hold) -> None:
        self.tensor = tensor
        self._hold = hold

    @property
    def address(self) -> int:
        """Where the bytes are: memory of `tensor.device`. Keeps nothing valid by itself."""
        return self._hold.address

    @property
    def stream(self) -> int:
        """The stream on which the bytes are there, as a number; 0 is the default one."""
        return self._hold.stream

    @property
    def read_only(self) -> bool:
        """The get said that nothing will be written; the store then relies on it."""
        return self._hold.read_only

    @property
    def must_recompute(self) -> bool:
        """The bytes were dropped, as the put's `recompute` allows, and are undefined: write all of
        them before the put."""
        return self._hold.must_recompute

    @property
    def open(self) -> bool:
        """It was not put yet."""
        return not self._hold.ended and not self.tensor._freed

    @property
    def size(self) -> int:
        """Bytes."""
        return self.tensor.size

    @property
    def arrays(self) -> int:
        """How many arrays made from this view are alive: its put waits for them."""
        return self._hold.gate.arrays

    def put(
        self,
        *,
        stream: Stream = None,
        needed_in: Duration | None = None,
        order: int | None = None,
        recompute: Duration | None = None,
        priority: int = Priority.NORMAL,
        not_modified: bool = False,
        not_needed: bool = False,
    ) -> None:
        """Gives the tensor to Ravenspace once the work enqueued on `stream` so far is done; if
        arrays made from this view live, when the last of them is gone. Never waits.

        needed_in: it will be got that much later than this point of the stream.
        order: among this process's tensors the smaller is needed sooner.
        recompute: how long recomputing the bytes would take; they may then be dropped instead of
            moved, and the next get's view says must_recompute.
        priority: LOW, NORMAL, HIGH: who keeps its place when some tensors have to leave.
        not_modified: nothing was written since the last put, whatever the get said.
        not_needed: will not be read again; a later get may raise Lost.
        """
        options = _put_options(
            needed_in=needed_in,
            order=order,
            recompute=recompute,
            priority=priority,
            not_modified=not_modified,
            not_needed=not_needed,
        )
        self._end(self.tensor._stream_of(stream), options)

    def _end(self, stream: int, options: _abi.PutOptions | None) -> None:
        self._check_open()
        tensor = self.tensor

        def put() -> None:
            function = _abi.library().ravenstore_put
            with _arrays.lock:
                check(function(tensor.store._pointer, tensor._handle, stream, options))

        def put_late() -> None:
            # A destructor cannot raise an error; the next get reports it.
            with contextlib.suppress(IsForked, Lost):
                put()

        if self._hold.gate.arrays == 0:
            put()
        else:
            self._hold.gate.close(put_late)
        self._leave_userspace()

    def _leave_userspace(self) -> None:
        self._hold.ended = True
        self.tensor._holds = [hold for hold in self.tensor._holds if hold is not self._hold]

    def _check_open(self) -> None:
        self.tensor._check_usable()
        if self._hold.ended:
            raise WrongState(f"{self.tensor!r}: this view of it was put already; get the tensor")

    def _not_modified(self) -> bool:
        return self.read_only and not self.must_recompute

    def _export(self) -> _arrays.Exported:
        self._check_open()
        tensor = self.tensor
        return _arrays.Exported(tensor, (self._hold.gate, tensor._gate, tensor.store._gate))

    def memory(self) -> memoryview:
        """The bytes as a memoryview. Errors: Unsupported if they are on a GPU."""
        if self.tensor.store.backend != "host":
            raise Unsupported("the bytes are on a GPU: use torch(), __dlpack__ or get_into")
        array = (ctypes.c_ubyte * self.size).from_address(self.address)
        # Lives until the memoryview and its slices are gone.
        array.exported = self._export()  # type: ignore[attr-defined]
        view = memoryview(array).cast("B")
        return view.toreadonly() if self.read_only else view

    def torch(
        self, dtype: torch.dtype | None = None, shape: Sequence[int] | None = None
    ) -> torch.Tensor:
        """The bytes as a torch tensor, not a copy, on the tensor's device; uint8 by default.

        Without `shape` it is flat. A shape may need fewer bytes than there are.
        Errors: InvalidArgument if the shape needs more.
        """
        import torch

        flat: torch.Tensor = torch.from_dlpack(self)
        item = 1 if dtype is None else dtype.itemsize
        count = self.size // item
        if shape is not None:
            count = 1
            for length in shape:
                count *= length
            if count < 0 or count * item > self.size:
                raise InvalidArgument(
                    f"{tuple(shape)} of {dtype or torch.uint8} needs {count * item} bytes; "
                    f"{self.tensor!r} has {self.size}"
                )
        typed = flat[: count * item].view(dtype or torch.uint8)
        return typed if shape is None else typed.view(tuple(shape))

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's device: (kDLCUDA, ordinal), or (kDLCPU, 0) with the host backend."""
        if self.tensor.store.backend == "host":
            return (_arrays.CPU, 0)
        return (_arrays.CUDA, self.tensor.device)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """A DLPack capsule of the bytes, as one row of uint8; work on the consumer's `stream` is
        ordered behind this view's. Errors: BufferError for another device or a copy."""
        device = self.__dlpack_device__()
        if dl_device is not None and tuple(dl_device) != device:
            raise BufferError(f"the bytes are on {device}, not on {dl_device}")
        if copy:
            raise BufferError("no copy is made here; use Tensor.get_into")
        exported = self._export()
        if device[0] == _arrays.CUDA and stream != -1:
            # 1 is the default stream, and so is no stream at all; 2 the thread's own.
            consumer = 0 if stream in (None, 1) else int(stream or 0)
            if consumer != self.stream:
                _cuda.order(self.tensor.device, self.stream, consumer)
        return _arrays.capsule_of(
            exported,
            self.address,
            self.size,
            device,
            read_only=self.read_only,
            versioned=max_version is not None and max_version[0] >= 1,
        )

    def __enter__(self) -> View:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        if not self.open:
            return
        try:
            self.put(not_modified=self._not_modified())
        except Exception:
            # The body's exception says more.
            if error is None:
                raise


class Tensor:
    """A handle of one tensor of a Store: `size` bytes.

    Context: `with store.create(n) as tensor:` frees at the end. Dropping the last reference to it
    frees it as well, on the stream that it was last used on.
    """

    _freed = True  # until __init__ is through

    def __init__(self, store: Store, handle: int) -> None:
        library = _abi.library()
        self.store = store
        self._handle = handle
        self.size: int = library.ravenstore_size(handle)
        """Bytes."""
        self.id: int = library.ravenstore_id(handle)
        """The daemon's number of it."""
        self._gate = _arrays.Gate()
        self._freed = False
        self._holds: list[_Hold] = []
        self._last_stream = 0

    def __repr__(self) -> str:
        state = "freed " if self._freed else ""
        return f"<{state}ravenstore.Tensor {self.id} of {self.size} bytes>"

    @property
    def device(self) -> int:
        """The device it is on or belongs to: an ordinal of this process."""
        return int(_abi.library().ravenstore_device(self._handle))

    @property
    def arrays(self) -> int:
        """How many arrays made from it are alive."""
        return self._gate.arrays

    def ready(self) -> bool:
        """A get now would find the bytes on their device. Never waits. Errors: Lost."""
        self._check_usable()
        answer = _abi.library().ravenstore_ready(self._handle)
        if answer < 0:
            raise Lost(f"{self!r} was lost with the daemon or the device")
        return bool(answer)

    def keep_in_place(self) -> None:
        """The physical memory beneath this tensor, which is in use, stays there, also after its
        put, until its free or `end_keep_in_place`: for network cards that have registered its
        address. Errors: WrongState; Unsupported unless the daemon has memory in pages."""
        self._check_usable()
        check(_abi.library().ravenstore_keep_in_place(self.store._usable(), self._handle))

    def end_keep_in_place(self) -> None:
        """Ends `keep_in_place`."""
        self._check_usable()
        check(_abi.library().ravenstore_end_keep_in_place(self.store._usable(), self._handle))

    def get(
        self,
        *,
        device: int | None = None,
        read_only: bool = False,
        blocking: bool = False,
        stream: Stream = None,
        timeout: Duration | None = None,
    ) -> View:
        """Brings the tensor to Userspace. Its bytes are there for work on `stream`; with `blocking`
        they are there when this returns. Several gets may overlap; each view needs its put.

        device: where to; by default where it is or was last.
        read_only: nothing will be written, so a copy elsewhere stays good.
        Errors: OutOfMemory, TimedOut, Lost.
        """
        return self.store._get([self], device, read_only, blocking, stream, timeout)[0]

    def put(self, **hints: Any) -> None:
        """Puts its latest view; see View.put for the hints. Errors: WrongState if it has none."""
        self._latest().put(**hints)

    def get_into(
        self,
        to: Any,
        *,
        stream: Stream = None,
        timeout: Duration | None = None,
    ) -> None:
        """Copies all bytes to `to`: a torch tensor, a writable buffer or what has __dlpack__, of at
        least this size, on the device or on the host. The copy is ordered on `stream`; when it goes
        to host memory this waits for it.

        Errors: MustRecompute if the bytes were dropped, as its put allowed: nothing was copied.
        """
        self._check_usable()
        number = self._stream_of(stream)
        memory = _arrays.memory_of(to, number, writable=True)
        try:
            if memory.size < self.size:
                raise InvalidArgument(f"{self!r} does not fit into {memory.size} bytes")
            options = _get_options(None, False, False, timeout)
            code = _abi.library().ravenstore_get_into(
                self.store._usable(), self._handle, memory.address, number, options
            )
            if code == Code.RECOMPUTE:
                raise MustRecompute(f"{self!r} was dropped, as its put allowed: get and rewrite it")
            check(code)
            if memory.on_host:
                self.store._synchronize(self.device, number)
        finally:
            memory.release()

    def free(self, *, stream: Stream = None) -> None:
        """Frees the tensor once the work enqueued on `stream` so far is done, and ends the handle;
        if arrays made from it live, the bytes stay until the last of them is gone. Never waits.
        More calls do nothing."""
        if not self._freed:
            self._free(self._stream_of(stream))

    def _free(self, stream: int) -> None:
        function = _abi.library().ravenstore_free
        store, handle = self.store._pointer, self._handle

        def free() -> None:
            # What died with the daemon or is the parent process's needs no giving back.
            with contextlib.suppress(IsForked, Lost), _arrays.lock:
                # No interrupt comes between these two.
                self._freed = True
                code = function(store, handle, stream)
                check(code)

        if self._gate.arrays == 0:
            free()
        else:
            self._freed = True
            self._gate.close(free)

    def must_recompute(self) -> bool:
        """Its bytes were dropped, as its put allowed, and are not rewritten yet. Never waits."""
        return bool(_abi.library().ravenstore_must_recompute(self._handle))

    @property
    def address(self) -> int | None:
        """Where the bytes are in Userspace, else None. Keeps nothing valid by itself."""
        return None if self._freed else _abi.library().ravenstore_data(self._handle)

    def memory(self) -> memoryview:
        """View.memory() of its latest view."""
        return self._latest().memory()

    def torch(
        self, dtype: torch.dtype | None = None, shape: Sequence[int] | None = None
    ) -> torch.Tensor:
        """View.torch() of its latest view."""
        return self._latest().torch(dtype, shape)

    def __dlpack_device__(self) -> tuple[int, int]:
        """View.__dlpack_device__() of its latest view."""
        return self._latest().__dlpack_device__()

    def __dlpack__(self, **options: Any) -> object:
        """View.__dlpack__() of its latest view."""
        return self._latest().__dlpack__(**options)

    def _latest(self) -> View:
        self._check_usable()
        if not self._holds:
            raise WrongState(f"{self!r} is in Ravenspace: get it first")
        return View(self, self._holds[-1])

    def _check_usable(self) -> None:
        if self._freed:
            raise WrongState(f"{self!r} is used after its free")
        self.store._usable()

    def _stream_of(self, stream: Stream) -> int:
        plain = stream is None and self.store.backend == "host"
        number = 0 if plain else self.store._stream_number(stream, self.device)
        self._last_stream = number
        return number

    def _opened(
        self, address: int, stream: int, read_only: bool = False, dropped: bool = False
    ) -> View:
        self._last_stream = stream
        hold = _Hold(address, stream, read_only, dropped and self.must_recompute())
        self._holds.append(hold)
        return View(self, hold)

    def __enter__(self) -> Tensor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        try:
            self.free()
        except Exception:
            if error is None:
                raise

    def __del__(self) -> None:
        # The process's end frees what the interpreter's leaves. Nothing is allocated then: in
        # CPython 3.12 some 700 objects made by finalizers of the last collection start another
        # inside of it, which ends in a segmentation fault. `self.__dict__` would make one.
        if not self._freed and not sys.is_finalizing():
            self._free(self._last_stream)


class Batch(Sequence[View]):
    """The views of one get_batch, in its order. Context: puts those that are not put at the end."""

    def __init__(self, store: Store, views: list[View]) -> None:
        self._store = store
        self._views = views

    def __getitem__(self, index: Any) -> Any:
        return self._views[index]

    def __len__(self) -> int:
        return len(self._views)

    def __iter__(self) -> Iterator[View]:
        return iter(self._views)

    def put(self, **hints: Any) -> None:
        """Store.put_batch of those that are not put yet."""
        views = [view for view in self._views if view.open]
        self._store.put_batch(views, **hints)

    def __enter__(self) -> Batch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        try:
            self.put(not_modified=all(view._not_modified() for view in self._views))
        except Exception:
            if error is None:
                raise


class Store:
    """One attachment of this process to a daemon. Context: closes at the end. See the module."""

    _closed = True  # until __init__ is through

    def __init__(self, pointer: int, socket: str) -> None:
        """For connect()."""
        self._pointer = pointer
        self._closed = False
        self._gate = _arrays.Gate()
        self.socket = socket
        """The daemon's socket."""
        self.backend: str = _abi.library().ravenstore_backend(pointer).decode()
        """ "cuda" or "host"."""

    @classmethod
    def connect(
        cls,
        *,
        socket: str | os.PathLike[str] | None = None,
        name: str | None = None,
        device_budget: Size = 0,
        host_budget: Size = 0,
        timeout: Duration = 30.0,
        embedded: Embedded = "auto",
        fixed_addresses: bool = False,
    ) -> Store:
        """Attaches to the daemon at `socket`, by default $RAVENSTORE_SOCKET or the node's.

        embedded: whether to a private daemon, which is started if there is none; "auto": where
            there is none of the node's. See ravenstore.embedded.
        name: for people; by default that of the script or of the package that runs.
        device_budget, host_budget: the most bytes on each device and in host memory; 0 is
            what the user may have. A device_budget beyond that is cut to it, with a warning. The
            least is 2 MiB.
        timeout: bounds the attach and, by default, every wait.
        fixed_addresses: each tensor has one address for life. Without it a small tensor may have
            another after each put.
        Errors: Unavailable without a daemon, PermissionDenied, TimedOut, VersionMismatch; NotFound
            when there is no program to start one.
        """
        library = _abi.library()
        budget = budget_of(device_budget)
        path = socket_for(socket, embedded, budget=budget or None, timeout=timeout)
        options = _abi.ConnectOptions(
            socket=os.fsencode(path),
            name=(name if name is not None else program_name()).encode(),
            device_budget=budget,
            host_budget=bytes_of(host_budget),
            timeout_ns=max(1, nanoseconds_of(timeout)),
            flags=_abi.ConnectFlag.FIXED_ADDRESSES if fixed_addresses else 0,
        )
        pointer = c_void_p()
        try:
            check(library.ravenstore_connect(options, byref(pointer)))
        except Unavailable as error:
            raise Unavailable(f"{error.message}. {how_to_start(path)}") from None
        assert pointer.value is not None
        store = cls(pointer.value, path)
        if budget:
            warn_if_cut(budget, store.stats().device_budget, stacklevel=2)
        return store

    def close(self) -> None:
        """Waits for the streams' work on the store's tensors (bounded), frees them and detaches; if
        arrays made from tensors live, when the last of them is gone. More calls do nothing."""
        if self._closed:
            return
        self._closed = True
        pointer, library = self._pointer, _abi.library()
        self._gate.close(lambda: library.ravenstore_disconnect(pointer))

    def create(
        self,
        size: Size,
        *,
        device: int = 0,
        name: str | None = None,
        fail_fast: bool = False,
        fail_stuck: bool = False,
        long_lived: bool = False,
        timeout: Duration | None = None,
    ) -> Tensor:
        """A new tensor, in Userspace; its bytes are undefined. Waits for room, bounded.

        name: at most 255 bytes. The daemon remembers names: give the tensors of every iteration the
            same.
        fail_fast: do not wait for room.
        fail_stuck: do not wait for what only another thread of this program could put or free.
        long_lived: it will stay in use for long, as parameters do. A hint, which has no effect at
            present.
        Errors: OutOfMemory, TimedOut.
        """
        return self.create_batch(
            [size],
            device=device,
            name=name,
            fail_fast=fail_fast,
            fail_stuck=fail_stuck,
            long_lived=long_lived,
            timeout=timeout,
        )[0]

    def create_batch(
        self,
        sizes: Iterable[Size],
        *,
        device: int = 0,
        name: str | None = None,
        fail_fast: bool = False,
        fail_stuck: bool = False,
        long_lived: bool = False,
        timeout: Duration | None = None,
    ) -> list[Tensor]:
        """A tensor for each size in one go: all or, with an error, none."""
        counts = [bytes_of(size) for size in sizes]
        many = len(counts)
        handles = _pointers(many)()
        options = _create_options(device, name, fail_fast, fail_stuck, long_lived, timeout)
        stream = self._stream_number(None, device)
        created: list[Tensor] = []
        try:
            check(
                _abi.library().ravenstore_create_batch(
                    self._usable(), (c_uint64 * many)(*counts), many, options, handles
                )
            )
            for handle in handles:
                created.append(self._created(handle, stream))
        except BaseException:
            # An interrupt, maybe. Those that have an object are freed with it.
            for handle in filter(None, handles[len(created) :]):
                _abi.library().ravenstore_free(self._pointer, handle, stream)
            raise
        return created

    def adopt(
        self,
        source: Any,
        *,
        device: int | None = None,
        name: str | None = None,
        stream: Stream = None,
        fail_fast: bool = False,
        fail_stuck: bool = False,
        long_lived: bool = False,
        timeout: Duration | None = None,
    ) -> Tensor:
        """A new tensor, in Userspace, with a copy of the bytes of `source`: a torch tensor, what
        has the buffer protocol, or what has __dlpack__; contiguous.

        The copy is ordered on `stream`; from host memory it is done when this returns. `device` is
        by default the source's, else 0.
        """
        if device is None:
            device = _device_of(source)
        number = self._stream_number(stream, device)
        memory = _arrays.memory_of(source, number)
        try:
            handle = c_void_p()
            options = _create_options(device, name, fail_fast, fail_stuck, long_lived, timeout)
            check(
                _abi.library().ravenstore_adopt(
                    self._usable(), memory.address, memory.size, number, options, byref(handle)
                )
            )
            tensor = self._created(handle.value, number)
            if memory.on_host:
                self._synchronize(device, number)
            return tensor
        finally:
            memory.release()

    def get(self, tensor: Tensor, **options: Any) -> View:
        """Tensor.get()."""
        return self._own(tensor).get(**options)

    def get_batch(
        self,
        tensors: Iterable[Tensor],
        *,
        device: int | None = None,
        read_only: bool = False,
        blocking: bool = False,
        stream: Stream = None,
        timeout: Duration | None = None,
    ) -> Batch:
        """Gets all in one go: their views or, with an error, none."""
        own = [self._own(tensor) for tensor in tensors]
        return Batch(self, self._get(own, device, read_only, blocking, stream, timeout))

    def put(self, tensor: Tensor | View, **hints: Any) -> None:
        """View.put() of a view or of a tensor's latest one."""
        tensor.put(**hints)

    def put_batch(
        self,
        tensors: Iterable[Tensor | View],
        *,
        stream: Stream = None,
        needed_in: Duration | None = None,
        order: int | None = None,
        recompute: Duration | None = None,
        priority: int = Priority.NORMAL,
        not_modified: bool = False,
        not_needed: bool = False,
    ) -> None:
        """Puts views, or the tensors' latest ones, with the same hints; see View.put."""
        views = [item if isinstance(item, View) else item._latest() for item in tensors]
        options = _put_options(
            needed_in=needed_in,
            order=order,
            recompute=recompute,
            priority=priority,
            not_modified=not_modified,
            not_needed=not_needed,
        )
        by_stream: dict[int, list[View]] = {}
        for view in views:
            view._check_open()
            by_stream.setdefault(self._own(view.tensor)._stream_of(stream), []).append(view)
        for number, group in by_stream.items():
            now = [view for view in group if view.arrays == 0]
            handles = _pointers(len(now))(*[view.tensor._handle for view in now])
            function = _abi.library().ravenstore_put_batch
            with _arrays.lock:
                check(function(self._usable(), handles, len(now), number, options))
            for view in now:
                view._leave_userspace()
            for view in group:
                if view.open:
                    view._end(number, options)

    def free(self, tensor: Tensor, *, stream: Stream = None) -> None:
        """Tensor.free()."""
        tensor.free(stream=stream)

    def free_batch(self, tensors: Iterable[Tensor], *, stream: Stream = None) -> None:
        """Frees all, as Tensor.free() does; those that are freed already are ignored."""
        by_stream: dict[int, list[Tensor]] = {}
        for tensor in tensors:
            if self._own(tensor)._freed:
                continue
            number = tensor._stream_of(stream)
            if tensor.arrays > 0:
                tensor._free(number)
            else:
                tensor._freed = True
                by_stream.setdefault(number, []).append(tensor)
        for number, group in by_stream.items():
            handles = _pointers(len(group))(*[tensor._handle for tensor in group])
            function = _abi.library().ravenstore_free_batch
            with contextlib.suppress(IsForked, Lost), _arrays.lock:
                check(function(self._pointer, handles, len(group), number))

    def step(self) -> None:
        """Marks the beginning of the next iteration (a training step): its tensors are recognised
        by name or by their place in it. Optional. Does not wait."""
        check(_abi.library().ravenstore_step(self._usable()))

    def trim(self) -> None:
        """Gives device memory that holds no tensor back to the daemon, now and as more comes free,
        until this process next needs some. Does not wait."""
        check(_abi.library().ravenstore_trim(self._usable()))

    def check(self, *, stream: Stream = None, device: int = 0) -> None:
        """Raises Lost once work on `stream` may have run on undefined bytes because the daemon or
        the device died: go back to the checkpoint. Never waits."""
        number = self._stream_number(stream, device)
        check(_abi.library().ravenstore_check(self._usable(), number))

    def publish(self, name: str, tensors: Mapping[str, torch.Tensor]) -> Published:
        """Copies the tensors into a set of that name, which other processes of this user open.

        Where there is one of that name, this is its next version; processes that have the other one
        open keep it until they advance. Tensors in host memory go to the first device. The set
        stays at least until the result is closed; see ravenstore.named.
        Errors: OutOfMemory; WrongState: another process loads that set; InvalidArgument;
            PermissionDenied: this process's user is not known for certain.
        """
        from ravenstore import named

        return named.publish(self, name, tensors)

    def open(
        self,
        name: str,
        *,
        version: int | None = None,
        least_version: int | None = None,
        timeout: Duration | None = None,
        fail_fast: bool = False,
        asleep: bool = False,
    ) -> OpenedSet:
        """Opens the set of that name: its tensors, to be read. Waits for it, bounded.

        version: that one; by default the newest. least_version: of the newest.
        timeout: of the wait, and then of that for room; by default the store's.
        fail_fast: NotFound rather than a wait. asleep: its memory is not used before `wake`.
        Errors: TimedOut, NotFound; OutOfMemory, with the clients that hold the device's memory.
        """
        from ravenstore import named

        return named.open_set(
            self,
            name,
            version=version,
            least_version=least_version,
            timeout=timeout,
            fail_fast=fail_fast,
            asleep=asleep,
        )

    def drop(self, name: str, version: int | None = None) -> None:
        """No process opens the set any more, by default none of its versions. It ends when no
        process has it open. Errors: NotFound."""
        from ravenstore import named

        named.drop(self, name, version)

    def stats(self) -> Stats:
        """This process's figures; asks the daemon."""
        figures = _abi.StatsStruct()
        check(_abi.library().ravenstore_get_stats(self._usable(), byref(figures)))
        names = [field.name for field in dataclasses.fields(Stats)]
        return Stats(**{name: getattr(figures, name) for name in names})

    def _get(
        self,
        tensors: list[Tensor],
        device: int | None,
        read_only: bool,
        blocking: bool,
        stream: Stream,
        timeout: Duration | None,
    ) -> list[View]:
        for tensor in tensors:
            tensor._check_usable()
        if not tensors:
            return []
        options = _get_options(device, read_only, blocking, timeout)
        number = self._stream_number(stream, tensors[0].device if device is None else device)
        many = len(tensors)
        handles = _pointers(many)(*[tensor._handle for tensor in tensors])
        addresses = _pointers(many)()
        function = _abi.library().ravenstore_get_batch
        code = function(self._usable(), handles, many, number, options, addresses)
        dropped = code == Code.RECOMPUTE  # at least one of them
        if not dropped:
            check(code)
        return [
            tensor._opened(address or 0, number, read_only, dropped)
            for tensor, address in zip(tensors, addresses, strict=True)
        ]

    def _created(self, handle: int | None, stream: int) -> Tensor:
        assert handle is not None
        tensor = Tensor(self, handle)
        tensor._opened(_abi.library().ravenstore_data(handle), stream)
        return tensor

    def _own(self, tensor: Tensor) -> Tensor:
        if tensor.store is not self:
            raise InvalidArgument(f"{tensor!r} belongs to another store")
        return tensor

    def _usable(self) -> int:
        if self._closed:
            raise WrongState("the store is closed")
        return self._pointer

    def _stream_number(self, stream: Stream, device: int) -> int:
        if stream is None:
            torch = sys.modules.get("torch")
            if self.backend != "cuda" or torch is None or not torch.cuda.is_initialized():
                return 0
            return int(torch.cuda.current_stream(device).cuda_stream)
        if isinstance(stream, HostStream) != (self.backend == "host"):
            raise InvalidArgument(f"{stream!r} is no stream of the {self.backend} backend")
        if isinstance(stream, HostStream):
            return stream.handle
        number: Any = getattr(stream, "cuda_stream", stream)
        return int(number)

    def _synchronize(self, device: int, stream: int) -> None:
        if self.backend == "cuda":
            _cuda.synchronize(device, stream)
        elif stream:
            _abi.library().ravenstore_host_stream_synchronize(stream)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # As Tensor.__del__.
        if not self._closed and not sys.is_finalizing():
            self.close()


def _get_options(
    device: int | None, read_only: bool, blocking: bool, timeout: Duration | None
) -> _abi.GetOptions | None:
    if device is None and timeout is None and not read_only and not blocking:
        return None
    flags = GetFlag(0)
    if read_only:
        flags |= GetFlag.READ_ONLY
    if blocking:
        flags |= GetFlag.BLOCKING
    if device is not None:
        flags |= GetFlag.ON_DEVICE
    return _abi.GetOptions(flags=flags, device=device or 0, timeout_ns=nanoseconds_of(timeout or 0))


@functools.lru_cache(maxsize=256)
def _pointers(count: int) -> Any:
    """An array of `count` pointers. ctypes is slow to make the type again if it is not kept."""
    return c_void_p * count


def _create_options(
    device: int,
    name: str | None,
    fail_fast: bool,
    fail_stuck: bool,
    long_lived: bool,
    timeout: Duration | None,
) -> _abi.CreateOptions:
    fast = CreateFlag.FAIL_FAST if fail_fast else CreateFlag(0)
    stuck = CreateFlag.FAIL_STUCK if fail_stuck else CreateFlag(0)
    long = CreateFlag.LONG_LIVED if long_lived else CreateFlag(0)
    return _abi.CreateOptions(
        device=device,
        flags=fast | stuck | long,
        name=name.encode() if name is not None else None,
        timeout_ns=nanoseconds_of(timeout or 0),
    )


def _device_of(source: Any) -> int:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(source, torch.Tensor):
        return source.device.index or 0 if source.device.type == "cuda" else 0
    if hasattr(source, "__dlpack_device__"):
        kind, ordinal = source.__dlpack_device__()
        return int(ordinal) if kind == _arrays.CUDA else 0
    return 0


def how_to_start(path: str) -> str:
    start = f"ravenstored --socket {path}"
    if path == DEFAULT_SOCKET:
        start = "systemctl start ravenstored (deploy/install installs it)"
    return f"Start it: {start}; or use a private one: embedded=True"

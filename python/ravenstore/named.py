"""Tensors by name: one copy on the device, read by any process of the same user.

    # one process
    published = store.publish("weights", model.state_dict())
    # others
    with store.open("weights") as weights:
        y = x @ weights["layer.weight"].T      # the same memory, without a copy
    # the publisher, later
    store.publish("weights", model.state_dict())
    # the others, where it suits them
    weights.advance()                          # the new version, at the same addresses

The set is a copy in pages of its own, and is sealed. Readers may only read: a kernel that writes
there ends with an error, and its process's context with it. A set leaves the device when no process
uses it and other tensors need the room; it comes back with the next use.

Owns: a set ends when no process has it open; limits.kept_sets of the daemon's configuration keeps
    the last ones. The publisher's `Published` is an open.
Arrays: a close while tensors of the set live takes effect when the last of them is gone. `sleep`
    does not wait for them: they are of use again after `wake`.
Streams: publish waits for the copies. The caller makes sure that no work that reads a set is under
    way when it sleeps, advances or closes.
Threads: any. Errors: ravenstore.errors, in words. Fork: a child opens its sets itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from ctypes import byref, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any, NamedTuple

from ravenstore import _abi, _arrays
from ravenstore._abi import SetFlag
from ravenstore._units import Duration, nanoseconds_of
from ravenstore.embedded import private_socket
from ravenstore.errors import Corrupt, InvalidArgument, NotFound, TimedOut, WrongState, check

if TYPE_CHECKING:
    import torch

    from ravenstore.store import Store, Tensor

_MAGIC = b"RAVENSET"
_HEADER = struct.Struct("<8sQ")  # the magic, and the bytes of the layout's text
_ALIGNMENT = 512


def _bound_of(timeout: Duration | None) -> int:
    """Nanoseconds; 0: the store's timeout."""
    return 0 if timeout is None else max(1, nanoseconds_of(timeout))


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


class Place(NamedTuple):
    """Where a tensor is in its set."""

    part: int  # which of the set's parts: one for each device
    offset: int
    dtype: str  # torch's name, without "torch."
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        import torch

        kind: torch.dtype = getattr(torch, self.dtype)
        return math.prod(self.shape) * kind.itemsize

    def of(self, flat: torch.Tensor) -> torch.Tensor:
        """The tensor, in its part's bytes."""
        import torch

        typed = flat[self.offset : self.offset + self.bytes].view(getattr(torch, self.dtype))
        return typed.view(self.shape)


class Layout:
    """The places of a set's tensors, as the head of the first part says them."""

    def __init__(self, shapes: Mapping[str, tuple[str, Sequence[int], int]]) -> None:
        """`shapes`: of each tensor dtype, shape and device."""
        self.devices = list(dict.fromkeys(device for _, _, device in shapes.values()))
        # The text's length depends on the offsets, which begin after it: some room is left.
        room = 256 + sum(len(json.dumps(name)) + 160 for name in shapes)
        ends = [_aligned(room)] + [0] * max(len(self.devices) - 1, 0)
        self.places: dict[str, Place] = {}
        for name, (dtype, shape, device) in shapes.items():
            part = self.devices.index(device)
            place = Place(part, ends[part], dtype, tuple(shape))
            self.places[name] = place
            ends[part] = _aligned(ends[part] + place.bytes)
        self.sizes = [max(end, _ALIGNMENT) for end in ends]

        self._text = json.dumps({"tensors": self.places}).encode()

    def head(self) -> bytes:
        """The first bytes of the first part."""
        return _HEADER.pack(_MAGIC, len(self._text)) + self._text

    def number(self) -> int:
        """Another one for a layout that differs."""
        return int.from_bytes(hashlib.sha256(self._text).digest()[:8], "little")

    @staticmethod
    def read(flat: torch.Tensor) -> dict[str, Place]:
        """From the bytes of a set's first part."""
        magic, size = _HEADER.unpack(_bytes_of(flat[: _HEADER.size]))
        if magic != _MAGIC:
            raise Corrupt("the set was not published by this package: its tensors have no names")
        text = json.loads(_bytes_of(flat[_HEADER.size : _HEADER.size + size]))
        return {
            name: Place(part, offset, dtype, tuple(shape))
            for name, (part, offset, dtype, shape) in text["tensors"].items()
        }


def _bytes_of(flat: torch.Tensor) -> bytes:
    return bytes(flat.cpu().numpy())


class Published:
    """The publisher's hold on a version of a set: it stays at least until `close`."""

    def __init__(self, store: Store, name: str, version: int) -> None:
        self._store = store
        self.name = name
        self.version = version

    def close(self) -> None:
        """The set ends when no process has it open. More calls do nothing."""
        self._store.close()

    def __enter__(self) -> Published:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ravenstore.Published {self.name!r}, version {self.version}>"


class Filling:
    """A store whose tensors become a set: `parts`, one for each device of the layout."""

    def __init__(self, like: Store, name: str, layout: Layout) -> None:
        from ravenstore.store import Store

        self.layout = layout
        self.name = name
        self.store = Store.connect(socket=like.socket, name=f"set {name}", fixed_addresses=True)
        self._tensors: list[Tensor] = []
        try:
            for device, size in zip(layout.devices, layout.sizes, strict=True):
                self._tensors.append(self.store.create(size, device=device, name=name))
            self.parts = [each.torch() for each in self._tensors]
        except BaseException:
            self.store.close()
            raise

    def tensor(self, name: str) -> torch.Tensor:
        """Where the named tensor's bytes belong."""
        place = self.layout.places[name]
        return place.of(self.parts[place.part])

    def seal(self, load: int = 0) -> Published:
        """The set is there. Waits for the devices' work on it."""
        import torch

        head = torch.frombuffer(bytearray(self.layout.head()), dtype=torch.uint8)
        self.parts[0][: len(head)].copy_(head)
        if self.parts[0].is_cuda:
            for device in self.layout.devices:
                torch.cuda.synchronize(device)
        # A put takes effect when no array of the tensor is left.
        self.parts.clear()
        for each in self._tensors:
            each.put()
        version = c_uint64()
        check(
            _abi.library().ravenstore_set_seal(
                self.store._usable(),
                self.name.encode(),
                load,
                self.layout.number(),
                byref(version),
            )
        )
        for each in self._tensors:
            # It is the set's: only the handle ends, which would keep the session.
            each._freed = True
            _abi.library().ravenstore_free(self.store._pointer, each._handle, None)
        return Published(self.store, self.name, version.value)


def publish(store: Store, name: str, tensors: Mapping[str, torch.Tensor]) -> Published:
    """See Store.publish."""
    if not tensors:
        raise InvalidArgument("a set has at least one tensor")
    for key, tensor in tensors.items():
        if tensor.layout is not _strided():
            raise InvalidArgument(f"{key!r} is {tensor.layout}: a set has dense tensors alone")
    layout = Layout(
        {
            key: (str(tensor.dtype).removeprefix("torch."), tensor.shape, _device_of(tensor))
            for key, tensor in tensors.items()
        }
    )
    filling = Filling(store, name, layout)
    try:
        for key, tensor in tensors.items():
            filling.tensor(key).copy_(tensor.detach())
        return filling.seal()
    except BaseException:
        filling.store.close()
        raise


def _strided() -> Any:
    import torch

    return torch.strided


def _device_of(tensor: torch.Tensor) -> int:
    # Of a tensor in host memory: the first device.
    return tensor.device.index or 0 if tensor.is_cuda else 0


class _Part:
    """One part's memory, for torch.from_dlpack."""

    def __init__(self, opened: OpenedSet, part: _abi.SetPart) -> None:
        self._opened = opened
        self._part = part

    def __dlpack_device__(self) -> tuple[int, int]:
        if self._opened.store.backend == "host":
            return (_arrays.CPU, 0)
        return (_arrays.CUDA, self._part.device)

    def __dlpack__(self, **_: Any) -> object:
        exported = _arrays.Exported(self._opened, (self._opened._gate,))
        # Readers of an older DLPack refuse what says that it is read-only, so it does not.
        return _arrays.capsule_of(
            exported,
            self._part.address,
            self._part.bytes,
            self.__dlpack_device__(),
            read_only=False,
            versioned=False,
        )


class OpenedSet(Mapping[str, "torch.Tensor"]):
    """A set that this process has open: its tensors by name, to be read. Context: closes at the
    end. See the module."""

    def __init__(self, store: Store, name: str, handle: int, owns_store: bool = False) -> None:
        """For open() and load_safetensors()."""
        self.store = store
        self.name = name
        self._handle = handle
        self._owns_store = owns_store
        self._closed = False
        self._asleep = True
        self._gate = _arrays.Gate()
        self._tensors: dict[str, torch.Tensor] = {}

    @property
    def version(self) -> int:
        """1 for the first set of the name."""
        return int(_abi.library().ravenstore_set_version(self._usable()))

    @property
    def bytes(self) -> int:
        """Of device memory, without what fills the last pages."""
        return sum(part.bytes for part in self._parts())

    @property
    def asleep(self) -> bool:
        """It is not in use here: its tensors must not be read."""
        return self._asleep

    def wake(self, timeout: Duration | None = None) -> None:
        """The tensors' bytes are there, and stay until `sleep`. No error if it is awake.

        timeout: by default the store's. Errors: OutOfMemory and TimedOut without room, with the
            clients that hold it.
        """
        check(_abi.library().ravenstore_set_use(self._usable(), _bound_of(timeout)))
        self._asleep = False
        if not self._tensors:
            self._name_tensors()

    def _woken(self, timeout: Duration | None) -> OpenedSet:
        """Itself, awake; closed if that fails."""
        try:
            self.wake(timeout)
        except BaseException:
            self.close()
            raise
        return self

    def sleep(self) -> None:
        """The set's memory may leave the device, once no process uses it. Addresses are kept: the
        tensors are right again after `wake`. No error if it sleeps.

        REQUIRES: no work of this process that reads them is under way.
        """
        check(_abi.library().ravenstore_set_end_use(self._usable()))
        self._asleep = True

    def advance(self, version: int | None = None, timeout: Duration | None = None) -> int:
        """The newest version takes the place of this one, at the same addresses: tensors, views,
        pointers and captured graphs read it then. Returns its number.

        version: the least that will do, which is waited for; by default this one's.
        Errors: TimedOut; InvalidArgument if the new version has other tensors: the set stays as it
            is.
        REQUIRES: no work of this process that reads the set is under way.
        """
        check(
            _abi.library().ravenstore_set_advance(
                self._usable(),
                version or self.version,
                _bound_of(timeout),
            )
        )
        return self.version

    def close(self) -> None:
        """Ends the use; takes effect when the last tensor of the set is gone. More calls do
        nothing."""
        if self._closed:
            return
        self._closed = True
        self._tensors = {}
        handle, store, owns = self._handle, self.store, self._owns_store

        def close() -> None:
            _abi.library().ravenstore_set_close(handle)
            if owns:
                store.close()

        self._gate.close(close)

    def __getitem__(self, name: str) -> torch.Tensor:
        self._usable()
        if self._asleep:
            raise WrongState(f"the set {self.name!r} is asleep: wake it first")
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __enter__(self) -> OpenedSet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not sys.is_finalizing() and hasattr(self, "_closed"):
            with contextlib.suppress(Exception):
                self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"version {self.version}"
        return f"<ravenstore.OpenedSet {self.name!r}, {state}>"

    def _usable(self) -> int:
        if self._closed:
            raise WrongState(f"the set {self.name!r} is closed")
        self.store._usable()
        return self._handle

    def _parts(self) -> list[_abi.SetPart]:
        handle = self._usable()
        parts = [_abi.SetPart() for _ in range(_abi.library().ravenstore_set_parts(handle))]
        for i, part in enumerate(parts):
            check(_abi.library().ravenstore_set_get_part(handle, i, byref(part)))
        return parts

    def _name_tensors(self) -> None:
        import torch

        flat = [torch.from_dlpack(_Part(self, part)) for part in self._parts()]
        self._tensors = {
            name: place.of(flat[place.part]) for name, place in Layout.read(flat[0]).items()
        }


def open_set(
    store: Store,
    name: str,
    *,
    version: int | None = None,
    least_version: int | None = None,
    timeout: Duration | None = None,
    fail_fast: bool = False,
    asleep: bool = False,
) -> OpenedSet:
    """See Store.open."""
    try:
        handle, _ = ask(store, name, version, least_version, timeout, fail_fast, may_load=False)
    except (NotFound, TimedOut) as error:
        if store.socket != private_socket():
            raise
        only = "this job's daemon is private, so only its own processes publish there"
        raise type(error)(f"{error.message}: {only}") from None
    opened = OpenedSet(store, name, handle)
    return opened if asleep else opened._woken(timeout)


def ask(
    store: Store,
    name: str,
    version: int | None = None,
    least_version: int | None = None,
    timeout: Duration | None = None,
    fail_fast: bool = False,
    may_load: bool = False,
) -> tuple[int, int]:
    """The handle of an open, or 0 and a load that this process is to do."""
    flags = (SetFlag.SET_FAIL_FAST if fail_fast else 0) | (SetFlag.MAY_LOAD if may_load else 0)
    options = _abi.SetOptions(
        version=version or 0,
        least_version=least_version or 0,
        timeout_ns=_bound_of(timeout),
        flags=flags,
    )
    handle, load = c_void_p(), c_uint64()
    check(
        _abi.library().ravenstore_set_open(
            store._usable(), name.encode(), options, byref(handle), byref(load)
        )
    )
    return handle.value or 0, load.value


def drop(store: Store, name: str, version: int | None = None) -> None:
    """See Store.drop."""
    check(_abi.library().ravenstore_set_drop(store._usable(), name.encode(), version or 0))

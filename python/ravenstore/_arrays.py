"""Memory that changes hands with other libraries: DLPack out and in, the buffer protocol, gates.

An array that another library made of a tensor's bytes keeps them valid as long as it lives: what
would take them away (put, free, the store's end) waits at a Gate for the last such array.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import sys
import threading
from collections.abc import Callable, Sequence
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_ssize_t,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
    py_object,
)
from typing import Any, ClassVar, NamedTuple

from ravenstore import _abi
from ravenstore.errors import InvalidArgument

CPU = 1  # DLDeviceType
CUDA = 2
CUDA_HOST = 3
CUDA_MANAGED = 13
_UNSIGNED = 1  # DLDataTypeCode
_READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY


# The package's one lock; short, never held while a call waits. An array's destructor may come on
# its own thread, so a put or free that it does could meet another of the same tensor, which the C
# interface forbids. A destructor may interrupt the lock's holder on the same thread. It is not of a
# class of its own: an interrupt within an __enter__ would leave it locked.
lock = threading.RLock()
# Else a child of fork() waits for ever for a thread that it does not have.
os.register_at_fork(after_in_child=lock._at_fork_reinit)  # type: ignore[attr-defined]


class Gate:
    """Runs an action once no array is alive any more: immediately if there is none.

    Any thread; also from a destructor that interrupts one of these methods on the same thread.
    """

    def __init__(self) -> None:
        self.arrays = 0
        self._action: Callable[[], None] | None = None

    def enter(self) -> None:
        """One array more."""
        with lock:
            self.arrays += 1

    def leave(self) -> None:
        """One array less."""
        with lock:
            self.arrays -= 1
        self._run_if_due()

    def close(self, action: Callable[[], None]) -> None:
        """Runs `action` when there is no array; before this returns if there is none now."""
        self._action = action
        self._run_if_due()

    def _run_if_due(self) -> None:
        with lock:
            if self.arrays > 0 or self._action is None:
                return
            action, self._action = self._action, None
        action()


class Exported:
    """One array that is alive; it holds `owner` and is inside of `gates` (the inner first)."""

    def __init__(self, owner: object, gates: Sequence[Gate]) -> None:
        self._gates: Sequence[Gate] = ()
        self._owner = owner
        for gate in gates:
            gate.enter()
            self._gates = (*self._gates, gate)

    def end(self) -> None:
        """The array is gone. Only the first call counts."""
        self._owner = None
        while self._gates:
            gate, self._gates = self._gates[0], self._gates[1:]
            gate.leave()

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.end()


# ---- DLPack (dlpack.h, versions 0.x and 1.x)


class _Device(Structure):
    _fields_: ClassVar = [("type", c_int32), ("id", c_int32)]


class _DataType(Structure):
    _fields_: ClassVar = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class _Array(Structure):
    _fields_: ClassVar = [
        ("data", c_void_p),
        ("device", _Device),
        ("ndim", c_int32),
        ("dtype", _DataType),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class _Managed(Structure):
    _fields_: ClassVar = [("array", _Array), ("context", c_void_p), ("deleter", c_void_p)]


class _ManagedVersioned(Structure):
    _fields_: ClassVar = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("context", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("array", _Array),
    ]


_PLAIN, _VERSIONED = b"dltensor", b"dltensor_versioned"
_KINDS: dict[bytes, type[_Managed] | type[_ManagedVersioned]] = {
    _PLAIN: _Managed,
    _VERSIONED: _ManagedVersioned,
}
_USED = {_PLAIN: b"used_dltensor", _VERSIONED: b"used_dltensor_versioned"}

_python = ctypes.pythonapi
_capsule_new = ctypes.PYFUNCTYPE(py_object, c_void_p, c_char_p, c_void_p)(
    ("PyCapsule_New", _python)
)
# By address: a capsule in its destructor must not be referenced again.
_capsule_is_valid = ctypes.PYFUNCTYPE(c_int, c_void_p, c_char_p)(("PyCapsule_IsValid", _python))
_capsule_pointer = ctypes.PYFUNCTYPE(c_void_p, c_void_p, c_char_p)(
    ("PyCapsule_GetPointer", _python)
)
_capsule_rename = ctypes.PYFUNCTYPE(c_int, c_void_p, c_char_p)(("PyCapsule_SetName", _python))

# The structs that other libraries hold, by address.
_lent: dict[int, tuple[_Managed | _ManagedVersioned, Exported]] = {}


@ctypes.PYFUNCTYPE(None, c_void_p)
def _take_back(address: int) -> None:
    lent = _lent.pop(address, None)
    if lent is not None:
        lent[1].end()


@ctypes.PYFUNCTYPE(None, c_void_p)
def _drop_capsule(capsule: int) -> None:
    for name in _KINDS:
        if _capsule_is_valid(capsule, name):  # else a library took it, and will call the deleter
            _take_back(_capsule_pointer(capsule, name))


class _Python(Structure):  # ravenstore_python_t
    _fields_: ClassVar = [
        (name, c_void_p)
        for name in ("ensure", "release", "fetch", "restore", "take_back", "drop_capsule")
    ]


_deleter = _destructor = 0


@functools.cache
def _use_library() -> None:
    """An array may be dropped while an exception is on its way, when no function of Python's may
    run: the library's functions put it aside and call the two above. See client/python_arrays.h."""
    global _deleter, _destructor  # noqa: PLW0603 - one library a process
    functions = (
        _python.PyGILState_Ensure,
        _python.PyGILState_Release,
        _python.PyErr_Fetch,
        _python.PyErr_Restore,
        _take_back,
        _drop_capsule,
    )
    library = _abi.library()
    library.ravenstore_python_use(
        ctypes.byref(_Python(*(ctypes.cast(one, c_void_p) for one in functions)))
    )
    _deleter = _deleter or _address(library.ravenstore_python_take_back)
    _destructor = _address(library.ravenstore_python_drop_capsule)


def _address(function: Any) -> int:
    return ctypes.cast(function, c_void_p).value or 0


@atexit.register
def _outlive_python() -> None:
    """Libraries may drop arrays after Python's end, when no function of Python's can be called: a
    function of C's that does nothing is their deleter from here on, and the structs stay."""
    global _deleter  # noqa: PLW0603 - one interpreter, one end
    _deleter = _address(_python.Py_IsInitialized)
    for managed, exported in list(_lent.values()):
        managed.deleter = _deleter
        _python.Py_IncRef(py_object(managed))
        _python.Py_IncRef(py_object(exported))


def capsule_of(
    exported: Exported,
    address: int,
    size: int,
    device: tuple[int, int],
    *,
    read_only: bool = False,
    versioned: bool = False,
) -> object:
    """A DLPack capsule: `size` bytes at `address` as one row of uint8, `exported` until its end."""
    _use_library()
    managed = _ManagedVersioned(major=1) if versioned else _Managed()
    if isinstance(managed, _ManagedVersioned):
        managed.flags = _READ_ONLY if read_only else 0
    array = managed.array
    array.data = address
    array.device = _Device(*device)
    array.ndim = 1
    array.dtype = _DataType(_UNSIGNED, 8, 1)
    array.shape = (c_int64 * 1)(size)
    array.strides = (c_int64 * 1)(1)
    managed.deleter = _deleter
    _lent[ctypes.addressof(managed)] = (managed, exported)
    return _capsule_new(
        ctypes.addressof(managed),
        _VERSIONED if versioned else _PLAIN,
        _destructor,
    )


class Memory(NamedTuple):
    """Somebody's contiguous bytes. They stay valid until release(), which is called once."""

    address: int
    size: int
    on_host: bool
    release: Callable[[], None]


def _contiguous(array: _Array) -> bool:
    expected = 1
    for i in reversed(range(array.ndim)):
        if array.shape[i] == 0:
            return True
        if array.strides and array.shape[i] != 1 and array.strides[i] != expected:
            return False
        expected *= array.shape[i]
    return True


def _memory_of_capsule(capsule: object) -> Memory:
    place = id(capsule)
    name = next((name for name in _KINDS if _capsule_is_valid(place, name)), None)
    if name is None:
        raise InvalidArgument("__dlpack__ returned no unused DLPack capsule")
    pointer = _capsule_pointer(place, name)
    managed = _KINDS[name].from_address(pointer)
    _capsule_rename(place, _USED[name])

    def release() -> None:
        if managed.deleter:
            ctypes.CFUNCTYPE(None, c_void_p)(managed.deleter)(pointer)

    array = managed.array
    if not _contiguous(array):
        release()
        raise InvalidArgument("the array is not contiguous: copy it to one that is")
    bits = array.dtype.bits * array.dtype.lanes
    for i in range(array.ndim):
        bits *= array.shape[i]
    on_host = array.device.type in (CPU, CUDA_HOST)
    if not on_host and array.device.type not in (CUDA, CUDA_MANAGED):
        kind = array.device.type
        release()
        raise InvalidArgument(f"the array is on a device of DLPack's kind {kind}: CPU and CUDA are")
    return Memory((array.data or 0) + array.byte_offset, (bits + 7) // 8, on_host, release)


class _Buffer(Structure):  # Py_buffer
    _fields_: ClassVar = [
        ("buf", c_void_p),
        ("obj", c_void_p),
        ("len", c_ssize_t),
        ("itemsize", c_ssize_t),
        ("readonly", c_int),
        ("ndim", c_int),
        ("format", c_char_p),
        ("shape", c_void_p),
        ("strides", c_void_p),
        ("suboffsets", c_void_p),
        ("internal", c_void_p),
    ]


_get_buffer = ctypes.PYFUNCTYPE(c_int, py_object, POINTER(_Buffer), c_int)(
    ("PyObject_GetBuffer", _python)
)
_release_buffer = ctypes.PYFUNCTYPE(None, POINTER(_Buffer))(("PyBuffer_Release", _python))


def _memory_of_buffer(source: object, writable: bool) -> Memory:
    buffer = _Buffer()
    try:
        _get_buffer(source, buffer, 1 if writable else 0)  # contiguous, as PyBUF_SIMPLE
    except (BufferError, ValueError) as error:
        kind = "writable, contiguous" if writable else "contiguous"
        raise InvalidArgument(f"the buffer is not {kind} memory: {error}") from error
    return Memory(buffer.buf or 0, buffer.len, True, lambda: _release_buffer(buffer))


def _memory_of_torch(source: Any) -> Memory:
    if source.layout is not sys.modules["torch"].strided or not source.is_contiguous():
        raise InvalidArgument("the tensor is not contiguous: call contiguous() on it first")
    if source.is_conj() or source.is_neg():
        raise InvalidArgument("the tensor is a lazy conjugate: call resolve_conj() and "
                              "resolve_neg() on it first")  # fmt: skip
    if source.device.type not in ("cpu", "cuda"):
        raise InvalidArgument(f"the tensor is on {source.device}: cpu and cuda can be taken")
    size = source.numel() * source.element_size()
    held = [source]  # released with the list's content
    return Memory(source.data_ptr(), size, source.device.type == "cpu", held.clear)


def memory_of(source: Any, stream: int, *, writable: bool = False) -> Memory:
    """The bytes of a torch tensor, of what has the buffer protocol, or of what has __dlpack__,
    valid for work on the CUDA stream `stream` if they are on a device.

    Errors: InvalidArgument for other objects and for memory that is not contiguous.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(source, torch.Tensor):
        return _memory_of_torch(source)
    try:
        return _memory_of_buffer(source, writable)
    except TypeError:
        pass  # it has no buffer
    if not hasattr(source, "__dlpack__"):
        raise InvalidArgument(
            f"a {type(source).__name__} has neither a buffer nor __dlpack__, and is no torch tensor"
        )
    on_cuda = source.__dlpack_device__()[0] in (CUDA, CUDA_MANAGED)
    # The protocol's name for CUDA's default stream is 1.
    return _memory_of_capsule(
        source.__dlpack__(stream=stream or 1) if on_cuda else source.__dlpack__()
    )

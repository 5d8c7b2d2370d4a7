"""libravenstore.so by ctypes: every struct and function of client/ravenstore.h.

tests/python/abi_test.py compares this file with the header. ctypes releases the GIL while a
function runs, so a wait for room stops no other thread of Python's.
"""

from __future__ import annotations

import ctypes
import enum
import os
import pathlib
import threading
from ctypes import (
    POINTER,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_ssize_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any, ClassVar

NAME = "libravenstore.so"


class Code(enum.IntEnum):
    """ravenstore_code_t."""

    OK = 0
    INVALID_ARGUMENT = 1
    OUT_OF_MEMORY = 2
    TIMED_OUT = 3
    NOT_FOUND = 4
    WRONG_STATE = 5
    LOST = 6
    CAPTURING = 7
    IS_FORKED = 8
    UNAVAILABLE = 9
    VERSION_MISMATCH = 10
    PERMISSION = 11
    DEVICE = 12
    SYSTEM = 13
    LIMIT = 14
    CORRUPT = 15
    UNSUPPORTED = 16
    RECOMPUTE = 100


class CreateFlag(enum.IntFlag):
    """ravenstore_create_options.flags."""

    FAIL_FAST = 1
    FAIL_STUCK = 2
    LONG_LIVED = 4
    STREAM_ORDERED = 8


class ConnectFlag(enum.IntFlag):
    """ravenstore_connect_options.flags."""

    FIXED_ADDRESSES = 1


class RegionSleepFlag(enum.IntFlag):
    """ravenstore_region_sleep's flags."""

    KEEP_NOTHING = 1
    UNCHANGED = 2


class RegionWakeFlag(enum.IntFlag):
    """ravenstore_region_wake's flags."""

    DO_NOT_WAIT = 1
    IN_ORDER = 2


class SetFlag(enum.IntFlag):
    """ravenstore_set_options.flags."""

    MAY_LOAD = 1
    SET_FAIL_FAST = 2


class OrderFlag(enum.IntFlag):
    """ravenstore_order_job's flags, with RegionSleepFlag.KEEP_NOTHING."""

    ORDER_WAKE = 4


class GetFlag(enum.IntFlag):
    """ravenstore_get_options.flags."""

    READ_WRITE = 0
    READ_ONLY = 1
    BLOCKING = 2
    ON_DEVICE = 4


class PutFlag(enum.IntFlag):
    """ravenstore_put_options.flags."""

    NEEDED_IN = 1
    ORDER = 2
    NOT_MODIFIED = 4
    NOT_NEEDED = 8


class Priority(enum.IntEnum):
    """Which of this client's tensors keep their place when some have to leave the device."""

    LOW = -1
    NORMAL = 0
    HIGH = 1


class _Options(ctypes.Structure):
    """A struct whose first field is its size; the library takes fields it does not get as 0."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(struct_size=ctypes.sizeof(type(self)), **fields)


class ConnectOptions(_Options):
    """ravenstore_connect_options."""

    _fields_: ClassVar = [
        ("struct_size", c_size_t),
        ("socket", c_char_p),
        ("name", c_char_p),
        ("device_budget", c_uint64),
        ("host_budget", c_uint64),
        ("timeout_ns", c_uint64),
        ("flags", c_uint32),
    ]


class CreateOptions(_Options):
    """ravenstore_create_options."""

    _fields_: ClassVar = [
        ("struct_size", c_size_t),
        ("device", c_int32),
        ("flags", c_uint32),
        ("name", c_char_p),
        ("timeout_ns", c_uint64),
        ("stream", c_void_p),
    ]


class GetOptions(_Options):
    """ravenstore_get_options."""

    _fields_: ClassVar = [
        ("struct_size", c_size_t),
        ("flags", c_uint32),
        ("device", c_int32),
        ("timeout_ns", c_uint64),
    ]


class PutOptions(_Options):
    """ravenstore_put_options."""

    _fields_: ClassVar = [
        ("struct_size", c_size_t),
        ("flags", c_uint32),
        ("needed_in_ns", c_uint64),
        ("order", c_int64),
        ("recompute_ns", c_uint64),
        ("priority", c_int32),
    ]


class PinnedOptions(_Options):
    """ravenstore_pinned_options."""

    _fields_: ClassVar = [
        ("struct_size", c_size_t),
        ("device", c_int32),
        ("timeout_ns", c_uint64),
    ]


class StatsStruct(_Options):
    """ravenstore_stats."""

    _fields_: ClassVar = [
        ("struct_size", c_size_t),
        ("tensors", c_uint64),
        ("gets", c_uint64),
        ("hits", c_uint64),
        ("late_hits", c_uint64),
        ("misses", c_uint64),
        ("prefetches", c_uint64),
        ("bytes_out", c_uint64),
        ("bytes_in", c_uint64),
        ("device_bytes", c_uint64),
        ("host_bytes", c_uint64),
        ("device_budget", c_uint64),
        ("host_budget", c_uint64),
        ("stall_ns", c_uint64),
        ("pinned_bytes", c_uint64),
        ("pinned_locked", c_uint64),
        ("page_bytes", c_uint64),
    ]


class RegionInfo(_Options):
    """ravenstore_region_info."""

    _fields_: ClassVar = [
        ("struct_size", c_size_t),
        ("bytes", c_uint64),
        ("allocations", c_uint64),
        ("asleep", c_uint64),
        ("devices", c_uint64),
    ]


class SetOptions(_Options):
    """ravenstore_set_options."""

    _fields_: ClassVar = [
        ("struct_size", c_size_t),
        ("version", c_uint64),
        ("least_version", c_uint64),
        ("timeout_ns", c_uint64),
        ("flags", c_uint32),
    ]


class SetPart(_Options):
    """ravenstore_set_part."""

    _fields_: ClassVar = [
        ("struct_size", c_size_t),
        ("bytes", c_uint64),
        ("address", c_void_p),
        ("device", c_int32),
    ]


STRUCTS: dict[str, type[_Options]] = {
    "ravenstore_connect_options": ConnectOptions,
    "ravenstore_create_options": CreateOptions,
    "ravenstore_get_options": GetOptions,
    "ravenstore_put_options": PutOptions,
    "ravenstore_pinned_options": PinnedOptions,
    "ravenstore_stats": StatsStruct,
    "ravenstore_region_info": RegionInfo,
    "ravenstore_set_options": SetOptions,
    "ravenstore_set_part": SetPart,
}

ENUMS: list[type[enum.IntEnum] | type[enum.IntFlag]] = [
    Code,
    CreateFlag,
    GetFlag,
    PutFlag,
    Priority,
    ConnectFlag,
    RegionSleepFlag,
    RegionWakeFlag,
    SetFlag,
    OrderFlag,
]

# Handles and streams are numbers to Python; None is NULL.
_store = _tensor = _stream = _address = _region = _set = c_void_p
HOST_FUNCTION = ctypes.CFUNCTYPE(None, c_void_p)

# name: (result, argument types)
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "ravenstore_last_error": (c_char_p, []),
    "ravenstore_code_name": (c_char_p, [c_int]),
    "ravenstore_version": (c_char_p, []),
    "ravenstore_connect": (c_int, [POINTER(ConnectOptions), POINTER(_store)]),
    "ravenstore_disconnect": (None, [_store]),
    "ravenstore_create": (c_int, [_store, c_uint64, POINTER(CreateOptions), POINTER(_tensor)]),
    "ravenstore_create_batch": (
        c_int,
        [_store, POINTER(c_uint64), c_size_t, POINTER(CreateOptions), POINTER(_tensor)],
    ),
    "ravenstore_adopt": (
        c_int,
        [_store, _address, c_uint64, _stream, POINTER(CreateOptions), POINTER(_tensor)],
    ),
    "ravenstore_get": (
        c_int,
        [_store, _tensor, _stream, POINTER(GetOptions), POINTER(_address)],
    ),
    "ravenstore_begin_get_batch": (
        c_int,
        [_store, POINTER(_tensor), c_size_t, POINTER(GetOptions)],
    ),
    "ravenstore_get_batch": (
        c_int,
        [_store, POINTER(_tensor), c_size_t, _stream, POINTER(GetOptions), POINTER(_address)],
    ),
    "ravenstore_must_recompute": (c_int32, [_tensor]),
    "ravenstore_get_into": (c_int, [_store, _tensor, _address, _stream, POINTER(GetOptions)]),
    "ravenstore_put": (c_int, [_store, _tensor, _stream, POINTER(PutOptions)]),
    "ravenstore_put_batch": (
        c_int,
        [_store, POINTER(_tensor), c_size_t, _stream, POINTER(PutOptions)],
    ),
    "ravenstore_free": (c_int, [_store, _tensor, _stream]),
    "ravenstore_free_batch": (c_int, [_store, POINTER(_tensor), c_size_t, _stream]),
    "ravenstore_data": (_address, [_tensor]),
    "ravenstore_size": (c_uint64, [_tensor]),
    "ravenstore_id": (c_uint64, [_tensor]),
    "ravenstore_device": (c_int32, [_tensor]),
    "ravenstore_ready": (c_int32, [_tensor]),
    "ravenstore_check": (c_int, [_store, _stream]),
    "ravenstore_pinned_alloc": (
        c_int,
        [_store, c_uint64, POINTER(PinnedOptions), POINTER(_address)],
    ),
    "ravenstore_pinned_free": (c_int, [_store, _address, POINTER(_stream), c_size_t]),
    "ravenstore_step": (c_int, [_store]),
    "ravenstore_keep_in_place": (c_int, [_store, _tensor]),
    "ravenstore_end_keep_in_place": (c_int, [_store, _tensor]),
    "ravenstore_trim": (c_int, [_store]),
    "ravenstore_sleep": (c_int, [_store, c_uint64, POINTER(c_uint64)]),
    "ravenstore_wake": (c_int, [_store]),
    "ravenstore_region_open": (c_int, [POINTER(ConnectOptions), POINTER(_region)]),
    "ravenstore_region_close": (None, [_region]),
    "ravenstore_region_enter": (_region, [_region]),
    "ravenstore_region_here": (_region, []),
    "ravenstore_region_of": (_region, [_address]),
    "ravenstore_region_alloc": (_address, [c_ssize_t, c_int, _stream]),
    "ravenstore_region_free": (c_int, [_address, c_ssize_t, c_int, _stream]),
    "ravenstore_region_sleep": (c_int, [_region, c_uint32, c_uint64, POINTER(c_uint64)]),
    "ravenstore_region_wake": (c_int, [_region, c_uint32, c_uint64, _stream]),
    "ravenstore_region_await": (c_int, [_address, _stream, c_uint64]),
    "ravenstore_region_keep_in_place": (c_int, [_address, c_int32]),
    "ravenstore_region_read": (c_int, [_address, c_uint64, _address, c_uint64]),
    "ravenstore_region_take_orders": (c_int, [_region, c_char_p, c_uint32]),
    "ravenstore_region_is_ordered": (c_int, []),
    "ravenstore_region_await_order": (c_int, [c_uint64]),
    "ravenstore_region_obey": (c_int, [_region, POINTER(c_uint64)]),
    "ravenstore_order_job": (
        c_int,
        [c_char_p, c_char_p, c_char_p, c_uint32, c_uint64, POINTER(c_uint64)],
    ),
    "ravenstore_region_get_info": (c_int, [_region, POINTER(RegionInfo)]),
    "ravenstore_set_seal": (
        c_int,
        [_store, c_char_p, c_uint64, c_uint64, POINTER(c_uint64)],
    ),
    "ravenstore_set_drop": (c_int, [_store, c_char_p, c_uint64]),
    "ravenstore_set_open": (
        c_int,
        [_store, c_char_p, POINTER(SetOptions), POINTER(_set), POINTER(c_uint64)],
    ),
    "ravenstore_set_close": (None, [_set]),
    "ravenstore_set_use": (c_int, [_set, c_uint64]),
    "ravenstore_set_end_use": (c_int, [_set]),
    "ravenstore_set_advance": (c_int, [_set, c_uint64, c_uint64]),
    "ravenstore_set_version": (c_uint64, [_set]),
    "ravenstore_set_parts": (c_size_t, [_set]),
    "ravenstore_set_get_part": (c_int, [_set, c_size_t, POINTER(SetPart)]),
    "ravenstore_get_stats": (c_int, [_store, POINTER(StatsStruct)]),
    "ravenstore_backend": (c_char_p, [_store]),
    "ravenstore_host_stream_create": (_stream, []),
    "ravenstore_host_stream_destroy": (None, [_stream]),
    "ravenstore_host_stream_run": (None, [_stream, HOST_FUNCTION, c_void_p]),
    "ravenstore_host_stream_synchronize": (None, [_stream]),
}


def candidates() -> list[str]:
    """Where the library is looked for, in this order; the last is a name for the loader's path."""
    chosen = os.environ.get("RAVENSTORE_LIBRARY")
    if chosen:
        return [chosen]
    package = pathlib.Path(__file__).resolve().parent
    return [str(package / NAME), NAME, "/usr/local/lib/" + NAME]


class LibraryNotFound(ImportError):
    """There is no libravenstore.so, or one that lacks a function of this package's version."""


def _load() -> ctypes.CDLL:
    tried = []
    for path in candidates():
        # An absolute path that is not there is not an error of the file's.
        if "/" in path and not os.path.exists(path):
            tried.append(f"{path}: no such file")
            continue
        try:
            loaded = ctypes.CDLL(path)
        except OSError as error:
            tried.append(f"{path}: {error}")
            continue
        _declare(loaded, path)
        return loaded
    raise LibraryNotFound(
        f"{NAME} could not be loaded; install it (deploy/install, or pip install ./python), or set "
        "RAVENSTORE_LIBRARY to its path. Tried: " + "; ".join(tried)
    )


def _declare(loaded: ctypes.CDLL, path: str) -> None:
    for name, (result, arguments) in FUNCTIONS.items():
        try:
            function = getattr(loaded, name)
        except AttributeError:
            version = ""
            if hasattr(loaded, "ravenstore_version"):
                loaded.ravenstore_version.restype = c_char_p
                version = f" (it is version {loaded.ravenstore_version().decode()})"
            raise LibraryNotFound(
                f"{path} has no {name}{version}: it and this package are of different versions; "
                "install both from one checkout"
            ) from None
        function.restype = result
        function.argtypes = arguments


_lock = threading.Lock()
_library: ctypes.CDLL | None = None


def library() -> ctypes.CDLL:
    """The library, loaded at the first call. Raises LibraryNotFound. Any thread may call it."""
    global _library  # noqa: PLW0603 - one library a process
    if _library is None:
        with _lock:
            if _library is None:
                _library = _load()
    return _library

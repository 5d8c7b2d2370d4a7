"""The few calls of the CUDA driver that Python needs: order two streams, wait for one.

They work on the device's primary context, which PyTorch, the CUDA runtime and libravenstore.so use.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Callable, Iterator
from ctypes import byref, c_int, c_uint, c_void_p

from ravenstore.errors import DeviceError

_EVENT_DISABLE_TIMING = 2


@functools.cache
def _driver() -> ctypes.CDLL:
    # As libravenstore.so finds it.
    return ctypes.CDLL(os.environ.get("RAVENSTORE_LIBCUDA") or "libcuda.so.1")


def _call(name: str, *arguments: object) -> None:
    function: Callable[..., int] = getattr(_driver(), name)
    result = function(*arguments)
    if result != 0:
        raise DeviceError(f"{name} failed with CUDA's error {result}")


@contextlib.contextmanager
def _primary_context(device: int) -> Iterator[None]:
    """The device's context is this thread's inside."""
    handle, context, before = c_int(), c_void_p(), c_void_p()
    _call("cuDeviceGet", byref(handle), c_int(device))
    _call("cuDevicePrimaryCtxRetain", byref(context), handle)
    try:
        _call("cuCtxGetCurrent", byref(before))
        _call("cuCtxSetCurrent", context)
        try:
            yield
        finally:
            _call("cuCtxSetCurrent", before)
    finally:
        _call("cuDevicePrimaryCtxRelease_v2", handle)


def synchronize(device: int, stream: int) -> None:
    """Waits for the work of `stream` (0: the default stream) without the GIL."""
    with _primary_context(device):
        _call("cuStreamSynchronize", c_void_p(stream))


def order(device: int, first: int, then: int) -> None:
    """Work that `then` gets from now on waits for what `first` has. Waits for nothing itself."""
    event = c_void_p()
    with _primary_context(device):
        _call("cuEventCreate", byref(event), c_uint(_EVENT_DISABLE_TIMING))
        try:
            _call("cuEventRecord", event, c_void_p(first))
            _call("cuStreamWaitEvent", c_void_p(then), event, c_uint(0))
        finally:
            _call("cuEventDestroy_v2", event)

"""The exceptions of this package, one class for each error code of client/ravenstore.h."""

from __future__ import annotations

from ravenstore._abi import Code, library


class RavenstoreError(Exception):
    """What a call of the store's failed with. `code` is the error's code in the C interface."""

    code: Code

    def __init__(self, message: str, code: Code | None = None) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return self.message


class InvalidArgument(RavenstoreError, ValueError):
    """An argument that no state of the store would make right."""

    code = Code.INVALID_ARGUMENT


class OutOfMemory(RavenstoreError, MemoryError):
    """No room on the device or in host memory; the message names who holds it."""

    code = Code.OUT_OF_MEMORY


class TimedOut(RavenstoreError, TimeoutError):
    """A wait reached its bound."""

    code = Code.TIMED_OUT


class NotFound(RavenstoreError, LookupError):
    """There is no such thing."""

    code = Code.NOT_FOUND


class WrongState(RavenstoreError):
    """The tensor or store is not in the state that the call needs: used after free, put twice."""

    code = Code.WRONG_STATE


class Lost(RavenstoreError):
    """The daemon or the device died and the bytes with it: go back to a checkpoint."""

    code = Code.LOST


class Capturing(RavenstoreError):
    """The stream is being captured into a CUDA graph, where this call cannot be made."""

    code = Code.CAPTURING


class IsForked(RavenstoreError):
    """The store is the parent process's. A child of fork() connects to a store of its own."""

    code = Code.IS_FORKED


class Unavailable(RavenstoreError, ConnectionError):
    """No daemon serves at the socket."""

    code = Code.UNAVAILABLE


class VersionMismatch(RavenstoreError):
    """The daemon and libravenstore.so are of versions that do not understand each other."""

    code = Code.VERSION_MISMATCH


class PermissionDenied(RavenstoreError, PermissionError):
    """The user may not do this, or the socket's daemon is not to be trusted."""

    code = Code.PERMISSION


class DeviceError(RavenstoreError):
    """The device or its driver failed."""

    code = Code.DEVICE


class SystemFailure(RavenstoreError):
    """The operating system refused something; the message says what."""

    code = Code.SYSTEM


class Limit(RavenstoreError):
    """One of the bounds of client/ravenstore.h: tensors, streams, gets, names."""

    code = Code.LIMIT


class Corrupt(RavenstoreError):
    """The daemon or this process broke the protocol; the store cannot be used any more."""

    code = Code.CORRUPT


class Unsupported(RavenstoreError, NotImplementedError):
    """The backend or this version does not have it."""

    code = Code.UNSUPPORTED


class MustRecompute(RavenstoreError):
    """The bytes were dropped, as their put allowed: get the tensor and write all of them again."""

    code = Code.RECOMPUTE


_CLASSES: dict[int, type[RavenstoreError]] = {
    kind.code: kind for kind in RavenstoreError.__subclasses__()
}


def error_of(code: int, message: str) -> RavenstoreError:
    """The exception for a code of the C interface. A code of a later version is a plain one."""
    kind = _CLASSES.get(code)
    if kind is not None:
        return kind(message)
    return RavenstoreError(f"{message} (code {code})", Code.SYSTEM)


def check(code: int) -> None:
    """Raises what `code` says, with this thread's last words. Call it right after the function."""
    if code == Code.OK:
        return
    words = library().ravenstore_last_error().decode("utf-8", "replace")
    raise error_of(code, words or f"failed with code {code}")

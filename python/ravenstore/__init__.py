"""Ravenstore: a job may use more GPU memory than its GPU has free.

The explicit interface is Store and Tensor (see ravenstore.store); `import ravenstore` loads neither
PyTorch nor libravenstore.so.
"""

from ravenstore._abi import LibraryNotFound, Priority
from ravenstore._units import bytes_of
from ravenstore.errors import (
    Capturing,
    Corrupt,
    DeviceError,
    InvalidArgument,
    IsForked,
    Limit,
    Lost,
    MustRecompute,
    NotFound,
    OutOfMemory,
    PermissionDenied,
    RavenstoreError,
    SystemFailure,
    TimedOut,
    Unavailable,
    Unsupported,
    VersionMismatch,
    WrongState,
)
from ravenstore.offload import Explanation, explain, offload, step
from ravenstore.profile import profile
from ravenstore.store import Batch, HostStream, Stats, Store, Tensor, View

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "Capturing",
    "Corrupt",
    "DeviceError",
    "Explanation",
    "HostStream",
    "InvalidArgument",
    "IsForked",
    "LibraryNotFound",
    "Limit",
    "Lost",
    "MustRecompute",
    "NotFound",
    "OutOfMemory",
    "PermissionDenied",
    "Priority",
    "RavenstoreError",
    "Stats",
    "Store",
    "SystemFailure",
    "Tensor",
    "TimedOut",
    "Unavailable",
    "Unsupported",
    "VersionMismatch",
    "View",
    "WrongState",
    "__version__",
    "bytes_of",
    "explain",
    "offload",
    "profile",
    "step",
]

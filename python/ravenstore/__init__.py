"""Ravenstore: a job may use more GPU memory than its GPU has free.

The explicit interface is Store and Tensor (see ravenstore.store); `import ravenstore` loads neither
PyTorch nor libravenstore.so.
"""

from ravenstore._abi import LibraryNotFound, Priority
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
from ravenstore.pinned import patch_dataloader, pin_memory, pinned_empty
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
    "explain",
    "offload",
    "patch_dataloader",
    "pin_memory",
    "pinned_empty",
    "step",
]

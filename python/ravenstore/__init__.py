"""Ravenstore: a job may use more GPU memory than its GPU has free.

The explicit interface is Store and Tensor (see ravenstore.store); `import ravenstore` loads neither
PyTorch nor libravenstore.so.
"""

from typing import TYPE_CHECKING, Any

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
from ravenstore.named import OpenedSet, Published
from ravenstore.offload import Explanation, explain, max_memory_plain, offload, step
from ravenstore.orders import sleep_point, take_orders
from ravenstore.pinned import patch_dataloader, pin_memory, pinned_empty
from ravenstore.profile import profile
from ravenstore.regions import (
    capture_graph,
    detect_asleep,
    read_asleep,
    region,
    sleep,
    stay,
    tags,
    wait_for,
    wait_in_forward,
    wake,
)
from ravenstore.safetensors import load_safetensors
from ravenstore.store import Batch, HostStream, Stats, Store, Tensor, View

if TYPE_CHECKING:
    from ravenstore.chunked_loss import chunk_loss
    from ravenstore.optimizer import StatesLost, offload_optimizer
    from ravenstore.plan import Plan, prepare

__version__ = "0.1.0"

# What needs PyTorch is imported when it is first used.
_LAZY = {
    "Plan": "plan",
    "StatesLost": "optimizer",
    "chunk_loss": "chunked_loss",
    "offload_optimizer": "optimizer",
    "prepare": "plan",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "embedded", "errors"]


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
    "OpenedSet",
    "OutOfMemory",
    "PermissionDenied",
    "Plan",
    "Priority",
    "Published",
    "RavenstoreError",
    "StatesLost",
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
    "capture_graph",
    "chunk_loss",
    "detect_asleep",
    "explain",
    "load_safetensors",
    "max_memory_plain",
    "offload",
    "offload_optimizer",
    "patch_dataloader",
    "pin_memory",
    "pinned_empty",
    "prepare",
    "profile",
    "read_asleep",
    "region",
    "sleep",
    "sleep_point",
    "stay",
    "step",
    "tags",
    "take_orders",
    "wait_for",
    "wait_in_forward",
    "wake",
]

"""Tensors of a state_dict that are read from the store when something uses them.

`torch.save`, `torch.distributed.checkpoint` and libraries on top of them write one tensor after the
other. So a checkpoint needs host memory for one tensor at a time.
"""

from __future__ import annotations

import collections
from typing import Any, NoReturn, Protocol

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from ravenstore._watch import READS_NO_VALUE


class Read(Protocol):
    """Makes a copy of a state. `briefly`: it is freed soon, and may take pinned memory."""

    def __call__(self, *, briefly: bool = False) -> torch.Tensor: ...


class SavedState(torch.Tensor):
    """A state on the CPU. Each use calls `read`, which copies it from the store.

    Threads: the optimizer's. Each use raises what `read` raises. It cannot be written; what is
    written to a view of it is lost.
    """

    _read: Read

    @staticmethod
    def __new__(
        cls, read: Read, shape: torch.Size, stride: tuple[int, ...], dtype: torch.dtype
    ) -> SavedState:
        state: SavedState = torch.Tensor._make_wrapper_subclass(
            cls, shape, strides=stride, dtype=dtype, device=torch.device("cpu")
        )
        state._read = read
        return state

    @classmethod
    def __torch_function__(
        cls, function: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in READS_NO_VALUE:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **kwargs)
        if function is torch.Tensor.detach or _changes_nothing(function, args, kwargs):
            return args[0]
        if function is torch.Tensor.is_pinned:
            return False
        name = getattr(function, "__name__", "")
        writes = (name.endswith("_") and not name.endswith("__")) or name == "__setitem__"
        if name == "data_ptr" or (writes and _is_in(args[:1])) or _is_in(kwargs.get("out")):
            raise RuntimeError(
                f"{name}() of a state that state_dict() gives: it is read from the store at each "
                "use, so that what is written to it would be lost; clone() it first"
            )
        args, kwargs = tree_map_only(SavedState, lambda state: state._read(), (args, kwargs))
        return function(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, function: Any, *_: Any, **__: Any) -> NoReturn:
        raise RuntimeError(
            f"{function} uses a state that state_dict() gives, in a way that goes past Python: "
            "clone() it first"
        )

    def __reduce_ex__(self, _protocol: Any) -> Any:
        """As PyTorch's of a tensor, with a storage that is read when it is written."""
        storage = _SavedStorage.of(self._read, self.dtype, self.numel() * self.itemsize)
        hooks: collections.OrderedDict[Any, Any] = collections.OrderedDict()
        words = (storage, 0, tuple(self.shape), self.stride(), False, hooks)
        return torch._utils._rebuild_tensor_v2, words

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        """The values as they are now."""
        made = self._read()
        memo[id(self)] = made
        return made

    def __repr__(self, **_: Any) -> str:
        return repr(self._read())


def _is_in(value: Any) -> bool:
    return any(isinstance(leaf, SavedState) for leaf in tree_leaves(value))


def _changes_nothing(function: Any, args: tuple[Any, ...], kwargs: Any) -> bool:
    """Whether it is a to() with the type or the device that the SavedState has."""
    if function is not torch.Tensor.to or len(args) != 2 or kwargs:
        return False
    state, wanted = args
    if isinstance(wanted, str):
        wanted = torch.device(wanted)
    return wanted in (state.dtype, torch.device("cpu"))


class _SavedStorage(torch.storage.TypedStorage):
    """torch.save and pickle take it for a storage of the CPU."""

    @classmethod
    def of(cls, read: Read, dtype: torch.dtype, size: int) -> _SavedStorage:
        bytes_ = _SavedBytes(size, device="meta")
        bytes_.read = read
        storage = cls(wrap_storage=bytes_, dtype=dtype, _internal=True)
        # Under which device torch.save files it.
        storage._fake_device = torch.device("cpu")
        return storage

    def __new__(cls, *_: Any, **__: Any) -> _SavedStorage:
        made: _SavedStorage = object.__new__(cls)
        return made

    def __reduce__(self) -> Any:
        bytes_ = self._untyped_storage
        assert isinstance(bytes_, _SavedBytes)
        made = torch.storage.TypedStorage(
            wrap_storage=bytes_.cpu(), dtype=self.dtype, _internal=True
        )
        return made.__reduce__()


class _SavedBytes(torch.UntypedStorage):
    """Has no memory. torch.save calls cpu() of a storage of another device, and writes the copy."""

    read: Read

    def cpu(self) -> torch.UntypedStorage:
        """The bytes, in memory of their own."""
        return self.read(briefly=True).untyped_storage()

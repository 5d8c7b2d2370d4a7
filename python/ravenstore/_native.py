"""Finds the native part for the PyTorch that runs, and says why where there is none.

It is compiled for one minor version of PyTorch, whose classes differ, and keeps to CPython's stable
ABI. The package may hold several, each named for its PyTorch: `_torch_2_11.abi3.so`. Next to it is
`_torch_2_11.cuda.so`, which only a PyTorch with CUDA can load.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import pathlib
from types import ModuleType

from ravenstore import _abi
from ravenstore.errors import Unsupported, error_of

# The minor versions of PyTorch that a native part can be built for, as in client/torch_version.h.
OLDEST = (2, 9)
NEWEST = (2, 15)


def _minor(version: str) -> str:
    return ".".join(version.split("+")[0].split(".")[:2])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in _minor(version).split("."))


def is_too_old(version: str) -> bool:
    """Whether offload() refuses this PyTorch."""
    return _numbers(version) < OLDEST


def is_known(version: str) -> bool:
    """Whether a native part can be built for this PyTorch."""
    return OLDEST <= _numbers(version) <= NEWEST


def how_to_get(version: str) -> str:
    """How to get a native part for this PyTorch."""
    if is_too_old(version):
        return f"ravenstore.offload() needs PyTorch {OLDEST[0]}.{OLDEST[1]} or newer"
    if _numbers(version) > NEWEST:
        newest = f"{NEWEST[0]}.{NEWEST[1]}"
        return f"this ravenstore knows PyTorch up to {newest}, and a newer one may know this"
    return "`pip install ./python` from a checkout builds it for the PyTorch that is there"


class TooOld(Unsupported):
    """This PyTorch is older than OLDEST."""


def minors() -> list[str]:
    """The minor versions of PyTorch that this package has native parts for."""
    parts = pathlib.Path(__file__).parent.glob("_torch_*.abi3.so")
    names = (path.name.split(".")[0] for path in parts)
    found = (name.removeprefix("_torch_").replace("_", ".") for name in names)
    return sorted(set(found), key=lambda minor: [int(part) for part in minor.split(".")])


def find(version: str, cuda: bool = False) -> ModuleType:
    """The native part that $RAVENSTORE_NATIVE names, else this package's for a PyTorch of
    `version`, which has been imported. Errors: ModuleNotFoundError when there is none, ImportError
    or OSError when it cannot be loaded.

    cuda: that PyTorch is one with CUDA.
    """
    path = os.environ.get("RAVENSTORE_NATIVE")
    if not path:
        name = f"ravenstore._torch_{_minor(version).replace('.', '_')}"
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:
            raise ModuleNotFoundError(f"No module named {name!r}")
        path = found.origin
    spec = importlib.util.spec_from_file_location("ravenstore._torch", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"RAVENSTORE_NATIVE={path} is no extension module")
    # It wants the library by name only.
    _abi.library()
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    part = pathlib.Path(path)
    part = part.with_name(part.name.split(".")[0] + ".cuda.so")
    if cuda and part.exists():
        ctypes.CDLL(str(part)).ravenstore_torch_use_cuda()
    return module


@functools.cache
def load() -> ModuleType:
    """The native part, for the PyTorch that runs.

    Errors: Unsupported when there is none, or when it was compiled for another minor version of
    PyTorch, whose classes differ. TooOld when offload() does not support the PyTorch.
    """
    try:
        import torch
    except ImportError as error:
        raise Unsupported(f"ravenstore.offload() needs PyTorch: {error}") from None
    if is_too_old(torch.__version__):
        raise TooOld(f"{how_to_get(torch.__version__)}, and this is {torch.__version__}")
    try:
        native = find(torch.__version__, torch.version.cuda is not None)
    except (ImportError, OSError) as error:
        absent = isinstance(error, ModuleNotFoundError) and minors()
        why = f"only for {', '.join(minors())}" if absent else str(error)
        raise Unsupported(
            f"this ravenstore has no native part for PyTorch {torch.__version__} ({why}): "
            f"{how_to_get(torch.__version__)}"
        ) from None
    if _minor(native.compiled_for) != _minor(torch.__version__):
        raise Unsupported(
            f"this ravenstore's native part is for PyTorch {_minor(native.compiled_for)}, and this "
            f"is {torch.__version__}: {how_to_get(torch.__version__)}"
        )
    native.set_error_maker(error_of)
    return native

"""Finds the native part, `ravenstore._torch`, and says why where there is none."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from types import ModuleType

from ravenstore.errors import Unsupported, error_of


def _minor(version: str) -> str:
    return ".".join(version.split("+")[0].split(".")[:2])


def _find() -> ModuleType:
    """The one that $RAVENSTORE_NATIVE names, else that of this package."""
    chosen = os.environ.get("RAVENSTORE_NATIVE")
    if not chosen:
        return importlib.import_module("ravenstore._torch")
    spec = importlib.util.spec_from_file_location("ravenstore._torch", chosen)
    if spec is None or spec.loader is None:
        raise ImportError(f"RAVENSTORE_NATIVE={chosen} is no extension module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def load() -> ModuleType:
    """The native part, for the PyTorch that runs.

    Errors: Unsupported when there is none, or when it was compiled for another minor version of
    PyTorch, whose classes differ.
    """
    try:
        import torch
    except ImportError as error:
        raise Unsupported(f"ravenstore.offload() needs PyTorch: {error}") from None
    try:
        native = _find()
    except ImportError as error:
        raise Unsupported(
            f"this ravenstore has no native part for PyTorch {torch.__version__} ({error}): "
            "`pip install ./python` from a checkout builds it for the PyTorch that is there"
        ) from None
    if _minor(native.compiled_for) != _minor(torch.__version__):
        raise Unsupported(
            f"this ravenstore's native part is for PyTorch {_minor(native.compiled_for)}, and this "
            f"is {torch.__version__}: `pip install ./python` from a checkout builds it anew"
        )
    native.set_error_maker(error_of)
    return native

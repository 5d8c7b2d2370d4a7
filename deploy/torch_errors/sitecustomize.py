"""Runs when a Python of an elastic job starts (ravenrun puts this folder into $PYTHONPATH).

On backend:cudaMallocAsync PyTorch says "Allocation on device 0 would exceed allowed memory. (out
of memory)" where its own allocator says "CUDA out of memory.". Programs that try a smaller batch,
such as Accelerate's find_executable_batch_size, know only the second. So each such error begins
with it. Nothing else of PyTorch changes, and no file does.
"""

import importlib.machinery
import importlib.util
import os
import sys

KNOWN = "CUDA out of memory. "
UNKNOWN = "would exceed allowed memory"


def name_out_of_memory(torch):
    """Makes PyTorch's out-of-memory errors begin with the words that programs look for."""
    error = getattr(torch, "OutOfMemoryError", None)
    if error is None:
        return
    begin = error.__init__

    def begin_with_known_words(self, *words):
        if len(words) == 1 and isinstance(words[0], str) and UNKNOWN in words[0]:
            words = (KNOWN + words[0],)
        begin(self, *words)

    error.__init__ = begin_with_known_words


class TorchLoader:
    """The loader of torch, which once it has run changes the error."""

    def __init__(self, loader):
        self.loader = loader

    def __getattr__(self, name):
        return getattr(self.loader, name)

    def exec_module(self, module):
        self.loader.exec_module(module)
        name_out_of_memory(module)


class TorchFinder:
    """Finds torch as the finders behind it do."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = TorchLoader(spec.loader)
        return spec


def run_next(folder):
    """Runs the sitecustomize that this one hides, if there is one."""
    here = os.path.realpath(folder)
    sys.path[:] = [path for path in sys.path if os.path.realpath(path or os.curdir) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


sys.meta_path.insert(0, TorchFinder())
run_next(os.path.dirname(os.path.abspath(__file__)))

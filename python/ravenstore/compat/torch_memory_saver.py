"""torch_memory_saver's interface over `ravenstore.regions`, for SGLang and others that call it.

    import ravenstore.compat.torch_memory_saver
    ravenstore.compat.torch_memory_saver.install()  # before SGLang is imported

Without a change of the program, and for the processes that it starts:

    PYTHONPATH=$(python -m ravenstore.compat.torch_memory_saver) python -m sglang.launch_server ...

Memory with a CPU backup is a tag `tms+bytes:TAG` of the daemon's, memory without one `tms:TAG`.
docs/sleep.md says what differs.

Owns, streams, threads, fork: as ravenstore.regions. Errors: ravenstore's. Nothing here ends the
process, and a resume without room may be tried again.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ravenstore import regions
from ravenstore._units import Duration
from ravenstore.errors import InvalidArgument, NotFound, Unsupported, WrongState

if TYPE_CHECKING:
    import torch

FOLDER = str(pathlib.Path(__file__).parent / "drop_in")
"""Where `import torch_memory_saver` finds this module."""

_DEFAULT = "default"
_KEPT = "tms+bytes:"
_DROPPED = "tms:"


def _name(tag: str, is_kept: bool) -> str:
    return (_KEPT if is_kept else _DROPPED) + tag


def _named(tag: str | None) -> dict[str, regions.Tag]:
    """The regions of the tag, or of all."""
    return {
        name: state
        for name, state in regions.tags().items()
        if name.startswith((_KEPT, _DROPPED)) and (not tag or name.partition(":")[2] == tag)
    }


class TorchMemorySaver:
    """Call `torch_memory_saver`, the one of this process."""

    enabled = True
    timeout: Duration | None = None
    """Of the waits for room in pause and resume, for each tag; None: 30 s."""
    memory_margin_bytes = 0
    retain_cpu_backup = False

    def __init__(self) -> None:
        self._hook_mode = "torch"

    @property
    def hook_mode(self) -> str:
        """Of `preload` and `torch`, which are the same here, what was said."""
        return self._hook_mode

    @hook_mode.setter
    def hook_mode(self, mode: str) -> None:
        if mode not in ("preload", "torch"):
            raise InvalidArgument(f"hook_mode is 'preload' or 'torch', not {mode!r}")
        self._hook_mode = mode

    @contextlib.contextmanager
    def region(
        self,
        tag: str = _DEFAULT,
        enable_cpu_backup: bool = False,
        enable_disk_backup: bool = False,
        cpu_backup_backend: str | None = None,
    ) -> Iterator[None]:
        """GPU memory that this thread allocates within is paused with the tag. With a backup its
        bytes are kept, in the daemon's pools."""
        name = _checked_name(tag, enable_cpu_backup, enable_disk_backup, cpu_backup_backend)
        with regions.region(name):
            yield

    @contextlib.contextmanager
    def cuda_graph(
        self,
        cuda_graph: torch.cuda.CUDAGraph,
        pool: Any = None,
        stream: torch.cuda.Stream | None = None,
        capture_error_mode: str = "global",
        tag: str = _DEFAULT,
        enable_cpu_backup: bool = False,
        cpu_backup_backend: str | None = None,
    ) -> Iterator[None]:
        """As `torch.cuda.graph`. The memory of graphs with one `pool` is shared within a tag."""
        name = _checked_name(tag, enable_cpu_backup, False, cpu_backup_backend)
        options = {"stream": stream, "capture_error_mode": capture_error_mode}
        with regions.capture_graph(cuda_graph, name, pool=pool, **options):
            yield

    @contextlib.contextmanager
    def disable(self, dispose_mem_pool_after_use: bool = True) -> Iterator[None]:
        """GPU memory that this thread allocates within is PyTorch's own, and goes back to the
        driver at the end if it is free then."""
        with regions.region(None):
            yield
        import torch

        if dispose_mem_pool_after_use and torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    def pause(self, tag: str | None = None) -> None:
        """The tag's memory, or all, goes back to the driver. What is paused already stays so.
        Errors: as ravenstore.sleep; tags before the one that failed are paused."""
        for name, state in _named(tag).items():
            if not state.asleep:
                keep: regions.Keep = "bytes" if name.startswith(_KEPT) else "nothing"
                regions.sleep(name, keep=keep, timeout=self.timeout)

    def resume(self, tag: str | None = None) -> None:
        """The tag's memory, or all, is where it was. Errors: as ravenstore.wake."""
        regions.wake(*_named(tag), timeout=self.timeout)

    def get_cpu_backup(self, x: torch.Tensor, zero_copy: bool = False) -> torch.Tensor | None:
        """A copy on the CPU of a paused tensor with a backup; None of any other. The GPU needs room
        for it meanwhile. With zero_copy it is a copy as well."""
        try:
            return regions.read_asleep(x, timeout=self.timeout)
        except (NotFound, WrongState):
            return None

    def set_disk_backup_dir(self, path: str) -> None:
        """Nothing: where bytes are kept is the daemon's configuration."""


def _checked_name(tag: str, cpu: bool, disk: bool, backend: str | None) -> str:
    if cpu and disk:
        raise InvalidArgument("enable_cpu_backup and enable_disk_backup exclude each other")
    if backend is not None and not cpu:
        raise InvalidArgument("cpu_backup_backend needs enable_cpu_backup=True")
    if backend not in (None, "pinned", "mmap"):
        raise InvalidArgument(f"cpu_backup_backend is 'pinned' or 'mmap', not {backend!r}")
    return _name(tag, cpu or disk)


torch_memory_saver = TorchMemorySaver()


@contextlib.contextmanager
def configure_subprocess() -> Iterator[None]:
    """Processes that are started within import this module as torch_memory_saver."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [FOLDER, before]))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def refuse_whole_process() -> None:
    """Errors: Unsupported, where the environment asks for all of a process's memory."""
    if os.environ.get("TMS_INIT_ENABLE") == "1":
        raise Unsupported(
            "TMS_INIT_ENABLE=1 pauses all of a process's memory, which Ravenstore does not: unset "
            "it, and allocate within torch_memory_saver.region()"
        )


def install() -> None:
    """From here on `import torch_memory_saver` finds this module, in this process and in those that
    multiprocessing starts. Errors: ImportError, if another is imported already; Unsupported."""
    found = sys.modules.get("torch_memory_saver")
    if found is not None and not str(found.__file__).startswith(FOLDER):
        raise ImportError(f"{found.__file__} is imported already: call install() before that")
    if FOLDER not in sys.path:
        sys.path.insert(0, FOLDER)
    importlib.import_module("torch_memory_saver")


if __name__ == "__main__":
    print(FOLDER)

"""The interface of vLLM's `CuMemAllocator` over `ravenstore.regions`, for `LLM.sleep`, `wake_up`.

    import ravenstore.compat.cumem
    ravenstore.compat.cumem.install()  # before the engine is made
    llm = vllm.LLM(..., enable_sleep_mode=True)

In processes that vLLM starts the plugin does it: set `VLLM_PLUGINS=ravenstore`. The daemon's tags
are `vllm:TAG`. docs/sleep.md says what differs.

Owns, streams, threads, fork: as ravenstore.regions. Errors: RuntimeError without room, in a sleep
or a wake, which may be tried again; else ravenstore's.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from ravenstore import regions
from ravenstore._units import Duration
from ravenstore.errors import OutOfMemory, TimedOut

_PREFIX = "vllm:"


def _tags() -> dict[str, regions.Tag]:
    every = regions.tags()
    return {
        name.removeprefix(_PREFIX): tag for name, tag in every.items() if name.startswith(_PREFIX)
    }


@contextlib.contextmanager
def _named_errors() -> Iterator[None]:
    try:
        yield
    except (OutOfMemory, TimedOut) as error:
        raise RuntimeError(str(error)) from error


class CuMemAllocator:
    """Call `get_instance()`."""

    instance: ClassVar[CuMemAllocator | None] = None
    default_tag: ClassVar[str] = "default"
    timeout: Duration | None = None
    """Of the waits for room in sleep and wake_up, for each tag; None: 30 s."""

    @staticmethod
    def get_instance() -> CuMemAllocator:
        """The one of this process."""
        if CuMemAllocator.instance is None:
            CuMemAllocator.instance = CuMemAllocator()
        return CuMemAllocator.instance

    @contextlib.contextmanager
    def use_memory_pool(self, tag: str | None = None) -> Iterator[None]:
        """GPU memory that this thread allocates within is the tag's."""
        with regions.region(_PREFIX + (self.default_tag if tag is None else tag)):
            yield

    reuse_memory_pool = use_memory_pool

    def sleep(self, offload_tags: Sequence[str] | str | None = None) -> None:
        """All memory goes back to the driver, that of sleeping tags apart. The bytes of
        `offload_tags` are kept, of the default tag if it is None."""
        if offload_tags is None:
            offload_tags = self.default_tag
        kept = {offload_tags} if isinstance(offload_tags, str) else set(offload_tags)
        for tag in _tags():
            self._sleep(tag, "bytes" if tag in kept else "nothing")
        _collect()

    def discard(self, tags: Sequence[str] | str) -> None:
        """The memory of these tags goes back to the driver, without its bytes."""
        for tag in [tags] if isinstance(tags, str) else tags:
            self._sleep(tag, "nothing")
        _collect()

    def _sleep(self, tag: str, keep: regions.Keep) -> None:
        found = _tags().get(tag)
        if found is not None and not found.asleep:
            with _named_errors():
                regions.sleep(_PREFIX + tag, keep=keep, timeout=self.timeout)

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """The memory of these tags, or of all, is where it was. After an error the tags before the
        one that failed are awake, and another call wakes the others."""
        with _named_errors():
            for tag in _tags():
                if tags is None or tag in tags:
                    regions.wake(_PREFIX + tag, timeout=self.timeout)

    def get_current_usage(self) -> int:
        """Bytes of all tags, whether they sleep or not."""
        return sum(tag.bytes for tag in _tags().values())

    def release_pools(self) -> None:
        """Nothing: tags stay until the process ends."""

    close = release_pools


def _collect() -> None:
    """What else the caller expects to be free then."""
    gc.collect()
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def install() -> None:
    """vLLM in this process uses this class. Errors: ImportError without vLLM; RuntimeError, if
    its own allocator is in use."""
    module: Any = importlib.import_module("vllm.device_allocator.cumem")
    theirs = module.CuMemAllocator
    if theirs is CuMemAllocator:
        return
    if theirs.instance is not None:
        raise RuntimeError("vLLM's allocator is in use: call install() before the engine is made")
    theirs.get_instance = staticmethod(CuMemAllocator.get_instance)  # where it is imported by name
    module.CuMemAllocator = CuMemAllocator
    module.cumem_available = True


def plugin() -> None:
    """What vLLM calls in each of its processes: installs if $VLLM_PLUGINS names `ravenstore`."""
    if "ravenstore" in os.environ.get("VLLM_PLUGINS", "").split(","):
        install()

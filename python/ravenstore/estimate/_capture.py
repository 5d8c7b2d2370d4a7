"""Runs a training job's steps on a GPU that is not there, and records what it allocates."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ravenstore.estimate._estimate import (
    GPU,
    CaptureRefused,
    Estimate,
    allocator_of_environment,
    memory_of,
    of_recording,
)
from ravenstore.estimate._fake import FakeGpu
from ravenstore.estimate._recorder import Recorder

STEPS = 3
"""An optimizer makes its states in the first step, and the second is the first with all of them:
the third shows that no more comes."""

Step = Callable[[], Any]


def record(build: Callable[[], Step], *, steps: int, gpu: str, total_memory: int) -> Recorder:
    """What `build` and the steps that it gives allocate. Marks: "build", "step 1" and so on."""
    recorder = Recorder()
    with FakeGpu(recorder, gpu, total_memory):
        recorder.mark("build")
        step = build()
        if not callable(step):
            raise CaptureRefused(
                f"build gave a {type(step).__name__}: it has to give the function of one step"
            )
        for number in range(1, steps + 1):
            recorder.mark(f"step {number}")
            step()
        del step
    return recorder


def capture(
    build: Callable[[], Step],
    *,
    steps: int = STEPS,
    gpu: str = GPU,
    gpu_memory: int | str | None = None,
    allocator: str | None = None,
    in_group: bool = False,
) -> Estimate:
    """Documented in the package; in_group: the process is one of several, over NCCL."""
    if steps < 1:
        raise CaptureRefused(f"steps is {steps}: give at least 1")
    begin = time.perf_counter()
    total_memory = memory_of(gpu, gpu_memory)
    recorder = record(build, steps=steps, gpu=gpu, total_memory=total_memory)
    return of_recording(
        recorder,
        gpu=gpu,
        total_memory=total_memory,
        allocator=allocator or allocator_of_environment(),
        in_group=in_group,
        seconds=time.perf_counter() - begin,
    )

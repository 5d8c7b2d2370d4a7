"""How much memory of its GPU a job will need, before it runs.

    from ravenstore import estimate

    def build():                                        # an ordinary job, for "cuda"
        model = Net().to("cuda")
        optimizer = torch.optim.AdamW(model.parameters())
        def step():
            model(torch.randn(32, 784, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return step

    print(estimate.capture(build))
    print(estimate.estimate_model("resnet50", batch=64, precision="autocast"))
    print(estimate.estimate_script(["train.py", "--batch", "32"]))

or, from a shell, python -m ravenstore.estimate MODEL|config.json|script.py.

A capture runs the job's own code, with tensors that have shapes but no bytes: no GPU is needed, and
hardly any memory. Every allocation of three steps is recorded and replayed through a model of the
allocator. The memory of libraries is added from a measured table. It is made for PyTorch 2.11.
Nothing is captured unasked. Other effects of the job's code, on files for example, are real.

Threads: one capture at a time in a process. One that goes on to use a GPU calls torch.cuda.init()
first, for PyTorch would take a capture for the beginning of CUDA's use. Errors: CaptureRefused says
in one sentence why there is no estimate and what to give instead; what the job's own code raises
passes through.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ravenstore.estimate._estimate import ALLOCATORS, GPU, CaptureRefused, Estimate

RUNGS = ("capture", "formula")
"""How estimate_model can come to its estimate, the surest first."""

__all__ = [
    "ALLOCATORS",
    "GPU",
    "RUNGS",
    "CaptureRefused",
    "Estimate",
    "capture",
    "estimate_model",
    "estimate_script",
]


def _need_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise CaptureRefused(f"{sys.executable} has no PyTorch: run it with a Python that has")


def capture(
    build: Callable[[], Callable[[], Any]],
    *,
    steps: int = 3,
    gpu: str = GPU,
    gpu_memory: int | str | None = None,
    allocator: str | None = None,
) -> Estimate:
    """The estimate for a job that `build` prepares.

    build: makes model and optimizer on "cuda" and gives the function of one step, which is called
        `steps` times.
    gpu: the name of the GPU, as torch.cuda.get_device_name says it.
    gpu_memory: its size in bytes or as text, where the job should find another than the GPU has.
    allocator: one of ALLOCATORS; else what PyTorch's own variables in the environment choose.
    """
    from ravenstore.estimate import _capture

    return _capture.capture(build, steps=steps, gpu=gpu, gpu_memory=gpu_memory, allocator=allocator)


def estimate_model(
    model: Any,
    batch: int,
    *,
    sequence: int | None = None,
    image: int | None = None,
    optimizer: str = "adamw",
    precision: str = "fp32",
    checkpointing: bool = False,
    inference: bool = False,
    ranks: int = 1,
    steps: int = 3,
    gpu: str = GPU,
    gpu_memory: int | str | None = None,
    allocator: str | None = None,
    rung: str = "capture",
) -> Estimate:
    """The estimate for training a model in the ordinary way.

    model: a torchvision name, the path of a Hugging Face config.json or such a configuration, a
        function that makes a torch.nn.Module, or one's name as "module:callable".
    batch: samples of a step; `sequence` tokens each, or images of `image` by `image` pixels.
    optimizer: "adamw", "adam", "sgd", "momentum", "adafactor" or "rmsprop".
    precision: "fp32", "bf16" (the weights as well) or "autocast" (to bfloat16).
    checkpointing: as Hugging Face's models have it. inference: without gradients and optimizer.
    ranks: more than one: what each takes of its own GPU in DistributedDataParallel over NCCL.
    rung: "capture", or "formula", which is quicker and less sure: for PyTorch's own allocator, in
        its default form.
    The rest is as in capture().
    """
    _need_torch()
    if rung not in RUNGS:
        raise CaptureRefused(f"{rung!r} is no rung: give one of {', '.join(RUNGS)}")
    from ravenstore.estimate import _capture, _models, _quick

    training = _models.Training(
        batch=batch,
        sequence=sequence,
        image=image,
        optimizer=optimizer,
        precision=precision,
        checkpointing=checkpointing,
        inference=inference,
        ranks=ranks,
        device="cuda" if rung == "capture" else "meta",
    )
    if rung == "formula":
        return _quick.estimate(model, training, gpu=gpu, gpu_memory=gpu_memory)
    subject = _models.subject_of(model, training)
    return _capture.capture(
        _models.step_of(subject, training),
        steps=steps,
        gpu=gpu,
        gpu_memory=gpu_memory,
        allocator=allocator,
        in_group=ranks > 1 and not inference,
    )


def estimate_script(
    command: Sequence[str | os.PathLike[str]],
    *,
    steps: int = 3,
    gpu: str = GPU,
    gpu_memory: int | str | None = None,
    allocator: str | None = None,
    seconds_max: float = 300,
    memory_max: int | str = "16GiB",
) -> Estimate:
    """The estimate for a script that trains: command is its path and arguments.

    It runs in a process of its own, on a GPU that is not there and without a network, until the
    first of its optimizers made `steps` steps. What it prints goes to standard error.

    seconds_max, memory_max: what it may take, in seconds and in bytes of host memory.
    The rest is as in capture().
    """
    from ravenstore.estimate import _script

    return _script.estimate(
        [os.fspath(word) for word in command],
        steps=steps,
        gpu=gpu,
        gpu_memory=gpu_memory,
        allocator=allocator,
        seconds_max=seconds_max,
        memory_max=memory_max,
    )

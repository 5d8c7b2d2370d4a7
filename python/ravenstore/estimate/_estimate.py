"""What an estimate says, and how a recording becomes one."""

from __future__ import annotations

import dataclasses
import hashlib
import os

from ravenstore._rich import table
from ravenstore._units import bytes_of, size_text
from ravenstore.errors import InvalidArgument
from ravenstore.estimate import _overheads
from ravenstore.estimate._cache import CudaCache, CudaMallocAsync, Model, StoreArena
from ravenstore.estimate._recorder import Recorder

GPU = "NVIDIA H100 80GB HBM3"
"""The GPU of an estimate that names none."""


class CaptureRefused(InvalidArgument):
    """This cannot be captured. The message is one sentence: why, and what to give instead."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """How much memory of its GPU a job will take. All sizes are in bytes."""

    used: int
    """The most that its tensors take at one time, as its allocator rounds them."""
    reserved: int
    """The most that its allocator holds of the GPU."""
    context: int
    """What the job holds outside of its allocator: the CUDA context, the libraries."""
    margin: int
    """What 99 of 100 such estimates needed above `total`, at most."""
    source: str
    """ "formula", "capture", "history" or "measured"."""
    notes: tuple[str, ...] = ()
    """Sentences: what was missing, and what was taken instead."""
    seconds: float = 0.0
    """What making the estimate took."""
    job: str = ""
    """Of a capture: the same for jobs that allocate the same, whatever their commands are; 32
    hexadecimal digits."""

    @property
    def total(self) -> int:
        """What the job takes of the GPU."""
        return self.reserved + self.context

    def as_dict(self) -> dict[str, object]:
        """For JSON: the fields, and `total`."""
        return {**dataclasses.asdict(self), "total": self.total}

    def __str__(self) -> str:
        parts = [
            f"{size_text(self.total + self.margin)} of the GPU to be safe: it probably takes "
            f"{size_text(self.total)}, and {size_text(self.margin)} are the margin "
            f"({self.source}, {self.seconds:.1f} s)",
            f"  tensors {size_text(self.used)}, the allocator with them "
            f"{size_text(self.reserved)}, context {size_text(self.context)}",
            *(f"  {note}" for note in self.notes),
        ]
        return "\n".join(parts)

    def _repr_html_(self) -> str:
        rows = [
            ("to be safe", self.total + self.margin),
            ("probably", self.total),
            ("margin", self.margin),
            ("tensors", self.used),
            ("allocator with them", self.reserved),
            ("context", self.context),
        ]
        caption = f"Memory of the GPU, by {self.source}, in {self.seconds:.1f} s"
        return table(caption, [(name, size_text(count)) for name, count in rows], self.notes)


ALLOCATORS = ("native", "expandable_segments", "cudaMallocAsync", "store")


def allocator_of_environment() -> str:
    """What PyTorch's own variables choose: "native", unless they name another."""
    words = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
    words = words.replace(" ", "")
    if "backend:cudaMallocAsync" in words:
        return "cudaMallocAsync"
    return "expandable_segments" if "expandable_segments:True" in words else "native"


def _model_of(allocator: str, budget: int) -> Model:
    models: dict[str, Model] = {
        "native": CudaCache(),
        "expandable_segments": CudaCache(expandable=True),
        "cudaMallocAsync": CudaMallocAsync(),
        "store": StoreArena(budget),
    }
    if allocator not in models:
        raise CaptureRefused(f"{allocator!r} is no allocator: give one of {', '.join(models)}")
    return models[allocator]


def of_recording(
    recorder: Recorder,
    *,
    gpu: str,
    total_memory: int,
    allocator: str,
    seconds: float,
    in_group: bool = False,
) -> Estimate:
    """What the job of the recording takes of that GPU with that allocator."""
    overheads = _overheads.of(gpu)
    peaks = _model_of(allocator, total_memory).replay(recorder.events)
    notes = list(recorder.notes)
    if not _overheads.known(gpu):
        notes.append(f"what libraries take was not measured on {gpu}: that of {GPU} was taken")
    return with_context(
        Estimate(
            used=peaks.used,
            reserved=peaks.reserved,
            context=0,
            margin=int(peaks.reserved * overheads.capture_margin[recorder.sort]),
            source="capture",
            notes=tuple(notes),
            seconds=seconds,
            job=hashlib.sha256(repr(recorder.events).encode()).hexdigest()[:32],
        ),
        gpu=gpu,
        total_memory=total_memory,
        in_group=in_group,
    )


def with_context(estimate: Estimate, *, gpu: str, total_memory: int, in_group: bool) -> Estimate:
    """The estimate with what the job takes of that GPU outside its allocator, and a note if all of
    it does not fit. in_group: the process is one of several, over NCCL."""
    overheads = _overheads.of(gpu)
    context = overheads.context + (overheads.nccl if in_group else 0)
    whole = dataclasses.replace(estimate, context=context)
    if whole.total <= total_memory:
        return whole
    note = f"it does not fit: the GPU has {size_text(total_memory)}"
    return dataclasses.replace(whole, notes=(*whole.notes, note))


def memory_of(gpu: str, gpu_memory: int | str | None) -> int:
    """The bytes of that GPU: as given, else as the table has it."""
    return _overheads.of(gpu).memory if gpu_memory is None else bytes_of(gpu_memory)

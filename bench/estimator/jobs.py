"""The training jobs that the estimator is fitted to and judged on: drawn at random, built, run.

A job is plain data, so that its file needs no code of ours to be read: `family`, what that family's
architecture takes, and how it is trained. Same seed, same jobs.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import math
import random

import models
import torch
from torch.utils.checkpoint import checkpoint

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-4),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-4),
}
PRECISIONS = ("fp32", "bf16", "autocast")


@dataclasses.dataclass(frozen=True)
class Job:
    """One run. `optimizer` "none" is inference."""

    family: str
    architecture: dict
    batch: int
    optimizer: str = "adam"
    precision: str = "fp32"
    checkpointed: bool = False
    compiled: bool = False

    def asdict(self) -> dict:
        return dataclasses.asdict(self)

    def key(self) -> str:
        """The same for the same job, in every process."""
        text = json.dumps(self.asdict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def architecture_key(self) -> str:
        """The same for jobs that train one architecture: what is held out, is held out by this."""
        text = json.dumps([self.family, self.architecture], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class Made:
    """A job's model, its optimizer and one batch, on `device`; `step()` is one step of it."""

    def __init__(self, job: Job, device: str) -> None:
        self.job = job
        self.device = torch.device(device)
        dtype = torch.bfloat16 if job.precision == "bf16" else torch.float32
        with self.device:
            torch.manual_seed(1)
            self.model = models.FAMILIES[job.family](**job.architecture).to(self.device, dtype)
            self.batch = self.model.batch(job.batch, dtype)
        self.training = job.optimizer != "none"
        self.model.train(self.training)
        if job.checkpointed:
            for block in self.model.blocks():
                _checkpoint(block)
        self.forward = torch.compile(self.model.loss) if job.compiled else self.model.loss
        self.optimizer = (
            OPTIMIZERS[job.optimizer](self.model.parameters()) if self.training else None
        )

    def step(self) -> None:
        if self.optimizer is None:
            with torch.no_grad(), self.autocast():
                self.forward(*self.batch)
            return
        with self.autocast():
            loss = self.forward(*self.batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def autocast(self):
        if self.job.precision != "autocast":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)


def _checkpoint(block: torch.nn.Module) -> None:
    forward = block.forward

    def recomputed(*given, **named):
        if not torch.is_grad_enabled():
            return forward(*given, **named)
        return checkpoint(forward, *given, use_reentrant=False, **named)

    block.forward = recomputed


def _trained(rng: random.Random) -> dict:
    """How a job is trained."""
    inference = rng.random() < 0.12
    return {
        "optimizer": "none" if inference else rng.choice(list(OPTIMIZERS)),
        "precision": rng.choice(PRECISIONS),
    }


@functools.lru_cache
def _elements_of_one(family: str, architecture: str) -> tuple[float, int]:
    """Of one sample: what its layers give; and the model's parameters."""
    architecture = json.loads(architecture)
    with torch.device("meta"):
        model = models.FAMILIES[family](**architecture)
        total = [0]

        def seen(_module, _given, out):
            out = out[0] if isinstance(out, tuple) else out
            total[0] += out.numel()

        for module in model.modules():
            if not list(module.children()):
                module.register_forward_hook(seen)
        with torch.no_grad():
            model.loss(*model.batch(2, torch.float32))
    return total[0] / 2, sum(p.numel() for p in model.parameters())


# Jobs are drawn so that their memory is spread evenly in its logarithm between these.
SMALLEST, LARGEST = 0.4 * 2**30, 56 * 2**30


def _batch(rng: random.Random, of_one: float, parameters: float, largest: int) -> int:
    """A batch of a usual size that brings the job to a size drawn at random."""
    aim = math.exp(rng.uniform(math.log(SMALLEST), math.log(LARGEST)))
    batch = max(1, min(largest, int((aim - 4 * parameters) / of_one)))
    if batch > 8 and rng.random() < 0.8:  # most people take a multiple of eight
        batch = batch // 8 * 8
    return batch


LARGEST_BATCH = {"mlp": 1 << 20, "lstm": 4096}


def draw(seed: int) -> Job:
    """The job of this number."""
    rng = random.Random(f"ravenstore {seed}")
    # Three jobs in a row train one architecture, each in its own way.
    shape_rng = random.Random(f"ravenstore architecture {seed // 3}")
    family = shape_rng.choice(list(models.DRAWN))
    architecture = models.DRAWN[family](shape_rng)
    trained = _trained(rng)
    elements, parameters = _elements_of_one(family, json.dumps(architecture))
    # Roughly: half as much again as its layers give is kept until backward.
    of_one = elements * 1.5 * (4 if trained["precision"] == "fp32" else 2)
    batch = _batch(rng, of_one, 4.0 * parameters, LARGEST_BATCH.get(family, 2048))
    checkpointed = (
        family in models.CHECKPOINTED and trained["optimizer"] != "none" and rng.random() < 0.15
    )
    return Job(family, architecture, batch, checkpointed=checkpointed, **trained)


def drawn(count: int, *, compiled: int = 0) -> list[Job]:
    """`count` jobs, no two the same, and the first `compiled` that can be, compiled as well."""
    seen: dict[str, Job] = {}
    for seed in itertools.count():
        job = draw(seed)
        seen.setdefault(job.key(), job)
        if len(seen) >= count:
            break
    jobs = list(seen.values())
    fit = [job for job in jobs if not job.checkpointed and job.family != "lstm"]
    return [dataclasses.replace(job, compiled=True) for job in fit[:compiled]] + jobs


def real() -> list[Job]:
    """Models that others wrote, none of them in the data that the formula is fitted to."""
    jobs = []
    for number, (name, batch) in enumerate(models.REAL_BATCHES.items()):
        # The four ways in turn, so that each is seen with several kinds of model.
        optimizer, precision = (
            ("adamw", "autocast"),
            ("momentum", "fp32"),
            ("adam", "bf16"),
            ("adamw", "fp32"),
        )[number % 4]
        jobs.append(Job("real", {"name": name}, batch, optimizer, precision))
    return jobs


def main() -> None:
    """Prints jobs, one a line, as measure.py reads them."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--count", type=int, default=2400)
    parser.add_argument("--compiled", type=int, default=0, help="so many of them compiled as well")
    parser.add_argument("--real", action="store_true", help="the models that others wrote instead")
    given = parser.parse_args()
    for job in real() if given.real else drawn(given.count, compiled=given.compiled):
        print(json.dumps(job.asdict()))


if __name__ == "__main__":
    main()

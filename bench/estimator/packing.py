"""Packs measured jobs on simulated GPUs by what each estimator says of them.

First come, first served: the job at the head of the queue goes to the GPU with the most room left,
when what is reserved for it fits and the compute of all on it stays below the cap. No job overtakes
it. A job that is not alone runs slower by the sum of the compute uses, once that is above one. A
job whose actual bytes exceed what is reserved for it is killed when those on its GPU do not fit
together, and runs again later, alone on a GPU; where jobs are elastic, it goes on and waits for its
own moves instead. After its first iterations a job's reservation may be corrected to what it has.
"""

from __future__ import annotations

import dataclasses
import random

GPUS = 8
CAP = 1.5
# The share of a job's work after which its peak is known: its first iterations.
FIRST = 0.02


@dataclasses.dataclass
class Job:
    """One job of the queue: bytes, and seconds of work on a GPU that it has for itself."""

    said: float
    actual: float
    work: float
    compute: float
    done: float = 0.0
    measured: bool = False
    reserved: float = 0.0


@dataclasses.dataclass(frozen=True)
class Outcome:
    makespan: float
    kills: int
    """Runs that ended because a job took more than was reserved for it."""
    moved: int
    """Jobs that became elastic instead."""
    together: float
    """How many jobs a busy GPU had on average."""


def queue(pairs, count, seed):
    """`count` jobs of (said, actual) bytes in a random order, with work and compute uses."""
    rng = random.Random(f"ravenstore packing {seed}")
    chosen = rng.sample(pairs, count)
    return [
        Job(said, actual, rng.lognormvariate(6.4, 0.6), rng.uniform(0.1, 0.6))
        for said, actual in chosen
    ]


class _Gpu:
    def __init__(self, size):
        self.size = size
        self.jobs: list[Job] = []

    def room(self):
        return self.size - sum(job.reserved for job in self.jobs)

    def compute(self):
        return sum(job.compute for job in self.jobs)

    def slowdown(self):
        return max(1.0, self.compute())

    def held(self):
        """What its jobs have, or will have once their first iterations are over."""
        return sum(job.actual for job in self.jobs)


def simulate(jobs, size, *, corrected=False, elastic=False):
    """Runs the queue on GPUS devices of `size` bytes."""
    gpus = [_Gpu(size) for _ in range(GPUS)]
    waiting = list(jobs)
    now = kills = moved = 0
    busy = together = 0.0
    while waiting or any(gpu.jobs for gpu in gpus):
        waiting = _admit(waiting, gpus, size)
        running = [(gpu, job) for gpu in gpus for job in gpu.jobs]
        step = min(_until(gpu, job) for gpu, job in running)
        now += step
        for gpu in gpus:
            busy += step if gpu.jobs else 0
            together += step * len(gpu.jobs)
            for job in gpu.jobs:
                job.done += step / gpu.slowdown()
        for gpu in gpus:
            for job in [job for job in gpu.jobs if _at_first(job)]:
                job.measured = True
                if job.actual > job.reserved and gpu.held() > size:
                    if elastic:
                        moved += 1
                        continue
                    kills += 1
                    gpu.jobs.remove(job)
                    job.said, job.done, job.measured = size, 0.0, False
                    waiting.append(job)
                elif corrected:
                    job.reserved = job.actual
            gpu.jobs = [job for job in gpu.jobs if job.done < job.work - 1e-6]
    return Outcome(now, kills, moved, together / busy)


def _at_first(job):
    return not job.measured and job.done >= FIRST * job.work - 1e-6


def _until(gpu, job):
    aim = job.work if job.measured else FIRST * job.work
    return max(aim - job.done, 1e-6) * gpu.slowdown()


def _admit(waiting, gpus, size):
    while waiting:
        job = waiting[0]
        need = min(job.said, size)
        fit = [
            gpu
            for gpu in gpus
            if gpu.room() >= need and (not gpu.jobs or gpu.compute() + job.compute <= CAP)
        ]
        if not fit:
            break
        job.reserved = need
        max(fit, key=_Gpu.room).jobs.append(job)
        waiting = waiting[1:]
    return waiting

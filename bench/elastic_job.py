#!/usr/bin/env python3
"""A PyTorch program that knows nothing of Ravenstore: what bench/elastic_bench.py runs alone and
under ravenrun --mode elastic. Prints one JSON object: losses, seconds of each step, the peak of
what PyTorch had allocated, its allocator, and when the steps began and ended, by the clock that all
processes share.

    elastic_job.py [--model gpt-large] [--steps 8] [--compile] [--deterministic] [--recompute]
                   [--device cuda] [--small] [--pause SECONDS] [--gate N]

--gate: after N steps it prints "ready" and goes on with the first when it is sent a line. --pause:
it is idle so long after each step.
"""

import argparse
import json
import os
import pathlib
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import elastic_models  # noqa: E402
import torch  # noqa: E402


def optimizer_of(program, on_gpu):
    parameters = list(program.module.parameters())
    if program.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=1e-4, fused=on_gpu)
    return torch.optim.SGD(parameters, lr=1e-2) if program.optimizer == "sgd" else None


class Job:
    def __init__(self, options):
        torch.manual_seed(0)
        self.device = options.device
        self.on_gpu = options.device == "cuda"
        program = elastic_models.build(options.model, options.device, options.small)
        if options.recompute:
            program.recompute()
        self.mixed = program.optimizer == "adamw"
        self.optimizer = optimizer_of(program, self.on_gpu)
        self.compute = torch.compile(program.loss) if options.compile else program.loss
        self.losses, self.seconds = [], []

    def step(self):
        began = time.monotonic()
        with torch.autocast(self.device, torch.bfloat16, enabled=self.mixed):
            loss = self.compute()
        if self.optimizer is not None:
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        self.losses.append(loss.item())  # waits for the step
        self.seconds.append(time.monotonic() - began)

    def run(self, steps, pause):
        began = time.monotonic()
        for _ in range(steps):
            self.step()
            time.sleep(pause)
        return [began, time.monotonic()]

    def result(self):
        return {
            "losses": self.losses,
            "seconds": self.seconds,
            "peak": torch.cuda.max_memory_allocated() if self.on_gpu else 0,
            "allocator": torch.cuda.get_allocator_backend() if self.on_gpu else "",
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", choices=sorted(elastic_models.PROGRAMS), default="gpt-large")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--deterministic", action="store_true", help="the same bits in each run")
    parser.add_argument("--recompute", action="store_true", help="keeps less of the forward pass")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="for a machine without a GPU")
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--gate", type=int, default=0)
    options = parser.parse_args()
    if options.deterministic:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # read when cuBLAS is first used
        torch.use_deterministic_algorithms(options.model not in elastic_models.VARYING)
        torch.utils.deterministic.fill_uninitialized_memory = False  # what it costs is not ours
    job = Job(options)
    if options.gate:
        job.run(options.gate, 0)
        print("ready", flush=True)
        sys.stdin.readline()
    span = job.run(options.steps, options.pause)
    print(json.dumps(job.result() | {"span": span}), flush=True)


if __name__ == "__main__":
    main()

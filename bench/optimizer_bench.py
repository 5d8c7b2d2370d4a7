#!/usr/bin/env python3
"""Prints what optimizer states in the store cost, a JSON object a line.

    optimizer_bench.py [--device cuda|cpu] [--steps N] [--gpu-name NAME]

A GPT-2-shaped model (1.5 billion parameters on a GPU, a tiny one on the CPU) trains with a fused
AdamW: plain, with its states away, and with its states updated in the backward pass. The bound is
the plain step plus the time in which the link, measured here with both directions busy, carries the
states that the device may not keep. Needs PyTorch, and libravenstore.so and ravenstored from
bazel-bin or from $RAVENSTORE_LIBRARY and $RAVENSTORED.
"""

import argparse
import gc
import platform
import statistics
import subprocess
import sys
import time

import figures

figures.use_package()

import ravenstore  # noqa: E402
import torch  # noqa: E402
from ravenstore import embedded  # noqa: E402
from ravenstore._demo_model import Gpt, Shape  # noqa: E402
from torch.nn import functional as F  # noqa: E402

SHAPES = {
    "cuda": Shape(48, 1600, 25, length=1024, batch=4, vocabulary=50257, tied=True),
    "cpu": Shape(4, 128, 4, length=32, batch=2, vocabulary=2048, tied=True),
}
# chunk, the store's device budget, the daemon's pool
SIZES = {"cuda": (64 << 20, 256 << 20, 20 << 30), "cpu": (512 << 10, 2 << 20, 64 << 20)}
HOST_LINK = 4e9  # bytes a second, as configured for the host backend
FIRST_STEP = 6e3 / 64  # ms a GiB of states: 64 GiB in 6 s
WARM_UP = 3
BATCHES = 3


class Training:
    """One way to train: its seconds a step, its peak, and what its store moved."""

    def __init__(self, device, steps, offload=None):
        torch.manual_seed(1)
        shape = SHAPES[device]
        self.device, self.steps = device, steps
        with torch.device(device):
            self.model = Gpt(shape)
            self.text = torch.randint(shape.vocabulary, (shape.batch, shape.length))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.count = sum(p.numel() for p in self.model.parameters())
        self.states = 2 * 4 * self.count
        if offload:
            offload(self.optimizer)

    def step(self):
        with torch.autocast(self.device, torch.bfloat16):
            logits = self.model.logits(self.text)
            loss = F.cross_entropy(logits.flatten(0, 1), self.text.flatten())
        loss.backward()
        del logits, loss
        self.optimizer.step()
        self.optimizer.zero_grad()

    def synchronize(self):
        if self.device == "cuda":
            torch.cuda.synchronize()

    def run(self):
        """Seconds a step, and the peak of PyTorch's memory, None on the CPU."""
        begin = time.perf_counter()
        self.step()
        self.synchronize()
        self.first = time.perf_counter() - begin
        for _ in range(WARM_UP - 1):
            self.step()
        self.synchronize()
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        seconds = []
        for _ in range(BATCHES):
            begin = time.perf_counter()
            for _ in range(self.steps):
                self.step()
            self.synchronize()
            seconds.append((time.perf_counter() - begin) / self.steps)
        peak = torch.cuda.max_memory_allocated() if self.device == "cuda" else None
        return statistics.median(seconds), peak


def start_daemon(device):
    """This process's; its socket."""
    options = {"backend": "cuda"}
    if device == "cpu":
        slow = ("--link-bytes-per-second", str(HOST_LINK))
        options = {"backend": "host", "device_total": "64MiB", "flags": slow}
    return embedded.start(pool_size=SIZES[device][2], **options).socket


def link_rate(device):
    """Bytes a second each way while both are busy."""
    if device == "cpu":
        return HOST_LINK
    size, copies = 64 << 20, 40
    pinned = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    there = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in range(2)]
    best = 0.0
    for _ in range(3):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(copies):
            with torch.cuda.stream(streams[0]):
                there[0].copy_(pinned[0], non_blocking=True)
            with torch.cuda.stream(streams[1]):
                pinned[1].copy_(there[1], non_blocking=True)
        torch.cuda.synchronize()
        best = max(best, copies * size / (time.perf_counter() - begin))
    return best


def equal_steps(device, socket):
    """Whether five steps give the plain optimizer's bits, states away, for each kind of step."""
    chunk, budget, _ = SIZES[device]
    elements = 4 * budget // 8
    for flags in ({"fused": True}, {"foreach": True}, {"foreach": False}):
        sets = []
        for moves in (False, True):
            generator = torch.Generator(device).manual_seed(5)
            shapes = ((elements // 1024, 1024), (1000,), (333, 777))
            params = [
                torch.nn.Parameter(torch.randn(shape, device=device, generator=generator))
                for shape in shapes
            ]
            optimizer = torch.optim.AdamW(params, **flags)
            if moves:
                store = ravenstore.Store.connect(socket=socket, device_budget=budget)
                ravenstore.offload_optimizer(optimizer, store, chunk=chunk)
            for _ in range(5):
                for p in params:
                    p.grad = torch.randn(p.shape, device=device, generator=generator)
                optimizer.step()
            sets.append(params)
        if not all(torch.equal(a, b) for a, b in zip(*sets, strict=True)):
            return False
    return True


def measure(options, socket, machine):
    device = options.device
    chunk, budget, _ = SIZES[device]
    rate = link_rate(device)
    training = Training(device, options.steps)
    compute, plain_peak = training.run()
    states = training.states
    bound = compute + max(states - budget, 0) / rate
    del training
    for suffix, in_backward in (("", False), ("_in_backward", True)):
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
        store = ravenstore.Store.connect(socket=socket, device_budget=budget)

        def offload(optimizer, store=store, in_backward=in_backward):
            ravenstore.offload_optimizer(optimizer, store, in_backward=in_backward, chunk=chunk)

        training = Training(device, options.steps, offload)
        took, peak = training.run()
        stats = store.stats()
        steps = WARM_UP + BATCHES * options.steps
        detail = (
            f"{training.count / 1e6:.1f} M parameters; plain {compute * 1e3:.1f} ms, "
            f"away {took * 1e3:.1f} ms; link {rate / 1e9:.1f} GB/s each way; a step moved "
            f"{stats.bytes_in / steps / 1e6:.1f} MB in and {stats.bytes_out / steps / 1e6:.1f} out "
            f"of {states / 1e6:.1f}; {stats.hits} hits, {stats.late_hits} late, "
            f"{stats.misses} misses; the CPU waited {stats.stall_ns / steps / 1e6:.2f} ms a step"
        )
        name = "pytorch.optimizer_vs_bound" + suffix
        figures.emit(name, took / bound, "x", 1.05, machine, bound=bound * 1e3, detail=detail)
        name = "pytorch.optimizer_peak_saved" + suffix
        if peak is None:
            figures.emit(name, None, "of the states", 0.95, machine, skipped="needs a GPU")
        else:
            saved = (plain_peak - peak - budget) / states
            detail = f"{plain_peak / 2**30:.2f} GiB, {(peak + budget) / 2**30:.2f} with the store's"
            figures.emit(name, saved, "of the states", 0.95, machine, at_least=True, detail=detail)
        if not in_backward:
            first_step(training, took, machine)
            saving_peak(training, machine)
        del training, store


def first_step(training, later, machine):
    """What a GiB of states adds to the first step: the host pool grows by it."""
    name, unit = "pytorch.optimizer_first_step", "ms a GiB"
    if training.device == "cpu":
        figures.emit(name, None, unit, FIRST_STEP, machine, skipped="needs a GPU")
        return
    added = (training.first - later) * 1e3 / (training.states / 2**30)
    detail = f"{training.first:.2f} s, later ones {later:.2f}"
    figures.emit(name, added, unit, FIRST_STEP, machine, detail=detail)


def saving_peak(training, machine):
    """How far state_dict() raises the peak of PyTorch's memory; the store's has its budget."""
    name, unit = "pytorch.optimizer_state_dict_peak", "of the states"
    if training.device == "cpu":
        figures.emit(name, None, unit, 0.01, machine, skipped="needs a GPU")
        return
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    begin = time.perf_counter()
    saved = training.optimizer.state_dict()
    took = time.perf_counter() - begin
    rise = torch.cuda.max_memory_allocated() - before
    on_gpu = [v for state in saved["state"].values() for v in state.values() if v.is_cuda]
    detail = f"{rise} bytes in {took:.1f} s; {len(on_gpu)} tensors of it on the GPU"
    figures.emit(name, rise / training.states, unit, 0.01, machine, detail=detail)


def exit_status(device, socket, machine):
    """Of a training that ends as most do: nothing is closed, and the interpreter ends."""
    script = figures.ROOT / "bench/ends_with_states.py"
    command = [sys.executable, str(script), socket, device]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    detail = f"Python {platform.python_version()}, {run.stdout.strip()} chunks of states"
    if run.returncode != 0:
        detail += f"; {run.stderr[-300:]}"
    figures.emit("pytorch.exit_status", run.returncode, "", 0, machine, detail=detail)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    found = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=sorted(SHAPES), default=found)
    parser.add_argument("--steps", type=int, default=5, help="of each of the timed batches")
    parser.add_argument("--gpu-name", default=None)
    options = parser.parse_args()
    gpu = options.gpu_name or (torch.cuda.get_device_name() if found == "cuda" else "no GPU")
    machine = figures.machine(gpu)
    socket = start_daemon(options.device)
    same = equal_steps(options.device, socket)
    figures.emit("pytorch.optimizer_equal", int(same), "", 1, machine, at_least=True)
    exit_status(options.device, socket, machine)
    gc.collect()
    measure(options, socket, machine)


if __name__ == "__main__":
    main()

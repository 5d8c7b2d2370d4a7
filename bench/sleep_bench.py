#!/usr/bin/env python3
"""Prints what it takes to put PyTorch's memory to sleep and to wake it, a JSON object a line.

    sleep_bench [--gib N] [--cycles N] [--gpu-name NAME]

Needs a GPU with twice N GiB free, and N GiB of host memory. A daemon of its own. $RAVENSTORE_BIN
names bazel-bin or a folder with the daemon and the library; else bazel-bin is taken.

N GiB (16) are 64 tensors in one region, whose words are compared after each wake. The link is
PyTorch's own copy of 1 GiB from and to pinned memory, in the same run.

sleep.16gib_s, wake.16gib_s: the median cycle but the first; `first_s` is the first one, in which
the pool's memory is pinned. `bound`: the bytes over the link's rate.
sleep.returned: of the region's bytes, those that the driver says are free then, the least of all.
wake.nothing_16gib_ms: without bytes to bring.
wake.first_tensor_ms: until a kernel has read the first tensor, with `in_order=True`, beyond what
its bytes take on the link. `all_s`: until a kernel has read the last one.
sleep.graph: the share of cycles after which a captured graph computes what it did.
sleep.vs_tms: torch_memory_saver's pause and resume over ours, where its wheel is there. The sum of
both medians, of three cycles in a process of its own (sleep_rival.py).
"""

import argparse
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import figures

RIVAL = pathlib.Path(__file__).resolve().parent / "sleep_rival.py"
GIB = 1 << 30
TENSORS = 64
LINK_ROUNDS = 5
OVER_LINK_MOST = 1.1
FIRST_OVER_LINK_MOST = 2
NOTHING_MS_MOST = 300
RETURNED_LEAST = 0.995
FIRST_TENSOR_MS_MOST = 5
VS_TMS_LEAST = 8
NAMES = (
    "sleep.16gib_s", "wake.16gib_s", "sleep.returned", "wake.nothing_16gib_ms",
    "wake.first_tensor_ms", "sleep.graph", "sleep.vs_tms",
)  # fmt: skip


def link_rates():
    """Bytes a second to the device and to the host."""
    import torch

    host = torch.empty(GIB, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    rates = []
    for to, source in ((device, host), (host, device)):
        taken = []
        for _ in range(LINK_ROUNDS):
            torch.cuda.synchronize()
            began = time.perf_counter()
            to.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            taken.append(time.perf_counter() - began)
        rates.append(GIB / min(taken))
    return rates


class Weights:
    """Tensors of a region, whose words are known."""

    def __init__(self, tag, total):
        import ravenstore
        import torch

        self.words = total // TENSORS // 8
        with ravenstore.region(tag):
            self.tensors = [
                torch.empty(self.words, dtype=torch.int64, device="cuda") for _ in range(TENSORS)
            ]
        for number, tensor in enumerate(self.tensors):
            torch.arange(number, number + self.words, out=tensor)

    def are_right(self):
        import torch

        expected = torch.empty(self.words, dtype=torch.int64, device="cuda")
        return all(
            torch.equal(tensor, torch.arange(number, number + self.words, out=expected))
            for number, tensor in enumerate(self.tensors)
        )


def address(tensor):
    return tensor.data_ptr()


def timed(call, *arguments, **options):
    began = time.perf_counter()
    call(*arguments, **options)
    return time.perf_counter() - began


def rival_seconds(total, device="cuda"):
    """The medians of torch_memory_saver's pause and resume, and None; or None, and why."""
    if importlib.util.find_spec("torch_memory_saver") is None:
        return None, "torch_memory_saver is not installed"
    import torch_memory_saver

    command = [sys.executable, str(RIVAL), "--bytes", str(total), "--device", device]
    with torch_memory_saver.configure_subprocess():
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        return None, (run.stderr.strip().splitlines() or [f"it ended with {run.returncode}"])[-1]
    cycles = json.loads(run.stdout.splitlines()[-1])
    return [statistics.median(cycles[name]) for name in ("pause", "resume")], None


def measure(options, emit):
    import ravenstore
    import torch

    total = options.gib * GIB
    to_device, to_host = link_rates()
    torch.cuda.empty_cache()
    weights = Weights("weights", total)
    result = torch.zeros((), dtype=torch.int64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    weights.tensors[0].sum()  # what it loads is loaded
    torch.cuda.synchronize()
    with ravenstore.capture_graph(graph, "weights"):
        result.copy_(weights.tensors[0].sum())
    graph.replay()
    want = int(result)
    sleeps, wakes, returned, replays, right = [], [], [], 0, True
    for _ in range(options.cycles):
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
        sleeps.append(timed(ravenstore.sleep, "weights"))
        returned.append((torch.cuda.mem_get_info()[0] - free) / total)
        wakes.append(timed(ravenstore.wake, "weights"))
        result.zero_()
        graph.replay()
        replays += int(result) == want
        right &= weights.are_right()
    for name, taken, rate in (("sleep", sleeps, to_host), ("wake", wakes, to_device)):
        bound = total / rate
        value = statistics.median(taken[1:])
        emit(
            f"{name}.16gib_s", value, "s", OVER_LINK_MOST * bound, bound=bound, first_s=taken[0],
            ok=right and value <= OVER_LINK_MOST * bound
            and taken[0] <= FIRST_OVER_LINK_MOST * bound,
            detail=f"{options.gib} GiB; {total / value / GIB:.1f} GiB/s, the link "
            f"{rate / GIB:.1f}; words {'right' if right else 'WRONG'}",
        )  # fmt: skip
    emit("sleep.returned", min(returned), "", RETURNED_LEAST, at_least=True)
    emit("sleep.graph", replays / options.cycles, "", 1, at_least=True)
    ravenstore.sleep("weights")
    torch.cuda.synchronize()
    began = time.perf_counter()
    ravenstore.wake("weights", in_order=True)
    first, last = min(weights.tensors, key=address), max(weights.tensors, key=address)
    ravenstore.wait_for(first)
    int(first[-1])
    first_s = (time.perf_counter() - began) - total / TENSORS / to_device
    ravenstore.wait_for(last)
    int(last[-1])
    all_s = time.perf_counter() - began
    ravenstore.wake("weights")
    emit(
        "wake.first_tensor_ms", first_s * 1e3, "ms", FIRST_TENSOR_MS_MOST, all_s=all_s,
        ok=first_s * 1e3 <= FIRST_TENSOR_MS_MOST and weights.are_right(),
    )  # fmt: skip
    torch.cuda.synchronize()
    ravenstore.sleep("weights", keep="nothing")
    nothing = timed(ravenstore.wake, "weights")
    emit("wake.nothing_16gib_ms", nothing * 1e3, "ms", NOTHING_MS_MOST)
    ours = [statistics.median(taken[1:]) for taken in (sleeps, wakes)]
    theirs, why = rival_seconds(total)
    if theirs is None:
        emit("sleep.vs_tms", None, "x", VS_TMS_LEAST, skipped=why)
        return
    emit(
        "sleep.vs_tms", sum(theirs) / sum(ours), "x", VS_TMS_LEAST, at_least=True,
        detail=f"{theirs[0]:.2f} and {theirs[1]:.2f} over {ours[0]:.3f} and {ours[1]:.3f} s",
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=int, default=16)
    parser.add_argument("--cycles", type=int, default=6)
    parser.add_argument("--gpu-name", default="no GPU")
    options = parser.parse_args()
    machine = figures.machine(options.gpu_name)

    def emit(name, value, unit, target, **more):
        figures.emit(name, value, unit, target, machine, **more)

    if not figures.gpu_names():
        for name in NAMES:
            emit(name, None, "", None, skipped="there is no GPU")
        return
    figures.use_package()
    pool = f"{options.gib + 4}GiB"
    with figures.OwnDaemon("--pool-size", pool, "--log-level", "warn") as daemon:
        os.environ["RAVENSTORE_SOCKET"] = daemon.socket
        measure(options, emit)


if __name__ == "__main__":
    main()

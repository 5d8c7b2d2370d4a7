"""A program of PyTorch's that takes the same commands as tests/interceptor/job.cc, one a line.

make: allocates some tensors. drop: frees them. grab N: allocates N bytes. allocate N PIECE:
allocates N bytes in pieces of PIECE bytes, each timed. info: how large the device looks. train N: N
steps of a small transformer. multiply N: N products of matrices. stream N: N passes over 1 GiB.
link: what copies between two devices take. quit. Each is answered with a line of JSON.
"""

import functools
import itertools
import json
import os
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

WARM_UP = 3
COPIES = 40
COPIED = 256 << 20
held = []


def say(**what):
    print(json.dumps(what), flush=True)


def memory():
    torch.cuda.synchronize()
    return {"reserved": torch.cuda.memory_reserved(), "allocated": torch.cuda.memory_allocated()}


def make():
    for i in range(20):
        held.append(torch.empty((i + 1) * 3 * 1000 * 1000 + 17, device="cuda"))
    held.append(torch.empty(1000, device="cuda"))
    return memory() | {"backend": torch.cuda.get_allocator_backend()}


def drop():
    held.clear()
    torch.cuda.empty_cache()
    return memory()


def grab(size):
    began = time.perf_counter()
    try:
        held.append(torch.empty(int(size), dtype=torch.uint8, device="cuda"))
        ok = True
    except torch.cuda.OutOfMemoryError:
        ok = False
    return {"ok": ok, "ms": (time.perf_counter() - began) * 1e3}


def allocate(size, piece):
    grabbed = [grab(piece) for _ in range(int(size) // int(piece))]
    return {"ms": [one["ms"] for one in grabbed], "failed": sum(not one["ok"] for one in grabbed)}


def median_ms(count, work):
    """Of one piece of work, by the device's own clock."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(int(count) + 1)]
    work()
    torch.cuda.synchronize()
    for mark in marks[:-1]:
        mark.record()
        work()
    marks[-1].record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(marks))


@functools.cache
def operands():
    """Two matrices and their product; and numbers enough to leave no cache any."""
    matrices = [torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    return matrices, torch.zeros(1 << 28, device="cuda")


def multiply(count):
    first, second, product = operands()[0]
    return {"ms": median_ms(count, lambda: torch.mm(first, second, out=product))}


def stream(count):
    numbers = operands()[1]
    return {"ms": median_ms(count, lambda: numbers.add_(1))}


def link():
    """Bytes a second of PyTorch's copies from device 0 to device 1, back, and both together."""
    pairs = [[torch.empty(COPIED, dtype=torch.uint8, device=i) for i in (0, 1)] for _ in "ab"]
    streams = [torch.cuda.Stream(i) for i in (0, 1)]

    def seconds(*ways):
        best = float("inf")
        for _ in range(5):
            torch.cuda.synchronize(0)
            torch.cuda.synchronize(1)
            begun = time.perf_counter()
            for _ in range(COPIES):
                for way in ways:
                    with torch.cuda.stream(streams[way]):
                        pairs[way][1 - way].copy_(pairs[way][way], non_blocking=True)
            torch.cuda.synchronize(0)
            torch.cuda.synchronize(1)
            best = min(best, time.perf_counter() - begun)
        return best

    moved = COPIES * COPIED
    return {
        "out": moved / seconds(0),
        "in": moved / seconds(1),
        "both": 2 * moved / seconds(0, 1),
    }


def size_by_nvml():
    """None where pynvml is not installed."""
    try:
        import pynvml
    except ImportError:
        return None
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).total


def info():
    free, total = torch.cuda.mem_get_info()
    size = torch.cuda.get_device_properties(0).total_memory
    return {"free": free, "total": total, "size": size, "nvml": size_by_nvml()}


class Trainer:
    def __init__(self):
        torch.manual_seed(1)
        layer = nn.TransformerEncoderLayer(
            1024, 16, 4096, batch_first=True, norm_first=True, dropout=0.0
        )
        encoder = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)
        self.model = nn.Sequential(nn.Embedding(8192, 1024), encoder, nn.Linear(1024, 8192)).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)

    def step(self, data):
        with torch.autocast("cuda", torch.bfloat16):
            out = self.model(data[:, :-1])
        loss = F.cross_entropy(out.float().flatten(0, 1), data[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss

    def train(self, steps):
        torch.manual_seed(2)
        data = torch.randint(0, 8192, (8, 513), device="cuda")
        times, losses = [], []
        for _ in range(WARM_UP + int(steps)):
            torch.cuda.synchronize()
            began = time.perf_counter()
            loss = self.step(data)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
            losses.append(loss.item())
        ms = statistics.median(times[WARM_UP:]) * 1e3
        return {"ms": ms, "first": losses[0], "last": losses[-1]}


COMMANDS = {
    "make": make,
    "drop": drop,
    "grab": grab,
    "allocate": allocate,
    "info": info,
    "link": link,
    "multiply": multiply,
    "stream": stream,
}


def main():
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    trainer = None
    say(ready=os.getpid())
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "quit":
            return
        if word == "train":
            trainer = trainer or Trainer()
            say(**trainer.train(*rest))
        else:
            say(**COMMANDS[word](*rest))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""A PyTorch training that knows nothing of Ravenstore: what bench/elastic_bench.py runs alone and
under ravenrun --mode elastic. Prints one JSON object: losses, seconds of each step, the peak of
what PyTorch had allocated, and its allocator.

    elastic_job.py [--shape large] [--steps 8] [--compile] [--device cuda]
"""

import argparse
import json
import pathlib
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python/ravenstore"))

import torch  # noqa: E402
from _demo_model import SHAPES, Gpt  # noqa: E402
from torch.nn import functional  # noqa: E402


def train(options):
    torch.manual_seed(0)
    on_gpu = options.device == "cuda"
    shape = SHAPES[options.shape]
    model = Gpt(shape).to(options.device)
    forward = torch.compile(model.logits) if options.compile else model.logits
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=on_gpu)
    tokens = torch.randint(0, shape.vocabulary, (shape.batch, shape.length), device=options.device)
    losses, seconds = [], []
    for _ in range(options.steps):
        began = time.perf_counter()
        with torch.autocast(options.device, torch.bfloat16):
            logits = forward(tokens)
            loss = functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())  # waits for the step
        seconds.append(time.perf_counter() - began)
    return {
        "losses": losses,
        "seconds": seconds,
        "peak": torch.cuda.max_memory_allocated() if on_gpu else 0,
        "allocator": torch.cuda.get_allocator_backend() if on_gpu else "",
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--shape", choices=sorted(SHAPES), default="large")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", default="cuda")
    print(json.dumps(train(parser.parse_args())))


if __name__ == "__main__":
    main()

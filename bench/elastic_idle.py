#!/usr/bin/env python3
"""A PyTorch job that holds memory and is mostly idle, for bench/elastic_bench.py. It reads a
command a line from its standard input, and answers each with a line.

    elastic_idle.py [--gib 30]

hot: adds to the first tenth of its memory, and says how many milliseconds that took; check: the
same for all of it, then compares each number, and says how many tensors are wrong.
"""

import argparse
import sys
import time

import torch

TENSOR = 64 << 20  # bytes


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--gib", type=int, default=30)
    count = (parser.parse_args().gib << 30) // TENSOR
    tensors = [torch.full((TENSOR // 4,), float(i), device="cuda") for i in range(count)]
    added = [0] * count
    torch.cuda.synchronize()
    print("ready", flush=True)
    for line in sys.stdin:
        some = count if line.strip() == "check" else count // 10
        began = time.perf_counter()
        for i in range(some):
            tensors[i].add_(1)
            added[i] += 1
        torch.cuda.synchronize()
        milliseconds = (time.perf_counter() - began) * 1e3
        if some == count:
            wrong = sum(
                not bool((x == i + n).all())
                for i, (x, n) in enumerate(zip(tensors, added, strict=True))
            )
            print(wrong, flush=True)
        else:
            print(milliseconds, flush=True)


if __name__ == "__main__":
    main()

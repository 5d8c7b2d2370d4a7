#!/usr/bin/env python3
"""What torch_memory_saver takes for what sleep_bench.py measures; sleep_bench.py starts it.

    sleep_rival.py [--bytes N] [--cycles N] [--device cuda|cpu]

Prints the seconds of each pause and resume of one region with a CPU backup, as JSON, once all
words were right after each resume. Its defaults otherwise: what starts it preloads its hook, and
its backups are pinned at each pause.
"""

import argparse
import json
import sys
import time

import torch
from torch_memory_saver import torch_memory_saver

TENSORS = 64


def timed(call, device):
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    synchronize()
    began = time.perf_counter()
    call()
    synchronize()
    return time.perf_counter() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bytes", type=int, default=16 << 30)
    parser.add_argument("--cycles", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    words = options.bytes // TENSORS // 8
    with torch_memory_saver.region(enable_cpu_backup=True):
        tensors = [
            torch.empty(words, dtype=torch.int64, device=options.device) for _ in range(TENSORS)
        ]
    expected = torch.empty(words, dtype=torch.int64, device=options.device)
    for number, tensor in enumerate(tensors):
        torch.arange(number, number + words, out=tensor)
    cycles = []
    for _ in range(options.cycles):
        pause = timed(torch_memory_saver.pause, options.device)
        cycles.append((pause, timed(torch_memory_saver.resume, options.device)))
        for number, tensor in enumerate(tensors):
            if not torch.equal(tensor, torch.arange(number, number + words, out=expected)):
                sys.exit("its words are not what they were")
    print(json.dumps({"pause": [c[0] for c in cycles], "resume": [c[1] for c in cycles]}))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""A PyTorch training that knows nothing of Ravenstore: what bench/elastic_bench.py runs alone and
under ravenrun --mode elastic. Prints one JSON object: losses, seconds of each step, the peak of
what PyTorch had allocated, and its allocator.

    elastic_job.py [--model gpt-large] [--steps 8] [--compile] [--deterministic] [--device cuda]
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


def train(options):
    torch.manual_seed(0)
    on_gpu = options.device == "cuda"
    program = elastic_models.build(options.model, options.device)
    optimizer = torch.optim.AdamW(program.module.parameters(), lr=1e-4, fused=on_gpu)
    compute = torch.compile(program.loss) if options.compile else program.loss
    losses, seconds = [], []
    for _ in range(options.steps):
        began = time.perf_counter()
        with torch.autocast(options.device, torch.bfloat16):
            loss = compute()
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
    parser.add_argument("--model", choices=sorted(elastic_models.PROGRAMS), default="gpt-large")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--deterministic", action="store_true", help="the same bits in each run")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    if options.deterministic:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # read when cuBLAS is first used
        torch.use_deterministic_algorithms(options.model not in elastic_models.VARYING)
        torch.utils.deterministic.fill_uninitialized_memory = False  # what it costs is not ours
    print(json.dumps(train(options)))


if __name__ == "__main__":
    main()

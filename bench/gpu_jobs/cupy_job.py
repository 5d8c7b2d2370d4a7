"""A program of CuPy's that takes "make" and "drop", as torch_job.py does."""

import json
import os
import sys

import cupy


def say(**what):
    print(json.dumps(what), flush=True)


def main():
    cupy.zeros(1)
    pool = cupy.get_default_memory_pool()
    held = []
    say(ready=os.getpid())
    for line in sys.stdin:
        word = line.strip()
        if word == "make":
            for i in range(8):
                held.append(cupy.empty((i + 1) * 1000003, dtype=cupy.float32))
        elif word == "drop":
            held.clear()
            pool.free_all_blocks()
        else:
            return
        say(reserved=pool.total_bytes())


if __name__ == "__main__":
    main()

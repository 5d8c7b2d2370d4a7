#!/usr/bin/env python3
"""Prints what pinned memory from the node's pool costs a PyTorch job, a JSON object a line.

    pinned_bench [--scale X] [--gpu-name NAME]

Needs a Python with PyTorch. A daemon of its own, on the GPU if --gpu-name says that there is one,
else on the host backend, whose times say nothing about a GPU. $RAVENSTORE_BIN names bazel-bin or a
folder with the daemon and the library; else bazel-bin is taken.

pytorch.pinned_overhead: bytes pinned over bytes asked for, of the buffers of a GPT-2 medium that
keeps activations and AdamW's states on the host and of two batches of images; `pytorch_rounding` is
what rounding each to a power of two, as PyTorch's own allocator does, would take.
pytorch.pinned_warm_gib: milliseconds for a GiB that was pinned before, the median of 9; `cold_ms`
for the first, `other_process_ms` for the first one of another process of the user.
"""

import argparse
import gc
import os
import statistics
import time

import figures

GIB = 1 << 30
OVERHEAD_MOST = 1.01
WARM_GIB_MS_MOST = 5
ROUNDS = 9


def buffers():
    """Sizes in bytes, in the order in which a job asks for them."""
    width, layers, tokens, vocabulary = 1024, 24, 16 * 1024, 50257
    activations = [tokens * width * 2] * 4 + [tokens * 3 * width * 2, tokens * 4 * width * 2]
    activations += [tokens * 4, 16 * tokens * 4]  # of norms and of the attention
    weights = [width * 3 * width, 3 * width, width * width, width, 4 * width * width, 4 * width]
    weights += [4 * width * width, width, width, width, width, width]
    batch = [256 * 3 * 224 * 224 * 4, 256 * 8]
    yield from batch * 2
    yield vocabulary * width * 4
    for _ in range(layers):
        yield from activations
        yield from (4 * weight for weight in weights for _ in range(2))


def rounded_up(size):
    return 1 << (size - 1).bit_length()


def freed(store):
    """Waits until the daemon knows of the frees."""
    gc.collect()
    deadline = time.monotonic() + 60
    while store.stats().pinned_bytes > 0 and time.monotonic() < deadline:
        os.sched_yield()


def overhead(total):
    import ravenstore
    import torch

    store = ravenstore.Store.connect(embedded=True)
    held, asked, rounded = [], 0, 0
    for size in buffers():
        if asked + size > total:
            break
        held.append(ravenstore.pinned_empty(size, torch.uint8, store=store))
        asked += size
        rounded += rounded_up(size)
    locked = store.stats().pinned_locked
    del held
    store.close()
    return locked / asked, {"asked_bytes": asked, "pytorch_rounding": round(rounded / asked, 3)}


def warm_gib():
    import ravenstore
    import torch

    def take(store):
        begin = time.perf_counter()
        values = ravenstore.pinned_empty(GIB, torch.uint8, store=store)
        ms = (time.perf_counter() - begin) * 1e3
        values[::4096] = 1  # somebody writes to it
        del values
        freed(store)
        return ms

    store = ravenstore.Store.connect(embedded=True)
    cold = take(store)
    warm = [take(store) for _ in range(ROUNDS)]
    # To the daemon another attachment is like another process: it maps the memory again.
    other = ravenstore.Store.connect(embedded=True)
    first = take(other)
    other.close()
    store.close()
    return statistics.median(warm), {
        "cold_ms": round(cold, 2),
        "other_process_ms": round(first, 2),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--scale", type=float, default=1, help="of the bytes asked for")
    parser.add_argument("--gpu-name", help="the GPU to measure on; none: the host backend")
    given = parser.parse_args()
    machine = figures.machine(given.gpu_name or "host backend")
    figures.use_package()
    try:
        import torch  # noqa: F401 - before anything is started
    except ImportError as error:
        for name, unit, target in (
            ("pytorch.pinned_overhead", "x", OVERHEAD_MOST),
            ("pytorch.pinned_warm_gib", "ms", WARM_GIB_MS_MOST),
        ):
            figures.emit(name, None, unit, target, machine, skipped=f"no PyTorch: {error}")
        return
    from ravenstore import embedded

    total = int(4 * GIB * given.scale)
    backend = "cuda" if given.gpu_name else "host"
    embedded.start(backend=backend, pool_size=2 * total + 4 * GIB)
    value, more = overhead(total)
    figures.emit("pytorch.pinned_overhead", round(value, 4), "x", OVERHEAD_MOST, machine, **more)
    value, more = warm_gib()
    figures.emit(
        "pytorch.pinned_warm_gib", round(value, 2), "ms", WARM_GIB_MS_MOST, machine, **more
    )


if __name__ == "__main__":
    main()

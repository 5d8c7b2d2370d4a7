#!/usr/bin/env python3
"""Prints what tensors by name cost, a JSON object a line.

    share_bench [--gib N] [--swap-gib N] [--file-gib N] [--folder DIR] [--gpu-name NAME]

Needs a GPU with room for N GiB (40) and twice the swap's 16 GiB of host memory. Daemons of its
own. $RAVENSTORE_BIN names bazel-bin or a folder with the daemon and the library.

share.attach_s: a second process, whose CUDA context is there, opens a set of N GiB until a kernel
has read its last word. `bytes`: of device memory that the driver counts more then.
share.load_vs_disk: load_safetensors of a file, over a loop of direct reads of the same file by
eight threads, each the better of two runs; the page cache is passed by both.
turns.swap_16gib_s: one set that was just published sleeps, and another wakes in its place;
`turns.unchanged_16gib_s`: the same once both have copies in the host pool. `bound`: PyTorch's own
copies of the same bytes, in both directions at the same time, and in one.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import figures

GIB = 1 << 30
ATTACH_S_MOST = 0.5
LOAD_LEAST = 0.9
OVER_COPY_MOST = 1.15
CHUNK = 16 << 20
THREADS = 8
ROUNDS = 3
SWAP_ROUNDS = 6
SPARE = 512 << 20  # of device memory, next to one set
NAMES = (
    "share.attach_s", "share.attach_bytes", "share.load_vs_disk", "turns.swap_16gib_s",
    "turns.unchanged_16gib_s",
)  # fmt: skip
# Page tables.
BYTES_MOST = 64 << 20


def daemon(*flags):
    """The one of this process's stores, and of those that it starts."""
    own = figures.OwnDaemon("--log-level", "warn", *flags)
    os.environ["RAVENSTORE_SOCKET"] = own.socket
    return own


def numbers(total, seed, count=16):
    """Tensors of `total` bytes together, whose words are known."""
    import torch

    words = total // count // 8
    return {
        f"layers.{i}": torch.arange(seed + i, seed + i + words, device="cuda") for i in range(count)
    }


def attach_here(name):
    """Of a second process: prints seconds and bytes."""
    import ravenstore
    import torch

    figures.use_package()
    torch.zeros(1, device="cuda").sum().item()
    with ravenstore.Store.connect(name="reader") as store:
        free = torch.cuda.mem_get_info()[0]
        began = time.perf_counter()
        opened = store.open(name)
        last = list(opened)[-1]
        word = int(opened[last][-1])
        took = time.perf_counter() - began
        more = free - torch.cuda.mem_get_info()[0]
        right = all(
            int(tensor[0]) == i + 1 and int(tensor[-1]) == i + len(tensor)
            for i, tensor in enumerate(opened.values())
        )
        tensors = len(opened)
        opened.close()
    print(json.dumps({"s": took, "bytes": more, "right": right and word > 0, "n": tensors}))


def measure_attach(options, emit):
    import ravenstore
    import torch

    total = options.gib * GIB
    with daemon("--pool-size", "2GiB"), ravenstore.Store.connect(name="publisher") as store:
        published = store.publish("weights", numbers(total, 1))
        torch.cuda.empty_cache()
        seen = []
        for _ in range(ROUNDS):
            run = subprocess.run(
                [sys.executable, __file__, "--attach", "weights"],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            seen.append(json.loads(run.stdout.splitlines()[-1]))
        published.close()
    words = "right" if all(each["right"] for each in seen) else "WRONG"
    took = statistics.median(each["s"] for each in seen)
    more = max(each["bytes"] for each in seen)
    emit(
        "share.attach_s", took, "s", ATTACH_S_MOST, ok=took <= ATTACH_S_MOST and words == "right",
        detail=f"{options.gib} GiB; words {words}",
    )  # fmt: skip
    emit("share.attach_bytes", more, "B", BYTES_MOST, detail="page tables and local memory")


def write_file(path, total):
    """One safetensors file of 16 tensors."""
    import torch

    count = 16
    each = total // count // 4096 * 4096
    header = {
        f"layers.{i}": {
            "dtype": "U8", "shape": [each], "data_offsets": [i * each, (i + 1) * each],
        }
        for i in range(count)
    }  # fmt: skip
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        data = torch.randint(0, 256, (each,), dtype=torch.uint8).numpy().data
        for _ in range(count):
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return each * count


def read_raw(path):
    """Seconds of a loop of direct reads."""
    import mmap

    size = os.path.getsize(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        descriptor = os.open(path, os.O_RDONLY)
    buffers = {}

    def read(at):
        import threading

        buffer = buffers.setdefault(threading.get_ident(), mmap.mmap(-1, CHUNK))
        done = 0
        while at + done < size and done < CHUNK:
            got = os.preadv(descriptor, [memoryview(buffer)[done:]], at + done)
            if got <= 0 or got % 4096:
                break
            done += got

    began = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(read, range(0, size, CHUNK)))
    took = time.perf_counter() - began
    os.close(descriptor)
    return took


def measure_load(options, emit):
    import ravenstore
    import torch

    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = pathlib.Path(folder) / "model.safetensors"
        total = write_file(path, options.file_gib * GIB)
        with daemon("--pool-size", "2GiB"):
            raw, loads = [], []
            for _ in range(2):
                raw.append(read_raw(path))
                began = time.perf_counter()
                loaded = ravenstore.load_safetensors(path)
                torch.cuda.synchronize()
                loads.append(time.perf_counter() - began)
                loaded.close()
    emit(
        "share.load_vs_disk", min(raw) / min(loads), "", LOAD_LEAST, at_least=True,
        detail=f"{total / GIB:.1f} GiB: {total / min(loads) / GIB:.2f} GiB/s, the disk "
        f"{total / min(raw) / GIB:.2f}",
    )  # fmt: skip


def copy_seconds(total, both):
    """PyTorch's copies of that many bytes to the device, and from it at the same time."""
    import torch

    host = [torch.empty(GIB, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    device = [torch.empty(GIB, dtype=torch.uint8, device="cuda") for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in range(2)]
    taken = []
    for _ in range(5):
        torch.cuda.synchronize()
        began = time.perf_counter()
        with torch.cuda.stream(streams[0]):
            device[0].copy_(host[0], non_blocking=True)
        if both:
            with torch.cuda.stream(streams[1]):
                host[1].copy_(device[1], non_blocking=True)
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return min(taken) * total / GIB


def swap(one, other):
    """Seconds until the other's last word is read."""
    began = time.perf_counter()
    one.sleep()
    other.wake()
    int(list(other.values())[-1][-1])
    return time.perf_counter() - began


def measure_turns(options, emit):
    import ravenstore
    import torch

    total = options.swap_gib * GIB
    both, one_way = copy_seconds(total, both=True), copy_seconds(total, both=False)
    torch.cuda.empty_cache()
    limit = str(total + SPARE)
    flags = ("--pool-size", f"{2 * options.swap_gib + 4}GiB", "--device-budget", limit)
    changed, unchanged = [], []
    with daemon(*flags), ravenstore.Store.connect(name="server") as store:
        right = True
        for number in range(SWAP_ROUNDS):
            sets = []
            for seed in (1, 2):
                published = store.publish(f"model {seed}", numbers(total, seed))
                torch.cuda.empty_cache()
                opened = store.open(f"model {seed}")
                published.close()
                sets.append(opened)
                if seed == 1:
                    opened.sleep()
            one, other = sets
            # The second was just published, and has no copy. The pool is pinned after two rounds.
            taken = swap(other, one)
            if number > 1:
                changed.append(taken)
            unchanged.append(swap(one, other))
            unchanged.append(swap(other, one))
            right &= int(one["layers.3"][7]) == 1 + 3 + 7
            for each in sets:
                each.close()
    words = "right" if right else "WRONG"
    for name, taken, bound in (
        ("turns.swap_16gib_s", changed, both), ("turns.unchanged_16gib_s", unchanged, one_way),
    ):  # fmt: skip
        value = statistics.median(taken)
        most = OVER_COPY_MOST * bound
        emit(
            name, value, "s", most, bound=bound, ok=right and value <= most,
            detail=f"{options.swap_gib} GiB; {total / value / GIB:.1f} GiB/s; words {words}",
        )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=int, default=40)
    parser.add_argument("--swap-gib", type=int, default=16)
    parser.add_argument("--file-gib", type=int, default=8)
    parser.add_argument("--folder", default=None)
    parser.add_argument("--attach", default=None)
    parser.add_argument("--gpu-name", default="no GPU")
    options = parser.parse_args()
    figures.use_package()
    if options.attach:
        attach_here(options.attach)
        return
    machine = figures.machine(options.gpu_name)

    def emit(name, value, unit, target, **more):
        figures.emit(name, value, unit, target, machine, **more)

    if not figures.gpu_names():
        for name in NAMES:
            emit(name, None, "", None, skipped="there is no GPU")
        return
    measure_attach(options, emit)
    measure_load(options, emit)
    measure_turns(options, emit)


if __name__ == "__main__":
    main()

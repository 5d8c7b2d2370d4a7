#!/usr/bin/env python3
"""What this machine's driver does with pinned host memory: answers that pinned blocks rest on.

    python3 tests/device/pinned_probe.py

Needs a GPU and a PyTorch that can use it; nothing is built. Prints a JSON object a line. Each
question stands alone: one that fails is answered with its error.
"""

import ctypes
import json
import mmap
import os
import time
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

import torch

GIB = 1 << 30
CUDA = ctypes.CDLL("libcuda.so.1")


class Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class Properties(ctypes.Structure):  # CUmemAllocationProp
    _fields_ = [
        ("type", c_int),
        ("handle_types", c_int),
        ("location", Location),
        ("win32", c_void_p),
        ("flags", ctypes.c_uint8 * 8),
    ]


class Access(ctypes.Structure):  # CUmemAccessDesc
    _fields_ = [("location", Location), ("flags", c_int)]


DEVICE, HOST_NUMA = 1, 3  # CUmemLocationType
READ_WRITE, PINNED, DESCRIPTOR = 3, 1, 1


def call(name, *arguments):
    result = getattr(CUDA, name)(*arguments)
    if result != 0:
        raise RuntimeError(f"{name}: {result}")


def timed(what):
    begin = time.perf_counter()
    result = what()
    return (time.perf_counter() - begin) * 1e3, result


def host_memory():
    """Where a chunk of HOST_NUMA memory on node 0 is made."""
    return Properties(PINNED, DESCRIPTOR, Location(HOST_NUMA, 0))


class Range:
    """Addresses, into which memory of node 0 is mapped for the GPU and the CPU."""

    def __init__(self, size):
        self.base = c_uint64()
        call("cuMemAddressReserve", byref(self.base), c_size_t(size), c_size_t(2 << 20),
             c_uint64(0), c_uint64(0))  # fmt: skip

    def create(self, size):
        handle = c_uint64()
        call("cuMemCreate", byref(handle), c_size_t(size), byref(host_memory()), c_uint64(0))
        return handle

    def map(self, handle, offset, size):
        at = c_uint64(self.base.value + offset)
        call("cuMemMap", at, c_size_t(size), c_size_t(0), handle, c_uint64(0))
        access = (Access * 2)(
            Access(Location(HOST_NUMA, 0), READ_WRITE), Access(Location(DEVICE, 0), READ_WRITE)
        )
        call("cuMemSetAccess", at, c_size_t(size), access, c_size_t(2))


def tensor_at(address, size):
    return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)


def granularity():
    unit = c_size_t()
    call("cuMemGetAllocationGranularity", byref(unit), byref(host_memory()), c_int(0))
    return {"bytes": unit.value}


def mapped_memory():
    first = Range(GIB)
    created, handle = timed(lambda: first.create(GIB))
    mapped, _ = timed(lambda: first.map(handle, 0, GIB))
    file = c_int()
    call("cuMemExportToShareableHandle", byref(file), handle, c_int(DESCRIPTOR), c_uint64(0))
    second, imported = Range(GIB), c_uint64()

    def take():
        call("cuMemImportFromShareableHandle", byref(imported), c_void_p(file.value),
             c_int(DESCRIPTOR))  # fmt: skip
        second.map(imported, 0, GIB)

    import_ms, _ = timed(take)
    values = tensor_at(first.base.value, GIB)
    begin = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    on_gpu = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    begin.record()
    on_gpu.copy_(values, non_blocking=True)
    end.record()
    end.synchronize()
    return {
        "is_pinned": values.is_pinned(),
        "is_pinned_in_the_middle": values[GIB // 2 :].is_pinned(),
        "imported_is_pinned": tensor_at(second.base.value, GIB).is_pinned(),
        "create_ms": created,
        "map_ms": mapped,
        "import_and_map_ms": import_ms,
        "copy_gb_per_s": GIB / begin.elapsed_time(end) / 1e6,
    }


def registered_memory():
    file = os.memfd_create("probe")
    os.ftruncate(file, GIB)

    def address_of(view):
        return ctypes.addressof(ctypes.c_char.from_buffer(view))

    def register(view):
        call("cuMemHostRegister_v2", c_void_p(address_of(view)), c_size_t(GIB), c_int(1))

    first = mmap.mmap(file, GIB)
    touched, _ = timed(lambda: first.madvise(23))  # MADV_POPULATE_WRITE
    cold, _ = timed(lambda: register(first))
    second = mmap.mmap(file, GIB)
    warm, _ = timed(lambda: register(second))
    return {
        "populate_ms": touched,
        "register_ms": cold,
        "register_again_ms": warm,
        "is_pinned": tensor_at(address_of(second), GIB).is_pinned(),
    }


def straddling_copies():
    size = 32 << 20
    both = Range(2 * size)
    for offset in (0, size):
        both.map(both.create(size), offset, size)
    values = tensor_at(both.base.value, 2 * size)
    values.copy_(torch.randint(0, 255, (2 * size,), dtype=torch.uint8))
    middle = values[size // 2 : size // 2 + size]
    stream = torch.cuda.Stream()
    on_gpu = torch.empty(size, dtype=torch.uint8, device="cuda")
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        begin = time.perf_counter()
        on_gpu.copy_(middle, non_blocking=True)
        enqueued_ms = (time.perf_counter() - begin) * 1e3
        asynchronous = not stream.query()
    stream.synchronize()
    to_gpu = torch.equal(on_gpu.cpu(), middle)
    on_gpu.fill_(7)
    middle.copy_(on_gpu, non_blocking=True)
    torch.cuda.synchronize()
    return {
        "to_gpu": to_gpu,
        "to_host": bool((middle == 7).all()),
        "asynchronous": asynchronous,
        "enqueued_ms": enqueued_ms,
    }


def primary_context():
    context = c_void_p()
    call("cuDevicePrimaryCtxRetain", byref(context), c_int(0))
    return context


def all_streams():
    context, event = primary_context(), c_void_p()
    call("cuEventCreate", byref(event), c_int(2))
    streams = [torch.cuda.Stream() for _ in range(3)]
    with torch.cuda.stream(streams[1]):
        torch.cuda._sleep(200_000_000)
    record_ms, _ = timed(lambda: call("cuCtxRecordEvent", context, event))
    waits = CUDA.cuEventQuery(event) == 600  # CUDA_ERROR_NOT_READY
    streams[1].synchronize()
    return {"waits": waits, "passes": CUDA.cuEventQuery(event) == 0, "record_ms": record_ms}


def all_streams_during_a_capture():
    context, event, mode = primary_context(), c_void_p(), c_int(2)  # RELAXED
    call("cuEventCreate", byref(event), c_int(2))
    values = torch.zeros(16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        values += 1
        call("cuThreadExchangeStreamCaptureMode", byref(mode))
        result = CUDA.cuCtxRecordEvent(context, event)
        call("cuThreadExchangeStreamCaptureMode", byref(mode))
    graph.replay()
    torch.cuda.synchronize()
    return {"result": result, "capture_survives": float(values.sum()) == 16}


def main():
    torch.zeros(1, device="cuda")
    print(json.dumps({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}), flush=True)
    for question in (
        granularity,
        mapped_memory,
        registered_memory,
        straddling_copies,
        all_streams,
        all_streams_during_a_capture,
    ):
        try:
            answer = question()
        except Exception as error:
            answer = {"error": repr(error)}
        print(json.dumps({"question": question.__name__} | answer), flush=True)


if __name__ == "__main__":
    main()

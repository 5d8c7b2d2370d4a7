#!/usr/bin/env python3
"""Tenants of a store on one GPU: one that works, while some others end badly.

    neighbour.py LIBRAVENSTORE work SECONDS    keeps 280 tensors of 64 MiB in 12 GiB, each with a
                                               pattern of its own, and checks what it gets
    neighbour.py LIBRAVENSTORE assert|address|kill
                                               takes some tensors and ends in a device assert, an
                                               illegal address, or SIGKILL under a running kernel

$RAVENSTORE_SOCKET names the daemon. Prints one line of JSON, unless it dies.
"""

import ctypes
import json
import os
import random
import signal
import sys
import time

import torch

MIB = 1 << 20


class ConnectOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("socket", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("device_budget", ctypes.c_uint64),
        ("host_budget", ctypes.c_uint64),
        ("timeout_ns", ctypes.c_uint64),
    ]


class Words:
    """A tensor's address as torch sees it: 8-byte words that are not torch's own."""

    def __init__(self, address, count):
        self.__cuda_array_interface__ = {
            "shape": (count,),
            "typestr": "<i8",
            "data": (address, False),
            "version": 3,
        }


class Store:
    def __init__(self, library, budget):
        self.calls = ctypes.CDLL(library)
        self.calls.ravenstore_data.restype = ctypes.c_void_p
        self.store = ctypes.c_void_p()
        options = ConnectOptions(ctypes.sizeof(ConnectOptions), None, b"neighbour", budget, 0, 0)
        self.check(self.calls.ravenstore_connect(ctypes.byref(options), ctypes.byref(self.store)))

    def check(self, code):
        if code != 0:
            self.calls.ravenstore_last_error.restype = ctypes.c_char_p
            raise RuntimeError(self.calls.ravenstore_last_error().decode())

    def create(self, size):
        tensor = ctypes.c_void_p()
        self.check(
            self.calls.ravenstore_create(
                self.store, ctypes.c_uint64(size), None, ctypes.byref(tensor)
            )
        )
        return tensor, Words(self.calls.ravenstore_data(tensor), size // 8)

    def get(self, tensor, size):
        address = ctypes.c_void_p()
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.check(
            self.calls.ravenstore_get(self.store, tensor, stream, None, ctypes.byref(address))
        )
        return Words(address.value, size // 8)

    def put(self, tensor):
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.check(self.calls.ravenstore_put(self.store, tensor, stream, None))


def work(store, seconds):
    size = 64 * MIB
    tensors = []
    for index in range(280):
        tensor, words = store.create(size)
        torch.as_tensor(words, device="cuda").fill_(index)
        store.put(tensor)
        tensors.append(tensor)
    order = random.Random(1)
    gets = 0
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for index in order.sample(range(len(tensors)), 40):
            words = torch.as_tensor(store.get(tensors[index], size), device="cuda")
            wrong += (words != index).any()
            words.fill_(index)
            store.put(tensors[index])
            gets += 1
        torch.cuda.synchronize()
    print(json.dumps({"gets": gets, "wrong": int(wrong)}), flush=True)


def die(store, way):
    held = [store.create(256 * MIB) for _ in range(8)]
    words = torch.as_tensor(held[0][1], device="cuda")
    words.fill_(7)
    if way == "assert":
        torch._assert_async(torch.zeros((), dtype=torch.bool, device="cuda"))
    elif way == "address":
        import cupy

        cupy.RawKernel('extern "C" __global__ void f(int* p) { *p = 1; }', "f")((1,), (1,), (8,))
    else:
        for _ in range(2000):
            words.add_(1)
        os.kill(os.getpid(), signal.SIGKILL)
    torch.cuda.synchronize()


def main():
    library, role = sys.argv[1:3]
    torch.cuda.init()
    store = Store(library, 12 << 30)
    if role == "work":
        work(store, float(sys.argv[3]))
    else:
        die(store, role)


if __name__ == "__main__":
    main()

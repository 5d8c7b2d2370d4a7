"""One meter for every way to train: bytes on the device, live and physical, over whole steps."""

import statistics
import sys
import threading
import time

import torch

LOOKS_EVERY_S = 0.0005


def native():
    """The package's native part if this process has loaded it."""
    return sys.modules.get("ravenstore._torch")


class Meter:
    """The most bytes that were on the device while it is open, seen every half millisecond.

    live: of tensors that the program holds or that are parked on the device. physical: those and
    what PyTorch's cache and the store's magazines keep. Both with the store's attachments in
    `stores`, for states. On a CPU plain training has no such figure: it is the process's own
    resident memory there, to try the measuring out.
    """

    def __init__(self, device, stores=()):
        self.device, self.stores = device, stores
        self.live = self.physical = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self):
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()
        self._sample()
        if self.device == "cuda":
            # Exact where nothing is parked; a look may miss the moment.
            self.live = max(self.live, torch.cuda.max_memory_allocated())
            self.physical = max(self.physical, torch.cuda.max_memory_reserved())

    def _watch(self):
        while not self._ended.wait(LOOKS_EVERY_S):
            self._sample()

    def _sample(self):
        allocated, reserved = self._own()
        stored = sum(store.stats().device_bytes for store in self.stores)
        module, idle = native(), 0
        blocks = module.block_stats(0) if module else None
        if blocks is not None:
            # PyTorch's figures have the blocks in use already, and the store's have all.
            on_device = module.store_stats()["device_bytes"]
            idle = blocks["idle"]
            if self.device == "cuda":
                allocated -= blocks["used"]
                reserved -= blocks["used"] + idle
            stored += max(on_device, blocks["used"] + idle)
        self.live = max(self.live, allocated + stored - idle)
        self.physical = max(self.physical, reserved + stored)

    def _own(self):
        if self.device == "cuda":
            return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        with open("/proc/self/statm") as file:
            _, resident, shared, *_ = map(int, file.read().split())
        # What is shared is the store's.
        return (resident - shared) * 4096, (resident - shared) * 4096


def link_rate(device):
    """Bytes a second of one pinned copy to the device; 0 on the CPU."""
    if device != "cuda":
        return 0.0
    size = 256 << 20
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(size, dtype=torch.uint8, device=device)
    rates = []
    for _ in range(5):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        there.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        rates.append(size / (time.perf_counter() - begun))
    return statistics.median(rates)

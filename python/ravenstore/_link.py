"""How fast bytes of the store move between a device and the host."""

from __future__ import annotations

import time

from ravenstore.store import Store, Tensor


def link_rate(socket: str, budget: int, seconds: float) -> float:
    """Bytes a second each way, both ways in parallel, with `budget` bytes of a device. It measures
    for about `seconds`. Errors: those of Store.connect."""
    with Store.connect(socket=socket, name="link", device_budget=budget) as store:
        return min(both_ways(store, budget, seconds))


def moving_bytes(budget: int) -> int:
    return max(1 << 18, budget // 16)


def both_ways(store: Store, budget: int, seconds: float) -> tuple[float, float]:
    """Bytes a second in and out. Walks over twice as many bytes as the device may hold, so that
    each get brings a tensor in and another one leaves."""
    size = moving_bytes(budget)
    tensors = [_written(store, size) for _ in range(2 * budget // size)]
    before, begin = store.stats(), time.perf_counter()
    walks = 0
    while time.perf_counter() - begin < seconds or walks == 0:
        for order, tensor in enumerate(tensors):
            tensor.get(blocking=True).put(order=walks * len(tensors) + order)
        walks += 1
    elapsed = time.perf_counter() - begin
    after = store.stats()
    store.free_batch(tensors)
    into, out = after.bytes_in - before.bytes_in, after.bytes_out - before.bytes_out
    return into / elapsed, out / elapsed


def _written(store: Store, size: int) -> Tensor:
    tensor = store.create(size)
    tensor.put()
    return tensor

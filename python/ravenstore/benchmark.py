"""python -m ravenstore bench: what the store's calls cost here, and how fast its bytes move.

Each figure is the median of many calls. With PyTorch and the native part also what autograd's hooks
cost for a tensor that is on its device: pack and unpack, without PyTorch's own call of them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from ravenstore import embedded
from ravenstore._link import both_ways, moving_bytes
from ravenstore._progress import progress
from ravenstore._units import bytes_of, size_text
from ravenstore.errors import RavenstoreError
from ravenstore.offload import _attached, offload
from ravenstore.store import Store

_CALL_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Figure:
    """One measured value; None where it could not be measured."""

    name: str
    value: float | None
    unit: str
    note: str = ""

    def __str__(self) -> str:
        value = "-" if self.value is None else f"{self.value:.2f}"
        return f"{self.name:<28}{value:>10} {self.unit:<6}{self.note}".rstrip()


def main(arguments: Sequence[str]) -> int:
    """Measures and prints; the exit code is 1 where there is no store."""
    parser = argparse.ArgumentParser("python -m ravenstore bench", description=__doc__)
    parser.add_argument("--socket", help="the daemon's; default: the node's, else a private one")
    parser.add_argument("--rounds", type=int, default=2000, help="calls a figure (default 2000)")
    parser.add_argument("--budget", default="256MiB", help="device memory for the moving tensors")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long tensors move")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    try:
        socket = options.socket or embedded.socket_for(None, "auto")
        with Store.connect(socket=socket, name="bench", device_budget=options.budget) as store:
            backend = store.backend
            parts: list[Callable[[], Iterator[Figure]]] = [
                lambda: _calls(store, bytes_of(options.budget), options.rounds),
                lambda: _link(store, bytes_of(options.budget), options.seconds),
                lambda: _hooks(socket, backend, options.rounds),
            ]
            figures = [figure for part in progress(parts, "bench") for figure in part()]
    except RavenstoreError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    if options.json:
        rows = [dataclasses.asdict(figure) for figure in figures]
        print(json.dumps({"backend": backend, "figures": rows}))
    else:
        print("\n".join([f"backend {backend}, {socket}", *map(str, figures)]))
    return 0


def _median_us(call: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        begin = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - begin)
    return statistics.median(times) / 1e3


def _calls(store: Store, budget: int, rounds: int) -> Iterator[Figure]:
    """The explicit interface, on tensors that stay on their device."""
    size = _CALL_BYTES
    many = max(1, min(64, budget // 2 // size))
    yield Figure("create and free", _median_us(lambda: store.create(size).free(), rounds), "us")
    with store.create(size) as tensor:
        tensor.put()
        yield Figure("get and put, resident", _median_us(lambda: tensor.get().put(), rounds), "us")
    tensors = [store.create(size) for _ in range(many)]
    store.put_batch(tensors)

    def batch() -> None:
        store.get_batch(tensors).put()

    each = _median_us(batch, max(1, rounds // many)) / many
    yield Figure(f"the same, {many} in a batch", each, "us", "each")
    store.free_batch(tensors)


def _link(store: Store, budget: int, seconds: float) -> Iterator[Figure]:
    size = moving_bytes(budget)
    words = f"{size_text(size)} each, both ways at once"
    into, out = both_ways(store, budget, seconds)
    yield Figure("moved in", into / 1e9, "GB/s", words)
    yield Figure("moved out", out / 1e9, "GB/s", words)


def _hooks(socket: str, backend: str, rounds: int) -> Iterator[Figure]:
    names = ("pack", "unpack", "pack and unpack")
    try:
        import torch

        with offload(socket=socket):
            pass
        native = _attached()
    except (ImportError, RavenstoreError) as error:
        for name in names:
            yield Figure(name, None, "us", str(error))
        return
    scope = native.scope(1 << 20, True, -1, native.block_stats(0) is not None)
    device = "cuda" if backend == "cuda" else "cpu"
    packs, unpacks = [], []
    with torch.no_grad():
        for _ in range(rounds):
            tensor = torch.empty(1 << 20, dtype=torch.float32, device=device)
            begin = time.perf_counter_ns()
            saved = scope.pack(tensor)
            packs.append(time.perf_counter_ns() - begin)
            del tensor  # PyTorch releases it: now it is parked
            begin = time.perf_counter_ns()
            back = scope.unpack(saved)
            unpacks.append(time.perf_counter_ns() - begin)
            del back, saved
    both = [pack + unpack for pack, unpack in zip(packs, unpacks, strict=True)]
    for name, values in zip(names, (packs, unpacks, both), strict=True):
        yield Figure(name, statistics.median(values) / 1e3, "us", "4.0 MiB, resident")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

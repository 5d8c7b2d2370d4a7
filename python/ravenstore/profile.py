"""A trace of what happens inside: compute, transfers and stalls on one axis, memory by kind and
place.

    with ravenstore.profile("trace.json"):
        with ravenstore.offload(device_budget="12GiB"):
            loss = model(x)
        loss.backward()

The file is in the Chrome trace format; ui.perfetto.dev and chrome://tracing show it. Its tracks:

- what PyTorch computes, from torch.profiler: operators on the CPU, kernels and copies on the GPU;
- "transfers out" and "transfers in": bytes that left the device, and that came back;
- "stalls": calls of this process that waited on the CPU. Where the GPU itself waits for bytes, its
  stream shows a gap between two kernels;
- "memory on the device": used by the program, idle in the store's magazines, parked (in the store,
  still there); "memory in host memory": what has left the device; "PyTorch's own memory": what is
  not the store's.

Resolution: the daemon keeps no times of single transfers for its clients. A thread of this process
asks it every `interval` seconds. A block on a transfer track is such an interval, with the bytes
that moved in it; a stall ends where it was first seen. Bytes are exact in sum, times to an
interval. PyTorch's events have their own exact times, on the same clock.
Cost: a question to the daemon an interval, some 50 microseconds of one CPU; torch.profiler's own
cost is larger, and compute=False leaves it out.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ravenstore._units import Duration, nanoseconds_of
from ravenstore.errors import InvalidArgument, RavenstoreError
from ravenstore.offload import _here, block_stats

if TYPE_CHECKING:
    from ravenstore.store import Store

Event = dict[str, Any]

PROCESS = "ravenstore"
OUT, IN, STALLS = "transfers out", "transfers in", "stalls"
ON_DEVICE, IN_HOST = "memory on the device", "memory in host memory"
PYTORCH = "PyTorch's own memory"

_INTERVAL_NS_MIN = 100_000


@dataclasses.dataclass(frozen=True)
class Sample:
    """What the store held and had done at one time. Bytes and nanoseconds."""

    at_ns: int
    """Of Unix time."""
    bytes_out: int
    bytes_in: int
    stall_ns: int
    used: int
    idle: int
    parked: int
    host: int


class Sampler:
    """Asks the stores in a thread of its own, from start() to stop(), which both ask as well."""

    def __init__(self, interval_ns: int, stores: Iterable[Store] = ()) -> None:
        self.samples: list[Sample] = []
        self.lost: str | None = None
        """Why it stopped asking before its time, if it did."""
        self._interval_ns = interval_ns
        self._stores = tuple(stores)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ravenstore-profile", daemon=True)

    def start(self) -> None:
        self._ask()
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        self._ask()

    def _run(self) -> None:
        while self.lost is None and not self._stopped.wait(self._interval_ns / 1e9):
            self._ask()

    def _ask(self) -> None:
        if self.lost is not None:
            return
        try:
            asked = [dataclasses.asdict(store.stats()) for store in self._stores]
            blocks: list[dict[str, int]] = []
            native = _here().native  # none without an offload() in this process
            if native is not None:
                asked.append(native.store_stats())
                blocks = block_stats(native)
        except RavenstoreError as error:
            self.lost = f"{type(error).__name__}: {error}"
            return
        if asked:
            self.samples.append(_sample(asked, blocks))


def _sample(asked: Iterable[Mapping[str, int]], blocks: Iterable[Mapping[str, int]]) -> Sample:
    def total(name: str) -> int:
        return sum(stats[name] for stats in asked)

    used = sum(stats["used"] for stats in blocks)
    idle = sum(stats["idle"] for stats in blocks)
    return Sample(
        at_ns=time.time_ns(),
        bytes_out=total("bytes_out"),
        bytes_in=total("bytes_in"),
        stall_ns=total("stall_ns"),
        used=used,
        idle=idle,
        # The two answers are of two moments.
        parked=max(0, total("device_bytes") - used - idle),
        host=total("host_bytes"),
    )


class profile:  # noqa: N801 - it is used as a function
    """Writes a trace of what happens while it is open; see the module.

    path: of the file, which is compressed if it ends in ".gz".
    interval: between two questions to the daemon; at least 0.1 ms.
    stores: explicit stores to look at, in addition to that of offload().
    compute: PyTorch's operators and kernels and its own memory, if the program has imported it. Not
        while another torch.profiler runs.

    The file is written at the end, also after an exception. `samples` and `events` then have what
    is in it. Threads: one profile() of a process at a time with compute, else any.
    Errors: InvalidArgument; on exit OSError when the file cannot be written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        interval: Duration = 0.002,
        stores: Iterable[Store] = (),
        compute: bool = True,
    ) -> None:
        self.path = os.fspath(path)
        """Of the trace."""
        self.events: list[Event] = []
        """The trace's, once it is written."""
        interval_ns = nanoseconds_of(interval)
        if interval_ns < _INTERVAL_NS_MIN:
            raise InvalidArgument(f"interval is {interval} seconds: it is at least 0.0001")
        self._sampler = Sampler(interval_ns, stores)
        self._compute = compute
        self._torch: Any = None

    @property
    def samples(self) -> list[Sample]:
        """What the daemon said so far, oldest first."""
        return self._sampler.samples

    def __enter__(self) -> profile:
        torch = sys.modules.get("torch")
        if self._compute and torch is not None:
            activities = [torch.profiler.ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(torch.profiler.ProfilerActivity.CUDA)
            self._torch = torch.profiler.profile(
                activities=activities, profile_memory=True, acc_events=True
            )
            self._torch.__enter__()
        self._sampler.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._sampler.stop()
        document: dict[str, Any] = {"traceEvents": [], "displayTimeUnit": "ms"}
        if self._torch is not None:
            self._torch.__exit__(kind, error, trace)
            document = _exported(self._torch)
        base_ns = document.setdefault("baseTimeNanoseconds", 0)
        events = document["traceEvents"]
        events += _own_memory(events)
        events += events_of(self.samples, base_ns)
        if self._sampler.lost is not None:
            events.append(_lost(self._sampler.lost, base_ns))
        self.events = events
        opened = gzip.open if self.path.endswith(".gz") else open
        with opened(self.path, "wt", encoding="utf-8") as file:
            json.dump(document, file)


def _exported(profiler: Any) -> dict[str, Any]:
    """What torch.profiler writes."""
    with tempfile.TemporaryDirectory(prefix="ravenstore-") as folder:
        path = os.path.join(folder, "torch.json")
        profiler.export_chrome_trace(path)
        with open(path, encoding="utf-8", errors="replace") as file:
            document: dict[str, Any] = json.load(file)
    document.pop("traceName", None)
    return document


def _microseconds(at_ns: int, base_ns: int) -> float:
    return (at_ns - base_ns) / 1000


def events_of(samples: list[Sample], base_ns: int = 0) -> list[Event]:
    """The store's tracks. Times are microseconds after `base_ns` of Unix time."""
    events = _names()
    for sample in samples:
        at = _microseconds(sample.at_ns, base_ns)
        kinds = {"used": sample.used, "idle": sample.idle, "parked": sample.parked}
        events.append(_counter(ON_DEVICE, at, kinds))
        events.append(_counter(IN_HOST, at, {"moved out": sample.host}))
    stalled_until_ns = 0
    for before, after in zip(samples, samples[1:], strict=False):
        for track, moved in (
            (OUT, after.bytes_out - before.bytes_out),
            (IN, after.bytes_in - before.bytes_in),
        ):
            if moved > 0:
                rate = moved / (after.at_ns - before.at_ns)
                words = {"bytes": moved, "GB/s": round(rate, 3)}
                events.append(_block(track, before.at_ns, after.at_ns, base_ns, words))
        stall_ns = after.stall_ns - before.stall_ns
        if stall_ns > 0:
            # A wait is counted when it ends, and those of several threads add up.
            begin_ns = max(after.at_ns - stall_ns, stalled_until_ns, samples[0].at_ns)
            words = {"waited_ns": stall_ns}
            events.append(_block(STALLS, begin_ns, after.at_ns, base_ns, words))
            stalled_until_ns = after.at_ns
    return events


def _names() -> list[Event]:
    def named(what: str, track: str, arguments: dict[str, Any]) -> Event:
        return {"ph": "M", "name": what, "pid": PROCESS, "tid": track, "ts": 0, "args": arguments}

    events = [
        named("process_name", "", {"name": PROCESS}),
        named("process_sort_index", "", {"sort_index": -1}),
    ]
    for index, track in enumerate((OUT, IN, STALLS)):
        events.append(named("thread_name", track, {"name": track}))
        events.append(named("thread_sort_index", track, {"sort_index": index}))
    return events


def _block(track: str, begin_ns: int, end_ns: int, base_ns: int, words: dict[str, Any]) -> Event:
    return {
        "ph": "X",
        "cat": PROCESS,
        "name": track,
        "pid": PROCESS,
        "tid": track,
        "ts": _microseconds(begin_ns, base_ns),
        "dur": (end_ns - begin_ns) / 1000,
        "args": words,
    }


def _counter(name: str, at: float, values: dict[str, int]) -> Event:
    return {"ph": "C", "name": name, "pid": PROCESS, "ts": at, "args": values}


def _lost(why: str, base_ns: int) -> Event:
    at = _microseconds(time.time_ns(), base_ns)
    return {"ph": "i", "s": "g", "name": why, "pid": PROCESS, "tid": STALLS, "ts": at}


def _own_memory(events: list[Event]) -> list[Event]:
    """Counters from torch.profiler's events of memory, which viewers do not plot. The CPU's count
    from the profile's begin, the GPU's are all there is."""
    counters = []
    for event in events:
        if event.get("name") == "[memory]":
            what = event["args"]
            kind = "CPU" if what["Device Type"] == 0 else f"GPU {what['Device Id']}"
            total = {kind: what["Total Allocated"]}
            counters.append(_counter(f"{PYTORCH}, {kind}", event["ts"], total))
    return counters

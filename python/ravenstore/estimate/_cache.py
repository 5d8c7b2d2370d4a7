"""What allocators hold of a device for a given order of allocations and frees.

An event is (bytes, id) or (bytes, id, stream): an allocation of that many bytes if positive, else
the free of that id, whatever the number. A model replays events and says the peaks:

    peaks = CudaCache().replay(events)
    CudaCache(expandable=True), CudaMallocAsync(), StoreArena(budget)

Each is a model of published rules, in pure Python; none touches a device. A budget is the most that
may be held of the device, in bytes; beyond it an allocator first releases what it holds idle.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable, Iterable, Sequence

Event = Sequence[int]

KIB, MIB = 1 << 10, 1 << 20


@dataclasses.dataclass(frozen=True)
class Peaks:
    """Of one replay, in bytes."""

    used: int
    """The most that live blocks had together, as the allocator rounds them."""
    reserved: int
    """The most that was held of the device."""
    failed_at: int | None = None
    """The event that the budget had no room for, where the replay ended."""


class OutOfBudget(Exception):
    """The budget has no room, not even with everything idle given back."""


def _round_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit


@dataclasses.dataclass(frozen=True)
class Pool:
    """The rules for requests of one class of sizes. Sizes are in bytes."""

    segment: Callable[[int], int]
    """What is taken of the device for a request of that size."""
    split_above: int
    """A block is cut in two if more than this would be left over."""


class _Block:
    """A run of addresses within one segment; neighbours are linked, so that free ones merge."""

    __slots__ = ("address", "free", "mapped", "next", "previous", "size")

    def __init__(self, address: int, size: int, *, mapped: bool = True) -> None:
        self.address = address
        self.size = size
        self.free = True
        self.mapped = mapped
        self.previous: _Block | None = None
        self.next: _Block | None = None

    def split(self, size: int) -> _Block:
        """Keeps the first `size` bytes; the rest, as a free block behind it."""
        rest = _Block(self.address + size, self.size - size, mapped=self.mapped)
        rest.previous, rest.next = self, self.next
        if self.next is not None:
            self.next.previous = rest
        self.next = rest
        self.size = size
        return rest

    def absorb_next(self) -> None:
        gone = self.next
        assert gone is not None
        self.size += gone.size
        self.next = gone.next
        if self.next is not None:
            self.next.previous = self

    def whole_segment(self) -> bool:
        return self.previous is None and self.next is None


class _FreeList:
    """Free blocks, the smallest first and of one size the lowest address first."""

    def __init__(self) -> None:
        self._order: list[tuple[int, int]] = []
        self._blocks: dict[int, _Block] = {}

    def add(self, block: _Block) -> None:
        bisect.insort(self._order, (block.size, block.address))
        self._blocks[block.address] = block

    def remove(self, block: _Block) -> None:
        del self._order[bisect.bisect_left(self._order, (block.size, block.address))]
        del self._blocks[block.address]

    def best_fit(self, size: int) -> _Block | None:
        """The smallest block that is large enough, taken out of the list."""
        index = bisect.bisect_left(self._order, (size, 0))
        if index == len(self._order):
            return None
        return self._blocks.pop(self._order.pop(index)[1])

    def blocks(self) -> list[_Block]:
        return list(self._blocks.values())


class _Device:
    """What is held of a device, within a budget."""

    def __init__(self, budget: int | None) -> None:
        self.budget = budget
        self.held = 0
        self.held_peak = 0
        self._next_address = 0

    def take(self, size: int) -> int:
        """Takes `size` bytes; their address. Errors: OutOfBudget."""
        if self.budget is not None and self.held + size > self.budget:
            raise OutOfBudget
        self.held += size
        self.held_peak = max(self.held_peak, self.held)
        return self.reserve(size)

    def reserve(self, size: int) -> int:
        """Addresses without memory beneath."""
        address = self._next_address
        self._next_address += size
        return address

    def release(self, size: int) -> None:
        self.held -= size


class _Segments:
    """The blocks of one pool and stream, in segments that come and go whole."""

    def __init__(self, device: _Device, pool: Pool) -> None:
        self._device = device
        self._pool = pool
        self._free = _FreeList()

    def allocate(self, size: int) -> _Block:
        block = self._free.best_fit(size)
        if block is None:
            segment = self._pool.segment(size)
            block = _Block(self._device.take(segment), segment)
        if block.size - size > self._pool.split_above:
            self._free.add(block.split(size))
        block.free = False
        return block

    def free(self, block: _Block) -> None:
        block.free = True
        before, after = block.previous, block.next
        if after is not None and after.free and after.mapped:
            self._free.remove(after)
            block.absorb_next()
        if before is not None and before.free and before.mapped:
            self._free.remove(before)
            before.absorb_next()
            block = before
        self._free.add(block)

    def trim(self) -> None:
        """Releases what is idle."""
        for block in self._free.blocks():
            if block.whole_segment():
                self._free.remove(block)
                self._device.release(block.size)


class _Expandable(_Segments):
    """The blocks of one pool and stream in one range of addresses, which pages are mapped into."""

    RANGE = 1 << 47

    def __init__(self, device: _Device, pool: Pool, page: int) -> None:
        super().__init__(device, pool)
        self._page = page
        self._first = _Block(device.reserve(self.RANGE), self.RANGE, mapped=False)

    def allocate(self, size: int) -> _Block:
        block = self._free.best_fit(size) or self._grow(size)
        if block.size - size > self._pool.split_above:
            self._free.add(block.split(size))
        block.free = False
        return block

    def _grow(self, size: int) -> _Block:
        """Maps pages until a free block has `size` bytes, at the lowest address where it can."""
        block: _Block | None = self._first
        while block is not None:
            if self._room_from(block, size) >= size:
                return self._map(block, size)
            block = block.next
        raise OutOfBudget

    @staticmethod
    def _room_from(start: _Block, size: int) -> int:
        """The bytes of free blocks, mapped or not, from `start` on, until `size` is reached."""
        room = 0
        block: _Block | None = start
        while block is not None and block.free and room < size:
            room += block.size
            block = block.next
        return room

    def _map(self, block: _Block, size: int) -> _Block:
        """Makes `block` and what follows one mapped block of at least `size` bytes."""
        if block.mapped:
            self._free.remove(block)
        else:
            self._map_pages(block, size)
        try:
            while block.size < size:
                after = block.next
                assert after is not None
                if after.mapped:
                    self._free.remove(after)
                else:
                    self._map_pages(after, size - block.size)
                block.absorb_next()
        except OutOfBudget:
            self._free.add(block)
            raise
        return block

    def _map_pages(self, block: _Block, size: int) -> None:
        mapped = min(_round_up(size, self._page), block.size)
        self._device.take(mapped)
        if mapped < block.size:
            block.split(mapped)
        block.mapped = True

    def trim(self) -> None:
        for block in self._free.blocks():
            begin = _round_up(block.address, self._page)
            end = (block.address + block.size) // self._page * self._page
            if begin >= end:
                continue
            self._free.remove(block)
            if begin > block.address:
                rest = block.split(begin - block.address)
                self._free.add(block)
                block = rest
            if end < block.address + block.size:
                self._free.add(block.split(end - begin))
            block.mapped = False
            self._device.release(block.size)
            self._merge_unmapped(block)

    @staticmethod
    def _merge_unmapped(block: _Block) -> None:
        if block.next is not None and not block.next.mapped:
            block.absorb_next()
        before = block.previous
        if before is not None and not before.mapped:
            before.absorb_next()


class Model:
    """A model of an allocator."""

    def replay(self, events: Iterable[Event], budget: int | None = None) -> Peaks:
        """The peaks over `events`. A free of an id that is not live is ignored: its allocation was
        before the recording began."""
        run = self._run(budget)
        for index, (size, number, *stream) in enumerate(events):
            if size <= 0:
                run.free(number)
                continue
            try:
                run.allocate(size, number, stream[0] if stream else 0)
            except OutOfBudget:
                return Peaks(run.used_peak, run.reserved_peak, failed_at=index)
        return Peaks(run.used_peak, run.reserved_peak)

    def _run(self, budget: int | None) -> _Run:
        raise NotImplementedError


class _Run:
    """One replay."""

    def __init__(self, budget: int | None) -> None:
        self.used = 0
        self.used_peak = 0
        self._device = _Device(budget)
        self._segments: dict[tuple[int, int], _Segments] = {}
        self._live: dict[int, tuple[_Segments, _Block]] = {}

    @property
    def reserved_peak(self) -> int:
        return self._device.held_peak

    def allocate(self, size: int, number: int, stream: int) -> None:
        pool, rounded = self._class_of(size)
        key = (pool, stream)
        segments = self._segments.get(key)
        if segments is None:
            segments = self._segments[key] = self._make(pool)
        try:
            block = segments.allocate(rounded)
        except OutOfBudget:
            for each in self._segments.values():
                each.trim()
            block = segments.allocate(rounded)
        self._live[number] = (segments, block)
        self._count(block.size)

    def free(self, number: int) -> None:
        if number in self._live:
            segments, block = self._live.pop(number)
            self._count(-block.size)
            segments.free(block)

    def _count(self, size: int) -> None:
        self.used += size
        self.used_peak = max(self.used_peak, self.used)

    def _class_of(self, size: int) -> tuple[int, int]:
        """The pool for a request of that size, and the size rounded."""
        raise NotImplementedError

    def _make(self, pool: int) -> _Segments:
        raise NotImplementedError


# ---- PyTorch's native allocator

_BLOCK = 512
_SMALL_MAX = MIB
_PAGES = (2 * MIB, 20 * MIB)


def _large_segment(size: int) -> int:
    return 20 * MIB if size < 10 * MIB else _round_up(size, 2 * MIB)


_POOLS = (
    Pool(segment=lambda size: 2 * MIB, split_above=_BLOCK - 1),
    Pool(segment=_large_segment, split_above=_SMALL_MAX),
)
_EXPANDABLE_POOLS = tuple(dataclasses.replace(pool, split_above=_BLOCK - 1) for pool in _POOLS)


class CudaCache(Model):
    """PyTorch's CUDACachingAllocator with its default options (2.11), or with expandable segments.

    Sizes are rounded up to 512 bytes. At most 1 MiB is cut from segments of 2 MiB; less than 10 MiB
    from segments of 20 MiB; more has a segment of its own, in units of 2 MiB. Each stream has its
    own blocks. The best fit is taken, and cut if 512 bytes are left over, of large ones more than
    1 MiB. Where the budget has no room, segments without a live block go back first.
    """

    def __init__(self, *, expandable: bool = False) -> None:
        self._expandable = expandable

    def _run(self, budget: int | None) -> _Run:
        return _CudaCacheRun(budget, expandable=self._expandable)


class _CudaCacheRun(_Run):
    def __init__(self, budget: int | None, *, expandable: bool) -> None:
        super().__init__(budget)
        self._expandable = expandable

    def _class_of(self, size: int) -> tuple[int, int]:
        rounded = _round_up(size, _BLOCK)
        return int(rounded > _SMALL_MAX), rounded

    def _make(self, pool: int) -> _Segments:
        if self._expandable:
            return _Expandable(self._device, _EXPANDABLE_POOLS[pool], _PAGES[pool])
        return _Segments(self._device, _POOLS[pool])


# ---- The driver's


class CudaMallocAsync(Model):
    """cudaMallocAsync's pool as PyTorch sets it up: nothing is given back before the budget ends.

    An approximation, for the driver's rules are not published: one pool for all streams, blocks of
    512 bytes, best fit, and 32 MiB of the device at a time.
    """

    def _run(self, budget: int | None) -> _Run:
        return _CudaMallocAsyncRun(budget)


class _CudaMallocAsyncRun(_Run):
    def allocate(self, size: int, number: int, stream: int) -> None:
        super().allocate(size, number, 0)

    def _class_of(self, size: int) -> tuple[int, int]:
        return 0, _round_up(size, _BLOCK)

    def _make(self, pool: int) -> _Segments:
        rules = Pool(segment=lambda size: _round_up(size, 32 * MIB), split_above=_BLOCK - 1)
        return _Segments(self._device, rules)


# ---- The store's

_IDLE_SHARE = 16
_WASTE_SHARE = 16
_WASTE_LEAST = 32 * MIB


class StoreArena(Model):
    """The store's allocator under torch (client/blocks.h): a client that has a device to itself.

    device_budget: the client's, in bytes.

    Blocks of 1 MiB and more are tensors in one arena of slabs, whose size is a 64th of the budget.
    Freed ones are kept in magazines by stream and size, up to a bound, and then go back to the
    arena. Smaller blocks stay with PyTorch's allocator. Nothing is parked: without offload() all
    that lives is on the device.
    """

    def __init__(self, device_budget: int) -> None:
        self._device_budget = device_budget

    def _run(self, budget: int | None) -> _Run:
        return _StoreRun(self._device_budget, budget)


class _StoreRun(_Run):
    """Pool 0 and 1 are PyTorch's; pool 2 is the arena."""

    def __init__(self, device_budget: int, budget: int | None) -> None:
        super().__init__(budget)
        self._budget = device_budget
        slab = max(2 * MIB, _round_up(device_budget // 64, 2 * MIB))
        rules = Pool(segment=lambda size: size, split_above=_BLOCK - 1)
        self._arena = _Expandable(self._device, rules, slab)
        self._idle: dict[tuple[int, int], list[_Block]] = {}
        self._ages: dict[int, tuple[int, int]] = {}  # of idle blocks, by address: oldest first
        self._idle_bytes = 0
        self._tensors: dict[int, tuple[int, _Block]] = {}
        self._tensor_bytes = 0
        self._needed_ever = 0

    def allocate(self, size: int, number: int, stream: int) -> None:
        if size < _SMALL_MAX:
            super().allocate(size, number, stream)
        else:
            block = self._take_idle(stream, self._rounded(size))
            self._tensors[number] = (stream, block)
            self._tensor_bytes += block.size
            self._needed_ever = max(self._needed_ever, self._tensor_bytes)
            self._count(block.size)

    def free(self, number: int) -> None:
        if number not in self._tensors:
            super().free(number)
            return
        stream, block = self._tensors.pop(number)
        self._tensor_bytes -= block.size
        self._count(-block.size)
        self._idle.setdefault((stream, block.size), []).append(block)
        self._ages[block.address] = (stream, block.size)
        self._idle_bytes += block.size
        self._shrink(0)

    def _class_of(self, size: int) -> tuple[int, int]:
        return 0, _round_up(size, _BLOCK)

    def _make(self, pool: int) -> _Segments:
        return _Segments(self._device, _POOLS[pool])

    @staticmethod
    def _rounded(size: int) -> int:
        """Each power of two has 32 sizes."""
        return _round_up(size, max(_BLOCK, (1 << (size.bit_length() - 1)) // 32))

    def _take_idle(self, stream: int, size: int) -> _Block:
        magazine = self._idle.get((stream, size))
        if magazine:
            block = magazine.pop()
            del self._ages[block.address]
            self._idle_bytes -= size
            return block
        self._shrink(size)
        try:
            return self._arena.allocate(size)
        except OutOfBudget:
            self._release_idle(self._idle_bytes, largest=False)
            for each in (*self._segments.values(), self._arena):
                each.trim()
            return self._arena.allocate(size)

    def _shrink(self, more: int) -> None:
        """Releases the idle blocks that exceed the bounds with `more` bytes in use."""
        others = self._tensor_bytes + more
        needed = max(self._needed_ever, others)
        most = self._budget // _IDLE_SHARE
        if needed <= self._budget:
            most = max(most, self._budget - others)
        self._release_idle(self._idle_bytes - most, largest=False)
        allowed = needed - others + max(needed // _WASTE_SHARE, _WASTE_LEAST)
        self._release_idle(self._idle_bytes - allowed, largest=True)

    def _release_idle(self, size: int, *, largest: bool) -> None:
        while size > 0 and self._ages:
            if largest:
                key = max(self._ages.values(), key=lambda each: each[1])
            else:
                key = next(iter(self._ages.values()))
            block = self._idle[key].pop(0)
            del self._ages[block.address]
            self._idle_bytes -= block.size
            size -= block.size
            self._arena.free(block)

"""Chunks of optimizer state: how the states of parameters are laid out in tensors of the store.

A chunk is one tensor of the store, or one of PyTorch's that stays on the device. It holds the
states of some pieces; a piece is a parameter, or a run of the elements of one whose states are
larger than a chunk. Every state keeps its type, and its distance from the chunk's begin is a
multiple of 512 bytes, as in PyTorch's own memory, so that the same kernels run on it.
"""

from __future__ import annotations

import contextlib
import copy
import math
import weakref
from collections.abc import Iterator, MutableMapping
from typing import Any, NamedTuple

import torch

from ravenstore._saved import SavedState
from ravenstore.store import Store
from ravenstore.store import Tensor as Handle

ALIGNMENT = 512
# What aligning the states of a piece takes at most: Adam has three.
OVERHEAD = 4 * ALIGNMENT
# The largest state that is copied into pinned memory on its way to a file.
_PINNED_BYTES_MAX = 256 << 20
# The order of a chunk whose parameters get no gradients: after all that are in use.
LAST = 1 << 62


def aligned(size: int) -> int:
    """`size` rounded up to where the next state may begin."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class Slot(NamedTuple):
    """A state's place in its chunk."""

    offset: int
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]

    def of(self, base: torch.Tensor) -> torch.Tensor:
        """The state in the chunk whose bytes are `base`: a view of them."""
        run = math.prod(self.shape) * self.dtype.itemsize
        typed = base[self.offset : self.offset + run].view(self.dtype)
        return typed.as_strided(self.shape, self.stride)


def is_movable(key: str, value: object, shape: torch.Size) -> bool:
    """Whether a state is moved: all that have the parameter's shape. `step` is tiny and stays."""
    return (
        isinstance(value, torch.Tensor)
        and type(value) in (torch.Tensor, torch.nn.Parameter, SavedState)
        and key != "step"
        and value.layout is torch.strided
        and value.shape == shape
        and value.numel() > 0
    )


class Piece:
    """A parameter, or the elements [begin, end) of one that is contiguous."""

    def __init__(self, param: torch.Tensor, begin: int, end: int, *, begins_chunk: bool) -> None:
        self.param = param
        self.begin = begin
        self.end = end
        self.begins_chunk = begins_chunk
        self.slots: dict[str, Slot] = {}
        # Weak: a chunk has its pieces, and its bytes are freed as soon as the optimizer is gone.
        self._chunk: weakref.ref[Chunk] | None = None

    @property
    def chunk(self) -> Chunk | None:
        """The one that has its states, once it is in one."""
        return self._chunk() if self._chunk is not None else None

    @chunk.setter
    def chunk(self, chunk: Chunk) -> None:
        self._chunk = weakref.ref(chunk)

    @property
    def shape(self) -> torch.Size:
        """What its states look like."""
        return self.param.shape if self.whole else torch.Size([self.end - self.begin])

    @property
    def whole(self) -> bool:
        """Whether it is all of its parameter."""
        return self.begin == 0 and self.end == self.param.numel()

    @property
    def last(self) -> bool:
        """Whether its parameter has no piece after it."""
        return self.end == self.param.numel()

    def cut(self, value: torch.Tensor) -> torch.Tensor:
        """This piece of `value`, which has the parameter's shape: a view where that is possible."""
        return value if self.whole else value.reshape(-1)[self.begin : self.end]

    def working(self) -> torch.Tensor:
        """What the optimizer's step code updates: the parameter, or a view of the run with its
        gradient."""
        if self.whole:
            return self.param
        grad = self.param.grad
        assert grad is not None
        if not grad.is_contiguous():
            # A view of it is needed: the fused kernels write unscaled gradients back.
            grad = self.param.grad = grad.contiguous()
        view = self.cut(self.param.detach())
        view.grad = self.cut(grad.detach())
        return view

    def empty_state(self, key: str, device: torch.device, *, briefly: bool) -> torch.Tensor:
        """Memory for the whole parameter's state, of which this piece has a part. `briefly`: on a
        CPU it may be pinned. PyTorch keeps such memory for the next state: no page is touched for
        the first time, and the device copies at full speed."""
        slot = self.slots[key]
        shape, stride = slot.shape, slot.stride
        if not self.whole:
            shape = self.param.shape
            stride = torch.empty(shape, device="meta").stride()
        size = shape.numel() * slot.dtype.itemsize
        if briefly and self.param.device.type == "cuda" and size <= _PINNED_BYTES_MAX:
            # Where no more may be pinned, other memory does.
            with contextlib.suppress(RuntimeError):
                return torch.empty_strided(shape, stride, dtype=slot.dtype, pin_memory=True)
        return torch.empty_strided(shape, stride, dtype=slot.dtype, device=device)

    def view(self, base: torch.Tensor, key: str) -> torch.Tensor:
        """The state in its open chunk, whose bytes are `base`. Invalid once the chunk is closed."""
        return self.slots[key].of(base)


def cut_into_pieces(
    param: torch.Tensor,
    bytes_per_element: int,
    chunk_bytes: int,
    room: int,
    *,
    may_cut: bool = True,
) -> tuple[list[Piece], int]:
    """The pieces of `param`, and the bytes that are left in the last one's chunk.

    `room` is what is left in the chunk before. A parameter that does not fit there is cut if it
    `may_cut`, so that chunks are full: of equal size they take each other's places on the device.
    The length of all pieces but the last is a multiple of 1024 elements, so that every element
    takes the same path through a vectorized kernel as in the uncut parameter.
    """
    count = param.numel()
    if count * bytes_per_element + OVERHEAD <= room:
        piece = Piece(param, 0, count, begins_chunk=False)
        return [piece], room - count * bytes_per_element - OVERHEAD
    if not may_cut or not param.is_contiguous() or count * bytes_per_element == 0:
        piece = Piece(param, 0, count, begins_chunk=True)
        return [piece], max(chunk_bytes - count * bytes_per_element - OVERHEAD, 0)
    pieces: list[Piece] = []
    shortest = max(chunk_bytes // 64 // bytes_per_element, 1024)
    begin, begins_chunk = 0, False
    while begin < count:
        fits = max(room - OVERHEAD, 0) // bytes_per_element
        run = count - begin if count - begin <= fits else fits // 1024 * 1024
        if run < min(shortest, count - begin):
            begins_chunk, room = True, chunk_bytes
            continue
        pieces.append(Piece(param, begin, begin + run, begins_chunk=begins_chunk))
        begins_chunk = False
        room -= run * bytes_per_element + OVERHEAD
        begin += run
    return pieces, room


class _OnDevice:
    """PyTorch memory with the methods of a store tensor's handle. It never moves."""

    def __init__(self, base: torch.Tensor) -> None:
        self._base = base
        self.size = base.numel()

    def get(self, *, read_only: bool = False) -> _OnDevice:
        del read_only
        return self

    def put(self, *, order: int, not_modified: bool = False) -> None:
        pass

    def torch(self) -> torch.Tensor:
        return self._base

    def free(self) -> None:
        pass


class Chunk:
    """One tensor of the store with the states of `pieces`; none when they have nothing to move.

    One that is almost full has `full` bytes. One that `stays` is a tensor of PyTorch's instead.

    Streams: it is got, used and put on PyTorch's current stream of its device, the same each time.
    No view of its bytes may live when it is closed.
    """

    def __init__(
        self, store: Store, device: torch.device, full: int, *, stays: bool = False
    ) -> None:
        self.pieces: list[Piece] = []
        self.device = device
        self.order = 0
        self.turn = -1
        self.stays = stays
        self._store = store
        self._full = full
        self._home: Handle | _OnDevice | None = None
        self._is_open = False

    @property
    def size(self) -> int:
        """Bytes of the tensor."""
        return 0 if self._home is None else self._home.size

    def stay(self) -> None:
        """Keeps a closed chunk on the device from now on. Errors: torch.OutOfMemoryError, and the
        chunk is unchanged; those of Tensor.get."""
        if self.stays or self._home is None:
            return
        with self.read() as base:
            copied = _OnDevice(base.clone())
        self._home.free()
        self._home = copied
        self.stays = True

    def open(self) -> None:
        """Gets the chunk, if it has bytes; close() puts it. Errors: those of Tensor.get."""
        if self._home is not None and not self._is_open:
            self._home.get()
            self._is_open = True

    def bytes(self) -> torch.Tensor | None:
        """The open chunk's bytes, for work on the current stream; None when it has none."""
        return None if self._home is None else self._home.torch()

    def close(self, order: int) -> None:
        """Puts the chunk, if it is open. `order` is that of Tensor.put."""
        self.order = order
        if self._home is not None and self._is_open:
            self._is_open = False
            self._home.put(order=order)

    @contextlib.contextmanager
    def read(self) -> Iterator[torch.Tensor]:
        """The bytes, to be copied from on the current stream, whether it is open or not."""
        assert self._home is not None
        view = self._home.get(read_only=True)
        try:
            yield view.torch()
        finally:
            view.put(order=self.order, not_modified=True)

    def set_order(self, order: int) -> None:
        """Gives a closed chunk another order, for which it has to be got."""
        if self._home is not None:
            self._home.get(read_only=True).put(order=order, not_modified=True)
        self.order = order

    def lay_out(self, bound: list[tuple[Piece, dict[str, Any]]]) -> None:
        """Takes these pieces, all of its own among them, and their states: makes a tensor that fits
        them, copies them and leaves it open. The tensor that it had before, open too, is freed.
        """
        offset = 0
        targets: list[tuple[Slot, torch.Tensor]] = []
        slots: list[dict[str, Slot]] = []
        for piece, state in bound:
            slots.append({})
            for key, value in state.items():
                if is_movable(key, value, piece.shape):
                    stride = torch.empty_like(value, device="meta").stride()
                    slot = Slot(offset, value.dtype, value.shape, stride)
                    offset += aligned(value.numel() * value.element_size())
                    slots[-1][key] = slot
                    targets.append((slot, value))
        if self._full - self._full // 16 <= offset < self._full:
            offset = self._full
        home = self._make(offset) if offset > 0 else None
        if home is not None:
            base = home.torch()
            for slot, value in targets:
                slot.of(base).copy_(value)
            del base
        if self._home is not None:
            self._home.free()
        self._home = home
        self._is_open = home is not None
        self.pieces = [piece for piece, _ in bound]
        for (piece, _), its_slots in zip(bound, slots, strict=True):
            piece.chunk = self
            piece.slots = its_slots

    def _make(self, size: int) -> Handle | _OnDevice:
        if self.stays:
            return _OnDevice(torch.empty(size, dtype=torch.uint8, device=self.device))
        return self._store.create(size, device=self.device.index or 0)

    def free(self) -> None:
        """Frees the tensor; the states are gone."""
        home, self._home = self._home, None
        self._is_open = False
        if home is not None:
            home.free()


class _Away:
    """Stands for a state that is in the store."""

    def __repr__(self) -> str:
        return "<in the store>"


AWAY = _Away()


class ParamState(MutableMapping[str, Any]):
    """What `optimizer.state[p]` is for a parameter with states in the store.

    Reading such a state brings a copy of it, on the parameter's device. The copy is then the state:
    the next step updates it and takes it into the store. So what is read is right, what is written
    counts, and memory holds the copy until that step. A copy that is kept longer goes stale.
    """

    def __init__(self, param: torch.Tensor, pieces: list[Piece], values: dict[str, Any]) -> None:
        self.pieces = pieces
        self.values_or_away = values
        self._param = param

    def __getitem__(self, key: str) -> Any:
        value = self.values_or_away[key]
        if value is AWAY:
            value = self.values_or_away[key] = self._fetch(key, self._param.device)
        return value

    def on_cpu(self, key: str, *, briefly: bool = False) -> torch.Tensor:
        """A copy of a state on the CPU; the state stays. `briefly`: the copy is freed soon."""
        value = self.values_or_away[key]
        if value is AWAY:
            return self._fetch(key, torch.device("cpu"), briefly=briefly)
        copied: torch.Tensor = value.detach().to("cpu", copy=True)
        return copied

    def _fetch(self, key: str, device: torch.device, *, briefly: bool = False) -> torch.Tensor:
        full = self.pieces[0].empty_state(key, device, briefly=briefly)
        for piece in self.pieces:
            assert piece.chunk is not None
            with piece.chunk.read() as base:
                piece.cut(full).copy_(piece.view(base, key), non_blocking=briefly)
        if briefly and self._param.is_cuda:
            torch.cuda.current_stream(self._param.device).synchronize()
        return full

    def __setitem__(self, key: str, value: Any) -> None:
        self.values_or_away[key] = value

    def __delitem__(self, key: str) -> None:
        del self.values_or_away[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_or_away)

    def __len__(self) -> int:
        return len(self.values_or_away)

    def __repr__(self) -> str:
        return repr(self.values_or_away)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return copy.deepcopy(dict(self), memo)

"""The states of an optimizer in the store, and their way to its step code and back."""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch.utils.hooks import RemovableHandle

from ravenstore._chunks import (
    AWAY,
    LAST,
    Chunk,
    ParamState,
    Piece,
    cut_into_pieces,
    is_movable,
)
from ravenstore._precision import MASTER, REST, Precision, joined
from ravenstore._progress import BytesProgress
from ravenstore._refusals import (
    UsedGradient,
    check_backend,
    check_groups,
    class_name,
    has_gradient,
    refuse_capture,
    refuse_users_of_gradients,
    user_of_gradients,
)
from ravenstore._saved import SavedState
from ravenstore._units import size_text
from ravenstore._watch import GradientWatch
from ravenstore.errors import Corrupt, Lost, RavenstoreError, Unavailable
from ravenstore.store import Store

# The most chunks that wait for gradients together in a backward pass: neighbours' parameters may
# mix.
_READY_MAX = 2
# What the store's calls raise when the daemon or the device died.
_LOSSES = (Lost, Unavailable, Corrupt)
# Orders of one step; the next step's follow.
_ORDERS_PER_TURN = 1 << 24

Bound = list[tuple[Piece, dict[str, Any]]]


class StatesLost(Lost):
    """States were in the store when the daemon or the device died. The message says which, and how
    far the step had come. Load a checkpoint of model and optimizer."""


class States:
    """The states of one optimizer in the store, and their way to its step code and back."""

    def __init__(
        self,
        opt: Any,
        store: Store | None,
        connect: Callable[[], Store],
        chunk_bytes: int,
        in_backward: bool | Literal["auto"],
        precision: Precision,
        may_cut: bool,
        part_that_stays: float,
    ) -> None:
        self._may_cut = may_cut
        # The part of all chunks that stays on the device, and by how many chunks those made so far
        # are below it.
        self._part_that_stays = part_that_stays
        self._short_of_part = 0.0
        self.in_backward = in_backward is True
        self.precision = precision
        self.why: str
        """Why updates are made where they are."""
        self.why = "asked for" if in_backward != "auto" else "the first step shows how"
        # With in_backward="auto", until a step has shown whether gradients are used in between.
        self._watch = GradientWatch() if in_backward == "auto" else None
        self._is_auto = in_backward == "auto"
        self._saved_at: int | None = None
        self.lost: str | None = None
        self.is_stepping = False
        self._connect = None if store is not None else connect
        self.store = store if store is not None else connect()
        check_backend(self.store, {p.device for p in params_of(opt)})
        # The optimizer's step code itself: without hooks, which run once a step and not per chunk.
        self._plain_step = plain_step_of(opt)
        self._chunk_bytes = chunk_bytes
        self._chunks: list[Chunk] = []
        self._pieces: dict[torch.Tensor, list[Piece]] = {}
        self._room = 0
        self._packing_device: torch.device | None = None
        self._turn = 0
        self._position = 0
        # Steps that updated anything, those before a resume included; the parameters' numbers; and
        # of each at its last update: turn, version, whether it was changed before that.
        self._rounds = 0
        self._versions: dict[torch.Tensor, tuple[int, int, bool]] = {}
        self._numbers: dict[torch.Tensor, int] = {}
        # In a backward pass: hooks of models on several devices come in several threads.
        self._lock = threading.RLock()
        self._hooked: dict[torch.Tensor, RemovableHandle] = {}
        self._groups: dict[torch.Tensor, int] = {}
        self._opt = weakref.ref(opt)
        self._task = -1
        self._was_checked = False
        self._updated: set[torch.Tensor] = set()
        # In the order in which they got the first: chunks that wait for gradients, of how many
        # pieces, and those that have theirs; of the parameters of these, how many pieces are not
        # updated, and the stream that the gradient came on.
        self._ready: dict[Chunk, tuple[int, list[Piece]]] = {}
        self._pieces_left: dict[torch.Tensor, int] = {}
        self._stream_of: dict[torch.Tensor, torch.cuda.Stream] = {}
        self._packing: Bound = []

    # -- A step

    @torch.no_grad()
    def step(self, opt: Any) -> None:
        """One step over all parameters with gradients."""
        self._check_lost()
        check_groups(opt.param_groups, self.in_backward)
        decided = self._watch is not None and self._watch.finish(list(params_of(opt)))
        self.finish_backward(opt)
        groups = _group_of(opt)
        ready = {p: group for p, group in groups.items() if has_gradient(p)}
        with self._explained(opt):
            for chunk in list(self._chunks):
                pieces = [piece for piece in chunk.pieces if piece.param in ready]
                if pieces:
                    self._update_chunk(opt, chunk, pieces, ready)
            self._update_new(opt, ready)
            if self._position > 0:
                self._park_unused()
            for device in {chunk.device for chunk in self._chunks}:
                self.store.check(device=device.index or 0)
        for p in self._updated:
            # With "auto" it stays until zero_grad(), so that a late use raises.
            if type(p.grad) is UsedGradient and not self._is_auto:
                p.grad = None
        self._updated.clear()
        self._turn += 1
        self._rounds += self._position > 0
        self._position = 0
        if decided:
            self._decide(opt)

    def _update_chunk(
        self,
        opt: Any,
        chunk: Chunk,
        pieces: list[Piece],
        groups: Mapping[torch.Tensor, int],
    ) -> None:
        chunk.open()
        try:
            self._update(opt, chunk, pieces, groups)
        except Exception:
            with contextlib.suppress(RavenstoreError):
                chunk.close(chunk.order)
            raise
        self._close(chunk)

    def _update(
        self,
        opt: Any,
        chunk: Chunk,
        pieces: list[Piece],
        groups: Mapping[torch.Tensor, int],
    ) -> None:
        """Runs the optimizer's step code on pieces of an open chunk."""
        base = chunk.bytes()
        bound = [(piece, _bind(opt, piece, base)) for piece in pieces]
        bound = self._run_step(opt, bound, groups)
        fits = [_copy_into_chunk(piece, state, base) for piece, state in bound]
        if not all(fits):
            others = [piece for piece in chunk.pieces if piece not in pieces]
            chunk.lay_out(bound + [(piece, _bind(opt, piece, base)) for piece in others])
        self._keep(opt, bound)

    def _update_new(self, opt: Any, ready: Mapping[torch.Tensor, int]) -> None:
        """For parameters without states in the store: the step code makes them."""
        batch: list[Piece] = []

        def run() -> None:
            if batch:
                bound: Bound = [(piece, _bind(opt, piece, None)) for piece in batch]
                self._store_new(opt, self._run_step(opt, bound, ready))
                batch.clear()

        self._room = 0
        for p, group in ready.items():
            if p in self._pieces:
                continue
            for piece in self._cut(opt, p, group):
                if piece.begins_chunk:
                    run()
                batch.append(piece)
        run()

    def _run_step(self, opt: Any, bound: Bound, groups: Mapping[torch.Tensor, int]) -> Bound:
        """Has the optimizer's own step code update the pieces; their states after it."""
        working = [piece.working() for piece, _ in bound]
        rests = [state.get(REST) for _, state in bound]
        updated = [
            self._lifted(piece, tensor, state)
            for tensor, (piece, state) in zip(working, bound, strict=True)
        ]
        states: defaultdict[torch.Tensor, Any] = defaultdict(dict)
        for tensor, (_, state) in zip(updated, bound, strict=True):
            states[tensor] = state
        numbered = zip((groups[piece.param] for piece, _ in bound), updated, strict=True)
        narrowed = [
            {**opt.param_groups[number], "params": [tensor for _, tensor in run]}
            for number, run in itertools.groupby(numbered, key=lambda item: item[0])
        ]
        saved = opt.param_groups, opt.state
        opt.param_groups, opt.state = narrowed, states
        self.is_stepping = True
        try:
            self._plain_step(opt)
        finally:
            self.is_stepping = False
            opt.param_groups, opt.state = saved
        for (piece, _), lifted, tensor, rest in zip(bound, updated, working, rests, strict=True):
            if lifted is not tensor:
                p, was_changed = piece.param, self._was_changed(piece.param)
                place = self._rounds, self._number_of(opt, p), piece.begin
                self.precision.lower(lifted, tensor, states[lifted], rest, place)
                self._versions[p] = self._turn, p._version, was_changed
        return [(piece, states[tensor]) for tensor, (piece, _) in zip(updated, bound, strict=True)]

    def _lifted(self, piece: Piece, working: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
        """The tensor that the step code updates: `working`, or its float32 copy."""
        if not self.precision.concerns(working):
            return working
        return self.precision.lifted(working, state, changed=self._was_changed(piece.param))

    def _was_changed(self, p: torch.Tensor) -> bool:
        """Whether something else wrote to `p` between its last update and this step's first."""
        turn, version, was_changed = self._versions.get(p, (self._turn, p._version, False))
        return was_changed if turn == self._turn else version != p._version

    def _number_of(self, opt: Any, p: torch.Tensor) -> int:
        if p not in self._numbers:
            self._numbers = {param: number for number, param in enumerate(params_of(opt))}
        return self._numbers[p]

    def _store_new(self, opt: Any, bound: Bound) -> None:
        """Makes a chunk of states that are in PyTorch's memory."""
        _keep_plain(opt, bound)
        self._short_of_part += self._part_that_stays
        stays = self._short_of_part >= 1
        self._short_of_part -= stays
        device = bound[0][0].param.device
        chunk = Chunk(self.store, device, self._chunk_bytes, stays=stays)
        chunk.lay_out(bound)
        self._chunks.append(chunk)
        self._keep(opt, bound)
        self._close(chunk)

    def _keep(self, opt: Any, bound: Bound) -> None:
        """Makes the optimizer's state of parameters whose last piece is in the store say so."""
        for piece, state in bound:
            if not state or not self._is_last(piece):
                continue
            values = {
                key: AWAY if is_movable(key, value, piece.shape) else value
                for key, value in state.items()
            }
            known = opt.state.get(piece.param)
            if isinstance(known, ParamState) and known.pieces is self._pieces[piece.param]:
                known.values_or_away = values
            else:
                pieces = self._pieces[piece.param]
                opt.state[piece.param] = ParamState(piece.param, pieces, values)

    def _is_last(self, piece: Piece) -> bool:
        """Whether it is the last of its parameter to be updated."""
        left = self._pieces_left.get(piece.param)
        return piece.last if left is None else left == 1

    def _close(self, chunk: Chunk) -> None:
        self._position += 1
        chunk.turn = self._turn
        chunk.close((self._turn + 1) * _ORDERS_PER_TURN + self._position)

    def _park_unused(self) -> None:
        """Notifies the daemon of chunks that this step did not use. Otherwise they would seem to be
        needed first."""
        for chunk in self._chunks:
            if chunk.turn != self._turn and chunk.order != LAST:
                chunk.set_order(LAST)

    def keep_on_device(self, count: int) -> int:
        """Between steps: keeps up to `count` more bytes of states on the device from now on, spread
        evenly over the chunks. Stops when PyTorch runs out of memory. Returns the bytes kept."""
        moving = [chunk for chunk in self._chunks if chunk.size and not chunk.stays]
        total = sum(chunk.size for chunk in moving)
        passed = kept = 0
        with contextlib.suppress(torch.OutOfMemoryError):
            for chunk in moving:
                passed += chunk.size
                if kept + chunk.size <= min(count, total) * passed / total:
                    chunk.stay()
                    kept += chunk.size
        size = sum(chunk.size for chunk in self._chunks)
        if size:
            self._part_that_stays = self.bytes_on_device() / size
        return kept

    def bytes_on_device(self) -> int:
        """Bytes of states that stay on the device."""
        return sum(chunk.size for chunk in self._chunks if chunk.stays)

    def bytes_in_store(self) -> int:
        """Bytes of states that move."""
        return sum(chunk.size for chunk in self._chunks if not chunk.stays)

    # -- Cutting

    def _cut(self, opt: Any, p: torch.Tensor, group: int) -> list[Piece]:
        state = opt.state.get(p)
        if state:
            sizes = [v.itemsize for key, v in state.items() if is_movable(key, v, p.shape)]
            bytes_per_element = sum(sizes)
        else:
            states = states_of(opt.param_groups[group])
            bytes_per_element = self.precision.bytes_per_element(p, states)
        if p.device != self._packing_device:
            self._room = 0
            self._packing_device = p.device
        pieces, self._room = cut_into_pieces(
            p, bytes_per_element, self._chunk_bytes, self._room, may_cut=self._may_cut
        )
        self._pieces[p] = pieces
        return pieces

    def take(self, opt: Any) -> None:
        """Moves what states there are into the store."""
        batch: list[Piece] = []

        def store() -> None:
            if batch:
                self._store_new(opt, [(piece, _bind(opt, piece, None)) for piece in batch])
                batch.clear()

        groups = _group_of(opt)
        self._room = 0
        if self.precision.rounding == "stochastic":
            seen = (int(state["step"]) for state in opt.state.values() if "step" in state)
            self._rounds = max(seen, default=self._rounds)
        # Gradients come about from the last parameter to the first.
        for p in reversed(groups) if self._hooked else groups:
            if not opt.state.get(p):
                continue
            opt.state[p] = self._as_kept(p, opt.state[p])
            for piece in self._cut(opt, p, groups[p]):
                if piece.begins_chunk:
                    store()
                batch.append(piece)
        store()
        for chunk in self._chunks:
            chunk.turn = self._turn - 1
        self._position = 0

    def _as_kept(self, p: torch.Tensor, state: dict[str, Any]) -> dict[str, Any]:
        """States that were another optimizer's, or of a checkpoint, as this one keeps them."""
        if not self.precision.concerns(p):
            return state
        return self.precision.kept(
            {key: (value, is_movable(key, value, p.shape)) for key, value in state.items()}, p
        )

    # -- In the backward pass

    def register_hooks(self, opt: Any) -> None:
        """Has backward passes call on_gradient(), where they update or are watched."""
        if not self.in_backward and self._watch is None:
            return
        # The parameters may outlive the optimizer: their hooks must keep nothing of it.
        reference = weakref.ref(opt)

        def hook(p: torch.Tensor) -> None:
            alive = reference()
            if alive is not None:
                alive._ravenstore.on_gradient(alive, p)

        for p in params_of(opt):
            if p not in self._hooked and p.requires_grad:
                self._hooked[p] = p.register_post_accumulate_grad_hook(hook)

    def _decide(self, opt: Any) -> None:
        """After a step that was watched: where the later ones update."""
        assert self._watch is not None
        used = user_of_gradients(params_of(opt)) or self._watch.used
        try:
            check_groups(opt.param_groups, in_backward=True)
        except TypeError as error:
            used = str(error)
        self._watch = None
        self.in_backward = used is None
        if used is None:
            self.why = "nothing used a gradient between the first backward pass and its step"
            return
        self.why = f"gradients are used between the backward pass and the step: {used}"
        for handle in self._hooked.values():
            handle.remove()
        self._hooked.clear()

    @torch.no_grad()
    def on_gradient(self, opt: Any, p: torch.Tensor) -> None:
        """Takes note of the gradient of `p`, which is complete. A chunk is updated as soon as
        the last of its gradients is complete; they are freed then."""
        with self._lock:
            if self._watch is not None:
                self._watch.add(p)
                return
            self._begin_backward(opt)
            if p not in self._groups:
                return
            self._check_gradient(p)
            with self._explained(opt):
                if p in self._pieces:
                    self._await_chunks(opt, p)
                else:
                    self._update_new_in_backward(opt, p)
                    self._free_gradient(p)

    def _begin_backward(self, opt: Any) -> None:
        task = torch._C._current_graph_task_id()
        if task == self._task:
            return
        refuse_capture()
        self._check_lost()
        if not self._was_checked:
            refuse_users_of_gradients(params_of(opt))
            self._was_checked = True
        self._task = task
        self._groups = _group_of(opt)
        reference = weakref.ref(opt)

        def finish() -> None:
            alive = reference()
            if alive is not None:
                self.finish_backward(alive)

        engine = torch.autograd.Variable._execution_engine
        engine.queue_callback(finish)

    def _check_gradient(self, p: torch.Tensor) -> None:
        assert p.grad is not None
        has_gradient(p)
        if p.grad.requires_grad:
            raise RuntimeError(
                "backward(create_graph=True) with in_backward=True: the update would change "
                "parameters that the second backward pass needs; use in_backward=False"
            )
        if p in self._updated or p in self._pieces_left:
            raise RuntimeError(
                "a second gradient of a parameter came before optimizer.step(), and the first one "
                f"is gone: {self._advice()}"
            )

    def _await_chunks(self, opt: Any, p: torch.Tensor) -> None:
        """Updates the chunks of which `p` was the last to get its gradient."""
        if p.device.type == "cuda":
            self._stream_of[p] = torch.cuda.current_stream(p.device)
        pieces = self._pieces[p]
        self._pieces_left[p] = len(pieces)
        for piece in pieces:
            chunk = piece.chunk
            assert chunk is not None
            if chunk not in self._ready:
                self._ready[chunk] = (sum(map(self._is_expected, chunk.pieces)), [])
            expected, ready = self._ready[chunk]
            ready.append(piece)
            if len(ready) == expected:
                self._update_ready(opt, chunk)
            elif len(self._ready) > _READY_MAX:
                self._update_ready(opt, next(iter(self._ready)))

    def _is_expected(self, piece: Piece) -> bool:
        return piece.param.requires_grad and piece.param in self._groups

    def _update_ready(self, opt: Any, chunk: Chunk) -> None:
        """Updates what of `chunk` has its gradient, on the current stream."""
        pieces = [piece for piece in self._ready.pop(chunk)[1] if has_gradient(piece.param)]
        self._wait_for_gradients({piece.param for piece in pieces})
        if pieces:
            self._update_chunk(opt, chunk, pieces, self._groups)
        for piece in pieces:
            self._pieces_left[piece.param] -= 1
            if self._pieces_left[piece.param] == 0:
                self._free_gradient(piece.param)

    def _wait_for_gradients(self, params: set[torch.Tensor]) -> None:
        """Of parameters whose gradients came on other streams than the current one."""
        for p in params:
            if p not in self._stream_of:
                continue
            current = torch.cuda.current_stream(p.device)
            if self._stream_of[p] != current:
                assert p.grad is not None
                current.wait_stream(self._stream_of[p])
                p.grad.record_stream(current)

    def _advice(self) -> str:
        """For a loop that uses a gradient which the backward pass has used up."""
        if not self._is_auto:
            return (
                "with offload_optimizer(in_backward=True) the backward pass has updated the "
                "parameter and freed the gradient. Call optimizer.step() after every backward "
                "pass. Accumulating gradients over several passes, clipping them and GradScaler "
                "need in_backward=False"
            )
        opt = self._opt()
        names = _names(opt) if opt is not None else {}
        moved = [name for p, name in names.items() if p in self._updated]
        if not moved:
            return (
                f'with in_backward="auto" {self.why}, so that step {self._turn} used the gradients '
                "up in its backward pass. Call zero_grad() after each step(), and use gradients "
                "before it, or pass in_backward=False"
            )
        saved = "none was made" if self._saved_at is None else f"made after step {self._saved_at}"
        return (
            f'with in_backward="auto" {self.why}, so that backward passes update parameters since. '
            f"In step {self._turn + 1} these are updated already: {_listed(moved)}. Go back to the "
            f"last checkpoint (optimizer.state_dict(): {saved}) and pass in_backward=False"
        )

    def check_stepped(self) -> None:
        """Raises, with in_backward="auto", if a backward pass has updated parameters and no step()
        followed: a loop that does so now and then would train with each such pass."""
        if self._is_auto and self._updated:
            raise RuntimeError(
                "zero_grad() after a backward pass that no optimizer.step() followed: "
                + self._advice()
            )

    def _free_gradient(self, p: torch.Tensor) -> None:
        p.grad = UsedGradient(p, weakref.WeakMethod(self._advice))
        self._updated.add(p)
        self._pieces_left.pop(p, None)
        self._stream_of.pop(p, None)

    def _update_new_in_backward(self, opt: Any, p: torch.Tensor) -> None:
        for piece in self._cut(opt, p, self._groups[p]):
            if piece.begins_chunk:
                self._store_packed(opt)
            bound: Bound = [(piece, _bind(opt, piece, None))]
            made = self._run_step(opt, bound, self._groups)
            _keep_plain(opt, made)
            self._packing += made

    def _store_packed(self, opt: Any) -> None:
        packed, self._packing = self._packing, []
        if packed:
            self._store_new(opt, packed)

    @torch.no_grad()
    def finish_backward(self, opt: Any) -> None:
        """Updates what a backward pass left: chunks with parameters that got no gradient."""
        with self._lock, self._explained(opt):
            while self._ready:
                self._update_ready(opt, next(iter(self._ready)))
            self._forget_ready()
            self._store_packed(opt)
            self._room = 0

    def _forget_ready(self) -> None:
        self._ready.clear()
        self._pieces_left.clear()
        self._stream_of.clear()

    # -- Saving and loading

    def saved(self, opt: Any, made: dict[str, Any]) -> dict[str, Any]:
        """A state_dict with tensors on the CPU. States in the store are SavedStates."""
        self._check_lost()
        self._saved_at = self._turn
        progress = BytesProgress("optimizer states read from the store")

        def plain(state: Any) -> Any:
            if isinstance(state, ParamState):
                values = {
                    key: (
                        self._saved_state(state, key, progress) if value is AWAY else _on_cpu(value)
                    )
                    for key, value in state.values_or_away.items()
                }
                if REST in values:
                    values[MASTER] = self._saved_master(state.pieces[0].param, values.pop(REST))
                return values
            if isinstance(state, dict):
                return {key: _on_cpu(value) for key, value in state.items()}
            return state

        # In the order of the parameters, whichever got its states first.
        numbers = sorted(
            made["state"], key=lambda key: (not isinstance(key, int), str(key).zfill(9))
        )
        return {**made, "state": {number: plain(made["state"][number]) for number in numbers}}

    def _saved_state(self, state: ParamState, key: str, progress: BytesProgress) -> SavedState:
        slot = state.pieces[0].slots[key]
        p = state.pieces[0].param
        stride = (
            slot.stride if state.pieces[0].whole else torch.empty(p.shape, device="meta").stride()
        )

        size = p.numel() * slot.dtype.itemsize
        progress.total += size

        def read(*, briefly: bool = False) -> torch.Tensor:
            self._check_lost()
            if self._pieces.get(p) is not state.pieces:
                raise RuntimeError(
                    "a state that state_dict() gave was used after load_state_dict() or a loss: it "
                    "is read from the store at each use, and is there no longer"
                )
            try:
                value = state.on_cpu(key, briefly=briefly)
            except _LOSSES as error:
                opt = self._opt()
                raise (self._lose(opt, error) if opt is not None else error) from error
            progress.add(size)
            return value

        return SavedState(read, p.shape, stride, slot.dtype)

    def _saved_master(self, p: torch.Tensor, rest: torch.Tensor) -> SavedState:
        def read(*, briefly: bool = False) -> torch.Tensor:
            del briefly
            return joined(_on_cpu(p), rest.clone())

        return SavedState(read, p.shape, rest.stride(), torch.float32)

    def load(self, opt: Any, loaded: Mapping[torch.Tensor, dict[str, Any]]) -> None:
        """Replaces all states; what is not moved is in `opt.state` already."""
        if self.lost is not None and self._connect is None:
            raise StatesLost(f"{self.lost} First give it a store: offload_optimizer(opt, store)")
        if self.lost is None:
            # Of this optimizer's own state_dict(): read before they are gone.
            loaded = {p: {key: _read(v) for key, v in moved.items()} for p, moved in loaded.items()}
        self._drop()
        if self.lost is not None and self._connect is not None:
            self.store = self._connect()
            self.lost = None
        for p, moved in loaded.items():
            opt.state[p] = {**opt.state.get(p, {}), **moved}
        try:
            self.take(opt)
        except _LOSSES as error:
            raise self._lose(opt, error) from error

    def forget(self, opt: Any, store: Store) -> None:
        """After a loss: goes on with another store, and without the states that were lost."""
        check_backend(store, {p.device for p in params_of(opt)})
        for p in self._pieces:
            opt.state.pop(p, None)
        self._drop()
        self.store = store
        self._connect = None
        self.lost = None

    def _drop(self) -> None:
        self._forget_ready()
        self._packing.clear()
        self._updated.clear()
        self._pieces.clear()
        self._versions.clear()
        chunks, self._chunks = self._chunks, []
        for chunk in chunks:
            with contextlib.suppress(*_LOSSES):
                chunk.free()

    # -- Failures

    def _check_lost(self) -> None:
        if self.lost is not None:
            raise StatesLost(self.lost)

    @contextlib.contextmanager
    def _explained(self, opt: Any) -> Iterator[None]:
        """Adds to an exception what became of the states."""
        try:
            yield
        except StatesLost:
            raise
        except _LOSSES as error:
            raise self._lose(opt, error) from error
        except Exception as error:
            self._unfinish()
            _add_note(error, self._progress())
            self._turn += 1
            self._position = 0
            raise

    def _lose(self, opt: Any, error: RavenstoreError) -> StatesLost:
        self._forget_ready()
        names = _names(opt)
        gone = [name for p, name in names.items() if p in self._pieces]
        size = size_text(sum(chunk.size for chunk in self._chunks))
        self.lost = (
            f"{error} Optimizer states were in the store and are lost: {size} of {len(gone)} of "
            f"{len(names)} parameters ({_listed(gone)}). {self._progress()} Go back to a "
            "checkpoint: load the model's and call optimizer.load_state_dict()."
        )
        return StatesLost(self.lost)

    def _progress(self) -> str:
        done = [chunk for chunk in self._chunks if chunk.turn == self._turn]
        return (
            f"This step had finished {len(done)} of {len(self._chunks)} chunks of states; the "
            "parameters of these are updated and consistent with their states, those of one more "
            "may be updated in part, the others are as before the step."
        )

    def _unfinish(self) -> None:
        """Forgets pieces of parameters whose states did not all reach the store."""
        self._packing.clear()
        for p, pieces in list(self._pieces.items()):
            if any(piece.chunk is None for piece in pieces):
                del self._pieces[p]
                for chunk in self._chunks:
                    chunk.pieces = [piece for piece in chunk.pieces if piece.param is not p]


def plain_step_of(opt: Any) -> Callable[[Any], Any]:
    """The step code of an optimizer's class, without hooks. Errors: TypeError."""
    step: Callable[[Any], Any] | None = getattr(type(opt).step, "__wrapped__", None)
    if step is None:
        raise TypeError(f"{class_name(opt)} is no optimizer whose step() PyTorch's hooks can see")
    return step


def unwrapped(opt: Any) -> Any:
    """The optimizer within accelerate's wrapper, or `opt` itself."""
    return getattr(opt, "optimizer", opt)


def params_of(opt: Any) -> Iterator[torch.Tensor]:
    return (p for group in opt.param_groups for p in group["params"])


def _group_of(opt: Any) -> dict[torch.Tensor, int]:
    groups = enumerate(opt.param_groups)
    return {p: number for number, group in groups for p in group["params"]}


def _names(opt: Any) -> dict[torch.Tensor, str]:
    names: dict[torch.Tensor, str] = {}
    for group in opt.param_groups:
        given = group.get("param_names")
        for i, p in enumerate(group["params"]):
            names[p] = str(given[i]) if given else str(len(names))
    return names


def _listed(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 8 else f"{', '.join(names[:7])}, ..., {names[-1]}"


def states_of(group: Mapping[str, Any]) -> int:
    if "momentum" in group:
        return 1  # also without momentum, which may be turned on later
    return 3 if group.get("amsgrad") else 2


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    return value


def _read(value: torch.Tensor) -> torch.Tensor:
    return value.clone() if isinstance(value, SavedState) else value


def _bind(opt: Any, piece: Piece, base: torch.Tensor | None) -> dict[str, Any]:
    """The states of a piece for the step code: views of its open chunk, and what is not there."""
    state = opt.state.get(piece.param) or {}
    values = state.values_or_away if isinstance(state, ParamState) else state
    bound: dict[str, Any] = {}
    for key, value in values.items():
        if value is AWAY:
            assert base is not None
            bound[key] = piece.view(base, key)
        elif is_movable(key, value, piece.param.shape):
            bound[key] = piece.cut(value).to(piece.param.device)
        elif isinstance(value, torch.Tensor) and not piece.whole:
            # Every piece counts its own steps, from the same number.
            bound[key] = value.clone()
        else:
            bound[key] = value
    return bound


def _keep_plain(opt: Any, bound: Bound) -> None:
    """Until states are in the store they are the optimizer's as usual: no failure loses them."""
    for piece, state in bound:
        if piece.whole and state:
            opt.state[piece.param] = state


def _copy_into_chunk(piece: Piece, state: dict[str, Any], base: torch.Tensor | None) -> bool:
    """Copies states that the step code or the user made into the open chunk; False if the chunk has
    no place for one."""
    for key, value in state.items():
        if not is_movable(key, value, piece.shape):
            continue
        slot = piece.slots.get(key)
        if slot is None or slot.dtype != value.dtype or base is None:
            return False
        if value.data_ptr() != base.data_ptr() + slot.offset:
            slot.of(base).copy_(value)
    return True


def _add_note(error: Exception, note: str) -> None:
    """error.add_note(), which Python 3.10 lacks."""
    if hasattr(error, "add_note"):
        error.add_note(note)
    else:
        error.args = (f"{error}\n{note}", *error.args[1:])

"""Tries whether an optimizer's step code can be run on parts of what it updates.

offload_optimizer runs the step code on one chunk after the other. For classes that it does not know
the caller says that this changes nothing; here that is tried on small tensors before anything
moves.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from ravenstore._chunks import is_movable
from ravenstore._refusals import refuse_subclasses

_STEPS = 3
# Optimizers of 8 bits quantize the states of parameters with at least 4,096 elements.
_SHAPES: tuple[tuple[int, ...], ...] = ((9, 512), (3, 512), (8192,))
# As chunks are cut: at multiples of 1,024 elements.
_CUT = 1024

Step = Callable[[Any], Any]


def check_parts(opt: Any, plain_step: Step, *, elementwise: bool) -> None:
    """Raises TypeError unless `plain_step` keeps states to move, and gives the same bits for
    several tensors together as for each by itself, and, if `elementwise`, for runs of their
    elements. Changes nothing."""
    for state in opt.state.values():
        refuse_subclasses(opt, state)
    for group in opt.param_groups:
        kind = next((p for p in group["params"] if p.requires_grad), None)
        if kind is None:
            continue
        ranks = {p.dim() for p in group["params"]}
        shapes = [shape for shape in _SHAPES if len(shape) in ranks] or list(_SHAPES)
        tried = _Trial(opt, plain_step, group, kind, shapes)
        whole = tried.train(lambda t: [t], together=True)
        for cut in (lambda t: [t], _runs) if elementwise else (lambda t: [t],):
            parts = tried.train(cut, together=False)
            if not all(map(torch.equal, whole, parts)):
                what = "elements" if cut is _runs else "parameters"
                raise TypeError(
                    f"{type(opt).__name__}: a step over some of the {what} is not that step of "
                    f"all {what}, so that its states cannot move in chunks"
                    + (". Without elementwise=True parameters stay whole" if cut is _runs else "")
                )


def _runs(tensor: torch.Tensor) -> list[torch.Tensor]:
    return list(tensor.view(-1).split(_CUT))


class _Trial:
    """Small tensors of the type and device of `kind`, a parameter of `group`."""

    def __init__(
        self,
        opt: Any,
        plain_step: Step,
        group: dict[str, Any],
        kind: torch.Tensor,
        shapes: list[tuple[int, ...]],
    ) -> None:
        self._opt = opt
        self._plain_step = plain_step
        self._options = {key: value for key, value in group.items() if key != "params"}
        self._kind = kind
        self._shapes = shapes
        self._states: dict[int, dict[str, Any]] = {}

    def train(
        self, cut: Callable[[torch.Tensor], list[torch.Tensor]], *, together: bool
    ) -> list[torch.Tensor]:
        """The tensors after some steps with the group's options, over all parts or each."""
        generator = torch.Generator().manual_seed(0)

        def drawn(shape: tuple[int, ...]) -> torch.Tensor:
            made = torch.randn(shape, generator=generator)
            return made.to(self._kind.device, self._kind.dtype)

        wholes = [drawn(shape) for shape in self._shapes]
        parts = [part for whole in wholes for part in cut(whole)]
        known = self._opt.state.get(self._kind)
        self._states = {id(part): _state_like(known, self._kind, part) for part in parts}
        for _ in range(_STEPS):
            gradients = [drawn(shape) for shape in self._shapes]
            pieces = [piece for gradient in gradients for piece in cut(gradient)]
            for part, gradient in zip(parts, pieces, strict=True):
                part.grad = gradient
            for call in [parts] if together else [[part] for part in parts]:
                self._step(call)
        if cut is _runs:
            for part in parts:
                self._check_small(part)
        return wholes

    def _step(self, parts: list[torch.Tensor]) -> None:
        opt, name = self._opt, type(self._opt).__name__
        state: defaultdict[torch.Tensor, Any] = defaultdict(dict)
        for part in parts:
            state[part] = self._states[id(part)]
        given = {**copy.deepcopy(self._options), "params": parts}
        saved = dict(vars(opt))
        opt.param_groups, opt.state = [given], state
        try:
            with torch.no_grad():
                self._plain_step(opt)
            made = dict(vars(opt))
        except Exception as error:
            words = f"{name}: its step failed on a trial with small tensors: {error}"
            raise TypeError(words) from error
        finally:
            vars(opt).clear()
            vars(opt).update(saved)
        own = [key for key in made if key not in ("param_groups", "state")]
        kept = sorted(key for key in own if key not in saved or made[key] is not saved[key])
        if kept:
            raise TypeError(
                f"{name}: its step changes the optimizer's {', '.join(kept)}, which it would do "
                "once for each chunk, so that its states cannot move in chunks"
            )
        for part in parts:
            refuse_subclasses(opt, state[part])
            self._states[id(part)] = state[part]
        if not any(is_movable(key, v, p.shape) for p in parts for key, v in state[p].items()):
            raise TypeError(
                f"{name} keeps no states that are tensors like their parameters: there is nothing "
                "to move"
            )
        changed = sorted(key for key in given if key != "params" and self._differs(given, key))
        if changed:
            raise TypeError(
                f"{name}: its step changes the group's {', '.join(changed)}, which it would do "
                "once for each chunk, so that its states cannot move in chunks"
            )

    def _differs(self, given: dict[str, Any], key: str) -> bool:
        if key not in self._options:
            return True
        before, after = self._options[key], given[key]
        if isinstance(before, torch.Tensor) or isinstance(after, torch.Tensor):
            return not torch.equal(torch.as_tensor(before), torch.as_tensor(after))
        return bool(before != after)

    def _check_small(self, part: torch.Tensor) -> None:
        """Refuses states of a parameter in several runs that are neither movable nor a number."""
        for key, value in self._states[id(part)].items():
            is_number = not isinstance(value, torch.Tensor) or value.numel() <= 1
            if not is_number and not is_movable(key, value, part.shape):
                raise TypeError(
                    f"{type(self._opt).__name__}: its state {key} is neither a tensor like the "
                    "parameter nor a number. Without elementwise=True parameters stay whole"
                )


def _state_like(state: Any, kind: torch.Tensor, part: torch.Tensor) -> dict[str, Any]:
    """For `part` what an optimizer made for the parameter `kind` before its first step."""
    made: dict[str, Any] = {}
    for key, value in (state or {}).items():
        if isinstance(value, torch.Tensor) and value.shape == kind.shape and math.prod(value.shape):
            first = value.detach().reshape(-1)[0].item()
            made[key] = torch.full_like(part, first, dtype=value.dtype)
        else:
            made[key] = copy.deepcopy(value)
    return made

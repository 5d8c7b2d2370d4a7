"""Updates in float32 of weights that are bfloat16.

The optimizer's step code gets a float32 copy of a run of weights with a float32 gradient, so that
its states are float32. The new weights are rounded to bfloat16:

- to nearest, ties away from zero: the value's bits plus half, without the lower half;
- stochastically: up with the probability of the distance, by bits that are a function of seed,
  step, parameter and element. So they do not depend on how parameters are cut into chunks.

With master weights the float32 value is kept. Its upper half is the weight's bits, less one if
rounding went up. The lower half shows whether it did. So the state holds the 2 lower bytes only.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import torch

REST = "master_rest"
"""The state with the lower half of a master weight, as int16."""
MASTER = "master"
"""What state_dict() has in its place: the master weight, as float32."""
_HALF = 0x8000
_LOW = 0xFFFF


@dataclasses.dataclass(frozen=True)
class Precision:
    """How bfloat16 weights are updated. Weights of other types are not concerned."""

    float32_states: bool = False
    master_weights: bool = False
    rounding: Literal["nearest", "stochastic"] = "nearest"
    seed: int = 0

    def concerns(self, p: torch.Tensor) -> bool:
        """Whether `p` is updated so."""
        return self.float32_states and p.dtype == torch.bfloat16

    def bytes_per_element(self, p: torch.Tensor, states: int) -> int:
        """Bytes of state for each element of `p`, for an optimizer with `states` states."""
        if not self.concerns(p):
            return p.itemsize * states
        return 4 * states + (2 if self.master_weights else 0)

    def kept(self, state: dict[str, tuple[Any, bool]], p: torch.Tensor) -> dict[str, Any]:
        """The states of `p`, each with whether it is moved, as an optimizer with this precision
        keeps them: in float32, and of masters their rest. Without a master it is the weight."""
        made = {
            key: value.float() if moved and value.is_floating_point() else value
            for key, (value, moved) in state.items()
        }
        master = made.pop(MASTER, None)
        if self.master_weights and REST not in made:
            made[REST] = (
                torch.zeros_like(p, dtype=torch.int16) if master is None else rest_of(master)
            )
        return made

    def lifted(
        self, weights: torch.Tensor, state: dict[str, Any], *, changed: bool
    ) -> torch.Tensor:
        """The float32 tensor that the step code updates for a run of weights, with its gradient.
        Takes the rest of the masters out of `state`. If the weights were `changed` since the last
        update they are their own masters."""
        rest = state.pop(REST, None)
        if changed:
            rest = None
        lifted = weights.detach().float() if rest is None else joined(weights.detach(), rest)
        assert weights.grad is not None
        lifted.grad = weights.grad.float()
        return lifted

    def lower(
        self,
        lifted: torch.Tensor,
        weights: torch.Tensor,
        state: dict[str, Any],
        rest: torch.Tensor | None,
        place: tuple[int, int, int],
    ) -> None:
        """Rounds what the step code made into `weights`, and the rest of the masters into `rest`,
        or a new tensor; it is in `state` then. `place`: number of the step and of the parameter,
        first element."""
        if self.rounding == "stochastic":
            noise = _noise(lifted, self.seed, place)
            weights.copy_(_shortened(lifted, noise))
            return
        weights.copy_(_shortened(lifted, _HALF))
        if self.master_weights:
            made = rest_of(lifted)
            state[REST] = made if rest is None else rest.copy_(made)


def rest_of(masters: torch.Tensor) -> torch.Tensor:
    """The lower halves of float32 values."""
    low = (masters.view(torch.int32) & _LOW).to(torch.int16)
    return low.masked_fill_(masters.isnan(), 0)


def joined(weights: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
    """The masters whose rounded values are `weights`, and whose lower halves `rest`."""
    low = rest.to(torch.int32) & _LOW
    bits = weights.view(torch.int16).to(torch.int32)
    # No master rounds up to zero: such a weight was set since, and is its own master.
    low = torch.where((bits & 0x7FFF == 0) & (low >= _HALF), 0, low)
    upper = bits - (low >= _HALF).to(torch.int32)
    return ((upper << 16) | low).view(torch.float32)


def nearest(masters: torch.Tensor) -> torch.Tensor:
    """Float32 values as bfloat16: to nearest, ties away from zero."""
    return _shortened(masters, _HALF)


def _shortened(values: torch.Tensor, more: torch.Tensor | int) -> torch.Tensor:
    """The upper halves after `more` was added to the bits. NaN stays NaN."""
    upper = ((values.view(torch.int32) + more) >> 16).to(torch.int16).view(torch.bfloat16)
    finite = values.isfinite()
    return torch.where(finite, upper, values.to(torch.bfloat16))


def _noise(values: torch.Tensor, seed: int, place: tuple[int, int, int]) -> torch.Tensor:
    """16 bits for each element, as int32: SplitMix64's finalizer (Steele, Lea, Flood 2014) of the
    element's number, on a stream of its own for each seed, step and parameter."""
    step, parameter, first = place
    stream = _mixed(seed)
    for number in (step, parameter):
        stream = _mixed(stream ^ number)
    count = values.numel()
    x = torch.arange(first, first + count, dtype=torch.int64, device=values.device)
    x = x.mul_(_signed(_GAMMA)).add_(_signed(stream))
    for shift, factor in ((30, _FACTORS[0]), (27, _FACTORS[1])):
        x.bitwise_xor_(_shifted(x, shift)).mul_(_signed(factor))
    return _shifted(x, 48).to(torch.int32).view(values.shape)


_GAMMA = 0x9E3779B97F4A7C15
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_WORD = (1 << 64) - 1


def _signed(word: int) -> int:
    """The int64 with these 64 bits."""
    return word - (1 << 64) if word >> 63 else word


def _shifted(x: torch.Tensor, count: int) -> torch.Tensor:
    """A logical shift to the right, which int64 has not."""
    return (x >> count) & ((1 << (64 - count)) - 1)


def _mixed(word: int) -> int:
    word = (word + _GAMMA) & _WORD
    word = ((word ^ (word >> 30)) * _FACTORS[0]) & _WORD
    word = ((word ^ (word >> 27)) * _FACTORS[1]) & _WORD
    return word ^ (word >> 31)

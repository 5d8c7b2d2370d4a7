"""The formula: what a job takes, from what its model says of itself.

    known   = parameters + the optimizer's state
    forward = sum of coefficient x bytes: kept, by kind; of the ends of backward's largest call; ...
    step    = gradients + the other memory of the optimizer's step
    peak    = known + max(forward, step)

The coefficients are least squares of the relative error over measured jobs, held non-negative and
near to what autograd's rules say where the data does not decide (bench/estimator/fit.py; the data's
hardware and versions are stored next to it). Each way of running and precision has one set. The
peak of what is in use and of what PyTorch reserves each have their own.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import json
from collections.abc import Sequence
from typing import Any

from ravenstore.estimate._describe import KINDS, Description

STATES = {"none": 0, "sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}
"""By optimizer: how many tensors of a parameter's size it keeps."""
_STEPS = {"none": 0, "sgd": 1, "momentum": 1, "adam": 2, "adamw": 2}
PRECISIONS = ("fp32", "bf16", "autocast")
WAYS = ("training", "checkpointed", "compiled", "inference")
PEAKS = ("used", "reserved")
SORTS = ("convolutional", "recurrent", "other")
MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class Way:
    """How a job runs its model. `optimizer` "none" is inference."""

    optimizer: str = "adamw"
    precision: str = "fp32"
    checkpointed: bool = False
    compiled: bool = False

    def __post_init__(self) -> None:
        if self.optimizer not in STATES:
            raise ValueError(f"optimizer is one of {', '.join(STATES)}, not {self.optimizer!r}")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision is one of {', '.join(PRECISIONS)}, not {self.precision!r}")

    @property
    def name(self) -> str:
        """One of WAYS."""
        if self.optimizer == "none":
            return "inference"
        return "checkpointed" if self.checkpointed else "compiled" if self.compiled else "training"


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Bytes: the peaks, and above `reserved` what one job of a hundred needed more."""

    used: int
    reserved: int
    margin: int


def features(of: Description, way: str, scale: float = 1.0) -> dict[str, float]:
    """What the coefficients of a way are multiplied with, in bytes.

    scale: what a byte kept weighs by the coefficients of ordinary training.
    """
    shared: dict[str, float] = {"parameters": of.parameters, "batch": of.batch, "fixed": MIB}
    if way == "inference":
        return {"live": of.live} | _calls(of, KINDS) | shared
    kept = sum(of.kept.values())
    shared |= {"ends": of.backward - kept} | _calls(of, ("conv", "rnn", "loss"))
    if way == "training":
        return {kind: float(of.kept.get(kind, 0)) for kind in KINDS} | shared
    if way == "compiled":
        return {f"kept_{name}": scale * _kept(of, kinds) for name, kinds in _FUSED.items()} | shared
    inside = {"block": of.block * scale, "between": of.between}
    return {"outside": (kept - of.blocks) * scale} | inside | shared


# What a compiler keeps, keeps in part, and computes again rather than keep.
_PRODUCTS = ("conv", "linear", "attention", "embedding", "rnn", "recurred")
_NORMS = ("batch_norm", "norm")
_FUSED = {
    "products": _PRODUCTS,
    "norms": _NORMS,
    "others": tuple(kind for kind in KINDS if kind not in (*_PRODUCTS, *_NORMS)),
}


def _kept(of: Description, kinds: Sequence[str]) -> int:
    return sum(of.kept.get(kind, 0) for kind in kinds)


def _calls(of: Description, kinds: Sequence[str]) -> dict[str, float]:
    return {f"most_{kind}": of.most.get(kind, 0) for kind in kinds}


def scale(of: Description, ordinary: dict[str, float]) -> float:
    """What a byte kept weighs by the coefficients of ordinary training."""
    kept = sum(of.kept.values())
    weighed = sum(ordinary.get(kind, 1.0) * bytes_ for kind, bytes_ in of.kept.items())
    return weighed / kept if kept else 1.0


def known(of: Description, optimizer: str) -> int:
    """The bytes that stay in memory from the first step's end on."""
    return of.parameters + STATES[optimizer] * of.trainable


def step(of: Description, optimizer: str) -> int:
    """The other memory of the optimizer's step."""
    return _STEPS[optimizer] * of.trainable


def predicted(of: Description, way: Way, by_way: dict[str, Any], peak: str) -> float:
    """One peak, by the coefficients of each way, precision and peak."""
    ordinary = by_way["training"][way.precision][peak]
    given = features(of, way.name, scale(of, ordinary))
    coefficients = by_way[way.name][way.precision][peak]
    forward = sum(coefficients.get(name, 0.0) * value for name, value in given.items())
    return known(of, way.optimizer) + max(forward, step(of, way.optimizer))


@functools.lru_cache
def fitted() -> dict[str, Any]:
    """The coefficients, by way, precision and peak, and the margins, by way and sort of model, as
    shares of what is predicted: as fit.py wrote them."""
    file = importlib.resources.files("ravenstore.estimate") / "_formula.json"
    coefficients: dict[str, Any] = json.loads(file.read_text())
    return coefficients


def sort(of: Description) -> str:
    """Which jobs err alike: cuDNN chooses its own workspaces for two of them."""
    return "recurrent" if "rnn" in of.most else "convolutional" if "conv" in of.most else "other"


def margin(of: Description, way: Way, by_way: dict[str, Any]) -> float:
    """What one job of a hundred needs more, as a share of what is predicted."""
    share: float = by_way[way.name][sort(of)]
    return share


def predict(of: Description, way: Way) -> Prediction:
    """What the job will take, by the coefficients that the package has."""
    by_way = fitted()["coefficients"]
    used, reserved = (predicted(of, way, by_way, peak) for peak in PEAKS)
    reserved = max(reserved, used)
    share = margin(of, way, fitted()["margins"])
    return Prediction(int(used), int(reserved), int(reserved * share))

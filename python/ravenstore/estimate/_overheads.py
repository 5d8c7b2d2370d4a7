"""What a job takes of a GPU in addition to its tensors, by the GPU's name.

The values are measured; _overheads.json has them.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import json
from typing import Any


@dataclasses.dataclass(frozen=True)
class Overheads:
    """Of one GPU type; sizes are in bytes."""

    memory: int
    """What a program finds there, of an empty one."""
    processors: int
    """Its streaming multiprocessors, which kernels share their work out to."""
    context: int
    """The CUDA context with the libraries of a training job, outside of PyTorch's allocator."""
    nccl: int
    """What a group of NCCL's takes in addition: seen with two ranks of one host, over NVLink."""
    matmul_workspace: int
    """cuBLAS's for each of its handles, from PyTorch's allocator, kept for good."""
    rnn_reserve: dict[str, int]
    """What cuDNN's recurrent layers keep for backward: values for each step, layer and hidden
    value, with one of a layer's output that the last one does not keep. Measured for LSTMs."""
    capture_margin: dict[str, float]
    """By the sort of the model: what captures needed above what they said, as a share of it. Of 363
    jobs of bench/estimator on an H100, by none of which the rules were found, 4 needed more (of 169
    convolutional ones 3, of 49 recurrent ones 1, of 145 others none)."""


@functools.cache
def _table() -> dict[str, dict[str, Any]]:
    text = importlib.resources.files(__package__).joinpath("_overheads.json").read_text()
    table: dict[str, dict[str, Any]] = json.loads(text)
    return table


def known(gpu: str) -> bool:
    """Whether that GPU was measured."""
    return gpu in _table()


def of(gpu: str) -> Overheads:
    """The named GPU's, or those of one like the table's default."""
    return Overheads(**{**_table()["default"], **_table().get(gpu, {})})

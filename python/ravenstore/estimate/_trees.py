"""Arguments of operators: tensors, lists of them, and what is neither."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def tensors_in(*values: Any) -> list[torch.Tensor]:
    """The tensors among the values, in lists as well."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += tensors_in(*value)
    return found


def map_tensors(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """`value` with each tensor changed, in lists as well."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)([map_tensors(each, change) for each in value])
    return value


def bytes_of_all(*values: Any) -> int:
    """Of the tensors among the values."""
    return sum(each.numel() * each.element_size() for each in tensors_in(*values))

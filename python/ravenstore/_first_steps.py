"""Notifies the allocator of the blocks that an optimizer makes in its first step: its states.

States stay, and blocks in use cannot be evicted. Such blocks are allocated, not taken from idle
ones, which are next to blocks that are freed soon.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


def watch(expect_to_stay: Callable[[bool], None]) -> None:
    """From now on, for as long as the process lives.

    expect_to_stay: says whether what the calling thread allocates from then on is to stay.
    """
    import torch
    from torch.optim import optimizer as optimizers

    seen: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    def begins(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: Any) -> None:
        # A closure runs forward and backward passes within the step.
        if torch.compiler.is_compiling() or len(args) > 1 or kwargs:
            return
        if optimizer not in seen:
            seen.add(optimizer)
            expect_to_stay(not optimizer.state)

    def ends(_optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            expect_to_stay(False)

    optimizers.register_optimizer_step_pre_hook(begins)
    optimizers.register_optimizer_step_post_hook(ends)

"""Says how far a long piece of work is, to a person at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def progress(items: Sequence[T], what: str) -> Iterator[T]:
    """The items, one by one; on stderr, if that is a terminal, how many there were: with tqdm where
    that is installed, else on a line of its own."""
    if not sys.stderr.isatty():
        yield from items
        return
    try:
        from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        for done, item in enumerate(items):
            print(f"\r{what}: {done}/{len(items)}", end="", file=sys.stderr, flush=True)
            yield item
        print(f"\r{what}: {len(items)}/{len(items)}", file=sys.stderr)
    else:
        yield from tqdm(items, desc=what, file=sys.stderr)

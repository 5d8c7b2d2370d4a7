"""Says how far a long piece of work is, to a person at a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

from ravenstore._units import size_text

T = TypeVar("T")

# Fewer bytes are done before a user would ask.
_REPORTED_BYTES_MIN = 4 << 30
_SECONDS_BETWEEN = 0.5


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


class BytesProgress:
    """How many of `total` bytes are done: on stderr, if that is a terminal and there are many, in
    one line that changes about twice a second. Threads: one at a time."""

    def __init__(self, what: str) -> None:
        self.total = 0
        self._what = what
        self._done = 0
        self._next = 0.0

    def add(self, count: int) -> None:
        """Counts `count` more bytes. Bytes past the total are not reported."""
        before, self._done = self._done, self._done + count
        if self.total < _REPORTED_BYTES_MIN or before >= self.total or not sys.stderr.isatty():
            return
        is_last = self._done >= self.total
        now = time.monotonic()
        if is_last or now >= self._next:
            self._next = now + _SECONDS_BETWEEN
            counted = f"{size_text(min(self._done, self.total))} of {size_text(self.total)}"
            end = "\n" if is_last else ""
            print(f"\r{self._what}: {counted}   ", end=end, file=sys.stderr, flush=True)

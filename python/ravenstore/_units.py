"""Sizes and durations as people write them."""

from __future__ import annotations

import datetime
import math
import re

from ravenstore.errors import InvalidArgument

Size = int | str
Duration = float | datetime.timedelta

_UNITS = {unit: 1024**power for power, unit in enumerate(("", "K", "M", "G", "T"))}


def bytes_of(size: Size) -> int:
    """Bytes: an int, or text such as "12GiB", "1.5 GiB", "64K" (units are powers of 1024)."""
    if isinstance(size, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", size, re.IGNORECASE)
        if match is None:
            raise InvalidArgument(f'"{size}" is no size such as 12GiB')
        count = float(match[1]) if "." in match[1] else int(match[1])
        size = int(count * _UNITS[match[2].upper()])
    try:
        count = size.__index__()
    except AttributeError:
        raise InvalidArgument(f"{size!r} is no size: an int, or text such as 12GiB") from None
    if not 0 <= count < 1 << 64:
        raise InvalidArgument(f"{size} bytes: a size is at least 0 and below 2^64")
    return count


def nanoseconds_of(duration: Duration) -> int:
    """Nanoseconds: seconds as a number, or a timedelta. Infinity is the longest there is."""
    if isinstance(duration, datetime.timedelta):
        duration = duration.total_seconds()
    if math.isnan(duration) or duration < 0:
        raise InvalidArgument(f"{duration} seconds: a duration is at least 0")
    return int(min(duration * 1e9, 2.0**62))


def size_text(count: float) -> str:
    """ "640 B", "1.5 GiB": at most one decimal, for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"

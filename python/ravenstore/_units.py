"""Sizes and durations as people write them."""

from __future__ import annotations

import datetime
import math
import re
import warnings

from ravenstore.errors import InvalidArgument

Size = int | str
Duration = float | datetime.timedelta

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(i?B)?|B)?", re.IGNORECASE)
# The smallest page of a device: core/plan/page_size.h.
_BUDGET_MIN = 2 << 20


def bytes_of(size: Size) -> int:
    """Bytes: an int, or text such as "12GiB", "1.5 GiB", "64K" (powers of 1024), "12GB" (12e9)."""
    if isinstance(size, str):
        match = _SIZE.fullmatch(size.strip())
        if match is None:
            raise InvalidArgument(f'"{size}" is no size such as 12GiB')
        count = float(match[1]) if "." in match[1] else int(match[1])
        step = 1000 if (match[3] or "").upper() == "B" else 1024
        size = int(count * step ** " KMGT".index((match[2] or " ").upper()))
    if isinstance(size, bool) or not hasattr(size, "__index__"):
        raise InvalidArgument(f"{size!r} is no size: an int, or text such as 12GiB")
    count = size.__index__()
    if not 0 <= count < 1 << 64:
        raise InvalidArgument(f"{size} bytes: a size is at least 0 and below 2^64")
    return count


def budget_of(size: Size) -> int:
    """Bytes of a budget of device memory; 0: none is asked for."""
    count = bytes_of(size)
    if 0 < count < _BUDGET_MIN:
        raise InvalidArgument(
            f"a device budget of {size_text(count)} has room for no tensor: it is at least "
            f'{size_text(_BUDGET_MIN)}, and usually most of the device, such as "12GiB"'
        )
    return count


def warn_if_cut(asked: int, granted: int, stacklevel: int) -> None:
    """`stacklevel`: as of warnings.warn called by the caller."""
    if asked > granted:
        warnings.warn(
            f"ravenstore: device_budget is {size_text(asked)}, and the daemon grants "
            f"{size_text(granted)} of each device, which holds",
            RuntimeWarning,
            stacklevel=stacklevel + 1,
        )


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

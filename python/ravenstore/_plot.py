"""Curves of bytes over time: a PNG where matplotlib is installed, else text."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ravenstore._units import size_text

MIB = 1 << 20
_MARKS = "*o+x"


@dataclasses.dataclass(frozen=True)
class Curve:
    """Points of (milliseconds, bytes); a value holds until the next point."""

    name: str
    points: Sequence[tuple[float, int]]

    @property
    def end(self) -> float:
        return self.points[-1][0] if self.points else 0.0

    def at(self, ms: float) -> int:
        value = 0
        for time, now in self.points:
            if time > ms:
                break
            value = now
        return value

    def most(self, begin: float, end: float) -> int:
        """The largest value in [begin, end)."""
        inside = [value for time, value in self.points if begin <= time < end]
        return max([self.at(begin), *inside])


def draw_png(path: str, curves: Sequence[Curve], title: str) -> bool:
    """False without matplotlib. Errors: OSError when the file cannot be written."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("agg")  # no display is needed
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 4.5))
    for curve in curves:
        times = [time for time, _ in curve.points]
        axes.step(times, [value / MIB for _, value in curve.points], where="post", label=curve.name)
    axes.set(title=title, xlabel="ms of one step", ylabel="MiB on the device", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return True


def draw_text(curves: Sequence[Curve], title: str, columns: int = 72, rows: int = 16) -> str:
    """The same for a terminal."""
    span = max(curve.end for curve in curves) or 1.0
    peak = max(curve.most(0, span + 1) for curve in curves) or 1
    lines = [[" "] * columns for _ in range(rows)]
    for mark, curve in zip(_MARKS, curves, strict=False):
        for column in range(columns):
            begin = column * span / columns
            if begin > curve.end:
                break
            value = curve.most(begin, (column + 1) * span / columns)
            lines[rows - 1 - round((rows - 1) * value / peak)][column] = mark
    scale = [size_text(peak), *[""] * (rows - 2), "0"]
    text = [title]
    text += [f"{label:>10} |{''.join(line)}" for label, line in zip(scale, lines, strict=True)]
    text.append(" " * 11 + "+" + "-" * columns)
    text.append(" " * 12 + f"0{f'{span:.0f} ms':>{columns - 1}}")
    text += [f"{mark:>12} {curve.name}" for mark, curve in zip(_MARKS, curves, strict=False)]
    return "\n".join(text)

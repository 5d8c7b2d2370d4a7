#!/usr/bin/env python3
"""Draws what each kernel of a recorded step names, beside what is live, over time.

    elastic_plot.py TRACE [--title TEXT] > PLOT.svg

TRACE: what `ravenrun --mode elastic --record` wrote, of a program whose steps repeat. Needs
elastic_replay of $RAVENSTORE_BIN or bazel-bin, and nothing else.
"""

import argparse
import html
import pathlib
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import figures  # noqa: E402

WIDTH, HEIGHT = 900, 380
LEFT, TOP, RIGHT, BOTTOM = 60, 46, 16, 44
GIB = 1 << 30


def round_steps(most, wanted=5):
    """A round distance of ticks, some `wanted` of which make `most`."""
    distance = 10.0**-6
    while most / distance > wanted:
        for factor in (2, 2.5, 2):  # 1, 2, 5, 10
            distance *= factor
            if most / distance <= wanted:
                break
    return distance


class Plot:
    """Of values that hold until the next: [(milliseconds, GiB), ...]."""

    def __init__(self, title, end, peak):
        self.end, self.peak = end or 1.0, peak or 1.0
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            'font-family="sans-serif" font-size="12">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
            f'<text x="{LEFT}" y="18" font-size="14">{html.escape(title)}</text>',
        ]

    def x(self, ms):
        return LEFT + (WIDTH - LEFT - RIGHT) * ms / self.end

    def y(self, gib):
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * gib / self.peak

    def axes(self):
        for vertical in (True, False):
            most = self.peak if vertical else self.end
            distance = round_steps(most)
            for i in range(int(most / distance) + 1):
                self.tick(i * distance, vertical)
        self.parts.append(
            f'<text x="{WIDTH // 2}" y="{HEIGHT - 8}" text-anchor="middle">ms of one step</text>'
        )

    def tick(self, value, vertical):
        if vertical:
            y, right = self.y(value), WIDTH - RIGHT
            self.parts.append(f'<path d="M{LEFT} {y:.1f}H{right}" stroke="#ddd"/>')
            at = f'x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end"'
        else:
            at = f'x="{self.x(value):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle"'
        unit = " GiB" if vertical else ""
        self.parts.append(f"<text {at}>{value:.4g}{unit}</text>")

    def curve(self, points, color, filled, name, place):
        path = [f"M{self.x(0):.1f} {self.y(points[0][1]):.1f}"]
        for ms, gib in points[1:]:
            path.append(f"H{self.x(ms):.1f}V{self.y(gib):.1f}")
        path.append(f"H{self.x(self.end):.1f}")
        if filled:
            path.append(f"V{self.y(0):.1f}H{LEFT}Z")
        look = f'fill="{color}"' if filled else f'fill="none" stroke="{color}"'
        self.parts.append(f'<path d="{"".join(path)}" {look}/>')
        x = LEFT + place * 180
        self.parts.append(f'<rect x="{x}" y="26" width="12" height="12" fill="{color}"/>')
        self.parts.append(f'<text x="{x + 18}" y="36">{html.escape(name)}</text>')

    def text(self):
        return "\n".join([*self.parts, "</svg>\n"])


def draw(rows, title):
    """An SVG of (milliseconds, bytes that the call names, bytes that are live) for each call."""
    named = [(ms, used / GIB) for ms, used, _ in rows]
    live = [(ms, held / GIB) for ms, _, held in rows]
    plot = Plot(title, rows[-1][0], max(held for _, held in live))
    plot.curve(live, "#c9d8ea", True, "live", 0)
    plot.axes()
    plot.curve(named, "#c0392b", False, "named by the kernel", 1)
    return plot.text()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("trace")
    parser.add_argument("--title")
    options = parser.parse_args()
    command = [figures.built("bench/elastic_replay"), "--working-set", options.trace]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    rows = [
        (float(ms), int(used), int(live))
        for ms, used, live in (line.split() for line in done.stdout.splitlines())
    ]
    if not rows:
        sys.exit(f"elastic_plot: {options.trace} has no calls")
    name = pathlib.Path(options.trace).name.removesuffix(".trace")
    sys.stdout.write(draw(rows, options.title or f"{name}: one step"))


if __name__ == "__main__":
    main()

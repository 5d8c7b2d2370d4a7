#!/usr/bin/env python3
"""Draws over time the bytes that each kernel of a recorded step names, and the live bytes.

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
import svg  # noqa: E402

SIZE = 900, 380
MARGINS = 60, 46, 16, 44
GIB = 1 << 30


def curve(frame, points, color, filled, name, place):
    """Of values that hold until the next: [(milliseconds, GiB), ...]."""
    path = [f"M{frame.x(0):.1f} {frame.y(points[0][1]):.1f}"]
    for ms, gib in points[1:]:
        path.append(f"H{frame.x(ms):.1f}V{frame.y(gib):.1f}")
    path.append(f"H{frame.x(frame.most_x):.1f}")
    if filled:
        path.append(f"V{frame.y(0):.1f}H{frame.left}Z")
    look = f'fill="{color}"' if filled else f'fill="none" stroke="{color}"'
    frame.add(f'<path d="{"".join(path)}" {look}/>')
    x = frame.left + place * 180
    frame.add(f'<rect x="{x}" y="26" width="12" height="12" fill="{color}"/>')
    frame.add(f'<text x="{x + 18}" y="36">{html.escape(name)}</text>')


def draw(rows, title):
    """An SVG of (milliseconds, bytes that the call names, bytes that are live) for each call."""
    named = [(ms, used / GIB) for ms, used, _ in rows]
    live = [(ms, held / GIB) for ms, _, held in rows]
    frame = svg.Frame(title, SIZE, MARGINS, (rows[-1][0], max(held for _, held in live)))
    curve(frame, live, "#c9d8ea", True, "live", 0)
    frame.axes("ms of one step", " GiB")
    curve(frame, named, "#c0392b", False, "named by the kernel", 1)
    return frame.text()


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

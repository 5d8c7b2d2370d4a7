"""The page of explain(html=...): bars of device memory and of what autograd saved, as one file."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ravenstore._rich import table
from ravenstore._units import size_text

if TYPE_CHECKING:
    from ravenstore.offload import Explanation, Tally

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 760px; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.4em } h2 { font-size: 1.1em; margin-top: 2em }
svg { width: 100%; height: auto } text { font: 13px system-ui, sans-serif }
td, th { padding: 2px 14px 2px 0; text-align: left; vertical-align: top }
caption { text-align: left }
.swatch { display: inline-block; width: 12px; height: 12px; margin-right: 6px }
"""
# Okabe and Ito's palette for colour-blind readers.
_COLOURS = ("#0072b2", "#56b4e9", "#e69f00", "#cc79a7", "#009e73", "#999999", "#f0e442")
_BUDGET = "#d55e00"
_WIDTH, _LEFT, _ROW = 720, 190, 34


def _bars(bars: Sequence[tuple[str, int]], budget: int) -> str:
    """Horizontal bars in bytes, with a line at the budget."""
    most = max(budget, *(value for _, value in bars), 1)
    scale = (_WIDTH - _LEFT - 110) / most
    height = _ROW * len(bars) + 46
    parts = [f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="Device memory">']
    for row, (name, value) in enumerate(bars):
        y, width = 26 + _ROW * row, value * scale
        parts += [
            f'<text x="{_LEFT - 10}" y="{y + 16}" text-anchor="end">{html.escape(name)}</text>',
            f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="22" fill="{_COLOURS[0]}"/>',
            f'<text x="{_LEFT + width + 8:.1f}" y="{y + 16}">{size_text(value)}</text>',
        ]
    x, end = _LEFT + budget * scale, height - 22
    parts += [
        f'<line x1="{x:.1f}" y1="18" x2="{x:.1f}" y2="{end}" stroke="{_BUDGET}"'
        ' stroke-width="2" stroke-dasharray="6 4"/>',
        f'<text x="{x:.1f}" y="13" text-anchor="middle" fill="{_BUDGET}">'
        f"device budget {size_text(budget)}</text>",
        f'<text x="{_LEFT}" y="{height - 4}">0</text>',
        f'<text x="{_WIDTH - 110}" y="{height - 4}" text-anchor="end">{size_text(most)}</text>',
        "</svg>",
    ]
    return "\n".join(parts)


def _shares(shares: Sequence[tuple[str, Tally]]) -> str:
    """One bar that is divided by bytes, and a legend with all figures."""
    total = sum(tally.bytes for _, tally in shares)
    parts = [f'<svg viewBox="0 0 {_WIDTH} 30" role="img" aria-label="Saved by autograd">']
    rows, x = [], 0.0
    for number, (name, tally) in enumerate(shares):
        size = tally.bytes
        colour = _COLOURS[number % len(_COLOURS)]
        width = _WIDTH * size / max(total, 1)
        parts.append(
            f'<rect x="{x:.1f}" y="0" width="{width:.1f}" height="30" fill="{colour}">'
            f"<title>{html.escape(name)}: {size_text(size)}</title></rect>"
        )
        x += width
        share = f"{100 * size / max(total, 1):.0f}%"
        rows.append(
            f'<tr><td><span class="swatch" style="background:{colour}"></span>'
            f"{html.escape(name)}</td><td>{tally.tensors}</td><td>{size_text(size)}</td>"
            f"<td>{share}</td></tr>"
        )
    head = "<tr><th></th><th>tensors</th><th>bytes</th><th>share</th></tr>"
    return "\n".join([*parts, "</svg>", "<table>", head, *rows, "</table>"])


def page(explained: Explanation) -> str:
    """HTML with nothing that is fetched."""
    first = (
        f"{size_text(explained.bytes_out)} left the device and "
        f"{size_text(explained.bytes_in)} came back; calls waited {explained.stall_seconds:.3f} s."
        if explained.moved
        else "Everything fitted: no tensor had to come back to the device."
    )
    parts = [f"<h1>What offload() did</h1>\n<p>{first}</p>"]
    if explained.way == "allocator":
        parts += [
            "<h2>Device memory of this program's tensors</h2>",
            _bars(
                [
                    ("without offload(), at most", explained.plain_bytes_peak),
                    ("with it, at most", explained.used_bytes_peak),
                    ("with it, now", explained.used_bytes),
                ],
                explained.device_budget,
            ),
            "<p>The first bar adds the tensors that were saved for the backward pass and had left "
            "PyTorch's memory. It is the peak that the program would have had.</p>",
        ]
    shares = [
        ("moved by Ravenstore when memory is needed", explained.taken),
        ("saved before under another tensor: no cost", explained.shared),
        *((f"left in PyTorch's memory: {why}", kept) for why, kept in explained.kept.items()),
    ]
    parts += ["<h2>What autograd saved for the backward pass</h2>", _shares(shares)]
    rows = [
        ("how", f"{explained.way}: {explained.why}"),
        ("backend", explained.backend),
        ("device budget", size_text(explained.device_budget)),
        ("left the device", size_text(explained.bytes_out)),
        ("came back", size_text(explained.bytes_in)),
        ("calls waited, on the CPU", f"{explained.stall_seconds:.3f} s"),
        ("saved at one time, at most", size_text(explained.live_bytes_peak)),
    ]
    parts += ["<h2>In figures, since the program began</h2>", table("", rows)]
    if explained.advice:
        advice = "".join(f"<li>{html.escape(words)}</li>" for words in explained.advice)
        parts += ["<h2>Advice</h2>", f"<ul>{advice}</ul>"]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>What offload() did</title><style>{_STYLE}</style></head>\n"
        f"<body>\n{body}\n</body></html>\n"
    )

"""A picture of step over peak, as SVG by plain means: no plotting package is needed."""

from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, BOTTOM, LEGEND = 900, 520, 60, 50, 230
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#e377c2", "#7f7f7f")
TICKS = 6


def svg(points, title):
    """Points have kind, family, name, times (of a plain step) and live (bytes). Points of one kind
    and family are joined by a line, in the order of their peaks."""
    groups = {}
    for point in sorted(points, key=lambda one: one.live):
        groups.setdefault(f"{point.kind}: {point.family}", []).append(point)
    most_x = max(point.live for point in points) / (1 << 30) * 1.05
    most_y = max(point.times for point in points) * 1.05
    right, top = WIDTH - LEGEND, 40

    def at(point):
        x = LEFT + (right - LEFT) * (point.live / (1 << 30)) / most_x
        y = HEIGHT - BOTTOM - (HEIGHT - BOTTOM - top) * point.times / most_y
        return f"{x:.1f}", f"{y:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="15">{escape(title)}</text>',
        f'<path d="M{LEFT} {top}V{HEIGHT - BOTTOM}H{right}" fill="none" stroke="black"/>',
        f'<text x="{(LEFT + right) // 2}" y="{HEIGHT - 8}">GiB on the device, live, at the '
        "peak</text>",
        f'<text x="{LEFT}" y="{top - 4}">step, in plain ones</text>',
    ]
    for i in range(TICKS + 1):
        x = LEFT + (right - LEFT) * i / TICKS
        y = HEIGHT - BOTTOM - (HEIGHT - BOTTOM - top) * i / TICKS
        parts.append(f'<text x="{x:.0f}" y="{HEIGHT - 30}">{most_x * i / TICKS:.1f}</text>')
        parts.append(f'<text x="18" y="{y:.0f}">{most_y * i / TICKS:.2f}</text>')
    for number, (name, group) in enumerate(sorted(groups.items())):
        colour = COLOURS[number % len(COLOURS)]
        dashes = ' stroke-dasharray="5 3"' if name.startswith("compiled") else ""
        places = [at(point) for point in group]
        line = " ".join(f"{x},{y}" for x, y in places)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}"{dashes}/>')
        for (x, y), point in zip(places, group, strict=True):
            parts.append(
                f'<circle cx="{x}" cy="{y}" r="4" fill="{colour}">'
                f"<title>{escape(point.name)}</title></circle>"
            )
        y = top + 18 * number
        parts.append(f'<circle cx="{right + 20}" cy="{y - 4}" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{right + 30}" y="{y}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>\n"])

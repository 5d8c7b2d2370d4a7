"""A picture of step over peak."""

import html

import svg

SIZE = 900, 520
LEGEND = 230
MARGINS = 60, 40, LEGEND, 50
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#e377c2", "#7f7f7f")


def draw(points, title):
    """An SVG. Points have kind, family, name, times (of a plain step) and live (bytes). Points of
    one kind and family are joined by a line, in the order of their peaks."""
    groups = {}
    for point in sorted(points, key=lambda one: one.live):
        groups.setdefault(f"{point.kind}: {point.family}", []).append(point)
    most_x = max(point.live for point in points) / (1 << 30) * 1.05
    frame = svg.Frame(title, SIZE, MARGINS, (most_x, max(point.times for point in points) * 1.05))
    frame.axes("GiB on the device, live, at the peak")
    frame.add(f'<text x="{frame.left}" y="{frame.top - 4}">step, in plain ones</text>')
    for number, (name, group) in enumerate(sorted(groups.items())):
        colour = COLOURS[number % len(COLOURS)]
        dashes = ' stroke-dasharray="5 3"' if name.startswith("compiled") else ""
        places = [
            (f"{frame.x(point.live / (1 << 30)):.1f}", f"{frame.y(point.times):.1f}")
            for point in group
        ]
        line = " ".join(f"{x},{y}" for x, y in places)
        frame.add(f'<polyline points="{line}" fill="none" stroke="{colour}"{dashes}/>')
        for (x, y), point in zip(places, group, strict=True):
            frame.add(
                f'<circle cx="{x}" cy="{y}" r="4" fill="{colour}">'
                f"<title>{html.escape(point.name)}</title></circle>"
            )
        x, y = frame.width - LEGEND + 20, frame.top + 18 * number
        frame.add(f'<circle cx="{x}" cy="{y - 4}" r="4" fill="{colour}"/>')
        frame.add(f'<text x="{x + 10}" y="{y}">{html.escape(name)}</text>')
    return frame.text()

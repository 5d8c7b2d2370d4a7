"""The frame of a picture over two axes, as SVG by plain means: no plotting package is needed."""

import html


def round_steps(most, wanted=5):
    """A round distance of ticks, some `wanted` of which make `most`."""
    distance = 10.0**-6
    while most / distance > wanted:
        for factor in (2, 2.5, 2):  # 1, 2, 5, 10
            distance *= factor
            if most / distance <= wanted:
                break
    return distance


class Frame:
    """A title and two axes from 0 to `most` of each. What is drawn is added with add(), in its
    order; text() is the picture."""

    def __init__(self, title, size, margins, most):
        """Sizes in pixels: (width, height), (left, top, right, bottom)."""
        self.width, self.height = size
        self.left, self.top, self.right, self.bottom = margins
        self.most_x, self.most_y = (value or 1.0 for value in most)
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            'font-family="sans-serif" font-size="12">',
            f'<rect width="{self.width}" height="{self.height}" fill="white"/>',
            f'<text x="{self.left}" y="18" font-size="14">{html.escape(title)}</text>',
        ]

    def x(self, value):
        return self.left + (self.width - self.left - self.right) * value / self.most_x

    def y(self, value):
        height = self.height - self.top - self.bottom
        return self.height - self.bottom - height * value / self.most_y

    def add(self, element):
        self.parts.append(element)

    def axes(self, x_name, y_unit=""):
        for vertical in (True, False):
            most = self.most_y if vertical else self.most_x
            distance = round_steps(most)
            for i in range(int(most / distance) + 1):
                self._tick(i * distance, vertical, y_unit)
        self.add(
            f'<text x="{self.width // 2}" y="{self.height - 8}" text-anchor="middle">'
            f"{html.escape(x_name)}</text>"
        )

    def _tick(self, value, vertical, y_unit):
        if vertical:
            y, right = self.y(value), self.width - self.right
            self.add(f'<path d="M{self.left} {y:.1f}H{right}" stroke="#ddd"/>')
            at = f'x="{self.left - 6}" y="{y + 4:.1f}" text-anchor="end"'
        else:
            y = self.height - self.bottom + 16
            at = f'x="{self.x(value):.1f}" y="{y}" text-anchor="middle"'
        self.add(f"<text {at}>{value:.4g}{y_unit if vertical else ''}</text>")

    def text(self):
        return "\n".join([*self.parts, "</svg>\n"])

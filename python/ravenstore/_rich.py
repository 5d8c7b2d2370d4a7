"""Tables for notebooks, which show what a cell returns by its _repr_html_."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


def table(
    caption: str, rows: Iterable[Sequence[str]], notes: Iterable[str] = (), head: Sequence[str] = ()
) -> str:
    """A table as HTML, with a sentence below it for each note. All is text, and escaped."""

    def row(tag: str, cells: Sequence[str]) -> str:
        style = "text-align:left"
        inner = "".join(f'<{tag} style="{style}">{html.escape(c)}</{tag}>' for c in cells)
        return f"<tr>{inner}</tr>"

    return "\n".join(
        [
            "<table>",
            f'<caption style="text-align:left">{html.escape(caption)}</caption>',
            *([row("th", head)] if head else []),
            *(row("td", cells) for cells in rows),
            "</table>",
            *(f"<p>{html.escape(note)}</p>" for note in notes),
        ]
    )

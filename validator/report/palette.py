"""The colors of charts, and the rules of the page that follow from them."""

from __future__ import annotations

from typing import NamedTuple


class Ink(NamedTuple):
    """One role's color on a light and on a dark page."""

    light: str
    dark: str


PALETTE: dict[str, Ink] = {
    "text": Ink("#4a5160", "#aeb6c3"),
    "grid": Ink("#e4e7ec", "#2a303a"),
    "axis": Ink("#9aa2af", "#5b6472"),
    "warmup": Ink("#eceef2", "#232831"),
    "interval": Ink("#cfe0f3", "#1d3a58"),
    "bound": Ink("#b3261f", "#ff8f86"),
    "mark": Ink("#8b1a14", "#ffb4ad"),
    "s1": Ink("#1f5fa8", "#7db4ec"),
    "s2": Ink("#b45309", "#f0a45c"),
    "s3": Ink("#0f766e", "#5ccabc"),
    "s4": Ink("#7c3aed", "#bba3f8"),
    "s5": Ink("#be185d", "#f38dba"),
    "s6": Ink("#57606f", "#aab4c2"),
}
"""Text has a contrast of at least 4.5 and lines of at least 3 against the page."""

SERIES = ("s1", "s2", "s3", "s4", "s5", "s6")

DASHES = ((1, 0), (6, 3), (2, 2), (8, 3, 2, 3), (10, 4), (4, 2, 1, 2))
"""Lines differ by dash too, so that a chart can be read without color."""


LABEL_CSS = (
    f'.chart text[fill="{PALETTE["bound"].light}"]'
    "{paint-order:stroke;stroke:var(--page);stroke-width:3px;stroke-linejoin:round}"
)
"""A bound's label lies over the lines and must stay readable."""


def chart_css(*, dark: bool) -> str:
    """Rules that give every role its color, on a dark page or (to undo that) on a light one."""
    rules = []
    for ink in PALETTE.values():
        color = ink.dark if dark else ink.light
        rules += [f'.chart [fill="{ink.light}"]{{fill:{color}}}', f'.chart [stroke="{ink.light}"]{{stroke:{color}}}']
    return "".join(rules)

"""Text for terminals without a library: styles that can be off, aligned tables, sentences wrapped to the width."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import TextIO

from validator.report.formats import one_line, text_width

__all__ = ["Style", "paint", "stream_width", "text_table", "wrap"]

Style = str
"""One of `good`, `bad`, `warn`, `info`, `muted`, `bold`, or several with spaces between; empty for none."""

_CODES = {"good": "32", "bad": "31", "warn": "33", "info": "36", "muted": "2", "bold": "1"}
_FALLBACK_COLUMNS = 100


def paint(text: str, style: Style, *, color: bool) -> str:
    """The text in a style, or as it is when color is off."""
    codes = ";".join(_CODES[name] for name in style.split())
    return f"\x1b[{codes}m{text}\x1b[0m" if color and codes and text else text


def stream_width(stream: TextIO) -> int:
    """Columns of a terminal; 100 for a file or a pipe."""
    if not stream.isatty():
        return _FALLBACK_COLUMNS
    return max(40, shutil.get_terminal_size((80, 24)).columns)


def wrap(text: str, *, width: int, indent: str = "", first: str | None = None) -> list[str]:
    """A sentence in lines of at most `width` columns; paths and other long words are never cut."""
    return textwrap.wrap(
        one_line(text),
        width=width,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def text_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    width: int,
    numeric: Iterable[str] = (),
    styles: Sequence[Sequence[Style]] = (),
    color: bool = False,
) -> list[str]:
    """Aligned columns with a heading. When too wide, the last column is wrapped; nothing is cut off.

    `styles[row][column]` paints a cell; rows without an entry are plain.
    """
    cells = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(text_width(text) for text in column) for column in zip(columns, *cells, strict=True)]
    last = max(24, width - sum(widths[:-1]) - 2 * (len(widths) - 1))
    right = [name in set(numeric) for name in columns]
    lines = [paint(_row(columns, widths, right), "bold", color=color)]
    for index, row in enumerate(cells):
        folded = textwrap.wrap(row[-1], last, break_long_words=False, break_on_hyphens=False) or [""]
        row_styles = list(styles[index]) if index < len(styles) else []
        lines.append(_row([*row[:-1], folded[0]], widths, right, row_styles, color=color))
        lines += [" " * (sum(widths[:-1]) + 2 * (len(widths) - 1)) + rest for rest in folded[1:]]
    return [line.rstrip() for line in lines]


def _row(
    cells: Sequence[str],
    widths: Sequence[int],
    right: Sequence[bool],
    styles: Sequence[Style] = (),
    *,
    color: bool = False,
) -> str:
    parts = []
    for index, cell in enumerate(cells):
        gap = " " * (widths[index] - text_width(cell)) if index < len(cells) - 1 or right[index] else ""
        text = paint(cell, styles[index] if index < len(styles) else "", color=color)
        parts.append(gap + text if right[index] else text + gap)
    return "  ".join(parts)

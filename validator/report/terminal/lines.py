"""Text for terminals without a library: styles that can be off, aligned tables, sentences wrapped to the width."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TextIO

from validator.report.elements import status_view
from validator.text import MISSING, format_duration, format_quantity, one_line

if TYPE_CHECKING:
    from validator.model.verdict import PhaseReport
    from validator.plan.eta import Remaining
    from validator.supervise.monitor import Progress


Style = str
"""One of `good`, `bad`, `warn`, `info`, `muted`, `bold`, or several with spaces between; empty for none."""

_CODES = {"good": "32", "bad": "31", "warn": "33", "info": "36", "muted": "2", "bold": "1"}
_FALLBACK_COLUMNS = 100


def show(lines_of: Callable[..., Iterable[str]], *values: object, stream: TextIO | None = None, **more: object) -> None:
    """Write the lines that `lines_of(*values, width=, color=, **more)` makes, to stdout by default."""
    out = stream or sys.stdout
    lines = lines_of(*values, width=stream_width(out), color=wants_color(out), **more)
    write_text("\n".join(lines) + "\n", out)


def write_text(text: str, out: TextIO) -> None:
    """Write a text whole; a sign that the stream's encoding lacks is written as its escape."""
    encoding = getattr(out, "encoding", None) or "utf-8"
    out.write(text.encode(encoding, "backslashreplace").decode(encoding))
    out.flush()


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


def text_width(text: str) -> int:
    """Columns that a text takes in a terminal: wide East Asian characters count twice, combining ones not at all."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


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
    last = max(18, width - sum(widths[:-1]) - 2 * (len(widths) - 1))
    right = [name in set(numeric) for name in columns]
    lines = [paint(_row_text(columns, widths, right), "bold", color=color)]
    for index, row in enumerate(cells):
        folded = textwrap.wrap(row[-1], last, break_long_words=False, break_on_hyphens=False) or [""]
        row_styles = list(styles[index]) if index < len(styles) else []
        lines.append(_row_text([*row[:-1], folded[0]], widths, right, row_styles, color=color))
        lines += [" " * (sum(widths[:-1]) + 2 * (len(widths) - 1)) + rest for rest in folded[1:]]
    return [line.rstrip() for line in lines]


def _row_text(
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


def wants_color(stream: TextIO) -> bool:
    """Whether to color what is written there: a terminal, no `NO_COLOR`, and not a dumb one."""
    if os.environ.get("NO_COLOR"):
        return False
    return stream.isatty() and os.environ.get("TERM", "") != "dumb"


# What a run in progress and a finished phase say, part by part.


def steps_cell(progress: Progress) -> str:
    """`120/300`; empty for what has no steps."""
    if progress.step is None and progress.steps is None:
        return ""
    done = "–" if progress.step is None else f"{progress.step:,}"
    return done if progress.steps is None else f"{done}/{progress.steps:,}"


def progress_cells(progress: Progress) -> list[str]:
    """The parts of a plain line; what is not known is left out."""
    cells = [one_line(progress.state)]
    if steps := steps_cell(progress):
        cells.append(f"step {steps}")
    if progress.nodes:
        cells.append(f"nodes {one_line(progress.nodes)}")
    if progress.toks_per_s is not None:
        cells.append(format_quantity(progress.toks_per_s, "tok/s"))
    elif progress.step_time_s is not None:
        cells.append(f"{format_quantity(progress.step_time_s, 's')} a step")
    if progress.loss is not None:
        cells.append(f"loss {format_quantity(progress.loss)}")
    if progress.mem_mib is not None:
        cells.append(f"memory {format_quantity(round(progress.mem_mib), 'MiB')}")
    if progress.heartbeat_age_s is not None:
        cells.append(f"heartbeat {format_duration(progress.heartbeat_age_s)} ago")
    cells.append(f"elapsed {format_duration(progress.elapsed_s)}")
    if progress.overdue_s is not None:
        cells += [f"ETA {MISSING}", f"no step for {format_duration(progress.overdue_s)}"]
    elif progress.eta_s is not None:
        cells.append(f"ETA {format_duration(progress.eta_s)}")
    return cells


def criteria_count(phase: PhaseReport) -> str:
    """`5/6 criteria` or `12/12 checks`; empty when there are none."""
    parts = []
    for items, noun in ((phase.criteria, "criteria"), (phase.checks, "checks")):
        if items:
            passed = sum(item.status == "PASS" for item in items)
            parts.append(f"{passed}/{len(items)} {noun}")
    return ", ".join(parts)


def phase_line(phase: PhaseReport) -> str:
    """`✓ PASS baseline (5/5 criteria)`, with the sentence when it did not pass."""
    view = status_view(phase.status)
    count = criteria_count(phase)
    line = f"{view.sign} {view.word} {one_line(phase.id)}" + (f" ({count})" if count else "")
    if phase.status != "PASS" and phase.message:
        line += f": {one_line(phase.message)}"
    elif not phase.required:
        line += ", not required"
    return line


def share_of(progress: Progress) -> float | None:
    """How far a run is by its steps; a run that has ended is over whatever its steps say."""
    if progress.state == "ended":
        return 1.0
    return progress.step / progress.steps if progress.step and progress.steps else None


def left_cell(remaining: Remaining | None) -> str:
    """`, about 4 min remaining`; empty when nothing can be said."""
    if remaining is None:
        return ""
    return f", {'at least' if remaining.at_least else 'about'} {format_duration(round(remaining.seconds))} remaining"

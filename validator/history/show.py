"""`validator history` in a terminal: the latest runs of each runbook and machine, and what its figures did."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

from validator.history.page import change_sentence, left_out_sentence, run_note
from validator.history.read import Entry
from validator.history.sparkline import blocks
from validator.history.trend import Group, Trend
from validator.model.units import format_duration
from validator.report.formats import format_quantity, one_line, plural
from validator.report.parts import decision_status
from validator.report.terminal.lines import paint, stream_width, text_table, wrap
from validator.report.terminal.observer import wants_color

__all__ = ["history_lines", "print_history"]

_WIDE = 100
"""Columns from which sparklines are long."""


def print_history(groups: Sequence[Group], *, limit: int, stream: TextIO | None = None) -> None:
    """Print every group, the one with the latest run last, where the eye is."""
    out = stream or sys.stdout
    text = "\n".join(history_lines(groups, limit=limit, width=stream_width(out), color=wants_color(out))) + "\n"
    encoding = getattr(out, "encoding", None) or "utf-8"
    out.write(text.encode(encoding, "replace").decode(encoding))
    out.flush()


def history_lines(groups: Sequence[Group], *, limit: int, width: int, color: bool) -> list[str]:
    """The lines that `print_history` prints."""
    lines: list[str] = []
    for group in reversed(groups):
        lines += [paint(f"{one_line(group.runbook)} on {one_line(group.machine)}", "bold", color=color)]
        lines += wrap(f"with {group.variant}", width=width, indent="  ", first="") if group.variant else []
        lines += _runs(group.entries, limit=limit, width=width, color=color)
        if group.trends:
            lines += ["", *_trends(group.trends, width=width, color=color)]
        lines += [""]
    return lines[:-1] if lines else ["no run folder with a result is here; `validator run RUNBOOK` makes one"]


def _runs(entries: Sequence[Entry], *, limit: int, width: int, color: bool) -> Iterable[str]:
    shown = entries[-limit:]
    views = [decision_status(entry.decision) for entry in shown]
    rows = [
        (
            f"{view.sign} {view.word}",
            entry.started[:16].replace("T", " "),
            "" if entry.duration_s is None else format_duration(entry.duration_s),
            entry.run_id + (f" ({note})" if (note := run_note(entry)) else ""),
        )
        for view, entry in zip(views, shown, strict=True)
    ]
    styles = [(view.tone if view.tone != "muted" else "",) for view in views]
    if len(entries) > len(shown):
        yield paint(f"{plural(len(entries) - len(shown), 'older run')} not shown", "muted", color=color)
    yield from text_table(
        ("Decision", "Started (UTC)", "Took", "Run"), rows, width=width, numeric=("Took",), styles=styles, color=color
    )


def _trends(trends: Sequence[Trend], *, width: int, color: bool) -> Iterable[str]:
    spark = 24 if width >= _WIDE else 12
    rows = [
        (
            trend.name,
            format_quantity(trend.values[-1], trend.unit),
            blocks(trend.values, width=spark),
            f"{trend.changes[-1].judged}" if trend.changes else "",
        )
        for trend in trends
    ]
    styles = [("", "", "", _style(trend)) for trend in trends]
    yield from text_table(
        ("Figure", "Latest", "Over time", "Change"), rows, width=width, numeric=("Latest",), styles=styles, color=color
    )
    for trend in trends:
        if trend.left_out:
            yield from wrap(f"{trend.name}: {left_out_sentence(trend)}", width=width, indent="  ")
        for change in trend.changes[-1:]:
            sentence = f"{trend.name}: {change_sentence(trend, change)}"
            yield from (paint(line, _style(trend), color=color) for line in wrap(sentence, width=width, indent="  "))


def _style(trend: Trend) -> str:
    if not trend.changes:
        return ""
    return {"worse": "bad", "better": "good", "changed": "warn"}[trend.changes[-1].judged]

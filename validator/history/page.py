"""`index.html` beside the run folders: runs by machine and runbook, a sparkline per figure, changes of level marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

import validator
from validator.files import write_atomic
from validator.history.read import Entry
from validator.history.sparkline import polyline
from validator.history.trend import Change, Group, Trend
from validator.model.units import format_duration
from validator.report.formats import clean, format_margin, format_quantity, one_line, plural
from validator.report.page import StatusView
from validator.report.parts import decision_status
from validator.report.templates import environment, policy_hash, style, text

__all__ = ["INDEX", "change_sentence", "left_out_sentence", "render_index", "run_note", "write_index"]

INDEX = "index.html"

_WIDTH, _HEIGHT = 220.0, 34.0

_LISTED = 50
"""Runs of a group that the page lists; the others are in the sparklines and in their folders."""


@dataclass(frozen=True)
class _Run:
    """A row of the list of runs."""

    started: str
    status: StatusView
    run_id: str
    href: str
    why: str
    duration: str
    note: str


@dataclass(frozen=True)
class _Mark:
    """A change of level in a sparkline: where, and which way."""

    x: float
    judged: str
    text: str


@dataclass(frozen=True)
class _Line:
    """A figure over time. `points` is the sparkline as SVG wants it."""

    name: str
    latest: str
    runs: int
    points: str
    last: tuple[float, float]
    marks: tuple[_Mark, ...]
    summary: str
    changes: tuple[str, ...]


@dataclass(frozen=True)
class _Section:
    """One runbook on one class of machine."""

    anchor: str
    runbook: str
    title: str
    variant: str
    machine: str
    status: StatusView
    latest: _Run
    regressions: tuple[str, ...]
    lines: tuple[_Line, ...]
    runs: tuple[_Run, ...]
    older: int


def write_index(parent: Path, groups: Sequence[Group]) -> Path:
    """Write `index.html` into the folder of the run folders; returns its path. Raises OSError where it cannot."""
    path = parent / INDEX
    write_atomic(path, render_index(groups))
    return path


def render_index(groups: Sequence[Group]) -> str:
    """The page as HTML; links are relative to the folder of the run folders."""
    sheet, script = style(text("history.css")), text("report.js")
    return (
        environment()
        .get_template("history.html.j2")
        .render(
            sections=[_section(number, group) for number, group in enumerate(groups, start=1)],
            runs=sum(len(group.entries) for group in groups),
            width=_WIDTH,
            height=_HEIGHT,
            version=validator.__version__,
            style=sheet,
            script=script,
            style_hash=policy_hash(sheet),
            script_hash=policy_hash(script),
        )
    )


def _section(number: int, group: Group) -> _Section:
    runs = [_run(entry) for entry in reversed(group.entries[-_LISTED:])]
    return _Section(
        anchor=f"group-{number}",
        runbook=one_line(group.runbook),
        title=one_line(group.title or group.runbook),
        variant=one_line(group.variant),
        machine=one_line(group.machine),
        status=runs[0].status,
        latest=runs[0],
        regressions=tuple(f"{trend.name}: {change_sentence(trend, change)}" for trend, change in group.regressions),
        lines=tuple(_line(group, trend) for trend in group.trends),
        runs=tuple(runs),
        older=len(group.entries) - len(runs),
    )


def _run(entry: Entry) -> _Run:
    return _Run(
        started=_when(entry.started),
        status=decision_status(entry.decision),
        run_id=one_line(entry.run_id),
        href=f"{quote(entry.folder)}/report.html",
        why=clean(entry.why, limit=300),
        duration="" if entry.duration_s is None else format_duration(entry.duration_s),
        note=run_note(entry),
    )


def run_note(entry: Entry) -> str:
    """What is to be known of a run beside its decision: `pinned; not decidable: buckets`."""
    notes = ["pinned"] if entry.pinned else []
    notes += [f"not decidable: {', '.join(map(one_line, entry.undecided))}"] if entry.undecided else []
    return "; ".join(notes)


def left_out_sentence(trend: Trend) -> str:
    """Why earlier validations are not in a trend; empty when all are."""
    if not trend.left_out:
        return ""
    return (
        f"{plural(trend.left_out, 'run')} by another definition of it left out; "
        "`validator report RUN` judges a run anew"
    )


def _line(group: Group, trend: Trend) -> _Line:
    points = polyline(trend.values, width=_WIDTH, height=_HEIGHT)
    marks = tuple(
        _Mark(points[change.index][0], change.judged, change_sentence(trend, change)) for change in trend.changes
    )
    low, high = min(trend.values), max(trend.values)
    return _Line(
        name=one_line(trend.name),
        latest=format_quantity(trend.values[-1], trend.unit),
        runs=len(trend.values),
        points=" ".join(f"{x:g},{y:g}" for x, y in points),
        last=points[-1],
        marks=marks,
        summary=f"{len(trend.values)} runs, from {format_quantity(low, trend.unit)} to "
        f"{format_quantity(high, trend.unit)}",
        changes=(*(mark.text for mark in reversed(marks)), *filter(None, (left_out_sentence(trend),))),
    )


def change_sentence(trend: Trend, change: Change) -> str:
    """`worse by 7.1 % since run … (103,400 → 96,100 tok/s); differs: torch 2.11 → 2.12`."""
    way = f"{change.judged} by {format_margin(abs(change.relative)).lstrip('+')}"
    since = f"since {one_line(change.run_id)}" if change.confirmed else f"in {one_line(change.run_id)} alone, so far"
    figures = f"({format_quantity(change.before)} → {format_quantity(change.after, trend.unit)})"
    because = f"; differs: {', '.join(one_line(item) for item in change.because)}" if change.because else ""
    return f"{way} {since} {figures}{because}"


def _when(started: str) -> str:
    """`2026-11-21 02:00 UTC` of an ISO time; the text itself where it is none."""
    try:
        found = datetime.fromisoformat(started.replace("Z", "+00:00"))
    except ValueError:
        return one_line(started)
    return found.strftime("%Y-%m-%d %H:%M") + (" UTC" if started.endswith(("Z", "+00:00")) else "")

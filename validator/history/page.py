"""`index.html` next to the run folders: runs by machine and runbook, a sparkline per metric with changes of level."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import validator
from validator.files import replace_file
from validator.history.read import HistoryEntry
from validator.history.trend import Change, Group, Trend
from validator.report.elements import decision_status
from validator.report.templates import environment, policy_hash, style, text
from validator.report.terminal.lines import paint, text_table, wrap
from validator.text import clean, format_duration, format_percent, format_quantity, format_time, one_line, plural

_BLOCKS = "▁▂▃▄▅▆▇█"


def blocks(values: Sequence[float], *, width: int = 24) -> str:
    """The last `width` values as block characters, scaled between the smallest and the largest of them.

    A series that moves by less than 1 % is drawn flat, in the middle: noise must not look like a mountain range.
    """
    shown = list(values)[-width:]
    return "".join(_BLOCKS[round(height * (len(_BLOCKS) - 1))] for height in _heights(shown))


def polyline(values: Sequence[float], *, width: float, height: float) -> list[tuple[float, float]]:
    """Points (x, y) of the series in a box, y growing downwards as in SVG."""
    step = width / max(1, len(values) - 1)
    return [(round(place * step, 1), round((1 - up) * height, 1)) for place, up in enumerate(_heights(values))]


def _heights(values: Sequence[float]) -> list[float]:
    """Each value between 0 and 1."""
    if not values:
        return []
    low, high = min(values), max(values)
    middle, span = (low + high) / 2, high - low
    minimum = 0.01 * abs(middle)
    if span == 0 or span < minimum:
        span = minimum or 1.0
    return [min(1.0, max(0.0, 0.5 + (value - middle) / span)) for value in values]


INDEX = "index.html"

SPARK = (220.0, 34.0)
"""Width and height of a metric over time, in pixels."""

_LISTED = 50
"""Runs of a group that the page lists; the others are in the sparklines and in their folders."""


def write_index(parent: Path, groups: Sequence[Group]) -> Path:
    """Write `index.html` into the folder of the run folders; returns its path. Raises OSError where it cannot."""
    path = parent / INDEX
    replace_file(path, render_index(groups))
    return path


def render_index(groups: Sequence[Group]) -> str:
    """The page as HTML; links are relative to the folder of the run folders."""
    sheet, script = style(text("history.css")), text("report.js")
    return (
        environment()
        .get_template("history.html.j2")
        .render(
            sections=[group_section(number, group) for number, group in enumerate(groups, start=1)],
            runs=sum(len(group.entries) for group in groups),
            spark=SPARK,
            version=validator.__version__,
            style=sheet,
            script=script,
            style_hash=policy_hash(sheet),
            script_hash=policy_hash(script),
        )
    )


def group_section(number: int, group: Group) -> dict[str, Any]:
    """One runbook on one class of machine, as the template names its parts."""
    runs = [run_row(entry) for entry in reversed(group.entries[-_LISTED:])]
    return {
        "anchor": f"group-{number}",
        "runbook": one_line(group.runbook),
        "title": one_line(group.title or group.runbook),
        "variant": one_line(group.variant),
        "machine": one_line(group.machine),
        "status": runs[0]["status"],
        "latest": runs[0],
        "regressions": [f"{trend.name}: {change_sentence(trend, change)}" for trend, change in group.regressions],
        "lines": trend_lines(group),
        "runs": runs,
        "older": len(group.entries) - len(runs),
    }


def run_row(entry: HistoryEntry) -> dict[str, Any]:
    """A line of a table of runs, as templates name its parts."""
    return {
        "started": format_time(entry.started, seconds=False),
        "status": decision_status(entry.decision),
        "run_id": one_line(entry.run_id),
        "href": f"{quote(entry.folder)}/report.html",
        "why": clean(entry.why, limit=300),
        "duration": "" if entry.duration_s is None else format_duration(entry.duration_s),
        "note": run_note(entry),
    }


def run_note(entry: HistoryEntry) -> str:
    """What is to be known of a run beside its decision: `pinned; inconclusive: buckets`."""
    notes = ["pinned"] if entry.pinned else []
    notes += [f"inconclusive: {', '.join(map(one_line, entry.undecided))}"] if entry.undecided else []
    return "; ".join(notes)


def left_out_sentence(trend: Trend) -> str:
    """Why earlier validations are not in a trend; empty when all are."""
    if not trend.left_out:
        return ""
    return (
        f"{plural(trend.left_out, 'run')} by another definition of it left out; "
        "`validator report RUN` judges a run again"
    )


def trend_lines(group: Group) -> list[dict[str, Any]]:
    """The metrics of a group over time, as `trends.html.j2` names their parts."""
    return list(map(_trend_line, group.trends))


def _trend_line(trend: Trend) -> dict[str, Any]:
    """A metric over time: its sparkline as SVG wants it, with a mark at each change of level."""
    points = polyline(trend.values, width=SPARK[0], height=SPARK[1])
    marks = [
        {"x": points[change.index][0], "judged": change.judged, "text": change_sentence(trend, change)}
        for change in trend.changes
    ]
    low, high = (format_quantity(f(trend.values), trend.unit) for f in (min, max))
    return {
        "name": one_line(trend.name),
        "latest": format_quantity(trend.values[-1], trend.unit),
        "runs": len(trend.values),
        "points": " ".join(f"{x:g},{y:g}" for x, y in points),
        "last": points[-1],
        "marks": marks,
        "summary": f"{len(trend.values)} runs, from {low} to {high}",
        "changes": [*(mark["text"] for mark in reversed(marks)), *filter(None, (left_out_sentence(trend),))],
    }


def change_sentence(trend: Trend, change: Change) -> str:
    """`worse by 7.1 % since run … (103,400 → 96,100 tok/s); differs: torch 2.11 → 2.12`."""
    way = f"{change.judged} by {format_percent(abs(change.relative))}"
    since = f"since {one_line(change.run_id)}" if change.confirmed else f"in {one_line(change.run_id)} alone, so far"
    values = f"({format_quantity(change.before)} → {format_quantity(change.after, trend.unit)})"
    because = f"; differs: {', '.join(one_line(item) for item in change.because)}" if change.because else ""
    return f"{way} {since} {values}{because}"


def node_before(entries: Sequence[HistoryEntry], name: str) -> str:
    """`0.93 of the others on 2026-11-20, slow or lost in 2 of 5 earlier validations`; empty for a node that was not."""
    seen = [(entry, node) for entry in entries for node in entry.nodes if node.name == name]
    bad = [(entry, node) for entry, node in seen if node.slow]
    if not bad:
        return ""
    entry, node = bad[-1]
    how = node.state if node.share is None else f"{node.share:.2f} of the others"
    return f"{how} on {entry.started[:10]}, slow or lost in {len(bad)} of {plural(len(seen), 'earlier validation')}"


def node_lines(entries: Sequence[HistoryEntry], name: str, *, limit: int, width: int, color: bool) -> list[str]:
    """`validator history --node`: how one node did, the latest validation last."""
    rows = [
        (
            entry.started[:16].replace("T", " "),
            node.state,
            "" if node.share is None else f"{node.share:.3f}",
            f"{entry.run_id} ({entry.decision})",
        )
        for entry in entries
        for node in entry.nodes
        if node.name == name
    ]
    if not rows:
        return [f"no validation here has a node {one_line(name)}"]
    columns = ("Started (UTC)", one_line(name), "Of the others", "Run")
    return list(text_table(columns, rows[-limit:], width=width, numeric=("Of the others",), color=color))


# `validator history` in a terminal: the latest runs of each runbook and machine, and how its metrics changed.

_WIDE = 100
"""Columns from which sparklines are long."""


def history_lines(groups: Sequence[Group], *, limit: int, width: int, color: bool) -> list[str]:
    """Every group, the one with the latest run last, where the eye is."""
    lines: list[str] = []
    for group in reversed(groups):
        lines += [paint(f"{one_line(group.runbook)} on {one_line(group.machine)}", "bold", color=color)]
        lines += wrap(f"with {group.variant}", width=width, indent="  ", first="") if group.variant else []
        lines += _run_table(group.entries, limit=limit, width=width, color=color)
        if group.trends:
            lines += ["", *_trend_table(group.trends, width=width, color=color)]
        lines += [""]
    return lines[:-1] if lines else ["no run folder with a result is here; `validator run RUNBOOK` makes one"]


def _run_table(entries: Sequence[HistoryEntry], *, limit: int, width: int, color: bool) -> Iterable[str]:
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


def _trend_table(trends: Sequence[Trend], *, width: int, color: bool) -> Iterable[str]:
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
    styles = [("", "", "", _trend_style(trend)) for trend in trends]
    yield from text_table(
        ("Metric", "Latest", "Over time", "Change"), rows, width=width, numeric=("Latest",), styles=styles, color=color
    )
    for trend in trends:
        if trend.left_out:
            yield from wrap(f"{trend.name}: {left_out_sentence(trend)}", width=width, indent="  ")
        for change in trend.changes[-1:]:
            sentence = f"{trend.name}: {change_sentence(trend, change)}"
            yield from (
                paint(line, _trend_style(trend), color=color) for line in wrap(sentence, width=width, indent="  ")
            )


def _trend_style(trend: Trend) -> str:
    if not trend.changes:
        return ""
    return {"worse": "bad", "better": "good", "changed": "warn"}[trend.changes[-1].judged]

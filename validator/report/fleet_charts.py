"""The drawings of the nodes of a cluster: the matrix of pairs, and the rate by number of nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from statistics import median
from typing import Any

from validator.model.fleet import Fleet, FleetCell, FleetMeasure, FleetOutlier
from validator.report.figure import Figure, make_figure
from validator.report.fleet import FAR, FARTHER, by_name, level_of, scaling_table
from validator.report.page import Table
from validator.report.palette import PALETTE
from validator.report.specs import WIDE, sized
from validator.report.timeline import brief
from validator.text import format_change, format_number, format_quantity, one_line, plural

MAX_NUMBERED = 16
"""Nodes up to which the cells of the matrix have numbers."""

MAX_SIDE = 64
"""Rows of the matrix; a larger fleet is folded, so that a cell is the slowest pair between two groups of nodes."""

MAX_PAIRS = 40
"""Pairs in the table, the slowest first, after those that are outliers."""

_LEVELS = ("slowest", "slow", "near", "fast", "fastest")
_SCALE = 1.4826
_LEAST = 0.002
"""Smallest spread of pairs that counts: of equal pairs none is an outlier."""


def fleet_figures(fleet: Fleet | None) -> tuple[Figure, ...]:
    """The matrix of each measure of pairs, and the scaling; none without a cluster."""
    if fleet is None:
        return ()
    pairs = (_pairs_figure(fleet, one) for one in fleet.measures if one.per == "group")
    return (*(one for one in pairs if one is not None), *_scaling_figures(fleet))


# The matrix of pairs.


@dataclass(frozen=True)
class _Pair:
    """A measured link, its distance from the median pair, and what its confirmation gave."""

    cell: FleetCell
    mads: float
    effect: float
    outlier: FleetOutlier | None

    @property
    def outline(self) -> str:
        """`sure`, `open` or nothing: how its cell is outlined."""
        if self.outlier is None or self.outlier.outcome == "acquitted":
            return ""
        return "sure" if self.outlier.outcome == "confirmed" else "open"


def _pairs_of(fleet: Fleet, measure: str) -> list[_Pair]:
    """The links with a value, and those without one that are outliers; the slowest first."""
    outliers = {one.subject: one for one in fleet.outliers if one.measure == measure}
    links = [one for one in fleet.cells if one.measure == measure and one.subject.kind == "link"]
    logs = {one.subject: math.log(one.value) for one in links if one.value is not None and one.value > 0}
    if not logs:
        return []
    middle = median(logs.values())
    spread = max(_LEAST, _SCALE * median(abs(log - middle) for log in logs.values()))
    found = []
    for cell in links:
        log, outlier = logs.get(cell.subject), outliers.get(cell.subject)
        if log is not None or outlier is not None:
            away = -math.inf if log is None else log - middle
            found.append(_Pair(cell, max(away / spread, -99.0), math.expm1(away), outlier))
    return sorted(found, key=lambda one: one.mads)


def _pairs_figure(fleet: Fleet, measure: FleetMeasure) -> Figure | None:
    pairs = _pairs_of(fleet, measure.name)
    if not pairs:
        return None
    names = sorted((one.name for one in fleet.nodes), key=by_name)
    fold = -(-len(names) // MAX_SIDE)
    groups = [names[first : first + fold] for first in range(0, len(names), fold)]
    labels = [brief(one[0] if len(one) == 1 else f"{one[0]}…{one[-1]}", limit=24) for one in groups]
    at = {name: index for index, group in enumerate(groups) for name in group}
    shown = sorted(pairs, key=lambda one: (not one.outline, one.mads))[:MAX_PAIRS]
    possible = len(names) * (len(names) - 1) // 2
    values = [one.cell.value for one in pairs if one.cell.value is not None]
    unit = one_line(measure.unit, limit=20)
    summary = (
        f"{plural(len(pairs), 'pair')} of {possible:,} measured: median "
        f"{format_quantity(median(values), unit)}, slowest {format_quantity(min(values), unit)}. "
        "A row of slow cells is a slow node; an outlined cell is a slow link: ✕ and a full line where it is "
        "confirmed, ? and a dashed line where it is not decided. "
        f"Shades: {FAR:g} and {FARTHER:g} MADs from the median pair, ▼ slower, ▲ faster."
    )
    if fold > 1:
        summary += f" A cell is the slowest measured pair between two groups of {fold} nodes."
    return make_figure(
        "fleet",
        f"Pairs of nodes: {one_line(measure.name, limit=40)}",
        _matrix_svg(labels, _folded(pairs, at), numbered=len(names) <= MAX_NUMBERED),
        measure=unit,
        summary=summary,
        table=_pairs_table(shown, unit, len(pairs) - len(shown)),
        wide=True,
    )


def _folded(pairs: Sequence[_Pair], at: dict[str, int]) -> dict[tuple[int, int], _Pair]:
    """By row and column the pair that is drawn there: one with an outline before the slowest."""
    found: dict[tuple[int, int], _Pair] = {}
    for pair in pairs:
        a, b = sorted(at[name] for name in pair.cell.subject.nodes)
        if (a, b) not in found or (pair.outline and not found[a, b].outline):
            found[a, b] = pair
    return found


def _pairs_table(pairs: Sequence[_Pair], unit: str, more: int) -> Table:
    rows = tuple(
        (
            one_line(one.cell.subject.label, limit=160),
            "nothing" if one.cell.value is None else format_number(one.cell.value),
            "–" if one.cell.value is None else format_change(one.effect),
            format_change(one.cell.effect),
            one.outlier.outcome if one.outlier else "–",
        )
        for one in pairs
    )
    columns = ("Pair", f"Value ({unit})", "From the median pair", "From what its nodes explain", "Link")
    note = f"{plural(more, 'faster pair')} in result.json." if more > 0 else ""
    return Table("Pairs of nodes, outliers and slowest first", columns, rows, frozenset(columns[1:4]), note)


def _matrix_svg(labels: Sequence[str], cells: dict[tuple[int, int], _Pair], *, numbered: bool) -> str:
    """A square for each pair, twice: the matrix is symmetric. Shapes of a level are one path."""
    side = len(labels)
    wide, high = (50, 24) if numbered else (13, 13)
    left = 8 + round(6.6 * max(map(len, labels)))
    paths: dict[str, list[str]] = {}
    marks, lines = [], []
    for (a, b), pair in cells.items():
        level = min(level_of(pair.mads), 1) if pair.outline else level_of(pair.mads)
        value = "–" if pair.cell.value is None else format_number(pair.cell.value, digits=3)
        text = f"{value if numbered else ''} {_sign(pair, level)}".strip()
        for x, y in {(b * wide, a * high), (a * wide, b * high)}:
            paths.setdefault(_LEVELS[level], []).append(f"M{x},{y}h{wide - 1}v{high - 1}h{1 - wide}z")
            marks.append(f'<text x="{x + wide / 2 - 0.5:g}" y="{y + high / 2 + 3.5:g}">{text}</text>' if text else "")
            if pair.outline:
                lines.append(f'<rect class="{pair.outline}" x="{x}" y="{y}" width="{wide - 1}" height="{high - 1}"/>')
    drawn = "".join(f'<path class="{level}" d="{"".join(found)}"/>' for level, found in sorted(paths.items()))
    size = 11 if numbered else 9
    rows = "".join(
        f'<text x="-5" y="{index * high + high / 2 + 3.5:g}" text-anchor="end">{escape(name)}</text>'
        for index, name in enumerate(labels)
    )
    columns = "".join(
        f'<text transform="translate({index * wide + wide / 2 + 3:g},-5) rotate(-90)">{escape(name)}</text>'
        for index, name in enumerate(labels)
    )
    width, height = left + wide * side + 4, left + high * side + 4
    return (
        f'<svg class="matrix{"" if numbered else " small"}" aria-hidden="true" focusable="false" '
        f'width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" font-family="sans-serif">'
        f'<g transform="translate({left},{left})">'
        f'<rect class="none" width="{wide * side}" height="{high * side}"/>{drawn}'
        f'<g font-size="{size}px" text-anchor="middle">{"".join(marks)}</g>{"".join(lines)}'
        f'<g class="names" font-size="{size}px">{rows}{columns}</g></g></svg>'
    )


def _sign(pair: _Pair, level: int) -> str:
    if pair.outline:
        return "✕" if pair.outline == "sure" else "?"
    return ("▼", "▼", "", "▲", "▲")[level]


# The rate by number of nodes.


def _scaling_figures(fleet: Fleet) -> list[Figure]:
    table, points = scaling_table(fleet), fleet.scaling
    if table is None or len(points) < 2:
        return []
    first, last = points[0], points[-1]
    share = last.value * first.nodes / (first.value * last.nodes) if first.value else math.nan
    return [
        make_figure(
            "fleet",
            "Scaling over nodes",
            _scaling_spec(fleet),
            measure=one_line(first.unit, limit=20),
            summary=(
                f"{plural(last.nodes, 'node')} give {format_quantity(last.value, last.unit)}, {100 * share:.1f} % of "
                f"{last.nodes / first.nodes:g} times the rate of {plural(first.nodes, 'node')}, which is the dashed "
                "line. Bars are 95 % intervals."
            ),
            table=table,
            wide=True,
        )
    ]


def _scaling_spec(fleet: Fleet) -> dict[str, Any]:
    first = fleet.scaling[0]
    rows = [
        {"nodes": one.nodes, "value": one.value, "low": one.low, "high": one.high,
         "ideal": first.value * one.nodes / first.nodes}
        for one in fleet.scaling
    ]  # fmt: skip
    axis = {"values": [one.nodes for one in fleet.scaling], "format": "d", "grid": False}
    x = {
        "field": "nodes",
        "type": "quantitative",
        "title": "nodes",
        "axis": axis,
        "scale": {"zero": False, "padding": 18},
    }
    y = {"type": "quantitative", "title": None, "scale": {"zero": True}, "axis": {"tickCount": 5, "format": "~s"}}
    ink = {role: PALETTE[role].light for role in ("s1", "axis")}

    def layer(mark: dict[str, Any], field: str, **more: Any) -> dict[str, Any]:
        return {"mark": mark, "encoding": {"x": x, "y": {"field": field, **y}, **more}}

    known = [row for row in rows if row["low"] is not None and row["high"] is not None]
    return sized(
        {
            "data": {"values": rows},
            "layer": [
                layer({"type": "line", "color": ink["axis"], "strokeDash": [5, 3]}, "ideal"),
                layer({"type": "line", "color": ink["s1"]}, "value"),
                layer({"type": "rule", "color": ink["s1"], "strokeWidth": 2}, "low", y2={"field": "high"})
                | {"data": {"values": known}},
                layer({"type": "point", "filled": True, "size": 60, "opacity": 1, "color": ink["s1"]}, "value"),
            ],
        },
        width=WIDE - 60,
        height=200,
    )

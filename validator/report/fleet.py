"""The nodes of a cluster as people read them: maps of what each measured, outliers, scaling, and what differs.

The drawings are in `fleet_charts`, the texts to hand over in `handover`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from validator.model.fleet import Fleet, FleetCell, FleetNode, FleetOutlier, FleetUnit
from validator.report.handover import hand_over
from validator.report.page import LabeledValue, StatusView, Table
from validator.text import format_change, format_interval, format_number, format_quantity, listed, one_line, plural

MAX_ROWS = 64
"""Nodes up to which a map shows each; above, those that are odd and the worst of the others."""

MAX_OUTLIERS = 24
"""Rows of the table of outliers."""

FAR, FARTHER = 3.0, 6.0
"""Distances from the median, in MADs, from which a cell has a color."""

_TONES = (("bad", "▼▼"), ("warn", "▼"), ("", ""), ("info", "▲"), ("info", "▲▲"))

STATES: dict[str, StatusView] = {
    "good": StatusView("GOOD", "✓", "good"),
    "slow": StatusView("SLOW", "✕", "bad"),
    "inconclusive": StatusView("INCONCLUSIVE", "?", "warn"),
    "unmeasured": StatusView("NOT MEASURED", "○", "muted"),
    "lost": StatusView("LOST", "✕", "bad"),
}

_OUTCOMES: dict[str, StatusView] = {
    "confirmed": StatusView("CONFIRMED", "✕", "bad"),
    "suspected": StatusView("SUSPECTED", "?", "warn"),
    "inconclusive": StatusView("INCONCLUSIVE", "?", "warn"),
    "differs": StatusView("DIFFERS", "≠", "warn"),
    "acquitted": StatusView("ACQUITTED", "✓", "good"),
}

LEGEND = (
    f"Color and sign: distance from the median, in MADs. ▼ slower by {FAR:g}, ▼▼ by {FARTHER:g} or more; ▲ and ▲▲ "
    "faster. ✕ confirmed by new readings, ? not decided, ✓ acquitted. A distance alone accuses nobody."
)


class MapCell(NamedTuple):
    """A number with its tone and sign; `words` say the same to who sees neither."""

    text: str
    tone: str = ""
    sign: str = ""
    words: str = ""


class MapView(NamedTuple):
    """Nodes × measures, or nodes × GPUs: a name, its status where it has one, and a cell for each column."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, StatusView | None, tuple[MapCell, ...]], ...]
    note: str


class OutlierView(NamedTuple):
    """A unit that may be slow, and what its confirmation gave."""

    status: StatusView
    unit: str
    measure: str
    effect: str
    interval: str
    mads: str
    p_value: str
    repeats: str
    message: str


class FleetView(NamedTuple):
    """All of the section. `pairs` are the slowest ones, `scaling` and `differences` None where there are none."""

    summary: str
    facts: tuple[LabeledValue, ...]
    maps: tuple[MapView, ...]
    legend: str
    outliers: tuple[OutlierView, ...]
    more: str
    together: tuple[str, ...]
    scaling: Table | None
    differences: Table | None
    hand_over: tuple[LabeledValue, ...]


def fleet_view(fleet: Fleet, run_id: str) -> FleetView:
    """The section about the nodes, every number formatted and every name harmless."""
    return FleetView(
        summary=_summary(fleet),
        facts=_facts(fleet),
        maps=tuple(_maps(fleet)),
        legend=LEGEND,
        outliers=tuple(map(_outlier, _ordered(fleet)[:MAX_OUTLIERS])),
        more=_more(fleet),
        together=tuple(_together(fleet)),
        scaling=scaling_table(fleet),
        differences=_differences(fleet),
        hand_over=hand_over(fleet, run_id),
    )


def by_name(name: str) -> tuple[tuple[int, str], ...]:
    """A key that sorts `n2` before `n10`."""
    return tuple((int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", name))


def _summary(fleet: Fleet) -> str:
    """How many nodes are good, which are not, and whether they are enough."""
    counts = Counter(one.state for one in fleet.nodes)
    parts = [f"{counts['good']} of {plural(len(fleet.nodes), 'node')} good"]
    for state, status in STATES.items():
        found = [one_line(one.name, limit=80) for one in fleet.nodes if one.state == state]
        if state != "good" and found:
            parts.append(f"{len(found)} {status.word.lower()} ({listed(found)})")
    usable = f"Needed: {fleet.wanted}; usable together: {len(fleet.good)}."
    missing = "" if fleet.complete else " The search for slow nodes is not complete, so no node counts as vetted."
    return f"{', '.join(parts)}. {usable}{missing}"


def _facts(fleet: Fleet) -> tuple[LabeledValue, ...]:
    apart = [one.name for one in fleet.nodes if one.state == "good" and one.name not in fleet.good]
    facts = [
        LabeledValue("Engine", fleet.engine),
        LabeledValue("Rounds of measurement", str(fleet.rounds)),
        LabeledValue("Smallest effect that counts", f"{100 * fleet.min_effect:g} %"),
    ]
    if apart:
        facts.append(LabeledValue("Good, left out for a link", one_line(listed(apart), limit=400)))
    return tuple(facts)


# The maps.


def _maps(fleet: Fleet) -> Iterator[MapView]:
    outcomes = {(one.measure, one.unit): one for one in fleet.outliers}
    cells = {(one.measure, one.unit): one for one in fleet.cells}
    nodes = sorted(fleet.nodes, key=lambda one: by_name(one.name))
    units = {one.name: one.unit for one in fleet.measures}
    measures = [one for one in fleet.measures if any(cell.measure == one.name for cell in fleet.cells)]
    columns = tuple(
        f"{one_line(one.name, limit=40)}, {'in pairs' if one.per == 'group' else one_line(one.unit, limit=20)}"
        for one in measures
    )
    rows = [
        (node, [_cell(cells, outcomes, one.name, FleetUnit(nodes=(node.name,))) for one in measures]) for node in nodes
    ]
    if columns:
        yield _map("Nodes × measures: the median of each node", columns, rows, stated=True)
    for name, unit in units.items():
        gpus = [one.unit.gpu for one in fleet.cells if one.measure == name and one.unit.gpu is not None]
        count = 1 + max(gpus, default=-1)
        if count:
            rows = [
                (
                    node,
                    [_cell(cells, outcomes, name, FleetUnit(nodes=(node.name,), gpu=gpu)) for gpu in range(count)],
                )
                for node in nodes
            ]
            caption = f"Nodes × GPUs: {one_line(name, limit=40)}, {one_line(unit, limit=20)}"
            yield _map(caption, tuple(f"GPU {gpu}" for gpu in range(count)), rows, stated=False)


_Rows = list[tuple[FleetNode, list[MapCell]]]


def _map(caption: str, columns: tuple[str, ...], rows: _Rows, *, stated: bool) -> MapView:
    """The map, of a large fleet only the rows that are odd: by state or by a cell, the slowest first."""
    shown, note = rows, ""
    if len(rows) > MAX_ROWS:
        odd = [row for row in rows if (stated and row[0].state != "good") or any(cell.sign for cell in row[1])]
        odd.sort(key=lambda row: 0.0 if row[0].effect is None else row[0].effect)
        shown = odd[:MAX_ROWS]
        rest = len(rows) - len(shown)
        note = f"{plural(rest, 'node')} without a sign not shown; result.json has them all."
        if len(odd) > MAX_ROWS:
            more = len(odd) - MAX_ROWS
            note = f"{plural(rest, 'node')} not shown, {more} of them with a sign; result.json has them all."
    return MapView(
        caption,
        columns,
        tuple(
            (one_line(node.name, limit=80), STATES[node.state] if stated else None, tuple(cells))
            for node, cells in shown
        ),
        note,
    )


_Keyed = dict[tuple[str, FleetUnit], FleetCell]


def _cell(cells: _Keyed, outcomes: dict[tuple[str, FleetUnit], FleetOutlier], measure: str, unit: FleetUnit) -> MapCell:
    found = cells.get((measure, unit))
    if found is None or (found.value is None and found.effect is None):
        return MapCell("–")
    text = format_change(found.effect) if found.value is None else format_number(found.value, digits=3)
    outlier = outcomes.get((measure, unit))
    tone, sign = _TONES[level_of(found.mads)]
    if outlier is not None:
        status = _OUTCOMES[outlier.outcome]
        tone, sign = (status.tone if outlier.outcome != "acquitted" else tone), status.sign
    if not sign:
        return MapCell(text)
    words = f"{format_change(found.effect)} from the median, {_mads(found.mads)} MADs"
    return MapCell(text, tone, sign, f"{words}, {outlier.outcome}" if outlier else words)


def level_of(mads: float | None) -> int:
    """0 to 4, from much slower to much faster; 2 within the usual spread."""
    far = mads or 0.0
    return 0 if far <= -FARTHER else 1 if far <= -FAR else 4 if far >= FARTHER else 3 if far >= FAR else 2


def _mads(value: float | None) -> str:
    return "–" if value is None else f"{value:+.1f}"


def _ordered(fleet: Fleet) -> list[FleetOutlier]:
    """What is confirmed first, what is acquitted last."""
    ranks = list(_OUTCOMES)
    return sorted(fleet.outliers, key=lambda one: (ranks.index(one.outcome), one.effect or 0.0))


def _more(fleet: Fleet) -> str:
    """What the table of outliers leaves out."""
    left = Counter(_OUTCOMES[one.outcome].word.lower() for one in _ordered(fleet)[MAX_OUTLIERS:])
    named = ", ".join(f"{count} {word}" for word, count in left.items())
    return f"Not shown, in result.json: {named}." if left else ""


# The outliers, and what is slow only together.


def _outlier(one: FleetOutlier) -> OutlierView:
    status = _OUTCOMES[one.outcome]
    if one.by == "swap" and one.outcome in ("confirmed", "acquitted"):
        status = status._replace(word=f"{status.word} BY SWAP")
    return OutlierView(
        status=status,
        unit=one_line(one.unit.label, limit=160),
        measure=one_line(one.measure, limit=40),
        effect=format_change(one.effect),
        interval=format_interval(one.low, one.high, format_change),
        mads=_mads(one.mads),
        p_value=format_number(one.p_value, digits=2),
        repeats=str(one.repeats) if one.repeats else "–",
        message=_message(one),
    )


def _message(one: FleetOutlier) -> str:
    """What the outcome means for this unit."""
    match one.outcome:
        case "differs":
            faster = one_line(one.against.label, limit=160) if one.against else "the other"
            return f"Slower than {faster}; of so few units nothing shows which one is wrong, so none is accused."
        case "suspected":
            return "Slow in the screening; not measured again yet."
        case "inconclusive" if one.against is not None:
            return f"Perhaps slower than {one_line(one.against.label, limit=160)}; the interval does not decide."
        case "inconclusive":
            return "Measured again; the interval reaches over the smallest effect that counts."
        case "acquitted":
            return "Measured again: not slow."
        case _ if one.intermittent:
            return f"Slow now and then: in {100 * one.often:.0f} % of {one.repeats} repeats."
        case _:
            return "Measured again: the whole interval is beyond the smallest effect that counts."


def _together(fleet: Fleet) -> Iterator[str]:
    units = {one.name: one.unit for one in fleet.measures}
    for one in fleet.together:
        unit = units.get(one.measure, "")
        value = "gave nothing" if one.value is None else f"gave {format_quantity(one.value, unit)}"
        yield (
            f"{one_line(listed(list(one.nodes), most=8), limit=600)}: together they {value} in "
            f"{one_line(one.measure, limit=40)}, where a median pair gives {format_quantity(one.reference, unit)}."
        )


# Scaling, and the environment.


def scaling_table(fleet: Fleet) -> Table | None:
    """Rates by number of nodes; efficiency is relative to the smallest number."""
    if not fleet.scaling:
        return None
    first = fleet.scaling[0]
    rows = tuple(
        (
            str(one.nodes),
            format_quantity(one.value, one.unit),
            format_interval(one.low, one.high),
            f"{format_number(one.value / first.value, digits=3)} ×" if first.value else "–",
            f"{100 * one.value * first.nodes / (first.value * one.nodes):.1f} %" if first.value else "–",
        )
        for one in fleet.scaling
    )
    columns = ("Nodes", "Rate", "95 % interval", f"Of {plural(first.nodes, 'node')}", "Efficiency")
    return Table("Scaling over nodes", columns, rows, frozenset(columns))


def _differences(fleet: Fleet) -> Table | None:
    if not fleet.differences:
        return None
    rows = tuple(
        (
            one_line(one.fact, limit=120),
            "no majority" if one.usual is None else f"{one_line(one.usual)} ({plural(one.count, 'node')})",
            "; ".join(
                f"≠ {one_line(listed(sorted(nodes, key=by_name)), limit=400)}: {one_line(value)}"
                for value, nodes in one.odd.items()
            ),
        )
        for one in fleet.differences
    )
    note = "Only what differs is listed. ≠ marks nodes that are not as most of the others."
    return Table("Differences of environment between nodes", ("Fact", "Usual", "Differing"), rows, note=note)

"""The nodes of a cluster as people read them: maps of what each measured, outliers, scaling, and what differs.

The drawings are in `fleet_charts`, the texts to hand over in `handover`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from validator.model.fleet import Fleet, FleetCell, FleetNode, FleetOutlier, FleetSubject
from validator.report.handover import hand_over
from validator.report.page import FleetView, LabeledValue, MapCell, MapView, OutlierView, StatusView, Table
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


def fleet_view(fleet: Fleet, run_id: str, recognized: Sequence[str] = ()) -> FleetView:
    """The section about the nodes, every number formatted and every name harmless. `recognized` is for the ticket."""
    left = len(fleet.outliers) - MAX_OUTLIERS
    before = {node.name: node.before for node in fleet.nodes if node.before}
    return FleetView(
        summary=_summary(fleet),
        facts=_facts(fleet),
        maps=tuple(_maps(fleet)),
        legend=LEGEND,
        outliers=tuple(_outlier(one, before) for one in _ordered(fleet)[:MAX_OUTLIERS]),
        more=f"{left} more in result.json, these are the first." if left > 0 else "",
        together=tuple(_together(fleet)),
        scaling=scaling_table(fleet),
        differences=_differences(fleet),
        hand_over=hand_over(fleet, run_id, recognized),
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
    before = "; ".join(f"{one.name}: {one.before}" for one in fleet.nodes if one.before)
    if before:
        facts.append(LabeledValue("Slow before", one_line(before, limit=2000)))
    if apart:
        facts.append(LabeledValue("Good, left out for a link", one_line(listed(apart), limit=400)))
    return tuple(facts)


# The maps.


def _maps(fleet: Fleet) -> Iterator[MapView]:
    outliers = {(one.measure, one.subject): one for one in fleet.outliers}
    drawn = {
        (one.measure, one.subject): _cell(one, outliers.get((one.measure, one.subject)))
        for one in fleet.cells
        if one.subject.kind != "link"
    }
    nodes = sorted(fleet.nodes, key=lambda one: by_name(one.name))

    def rows(columns: Sequence[tuple[str, int | None]]) -> _Rows:
        def key(node: FleetNode, name: str, gpu: int | None) -> tuple[str, FleetSubject]:
            return name, FleetSubject(nodes=(node.name,), gpu=gpu)

        return [(node, [drawn.get(key(node, *column), MapCell("–")) for column in columns]) for node in nodes]

    units = {one.name: "in pairs" if one.per == "group" else one_line(one.unit, limit=20) for one in fleet.measures}
    measured = [name for name in units if any(key[0] == name for key in drawn)]
    heads = tuple(f"{one_line(name, limit=40)}, {units[name]}" for name in measured)
    if measured:
        yield _map("Nodes × measures: the median of each node", heads, rows([(name, None) for name in measured]), True)
    for name, head in zip(measured, heads, strict=True):
        gpus = sorted({of.gpu for measure, of in drawn if measure == name and of.gpu is not None})
        if gpus:
            columns = tuple(f"GPU {gpu}" for gpu in gpus)
            yield _map(f"Nodes × GPUs: {head}", columns, rows([(name, gpu) for gpu in gpus]), False)


_Rows = list[tuple[FleetNode, list[MapCell]]]


def _map(caption: str, columns: tuple[str, ...], rows: _Rows, stated: bool) -> MapView:
    """The map, of a large fleet only the rows that are odd: by state or by a cell, the slowest first."""
    shown, note = rows, ""
    if len(rows) > MAX_ROWS:
        odd = [row for row in rows if (stated and row[0].state != "good") or any(cell.sign for cell in row[1])]
        shown = sorted(odd, key=lambda row: row[0].effect or 0.0)[:MAX_ROWS]
        without = " without a sign" if shown == odd else ""
        note = f"{plural(len(rows) - len(shown), 'node')}{without} not shown; result.json has them all."
    named = ((one_line(node.name, limit=80), STATES[node.state] if stated else None, tuple(of)) for node, of in shown)
    return MapView(caption, columns, tuple(named), note)


def _cell(one: FleetCell, outlier: FleetOutlier | None) -> MapCell:
    if one.value is None and one.effect is None:
        return MapCell("–")
    text = format_change(one.effect) if one.value is None else format_number(one.value, digits=3)
    tone, sign = _TONES[level_of(one.mads)]
    if outlier is not None:
        status = _OUTCOMES[outlier.outcome]
        tone, sign = (tone if outlier.outcome == "acquitted" else status.tone), status.sign
    if not sign:
        return MapCell(text)
    words = f"{format_change(one.effect)} from the median, {_mads(one.mads)} MADs"
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


# The outliers, and what is slow only together.


def _outlier(one: FleetOutlier, before: Mapping[str, str]) -> OutlierView:
    status = _OUTCOMES[one.outcome]
    if one.by == "swap" and one.outcome in ("confirmed", "acquitted"):
        status = status._replace(word=f"{status.word} BY SWAP")
    subject, measure = one_line(one.subject.label, limit=160), one_line(one.measure, limit=40)
    interval, p_value = format_interval(one.low, one.high, format_change), format_number(one.p_value, digits=2)
    repeats, mads, effect = str(one.repeats or "–"), _mads(one.mads), format_change(one.effect)
    past = "; ".join(before[name] for name in one.subject.nodes if name in before)
    message = f"{_outlier_message(one)} Before: {one_line(past, limit=300)}." if past else _outlier_message(one)
    return OutlierView(status, subject, measure, effect, interval, mads, p_value, repeats, message)


_MESSAGES = {
    "confirmed": "Measured again: the whole interval is beyond the smallest effect that counts.",
    "suspected": "Slow in the screening; not measured again yet.",
    "inconclusive": "Measured again; the interval reaches over the smallest effect that counts.",
    "acquitted": "Measured again: not slow.",
}


def _outlier_message(one: FleetOutlier) -> str:
    """What the outcome means for this subject."""
    if one.against is not None:
        if one.by == "bound":
            return (
                f"Its best reading is below the public bound of its model, which {one_line(one.against.label)} reaches."
            )
        slower = "Slower" if one.outcome == "differs" else "Perhaps slower"
        faster = one_line(one.against.label, limit=160)
        return f"{slower} than {faster}; of so few nothing shows which one is wrong, so none is accused."
    if one.outcome == "confirmed" and one.intermittent:
        return f"Slow now and then: in {100 * one.often:.0f} % of {one.repeats} repeats."
    return _MESSAGES[one.outcome]


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

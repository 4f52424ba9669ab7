"""The slow-node search on what probes measured: which measures there are, and what a run of a round gives to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from validator.cluster.rounds import Reading, Round
from validator.cluster.search import Rules, Search
from validator.model.bounds import COPY, GEMM, HOST, bounds_for, gpu_name
from validator.model.fleet import FleetMeasure, FleetOutlier
from validator.text import format_change

if TYPE_CHECKING:
    from validator.cluster.judgement import Judgement
    from validator.model.record import RunRecord

ALONE = {"gemm_bf16": "TFLOP/s", "copy": "GB/s", "host_to_device": "GB/s"}
"""What each node measures alone, by its key in a probe's record, and its unit."""

LINK = "all_reduce"
"""What pairs measure, in GB/s."""


@dataclass(frozen=True)
class Measured:
    """A round that was carried out: its groups, and of each what every rank's probe recorded."""

    groups: tuple[tuple[int, ...], ...]
    ranks: Mapping[int, Sequence[Mapping[str, Any]]]


_BOUNDED = {"gemm_bf16": GEMM, "copy": COPY, "host_to_device": HOST}
"""Measures alone, and the rates that public bounds are about."""


def _bounds(facts: Sequence[Mapping[str, Any]], gpus: int) -> dict[str, dict[str, Any]]:
    """The public bounds of the nodes' GPUs by rate; empty where their models are not the same."""
    kinds = {gpu_name(one, gpus=gpus) for one in facts} if gpus else set()
    found = bounds_for(facts[0], gpus=gpus) if len(kinds) == 1 else ()
    return {one.name: {"least": one.least, "accuses": one.required} for one in found}


def search_over(
    count: int,
    *,
    links: bool,
    gpus: int,
    rounds: int | None,
    done: Sequence[Measured],
    facts: Sequence[Mapping[str, Any]] = (),
) -> Search:
    """The search after the rounds that were carried out, on nodes by their index.

    Args:
        links: whether pairs are measured as well.
        gpus: of each node; without any there is no transfer to a device.
        rounds: most rounds of pairs above a tournament's size.
        facts: what each node says it is, by which public bounds are found.
    """
    bounds = _bounds(facts, gpus)
    measures = [
        FleetMeasure(name=name, unit=unit, per="node", **bounds.get(_BOUNDED[name], {}))
        for name, unit in ALONE.items()
        if gpus or name != "host_to_device"
    ]
    if links:
        measures.append(FleetMeasure(name=LINK, unit="GB/s", per="group"))
    rules = Rules() if rounds is None else Rules(rounds=rounds)
    search = Search([str(index) for index in range(count)], measures, rules)
    for measured in done:
        asked = search.next()
        if asked is None:
            break
        search.add(_readings(asked, measured))
    return search


def groups_of(asked: Round) -> tuple[tuple[int, ...], ...]:
    """The groups of a round by the indices of nodes."""
    return tuple(tuple(int(node) for node in group) for group in asked.groups)


def _readings(asked: Round, measured: Measured) -> list[Reading]:
    """What the groups of a round gave; a group that was not measured gives none."""
    at = {tuple(str(node) for node in group): index for index, group in enumerate(measured.groups)}
    found = []
    for group in asked.groups:
        ranks = measured.ranks.get(at.get(group, -1), ())
        for name in asked.measures:
            values = [of for one in ranks if (of := _values(one, name)) is not None]
            if values and name == LINK:  # a collective: every rank says the same
                found.append(Reading(name, group, values[0][: asked.repeats]))
            elif values:
                least = min(map(len, values))
                rows = [[rank[repeat] for rank in values] for repeat in range(min(least, asked.repeats))]
                found.append(Reading(name, group, rows))
    return found


def _values(rank: Mapping[str, Any], name: str) -> list[float] | None:
    one = rank.get(name)
    values = one.get("values") if isinstance(one, Mapping) else None
    if not isinstance(values, list) or not all(isinstance(value, (int, float)) for value in values) or not values:
        return None
    return [float(value) for value in values]


def chosen(judgement: Judgement, count: int) -> tuple[int, ...]:
    """The nodes to run on, by index, the fastest first; empty where there are not enough good ones."""
    good = judgement.compatible
    return tuple(int(node) for node in good[:count]) if len(good) >= count else ()


def slow_text(one: FleetOutlier, names: Mapping[int, str]) -> str:
    """An outlier that is confirmed, as a clause: who, by how much, with its interval, by what it was confirmed."""
    who = " and ".join(names.get(int(node), node) for node in one.subject.nodes)
    who = f"the link of {who}" if one.subject.kind == "link" else who
    who += "" if one.subject.gpu is None else f", GPU {one.subject.gpu},"
    often = f" in {one.often:.0%} of its repeats" if one.intermittent else ""
    by = {
        "swap": ", confirmed by swap",
        "alone": ", confirmed on new readings",
        "bound": ", and below the public bound of its model, which the other reaches",
    }.get(one.by, "")
    effect, low, high = (-100 * (value or 0.0) for value in (one.effect, one.high, one.low))
    return f"{who} is {effect:.1f} % [{low:.1f}, {high:.1f}] slower in {one.measure}{often}{by}"


def node_names(runs: Sequence[RunRecord]) -> dict[int, str]:
    """Index of a node to its name, by the first run of a phase on each, which all of them have a part in."""
    first = runs[0] if runs else None
    nodes = () if first is None or first.result is None else first.result.evidence.nodes
    return {} if first is None else {first.spec.groups[one.group][one.rank]: one.node for one in nodes}


def undecided_text(judgement: Judgement, names: Mapping[int, str]) -> str:
    """Why nodes are neither good nor slow, each reason once, as clauses."""

    def name(node: str) -> str:
        return names.get(int(node), node)

    apart: dict[tuple[str, str], list[str]] = {}
    for one in judgement.outliers:
        if one.against is not None and one.outcome in ("differs", "inconclusive"):
            gpu = "" if one.subject.gpu is None else f" (GPU {one.subject.gpu})"
            text = f"{one.measure}{gpu} {format_change(one.effect)}"
            apart.setdefault((name(one.subject.nodes[0]), name(one.against.nodes[0])), []).append(text)
    texts = [
        f"{slow} is slower than {fast} ({', '.join(measures)}), and fewer than four nodes do not show which of them is "
        "as it should be"
        for (slow, fast), measures in apart.items()
    ]
    said = {
        name(node) for one in judgement.outliers if one.against for node in (*one.subject.nodes, *one.against.nodes)
    }
    open_ = [one for one in judgement.nodes if one.state != "good" and name(one.name) not in said]
    texts += [f"{name(one.name)} has {one.why}" for one in open_ if one.state == "unmeasured"]
    texts += [f"{name(one.name)} may be slow ({one.why})" for one in open_ if one.state != "unmeasured"]
    return "; ".join(texts) or "rounds of the search are missing"

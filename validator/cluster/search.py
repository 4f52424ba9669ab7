"""The search for slow nodes and links: which round to measure next, and what all rounds together say.

    search = Search(nodes, measures)
    while (round := search.next()) is not None:
        search.add(measure(round))
    judgement = search.judgement()

No processes, no files: the simulation of `benchmarks/fleet.py` and real machines drive the same object, and the same
readings give the same rounds again, so that a search is resumed by adding them. Two stages: screening names suspects,
from every node alone and from pairs, and accuses nobody; confirmation measures again, suspects beside known-good nodes,
and judges the new readings alone. docs/adr/0076 says why.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from validator.cluster.judgement import Judgement, differing, outlier_of
from validator.cluster.judging import (
    MAJORITY_OF,
    REPEATS,
    Contrast,
    Screen,
    alone_contrasts,
    decide,
    pair_contrasts,
    screen,
    screen_pairs,
    suspicious,
)
from validator.cluster.levels import Mask, median_of
from validator.cluster.pairs import PairRows
from validator.cluster.rounds import (
    TOURNAMENT_UP_TO,
    Group,
    Reading,
    Round,
    Stage,
    logs_of,
    pair_rounds,
    slow_with_fast,
    swap_rounds,
)
from validator.model.fleet import FleetCell, FleetGroup, FleetMeasure, FleetNode, FleetOutlier, FleetSubject, NodeState
from validator.model.result import Floats
from validator.stats.distributions import t_quantile
from validator.stats.estimate import LEVEL, SECOND_LEVEL

_CONFIRM_REPEATS, _SWAPS = 8, 4
"""Readings alone, and rounds of swapped partners, at the first look at suspects; the second has three times as many of
the one, and two of the other."""


@dataclass(frozen=True)
class Rules:
    """What is asked for. `rounds` limits the rounds of random pairs; `whole` is the loss, relative to the median pair,
    from which all good nodes together are slow (None: they are not measured together)."""

    rounds: int | None = None
    whole: float | None = 0.2
    seed: int = 0


@dataclass(frozen=True, eq=False)
class _Screened:
    """A measure's screening at one level: nodes, GPUs or links."""

    measure: str
    subjects: tuple[FleetSubject, ...]
    values: Floats
    found: Screen

    @property
    def suspects(self) -> list[FleetSubject]:
        """Whom to measure again; nobody without a majority of others."""
        return [self.subjects[one] for one in np.flatnonzero(self.found.suspect)] if self.found.majority else []


_Suspicion = tuple[str, FleetSubject]


class Search:
    """State of a search: what was measured, and what is to be measured next."""

    def __init__(self, nodes: Sequence[str], measures: Sequence[FleetMeasure], rules: Rules | None = None) -> None:
        if not nodes or len(set(nodes)) != len(nodes):
            raise ValueError(f"nodes: {list(nodes)!r} is empty or names a node twice; name each node once")
        self.nodes, self.rules = tuple(sorted(nodes)), rules or Rules()
        self.measures = {one.name: one for one in measures}
        self._alone = tuple(one.name for one in measures if one.per == "node")
        self._grouped = tuple(one.name for one in measures if one.per == "group")
        self._at = {node: index for index, node in enumerate(self.nodes)}
        self._done: list[tuple[Round, dict[tuple[str, Group], Floats]]] = []
        self._screened: tuple[int, list[_Screened]] = (-1, [])
        self._verdicts: dict[_Suspicion, FleetOutlier] = {}
        self._together: list[FleetGroup] = []
        self._steps = self._plan()
        self._next = next(self._steps, None)

    def next(self) -> Round | None:
        """The round to measure; the same one until its readings are added, None when the search is complete."""
        return self._next

    def add(self, readings: Iterable[Reading]) -> None:
        """Take the readings of the round that `next` returned; a group without one gave nothing.

        Raises:
            ValueError: the search is complete, or a reading is of a group or measure that the round does not have.
        """
        if self._next is None:
            raise ValueError("readings: the search is complete; start a new one")
        groups, found = set(self._next.groups), {}
        for one in readings:
            if one.group not in groups or one.measure not in self._next.measures:
                raise ValueError(f"readings: {one.measure} of {one.group} is not in the round; give those of next()")
            found[one.measure, one.group] = logs_of(one.values)
        self._done.append((self._next, found))
        self._next = next(self._steps, None)

    def judgement(self) -> Judgement:
        """What the rounds so far say."""
        screened = self._screens()
        outliers = list(self._verdicts.values())
        for one in screened:
            effects = dict(zip(one.subjects, np.expm1(one.found.effect).tolist(), strict=True))
            new = [subject for subject in one.suspects if (one.measure, subject) not in self._verdicts]
            outliers += [
                FleetOutlier(subject=subject, measure=one.measure, outcome="suspected", effect=effects[subject])
                for subject in new
            ]
            outliers += self._differing(one)
        return Judgement(
            self._standings(outliers),
            tuple(sorted(outliers, key=lambda one: (one.outcome != "confirmed", one.effect or 0.0))),
            tuple(cell for one in screened for cell in self._cells(one)),
            tuple(self._together),
            tuple(round_ for round_, _ in self._done),
            self._next is None,
        )

    # The plan: a generator, so that its position is the state.

    def _plan(self) -> Iterator[Round]:
        rules, able = self.rules, self.nodes
        if self._alone:
            yield Round("each", tuple((node,) for node in self.nodes), self._alone, REPEATS)
            able = tuple(group[0] for group in self._answered())
        if self._grouped and len(able) > 1:
            for pairs in pair_rounds(able, rules.seed, rules.rounds):
                yield Round("pairs", pairs, self._grouped, REPEATS)
            if len(able) > TOURNAMENT_UP_TO:
                measured = [pair for round_, _ in self._done if round_.stage == "pairs" for pair in round_.groups]
                worst = np.min([np.nan_to_num(one.effect) for one in self._node_pairs()], axis=0)
                pairs = slow_with_fast(sorted(able, key=lambda node: float(worst[self._at[node]])), measured)
                yield Round("pairs", pairs, self._grouped, REPEATS)
        yield from self._confirm()
        if self._grouped and rules.whole is not None:
            yield from self._halve()

    def _confirm(self) -> Iterator[Round]:
        open_ = [(one.measure, subject) for one in self._screens() for subject in one.suspects]
        for look, level in enumerate((SECOND_LEVEL, LEVEL)):
            doubted = {measure for measure, _ in open_} | self._differing_measures()
            alone = tuple(name for name in self._alone if name in doubted)
            if alone:
                yield Round("confirm", self._answered(), alone, _CONFIRM_REPEATS * (1 + 2 * look))
            grouped = tuple(name for name in self._grouped if any(name == measure for measure, _ in open_))
            if grouped:
                subjects = dict.fromkeys(subject for measure, subject in open_ if measure in grouped)
                nodes = [subject.nodes[0] for subject in subjects if subject.kind == "node"]
                links = [subject.nodes for subject in subjects if subject.kind == "link"]
                good = self._partners()
                for pairs in swap_rounds(nodes, links, good, count=_SWAPS * (1 + look), first=look * _SWAPS):
                    yield Round("confirm", pairs, grouped, REPEATS)
            self._judge(open_, level)
            open_ = [one for one in open_ if self._verdicts[one].outcome == "inconclusive"]

    def _differing_measures(self) -> set[str]:
        """Of nodes too few for a majority: what is measured again, and judged by the new readings, before it counts."""
        if len(self.nodes) >= MAJORITY_OF:
            return set()
        return {one.measure for one in self._screens() if one.found.suspect.any() or any(self._differing(one))}

    def _halve(self) -> Iterator[Round]:
        """All good nodes together; where they are slow or silent though pairs were fine, their halves, and so on."""
        good = self.judgement().compatible
        if len(good) < MAJORITY_OF - 1:
            return
        yield Round("whole", (good,), self._grouped, REPEATS)
        bad = self._slow_together(good)
        while bad:
            parts = {part: one for one in bad for part in _halves(one.nodes) if len(part) > 2}
            if parts:
                yield Round("part", tuple(parts), self._grouped, REPEATS)
            worse = self._slow_together(good) if parts else []
            halved = [parts[one.nodes] for one in worse]
            self._together += [one for one in bad if one not in halved]
            bad = worse

    def _slow_together(self, good: Group) -> list[FleetGroup]:
        """The groups of the last round that are slow compared with the median pair of good nodes, or silent."""
        round_, found = self._done[-1]
        slow: dict[Group, FleetGroup] = {}
        for measure in self._grouped:
            rows = self._rows(measure, "pairs")
            inside = np.isin(rows.ends, [self._at[node] for node in good]).all(axis=1)
            usual = float(median_of(rows.values[inside].ravel(), 0))
            for group in round_.groups:
                logs = found.get((measure, group), np.full((1, 1), np.nan))
                level = float(median_of(logs[:, 0], 0))
                if math.isnan(level) or level - usual < math.log1p(-(self.rules.whole or 0.0)):
                    value, reference = math.exp(level), math.exp(usual)
                    slow.setdefault(group, FleetGroup(nodes=group, measure=measure, value=value, reference=reference))
        return list(slow.values())

    # What was measured, as arrays.

    def _answered(self) -> tuple[Group, ...]:
        """Groups of one, of the nodes that gave anything alone."""
        gave = {group for _, found in self._done for (_, group), logs in found.items() if np.isfinite(logs).any()}
        return tuple((node,) for node in self.nodes if (node,) in gave)

    def _values(self, measure: str, stage: Stage) -> Floats:
        """Logarithms `[nodes, repeats, gpus]` of a measure alone; NaN where a node gave nothing."""
        done = [(round_, found) for round_, found in self._done if round_.stage == stage and measure in round_.measures]
        gpus = max(
            (logs.shape[1] for _, found in self._done for (name, _), logs in found.items() if name == measure),
            default=1,
        )
        values = np.full((len(self.nodes), sum(round_.repeats for round_, _ in done), gpus), np.nan)
        start = 0
        for round_, found in done:
            for node, index in self._at.items():
                logs = found.get((measure, (node,)), np.empty((0, 1)))[: round_.repeats]
                values[index, start : start + len(logs), : logs.shape[1]] = logs
            start += round_.repeats
        return values

    def _rows(self, measure: str, *stages: Stage) -> PairRows:
        """The pairs of a measure."""
        done = [
            (number, round_, sorted(self._at[node] for node in group), found.get((measure, group), np.empty((0, 1))))
            for number, (round_, found) in enumerate(self._done)
            for group in (round_.groups if round_.stage in stages and measure in round_.measures else ())
            if len(group) == 2
        ]
        values = np.full((len(done), REPEATS), np.nan)
        for row, (_, _, _, logs) in enumerate(done):
            values[row, : len(logs)] = logs[: values.shape[1], 0]
        ends = np.array([pair for _, _, pair, _ in done], dtype=np.int64).reshape(-1, 2)
        at = np.array([number for number, *_ in done], dtype=np.int64)
        return PairRows(ends, at, values, np.array([round_.stage == "confirm" for _, round_, _, _ in done], dtype=bool))

    # Judging.

    def _screens(self) -> list[_Screened]:
        """The screening of each measure and level, made once for the rounds of that stage."""
        count = sum(round_.stage in ("each", "pairs") or len(self.nodes) < MAJORITY_OF for round_, _ in self._done)
        if self._screened[0] != count:
            found = [one for measure in self._alone for one in self._alone_screens(measure)]
            found += [one for measure in self._grouped for one in self._pair_screens(measure)]
            self._screened = (count, found)
        return self._screened[1]

    def _alone_screens(self, measure: str) -> Iterator[_Screened]:
        values = self._values(measure, "each")
        count, repeats, gpus = values.shape
        if not repeats:
            return
        levels = median_of(values, 1)
        again = self._values(measure, "confirm") if count < MAJORITY_OF else values[:, :0]
        node = screen(_deviations(again if again.shape[1] else values, "node", np.ones(count, dtype=bool)))
        yield _Screened(measure, tuple(FleetSubject(nodes=(one,)) for one in self.nodes), median_of(levels, 1), node)
        if gpus > 1 and max(gpus, count) >= MAJORITY_OF:
            subjects = tuple(FleetSubject(nodes=(one,), gpu=gpu) for one in self.nodes for gpu in range(gpus))
            found = screen(_deviations(values, "gpu", np.ones(count * gpus, dtype=bool)))
            # The GPUs of a slow node are suspects of their own only where they are slow in their node.
            own = np.repeat(np.where(node.suspect, node.effect, 0.0), gpus)
            among = suspicious(found.effect - own, found.error, found.error)
            suspect = found.suspect & (among | (own == 0))
            yield _Screened(measure, subjects, levels.reshape(-1), replace(found, suspect=suspect))

    def _pair_screens(self, measure: str) -> Iterator[_Screened]:
        rows = self._rows(measure, "pairs")
        if len(rows.at):
            found = screen_pairs(rows, len(self.nodes), len(self._done))
            nodes = tuple(FleetSubject(nodes=(one,)) for one in self.nodes)
            links = tuple(FleetSubject(nodes=(self.nodes[a], self.nodes[b])) for a, b in rows.ends)
            yield _Screened(measure, nodes, np.full(len(nodes), np.nan), found[0])
            yield _Screened(measure, links, median_of(rows.values, 1), found[1])

    def _node_pairs(self) -> list[Screen]:
        """What the pairs say of the nodes, by measure."""
        nodes = (one for one in self._screens() if one.measure in self._grouped and one.subjects[0].kind == "node")
        return [one.found for one in nodes]

    def _partners(self) -> list[str]:
        """Nodes that no pair makes a suspect, those in the middle of the fleet first."""
        known = np.all([one.reference for one in self._node_pairs()], axis=0)
        away = np.max([np.abs(one.effect) for one in self._node_pairs()], axis=0)
        return [self.nodes[one] for one in np.argsort(away) if known[one]]

    def _judge(self, open_: Sequence[_Suspicion], level: float) -> None:
        """Judge suspects by their new readings, all together."""
        measured: dict[_Suspicion, Contrast] = {}
        for one in self._screens():
            at = {subject: index for index, subject in enumerate(one.subjects)}
            mine = [subject for measure, subject in open_ if measure == one.measure and subject in at]
            if mine and one.measure in self._alone:
                values = _deviations(self._values(one.measure, "confirm"), mine[0].kind, one.found.reference)
                units = [at[subject] for subject in mine]
                found = alone_contrasts(values, units, one.found.reference)
            else:
                found = self._pair_contrasts(one.measure, mine) if mine else []
            measured |= {(one.measure, subject): of for subject, of in zip(mine, found, strict=True)}
        verdicts = decide(list(measured.values()), level=level)
        for (key, of), verdict in zip(measured.items(), verdicts, strict=True):
            by: Literal["alone", "swap"] = "alone" if key[0] in self._alone else "swap"
            self._verdicts[key] = outlier_of(key[1], key[0], of, verdict, by)

    def _pair_contrasts(self, measure: str, mine: Sequence[FleetSubject]) -> list[Contrast]:
        rows = self._rows(measure, "pairs", "confirm")
        node, link = (one for one in self._screens() if one.measure == measure)
        doubted = {tuple(self._at[name] for name in subject.nodes) for subject in link.suspects}
        sound = np.array([(a, b) not in doubted for a, b in rows.ends.tolist()], dtype=bool)
        suspects = [tuple(self._at[name] for name in subject.nodes) for subject in mine]
        return pair_contrasts(rows, suspects, node.found.reference, sound)

    # The report.

    def _differing(self, one: _Screened) -> list[FleetOutlier]:
        """The slowest and the fastest unit where there is no majority, if they differ by the minimum effect.

        A public bound between their best readings names the slow one.
        """
        by_bound = self.measures[one.measure].accuses and one.measure in self._alone
        return [
            each.model_copy(update={"outcome": "confirmed", "by": "bound"})
            if by_bound
            and each.outcome == "differs"
            and each.against is not None
            and self._reaches(one.measure, each.against.nodes[0])
            and self._reaches(one.measure, each.subject.nodes[0]) is False
            else each
            for each in differing(one.found.difference(), one.subjects, one.measure)
        ]

    def _reaches(self, measure: str, node: str) -> bool | None:
        """Whether the best reading of every GPU of a node reaches the public bound; None where there is no bound, or
        no reading."""
        least = self.measures[measure].least
        if least is None or measure not in self._alone:
            return None
        logs = np.concatenate([self._values(measure, stage)[self._at[node]] for stage in ("each", "confirm")])
        best = np.fmax.reduce(logs, axis=0)
        return None if not np.isfinite(best).all() else bool(np.exp(best).min() >= least)

    def _cells(self, one: _Screened) -> Iterator[FleetCell]:
        found = one.found
        reach = t_quantile((1 + LEVEL) / 2, found.df) * found.error
        ends = (np.expm1(found.effect + sign * reach).tolist() for sign in (0, -1, 1))
        values = np.exp(one.values).tolist()
        for subject, *numbers in zip(one.subjects, values, *ends, found.mads.tolist(), strict=True):
            named = dict(zip(("value", "effect", "low", "high", "mads"), numbers, strict=True))
            yield FleetCell(subject=subject, measure=one.measure, **named)

    def _standings(self, outliers: Sequence[FleetOutlier]) -> tuple[FleetNode, ...]:
        """Each node's state: the worst that any measure says of it."""
        worst = dict.fromkeys(self.nodes, math.inf)
        lacking: dict[str, list[str]] = {node: [] for node in self.nodes}
        doubts: dict[str, list[str]] = {node: [] for node in self.nodes}
        for one in self._screens():
            if one.subjects[0].kind == "link":
                continue
            lost = ~one.found.enough if one.measure in self._alone else np.zeros(len(one.subjects), dtype=bool)
            doubted = one.found.suspect & (not one.found.majority)
            effects = np.nan_to_num(one.found.effect, nan=math.inf).tolist()
            for subject, effect, no_level, doubt in zip(one.subjects, effects, lost, doubted, strict=True):
                node = subject.nodes[0]
                worst[node] = min(worst[node], effect)
                lacking[node] += [one.measure] if no_level else []
                doubts[node] += [f"{one.measure}: no majority of good ones"] if doubt else []
        for measure in self._grouped:
            rows = self._rows(measure, "pairs")
            count = np.bincount(rows.ends.ravel(), np.repeat(np.isfinite(rows.values).sum(axis=1), 2), len(self.nodes))
            for node, index in self._at.items():
                if len(rows.at) and count[index] < REPEATS:
                    lacking[node].append(measure)
        slow: dict[str, list[str]] = {node: [] for node in self.nodes}
        for found in outliers:
            nodes = found.subject.nodes + (found.against.nodes if found.against else ())
            for node in nodes if found.against or found.subject.kind != "link" else ():
                if found.outcome == "confirmed":
                    slow[node] += [found.measure] if node in found.subject.nodes else []
                elif node not in found.subject.nodes and self._reaches(found.measure, node):
                    continue  # the faster one, which a public bound shows to be as fast as it should be
                elif found.outcome != "acquitted" and not found.tolerable:
                    doubts[node].append(f"{found.measure}: {found.outcome}")

        def standing(node: str) -> FleetNode:
            state: NodeState = "slow" if slow[node] else "unmeasured" if lacking[node] else "inconclusive"
            text = {"slow": "slow in ", "unmeasured": "too few readings of ", "inconclusive": ""}[state]
            why = ", ".join(dict.fromkeys(slow[node] or lacking[node] or doubts[node]))
            effect = math.expm1(worst[node]) if worst[node] < math.inf else math.nan
            return FleetNode(name=node, state=state if why else "good", effect=effect, why=text + why if why else "")

        return tuple(map(standing, self.nodes))


def _deviations(values: Floats, kind: str, reference: Mask) -> Floats:
    """Logarithms `[units, repeats]` of nodes or GPUs, less the median of the reference units in each repeat.

    A node is the median of its GPUs. With fewer than four nodes a GPU is compared with those of its node.
    """
    nodes = median_of(values, 2)
    if kind == "node":
        return nodes - median_of(nodes[reference], 0)
    flat = np.moveaxis(values, 2, 1).reshape(-1, values.shape[1])
    if len(values) < MAJORITY_OF:
        return flat - np.repeat(nodes, values.shape[2], axis=0)
    return flat - median_of(flat[reference], 0)


def _halves(group: Group) -> tuple[Group, Group]:
    middle = (len(group) + 1) // 2
    return group[:middle], group[middle:]

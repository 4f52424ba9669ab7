"""The whole comparison: what differs, and one verdict drawn from what matters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from validator.compare.metrics import Cell, Side, metric_differences
from validator.judge.config import same_value
from validator.model.catalogue import Metric
from validator.model.contrast import (
    ContrastReport,
    ContrastVerdict,
    CriterionDifference,
    FindingDifference,
    MetricDifference,
    SettingDifference,
)
from validator.model.settings import flat_name
from validator.model.verdict import Finding, RunReport, Verdict
from validator.text import brief, listed

_PLACES = frozenset({"out", "run_name", "port", "master_port"})
"""Settings that say where a run is, not what it is."""

_PLACE_VALUES = ("/runs/",)

Where = Literal["config", "environment", "machine", "runbook"]


def contrast(a: Side, b: Side, *, not_worse_than: float | None = None) -> ContrastReport:
    """Side `b` against side `a`.

    Worse if the rate, the memory or the loss of some phase is worse, if a required criterion passed and now does not,
    or if a veto was gained. Inconclusive if none of that holds and the rate of some phase is open. A phase without a
    rate is judged by its time per step, a trainer that reports neither by its loss and memory. With
    `not_worse_than`, a share, "worse" means worse by more than that, and every rate must be shown not to be.
    """
    settings = (*_fact_differences(a, b), *_setting_differences(a, b))
    metrics = metric_differences(a, b, not_worse_than=not_worse_than)
    criteria = _criterion_differences(a, b)
    gained, lost = _findings_of_one(b, a), _findings_of_one(a, b)
    verdict, message = _overall_verdict(metrics, criteria, gained, b.metrics, lack=_lack(a, b), min_effect=b.min_effect)
    return ContrastReport(
        a=a.subject,
        b=b.subject,
        not_worse_than=not_worse_than,
        verdict=verdict,
        message=message,
        caveats=(*_caveats(a, b), *_pace_caveats(metrics)),
        settings=settings,
        metrics=metrics,
        criteria=criteria,
        findings_gained=gained,
        findings_lost=lost,
    )


def _caveats(a: Side, b: Side) -> Iterator[str]:
    """Why a difference may come from elsewhere than the trainer or its settings."""
    for what, left, right in (
        ("runbook", a.subject.runbook, b.subject.runbook),
        ("machine", a.subject.machine, b.subject.machine),
    ):
        if left != right:
            yield f"the {what} is not the same: {left or 'unknown'} against {right or 'unknown'}"
    for side, other in ((a, b), (b, a)):
        alone = sorted(_cell_text(cell) for cell in side.cells if cell not in other.cells)
        if alone:
            yield f"only {side.subject.name} has run {listed(alone)}"
        if side.subject.decision == "IN_PROGRESS":
            yield f"{side.subject.name} has not finished"


def _pace_caveats(metrics: tuple[MetricDifference, ...]) -> Iterator[str]:
    phases = [one.phase or "the run" for one in metrics if one.headline and one.metric.startswith("step_time_s.")]
    if phases:
        yield f"no rate of {listed(phases)} is measured: its time per step decides, which may leave pauses out"


def _fact_differences(a: Side, b: Side) -> tuple[SettingDifference, ...]:
    """Machine, software and runbook: what is true of the whole side."""
    found = []
    for name in sorted({*a.facts, *b.facts}):
        left, right = a.facts.get(name), b.facts.get(name)
        if left != right:
            where: Where = (
                "environment" if name.startswith("env.") else "runbook" if name.startswith("runbook.") else "machine"
            )
            found.append(SettingDifference(name=name, a=left, b=right, where=where))
    return tuple(found)


def _setting_differences(a: Side, b: Side) -> tuple[SettingDifference, ...]:
    """Config and environment of the runs, each difference once with the phases in which it holds."""
    shared = [cell for cell in b.cells if cell in a.cells]
    phases: dict[tuple[str, str | None, str | None, Where], list[str]] = {}
    for cell in shared:
        for name, left, right, where in _run_differences(a.cells[cell][0], b.cells[cell][0]):
            phases.setdefault((name, left, right, where), []).append(_cell_text(cell))
    return tuple(
        SettingDifference(
            name=name,
            a=left,
            b=right,
            where=where,
            phases=() if len(cells) == len(shared) else tuple(cells),
        )
        for (name, left, right, where), cells in phases.items()
    )


def _cell_text(cell: Cell) -> str:
    return "/".join(part for part in cell if part)


def _run_differences(a: RunReport, b: RunReport) -> Iterator[tuple[str, str | None, str | None, Where]]:
    for name, left, right in _differing_values(_config_of(a), _config_of(b)):
        yield name, left, right, "config"
    for name, left, right in _differing_values(a.env, b.env):
        yield name, left, right, "environment"


def _config_of(run: RunReport) -> Mapping[str, Any]:
    """As it ran, effective over requested."""
    return {flat_name(key): value for source in (run.requested, run.effective) for key, value in (source or {}).items()}


def _differing_values(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[tuple[str, str | None, str | None]]:
    for name in sorted({*a, *b}):
        left, right = a.get(name), b.get(name)
        if name in _PLACES or isinstance(left, (dict, list)) or isinstance(right, (dict, list)):
            continue
        if all(any(mark in str(value) for mark in _PLACE_VALUES) for value in (left, right)):
            continue
        if not same_value(left, right):
            yield name, None if left is None else str(left), None if right is None else str(right)


def _criterion_differences(a: Side, b: Side) -> tuple[CriterionDifference, ...]:
    """Matched by id and text: a criterion whose bound was changed is another one."""
    pairs: list[tuple[Verdict | None, Verdict | None, Verdict | None]] = []
    for id in dict.fromkeys((*a.criteria, *b.criteria)):
        left, right = a.criteria.get(id), b.criteria.get(id)
        if left is not None and right is not None and left.text != right.text:
            pairs += [(left, left, None), (right, None, right)]
        elif left is None or right is None or left.status != right.status:
            pairs.append((right or left, left, right))
    return tuple(
        CriterionDifference(
            id=shown.id,
            text=shown.text,
            required=shown.required,
            a=None if left is None else left.status,
            b=None if right is None else right.status,
        )
        for shown, left, right in pairs
        if shown is not None
    )


def _findings_of_one(side: Side, other: Side) -> tuple[FindingDifference, ...]:
    """Findings of `side` whose code `other` does not have in the same phase."""
    known = {(finding.code, finding.phase) for finding in other.findings}
    fresh: dict[tuple[str, str | None], Finding] = {}
    for finding in side.findings:
        if (finding.code, finding.phase) not in known:
            fresh.setdefault((finding.code, finding.phase), finding)
    return tuple(
        FindingDifference(code=one.code, severity=one.severity, phase=one.phase, message=one.message)
        for one in fresh.values()
    )


def _lack(a: Side, b: Side) -> str:
    """Why no rate, time per step, loss or memory of the two sides can be compared.

    Phases that measure the machine, or repeat steps on each GPU, have none: their criteria alone are compared.
    """
    what = "a rate, a time per step, a loss or memory"
    if set(a.cells) & set(b.cells):
        return f"the two sides have no measurement that a verdict could rest on ({what}) in common"
    both = [id for id, one in b.criteria.items() if id in a.criteria and a.criteria[id].text == one.text]
    if not both:
        return "the two sides have no phase in common"
    phases = list(dict.fromkeys(id.partition(".")[0] for id in both))
    same = sum(a.criteria[id].status == b.criteria[id].status for id in both)
    return (
        f"{listed(phases)} ran on both sides and left nothing that is compared as a number ({what}); "
        f"{same} of {len(both)} criteria have the same result"
    )


def _overall_verdict(
    metrics: tuple[MetricDifference, ...],
    criteria: tuple[CriterionDifference, ...],
    gained: tuple[FindingDifference, ...],
    known: Mapping[str, Metric],
    *,
    lack: str,
    min_effect: float,
) -> tuple[ContrastVerdict, str]:
    headlines = [one for one in metrics if one.headline]
    worse = [_metric_text(one) for one in headlines if one.verdict == "worse"]
    worse += [
        f"{one.id.partition('.')[0]} ({brief(one.text)}) passed and now is {one.b}"
        for one in criteria
        if one.required and one.a == "PASS" and one.b in ("FAIL", "INCONCLUSIVE")
    ]
    worse += [f"the veto {one.code} was gained" for one in gained if one.severity == "veto"]
    if worse:
        return "worse", f"Worse: {'; '.join(worse[:3])}{f'; and {len(worse) - 3} more' if len(worse) > 3 else ''}."
    # Memory and loss decide by themselves only where nothing is known of the speed.
    rates = [one for one in headlines if known[one.metric.rpartition(".")[0]].window == "steady"] or headlines
    if not rates:
        return "not_decidable", f"Inconclusive: {lack}."
    undecided = [one for one in rates if one.verdict == "not_decidable"]
    better = [one for one in headlines if one.verdict == "better"]
    # A better rate in one phase says nothing about a phase whose rate may have fallen.
    doubtful = [one for one in undecided if one.worst is None or one.worst >= min_effect]
    if better and not doubtful:
        return "better", f"Better: {'; '.join(map(_metric_text, better[:3]))}."
    if undecided:
        also = f" {listed([_metric_name(one) for one in better])} is better." if better else ""
        first = (doubtful or undecided)[0]
        return "not_decidable", f"Inconclusive: {_metric_text(first)}.{also}"
    if all(one.verdict == "not_worse" for one in rates):
        return "not_worse", f"Not worse: {'; '.join(map(_metric_text, rates[:3]))}."
    return "no_difference", f"No difference that matters in {listed([_metric_name(one) for one in rates])}."


def _metric_name(one: MetricDifference) -> str:
    return ".".join(part for part in (one.phase, one.metric) if part) + (f" of {one.arm}" if one.arm else "")


def _metric_text(one: MetricDifference) -> str:
    """`baseline.toks_per_s.mean (100 → 90 tok/s, -10.0 % [-12.0 %, -8.0 %], p = 0.001)`."""
    return f"{_metric_name(one)} ({one.message.rstrip('.')})"

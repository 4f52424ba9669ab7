"""The whole comparison: what differs, and one verdict drawn from what matters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from validator.compare.metrics import metric_differences
from validator.compare.side import Cell, Side
from validator.judge.config import same_value
from validator.judge.wording import listed
from validator.model.contrast import (
    Contrast,
    ContrastVerdict,
    CriterionDifference,
    FindingDifference,
    MetricDifference,
    SettingDifference,
)
from validator.model.settings import flat_name
from validator.model.verdict import Finding, RunReport

__all__ = ["contrast"]

_PLACES = frozenset({"out", "run_name", "port", "master_port"})
"""Settings that say where a run lies, not what it is."""

_PLACE_VALUES = ("/runs/",)

Where = Literal["config", "environment", "machine", "runbook"]


def contrast(a: Side, b: Side, *, not_worse_than: float | None = None) -> Contrast:
    """Side `b` against side `a`.

    Worse if the rate, the memory or the loss of some phase is worse, if a required criterion that passed does so no
    more, or if a veto was gained. Not decidable if none of that holds and the rate of some phase is open. With
    `not_worse_than`, a share, "worse" means worse by more than that, and every rate must be shown not to be.
    """
    settings = (*_facts(a, b), *_settings(a, b))
    metrics = metric_differences(a, b, not_worse_than=not_worse_than)
    criteria = _criteria(a, b)
    gained, lost = _findings(b, a), _findings(a, b)
    verdict, message = _verdict(
        metrics, criteria, gained, shared=bool(set(a.cells) & set(b.cells)), min_effect=b.min_effect
    )
    return Contrast(
        a=a.subject,
        b=b.subject,
        not_worse_than=not_worse_than,
        verdict=verdict,
        message=message,
        caveats=tuple(_caveats(a, b)),
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
        alone = sorted("/".join(part for part in cell if part) for cell in side.cells if cell not in other.cells)
        if alone:
            yield f"only {side.subject.name} has run {listed(alone)}"
        if side.subject.decision == "IN_PROGRESS":
            yield f"{side.subject.name} has not finished"


def _facts(a: Side, b: Side) -> tuple[SettingDifference, ...]:
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


def _settings(a: Side, b: Side) -> tuple[SettingDifference, ...]:
    """Config and environment of the runs, each difference told once with the phases in which it holds."""
    shared = [cell for cell in b.cells if cell in a.cells]
    phases: dict[tuple[str, str | None, str | None, Where], list[str]] = {}
    for cell in shared:
        for name, left, right, where in _run_differences(a.cells[cell][0], b.cells[cell][0]):
            phases.setdefault((name, left, right, where), []).append(_cell_name(cell))
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


def _cell_name(cell: Cell) -> str:
    return "/".join(part for part in cell if part)


def _run_differences(a: RunReport, b: RunReport) -> Iterator[tuple[str, str | None, str | None, Where]]:
    for name, left, right in _different(_config(a), _config(b)):
        yield name, left, right, "config"
    for name, left, right in _different(a.env, b.env):
        yield name, left, right, "environment"


def _config(run: RunReport) -> Mapping[str, Any]:
    """As it ran, by the trainer's own account, over what was asked for."""
    return {flat_name(key): value for source in (run.requested, run.effective) for key, value in (source or {}).items()}


def _different(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[tuple[str, str | None, str | None]]:
    for name in sorted({*a, *b}):
        left, right = a.get(name), b.get(name)
        if name in _PLACES or isinstance(left, (dict, list)) or isinstance(right, (dict, list)):
            continue
        if all(any(mark in str(value) for mark in _PLACE_VALUES) for value in (left, right)):
            continue
        if not same_value(left, right):
            yield name, None if left is None else str(left), None if right is None else str(right)


def _criteria(a: Side, b: Side) -> tuple[CriterionDifference, ...]:
    """Matched by id and text: a criterion whose bound was changed is another one."""
    found = []
    for id in dict.fromkeys((*a.criteria, *b.criteria)):
        left, right = a.criteria.get(id), b.criteria.get(id)
        if left is not None and right is not None and left.text != right.text:
            found.append(CriterionDifference(id=id, text=left.text, required=left.required, a=left.status, b=None))
            found.append(CriterionDifference(id=id, text=right.text, required=right.required, a=None, b=right.status))
            continue
        shown = right or left
        if shown is not None and (left is None or right is None or left.status != right.status):
            found.append(
                CriterionDifference(
                    id=id,
                    text=shown.text,
                    required=shown.required,
                    a=None if left is None else left.status,
                    b=None if right is None else right.status,
                )
            )
    return tuple(found)


def _findings(side: Side, other: Side) -> tuple[FindingDifference, ...]:
    """Findings of a side whose code the other does not have in the same phase."""
    known = {(finding.code, finding.phase) for finding in other.findings}
    fresh: dict[tuple[str, str | None], Finding] = {}
    for finding in side.findings:
        if (finding.code, finding.phase) not in known:
            fresh.setdefault((finding.code, finding.phase), finding)
    return tuple(
        FindingDifference(code=one.code, severity=one.severity, phase=one.phase, message=one.message)
        for one in fresh.values()
    )


def _verdict(
    metrics: tuple[MetricDifference, ...],
    criteria: tuple[CriterionDifference, ...],
    gained: tuple[FindingDifference, ...],
    *,
    shared: bool,
    min_effect: float,
) -> tuple[ContrastVerdict, str]:
    headlines = [one for one in metrics if one.headline]
    worse = [f"{_named(one)} ({one.message.rstrip('.')})" for one in headlines if one.verdict == "worse"]
    worse += [
        f"{one.id} passed and now is {one.b}" for one in criteria if one.required and one.a == "PASS" and _broken(one)
    ]
    worse += [f"the veto {one.code} was gained" for one in gained if one.severity == "veto"]
    if worse:
        return "worse", f"Worse: {'; '.join(worse[:3])}{f'; and {len(worse) - 3} more' if len(worse) > 3 else ''}."
    rates = [one for one in headlines if one.metric.startswith("toks_per_s")]
    if not rates:
        why = "the two sides have no rate in common" if shared else "the two sides have no phase in common"
        return "not_decidable", f"Not decidable: {why}."
    undecided = [one for one in rates if one.verdict == "not_decidable"]
    better = [one for one in headlines if one.verdict == "better"]
    # What is better in one phase says nothing for a phase whose rate may have fallen.
    doubtful = [one for one in undecided if one.worst is None or one.worst >= min_effect]
    if better and not doubtful:
        return "better", f"Better: {'; '.join(f'{_named(one)} ({one.message.rstrip(chr(46))})' for one in better[:3])}."
    if undecided:
        also = f" {listed([_named(one) for one in better])} is better." if better else ""
        first = (doubtful or undecided)[0]
        return "not_decidable", f"Not decidable: {_named(first)} ({first.message.rstrip('.')}).{also}"
    if all(one.verdict == "not_worse" for one in rates):
        return (
            "not_worse",
            f"Not worse: {'; '.join(f'{_named(one)} ({one.message.rstrip(chr(46))})' for one in rates[:3])}.",
        )
    return "no_difference", f"No difference that matters in {listed([_named(one) for one in rates])}."


def _broken(one: CriterionDifference) -> bool:
    return one.b in ("FAIL", "INCONCLUSIVE")


def _named(one: MetricDifference) -> str:
    return ".".join(part for part in (one.phase, one.metric) if part) + (f" of {one.arm}" if one.arm else "")

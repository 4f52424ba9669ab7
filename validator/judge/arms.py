"""The arms of a sweep or an A/B: their run values, and whether the setting can have made a difference at all."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from validator.judge.compare import ArmRuns, Rules, compare_arms
from validator.judge.config import same_value
from validator.judge.data import PhaseData
from validator.judge.estimate import Estimate
from validator.judge.identical import identical_arms
from validator.judge.measure import NotMeasured
from validator.model.expression import parse_reference
from validator.model.record import RunRecord
from validator.model.resolve import Resolved, resolve
from validator.model.runbook import AbPhase, SweepPhase
from validator.model.settings import min_effect_of
from validator.model.units import format_size
from validator.model.verdict import Comparison

__all__ = ["compare_phase"]


def compare_phase(data: PhaseData) -> Comparison | None:
    """The comparison of a sweep or an A/B; None for other phases."""
    phase, runbook = data.record.phase, data.validation.runbook
    if not isinstance(phase, (SweepPhase, AbPhase)):
        return None
    choose = phase.choose
    metric = choose.highest or choose.lowest or ""
    resolved = resolve(parse_reference(metric), runbook=runbook, phase=phase)
    tie = None if choose.tie is None else resolve(parse_reference(choose.tie), runbook=runbook, phase=phase)
    rules = Rules(
        metric=metric,
        unit=resolved.unit,
        direction="highest" if choose.highest else "lowest",
        min_effect=min_effect_of(runbook, phase),
        prefer=choose.prefer,
        tie=choose.tie,
        adopt=choose.adopt,
    )
    arms = [_arm(arm, runs, resolved, tie, data) for arm, runs in data.arms.items()]
    return compare_arms(arms, rules=rules, vacuous=_vacuous(data))


def _arm(arm: str, runs: tuple[RunRecord, ...], metric: Resolved, tie: Resolved | None, data: PhaseData) -> ArmRuns:
    values: list[float] = []
    ties: list[float] = []
    missing: str | None = None
    for run in runs:
        if run.outcome is not None and not run.outcome.ok:
            missing = missing or f"run {run.spec.id} did not end by itself with exit code 0"
            continue
        try:
            value = data.of_run(run, metric, alone=False)
        except NotMeasured as problem:
            missing = missing or str(problem)
            continue
        if isinstance(value, Estimate):
            values.append(value.point)
        if tie is not None:
            ties += _point(run, tie, data)
    return ArmRuns(
        arm=arm,
        settings=runs[0].spec.settings,
        values=tuple(values),
        planned=len(runs),
        tie_values=tuple(ties) if len(ties) == len(values) else (),
        missing=missing,
    )


def _point(run: RunRecord, resolved: Resolved, data: PhaseData) -> list[float]:
    try:
        value = data.of_run(run, resolved, alone=False)
    except NotMeasured:
        return []
    return [value.point] if isinstance(value, Estimate) and np.isfinite(value.point) else []


def _vacuous(data: PhaseData) -> str | None:
    """Why the compared setting cannot have made a difference, if so."""
    arms = {arm: [(run.spec, run.result) for run in runs] for arm, runs in data.arms.items()}
    twins = next((pair for pair in identical_arms(arms) if pair.arithmetic), None)
    if twins is not None:
        return twins.text
    names = {name for runs in data.arms.values() for run in runs for name in run.spec.settings}
    varied = [name for name in names if len({str(runs[0].spec.settings.get(name)) for runs in data.arms.values()}) > 1]
    reasons = [_ignored(name, data) or _one_bucket(name, data) for name in sorted(varied)]
    # One setting that took effect is enough for the arms to differ.
    return reasons[0] if reasons and all(reasons) else None


def _one_bucket(name: str, data: PhaseData) -> str | None:
    """All gradients fit the smallest bucket of the sweep, so every arm reduces them in one piece."""
    if re.search(r"bucket.*_?(mb|mib)$", name, re.IGNORECASE) is None:
        return None
    sizes, gradients = [], []
    for runs in data.arms.values():
        for run in runs:
            environment = {} if run.result is None else run.result.environment or {}
            size, grad = _float(run.spec.settings.get(name)), _float(environment.get("grad_bytes"))
            if size is None or grad is None:
                return None
            sizes.append(size * 2**20)
            gradients.append(grad)
    if not sizes or max(gradients) > min(sizes):
        return None
    return f"all gradients ({format_size(max(gradients))}) fit the smallest bucket ({format_size(min(sizes))})"


def _ignored(name: str, data: PhaseData) -> str | None:
    """The setting never reached the trainer: by its own account it ran with the same value in every arm."""
    wanted: list[object] = []
    ran: list[object] = []
    key = None
    for runs in data.arms.values():
        for run in runs:
            effective = None if run.result is None else run.result.effective
            key = None if effective is None else _effective_key(name, effective)
            if key is None or effective is None or name not in run.spec.settings:
                return None
            wanted.append(run.spec.settings[name])
            ran.append(effective[key])
    if len(wanted) < 2 or not all(same_value(ran[0], other) for other in ran):
        return None
    return f"{name} never reached the trainer, whose effective {key} is {ran[0]} in every arm"


def _effective_key(name: str, effective: Mapping[str, object]) -> str | None:
    """The effective setting that `env.NSA_DDP_BUCKET_MB` or `args.ddp-bucket-mb` stands for."""
    scope, _, rest = name.partition(".")
    flat = rest.lower().replace("-", "_")
    if scope == "env" and flat not in effective:
        flat = flat.partition("_")[2]
    return flat if flat in effective else None


def _float(value: object) -> float | None:
    try:
        return float(str(value))
    except ValueError:
        return None

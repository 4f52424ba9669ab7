"""The comparison of two sets of results: what `compare` prints, and `since` in result.json.

`a` is the older or accepted side, `b` the one that is judged; changes are relative to `a`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from validator.model.units import Frozen

ContrastVerdict = Literal["better", "worse", "no_difference", "not_worse", "not_decidable"]
"""`not_worse` answers `--not-worse-than`: worse by less than that, with 95 % confidence."""


class ContrastSide(Frozen):
    """One side: a validation (run folder) or a single run (trainer folder)."""

    kind: Literal["validation", "run"]
    name: str
    path: str | None = None
    decision: str | None = None
    runbook: str | None = None
    machine: str | None = Field(None, description="Machine class: GPUs, their number and interconnect, or the CPU.")
    started: str | None = None


class SettingDifference(Frozen):
    """A setting or fact that differs between the sides; None where a side does not have it."""

    name: str
    a: str | None
    b: str | None
    where: Literal["config", "environment", "machine", "runbook"]
    phases: tuple[str, ...] = Field((), description="Phases in which it differs; empty for all.")


class Sample(Frozen):
    """A metric on one side: the mean over runs, and the interval of one run or over runs."""

    value: float | None
    ci_low: float | None = None
    ci_high: float | None = None
    runs: int


class MetricDifference(Frozen):
    """One metric of one phase on both sides. `change*` are b over a, less 1, with a 95 % interval."""

    phase: str | None
    arm: str | None = None
    metric: str = Field(description="`metric.statistic`, as a criterion would name it.")
    unit: str
    better: Literal["higher", "lower"]
    a: Sample
    b: Sample
    change: float | None = None
    change_low: float | None = None
    change_high: float | None = None
    p_value: float | None = None
    worst: float | None = Field(None, description="Largest share by which b may be worse: a one-sided 95 % limit.")
    verdict: ContrastVerdict
    repeats_needed: int | None = Field(None, description="Runs per side that would decide it, if it is inconclusive.")
    headline: bool = Field(False, description="Whether the verdict of the whole depends on it.")
    message: str


class CriterionDifference(Frozen):
    """A criterion with a different status on each side; None where a side does not have it."""

    id: str
    text: str
    required: bool
    a: str | None
    b: str | None


class FindingDifference(Frozen):
    """A finding that only one side has."""

    code: str
    severity: str
    phase: str | None = None
    message: str


class ContrastReport(Frozen):
    """The whole comparison. `caveats` say why the sides may not be comparable."""

    schema_version: Literal[1] = 1
    a: ContrastSide
    b: ContrastSide
    not_worse_than: float | None = Field(None, description="The share of `--not-worse-than`, if given.")
    verdict: ContrastVerdict
    message: str
    caveats: tuple[str, ...] = ()
    commands: tuple[str, ...] = Field((), description="What to type to decide it, where it is inconclusive.")
    settings: tuple[SettingDifference, ...] = ()
    metrics: tuple[MetricDifference, ...] = ()
    criteria: tuple[CriterionDifference, ...] = ()
    findings_gained: tuple[FindingDifference, ...] = ()
    findings_lost: tuple[FindingDifference, ...] = ()

"""Sides of a comparison made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from validator.compare import Side
from validator.model.contrast import ContrastSide
from validator.model.result import MetricStats, Span
from validator.model.verdict import Finding, RunReport, Verdict


def stats(mean: float, *, half: float | None = 0.5, unit: str = "tok/s", note: str | None = None) -> MetricStats:
    return MetricStats(
        unit=unit,
        n=280,
        mean=mean,
        stdev=1.0,
        cv=None,
        ci_low=None if half is None else mean - half,
        ci_high=None if half is None else mean + half,
        min=mean,
        p50=mean,
        p95=mean,
        p99=mean,
        max=mean,
        first=mean,
        last=mean,
        window=Span(first_step=21, last_step=300),
        source="runs/x/training.csv",
        sha256="0" * 64,
        note=note,
    )


def run(id: str = "baseline/r1", *, config: Mapping[str, Any] | None = None, **metrics: MetricStats) -> RunReport:
    env = {"OMP_NUM_THREADS": "1"}
    return RunReport(id=id, requested=dict(config or {}), effective=dict(config or {}), env=env, metrics=metrics)


def runs(rates: Sequence[float], **more: Any) -> tuple[RunReport, ...]:
    return tuple(run(f"baseline/r{n}", toks_per_s=stats(rate), **more) for n, rate in enumerate(rates, start=1))


def verdict(id: str, status: str, *, text: str = "x.mean > 1", required: bool = True) -> Verdict:
    return Verdict.model_validate({"id": id, "text": text, "required": required, "status": status})


def finding(code: str, *, severity: str = "warning", phase: str | None = "baseline") -> Finding:
    found = {"code": code, "severity": severity, "confidence": "high", "phase": phase, "message": "m", "next_step": "n"}
    return Finding.model_validate(found)


def side(name: str = "a", *, cells: Mapping[str, tuple[RunReport, ...]], **more: Any) -> Side:
    fields: dict[str, Any] = {"runbook": "ddp", "machine": "2 x H200, NVLink", "decision": "GO"}
    fields |= more.pop("subject", {})
    subject = ContrastSide(kind="validation", name=name, **fields)
    return Side(subject=subject, cells={(phase, None): found for phase, found in cells.items()}, **more)

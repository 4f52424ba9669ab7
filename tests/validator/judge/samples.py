"""Validations made by hand: a runbook, its runs' series, and records as execution and collection would leave them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from validator.judge.phase import judge_phase
from validator.model.plan import RunSpec
from validator.model.record import Attempt, Outcome, PhaseRecord, Reason, RunRecord, ValidationRecord
from validator.model.result import Result, ScalarValue, Series, SourceFile
from validator.model.runbook import Runbook
from validator.model.verdict import PhaseReport, Verdict

CSV = SourceFile(path="runs/x/training.csv", sha256="0" * 64, bytes=1)


def series(name: str, values: Sequence[float], *, steps: Sequence[int] | None = None, unit: str = "") -> Series:
    numbers = np.asarray(values, dtype=np.float64)
    at = np.arange(1, len(numbers) + 1) if steps is None else np.asarray(steps)
    return Series(name, unit, at.astype(np.int64), numbers, CSV)


def ar1(n: int, *, phi: float = 0.0, cv: float = 0.01, level: float = 1.0, seed: int = 0) -> np.ndarray:
    """A stationary lag-1 autoregressive series around `level`."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=n + 100) * np.sqrt(1 - phi**2)
    for i in range(1, n + 100):
        noise[i] += phi * noise[i - 1]
    return level * (1 + cv * noise[100:])


def result(
    run: str = "baseline/r1", *, tokens: float = 100.0, times: Sequence[float] | None = None, **more: Any
) -> Result:
    """A healthy run of 300 steps: step times around 1 s, the rate that goes with them, a falling loss."""
    times = ar1(300, cv=0.005, seed=len(run) * 7 + sum(map(ord, run))) if times is None else np.asarray(times)
    found: dict[str, Series] = {
        "step_time_s": series("step_time_s", times, unit="s"),
        "toks_per_s": series("toks_per_s", tokens / times, unit="tok/s"),
        "loss": series("loss", np.linspace(5.5, 3.0, len(times)), unit="nat"),
    }
    found |= more.pop("series", {})
    for gone in more.pop("without", ()):
        found.pop(gone)
    scalars = {"steps.done": ScalarValue(value=float(len(times)), unit="steps"), **more.pop("scalars", {})}
    fields: dict[str, Any] = {
        "run": run,
        "series": found,
        "rank_series": {},
        "scalars": scalars,
        "requested": {"seq_len": 2048},
        "effective": {"seq_len": 2048},
        "environment": {},
        "irregularities": (),
        "sources": (CSV,),
    }
    return Result(**(fields | more))


def outcome(run: str, *, rc: int | None = 0, reason: Reason = "exited", detail: str | None = None) -> Outcome:
    attempt = Attempt(
        number=1,
        command=("python", "-m", "nsa.train"),
        pid=1,
        started="2025-01-01T00:00:00Z",
        duration_s=300.0,
        rc=rc,
        reason=reason,
        detail=detail,
    )
    return Outcome(run=run, attempts=(attempt,))


def run_record(
    phase: str,
    *,
    arm: str | None = None,
    repeat: int = 1,
    found: Result | None = None,
    ended: Outcome | None = None,
    kind: str = "train",
    steps: int | None = 300,
    **spec: Any,
) -> RunRecord:
    run = "/".join(part for part in (phase, arm, f"r{repeat}") if part)
    fields: dict[str, Any] = {
        "id": run,
        "phase": phase,
        "kind": kind,
        "arm": arm,
        "repeat": repeat,
        "launcher": "torchrun",
        "argv": ("python",),
        "env": {},
        "out": f"runs/{run}",
        "nproc": 2,
        "steps": steps,
        "warmup_steps": 20,
        "timeout_s": 600.0,
    }
    spec_value = RunSpec(**(fields | spec))
    found = result(run) if found is None else replace(found, run=run)
    return RunRecord(spec=spec_value, outcome=ended or outcome(run), result=found)


def runbook(*phases: Mapping[str, Any], **more: Any) -> Runbook:
    return Runbook.model_validate({"schema": 1, "name": "sample", "phases": list(phases), **more})


def validation(book: Runbook, runs: Mapping[str, Sequence[RunRecord]], **state: Any) -> ValidationRecord:
    """Phases with runs are done; the others are pending unless `state` says otherwise."""
    records = tuple(
        PhaseRecord(
            phase, state.get(phase.id, "done" if phase.id in runs else "pending"), tuple(runs.get(phase.id, ()))
        )
        for phase in book.phases
    )
    return ValidationRecord(runbook=book, phases=records)


def judge_all(record: ValidationRecord) -> dict[str, PhaseReport]:
    judged: dict[str, PhaseReport] = {}
    for phase in record.phases:
        judged[phase.phase.id] = judge_phase(phase, validation=record, judged=judged)
    return judged


def judge_one(*accept: str, runs: Sequence[RunRecord] | None = None, **phase: Any) -> PhaseReport:
    """The report of a lone training phase called baseline with these criteria."""
    fields = {"id": "baseline", "kind": "train", "steps": 300, "accept": list(accept), **phase}
    book = runbook(fields, defaults={"nproc": 2})
    record = validation(book, {"baseline": [run_record("baseline")] if runs is None else list(runs)})
    return judge_all(record)["baseline"]


def verdict(report: PhaseReport, id: str) -> Verdict:
    return next(one for one in report.criteria if one.id == f"{report.id}.{id}")

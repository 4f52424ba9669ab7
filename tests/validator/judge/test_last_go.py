"""Criteria that are held against the last GO: with its interval, and never passed without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.validator.judge.samples import ar1, result, run_record
from validator.judge import decide, judge_phase
from validator.kinds.registry import loads
from validator.model.catalogue import METRICS
from validator.model.record import PhaseRecord, ValidationRecord
from validator.model.result import MetricStats
from validator.model.runbook import Runbook
from validator.model.verdict import PhaseReport, RunbookRef, RunReport, ValidationReport, Verdict
from validator.runbook import RunbookError

SHARE = "toks_per_s.mean >= 0.9 * last_go.toks_per_s.mean"


def stats(mean: float, *, half: float | None = 0.2, last: float | None = None) -> MetricStats:
    ends = {"ci_low": None, "ci_high": None} if half is None else {"ci_low": mean - half, "ci_high": mean + half}
    names = ("stdev", "cv", "min", "p50", "p95", "p99", "max", "first", "window", "source", "sha256")
    return MetricStats(unit="", n=300, mean=mean, last=last, **ends, **dict.fromkeys(names))


def stored(
    *rates: float,
    half: float | None = 0.2,
    phase: str = "baseline",
    arms: Sequence[str | None] = (),
    version: int = METRICS["toks_per_s"].version,
) -> Any:
    """The report of a GO whose runs had these rates."""
    runs = tuple(
        RunReport(
            id=f"{phase}/r{n}",
            arm=arms[n - 1] if arms else None,
            metrics={
                "toks_per_s": stats(rate, half=half).model_copy(update={"version": version}),
                "loss": stats(3.5, half=None, last=3.0),
            },
        )
        for n, rate in enumerate(rates, start=1)
    )
    return ValidationReport(
        run_id="20250101T000000Z-tiny-host-abc",
        runbook=RunbookRef(name="tiny", path="tiny.yaml", sha256="0" * 64),
        started="2025-01-01T00:00:00Z",
        finished="2025-01-01T01:00:00Z",
        validator_version="0",
        decision="GO",
        why="",
        exit_code=0,
        phases=(PhaseReport(id=phase, kind="train", title=phase, status="PASS", runs=runs),),
    )


def verdicts(
    last_go: ValidationReport | None, *accept: str | Mapping[str, Any], rate: float = 100.0, runs: int = 1
) -> tuple[list[Verdict], PhaseReport]:
    phase = {"id": "baseline", "kind": "train", "steps": 300, "accept": list(accept)}
    book = Runbook.model_validate({"schema": 1, "name": "tiny", "phases": [phase]})
    made = [
        run_record("baseline", repeat=n, found=result(f"baseline/r{n}", times=ar1(300, cv=0.005, seed=n) * 100 / rate))
        for n in range(1, runs + 1)
    ]
    record = PhaseRecord(book.phases[0], "done", tuple(made))
    report = judge_phase(record, validation=ValidationRecord(book, (record,), last_go=last_go), judged={})
    texts = [one if isinstance(one, str) else one["expr"] for one in accept]
    return [one for one in report.criteria if one.text in texts], report


@pytest.mark.parametrize(("rate", "status"), [(100.0, "PASS"), (80.0, "FAIL"), (90.5, "INCONCLUSIVE")])
def test_a_share_of_the_last_go_is_judged_with_both_intervals(rate: float, status: str) -> None:
    (verdict,), _ = verdicts(stored(100.0), SHARE, rate=rate)
    assert verdict.status == status
    assert verdict.bound == pytest.approx(90.0)
    assert any(one.path == "last_go.json" and "20250101T000000Z" in one.text for one in verdict.evidence)


def test_one_run_of_each_day_cannot_tell_two_percent_but_four_can() -> None:
    """The variation between runs counts on both sides; what four runs a side show is measured, not assumed."""
    near = "toks_per_s.mean >= 0.97 * last_go.toks_per_s.mean"
    assert verdicts(stored(100.0), near)[0][0].status == "INCONCLUSIVE"
    four = stored(100.0, 100.2, 99.9, 100.1, half=None)
    assert verdicts(four, near, runs=4)[0][0].status == "PASS"


def test_without_a_last_go_nothing_passes() -> None:
    (verdict, _), report = verdicts(None, SHARE, "loss.last < loss.first")
    assert (verdict.status, verdict.required) == ("INCONCLUSIVE", True)
    assert "without_last_go: skip" in verdict.message
    assert decide((report,), ())[0] == "INCONCLUSIVE"


def test_a_declared_skip_leaves_the_others_to_decide() -> None:
    left_out = {"expr": SHARE, "without_last_go": "skip"}
    (first, other), report = verdicts(None, left_out, "loss.last < loss.first")
    assert (first.status, first.required, other.status) == ("SKIPPED", False, "PASS")
    assert decide((report,), ())[0] == "GO"
    (held,), _ = verdicts(stored(100.0), left_out, rate=80.0)
    assert (held.status, held.required) == ("FAIL", True), "there is one to be held against"


def test_a_last_go_by_an_older_definition_is_not_compared_with() -> None:
    """Twice the rate by another definition is no floor that half of it misses, and none that it clears."""
    older = METRICS["toks_per_s"].version - 1
    for rate in (50.0, 200.0):
        (verdict,), _ = verdicts(stored(100.0, version=older), SHARE, rate=rate)
        assert verdict.status == "INCONCLUSIVE"
        assert "another definition since the last GO" in verdict.message


def test_what_the_last_go_did_not_measure_is_not_measured() -> None:
    for last in (stored(100.0, half=None), stored(100.0, phase="other")):
        assert verdicts(last, SHARE)[0][0].status == "INCONCLUSIVE"
    (verdict,), _ = verdicts(stored(100.0), "loss.last <= 1.05 * last_go.baseline.loss.last")
    assert (verdict.status, verdict.bound) == ("PASS", pytest.approx(3.15))


def problems(criterion: str, *, id: str = "p") -> list[str]:
    text = (
        f"schema: 1\nname: t\nphases:\n  - {{id: {id}, kind: train, steps: 60, accept: [{criterion!r}]}}\n"
        "  - {id: q, kind: train, steps: 60}\n"
    )
    try:
        loads(text, file="f")
    except RunbookError as error:
        return [one.message for one in error.problems]
    return []


def test_names_of_the_last_go_are_checked_before_anything_runs() -> None:
    assert problems(SHARE) == []
    assert problems("toks_per_s.mean >= 0.9 * last_go.q.toks_per_s.mean") == [], "a later phase has run then"
    assert "no metric called tok" in problems("loss.last < last_go.tok.mean")[0]
    assert "no phase called base" in problems("loss.last < last_go.base.loss.last")[0]
    assert "only the mean has an interval" in problems("step_time_s.p95 < last_go.step_time_s.p95")[0]
    assert "is not stored" in problems("outcome.rc == last_go.outcome.rc")[0]
    assert "not a measurement of the last GO" in problems("loss.last < last_go.loss")[0]
    assert "last_go is reserved" in problems("loss.last < 3", id="last_go")[0]


def test_a_variation_between_runs_that_the_last_go_showed_is_assumed_where_it_is_more() -> None:
    bound = "toks_per_s.mean >= 94"
    (calm,), _ = verdicts(stored(100.0, 100.1, 99.9, 100.0), bound)
    assert (calm.status, "2 % between runs" in calm.message) == ("PASS", True)
    (varied,), _ = verdicts(stored(95.0, 105.0, 97.0, 103.0), bound)
    assert varied.status == "INCONCLUSIVE"
    assert "assumed to be 4.76 %" in varied.message

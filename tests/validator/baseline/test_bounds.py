"""Bounds that the next good run passes, and a bad one does not."""

from __future__ import annotations

import numpy as np
import pytest

from tests.validator.judge.samples import ar1, result, run_record, runbook, series
from validator.baseline import MetricBound, bounds_of, left_out, with_bounds
from validator.judge import judge_phase
from validator.model.record import PhaseRecord, RunRecord, ValidationRecord
from validator.model.result import Result
from validator.model.runbook import Runbook
from validator.model.verdict import Finding, PhaseReport, RunbookRef, ValidationReport


def _book(**more: object) -> Runbook:
    return runbook({"id": "baseline", "kind": "train", "steps": 300, "accept": ["loss.last < 4"], **more})


def _record(level: float, *, repeat: int = 1, seed: int = 0) -> RunRecord:
    return run_record("baseline", repeat=repeat, found=result(times=ar1(300, cv=0.005, level=level, seed=seed)))


def _report_of(found: Result, book: Runbook | None = None) -> ValidationReport:
    book = book or _book()
    return _report("mon", 1.0).model_copy(
        update={"phases": (_judged(book, [run_record("baseline", found=found, nproc=1, launcher="python")]),)}
    )


def _judged(book: Runbook, runs: list[RunRecord]) -> PhaseReport:
    record = PhaseRecord(book.phases[0], "done", tuple(runs))
    return judge_phase(record, validation=ValidationRecord(book, (record,)), judged={})


def _report(name: str, level: float, *, seed: int = 0) -> ValidationReport:
    book = _book()
    return ValidationReport(
        run_id=name,
        runbook=RunbookRef(name="sample", path="sample.yaml", sha256="0"),
        started="2025-01-01T00:00:00Z",
        finished=None,
        decision="GO",
        why="",
        exit_code=0,
        phases=(_judged(book, [_record(level, seed=seed)]),),
        validator_version="0",
    )


def _rate(bounds: tuple[MetricBound, ...]) -> MetricBound:
    return next(bound for bound in bounds if bound.reference == "toks_per_s.mean")


def test_a_bound_says_which_runs_and_how() -> None:
    reports = [_report("mon", 1.0, seed=1), _report("tue", 1.01, seed=2)]
    bound = _rate(bounds_of(reports, runbook=_book(), margin=0.02))
    assert bound.operator == ">="
    assert bound.expr.startswith("toks_per_s.mean >= ")
    for word in ("2 good runs", "2 % between runs, assumed", "for the next run", "for its interval", "2 % margin"):
        assert word in bound.why
    assert "mon, tue" in bound.why


@pytest.mark.parametrize("runs", [1, 4])
def test_the_next_good_run_passes_and_a_tenth_slower_one_does_not(runs: int) -> None:
    """Runs vary by 1 %; the rate is a tenth of a percent exact within one."""
    rng = np.random.default_rng(runs)
    passed, failed, trials = 0, 0, 15
    for _ in range(trials):
        reports = [_report(f"r{n}", 1 + 0.01 * rng.standard_normal(), seed=n) for n in range(runs)]
        book = _book(accept=[_rate(bounds_of(reports, runbook=_book(), margin=0.0)).expr])
        level = 1 + 0.01 * rng.standard_normal()
        status = {slow: _judged(book, [_record(level * slow, seed=99)]).criteria[-1].status for slow in (1.0, 1.18)}
        passed += status[1.0] == "PASS"
        failed += status[1.18] == "FAIL" or status[1.18] == "INCONCLUSIVE"
    assert passed >= 0.9 * trials
    assert failed >= 0.9 * trials


def test_more_good_runs_make_tighter_bounds() -> None:
    few = bounds_of([_report("a", 1.0)], runbook=_book(), margin=0.02)
    levels = (0.998, 1.0, 1.002, 0.999, 1.001, 1.0)
    many = bounds_of([_report(f"r{n}", level, seed=n) for n, level in enumerate(levels)], runbook=_book(), margin=0.02)
    assert _rate(few).value < _rate(many).value < 100
    assert "measured" in _rate(many).why


def test_loss_and_memory_are_bounded_from_above() -> None:
    bounds = {bound.reference: bound for bound in bounds_of([_report("a", 1.0)], runbook=_book(), margin=0.02)}
    assert bounds["loss.last"].operator == "<="
    assert 3.0 < bounds["loss.last"].value < 3.3
    assert "gpu_mem_reserved_mib.max" not in bounds


def test_the_loss_of_one_batch_is_as_noisy_as_the_next_ones() -> None:
    """A batch of few tokens: each row is the curve and a tenth of noise, so the last row of the next run is, too."""
    rng = np.random.default_rng(3)
    curve = 8 * np.exp(-np.arange(250) / 20) + 3
    passed = 0
    for trial in range(40):
        own, other = (curve * (1 + 0.1 * rng.standard_normal(250)) for _ in range(2))
        found = bounds_of(
            [_report_of(result(series={"loss": series("loss", own, unit="nat")}))], runbook=_book(), margin=0.02
        )
        bound = next(one for one in found if one.reference == "loss.last")
        passed += other[-1] <= bound.value
        assert bound.value < 8, (trial, "a run that learned nothing passes")
        assert "of noise in one row" in bound.why
    assert passed >= 38


@pytest.mark.parametrize("seed", range(4))
def test_a_loss_near_zero_whose_rows_vary_by_more_than_it_has_room_for_the_next_one(seed: int) -> None:
    """A bar showed 0.012 at the end of one run and 0.024 of the next: that was NO-GO."""
    rng = np.random.default_rng(seed)
    own, other = (2.3 * np.exp(-np.arange(470) / 30) + 0.02 * rng.exponential(size=470) for _ in range(2))
    own[-1] = 0.012
    found = bounds_of([_report_of(result(series={"loss": series("loss", own)}))], runbook=_book(), margin=0.02)
    bound = next(one for one in found if one.reference == "loss.last")
    assert np.quantile(other[-100:], 0.8) < bound.value < 0.2


@pytest.mark.parametrize(
    ("last", "noise", "capped"), [(5.1, 0.35, True), (5.12, 0.0, False), (5.6, 0.0, True), (5.727, 0.0, True)]
)
def test_a_bound_on_the_loss_lies_below_the_first_one(last: float, noise: float, capped: bool) -> None:
    """Above the first loss a run passes that learned nothing, whatever the noise of a row says."""
    first = 5.73
    wave = noise * np.where(np.arange(120) % 2, 1.0, -1.0)
    own = np.linspace(first, last, 120) + wave - wave[[0, -1]].mean()
    own[0], own[-1] = first, last
    found = bounds_of(
        [_report_of(result(series={"loss": series("loss", own, unit="nat")}))], runbook=_book(), margin=0.02
    )
    bound = next(one for one in found if one.reference == "loss.last")
    assert last < bound.value < first
    assert ("but below the first value of 5.73, where a run ends that learned nothing" in bound.why) is capped
    text = with_bounds("phases:\n  - id: baseline\n    steps: 300\n", [bound])
    assert ("learned nothing" in text) is capped
    assert f"- loss.last <= {bound.value:g}" in text


@pytest.mark.parametrize("seed", range(8))
def test_a_loss_that_stays_within_the_noise_of_its_rows_is_bounded_as_it_ended(seed: int) -> None:
    """On random tokens the loss stays at 5.66: a bound below the first row held the next good run back."""
    rng = np.random.default_rng(seed)
    good, following = (5.66 + 0.028 * rng.normal(size=30) for _ in range(2))
    report = _report_of(result(times=np.ones(30), series={"loss": series("loss", good, unit="nat")}))
    bound = next(one for one in bounds_of([report], runbook=_book(), margin=0.02) if one.reference == "loss.last")
    assert 5.9 < bound.value < 6.5
    assert following[-1] <= bound.value
    assert "learned nothing" not in bound.why


def test_a_loss_that_rose_is_bounded_as_it_ended() -> None:
    rising = {"loss": series("loss", np.linspace(3.0, 3.5, 120), unit="nat")}
    found = bounds_of([_report_of(result(series=rising))], runbook=_book(), margin=0.02)
    assert next(one for one in found if one.reference == "loss.last").value > 3.5


def test_a_metric_whose_bound_is_open_is_bounded_by_the_statistic_that_is_named() -> None:
    book = _book(accept=["step_time_s.p95 <= ?", "loss.last < loss.first"])
    bounds = {bound.reference: bound for bound in bounds_of([_report("a", 1.0)], runbook=book, margin=0.02)}
    assert bounds["step_time_s.p95"].operator == "<="
    assert 1.0 < bounds["step_time_s.p95"].value < 1.2
    assert "toks_per_s.mean" in bounds


def test_a_run_that_broke_off_is_no_measure() -> None:
    report = _report("a", 1.0)
    run = report.phases[0].runs[0]
    broken = run.model_copy(update={"outcome": {**(run.outcome or {}), "rc": 1}})
    phases = (report.phases[0].model_copy(update={"runs": (broken,)}),)
    assert bounds_of([report.model_copy(update={"phases": phases})], runbook=_book(), margin=0.02) == ()


@pytest.mark.parametrize(
    ("without", "references"),
    [
        (("step_time_s", "loss"), ["toks_per_s.mean"]),
        (("toks_per_s", "loss"), ["step_time_s.mean"]),
        (("toks_per_s", "step_time_s"), ["loss.last"]),
        (("loss",), ["toks_per_s.mean"]),
    ],
)
def test_bounds_come_from_whatever_the_trainer_reports(without: tuple[str, ...], references: list[str]) -> None:
    report = _report_of(result(times=ar1(300, cv=0.005, level=1.0, seed=3), without=without))
    found = bounds_of([report], runbook=_book(), margin=0.02)
    assert [bound.reference for bound in found] == references
    assert all(bound.operator == (">=" if bound.unit == "tok/s" else "<=") for bound in found)


def _with_warnings(*findings: str) -> ValidationReport:
    found = [
        Finding(code=code, severity="warning", confidence="high", message="m", phase="baseline", next_step="")
        for code in findings
    ]
    return _report("mon", 1.0).model_copy(update={"findings": tuple(found)})


def test_a_run_of_another_length_gives_no_bound_on_the_end_of_its_loss() -> None:
    """`--set baseline.steps=300` for a phase of 2,000: its loss is that of a run that learned a sixth."""
    book = runbook({"id": "baseline", "kind": "train", "steps": 2000, "accept": ["toks_per_s.mean >= ?"]})
    report, lengths = _with_warnings(), {"mon": {"baseline": 300}}
    bounds = bounds_of([report], runbook=book, margin=0.02, lengths=lengths)
    assert [bound.reference for bound in bounds] == ["toks_per_s.mean"]
    assert "the run had 300 steps, and the phase has 2,000" in bounds[0].warnings[0]
    (note,) = left_out([report], runbook=book, lengths=lengths)
    assert note.startswith("baseline: no bound on loss.last: the run had 300 steps, and the phase has 2,000")
    text = with_bounds("phases:\n  - id: baseline\n    steps: 2000\n", bounds)
    assert "CAREFUL: the run had 300 steps" in text
    alike = {"mon": {"baseline": 1900}}
    assert len(bounds_of([report], runbook=book, margin=0.02, lengths=alike)) == 2
    assert left_out([report], runbook=book, lengths=alike) == ()


def test_a_bound_from_a_disturbed_run_says_so() -> None:
    report = _with_warnings("busy-host", "periodic-stall")
    bounds = {bound.reference: bound for bound in bounds_of([report], runbook=_book(), margin=0.02)}
    assert bounds["toks_per_s.mean"].warnings == ("it rests on a run that had busy-host: repeat it on a quiet machine",)
    assert bounds["loss.last"].warnings == ()  # other programs change no loss


def test_a_curve_whose_row_noise_is_unknown_gets_an_allowance_for_it() -> None:
    """Of an earlier version, or of too few rows: with none the bound was as tight as if a row had no noise."""
    report = _report("mon", 1.0)
    (phase,) = report.phases
    (run,) = phase.runs
    metrics = {**run.metrics, "loss": run.metrics["loss"].model_copy(update={"noise": None, "first": 9.0})}
    older = report.model_copy(
        update={"phases": (phase.model_copy(update={"runs": (run.model_copy(update={"metrics": metrics}),)}),)}
    )
    known, unknown = (
        next(one for one in bounds_of([each], runbook=_book(), margin=0.02) if one.reference == "loss.last")
        for each in (report, older)
    )
    assert unknown.value > 1.05 * known.value
    assert "5 % of noise in one row, assumed" in unknown.why
    assert "does not show how much one row of loss varies" in unknown.warnings[0]
    assert known.warnings == ()


@pytest.mark.parametrize(("cv", "phi"), [(0.1, 0.8), (0.3, 0.5)])
def test_the_next_run_on_a_noisy_machine_passes_too(cv: float, phi: float) -> None:
    """Where steps vary by tens of per cent, one run's own mean is off, and the next one's interval is wide.

    Before the bound allowed for both, 84 to 92 % passed (`benchmarks/bounds.py` has the whole table).
    """
    rng, passed, trials = np.random.default_rng(5), 0, 20
    for trial in range(trials):
        level = 1 + 0.02 * rng.standard_normal(2)
        good, other = (
            result(times=np.maximum(ar1(300, cv=cv, phi=phi, level=level[n], seed=2 * trial + n), 0.05)) for n in (0, 1)
        )
        book = _book(accept=[_rate(bounds_of([_report_of(good)], runbook=_book(), margin=0.02)).expr])
        next_run = run_record("baseline", found=other, nproc=1, launcher="python")
        passed += _judged(book, [next_run]).criteria[-1].status == "PASS"
    assert passed >= 0.95 * trials


def test_a_bound_says_how_slow_a_machine_may_be_that_passes_it() -> None:
    """6,990 tok/s in rows from 2,000 to 18,000 gave a bound of 1,290, which `init --from-run` wrote."""
    even, uneven = (
        _rate(bounds_of([_report_of(result(times=ar1(28, cv=cv, phi=0.9)))], runbook=_book(), margin=0.02))
        for cv in (0.01, 0.5)
    )
    assert 1.0 < even.room < 1.3
    assert uneven.room > 2.0


@pytest.mark.parametrize(("rows", "cv", "phi"), [(30, 0.03, 0.5), (28, 0.07, 0.9)])
def test_a_bound_from_a_few_rows_that_wander_is_no_leave_for_a_machine_half_as_fast(
    rows: int, cv: float, phi: float
) -> None:
    """Of 28 rows between 986 and 1,309 tok/s the interval was 391 to 1,993, and the bound 125."""
    rng, passed, slower, trials = np.random.default_rng(5), 0, 0, 20
    for trial in range(trials):
        level = 1 + 0.02 * rng.standard_normal(2)
        times = [ar1(rows, cv=cv, phi=phi, level=level[n], seed=2 * trial + n) for n in (0, 1)]
        bound = _rate(bounds_of([_report_of(result(times=times[0]))], runbook=_book(), margin=0.02))
        assert bound.value > 0.6 * 100 / times[0].max()
        for factor in (1.0, 1.3):
            run = run_record("baseline", found=result(times=times[1] * factor), nproc=1, launcher="python")
            status = _judged(_book(accept=[bound.expr]), [run]).criteria[-1].status
            passed += factor == 1.0 and status == "PASS"
            slower += factor > 1.0 and status == "PASS"
    assert passed >= 0.85 * trials
    assert slower <= 0.1 * trials

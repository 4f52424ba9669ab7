"""Criteria: which side the interval is on, what is missing, and who decides among arms and repeats."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from validator.judge.deciding import side_of
from validator.model.record import RunRecord
from validator.model.result import ScalarValue
from validator.stats.crowding import others_held
from validator.stats.measure import measure

from .samples import ar1, judge_all, judge_one, outcome, result, run_record, runbook, series, validation, verdict


def _repeats(means: list[float], phase: str = "baseline", arm: str | None = None, **more: object) -> list:
    return [
        run_record(phase, arm=arm, repeat=n, found=result(tokens=mean), **more)  # type: ignore[arg-type]
        for n, mean in enumerate(means, start=1)
    ]


@pytest.mark.parametrize(
    ("expression", "status"),
    [
        ("toks_per_s.mean >= 39", "PASS"),
        ("toks_per_s.mean >= 150", "FAIL"),
        ("toks_per_s.mean >= 100", "INCONCLUSIVE"),
        ("toks_per_s.mean < 150", "PASS"),
        ("toks_per_s.mean <= 39", "FAIL"),
        ("39 <= toks_per_s.mean", "PASS"),
        ("toks_per_s.mean == 100", "INCONCLUSIVE"),
        ("toks_per_s.mean != 39", "PASS"),
        ("toks_per_s.mean == 39", "FAIL"),
        ("toks_per_s.mean * 2 - 100 >= 39", "PASS"),
        ("min(toks_per_s.mean, 20) >= 39", "FAIL"),
        ("abs(rate.drift_pct) < 5", "PASS"),
        ("step_time_s.p95 <= 2 * step_time_s.p50", "PASS"),
        ("loss.last < loss.first", "PASS"),
        ("loss.last < 0.5 * loss.first", "FAIL"),
        ("loss.mean <= 4.25", "PASS"),
        ("loss.n == 300", "PASS"),
        ("steps.done == 300", "PASS"),
        ("outcome.rc == 0", "PASS"),
        ("outcome.duration_s < 100", "FAIL"),
        ("effective.seq_len == 2048", "PASS"),
        ("effective.seq_len == 'other'", "FAIL"),
        ("effective.seq_len != 'other'", "PASS"),
    ],
)
def test_the_whole_interval_decides(expression: str, status: str) -> None:
    found = verdict(judge_one(expression), "1")
    assert found.status == status
    assert found.message.endswith(".")
    assert found.text == expression


@pytest.mark.parametrize(("expression", "unit"), [("toks_per_s.mean >= ?", "tok/s"), ("step_time_s.mean <= ? s", "s")])
def test_an_open_bound_shows_the_value_and_never_passes(expression: str, unit: str) -> None:
    found = verdict(judge_one(expression), "1")
    assert (found.status, found.bound, found.unit) == ("INCONCLUSIVE", "?", unit)
    assert isinstance(found.observed, float)
    assert found.ci_low is not None
    assert found.ci_low <= found.observed
    assert "was observed, and the bound is still open" in found.message


def test_an_open_bound_of_what_is_not_measured_says_so() -> None:
    found = verdict(judge_one("dt_fetch_s.mean <= ?"), "1")
    assert found.status == "INCONCLUSIVE"
    assert found.message.startswith("Not measured: ")


def test_a_value_that_is_no_number_fails_an_open_bound() -> None:
    book = runbook({"id": "baseline", "kind": "train", "steps": 300, "accept": ["loss.last <= ?"]})
    found = run_record("baseline", found=result(series={"loss": series("loss", [3.0] * 299 + [math.nan])}))
    assert verdict(judge_all(validation(book, {"baseline": [found]}))["baseline"], "1").status == "FAIL"


def test_straddling_says_what_would_decide_it() -> None:
    found = verdict(judge_one("toks_per_s.mean >= 99"), "1")
    assert found.status == "INCONCLUSIVE"
    assert found.ci_low < 99 < found.ci_high
    assert "4 repeats would measure the variation between runs" in found.message
    assert "about 16 would decide it" in found.message


def test_margin_is_relative_and_positive_on_the_good_side() -> None:
    assert verdict(judge_one("toks_per_s.mean >= 50"), "1").margin == pytest.approx(1.0, abs=0.01)
    assert verdict(judge_one("toks_per_s.mean <= 50"), "1").margin == pytest.approx(-1.0, abs=0.01)
    assert verdict(judge_one("200 >= toks_per_s.mean"), "1").margin == pytest.approx(0.5, abs=0.01)


def test_verdict_shows_observed_unit_bound_and_evidence() -> None:
    found = verdict(judge_one("toks_per_s.mean >= 39 tok/s"), "1")
    assert found.observed == pytest.approx(100, abs=0.5)
    assert (found.unit, found.bound) == ("tok/s", 39.0)
    assert found.evidence[0].path == "runs/x/training.csv"
    assert found.evidence[0].where == "steps 21–300"


def test_a_single_run_gets_the_assumed_variation_and_says_so() -> None:
    found = verdict(judge_one("toks_per_s.mean >= 39"), "1")
    assert found.ci_low == pytest.approx(96.2, abs=0.4)
    assert "2 % between runs, which is assumed" in found.message


def test_four_repeats_measure_the_variation_instead() -> None:
    found = verdict(judge_one("toks_per_s.mean >= 99", runs=_repeats([100.0, 100.2, 99.9, 100.1])), "1")
    assert found.status == "PASS"
    assert found.ci_low == pytest.approx(99.8, abs=0.3)
    assert "assumed" not in found.message


def test_repeats_that_scatter_are_inconclusive_where_their_mean_would_pass() -> None:
    found = verdict(judge_one("toks_per_s.mean >= 99", runs=_repeats([95.0, 108.0, 97.0, 106.0])), "1")
    assert found.status == "INCONCLUSIVE"
    assert "repeats would decide it (there were 4)" in found.message


def test_missing_metric_is_never_a_pass() -> None:
    found = verdict(judge_one("grad_norm.max < 1000"), "1")
    assert found.status == "INCONCLUSIVE"
    assert "run baseline/r1 has no grad_norm" in found.message


def test_one_run_without_the_metric_is_enough() -> None:
    runs = [*_repeats([100, 100, 100]), run_record("baseline", repeat=4, found=result(without=["toks_per_s"]))]
    found = verdict(judge_one("toks_per_s.mean >= 39", runs=runs), "1")
    assert found.status == "INCONCLUSIVE"
    assert "baseline/r4 has no toks_per_s" in found.message


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_not_a_number_fails(bad: float) -> None:
    loss = np.linspace(5, 3, 300)
    loss[-1] = bad
    runs = [run_record("baseline", found=result(series={"loss": series("loss", loss)}))]
    report = judge_one("loss.last < loss.first", "loss.mean < 100", "loss.first > 1", runs=runs)
    assert verdict(report, "1").status == "FAIL"
    assert verdict(report, "2").status == "FAIL"
    assert verdict(report, "3").status == "PASS"
    assert report.status == "FAIL"


def test_what_every_part_of_the_run_clears_passes_though_it_is_not_steady_and_says_so() -> None:
    runs = [run_record("baseline", found=result(times=1 / np.linspace(229, 696, 300)))]
    report = judge_one("toks_per_s.mean >= 1", "toks_per_s.mean >= 1e6", "toks_per_s.mean >= 40000", runs=runs)
    assert [verdict(report, id).status for id in ("1", "2", "3")] == ["PASS", "FAIL", "INCONCLUSIVE"]
    assert "Warning: " in verdict(report, "1").message
    assert "not steady" in verdict(report, "1").message


def test_few_autocorrelated_rows_decide_what_is_far_and_say_what_would_decide_the_rest() -> None:
    runs = [run_record("baseline", found=result(times=ar1(60, phi=0.9, cv=0.01)), steps=60)]
    report = judge_one("toks_per_s.mean >= 50", "toks_per_s.mean >= 99", runs=runs, steps=60)
    assert verdict(report, "1").status == "PASS"
    assert verdict(report, "2").status == "INCONCLUSIVE"
    assert verdict(report, "2").observed == pytest.approx(100, rel=0.02)
    assert "would decide it" in verdict(report, "2").message


def test_a_run_that_failed_proves_nothing() -> None:
    runs = [run_record("baseline", ended=outcome("baseline/r1", rc=1))]
    report = judge_one("toks_per_s.mean >= 39", "toks_per_s.mean >= 150", "outcome.rc == 1", runs=runs)
    assert verdict(report, "1").status == "INCONCLUSIVE"
    assert "did not end by itself with exit code 0" in verdict(report, "1").message
    assert verdict(report, "2").status == "FAIL"
    assert verdict(report, "3").status == "PASS"
    assert report.status == "FAIL"


def test_exact_values_must_hold_in_every_run_and_the_worst_is_named() -> None:
    losses = [np.linspace(5, end, 300) for end in (3.0, 5.5, 3.1)]
    runs = [
        run_record("baseline", repeat=n, found=result(series={"loss": series("loss", loss)}))
        for n, loss in enumerate(losses, start=1)
    ]
    found = verdict(judge_one("loss.last < loss.first", runs=runs), "1")
    assert found.status == "FAIL"
    assert found.observed == 5.5
    assert "baseline/r2" in found.message


@pytest.mark.parametrize(
    ("noise", "change", "status"),
    [
        *((0.028, -0.03, "INCONCLUSIVE"), (0.028, 0.03, "INCONCLUSIVE"), (0.028, 0.3, "FAIL"), (0.0, 0.001, "FAIL")),
        (0.028, -0.3, "PASS"),
    ],
)
def test_a_last_row_that_misses_the_first_by_the_noise_of_one_row_is_open(
    noise: float, change: float, status: str
) -> None:
    """Random tokens: 5.691 after 5.662, where rows vary by 0.028, was NO-GO for a trainer without fault. A rate of
    0, at which nothing is learned, passed by as little."""
    rows = 5.662 + noise * np.random.default_rng(1).normal(size=300)
    rows[0], rows[-1] = 5.662, 5.662 + change
    run = run_record("baseline", found=result(series={"loss": series("loss", rows, unit="nat")}))
    for criterion in ("loss.last < loss.first", "loss.first > loss.last"):
        found = verdict(judge_one(criterion, runs=[run]), "1")
        assert found.status == status
        assert ("One row varies by 0.0" in found.message) is (status == "INCONCLUSIVE")
    assert verdict(judge_one("loss.last == loss.first", runs=[run]), "1").status == "FAIL"
    assert verdict(judge_one(f"loss.last < {rows[0]}", runs=[run]), "1").status == ("PASS" if change < 0 else "FAIL")


@pytest.mark.parametrize(("rows", "fall"), [(300, 0.2), (20, 0.0)])
def test_a_last_row_that_is_hardly_below_the_first_passes_where_all_rows_fall_or_few_could_show_it(
    rows: int, fall: float
) -> None:
    values = 5.662 - np.linspace(0, fall, rows) + 0.05 * np.random.default_rng(1).normal(size=rows)
    values[0], values[-1] = 5.662, 5.65
    steps = [300 // rows * (i + 1) for i in range(rows)]
    run = run_record("baseline", found=result(series={"loss": series("loss", values, steps=steps, unit="nat")}))
    assert verdict(judge_one("loss.last < loss.first", runs=[run]), "1").status == "PASS"


@pytest.mark.parametrize(("value", "status"), [(5.66, "INCONCLUSIVE"), (math.nan, "FAIL"), (math.inf, "FAIL")])
def test_one_row_is_no_curve(value: float, status: str) -> None:
    row = result(times=np.array([0.1]), series={"loss": series("loss", np.array([value]), unit="nat")})
    found = verdict(judge_one("loss.last < loss.first", runs=[run_record("baseline", steps=1, found=row)]), "1")
    assert found.status == status
    assert ("has one row of loss" in found.message) is (status == "INCONCLUSIVE")


def test_several_arms_are_decided_by_the_worst() -> None:
    sweep = {
        "id": "buckets",
        "kind": "sweep",
        "steps": 300,
        "over": {"env.NSA_DDP_BUCKET_MB": [25, 50]},
        "choose": {"highest": "toks_per_s.mean"},
        "accept": ["toks_per_s.mean >= 39"],
    }
    runs = _repeats([100.0] * 4, "buckets", "25") + _repeats([20.0] * 4, "buckets", "50")
    found = verdict(judge_all(validation(runbook(sweep), {"buckets": runs}))["buckets"], "1")
    assert found.status == "FAIL"
    assert "buckets/50" in found.message


def _two(accept: str, first: list, second: list, **phase: object) -> object:
    book = runbook(
        {"id": "baseline", "kind": "train", "steps": 300},
        {"id": "single", "kind": "train", "steps": 300, "accept": [accept], **phase},
        defaults={"nproc": 2},
    )
    return judge_all(validation(book, {"baseline": first, "single": second}))["single"]


def test_ratio_across_phases_carries_the_variation_of_both() -> None:
    first, second = _repeats([100.0]), _repeats([97.0], "single")
    close = verdict(_two("toks_per_s.mean >= 0.95 * baseline.toks_per_s.mean", first, second), "1")
    assert close.status == "INCONCLUSIVE"
    far = verdict(_two("toks_per_s.mean >= 0.8 * baseline.toks_per_s.mean", first, second), "1")
    assert far.status == "PASS"
    assert far.bound == pytest.approx(80, abs=0.5)


def test_exact_values_across_phases_hold_for_every_pair_of_runs() -> None:
    def with_loss(phase: str, n: int, end: float) -> object:
        return run_record(phase, repeat=n, found=result(series={"loss": series("loss", np.linspace(5, end, 300))}))

    first = [with_loss("baseline", 1, 3.0), with_loss("baseline", 2, 2.0)]
    second = [with_loss("single", 1, 2.9)]
    assert verdict(_two("loss.last <= 1.05 * baseline.loss.last", first, second), "1").status == "FAIL"
    assert verdict(_two("loss.last <= 1.5 * baseline.loss.last", first, second), "1").status == "PASS"


def test_a_phase_that_has_not_run_is_missing() -> None:
    found = verdict(_two("toks_per_s.mean >= 0.5 * baseline.toks_per_s.mean", [], _repeats([97.0], "single")), "1")
    assert found.status == "INCONCLUSIVE"
    assert "phase baseline has no runs" in found.message


def test_scaling_efficiency_compares_rates_per_rank() -> None:
    first = _repeats([190.0])
    second = [run_record("single", found=result(tokens=100.0), nproc=1)]
    report = _two("scaling.efficiency >= 0.8", first, second, scaling_against="baseline", nproc=1)
    found = verdict(report, "1")
    assert found.status == "PASS"
    assert found.observed == pytest.approx(0.95, abs=0.01)
    scalar = report.scalars["scaling.efficiency"]
    assert scalar.ci_low == pytest.approx(0.95 - 0.053, abs=0.01)
    assert scalar.ci_high == pytest.approx(0.95 + 0.053, abs=0.01)
    tight = _two("scaling.efficiency >= 0.94", first, second, scaling_against="baseline", nproc=1)
    assert verdict(tight, "1").status == "INCONCLUSIVE"


def test_division_by_zero_is_inconclusive() -> None:
    zero = {"metrics.x": ScalarValue(value=0.0)}
    runs = [run_record("baseline", found=result(scalars=zero))]
    found = verdict(judge_one("loss.last / metrics.x > 1", runs=runs), "1")
    assert found.status == "INCONCLUSIVE"
    assert "divisor" in found.message


@pytest.mark.parametrize(
    ("value", "status"), [(True, "PASS"), ("true", "PASS"), (1, "PASS"), (False, "FAIL"), ("bf16", "FAIL")]
)
def test_truth_values_compare_with_numbers(value: object, status: str) -> None:
    runs = [run_record("baseline", found=result(effective={"compile": value}))]
    assert verdict(judge_one("effective.compile == 1", runs=runs), "1").status == status


def test_text_cannot_be_ordered() -> None:
    runs = [run_record("baseline", found=result(effective={"dtype": "bf16"}))]
    found = verdict(judge_one("effective.dtype >= 1", runs=runs), "1")
    assert found.status == "INCONCLUSIVE"
    assert "cannot be ordered" in found.message


def test_unknown_config_is_inconclusive() -> None:
    runs = [run_record("baseline", found=result(effective=None))]
    assert verdict(judge_one("effective.seq_len == 2048", runs=runs), "1").status == "INCONCLUSIVE"


def test_a_criterion_that_is_not_required_does_not_fail_the_phase() -> None:
    report = judge_one({"expr": "toks_per_s.mean >= 1000", "required": False}, "loss.last < 9")  # type: ignore[arg-type]
    assert verdict(report, "1").status == "FAIL"
    assert report.status == "PASS"


def test_judging_twice_gives_the_same() -> None:
    assert judge_one("toks_per_s.mean >= 99") == judge_one("toks_per_s.mean >= 99")


@pytest.mark.parametrize(
    ("interval", "statuses"),
    [
        ((0.5, 2.0), {"<": "FAIL", "<=": "FAIL", ">": "PASS", ">=": "PASS", "==": "FAIL", "!=": "PASS"}),
        ((-2.0, -0.5), {"<": "PASS", "<=": "PASS", ">": "FAIL", ">=": "FAIL", "==": "FAIL", "!=": "PASS"}),
        ((-1.0, 2.0), dict.fromkeys(("<", "<=", ">", ">=", "==", "!="), "INCONCLUSIVE")),
        ((-2.0, 1.0), dict.fromkeys(("<", "<=", ">", ">=", "==", "!="), "INCONCLUSIVE")),
        ((0.0, 1.0), {"<": "FAIL", "<=": "INCONCLUSIVE", ">": "INCONCLUSIVE", ">=": "PASS"}),
        ((-1.0, 0.0), {"<": "INCONCLUSIVE", "<=": "PASS", ">": "FAIL", ">=": "INCONCLUSIVE"}),
        ((0.0, 0.0), {"<": "FAIL", "<=": "PASS", ">": "FAIL", ">=": "PASS", "==": "PASS", "!=": "FAIL"}),
    ],
)
def test_only_a_whole_interval_on_one_side_decides(interval: tuple[float, float], statuses: dict[str, str]) -> None:
    """The interval is that of the observed value less its bound."""
    assert {operator: side_of(interval, operator) for operator in statuses} == statuses


def test_an_upper_bound_within_the_interval_of_a_time_decides_nothing() -> None:
    stats = measure(result(), warmup_steps=20).metrics["step_time_s"]
    inside, beyond = (stats.ci_low + 3 * stats.ci_high) / 4, 1.2 * stats.ci_high
    statuses = [
        verdict(judge_one(f"step_time_s.mean <= {bound} s"), "1").status for bound in (0.8 * inside, inside, beyond)
    ]
    assert statuses == ["FAIL", "INCONCLUSIVE", "PASS"]


def _beside(others: float, busy: float, **fields: Any) -> list[RunRecord]:
    """A run of 100 tok/s on a machine where so much of the CPU is used, and used by other programs."""
    used = {"host_cpu_pct": busy, "host_other_cpu_pct": others}
    sampled = {f"telemetry.{name}": series(f"telemetry.{name}", [pct] * 300, unit="%") for name, pct in used.items()}
    return [run_record("baseline", found=result(series=sampled, **fields))]


@pytest.mark.parametrize(
    ("others", "busy", "status"),
    [
        (40, 99, "INCONCLUSIVE"),
        (40, 60, "FAIL"),  # enough was left
        (3, 99, "FAIL"),  # the run alone fills the machine
        (99, 99, "FAIL"),  # the run hardly computes, so it waits for nobody
    ],
)
@pytest.mark.parametrize(
    "criterion",
    ["toks_per_s.mean >= 150", "step_time_s.p50 <= 0.5 s", "150 <= toks_per_s.mean", "step_time_s.max <= 0.5 s"],
)
@pytest.mark.parametrize("kind", ["train", "soak"])
def test_a_bound_of_pace_that_is_missed_beside_other_programs_is_open(
    others: float, busy: float, status: str, criterion: str, kind: str
) -> None:
    """A baseline on a busy machine was NO-GO, where a soak whose rate fell beside the same programs was open."""
    found = verdict(judge_one(criterion, kind=kind, runs=_beside(others, busy)), "1")
    assert found.status == status
    assert ("Other programs used 40 % of the machine's CPU in most of baseline/r1" in found.message) is (
        status == "INCONCLUSIVE"
    )


@pytest.mark.parametrize(("load", "used", "explain"), [(20, 8, True), (20, 2, False), (3, 8, False), (None, 8, False)])
def test_little_of_the_cpu_is_what_one_of_many_programs_gets(load: float | None, used: float, explain: bool) -> None:
    """A healthy trainer was NO-GO on two cores that twenty programs wanted: it got 8 %, as if it hardly computed."""
    found = dict(_beside(100.0 - used, 100)[0].result.series)
    if load is not None:
        found["telemetry.load_1m"] = series("telemetry.load_1m", [load] * 300, unit="")
    held = others_held(found, within=(-math.inf, math.inf), cores=2)
    assert (held is not None) is explain


@pytest.mark.parametrize(("least", "status"), [(330, "INCONCLUSIVE"), (350, "FAIL"), (1e12, "FAIL")])
def test_a_bound_that_no_machine_of_its_own_would_reach_fails_beside_other_programs(least: float, status: str) -> None:
    """A run that has 59 % of the CPU has 100 % without the others, and is twice as fast for the same time of it."""
    found = verdict(judge_one(f"toks_per_s.mean >= {least}", runs=_beside(40, 99)), "1")
    assert found.status == status


@pytest.mark.parametrize("criterion", ["loss.last <= 1", "toks_per_s.mean <= 50", "step_time_s.mean >= 2 s"])
def test_what_other_programs_cannot_make_worse_fails_beside_them(criterion: str) -> None:
    assert verdict(judge_one(criterion, runs=_beside(40, 99)), "1").status == "FAIL"


@pytest.mark.parametrize(("before", "status"), [(1.0, "INCONCLUSIVE"), (39.0, "FAIL")])
def test_a_drift_is_open_where_other_programs_came_with_it(before: float, status: str) -> None:
    late = np.arange(300) >= 200
    runs = _beside(40, 99, times=np.where(late, 1.3, 1.0) * ar1(300, cv=0.005))
    found = dict(runs[0].result.series)
    found["telemetry.host_other_cpu_pct"] = series("telemetry.host_other_cpu_pct", np.where(late, 40.0, before))
    runs = [run_record("baseline", found=replace(runs[0].result, series=found))]
    assert verdict(judge_one("abs(rate.drift_pct) <= 5 %", kind="soak", runs=runs), "1").status == status


@pytest.mark.parametrize(("crowded", "status"), [(1, "FAIL"), (2, "INCONCLUSIVE"), (4, "INCONCLUSIVE")])
def test_one_of_four_runs_beside_other_programs_opens_nothing(crowded: int, status: str) -> None:
    found = [_beside(40, 99 if n < crowded else 50)[0].result for n in range(4)]
    runs = [run_record("baseline", repeat=n, found=one) for n, one in enumerate(found, start=1)]
    assert verdict(judge_one("toks_per_s.mean >= 150", runs=runs, repeats=4), "1").status == status

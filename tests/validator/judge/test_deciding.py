"""Decide when the evidence decides: every reading on one side is an answer; both sides plausible is none."""

from __future__ import annotations

import numpy as np
import pytest

from validator.judge.deciding import Terms, decide
from validator.model.verdict import PhaseReport
from validator.stats.estimate import Estimate

from .samples import ar1, judge_all, judge_one, result, run_record, runbook, series, validation, verdict


def _judged(times: np.ndarray, *accept: str, repeats: int = 1, tokens: float = 100.0, **more: object) -> PhaseReport:
    runs = [
        run_record(
            "baseline",
            repeat=n,
            steps=len(times),
            found=result(times=times * ar1(len(times), cv=0.005, seed=n), tokens=tokens, **more),
        )
        for n in range(1, repeats + 1)
    ]
    return judge_one(*accept, runs=runs, steps=len(times))


def _statuses(report: PhaseReport) -> list[str]:
    return [one.status for one in report.criteria if one.id.rpartition(".")[2].isdigit()]


def _levels(*lengths_and_means: tuple[int, float]) -> np.ndarray:
    return np.concatenate([np.full(length, mean) for length, mean in lengths_and_means])


def test_fetch_times_far_below_a_share_of_the_step_pass_with_eight_rows() -> None:
    """22 µs against 10.7 ms on healthy hardware: no interval is needed to see that."""
    rng = np.random.default_rng(0)
    fetch = series("dt_fetch_s", 22e-6 * (1 + rng.random(28)), steps=range(21, 49))
    report = _judged(np.full(48, 0.214), "dt_fetch_s.mean <= 0.05 * step_time_s.mean", series={"dt_fetch_s": fetch})
    assert _statuses(report) == ["PASS"]
    eight = series("dt_fetch_s", 22e-6 * (1 + rng.random(8)), steps=range(21, 29))
    report = _judged(
        np.full(28, 0.214),
        "dt_fetch_s.mean <= 0.05 * step_time_s.mean",
        "dt_fetch_s.p95 <= 0.05 * step_time_s.p50",
        "dt_fetch_s.mean >= 0.05 * step_time_s.mean",
        "dt_fetch_s.mean <= 0.00016 * step_time_s.mean",
        series={"dt_fetch_s": eight},
    )
    assert _statuses(report) == ["PASS", "PASS", "FAIL", "INCONCLUSIVE"]


def test_what_every_part_decides_shows_no_interval_that_holds_the_bound() -> None:
    """A report had a scaling efficiency of 0.6 [0, 5.4] pass its bound of 0.2."""
    found = verdict(_judged(np.linspace(1.2, 0.8, 28), "toks_per_s.mean >= 80"), "1")
    assert (found.status, "every part of what was measured" in found.message) == ("PASS", True)
    assert found.ci_low is not None
    assert found.ci_low > 80
    assert found.message.startswith("117.5 tok/s [105.5, 129.5] is at least 80 tok/s")


def test_a_soak_that_is_too_short_for_a_drift_says_so() -> None:
    """A soak of 8 s had a drift with an interval of 1.1 to 927 %, and the advice to run somewhat longer."""
    times = np.exp(0.1 * np.cumsum(np.random.default_rng(3).standard_normal(48)))
    found = verdict(_judged(times, "abs(rate.drift_pct) <= 1 %"), "1")
    assert (found.status, found.ci_low, found.ci_high) == ("INCONCLUSIVE", None, None)
    assert "too short to say how its rate drifts" in found.message


def test_a_rising_rate_passes_a_bound_that_its_slowest_part_clears() -> None:
    report = _judged(1 / np.linspace(144.16, 180.35, 300), "toks_per_s.mean >= 1000", tokens=100.0)
    assert _statuses(report) == ["PASS"]
    assert "Warning: " in verdict(report, "1").message


def test_thirds_that_differ_by_half_a_per_cent_are_far_from_a_bound_five_times_as_high() -> None:
    times = _levels((100, 0.01017), (100, 0.01015), (100, 0.01011))
    assert _statuses(_judged(times, "step_time_s.mean <= 0.05 s", "step_time_s.mean <= 0.005 s")) == ["PASS", "FAIL"]


@pytest.mark.parametrize("repeats", [1, 4, 8])
def test_more_repeats_of_a_small_ramp_never_decide_less(repeats: int) -> None:
    report = _judged(np.linspace(1.0, 1.04, 300), "toks_per_s.mean >= 90", "toks_per_s.mean >= 120", repeats=repeats)
    assert _statuses(report) == ["PASS", "FAIL"]


def test_a_rate_that_halves_is_judged_by_the_mean_over_both_halves_and_by_its_end() -> None:
    report = _judged(
        _levels((150, 1.0), (150, 2.0)),
        "toks_per_s.mean >= 90",
        "toks_per_s.mean >= 60",
        "toks_per_s.mean >= 40",
        "abs(rate.drift_pct) <= 5",
    )
    # The mean is 65: what it clears with its last level at 50 passes, and what only the mean clears does not.
    assert _statuses(report)[1:] == ["INCONCLUSIVE", "PASS", "FAIL"]
    assert _statuses(report)[0] == "FAIL", "its mean misses the bound, and a longer run is slower still"
    low = verdict(report, "1").ci_low
    assert low >= 0, "no rate is below zero"
    assert verdict(report, "1").observed == pytest.approx(65, abs=1)
    assert "Warning: " in verdict(report, "3").message


def test_no_time_is_shown_below_zero() -> None:
    """A run that halves its rate showed a step time of 0.0621 s [-0.1177, 0.2425] beside a baseline's."""
    scatter = np.random.default_rng(1).standard_normal(1000)
    slowed = Estimate(0.0621, 0.0621 + 0.09 * scatter, (0.05, 0.11))
    bound = Estimate(0.05708, 0.05708 + 0.001 * scatter[::-1], (0.056, 0.058))
    decided = decide(
        slowed, bound, Terms("<=", "s", "step_time_s.mean <= 1.1 * baseline.step_time_s.mean", 1, 0.02, 0.95)
    )
    assert (decided.status, decided.interval[0]) == ("INCONCLUSIVE", 0)
    assert "0.0621 s [0, " in decided.message

    report = _judged(np.random.default_rng(0).lognormal(0, 2.5, 40), "step_time_s.mean <= 1 s")
    stats = report.runs[0].metrics["step_time_s"]
    assert (stats.ci_low, stats.half_width) == (0, stats.ci_high - stats.mean), "what is cut off is not precision"

    still_open = verdict(_judged(np.random.default_rng(0).lognormal(0, 2.5, 40), "step_time_s.mean <= ? s"), "1")
    assert still_open.ci_low == 0, "1,134 tok/s [-22, 2,330] was shown beside an open bound"
    assert " [0, " in still_open.message


@pytest.mark.parametrize("repeats", [1, 4])
def test_after_a_slow_down_the_mean_passes_only_if_the_end_does(repeats: int) -> None:
    times = _levels((180, 1.0), (120, 1.25))
    report = _judged(times, "toks_per_s.mean >= 84", "toks_per_s.mean >= 70", repeats=repeats)
    assert _statuses(report) == ["INCONCLUSIVE", "PASS"]
    assert "became slower" in verdict(report, "1").message
    assert verdict(report, "1").open_for is None


def test_a_run_that_became_faster_late_has_the_rate_of_all_its_steps() -> None:
    report = _judged(_levels((186, 2.0), (114, 1.0)), "toks_per_s.mean >= 90", "toks_per_s.mean >= 40")
    assert verdict(report, "1").observed == pytest.approx(62, abs=1)
    assert _statuses(report) == ["INCONCLUSIVE", "PASS"]


def test_a_slow_start_beyond_the_cap_forbids_a_failure_that_more_steps_may_undo() -> None:
    times = _levels((120, 1.3), (180, 1.0))
    report = _judged(times, "toks_per_s.mean >= 98", "toks_per_s.mean >= 70", "toks_per_s.mean >= 300")
    assert _statuses(report) == ["INCONCLUSIVE", "PASS", "FAIL"]
    four = _judged(times, "toks_per_s.mean >= 98", repeats=4)
    assert _statuses(four) == ["INCONCLUSIVE"]
    assert "480 steps would show the rate after it" in verdict(four, "1").message


def test_a_start_within_the_cap_is_left_out_and_fails_like_any_other() -> None:
    assert _statuses(_judged(_levels((60, 1.3), (240, 1.0)), "toks_per_s.mean >= 98", "toks_per_s.mean >= 110")) == [
        "INCONCLUSIVE",
        "FAIL",
    ]


def test_percentiles_and_spreads_beyond_the_sample_are_decided_where_every_row_is_clear() -> None:
    report = _judged(
        np.full(60, 1.0),
        "step_time_s.p99 <= 2",
        "step_time_s.p99 <= 0.5",
        "step_time_s.p99 <= 1.02",
        "step_time_s.cv <= 0.1",
        "step_time_s.stdev >= 0.1",
    )
    assert _statuses(report) == ["PASS", "FAIL", "INCONCLUSIVE", "PASS", "FAIL"]
    assert verdict(report, "3").observed == pytest.approx(1.01, abs=0.02)


def test_ratios_across_phases_are_decided_by_readings_too() -> None:
    book = runbook(
        {"id": "wide", "kind": "train", "steps": 28},
        {"id": "baseline", "kind": "train", "steps": 28, "accept": ["toks_per_s.mean >= 0.5 * wide.toks_per_s.mean"]},
    )
    runs = {
        phase: [run_record(phase, steps=28, found=result(times=ar1(28, cv=0.01, phi=0.9, seed=n)))]
        for n, phase in enumerate(("wide", "baseline"))
    }
    assert _statuses(judge_all(validation(book, runs))["baseline"]) == ["PASS"]


def test_what_is_not_measured_is_shown_all_the_same() -> None:
    times = ar1(300, cv=0.005)
    steps = np.r_[np.arange(1, 201), np.arange(1, 101)]
    found = result(series={"toks_per_s": series("toks_per_s", 100 / times, steps=steps)}, without=["step_time_s"])
    report = judge_one("toks_per_s.mean >= 1", runs=[run_record("baseline", found=found)])
    assert verdict(report, "1").status == "INCONCLUSIVE"
    assert "mixes runs" in verdict(report, "1").message
    assert verdict(report, "1").observed == pytest.approx(100, rel=0.01)


SOAK = {"id": "soak", "kind": "soak", "steps": 300}


def _soak(times: np.ndarray, *accept: str) -> PhaseReport:
    found = result(times=times * ar1(len(times), cv=0.01), tokens=100.0)
    record = run_record("soak", kind="soak", steps=len(times), found=found)
    return judge_all(validation(runbook({**SOAK, "steps": len(times), "accept": list(accept)}), {"soak": [record]}))[
        "soak"
    ]


@pytest.mark.parametrize(
    ("times", "accept", "status"),
    [
        (_levels((150, 1.0), (150, 2.0)), (), "FAIL"),
        (_levels((180, 1.0), (120, 1.5)), (), "FAIL"),
        (_levels((165, 1.0), (135, 1.25)), (), "FAIL"),
        (_levels((165, 1.0), (135, 1.25)), ("abs(rate.drift_pct) <= 30 %",), "PASS"),
        (_levels((150, 1.0), (150, 1.02)), (), "PASS"),
        (_levels((150, 1.0), (150, 1.0)), (), "PASS"),
        (_levels((150, 2.0), (150, 1.0)), (), "PASS"),
        (_levels((100, 1.0), (100, 1.5), (100, 1.0)), (), "PASS"),
        (_levels((60, 1.5), (240, 1.0)), (), "PASS"),
        (_levels((28, 1.0)), (), "PASS"),
    ],
)
def test_a_soak_that_lastingly_becomes_slower_fails_by_name(
    times: np.ndarray, accept: tuple[str, ...], status: str
) -> None:
    found = verdict(_soak(times, *accept), "sustained_rate")
    assert found.required
    assert found.status == status
    assert found.message.endswith(".")

"""Statistics of a run: rates as tokens over time, windows, intervals or the reason for none, damaged series."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.validator.judge.samples import ar1, result, series
from validator.model.result import InvalidWindow, RunEvidence
from validator.stats.measure import NotMeasured, RunMeasurement, measure


def _measure(warmup_steps: int = 20, **more: object) -> RunMeasurement:
    return measure(result(**more), warmup_steps=warmup_steps, world_size=2)  # type: ignore[arg-type]


def test_rate_is_tokens_over_wall_time_and_not_the_mean_of_rates() -> None:
    times = np.r_[np.full(20, 1.0), np.tile([1.0, 3.0], 50)]
    found = measure(result(times=times, tokens=120.0), warmup_steps=20)
    assert found.metrics["toks_per_s"].mean == pytest.approx(60.0)
    rates = 120.0 / times[20:]
    assert rates.mean() == pytest.approx(80.0)  # what a mean of rates would have claimed
    assert found.metrics["toks_per_s"].stdev == pytest.approx(rates.std())


def test_rates_alone_are_weighted_harmonically_and_say_so() -> None:
    times = np.tile([1.0, 3.0], 60)
    found = measure(result(times=times, tokens=120.0, without=["step_time_s"]), warmup_steps=20)
    stats = found.metrics["toks_per_s"]
    assert stats.mean == pytest.approx(60.0)
    assert "harmonic" in stats.note


def test_rows_are_weighted_by_the_steps_that_they_stand_for() -> None:
    """A row every 20 steps, one row missing: the row behind the gap stands for 40 steps."""
    steps = np.delete(np.arange(20, 1001, 20), 30)
    times = np.where(np.arange(len(steps)) % 2, 1.0, 1.02)
    rate = series("toks_per_s", 100.0 / times, steps=steps)
    found = measure(result(series={"toks_per_s": rate}, without=["step_time_s"]), warmup_steps=20)
    weights = np.diff(steps).astype(float)
    assert found.metrics["toks_per_s"].n == len(steps) - 1
    assert found.metrics["toks_per_s"].mean == pytest.approx(weights.sum() / (weights * times[1:] / 100.0).sum())


def test_window_source_and_interval_stand_beside_the_number() -> None:
    stats = _measure().metrics["toks_per_s"]
    assert (stats.window.first_step, stats.window.last_step, stats.n) == (21, 300, 280)
    assert stats.source == "runs/x/training.csv"
    assert stats.sha256
    assert stats.ci_low < stats.mean < stats.ci_high
    assert stats.unit == "tok/s"
    assert stats.cv == pytest.approx(stats.stdev / stats.mean)


def test_loss_counts_from_the_first_step_and_is_exact() -> None:
    stats = _measure().metrics["loss"]
    assert (stats.first, stats.last, stats.n) == (5.5, 3.0, 300)
    assert stats.ci_low is None
    assert stats.note == "every step of the run, so exact"


def test_rate_per_rank_follows_from_the_rate() -> None:
    found = _measure()
    whole, share = found.metrics["toks_per_s"], found.metrics["toks_per_s_per_rank"]
    assert share.mean == pytest.approx(whole.mean / 2)
    assert share.ci_high == pytest.approx(whole.ci_high / 2)


def test_steady_metrics_share_the_window_that_the_step_times_showed() -> None:
    times = ar1(300, cv=0.005)
    times[:60] *= 1.5
    fetch = series("dt_fetch_s", np.full(300, 0.01))
    found = measure(result(times=times, series={"dt_fetch_s": fetch}), warmup_steps=20)
    assert found.steady
    assert found.warmup_end_step == pytest.approx(60, abs=2)
    assert found.metrics["dt_fetch_s"].window == found.metrics["toks_per_s"].window
    assert found.metrics["loss"].n == 300


def test_a_run_that_is_not_steady_has_a_mean_over_all_its_levels_with_its_interval() -> None:
    times = np.r_[np.full(150, 1.0), np.full(150, 2.0)] * ar1(300, cv=0.01)
    found = measure(result(times=times), warmup_steps=20)
    stats = found.metrics["toks_per_s"]
    assert not found.steady
    assert "became slower" in found.note
    assert len(found.window_found.levels) == 2
    assert stats.mean == pytest.approx(100 * 280 / times[20:].sum())
    assert 50 < stats.ci_low <= stats.mean <= stats.ci_high < 100, "the step between two levels is no scatter"
    drift = found.scalars["rate.drift_pct"]
    assert drift.value == pytest.approx(-50, abs=1)
    assert drift.ci_high < -45


@pytest.mark.parametrize(
    ("statistic", "least", "most"), [("mean", 50, 100), ("p50", 50, 100), ("p99", 50, 134), ("cv", 0.0, 0.8)]
)
def test_readings_span_every_part_of_the_run(statistic: str, least: float, most: float) -> None:
    times = np.r_[np.full(150, 1.0), np.full(150, 2.0)]
    low, high = measure(result(times=times), warmup_steps=20).estimate("toks_per_s", statistic).reach
    assert (low, high) == pytest.approx((least, most), rel=0.15, abs=0.01)


@pytest.mark.parametrize(("rows", "known"), [(5, False), (6, True), (8, True), (12, True)])
def test_of_few_rows_each_is_read(rows: int, known: bool) -> None:
    times = np.r_[np.full(rows - 1, 1.0), 2.0]
    low, high = measure(result(times=times), warmup_steps=0).estimate("step_time_s", "mean").reach
    assert (low, high) == ((1.0, 2.0 if rows < 12 else 1.5) if known else (-math.inf, math.inf))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_value_that_is_not_finite_spoils_the_mean_and_is_named(bad: float) -> None:
    loss = np.linspace(5, 3, 300)
    loss[200] = bad
    found = measure(result(series={"loss": series("loss", loss)}), warmup_steps=20)
    stats = found.metrics["loss"]
    assert stats.mean is not None
    assert math.isnan(stats.mean)
    assert stats.note == "1 of 300 values are not finite, the first at step 201"
    assert math.isnan(found.estimate("loss", "mean").point)
    assert found.estimate("loss", "last").point == 3.0


def test_steps_that_go_back_are_never_steady() -> None:
    steps = np.r_[np.arange(1, 201), np.arange(1, 101)]
    times = series("step_time_s", ar1(300), steps=steps)
    found = measure(result(series={"step_time_s": times}), warmup_steps=20)
    assert not found.steady
    assert "mixes runs" in found.note
    assert found.metrics["step_time_s"].n == 80  # the last stretch, after its own warm-up


def test_a_repeated_step_counts_once() -> None:
    steps = np.sort(np.r_[np.arange(1, 300), 150])
    found = measure(result(series={"step_time_s": series("step_time_s", ar1(300), steps=steps)}), warmup_steps=20)
    assert found.metrics["step_time_s"].n == 279


@pytest.mark.parametrize(
    ("first", "last", "n", "steady"),
    [
        (1, 20, 280, True),
        (100, 110, 269, True),
        (10, 21, 279, True),
        (300, 400, 279, True),
        (301, 400, 280, True),
        (100, 130, 249, False),
    ],
)
def test_rows_that_something_else_disturbed_are_left_out_up_to_a_tenth(
    first: int, last: int, n: int, steady: bool
) -> None:
    times = ar1(300, cv=0.005)
    times[max(first, 21) - 1 : last] *= 3.0  # the window's own search must not see what is left out later
    invalid = (InvalidWindow(first, last, "gpu1 was used by another program"),)
    found = measure(result(evidence=RunEvidence(invalid_windows=invalid)), warmup_steps=20)
    assert (found.metrics["toks_per_s"].n, found.steady) == (n, steady)
    if not steady:
        assert found.note.startswith("11.1 % of the window is invalid: gpu1 was used by another program in steps 100")


def test_throttled_time_stays_in_the_rate() -> None:
    invalid = (InvalidWindow(100, 200, "gpu0 throttled: thermal slowdown"),)
    found = measure(result(evidence=RunEvidence(invalid_windows=invalid)), warmup_steps=20)
    assert (found.metrics["toks_per_s"].n, found.steady) == (280, True)


def test_drift_compares_the_last_third_with_the_first() -> None:
    times = np.r_[np.full(100, 1.0), np.full(100, 1.003), np.full(100, 1.006)] * ar1(300, cv=0.001)
    found = measure(result(times=times), warmup_steps=0)
    drift = found.scalars["rate.drift_pct"]
    assert drift.value == pytest.approx(100 * (1 / 1.006 - 1), abs=0.05)
    assert drift.ci_low < drift.value < drift.ci_high < 0


def test_drift_interval_covers_no_drift() -> None:
    covered = 0
    for seed in range(100):
        found = measure(result(times=ar1(300, phi=0.5, cv=0.01, seed=seed)), warmup_steps=20)
        drift = found.scalars["rate.drift_pct"]
        assert drift.ci_low is not None
        assert drift.ci_high is not None
        covered += drift.ci_low <= 0 <= drift.ci_high
    assert covered >= 88


def test_a_run_that_is_too_short_for_a_drift_states_no_interval() -> None:
    """Rows that alternate between two levels gave -15.76 % [-847, 1.3e11], and a soak of 8 s one of 1.1 to 927 %."""
    times = np.resize([1.0, 2.2], 12) * (1 + 0.05 * np.sin(np.arange(12)))
    found = measure(result(times=times), warmup_steps=0)
    drift = found.scalars["rate.drift_pct"]
    assert (drift.ci_low, drift.ci_high) == (None, None)
    assert "too short to say how its rate drifts" in drift.note
    estimate = found.derived["rate.drift_pct"]
    assert (estimate.exact, estimate.interval()) == (False, None)
    assert estimate.reach[0] < 0 < estimate.reach[1]


@pytest.mark.parametrize("rows", [9, 12, 24])
def test_a_short_run_that_is_steady_states_the_interval_of_its_drift(rows: int) -> None:
    drift = measure(result(times=ar1(rows, phi=0.0, cv=0.01)), warmup_steps=0).scalars["rate.drift_pct"]
    assert -25 < drift.ci_low < drift.ci_high < 25


def test_memory_growth_is_a_trend_and_not_a_spike() -> None:
    flat = np.full(300, 1000.0)
    flat[150] = 9000.0
    leak = 1000.0 + 0.01 * np.arange(300)
    for values, growth in ((flat, 0.0), (leak, 10.0)):
        memory = series("host_mem_mib", values, unit="MiB")
        found = measure(result(series={"host_mem_mib": memory}), warmup_steps=20)
        assert found.scalars["memory.growth_mib_per_1k_steps"].value == pytest.approx(growth, abs=1e-6)


def test_gpu_memory_goes_before_host_memory() -> None:
    both = {
        "host_mem_mib": series("host_mem_mib", np.arange(300.0)),
        "gpu_mem_alloc_mib": series("gpu_mem_alloc_mib", np.full(300, 5.0)),
    }
    found = measure(result(series=both), warmup_steps=20)
    assert found.scalars["memory.growth_mib_per_1k_steps"].value == 0.0


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_a_handful_of_rows_is_measured_and_not_called_steady(n: int) -> None:
    found = measure(result(times=ar1(n, cv=0.01)), warmup_steps=0)
    assert not found.steady
    if n:
        assert found.metrics["toks_per_s"].mean == pytest.approx(100.0, rel=0.05)
        assert (found.metrics["toks_per_s"].ci_low is None) == (n == 1)
    else:
        assert found.metrics == {}


def test_nothing_collected_is_nothing_measured() -> None:
    found = measure(result(without=["step_time_s", "toks_per_s", "loss"]), warmup_steps=20)
    assert found.metrics == {}
    with pytest.raises(NotMeasured, match="has no toks_per_s"):
        found.estimate("toks_per_s", "mean")


def test_a_rate_of_zero_for_an_unknown_time_is_a_mean_of_zero() -> None:
    rates = np.full(100, 50.0)
    rates[60:80] = 0.0
    found = measure(result(series={"toks_per_s": series("toks_per_s", rates)}, without=["step_time_s"]), warmup_steps=0)
    assert found.metrics["toks_per_s"].mean == 0.0


def test_a_declared_extra_series_is_taken_over_every_step() -> None:
    found = measure(result(series={"queue": series("queue", np.arange(300.0), unit="batches")}), warmup_steps=20)
    assert found.metrics["queue"].n == 300
    assert found.metrics["queue"].unit == "batches"


def test_a_million_rows_are_measured_in_bounded_memory() -> None:
    times = ar1(200_000, cv=0.01)
    stats = measure(result(times=times), warmup_steps=20).metrics["toks_per_s"]
    assert stats.n == 199_980
    assert stats.ci_low is not None


def test_the_models_arithmetic_per_rank_is_known_where_the_trainer_tells_its_flops() -> None:
    told = result(tokens=1e6, environment={"flops_per_token": {"nsa": 6e8, "dense_equivalent": 9e8}})
    found = measure(told, warmup_steps=20, world_size=2)
    rate, model = found.metrics["toks_per_s"], found.metrics["model_tflops_per_s_per_rank"]
    assert model.unit == "TFLOP/s"
    assert model.mean == pytest.approx(rate.mean * 6e8 / 2 / 1e12)
    assert model.ci_low < model.mean
    for flops in (None, {"nsa": "many"}, {"nsa": 0}, {"nsa": True}):
        silent = {"flops_per_token": flops}
        assert "model_tflops_per_s_per_rank" not in measure(result(environment=silent), warmup_steps=20).metrics


def test_what_never_varies_has_no_spread() -> None:
    """0.1 is no sum of powers of two, and the mean of 300 of them is another number."""
    found = measure(result(series={"lr": series("lr", [0.1] * 300)}), warmup_steps=20).metrics["lr"]
    assert (found.stdev, found.cv) == (0.0, 0.0)


def test_a_step_that_took_no_time_is_no_time_to_weigh_rates_by() -> None:
    times = np.full(300, 1.0)
    times[100] = 0.0
    rate = series("toks_per_s", np.full(300, 50.0))
    taken = series("step_time_s", times, unit="s")
    found = measure(result(series={"toks_per_s": rate, "step_time_s": taken}), warmup_steps=20).metrics["toks_per_s"]
    assert found.mean == pytest.approx(50.0)

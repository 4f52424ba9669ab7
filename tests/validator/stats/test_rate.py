"""The honest rate: pauses included, by the validator's clock where the trainer's differs, and what pauses cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.validator.judge.samples import CSV, ar1, judge_one, result, run_record, series, verdict
from validator.model.result import Result, RunEvidence
from validator.stats.clock import best_reading, claims, clock_for, own_word
from validator.stats.measure import RunMeasurement, measure
from validator.stats.rate import as_read

TOKENS = 1000.0


def paused(n: int, *, every: int, cost_s: float, step_s: float = 0.1, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Time of each step without pauses, and its wall time: a pause falls into the step behind every `every`-th."""
    times = ar1(n, cv=0.01, level=step_s, seed=n)
    wall = times.copy()
    at = np.arange(n)
    wall[(at > first) & ((at - first) % every == 0)] += cost_s
    return times, wall


def arrivals(wall: Sequence[float], *, every: int = 1) -> dict[str, Any]:
    """Stamps of the rows, one row in `every` steps."""
    steps = np.arange(1, len(wall) + 1)
    return {"arrivals": {CSV.path: (steps[every - 1 :: every], 2.0 + np.cumsum(wall)[every - 1 :: every])}}


def told(rate: Sequence[float] | None, times: Sequence[float] | None, *, every: int = 1, **evidence: Any) -> Result:
    """A run whose table has a rate, a time per step, or both, one row in `every` steps."""
    steps = np.arange(1, 1 + len(rate if rate is not None else times if times is not None else ()) * every)
    steps = steps[every - 1 :: every]
    found = {}
    if rate is not None:
        found["toks_per_s"] = series("toks_per_s", rate, steps=steps, unit="tok/s")
    if times is not None:
        found["step_time_s"] = series("step_time_s", times, steps=steps, unit="s")
    without = [name for name in ("toks_per_s", "step_time_s") if name not in found]
    return result(series=found, without=without, evidence=RunEvidence(**evidence))


def mean(found: RunMeasurement, name: str = "toks_per_s") -> float:
    value = found.metrics[name].mean
    assert value is not None
    return value


def test_a_rate_as_the_contract_has_it_counts_the_pauses_that_step_times_leave_out() -> None:
    """Weighting rates by times without pauses gives a pause the weight of a step: 95,840 reported, 50,744 true."""
    times, wall = paused(400, every=50, cost_s=8.0)
    found = measure(told(TOKENS / wall, times), warmup_steps=20)
    assert mean(found) == pytest.approx(380 * TOKENS / wall[20:].sum(), rel=0.002)
    assert mean(found, "step_rate") == pytest.approx(380 * TOKENS / times[20:].sum(), rel=0.002)
    assert mean(found) < 0.6 * mean(found, "step_rate")


def test_a_rate_without_pauses_is_corrected_by_the_validators_clock() -> None:
    times, wall = paused(400, every=50, cost_s=8.0)
    found = measure(told(TOKENS / times, times, **arrivals(wall)), warmup_steps=20)
    assert mean(found) == pytest.approx(380 * TOKENS / wall[20:].sum(), rel=0.002)
    note = found.metrics["toks_per_s"].note
    assert "the validator's clock" in note


def test_the_trainers_rows_are_kept_where_the_clock_agrees() -> None:
    times = ar1(300, cv=0.01, level=0.1)
    late = times + np.diff(np.random.default_rng(1).uniform(0, 0.02, 301))  # stamps are some milliseconds late
    claimed = measure(told(TOKENS / times, times, **arrivals(late)), warmup_steps=20)
    alone = measure(told(TOKENS / times, times), warmup_steps=20)
    assert claimed.metrics["toks_per_s"].stdev == alone.metrics["toks_per_s"].stdev
    assert mean(claimed) == mean(alone)


def test_delays_that_later_rows_make_up_for_are_no_time_of_the_run() -> None:
    """Two healthy H200: some rows came late, and 14 took 3 s; the rate came out 4 % too high."""
    times = ar1(20, cv=0.001, level=0.21)
    delay = np.zeros(21)
    delay[[6, 11]] = 0.15, 0.08
    found = measure(told(TOKENS / times, times, **arrivals(times + np.diff(delay))), warmup_steps=6)
    assert mean(found) == pytest.approx(14 * TOKENS / times[6:].sum(), rel=1e-6)
    assert found.metrics["toks_per_s"].cv == pytest.approx(0.001, rel=0.5)


def test_hidden_pauses_beside_late_rows_cost_what_they_cost() -> None:
    times, wall = paused(400, every=50, cost_s=8.0)
    late = np.diff(np.where(np.arange(401) % 10 == 0, 0.08, 0.0))
    found = measure(told(TOKENS / times, times, **arrivals(wall + late)), warmup_steps=20)
    assert mean(found) == pytest.approx(380 * TOKENS / wall[20:].sum(), rel=0.002)
    assert found.scalars["pause.count"].value == 7


def test_rows_of_a_burst_share_the_time_of_its_stamp() -> None:
    times, wall = paused(400, every=50, cost_s=8.0)
    found = measure(told(TOKENS / times, times, **arrivals(wall, every=8)), warmup_steps=20)
    assert mean(found) == pytest.approx(380 * TOKENS / wall[20:].sum(), rel=0.02)
    assert found.metrics["toks_per_s"].n == 380


def test_timestamps_say_how_long_pauses_took_where_nobody_looked() -> None:
    times, wall = paused(400, every=50, cost_s=8.0)
    steps = np.arange(1, 401)
    beats = told(TOKENS / times, times, step_times_s=(steps, 1.7e9 + np.cumsum(wall)))
    column = told(TOKENS / times, times)
    column = result(series={**column.series, "wall_s": series("wall_s", np.cumsum(wall), unit="s")})
    for one in (beats, column):
        assert mean(measure(one, warmup_steps=20)) == pytest.approx(380 * TOKENS / wall[20:].sum(), rel=0.002)


def test_a_column_of_another_unit_is_no_clock() -> None:
    times = ar1(300, cv=0.01, level=0.1)
    odd = {"timestamp": series("timestamp", 1e3 * np.cumsum(times))}
    one = told(TOKENS / times, times)
    found = measure(result(series={**one.series, **odd}), warmup_steps=20)
    assert mean(found) == pytest.approx(280 * TOKENS / times[20:].sum(), rel=1e-6)


@pytest.mark.parametrize("every", [1, 10])
def test_times_ten_times_too_small_give_no_rate_ten_times_too_high(every: int) -> None:
    """Steps that claim 10 s of a run of 114 s; the rate follows from them and from the tokens of a step."""
    times = ar1(300, cv=0.01, level=0.4)
    rows = times.reshape(-1, every).mean(axis=1)
    lie = told(TOKENS / (rows / 10), rows / 10, every=every, tokens_per_step=TOKENS, **arrivals(times, every=every))
    found = measure(lie, warmup_steps=20)
    assert mean(found) == pytest.approx(TOKENS / 0.4, rel=0.02)
    why = found.windows["step_time_s"].invalid
    assert "by the validator's clock" in why
    unknown = told(TOKENS / (rows / 10), rows / 10, every=every, **arrivals(times, every=every))
    assert measure(unknown, warmup_steps=20).windows["toks_per_s"].invalid is not None


@pytest.mark.parametrize("factor", [10.0, 0.1])
def test_with_declared_tokens_a_rate_is_checked_in_both_directions(factor: float) -> None:
    times = ar1(300, cv=0.01, level=0.1)
    lie = told(factor * TOKENS / times, None, tokens_per_step=TOKENS, **arrivals(times))
    assert mean(measure(lie, warmup_steps=20)) == pytest.approx(TOKENS / 0.1, rel=0.02)


def test_a_time_of_all_steps_since_the_row_before_is_one_of_each() -> None:
    times = ar1(600, cv=0.01, level=0.1)
    rows = times.reshape(-1, 10)
    one = told(10 * TOKENS / rows.sum(axis=1), rows.sum(axis=1), every=10, **arrivals(times, every=10))
    found = measure(one, warmup_steps=20)
    assert mean(found, "step_time_s") == pytest.approx(0.1, rel=0.02)
    assert mean(found) == pytest.approx(TOKENS / 0.1, rel=0.02)


def test_a_time_in_milliseconds_is_taken_in_seconds() -> None:
    times = ar1(300, cv=0.01, level=0.1)
    found = measure(told(None, 1e3 * times, tokens_per_step=TOKENS, **arrivals(times)), warmup_steps=20)
    assert mean(found, "step_time_s") == pytest.approx(0.1, rel=0.02)
    for factor in (100.0, 1e4, 1e-3):
        lie = measure(told(None, factor * times, **arrivals(times)), warmup_steps=20)
        assert "by the validator's clock" in lie.windows["step_time_s"].invalid


def test_a_mean_since_the_start_is_undone() -> None:
    times = np.r_[np.full(5, 4.0), ar1(395, cv=0.01, level=0.1)]
    average = np.cumsum(times) / np.arange(1, 401)
    one = told(None, average, **arrivals(times))
    assert mean(measure(one, warmup_steps=20), "step_time_s") == pytest.approx(0.1, rel=0.02)


def test_pauses_are_counted_and_priced() -> None:
    times, wall = paused(400, every=50, cost_s=8.0)
    scalars = measure(told(TOKENS / wall, times), warmup_steps=20).scalars
    assert scalars["pause.count"].value == 7
    assert scalars["pause.cost_s"].value == pytest.approx(8.0, rel=0.02)
    assert scalars["pause.period_steps"].value == 50
    calm = measure(told(TOKENS / times, times), warmup_steps=20).scalars
    assert calm["pause.count"].value == 0
    assert "pause.cost_s" not in calm


def test_a_lasting_slow_down_is_no_pause() -> None:
    wall = np.r_[ar1(150, cv=0.01, level=0.1), ar1(150, cv=0.01, level=0.4, seed=1)]
    assert measure(told(TOKENS / wall, None), warmup_steps=20).scalars.get("pause.count") is None
    assert measure(told(TOKENS / wall, wall), warmup_steps=20).scalars["pause.count"].value == 0


def _one_pause() -> Result:
    """One pause of 8 s among 300 steps of 0.1 s: 7,900 tok/s with it and 10,000 without."""
    times, wall = paused(300, every=250, cost_s=8.0)
    return told(TOKENS / wall, times)


@pytest.mark.parametrize(
    ("bound", "status"), [(7000, "PASS"), (9000, "INCONCLUSIVE"), (12000, "FAIL")], ids=["with", "without", "neither"]
)
def test_what_fails_only_through_one_pause_is_open(bound: int, status: str) -> None:
    found = verdict(judge_one(f"toks_per_s.mean >= {bound}", runs=[run_record("baseline", found=_one_pause())]), "1")
    assert found.status == status, found.message
    assert ("pause_every" in found.message) == (status == "INCONCLUSIVE")


@pytest.mark.parametrize(("every", "rate"), [(250, 7576), (2500, 9690)])
def test_a_declared_cadence_decides_what_one_pause_leaves_open(every: int, rate: float) -> None:
    one = _one_pause()
    declared = result(series=dict(one.series), evidence=RunEvidence(pause_every=every))
    found = measure(declared, warmup_steps=20)
    assert mean(found) == pytest.approx(rate, rel=0.01)
    assert found.windows["toks_per_s"].without_pauses is None


def test_three_pauses_show_how_often_they_come() -> None:
    times, wall = paused(300, every=70, cost_s=8.0)
    found = measure(told(TOKENS / wall, times), warmup_steps=20)
    assert found.windows["toks_per_s"].without_pauses is None
    assert found.scalars["pause.count"].value == 4


def test_shares_of_the_peak_follow_the_rate() -> None:
    times, wall = paused(400, every=50, cost_s=8.0)
    one = told(TOKENS / times, times, **arrivals(wall))
    share = series("mfu_nsa", 4e-5 * TOKENS / times)
    found = measure(result(series={**one.series, "mfu_nsa": share}, evidence=one.evidence), warmup_steps=20)
    assert mean(found, "mfu_nsa") == pytest.approx(4e-5 * mean(found), rel=1e-6)


def test_batches_of_varying_length_keep_their_own_tokens() -> None:
    rng = np.random.default_rng(4)
    tokens, times = rng.uniform(500, 1500, 400), ar1(400, cv=0.01, level=0.1)
    found = measure(told(tokens / times, times), warmup_steps=20)
    assert mean(found) == pytest.approx(tokens[20:].sum() / times[20:].sum(), rel=0.005)


def test_a_process_that_rested_between_two_starts_is_not_charged_for_it() -> None:
    times = ar1(300, cv=0.01, level=0.1)
    wall = times.copy()
    wall[150] += 3600.0
    ended = 1.7e9 + np.cumsum(wall)
    one = told(TOKENS / times, times, step_times_s=(np.arange(1, 301), ended), resumed_s=(ended[150] - 1.0,))
    assert mean(measure(one, warmup_steps=20)) == pytest.approx(TOKENS / 0.1, rel=0.01)


def test_stamps_of_a_few_seconds_do_not_say_how_many_tokens_a_step_has() -> None:
    times = ar1(120, cv=0.2, level=0.02)
    found = measure(told(np.full(120, 50.0), None, **arrivals(times, every=3)), warmup_steps=20)
    assert mean(found) == pytest.approx(50.0)


def test_a_rate_alone_is_corrected_for_its_pauses_by_the_clock() -> None:
    times, wall = paused(400, every=50, cost_s=8.0)
    found = measure(told(TOKENS / times, None, **arrivals(wall)), warmup_steps=20)
    assert mean(found) == pytest.approx(380 * TOKENS / wall[20:].sum(), rel=0.01)


def test_rows_that_arrive_at_the_end_alone_say_nothing_of_their_time() -> None:
    times = ar1(300, cv=0.01, level=0.1)
    late = {"arrivals": {CSV.path: (np.array([298, 299, 300]), np.array([40.0, 40.1, 52.0]))}}
    found = measure(told(TOKENS / times, times, **late), warmup_steps=20)
    assert mean(found) == pytest.approx(280 * TOKENS / times[20:].sum(), rel=1e-6)


def test_a_running_mean_that_begins_slow_is_no_rate_that_hides_time() -> None:
    """Of tokens over the time since the start, the first rows mean few tokens at the pace of their arrival."""
    wall = ar1(400, cv=0.01, level=0.1)
    wall[0] = 30.0
    running = TOKENS * np.arange(1, 401) / np.cumsum(wall)
    found = own_word(told(running, None, **arrivals(wall)), after_step=20)
    assert found is not None
    assert not found.changes
    assert found.tokens == pytest.approx(TOKENS, rel=0.03)


@pytest.mark.parametrize(
    ("factor", "span_s", "rows", "wrong"),
    [
        (0.1, 1.6, 80, True),
        (10.0, 1.6, 80, True),
        (0.1, 4.0, 7, True),
        (0.33, 3.0, 100, True),
        (0.75, 4.5, 100, False),
        (1.3, 4.5, 100, False),
        (0.33, 1.6, 80, False),
        (0.1, 0.9, 60, False),
        (0.5, 4.0, 7, False),
    ],
)
def test_the_time_that_a_comparison_needs_follows_from_the_factor(
    factor: float, span_s: float, rows: int, wrong: bool
) -> None:
    """A time per step that is printed ten times too small met its bound in a run shorter than 5 s."""
    times = ar1(rows, cv=0.05, level=span_s / rows)
    _, doubt = as_read(told(None, factor * times, **arrivals(times)), warmup_steps=0)
    assert ("by the validator's clock" in (doubt or "")) == wrong


@pytest.mark.parametrize(("factor", "fits"), [(10.0, False), (0.1, False), (1.5, True), (0.7, True)])
def test_a_rate_of_known_tokens_is_compared_in_a_short_run_too(factor: float, fits: bool) -> None:
    """Ten times too many tokens a second passed in a run of 4 s."""
    times = ar1(80, cv=0.05, level=0.03)
    one = told(factor * TOKENS / times, None, tokens_per_step=TOKENS, **arrivals(times))
    (claim,) = claims(one)
    clock = clock_for(one, claim.source)
    assert clock is not None
    found = best_reading(claim, clock)[1]
    assert found is not None
    assert found.fits(whole=claim.whole) is fits


def test_a_factor_of_a_short_time_holds_in_both_its_halves() -> None:
    """A mean that slowly forgets a slow start is of this run, though not of its first steps."""
    times = ar1(200, cv=0.05, level=0.02)
    forgets = times + 2.0 * 0.95 ** np.arange(200)
    late = np.r_[np.full(110, 0.002), times[110:]]
    for printed in (forgets, late):
        assert as_read(told(None, printed, **arrivals(times)), warmup_steps=0) == (None, None)


def test_a_time_in_milliseconds_is_read_as_such_in_a_short_run() -> None:
    times = ar1(100, cv=0.05, level=0.03)
    found = measure(told(None, 1e3 * times, **arrivals(times)), warmup_steps=10)
    assert mean(found, "step_time_s") == pytest.approx(0.03, rel=0.05)


@pytest.mark.parametrize("slow", [slice(200, 400), slice(100, 250)])
def test_a_part_of_a_run_that_takes_twice_as_long_as_is_printed_has_the_level_of_the_clock(slow: slice) -> None:
    """The real time of a step doubled half-way while the printed one stayed, and its mean met the bound."""
    printed = ar1(400, cv=0.02, level=0.05)
    wall = printed.copy()
    wall[slow] *= 2
    found = measure(told(None, printed, **arrivals(wall)), warmup_steps=0)
    assert mean(found, "step_time_s") == pytest.approx(wall.mean(), rel=0.03)
    (claim,) = claims(one := told(None, printed, **arrivals(wall)))
    clock = clock_for(one, claim.source)
    assert clock is not None
    compared = best_reading(claim, clock)[1]
    assert compared is not None
    assert compared.left_out is not None
    assert compared.left_out.ratio == pytest.approx(0.5, rel=0.03)
    assert abs(compared.left_out.first_step - slow.start) <= 10
    assert abs(compared.left_out.last_step - slow.stop) <= 10


@pytest.mark.parametrize(("every", "cost_s"), [(100, 8.0), (20, 1.0), (200, 20.0)])
def test_pauses_that_a_time_per_step_leaves_out_are_no_part_of_a_run(every: int, cost_s: float) -> None:
    printed, wall = paused(400, every=every, cost_s=cost_s)
    assert as_read(told(None, printed, **arrivals(wall)), warmup_steps=0) == (None, None)


def test_a_running_mean_behind_a_slow_half_is_read_as_such() -> None:
    wall = ar1(400, cv=0.02, level=0.05) * np.where(np.arange(400) < 200, 1, 3)
    printed = np.cumsum(wall) / np.arange(1, 401)
    found = measure(told(None, printed, **arrivals(wall)), warmup_steps=0)
    assert mean(found, "step_time_s") == pytest.approx(wall.mean(), rel=0.03)


def test_a_time_per_step_says_what_of_the_wall_time_it_leaves_out() -> None:
    """A bound on a printed time passed beside stalls of 27 % of the time, and its value did not say so."""
    printed, wall = paused(400, every=50, cost_s=1.5)
    stats = measure(told(None, printed, **arrivals(wall)), warmup_steps=20).metrics["step_time_s"]
    assert "% of the wall time is not in it (pauses)" in (stats.note or "")
    even = measure(told(None, printed, **arrivals(printed)), warmup_steps=20).metrics["step_time_s"]
    assert "wall time" not in (even.note or "")
    slow = printed * np.where(np.arange(400) < 200, 1, 2)
    part = measure(told(None, printed, **arrivals(slow)), warmup_steps=20).metrics["step_time_s"]
    assert "by the validator's clock in steps " in (part.note or "")

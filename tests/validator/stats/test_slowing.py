"""Whether a run lastingly becomes slower, told apart from one that wanders."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.lasting import KINDS, NOISES, SPACINGS, book, judged, pauses, tally
from tests.validator.judge.samples import ar1, result, series
from validator.stats.measure import measure
from validator.stats.slowing import Fall, lasting_falls
from validator.stats.window import steady_window


def _falls(*lengths_and_means: tuple[int, float], cv: float = 0.01) -> tuple[Fall, ...]:
    profile = np.concatenate([np.full(length, mean) for length, mean in lengths_and_means])
    times, steps = profile * ar1(len(profile), cv=cv), np.arange(1, len(profile) + 1)
    return lasting_falls(steps, times, np.ones(len(times)), steady_window(steps, times, warmup_steps=0).levels)


@pytest.mark.parametrize(
    ("shape", "lost"),
    [
        (((250, 1.0), (250, 1.25)), 0.2),
        (((50, 1.0), (450, 1.25)), 0.2),
        (((440, 1.0), (60, 1.25)), 0.2),
        (((150, 1.0), (150, 1.1), (200, 1.25)), 0.2),  # no part of a staircase is pooled
        (((100, 1.3), (250, 1.0), (150, 1.25)), 0.2),  # a slow start is none of it
        (((100, 1.0), (80, 1.1), (120, 1.0), (200, 1.25)), 0.2),
    ],
)
def test_a_fall_that_lasts_is_measured_from_the_fast_stretch(shape: tuple[tuple[int, float], ...], lost: float) -> None:
    found = max(_falls(*shape), key=lambda fall: fall.least)
    assert found.lost == pytest.approx(lost, abs=0.02)
    assert 0.05 < found.least < found.lost
    assert abs(found.from_step - 1 - (sum(length for length, _ in shape) - shape[-1][0])) <= 5


@pytest.mark.parametrize(
    "shape",
    [
        ((500, 1.0),),
        ((250, 1.25), (250, 1.0)),
        ((150, 1.0), (200, 1.25), (150, 1.0)),  # it comes back
        ((150, 1.08), (100, 1.0), (50, 0.96), (50, 1.0), (150, 1.03)),  # as slow at the end as it was at first
        ((480, 1.0), (20, 1.25)),  # too short an end to last
    ],
)
def test_what_comes_back_or_does_not_last_is_no_fall(shape: tuple[tuple[int, float], ...]) -> None:
    assert all(fall.lost < 0.05 for fall in _falls(*shape))


def test_pauses_that_become_longer_are_a_fall_though_no_level_shows_them() -> None:
    times = ar1(500, cv=0.01)
    times[::20] *= np.where(np.arange(500)[::20] < 250, 1.5, 6.0)
    levels = steady_window(np.arange(1, 501), times, warmup_steps=0).levels
    found = max(lasting_falls(np.arange(1, 501), times, np.ones(500), levels), key=lambda fall: fall.lost)
    assert found.lost > 0.1
    assert found.least > 0


def test_few_rows_show_no_fall() -> None:
    assert lasting_falls(np.arange(1, 16), np.ones(15), np.ones(15), ()) == ()


@pytest.mark.parametrize("name", ["steady", "levels of 25 to 80 rows within 8 %", "evaluation every 50 rows"])
def test_a_machine_that_wanders_is_not_failed(name: str) -> None:
    kind = next(one for one in KINDS if one.name == name)
    lasts, enough = tally(kind, NOISES["wander 3 %"], rows=500, trials=30, seed=1)
    assert lasts["FAIL"] <= 2
    assert lasts["PASS"] >= 20
    assert enough["FAIL"] == 0


@pytest.mark.parametrize("name", ["−20% from 85% on", "−20%, evenly", "slow up to 20%, −15% from 60% on"])
def test_what_becomes_slower_does_not_pass_beneath_wander(name: str) -> None:
    kind = next(one for one in KINDS if one.name == name)
    lasts, enough = tally(kind, NOISES["wander 3 %"], rows=500, trials=30, seed=1)
    assert lasts["PASS"] == 0
    assert lasts["FAIL"] >= 25
    assert enough["PASS"] == 0


def test_a_run_that_became_slower_passes_a_bound_that_its_end_clears() -> None:
    rng = np.random.default_rng(3)
    relative = np.where(np.arange(500) < 400, 1.0, 1.03) * (1 + 0.02 * rng.standard_normal(500))
    assert judged(book(500), relative) == ("PASS", "PASS")
    assert judged(book(500), relative * 1.06)[1] == "INCONCLUSIVE"


@pytest.mark.parametrize("spacing", ["10, from 30 % on 50", "1, from 20 % on 10", "1, from 30 % on 50", "1 to 20"])
def test_rows_count_by_the_steps_that_they_stand_for(spacing: str) -> None:
    """Rows of fifty steps beside single ones: evaluations that are all alike failed, and half the rate passed."""
    rng = np.random.default_rng(5)
    steps, noise = SPACINGS[spacing](rng, 2000), 1 + 0.02 * rng.standard_normal(2000)
    for every, cost in ((100, 25.0), (20, 10.0)):
        assert judged(book(2000), pauses(every, cost)(rng, 2000) * noise, steps)[0] == "PASS"
    halved = np.where(np.arange(2000) < 1000, 1.0, 2.0) * noise
    assert judged(book(2000), halved, steps)[0] == "FAIL"
    done = np.append(0.0, np.cumsum(halved))[steps]
    rate = series("toks_per_s", np.diff(steps, prepend=0) / np.diff(done, prepend=0.0), steps=steps)
    found = measure(result(series={"toks_per_s": rate}, without=["step_time_s"]), warmup_steps=20)
    assert max(fall.lost for fall in found.falls) == pytest.approx(0.5, abs=0.01)
    assert found.scalars["rate.drift_pct"].value == pytest.approx(-50, abs=2)
    assert found.window_found is not None
    assert found.window_found.slowed


def test_regular_pauses_belong_to_all_steps() -> None:
    """A soak was open because it had no pause before its first one; what pauses more from some time on is found."""
    times = 1 + 0.02 * np.random.default_rng(5).standard_normal(1000)
    times[19::20] += 15
    times[[310, 555]] += 3  # as a busy machine adds them
    assert judged(book(1000), times)[0] == "PASS"
    times[509::20] += 15
    assert judged(book(1000), times)[0] != "PASS"

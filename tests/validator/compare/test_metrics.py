"""When is a metric worse? By runs, with the variation between them, corrected for the number of phases."""

from __future__ import annotations

import numpy as np
import pytest

from validator.compare import contrast
from validator.model.contrast import MetricDifference

from .sides import run, runs, side, stats


def _rate(a: tuple[float, ...], b: tuple[float, ...], **more: float) -> MetricDifference:
    found = contrast(side("a", cells={"baseline": runs(a)}), side("b", cells={"baseline": runs(b)}, **more))
    return next(one for one in found.metrics if one.metric == "toks_per_s.mean")


def test_four_runs_a_side_are_decided_by_their_means() -> None:
    worse = _rate((100, 101, 99, 100), (95, 96, 94, 95))
    assert worse.verdict == "worse"
    assert worse.change == pytest.approx(-0.05)
    assert worse.change_low is not None
    assert worse.change_high is not None
    assert worse.change_low < -0.05 < worse.change_high < 0
    assert "assumed" not in worse.message
    assert _rate((95, 96, 94, 95), (100, 101, 99, 100)).verdict == "better"


def test_equal_arms_are_rarely_told_apart() -> None:
    rng = np.random.default_rng(0)
    told = [
        _rate(tuple(rng.normal(100, 2, 4)), tuple(rng.normal(100, 2, 4))).verdict in ("better", "worse")
        for _ in range(300)
    ]
    assert sum(told) <= 0.05 * 300 + 2 * np.sqrt(300 * 0.05 * 0.95)


def test_a_significant_difference_below_the_minimum_effect_is_none() -> None:
    found = _rate((100, 100.01, 99.99, 100), (99, 99.01, 98.99, 99))
    assert found.verdict == "no_difference"


def test_single_runs_decide_what_is_beyond_the_assumed_variation() -> None:
    assert _rate((100,), (80,)).verdict == "worse"
    close = _rate((100,), (98,))
    assert close.verdict == "not_decidable"
    assert close.repeats_needed is not None
    assert close.repeats_needed >= 4
    assert "2 % between runs is assumed" in close.message
    assert _rate((100,), (98,), run_cv=0.001).verdict == "worse"


def test_single_runs_of_a_calm_machine_can_be_equal() -> None:
    assert _rate((100,), (100,), run_cv=0.002).verdict == "no_difference"


def test_a_run_that_was_never_steady_decides_nothing() -> None:
    open_run = run(toks_per_s=stats(50, half=None, note="no interval: never steady"))
    found = contrast(side(cells={"baseline": runs((100,))}), side("b", cells={"baseline": (open_run,)}))
    assert found.metrics[0].verdict == "not_decidable"
    assert "never steady" in found.metrics[0].message
    assert found.verdict == "not_decidable"


def test_nan_is_no_rate() -> None:
    assert _rate((100, 100, 100, 100), (float("nan"), 100, 100, 100)).verdict == "not_decidable"


def test_the_loss_of_single_runs_is_decided_only_when_it_is_the_same() -> None:
    def loss(value: float) -> MetricDifference:
        return contrast(
            side(cells={"baseline": (run(loss=stats(3.0, half=None, unit="nat")),)}),
            side("b", cells={"baseline": (run(loss=stats(value, half=None, unit="nat")),)}),
        ).metrics[0]

    assert loss(3.0).verdict == "no_difference"
    assert loss(3.5).verdict == "not_decidable"
    assert loss(3.5).repeats_needed == 4


def test_a_part_of_the_step_counts_only_if_it_matters_to_the_step() -> None:
    """Fetching took twice as long: a microsecond of a step of a second."""
    sides = [
        side(
            name,
            cells={
                "baseline": (
                    run(
                        step_time_s=stats(1.0, half=0.001, unit="s"),
                        dt_fetch_s=stats(fetch, half=0.01 * fetch, unit="s"),
                    ),
                )
            },
        )
        for name, fetch in (("a", 1e-6), ("b", 2e-6))
    ]
    found = {one.metric: one for one in contrast(*sides).metrics}
    assert found["dt_fetch_s.mean"].verdict == "no_difference"
    assert "of a step's time" in found["dt_fetch_s.mean"].message


def test_many_phases_need_stronger_evidence_each() -> None:
    a, b = (100.0, 101, 99, 100), (97.0, 99, 97.5, 98)
    alone = _rate(a, b)
    assert alone.verdict == "worse"
    equal = {f"p{n}": runs(a) for n in range(12)}
    found = contrast(side(cells={"baseline": runs(a), **equal}), side("b", cells={"baseline": runs(b), **equal}))
    assert found.metrics[0].phase == "baseline"
    assert found.metrics[0].p_value == pytest.approx(13 * (alone.p_value or 0), rel=1e-6)
    assert found.metrics[0].verdict == "no_difference"

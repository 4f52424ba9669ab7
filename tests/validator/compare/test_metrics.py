"""When is a metric worse? By runs, with the variation between them, corrected for the number of phases."""

from __future__ import annotations

import numpy as np
import pytest

from validator.compare import contrast
from validator.model.contrast import ContrastReport, MetricDifference

from .sides import finding, run, runs, side, stats


def _rate(a: tuple[float, ...], b: tuple[float, ...], **more: float) -> MetricDifference:
    found = contrast(side("a", cells={"baseline": runs(a)}), side("b", cells={"baseline": runs(b)}, **more))
    return next(one for one in found.metrics if one.metric == "toks_per_s.mean")


def test_four_runs_a_side_are_decided_by_their_means() -> None:
    worse = _rate((100, 101, 99, 100), (95, 96, 94, 95))
    assert worse.verdict == "worse"
    assert worse.change == pytest.approx(-0.05)
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
    assert found.metrics[0].verdict == "not_decidable", "neither different nor equal"


def test_a_lost_twentieth_is_rarely_passed_and_mostly_found() -> None:
    """True −5 % at 3 % between runs, 4 + 4 runs: formerly "no significant difference" in half of the cases."""
    rng = np.random.default_rng(3)
    told = [_rate(tuple(rng.normal(100, 3, 4)), tuple(rng.normal(95, 3, 4))).verdict for _ in range(400)]
    assert np.mean([one in ("no_difference", "better") for one in told]) <= 0.05
    assert np.mean([one == "worse" for one in told]) >= 0.40


def test_equal_sides_of_a_calm_machine_are_shown_to_be_equal() -> None:
    rng = np.random.default_rng(4)
    told = [_rate(tuple(rng.normal(100, 1, 4)), tuple(rng.normal(100, 1, 4))).verdict for _ in range(300)]
    assert np.mean([one == "no_difference" for one in told]) >= 0.5


def test_run_means_of_four_need_no_interval_of_their_own() -> None:
    """One run without an interval kept eight runs from being compared."""
    short = run("baseline/r1", toks_per_s=stats(100, half=None, note="no interval: 8 independent rows"))
    slow = (short, *runs((101, 99, 100)))
    found = contrast(side(cells={"baseline": slow}), side("b", cells={"baseline": runs((90, 91, 89, 90))}))
    assert found.metrics[0].verdict == "worse"
    invalid = stats(100).model_copy(update={"invalid": "the file mixes runs"})
    mixed = (run("baseline/r1", toks_per_s=invalid), *runs((101, 99, 100)))
    found = contrast(side(cells={"baseline": mixed}), side("b", cells={"baseline": runs((90, 91, 89, 90))}))
    assert found.metrics[0].verdict == "not_decidable"
    assert "the file mixes runs" in found.metrics[0].message


def _not_worse(a: tuple[float, ...], b: tuple[float, ...], margin: float, **more: object) -> ContrastReport:
    sides = side("a", cells={"baseline": runs(a)}), side("b", cells={"baseline": runs(b)}, **more)
    return contrast(*sides, not_worse_than=margin)


def test_not_worse_than_asks_one_side_only() -> None:
    calm = (100.0, 101, 99, 100)
    assert _not_worse(calm, (97.0, 98, 96, 97), 0.05).verdict == "not_worse"
    assert contrast(side(cells={"p": runs(calm)}), side("b", cells={"p": runs((97.0, 98, 96, 97))})).verdict == "worse"
    lost = _not_worse(calm, (90.0, 91, 89, 90), 0.05)
    assert (lost.verdict, lost.metrics[0].verdict) == ("worse", "worse")
    assert "at least, which is more than 5 %" in lost.message
    wide = _not_worse((100.0, 105, 95, 100), (99.0, 104, 94, 99), 0.05)
    assert wide.verdict == "not_decidable"
    assert (wide.metrics[0].repeats_needed or 0) > 4
    veto = _not_worse(calm, calm, 0.05, findings=(finding("config-ignored", severity="veto"),))
    assert veto.verdict == "worse", "the evidence itself is not to be trusted"


def test_single_runs_can_be_not_worse_by_much() -> None:
    assert _not_worse((100.0,), (100.0,), 0.10).verdict == "not_worse"
    assert _not_worse((100.0,), (100.0,), 0.03).verdict == "not_decidable"
    assert _not_worse((100.0,), (60.0,), 0.10).verdict == "worse"


def test_a_phase_that_is_better_hides_none_whose_rate_may_have_fallen() -> None:
    a = side(cells={"baseline": runs((100, 101, 99, 100)), "soak": runs((100, 104, 96, 100))})
    b = side("b", cells={"baseline": runs((120, 121, 119, 120)), "soak": runs((97, 101, 93, 97))})
    found = contrast(a, b)
    assert found.verdict == "not_decidable"
    assert "soak.toks_per_s.mean" in found.message
    assert "baseline.toks_per_s.mean is better" in found.message
    steady = side("b", cells={"baseline": runs((120, 121, 119, 120)), "soak": runs((101, 101, 100, 100))})
    calm = side(cells={"baseline": runs((100, 101, 99, 100)), "soak": runs((100, 101, 99, 100))})
    assert contrast(calm, steady).verdict == "better"


def test_no_comparison_crosses_a_definition() -> None:
    old = tuple(run(toks_per_s=stats(rate).model_copy(update={"version": 1})) for rate in (100, 101, 99, 100))
    new = tuple(run(toks_per_s=stats(rate).model_copy(update={"version": 2})) for rate in (50, 50.1, 49.9, 50))
    found = contrast(side(cells={"baseline": old}), side("b", cells={"baseline": new}))
    assert found.verdict == "not_decidable"
    assert "is by definition 1 on one side and 2 on the other" in found.message
    assert contrast(side(cells={"baseline": new}), side("b", cells={"baseline": new})).verdict == "no_difference"

"""Whatever a trainer writes, judgement ends with verdicts: no exception, and no GO on what is damaged."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from validator.judge.decision import decide
from validator.model.result import ScalarValue
from validator.stats.autocorrelation import effective_values

from .samples import judge_one, result, run_record, series, verdict

CRITERIA = (
    "toks_per_s.mean >= 39",
    "toks_per_s.cv < 1",
    "step_time_s.p95 <= 3 * step_time_s.p50",
    "step_time_s.p99 < 10",
    "loss.last < loss.first",
    "loss.mean / grad_norm.mean > 0",
    "rate.drift_pct > -50",
    "memory.growth_mib_per_1k_steps <= 1",
    "effective.dtype == 'bf16'",
)

numbers = st.one_of(
    st.floats(width=64), st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -1.0, 1e308, 5e-324]), st.floats(0.5, 2)
)


@st.composite
def damaged(draw: st.DrawFn) -> object:
    n = draw(st.integers(0, 60))
    names = draw(st.sets(st.sampled_from(["toks_per_s", "step_time_s", "loss", "grad_norm", "host_mem_mib"])))
    found = {}
    for name in names:
        values = draw(st.lists(numbers, min_size=n, max_size=n))
        steps = draw(st.lists(st.integers(-5, 2**40), min_size=n, max_size=n))
        if draw(st.booleans()):
            steps = sorted(steps)
        found[name] = series(name, values, steps=steps)
    scalars = {"steps.done": ScalarValue(value=draw(st.one_of(st.none(), numbers, st.text(max_size=5))))}
    config = draw(
        st.one_of(st.none(), st.dictionaries(st.sampled_from(["dtype", "lr"]), st.one_of(numbers, st.text())))
    )
    without = [name for name in ("toks_per_s", "step_time_s", "loss") if name not in names]
    return result(series=found, scalars=scalars, effective=config, requested=config, without=without)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(found=damaged())
def test_damaged_series_are_judged_and_never_go(found: object) -> None:
    report = judge_one(*CRITERIA, runs=[run_record("baseline", found=found)])  # type: ignore[arg-type]
    assert len(report.criteria) == len(CRITERIA) + 4
    assert all(one.message for one in report.criteria)
    assert decide([report])[0] != "GO"
    report.model_dump_json()


@pytest.mark.parametrize("n", range(0, 40, 3))
def test_every_short_run_is_judged(n: int) -> None:
    times = np.full(n, 1.0)
    report = judge_one(*CRITERIA, runs=[run_record("baseline", found=result(times=times), steps=n or 1)])
    # Without a second row after 20 of warm-up nothing shows how much rows differ.
    assert verdict(report, "1").status == ("PASS" if n >= 22 else "INCONCLUSIVE")


def test_one_giant_value_does_not_overflow_into_a_verdict() -> None:
    times = np.full(300, 1.0)
    times[100] = 1e300
    report = judge_one("toks_per_s.mean >= 39", runs=[run_record("baseline", found=result(times=times))])
    assert verdict(report, "1").status != "PASS"


def test_a_spread_whose_square_is_too_large_is_not_measured() -> None:
    """Of 0 and 2.7e154 the deviation is a number, its square is none."""
    still = {"step_time_s": series("step_time_s", np.zeros(22))}
    found = result(times=np.ones(22), series={**still, "toks_per_s": series("toks_per_s", [0.0] * 21 + [2.69e154])})
    report = judge_one("toks_per_s.cv <= 0.5", "toks_per_s.stdev <= 1", runs=[run_record("baseline", found=found)])
    assert {verdict(report, "1").status, verdict(report, "2").status} <= {"INCONCLUSIVE", "FAIL"}


def test_a_rate_whose_mean_is_below_the_smallest_number_has_no_drift() -> None:
    rates = [1.2387463, 5e-324, 0.910649301, 1.58381368, 1.07538384, 1e308, 1.46307376, 1.03394844, 1e308, 0.656897898]
    rates += [1.21063498, 1e308, 2.73903889e16, 0.893094714, 5e-324]
    steps = [181, 198, 426, 598, 839, 1073, 1700, 1972, 3590, 8688, 33383, 304135, 876066, 1671435, 64194135]
    rows = {"toks_per_s": series("toks_per_s", rates, steps=steps)}
    found = result(series=rows, without=["step_time_s", "loss"])
    report = judge_one("toks_per_s.cv < 1", "rate.drift_pct > -50", runs=[run_record("baseline", found=found)])
    assert verdict(report, "2").status == "INCONCLUSIVE"


@pytest.mark.parametrize("largest", [50.0, 1e200, 1e308])
def test_a_series_counts_the_same_in_other_units_however_large(largest: float) -> None:
    values = np.array([0.0, 0.0, 0.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0] * 20)
    values[100] = largest
    assert effective_values(values * 2.0**-7) == effective_values(values)
    assert 1 <= effective_values(values) <= len(values)

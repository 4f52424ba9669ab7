"""Sweeps and A/Bs: decided by run means, with repeats, a minimum effect and a correction for many arms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from validator.judge.compare import ArmRuns, ComparisonRules, compare_arms
from validator.model.verdict import ArmComparison
from validator.stats.means import ratio, repeats_for_equality, repeats_needed, welch

from .samples import judge_all, outcome, result, run_record, runbook, validation, verdict


def _arm(name: str, *values: float, tie: Sequence[float] = ()) -> ArmRuns:
    return ArmRuns(arm=name, settings={"env.X": name}, values=values, tie_values=tuple(tie))


def _compare(*arms: ArmRuns, **rules: object) -> ArmComparison:
    fields: dict = {"metric": "toks_per_s.mean", "unit": "tok/s", "direction": "highest", "min_effect": 0.02}
    return compare_arms(arms, rules=ComparisonRules(**(fields | rules)))


def test_welch_is_scipys() -> None:
    a, b = [10.1, 10.4, 9.9, 10.6, 10.2], [9.5, 9.9, 9.1, 9.8]
    ours, theirs = welch(a, b), stats.ttest_ind(a, b, equal_var=False)
    interval = theirs.confidence_interval(0.95)
    assert ours.p_value == pytest.approx(theirs.pvalue)
    assert ours.low * np.mean(b) == pytest.approx(interval.low)
    assert ours.high * np.mean(b) == pytest.approx(interval.high)


def test_a_clear_difference_is_significant() -> None:
    found = _compare(_arm("25", 100, 101, 99, 100), _arm("50", 110, 111, 109, 110))
    assert (found.outcome, found.recommended) == ("significant", "50")
    assert found.effect == pytest.approx(0.10, abs=0.001)
    assert found.p_value < 0.001
    assert "50 is best" in found.message


def test_lowest_prefers_the_smaller() -> None:
    found = _compare(_arm("a", 100, 101, 99, 100), _arm("b", 110, 111, 109, 110), direction="lowest")
    assert (found.outcome, found.recommended) == ("significant", "a")


def test_two_runs_of_297_and_835_decide_nothing_and_say_how_many_would() -> None:
    found = _compare(_arm("25", 875, 864), _arm("50", 297, 835), _arm("100", 850, 843))
    assert (found.outcome, found.recommended) == ("not_decidable", None)
    assert "50 has 2 runs (297, 835: 566 ± 269)" in found.message
    assert "at least 4 are needed" in found.message
    assert "would find a difference of 2 %" in found.message


def test_single_runs_decide_nothing() -> None:
    found = _compare(_arm("a", 100.0), _arm("b", 200.0))
    assert found.outcome == "not_decidable"
    assert "a has 1 run; at least 4 are needed" in found.message


def test_a_difference_below_the_minimum_effect_is_none() -> None:
    found = _compare(_arm("a", 100.0, 100.1, 99.9, 100.0), _arm("b", 101.0, 101.1, 100.9, 101.0))
    assert found.outcome == "no_difference"
    assert found.p_value < 0.05
    assert found.message.startswith("No difference that matters between b, a"), "p = 0.0001 is not 'not significant'"
    assert "by less than 2 % with its whole 90 % interval" in found.message


def test_a_tie_recommends_the_lower_variance() -> None:
    found = _compare(
        _arm("a", 100, 101, 99, 100, tie=[5, 5, 5, 5]),
        _arm("b", 100.5, 101, 99, 100, tie=[1, 1, 2, 1]),
        tie="toks_per_s.stdev",
    )
    assert (found.outcome, found.recommended) == ("no_difference", "b")
    assert "lower toks_per_s.stdev" in found.message


def test_among_equals_the_declared_arm_stays_unless_another_is_clearly_calmer() -> None:
    """Two nights on one machine recommended 25 and 100, by spreads of 4,468 and 5,253, then 9,479 and 9,167."""
    by_chance, clearly = [9.1, 9.5, 8.9, 9.2], [3.1, 3.5, 2.9, 3.2]
    for calmer, wanted in ((by_chance, "a"), (clearly, "b")):
        found = _compare(
            _arm("a", 100, 101, 99, 100, tie=[9.4, 9.0, 9.6, 9.9]),
            _arm("b", 100.5, 101, 99, 100, tie=calmer),
            tie="toks_per_s.stdev",
            declared="a",
        )
        assert (found.outcome, found.recommended) == ("no_difference", wanted)
    assert "b has the lower" in found.message


def test_a_tie_without_a_rule_recommends_nothing() -> None:
    assert _compare(_arm("a", 100, 101, 99, 100), _arm("b", 100.5, 101, 99, 100)).recommended is None


def test_what_is_neither_different_nor_equal_is_not_decidable_and_says_what_remains_possible() -> None:
    found = _compare(_arm("a", 100, 104, 96, 100), _arm("b", 101, 105, 97, 101), tie="toks_per_s.stdev")
    assert (found.outcome, found.recommended, found.adopted) == ("not_decidable", None, False)
    assert "remains possible" in found.message
    assert "runs per arm are needed; until then the declared setting is kept" in found.message


def test_a_noisy_third_arm_keeps_the_best_from_being_named() -> None:
    """The runner-up by mean is beaten; the third could still be the best."""
    found = _compare(_arm("a", 100, 101, 99, 100), _arm("b", 90, 91, 89, 90), _arm("c", 50, 130, 60, 100))
    assert found.outcome == "not_decidable"
    assert "between a, c in toks_per_s.mean; b is worse" in found.message


def test_the_best_two_of_three_may_tie_while_the_third_is_worse() -> None:
    found = _compare(
        _arm("a", 100.0, 100.4, 99.7, 100.1, tie=[2] * 4),
        _arm("b", 100.2, 100.5, 99.9, 100.0, tie=[1] * 4),
        _arm("c", 80.0, 80.4, 79.7, 80.1, tie=[0.1] * 4),
        tie="toks_per_s.stdev",
    )
    assert (found.outcome, found.recommended) == ("no_difference", "b")
    assert "c is worse" in found.message


def test_many_arms_are_corrected() -> None:
    """A p value of 0.03 decides between two arms, and not when ten pairs were looked at."""
    best, second = (102.6, 104.4, 103.1, 105.9), (100.0, 101.5, 98.2, 101.1)
    alone = _compare(_arm("a", *best), _arm("b", *second))
    among = _compare(
        _arm("a", *best), _arm("b", *second), *(_arm(n, *(second[i:] + second[:i])) for i, n in enumerate("cde"))
    )
    assert alone.outcome == "significant"
    assert among.p_value > alone.p_value


def test_a_preferred_arm_wins_when_it_is_not_worse() -> None:
    base, fused = _arm("base", 100, 100.3, 99.8, 100.1), _arm("fused", 100.2, 100.1, 99.9, 100.3)
    found = _compare(base, fused, prefer="fused")
    assert (found.outcome, found.recommended) == ("no_difference", "fused")
    assert "not worse by more than 2 %" in found.message


def test_a_preferred_arm_that_could_be_worse_does_not_win() -> None:
    base, fused = _arm("base", 100, 100.3, 99.8, 100.1), _arm("fused", 90, 108, 95, 104)
    found = _compare(base, fused, prefer="fused")
    assert (found.outcome, found.recommended) == ("not_decidable", None), "the declared setting stays"
    assert "could be worse" in found.message


def test_a_preferred_arm_that_may_be_better_is_not_worse() -> None:
    """Equality is not shown, and need not be: the question is whether it is worse."""
    base, fused = _arm("base", 100, 101.5, 98.5, 100), _arm("fused", 101.5, 103, 100, 101.5)
    found = _compare(base, fused, prefer="fused", adopt=True)
    assert (found.outcome, found.recommended, found.adopted) == ("not_worse", "fused", True)
    assert _compare(base, fused).outcome == "not_decidable"


def test_a_preferred_arm_that_is_worse_loses() -> None:
    base, fused = _arm("base", 100, 100.3, 99.8, 100.1), _arm("fused", 90, 90.1, 89.9, 90)
    found = _compare(base, fused, prefer="fused")
    assert (found.outcome, found.recommended) == ("significant", "base")
    assert "fused, which is preferred if it is not worse, is worse" in found.message


def test_arms_without_scatter() -> None:
    assert _compare(_arm("a", 1, 1, 1, 1), _arm("b", 1, 1, 1, 1)).outcome == "no_difference"
    assert _compare(_arm("a", 1, 1, 1, 1), _arm("b", 2, 2, 2, 2)).outcome == "significant"


def test_values_that_are_not_finite_decide_nothing() -> None:
    found = _compare(_arm("a", 1, 1, 1, float("nan")), _arm("b", 2, 2, 2, 2))
    assert found.outcome == "not_decidable"
    assert "not finite" in found.message


def test_repeats_needed_give_the_promised_power() -> None:
    rng = np.random.default_rng(0)
    n = repeats_needed(0.02, 0.03)
    found = [welch(rng.normal(1.03, 0.02, n), rng.normal(1, 0.02, n)).p_value < 0.05 for _ in range(600)]
    assert 0.74 <= np.mean(found) <= 0.93
    assert repeats_needed(0.0001, 0.03) == 4


def test_the_ratio_of_equal_numbers_of_runs_pools_their_variances() -> None:
    a, b = [100.0, 103, 98, 101], [95.0, 99, 94, 97]
    ours = ratio(a, b)
    theirs = stats.ttest_ind(np.log(a), np.log(b)).confidence_interval(0.90)
    assert (ours.low(), ours.high()) == pytest.approx((np.expm1(theirs.low), np.expm1(theirs.high)))
    assert ours.df == 6
    apart = ratio([100.0, 100.01, 99.99, 100], [90.0, 110, 95, 105])
    assert apart.df < 3.1, "variances that differ are not pooled"
    signed = ratio([-1.0, -1.1, -0.9, -1.0], [1.0, 1.1, 0.9, 1.0])
    assert signed.low() < -2 < signed.high(), "what is not positive has no logarithm"


def test_runs_for_equality_show_it_in_four_cases_of_five() -> None:
    rng = np.random.default_rng(2)
    n = repeats_for_equality(0.02, 0.02)
    pairs = [ratio(rng.normal(1, 0.02, n), rng.normal(1, 0.02, n)) for _ in range(400)]
    assert 0.72 <= np.mean([one.low() > -0.02 and one.high() < 0.02 for one in pairs]) <= 0.9
    assert repeats_for_equality(0.0, 0.02) == 4


def test_false_positives_stay_below_five_percent_and_a_real_difference_is_found() -> None:
    rng = np.random.default_rng(1)
    null = [_compare(_arm("a", *rng.normal(100, 2, 4)), _arm("b", *rng.normal(100, 2, 4))).outcome for _ in range(600)]
    real = [
        _compare(_arm("a", *rng.normal(100, 1, 4)), _arm("b", *rng.normal(103, 1, 4))).recommended for _ in range(600)
    ]
    assert np.mean([one == "significant" for one in null]) <= 0.06
    assert np.mean([one == "b" for one in real]) >= 0.8
    assert "a" not in real


SWEEP = {
    "id": "buckets",
    "kind": "sweep",
    "steps": 300,
    "repeats": 4,
    "over": {"env.NSA_DDP_BUCKET_MB": [25, 50]},
    "choose": {"highest": "toks_per_s.mean", "tie": "toks_per_s.stdev", "adopt": True},
}


def _sweep(
    rates: dict[str, float],
    *,
    environment: dict | None = None,
    reached: bool = True,
    phase: dict = SWEEP,
    **more: object,
) -> ArmComparison:
    runs = [
        run_record(
            "buckets",
            arm=arm,
            repeat=n,
            kind="sweep",
            settings={"env.NSA_DDP_BUCKET_MB": int(arm)},
            found=result(
                tokens=rate + n / 10,
                environment=environment or {},
                effective={"seq_len": 2048, "ddp_bucket_mb": float(arm) if reached else 25.0},
            ),
            **more,  # type: ignore[arg-type]
        )
        for n in range(1, 5)
        for arm, rate in rates.items()
    ]
    report = judge_all(validation(runbook(phase), {"buckets": runs}))["buckets"]
    assert report.comparison is not None
    assert report.status == "PASS" or not reached or "ended" in more
    assert verdict(report, "choice").required is False
    return report.comparison


def test_the_declared_arm_of_a_real_phase_is_that_of_its_environment() -> None:
    phase = SWEEP | {"env": {"NSA_DDP_BUCKET_MB": "50"}, "choose": SWEEP["choose"] | {"tie": "loss.last"}}
    assert _sweep({"25": 100.0, "50": 100.0}, phase=phase).recommended == "50"
    assert _sweep({"25": 100.0, "50": 100.0}, phase=phase | {"env": {}}).recommended == "25"


def test_a_sweep_of_a_real_phase() -> None:
    found = _sweep({"25": 100.0, "50": 110.0})
    assert (found.outcome, found.recommended, found.adopted) == ("significant", "50", True)
    assert [len(arm.run_means) for arm in found.arms] == [4, 4]
    assert found.arms[1].settings == {"env.NSA_DDP_BUCKET_MB": 50}


def test_gradients_that_fit_one_bucket_make_the_sweep_vacuous() -> None:
    found = _sweep({"25": 100.0, "50": 110.0}, environment={"grad_bytes": int(0.97 * 2**20)})
    assert (found.outcome, found.recommended, found.adopted) == ("vacuous", None, False)
    assert "fit the smallest bucket" in found.message
    assert _sweep({"25": 100.0, "50": 110.0}, environment={"grad_bytes": 300 * 2**20}).outcome == "significant"


def test_a_setting_that_never_reached_the_trainer_makes_the_sweep_vacuous() -> None:
    found = _sweep({"25": 100.0, "50": 110.0}, reached=False)
    assert found.outcome == "vacuous"
    assert "never reached the trainer" in found.message


def test_runs_that_failed_are_no_replicates() -> None:
    found = _sweep({"25": 100.0, "50": 110.0}, ended=outcome("buckets", rc=1))
    assert found.outcome == "not_decidable"
    assert "did not end by itself" in found.message


def test_later_phases_refer_to_the_recommended_arm() -> None:
    after = {
        "id": "after",
        "kind": "train",
        "steps": 300,
        "accept": ["toks_per_s.mean >= 0.9 * buckets.toks_per_s.mean"],
    }
    rates = {"25": 60.0, "50": 100.0}
    runs = [
        run_record("buckets", arm=arm, repeat=n, kind="sweep", found=result(tokens=rate))
        for n in range(1, 5)
        for arm, rate in rates.items()
    ]
    record = validation(
        runbook(SWEEP, after), {"buckets": runs, "after": [run_record("after", found=result(tokens=70.0))]}
    )
    found = verdict(judge_all(record)["after"], "1")
    assert found.status == "FAIL"
    assert found.bound == pytest.approx(90, abs=1)

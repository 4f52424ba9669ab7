"""What differs between two sides, and the one verdict."""

from __future__ import annotations

import pytest

from validator.compare import contrast
from validator.compare.metrics import Side
from validator.model.catalogue import METRICS, Metric
from validator.model.verdict import RunReport

from .sides import finding, run, runs, side, stats, verdict


def _side(name: str = "a", rate: float = 100.0, **more: object) -> Side:
    return side(name, cells={"baseline": runs([rate] * 4)}, **more)


def test_settings_are_compared_by_meaning_and_places_are_none() -> None:
    a = side(cells={"baseline": runs([100], config={"lr": "1e-3", "seq_len": 2048, "out": "/x/runs/1"})})
    b = side(cells={"baseline": runs([100], config={"lr": 0.001, "seq_len": 512, "out": "/y/runs/2"})})
    (found,) = contrast(a, b).settings
    assert (found.name, found.a, found.b, found.where) == ("seq_len", "2048", "512", "config")
    assert found.phases == ()


def test_a_setting_of_one_phase_names_it() -> None:
    same = runs([100], config={"accum": 1})
    a = side(cells={"baseline": same, "soak": same})
    b = side(cells={"baseline": same, "soak": runs([100], config={"accum": 2})})
    (found,) = contrast(a, b).settings
    assert found.phases == ("soak",)


def test_facts_of_machine_and_runbook_are_told_apart() -> None:
    a = _side(facts={"packages.torch": "2.6", "env.NCCL_ALGO": "Ring", "runbook.sha256": "1"})
    b = _side(facts={"packages.torch": "2.7", "runbook.sha256": "2"})
    found = {one.name: (one.where, one.a, one.b) for one in contrast(a, b).settings}
    assert found == {
        "packages.torch": ("machine", "2.6", "2.7"),
        "env.NCCL_ALGO": ("environment", "Ring", None),
        "runbook.sha256": ("runbook", "1", "2"),
    }


def test_findings_are_gained_and_lost_by_code_and_phase() -> None:
    a = _side(findings=(finding("host-bound"), finding("straggler")))
    b = _side(findings=(finding("host-bound"), finding("host-bound", phase="soak"), finding("host-bound")))
    found = contrast(a, b)
    assert [(one.code, one.phase) for one in found.findings_gained] == [("host-bound", "soak")]
    assert [one.code for one in found.findings_lost] == ["straggler"]
    assert found.verdict == "no_difference"


def test_a_gained_veto_or_a_lost_pass_is_worse_whatever_the_rate() -> None:
    assert contrast(_side(), _side("b", 130, findings=(finding("config-ignored", severity="veto"),))).verdict == "worse"
    a = _side(criteria={"baseline.1": verdict("baseline.1", "PASS")})
    failed = contrast(a, _side("b", 130, criteria={"baseline.1": verdict("baseline.1", "FAIL")}))
    assert failed.verdict == "worse"
    assert "baseline (x.mean > 1) passed and now is FAIL" in failed.message
    optional = _side("b", criteria={"baseline.1": verdict("baseline.1", "FAIL", required=False)})
    assert contrast(a, optional).verdict == "no_difference"


def test_a_changed_bound_is_another_criterion() -> None:
    a = _side(criteria={"baseline.1": verdict("baseline.1", "PASS", text="toks_per_s.mean >= 39")})
    b = _side(criteria={"baseline.1": verdict("baseline.1", "FAIL", text="toks_per_s.mean >= 60")})
    found = contrast(a, b)
    assert {(one.text, one.a, one.b) for one in found.criteria} == {
        ("toks_per_s.mean >= 39", "PASS", None),
        ("toks_per_s.mean >= 60", None, "FAIL"),
    }
    assert found.verdict == "no_difference"


def test_what_makes_the_sides_incomparable_is_said() -> None:
    a = _side()
    b = side(
        "b",
        cells={"soak": runs([100])},
        subject={"machine": "CPU", "runbook": "other", "decision": "IN_PROGRESS"},
    )
    found = contrast(a, b)
    assert found.verdict == "not_decidable"
    assert "no phase in common" in found.message
    told = " ".join(found.caveats)
    for word in ("the runbook is not the same", "the machine is not the same", "only a has run baseline", "finished"):
        assert word in told


def test_a_phase_that_both_ran_and_that_leaves_criteria_alone_is_in_common() -> None:
    passed = {"same.exit": verdict("same.exit", "PASS"), "same.same": verdict("same.same", "PASS")}
    found = contrast(side("a", cells={}, criteria=passed), side("b", cells={}, criteria=passed))
    assert found.verdict == "not_decidable"
    assert "no phase in common" not in found.message
    assert found.message.startswith("Inconclusive: same ran on both sides and left nothing that is compared")
    assert "2 of 2 criteria have the same result" in found.message
    worse = contrast(
        side("a", cells={}, criteria=passed),
        side("b", cells={}, criteria=passed | {"same.same": verdict("same.same", "FAIL")}),
    )
    assert (worse.verdict, "same (x.mean > 1) passed and now is FAIL" in worse.message) == ("worse", True)


def _times(*seconds: float) -> tuple[RunReport, ...]:
    return tuple(
        run(f"baseline/r{n}", step_time_s=stats(one, half=one / 1000, unit="s"))
        for n, one in enumerate(seconds, start=1)
    )


@pytest.mark.parametrize(
    ("b", "verdict"),
    [((0.2, 0.2, 0.2), "worse"), ((0.05, 0.05, 0.05), "better"), ((0.1, 0.101, 0.1), "no_difference")],
)
def test_without_a_rate_the_time_per_step_decides(b: tuple[float, ...], verdict: str) -> None:
    found = contrast(
        side(cells={"baseline": _times(0.1, 0.1, 0.1, 0.101)}), side("b", cells={"baseline": _times(*b, b[0])})
    )
    assert found.verdict == verdict
    assert [one.metric for one in found.metrics if one.headline] == ["step_time_s.mean"]
    assert "may leave pauses out" in found.caveats[-1]


def test_a_rate_decides_whatever_the_time_per_step_is() -> None:
    def cells(step_time: float) -> dict[str, tuple[RunReport, ...]]:
        return {"baseline": runs([100.0, 100.1, 100.0, 100.0], step_time_s=stats(step_time, half=None, unit="s"))}

    found = contrast(side(cells=cells(0.1)), side("b", cells=cells(0.2)))
    assert found.verdict == "no_difference"
    assert not found.caveats


def test_a_rate_that_the_runbook_declares_is_one() -> None:
    samples = {"samples_per_s": Metric("samples_per_s", "samples/s", "steady", "higher", "declared")}

    def made(name: str, rate: float) -> Side:
        found = (run(samples_per_s=stats(rate, unit="samples/s"), step_time_s=stats(0.1, half=None, unit="s")),)
        return side(name, cells={"baseline": found}, metrics=METRICS | samples)

    found = contrast(made("a", 100.0), made("b", 50.0))
    assert found.verdict == "worse"
    assert "samples_per_s" in found.message


@pytest.mark.parametrize(("last", "verdict"), [(2.5, "worse"), (1.5, "better"), (2.0, "no_difference")])
def test_with_neither_rate_nor_time_the_loss_decides(last: float, verdict: str) -> None:
    def cells(loss: float) -> dict[str, tuple[RunReport, ...]]:
        near = (loss, loss * 1.001, loss, loss)
        return {
            "baseline": tuple(
                run(f"baseline/r{n}", loss=stats(one, half=None, unit="nat")) for n, one in enumerate(near)
            )
        }

    assert contrast(side(cells=cells(2.0)), side("b", cells=cells(last))).verdict == verdict


def test_nothing_in_common_says_what_could_decide() -> None:
    found = contrast(side(cells={"baseline": (run(),)}), side("b", cells={"baseline": (run(),)}))
    assert found.verdict == "not_decidable"
    assert "a rate, a time per step, a loss or memory" in found.message

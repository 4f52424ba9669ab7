"""What differs between two sides, and the one verdict."""

from __future__ import annotations

from validator.compare import contrast
from validator.compare.metrics import Side

from .sides import finding, runs, side, verdict


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
    assert "baseline.1 passed and now is FAIL" in failed.message
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

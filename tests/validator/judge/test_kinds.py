"""Audits, profiles and data phases are judged by their evidence; what is silent or out of reach never passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from validator.judge.decision import decide
from validator.kinds.data import LoaderTrial
from validator.model.record import PhaseRecord, RunRecord, ValidationRecord
from validator.model.result import LoaderError, RunEvidence, ScalarValue, TraceSummary
from validator.model.verdict import PhaseReport

from .samples import judge_all, outcome, result, run_record, runbook, validation, verdict

AUDIT = {"id": "audit", "kind": "audit", "steps": 300, "variants": ["plain"]}
PROFILE = {"id": "profile", "kind": "profile", "steps": 300, "profile_steps": 4, "ranges": ["nsa.cmp", "nsa.sel.*"]}
DATA = {"id": "data", "kind": "data", "steps": 300, "first_batch": "60s"}


def judge(phase: dict[str, Any], *runs: RunRecord) -> PhaseReport:
    return judge_all(validation(runbook(phase, defaults={"nproc": 2}), {phase["id"]: runs}))[phase["id"]]


def audited(ran: str | None = "triton", *, variant: str = "plain", **evidence: Any) -> RunRecord:
    told = {} if ran is None else {"audit.attention": ran, "audit.cmp": ran, "audit.layers": 12.0}
    found = result(
        scalars={name: ScalarValue(value=value) for name, value in told.items()}, evidence=RunEvidence(**evidence)
    )
    return run_record("audit", arm=variant, kind="audit", found=found)


def test_an_audit_that_names_the_kernels_passes() -> None:
    report = judge({**AUDIT, "accept": ["audit.cmp == 'triton'"]}, audited())
    assert report.status == "PASS"
    assert "cmp triton in 12 layers" in verdict(report, "audit").message


def test_another_kernel_than_the_expected_one_fails() -> None:
    report = judge({**AUDIT, "accept": ["audit.cmp == 'triton'"]}, audited("matmul + triton"))
    assert verdict(report, "1").status == "FAIL"


def test_a_silent_audit_never_passes() -> None:
    report = judge(AUDIT, audited(None))
    assert report.status == "INCONCLUSIVE"
    assert "The audit is silent" in verdict(report, "audit").message
    assert decide([report])[0] == "INCONCLUSIVE"


@pytest.mark.parametrize(
    ("variant", "ran", "status"),
    [
        ("plain", "triton", "PASS"),
        ("plain", "flash", "PASS"),
        ("plain", "sdpa_math", "FAIL"),
        ("flash_only", "flash + triton", "PASS"),
        ("flash_only", "flash + mem_efficient", "FAIL"),
        ("no_flash", "mem_efficient", "PASS"),
        ("no_flash", "sdpa_math", "PASS"),
        ("no_flash", "flash", "FAIL"),
    ],
)
def test_a_backend_that_the_variant_rules_out_is_a_fallback(variant: str, ran: str, status: str) -> None:
    report = judge({**AUDIT, "variants": [variant]}, audited(ran, variant=variant))
    assert verdict(report, "fallback").status == status


def test_a_counted_fallback_fails_whatever_else_ran() -> None:
    report = judge(AUDIT, audited(fallbacks={"fb_triton_head_dim": 24}))
    found = verdict(report, "fallback")
    assert (found.status, found.observed) == ("FAIL", 24.0)
    assert "fb_triton_head_dim 24 times" in found.message


def test_a_variant_that_restricts_nothing_says_so_and_is_no_ignored_config() -> None:
    run = audited(variant="flash_only")
    assert run.result is not None
    config = {"requested": {"sdpa": "flash_only"}, "effective": {"sdpa": "auto"}}
    report = judge({**AUDIT, "variants": ["flash_only"]}, replace(run, result=replace(run.result, **config)))
    assert report.status == "PASS"
    assert "this variant restricts nothing" in verdict(report, "fallback").message


def profiled(ranges: tuple[str, ...] | None, steps: float | None = 4.0) -> RunRecord:
    scalars = {} if steps is None else {"profile.steps": ScalarValue(value=steps, unit="steps")}
    evidence = RunEvidence(trace=None if ranges is None else TraceSummary(ranges))
    return run_record("profile", kind="profile", found=result(scalars=scalars, evidence=evidence))


def test_a_profile_holds_its_ranges() -> None:
    assert judge(PROFILE, profiled(("nsa.cmp", "nsa.sel.ranges_v2"))).status == "PASS"


def test_a_range_that_is_absent_fails_and_those_seen_are_named() -> None:
    report = judge(PROFILE, profiled(("nsa.cmp",)))
    assert verdict(report, "range.1").status == "PASS"
    found = verdict(report, "range.2")
    assert found.status == "FAIL"
    assert "nsa.cmp" in found.message


def test_fewer_traced_steps_than_asked_for_fail_and_no_trace_is_open() -> None:
    assert verdict(judge(PROFILE, profiled(("nsa.cmp", "nsa.sel.x"), 2.0)), "trace").status == "FAIL"
    report = judge(PROFILE, profiled(None, None))
    assert report.status == "INCONCLUSIVE"
    assert verdict(report, "range.1").status == "INCONCLUSIVE"


def smoke(told: dict[str, Any] | None, *, rc: int = 0) -> RunRecord:
    scalars = {}
    if told and "first_batch_s" in told:
        scalars["smoke.first_batch_s"] = ScalarValue(value=told["first_batch_s"], unit="s")
    evidence = RunEvidence(own=None if told is None else LoaderTrial(told.get("error"), told.get("message")))
    found = result(without=("step_time_s", "toks_per_s", "loss"), scalars=scalars, evidence=evidence, times=[])
    ended = outcome("data/smoke", rc=rc)
    return run_record("data", arm="smoke", kind="data", role="smoke", steps=None, found=found, ended=ended)


def fed(wait_s: float | None = 2.0, **evidence: Any) -> RunRecord:
    scalars = {} if wait_s is None else {"startup.first_batch_s": ScalarValue(value=wait_s, unit="s")}
    return run_record("data", kind="data", found=result(scalars=scalars, evidence=RunEvidence(**evidence)))


def test_a_loader_in_time_passes_and_its_trial_can_be_asked_for() -> None:
    accept = ["smoke.first_batch_s <= 5 s", "startup.first_batch_s <= 5 s", "loss.last < loss.first"]
    report = judge({**DATA, "accept": accept}, smoke({"ok": True, "first_batch_s": 1.5}), fed())
    assert report.status == "PASS", report.message
    assert verdict(report, "1").observed == 1.5
    assert verdict(report, "2").observed == 2.0


def test_a_late_first_batch_fails_alone_and_in_the_run() -> None:
    report = judge(DATA, smoke({"ok": True, "first_batch_s": 61.0}), fed(75.0))
    assert verdict(report, "smoke").status == "FAIL"
    assert verdict(report, "first_batch").status == "FAIL"


def test_a_trial_that_failed_says_why() -> None:
    report = judge(DATA, smoke({"ok": False, "error": "data", "message": "no such folder"}, rc=2))
    assert report.status == "FAIL"
    assert "no such folder" in verdict(report, "smoke").message


@pytest.mark.parametrize("required", [True, False])
def test_data_out_of_reach_skip_the_phase_and_say_what_that_costs(required: bool) -> None:
    told = {"ok": False, "error": "unreachable", "message": "no answer from the hub"}
    report = judge({**DATA, "required": required, "accept": ["loss.last < 1"]}, smoke(told, rc=5))
    assert report.status == "SKIPPED"
    assert "unreachable: no answer from the hub" in report.message
    assert {one.status for one in report.criteria} == {"SKIPPED"}
    assert ("cannot be GO" in report.message) == required
    if required:
        assert decide([report])[0] == "INCONCLUSIVE"


def test_data_that_go_out_of_reach_during_the_run_skip_it_as_well() -> None:
    error = LoaderError(1, "h", "the hub is unreachable", unreachable=True)
    run = fed(None, loader_error=error)
    report = judge(DATA, smoke({"ok": True, "first_batch_s": 1.0}), replace(run, outcome=outcome("data/r1", rc=1)))
    assert report.status == "SKIPPED"


def test_the_record_tells_runs_that_decide_from_those_that_do_not() -> None:
    record = PhaseRecord(runbook(DATA).phases[0], "done", (smoke({"ok": True}), fed()))
    assert [run.spec.role for run in record.measured] == ["measure"]
    whole = ValidationRecord(runbook(DATA), (record,))
    assert [run.role for run in judge_all(whole)["data"].runs] == ["smoke", "measure"]

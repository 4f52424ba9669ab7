"""From phases and findings to the decision, and to the settings worth using."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest

from validator.errors import ExitCode
from validator.judge.decision import decide, extension_of, recommend, settled
from validator.judge.phase import judge_phase
from validator.model.record import PhaseRecord, ValidationRecord
from validator.model.result import ScalarValue
from validator.model.verdict import (
    ArmComparison,
    Check,
    ComparedArm,
    Decision,
    Finding,
    Needed,
    PhaseReport,
    RemedyReport,
    RunReport,
    Status,
    Verdict,
)

from .samples import judge_all, judge_one, result, run_record, runbook, series, validation, verdict

VETO = Finding(
    code="config-ignored", severity="veto", confidence="high", message="It ran another config", next_step="x"
)


def _phase(status: Status, *, id: str = "baseline", required: bool = True) -> PhaseReport:
    verdict = Verdict(id=f"{id}.1", text="x > 1", required=True, status=status)
    return PhaseReport(
        id=id, kind="train", title=id, required=required, status=status, message="x > 1: because.", criteria=(verdict,)
    )


def test_go_needs_every_required_phase() -> None:
    decision, why = decide([_phase("PASS"), _phase("PASS", id="soak")])
    assert decision == "GO"
    assert why == "All 2 required criteria and checks of 2 phases passed; no finding forbids it."


@pytest.mark.parametrize(("took_s", "said"), [(11.4, "The longest run (soak) took 11 s: "), (150.0, "")])
def test_a_go_says_how_short_its_evidence_is(took_s: float, said: str) -> None:
    """A GO for days of training rested on 11 s of it, and nothing said so."""

    def run(name: str, took_s: float, **scalars: ScalarValue) -> RunReport:
        return RunReport(id=name, outcome={"duration_s": took_s}, scalars=scalars)

    steps = ScalarValue(value=60.0)
    phases = [
        _phase("PASS", id=name).model_copy(update={"runs": runs})
        for name, runs in (
            ("tests", (run("tests/r1", 500.0),)),
            ("baseline", (run("baseline/r1", 8.0, **{"steps.done": steps}),)),
            ("soak", (run("soak/r1", took_s, **{"steps.done": steps}),)),
        )
    ]
    decision, why = decide(phases)
    assert decision == "GO"
    assert why.partition("forbids it.")[2].strip().startswith(said)
    assert bool(why.partition("forbids it.")[2]) == bool(said)


@pytest.mark.parametrize(("severity", "said"), [("warning", True), ("info", False)])
def test_a_go_says_which_criterion_any_worse_run_passes(severity: Literal["warning", "info"], said: bool) -> None:
    message = "`toks_per_s.mean <= 15000` in phase baseline accepts any lower toks_per_s.mean."
    found = Finding(code="wrong-way-bound", severity=severity, confidence="high", message=message, next_step="n")
    decision, why = decide([_phase("PASS")], [found])
    assert decision == "GO"
    assert why.endswith(f" But {message}") == said


@pytest.mark.parametrize(
    ("severity", "lost", "said"), [("warning", 0.45, True), ("warning", 0.05, False), ("info", 0.45, False)]
)
def test_a_go_says_what_costs_much_of_the_time(severity: Literal["warning", "info"], lost: float, said: bool) -> None:
    """A trainer that stood still for 45 % of the time was GO, and its first screen did not say so; one that is
    declared, or accepted, is information."""
    stall = Finding(
        code="periodic-stall",
        severity=severity,
        confidence="high",
        message="m",
        next_step="n",
        lost=lost,
        run="soak/r1",
    )
    soak = _phase("PASS", id="soak").model_copy(update={"runs": (RunReport(id="soak/r1"),)})
    decision, why = decide([_phase("PASS"), soak], [stall])
    assert decision == "GO"
    assert ("But 45 % of the time (soak) is lost, and nothing shows that this is meant: periodic-stall." in why) is said
    shift = stall.model_copy(update={"code": "rate-shift", "lost": 0.5 if said else lost})
    _, why = decide([_phase("PASS"), soak], [stall, shift])
    assert ("But 50 % of the time (soak) is lost" in why and "periodic-stall, rate-shift." in why) is said


@pytest.mark.parametrize("status", ["INCONCLUSIVE", "SKIPPED", "NOT_RUN", "RUNNING"])
def test_whatever_is_not_a_pass_is_not_go(status: Status) -> None:
    decision, why = decide([_phase("PASS"), _phase(status, id="soak")])
    assert decision == "INCONCLUSIVE"
    assert "soak" in why


def test_a_failure_decides_over_everything_that_is_open() -> None:
    decision, why = decide([_phase("INCONCLUSIVE"), _phase("FAIL", id="soak")])
    assert decision == "NO_GO"
    assert why.startswith("Phase soak failed: x > 1")


def test_a_veto_forbids_go() -> None:
    decision, why = decide([_phase("PASS")], [VETO])
    assert decision == "INCONCLUSIVE", "the evidence is not to be trusted, which is not the same as bad"
    assert why == "config-ignored: It ran another config."
    warning = VETO.model_copy(update={"severity": "warning"})
    assert decide([_phase("PASS")], [warning])[0] == "GO"


def test_every_veto_is_named_with_its_runs() -> None:
    found = [(VETO.code, "p/r1"), ("b", "p/r1"), ("b", "q/r1"), ("b", "q/r1"), ("c", None)]
    _, why = decide([_phase("PASS")], [VETO.model_copy(update={"code": code, "run": run}) for code, run in found])
    assert why == "config-ignored: It ran another config. Further vetoes: b (p/r1, q/r1), c."


def test_phases_that_are_not_required_do_not_decide() -> None:
    assert decide([_phase("PASS"), _phase("FAIL", id="extra", required=False)])[0] == "GO"


def test_nothing_required_decides_nothing() -> None:
    assert decide([])[0] == "INCONCLUSIVE"
    assert decide([_phase("PASS", required=False)])[0] == "INCONCLUSIVE"


def test_a_runbook_that_asks_for_nothing_decides_nothing() -> None:
    silent = [_phase("PASS").model_copy(update={"asks": False}), _phase("PASS", id="extra", required=False)]
    decision, why = decide(silent)
    assert decision == "INCONCLUSIVE"
    assert "No required phase asks for anything that could fail" in why
    assert decide([*silent, _phase("PASS", id="soak")])[0] == "GO"


@pytest.mark.parametrize(
    ("accept", "words"),
    [
        ([], "it has no criterion"),
        ([{"expr": "toks_per_s.mean >= 1", "required": False}], "is not required"),
        (["toks_per_s.max >= 1"], "best moment"),
        (["step_time_s.min <= 9"], "best moment"),
        (["steps.done == 300"], "asked anyway"),
    ],
)
def test_a_run_that_is_held_to_nothing_is_no_proof(accept: list, words: str) -> None:
    report = judge_one(*accept)
    assert report.status == "INCONCLUSIVE"
    asked = verdict(report, "asks")
    assert (asked.status, asked.required) == ("INCONCLUSIVE", True)
    assert words in asked.message
    assert decide([report])[0] == "INCONCLUSIVE"
    bounded = judge_one(*accept, "toks_per_s.mean >= 1")
    assert (bounded.status, decide([bounded])[0]) == ("PASS", "GO")


def test_a_phase_that_observes_carries_nothing_and_forbids_nothing() -> None:
    observing = judge_one(observe=True)
    assert (observing.status, observing.asks) == ("PASS", False)
    assert observing.message.endswith("It observes: nothing was asked of what it measured.")
    assert decide([observing])[0] == "INCONCLUSIVE"
    assert decide([observing, judge_one("loss.last < loss.first")])[0] == "GO"


def test_a_decision_is_settled_by_a_required_failure_or_a_veto() -> None:
    warning = VETO.model_copy(update={"severity": "warning"})
    assert settled([_phase("PASS"), _phase("INCONCLUSIVE")], [warning]) is None
    assert settled([_phase("FAIL", required=False)], []) is None
    assert settled([_phase("FAIL", id="soak")], []) == "soak failed"
    assert settled([], [VETO]) == "the veto config-ignored forbids GO"


def test_pending_phases_are_in_progress_and_named() -> None:
    assert decide([_phase("FAIL")], pending=["soak"]) == ("IN_PROGRESS", "Still pending: soak.")


def test_exit_codes() -> None:
    assert [ExitCode.of(d) for d in ("GO", "NO_GO", "INCONCLUSIVE", "IN_PROGRESS")] == [0, 1, 3, 3]


@pytest.mark.parametrize(
    ("state", "status"),
    [("pending", "NOT_RUN"), ("not_run", "NOT_RUN"), ("skipped", "SKIPPED"), ("running", "RUNNING")],
)
def test_a_phase_that_has_not_ended_lists_its_criteria_unjudged(state: str, status: str) -> None:
    book = runbook({"id": "baseline", "kind": "train", "steps": 300, "accept": ["toks_per_s.mean >= 39"]})
    record = PhaseRecord(book.phases[0], state, reason="--skip baseline")  # type: ignore[arg-type]
    report = judge_phase(record, validation=ValidationRecord(book, (record,)), judged={})
    assert report.status == status
    assert [one.id for one in report.criteria][-1] == "baseline.1"
    assert {one.status for one in report.criteria} == {status}


def test_an_interrupted_phase_is_never_a_pass() -> None:
    book = runbook({"id": "baseline", "kind": "train", "steps": 300})
    report = judge_all(validation(book, {"baseline": [run_record("baseline")]}, baseline="interrupted"))["baseline"]
    assert report.status == "INCONCLUSIVE"


def test_what_an_interrupted_phase_does_not_meet_yet_is_open() -> None:
    """A runner was killed at step 20 of 300: nothing has failed."""
    book = runbook({"id": "baseline", "kind": "train", "steps": 300, "accept": ["loss.last < 1"]})
    run = replace(run_record("baseline", found=result(times=np.full(20, 1.0))), outcome=None)
    report = judge_all(validation(book, {"baseline": [run]}, baseline="interrupted"))["baseline"]
    assert report.status == "INCONCLUSIVE"
    assert {one.status for one in report.criteria} <= {"INCONCLUSIVE", "PASS"}
    assert any("So far: 20 of 300 steps" in one.message for one in report.criteria)
    diverged = replace(run_record("baseline", found=result(series={"loss": series("loss", [3, np.nan])})), outcome=None)
    assert judge_all(validation(book, {"baseline": [diverged]}, baseline="interrupted"))["baseline"].status == "FAIL"


def test_a_phase_without_runs_is_inconclusive() -> None:
    assert judge_one("toks_per_s.mean >= 39", runs=[]).status == "INCONCLUSIVE"


@pytest.mark.parametrize(
    ("status", "required", "expected"), [("PASS", True, "PASS"), ("FAIL", True, "FAIL"), ("FAIL", False, "PASS")]
)
def test_preflight_is_decided_by_its_checks(status: Status, required: bool, expected: str) -> None:
    book = runbook({"id": "preflight", "kind": "preflight"})
    checks = (
        Check(id="disk", title="Disk", status="PASS", observed="100 GiB"),
        Check(id="gpus", title="GPUs", status=status, required=required, observed="1", message="One GPU, two wanted."),
    )
    record = PhaseRecord(book.phases[0], "done", checks=checks)
    report = judge_phase(record, validation=ValidationRecord(book, (record,)), judged={})
    assert report.status == expected
    if expected == "FAIL":
        assert report.message == "GPUs: One GPU, two wanted."


def test_preflight_without_checks_proves_nothing() -> None:
    book = runbook({"id": "preflight", "kind": "preflight"})
    record = PhaseRecord(book.phases[0], "done")
    assert judge_phase(record, validation=ValidationRecord(book, (record,)), judged={}).status == "INCONCLUSIVE"


def test_a_run_report_holds_what_was_asked_and_what_was_measured() -> None:
    report = judge_one("toks_per_s.mean >= 39")
    run = report.runs[0]
    assert run.command == ("python", "-m", "nsa.train")
    assert (run.outcome["rc"], run.outcome["reason"]) == (0, "exited")
    assert run.metrics["toks_per_s"].n == 280
    assert run.warmup_end_step == 20
    assert run.scalars["steps.done"].value == 300
    assert report.message == "5 criteria passed."


def _comparison(recommended: str | None) -> ArmComparison:
    arms = tuple(
        ComparedArm(
            arm=str(mb),
            settings={"env.NSA_DDP_BUCKET_MB": mb, "args.lr": 0.1},
            run_means=(),
            mean=None,
            ci_low=None,
            ci_high=None,
            stdev=None,
        )
        for mb in (25, 50)
    )
    return ArmComparison(
        metric="toks_per_s.mean",
        unit="tok/s",
        direction="highest",
        arms=arms,
        outcome="significant",
        recommended=recommended,
        min_effect=0.02,
        message="50 is best.",
    )


def test_recommended_settings_are_the_runbooks_with_the_winners_on_top() -> None:
    book = runbook(
        {"id": "baseline", "kind": "train", "steps": 300},
        defaults={"env": {"NCCL_ALGO": "Ring", "NSA_DDP_BUCKET_MB": 25}},
    )
    won = _phase("PASS", id="buckets").model_copy(update={"comparison": _comparison("50")})
    found = recommend([_phase("PASS"), won], "GO", runbook=book, command="torchrun …")
    assert found.env == {"NCCL_ALGO": "Ring", "NSA_DDP_BUCKET_MB": "50"}
    assert found.because == ("buckets: 50 is best.", "buckets: pass lr=0.1 to the trainer.")
    assert found.command == "torchrun …"


@pytest.mark.parametrize("decision", ["NO_GO", "INCONCLUSIVE", "IN_PROGRESS"])
def test_what_was_merely_given_is_recommended_by_a_go_alone(decision: Decision) -> None:
    book = runbook({"id": "baseline", "kind": "train", "steps": 300}, defaults={"env": {"TOY_FAULT": "flat"}})
    found = recommend([_phase("FAIL")], decision, runbook=book, command="torchrun …")
    assert (found.env, found.command) == ({}, None)
    won = _phase("PASS", id="buckets").model_copy(update={"comparison": _comparison("50")})
    found = recommend([_phase("FAIL"), won], decision, runbook=book, command="torchrun …")
    assert (found.env, found.command) == ({"NSA_DDP_BUCKET_MB": "50"}, None)
    assert found.because[0] == "buckets: 50 is best."


def test_a_variable_that_names_the_runs_own_folder_is_not_recommended() -> None:
    book = runbook(
        {"id": "baseline", "kind": "train", "steps": 300},
        defaults={"env": {"OUTDIR": "{out}", "PORT": "{port}", "SHELL_PART": "${HOME}", "NCCL_ALGO": "Ring"}},
    )
    found = recommend([_phase("PASS")], "GO", runbook=book)
    assert found.env == {"SHELL_PART": "${HOME}", "NCCL_ALGO": "Ring"}
    assert [text.split()[0] for text in found.because] == ["OUTDIR", "PORT"]
    assert all("is left out: it holds a placeholder" in text for text in found.because)


def test_without_a_winner_the_runbooks_settings_stay_and_the_reason_is_told() -> None:
    book = runbook({"id": "baseline", "kind": "train", "steps": 300}, defaults={"env": {"NSA_DDP_BUCKET_MB": 25}})
    open_phase = _phase("PASS", id="buckets").model_copy(update={"comparison": _comparison(None)})
    found = recommend([open_phase], "GO", runbook=book)
    assert found.env == {"NSA_DDP_BUCKET_MB": "25"}
    assert found.because == ("buckets: 50 is best.",)


def test_result_of_other_phases_does_not_leak() -> None:
    """A failing phase leaves the verdicts of the others alone."""
    book = runbook(
        {"id": "baseline", "kind": "train", "steps": 300, "accept": ["toks_per_s.mean >= 39"]},
        {"id": "soak", "kind": "soak", "steps": 300, "accept": ["toks_per_s.mean >= 39"]},
    )
    runs = {"baseline": [run_record("baseline", found=result(tokens=10.0))], "soak": [run_record("soak")]}
    judged = judge_all(validation(book, runs))
    assert (judged["baseline"].status, judged["soak"].status) == ("FAIL", "PASS")


@pytest.mark.parametrize(("required", "env"), [(True, {"NSA_X": "3"}), (False, {"NSA_X": "1"})])
def test_a_remedy_of_a_phase_that_is_not_required_stays_a_sentence(required: bool, env: dict[str, str]) -> None:
    helped = RemedyReport(
        name="faster", keeps_config=False, decides=False, status="PASS", message="", settings={"env.NSA_X": 3}
    )
    failed = _phase("FAIL").model_copy(update={"required": required, "remedies": (helped,)})
    book = runbook({"id": "baseline", "kind": "train", "steps": 300}, defaults={"env": {"NSA_X": 1}})
    found = recommend([failed], "NO_GO" if required else "GO", runbook=book)
    assert found.env == env
    assert "validate again with it" in found.because[0]


def test_what_else_is_open_is_named_by_what_it_asks() -> None:
    """`Also baseline.2, baseline.3.` means nothing to who has not read result.json."""
    report = judge_one("toks_per_s.mean >= 999", "toks_per_s.mean >= 998", "loss.last <= 0.1", "steps.done >= 301")
    assert report.message.endswith(". Also: toks_per_s.mean >= 998; loss.last <= 0.1; steps.done >= 301.")
    assert "baseline." not in report.message
    many = judge_one(*(f"toks_per_s.mean >= {bound}" for bound in range(901, 907)))
    assert many.message.endswith("; toks_per_s.mean >= 904; 2 more.")
    long = judge_one("toks_per_s.mean >= 999", "toks_per_s.mean >= 9 * (1 + 2 + 3 + 4 + 5 + 6 + 7 + 8 + 9 + 10 + 11)")
    assert long.message.endswith(" + 9 +….")


@pytest.mark.parametrize(
    ("written", "accept", "status"),
    [
        (400, "loss.last <= 2.9", "INCONCLUSIVE"),
        (400, "loss.last <= 3.1", "PASS"),  # earlier than asked
        (200, "loss.last <= 2.9", "FAIL"),  # with more steps
        (400, "loss.last < loss.first - 9", "FAIL"),  # of the same run
        (400, "loss.max <= 2.9", "FAIL"),
        (400, "toks_per_s.mean >= 999", "FAIL"),
    ],
)
def test_a_bound_on_the_end_of_a_curve_is_for_the_steps_of_the_runbook(written: int, accept: str, status: str) -> None:
    """300 steps were judged by a bound from 400: "0.7008 is not at most 0.668", and no known cause."""
    book = runbook({"id": "baseline", "kind": "train", "steps": 300, "accept": [accept]})
    record = PhaseRecord(book.phases[0], "done", (run_record("baseline"),))
    whole = ValidationRecord(book, (record,), written_steps={"baseline": written})
    report = judge_phase(record, validation=whole, judged={})
    found = verdict(report, "1")
    assert (found.status, report.status) == (status, status)
    if status == "INCONCLUSIVE":
        assert "for the 400 steps that the runbook has, and this run had 300" in found.message
        assert found.needed == Needed(steps={"baseline": 400})
        assert extension_of(record, report, runbook=book) is None, "repeats of 300 steps would not decide it"


def test_a_curve_without_an_end_fails_at_any_length() -> None:
    book = runbook({"id": "baseline", "kind": "train", "steps": 300, "accept": ["loss.last <= 2.9"]})
    ends = result(series={"loss": series("loss", [*np.linspace(5, 3, 299), np.nan])})
    record = PhaseRecord(book.phases[0], "done", (run_record("baseline", found=ends),))
    whole = ValidationRecord(book, (record,), written_steps={"baseline": 400})
    assert judge_phase(record, validation=whole, judged={}).status == "FAIL"

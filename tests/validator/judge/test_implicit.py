"""What every phase must satisfy without being told."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from validator.judge import decide
from validator.model.metrics import TrainerMetrics
from validator.model.recipes import RECIPES
from validator.model.record import Outcome, Reason, RunRecord
from validator.model.result import (
    Halt,
    LogHit,
    NamedTest,
    Result,
    RunEvidence,
    Samples,
    ScalarValue,
    UnpassedTests,
)
from validator.model.verdict import Needed, PhaseReport
from validator.report.advice import waits_for_bounds

from .samples import CSV, ar1, judge_all, judge_one, outcome, result, run_record, runbook, series, validation, verdict


def test_a_healthy_run_passes_all_of_them() -> None:
    report = judge_one("loss.last < loss.first")
    assert [one.id for one in report.criteria] == [f"baseline.{n}" for n in ("exit", "steps", "finite", "config", "1")]
    assert {one.status for one in report.criteria} == {"PASS"}
    assert report.status == "PASS"


@pytest.mark.parametrize(
    ("rc", "reason", "status", "words"),
    [
        (1, "exited", "FAIL", "exited with code 1"),
        (-9, "exited", "FAIL", "ended by signal 9"),
        (None, "timeout", "FAIL", "ran past its budget"),
        (None, "stalled", "FAIL", "stalled"),
        (3, "halted", "FAIL", "halted by the watchdog"),
        (None, "interrupted", "INCONCLUSIVE", "was interrupted"),
        (None, "infrastructure", "INCONCLUSIVE", "could not be run on this machine"),
    ],
)
def test_only_a_run_that_ends_by_itself_with_code_0_passes(
    rc: int | None, reason: Reason, status: str, words: str
) -> None:
    runs = [run_record("baseline", ended=outcome("baseline/r1", rc=rc, reason=reason, detail="no heartbeat"))]
    found = verdict(judge_one(runs=runs), "exit")
    assert found.status == status
    assert words in found.message
    assert "no heartbeat" in found.message


def test_how_a_run_ended_is_said_once() -> None:
    """`exited with code 1: exited with code 1 after 5 steps: last words …` hid the exception behind a repetition."""
    detail = "exited with code 1 after 5 steps: last words of rank 0: ValueError: no such layer"
    runs = [run_record("baseline", ended=outcome("baseline/r1", rc=1, detail=detail))]
    assert verdict(judge_one(runs=runs), "exit").message == f"The run {detail}."


def test_the_failing_repeat_is_named() -> None:
    runs = [run_record("baseline", repeat=n) for n in (1, 2)]
    runs.append(run_record("baseline", repeat=3, ended=outcome("baseline/r3", rc=7)))
    found = verdict(judge_one(runs=runs), "exit")
    assert found.status == "FAIL"
    assert found.message.startswith("baseline/r3: ")


def test_fewer_steps_than_planned_fail() -> None:
    runs = [run_record("baseline", found=result(times=np.full(120, 1.0)))]
    found = verdict(judge_one(runs=runs), "steps")
    assert (found.status, found.observed, found.bound) == ("FAIL", 120, 300)
    assert found.message == "120 of 300 steps were done."


@pytest.mark.parametrize(
    ("ended", "status"),
    [
        (outcome("baseline/r1"), "INCONCLUSIVE"),
        (outcome("baseline/r1", rc=1), "FAIL"),
        (outcome("baseline/r1", reason="timeout", rc=None), "FAIL"),
    ],
)
def test_where_steps_are_a_guess_an_end_of_its_own_before_them_is_open(ended: Outcome, status: str) -> None:
    runs = [run_record("baseline", found=result(times=np.full(120, 1.0)), ended=ended)]
    found = verdict(judge_one(runs=runs, steps_open=True), "steps")
    assert found.status == status
    assert ("--steps 120" in found.message) == (status == "INCONCLUSIVE")


MNIST = next(one.pattern for one in RECIPES if one.name == "PyTorch MNIST example")


@pytest.mark.parametrize(
    ("pattern", "rc", "status"),
    [(MNIST, 0, "INCONCLUSIVE"), (MNIST, 1, "FAIL"), ("{row}Loss: {loss}", 0, "FAIL")],  # the user says: a step each
)
def test_lines_that_are_counted_may_stand_for_several_steps(pattern: str, rc: int, status: str) -> None:
    """A healthy trainer that prints a line each ten batches was NO-GO where 300 of its steps were asked for."""
    counted = TrainerMetrics(stdout=pattern)
    ended = outcome("baseline/r1", rc=rc)
    runs = [run_record("baseline", found=result(times=np.full(120, 1.0)), ended=ended, metrics=counted)]
    found = verdict(judge_one(runs=runs), "steps")
    assert found.status == status
    assert ("each line counts as one" in found.message) == (status == "INCONCLUSIVE")


def test_unknown_steps_are_not_a_pass() -> None:
    runs = [run_record("baseline", found=result(scalars={"steps.done": ScalarValue(value=None)}))]
    assert verdict(judge_one(runs=runs), "steps").status == "INCONCLUSIVE"


def _logged(steps: list[int], *, done: float, **evidence: Any) -> Result:
    """A run that is known by rows at these steps alone."""
    values = [1.0] * len(steps)
    named = {name: series(name, values, steps=steps) for name in ("step_time_s", "toks_per_s", "loss")}
    return result(series=named, scalars={"steps.done": ScalarValue(value=done)}, evidence=RunEvidence(**evidence))


@pytest.mark.parametrize(
    ("steps", "done", "status"),
    [
        (list(range(0, 300, 10)), 291, "PASS"),  # `if step % 10 == 0` in `range(300)`
        (list(range(7, 300, 7)), 294, "PASS"),
        (list(range(0, 290, 10)), 281, "FAIL"),  # the row of step 290 was due
        ([1, *range(10, 300, 10)], 290, "FAIL"),  # so was that of step 300
        (list(range(0, 300, 50)), 251, "INCONCLUSIVE"),
        ([0, 200], 201, "FAIL"),
        (list(range(0, 299)), 299, "FAIL"),
    ],
)
def test_what_lies_behind_the_last_row_that_was_due(steps: list[int], done: float, status: str) -> None:
    found = verdict(judge_one(runs=[run_record("baseline", found=_logged(steps, done=done))]), "steps")
    assert found.status == status
    assert found.observed == done
    if status == "INCONCLUSIVE":
        assert "reports 251 of 300 steps; its next row, 50 steps later, would come after the end" in found.message


def test_a_heartbeat_tells_the_last_step_however_seldom_rows_are() -> None:
    logged = _logged(list(range(0, 300, 10)), done=295, heartbeats={0: {"last_step": 295}})
    assert verdict(judge_one(runs=[run_record("baseline", found=logged)]), "steps").status == "FAIL"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_loss_must_be_finite_at_every_step(bad: float) -> None:
    loss = np.linspace(5, 3, 300)
    loss[41] = bad
    runs = [run_record("baseline", found=result(series={"loss": series("loss", loss)}))]
    found = verdict(judge_one(runs=runs), "finite")
    assert found.status == "FAIL"
    assert "at step 42" in found.message


def test_missing_loss_counts_against_a_trainer_that_declares_it() -> None:
    runs = [run_record("baseline", found=result(without=["loss"]))]
    report = judge_one(runs=runs)
    assert verdict(report, "finite").status == "INCONCLUSIVE"
    assert report.status == "INCONCLUSIVE"


def test_a_trainer_that_cannot_tell_its_loss_is_not_failed_for_it() -> None:
    trainer = {"command": ["train.py"], "metrics": {"stdout": r"step (?P<step>\d+) (?P<toks_per_s>\d+)"}}
    phase = {"id": "baseline", "kind": "train", "steps": 300, "accept": ["toks_per_s.mean >= 50"]}
    book = runbook(phase, trainer=trainer)
    runs = [run_record("baseline", found=result(without=["loss"]))]
    report = judge_all(validation(book, {"baseline": runs}))["baseline"]
    assert not verdict(report, "finite").required
    assert report.status == "PASS"


_NO_LOSS = {"command": ["train.py"], "metrics": {"csv": "training.csv", "no_loss": True}}
_RATE = {"id": "baseline", "kind": "train", "steps": 300, "accept": ["toks_per_s.mean >= 50"]}
_LONG = {"id": "soak", "kind": "soak", "steps": 300, "accept": ["toks_per_s.mean >= 50"]}


def _blind(*phases: Mapping[str, Any], **runs: Sequence[RunRecord]) -> dict[str, PhaseReport]:
    return judge_all(validation(runbook(*phases, trainer=_NO_LOSS), runs))


def test_a_trainer_that_reports_no_loss_can_go_and_the_decision_says_what_it_did_not_see() -> None:
    report = _blind(_RATE, baseline=[run_record("baseline", found=result(without=["loss"]))])["baseline"]
    assert verdict(report, "finite").status == "SKIPPED"
    assert not verdict(report, "finite").required
    assert report.status == "PASS"
    decision, why = decide([report])
    assert decision == "GO"
    assert "No loss is read (baseline), so NaN or divergence would not be seen." in why


def test_a_bound_that_is_still_open_is_all_that_its_phase_lacks() -> None:
    """Of a trainer without a loss nothing else is asked, and `init --from-run` refused to fill the bound in."""
    runs = [run_record("baseline", found=result(without=["loss"]))]
    report = _blind({**_RATE, "accept": ["toks_per_s.mean >= ?"]}, baseline=runs)["baseline"]
    assert [one.id for one in report.criteria if one.required and one.status != "PASS"] == ["baseline.1"]
    assert report.status == "INCONCLUSIVE"
    assert waits_for_bounds(report)


def test_a_loss_that_is_read_is_judged_whatever_was_declared() -> None:
    """Printed at the end of an epoch, which the short watch did not see."""
    loss = series("loss", [3.0, math.nan], steps=[100, 200])
    report = _blind(_RATE, baseline=[run_record("baseline", found=result(series={"loss": loss}))])["baseline"]
    assert verdict(report, "finite").required
    assert report.status == "FAIL"


def test_a_loss_that_can_be_read_no_more_half_way_is_not_finite_to_the_end() -> None:
    """`loss tensor(nan)` and `loss ***` are no numbers, so the rows that hold them have none."""
    loss = series("loss", np.linspace(5, 3, 150), steps=list(range(1, 151)))
    report = _blind(_RATE, baseline=[run_record("baseline", found=result(series={"loss": loss}))])["baseline"]
    found = verdict(report, "finite")
    assert (found.status, found.required) == ("INCONCLUSIVE", True)
    assert "the last at step 150, where others continue to 300" in found.message
    assert report.status == "INCONCLUSIVE"


def test_a_loss_that_an_earlier_run_has_may_not_vanish() -> None:
    runs = {
        "baseline": [run_record("baseline")],
        "soak": [run_record("soak", kind="soak", found=result(without=["loss"]))],
    }
    reports = _blind(_RATE, _LONG, **runs)
    assert verdict(reports["soak"], "finite").status == "INCONCLUSIVE"
    assert reports["soak"].status == "INCONCLUSIVE"
    # Behind a phase that was too short for any there is nothing wrong with one.
    runs = {
        "baseline": [run_record("baseline", found=result(without=["loss"]))],
        "soak": [run_record("soak", kind="soak")],
    }
    reports = _blind(_RATE, _LONG, **runs)
    assert [one.status for one in reports.values()] == ["PASS", "PASS"]


def test_a_config_that_was_ignored_fails_with_both_values() -> None:
    found = result(requested={"seq_len": 2048, "n_layers": 12}, effective={"seq_len": 128, "n_layers": 12})
    report = judge_one(runs=[run_record("baseline", found=found)])
    config = verdict(report, "config")
    assert config.status == "FAIL"
    assert "seq_len is 128, not 2048" in config.message
    assert report.status == "FAIL"


def test_what_the_plan_passed_must_have_arrived() -> None:
    runs = [run_record("baseline", requested={"seq-len": 1024, "lr": "1e-3", "config": "m7c", "out": "runs/x"})]
    config = verdict(judge_one(runs=runs), "config")
    assert config.status == "FAIL"
    assert "seq_len is 2048, not 1024" in config.message


def test_equal_meanings_are_no_difference() -> None:
    found = result(
        requested={"lr": 1e-3, "compile": True, "dtype": "BF16", "threads": None, "opt_fused": "auto"},
        effective={"lr": "0.001", "compile": "on", "dtype": "bf16", "threads": 8, "opt_fused": "off"},
    )
    assert verdict(judge_one(runs=[run_record("baseline", found=found)]), "config").status == "PASS"


def test_an_unknown_config_is_recorded_and_not_required() -> None:
    report = judge_one("loss.last < loss.first", runs=[run_record("baseline", found=result(effective=None))])
    config = verdict(report, "config")
    assert (config.status, config.required) == ("INCONCLUSIVE", False)
    assert report.status == "PASS"


@pytest.mark.parametrize(("place", "status"), [(("logs/a", 3), "PASS"), (None, "FAIL"), ("unread", "INCONCLUSIVE")])
def test_wanted_log_texts_must_be_printed(place: Any, status: str) -> None:
    text = "gradient compression enabled"
    hit = None if place is None else LogHit(*place, text) if place != "unread" else None
    evidence = RunEvidence(log_contains={} if place == "unread" else {text: hit})
    report = judge_one(runs=[run_record("baseline", found=result(evidence=evidence))], log_contains=[text])
    found = verdict(report, "log.1")
    assert found.status == status
    assert text in found.text


@pytest.mark.parametrize(
    ("halt", "status"),
    [
        (None, "PASS"),
        (Halt(".HALT", "", "zero_rate", stale=False), "FAIL"),
        (Halt(".HALT", "", None, stale=True), "PASS"),
    ],
)
def test_a_soak_must_not_be_halted(halt: Halt | None, status: str) -> None:
    report = judge_one(runs=[run_record("baseline", found=result(evidence=RunEvidence(halt=halt)))], kind="soak")
    assert verdict(report, "halt").status == status


def _pytest_report(*, rc: int = 0, allow_skipped: bool = False, **counts: int) -> PhaseReport:
    all_counts = {"passed": 0, "failed": 0, "errors": 0, "skipped": 0} | counts
    scalars = {f"tests.{name}": ScalarValue(value=float(n), unit="tests") for name, n in all_counts.items()}
    named = UnpassedTests(skipped=(NamedTest("test_cuda", "no GPU"),) * counts.get("skipped", 0))
    evidence = RunEvidence(tests=named)
    found = result(scalars=scalars, evidence=evidence, without=["loss", "toks_per_s", "step_time_s"])
    book = runbook({"id": "sanity", "kind": "pytest", "targets": ["nsa.parity"], "allow_skipped": allow_skipped})
    runs = [run_record("sanity", kind="pytest", found=found, steps=None, ended=outcome("sanity/r1", rc=rc))]
    return judge_all(validation(book, {"sanity": runs}))["sanity"]


def test_tests_pass_when_one_passed_and_none_failed() -> None:
    assert _pytest_report(passed=12).status == "PASS"


def test_a_failed_or_broken_test_fails() -> None:
    assert _pytest_report(passed=11, failed=1, rc=1).status == "FAIL"
    assert _pytest_report(passed=11, errors=1, rc=1).status == "FAIL"


def test_a_skipped_test_is_not_a_pass_unless_it_is_allowed() -> None:
    report = _pytest_report(passed=11, skipped=1)
    assert report.status == "SKIPPED"
    assert "test_cuda" in verdict(report, "tests").message
    assert _pytest_report(passed=11, skipped=1, allow_skipped=True).status == "PASS"


def test_exit_code_0_with_every_test_skipped_is_not_a_pass() -> None:
    assert _pytest_report(skipped=3).status == "SKIPPED"
    assert _pytest_report(skipped=3, allow_skipped=True).status == "SKIPPED"
    assert _pytest_report().status == "FAIL"


def test_no_test_report_is_inconclusive() -> None:
    book = runbook({"id": "sanity", "kind": "pytest", "targets": ["nsa.parity"]})
    runs = [run_record("sanity", kind="pytest", found=result(without=["loss"]), steps=None)]
    assert judge_all(validation(book, {"sanity": runs}))["sanity"].status == "INCONCLUSIVE"


def test_a_command_passes_by_its_exit_code() -> None:
    book = runbook({"id": "hello", "kind": "command", "run": "true"})
    for rc, status in ((0, "PASS"), (1, "FAIL")):
        ended = outcome("hello/r1", rc=rc)
        runs = [run_record("hello", kind="command", found=None, steps=None, ended=ended)]
        assert judge_all(validation(book, {"hello": runs}))["hello"].status == status


def _soak(times: np.ndarray, *accept: str) -> PhaseReport:
    return judge_one(
        "loss.last < loss.first", *accept, kind="soak", runs=[run_record("baseline", found=result(times=times))]
    )


@pytest.mark.parametrize(
    ("times", "accept", "status"),
    [
        (ar1(300, cv=0.005), (), "PASS"),
        (ar1(300, cv=0.005) * np.linspace(1.0, 1.02, 300), (), "PASS"),  # heat settles
        (ar1(300, cv=0.005) * np.linspace(1.0, 1.3, 300), (), "FAIL"),
        (ar1(300, cv=0.005) * np.linspace(1.0, 1.3, 300), ("abs(rate.drift_pct) <= 40",), "PASS"),
        (ar1(300, cv=0.005) * np.linspace(1.0, 1.3, 300), ("rate.drift_pct >= -40",), "PASS"),
        (ar1(300, cv=0.005) * np.linspace(1.3, 1.0, 300), (), "PASS"),
    ],
)
def test_a_long_run_that_lastingly_slows_down_fails_by_name(
    times: np.ndarray, accept: tuple[str, ...], status: str
) -> None:
    found = verdict(_soak(times, *accept), "sustained_rate")
    assert (found.status, found.required) == (status, True)
    if status == "FAIL":
        assert "% lower than in steps" in found.message


@pytest.mark.parametrize(
    ("level", "tokens_per_step", "status"), [(True, None, "INCONCLUSIVE"), (True, 100.0, "FAIL"), (False, None, "FAIL")]
)
def test_steps_that_become_longer_by_their_tokens_are_no_slow_down(
    level: bool, tokens_per_step: float | None, status: str
) -> None:
    """A curriculum that doubles the sequence half-way was NO-GO, with level tokens/s printed beside."""
    times = ar1(300, cv=0.01) * np.where(np.arange(300) < 150, 1.0, 2.0)
    rates = series("toks_per_s", 1e5 * ar1(300, cv=0.01, seed=1) if level else 1e5 / times, unit="tok/s")
    evidence = RunEvidence(tokens_per_step=tokens_per_step)
    found = result(times=times, series={"toks_per_s": rates}, evidence=evidence)
    soak = judge_one("loss.last < loss.first", kind="soak", runs=[run_record("baseline", found=found)])
    rate = verdict(soak, "sustained_rate")
    assert rate.status == status
    assert ("soak each such stage alone" in rate.message) is (status == "INCONCLUSIVE")


def test_a_fall_that_is_in_doubt_names_the_steps_that_decide_it() -> None:
    """The reason asked for three times as many steps, and the next command for as many as before."""
    found = verdict(_soak(ar1(300, cv=0.02) * np.where(np.arange(300) < 240, 1.0, 1.055)), "sustained_rate")
    assert found.status == "INCONCLUSIVE"
    assert "does not come back, a soak of 900 steps shows" in found.message
    assert (found.open_for, found.needed) == ("rows", Needed(steps={"baseline": 900}))


@pytest.mark.parametrize(
    ("between", "status"),
    [
        (np.where(np.arange(300) < 200, 1.0, 1.2), "FAIL"),  # a printed time is that of one step in ten
        (np.where(np.arange(300) % 50 == 49, 4.0, 1.0), "PASS"),  # validations, which it leaves out
        (np.where(np.arange(300) == 220, 12.0, 1.0), "PASS"),  # one checkpoint
        (np.where(np.arange(300) < 100, 1.45, 1.0), "PASS"),
    ],
)
def test_a_slow_down_that_no_printed_time_shows_is_seen_by_the_arrival_of_steps(
    between: np.ndarray, status: str
) -> None:
    """Every step but the printed ones took 20 % longer from the middle on, and the soak was GO."""
    steps = np.arange(10, 301, 10)
    stamps = np.cumsum(between * ar1(300, cv=0.03))[steps - 1] + np.random.default_rng(0).uniform(0, 0.05, len(steps))
    evidence = RunEvidence(arrivals={"stdout.log": (steps, stamps)})
    found = result(times=ar1(300, cv=0.005), evidence=evidence)
    soak = judge_one("loss.last < loss.first", kind="soak", runs=[run_record("baseline", found=found)])
    rate = verdict(soak, "sustained_rate")
    assert rate.status == status
    assert ("By the validator's clock, when steps arrive" in rate.message) is (status == "FAIL")


@pytest.mark.parametrize(
    ("others", "busy", "before", "status"),
    [
        (20, 99, 1.0, "INCONCLUSIVE"),
        (20, 60, 1.0, "FAIL"),
        (3, 99, 1.0, "FAIL"),
        (20, 99, 18.0, "FAIL"),  # they were there all along, so the fall is not theirs
    ],
)
def test_a_slow_down_while_others_use_the_cpu_is_not_the_machines(
    others: int, busy: int, before: float, status: str
) -> None:
    """A build beside the last fifth of a soak made a healthy machine NO-GO."""
    times = ar1(300, cv=0.005) * np.where(np.arange(300) < 240, 1.0, 1.2)
    sampled = {
        f"telemetry.{name}": series(f"telemetry.{name}", np.where(np.arange(300) < 240, low, high), unit="%")
        for name, low, high in (("host_cpu_pct", 50.0, busy), ("host_other_cpu_pct", before, others))
    }
    runs = [run_record("baseline", found=result(times=times, series=sampled))]
    found = verdict(judge_one("loss.last < loss.first", kind="soak", runs=runs), "sustained_rate")
    assert found.status == status
    assert ("other programs used 20 % of the machine's CPU then" in found.message) is (status == "INCONCLUSIVE")


@pytest.mark.parametrize(("slower", "status"), [(1.15, "INCONCLUSIVE"), (1.6, "FAIL")])
def test_a_fall_beside_others_that_crowd_the_cpu_all_along_may_be_theirs(slower: float, status: str) -> None:
    """What they leave changes; a fall of a third and more is too much for that."""
    times = ar1(300, cv=0.005) * np.where(np.arange(300) < 200, 1.0, slower)
    sampled = {
        f"telemetry.{name}": series(f"telemetry.{name}", np.full(300, pct), unit="%")
        for name, pct in (("host_cpu_pct", 99.0), ("host_other_cpu_pct", 60.0))
    }
    runs = [run_record("baseline", found=result(times=times, series=sampled))]
    found = verdict(judge_one("loss.last < loss.first", kind="soak", runs=runs), "sustained_rate")
    assert found.status == status
    assert ("60 % of the machine's CPU all along" in found.message) is (status == "INCONCLUSIVE")


def test_a_fall_beside_others_counts_by_the_least_that_it_may_be() -> None:
    """25.9 % lower, at least 6 % by its interval, was NO-GO on a machine of which others used 94 %."""
    times = ar1(300, cv=0.35, phi=0.6, seed=3) * np.where(np.arange(300) < 200, 1.0, 1.4)
    sampled = {
        f"telemetry.{name}": series(f"telemetry.{name}", np.full(300, pct), unit="%")
        for name, pct in (("host_cpu_pct", 99.0), ("host_other_cpu_pct", 60.0))
    }
    runs = [run_record("baseline", found=result(times=np.maximum(times, 0.1), series=sampled))]
    found = verdict(judge_one("loss.last < loss.first", kind="soak", runs=runs), "sustained_rate")
    assert isinstance(found.observed, float)
    assert found.observed > 25
    assert found.status == "INCONCLUSIVE"


def test_a_long_run_whose_rate_nothing_tells_is_not_failed_for_it() -> None:
    runs = [run_record("baseline", found=result(without=["toks_per_s", "step_time_s"]))]
    found = verdict(judge_one("loss.last < loss.first", kind="soak", runs=runs), "sustained_rate")
    assert (found.status, found.required) == ("INCONCLUSIVE", False)


def _held(mib: np.ndarray, *, left_mib: float = 20_000.0, **book: Any) -> PhaseReport:
    """A soak of 300 steps of a second, whose processes hold this much at each."""
    n = len(mib)
    columns = {"host_run_mem_mib": mib, "host_mem_available_mib": np.full(n, left_mib)}
    samples = Samples(CSV, 1e9 + np.arange(n), columns, np.arange(1, n + 1) * (300 // n))
    found = result(evidence=RunEvidence(samples=samples))
    phase = {"id": "baseline", "kind": "soak", "steps": 300, "accept": ["loss.last < loss.first"]}
    runs = {"baseline": [run_record("baseline", kind="soak", found=found)]}
    return judge_all(validation(runbook(phase, **book), runs))["baseline"]


@pytest.mark.parametrize(
    ("mib", "left_mib", "status", "words"),
    [
        (1000 + 4.0 * np.arange(300), 20_000, "FAIL", "full in 1 h 23 min"),
        (1000 + 4.0 * np.arange(300), 4_000_000, "PASS", "longer than the 3 d of a long run"),
        (1000 + 0.1 * np.arange(300), 20_000, "INCONCLUSIVE", "a soak of 900 steps shows"),
        (1000 + 900 * (1 - np.exp(-np.arange(300) / 30)), 20_000, "PASS", "does not grow to the end"),
        (1000 + 4.0 * np.maximum(0, np.arange(300) - 200), 20_000, "INCONCLUSIVE", "plateau"),
    ],
)
def test_the_memory_of_a_soak_must_last(mib: np.ndarray, left_mib: float, status: str, words: str) -> None:
    found = verdict(_held(mib, left_mib=left_mib), "sustained_memory")
    assert (found.status, found.required) == (status, True)
    assert words in found.message
    needed = Needed(steps={"baseline": 900}) if status == "INCONCLUSIVE" else None
    assert (found.needed, found.open_for) == (needed, "rows" if needed else None), "what the next command asks for"


def test_the_memory_of_a_soak_must_last_for_the_planned_run() -> None:
    leak = 1000 + 4.0 * np.arange(300)
    trainer = {"command": ["train.py"], "planned_steps": 3000}
    found = verdict(_held(leak, trainer=trainer), "sustained_memory")
    assert (found.status, "longer than the 50 min" in found.message) == ("PASS", True)


def test_a_soak_of_few_samples_or_none_is_not_judged_by_its_memory() -> None:
    few = verdict(_held(1000 + 40.0 * np.arange(20)[:15]), "sustained_memory")
    assert (few.status, few.required) == ("INCONCLUSIVE", True), "13 samples after warm-up"
    few = verdict(_held(1000 + 40.0 * np.arange(10)), "sustained_memory")
    assert (few.status, few.required) == ("INCONCLUSIVE", False)
    assert "9 samples after warm-up, and 12 are needed" in few.message
    none = verdict(_soak(ar1(300, cv=0.005)), "sustained_memory")
    assert (none.status, none.required) == ("INCONCLUSIVE", False)


def test_the_node_whose_memory_lasts_least_decides() -> None:
    columns = {"host_run_mem_mib": 1000 + 4.0 * np.arange(300), "host_mem_available_mib": np.full(300, 9000.0)}
    leaking = Samples(CSV, 1e9 + np.arange(300), columns, np.arange(1, 301))
    level = Samples(CSV, leaking.times_s, {**columns, "host_run_mem_mib": np.full(300, 1000.0)}, leaking.steps)
    found = result(evidence=RunEvidence(samples=level, node_samples={"n2": level, "n3": leaking}))
    report = judge_one("loss.last < loss.first", kind="soak", runs=[run_record("baseline", kind="soak", found=found)])
    held = verdict(report, "sustained_memory")
    assert held.status == "FAIL"
    assert "processes hold on n3 grows" in held.message

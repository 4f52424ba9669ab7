"""Audits, profiles, data phases and remedies in the plan: what each starts, how, and where it is filed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from tests.validator.judge.samples import runbook as book
from validator.model.plan import RunSpec
from validator.model.runbook import ProcessPhase
from validator.model.schemas import UnknownKind
from validator.model.settings import remedies_of
from validator.plan import launch_words, make_plan, plan_phase

RUN_DIR = Path("/runs/one")


def runs(*phases: dict[str, Any], **top: Any) -> tuple[RunSpec, ...]:
    return make_plan(book(*phases, **top), run_dir=RUN_DIR, python="/py").runs


def test_an_audit_runs_each_variant_with_the_audit_on() -> None:
    plain, flash, other = runs({"id": "a", "kind": "audit", "steps": 5, "nproc": 0})
    assert [run.id for run in (plain, flash, other)] == ["a/plain/r1", "a/flash_only/r1", "a/no_flash/r1"]
    assert {run.env["NSA_SDPA_AUDIT"] for run in (plain, flash, other)} == {"1"}
    assert "NSA_SDPA_FLASH_ONLY" not in plain.env
    assert "NSA_SDPA_NO_FLASH" not in plain.env
    assert flash.env["NSA_SDPA_FLASH_ONLY"] == "1"
    assert other.env["NSA_SDPA_NO_FLASH"] == "1"


def test_a_profile_traces_with_ranges_on_and_the_rest_off() -> None:
    (run,) = runs({"id": "p", "kind": "profile", "steps": 20, "profile_steps": 6, "nproc": 0})
    assert {name: run.env[name] for name in run.env if name.startswith("NSA_")} == {
        "NSA_NVTX": "1",
        "NSA_PROFILE_STEPS": "6",
        "NSA_TB_DISABLE": "1",
        "NSA_DISABLE_AUX_STATS": "1",
    }


def test_nsys_is_used_where_it_is_and_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    phase = {"id": "p", "kind": "profile", "steps": 20, "nproc": 2, "nsys": True}
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert [run.role for run in runs(phase)] == ["measure"]
    monkeypatch.setattr("shutil.which", lambda name: f"/opt/{name}")
    measured, recorded = runs(phase)
    assert (measured.role, recorded.role) == ("measure", "nsys")
    assert recorded.id == "p/nsys/r1"
    assert recorded.argv[:4] == ("/opt/nsys", "profile", "--output", "/runs/one/runs/p/nsys/r1/nsys")
    assert recorded.argv[recorded.argv.index("/py") :] == tuple(
        word.replace("/p/r1", "/p/nsys/r1") for word in measured.argv
    )
    assert recorded.env["NSA_PROFILE_STEPS"] == "0", "torch's profiler and nsys use the same interface of the GPU"


def test_a_data_phase_tries_the_loader_alone_first() -> None:
    args = {"data": "local", "data-path": "/texts", "seq-len": 256}
    smoke, train = runs({"id": "d", "kind": "data", "steps": 20, "args": args, "env": {"NSA_X": 1}, "nproc": 2})
    assert (smoke.role, smoke.id, smoke.nproc, smoke.watchdog) == ("smoke", "d/smoke", 0, None)
    assert smoke.argv == (
        *("/py", "-m", "nsa.data", "--json"),
        *("--data", "local", "--data-path", "/texts", "--seq-len", "256"),
    )
    assert smoke.env["NSA_X"] == "1"
    assert (train.role, train.id, train.nproc) == ("measure", "d/r1", 2)
    assert not smoke.trains
    assert train.trains


def test_the_loaders_trial_can_be_another_program_or_none() -> None:
    own = {"command": ["train.py"]}
    data = {"id": "d", "kind": "data", "steps": 20, "nproc": 0}
    assert [run.role for run in runs(data, trainer=own)] == ["measure"]
    assert [run.role for run in runs({**data, "smoke": []})] == ["measure"]
    smoke, _ = runs({**data, "smoke": ["try.py", "{out}"]}, trainer=own)
    assert smoke.argv == ("/py", "try.py", "/runs/one/runs/d/smoke")


def test_a_remedy_goes_over_everything_and_is_filed_apart() -> None:
    runbook = book(
        {
            "id": "a",
            "kind": "train",
            "steps": 50,
            "nproc": 0,
            "env": {"NSA_DDP_BUCKET_MB": 25},
            "args": {"lr": 0.1},
            "on_failure": ["bucket_50", {"name": "slower", "args": {"lr": 0.01}}],
        },
        trainer={"command": ["t.py"], "args": {}},
    )
    phase = runbook.phases[0]
    bucket, slower = remedies_of(phase)
    (run,) = plan_phase(runbook, phase, run_dir=RUN_DIR, python="/py", remedy=bucket).runs
    assert (run.id, run.out, run.remedy) == ("a/remedy-bucket_50/r1", "runs/a/remedy-bucket_50/r1", "bucket_50")
    assert run.env["NSA_DDP_BUCKET_MB"] == "50"
    (run,) = plan_phase(runbook, phase, run_dir=RUN_DIR, python="/py", remedy=slower).runs
    assert run.argv[-2:] == ("--lr", "0.01")
    declared = make_plan(runbook, run_dir=RUN_DIR, python="/py").phases[0]
    assert declared.remedies == ("bucket_50", "slower")
    assert declared.runs[0].env["NSA_DDP_BUCKET_MB"] == "25"


def test_a_remedy_shortens_a_profile() -> None:
    runbook = book(
        {"id": "p", "kind": "profile", "steps": 100, "expected": "2m", "nproc": 0, "on_failure": ["shorter_profile"]}
    )
    (remedy,) = remedies_of(runbook.phases[0])
    planned = plan_phase(runbook, runbook.phases[0], run_dir=RUN_DIR, python="/py", remedy=remedy)
    assert planned.runs[0].steps == 50
    assert planned.expected_s == 60.0


def test_arguments_of_the_trial_stay_out_of_the_recommended_command() -> None:
    runbook = book(
        {"id": "a", "kind": "train", "steps": 50, "nproc": 0},
        trainer={"args": {"config": "tiny_cpu"}, "trial_args": {"warmup-steps": 5}},
    )
    (run,) = make_plan(runbook, run_dir=RUN_DIR, python="/py").runs
    assert run.argv[run.argv.index("--warmup-steps") + 1] == "5"
    phase = runbook.phases[0]
    assert phase.kind == "train"
    assert launch_words(runbook, phase, run) == ("python", "-m", "nsa.train", "--config", "tiny_cpu")


def test_the_recommended_command_names_what_is_to_be_filled_in() -> None:
    runbook = book(
        {"id": "a", "kind": "train", "steps": 50, "nproc": 0},
        trainer={"command": ["train.py", "--max_steps={steps}", "{out}"], "metrics": {"csv": "t.csv"}},
    )
    (run,) = make_plan(runbook, run_dir=RUN_DIR, python="/py").runs
    phase = runbook.phases[0]
    assert phase.kind == "train"
    assert launch_words(runbook, phase, run) == ("python", "train.py", "--max_steps=STEPS", "OUT")


def test_a_phase_of_an_unknown_kind_is_refused_and_not_planned_as_another() -> None:
    class UnheardPhase(ProcessPhase):
        kind: Literal["unheard"]

    known = book({"id": "c", "kind": "command", "run": "true"})
    with pytest.raises(UnknownKind, match="'unheard' is no kind of phase; known: preflight, command, pytest, "):
        plan_phase(known, UnheardPhase(id="s", kind="unheard"), run_dir=RUN_DIR)
    with pytest.raises(ValueError, match="'unheard' is no kind of phase"):
        RunSpec(id="s/r1", phase="s", kind="unheard", launcher="exec", argv=(), env={}, out="runs/s/r1", timeout_s=1)

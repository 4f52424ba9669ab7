"""The plan: exact commands, folders, order and precedence."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

import pytest

from tests.validator.judge.samples import runbook as book
from validator.model.plan import RunSpec
from validator.plan import FLIGHT_RECORDER, PlanError, make_plan, plan_phase

RUN_DIR = Path("/runs/one")


def train(name: str = "a", **more: Any) -> dict[str, Any]:
    return {"id": name, "kind": "train", "steps": 50, **more}


def only_run(*phases: dict[str, Any], **top: Any) -> RunSpec:
    (run,) = make_plan(book(*phases, **top), run_dir=RUN_DIR, python="/py").runs
    return run


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in FLIGHT_RECORDER:
        monkeypatch.delenv(name, raising=False)


def test_two_processes_of_the_bundled_trainer_are_started_by_its_torchrun() -> None:
    run = only_run(train(nproc=2))
    assert run.launcher == "torchrun"
    assert run.argv == (
        *("/py", "-m", "nsa.launch", "--nproc-per-node", "2"),
        *("--master-addr", "127.0.0.1", "--master-port", "{port}"),
        *("--log-dir", "/runs/one/runs/a/r1/logs/ranks", "--redirects", "3"),
        *("-m", "nsa.train", "--steps", "50", "--out", "/runs/one/runs/a/r1"),
    )
    assert (run.id, run.out, run.nproc, run.world_size) == ("a/r1", "runs/a/r1", 2, 2)
    assert run.env == {"PYTHONUNBUFFERED": "1", **FLIGHT_RECORDER}


def test_no_process_count_means_plain_python() -> None:
    run = only_run(train(nproc=0))
    assert run.launcher == "python"
    assert run.argv == ("/py", "-m", "nsa.train", "--steps", "50", "--out", "/runs/one/runs/a/r1")
    assert (run.nproc, run.ranks, run.world_size) == (0, None, 1)
    assert run.env == {"PYTHONUNBUFFERED": "1"}


def test_the_users_own_flight_recorder_settings_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "7")
    assert "TORCH_FR_BUFFER_SIZE" not in only_run(train(nproc=2)).env
    assert only_run(train(nproc=2, env={"TORCH_FR_BUFFER_SIZE": 9})).env["TORCH_FR_BUFFER_SIZE"] == "9"


def test_flags_numbers_and_booleans() -> None:
    args = {
        "lr": 3e-4,
        "n": 5,
        "on": True,
        "off": False,
        "text": "a b",
        "-x": 1,
        "path": "{out}/x",
        "n-run": "{repeat}",
    }
    run = only_run(train(nproc=0, args=args), trainer={"command": ["t.py"], "args": {}})
    assert run.argv[2:] == (
        *("--lr", "0.0003", "--n", "5", "--on", "--text", "a b", "-x", "1"),
        *("--path", "/runs/one/runs/a/r1/x", "--n-run", "1"),
    )
    assert run.requested["lr"] == 3e-4
    assert run.requested["n_run"] == 1, "a lone placeholder keeps its type"
    assert run.requested["off"] is False


def test_arguments_are_merged_from_the_general_to_the_special() -> None:
    runbook = book(
        train(
            "first",
            kind="ab",
            arms={"a": {}, "b": {"args": {"five": "arm"}}},
            choose={"lowest": "loss.last"},
            args={"four": "phase", "five": "phase"},
        ),
        trainer={"command": ["t.py"], "args": dict.fromkeys(("one", "two", "three", "four", "five"), "trainer")},
        defaults={"args": dict.fromkeys(("two", "three", "four", "five"), "defaults")},
    )
    adopted = {f"args.{name}": "adopted" for name in ("three", "four", "five")}
    runs = plan_phase(runbook, runbook.phases[0], run_dir=RUN_DIR, python="/py", adopted=adopted).runs
    assert list(runs[1].requested.values()) == ["trainer", "defaults", "adopted", "phase", "arm"]
    assert runs[0].requested["five"] == "phase"


def test_one_argument_in_two_spellings_is_passed_once() -> None:
    run = only_run(train(nproc=0, args={"batch_size": 4}), defaults={"args": {"batch-size": 2}})
    assert [word for word in run.argv if "batch" in word] == ["--batch_size"]
    assert run.requested["batch_size"] == 4


def test_the_bundled_trainer_always_gets_steps_and_folder() -> None:
    run = only_run(train(nproc=0), trainer={"args": {"config": "tiny_cpu"}})
    assert run.argv[3:] == ("--config", "tiny_cpu", "--steps", "50", "--out", "/runs/one/runs/a/r1")


def test_environment_is_merged_and_written_as_programs_read_it() -> None:
    phase = train(env={"B": "phase", "ON": True, "OFF": False, "RATE": 0.5, "DIR": "{run_dir}/x"})
    env = only_run({**phase, "nproc": 0}, defaults={"env": {"A": "defaults", "B": "defaults"}}).env
    assert env == {
        "PYTHONUNBUFFERED": "1",
        **{"A": "defaults", "B": "phase", "ON": "1", "OFF": "0", "RATE": "0.5", "DIR": "/runs/one/x"},
    }


def test_adopted_settings_reach_the_trainer_and_nothing_else() -> None:
    runbook = book(train(), {"id": "c", "kind": "command", "run": "true"})
    adopted = {"env.NSA_DDP_BUCKET_MB": 50}
    runs = [plan_phase(runbook, phase, run_dir=RUN_DIR, adopted=adopted).runs[0] for phase in runbook.phases]
    assert [run.env.get("NSA_DDP_BUCKET_MB") for run in runs] == ["50", None]


def test_a_sweep_goes_forwards_and_backwards() -> None:
    sweep = train("s", kind="sweep", over={"env.MB": [25, 50, 100]}, choose={"highest": "toks_per_s.mean"}, repeats=3)
    runs = make_plan(book(sweep), run_dir=RUN_DIR).runs
    assert [run.id for run in runs] == [
        *("s/25/r1", "s/50/r1", "s/100/r1"),
        *("s/100/r2", "s/50/r2", "s/25/r2"),
        *("s/25/r3", "s/50/r3", "s/100/r3"),
    ]
    assert runs[1].env["MB"] == "50"
    assert runs[1].settings == {"env.MB": 50}
    assert len({run.out for run in runs}) == 9


def test_an_ab_is_interleaved_abba() -> None:
    arms = {"plain": {}, "fused": {"env": {"F": 1}}}
    ab = train("x", kind="ab", arms=arms, choose={"highest": "toks_per_s.mean"}, repeats=2)
    assert [run.arm for run in make_plan(book(ab), run_dir=RUN_DIR).runs] == ["plain", "fused", "fused", "plain"]


def test_two_swept_settings_are_combined_and_named() -> None:
    over = {"env.MB": [25, 50], "args.accum": [1, 2]}
    sweep = train("s", kind="sweep", over=over, choose={"highest": "toks_per_s.mean"})
    runs = make_plan(book(sweep), run_dir=RUN_DIR).runs
    assert [run.arm for run in runs] == ["MB=25,accum=1", "MB=25,accum=2", "MB=50,accum=1", "MB=50,accum=2"]
    assert runs[3].settings == {"env.MB": 50, "args.accum": 2}


def test_names_of_arms_are_fit_for_folders_and_stay_apart() -> None:
    values = ["a/b", "a b", "..", "", "é", "x" * 300, True]
    sweep = train("s", kind="sweep", over={"env.V": values}, choose={"highest": "toks_per_s.mean"})
    arms = [run.arm or "" for run in make_plan(book(sweep), run_dir=RUN_DIR).runs]
    assert len(set(arms)) == len(values)
    assert all("/" not in arm and arm not in ("", ".", "..") and len(arm) < 120 for arm in arms)
    assert arms[-1] == "true"


def test_a_command_runs_in_a_shell_or_without() -> None:
    shell = only_run({"id": "c", "kind": "command", "run": "echo ${HOME} {{x}} {out} > '{python}'"})
    assert shell.argv[-2:] == ("-c", "echo ${HOME} {x} /runs/one/runs/c/r1 > '/py'")
    assert shell.argv[1:-2] == ("-o", "pipefail") or shell.argv[0] == "/bin/sh"
    words = only_run({"id": "c", "kind": "command", "run": ["sleep", 1, "{phase}"], "stdout": r"(?P<x>\d+)"})
    assert words.argv == ("sleep", "1", "c")
    assert words.stdout_groups == r"(?P<x>\d+)"
    assert shell.launcher == "exec"


def test_pytest_takes_no_options_of_the_folder_that_one_stands_in() -> None:
    run = only_run({"id": "t", "kind": "pytest", "targets": ["nsa.parity"], "keyword": "ranges", "args": ["-x"]})
    assert run.argv == (
        *("/py", "-m", "pytest", "-p", "no:cacheprovider", "--junitxml", "/runs/one/runs/t/r1/junit.xml"),
        *("-o", "addopts=", "-x", "--pyargs", "nsa.parity", "-k", "ranges"),
    )
    assert run.launcher == "python"


def test_budgets_and_limits_come_from_the_phase_or_the_defaults() -> None:
    defaults = {"timeout": "5m", "retries": 2, "warmup_steps": 7, "watchdog": {"stall": "90s", "frozen_rows": 9}}
    run = only_run(train(timeout="1m", watchdog={"stall": "30s"}), defaults=defaults)
    assert (run.timeout_s, run.retries, run.warmup_steps) == (60.0, 2, 7)
    assert (run.watchdog.stall, run.watchdog.frozen_rows) == (30.0, 9), "limits are merged key by key"


def test_the_standard_library_is_at_hand_as_text() -> None:
    run = only_run(train(nproc=0, args={"data": "{stdlib}/*.py"}))
    assert run.requested["data"] == f"{sysconfig.get_path('stdlib')}/*.py"
    assert list(Path(sysconfig.get_path("stdlib")).glob("*.py"))


def test_only_keeps_a_phase_and_what_it_needs() -> None:
    runbook = book(train("a"), train("b", needs=["a"]), train("c"), train("d", needs=["b"]))
    plan = make_plan(runbook, run_dir=RUN_DIR, only=["d"])
    assert [phase.phase for phase in plan.phases if phase.skipped is None] == ["a", "b", "d"]
    assert plan.phases[2].skipped == "not among --only d"
    plan = make_plan(runbook, run_dir=RUN_DIR, skip=["b"])
    assert [phase.phase for phase in plan.phases if phase.runs] == ["a", "c", "d"]
    assert plan.phases[1].skipped == "left out by --skip"


def test_unknown_phases_are_named_with_the_nearest() -> None:
    runbook = book(train("baseline"))
    with pytest.raises(PlanError, match=r"--only baselin: .*did you mean baseline\?"):
        make_plan(runbook, run_dir=RUN_DIR, only=["baselin"])
    with pytest.raises(PlanError, match=r"--skip xyz: .*phases: baseline"):
        make_plan(runbook, run_dir=RUN_DIR, skip=["xyz"])


def test_a_relative_folder_is_made_absolute_in_commands_only() -> None:
    (run,) = make_plan(book(train(nproc=0)), run_dir=Path("here")).runs
    assert run.argv[-1] == str(Path.cwd() / "here/runs/a/r1")
    assert run.out == "runs/a/r1"


def test_a_plan_survives_being_written_and_read() -> None:
    plan = make_plan(book(train(timeout="250ms", watchdog={"stall": "1.5s"})), run_dir=RUN_DIR)
    assert type(plan).model_validate_json(plan.model_dump_json()) == plan

"""The kind `settings`: what it runs, and what it makes of trainers that obey, ignore, refuse, or have no seed."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.validator.adversary.court import codes, finding, judged, laid_out, tried, verdict
from validator.kinds import settings
from validator.kinds.registry import loads
from validator.model.plan import RunSpec
from validator.model.verdict import ValidationReport
from validator.plan import plan_phase
from validator.report.build import build_page
from validator.report.markdown import render_markdown
from validator.runbook import RunbookError
from validator.selftest.recorded_case import FakeRun, book, scatter, train

CHANGE = {"args.batch-size": 2, "args.seq-len": 16}
PHASE: dict[str, Any] = {"id": "settings", "kind": "settings", "steps": 6, "change": CHANGE}
WORDS = ["train.py", "--steps", "{steps}", "--batch-size", "4", "--seq-len=32", "--out", "{out}"]


def losses(seed: int, n: int = 6, *, digits: int = 4) -> list[float]:
    """The losses of a run; of another seed those of another config, or of other data."""
    noise = random.Random(seed)
    return [round(4 - 0.1 * step + 0.05 * noise.gauss(0, 1), digits) for step in range(n)]


def short(values: list[float], **more: Any) -> FakeRun:
    """A run of a few steps by a trainer that says nothing of its config."""
    return FakeRun(rates=scatter(40_000.0, len(values)), losses=values, config_reported=False, **more)


def text(phase: dict[str, Any] = PHASE, *others: dict[str, Any]) -> str:
    content = json.loads(book(phase, *others, metrics={"csv": "training.csv"}, nproc=1))
    content["trainer"] |= {"command": WORDS, "args": {}}
    return json.dumps(content)


def sound(spec: RunSpec) -> FakeRun:
    """Obeys everything, and has a seed."""
    if spec.phase != "settings":
        return FakeRun(config_reported=False)
    return short(losses(1 + sum(map(len, spec.settings))))


def ignoring(name: str) -> Any:
    """The same, but for one setting."""
    return lambda spec: short(losses(1)) if name in spec.settings else sound(spec)


# What it runs.


def test_it_runs_as_declared_around_runs_with_one_setting_changed_in_its_place(tmp_path: Path) -> None:
    runbook = loads(text())
    runs = plan_phase(runbook, runbook.phases[0], run_dir=tmp_path).runs
    assert [(run.id, run.role) for run in runs] == [
        ("settings/r1", "measure"),
        ("settings/batch-size-2/r1", "changed"),
        ("settings/seq-len-16/r1", "changed"),
        ("settings/r2", "measure"),
    ]
    first, batch, length, last = (" ".join(run.argv).replace(run.out, "") for run in runs)
    assert first == last
    assert batch == first.replace("--batch-size 4", "--batch-size 2")
    assert length == first.replace("--seq-len=32", "--seq-len=16")
    assert [dict(run.settings) for run in runs] == [{}, {"args.batch-size": 2}, {"args.seq-len": 16}, {}]


def test_settings_of_the_runbook_and_of_the_environment_and_new_ones_reach_the_runs(tmp_path: Path) -> None:
    content = json.loads(text({**PHASE, "change": {"args.lr": 0.3, "env.NSA_DIM": 8, "args.width": 9}}))
    content["trainer"]["args"] = {"lr": 0.1}
    content["phases"][0] |= {"env": {"NSA_DIM": 4}, "confirm": {"args.width": 18}}
    runbook = loads(json.dumps(content))
    _, rate, dim, width, confirm, _ = plan_phase(runbook, runbook.phases[0], run_dir=tmp_path).runs
    assert " ".join(rate.argv).endswith("--lr 0.3")
    assert (dim.env["NSA_DIM"], rate.env["NSA_DIM"]) == ("8", "4")
    assert " ".join(width.argv).endswith("--width 9 --lr 0.1")
    assert (confirm.arm, " ".join(confirm.argv).endswith("--width 18 --lr 0.1")) == ("confirm", True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch-size": 2}, "'batch-size' names no setting"),
        ({"args.batch_size": 4}, "change.args.batch_size is 4, the declared value"),
        ({"args.steps": 9}, "args.steps is {steps}, which each run of a validation sets"),
        ({"env.RANK": 1}, "env.RANK reaches no run"),
    ],
)
def test_what_cannot_be_tried_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RunbookError) as refused:
        loads(text({**PHASE, "change": change}))
    assert message in str(refused.value)


# What it decides.


def test_a_sound_trainer_passes_and_its_settings_count_as_verified(tmp_path: Path) -> None:
    report = tried(tmp_path, sound, text(PHASE, train(accept=["loss.last < loss.first"])))
    assert (report.decision, codes(report, "veto", "warning")) == ("GO", set())
    assert [one.status for one in report.phases[0].effects] == ["PASS", "PASS"]
    config = verdict(report, "baseline.config")
    assert (config.status, config.required) == ("PASS", False)
    assert "by effect that it obeys args.batch-size, args.seq-len. Others are not verified" in config.message
    assert "it obeys args.batch-size, args.seq-len; whether" in finding(report, "config-unknown").message


def test_without_the_phase_nothing_counts_as_verified(tmp_path: Path) -> None:
    report = tried(tmp_path, sound, text(train(accept=["loss.last < loss.first"])))
    assert verdict(report, "baseline.config").status == "INCONCLUSIVE"
    assert "so whether the settings were obeyed is not known" in finding(report, "config-unknown").message


def test_a_number_that_was_not_tried_is_named(tmp_path: Path) -> None:
    """By a GO that names the tried ones alone it looked as if all had been."""
    content = json.loads(text({**PHASE, "change": {"args.seq-len": 16}}, train(accept=["loss.last < loss.first"])))
    content["trainer"]["command"] += ["-b", "256", "--epochs", "9", "--workers", "4", "--arch", "x"]
    found = finding(tried(tmp_path, sound, json.dumps(content)), "config-unknown")
    assert "obeys args.seq-len; whether it obeys args.batch-size, args.b, args.epochs is not known" in found.message
    assert "show by effect that it obeys args.batch-size, args.b (" in found.next_step


@pytest.mark.parametrize(
    ("command", "change", "status"),
    [
        ("train.py -b 256", {"args.b": 128}, "FAIL"),
        ("train.py -j 4", {"args.j": 2}, "INCONCLUSIVE"),
        ("train.py SOLVER.IMS_PER_BATCH 16", {"args.SOLVER.IMS_PER_BATCH": 8}, "FAIL"),
        ("train.py --max-tokens 4096 --max-update 9", {"args.max-tokens": 2048}, "FAIL"),
        ("train.py --max_tokens 4096", {"args.max_tokens": 2048}, "INCONCLUSIVE"),
        ("train.py --max-seq-length 512", {"args.max-seq-length": 256}, "INCONCLUSIVE"),
        ("train.py --num-workers 4", {"args.num-workers": 2}, "INCONCLUSIVE"),
    ],
)
def test_what_has_no_effect_is_ignored_where_it_must_have_one(
    tmp_path: Path, command: str, change: dict[str, Any], status: str
) -> None:
    lax = {**PHASE, "change": change, "decide_all": False}
    content = json.loads(text(lax, train(accept=["loss.last < loss.first"])))
    content["trainer"]["command"] = [*command.split(), *WORDS[1:3], "--out", "{out}"]

    def deaf(spec: RunSpec) -> FakeRun:
        return short(losses(1)) if spec.phase == "settings" else sound(spec)

    report = tried(tmp_path, deaf, json.dumps(content))
    assert report.phases[0].effects[0].status == status
    assert (report.decision, codes(report, "veto")) == (
        ("NO_GO", {"config-ignored"}) if status == "FAIL" else ("GO", set())
    )


def test_a_setting_that_is_ignored_is_no_go_and_named(tmp_path: Path) -> None:
    report = tried(tmp_path, ignoring("args.seq-len"), text())
    assert (report.decision, codes(report, "veto")) == ("NO_GO", {"config-ignored"})
    one = report.phases[0].effects[1]
    assert (one.setting, one.declared, one.tried, one.status) == ("args.seq-len", "32", "16", "FAIL")
    assert one.declared_losses == one.tried_losses == tuple(losses(1)[:5])
    failed = verdict(report, "settings.args.seq-len")
    assert failed.message.startswith("With 16 in place of 32: ignored: the loss is the same in all of 6 rows")
    assert verdict(report, "settings.args.batch-size").status == "PASS"
    assert "args.seq-len = 32: the trainer did not run it." in finding(report, "config-ignored").message
    assert "whether it obeys the others is not known" in finding(report, "config-unknown").message


def test_it_is_no_go_where_the_others_need_not_be_decided(tmp_path: Path) -> None:
    lax = {**PHASE, "decide_all": False}
    assert tried(tmp_path, ignoring("args.seq-len"), text(lax)).decision == "NO_GO"


def test_the_runbook_may_accept_it(tmp_path: Path) -> None:
    accepted = {**PHASE, "accept_findings": ["config-ignored"]}
    report = tried(tmp_path, ignoring("args.seq-len"), text(accepted))
    assert (report.decision, codes(report, "veto")) == ("GO", set())
    one = verdict(report, "settings.args.seq-len")
    assert (one.status, one.required) == ("FAIL", False)


@pytest.mark.parametrize("decide_all", [True, False])
def test_a_trainer_without_a_seed_decides_nothing_and_is_advised(tmp_path: Path, decide_all: bool) -> None:
    seeds = iter(range(100))
    phases = ({**PHASE, "decide_all": decide_all}, train(accept=["loss.last < loss.first"]))

    def unseeded(spec: RunSpec) -> FakeRun:
        return short(losses(next(seeds))) if spec.phase == "settings" else sound(spec)

    report = tried(tmp_path, unseeded, text(*phases))
    assert report.decision == ("INCONCLUSIVE" if decide_all else "GO")
    assert {one.status for one in report.phases[0].effects} == {"INCONCLUSIVE"}
    assert "set `seed` of the phase" in report.phases[0].effects[0].message
    assert verdict(report, "baseline.config").status == "INCONCLUSIVE", "nothing is verified"


def test_without_a_seed_the_time_of_a_step_may_decide(tmp_path: Path) -> None:
    seeds = iter(range(100))

    def unseeded(spec: RunSpec) -> FakeRun:
        rates = scatter(90_000.0 if spec.settings else 40_000.0, 6)
        return replace(short(losses(next(seeds))), rates=rates)

    one = tried(tmp_path, unseeded, text()).phases[0].effects[0]
    assert (one.status, "every step is faster than any as declared" in one.message) == ("PASS", True)


@pytest.mark.parametrize(
    ("stderr", "status"),
    [
        ("ValueError: batch_size 2 is below the number of ranks", "PASS"),
        ("    assert args.batch_size % 4 == 0\n           ^^^^^^^^^^^^^^^^^^^\nAssertionError", "PASS"),
        ("train.py: error: argument --batch-size: not a multiple of 4", "PASS"),
        ("CUDA error: unknown error", "INCONCLUSIVE"),
        ("ValueError: too many values to unpack (expected 2)", "INCONCLUSIVE"),
        ("batch_size = 2\nbegins\nfirst line\nsecond line\nOSError: disk full", "INCONCLUSIVE"),
        ("OSError: eval_batch_size_2.txt is missing", "INCONCLUSIVE"),
    ],
)
def test_a_value_that_is_refused_by_name_is_read(tmp_path: Path, stderr: str, status: str) -> None:
    def refusing(spec: RunSpec) -> FakeRun:
        if "args.batch-size" not in spec.settings:
            return sound(spec)
        return short([], rc=1, detail="exited with code 1", stderr=f"Traceback\n{stderr}\n")

    report = tried(tmp_path, refusing, text())
    assert (report.phases[0].effects[0].status, codes(report, "veto", "warning")) == (status, set())
    assert stderr.splitlines()[-1] in verdict(report, "settings.args.batch-size").message


@pytest.mark.parametrize(("digits", "n", "status"), [(2, 6, "INCONCLUSIVE"), (2, 30, "FAIL"), (4, 4, "INCONCLUSIVE")])
def test_equal_losses_count_where_they_could_differ(tmp_path: Path, digits: int, n: int, status: str) -> None:
    phase = {**PHASE, "steps": n, "change": {"args.batch-size": 2}}
    report = tried(tmp_path, short(losses(1, n, digits=digits)), text(phase))
    assert report.phases[0].effects[0].status == status
    assert report.decision == ("NO_GO" if status == "FAIL" else "INCONCLUSIVE")


def test_a_learning_rate_that_is_printed_alike_is_ignored_with_or_without_a_seed(tmp_path: Path) -> None:
    """The table's `lr` is the same in every run."""
    seeds = iter(range(100))
    phase = {**PHASE, "args": {"lr": 0.1}, "change": {"args.lr": 0.3}}
    for name, fake in (("a", lambda spec: short(losses(1))), ("b", lambda spec: short(losses(next(seeds))))):
        report = tried(tmp_path / name, fake, text(phase))
        assert (report.decision, codes(report, "veto")) == ("NO_GO", {"config-ignored"})
        assert "prints the same learning rate at every step" in report.phases[0].effects[0].message


@pytest.mark.parametrize("change", [{"args.lr": 0.11}, {"args.min-lr": 0.3}, {"args.lr-warmup-steps": 30}])
def test_a_printed_learning_rate_need_not_show_everything(tmp_path: Path, change: dict[str, Any]) -> None:
    seeds = iter(range(100))
    phase = {**PHASE, "args": {"lr": 0.1, "min-lr": 0.1, "lr-warmup-steps": 10}, "change": change}
    report = tried(tmp_path, lambda spec: short(losses(next(seeds))), text(phase))
    assert report.phases[0].effects[0].status == "INCONCLUSIVE"


def test_a_run_that_came_to_no_end_proves_nothing_by_its_step_times(tmp_path: Path) -> None:
    seeds = iter(range(100))

    def stalling(spec: RunSpec) -> FakeRun:
        one = short(losses(next(seeds)))
        if not spec.settings:
            return one
        return replace(one, rates=scatter(9_000.0, 6), rc=None, reason="stalled", detail="no step for 60 s")

    assert {one.status for one in tried(tmp_path, stalling, text()).phases[0].effects} == {"INCONCLUSIVE"}


def test_what_need_not_change_the_losses_is_open(tmp_path: Path) -> None:
    phase = {**PHASE, "change": {"args.weight-decay": 0.5, "args.seed": 2}}
    decay, seed = tried(tmp_path, short(losses(1)), text(phase)).phases[0].effects
    assert (decay.status, decay.declared) == ("INCONCLUSIVE", None)
    assert "may be right for this setting" in decay.message
    assert seed.status == "FAIL", "it was named"


def test_the_values_of_a_config_file_are_confirmed_or_not(tmp_path: Path) -> None:
    """A file that is not read: with its values in the command the trainer does something else."""
    phase = {**PHASE, "change": {"args.dim": 32}, "confirm": {"args.dim": 64}}

    def unread(spec: RunSpec) -> FakeRun:
        return short(losses(2 if spec.arm == "confirm" else 1 + 2 * bool(spec.settings)))

    for decide_all in (True, False):
        report = tried(tmp_path / str(decide_all), unread, text({**phase, "decide_all": decide_all}))
        obeyed, confirmed = report.phases[0].effects
        assert (obeyed.status, obeyed.declared, confirmed.status) == ("PASS", "64", "FAIL")
        assert report.decision == "NO_GO"
    read = tried(tmp_path / "b", lambda spec: short(losses(1 + 2 * (spec.arm not in (None, "confirm")))), text(phase))
    assert [one.status for one in read.phases[0].effects] == ["PASS", "PASS"]
    assert read.decision == "GO"


@pytest.mark.parametrize(
    ("run", "why"),
    [
        ("seq-len-16/r1", "no run with the changed value has ended."),
        ("r2", "two runs as declared are needed, and a second did not come to its end."),
    ],
)
@pytest.mark.parametrize("decide_all", [True, False])
def test_a_run_that_is_missing_is_no_pass(tmp_path: Path, decide_all: bool, run: str, why: str) -> None:
    """Nor where what runs do not decide forbids no GO: that was a GO by a journal without the run."""
    root = laid_out(
        tmp_path, sound, text({**PHASE, "decide_all": decide_all}, train(accept=["loss.last < loss.first"]))
    )
    journal = root / "journal.jsonl"
    kept = [line for line in journal.read_text().splitlines() if f'"settings/{run}"' not in line or "plan" in line]
    journal.write_text("\n".join(kept) + "\n")
    report = judged(root)
    assert report.decision == "INCONCLUSIVE"
    assert verdict(report, "settings.args.seq-len").message == f"With 16 in place of 32: {why}"


def test_the_report_has_a_table_of_what_was_tried(tmp_path: Path) -> None:
    report: ValidationReport = tried(tmp_path, ignoring("args.seq-len"), text())
    page = build_page(report)
    table = page.phases[0].effects
    assert table is not None
    assert table.columns[:3] == ("Setting", "Declared", "Tried")
    assert [row[:3] for row in table.rows] == [("args.batch-size", "4", "2"), ("args.seq-len", "32", "16")]
    assert table.rows[1][5] == "FAIL"
    assert "Settings tried with another value" in render_markdown(report)


# A trainer that is really run.

TRAINER = """
import argparse, random
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--batch-size", type=int, default=8)
args, _ = parser.parse_known_args()
weight = 2.0
for step in range(1, args.steps + 1):
    batch = sum(random.gauss(0, 1) for _ in range(args.batch_size)) / args.batch_size
    print(f"step {step} loss {(weight - 1) ** 2 + 0.1 * abs(batch):.4f}", flush=True)
    weight -= args.lr * (weight - 1 + 0.01 * batch)
"""


def test_a_misspelled_flag_of_a_trainer_without_a_seed_is_found_by_what_it_does_not_change(tmp_path: Path) -> None:
    (tmp_path / "drops.py").write_text(TRAINER)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("print('its own is run')\n")
    command = ["drops.py", "--steps", "{steps}", "--lr", "0.2", "--batchsize", "4"]
    trainer = {"command": command, "metrics": {"stdout": "step {step} loss {loss}"}}
    phase = {**PHASE, "seed": 5, "change": {"args.lr": 0.6, "args.batchsize": 2}}
    defaults = {"nproc": 0, "env": {"PYTHONPATH": str(tmp_path / "own")}}
    content = {"schema": 1, "name": "drops", "trainer": trainer, "defaults": defaults, "phases": [phase]}
    (tmp_path / "drops.yaml").write_text(json.dumps(content))
    words = [sys.executable, "-m", "validator", "run", "drops.yaml", "--no-lock", "--json"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    found = {one["setting"]: one["status"] for one in json.loads(done.stdout)["phases"][0]["effects"]}
    assert found == {"args.lr": "PASS", "args.batchsize": "FAIL"}
    (log,) = tmp_path.glob("reports/*/runs/settings/r1/logs/stdout.log")
    assert log.read_text().startswith("its own is run\n")


def test_the_seed_reaches_numpy_when_it_is_imported() -> None:
    folder = Path(settings.__file__).with_name("seeding")
    env = {**os.environ, "PYTHONPATH": str(folder), "VALIDATOR_SEED": "7"}
    code = "import numpy, random; print(numpy.random.rand() == numpy.random.RandomState(7).rand(), random.random())"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == f"True {random.Random(7).random()}\n"


def test_a_seed_needs_a_python_of_this_machine() -> None:
    content = json.loads(text({**PHASE, "seed": 1}))
    content["trainer"] |= {"launcher": "plain", "command": ["./train.sh", "{steps}", "{out}"]}
    with pytest.raises(RunbookError, match="seed of settings is set by Python on this machine"):
        loads(json.dumps(content))

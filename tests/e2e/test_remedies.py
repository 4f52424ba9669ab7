"""What a runbook allows after a failure, tried by the real engine; and data that cannot be reached."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.folders import decided, result_of, run_folder

_TRAINER = '''
"""Fails the first time it is told to, and is slow unless its bucket is 50."""
import argparse, os, pathlib, sys

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
parser.add_argument("--out", type=pathlib.Path)
parser.add_argument("--once", type=pathlib.Path)
args = parser.parse_args()
if args.once and not args.once.exists():
    args.once.touch()
    sys.exit("the network was not there yet")
rate = 100.0 if os.environ.get("NSA_DDP_BUCKET_MB") == "50" else 10.0
rows = [f"{step},{5 - step * 0.01},0.001,{rate}" for step in range(1, args.steps + 1)]
(args.out / "training.csv").write_text("\\n".join(["step,loss,lr,toks_per_s", *rows, ""]))
'''

_SMOKE = """
import json, sys
print(json.dumps({"ok": False, "error": "unreachable", "message": "no answer from the hub"}))
sys.exit(5)
"""


@pytest.fixture
def book(workdir: Path):
    (workdir / "trainer.py").write_text(_TRAINER)
    (workdir / "smoke.py").write_text(_SMOKE)

    def write(*phases: str) -> str:
        listed = "\n".join(f"  - {phase}" for phase in phases)
        (workdir / "book.yaml").write_text(f"""\
schema: 1
name: remedies
trainer: {{command: [trainer.py], args: {{steps: "{{steps}}", out: "{{out}}"}}, metrics: {{csv: training.csv}}}}
defaults: {{nproc: 0, timeout: 60s, warmup_steps: 5}}
phases:
{listed}
""")
        return "book.yaml"

    return write


def test_a_remedy_that_changes_the_config_leaves_no_go_and_is_recommended(cli, book, workdir: Path) -> None:
    phase = "{id: a, kind: train, steps: 60, accept: [toks_per_s.mean >= 50], on_failure: [port, bucket_50, fused_off]}"
    result = decided(cli("run", book(phase)), workdir, 1, "NO_GO")
    declared, remedy = result["phases"][0]["remedies"]
    assert (declared["name"], declared["status"], declared["decides"]) == (None, "FAIL", True)
    assert (remedy["name"], remedy["status"], remedy["decides"]) == ("bucket_50", "PASS", False), "port is for stalls"
    assert (remedy["keeps_config"], remedy["runs"]) == (False, ["a/remedy-bucket_50/r1"])
    assert result["recommended"]["env"] == {"NSA_DDP_BUCKET_MB": "50"}
    (finding,) = [one for one in result["findings"] if one["code"] == "remedied"]
    assert "Declare NSA_DDP_BUCKET_MB=50" in finding["next_step"]
    assert "With remedy bucket_50 (NSA_DDP_BUCKET_MB=50) it passes" in result["why"]
    assert "as declared ★ decides" in (run_folder(workdir) / "report.md").read_text(encoding="utf-8")


def test_a_remedy_that_keeps_the_config_may_repair_the_phase_and_is_named(cli, book, workdir: Path) -> None:
    first = (
        '{id: a, kind: train, steps: 60, args: {once: "{run_dir}/once"}, accept: [loss.last < 4.5], on_failure: [port]}'
    )
    after = "{id: b, kind: train, needs: [a], steps: 60, accept: [loss.last <= a.loss.last]}"
    before = decided(cli("run", book(first, after)), workdir, 0, "GO")
    phase = before["phases"][0]
    assert [(go["name"], go["status"], go["decides"]) for go in phase["remedies"]] == [
        (None, "FAIL", False),
        ("port", "PASS", True),
    ]
    assert "after remedy port" in phase["message"]
    assert {run["id"] for run in phase["runs"]} == {"a/r1", "a/remedy-port/r1"}
    assert [one["code"] for one in before["findings"]].count("remedied") == 1
    events = [json.loads(line) for line in (run_folder(workdir) / "journal.jsonl").read_text().splitlines()]
    (ended,) = [event for event in events if event["event"] == "remedy_ended"]
    assert (ended["remedy"], ended["decides"]) == ("port", True)
    assert cli("report", str(run_folder(workdir))).rc == 0
    assert result_of(workdir)["phases"] == before["phases"], "judging again from disk must tell the same"


def test_remedies_that_do_not_help_are_told_and_change_nothing(cli, book, workdir: Path) -> None:
    phase = "{id: a, kind: train, steps: 60, accept: [toks_per_s.mean >= 500], on_failure: [fused_off, bucket_50]}"
    result = decided(cli("run", book(phase)), workdir, 1, "NO_GO")
    assert [go["name"] for go in result["phases"][0]["remedies"]] == [None, "fused_off", "bucket_50"]
    assert "Remedies tried without effect: fused_off, bucket_50." in result["phases"][0]["message"]
    assert result["recommended"]["env"] == {}


def test_data_out_of_reach_start_no_training_and_forbid_go(cli, book, workdir: Path) -> None:
    phase = "{id: d, kind: data, steps: 60, smoke: [smoke.py], accept: [loss.last < loss.first], on_failure: [port]}"
    answer = cli("run", book(phase))
    result = result_of(workdir)
    assert (answer.rc, result["decision"]) == (3, "INCONCLUSIVE"), answer.err
    (found,) = result["phases"]
    assert found["status"] == "SKIPPED"
    assert [run["id"] for run in found["runs"]] == ["d/smoke"]
    assert found["remedies"] == [], "another port brings no data"
    assert "unreachable: no answer from the hub" in result["why"]
    assert "cannot be GO" in result["why"]


def test_a_resumed_validation_goes_on_in_the_middle_of_a_remedy(cli, book, workdir: Path) -> None:
    phase = "{id: a, kind: train, steps: 60, accept: [toks_per_s.mean >= 500], on_failure: [bucket_50, fused_off]}"
    cli("run", book(phase))
    before, folder = result_of(workdir), run_folder(workdir)
    lines = (folder / "journal.jsonl").read_text().splitlines(keepends=True)
    (first_end, _) = [number for number, line in enumerate(lines) if '"remedy_ended"' in line]
    (folder / "journal.jsonl").write_text("".join(lines[:first_end]))  # killed once bucket_50's run had ended
    stamp = (folder / "runs/a/remedy-bucket_50/r1/training.csv").stat().st_mtime_ns
    answer = cli("run", "--resume", str(folder))
    after = result_of(workdir)
    assert (answer.rc, after["decision"]) == (1, before["decision"]), answer.err
    assert (folder / "runs/a/remedy-bucket_50/r1/training.csv").stat().st_mtime_ns == stamp, "it had ended"
    goes = [[(go["name"], go["status"]) for go in result["phases"][0]["remedies"]] for result in (before, after)]
    assert goes[0] == goes[1] == [(None, "FAIL"), ("bucket_50", "FAIL"), ("fused_off", "FAIL")]


def test_a_phase_runs_only_when_what_it_needs_has_passed(cli, book, workdir: Path) -> None:
    answer = cli(
        "run",
        book(
            "{id: broken, kind: command, run: 'exit 3'}",
            "{id: after, kind: command, needs: [broken], run: 'touch after'}",
            "{id: beside, kind: command, run: 'touch beside'}",
        ),
    )
    phases = {phase["id"]: phase for phase in result_of(workdir)["phases"]}
    assert answer.rc == 1
    assert {name: phase["status"] for name, phase in phases.items()} == {
        "broken": "FAIL",
        "after": "NOT_RUN",
        "beside": "PASS",
    }
    assert "it needs `broken`, which ended FAIL" in phases["after"]["message"].replace("It needs", "it needs")
    assert (workdir / "beside").exists()
    assert not (workdir / "after").exists()

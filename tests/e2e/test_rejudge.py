"""Everything right of the artifacts can be repeated from disk, by the same words, wherever the folder lies now."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tests.e2e.folders import result_of, run_folder

LOOSE = ("artifacts",)  # the rest must agree to the letter


def _judged(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key not in LOOSE}


def test_report_agrees_with_the_run_also_after_a_move(cli, train_runbook, workdir: Path) -> None:
    extra = """\
  - id: buckets
    kind: sweep
    steps: 60
    over: {env.BUCKET: [1, 2]}
    repeats: 2
    choose: {highest: toks_per_s.mean, tie: toks_per_s.stdev, adopt: true}
  - {id: words, kind: command, run: "echo answer 42", stdout: 'answer (?P<answer>\\d+)', accept: [metrics.answer == 42]}
"""
    book = train_runbook(accept=("toks_per_s.mean >= 10",), extra=extra)
    ran = cli("run", str(book))
    before = result_of(workdir)
    moved = workdir / "elsewhere" / "moved"
    moved.parent.mkdir()
    shutil.move(run_folder(workdir), moved)
    for name in ("result.json", "report.html", "report.md"):
        (moved / name).unlink()
    again = cli("report", str(moved))
    after = json.loads((moved / "result.json").read_text(encoding="utf-8"))
    assert again.rc == ran.rc, again.err
    assert _judged(after) == _judged(before)
    assert (moved / "report.html").is_file()


def test_inspect_gives_the_same_metrics_as_the_run(cli, train_runbook, workdir: Path) -> None:
    cli("run", str(train_runbook(accept=("toks_per_s.mean >= 10",))))
    result = result_of(workdir)
    run = result["phases"][0]["runs"][0]
    answer = cli("inspect", str(run_folder(workdir) / run["out"]), "--warmup-steps", "10", "--json")
    assert answer.rc == 0, answer.err
    ours, theirs = answer.json["metrics"]["toks_per_s"], run["metrics"]["toks_per_s"]
    for key in ("unit", "n", "mean", "stdev", "ci_low", "ci_high", "p95", "window", "sha256"):
        assert ours[key] == theirs[key], key


def test_a_folder_that_is_no_run_is_refused(cli, workdir: Path) -> None:
    answer = cli("report", str(workdir))
    assert answer.rc == 2
    assert "run.json" in answer.err

"""Files that are not this run's: of another run, of before, of elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

from tests.validator.diagnose.cases import (
    healthy,
    of_folder,
    of_run,
)
from tests.validator.ingest.folders import START_S, outcome, write_logs


def test_a_healthy_run_has_no_findings(tmp_path: Path) -> None:
    assert of_run(healthy(tmp_path / "r")) == {}
    assert of_folder(tmp_path / "r") == {}


def test_mixed_runs(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "r")
    path = folder / "training.csv"
    path.write_text(path.read_text() * 2)
    finding = of_run(folder)["mixed-runs"]
    assert (finding.severity, finding.confidence) == ("veto", "high")
    assert finding.evidence[0].path == "r/training.csv"
    assert finding.evidence[0].where == "line 63"


def test_a_stale_halt_that_stopped_the_run_is_a_veto(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    folder.mkdir()
    (folder / ".HALT").write_text("")
    os.utime(folder / ".HALT", (START_S - 500, START_S - 500))
    assert of_run(folder, ended=outcome(rc=3))["stale-halt"].severity == "veto"
    assert of_run(folder)["stale-halt"].severity == "warning"


def test_a_halt_of_the_watchdog_before_the_first_step_is_not_stale(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    write_logs(folder, stderr="stopping: .HALT found\n")
    assert "stale-halt" not in of_run(folder, ended=outcome(rc=3, reason="stalled"))


def test_a_halt_of_this_run_is_not_stale(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "r")
    (folder / ".HALT").write_text("asked for by the watchdog")
    assert "stale-halt" not in of_run(folder, ended=outcome(rc=3))


def test_a_refusal_to_start_because_of_a_halt_is_recognized_by_its_text(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    write_logs(folder, stderr="error: out/.HALT is left from an earlier run; remove it\n")
    assert of_run(folder, ended=outcome(rc=2))["stale-halt"].confidence == "medium"


def test_a_trainer_that_a_halt_of_an_earlier_run_stops_may_call_it_success(tmp_path: Path) -> None:
    """Its own folder is not the run's, so only its text tells."""
    folder = tmp_path / "r"
    write_logs(folder, stdout="[boot] model ready\n[train] HALT file detected — stopping gracefully.\n", rank=0)
    found = of_run(folder, ended=outcome(), steps=200)
    assert (found["stale-halt"].severity, "missing-evidence" in found) == ("veto", False)
    watching = tmp_path / "w"
    write_logs(watching, stdout="watching for a HALT file in out\n", rank=0)
    assert "stale-halt" not in of_run(watching, ended=outcome(), steps=200)


def test_results_of_another_run(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "r")
    os.utime(folder / "training.csv", (START_S - 86400, START_S - 86400))
    finding = of_run(folder)["foreign-results"]
    assert finding.severity == "veto"
    assert "86400 s before" in finding.message

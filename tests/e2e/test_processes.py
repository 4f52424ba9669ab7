"""No process survives a run, whether it finished, failed or was interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.e2e.folders import result_of, run_folder
from tests.processes import start_validator, wait_until


def _marked(folder: Path) -> list[psutil.Process]:
    """Every process that was started for a run below `folder`, however deep."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and str(folder) in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize("fault", ["none", "exit"])
def test_nothing_is_left_after_the_end(cli, train_runbook, workdir: Path, fault: str) -> None:
    cli("run", str(train_runbook(fault=fault, steps=50)))
    assert _marked(workdir) == []


def test_ctrl_c_stops_the_run_and_says_so(train_runbook, workdir: Path, tmp_path: Path) -> None:
    book = train_runbook(fault="none", steps=100_000)
    (tmp_path / "runtime").mkdir()
    own = {"XDG_RUNTIME_DIR": str(tmp_path / "runtime")}
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    runner = start_validator("run", str(book), cwd=workdir, env=own, start_new_session=True, **streams)
    wait_until(lambda: any(workdir.rglob("training.csv")), "the start of the trainer", timeout_s=30)
    os.killpg(runner.pid, signal.SIGINT)  # as a terminal does
    _, err = runner.communicate(timeout=60)
    assert runner.returncode == 130, err
    assert [process for process in _marked(workdir) if process.pid != runner.pid] == []
    result = result_of(workdir)
    assert result["decision"] != "GO"
    assert result["phases"][0]["runs"][0]["outcome"]["reason"] == "interrupted"
    assert (run_folder(workdir) / "report.html").is_file()

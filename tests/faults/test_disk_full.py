"""A disk that refuses: one sentence, exit code 4, nothing left running, and the run can go on afterwards.

The kernel refuses here by RLIMIT_FSIZE: no file may grow beyond the limit. That needs no privileges, and every write
fails where it would on a full disk, in the middle of a line.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.kill_and_resume import processes_of
from tests.faults.plain_runbook import write_runbook
from tests.processes import python
from validator.runs.journal import Journal, read

pytestmark = pytest.mark.usefixtures("quick_snapshot")


@pytest.fixture
def limited(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `validator …` where no file may grow beyond `limit_bytes` (None: as large as it likes)."""

    def call(*arguments: str, limit_bytes: int | None) -> subprocess.CompletedProcess[str]:
        def lower() -> None:
            if limit_bytes is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))

        own = {"XDG_RUNTIME_DIR": str(tmp_path), "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        words = ("-m", "validator", *arguments)
        return python(*words, cwd=tmp_path, env=own, timeout_s=120, preexec_fn=lower)

    return call


@pytest.mark.parametrize("limit_kib", [1, 12, 24, 48])
def test_whatever_cannot_be_written_ends_in_a_sentence(
    limited: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, limit_kib: int
) -> None:
    runbook = write_runbook(tmp_path)
    done = limited("run", str(runbook), "--only", "words", "--only", "baseline", limit_bytes=limit_kib << 10)
    assert done.returncode == 4, done.stderr
    assert "Traceback" not in done.stderr
    assert "cannot be written: File too large" in done.stderr
    assert "continue with: validator run" in done.stderr
    for folder in (path.parent for path in tmp_path.glob("reports/*/run.json")):
        assert processes_of(folder) == []


def test_with_room_again_it_goes_on(limited: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    runbook = write_runbook(tmp_path)
    limited("run", str(runbook), "--only", "words", "--only", "baseline", limit_bytes=24 << 10)
    (folder,) = (path.parent for path in tmp_path.glob("reports/*/run.json"))
    done = limited("run", "--resume", str(folder), limit_bytes=None)
    assert done.returncode == 3, done.stderr
    result = json.loads((folder / "result.json").read_text())
    ran = {phase["id"]: phase["status"] for phase in result["phases"]}
    assert (ran["words"], ran["baseline"], ran["again"]) == ("PASS", "PASS", "SKIPPED")


def test_a_report_that_cannot_be_written_again_is_told(
    limited: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    runbook = write_runbook(tmp_path)
    limited("run", str(runbook), "--only", "words", limit_bytes=None)
    (folder,) = (path.parent for path in tmp_path.glob("reports/*/run.json"))
    before = (folder / "report.html").read_bytes()
    done = limited("report", str(folder), limit_bytes=4096)
    assert done.returncode == 4
    assert "continue with: validator report" in done.stderr
    assert (folder / "report.html").read_bytes() == before, "the old report stays whole"


def test_a_line_that_did_not_fit_is_not_in_the_journal_in_part(tmp_path: Path) -> None:
    program = """
import resource, sys
from pathlib import Path
from validator.runs.journal import Journal
with Journal.open(Path(sys.argv[1])) as journal:
    journal.append("first")
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, resource.RLIM_INFINITY))
    try:
        journal.append("second", text="x" * 400)
    except OSError as error:
        print(error.strerror)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    journal.append("third")
"""
    path = tmp_path / "journal.jsonl"
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == "File too large\n"
    assert [event.event for event in read(path)] == ["first", "third"]
    Journal.open(path).close()
    assert len(path.read_bytes().splitlines()) == 2

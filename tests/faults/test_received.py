"""A folder received from others: judged, never obeyed. It reads nothing outside, writes nothing outside, and ends."""

from __future__ import annotations

import gzip
import json
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.faults.test_garbled_journal import change
from tests.fuzz.folders import Whole
from validator.bisect.side import End, read_end
from validator.bisect.work import BisectHeader, resume
from validator.errors import FolderError, Unable
from validator.model.runbook import Trainer
from validator.pipeline.share import share
from validator.pipeline.write import rerender
from validator.runs import replay
from validator.runs.folder import RunFolder
from validator.supervise.watch import write_halt

SECRET = "canary-7d1f"


@pytest.fixture
def received(tmp_path: Path) -> Path:
    """A run folder, beside a folder that is none of its own."""
    root = Whole(tmp_path / "whole").root
    outside = root.parent.parent / "outside"
    (outside / "logs").mkdir(parents=True)
    for name in ("training.csv", "logs/stderr.log", "logs/stdout.log", "metrics.json", "stackdump_1.txt"):
        (outside / name).write_text(f"RuntimeError: {SECRET}\n")
    return root


def renderings(root: Path) -> dict[str, str]:
    """Everything that is written of a folder, its copy for others included."""
    rerender(RunFolder.open(root))
    copy = root.parent / "shared"
    with suppress(FolderError):  # a copy that would be judged otherwise is refused
        share(root, out=copy)
    return {
        str(path): path.read_text(errors="replace")
        for parent in (root, copy)
        for path in parent.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


def fail(line: dict[str, Any]) -> None:
    line["outcome"]["attempts"][-1]["rc"] = 1


@pytest.mark.parametrize("name", ["logs/stderr.log", "logs/stdout.log", "logs", "other.log", "metrics.json"])
def test_what_a_link_leads_to_is_in_no_rendering(received: Path, name: str) -> None:
    """The last lines of a failed run are quoted: of its own log, and of no other."""
    change(received, "run_ended", fail)
    path = received / "runs/baseline/r1" / name
    if path.is_dir():
        path.rename(path.with_name("before"))
    path.unlink(missing_ok=True)
    path.symlink_to(received.parent.parent / "outside" / name.replace("other.log", "logs/stderr.log"))
    assert [path for path, text in renderings(received).items() if SECRET in text] == []


@pytest.mark.parametrize("out", ["../../outside", "../outside", "/proc/self", "runs/../../../outside"])
def test_a_path_in_the_journal_leads_nowhere_else(received: Path, out: str) -> None:
    change(received, "run_ended", fail)
    change(received, "run_started", lambda line: line["spec"].update(out=out))
    assert [path for path, text in renderings(received).items() if SECRET in text] == []


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10 * 2**30)


HOSTILE: dict[str, Callable[[Path], None]] = {
    "a FIFO": _fifo,
    "an endless device": lambda path: path.symlink_to("/dev/zero"),
    "ten sparse gibibytes": _sparse,
    "deep JSON": lambda path: path.write_text('{"a":' * 100_000 + "1" + "}" * 100_000) and None,
    "a deep list": lambda path: path.write_text("- " * 100_000) and None,
    "a folder": Path.mkdir,
    "a huge number": lambda path: path.write_text('{"a": ' + "9" * 5000 + "}") and None,
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize("name", ["run.json", "journal.jsonl", "environment.json", "last_go.json", "share.json"])
def test_a_header_that_is_none_ends_in_a_sentence(received: Path, name: str, what: str) -> None:
    (received / name).unlink(missing_ok=True)
    HOSTILE[what](received / name)
    if name in ("run.json", "journal.jsonl"):
        with suppress(FolderError):
            rerender(RunFolder.open(received))
        return
    report, _ = rerender(RunFolder.open(received))
    assert json.loads((received / "result.json").read_text())["decision"] == report.decision


@pytest.mark.parametrize(
    "fields",
    [{"finished": [1]}, {"duration_s": "long"}, {"duration_s": [1]}, {"reason": {}}, {"run": [1]}, {"phase": {}}],
)
@pytest.mark.parametrize("event", ["finished", "phase_ended", "run_ended"])
def test_an_end_of_other_types_is_no_end(received: Path, event: str, fields: dict[str, object]) -> None:
    change(received, event, lambda line: line.update(fields))
    report, _ = rerender(RunFolder.open(received))
    assert json.loads((received / "result.json").read_text())["decision"] == report.decision


def test_a_line_of_the_journal_that_is_no_event_is_kept_in_a_copy(received: Path) -> None:
    with (received / "journal.jsonl").open("a") as file:
        file.write('[1, 2]\n"x"\n')
    share(received, out=received.parent / "shared")
    assert (received.parent / "shared/journal.jsonl").read_text().endswith('[1, 2]\n"x"\n')


def test_a_process_that_cannot_be_is_no_runner(received: Path) -> None:
    header = json.loads((received / "run.json").read_text())
    (received / "run.json").write_text(json.dumps({**header, "host": socket.gethostname(), "pid": -5}))
    assert not RunFolder.open(received).header.runner.alive()


def test_a_copy_unpacks_to_no_more_than_a_copy_holds(received: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files of zeros, each within its limit, filled the disk together."""
    names = [f"zeros{number}.txt" for number in range(5)]
    for name in names:
        (received / f"{name}.gz").write_bytes(gzip.compress(b"\0" * 2**20))
    (received / "share.json").write_text(json.dumps({"packed": names}))
    rerender(RunFolder.open(received))
    monkeypatch.setattr(replay, "_MAX_TEXT", 4 * 2**20)
    with pytest.raises(FolderError, match="more than a sanitized copy does"):
        rerender(RunFolder.open(received))


def test_a_halt_is_written_beside_a_link_and_not_through_it(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    for name in (".HALT", ".anomaly_type"):
        (tmp_path / f"victim{name}").write_text("precious")
        (tmp_path / "out" / name).symlink_to(tmp_path / f"victim{name}")
    write_halt(tmp_path / "out", code="stall", why="it stalled")
    assert (tmp_path / "out" / ".HALT").read_text() == "it stalled\n"
    assert [(tmp_path / f"victim{name}").read_text() for name in (".HALT", ".anomaly_type")] == ["precious"] * 2


def test_a_folder_from_before_checksums_is_judged_and_called_unverified(received: Path) -> None:
    """The journal of this one holds none."""
    report, _ = rerender(RunFolder.open(received))
    assert report.decision == "GO"
    assert "baseline/r1" in report.environment["unverified"]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("what", ["pipe", "endless", "large", "elsewhere"])
def test_a_bisection_that_is_none_is_refused_in_a_sentence(tmp_path: Path, what: str) -> None:
    request = tmp_path / "request.json"
    if what == "pipe":
        os.mkfifo(request)
    elif what == "endless":
        request.symlink_to("/dev/zero")
    elif what == "large":
        with request.open("wb") as file:
            file.truncate(10 * 2**30)
    else:
        end = End(name="a", trainer=Trainer())
        header = BisectHeader(
            good=end,
            bad=end,
            metric="toks_per_s",
            steps=4,
            warmup_steps=1,
            timeout_s=1.0,
            max_runs=2,
            repeats=1,
            started="",
            cwd=str(tmp_path / "gone"),
        )
        request.write_text(header.model_dump_json())
    with pytest.raises((FolderError, Unable), match=r"no folder|cannot be entered"):
        resume(tmp_path, lock=False, note=print)


@pytest.mark.parametrize("phase", ["gone", "|a|`b`", "../up"])
def test_a_run_of_a_phase_that_the_runbook_lacks_is_no_end_of_a_bisection(received: Path, phase: str) -> None:
    assert read_end(received).steps > 0
    change(received, "run_started", lambda line: line["spec"].update(phase=phase))
    with pytest.raises(FolderError, match="none that trains"):
        read_end(received)

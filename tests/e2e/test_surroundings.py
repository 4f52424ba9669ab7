"""Whatever becomes of the terminal, a validation comes to its decision, and the exit code says which."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.folders import result_of, run_folder
from tests.processes import python, start_validator

_RUNBOOK = """\
schema: 1
name: words
phases:
  - {id: words, kind: command, run: "echo it is 42", stdout: 'is (?P<it>\\d+)', accept: [metrics.it == 42]}
"""


@pytest.fixture
def start(workdir: Path, tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Start `validator …` with the streams that are given."""
    (workdir / "words.yaml").write_text(_RUNBOOK, encoding="utf-8")

    def begin(*arguments: str, **streams: Any) -> subprocess.Popen[str]:
        own = {"XDG_RUNTIME_DIR": str(tmp_path), "NO_COLOR": "1"}
        return start_validator(*arguments, cwd=workdir, env=own, **streams)

    return begin


def test_a_reader_that_leaves_costs_no_decision(start: Callable[..., subprocess.Popen[str]], workdir: Path) -> None:
    """`validator run words.yaml 2>&1 | head -1`."""
    process = start("run", "words.yaml", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=60) == 0
    assert result_of(workdir)["decision"] == "GO"
    assert (run_folder(workdir) / "report.html").is_file()


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_full_device_costs_no_decision(
    start: Callable[..., subprocess.Popen[str]], workdir: Path, stream: str
) -> None:
    with Path("/dev/full").open("wb") as full:
        other = {"stdout": "stderr", "stderr": "stdout"}[stream]
        process = start("run", "words.yaml", **{stream: full, other: subprocess.PIPE})
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert result_of(workdir)["decision"] == "GO"
    assert stream == "stderr" or "standard output cannot be written: No space left on device" in err


def test_output_that_is_the_whole_answer_must_not_be_lost(start: Callable[..., subprocess.Popen[str]]) -> None:
    with Path("/dev/full").open("wb") as full:
        assert start("list", stdout=full).wait(timeout=60) == 4
        assert start("check", "words.yaml", stdout=full).wait(timeout=60) == 0


def test_closed_streams_cost_no_decision_and_no_file_gets_their_numbers(
    start: Callable[..., subprocess.Popen[str]], workdir: Path
) -> None:
    process = start("run", "words.yaml", preexec_fn=lambda: os.closerange(0, 3))
    assert process.wait(timeout=60) == 0
    folder = run_folder(workdir)
    assert result_of(workdir)["decision"] == "GO"
    assert all(json.loads(line)["event"] for line in (folder / "journal.jsonl").read_text().splitlines())


@pytest.mark.parametrize("files", [5, 8, 12, 14, 16])
def test_too_few_open_files_are_no_decision(
    start: Callable[..., subprocess.Popen[str]], workdir: Path, files: int
) -> None:
    """The answer is GO, or 4 and a sentence. With three Python itself cannot start."""
    process = start(
        "run",
        "words.yaml",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)),
    )
    _, err = process.communicate(timeout=60)
    if process.returncode == 0:
        assert result_of(workdir)["decision"] == "GO"
    else:
        assert process.returncode == 4, err
        assert "Too many open files" in err


def test_a_terminal_that_takes_nothing_stops_no_runner(
    start: Callable[..., subprocess.Popen[str]], workdir: Path
) -> None:
    """Ctrl-S, or a pager whose reader looks away: the pipe is full and stays so."""
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    try:
        while True:
            os.write(write_fd, b"." * 4096)
    except BlockingIOError:
        os.set_blocking(write_fd, True)
    process = start("run", "words.yaml", stdout=subprocess.DEVNULL, stderr=write_fd)
    began = time.monotonic()
    assert process.wait(timeout=60) == 0
    assert time.monotonic() - began < 30
    assert result_of(workdir)["decision"] == "GO"
    os.close(read_fd)
    os.close(write_fd)


def test_a_broken_installation_is_no_decision(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise ImportError('half installed')", encoding="utf-8")
    done = python("-m", "validator", "--version", env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 4
    assert "half installed" in done.stderr


def test_nothing_printed_acts_on_a_terminal(tmp_path: Path) -> None:
    """Every command cleans what it shows; should one forget to, its streams do. JSON stays the same value."""
    program = """
import sys
from validator.cli import _steady_streams
_steady_streams()
hostile = "\\x1b]0;title\\x07 \\x1b[2J \\x9b2J \\u202e \\x08"
for stream in (sys.stdout, sys.stderr):
    print("\\x1b[31mred\\x1b[0m\\t" + hostile, file=stream)
import json
print(json.dumps(hostile, ensure_ascii=False))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=True)
    out, err = done.stdout.decode(), done.stderr.decode()
    for text in (out, err):
        assert "\x1b[31mred\x1b[0m\t\\u001b]0;title" in text
        assert not set(text.replace("\x1b[31m", "").replace("\x1b[0m", "")) & set("\x1b\x07\x9b\x08\u202e")
    assert json.loads(out.splitlines()[-1]) == "\x1b]0;title\x07 \x1b[2J \x9b2J \u202e \x08"


def test_a_private_umask_is_respected(start: Callable[..., subprocess.Popen[str]], workdir: Path) -> None:
    process = start("run", "words.yaml", stderr=subprocess.DEVNULL, preexec_fn=lambda: os.umask(0o077) and None)
    assert process.wait(timeout=60) == 0
    folder = run_folder(workdir)
    assert start("report", str(folder), "--share", preexec_fn=lambda: os.umask(0o077) and None).wait(timeout=60) == 0
    written = [folder.parent, *folder.parent.rglob("*")]
    assert [str(path) for path in written if path.lstat().st_mode & 0o077 and not path.is_symlink()] == []


def test_a_working_folder_that_is_gone_is_said_in_a_sentence(tmp_path: Path) -> None:
    book, workdir = tmp_path / "words.yaml", tmp_path / "work"
    book.write_text(_RUNBOOK, encoding="utf-8")
    workdir.mkdir()
    leave = f"import os; os.rmdir({str(workdir)!r}); from validator.cli import main; main()"
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    begun = python("-c", leave, "run", str(book), "--out", "reports", "--no-lock", cwd=workdir, env=path)
    assert begun.returncode == 4
    assert "No such file or directory" in begun.stderr
    assert "Traceback" not in begun.stderr

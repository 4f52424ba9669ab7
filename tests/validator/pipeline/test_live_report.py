"""The report of a validation that goes on: nobody waits for it, and it never stands in for the last one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.validator.supervise.tools import eventually, runs
from validator.kinds.registry import load
from validator.pipeline import live_report, write
from validator.pipeline.live_report import LiveReport
from validator.report import figure as svg
from validator.runs.folder import RENDERINGS, RunFolder, Runner
from validator.runs.journal import Journal

RUNBOOK = """\
schema: 1
name: two
phases:
  - {id: first, kind: command, run: "true"}
  - {id: second, kind: command, run: "true"}
"""
NEVER_READY = "import sys, time; sys.stdin.readline(); open('asked', 'w').close(); time.sleep(600)"
"""A drawing that takes longer than any test."""

READY = """
import pathlib, sys
for number, _ in enumerate(sys.stdin, 1):
    for name in {names}:
        pathlib.Path({folder!r}, name).write_text(f"drawing {{number}}")
    print("drawn", flush=True)
    open("ready", "w").close()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run folder whose validation has just begun; reports are due at once."""
    monkeypatch.setattr(live_report, "_SETTLED_S", 0.0)
    monkeypatch.setattr(live_report, "_INTERVAL_S", 0.0)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.yaml").write_text(RUNBOOK, encoding="utf-8")
    made = RunFolder.create(load(tmp_path / "two.yaml"), parent=tmp_path, python=sys.executable, only=(), skip=())
    with Journal.open(made.journal) as journal:
        journal.append("started", run_id=made.header.run_id)
        journal.append("phase_started", phase="first")
    return made


@pytest.fixture
def said() -> list[str]:
    return []


def _program(text: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", text)


def _ready(folder: RunFolder) -> tuple[str, ...]:
    return _program(READY.format(names=RENDERINGS, folder=str(folder.drawing)))


def _polled(live: LiveReport, path: Path) -> Iterator[bool]:
    while True:
        live.poll()
        yield path.exists()


def test_a_poll_waits_for_no_drawing(folder: RunFolder, said: list[str]) -> None:
    live = LiveReport(folder, note=said.append, program=_program(NEVER_READY))
    live.schedule()
    live.poll()
    process = live._process
    assert process is not None
    assert eventually(Path("asked").exists)
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19, "what is measured goes first"
    for _ in range(3):
        live.schedule()
        live.poll()
    assert live._process is process, "one after the other, never two at once"
    live.close()
    assert not runs(process.pid)
    assert not folder.drawing.exists()
    assert said == []


def test_what_is_ready_is_shown_at_the_next_poll(folder: RunFolder, said: list[str]) -> None:
    live = LiveReport(folder, note=said.append, program=_ready(folder))
    result = folder.root / "result.json"
    for number in (1, 2):
        result.unlink(missing_ok=True)
        live.schedule()
        looks = _polled(live, result)
        assert eventually(lambda looks=looks: next(looks))
        assert {(folder.root / name).read_text() for name in RENDERINGS} == {f"drawing {number}"}
    drawings = folder.drawing / "drawings.json"
    drawings.write_text('{"of that hash": "<svg/>"}', encoding="utf-8")
    live.close()
    assert said == []
    assert svg._kept.pop("of that hash") == "<svg/>", "the last report draws only what is new"


def test_a_drawing_that_comes_late_does_not_replace_the_last_report(folder: RunFolder, said: list[str]) -> None:
    live = LiveReport(folder, note=said.append, program=_ready(folder))
    live.schedule()
    live.poll()
    assert eventually(Path("ready").exists)
    live.close()
    (folder.root / "result.json").write_text("the last", encoding="utf-8")
    for _ in range(3):
        live.poll()
    assert (folder.root / "result.json").read_text(encoding="utf-8") == "the last"
    assert not folder.drawing.exists()


def test_a_phase_that_is_over_soon_needs_none(folder: RunFolder, said: list[str]) -> None:
    live = LiveReport(folder, note=said.append, program=_ready(folder))
    live.schedule()
    live.unschedule()
    live.poll()
    assert live._process is None
    live.close()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import sys; sys.stdin.readline()", "the process that draws it has ended"),
        ("import sys\nfor _ in sys.stdin: print('No space left on device', flush=True)", "No space left on device"),
        ("import sys\nfor _ in sys.stdin: print('drawn', flush=True)", "No such file or directory"),
    ],
)
def test_what_cannot_be_drawn_is_said_and_tried_again(folder: RunFolder, said: list[str], text: str, why: str) -> None:
    live = LiveReport(folder, note=said.append, program=_program(text))
    for times in (1, 2):
        live.schedule()
        assert eventually(lambda times=times: live.poll() or len(said) >= times)
        assert said[-1] == f"the live report cannot be written: {why}"
    live.close()


def test_without_the_program_the_validation_goes_on(folder: RunFolder, said: list[str]) -> None:
    live = LiveReport(folder, note=said.append, program=("/nowhere/python",))
    live.schedule()
    live.poll()
    live.close()
    assert said == ["the live report cannot be written: No such file or directory"]


def test_it_draws_what_the_journal_says_and_follows_it(folder: RunFolder, said: list[str]) -> None:
    for name in ("json.py", "validator.py"):  # a trainer's modules are nobody else's
        Path(name).write_text("raise SystemExit(1)", encoding="utf-8")
    live = LiveReport(folder, note=said.append)
    statuses = []
    for _ in range(2):
        result = folder.root / "result.json"
        result.unlink(missing_ok=True)
        live.schedule()
        looks = _polled(live, result)
        assert eventually(lambda looks=looks: next(looks), within_s=60), said
        found = json.loads(result.read_text(encoding="utf-8"))
        statuses.append((found["decision"], *(phase["status"] for phase in found["phases"])))
        assert not any(".drawing" in one["path"] for one in found["artifacts"])
        with Journal.open(folder.journal) as journal:
            journal.append("phase_ended", phase="first", state="not_run", reason="for a test")
    assert statuses == [("IN_PROGRESS", "RUNNING", "NOT_RUN"), ("IN_PROGRESS", "NOT_RUN", "RUNNING")]
    with Journal.open(folder.journal) as journal:
        journal.append("phase_ended", phase="second", state="not_run", reason="for a test")
    before = result.read_text(encoding="utf-8")
    live.schedule()
    live.poll()
    assert eventually(lambda: live.poll() or not live._drawing)
    assert (result.read_text(encoding="utf-8"), said) == (before, []), "nothing is open, so nothing is in progress"
    live.close()


def test_it_ends_with_a_runner_that_is_killed(folder: RunFolder) -> None:
    """Also in the middle of a drawing, when it reads no stdin."""
    program = (
        "import pathlib, sys, time; from validator.runs.folder import RunFolder\n"
        "from validator.pipeline import live_report\n"
        "live_report._SETTLED_S = 0.0\n"
        "live = live_report.LiveReport(RunFolder.open(pathlib.Path(sys.argv[1])), note=print)\n"
        "live.schedule(); live.poll()\n"
        "print(live._process.pid, flush=True); time.sleep(600)"
    )
    words = [sys.executable, "-c", program, str(folder.root)]
    path = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=path) as runner:
        pid = int(runner.stdout.readline())
        assert eventually((folder.drawing / "result.json").exists, within_s=60)
        os.kill(pid, signal.SIGSTOP)  # it can neither go on nor read anything
        runner.kill()
        runner.wait()
        assert eventually(lambda: not runs(pid))


def test_a_report_made_while_the_validation_ended_is_made_again(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    render, decisions = write.render, []

    def slow(*arguments: object, **more: object) -> object:
        found = render(*arguments, **more)  # type: ignore[arg-type]
        decisions.append(found[0].decision)
        if len(decisions) == 1:
            with Journal.open(folder.journal) as journal:
                journal.append("finished", finished="2025-10-09T08:53:20.000Z", duration_s=1.0)
        return found

    monkeypatch.setattr(write, "render", slow)
    report, paths = write.rerender(folder)
    assert decisions == ["IN_PROGRESS", "INCONCLUSIVE"]
    assert json.loads(paths.result.read_text(encoding="utf-8"))["decision"] == report.decision == "INCONCLUSIVE"


def test_what_breaks_while_drawing_is_one_line_without_secrets() -> None:
    class Broken(live_report.Drawing):
        def __init__(self, error: Exception) -> None:
            self._error = error

        def draw(self) -> bool:
            raise self._error

    assert live_report._answer(Broken(OSError(28, "No space left on device"))) == "No space left on device"
    error = ValueError("HF_TOKEN=hf_abcdefghijklmnopqrst\nis wrong")
    assert live_report._answer(Broken(error)) == "ValueError: HF_TOKEN=[redacted] is wrong"


@pytest.mark.parametrize("alive", [True, False])
def test_what_a_killed_runner_left_of_a_drawing_goes_with_the_next_report(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, alive: bool
) -> None:
    folder.drawing.mkdir()
    monkeypatch.setattr(Runner, "alive", lambda _: alive)
    write.rerender(folder)
    assert folder.drawing.exists() == alive


def test_charts_are_drawn_once_whichever_process_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = {"mark": "point", "data": {"values": [{"x": 1}]}, "encoding": {"x": {"field": "x", "type": "quantitative"}}}
    monkeypatch.setattr(svg, "_kept", {})
    drawn = svg.draw(spec)
    svg.save(tmp_path / "drawings.json")
    monkeypatch.setattr(svg, "_kept", {})
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    svg.recall(tmp_path / "drawings.json")
    assert svg.draw(spec) == drawn
    for text in ("[1]", "{", '{"key": 1}'):
        (tmp_path / "damaged.json").write_text(text, encoding="utf-8")
        svg.recall(tmp_path / "damaged.json")
    assert list(svg._kept.values()) == [drawn]

"""Kill the runner at random moments, resume, and see that nothing was lost, repeated or left behind.

    python tests/faults/kill_and_resume.py runbooks/smoke_cpu.yaml --moments 30 [--kills-per-run 5] [--amid-trouble]

First the runbook runs unbroken; its decision and duration are the measure. Then, for each moment, a runner is killed
with SIGKILL that far into its run, and `validator run --resume` has to end in the same decision. With several kills a
run, the resumed runner is killed as well, and so on: harder to bear, and a fraction of the time. By turns the journal
is left as it is, gets a line that was cut short, and loses the lines at its end that nobody had waited for, as by a
loss of power. One line is printed per moment; the exit code is 1 when any of them went wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

from validator.runs.journal import Event, read

__all__ = ["TAILS", "Broken", "Tail", "Unbroken", "kill_and_resume", "kill_often", "processes_of", "run_unbroken"]

_PATIENCE_S = 60.0
"""After this no process of a killed runner may be left; the guardian itself grants torchrun 35 s."""

Tail = Literal["whole", "torn", "lost"]
"""What a kill leaves of the journal's end: all of it, with part of a line more, without what was not yet on disk."""
TAILS: tuple[Tail, ...] = get_args(Tail)

Amid = Literal["peace", "full disk", "no terminal", "dead neighbors"]
"""What else is wrong when a runner is killed."""
AMID: tuple[Amid, ...] = get_args(Amid)

_UNABLE = 4
_NOT_WAITED_FOR = ("run_started", "attempt_ended")
"""Events that the runner leaves to the next one to be brought to disk."""


@dataclass(frozen=True)
class Unbroken:
    """A run that nobody disturbed: what the others are measured by."""

    decision: str
    exit_code: int
    duration_s: float


@dataclass
class Broken:
    """One kill and what came of it. `wrong` holds a sentence for everything that is not as it should be."""

    killed_after_s: float
    tail: Tail = "whole"
    amid: Amid = "peace"
    ended_before: int = 0
    left_for_s: float = 0.0
    decision: str = ""
    wrong: list[str] = field(default_factory=list)


def run_unbroken(runbook: Path | str, *, work: Path, options: Sequence[str] = ()) -> Unbroken:
    """Run it once from start to end."""
    began = time.monotonic()
    code = _start(["run", str(runbook), "--out", str(work / "unbroken"), *options], work).wait()
    duration_s = time.monotonic() - began
    result = _result(_only_folder(work / "unbroken"))
    return Unbroken(result["decision"], code, duration_s)


def kill_and_resume(
    runbook: Path | str,
    *,
    after_s: float,
    work: Path,
    unbroken: Unbroken,
    options: Sequence[str] = (),
    with_guardian: bool = False,
) -> Broken:
    """Kill a runner `after_s` seconds into its run, see that all is gone, resume, and compare."""
    kills = kill_often(
        runbook, lasting_s=[after_s], work=work, unbroken=unbroken, options=options, with_guardian=with_guardian
    )
    return kills[0] if kills else Broken(after_s, decision="had ended before it could be killed")


def kill_often(
    runbook: Path | str,
    *,
    lasting_s: Sequence[float],
    work: Path,
    unbroken: Unbroken,
    options: Sequence[str] = (),
    with_guardian: bool = False,
    tails: Sequence[Tail] = ("whole",),
    amid: Sequence[Amid] = ("peace",),
) -> list[Broken]:
    """One validation whose runners live `lasting_s` seconds, one after the other, and the last to the end.

    After each kill all processes must go, and every run that had ended must stay as it was, whatever the later runners
    do. Only kills that met a runner are in the answer: the validation may end before all of them are made. `tails` says
    by turns what each kill leaves of the journal's end.

    With `with_guardian` the guardian is killed as well, as by a loss of power: then the processes that are left are
    the resumed runner's to end. `amid` says by turns what else is wrong when a runner is killed; for a full disk `work`
    must lie on a small one, which is filled for the length of the kill.
    """
    out = Path(tempfile.mkdtemp(prefix="broken-", dir=work))
    first = ["run", str(runbook), "--out", str(out), *options]
    kills: list[_Kill] = []
    for lasting, tail, trouble in zip(lasting_s, itertools.cycle(tails), itertools.cycle(amid), strict=False):
        folder = _only_folder(out)
        arguments = first if folder is None else ["run", "--resume", str(folder)]
        kill = _kill_after(lasting, arguments, out, with_guardian, trouble)
        if kill is None:
            break
        kill.broken.tail, kill.broken.amid = tail, trouble
        _spoil(_only_folder(out), tail)
        kills.append(kill)
    folder = _only_folder(out)
    code = _start(first if folder is None else ["run", "--resume", str(folder)], work).wait()
    folder = _only_folder(out)
    assert folder is not None, "a run that ended has a folder"
    for kill in kills:
        _compare(folder, kill, unbroken=unbroken, code=code)
    wrong = [f"processes {left} are left after the resumed run"] if (left := processes_of(folder)) else []
    decision = _result(folder)["decision"] if (folder / "result.json").is_file() else ""
    again = _start(["report", str(folder)], work).wait()
    if (again, _result(folder)["decision"]) != (code, decision):
        wrong.append(f"judged again from disk it ends in exit {again}, not {code}")
    for kill in kills:
        kill.broken.wrong += wrong
    return [kill.broken for kill in kills]


@dataclass
class _Kill:
    """A kill, and what the disk held when all processes were gone: by run that had ended, and of every run."""

    broken: Broken
    ended: Mapping[str, Mapping[str, str]]
    files: Mapping[str, str]


def _kill_after(
    lasting_s: float, arguments: Sequence[str], out: Path, with_guardian: bool, amid: Amid = "peace"
) -> _Kill | None:
    """Let a runner live that long; None when it came to its end before."""
    broken = Broken(lasting_s)
    if amid == "dead neighbors":
        _plant_neighbors(out)
    runner = _start(arguments, out.parent, no_terminal=amid == "no terminal")
    try:
        runner.wait(timeout=lasting_s)
    except subprocess.TimeoutExpired:
        pass
    else:
        return None
    if amid == "full disk":
        with _filled(out.parent), suppress(subprocess.TimeoutExpired):
            runner.wait(timeout=1.0)
            if runner.returncode not in (_UNABLE, -signal.SIGKILL):
                return None  # it had come to its decision
    guardians = _children(runner.pid, "guardian.py") if with_guardian else []
    for pid in (*guardians, runner.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    runner.wait()
    folder = _only_folder(out)
    if folder is None:
        return _Kill(broken, {}, {})
    ended = _evidence(folder, read(folder / "journal.jsonl"))
    broken.ended_before = len(ended)
    if with_guardian:
        return _Kill(broken, ended, {})
    broken.left_for_s = _await_end(folder, broken)
    return _Kill(broken, ended, _files(folder / "runs"))


@contextmanager
def _filled(disk: Path) -> Iterator[None]:
    """No byte is free on a disk for the length of the context."""
    ballast = disk / "ballast"
    try:
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        yield
    finally:
        ballast.unlink()


def _plant_neighbors(out: Path) -> None:
    """Folders beside the run folder that nobody can read, and an index that is none."""
    for name, text in (("huge", '{"duration_s": ' + "9" * 5000 + "}"), ("deep", "[" * 100_000)):
        (out / f"20200101T000000Z-{name}").mkdir(parents=True, exist_ok=True)
        (out / f"20200101T000000Z-{name}" / "result.json").write_text(text)
    blocking = out / "20200101T000000Z-blocking"
    if not blocking.exists():
        blocking.mkdir()
        os.mkfifo(blocking / "result.json")
    with suppress(FileNotFoundError):
        (out / ".history.json").unlink()
    os.mkfifo(out / ".history.json")


def _spoil(folder: Path | None, tail: Tail) -> None:
    """Do to the journal's end what a loss of power could have done at that moment."""
    if folder is None or tail == "whole":
        return
    journal = folder / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True) if journal.is_file() else []
    if not lines:
        return
    if tail == "torn":
        journal.write_bytes(b"".join(lines) + lines[-1][: max(1, len(lines[-1]) // 2)].rstrip(b"\n"))
        return
    while lines and (not lines[-1].endswith(b"\n") or json.loads(lines[-1])["event"] in _NOT_WAITED_FOR):
        lines.pop()
    journal.write_bytes(b"".join(lines))


def _compare(folder: Path, kill: _Kill, *, unbroken: Unbroken, code: int) -> None:
    broken = kill.broken
    if not (folder / "result.json").is_file():
        broken.wrong.append(f"the resumed run wrote no result.json and ended with exit {code}")
        return
    result = _result(folder)
    broken.decision = result["decision"]
    if (broken.decision, code) != (unbroken.decision, unbroken.exit_code):
        broken.wrong.append(f"{broken.decision} with exit {code}, but unbroken {unbroken.decision}: {result['why']}")
    events = read(folder / "journal.jsonl")
    evidence = _evidence(folder, events)
    for run, files in kill.ended.items():
        if again := _started_after_end(run, events):
            broken.wrong.append(f"{run} had ended, and was started {again} times more")
        if files != evidence[run]:
            broken.wrong.append(f"the artifacts of {run}, which had ended, have changed")
    lost = set(kill.files.values()) - set(_files(folder / "runs").values())
    if lost:
        names = [name for name, digest in kill.files.items() if digest in lost]
        broken.wrong.append(f"lost: {', '.join(names)}")


def _started_after_end(run: str, events: Sequence[Event]) -> int:
    """Attempts at a run that had come to an end of its own."""
    ended = again = 0
    for event in events:
        if event.fields.get("run") != run:
            continue
        ended += event.event == "run_ended" and _is_evidence(event)
        again += event.event == "attempt_started" and ended > 0
    return again + max(0, ended - 1)


def _evidence(folder: Path, events: Sequence[Event]) -> dict[str, dict[str, str]]:
    """Runs that have ended by themselves, with a hash of each of their files."""
    runs = [event.fields["run"] for event in events if event.event == "run_ended" and _is_evidence(event)]
    return {run: _files(folder / "runs" / run) for run in runs}


def _is_evidence(ended: Event) -> bool:
    """Whether a run came to an end of its own, and not to that of the disk."""
    last = ended.fields["outcome"]["attempts"][-1]
    return last["reason"] != "interrupted" and not last["disk_full"]


def _files(folder: Path) -> dict[str, str]:
    """Hash of every file that holds anything, by its path."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.stat().st_size
    }


def processes_of(folder: Path) -> list[int]:
    """Every process that carries a token of this run folder's journal."""
    markers = {str(e.fields["marker"]) for e in read(folder / "journal.jsonl") if e.fields.get("marker")}
    needles = [f"VALIDATOR_RUN_TOKEN={marker}".encode() for marker in markers]
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            environment = path.read_bytes()
        except OSError:
            continue
        if any(needle in environment for needle in needles):
            found.append(int(path.parent.name))
    return found


def _await_end(folder: Path, broken: Broken) -> float:
    began = time.monotonic()
    while left := processes_of(folder):
        if time.monotonic() - began > _PATIENCE_S:
            broken.wrong.append(f"processes {left} are still there {_PATIENCE_S:.0f} s after the kill")
            break
        time.sleep(0.1)
    return time.monotonic() - began


def _children(pid: int, program: str) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(one) for one in children if program.encode() in Path(f"/proc/{one}/cmdline").read_bytes()]
    except OSError:
        return []


def _only_folder(parent: Path) -> Path | None:
    """The run folder below `parent`; None when the runner did not come so far as to write its header."""
    return next((path.parent for path in parent.glob("*/run.json")), None)


def _result(folder: Path | None) -> dict[str, Any]:
    assert folder is not None, "a run that ended has a folder"
    result: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return result


def _start(arguments: Sequence[str], work: Path, *, no_terminal: bool = False) -> subprocess.Popen[bytes]:
    """`validator …` in a session of its own; its locks are its own, its output goes to a log, or to nobody."""
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(work), "NO_COLOR": "1"}
    with ExitStack() as stack:
        if no_terminal:
            read_fd, write_fd = os.pipe()
            os.close(read_fd)
            log = stack.enter_context(os.fdopen(write_fd, "wb"))
        else:
            log = stack.enter_context((work / "validator.log").open("ab"))
        return subprocess.Popen(
            [sys.executable, "-m", "validator", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; see the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runbook")
    parser.add_argument("--moments", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    parser.add_argument(
        "--with-guardian", action="store_true", help="kill the guardian as well, as a loss of power does"
    )
    parser.add_argument(
        "--kills-per-run", type=int, default=1, help="moments of one validation: it is resumed and killed again"
    )
    parser.add_argument(
        "--amid-trouble",
        action="store_true",
        help="by turns on a full disk, without a terminal and among neighbors that nobody can read; needs root, for a "
        "disk of 64 MiB",
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the run folders in this folder")
    chosen = parser.parse_args(arguments)
    options = [word for override in chosen.overrides for word in ("--set", override)]
    with ExitStack() as stack:
        work = chosen.keep or Path(stack.enter_context(TemporaryDirectory(prefix="kill-and-resume-")))
        work.mkdir(parents=True, exist_ok=True)
        if chosen.amid_trouble:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(work)], check=True)
            stack.callback(subprocess.run, ["umount", str(work)], check=False)
        unbroken = run_unbroken(chosen.runbook, work=work, options=options)
        print(f"unbroken: {unbroken.decision} in {unbroken.duration_s:.1f} s", flush=True)
        moments, made = random.Random(chosen.seed), []
        while len(made) < chosen.moments:
            at = sorted(
                moments.uniform(0.0, unbroken.duration_s)
                for _ in range(min(chosen.kills_per_run, chosen.moments - len(made)))
            )
            lasting_s = [after - before for before, after in itertools.pairwise([0.0, *at])]
            kills = kill_often(
                chosen.runbook,
                lasting_s=lasting_s,
                work=work,
                unbroken=unbroken,
                options=options,
                with_guardian=chosen.with_guardian,
                tails=TAILS[len(made) % len(TAILS) :] + TAILS[: len(made) % len(TAILS)],
                amid=AMID[1 + len(made) % 3 :] + AMID[1 : 1 + len(made) % 3] if chosen.amid_trouble else ("peace",),
            )
            for broken in kills:
                made.append(broken)
                print(_line(len(made), chosen.moments, broken), flush=True)
    good = sum(not broken.wrong for broken in made)
    print(f"{good} of {chosen.moments} as they should be")
    return 0 if good == chosen.moments else 1


def _line(number: int, moments: int, broken: Broken) -> str:
    return (
        f"{number}/{moments}: killed after {broken.killed_after_s:.2f} s, {broken.ended_before} runs had ended, "
        f"journal {broken.tail}, {broken.amid}, "
        f"all gone within {broken.left_for_s:.1f} s, resumed: {broken.decision}"
        + "".join(f"\n  WRONG: {wrong}" for wrong in broken.wrong)
    )


if __name__ == "__main__":
    sys.exit(main())

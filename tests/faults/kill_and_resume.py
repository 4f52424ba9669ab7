"""Kill the runner at random moments, resume, and see that nothing was lost, repeated or left behind.

    python tests/faults/kill_and_resume.py runbooks/smoke_cpu.yaml --moments 30 [--seed 0] [--set KEY=VALUE]

First the runbook runs unbroken; its decision and duration are the measure. Then, for each moment, a runner is killed
with SIGKILL that far into its run, and `validator run --resume` has to end in the same decision. One line is printed
per moment; the exit code is 1 when any of them went wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from validator.execute.journal import Event, read

__all__ = ["Broken", "Unbroken", "kill_and_resume", "processes_of", "run_unbroken"]

_PATIENCE_S = 60.0
"""After this no process of a killed runner may be left; the guardian itself grants torchrun 35 s."""


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
    """Kill a runner `after_s` seconds into its run, see that all is gone, resume, and compare.

    With `with_guardian` its guardian is killed as well, as by a loss of power: then the processes that are left are
    the resumed runner's to end.
    """
    broken = Broken(after_s)
    out = work / f"broken-{after_s:.3f}"
    runner = _start(["run", str(runbook), "--out", str(out), *options], work)
    time.sleep(after_s)
    guardians = _children(runner.pid, "guardian.py") if with_guardian else []
    for pid in (*guardians, runner.pid):
        os.kill(pid, signal.SIGKILL)
    runner.wait()
    folder = _only_folder(out)
    if folder is None:
        broken.decision = "nothing had been started"
        return broken
    events = read(folder / "journal.jsonl")
    before = _evidence(folder, events)
    broken.ended_before = len(before)
    if not with_guardian:
        broken.left_for_s = _await_end(folder, broken)
        before_all = _files(folder / "runs")
    else:
        before_all = {}
    code = _start(["run", "--resume", str(folder)], work).wait()
    _compare(folder, broken, before=before, before_all=before_all, unbroken=unbroken, code=code)
    if left := processes_of(folder):
        broken.wrong.append(f"processes {left} are left after the resumed run")
    again = _start(["report", str(folder)], work).wait()
    if again != code or _result(folder)["decision"] != broken.decision:
        broken.wrong.append(f"judged again from disk it ends in exit {again}, not {code}")
    return broken


def _compare(
    folder: Path,
    broken: Broken,
    *,
    before: Mapping[str, Mapping[str, str]],
    before_all: Mapping[str, str],
    unbroken: Unbroken,
    code: int,
) -> None:
    if not (folder / "result.json").is_file():
        broken.wrong.append(f"the resumed run wrote no result.json and ended with exit {code}")
        return
    broken.decision = _result(folder)["decision"]
    if (broken.decision, code) != (unbroken.decision, unbroken.exit_code):
        broken.wrong.append(f"{broken.decision} with exit {code}, but unbroken {unbroken.decision}")
    events = read(folder / "journal.jsonl")
    for run, files in before.items():
        starts = sum(event.event == "attempt_started" and event.fields["run"] == run for event in events)
        ends = sum(event.event == "run_ended" and event.fields["run"] == run for event in events)
        if ends != 1 or starts > 1:
            broken.wrong.append(f"{run} had ended, and was started {starts} times")
        after = _evidence(folder, events)[run]
        if files != after:
            broken.wrong.append(f"the artifacts of {run}, which had ended, have changed")
    lost = set(before_all.values()) - set(_files(folder / "runs").values())
    if lost:
        names = [name for name, digest in before_all.items() if digest in lost]
        broken.wrong.append(f"lost: {', '.join(names)}")


def _evidence(folder: Path, events: Sequence[Event]) -> dict[str, dict[str, str]]:
    """Runs that have ended by themselves, with a hash of each of their files."""
    ended = [event for event in events if event.event == "run_ended"]
    runs = [e.fields["run"] for e in ended if e.fields["outcome"]["attempts"][-1]["reason"] != "interrupted"]
    return {run: _files(folder / "runs" / run) for run in runs}


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


def _start(arguments: Sequence[str], work: Path) -> subprocess.Popen[bytes]:
    """`validator …` in a session of its own; its locks are its own, its output goes to a log."""
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(work), "NO_COLOR": "1"}
    with (work / "validator.log").open("ab") as log:
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
    chosen = parser.parse_args(arguments)
    options = [word for override in chosen.overrides for word in ("--set", override)]
    moments = random.Random(chosen.seed)
    failed = 0
    with TemporaryDirectory(prefix="kill-and-resume-") as folder:
        work = Path(folder)
        unbroken = run_unbroken(chosen.runbook, work=work, options=options)
        print(f"unbroken: {unbroken.decision} in {unbroken.duration_s:.1f} s", flush=True)
        for number in range(1, chosen.moments + 1):
            broken = kill_and_resume(
                chosen.runbook,
                after_s=moments.uniform(0.0, unbroken.duration_s),
                work=work,
                unbroken=unbroken,
                options=options,
                with_guardian=chosen.with_guardian,
            )
            failed += bool(broken.wrong)
            print(
                f"{number}/{chosen.moments}: killed after {broken.killed_after_s:.2f} s, {broken.ended_before} runs "
                f"had ended, all gone within {broken.left_for_s:.1f} s, resumed: {broken.decision}"
                + "".join(f"\n  WRONG: {wrong}" for wrong in broken.wrong),
                flush=True,
            )
    print(f"{chosen.moments - failed} of {chosen.moments} as they should be")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

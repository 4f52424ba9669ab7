"""A case of the self-test: where it runs, what must come out, and whether it did."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import validator
from validator.errors import ExitCode
from validator.report.exports import VARIABLE as SUMMARY
from validator.supervise.termination import RUNNER_VARIABLE
from validator.system.processes import TOKEN_VARIABLE, all_stats, has_variable

# Where it runs: a folder of its own, `validator` in processes of its own, and what these leave running.

_VARIABLE = "VALIDATOR_SELFTEST"
_TIMEOUT_S = 180.0


class Sandbox:
    """One case's folder. `token` marks every process that is started in it, descendants included."""

    def __init__(self, folder: Path, token: str) -> None:
        self.folder = folder.resolve()
        self.token = token
        self.folder.mkdir(parents=True)
        self._alive: list[subprocess.Popen[str]] = []

    def write(self, name: str, text: str) -> Path:
        """Write a file."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def start(self, *arguments: str, before: Callable[[], None] | None = None) -> subprocess.Popen[str]:
        """Start `validator …` in the folder; `before` is called in the new process ahead of the program."""
        process = subprocess.Popen(
            [sys.executable, "-m", "validator", *arguments],
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=before,
        )
        self._alive.append(process)
        return process

    def call(self, *arguments: str, before: Callable[[], None] | None = None) -> tuple[int, str, str]:
        """Run `validator …` to its end: exit code, stdout, stderr."""
        return self.finish(self.start(*arguments, before=before))

    def finish(self, process: subprocess.Popen[str]) -> tuple[int, str, str]:
        """Wait for a command. One that does not end within 180 s is killed, which fails the case."""
        try:
            out, err = process.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            err += f"\nselftest: the command did not end within {_TIMEOUT_S:.0f} s and was killed"
        return process.returncode, out, err

    def run_folder(self) -> Path | None:
        """The latest run folder; None when there is none."""
        found = [path.parent for path in sorted(self.folder.glob("reports/*/run.json"))]
        return found[-1] if found else None

    def left(self, *, within_s: float = 5.0) -> tuple[int, ...]:
        """Pids of processes that still run after `within_s` seconds; () as soon as there are none."""
        until = time.monotonic() + within_s
        while (found := self._living()) and time.monotonic() < until:
            time.sleep(0.1)
        return found

    def close(self) -> None:
        """Kill what is left, so that one case's failure does not disturb the next."""
        for process in self._alive:
            if process.poll() is None:
                process.kill()
                process.communicate()
        for pid in self._living():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, 9)

    def _living(self) -> tuple[int, ...]:
        """Found by the mark in the environment, or, where that was cleared, by the working folder."""
        needle = f"\0{_VARIABLE}={self.token}\0".encode()
        me = os.getpid()
        return tuple(
            stat.pid
            for stat in all_stats()
            if stat.alive and stat.pid != me and (has_variable(stat.pid, needle) or self._works_here(stat.pid))
        )

    def _works_here(self, pid: int) -> bool:
        with suppress(OSError):
            return Path(f"/proc/{pid}/cwd").readlink().is_relative_to(self.folder)
        return False

    def _environment(self) -> dict[str, str]:
        """Our own, marked, without the variables of a validation that the self-test runs in."""
        home = str(Path(validator.__file__).parents[1])
        inherited = {k: v for k, v in os.environ.items() if k not in (TOKEN_VARIABLE, RUNNER_VARIABLE, SUMMARY)}
        paths = os.pathsep.join(filter(None, (home, inherited.get("PYTHONPATH"))))
        own = {_VARIABLE: self.token, "PYTHONPATH": paths, "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
        return {**inherited, **own}


# What is run, what must come out, and whether it did.

Expected = Literal["GO", "NO_GO", "INCONCLUSIVE", "UNABLE"]
"""`UNABLE`: the runner itself cannot continue and ends with exit code 4, without a decision."""

Group = Literal["processes", "files", "settings", "learning", "pace", "machine", "healthy"]


@dataclass(frozen=True)
class CaseRun:
    """What a case left: exit code and standard error of its last command, its run folder, and the result in it.

    `wrong` holds a sentence for each expectation that was not met on the way, where a case checks more than its end.
    """

    rc: int
    stderr: str
    folder: Path | None
    result: Mapping[str, Any] | None
    wrong: tuple[str, ...] = ()


RunCase = Callable[[Sandbox], CaseRun]


@dataclass(frozen=True)
class Case:
    """One fault, or one healthy run.

    `codes` must all be among the findings; a healthy run must have no finding at all. `rc` is the exit code where it
    differs from the decision's. `evidence` are patterns below the run folder, each of which must match a file that is
    not empty. `torch` is whether it starts torchrun. `about_s` is its duration on two cores: the longest start first.
    """

    name: str
    title: str
    group: Group
    expect: Expected
    run: RunCase
    codes: tuple[str, ...] = ()
    rc: int | None = None
    evidence: tuple[str, ...] = ()
    torch: bool = False
    about_s: float = 3.0

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong, so that nothing may be found."""
        return self.group == "healthy"


_REPORT_FILES = ("result.json", "report.html", "report.md", "junit.xml", "journal.jsonl", "run.json", "runbook.yaml")


@dataclass(frozen=True)
class CaseOutcome:
    """How a case ended. `wrong` holds a sentence for each expectation that was not met; none means that it passed.

    `codes` are those of all findings, `duration_s` the wall time, `folder` where its files were kept, if they were.
    """

    case: Case
    decision: str | None
    codes: tuple[str, ...]
    wrong: tuple[str, ...]
    duration_s: float
    folder: Path | None = None

    @property
    def ok(self) -> bool:
        """Whether every expectation was met."""
        return not self.wrong


def read_result(sandbox: Sandbox, rc: int, stderr: str) -> CaseRun:
    """What the last command left in its run folder."""
    folder = sandbox.run_folder()
    result: Mapping[str, Any] | None = None
    if folder is not None and (folder / "result.json").is_file():
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return CaseRun(rc, stderr, folder, result)


def judge(case: Case, sandbox: Sandbox, done: CaseRun, *, duration_s: float) -> CaseOutcome:
    """Compare what happened with what was expected: decision, exit code, findings, files, processes."""
    findings = done.result["findings"] if done.result is not None else []
    codes = tuple(dict.fromkeys(str(finding["code"]) for finding in findings))
    decision = None if done.result is None else str(done.result["decision"])
    wrong = (*done.wrong, *_wrong_end(case, done, decision), *_wrong_codes(case, codes, findings))
    wrong += tuple(_wrong_files(case, done))
    left = sandbox.left()
    if left:
        wrong += (f"processes are left: {', '.join(map(str, left))}",)
    ended = decision or ("UNABLE" if done.rc == ExitCode.UNABLE else None)
    return CaseOutcome(case, ended, codes, wrong, round(duration_s, 2))


def _wrong_end(case: Case, done: CaseRun, decision: str | None) -> Iterator[str]:
    if case.expect != "UNABLE" and decision != case.expect:
        yield f"decision {decision or 'none'}, expected {case.expect}: {_why(done)}"
    expected = ExitCode[case.expect] if case.rc is None else case.rc
    if done.rc != expected:
        yield f"exit code {done.rc}, expected {expected}"
    if "Traceback" in done.stderr:
        yield f"a traceback: {done.stderr.strip().splitlines()[-1][:200]}"


def _why(done: CaseRun) -> str:
    if done.result is not None:
        return str(done.result["why"])[:300]
    last = done.stderr.strip().splitlines()
    return last[-1][:300] if last else "standard error is empty"


def _wrong_codes(case: Case, codes: tuple[str, ...], findings: list[dict[str, Any]]) -> Iterator[str]:
    missing = [code for code in case.codes if code not in codes]
    if missing:
        yield f"not found: {', '.join(missing)}; found: {', '.join(codes) or 'nothing'}"
    if findings and (case.healthy or (case.expect == "GO" and not case.codes)):
        yield f"false alarm {findings[0]['code']}: {findings[0]['message'][:200]}"


def _wrong_files(case: Case, done: CaseRun) -> Iterator[str]:
    """Missing or changed: reports, the artifacts that the result lists, and the evidence of the case."""
    if done.result is None or done.folder is None:
        if case.expect != "UNABLE":
            yield "there is no result.json"
        return
    for name in _REPORT_FILES:
        if not (done.folder / name).is_file() or not (done.folder / name).stat().st_size:
            yield f"{name} is missing or empty"
    for artifact in done.result["artifacts"]:
        path = done.folder / str(artifact["path"])
        if not path.is_file():
            yield f"the artifact {artifact['path']} is listed, but missing"
        elif artifact["sha256"] and hashlib.sha256(path.read_bytes()).hexdigest() != artifact["sha256"]:
            yield f"the artifact {artifact['path']} differs from its checksum"
    for pattern in case.evidence:
        if not any(path.is_file() and path.stat().st_size for path in done.folder.glob(pattern)):
            yield f"evidence is missing: no file matches {pattern}"

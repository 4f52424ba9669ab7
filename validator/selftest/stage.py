"""Where a case is played: a folder of its own, the command line in processes of its own, and what is left of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import validator
from validator.execute.procfs import all_stats, has_variable
from validator.execute.tree import RUNNER_VARIABLE, TOKEN_VARIABLE
from validator.report.step_summary import VARIABLE as SUMMARY

__all__ = ["Stage"]

_VARIABLE = "VALIDATOR_SELFTEST"
_PATIENCE_S = 180.0


class Stage:
    """One case's folder. `token` marks every process that is started on it, however deep."""

    def __init__(self, folder: Path, token: str) -> None:
        self.folder = folder.resolve()
        self.token = token
        self.folder.mkdir(parents=True)
        self._alive: list[subprocess.Popen[str]] = []

    def write(self, name: str, text: str) -> Path:
        """A file on the stage."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def start(self, *arguments: str, before: Callable[[], None] | None = None) -> subprocess.Popen[str]:
        """Start `validator …` on the stage; `before` is called in the new process ahead of the program."""
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
        """Wait for a command; one that never ends is ended, which is a failure of its own."""
        try:
            out, err = process.communicate(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            err += f"\nselftest: the command had not ended after {_PATIENCE_S:.0f} s and was killed"
        return process.returncode, out, err

    def run_folder(self) -> Path | None:
        """The only run folder on the stage; None when there is none."""
        found = [path.parent for path in sorted(self.folder.glob("reports/*/run.json"))]
        return found[-1] if found else None

    def left(self, *, within_s: float = 5.0) -> tuple[int, ...]:
        """Processes of the stage that still live once `within_s` seconds have passed; () as soon as there are none."""
        until = time.monotonic() + within_s
        while (found := self._living()) and time.monotonic() < until:
            time.sleep(0.1)
        return found

    def close(self) -> None:
        """End whatever is left, so that one case's failure does not disturb the next."""
        for process in self._alive:
            if process.poll() is None:
                process.kill()
                process.communicate()
        for pid in self._living():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, 9)

    def _living(self) -> tuple[int, ...]:
        """By the mark in the environment, or, where that was cleared, by the working folder."""
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
        """Ours, marked, without what would tie the case to a validation that this one runs in."""
        home = str(Path(validator.__file__).parents[1])
        inherited = {k: v for k, v in os.environ.items() if k not in (TOKEN_VARIABLE, RUNNER_VARIABLE, SUMMARY)}
        paths = os.pathsep.join(filter(None, (home, inherited.get("PYTHONPATH"))))
        own = {_VARIABLE: self.token, "PYTHONPATH": paths, "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
        return {**inherited, **own}

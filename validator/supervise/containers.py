"""Containers that do not end with the client that started them, and their end by the engine's own command.

The processes of such a container are children of a service. Where they run on this machine and their environment can be
read, they are found as those of any run; what always works is the container's name.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass

from validator.model.launching import DETACHED
from validator.system.processes import TOKEN_VARIABLE

_TIMEOUT_S = 30.0
_NAME = re.compile(r"validator-[0-9a-f]{1,12}-[a-z0-9_.-]+")
_LONGEST = 60


def container_name(token: str, run: str, attempt: int) -> str:
    """A name that no other attempt of any validation has."""
    plain = re.sub(r"[^a-z0-9_.]+", "-", run.lower()).strip("-")[-_LONGEST:].lstrip("-")
    return f"validator-{token[:12]}-{plain}-{attempt}"


@dataclass(frozen=True)
class NamedContainer:
    """One container: the engine's program, and the name."""

    program: str
    name: str

    def terminate(self) -> bool:
        """Send SIGTERM to its first process, once; whether there was one."""
        return self._call("kill", "--signal", "TERM", self.name) == 0

    def end(self) -> tuple[bool, bool]:
        """Kill and remove it. Returns whether it was running still, and whether it is gone now."""
        ran = self._call("kill", self.name) == 0
        if self._call("rm", "--force", self.name) == 0:
            return ran, True
        with suppress(OSError, subprocess.TimeoutExpired):
            format_ = ("--format", "{{.State.Running}}")
            return ran, self._run("inspect", *format_, self.name).stdout.strip() != b"true"
        return ran, False

    def _call(self, *words: str) -> int | None:
        with suppress(OSError, subprocess.TimeoutExpired):
            return self._run(*words).returncode
        return None

    def _run(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [self.program, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE},
            timeout=_TIMEOUT_S,
            start_new_session=True,  # a Ctrl-C at the terminal must not stop what ends the container
            check=False,
        )


def named_container(engine: str, name: str, *, token: str) -> NamedContainer | None:
    """The container of that name, if it can be one of the validation with that token, and its engine is here.

    A journal says so of an earlier attempt, and may come from anywhere.
    """
    ours = _NAME.fullmatch(name) is not None and name.startswith(f"validator-{token[:12]}-")
    program = shutil.which(engine) if engine in DETACHED and ours else None
    return None if program is None else NamedContainer(program, name)

"""Several nodes on this one: what the fixtures `slurm` and `sshd` have in common."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

NODES = ("n1", "n2", "n3", "n4")
PATH = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"  # daemons are there, which no user's path need name


class Kept:
    """A program below a keeper: it ends, with all that came from it, at the latest with the test run."""

    def __init__(self, *command: str, log: Path, env: dict[str, str]) -> None:
        self._log = log
        self._silent = False
        with log.open("ab") as output:
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", str(Path(__file__).with_name("keeper.py")), *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,  # a Ctrl-C is for the tests
            )

    @property
    def pid(self) -> int:
        """The keeper's pid: all processes of the program are below it."""
        return self._keeper.pid

    @property
    def log(self) -> str:
        """What the program wrote."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def fallen(self) -> bool:
        """Whether the program has ended, or was silenced."""
        return self._silent or self._keeper.poll() is not None

    def processes(self) -> list[psutil.Process]:
        """The program and every process that came from it."""
        return psutil.Process(self.pid).children(recursive=True)

    def command_lines(self) -> list[list[str]]:
        """The command lines of what came from the program, without those of slurmd, its steps, and sshd."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):  # a zombie too
                found.append(process.cmdline())
        return [line for line in found if line and not Path(line[0]).name.startswith(("slurm", "sshd"))]

    def silence(self) -> None:
        """Stop all of it: connections remain, and nothing answers any more."""
        self._silent = True
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()

    def kill(self) -> None:
        """SIGKILL to all of it; nothing of it is left on return."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        self._keeper.wait(timeout=20)


class Hosts:
    """What both clusters have: programs under keepers by name, each node one of them, and commands of a test."""

    nodes = NODES

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.folder = folder
        self.env = env
        self._kept: dict[str, Kept] = {}
        self._begun: list[subprocess.Popen[str]] = []

    def run(self, *command: str, timeout_s: float = 30, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, on the machine that the cluster is used from."""
        return subprocess.run(
            command, env=self.env, capture_output=True, text=True, timeout=timeout_s, check=False, **more
        )

    def begin(self, *command: str, **more: Any) -> subprocess.Popen[str]:
        """Start a command there; after the test it is killed. Its output and its errors are one pipe."""
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} | more
        self._begun.append(subprocess.Popen(command, env=self.env, text=True, **streams))
        return self._begun[-1]

    def kill_node(self, node: str) -> None:
        """The node crashes: its daemon and all that came from it get SIGKILL, and its connections are reset."""
        self._kept[node].kill()

    def silence_node(self, node: str) -> None:
        """The node loses its power: nothing on it runs or answers any more, and its connections are not closed."""
        self._kept[node].silence()

    def processes(self, node: str) -> list[list[str]]:
        """The command lines of what runs on a node, without those of its daemon."""
        return self._kept[node].command_lines()

    def stop(self) -> None:
        """End every process of the cluster, and the commands that were begun."""
        self.end_commands()
        for kept in self._kept.values():
            kept.kill()
        self._kept.clear()

    def end_commands(self) -> None:
        """Kill what `begin` started."""
        for command in self._begun:
            command.kill()
            with command:  # closes its pipes and waits
                pass
        self._begun.clear()

    def _keep(self, name: str, *command: str) -> None:
        """Start a program under this name, in place of what ran under it."""
        if name in self._kept:
            self._kept[name].kill()
        self._kept[name] = Kept(*command, log=self.folder / f"{name}.log", env=self.env)

    def _fallen(self) -> list[str]:
        return [name for name, kept in self._kept.items() if kept.fallen()]


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody listens on, below those that the kernel hands out to clients."""
    return list(_free_ports(count))


def _free_ports(count: int) -> Iterator[int]:
    with contextlib.ExitStack() as open_sockets:
        for port in random.SystemRandom().sample(range(20_000, 32_000), 1_000):
            listening = open_sockets.enter_context(socket.socket())
            try:
                listening.bind(("127.0.0.1", port))
            except OSError:
                continue
            yield port
            count -= 1
            if not count:
                return
    raise AssertionError("no free ports between 20000 and 32000")


def need(programs: tuple[str, ...], packages: str) -> None:
    """Skip the test where a program is missing; fail where `.ci/run` requires it: what was not run was not tested."""
    missing = [name for name in programs if which(name) is None]
    if not missing:
        return
    reason = f"{', '.join(missing)} missing: apt-get install {packages} (`.ci/run` does it)"
    assert "REQUIRE_SLURM" not in os.environ, reason
    pytest.skip(reason)


def which(name: str) -> Path | None:
    """The program's path, searched where daemons are too."""
    return next((Path(folder, name) for folder in PATH.split(":") if os.access(Path(folder, name), os.X_OK)), None)

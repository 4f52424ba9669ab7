"""Where a validation of several nodes can run: this machine for each, ssh, Slurm, and a job of Slurm's."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.cluster.hosts import NODES, Hosts
from tests.cluster.slurm import Slurm
from tests.cluster.ssh import SshHosts
from tests.processes import start_validator, wait_until

TRAINER = Path(__file__).with_name("paced_trainer.py")
REPOSITORY = Path(__file__).resolve().parents[2]

Faults = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Phase to node to what is wrong there, as `paced_trainer.py` reads it."""


class Site:
    """One way to start a validation on nodes n1 … n4; `hosts` are real ones, or None."""

    engine = "local"

    def __init__(self, folder: Path, hosts: Hosts | None = None) -> None:
        self.folder, self.hosts = folder, hosts
        self.env = {"XDG_RUNTIME_DIR": str(folder), "NO_COLOR": "1", "PYTHONPATH": str(REPOSITORY)}
        if hosts is not None:
            self.env = {**hosts.env, **self.env}
        self._begun: list[subprocess.Popen[str]] = []

    def options(self) -> dict[str, Any]:
        """Further keys of `cluster`."""
        return {}

    def write(self, phases: Sequence[Mapping[str, Any]], *, faults: Faults | None = None, **cluster: Any) -> Path:
        """A runbook with these phases on three nodes."""
        faulty = self.folder / "faults.json"
        faulty.write_text(json.dumps(faults or {}), encoding="utf-8")
        probes = any(phase.get("probe") for phase in phases)
        runbook = {
            "schema": 1,
            "name": "small",
            "trainer": {
                **({"python": str(self._probing(faulty))} if probes else {}),
                "command": [str(TRAINER)],
                "args": {"steps": "{steps}", "out": "{out}", "faults": str(faulty)},
                "metrics": {"csv": "training.csv", "heartbeat": "heartbeat_rank{rank}.jsonl"},
            },
            "cluster": {
                **{"engine": self.engine, "nodes": 3, "wait": "20s", "start": "40s", "lost": "4s"},
                **self.options(),
                **cluster,
            },
            "hardware": {"gpus": 0, "disk_free": "1 MiB"},
            "defaults": {"nproc": 0, "timeout": "60s", "warmup_steps": 5},
            "phases": [dict(phase) for phase in phases],
        }
        path = self.folder / "small.yaml"
        path.write_text(yaml.safe_dump(runbook, sort_keys=False), encoding="utf-8")
        return path

    def _probing(self, faulty: Path) -> Path:
        """A Python that runs the paced double in place of the probes."""
        probe = shlex.join([sys.executable, str(TRAINER.with_name("paced_probe.py")), str(faulty)])
        return self.script("probing", f'case "$*" in *nsa.probe*) exec {probe} "$@" ;; esac')

    def script(self, name: str, shell: str) -> Path:
        """A Python that begins with a line of shell."""
        path = self.folder / name
        path.write_text(f'#!/bin/sh\n{shell}\nexec {shlex.quote(sys.executable)} "$@"\n', encoding="utf-8")
        path.chmod(0o755)
        return path

    def differ(self, doubles: Mapping[str, str]) -> None:
        """Let every Python on a node begin with a line of its own, which makes it that of an odd machine."""
        odd = self.folder / "odd"
        odd.mkdir()
        text = "import os\n"
        text += "node = os.environ.get('VALIDATOR_NODE') or os.environ.get('SLURMD_NODENAME')\n"
        text += f"exec({dict(doubles)!r}.get(node, ''))\n"
        (odd / "sitecustomize.py").write_text(text, encoding="utf-8")
        self.env["PYTHONPATH"] = f"{odd}:{REPOSITORY}"

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Begin `validator …` in the site's folder; what it prints is in `printed.txt`."""
        with (self.folder / "printed.txt").open("a") as output:
            process = self._start(arguments, {"cwd": self.folder, "stdout": output, "stderr": output})
        self._begun.append(process)
        return process

    def _start(self, arguments: Sequence[str], streams: Mapping[str, Any]) -> subprocess.Popen[str]:
        return start_validator(*arguments, env=self.env, start_new_session=True, **streams)

    def head(self, process: subprocess.Popen[str]) -> int:
        """The pid of the validator that `start` began."""
        return process.pid

    def run(self, *arguments: str, timeout_s: float = 200) -> Ended:
        """`validator …` to its end."""
        return self.ended(self.start(*arguments), timeout_s=timeout_s)

    def ended(self, process: subprocess.Popen[str], *, timeout_s: float = 200) -> Ended:
        """How a validation that was begun has ended."""
        code = process.wait(timeout=timeout_s)
        return Ended(code, self.run_folder(), self.printed)

    @property
    def printed(self) -> str:
        """What all commands have printed."""
        return (self.folder / "printed.txt").read_text(encoding="utf-8")

    def run_folder(self) -> Path | None:
        """The folder of the only validation; None before there is one."""
        found = [path.parent for path in (self.folder / "reports").glob("*/journal.jsonl")]
        assert len(found) < 2, found
        return found[0] if found else None

    def mark(self, node: str) -> Path:
        """Where a trainer with the fault `mark` writes."""
        return self.folder / f"reached-{node}"

    def dies(self, node: str, *, at: int = 5) -> dict[str, Any]:
        """The fault of a node that `kill` ends in mid-phase."""
        return {"at": at, "mark": str(self.mark(node)), "hang": 60}

    def kill(self, node: str) -> None:
        """The node dies, once its trainer has reached the fault of `dies`."""
        wait_until(self.mark(node).exists, f"{node} in mid-phase", timeout_s=150)
        self._kill(node)

    def _kill(self, node: str) -> None:
        wait_until(self.mark(node).read_text, "a pid")
        os.kill(int(self.mark(node).read_text()), signal.SIGKILL)

    def left(self) -> list[str]:
        """Processes of trainers that still run."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                words = place.joinpath("cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if str(self.folder / "faults.json") in words:
                found.append(" ".join(words))
        return found

    def close(self) -> None:
        """End what a test left."""
        for process in self._begun:
            if process.poll() is None:
                process.kill()
                process.wait()


class OverSsh(Site):
    """Hosts behind ssh."""

    engine = "ssh"

    def options(self) -> dict[str, Any]:
        return {"ssh": {"hosts": list(NODES), "python": str(self.python)}}

    @property
    def python(self) -> Path:
        """ssh hands on no variable."""
        return self.script("python", f"export PYTHONPATH={self.env['PYTHONPATH']}")

    def _kill(self, node: str) -> None:
        assert isinstance(self.hosts, SshHosts)
        self.hosts.kill_node(node)


class OverSlurm(Site):
    """An allocation that validator asks for."""

    engine = "slurm"

    def _kill(self, node: str) -> None:
        assert isinstance(self.hosts, Slurm)
        self.hosts.kill_node(node)


class InJob(OverSlurm):
    """A job of the user's, in which validator is started."""

    no_kill = True
    """Whether the job was asked to outlive its nodes; without it Slurm ends the job with any of them."""

    def _start(self, arguments: Sequence[str], streams: Mapping[str, Any]) -> subprocess.Popen[str]:
        options = ["--no-kill"] if self.no_kill else []
        command = ["salloc", "-N4", "--exclusive", *options, sys.executable, "-m", "validator", *arguments]
        return subprocess.Popen(command, env=self.env, text=True, start_new_session=True, **streams)

    def head(self, process: subprocess.Popen[str]) -> int:
        return psutil.Process(process.pid).children()[0].pid


@dataclass(frozen=True)
class Ended:
    """How a validation ended."""

    code: int
    run: Path | None
    printed: str

    @property
    def result(self) -> dict[str, Any]:
        """`result.json`."""
        assert self.run is not None, self.printed
        found: dict[str, Any] = json.loads((self.run / "result.json").read_text(encoding="utf-8"))
        return found

    @property
    def statuses(self) -> dict[str, str]:
        """Phase to its status."""
        return {phase["id"]: phase["status"] for phase in self.result["phases"]}

    def failures(self, phase: str) -> dict[str, str]:
        """Criterion to message, of those that a phase did not pass although they are required."""
        found = next(one for one in self.result["phases"] if one["id"] == phase)
        return {
            one["id"]: one["message"]
            for one in (*found["criteria"], *found["checks"])
            if one["required"] and one["status"] not in ("PASS", "SKIPPED")
        }

"""Evidence of a stall, saved before anything is ended: what the machine did, what every process did, and where it was.

The order matters. What is fleeting (GPU state) comes first, what may disturb a process (signals, debuggers) later.
Nothing here may fail a run: evidence that cannot be had is left out.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from validator.execute.gpu import Gpus
from validator.execute.procfs import Stat, catches, cmdline, environ, field_of_status, read_stat
from validator.execute.tree import ProcessTree
from validator.files import Tree

__all__ = ["Evidence", "last_stacks", "save_evidence"]

Dumps = dict[Path, int]

_PY_SPY_S = 10.0
_MAX_PROCESSES = 256


@dataclass(frozen=True)
class Evidence:
    """Where and how to save. `about` is told in machine.json; `redact` goes over every text that may hold a secret."""

    out: Path
    gpus: Gpus
    about: dict[str, Any]
    redact: Callable[[str], str]
    stacks_s: float
    files: list[Path] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """Where the files go."""
        return self.out / "dump"


def save_evidence(evidence: Evidence, tree: ProcessTree) -> tuple[Path, ...]:
    """Save what can be saved of a run that still exists; returns the files, in the order in which they were made."""
    with suppress(OSError):
        evidence.folder.mkdir(exist_ok=True)
        processes = tree.scan(deep=True)
        before = _dumps(evidence.out)
        _save_machine(evidence)
        _save_processes(evidence, processes)
        _ask_for_stacks(evidence, tree, processes, before)
        _spy(evidence, processes)
        _poke_flight_recorder(evidence)
    return tuple(evidence.files)


def last_stacks(tree: ProcessTree, processes: Sequence[Stat], *, within_s: float) -> tuple[Stat, ...]:
    """End processes that could not tell their stacks otherwise, in the one way that makes them tell: SIGABRT.

    Python's faulthandler, switched on by PYTHONFAULTHANDLER, then writes every thread's stack to standard error.
    Only a process that catches SIGABRT and neither SIGUSR1 nor SIGTERM is ended so: SIGTERM would end it just as
    abruptly. They get `within_s` to write. Returns the processes that were ended so.
    """
    chosen = tuple(
        stat
        for stat in processes
        if catches(stat.pid, signal.SIGABRT)
        and not catches(stat.pid, signal.SIGUSR1)
        and not catches(stat.pid, signal.SIGTERM)
    )
    tree.signal(signal.SIGABRT, chosen)
    until = time.monotonic() + within_s
    while time.monotonic() < until and any(_still(stat) for stat in chosen):
        time.sleep(0.01)
    return chosen


def _still(stat: Stat) -> bool:
    now = read_stat(stat.pid)
    return now is not None and now.id == stat.id and now.alive and now.state != "T"


def _save_machine(evidence: Evidence) -> None:
    memory = _read("/proc/meminfo")
    facts: dict[str, Any] = {
        "schema_version": 1,
        "time": time.time(),
        "run": evidence.about,
        "gpus": evidence.gpus.as_json(),
        "load_average": list(os.getloadavg()),
        "cpu_cores": len(os.sched_getaffinity(0)),
        "memory_kib": {
            key: int(value.split()[0])
            for key, _, value in (line.partition(":") for line in memory.splitlines())
            if key in ("MemTotal", "MemAvailable", "SwapFree", "Dirty")
        },
        "disk_free_bytes": shutil.disk_usage(evidence.out).free,
        "pressure": {name: _read(f"/proc/pressure/{name}").splitlines() for name in ("cpu", "memory", "io")},
    }
    _write_json(evidence, "machine.json", facts)


def _save_processes(evidence: Evidence, processes: Sequence[Stat]) -> None:
    rows = []
    for stat in processes[:_MAX_PROCESSES]:
        rows.append(
            {
                "pid": stat.pid,
                "parent": stat.parent,
                "rank": environ(stat.pid).get("RANK"),
                "name": stat.name,
                "state": stat.state,
                "cpu_s": round(stat.cpu_s, 2),
                "threads": field_of_status(stat.pid, "Threads"),
                "memory": field_of_status(stat.pid, "VmRSS"),
                "waits_in": _read(f"/proc/{stat.pid}/wchan"),
                "kernel_stack": _read(f"/proc/{stat.pid}/stack").splitlines(),
                "command": evidence.redact(" ".join(cmdline(stat.pid))),
            }
        )
    _write_json(evidence, "processes.json", {"schema_version": 1, "processes": rows, "count": len(processes)})


def _ask_for_stacks(evidence: Evidence, tree: ProcessTree, processes: Sequence[Stat], before: Dumps) -> None:
    """SIGUSR1 to every process that handles it; its default action would kill the others."""
    asked = tuple(stat for stat in processes if catches(stat.pid, signal.SIGUSR1))
    tree.signal(signal.SIGUSR1, asked)
    until = time.monotonic() + evidence.stacks_s
    answered: Dumps = {}
    running = [stat for stat in asked if stat.state != "T"]
    while running and time.monotonic() < until:
        time.sleep(0.05)
        now = {path: size for path, size in _dumps(evidence.out).items() if before.get(path) != size}
        if len(answered) >= len(running) and now == answered:
            break
        answered = now
    evidence.files.extend(sorted(answered))


def _spy(evidence: Evidence, processes: Sequence[Stat]) -> None:
    """Stacks from outside by py-spy, where it is installed: the only view into a process that answers no signal."""
    tool = shutil.which("py-spy")
    if tool is None:
        return
    targets = [stat for stat in processes if "python" in stat.name or "pt_" in stat.name][:64]
    with ThreadPoolExecutor(max_workers=8) as pool:
        texts = list(pool.map(lambda stat: _spy_on(tool, stat.pid), targets))
    for stat, text in zip(targets, texts, strict=True):
        if text:
            rank = environ(stat.pid).get("RANK")
            name = f"py-spy_rank{rank}_{stat.pid}.txt" if rank is not None else f"py-spy_{stat.pid}.txt"
            _write_text(evidence, name, text)


def _spy_on(tool: str, pid: int) -> str:
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            [tool, "dump", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PY_SPY_S,
            check=False,
        )
        return (done.stdout + done.stderr).decode("utf-8", "replace")
    return ""


def _poke_flight_recorder(evidence: Evidence) -> None:
    """Ask NCCL's flight recorder for its dump: one byte into every rank's pipe, then wait for the files."""
    poked = 0
    for pipe in sorted(evidence.folder.glob("nccl_pipe_rank_*.pipe")):
        with suppress(OSError):  # ENXIO: nobody reads, the rank is gone
            fd = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(fd, b"1")
                poked += 1
            finally:
                os.close(fd)
    until = time.monotonic() + evidence.stacks_s
    traces: list[Path] = []
    while poked and time.monotonic() < until and len(traces) < poked:
        time.sleep(0.1)
        traces = sorted(evidence.folder.glob("nccl_trace_rank_*"))
    evidence.files.extend(traces)


def _dumps(folder: Path) -> Dumps:
    """Size of every stack dump that is there: a trainer may open its file long before it writes to it."""
    with suppress(OSError):
        return {path: path.stat().st_size for path in folder.glob("stackdump_*")}
    return {}


def _read(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    return ""


def _write_json(evidence: Evidence, name: str, value: Any) -> None:
    _write_text(evidence, name, json.dumps(value, indent=1, default=str))


def _write_text(evidence: Evidence, name: str, text: str) -> None:
    path = evidence.folder / name
    with suppress(OSError), Tree(evidence.out) as tree:
        tree.write(path.relative_to(evidence.out), evidence.redact(text), sync=False)
        evidence.files.append(path)

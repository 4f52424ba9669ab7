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

from validator.files import Tree
from validator.supervise.termination import ProcessTree
from validator.system.gpu_facts import GpuFacts
from validator.system.host import meminfo
from validator.system.nvml import Gpus
from validator.system.processes import Stat, catches, cmdline, field_of_status, rank_of, read_proc_text, still_alive

Dumps = dict[Path, int]

_PY_SPY_S = 10.0
_OF_GPU = (
    *("index", "uuid", "name", "utilization_pct", "memory_utilization_pct", "memory_used_mib"),
    *("power_w", "temperature_c", "sm_clock_mhz"),
)
_MAX_PROCESSES = 256


@dataclass(frozen=True)
class StallEvidence:
    """Where and how to save. `about` is written to machine.json; `redact` is applied to every text.

    Ranks write their stacks into `out`, or into `trainers` where that is another folder.
    """

    out: Path
    gpus: Gpus
    about: dict[str, Any]
    redact: Callable[[str], str]
    stacks_s: float
    trainers: Path | None = None
    files: list[Path] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """Where the files go."""
        return self.out / "dump"

    def stacks(self) -> Dumps:
        """Size of every stack dump that is there: a trainer may open its file long before it writes to it."""
        with suppress(OSError):
            return {path: path.stat().st_size for path in (self.trainers or self.out).glob("stackdump_*")}
        return {}


def save_evidence(evidence: StallEvidence, tree: ProcessTree) -> tuple[Path, ...]:
    """Save what can be saved of a run that still exists; returns the files, in the order in which they were made."""
    with suppress(OSError):
        evidence.folder.mkdir(exist_ok=True)
        processes = tree.scan(deep=True)
        before = evidence.stacks()
        _save_machine(evidence)
        _save_processes(evidence, processes)
        _ask_for_stacks(evidence, tree, processes, before)
        _spy(evidence, processes)
        _dump_flight_recorder(evidence)
    return tuple(evidence.files)


def remove_pipes(out: Path) -> None:
    """Remove the pipes of NCCL's flight recorder, and the dump folder where nothing else is in it."""
    with suppress(OSError):
        for pipe in (out / "dump").glob("*.pipe"):
            pipe.unlink()
        (out / "dump").rmdir()  # only when empty


def last_stacks(tree: ProcessTree, processes: Sequence[Stat], *, within_s: float) -> None:
    """End processes that write their stacks for no other signal with the one that makes them do so: SIGABRT.

    Python's faulthandler, switched on by PYTHONFAULTHANDLER, then writes every thread's stack to standard error.
    Only a process that catches SIGABRT and neither SIGUSR1 nor SIGTERM is ended so: SIGTERM would end it just as
    abruptly. They get `within_s` to write.
    """
    chosen = tuple(
        stat
        for stat in processes
        if catches(stat.pid, signal.SIGABRT)
        and not any(catches(stat.pid, other) for other in (signal.SIGUSR1, signal.SIGTERM))
    )
    tree.signal(signal.SIGABRT, chosen)
    until = time.monotonic() + within_s
    while time.monotonic() < until and any(_may_write(stat) for stat in chosen):
        time.sleep(0.01)


def _may_write(stat: Stat) -> bool:
    now = still_alive(stat.id)
    return now is not None and now.state != "T"


def _save_machine(evidence: StallEvidence) -> None:
    facts: dict[str, Any] = {
        "schema_version": 1,
        "time": time.time(),
        "run": evidence.about,
        "gpus": [_gpu_row(gpu) for gpu in evidence.gpus.states()],
        "load_average": list(os.getloadavg()),
        "cpu_cores": len(os.sched_getaffinity(0)),
        "memory_kib": {
            key: size // 1024
            for key, size in meminfo().items()
            if key in ("MemTotal", "MemAvailable", "SwapFree", "Dirty")
        },
        "disk_free_bytes": shutil.disk_usage(evidence.out).free,
        "pressure": {name: read_proc_text(f"/proc/pressure/{name}").splitlines() for name in ("cpu", "memory", "io")},
    }
    _write_json(evidence, "machine.json", facts)


def _gpu_row(gpu: GpuFacts) -> dict[str, Any]:
    return {**{name: getattr(gpu, name) for name in _OF_GPU}, "throttle_reasons": gpu.throttle_mask}


def _save_processes(evidence: StallEvidence, processes: Sequence[Stat]) -> None:
    rows = []
    for stat in processes[:_MAX_PROCESSES]:
        rows.append(
            {
                "pid": stat.pid,
                "parent": stat.parent,
                "rank": rank_of(stat),
                "name": stat.name,
                "state": stat.state,
                "cpu_s": round(stat.cpu_s, 2),
                "threads": field_of_status(stat.pid, "Threads"),
                "memory": field_of_status(stat.pid, "VmRSS"),
                "waits_in": read_proc_text(f"/proc/{stat.pid}/wchan"),
                "kernel_stack": read_proc_text(f"/proc/{stat.pid}/stack").splitlines(),
                "command": evidence.redact(" ".join(cmdline(stat.pid))),
            }
        )
    _write_json(evidence, "processes.json", {"schema_version": 1, "processes": rows, "count": len(processes)})


def _ask_for_stacks(evidence: StallEvidence, tree: ProcessTree, processes: Sequence[Stat], before: Dumps) -> None:
    """SIGUSR1 to every process that handles it; its default action would kill the others."""
    signalled = tuple(stat for stat in processes if catches(stat.pid, signal.SIGUSR1))
    tree.signal(signal.SIGUSR1, signalled)
    until = time.monotonic() + evidence.stacks_s
    answered: Dumps = {}
    running = [stat for stat in signalled if stat.state != "T"]
    while running and time.monotonic() < until:
        time.sleep(0.05)
        now = {path: size for path, size in evidence.stacks().items() if before.get(path) != size}
        if len(answered) >= len(running) and now == answered:
            break
        answered = now
    evidence.files.extend(sorted(answered))


def _spy(evidence: StallEvidence, processes: Sequence[Stat]) -> None:
    """Stacks from outside by py-spy, where it is installed: the only view into a process that answers no signal."""
    tool = shutil.which("py-spy")
    if tool is None:
        return
    targets = [stat for stat in processes if "python" in stat.name or "pt_" in stat.name][:64]
    with ThreadPoolExecutor(max_workers=8) as pool:
        texts = list(pool.map(lambda stat: _spy_on(tool, stat.pid), targets))
    for stat, text in zip(targets, texts, strict=True):
        if text:
            rank = rank_of(stat)
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


def _dump_flight_recorder(evidence: StallEvidence) -> None:
    """Ask NCCL's flight recorder for its dump: one byte into every rank's pipe, then wait for the files."""
    poked = 0
    for pipe in sorted(evidence.folder.glob("nccl_pipe_rank_*.pipe")):
        with suppress(OSError):  # ENXIO: the rank that read it is gone
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


def _write_json(evidence: StallEvidence, name: str, value: Any) -> None:
    _write_text(evidence, name, json.dumps(value, indent=1, default=str))


def _write_text(evidence: StallEvidence, name: str, text: str) -> None:
    path = evidence.folder / name
    with suppress(OSError), Tree(evidence.out) as tree:
        tree.write(path.relative_to(evidence.out), evidence.redact(text), sync=False)
        evidence.files.append(path)

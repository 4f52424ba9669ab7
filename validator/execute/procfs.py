"""What Linux tells about processes in /proc: identity, parentage, CPU time, signals caught, environment.

Read directly, because a supervisor looks at every process of the machine again and again: one small file per process.
A process is identified by its pid and its start time, since pids are used again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

__all__ = [
    "ProcessId",
    "Stat",
    "all_stats",
    "catches",
    "children_of",
    "cmdline",
    "environ",
    "field_of_status",
    "has_variable",
    "oom_kills",
    "read_stat",
]

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class ProcessId:
    """A process for good: `start_ticks` are clock ticks from boot to its start."""

    pid: int
    start_ticks: int


@dataclass(frozen=True)
class Stat:
    """One process at one moment. `state` is a letter of proc(5): R, S, D, T (stopped), Z (zombie) and others."""

    id: ProcessId
    name: str
    state: str
    parent: int
    session: int
    cpu_s: float

    @property
    def pid(self) -> int:
        """Its pid."""
        return self.id.pid

    @property
    def alive(self) -> bool:
        """Whether it still has memory and threads; a zombie is only a notice to its parent."""
        return self.state not in "ZXx"


def read_stat(pid: int) -> Stat | None:
    """The process of that pid now, or None when there is none."""
    head, _, tail = _read(f"/proc/{pid}/stat").rpartition(b")")
    fields = tail.split()
    if len(fields) < 20:
        return None
    return Stat(
        id=ProcessId(pid, int(fields[19])),
        name=head.partition(b"(")[2].decode("utf-8", "replace"),
        state=chr(fields[0][0]),
        parent=int(fields[1]),
        session=int(fields[3]),
        cpu_s=(int(fields[11]) + int(fields[12])) * _TICK_S,
    )


def all_stats() -> Iterator[Stat]:
    """Every process that can be seen, in no order."""
    with os.scandir("/proc") as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdigit()]
    for pid in pids:
        stat = read_stat(pid)
        if stat is not None:
            yield stat


def children_of(pid: int) -> Iterator[ProcessId]:
    """Living children of a process; by a scan of all processes where the kernel keeps no lists of them."""
    tasks = f"/proc/{pid}/task"
    with os.scandir(tasks) as threads:
        lists = [f"{thread.path}/children" for thread in threads]
    if not os.path.exists(lists[0]):  # noqa: PTH110 -- a kernel without CONFIG_PROC_CHILDREN
        yield from (stat.id for stat in all_stats() if stat.parent == pid)
        return
    for path in lists:
        for child in _read(path).split():
            stat = read_stat(int(child))
            if stat is not None:
                yield stat.id


def environ(pid: int) -> dict[str, str]:
    """The environment that the process was started with; empty when it may not be read."""
    pairs = (item.partition(b"=") for item in _read(f"/proc/{pid}/environ").split(b"\0") if b"=" in item)
    return {key.decode("utf-8", "replace"): value.decode("utf-8", "replace") for key, _, value in pairs}


def has_variable(pid: int, needle: bytes) -> bool:
    """Whether the process was started with a variable; `needle` is NAME=value between two zero bytes."""
    return needle in b"\0" + _read(f"/proc/{pid}/environ") + b"\0"


def cmdline(pid: int) -> tuple[str, ...]:
    """Its arguments; empty for a kernel thread, a zombie or a process that is gone."""
    words = _read(f"/proc/{pid}/cmdline").rstrip(b"\0").split(b"\0")
    return tuple(word.decode("utf-8", "replace") for word in words if word)


def field_of_status(pid: int, name: str) -> str | None:
    """One field of /proc/PID/status, or None."""
    for line in _read(f"/proc/{pid}/status").decode("utf-8", "replace").splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return value.strip()
    return None


def catches(pid: int, signal_number: int) -> bool:
    """Whether the process handles the signal itself. Where unknown, False: the default action might kill it."""
    mask = field_of_status(pid, "SigCgt")
    return mask is not None and bool(int(mask, 16) >> (signal_number - 1) & 1)


def oom_kills() -> int:
    """Processes of this machine that the kernel has ended for lack of memory since boot; 0 where it does not say."""
    for line in _read("/proc/vmstat").splitlines():
        if line.startswith(b"oom_kill "):
            return int(line.split()[1])
    return 0


def _read(path: str) -> bytes:
    """All of a small file; empty when it cannot be read. Bare system calls: a scan reads hundreds of files."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        data = os.read(fd, 16384)
        if len(data) == 16384:  # a large environment
            with suppress(OSError):
                while more := os.read(fd, 1 << 20):
                    data += more
        return data
    except OSError:  # the process ended meanwhile
        return b""
    finally:
        os.close(fd)

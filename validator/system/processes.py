"""What Linux reports in /proc: identity, parentage, CPU time, signals caught and environment of processes.

Read directly, because a supervisor looks at every process of the machine again and again: one small file per process.
A process is identified by its pid and its start time, since the kernel reuses pids.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from validator.files import Tree

TOKEN_VARIABLE = "VALIDATOR_RUN_TOKEN"
"""In the environment of every process of a validation; its value is the validation's token."""

TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
"""Seconds of one tick, in which the kernel counts CPU time."""

_KERNEL_THREAD = 0x00200000
"""PF_KTHREAD among the flags of a process."""


@dataclass(frozen=True)
class ProcessId:
    """One process, however often its pid is reused: `start_ticks` are clock ticks from boot to its start."""

    pid: int
    start_ticks: int


@dataclass(frozen=True)
class Stat:
    """One process at one moment. `state` is a letter of proc(5): R, S, D, T (stopped), Z (zombie) and others.

    `cpu_s` is what it used itself, `waited_s` what those of its children used, with theirs, whose end it has seen.
    """

    id: ProcessId
    name: str
    state: str
    parent: int
    session: int
    cpu_s: float
    waited_s: float = 0.0
    kernel: bool = False

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
    head, _, tail = read_proc(f"/proc/{pid}/stat").rpartition(b")")
    fields = tail.split()
    if len(fields) < 20:
        return None
    return Stat(
        id=ProcessId(pid, int(fields[19])),
        name=head.partition(b"(")[2].decode("utf-8", "replace"),
        state=chr(fields[0][0]),
        parent=int(fields[1]),
        session=int(fields[3]),
        cpu_s=(int(fields[11]) + int(fields[12])) * TICK_S,
        waited_s=(int(fields[13]) + int(fields[14])) * TICK_S,
        kernel=bool(int(fields[6]) & _KERNEL_THREAD),
    )


def still_alive(identity: ProcessId) -> Stat | None:
    """The process now; None when it has ended, also when its pid belongs to another process by now."""
    stat = read_stat(identity.pid)
    return stat if stat is not None and stat.id == identity and stat.alive else None


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
        for child in read_proc(path).split():
            stat = read_stat(int(child))
            if stat is not None:
                yield stat.id


def environ(pid: int) -> dict[str, str]:
    """The environment that the process was started with; empty when it may not be read."""
    pairs = (item.partition(b"=") for item in read_proc(f"/proc/{pid}/environ").split(b"\0") if b"=" in item)
    return {key.decode("utf-8", "replace"): value.decode("utf-8", "replace") for key, _, value in pairs}


def rank_of(stat: Stat) -> str | None:
    """By the environment that the process was started with; one that was forked as a rank has it in its name."""
    named = re.fullmatch(r"pt_rank(\d+)", stat.name)
    return named[1] if named else environ(stat.pid).get("RANK")


def variable_needle(name: str, value: object) -> bytes:
    """A variable as the kernel writes it in /proc/PID/environ, between two zero bytes; for `has_variable`."""
    return f"\0{name}={value}\0".encode()


def has_variable(pid: int, needle: bytes) -> bool:
    """Whether the process was started with the variable of a `variable_needle`."""
    return needle in b"\0" + read_proc(f"/proc/{pid}/environ") + b"\0"


def cmdline(pid: int) -> tuple[str, ...]:
    """Its arguments; empty for a kernel thread, a zombie or a process that is gone."""
    words = read_proc(f"/proc/{pid}/cmdline").rstrip(b"\0").split(b"\0")
    return tuple(word.decode("utf-8", "replace") for word in words if word)


def field_of_status(pid: int, name: str) -> str | None:
    """One field of /proc/PID/status, or None."""
    return next((value for key, value in proc_fields(f"/proc/{pid}/status") if key == name), None)


def written_files(pid: int) -> Iterator[tuple[str, str]]:
    """What a process has open for writing: its link in /proc, and the path that it leads to, as the kernel names it.

    None where it may not be seen.
    """
    with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as links:
        for link in links:
            if path := written_by(link.path):
                yield link.path, path


def written_by(link: str) -> str:
    """Where a link in /proc/PID/fd leads that writes; empty for one that only reads, is gone, or may not be seen."""
    about = dict(proc_fields(link.replace("/fd/", "/fdinfo/")))
    writes = int(about.get("flags", "0"), 8) & os.O_ACCMODE != os.O_RDONLY
    try:
        return os.readlink(link) if writes else ""  # noqa: PTH115 -- asked at every look of a run
    except OSError:
        return ""


def catches(pid: int, signal_number: int) -> bool:
    """Whether the process handles the signal itself. Where unknown, False: the default action might kill it."""
    mask = field_of_status(pid, "SigCgt")
    return mask is not None and bool(int(mask, 16) >> (signal_number - 1) & 1)


def held_memory(pid: int) -> tuple[int, int] | None:
    """Bytes of a process: anonymous, swapped out included, and shared memory that it maps; None when it is gone.

    From status, whose sums the kernel keeps; smaps_rollup would share them out, by a walk through all pages.
    """
    sizes = {}
    for line in read_proc(f"/proc/{pid}/status").splitlines():
        name, _, value = line.partition(b":")
        if name in (b"RssAnon", b"RssShmem", b"VmSwap"):
            sizes[name] = 1024 * int(value.split()[0])
    if b"RssAnon" not in sizes:
        return None
    return sizes[b"RssAnon"] + sizes.get(b"VmSwap", 0), sizes.get(b"RssShmem", 0)


def oom_kills() -> int:
    """Processes of this machine that the kernel has ended for lack of memory since boot; 0 where it counts none."""
    return next((int(count) for name, count in proc_fields("/proc/vmstat", " ") if name == "oom_kill"), 0)


def proc_fields(path: str | Path, separator: str = ":") -> Iterator[tuple[str, str]]:
    """Name and value of each line of a file of /proc or /sys, such as `Threads: 4`; none when it cannot be read."""
    for line in read_proc_text(path).splitlines():
        name, _, value = line.partition(separator)
        yield name.strip(), value.strip()


def read_proc_text(path: str | Path) -> str:
    """A file of /proc or /sys as text; empty when it cannot be read."""
    return read_proc(path).decode("utf-8", "replace").strip()


def read_proc(path: str | Path) -> bytes:
    """A file of /proc or /sys; empty when it cannot be read. Bare system calls: a scan reads hundreds of files.

    Not for files that a trainer may write: links are followed and the size has no limit.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        data = os.read(fd, 1 << 16)
        # Lists in /proc (vmstat, children) come a page at a time, so a short answer is not the end of the file.
        while more := os.read(fd, 1 << 20):
            data += more
        return data
    except OSError:  # the process ended meanwhile
        return b""
    finally:
        os.close(fd)


# Which processes do not belong to the validation: a measurement beside one of them on a GPU is invalid, and those that
# use the CPU may be why a run is slow.

_MAX_GENERATIONS = 64

_SETTLED_S = 5.0
"""Age from which a process has its own environment: between fork and exec it has its parent's."""


class OtherProcesses:
    """Counts the processes on a GPU that are not the validation's, and names each in `path` when it appears. Adds up
    what is not theirs of the CPU time that the machine used.

    A process is the validation's own if its environment carries the token, or if it descends from this process. One
    that this machine's process table does not hold lives in another PID namespace: it counts only when the processes
    that are known show that NVML reports pids of this namespace.
    """

    def __init__(self, token: str | None, path: Path) -> None:
        self._needle = None if token is None else variable_needle(TOKEN_VARIABLE, token)
        self._path = path
        self._own: dict[ProcessId, bool] = {}
        self._marked: set[ProcessId] = set()
        self._users: dict[ProcessId, Stat] | None = None
        self._ranks: dict[ProcessId, str | None] = {}
        self._present: dict[int, set[int]] = {}
        self._same_namespace = False

    def count(self, gpu: int, used_mib: Mapping[int, float | None], name: Callable[[int], str]) -> int:
        """How many of a GPU's processes are not the validation's; new ones are appended to the file.

        Args:
            used_mib: memory of each process on that GPU, by pid.
            name: the driver's name of a process.
        """
        stats = {pid: read_stat(pid) for pid in used_mib}
        own = {pid for pid, stat in stats.items() if stat is not None and self._is_own(stat)}
        self._same_namespace |= bool(own)
        others = {pid for pid, stat in stats.items() if pid not in own and (stat is not None or self._same_namespace)}
        for pid in sorted(others - self._present.get(gpu, set())):
            stat = stats[pid]
            self._append(gpu, pid, name(pid) or (stat.name if stat else "") or "unknown", used_mib[pid])
        self._present[gpu] = others
        return len(others)

    def own_cpu_seconds(self) -> float | None:
        """CPU time since the last call of the validation's processes and of the kernel; None at the first call.

        What the machine used beyond it is of other programs. Their processes are not added up: compilers end between
        two looks, and those of another container are not seen. Of the validation's, the parent knows what a process
        used that has ended. The kernel works for the validation, too.
        """
        stats = list(all_stats())
        now = {one.id: one for one in stats if one.kernel or self._is_own(one)}
        before, self._users = self._users, now
        present = {one.id for one in stats}
        self._own = {identity: own for identity, own in self._own.items() if identity in present}
        self._marked &= present
        if before is None:
            return None
        pairs = [(one, before.get(identity)) for identity, one in now.items()]
        used = sum(one.cpu_s - (was.cpu_s if was else 0.0) for one, was in pairs)
        waited = sum(one.waited_s - (was.waited_s if was else 0.0) for one, was in pairs)
        gone = (one for identity, one in before.items() if identity not in now and not one.kernel)
        ended = sum(one.cpu_s + one.waited_s for one in gone)
        return max(0.0, used) + max(0.0, waited - ended)

    def run_memory(self, shared: int | None) -> int | None:
        """Bytes that the runs' processes held at the last call of `own_cpu_seconds`; None where there are none.

        Their anonymous memory, in RAM or swapped out, and the shared memory that they map, which is counted once for
        each that maps it, but never as more than `shared`, all that the machine has. Files that are mapped do not
        count: the kernel takes their memory back. Nor do this process and what it starts for itself, without the token.
        """
        held = [found for found in (held_memory(one.pid) for one in self._of_run()) if found is not None]
        if not held:
            return None
        mapped = sum(one[1] for one in held)
        return sum(one[0] for one in held) + (mapped if shared is None else min(mapped, shared))

    def run_ranks(self) -> int | None:
        """How many ranks were alive at the last call of `own_cpu_seconds`, by the number that their launcher gave them;
        a worker of a data loader has its rank's. None where no process has one."""
        alive = self._of_run()
        present = {one.id for one in alive}
        self._ranks = {identity: rank for identity, rank in self._ranks.items() if identity in present}
        for one in alive:
            if self._ranks.get(one.id) is None and (one.id not in self._ranks or _age_s(one) <= _SETTLED_S):
                self._ranks[one.id] = rank_of(one)
        return len({rank for rank in self._ranks.values() if rank is not None}) or None

    def _of_run(self) -> list[Stat]:
        return [one for one in (self._users or {}).values() if not one.kernel and one.alive and self._is_of_run(one)]

    def _append(self, gpu: int, pid: int, name: str, used_mib: float | None) -> None:
        line = {
            "ts": round(time.time(), 3),
            "gpu": gpu,
            "pid": pid,
            "name": name,
            "used_mib": None if used_mib is None else round(used_mib),
        }
        with suppress(OSError), Tree(self._path.parent) as tree:
            tree.append(self._path.name, f"{json.dumps(line)}\n".encode())

    def _is_own(self, stat: Stat) -> bool:
        known = self._own.get(stat.id)
        if known is None:
            known = self._is_marked(stat) or _descends_from_this(stat)
            if known or _age_s(stat) > _SETTLED_S:
                self._own[stat.id] = known
        return known

    def _is_marked(self, stat: Stat) -> bool:
        """Whether it carries the token, or did before it wrote its title over its environment.

        What does not is asked again, since it may not have begun its program yet.
        """
        if self._needle is not None and stat.id not in self._marked and has_variable(stat.pid, self._needle):
            self._marked.add(stat.id)
        return stat.id in self._marked

    def _is_of_run(self, stat: Stat) -> bool:
        """Whether one of its own carries the token, or a process that it descends from; without a token, all do."""
        here = os.getpid()
        found: Stat | None = stat
        for _ in range(_MAX_GENERATIONS):
            if found is None or found.pid in (0, 1, here):
                return False
            if self._needle is None or self._is_marked(found):
                return True
            found = read_stat(found.parent)
        return False


def _age_s(stat: Stat) -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) - stat.id.start_ticks * TICK_S


def _descends_from_this(stat: Stat) -> bool:
    """Whether this process is the process itself or one of its ancestors."""
    here = os.getpid()
    found: Stat | None = stat
    for _ in range(_MAX_GENERATIONS):  # parents may change while they are followed
        if found is None or found.pid <= 1:
            return False
        if found.pid == here:
            return True
        found = read_stat(found.parent)
    return False

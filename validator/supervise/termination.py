"""Containment: which processes belong to a run, and their end.

torchrun starts every worker in a session of its own, and a trainer may fork twice, so neither a process group nor the
parent links are enough. Four marks are used together: descent seen at any look, the environment variable
VALIDATOR_RUN_TOKEN, adoption by this process (a subreaper inherits orphans), and the session of the root.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from validator.system import processes as proc

RUNNER_VARIABLE = "VALIDATOR_RUNNER"
"""Set to the runner's pid in what the runner starts for itself (`nvidia-smi` and the like), never in a run."""
_PR_SET_CHILD_SUBREAPER = 36
_subreaper: bool | None = None
_unmarked: dict[bytes, set[proc.ProcessId]] = {}
"""Processes known not to carry a token, by token, so that each environment is read once and not once per run."""


def become_subreaper() -> bool:
    """Let orphans of this process's descendants become its children. Returns whether the kernel agreed.

    From here on every child of this process inherits RUNNER_VARIABLE, which an orphan of a run does not have.
    """
    global _subreaper
    os.environ[RUNNER_VARIABLE] = str(os.getpid())
    if _subreaper is None:
        try:
            _subreaper = ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
        except (OSError, AttributeError):
            _subreaper = False
    return _subreaper


class ProcessTree:
    """Every process of one run, also those that left its session or lost their parent.

    `spare` are pids that are never touched. Children that this process had before the run started, and helpers that
    share its session, are not taken for the run's.
    """

    def __init__(self, *, token: str, spare: Iterable[int] = ()) -> None:
        me = os.getpid()
        own = proc.read_stat(me)
        self._me = me
        self._session = own.session if own else -1
        self._needle = proc.variable_needle(proc.TOKEN_VARIABLE, token)
        self._helper = proc.variable_needle(RUNNER_VARIABLE, me)
        self._spare = {me, *spare}
        self._known: dict[proc.ProcessId, proc.Stat] = {}
        self._unmarked = _unmarked.setdefault(self._needle, set())
        self._ended_cpu_s = 0.0
        self._root: int | None = None
        become_subreaper()
        self._own_children = frozenset(proc.children_of(me))

    def watch(self, root: int) -> None:
        """Take `root`, just started by this process, as the root of the run."""
        self._root = root
        stat = proc.read_stat(root)
        if stat is not None:
            self._known[stat.id] = stat

    def scan(self, *, deep: bool = False) -> tuple[proc.Stat, ...]:
        """The run's living processes now, by pid.

        A shallow scan follows parents and adoption; a deep one reads the environment of all other processes as well.
        """
        present = {stat.pid: stat for stat in proc.all_stats()}
        mine = {pid for pid, stat in present.items() if self._belongs(stat, deep=deep)}
        children: dict[int, list[int]] = {}
        for stat in present.values():
            children.setdefault(stat.parent, []).append(stat.pid)
        stack = list(mine)
        while stack:
            for child in children.get(stack.pop(), ()):
                if child not in mine and child not in self._spare:
                    mine.add(child)
                    stack.append(child)
        for pid in mine:
            self._known[present[pid].id] = present[pid]
        if deep:
            self._unmarked &= {stat.id for stat in present.values()}
        self._reap(present[pid] for pid in mine)
        return tuple(present[pid] for pid in sorted(mine) if present[pid].alive)

    def living(self) -> tuple[proc.Stat, ...]:
        """Known processes that still run, without looking for new ones: a few small reads."""
        for identity, last in tuple(self._known.items()):
            stat = proc.still_alive(identity)
            if stat is not None:
                self._known[identity] = stat
            else:
                self._ended_cpu_s += last.cpu_s
                del self._known[identity]
        return tuple(self._known.values())

    def stopped(self) -> tuple[int, ...]:
        """Known processes in state T."""
        return tuple(stat.pid for stat in self.living() if stat.state == "T")

    def cpu_seconds(self) -> float:
        """CPU time used so far by every process ever seen in the run, the ended ones as last seen."""
        return sum(stat.cpu_s for stat in self.living()) + self._ended_cpu_s

    def signal(self, number: int, processes: Iterable[proc.Stat]) -> None:
        """Send a signal to each process that is still the one it was."""
        for stat in processes:
            if proc.still_alive(stat.id) is not None:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(stat.pid, number)

    def kill(self, *, within_s: float) -> tuple[proc.Stat, ...]:
        """SIGKILL everything, again until nothing is left or the time is up. Returns what is left."""
        until = time.monotonic() + within_s
        left = self.scan(deep=True)
        while left:
            self.signal(signal.SIGKILL, left)
            time.sleep(0.005)
            left = self.scan(deep=True)
            if time.monotonic() > until:
                break
        return left

    def _belongs(self, stat: proc.Stat, *, deep: bool) -> bool:
        if stat.pid in self._spare:
            return False
        if stat.id in self._known:
            return True
        if stat.session == self._root:
            return True
        if self._adopted(stat):
            return True
        if not deep or stat.id in self._unmarked:
            return False
        if proc.has_variable(stat.pid, self._needle):
            return True
        if stat.alive:
            self._unmarked.add(stat.id)
        return False

    def _adopted(self, stat: proc.Stat) -> bool:
        """Whether it is a child that this process did not start itself: an orphan of the run.

        Children from before the run are known by identity. Helpers that are started meanwhile share this session or
        carry the mark that this process gives to all its children but the runs; before they have executed their
        program they have the command line of this process.
        """
        if stat.parent != self._me or self._root is None or not _subreaper:
            return False
        if stat.session == self._session or stat.id in self._own_children:
            return False
        return not proc.has_variable(stat.pid, self._helper) and proc.cmdline(stat.pid) != proc.cmdline(self._me)

    def _reap(self, processes: Iterable[proc.Stat]) -> None:
        """Collect adopted zombies; the root's exit code belongs to the `Popen` that started it."""
        for stat in processes:
            if stat.parent == self._me and not stat.alive and stat.pid != self._root:
                with suppress(ChildProcessError):
                    os.waitpid(stat.pid, os.WNOHANG)


def end_marked(token: str, *, term_s: float = 10.0, kill_s: float = 10.0) -> tuple[int, ...]:
    """End every process that carries the token: what a killed runner, and its guardian, left behind.

    SIGTERM, up to `term_s` of patience, SIGKILL, up to `kill_s`. Returns the pids that were found.
    """
    tree = ProcessTree(token=token)
    found = tree.scan(deep=True)
    tree.signal(signal.SIGTERM, found)
    until = time.monotonic() + term_s
    while time.monotonic() < until and tree.scan(deep=True):
        time.sleep(0.05)
    tree.kill(within_s=kill_s)
    return tuple(stat.pid for stat in found)


# Ending a run: politely, with patience, then by force; and what had to be done.

_POLL_S = 0.02


@dataclass(frozen=True)
class Grace:
    """Patience, in seconds.

    `term_s`: between SIGTERM and SIGKILL; torchrun itself gives its workers 30 s, so less than 40 would orphan them.
    `halt_s`: for a trainer to honor `.HALT` before SIGTERM. `leftover_s`: for processes that outlive the root of the
    run to end by themselves, and again after SIGTERM. `kill_s`: for the kernel to remove what was killed.
    `gpu_memory_s`: for the GPUs' memory to come back. `stacks_s`: for ranks to write their stacks.
    """

    term_s: float = 40.0
    halt_s: float = 10.0
    leftover_s: float = 5.0
    kill_s: float = 10.0
    gpu_memory_s: float = 60.0
    stacks_s: float = 3.0


@dataclass(frozen=True)
class Stopped:
    """How the end went: pids that had to be killed, and pids that even SIGKILL did not remove in time; the same of a
    container, by its name."""

    killed: tuple[int, ...] = ()
    surviving: tuple[int, ...] = ()
    killed_container: str | None = None
    surviving_container: str | None = None

    @property
    def left(self) -> bool:
        """Whether something of the run is there still."""
        return bool(self.surviving) or self.surviving_container is not None


def stop(
    process: subprocess.Popen[bytes],
    tree: ProcessTree,
    *,
    launcher: str,
    grace: Grace,
    urgent: Callable[[], bool],
    terminate: Callable[[], bool] | None = None,
) -> Stopped:
    """SIGTERM, up to `term_s` of patience, shorter once nothing is left or `urgent` says so, then SIGKILL.

    torchrun forwards SIGTERM to its workers, so it alone gets the signal; otherwise the whole process group does, as
    from a terminal. `terminate` sends it to what is reached in another way; where that fails, the processes get it.
    """
    if process.poll() is None and not (terminate is not None and terminate()):
        with suppress(ProcessLookupError, PermissionError):
            if launcher == "torchrun":
                process.send_signal(signal.SIGTERM)
            else:
                os.killpg(process.pid, signal.SIGTERM)
    if process.poll() is None:
        # A stopped process answers no signal but SIGKILL until it is continued.
        tree.signal(signal.SIGCONT, (stat for stat in tree.scan(deep=True) if stat.state == "T"))
    if await_exit(process, within_s=grace.term_s, urgent=urgent) and not urgent():
        return clear_leftovers(process, tree, grace=grace, urgent=urgent, at_once=True)
    return _kill(process, tree, tree.scan(deep=True), grace=grace)


def await_exit(process: subprocess.Popen[bytes], *, within_s: float, urgent: Callable[[], bool]) -> bool:
    """Whether the root of the run ends within the time; `urgent` ends the wait early."""
    until = time.monotonic() + within_s
    while process.poll() is None and time.monotonic() < until and not urgent():
        time.sleep(_POLL_S)
    return process.poll() is not None


def clear_leftovers(
    process: subprocess.Popen[bytes],
    tree: ProcessTree,
    *,
    grace: Grace,
    urgent: Callable[[], bool],
    at_once: bool = False,
) -> Stopped:
    """End what outlives the root of a run. Helpers that end by themselves within `leftover_s` are not counted."""
    left = tree.scan(deep=True)
    if not left:
        return Stopped()
    if not at_once:
        left = _await_end(tree, left, until=time.monotonic() + min(1.0, grace.leftover_s), urgent=urgent)
    if not left:
        return Stopped()
    terminated = left
    tree.signal(signal.SIGTERM, left)
    left = _await_end(tree, left, until=time.monotonic() + grace.leftover_s, urgent=urgent)
    killed = _kill(process, tree, left, grace=grace) if left else Stopped()
    pids = {stat.pid for stat in terminated} if not at_once else set()
    return Stopped(killed=tuple(sorted(pids | set(killed.killed))), surviving=killed.surviving)


def _await_end(
    tree: ProcessTree, left: tuple[proc.Stat, ...], *, until: float, urgent: Callable[[], bool]
) -> tuple[proc.Stat, ...]:
    while left and time.monotonic() < until and not urgent():
        time.sleep(_POLL_S)
        left = tree.scan(deep=True)
    return left


def _kill(process: subprocess.Popen[bytes], tree: ProcessTree, left: tuple[proc.Stat, ...], *, grace: Grace) -> Stopped:
    surviving = tree.kill(within_s=grace.kill_s)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=grace.kill_s)
    return Stopped(killed=tuple(stat.pid for stat in left), surviving=tuple(stat.pid for stat in surviving))

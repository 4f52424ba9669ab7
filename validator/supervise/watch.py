"""The files by which a watchdog stops a trainer and says why, and the watchdog for a trainer started elsewhere."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from validator.errors import ExitCode, FolderError
from validator.files import Tree, is_file
from validator.ingest.log_files import log_lines
from validator.ingest.logs import recognized
from validator.model.catalogue import PACES
from validator.model.print_formats import Recipe
from validator.model.runbook import BUNDLED_METRICS, TrainerMetrics, Watchdog
from validator.supervise.follow import RunFollower
from validator.supervise.nodes import live_text
from validator.supervise.wait import CancelToken, cancel_on_signals
from validator.supervise.watchdog import Activity, AnomalyRules, CpuMeter, Pace, judge_silence
from validator.system.processes import ProcessId, all_stats, catches, read_stat, still_alive
from validator.text import CommandGuard, format_number
from validator.times import iso_now

HALT_FILE = ".HALT"
ANOMALY_FILE = ".anomaly_type"
_MAX_BYTES = 64 * 2**10
_SHOWN = ("loss", "toks_per_s")
_ENDS = ("done", "gone", "halted")


def named_anomaly(out: Path) -> str | None:
    """What the trainer, or a watchdog, wrote into `.anomaly_type`; None when there is no such file."""
    with suppress(OSError), Tree(out) as tree:
        found = tree.text(ANOMALY_FILE, limit=_MAX_BYTES).split()
        return found[0][:64] if found else None
    return None


def write_halt(out: Path, *, code: str, why: str) -> None:
    """Write `.anomaly_type` (unless the trainer has named the anomaly itself) and `.HALT`.

    A disk that is full must not keep a run from being stopped, so errors are passed over.
    """
    with suppress(OSError), Tree(out) as tree:
        if not tree.has_file(ANOMALY_FILE):
            with suppress(OSError):
                tree.write(ANOMALY_FILE, code + "\n")
        tree.write(HALT_FILE, why + "\n")


# The watchdog without a supervisor: on any trainer's folder, however the trainer was started.

_MANY_LINES, _RETRY_S = 200, 5.0
"""Lines of a log in which a known format must have appeared, and how soon it is looked for again."""

_JOIN_BYTES = 256 << 10  # how far back a folder is read when watching begins


@dataclass(frozen=True)
class WatchEvent:
    """What the watchdog saw.

    `code` is `reading` (the format of a log was recognized), `progress` (the step advanced), `slow`, an anomaly's code
    (`nan_loss`, `stall`, …), or one of the ends: `done` (every rank reported it), `gone` (the trainer's processes ended
    without reporting it), `halted` (`.HALT` is there). `halt_written` says whether this event made the watchdog write
    `.HALT`.
    """

    time: str
    code: str
    message: str
    step: int | None = None
    halt_written: bool = False


def watch(
    directory: Path,
    *,
    interval_s: float = 30.0,
    halt: bool = True,
    limits: Watchdog | None = None,
    metrics: TrainerMetrics = BUNDLED_METRICS,
    cancel: CancelToken | None = None,
    ended: threading.Event | None = None,
) -> Iterator[WatchEvent]:
    """Look at a trainer's folder, or at its log by itself, every `interval_s` seconds and yield what is worth
    reporting.

    With `halt`, an anomaly or a stall makes it ask the ranks for their stacks (SIGUSR1, where they handle it), write
    `.anomaly_type` and `.HALT`, and end. Without, it keeps watching. It also ends when the trainer has, which `ended`
    says of a trainer whose output is all that is known. A log that nothing says how to read is read by its format.

    Raises:
        FolderError: when there is no such folder or log, or a log is in no known format.
    """
    if not directory.is_dir() and not is_file(directory):
        raise FolderError(f"{directory} is not there; give the folder that the trainer writes to, or its log")
    if directory.is_file() and not metrics.reads_log:
        patience_s = (limits or Watchdog()).first_step
        known = _recognized(directory, interval_s, cancel, ended, patience_s=patience_s)
        if known is None:
            return
        metrics = metrics.model_copy(update={"stdout": known.pattern})
        about = f"{directory.name} is read as lines of {known.name}; give --stdout PATTERN where that is wrong"
        yield WatchEvent(iso_now("seconds"), "reading", about)
    watcher = _Watcher(directory.resolve(), limits or Watchdog(), metrics, halt=halt, ended=ended)
    while True:
        for event in watcher.look():
            yield event
            if event.halt_written or event.code in _ENDS:
                return
        if _wait(interval_s, cancel, ended):
            return


def _recognized(
    log: Path, interval_s: float, cancel: CancelToken | None, ended: threading.Event | None, *, patience_s: float
) -> Recipe | None:
    """The print format of a log, which may still have to grow; None where the user stops the wait for it.

    Raises:
        FolderError: when it has many lines, or has had time for some, and none in a known format.
    """
    until = time.monotonic() + patience_s
    while True:
        found = recognized((log,))
        if found is not None:
            return found[1]
        many = sum(1 for _ in islice(log_lines(log), _MANY_LINES)) == _MANY_LINES
        if many or time.monotonic() >= until:
            raise FolderError(
                f"{log} is in no known print format, so nothing says how to read it; add --stdout 'step {{step}} loss "
                "{loss}'"
            )
        if _wait(min(interval_s, _RETRY_S), cancel, ended):
            return None


def _wait(interval_s: float, cancel: CancelToken | None, ended: threading.Event | None) -> bool:
    """Wait for the next look, or less if the trainer's output ends before; whether the user has asked to stop."""
    until = time.monotonic() + interval_s
    while (left := until - time.monotonic()) > 0 and not (ended is not None and ended.is_set()):
        slice_s = left if ended is None else min(left, 0.5)
        if cancel is None:
            time.sleep(slice_s)
        elif cancel.wait(slice_s):
            return True
    return False


class _Watcher:
    """The state between looks."""

    def __init__(
        self, at: Path, limits: Watchdog, metrics: TrainerMetrics, *, halt: bool, ended: threading.Event | None
    ) -> None:
        directory, log = (at, None) if at.is_dir() else (at.parent, at)
        self._directory = directory
        self._ended = ended
        self._limits = limits
        self._halt = halt
        self._follower = RunFollower(out=directory, metrics=metrics, skip_to_last_bytes=_JOIN_BYTES, log=log)
        self._rules = AnomalyRules(limits, env=directory / metrics.env if metrics.env else None)
        self._pace = Pace(started=time.monotonic())
        self._processes: dict[int, ProcessId] = {}
        self._cpu = CpuMeter(limits)
        self._reported: set[str] = set()

    def look(self) -> list[WatchEvent]:
        """What is new since the last look."""
        now = time.monotonic()
        # Asked before reading: a process that ends after this may have written more than is read below.
        gone = bool(self._processes) and not self._living()
        output_ended = self._ended is not None and self._ended.is_set()
        records = self._follower.look(now=now)
        events = [
            self._act(anomaly.code, anomaly.message, anomaly.step)
            for anomaly in map(self._rules.judge, records)
            if anomaly is not None
        ]
        if self._pace.follow(records, now):
            self._reported -= {"slow", "stall"}
            events.append(self._event("progress", self._progress_sentence()))
        activity = self._activity(now)
        end = self._end(gone=gone)
        if end is None and output_ended:
            end = self._event("gone", "the trainer's output has ended")
        if end is not None:
            return [*events, end]
        return events if events else self._judge_silence(activity, now)

    def _judge_silence(self, activity: Activity, now: float) -> list[WatchEvent]:
        silence = judge_silence(self._pace, self._limits, activity, now=now)
        code = {"fine": "fine", "slow": "slow", "stalled": "stall"}[silence.verdict]
        if code == "fine" or code in self._reported or "stall" in self._reported:
            return []
        self._reported.add(code)
        if code == "slow":
            return [self._event(code, silence.message)]
        return [self._act(code, silence.message, self._pace.step)]

    def _act(self, code: str, message: str, step: int | None) -> WatchEvent:
        if not self._halt:
            return self._event(code, message, step)
        for identity in self._living():
            if catches(identity.pid, signal.SIGUSR1):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(identity.pid, signal.SIGUSR1)
        write_halt(self._directory, code=code, why=message)
        event = self._event(code, message, step)
        return WatchEvent(event.time, event.code, event.message, event.step, halt_written=True)

    def _end(self, *, gone: bool) -> WatchEvent | None:
        ranks = self._follower.by_rank
        if ranks and all(state.message == "done" for state in ranks.values()):
            return self._event("done", f"every rank is done at step {self._pace.step}")
        if (self._directory / HALT_FILE).exists():
            return self._event("halted", f"{HALT_FILE} is in the folder")
        if gone:
            return self._event("gone", "the trainer's processes ended without reporting that they were done")
        return None

    def _living(self) -> list[ProcessId]:
        return [identity for identity in self._processes.values() if still_alive(identity) is not None]

    def _activity(self, now: float) -> Activity:
        """CPU use of the ranks and their descendants. A pid counts once it was seen alive on this machine."""
        for state in self._follower.by_rank.values():
            if state.pid is not None and state.pid not in self._processes:
                stat = read_stat(state.pid)
                if stat is not None and stat.alive:
                    self._processes[state.pid] = stat.id
        living = {identity.pid for identity in self._living()}
        if not living:
            return Activity()
        stats = {stat.pid: stat for stat in all_stats()}
        parents = {pid: stat.parent for pid, stat in stats.items()}
        self._cpu.add(now, sum(stat.cpu_s for pid, stat in stats.items() if _descends(pid, living, parents)))
        stopped = tuple(pid for pid in living if pid in stats and stats[pid].state == "T")
        return Activity(cpu_cores=self._cpu.cores(), stopped=stopped)

    def _progress_sentence(self) -> str:
        latest = self._follower.latest
        facts = [f"{name} {format_number(latest[name])}" for name in _SHOWN if name in latest]
        if "toks_per_s" not in latest:
            facts += [f"{name} {format_number(latest[name])}" for name in PACES if name in latest][:1]
        facts += [f"nodes {live_text(self._follower.nodes)}"] if self._follower.nodes else []
        return ", ".join([f"step {self._pace.step}", *facts])

    def _event(self, code: str, message: str, step: int | None = None) -> WatchEvent:
        moment = iso_now("seconds")
        return WatchEvent(moment, code, message, self._pace.step if step is None else step)


def _descends(pid: int, ancestors: set[int], parents: dict[int, int]) -> bool:
    seen: set[int] = set()
    while pid not in ancestors:
        if pid in seen or pid not in parents:
            return False
        seen.add(pid)
        pid = parents[pid]
    return True


_HARMLESS = ("reading", "progress", "slow", "done", "gone")


@dataclass(frozen=True)
class Watched:
    """How a watch ended. `anomalies` are the codes that were seen, in order; `end` is the code of the trainer's end,
    None when the watch ended before it did."""

    anomalies: tuple[str, ...]
    end: str | None
    interrupted: bool

    @property
    def exit_code(self) -> int:
        """130 when the user ended the watch, 1 for an anomaly, 3 when the trainer ended without a report, else 0."""
        if self.interrupted:
            return ExitCode.INTERRUPTED
        if self.anomalies:
            return ExitCode.NO_GO
        return ExitCode.INCONCLUSIVE if self.end == "gone" else ExitCode.GO


def watch_to_end(
    directory: Path,
    *,
    interval_s: float,
    halt: bool,
    limits: Watchdog,
    metrics: TrainerMetrics,
    show: Callable[[WatchEvent], None],
    ended: threading.Event | None = None,
) -> Watched:
    """Watch a trainer's folder or log until the trainer has ended, the watchdog has halted it, or a signal comes.

    Each event is given to `show`.

    Raises:
        FolderError: when there is no such folder.
    """
    anomalies: list[str] = []
    end: str | None = None
    cancel = CancelToken()
    try:
        with cancel_on_signals(cancel):
            events = watch(
                directory,
                interval_s=interval_s,
                halt=halt,
                limits=limits,
                metrics=metrics,
                cancel=cancel,
                ended=ended,
            )
            for event in events:
                show(event)
                if event.code not in _HARMLESS:
                    anomalies.append(event.code)
                if event.code in _ENDS:
                    end = event.code
        return Watched(tuple(anomalies), end, interrupted=cancel.requested)
    finally:
        cancel.close()


@contextmanager
def printed_to_log(
    source: int, echo: int | None, guard: CommandGuard | None = None
) -> Iterator[tuple[Path, threading.Event]]:
    """A log that receives what the descriptor `source` gives, such as a pipe from a trainer, and an event for its end.

    All of it is passed on to the descriptor `echo`, through `guard`, until that is closed. The log is removed
    afterwards.
    """
    ended = threading.Event()
    with tempfile.TemporaryDirectory(prefix="validator-watch-") as folder:
        log = Path(folder) / "stdin.log"
        log.touch()
        threading.Thread(target=_copy, args=(source, log, echo, ended, guard), daemon=True).start()
        yield log, ended


def _copy(source: int, log: Path, echo: int | None, ended: threading.Event, guard: CommandGuard | None = None) -> None:
    # Descriptors and no file objects: a thread that holds the lock of one when Python ends would abort it.
    try:
        with log.open("ab", buffering=0) as file:
            while data := os.read(source, 1 << 16):
                with suppress(OSError):  # a full disk must not stop the trainer, which would block on its pipe
                    file.write(data)
                shown = data if guard is None else guard.guarded_bytes(data)
                echo = None if echo is None or not _written(echo, shown) else echo
    finally:
        ended.set()


def _written(to: int, data: bytes) -> bool:
    try:
        while data:
            data = data[os.write(to, data) :]
    except OSError:
        return False
    return True

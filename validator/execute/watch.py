"""The watchdog on its own: any trainer's folder, whoever started the trainer."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from validator.execute.cancel import CancelToken
from validator.execute.follow import RunFollower
from validator.execute.halt import write_halt
from validator.execute.procfs import ProcessId, all_stats, catches, read_stat
from validator.execute.watchdog import Activity, AnomalyRules, CpuMeter, Pace, judge_silence
from validator.model.runbook import BUNDLED_METRICS, TrainerMetrics, Watchdog

__all__ = ["WatchEvent", "watch"]

_JOIN_BYTES = 256 << 10  # how far back a folder is read when watching begins


@dataclass(frozen=True)
class WatchEvent:
    """What the watchdog saw.

    `code` is `progress` (the step advanced), `slow`, an anomaly's code (`nan_loss`, `stall`, …), or one of the ends:
    `done` (every rank said so), `gone` (the trainer's processes ended without saying so), `halted` (`.HALT` is
    there). `halt_written` tells whether this event made the watchdog write `.HALT`.
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
) -> Iterator[WatchEvent]:
    """Look at a trainer's folder every `interval_s` seconds and yield what is worth telling.

    With `halt`, an anomaly or a stall makes it ask the ranks for their stacks (SIGUSR1, where they handle it), write
    `.anomaly_type` and `.HALT`, and end. Without, it goes on watching. It also ends when the trainer has.

    Raises:
        NotADirectoryError: when there is no such folder.
    """
    if not directory.is_dir():
        raise NotADirectoryError(f"{directory} is not a folder; give the folder that the trainer writes to")
    watcher = _Watcher(directory, limits or Watchdog(), metrics, halt=halt)
    while True:
        for event in watcher.look():
            yield event
            if event.halt_written or event.code in ("done", "gone", "halted"):
                return
        if not _sleep(interval_s, cancel):
            return


class _Watcher:
    """The state between looks."""

    def __init__(self, directory: Path, limits: Watchdog, metrics: TrainerMetrics, *, halt: bool) -> None:
        self._directory = directory
        self._limits = limits
        self._halt = halt
        self._follower = RunFollower(out=directory, metrics=metrics, skip_to_last_bytes=_JOIN_BYTES)
        self._rules = AnomalyRules(limits, env=directory / metrics.env if metrics.env else None)
        self._pace = Pace(started=time.monotonic())
        self._processes: dict[int, ProcessId] = {}
        self._cpu = CpuMeter(limits)
        self._told: set[str] = set()

    def look(self) -> list[WatchEvent]:
        """What is new since the last look."""
        now = time.monotonic()
        # Asked before reading: a process that ends after this may have written more than is read below.
        gone = bool(self._processes) and not self._living()
        records = self._follower.look(now=now)
        events = [
            self._act(anomaly.code, anomaly.message, anomaly.step)
            for anomaly in map(self._rules.judge, records)
            if anomaly is not None
        ]
        before = self._pace.step
        fresh = {r.step for r in records if r.step is not None and (before is None or r.step > before)}
        if fresh:
            self._pace.advance(max(fresh), now, reports=len(fresh))
            self._told -= {"slow", "stall"}
            events.append(self._event("progress", self._progress_sentence()))
        activity = self._activity(now)
        end = self._end(gone=gone)
        if end is not None:
            return [*events, end]
        return events if events else self._judge_silence(activity, now)

    def _judge_silence(self, activity: Activity, now: float) -> list[WatchEvent]:
        silence = judge_silence(self._pace, self._limits, activity, now=now)
        code = {"fine": "fine", "slow": "slow", "stalled": "stall"}[silence.verdict]
        if code == "fine" or code in self._told or "stall" in self._told:
            return []
        self._told.add(code)
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
        if (self._directory / ".HALT").exists():
            return self._event("halted", ".HALT is in the folder")
        if gone:
            return self._event("gone", "the trainer's processes have ended without saying that they were done")
        return None

    def _living(self) -> list[ProcessId]:
        found = []
        for identity in self._processes.values():
            stat = read_stat(identity.pid)
            if stat is not None and stat.id == identity and stat.alive:
                found.append(identity)
        return found

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
        return Activity(cpu_cores=self._cpu.cores, stopped=stopped)

    def _progress_sentence(self) -> str:
        latest = self._follower.latest
        facts = [f"{name} {latest[name]:.4g}" for name in ("loss", "toks_per_s") if name in latest]
        return ", ".join([f"step {self._pace.step}", *facts])

    def _event(self, code: str, message: str, step: int | None = None) -> WatchEvent:
        moment = datetime.now(timezone.utc).isoformat(timespec="seconds")
        return WatchEvent(moment, code, message, self._pace.step if step is None else step)


def _descends(pid: int, ancestors: set[int], parents: dict[int, int]) -> bool:
    seen: set[int] = set()
    while pid not in ancestors:
        if pid in seen or pid not in parents:
            return False
        seen.add(pid)
        pid = parents[pid]
    return True


def _sleep(seconds: float, cancel: CancelToken | None) -> bool:
    """Sleep; False when a request to stop cut it short."""
    if cancel is None:
        time.sleep(seconds)
        return True
    return not cancel.wait(seconds)

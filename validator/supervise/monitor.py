"""Watching one attempt: when each step reached its files, how far the run is, and what calls for action.

The time of a step is by the validator's own monotonic clock, never the trainer's. A file that grows is noticed at once
(inotify), and only its size and the time are kept; which step that size holds is looked up when the monitor reads the
new lines anyway. Writes in quick succession share a stamp, and the distance between stamps grows with the attempt, so
neither CPU time nor the file depends on how much a trainer writes.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from validator.files import Tree
from validator.ingest.clock import ARRIVALS_FILE
from validator.model.launching import LOGGING_RANKS
from validator.model.plan import RunSpec
from validator.stats.clock import STAMP_S, STAMP_SHARE
from validator.supervise import watchdog
from validator.supervise.at_steps import StepCount
from validator.supervise.capture import LogCap, logs_below, trim_while_written
from validator.supervise.feed import LogFeed
from validator.supervise.follow import Record, RunFollower
from validator.supervise.nodes import live_text
from validator.supervise.termination import ProcessTree
from validator.system.gpu_facts import use_of
from validator.system.nvml import Gpus

_IN_MODIFY = 0x2
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC  # inotify_init1 takes the values of these


@dataclass
class _Growth:
    """One file: its last known size, growth that has not been mapped to a step, and the steps known so far."""

    watched: bool = False
    size: int = 0
    unread: deque[tuple[int, float]] = field(default_factory=deque)
    step: int | None = None
    stamped: int | None = None


class ArrivalStamps:
    """Stamps for one attempt, written to `out / arrivals.jsonl`: `{source, offset, step, s}` a line.

    `source` is relative to `out`, `offset` the size in bytes that was seen `s` seconds after `started`, and `step` the
    last one whose line had been written whole by then. `feed` copies what is written outside `out`, at each look.
    """

    def __init__(self, out: Path, *, started: float, feed: LogFeed | None = None) -> None:
        self._out = out
        self._feed = feed
        self._started = started
        self._files: dict[Path, _Growth] = {}
        self._lines: list[str] = []
        self._next = started
        self._fd = _inotify()
        self._open = True

    def watch(self, paths: Iterable[Path]) -> None:
        """Stamp these files from now on; one that does not exist yet is tried again at the next call."""
        for path in self._feed.paths if self._feed is not None and self._open else ():
            _add_watch(self._fd, path)  # again where it is watched already, which changes nothing
        for path in paths if self._open else ():
            growth = self._files.setdefault(path, _Growth())
            growth.watched = growth.watched or _add_watch(self._fd, path)

    def fileno(self, now: float) -> int | None:
        """What becomes readable when a file grows; None while the next stamp is not due."""
        return self._fd if self._fd >= 0 and now >= self._next and self._open else None

    @property
    def due(self) -> float:
        """From when on the next stamp may be taken, by the monotonic clock."""
        return self._next

    def notice(self, now: float, *, always: bool = False) -> None:
        """Note which files have grown, if a stamp is due or, at the end, `always`."""
        if not self._open or (now < self._next and not always):
            return
        if self._fd >= 0:
            with suppress(OSError):
                os.read(self._fd, 1 << 16)
        if self._feed is not None:
            self._feed.take()
        grown = False
        for path, growth in self._files.items():
            try:
                size = os.stat(path).st_size  # noqa: PTH116 - a third of the time of Path.stat, twenty times a second
            except OSError:
                continue
            if size < growth.size:  # written again, or rotated
                growth.unread.clear()
                growth.watched = False
            if size != growth.size:
                growth.unread.append((size, now))
                growth.size, grown = size, True
        if grown:
            self._next = now + max(STAMP_S, STAMP_SHARE * (now - self._started))

    def settle(self, records: Iterable[Record], read_to: Mapping[Path, int]) -> None:
        """Find the step of each stamp whose bytes have been read, and write what was found.

        Args:
            records: what was read since the last call, in the order of each file.
            read_to: bytes of each file that have been read in all.
        """
        if not self._open:
            return
        fresh: dict[Path, deque[Record]] = {}
        for record in records:
            if record.path is not None and record.step is not None and record.path in self._files:
                fresh.setdefault(record.path, deque()).append(record)
        for path, growth in self._files.items():
            self._settle_one(path, growth, fresh.get(path, deque()), read_to.get(path, 0))
        if self._lines:
            with suppress(OSError), Tree(self._out) as tree:
                tree.append(ARRIVALS_FILE, "".join(self._lines).encode("ascii", "backslashreplace"))
            self._lines.clear()

    def _settle_one(self, path: Path, growth: _Growth, records: deque[Record], read_to: int) -> None:
        while growth.unread and growth.unread[0][0] <= read_to:
            size, at = growth.unread.popleft()
            while records and records[0].end <= size:
                growth.step = records.popleft().step
            if growth.step is not None and growth.step != growth.stamped:
                growth.stamped = growth.step
                name = os.path.relpath(path, self._out)
                self._lines.append(
                    f'{{"source":"{name}","offset":{size},"step":{growth.step},"s":{at - self._started:.4f}}}\n'
                )
        if records:  # read, but not noticed yet: the next stamp is theirs
            growth.step = records[-1].step

    def close(self) -> None:
        """Stop stamping. Closing twice is harmless."""
        self._open = False
        if self._feed is not None:
            self._feed.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _inotify() -> int:
    """A descriptor for notifications; -1 where the system has none, and then every look takes the stamps."""
    try:
        return int(ctypes.CDLL(None, use_errno=True).inotify_init1(_FLAGS))
    except (OSError, AttributeError):
        return -1


def _add_watch(fd: int, path: Path) -> bool:
    if fd < 0:
        return False
    return int(ctypes.CDLL(None, use_errno=True).inotify_add_watch(fd, os.fsencode(path), _IN_MODIFY)) >= 0


# One look at a running attempt after another: progress for people, judgement for the supervisor.

ProgressState = Literal["starting", "running", "slow", "stopping", "ended"]
"""`starting` until the first step, `slow` past the watchdog's limit but still busy, `stopping` while being ended."""


@dataclass(frozen=True)
class Progress:
    """One look at a run. What is not known is None, never a guess.

    `step` counts finished optimizer steps of `steps` wanted; `toks_per_s` is the newest row's global rate in tokens/s,
    `step_time_s` its time of a step in seconds;
    `mem_mib` the GPU memory allocated on rank 0; `heartbeat_age_s` the longest silence of any rank; `eta_s` the time
    to the last step at the pace observed lately, by this process's own clock and never the trainer's claim. Where nodes
    train alone, `nodes` says how far each is, and `step` is that of the slowest. `overdue_s` is the time since the last
    step where the next one has been due for long; then there is no `eta_s`.
    """

    run: str
    state: ProgressState = "starting"
    step: int | None = None
    steps: int | None = None
    toks_per_s: float | None = None
    loss: float | None = None
    mem_mib: float | None = None
    heartbeat_age_s: float | None = None
    elapsed_s: float = 0.0
    eta_s: float | None = None
    note: str | None = None
    step_time_s: float | None = None
    nodes: str = ""
    overdue_s: float | None = None

    def ended_on_nodes(self) -> Progress:
        """As it is shown of a run on nodes that has ended: what arrived of their last steps by then is no count."""
        behind = self.state == "ended" and self.step != self.steps
        return replace(self, step=None, steps=None, eta_s=None) if behind else self


_LOOK_S = 1.0
_OWN_END_S = 10.0  # has a trainer that is busy behind all the steps it does
_LEAST_END_S = 2.0  # has one of which that is not known
_SCAN_SHARE = 0.005  # of a core, at most, goes into looking for new processes
_GPU_WINDOW_S = 30.0


@dataclass(frozen=True)
class Look:
    """What one look found: the progress to show, and what calls for action, if anything."""

    progress: Progress
    anomalies: tuple[watchdog.Anomaly, ...] = ()
    silence: watchdog.Silence | None = None


class Monitor:
    """Watches one attempt. `look` is cheap: new lines of a few files, and a few small reads in /proc."""

    def __init__(self, spec: RunSpec, *, out: Path, tree: ProcessTree, gpus: Gpus, cap: LogCap, started: float) -> None:
        self._spec = spec
        self._out = out
        self.tree = tree
        self.gpus = gpus
        self._cap = cap
        self.started = started
        self.follower = RunFollower(out=out, metrics=spec.metrics, ranks=spec.ranks)
        log = spec.metrics.log
        fed = log is not None and log != spec.metrics.log_below and not spec.groups  # nodes copy theirs
        self.arrivals = ArrivalStamps(out, started=started, feed=LogFeed(log, out) if fed and log is not None else None)
        self.pace = watchdog.Pace(started=started)
        self._count = None if spec.ended_at is None else StepCount(spec.ended_at, spec.warmup_steps)
        env = out / spec.metrics.env if spec.metrics.env else None
        printing = 1 if spec.launcher in LOGGING_RANKS else spec.world_size
        limits = spec.watchdog
        self._rules = watchdog.AnomalyRules(limits, env=env, printing=printing) if limits else None
        self._cpu: dict[str, watchdog.CpuMeter] = {}
        """By node; by an empty name without nodes."""
        self._done_since: float | None = None
        self._done_at = 0
        self._gpu_samples: deque[tuple[float, bool, bool]] = deque()
        self._next_scan = started + 0.2
        self._next_trim = started + 0.5

    @property
    def interval_s(self) -> float:
        """Time between looks: the watchdog's, but often enough for a live display."""
        return min(_LOOK_S, self._spec.watchdog.interval) if self._spec.watchdog else _LOOK_S

    def look(self, *, state: ProgressState | None = None, note: str | None = None) -> Look:
        """Read what is new and judge it. `state` and `note` replace what the look itself would say."""
        now = time.monotonic()
        if not self._spec.groups:  # nodes stamp what arrives there
            self.arrivals.watch(self.follower.stamped())
        self.arrivals.notice(now)
        records = self.follower.look(now=now)
        self.arrivals.settle(records, self.follower.read_to())
        self.pace.follow(records, now)
        if self._count is not None:
            self._count.follow(record for record in records if record.path is not None)
            records = tuple(record for record in records if self._count.counts(record.step))
        self._housekeeping(now)
        silence = self._judge_silence(now)
        if silence is not None and silence.verdict == "fine":
            silence = None
        progress = self._progress(now, state=state, silence=silence)
        if note is not None:
            progress = replace(progress, note=note)
        return Look(progress, self._judge_records(records), silence)

    def is_to_be_ended(self) -> bool:
        """Whether the run is one that validator ends, and all its steps are written.

        Until the next row comes, the trainer may be ending by itself, and then its exit code counts: it has the time
        of three rows, 2 s at the least. Where the steps are all that it does, give or take a tenth, it is left alone:
        10 s, and as long as it idles from then on, for which the watchdog has its own limit.
        """
        if self._count is None or not self._count.done:
            return False
        now, furthest = time.monotonic(), self._count.furthest
        own = self._spec.ends_there_itself and not self._count.passed
        if self._done_since is None or (own and furthest > self._done_at):
            self._done_since, self._done_at = now, furthest
        if furthest > self._done_at:
            return True
        wait_s = _OWN_END_S if own else min(max(3 * (self.pace.report_s or 0.0), _LEAST_END_S), _OWN_END_S)
        if now < self._done_since + wait_s:
            return False
        if not own:
            return True
        if self._spec.watchdog is None or not self._spec.watchdog.halt:
            return True
        activity = self.activity(since=self._done_since)
        return activity.cpu_cores is None or activity.busy

    def activity(self, *, since: float = 0.0) -> watchdog.Activity:
        """What the processes did lately, but not before `since`, in monotonic seconds."""
        nodes = self.follower.behind if self._spec.groups else {"": None}
        cores = [meter.cores(since) for name, meter in self._cpu.items() if name in nodes]
        known = [one for one in cores if one is not None]
        gpus = [one for one in self._gpu_samples if one[0] >= since]
        there = [f"{pid} on {name}" for name, node in nodes.items() if node is not None for pid in node.stopped]
        return watchdog.Activity(
            cpu_cores=sum(known) if known else None,
            gpu_working=any(working for _, working, _ in gpus) if gpus else None,
            gpu_spinning=any(spinning for _, _, spinning in gpus),
            stopped=(*there, *self.tree.stopped()),
        )

    def laggard(self, node_of: Callable[[int], str] = lambda rank: "") -> str:
        """Which ranks are behind, as a clause; empty when the ranks do not say. `node_of` adds where a rank is."""
        steps = {rank: state.step for rank, state in self.follower.by_rank.items() if state.step is not None}
        if len(steps) < 2 or len(set(steps.values())) == 1:
            return ""
        behind = min(steps, key=lambda rank: (steps[rank], rank))
        return f"rank {behind}{node_of(behind)} is at step {steps[behind]}, the furthest at {max(steps.values())}"

    def _housekeeping(self, now: float) -> None:
        if now >= self._next_scan or self._long_silent(now):
            # The processes of a container are nobody's children here; their environment shows them.
            self.tree.scan(deep=self._spec.container is not None)
            cost = time.monotonic() - now
            limit = self._spec.watchdog.interval if self._spec.watchdog else 5.0
            self._next_scan = now + max(min(limit, 0.5 + (now - self.started)), cost / _SCAN_SHARE)
        if now >= self._next_trim:
            self._next_trim = now + self.interval_s
            for path in logs_below(self._out / "logs"):
                trim_while_written(path, cap=self._cap)
        if self._spec.watchdog is not None:
            used = {name: node.cpu_s for name, node in self.follower.live.items() if node.cpu_s is not None}
            for name, cpu_s in used.items() if self._spec.groups else (("", self.tree.cpu_seconds()),):
                self._cpu.setdefault(name, watchdog.CpuMeter(self._spec.watchdog)).add(now, cpu_s)
            self._sample_gpus(now)

    def _long_silent(self, now: float) -> bool:
        """Past half of its limit a run is looked at closely: a process that was never seen would not be counted."""
        limits = self._spec.watchdog
        return limits is not None and self.pace.silence(now) > watchdog.silence_limit_s(self.pace, limits) / 2

    def _sample_gpus(self, now: float) -> None:
        """Ask NVML only once the run has been silent for a while; a busy run needs no witness."""
        seen = [node.gpus for node in self.follower.behind.values() if node.gpus is not None]
        if not (self.gpus or seen) or not self._long_silent(now):
            self._gpu_samples.clear()
            return
        seen += [use_of(self.gpus.states())] if self.gpus else []
        self._gpu_samples.append((now, any(working for working, _ in seen), any(spinning for _, spinning in seen)))
        while self._gpu_samples and now - self._gpu_samples[0][0] > _GPU_WINDOW_S:
            self._gpu_samples.popleft()

    def _judge_records(self, records: tuple[Record, ...]) -> tuple[watchdog.Anomaly, ...]:
        if self._rules is None:
            return ()
        return tuple(anomaly for anomaly in map(self._rules.judge, records) if anomaly is not None)

    def _judge_silence(self, now: float) -> watchdog.Silence | None:
        if self._spec.watchdog is None or not self.follower.has_source:
            return None
        return watchdog.judge_silence(self.pace, self._spec.watchdog, self.activity(), now=now)

    def _progress(self, now: float, *, state: ProgressState | None, silence: watchdog.Silence | None) -> Progress:
        latest = self.follower.latest
        if state is None:
            state = "slow" if silence is not None else "starting" if self.pace.step is None else "running"
            if not self.follower.has_source:
                state = "running"
        return Progress(
            run=self._spec.id,
            state=state,
            step=self.follower.step,
            steps=self._spec.steps,
            toks_per_s=latest.get("toks_per_s"),
            loss=latest.get("loss"),
            mem_mib=latest.get("gpu_mem_alloc_mib"),
            heartbeat_age_s=self.follower.heartbeat_age_s(now),
            elapsed_s=now - self.started,
            eta_s=self.pace.eta_s(self._spec.steps, now),
            note=silence.message if silence is not None else None,
            step_time_s=latest.get("step_time_s"),
            nodes=live_text(self.follower.nodes),
            overdue_s=self.pace.overdue_s(self._spec.steps, now),
        )

"""One look at a running attempt after another: progress for people, judgement for the supervisor."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path

from validator.execute.arrivals import ArrivalStamps
from validator.execute.capture import LogCap, logs_below, trim_while_written
from validator.execute.follow import Record, RunFollower
from validator.execute.gpu import Gpus
from validator.execute.progress import Progress, ProgressState
from validator.execute.tree import ProcessTree
from validator.execute.watchdog import (
    Activity,
    Anomaly,
    AnomalyRules,
    CpuMeter,
    Pace,
    Silence,
    judge_silence,
    silence_limit_s,
)
from validator.model.plan import RunSpec

__all__ = ["Look", "Monitor"]

_LOOK_S = 1.0
_SCAN_SHARE = 0.005  # of a core, at most, goes into looking for new processes
_GPU_WINDOW_S = 30.0


@dataclass(frozen=True)
class Look:
    """What one look found: the progress to show, and what calls for action, if anything."""

    progress: Progress
    anomalies: tuple[Anomaly, ...] = ()
    silence: Silence | None = None


class Monitor:
    """Watches one attempt. `look` is cheap: new lines of a few files, and a few small reads in /proc."""

    def __init__(
        self, spec: RunSpec, *, out: Path, attempt: int, tree: ProcessTree, gpus: Gpus, cap: LogCap, started: float
    ) -> None:
        self._spec = spec
        self._out = out
        self._attempt = attempt
        self._tree = tree
        self._gpus = gpus
        self._cap = cap
        self._started = started
        self.follower = RunFollower(out=out, metrics=spec.metrics, ranks=spec.ranks)
        self.arrivals = ArrivalStamps(out, started=started)
        self.pace = Pace(started=started)
        env = out / spec.metrics.env if spec.metrics.env else None
        self._rules = AnomalyRules(spec.watchdog, env=env) if spec.watchdog else None
        self._cpu = CpuMeter(spec.watchdog) if spec.watchdog else None
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
        self.arrivals.watch(self.follower.stamped())
        self.arrivals.notice(now)
        records = self.follower.look(now=now)
        self.arrivals.settle(records, self.follower.read_to())
        self._advance(records, now)
        self._housekeeping(now)
        silence = self._judge_silence(now)
        if silence is not None and silence.verdict == "fine":
            silence = None
        progress = self._progress(now, state=state, silence=silence)
        if note is not None:
            progress = replace(progress, note=note)
        return Look(progress, self._judge_records(records), silence)

    def activity(self, now: float) -> Activity:
        """What the processes did lately."""
        return Activity(
            cpu_cores=self._cpu.cores if self._cpu else None,
            gpu_working=any(working for _, working, _ in self._gpu_samples) if self._gpu_samples else None,
            gpu_spinning=any(spinning for _, _, spinning in self._gpu_samples),
            stopped=tuple(stat.pid for stat in self._tree.living() if stat.state == "T"),
        )

    def laggard(self) -> str:
        """Which ranks are behind, as a clause; empty when the ranks do not say."""
        steps = {rank: state.step for rank, state in self.follower.by_rank.items() if state.step is not None}
        if len(steps) < 2 or len(set(steps.values())) == 1:
            return ""
        behind = min(steps, key=lambda rank: (steps[rank], rank))
        return f"rank {behind} is at step {steps[behind]}, the furthest at {max(steps.values())}"

    def _advance(self, records: tuple[Record, ...], now: float) -> None:
        known = self.pace.step
        fresh = {
            record.step for record in records if record.step is not None and (known is None or record.step > known)
        }
        if fresh:
            self.pace.advance(max(fresh), now, reports=len(fresh))

    def _housekeeping(self, now: float) -> None:
        if now >= self._next_scan or self._long_silent(now):
            self._tree.scan()
            cost = time.monotonic() - now
            limit = self._spec.watchdog.interval if self._spec.watchdog else 5.0
            self._next_scan = now + max(min(limit, 0.5 + (now - self._started)), cost / _SCAN_SHARE)
        if now >= self._next_trim:
            self._next_trim = now + self.interval_s
            for path in logs_below(self._out / "logs"):
                trim_while_written(path, cap=self._cap)
        if self._cpu is not None:
            self._cpu.add(now, self._tree.cpu_seconds())
            self._sample_gpus(now)

    def _long_silent(self, now: float) -> bool:
        """Past half of its limit a run is looked at closely: a process that was never seen would not be counted."""
        limits = self._spec.watchdog
        return limits is not None and self.pace.silence(now) > silence_limit_s(self.pace, limits) / 2

    def _sample_gpus(self, now: float) -> None:
        """Ask NVML only once the run has been silent for a while; a busy run needs no witness."""
        if not self._gpus or not self._long_silent(now):
            self._gpu_samples.clear()
            return
        states = self._gpus.states()
        working = any((state.memory_utilization_pct or 0) >= 1 for state in states)
        spinning = any((state.utilization_pct or 0) >= 90 for state in states)
        self._gpu_samples.append((now, working, spinning))
        while self._gpu_samples and now - self._gpu_samples[0][0] > _GPU_WINDOW_S:
            self._gpu_samples.popleft()

    def _judge_records(self, records: tuple[Record, ...]) -> tuple[Anomaly, ...]:
        if self._rules is None:
            return ()
        return tuple(anomaly for anomaly in map(self._rules.judge, records) if anomaly is not None)

    def _judge_silence(self, now: float) -> Silence | None:
        if self._spec.watchdog is None or not self.follower.has_source:
            return None
        return judge_silence(self.pace, self._spec.watchdog, self.activity(now), now=now)

    def _progress(self, now: float, *, state: ProgressState | None, silence: Silence | None) -> Progress:
        latest = self.follower.latest
        if state is None:
            state = "slow" if silence is not None else "starting" if self.pace.step is None else "running"
            if not self.follower.has_source:
                state = "running"
        return Progress(
            phase=self._spec.phase,
            run=self._spec.id,
            arm=self._spec.arm,
            repeat=self._spec.repeat,
            attempt=self._attempt,
            state=state,
            step=self.follower.step,
            steps=self._spec.steps,
            toks_per_s=latest.get("toks_per_s"),
            loss=latest.get("loss"),
            mem_mib=latest.get("gpu_mem_alloc_mib"),
            heartbeat_age_s=self.follower.heartbeat_age_s(now),
            elapsed_s=now - self._started,
            eta_s=self.pace.eta_s(self._spec.steps, now),
            timeout_s=self._spec.timeout_s,
            note=silence.message if silence is not None else None,
        )

"""The watchdog: is this run still worth its machine?

Two questions are asked at every look. Do the numbers say that training is broken (anomalies)? And does the run still
move (stalls)? Slow is not stalled: silence is measured against the pace observed so far, and a silent run that keeps
its CPUs busy is given longer. The two limits, a generous one to the first step and a tight one after, follow
NVIDIA's resiliency extension.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from validator.files import Tree
from validator.model.logged_names import of_episode
from validator.model.runbook import Watchdog
from validator.stats.means import FEW_LOSSES, ROUNDED_NORM, fell, says_nsa
from validator.supervise.follow import Record
from validator.text import format_duration

OVERDUE, OVERDUE_S = 10, 10.0
"""Times the usual time between two signs of progress, and at least these seconds, after which a step is overdue."""

BUSY_PATIENCE = 4.0
"""A silent run that is busy may be silent this many times longer: a live-lock spins just as a long step does."""

BUSY_CORES = 0.1
"""CPU cores in use below which a run is idle; heartbeat threads and launchers stay far below it."""

AnomalyCode = Literal["nan_loss", "inf_loss", "zero_rate", "frozen_rows", "zero_grad", "gate_collapse", "stall"]


@dataclass(frozen=True)
class Anomaly:
    """What is wrong with a run, and where it was seen. `code` is what `.anomaly_type` holds."""

    code: AnomalyCode
    message: str
    step: int | None = None


def judges_gates(limits: Watchdog, env: Path | None) -> bool:
    """Whether the limits on gates apply: where the runbook says so, else where the trainer's env.json proves NSA."""
    if limits.gates is not None or env is None:
        return bool(limits.gates)
    try:
        with Tree(env.parent) as tree:
            content: Any = tree.json(env.name, limit=1 << 20)
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and says_nsa(content.get("effective"))


@dataclass
class _Norms:
    """What one source said of gradients: whether a norm was ever above 0, and the losses written with norms of 0."""

    measured: bool = False
    losses: list[float] = field(default_factory=list)

    def add(self, norm: float, loss: float | None) -> None:
        self.measured = self.measured or not norm <= ROUNDED_NORM
        if norm == 0 and loss is not None:
            self.losses.append(loss)
            if len(self.losses) > 4 * FEW_LOSSES:  # the first and the latest show the trend
                del self.losses[2 * FEW_LOSSES]

    @property
    def open(self) -> bool:
        """Whether a norm of 0 may be one that is not measured: never another one, and losses that may still fall."""
        if self.measured or len(self.losses) < 2 or len(set(self.losses)) == 1:
            return False
        return len(self.losses) < FEW_LOSSES or fell(self.losses)


class AnomalyRules:
    """Judges records one by one. A record without a field says nothing about it, for better or worse.

    `env` is where the trainer writes its effective config; it is read when gates look collapsed. `printing` ranks share
    one log, and each may print every step.
    """

    def __init__(self, limits: Watchdog, *, env: Path | None = None, printing: int = 1) -> None:
        self._limits = limits
        self._printing = printing
        self._env = env
        self._norms: dict[str, _Norms] = {}
        self._strikes: dict[tuple[str, str], int] = {}
        self._row: dict[str, tuple[int, frozenset[str]]] = {}
        self._reported: set[str] = set()

    def judge(self, record: Record) -> Anomaly | None:
        """The first anomaly that this record completes; each kind is reported once."""
        for rule in (self._loss, self._rate, self._frozen, self._gradient, self._gates):
            anomaly = rule(record)
            if anomaly is not None and anomaly.code not in self._reported:
                self._reported.add(anomaly.code)
                return anomaly
        return None

    def _loss(self, record: Record) -> Anomaly | None:
        loss = record.values.get("loss")
        if loss is None or math.isfinite(loss):
            return None
        code: AnomalyCode = "nan_loss" if math.isnan(loss) else "inf_loss"
        return Anomaly(code, f"the loss is {loss} at step {record.step}", record.step)

    def _rate(self, record: Record) -> Anomaly | None:
        rate = record.values.get("toks_per_s")
        if rate is None or not self._struck("rate", record, rate <= 0, self._limits.frozen_rows):
            return None
        rows = self._limits.frozen_rows
        return Anomaly("zero_rate", f"toks_per_s was {rate:g} in {rows} consecutive records", record.step)

    def _frozen(self, record: Record) -> Anomaly | None:
        if not record.row or record.step is None:
            return None
        # A row with another column of the same step, such as the loss of a validation, is no repetition.
        step, columns = self._row.get(record.source, (None, frozenset()))
        same = step == record.step and columns >= record.values.keys() and not _of_episodes(record)
        self._row[record.source] = (
            record.step,
            columns.union(record.values) if step == record.step else frozenset(record.values),
        )
        rows = self._limits.frozen_rows * (self._printing if record.source == "stdout" else 1)
        if not self._struck("frozen", record, same, rows - 1):
            return None
        return Anomaly("frozen_rows", f"{rows} consecutive rows say step {record.step}", record.step)

    def _gradient(self, record: Record) -> Anomaly | None:
        norm = record.values.get("grad_norm")
        if norm is None:
            return None
        seen = self._norms.setdefault(record.source, _Norms())
        seen.add(norm, record.values.get("loss"))
        if not self._struck("gradient", record, norm == 0, self._limits.gate_strikes) or seen.open:
            return None
        return Anomaly("zero_grad", f"grad_norm was 0 in {self._limits.gate_strikes} consecutive records", record.step)

    def _gates(self, record: Record) -> Anomaly | None:
        limits, values = self._limits, record.values
        checks: tuple[tuple[str, float, Callable[[float, float], bool], str], ...] = (
            ("gate_entropy_mean", limits.gate_entropy_min, float.__lt__, "below"),
            ("gate_max_gate", limits.gate_max, float.__gt__, "above"),
            ("gate_collapse_frac", limits.gate_collapse_frac, float.__gt__, "above"),
        )
        known = [check for check in checks if check[0] in values]
        if not known:
            return None
        bad = [
            f"{name} {values[name]:.3g} is {side} {bound:g}"
            for name, bound, beyond, side in known
            if beyond(values[name], float(bound))
        ]
        if not self._struck("gates", record, bool(bad), limits.gate_strikes) or not judges_gates(limits, self._env):
            return None
        return Anomaly("gate_collapse", f"{bad[0]} in {limits.gate_strikes} consecutive records", record.step)

    def _struck(self, rule: str, record: Record, bad: bool, limit: int) -> bool:
        key = (rule, record.source)
        self._strikes[key] = self._strikes.get(key, 0) + 1 if bad else 0
        return self._strikes[key] >= limit


class Pace:
    """How fast steps finish, by the observer's own clock.

    Intervals are taken between looks at which the step had advanced, so that neither a jumping wall clock nor a claim
    of the trainer enters. `report` intervals say how long silence lasts between two signs of life when all is well:
    a trainer that logs every 20 steps is silent for 20 steps.
    """

    def __init__(self, *, started: float) -> None:
        self.step: int | None = None
        self.since = started
        self._reports: deque[float] = deque(maxlen=16)
        self._steps: deque[tuple[float, int]] = deque(maxlen=16)

    def advance(self, step: int, now: float, *, reports: int = 1) -> None:
        """The step is `step` now, reported by `reports` records since the last look."""
        if self.step is not None and step <= self.step:
            return
        if self.step is not None:
            elapsed = now - self.since
            self._reports.append(elapsed / max(1, reports))
            self._steps.append((elapsed, step - self.step))
        self.step, self.since = step, now

    def follow(self, records: Iterable[Record], now: float) -> bool:
        """Advance to the last step of new records; whether there was one."""
        fresh = {r.step for r in records if r.step is not None and (self.step is None or r.step > self.step)}
        if fresh:
            self.advance(max(fresh), now, reports=len(fresh))
        return bool(fresh)

    @property
    def report_s(self) -> float | None:
        """Time between two signs of progress: the median of the latest ones, or the newest if that is longer."""
        if not self._reports:
            return None
        ordered = sorted(self._reports)
        return max(ordered[len(ordered) // 2], self._reports[-1])

    @property
    def step_s(self) -> float | None:
        """Wall time of one step, mean over the latest looks."""
        steps = sum(count for _, count in self._steps)
        return sum(elapsed for elapsed, _ in self._steps) / steps if steps else None

    def eta_s(self, steps: int | None, now: float) -> float | None:
        """Seconds to the last of `steps` steps at the pace observed lately; None while there is none, or it is past."""
        if steps is None or self.step is None or self.step_s is None or self.overdue_s(steps, now) is not None:
            return None
        left = (steps - self.step) * self.step_s - self.silence(now)
        return left if left > 0 else 0.0 if steps <= self.step else None

    def overdue_s(self, steps: int | None, now: float) -> float | None:
        """Seconds since the last step where one of `steps` has been due for long: then the pace is known no more."""
        if self.report_s is None or (steps is not None and self.step is not None and self.step >= steps):
            return None
        silence = self.silence(now)
        return silence if silence > max(OVERDUE_S, OVERDUE * self.report_s) else None

    def silence(self, now: float) -> float:
        """Seconds since the step last advanced, or since the start."""
        return now - self.since


class CpuMeter:
    """CPU cores in use, over a window that ends now: not a short one, since the kernel counts in ticks of 10 ms."""

    def __init__(self, limits: Watchdog) -> None:
        # Long enough to see a rhythm, but no longer than the silence that it is to explain.
        self._window_s = max(2 * limits.interval, min(30.0, limits.stall))
        self._samples: deque[tuple[float, float]] = deque()

    def add(self, now: float, cpu_s: float) -> None:
        """All processes together have used `cpu_s` seconds so far."""
        self._samples.append((now, cpu_s))
        while len(self._samples) > 2 and now - self._samples[1][0] >= self._window_s:
            self._samples.popleft()

    def cores(self, since: float = 0.0) -> float | None:
        """Cores in use lately, but not before `since`; None until there are two samples."""
        samples = [one for one in self._samples if one[0] >= since]
        if len(samples) < 2 or samples[-1][0] <= samples[0][0]:
            return None
        (first, before), (last, after) = samples[0], samples[-1]
        return max(0.0, after - before) / (last - first)


@dataclass(frozen=True)
class Activity:
    """What the run's processes did lately. None where it cannot be known.

    `cpu_cores` is CPU time over wall time. `gpu_working`: some GPU moved memory; a collective that waits for a lost
    rank shows full utilization without any. `gpu_spinning`: just that. `stopped` are processes in state T, by pid.
    """

    cpu_cores: float | None = None
    gpu_working: bool | None = None
    gpu_spinning: bool = False
    stopped: tuple[int | str, ...] = ()

    @property
    def busy(self) -> bool:
        """Whether the run seems to compute rather than to wait."""
        if self.stopped or (self.gpu_spinning and not self.gpu_working):
            return False
        return bool(self.gpu_working) or (self.cpu_cores is not None and self.cpu_cores >= BUSY_CORES)

    def describe(self) -> str:
        """A clause for people."""
        parts = []
        if self.stopped:
            parts.append(f"process {self.stopped[0]} is stopped (state T)")
        if self.gpu_spinning and not self.gpu_working:
            parts.append("the GPUs spin without moving memory")
        if self.cpu_cores is not None:
            parts.append(f"its processes use {self.cpu_cores:.2f} CPU cores")
        return " and ".join(parts) or "its activity is unknown"


@dataclass(frozen=True)
class Silence:
    """The judgement on a run that has not finished a step for a while."""

    verdict: Literal["fine", "slow", "stalled"]
    message: str = ""


def silence_limit_s(pace: Pace, limits: Watchdog) -> float:
    """How long the run may be silent now, in seconds."""
    if pace.step is None:
        return limits.first_step
    if pace.report_s is None:
        # One step is known, its pace is not: compilation may not be over.
        return max(limits.stall, min(limits.first_step, limits.stall * limits.stall_factor))
    return max(limits.stall, limits.stall_factor * pace.report_s)


def judge_silence(pace: Pace, limits: Watchdog, activity: Activity, *, now: float) -> Silence:
    """Fine within the limit; past it `slow` while busy, `stalled` when idle or when patience has run out."""
    silence, limit = pace.silence(now), silence_limit_s(pace, limits)
    if silence <= limit:
        return Silence("fine")
    where = "before the first step" if pace.step is None else f"after step {pace.step}"
    text = f"no step for {format_duration(silence)} {where} (limit {format_duration(limit)})"
    if activity.busy and silence <= limit * BUSY_PATIENCE:
        return Silence("slow", f"{text}, but {activity.describe()}")
    return Silence("stalled", f"{text}; {activity.describe()}")


def _of_episodes(record: Record) -> bool:
    """Whether a row says what episodes reached, of which several may end at one step."""
    return bool(record.values) and all(map(of_episode, record.values))

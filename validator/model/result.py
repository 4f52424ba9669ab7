"""What was measured in one run: series and scalars, each with the file it came from.

Arrays are numpy's, which only what collects or measures loads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import Field

from validator.model.counters import Counted
from validator.model.other_program import OtherProgram
from validator.model.units import Frozen

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from validator.model.nodes import NodeRecord

Floats: TypeAlias = "npt.NDArray[np.float64]"
"""Measured values, times or rates, `[n]` unless a docstring says otherwise."""

Steps: TypeAlias = "npt.NDArray[np.int64]"
"""Optimizer steps, or the line numbers of rows, `[n]`."""


class SourceFile(Frozen):
    """A file that numbers were read from. `path` is relative to the run folder."""

    path: str
    sha256: str
    bytes: int


class Span(Frozen):
    """First and last step of a window, both included."""

    first_step: int
    last_step: int


class MetricStats(Frozen):
    """A series summarized over its window. `stdev` is the population's, `ci_*` the 95 % interval of the mean."""

    unit: str
    n: int
    mean: float | None
    stdev: float | None
    cv: float | None
    ci_low: float | None
    ci_high: float | None
    min: float | None
    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None
    first: float | None
    last: float | None
    noise: float | None = Field(None, description="Standard deviation of one row about the curve, at its end.")
    fell: bool | None = Field(None, description="Whether a loss fell beyond the noise of its rows; None of others.")
    window: Span | None
    source: str | None
    sha256: str | None
    note: str | None = None
    version: int = Field(1, description="Of the metric's definition; other versions are not compared with it.")
    invalid: str | None = Field(None, description="Why not even the mean of these rows may be compared with others.")

    @property
    def half_width(self) -> float | None:
        """Half of the interval; its upper part where the lower one ends at 0, which hides how wide it is."""
        if self.ci_low is None or self.ci_high is None:
            return None
        half = (self.ci_high - self.ci_low) / 2
        return max(half, self.ci_high - self.mean) if self.ci_low == 0 and self.mean is not None else half


class ScalarValue(Frozen):
    """A number or text known once per run. `ci_*` is the 95 % interval of a derived number, None for an exact one."""

    value: float | str | bool | None
    unit: str = ""
    source: str | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    note: str | None = None
    version: int = Field(1, description="Of the number's definition.")


@dataclass(frozen=True)
class Irregularity:
    """A defect of an artifact: a truncated line, a second header, a non-monotonic step."""

    code: str
    message: str
    path: str
    line: int | None = None


@dataclass(frozen=True)
class CoarseClock:
    """What is unknown of times that follow from a trainer's clock in units of `unit_s` seconds.

    The time of a row is up to `row_s` too early or too late, by which rows vary; over all rows only what the first and
    the last one lack remains, `end_s` at most. `by_arrival` says that the validator's stamps of the lines' arrival gave
    the times, since the trainer's clock confirms them.
    """

    unit_s: float
    end_s: float
    row_s: float
    by_arrival: bool


@dataclass(frozen=True)
class Series:
    """One value per step, in file order.

    `steps [n]` int64 optimizer steps, `values [n]` float64 in `unit`; NaN and infinities are kept as the trainer wrote
    them, cells that could not be read are absent and counted as irregularities.
    """

    name: str
    unit: str
    steps: Steps
    values: Floats
    source: SourceFile
    rank: int = 0
    clock: CoarseClock | None = None


@dataclass(frozen=True)
class Samples:
    """The machine during a run.

    `times_s [n]` UNIX time of each sample, `columns` name to `values [n]` as `system.sampler` names them, NaN where a
    cell is not a number. `steps [n]` the step under way at each sample, -1 where none is known.
    """

    source: SourceFile
    times_s: npt.NDArray[np.float64]
    columns: Mapping[str, npt.NDArray[np.float64]]
    steps: npt.NDArray[np.int64] | None = None


# What a run left besides its series and scalars.


@dataclass(frozen=True)
class LogHit:
    """A line of a log that shows something. `line` is None in the tail of a log that is too long to be read whole."""

    path: str
    line: int | None
    text: str


@dataclass(frozen=True)
class CollectiveWait(LogHit):
    """A stack dump that shows a rank in a collective."""

    collective: str


@dataclass(frozen=True)
class RankError:
    """What a rank raised; `time_s` in Unix seconds, None where that is not known."""

    rank: int
    path: str
    message: str
    time_s: float | None = None


@dataclass(frozen=True)
class RankProgress:
    """How far a rank came by its heartbeat: times in Unix seconds, None where no record has one."""

    path: str
    pid: int | None
    first_ts: float | None
    last_ts: float | None
    first_step: int
    last_step: int
    last_progress_ts: float | None
    last_msg: str
    done: bool


@dataclass(frozen=True)
class InvalidWindow:
    """Steps, both included, in which nothing may be measured."""

    first_step: int
    last_step: int
    reason: str
    source: str | None = None

    @property
    def throttled(self) -> bool:
        """Whether a GPU slowed itself down, which a long run does too."""
        return "throttled" in self.reason

    @property
    def shared(self) -> bool:
        """Whether another program used a GPU of the run."""
        return "used by another program" in self.reason

    @property
    def clock_set(self) -> bool:
        """Whether the wall clock was set."""
        return "wall clock" in self.reason


@dataclass(frozen=True)
class Halt:
    """`.HALT` in the trainer's folder; `stale` is from before the run."""

    path: str
    text: str
    anomaly: str | None
    stale: bool

    @property
    def why(self) -> str:
        """Why it was written."""
        return self.anomaly or self.text or "no reason was given"


@dataclass(frozen=True)
class LoaderError:
    """Why a rank got no batch; `unreachable` where its source cannot be reached from here."""

    rank: int
    path: str
    error: str
    unreachable: bool


@dataclass(frozen=True)
class NamedTest:
    """A test that did not pass."""

    name: str
    message: str


@dataclass(frozen=True)
class UnpassedTests:
    """Tests that did not pass, by how; of each at most a few hundred."""

    failed: tuple[NamedTest, ...] = ()
    errors: tuple[NamedTest, ...] = ()
    skipped: tuple[NamedTest, ...] = ()


@dataclass(frozen=True)
class PrintedFormat:
    """How a log or a logger's file was read for which nothing was declared; `pattern` is empty for a reader's file."""

    path: str
    format: str
    pattern: str
    about: str


@dataclass(frozen=True)
class PrintedPlaces:
    """Steps and line numbers of the rows of the log `path`, both `[n]`, and the steps of rows beside a line about a
    pause: `pauses` are steps before and after which the log names a validation, a checkpoint or the end of an epoch.

    `epochs` are those that follow one of a printed length: the steps done before each, and the step of its first row.
    `counted`: whether the steps are those done since the start; not where one row of a later epoch is all there is.
    `not_finite`: numbers of these lines that no series has, as `kl` in `kl: inf`, which were finite in the first one:
    name to the places of the rows in which they are not, from 0. `skipped` are the places of rows in which, or behind
    which, the log says that an update was skipped.
    """

    steps: Steps
    lines: Steps
    pauses: Steps
    path: str = ""
    epochs: tuple[tuple[int, int], ...] = ()
    counted: bool = True
    not_finite: Mapping[str, Steps] = field(default_factory=dict)
    skipped: tuple[int, ...] = ()


@dataclass(frozen=True)
class StatedSetting:
    """A number that a trainer printed for one of its settings, and the line `text` of the log `path` that says so."""

    name: str
    value: str
    path: str
    line: int
    text: str


@dataclass(frozen=True)
class TraceSummary:
    """trace/summary.json: the named ranges that it contains; None where it does not list them."""

    ranges: tuple[str, ...] | None


class RunTable(Frozen):
    """A table that a run left: which attention ran, which kernels took the time. Columns of numbers contain numbers."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | int | float | None, ...], ...]


@dataclass
class RunEvidence:
    """What a run left that is neither a series nor a scalar. What was not there to be read is empty, or None.

    Attributes:
        derived: names of the series that follow from others, since the trainer did not write them.
        tokens_per_step: as the runbook declares, or else the trainer reports; `pause_every` as declared.
        world_size: ranks that the trainer reports, or as planned.
        gpu_mem_total_mib: size of the GPU's memory, by the trainer's memory dump.
        arrivals: source to (steps `[n]`, seconds `[n]`): when each step had arrived, by the supervisor's clock.
        step_times_s: steps `[n]`, and the Unix time `[n]` at which each ended, by the lowest rank's heartbeat.
        resumed_s: first record of each process of rank 0 after the first, Unix seconds.
        same_losses: rows in which rank 1 prints what rank 0 does, where that is all of them.
        heartbeats: rank to how far it came.
        samples: the machine during the run, that of rank 0 where there are several; `node_samples` those of the others.
        counted: errors that links and memories counted during the run, by node; empty where nobody counted.
        invalid_windows: steps whose rows are excluded.
        other_programs: on the GPUs of a run without steps, by GPU.
        log_hits: kind of trouble to lines, from one bounded scan of all logs.
        log_contains: each wanted text to its first appearance in rank 0's log; None where it has none.
        errors: of ranks that raised, the first in time first.
        fallbacks: counter to calls, by fallback_counters.csv, which is written only when something fell back.
        audit_entries: keys with content in sdpa_audit.json; None without the file.
        nodes: how the part of each node ended, of a run across nodes.
        node_rates: node to its steps per second over all measured steps, where each node trained alone: one that is
            slow now and then is slow.
        stated: settings of the command as the trainer printed them before its first step, where it reports no config.
        printed_config: the config that the trainer lists before its first step, by name, as it prints it: what it was
            given and its defaults, where it reports no config.
        own: what only the kind of the run reads; `JudgedRun.own` gives it back to the kind by its class.
    """

    derived: list[str] = field(default_factory=list)
    tokens_per_step: float | None = None
    pause_every: int | None = None
    world_size: int | None = None
    gpu_mem_total_mib: float | None = None
    arrivals: Mapping[str, tuple[Steps, Floats]] = field(default_factory=dict)
    step_times_s: tuple[Steps, Floats] | None = None
    resumed_s: tuple[float, ...] = ()
    same_losses: int = 0
    heartbeats: Mapping[int, RankProgress] = field(default_factory=dict)
    samples: Samples | None = None
    node_samples: Mapping[str, Samples] = field(default_factory=dict)
    counted: tuple[Counted, ...] = ()
    invalid_windows: Sequence[InvalidWindow] = ()
    other_programs: tuple[OtherProgram, ...] = ()
    halt: Halt | None = None
    loader_error: LoaderError | None = None
    log_hits: Mapping[str, Sequence[LogHit]] = field(default_factory=dict)
    log_contains: Mapping[str, LogHit | None] = field(default_factory=dict)
    waiting_in: Sequence[CollectiveWait] = ()
    errors: Sequence[RankError] = ()
    printed: PrintedFormat | None = None
    places: PrintedPlaces | None = None
    tests: UnpassedTests = UnpassedTests()
    fallbacks: Mapping[str, int] | None = None
    audit_entries: tuple[str, ...] | None = None
    trace: TraceSummary | None = None
    tables: tuple[RunTable, ...] = ()
    nodes: tuple[NodeRecord, ...] = ()
    node_rates: Mapping[str, float] = field(default_factory=dict)
    stated: tuple[StatedSetting, ...] = ()
    printed_config: Mapping[str, str] = field(default_factory=dict)
    own: object = None


@dataclass(frozen=True)
class Result:
    """Everything read from one run's folder.

    `series` are global (CSV, stdout, or rank 0's heartbeat), `rank_series` are per rank, `requested` and `effective`
    the config that the trainer reports (None when it reports none), `environment` the rest of its env.json.
    """

    run: str
    series: Mapping[str, Series]
    rank_series: Mapping[int, Mapping[str, Series]]
    scalars: Mapping[str, ScalarValue]
    requested: Mapping[str, Any] | None
    effective: Mapping[str, Any] | None
    environment: Mapping[str, Any] | None
    irregularities: tuple[Irregularity, ...]
    sources: tuple[SourceFile, ...]
    log_tail: tuple[str, ...] = ()
    log_path: str | None = None
    evidence: RunEvidence = field(default_factory=RunEvidence)

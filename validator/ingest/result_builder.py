"""What follows from what was read: rates per rank, step times, start-up, silence, stragglers."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from validator.files import is_file
from validator.ingest.accounts import printed_object, read_json_object, read_junit, scalar, tests_to_run
from validator.ingest.clock import Arrivals, longest_s
from validator.ingest.heartbeat import Heartbeat
from validator.ingest.read_log import ReadLog, age_before, read_small
from validator.ingest.table import StepTable
from validator.model.catalogue import METRICS
from validator.model.columns import ALIASES, OTHER_UNITS
from validator.model.record import Outcome
from validator.model.result import Floats, PrintedPlaces, RunEvidence, RunTable, ScalarValue, Series, Steps
from validator.model.runbook import TrainerMetrics
from validator.stats.spacing import is_of_steps

_CORE = ("loss", "toks_per_s", "step_time_s")
"""What says of a training how many steps were done; one without any has whatever else it measures."""


def series_from(name: str, base: Series | Heartbeat, steps: Steps, values: Floats) -> Series:
    """A catalogued series that follows from what was read from the file of `base`."""
    clock = base.clock if isinstance(base, Series) else None
    return Series(name=name, unit=METRICS[name].unit, steps=steps, values=values, source=base.source, clock=clock)


def step_times(
    series: Mapping[str, Series],
    heartbeat: Heartbeat | None,
    tokens_per_step: float | None,
    *,
    duration_s: float | None = None,
) -> dict[str, Series]:
    """`step_time_s` or `toks_per_s` where the trainer gave only one of them, or neither but a heartbeat.

    A row's rate covers the steps since the row before, so `tokens_per_step / toks_per_s` is their mean step time. The
    heartbeat's own clock is the last resort: the time between first records of consecutive steps, over their number.
    """
    made: dict[str, Series] = {}
    rate, times = series.get("toks_per_s"), series.get("step_time_s")
    if times is None and rate is not None and tokens_per_step:
        usable = rate.values > 0
        made["step_time_s"] = series_from(
            "step_time_s", rate, rate.steps[usable], tokens_per_step / rate.values[usable]
        )
    elif times is None and heartbeat is not None:
        steps, seconds = heartbeat.step_times_s
        spans, strides = np.diff(seconds), np.diff(steps)
        usable = (spans > 0) & (spans <= longest_s(duration_s))
        if usable.any():
            made["step_time_s"] = series_from("step_time_s", heartbeat, steps[1:][usable], (spans / strides)[usable])
    times = times or made.get("step_time_s")
    if rate is None and times is not None and tokens_per_step:
        usable = times.values > 0
        made["toks_per_s"] = series_from(
            "toks_per_s", times, times.steps[usable], tokens_per_step / times.values[usable]
        )
    return made


def straggler_score(rank_series: Mapping[int, Mapping[str, Series]], *, warmup_steps: int) -> float | None:
    """How far the slowest rank lags.

    Each rank counts by the median of its `compute_time_s` after warm-up. The score is the median over ranks (the
    lower one of an even number, so that of two ranks the faster is the yardstick) divided by the slowest: 1 when all
    are alike, 0.5 when one takes twice as long. None with fewer than two ranks.
    """
    medians: dict[int, float] = {}
    for rank, own in rank_series.items():
        found = own.get("compute_time_s")
        if found is None:
            continue
        values = found.values[(found.steps > warmup_steps) & np.isfinite(found.values)]
        if values.size:
            medians[rank] = float(np.median(values))
    if len(medians) < 2 or max(medians.values()) <= 0:
        return None
    return statistics.median_low(medians.values()) / max(medians.values())


def first_step_s(heartbeat: Heartbeat, *, started_s: float) -> float | None:
    """Seconds from the launch to the first record of a finished step; None when the clocks make no sense of it."""
    seconds = heartbeat.step_times_s[1]
    if not seconds.size or seconds[0] < started_s:
        return None
    return float(seconds[0]) - started_s


def first_arrival(arrivals: Mapping[str, Arrivals]) -> tuple[float, str] | None:
    """Seconds from the launch until the supervisor saw the first row of a step, and the file that it is in."""
    seen = [(float(seconds[0]), source) for source, (_, seconds) in arrivals.items() if len(seconds)]
    return min(seen, default=None)


def highest_step(
    series: Mapping[str, Series], heartbeat: Heartbeat | None, printed: PrintedPlaces | None
) -> int | None:
    """The highest step recorded anywhere, also in a line `printed` without a value; None where there is none."""
    highest = [int(s.steps[-1]) for s in series.values() if s.steps.size]
    if printed is not None and printed.steps.size:
        highest.append(int(printed.steps[-1]))
    if heartbeat is not None:
        highest.append(heartbeat.last_step)
    return max(highest, default=None)


def steps_done(
    series: Mapping[str, Series], heartbeat: Heartbeat | None, printed: PrintedPlaces | None = None
) -> float | None:
    """Optimizer steps that were finished, by the highest step recorded.

    A trainer that counts from 0 shows it by a row for step 0, or by rows at the end of every so many steps (9, 19, 29);
    its count is one more than its last step. A rate at step 0 that is not positive says that nothing was done
    there, and with a heartbeat, which counts what was done, a loss at step 0 may be that of the initial model.
    """
    highest = highest_step(series, heartbeat, printed)
    if highest is None or (printed is not None and not printed.counted and heartbeat is None):
        return None
    at_zero = {name: float(s.values[0]) for name, s in series.items() if s.steps.size and s.steps[0] == 0}
    timed = any(at_zero.get(name, 0.0) > 0 for name in ("toks_per_s", "step_time_s"))
    measured = "loss" in at_zero or (series.keys().isdisjoint(_CORE) and any(map(is_of_steps, at_zero)))
    from_zero = timed or ("toks_per_s" not in at_zero and measured and heartbeat is None)
    return float(highest + (1 if from_zero or any(map(_at_ends, series.values())) else 0))


def _at_ends(series: Series) -> bool:
    """Whether rows come at the last of every k steps, counted from 0: each step is one less than a multiple of k."""
    strides = np.diff(series.steps)
    if series.name not in _CORE or len(strides) < 2:
        return False
    k = int(strides[0])
    return k > 1 and bool((strides == k).all()) and int(series.steps[0]) == k - 1


def bus_bandwidth(
    scalars: Mapping[str, ScalarValue], environment: Mapping[str, Any], *, world_size: int | None
) -> dict[str, ScalarValue]:
    """`profile.comm_bus_gb_s`: what the reduction of the gradients reached while communication ran in a traced step.

    Counted as nccl-tests counts the bus bandwidth of an all-reduce, 2 (n - 1) / n times its bytes per second, so that
    it can be compared with `probe.all_reduce_gb_s`. Empty where the trace, the gradients' bytes or a second rank is
    missing.
    """
    share, step = scalars.get("profile.comm_share"), scalars.get("profile.step_time_ms")
    grad_bytes = environment.get("grad_bytes")
    known = [one.value for one in (share, step) if one is not None]
    if world_size is None or world_size < 2 or len(known) < 2:
        return {}
    numbers = [value for value in (*known, grad_bytes) if isinstance(value, (int, float)) and value > 0]
    if len(numbers) < 3 or isinstance(grad_bytes, bool):
        return {}
    spent_s = float(numbers[0]) * float(numbers[1]) / 1e3
    moved = 2 * (world_size - 1) / world_size * float(numbers[2])
    source = share.source if share is not None else None
    return scalar("profile.comm_bus_gb_s", moved / spent_s / 1e9, source)


# A result in the making, and what all readers of a run's folder ask of it.


_MAX_ROWS = 40
"""Of a table that is shown as the run left it."""


@dataclass
class ResultBuilder:
    """A result in the making. `texts` are the logs of a folder that no validation led to; `lenient`: nothing is
    declared."""

    run: str
    out: Path
    read_log: ReadLog
    metrics: TrainerMetrics
    warmup_steps: int = 0
    world_size: int | None = None
    started_s: float | None = None
    outcome: Outcome | None = None
    lenient: bool = False
    texts: tuple[Path, ...] | None = None
    tokens_declared: int | None = None
    ended_at: int | None = None
    ends_there_itself: bool = False
    series: dict[str, Series] = field(default_factory=dict)
    rank_series: dict[int, dict[str, Series]] = field(default_factory=dict)
    heartbeats: dict[int, Heartbeat] = field(default_factory=dict)
    scalars: dict[str, ScalarValue] = field(default_factory=dict)
    env: dict[str, Any] | None = None
    requested: dict[str, Any] | None = None
    effective: dict[str, Any] | None = None
    evidence: RunEvidence = field(default_factory=RunEvidence)

    def add_scalar(self, name: str, value: float | None, source: str | None = None, note: str | None = None) -> None:
        """A scalar by its catalogued unit, and what is to be known of it; nothing when there is no value."""
        found = scalar(name, value, source)
        self.scalars |= {key: one.model_copy(update={"note": note}) for key, one in found.items()}

    def add_table(self, table: StepTable, *, prefix: str = "") -> None:
        """Series of a table that are not there yet, by the contract's names and units, and which follow from others."""
        self.evidence.derived += (name for name in table.derived if name not in self.series)
        for raw, (steps, values) in table.columns.items():
            column, other = ALIASES.get(raw, raw), OTHER_UNITS.get(raw)
            if other is not None and other.name not in table.columns and not prefix:
                column, values = other.name, other.converted(values)
            name = f"{prefix}{column}"
            if name not in self.series:
                unit, clock = self.unit_of(column), table.clocks.get(raw)
                self.series[name] = Series(
                    name=name, unit=unit, steps=steps, values=values, source=table.source, clock=clock
                )

    def add_printed(self, table: StepTable) -> None:
        """The same of what was printed or logged, and where its rows are."""
        if table.places is not None:
            self.evidence.places = replace(table.places, path=table.source.path)
        self.add_table(table)

    def add_shown_table(
        self, caption: str, columns: Sequence[str], rows: Iterable[Sequence[str | float | None]]
    ) -> None:
        """A table for people, of which the first rows are kept; nothing where it has none."""
        kept = tuple(tuple(row) for row in islice(rows, _MAX_ROWS))
        if kept:
            self.evidence.tables += (RunTable(caption=caption, columns=tuple(columns), rows=kept),)

    @property
    def ended(self) -> bool:
        """Whether the trainer ended by itself, and closed its files."""
        return self.outcome is not None and self.outcome.exited_well

    def json_object(self, path: Path, *, what: str) -> tuple[dict[str, Any], str] | None:
        """A file that holds one JSON object, and its name; None, and an irregularity, when it does not."""
        read = read_json_object(path, self.read_log, what=what)
        return None if read is None else (read[0], read[1].path)

    def printed_object(self, path: Path, *, what: str) -> dict[str, Any] | None:
        """The JSON object in a log; None, and an irregularity, where it has none."""
        return printed_object(path, self.read_log, what=what)

    def small_file(self, path: Path, *, what: str) -> tuple[bytes, str] | None:
        """A file of moderate size, and its name; None where there is none, or where it cannot be read."""
        read = read_small(path, self.read_log, what=what) if is_file(path) else None
        return None if read is None else (read[0], read[1].path)

    def read_tests(self) -> None:
        """pytest's test report."""
        path = self.declared("junit.xml", "test report")
        read = read_junit(path, self.read_log) if path else None
        if read is not None:
            self.scalars |= read[0]
            self.evidence.tests = read[1]

    def tests_to_run(self, log: Path | None) -> int | None:
        """How many tests were to be run, by what pytest printed; None where it did not say."""
        return None if log is None else tests_to_run(log)

    def declared(self, name: str | None, what: str) -> Path | None:
        """The file of that name if it is there; its absence and its age are noted."""
        if name is None:
            return None
        path = self.out / name
        if not is_file(path):
            if self.note_link(path, what):
                return None
            if not self.lenient:
                self.read_log.note("missing-file", f"{what} {name} was not written", path)
            return None
        self.check_age(path, what)
        return path

    def check_age(self, path: Path, what: str) -> None:
        """A file from before the process started, or from elsewhere, is not this run's."""
        age_s = age_before(path, self.started_s)
        if age_s is not None:
            self.read_log.note(
                "foreign-results", f"{what} was last written {age_s:.0f} s before this run was started", path
            )

    def note_link(self, path: Path, what: str) -> bool:
        """Whether a declared file is a link, which is then noted: what it leads to is not read."""
        if not path.is_symlink():
            return False
        self.read_log.note(
            "missing-file",
            f"{what} is a link, which is not followed; let the trainer write the file itself, or name the folder that "
            "the link leads to in link_roots of trainer.metrics",
            path,
        )
        return True

    @property
    def duration_s(self) -> float | None:
        """Seconds that the run took by the monotonic clock; None before the run has ended."""
        return self.outcome.duration_s if self.outcome else None

    def unit_of(self, name: str) -> str:
        """The unit of a series: as catalogued, as the runbook declares it, or by its name's ending."""
        declared = METRICS.get(name) or self.metrics.declared.get(name)
        return declared.unit if declared is not None else _unit_by_suffix(name)


def _unit_by_suffix(name: str) -> str:
    """Names carry their unit by convention: `_s`, `_ms`, `_mib`, `_pct`."""
    for suffix, unit in (("_per_s", ""), ("_ms", "ms"), ("_s", "s"), ("_mib", "MiB"), ("_gib", "GiB"), ("_pct", "%")):
        if name.endswith(suffix):
            return unit
    return ""

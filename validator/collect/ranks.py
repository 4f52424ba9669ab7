"""What every rank recorded, and what the lowest one did where no table holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from validator.collect.decode import LEAN
from validator.collect.gathered import Gathered, check_age, duration_s, unit_of
from validator.collect.header import misnamed
from validator.collect.heartbeat import Heartbeat
from validator.collect.intake import CLOCK_SLACK_S
from validator.collect.readers import Reading
from validator.collect.same import Same
from validator.files import stat_file
from validator.model.result import Series

__all__ = ["fill_from_rank_0", "read_heartbeats"]

_COPIED_S = 60.0
_LONG_S = 3600.0


def read_heartbeats(state: Gathered, paths: Mapping[int, Path], heartbeats: Reading) -> None:
    """Every rank's heartbeat becomes its series; equal arrays are kept once, and none twice."""
    pattern = state.metrics.heartbeat
    if pattern is None:
        return
    if not paths:
        if not state.lenient:
            state.intake.note("missing-file", f"heartbeat {pattern} was not written", state.out / pattern)
        return
    same, lowest = Same(), min(paths)
    for rank, path in paths.items():
        check_age(state, path, f"heartbeat of rank {rank}")
        heartbeat = heartbeats.take(rank, state.intake)
        if heartbeat is None:
            continue
        first_s = heartbeat.gaps.first
        late_s = _after_the_end(state, first_s)
        if late_s is not None:
            state.intake.note(
                "foreign-results", f"its first record is dated {late_s:.0f} s after this run had ended", path, 1
            )
        if first_s is not None and state.started_s is not None and first_s < state.started_s - CLOCK_SLACK_S:
            state.intake.note(
                "foreign-results",
                f"its first record is from {state.started_s - first_s:.0f} s before this run was started",
                path,
                1,
            )
        if rank == lowest:
            _check_names(state, heartbeat)
        state.rank_series[rank] = {
            name: Series(
                name=name,
                unit=unit_of(state, name),
                steps=same.of("step", steps),
                values=same.of(name, values),
                source=heartbeat.source,
                rank=rank,
            )
            for name, (steps, values) in heartbeat.columns.items()
            if name in LEAN or name not in state.series
        }
        state.heartbeats[rank] = replace(heartbeat, columns={})  # held in memory once
    _check_ranks(state, pattern, set(paths))
    if state.texts is not None:
        _check_times(state, paths)


def _check_times(state: Gathered, paths: Mapping[int, Path]) -> None:
    """Heartbeats that were complete long before the table was written, in a folder of which nobody knows when its run
    began. A copied file, which is younger than its last record, proves nothing."""
    table_s = _written_s(state)
    for rank, heartbeat in state.heartbeats.items():
        first_s, end_s = heartbeat.gaps.first, heartbeat.gaps.last
        if table_s is None or first_s is None or end_s is None:
            continue
        if _stale(paths[rank], end_s, end_s - first_s, table_s):
            message = f"its last record is {table_s - end_s:.0f} s older than the table, so it is of an earlier run"
            state.intake.note("foreign-results", message, paths[rank])


def _written_s(state: Gathered) -> float | None:
    """When the table was last written, Unix seconds; None without one."""
    try:
        return stat_file(state.out / (state.metrics.csv or "training.csv")).st_mtime
    except OSError:
        return None


def _stale(path: Path, end_s: float, took_s: float, table_s: float) -> bool:
    try:
        copied = abs(stat_file(path).st_mtime - end_s) > _COPIED_S
    except OSError:
        return False
    return not copied and table_s - end_s > max(_LONG_S, took_s)


def _after_the_end(state: Gathered, first_s: float | None) -> float | None:
    """Seconds by which a first record is dated behind the end of the attempt; None when it is not."""
    took_s = duration_s(state)
    if first_s is None or state.started_s is None or took_s is None:
        return None
    late_s = first_s - (state.started_s + took_s)
    return late_s if late_s > CLOCK_SLACK_S else None


def _check_names(state: Gathered, heartbeat: Heartbeat) -> None:
    """A column of the table that goes by a garbled name is told by its values, which rank 0 recorded as well."""
    path = state.out / (state.metrics.csv or "training.csv")
    own = state.intake.name(path)
    table = {name: (one.steps, one.values) for name, one in state.series.items() if one.source.path == own}
    for wrong in misnamed(table, heartbeat.columns):
        state.intake.note("garbage-header", wrong, path, 1)


def _check_ranks(state: Gathered, pattern: str, present: set[int]) -> None:
    known = state.world_size
    if known is None and present:
        known = max(present) + 1  # where nobody says how many, ranks below the highest are there or missing
    if "{rank}" not in pattern or known is None:
        return
    where = state.out / pattern
    missing = sorted(set(range(known)) - present)
    surplus = sorted(rank for rank in present if rank >= known)
    if missing:
        state.intake.note("missing-rank", f"no heartbeat of rank {', '.join(map(str, missing))}", where)
    if surplus:
        state.intake.note(
            "foreign-results",
            f"heartbeat of rank {', '.join(map(str, surplus))} in a run of {known} ranks",
            where,
        )


def fill_from_rank_0(state: Gathered) -> None:
    """What no table holds is taken from the lowest rank's heartbeat; by rank only what all are judged by is kept."""
    if not state.rank_series:
        return
    lowest = min(state.rank_series)
    for name, own in state.rank_series[lowest].items():
        state.series.setdefault(name, own)
    brief = {name: own for name, own in state.rank_series[lowest].items() if name in LEAN}
    state.rank_series[lowest] = brief

"""What a trainer writes: its own account, its table, its heartbeats, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from validator.collect import derive, logs
from validator.collect.clock import longest_s
from validator.collect.decode import LEAN
from validator.collect.heartbeat import Heartbeat, find_heartbeats
from validator.collect.instruments import read_instruments
from validator.collect.intake import CLOCK_SLACK_S, Intake, age_before, parse_time_s, printable
from validator.collect.loader import read_loader
from validator.collect.readers import Reading, reading
from validator.collect.table import ALIASES, Table, read_table
from validator.collect.telemetry import read_samples, read_telemetry
from validator.collect.trainer import flat, open_scalars, read_json_object
from validator.model.catalogue import METRICS
from validator.model.measure import ScalarValue
from validator.model.outcome import Outcome
from validator.model.result import Series
from validator.model.runbook import TrainerMetrics

__all__ = ["Gathered", "declared", "read_training"]

_MOST_RANKS = 2**20
_ACCOUNT = ("requested", "effective")
_FURTHER = {
    "k_stats.csv": "selection statistics",
    "fallback_counters.csv": "fallback counters",
    "val.csv": "validation loss",
    "sdpa_audit.json": "attention backends",
    "trace/summary.json": "trace summary",
}
_BY_STEP = ("k_stats.csv", "val.csv")


@dataclass
class Gathered:
    """A result in the making."""

    run: str
    out: Path
    intake: Intake
    metrics: TrainerMetrics
    warmup_steps: int = 0
    world_size: int | None = None
    started_s: float | None = None
    outcome: Outcome | None = None
    lenient: bool = False
    series: dict[str, Series] = field(default_factory=dict)
    rank_series: dict[int, dict[str, Series]] = field(default_factory=dict)
    heartbeats: dict[int, Heartbeat] = field(default_factory=dict)
    scalars: dict[str, ScalarValue] = field(default_factory=dict)
    env: dict[str, Any] | None = None
    requested: dict[str, Any] | None = None
    effective: dict[str, Any] | None = None
    extra: dict[str, Any] = field(default_factory=dict)


def read_training(state: Gathered, found: logs.LogFiles) -> None:
    """All that a trainer writes, then what follows from it."""
    _read_env(state)
    _read_metrics(state)
    paths = find_heartbeats(state.out, state.metrics.heartbeat) if state.metrics.heartbeat is not None else {}
    with reading(paths, root=state.intake.root, limit_s=longest_s(_duration_s(state))) as heartbeats:
        _read_csv(state)
        _read_heartbeats(state, paths, heartbeats)
    _read_stdout(state, found)
    _fill_from_rank_0(state)
    _derive(state)
    _read_halt(state)
    _read_further(state)
    if state.lenient and not state.series:
        state.intake.note("missing-file", "the folder holds no measurements: no training.csv, no heartbeat", state.out)


def declared(state: Gathered, name: str | None, what: str) -> Path | None:
    """The file of that name if it is there; its absence and its age are noted."""
    if name is None:
        return None
    path = state.out / name
    if not path.is_file():
        if not state.lenient:
            state.intake.note("missing-file", f"{what} {name} was not written", path)
        return None
    _check_age(state, path, what)
    return path


def _check_age(state: Gathered, path: Path, what: str) -> None:
    """A file from before the process started, or from elsewhere, is not this run's."""
    age_s = age_before(path, state.started_s)
    if age_s is not None:
        state.intake.note("foreign-results", f"{what} was last written {age_s:.0f} s before this run was started", path)
    if path.is_symlink():
        root = state.intake.root.resolve()
        if not path.resolve().is_relative_to(root):
            state.intake.note("foreign-results", f"{what} is a link to a file outside this folder", path)


def _read_env(state: Gathered) -> None:
    path = declared(state, state.metrics.env, "environment file")
    read = read_json_object(path, state.intake, what="the environment file") if path else None
    if path is None or read is None:
        return
    content, source = read
    state.requested, state.effective = (flat(content.get(name)) for name in _ACCOUNT)
    for name, account in zip(_ACCOUNT, (state.requested, state.effective), strict=True):
        state.scalars |= open_scalars(name, account or {}, source.path)
    state.env = {key: value for key, value in content.items() if key not in _ACCOUNT}
    written_s = state.env.get("time_unix_s")
    if not isinstance(written_s, (int, float)):
        written = state.env.get("time")
        written_s = parse_time_s(written) if isinstance(written, str) else None
    if written_s is not None and state.started_s is not None and written_s < state.started_s - CLOCK_SLACK_S:
        state.intake.note(
            "foreign-results",
            f"the environment file says it was written {state.started_s - written_s:.0f} s before this run was started",
            path,
        )
    world = state.env.get("world_size")
    if isinstance(world, int) and not isinstance(world, bool) and 1 <= world <= _MOST_RANKS:
        if state.world_size is not None and world != state.world_size:
            state.intake.note(
                "world-size", f"the trainer ran with {world} ranks where {state.world_size} were started", path
            )
        state.world_size = world


def _read_metrics(state: Gathered) -> None:
    path = declared(state, state.metrics.metrics, "final metrics")
    read = read_json_object(path, state.intake, what="the final metrics") if path else None
    if read is not None:
        content, source = read
        state.scalars |= open_scalars("metrics", flat(content) or {}, source.path)


def _unit(state: Gathered, name: str) -> str:
    known = METRICS.get(name)
    return known.unit if known else state.metrics.extra.get(name, _unit_by_suffix(name))


def _unit_by_suffix(name: str) -> str:
    """Names carry their unit by convention: `_s`, `_ms`, `_mib`, `_pct`."""
    for suffix, unit in (("_per_s", ""), ("_ms", "ms"), ("_s", "s"), ("_mib", "MiB"), ("_gib", "GiB"), ("_pct", "%")):
        if name.endswith(suffix):
            return unit
    return ""


def _add_table(state: Gathered, table: Table, *, prefix: str = "") -> None:
    for raw, (steps, values) in table.columns.items():
        column = ALIASES.get(raw, raw)
        name = f"{prefix}{column}"
        if name not in state.series:
            state.series[name] = Series(
                name=name, unit=_unit(state, column), steps=steps, values=values, source=table.source
            )


def _read_csv(state: Gathered) -> None:
    path = declared(state, state.metrics.csv, "training log")
    table = read_table(path, state.intake) if path else None
    if table is not None:
        _add_table(state, table)


def _read_stdout(state: Gathered, found: logs.LogFiles) -> None:
    if state.metrics.stdout is None:
        return
    if found.main is None:
        state.intake.note("missing-file", "there is no log of what rank 0 printed", state.out / "logs")
        return
    table = logs.series(found.main, state.metrics.stdout, state.intake)
    if table is not None:
        _add_table(state, table)


def _read_heartbeats(state: Gathered, paths: Mapping[int, Path], heartbeats: Reading) -> None:
    pattern = state.metrics.heartbeat
    if pattern is None:
        return
    if not paths:
        if not state.lenient:
            state.intake.note("missing-file", f"heartbeat {pattern} was not written", state.out / pattern)
        return
    for rank, path in paths.items():
        _check_age(state, path, f"heartbeat of rank {rank}")
        heartbeat = heartbeats.take(rank, state.intake)
        if heartbeat is None:
            continue
        state.heartbeats[rank] = heartbeat
        first_s = heartbeat.gaps.first
        if first_s is not None and state.started_s is not None and first_s < state.started_s - CLOCK_SLACK_S:
            state.intake.note(
                "foreign-results",
                f"its first record is from {state.started_s - first_s:.0f} s before this run was started",
                path,
                1,
            )
        state.rank_series[rank] = {
            name: Series(
                name=name, unit=_unit(state, name), steps=steps, values=values, source=heartbeat.source, rank=rank
            )
            for name, (steps, values) in heartbeat.columns.items()
        }
    _check_ranks(state, pattern, set(paths))


def _check_ranks(state: Gathered, pattern: str, present: set[int]) -> None:
    if "{rank}" not in pattern or state.world_size is None:
        return
    where = state.out / pattern
    missing = sorted(set(range(state.world_size)) - present)
    surplus = sorted(rank for rank in present if rank >= state.world_size)
    if missing:
        state.intake.note("missing-rank", f"no heartbeat of rank {', '.join(map(str, missing))}", where)
    if surplus:
        state.intake.note(
            "foreign-results",
            f"heartbeat of rank {', '.join(map(str, surplus))} in a run of {state.world_size} ranks",
            where,
        )


def _fill_from_rank_0(state: Gathered) -> None:
    """What no table holds is taken from the lowest rank's heartbeat; by rank only what all are judged by is kept."""
    if not state.rank_series:
        return
    lowest = min(state.rank_series)
    for name, own in state.rank_series[lowest].items():
        state.series.setdefault(name, own)
    brief = {name: own for name, own in state.rank_series[lowest].items() if name in LEAN}
    state.rank_series[lowest] = brief
    state.heartbeats[lowest] = replace(state.heartbeats[lowest], columns={})


def _tokens_per_step(state: Gathered) -> float | None:
    for account in (state.env, state.effective):
        value = (account or {}).get("tokens_per_step")
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
            return float(value)
    return None


def _derive(state: Gathered) -> None:
    first = state.heartbeats.get(min(state.heartbeats)) if state.heartbeats else None
    for name, made in derive.step_times(
        state.series, first, _tokens_per_step(state), duration_s=_duration_s(state)
    ).items():
        state.series[name] = made
        state.extra.setdefault("derived", []).append(name)
    if state.world_size is None and state.heartbeats and state.lenient and len(state.heartbeats) > 1:
        state.world_size = max(state.heartbeats) + 1
    if "toks_per_s" in state.series and state.world_size is not None:
        state.series["toks_per_s_per_rank"] = derive.rate_per_rank(state.series["toks_per_s"], state.world_size)
    if state.world_size is not None:
        state.extra["world_size"] = state.world_size
    state.scalars |= derive.scalar("steps.done", derive.steps_done(state.series, first))
    if first is not None and state.started_s is not None:
        start_s = derive.first_step_s(first, started_s=state.started_s)
        state.scalars |= derive.scalar("startup.first_step_s", start_s, first.source.path)
    jumps = [window for heartbeat in state.heartbeats.values() for window in heartbeat.jumps]
    telemetry = state.out / "logs" / "telemetry.csv"
    samples = read_samples(telemetry, state.intake) if telemetry.is_file() else None
    if samples is not None:
        state.extra["samples"] = samples
    if first is not None and samples is not None:
        state.extra["step_times_s"] = first.step_times_s
        machine, throttled = read_telemetry(samples, telemetry, first, state.intake)
        state.series |= machine
        jumps += throttled
    if jumps:
        state.extra["invalid_windows"] = jumps
    score = derive.straggler_score(state.rank_series, warmup_steps=state.warmup_steps)
    if score is not None:
        state.scalars |= derive.scalar("straggler.score", score[0])
        state.extra["rank_compute_time_s"] = score[1]
    _derive_gaps(state)


def _duration_s(state: Gathered) -> float | None:
    return state.outcome.duration_s if state.outcome else None


def _derive_gaps(state: Gathered) -> None:
    """Silence counts to the end of an attempt that did not end well; after a good end it is only teardown."""
    outcome = state.outcome
    ended_s = None
    if outcome is not None and not outcome.ok and state.started_s is not None:
        ended_s = state.started_s + outcome.duration_s
    marks, gaps = {}, {}
    for rank, heartbeat in state.heartbeats.items():
        gap_s = heartbeat.gaps.until(ended_s)
        if gap_s is not None:
            gaps[rank] = gap_s
        marks[rank] = {
            "path": heartbeat.source.path,
            "pid": heartbeat.pids[-1] if heartbeat.pids else None,
            "lines": heartbeat.lines,
            "first_ts": heartbeat.gaps.first,
            "last_ts": heartbeat.gaps.last,
            "last_step": heartbeat.last_step,
            "last_progress_ts": heartbeat.last_progress_s,
            "last_msg": heartbeat.last_msg,
            "max_gap_s": gap_s,
            "done": heartbeat.done,
        }
    if marks:
        state.extra["heartbeats"] = marks
    if gaps:
        worst = max(gaps, key=lambda rank: gaps[rank])
        state.scalars |= derive.scalar("heartbeat.max_gap_s", gaps[worst], state.heartbeats[worst].source.path)


def _read_halt(state: Gathered) -> None:
    path = state.out / ".HALT"
    if not path.exists():
        return
    began_s = state.started_s
    if began_s is None:
        firsts = [h.gaps.first for h in state.heartbeats.values() if h.gaps.first is not None]
        began_s = min(firsts) if firsts else None
    age_s = age_before(path, began_s)
    if age_s is not None:
        state.intake.note("stale-halt", f".HALT is {age_s:.0f} s older than the start of this run", path)
    state.extra["halt"] = {
        "path": state.intake.name(path),
        "text": _short_text(path),
        "anomaly": _short_text(state.out / ".anomaly_type") or None,
        "stale": age_s is not None,
    }


def _short_text(path: Path) -> str:
    try:
        with path.open("rb") as handle:
            return printable(handle.read(2000).decode("utf-8", "replace"))
    except OSError:
        return ""


def _read_further(state: Gathered) -> None:
    """Contract files beyond the usual three: their columns become series `<stem>.<column>` where they go by step."""
    files: dict[str, str] = {}
    for name, kind in _FURTHER.items():
        path = state.out / name
        if not path.is_file():
            continue
        files[state.intake.name(path)] = kind
        if name in _BY_STEP:
            table = read_table(path, state.intake)
            if table is not None:
                _add_table(state, table, prefix=f"{path.stem}.")
    if files:
        state.extra["files"] = files
    for scalars, extra in (
        read_instruments(state.out, state.intake),
        read_loader(state.out, state.metrics.heartbeat, state.intake),
    ):
        state.scalars |= scalars
        state.extra |= extra
    state.scalars |= derive.bus_bandwidth(state.scalars, state.env or {}, world_size=state.world_size)
    _read_memory_dumps(state)


def _read_memory_dumps(state: Gathered) -> None:
    """What the trainer's `mem_<tag>.json` say of the device's size."""
    for tag in ("stepN", "step1", "boot"):
        path = state.out / f"mem_{tag}.json"
        read = read_json_object(path, state.intake, what="memory dump") if path.is_file() else None
        total = read[0].get("gpu_mem_total_mib") if read is not None else None
        if isinstance(total, (int, float)) and total > 0:
            state.extra["gpu_mem_total_mib"] = float(total)
            return

"""One run's folder becomes a Result. Nothing in a folder raises: what cannot be read is an irregularity."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from validator.files import is_file, reading_below, stat_file
from validator.ingest.accounts import scan
from validator.ingest.counters import read_counters
from validator.ingest.log_files import LogFiles, find_logs, tail, texts_of
from validator.ingest.log_hits import find_texts, read_errors, waiting_in
from validator.ingest.logs import last_groups
from validator.ingest.named import with_text_log
from validator.ingest.nodes import read_nodes, slowest_group
from validator.ingest.other_programs import log_folders, read_other_programs
from validator.ingest.read_log import ReadLog, printable
from validator.ingest.result_builder import ResultBuilder
from validator.ingest.stated import printed_config, stated_settings
from validator.ingest.training import read_training
from validator.model.counters import Counted
from validator.model.nodes import failed
from validator.model.plan import RunSpec
from validator.model.record import Outcome
from validator.model.result import Result
from validator.model.runbook import BUNDLED_METRICS, TrainerMetrics
from validator.model.settings import given_numbers
from validator.times import unix_seconds

Reader = Callable[[RunSpec, ResultBuilder, "Path | None"], None]
"""Adds what only the run's kind reads; the path is that of what rank 0 printed."""


def collect_run(spec: RunSpec, *, run_dir: Path, outcome: Outcome | None, read: Reader | None = None) -> Result:
    """Read what a run left in `run_dir / spec.out`, and how it ended.

    Args:
        spec: the run as planned; it says where the trainer's measurements are.
        run_dir: the validation's folder; all paths in the result are relative to it.
        outcome: how the run ended; None while it runs, and then nothing that needs its start or end is derived.
        read: the reader of the run's kind, `kind_of(spec.kind).read`; None reads what every kind of run may leave.
    """
    # Absurd values overflow; they are kept as read, not warned of.
    with np.errstate(all="ignore"), reading_below(run_dir):
        return _collect_run(spec, run_dir=run_dir, outcome=outcome, read=read)


def _collect_run(spec: RunSpec, *, run_dir: Path, outcome: Outcome | None, read: Reader | None) -> Result:
    if len(spec.groups) > 1 and spec.trains:
        return slowest_group(
            spec, lambda alone: _collect_run(alone, run_dir=run_dir, outcome=outcome, read=read), run_dir=run_dir
        )
    out = run_dir / spec.out
    state = ResultBuilder(
        run=spec.id,
        out=out,
        read_log=ReadLog(run_dir),
        metrics=spec.metrics,
        warmup_steps=spec.warmup_steps,
        world_size=spec.ranks if spec.trains else None,
        started_s=unix_seconds(outcome.last.started) if outcome else None,
        outcome=outcome,
        tokens_declared=spec.tokens_per_step,
        ended_at=spec.ended_at,
        ends_there_itself=spec.ends_there_itself,
    )
    state.evidence.pause_every = spec.pause_every
    if outcome is not None:
        if outcome.rc is not None:
            state.add_scalar("outcome.rc", float(outcome.rc))
        state.add_scalar("outcome.duration_s", outcome.duration_s)
    found = find_logs(out)
    if spec.groups:
        state.evidence.nodes = read_nodes(out)
    nodes = state.evidence.nodes
    state.evidence.counted = tuple(_counted(log_folders(out, nodes, len(spec.groups)), state.read_log))
    if spec.trains:
        found = with_text_log(state, found)
        read_training(state, found)
    else:
        state.evidence.other_programs = read_other_programs(out, nodes, len(spec.groups), state.read_log)
    if read is not None:
        read(spec, state, found.main)
    if spec.stdout_groups is not None and found.main is not None:
        state.scalars |= last_groups(found.main, spec.stdout_groups, state.read_log)
    if spec.log_contains:
        files = tuple(f for f in (found.main, found.rank_err.get(0)) if f is not None)
        state.evidence.log_contains = find_texts(files, spec.log_contains, state.read_log)
    if spec.trains and not state.effective:
        names, logs_read = given_numbers(spec.argv).keys(), (*found.printed, *found.logged[:1])
        state.evidence.stated = stated_settings(logs_read, names, state.evidence.places, state.read_log)
        state.evidence.printed_config = printed_config(logs_read, state.evidence.places, state.read_log)
    _read_trouble(state, found)
    return _result(state, found)


def _counted(folders: Iterable[tuple[str, Path]], read_log: ReadLog) -> Iterator[Counted]:
    """Errors that links and memories counted, of each node that left counts."""
    for node, folder in folders:
        path = folder / "counters.json"
        found = read_counters(path, read_log, node=node) if is_file(path) else None
        if found is not None:
            yield found


def collect_dir(path: Path, *, metrics: TrainerMetrics | None = None) -> Result:
    """Read any trainer's folder, or one log or table of it, without a plan and without an outcome.

    Args:
        path: the folder or the file; all paths in the result are relative to the folder.
        metrics: where the measurements are; by default the contract's names, whichever of them are there, and where
            none is, a log in a known print format.
    """
    path = path if path.is_dir() else path.resolve()  # a link that the user names is followed
    folder = path if path.is_dir() else path.parent
    with np.errstate(all="ignore"), reading_below(folder):
        return _collect_dir(path, folder, metrics=metrics)


def _collect_dir(path: Path, folder: Path, *, metrics: TrainerMetrics | None) -> Result:
    found = find_logs(path) if path.is_dir() else LogFiles({}, {}, {}, (path,))
    state = ResultBuilder(
        run=printable(path.resolve().name) or "run",
        out=folder,
        read_log=ReadLog(folder),
        metrics=metrics or (BUNDLED_METRICS if path.is_dir() else TrainerMetrics()),
        lenient=metrics is None,
        texts=texts_of(path, found) if path.is_dir() else (path,),
    )
    found = with_text_log(state, found) if path.is_dir() else found
    read_training(state, found)
    if path.is_dir() and is_file(path / "junit.xml"):
        state.read_tests()
    _read_trouble(state, found)
    return _result(state, found)


def _read_trouble(state: ResultBuilder, found: LogFiles) -> None:
    state.evidence.log_hits = scan(found.all, state.read_log)
    state.evidence.waiting_in = waiting_in(state.out, state.read_log)
    state.evidence.errors = read_errors(found, state.read_log)


def _decisive_log(found: LogFiles, state: ResultBuilder) -> Path | None:
    """The log whose end says most: of a failed run, what the rank that failed first wrote to stderr, on the node that
    failed."""
    outcome, errors = state.outcome, state.evidence.errors
    candidates: list[Path | None] = []
    if outcome is not None and not outcome.ok:
        bad = next(iter(failed(state.evidence.nodes)), None)
        if bad is not None and bad.rank:
            there = find_logs(state.out / "nodes" / bad.node)
            candidates += [*there.rank_err.values(), *(p for p in there.launcher if p.name == "stderr.log"), *there.all]
        rank = errors[0].rank if errors else 0
        candidates += [found.rank_err.get(rank), *found.rank_err.values()]
        candidates += [p for p in found.launcher if p.name == "stderr.log"]
    candidates += [found.main, *found.all]
    for path in candidates:
        try:
            if path is not None and stat_file(path).st_size:
                return path
        except OSError:
            continue
    return found.main


def _result(state: ResultBuilder, found: LogFiles) -> Result:
    """The finished value."""
    log = _decisive_log(found, state)
    return Result(
        run=state.run,
        series=state.series,
        rank_series=state.rank_series,
        scalars=state.scalars,
        requested=state.requested,
        effective=state.effective,
        environment=state.env,
        irregularities=tuple(state.read_log.irregularities),
        sources=tuple(state.read_log.sources.values()),
        log_tail=tail(log) if log else (),
        log_path=state.read_log.name(log) if log else None,
        evidence=state.evidence,
    )

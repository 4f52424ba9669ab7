"""Files that are not what they seem: of another run, of two runs, or from before the start."""

from __future__ import annotations

from collections.abc import Iterator

from validator.diagnose.facts import RunFacts, as_number
from validator.diagnose.rule import evidence, found
from validator.model.measure import Irregularity
from validator.model.units import format_duration
from validator.model.verdict import Evidence, Finding

__all__ = ["another_time", "changed_since", "foreign_results", "mixed_runs", "stale_halt"]


_EARLIER_S = 600.0
"""Time between the end of one heartbeat and the start of another that is no start-up."""


def _evidence(irregularities: list[Irregularity]) -> list[Evidence]:
    return [evidence(i.message, i.path, f"line {i.line}" if i.line else None) for i in irregularities[:5]]


def mixed_runs(run: RunFacts) -> Iterator[Finding]:
    """Two runs wrote one file, so that its numbers are of neither."""
    seen = run.irregular("mixed-runs")
    if seen:
        yield found(
            "mixed-runs",
            f"{seen[0].path} holds more than one run: {seen[0].message}.",
            severity="veto",
            because=_evidence(seen),
            next_step=f"Run again into an empty folder, and check that only one process writes {seen[0].path}, one row "
            "for each optimizer step and none for a rank or a micro-batch.",
        )


def foreign_results(run: RunFacts) -> Iterator[Finding]:
    """The files are older than the process, of ranks that were not started, or hold records of another rank."""
    seen = run.irregular("foreign-results", "rank-mismatch")
    if seen:
        certain = any(i.code == "foreign-results" for i in seen)
        yield found(
            "foreign-results",
            f"The measurements are not this run's: {seen[0].path}: {seen[0].message}.",
            severity="veto",
            confidence="high" if certain else "medium",
            because=_evidence(seen),
            next_step="Point the trainer's output at this run's own folder with {out}, empty at the start, "
            "and run again.",
        )


def changed_since(run: RunFacts) -> Iterator[Finding]:
    """Files are not what they were when the run had ended: edited, overwritten by another run, or lost."""
    seen = run.irregular("changed-since")
    if seen:
        yield found(
            "foreign-results",
            f"{seen[0].path} {seen[0].message}"
            + (f", and so of {len(seen) - 1} more files" if len(seen) > 1 else "")
            + ": what it says now is not what the run left.",
            severity="veto",
            because=_evidence(seen),
            next_step="Restore the files from where they were copied, or run again; look for a process that outlived "
            "the run and writes there.",
        )


def another_time(run: RunFacts) -> Iterator[Finding]:
    """A heartbeat that ended before the run began, by the other ranks' clocks or by env.json: of an earlier run."""
    marks = run.result.extra.get("heartbeats", {})
    starts = [mark["first_ts"] for mark in marks.values() if mark["first_ts"] is not None]
    began = max([*starts, as_number(run.environment.get("time_unix_s")) or 0.0], default=0.0)
    old = [(rank, mark) for rank, mark in marks.items() if (mark["last_ts"] or began) < began - _EARLIER_S]
    if run.irregular("foreign-results", "clock-jump") or not old:
        return  # it is said already, or the clock explains it
    rank, mark = old[0]
    ago = format_duration(began - mark["last_ts"])
    yield found(
        "foreign-results",
        f"The heartbeat of rank {rank} ends {ago} before this run began: it is of an earlier run.",
        severity="veto",
        because=[evidence(f"last record {ago} before the start", str(one["path"])) for _, one in old[:5]],
        next_step="Point the trainer's output at a folder of its own, empty at the start, and run again.",
    )


def stale_halt(run: RunFacts) -> Iterator[Finding]:
    """A `.HALT` from before the start stopped the run, or would have."""
    seen = run.irregular("stale-halt")
    refused_to_start = run.failed and not run.steps_done and run.outcome is not None and run.outcome.reason == "exited"
    refused = run.hits("stale_halt") if refused_to_start else []
    if not seen and not refused:
        return
    stopped = run.failed or bool(refused)
    halt = run.result.extra.get("halt", {})
    path = seen[0].path if seen else str(halt.get("path", ".HALT"))
    yield found(
        "stale-halt",
        f"A .HALT from before the start {'stopped this run' if stopped else 'lies in the output folder'}.",
        severity="veto" if stopped else "warning",
        confidence="high" if seen else "medium",
        because=[*_evidence(seen), *(hit.evidence for hit in refused[:3])],
        next_step=f"Find out what wrote it, remove it (rm {path}) and run again.",
    )

"""Whether the evidence is there, whole, and of one clock. What was garbled or never written proves nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from validator.diagnose.facts import RunFacts
from validator.diagnose.rule import evidence, found
from validator.judge.spacing import by_the_clock, next_due, thins_out
from validator.model.measure import Irregularity
from validator.model.result import Series
from validator.model.verdict import Evidence, Finding

__all__ = ["clock_jump", "damaged_evidence", "missing_evidence", "not_judged"]

_DAMAGE = (
    *("garbage-header", "garbage-row", "garbage-cell", "short-row", "long-row", "nul-bytes", "no-step-column"),
    *(
        "garbage-line",
        "truncated-line",
        "no-timestamp",
        "no-message",
        "not-json",
        "not-utf8",
        "unreadable",
        "too-large",
        "empty",
    ),
)
_CUT = frozenset({"truncated-line", "empty"})
"""What a kill leaves behind without anybody's fault, and what a file that is still being written looks like."""

_RATES = ("toks_per_s", "step_time_s")
_CORE = ("loss", *_RATES)
_FEW = 6
"""Rows below which no even pace is known."""

_SILENT_S = 60.0


def damaged_evidence(run: RunFacts) -> Iterator[Finding]:
    """Lines or cells of what a run measured cannot be read, although the run ended well."""
    ended_well = run.outcome is not None and run.outcome.ok
    seen = [i for i in run.irregular(*_DAMAGE) if ended_well or i.code not in _CUT]
    relied_on = [i for i in seen if _relied_on(run, i)]
    seen = relied_on or seen
    because = [evidence(i.message, i.path, f"line {i.line}" if i.line else None) for i in seen[:5]]
    odd = [] if because else list(_impossible(run))
    if not because and not odd:
        return
    first = f"{seen[0].path}: {seen[0].message}" if seen else odd[0].text
    yield found(
        "damaged-evidence",
        f"What was measured cannot be read as a whole: {first}.",
        severity="veto" if ended_well and (relied_on or odd) else "warning",
        because=because or odd,
        next_step="Have the trainer append whole lines and flush each, replace whole files by rename, let only one "
        "process write a file, and leave a cell empty where nothing was measured; check the disk (dmesg, df -h), then "
        "run again.",
    )


def _relied_on(run: RunFacts, irregularity: Irregularity) -> bool:
    """Whether the runbook names the file as a place of measurements."""
    metrics, name = run.spec.metrics, PurePosixPath(irregularity.path).name
    declared = {PurePosixPath(one).name for one in (metrics.csv, metrics.env, metrics.metrics) if one}
    before, _, after = PurePosixPath(metrics.heartbeat or "").name.partition("{rank}")
    beat = bool(metrics.heartbeat) and name.startswith(before) and name.endswith(after)
    printed = metrics.stdout is not None and name in ("stdout.log", "stderr.log")
    return beat or printed or name in declared or (run.spec.kind == "pytest" and name == "junit.xml")


def _impossible(run: RunFacts) -> Iterator[Evidence]:
    """Rates and times of a step that cannot be: no numbers, or below zero, where they would cancel honest ones.

    Rows in which the clock was set are left out of every measurement, so they spoil none.
    """
    jumps = [w["last_step"] for w in run.result.extra.get("invalid_windows", ()) if "wall clock" in str(w["reason"])]
    for name in _RATES:
        series = run.series(name)
        values = np.empty(0) if series is None else series.values
        bad = np.flatnonzero(~np.isfinite(values) | (values < 0))
        bad = bad if series is None else bad[~np.isin(series.steps[bad], jumps)]
        if series is not None and bad.size:
            yield evidence(
                f"{name} is {values[bad[0]]:g} at step {series.steps[bad[0]]}, and below zero or not finite in "
                f"{bad.size} rows",
                series.source.path,
                f"step {series.steps[bad[0]]}",
            )


def missing_evidence(run: RunFacts) -> Iterator[Finding]:
    """A file that the runbook takes measurements from, rows of it, or the end of a heartbeat with steps is missing."""
    if run.failed:
        return  # a run that ended badly may well not have come so far
    seen = [evidence(i.message, i.path) for i in run.irregular("missing-file", "missing-rank", "no-match")]
    if run.training and run.outcome is not None:
        seen += _missing_rows(run)
    if run.training:
        seen += _missing_ends(run)
    if not seen:
        return
    yield found(
        "missing-evidence",
        f"Expected files or rows are missing: {'; '.join(e.text for e in seen[:4])}.",
        severity="veto" if run.outcome is not None else "warning",
        because=seen[:6],
        next_step="Let the trainer write these files, whole, into its own output folder ({out}), or take them out of "
        "trainer.metrics if it never will; a pattern is searched in each line that rank 0 prints. Rows may come "
        "at an even pace, by the clock, or ever more seldom by a rule, as at steps 1, 2, 4, 8.",
    )


def _missing_rows(run: RunFacts) -> Iterator[Evidence]:
    """Steps that are left out of a series that is otherwise written at an even pace, or that its neighbors have."""
    derived = run.result.extra.get("derived", ())
    written = {name: one for name, one in run.result.series.items() if name not in derived}
    groups = [written, *run.result.rank_series.values()]
    known = [one for group in groups for name in _CORE if (one := group.get(name)) is not None and one.steps.size]
    first = {_pace(one): min(int(o.steps[0]) for o in known if _pace(o) == _pace(one)) for one in known}
    last = {_pace(one): max(int(o.steps[-1]) for o in known if _pace(o) == _pace(one)) for one in known}
    told, redrawn = set(), _redrawn(run)
    for one in known:
        beside = [other for other in known if other.source.path == one.source.path]
        if one.source.path == redrawn:
            continue  # a bar shows a step when it is time to, and need not show the next
        gap = _gap(one, beside) if one.steps.size >= _FEW else _ends_early(one, beside)
        if gap is None and _late(one) > first[_pace(one)]:
            gap = f"{one.name} begins at step {one.steps[0]}, elsewhere at step {first[_pace(one)]}"
        if gap is None and _pace(one) is not None and one.steps[-1] < last[_pace(one)]:
            gap = f"{one.name} ends at step {one.steps[-1]}, elsewhere at step {last[_pace(one)]}"
        if gap is not None and one.source.path not in told:
            told.add(one.source.path)
            yield evidence(f"{gap} in {one.source.path}", one.source.path)


def _redrawn(run: RunFacts) -> str | None:
    """The log in which most rows stand in one line with the row before, as those of a progress bar do."""
    places = run.result.extra.get("places")
    if not places or len(places["lines"]) < _FEW:
        return None
    return str(places["path"]) if float(np.mean(np.diff(places["lines"]) == 0)) > 1 / 2 else None


def _late(series: Series) -> int:
    """The first step; of a rate or a time the row before counts as there, since they need one to be measured from."""
    if series.name == "loss" or series.steps.size < 2:
        return int(series.steps[0])
    return int(2 * series.steps[0] - series.steps[1])


def _pace(series: Series) -> float | None:
    """Steps from one row to the next, as a rule; None when there are too few rows to tell."""
    return float(np.median(np.diff(series.steps))) if series.steps.size >= _FEW else None


def _gap(series: Series, beside: list[Series]) -> str | None:
    """Where rows are missing: between others that follow evenly, or at an end that a like series reaches."""
    strides = np.diff(series.steps)
    usual = float(np.median(strides))
    if thins_out(series.steps):
        due, end = next_due(series.steps), max(int(other.steps[-1]) for other in beside)
        return (
            f"{series.name} has no row at step {due}, which was due, where others go on to {end}"
            if due <= end
            else None
        )
    if by_the_clock(series.steps):
        return None
    wide = np.flatnonzero(strides > 1.5 * usual)  # a further row for the first or last step makes narrow ones only
    if wide.size:
        low, high = int(series.steps[wide[0]]), int(series.steps[wide[0] + 1])
        return f"{series.name} has no row between steps {low} and {high}, where one comes every {usual:g} steps"
    for other in beside:
        if float(np.median(np.diff(other.steps))) != usual:
            continue
        if other.steps[0] < _late(series) or other.steps[-1] > series.steps[-1]:
            span, reached = (f"{s.steps[0]}–{s.steps[-1]}" for s in (series, other))
            return f"{series.name} has steps {span}, {other.name} {reached}"
    return None


def _ends_early(series: Series, beside: list[Series]) -> str | None:
    """Where a few rows stop long before those of the same file, by the few's own pace."""
    end = max(int(other.steps[-1]) for other in beside)
    stride = int(np.diff(series.steps).max()) if series.steps.size > 1 else end // 2
    if series.steps[-1] + 2 * stride > end or max(other.steps.size for other in beside) < 2 * _FEW:
        return None
    return (
        f"{series.name} has {series.steps.size} rows, the last at step {series.steps[-1]}, where others go on to {end}"
    )


def _missing_ends(run: RunFacts) -> Iterator[Evidence]:
    """Heartbeats that stop before those of other ranks, or before they say that the rank is done as others do.

    What counts is the steps that they cover, not their lines: a rank that writes `boot` alone is one that reports no
    steps, and a rank may write more kinds of records than another. Of a run whose end is not known, a rank must have
    been silent for a while that others filled with steps.
    """
    marks = run.result.extra.get("heartbeats", {})
    stepping = {rank: mark for rank, mark in marks.items() if int(mark["last_step"]) > 0}
    furthest = max((int(mark["last_step"]) for mark in stepping.values()), default=0)
    any_done = any(mark["done"] for mark in marks.values())
    ended = run.outcome is not None or any_done
    rows = [int(one.steps[-1]) for name in _CORE if (one := run.series(name)) is not None]
    if stepping and rows and ended and furthest < max(rows) / 2:
        path = next(iter(marks.values()))["path"]
        yield evidence(f"no heartbeat gets beyond step {furthest}, where the table has {max(rows)} steps", path)
    for rank, mark in marks.items():
        behind = 0 < int(mark["last_step"]) < furthest
        if behind and (ended or _silent(mark, stepping.values(), run.step_time_s)):
            yield evidence(
                f"the heartbeat of rank {rank} ends at step {mark['last_step']}, another at {furthest}", mark["path"]
            )
        elif rank in stepping and any_done and not mark["done"]:
            yield evidence(f"the heartbeat of rank {rank} lacks its end (`done`), which others have", mark["path"])


def _silent(mark: Mapping[str, Any], others: Iterable[Mapping[str, Any]], step_s: float | None) -> bool:
    """Whether a rank has said nothing for a minute, and ten steps, in which another one did."""
    latest = max((other["last_ts"] for other in others if other["last_ts"] is not None), default=None)
    last = mark["last_ts"]
    return latest is not None and last is not None and latest - last > max(_SILENT_S, 10 * (step_s or 0.0))


def not_judged(run: RunFacts) -> Iterator[Finding]:
    """What cannot be judged, since the trainer does not write what it takes: said once for all runs."""
    if not run.training or run.failed or not run.result.series:
        return
    timed = [rank for rank, own in run.result.rank_series.items() if "compute_time_s" in own]
    missing = [
        text
        for text, lacks in (
            ("stragglers: fewer than two ranks report compute_time_s", run.world_size > 1 and len(timed) < 2),
            ("divergence and zero losses: no loss", run.series("loss") is None),
            ("steadiness and pauses: no rate and no time per step", run.times is None and run.timed),
        )
        if lacks
    ]
    if missing:
        yield found(
            "not-judged",
            f"Not judged, since the trainer does not write it: {'; '.join(missing)}.",
            severity="info",
            because=[evidence(text) for text in missing],
            next_step="Let the trainer write these fields (docs/own-trainer.md) where the answer matters.",
        )


def clock_jump(run: RunFacts) -> Iterator[Finding]:
    """The wall clock was set while the run was measured; what spans the jump is left out."""
    windows = [w for w in run.result.extra.get("invalid_windows", ()) if "wall clock" in str(w["reason"])]
    seen = run.irregular("clock-jump")
    if not windows and not seen:
        return
    said = str(windows[0]["reason"]) if windows else seen[0].message
    yield found(
        "clock-jump",
        f"{said[:1].upper()}{said[1:]} while the run was measured.",
        because=[
            *(evidence(str(w["reason"]), None, f"steps {w['first_step']}–{w['last_step']}") for w in windows[:4]),
            *(evidence(i.message, i.path) for i in seen[:2]),
        ],
        next_step="Let the clock be slewed, not set (chrony or ntpd), wait until it is in step (chronyc tracking), and "
        "measure again.",
    )

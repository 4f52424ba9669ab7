"""Whether the evidence is of this run alone, whole, and of one clock."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

import numpy as np
import numpy.typing as npt

from validator.diagnose.rule import Diagnosis, RunFacts, as_number, evidence, hit_evidence, rule
from validator.ingest.text_logs import whole_name
from validator.kinds.registry import kind_of
from validator.model.columns import OF_EVALUATION
from validator.model.readers import matcher
from validator.model.result import Irregularity, LogHit, RankProgress, Series, Steps
from validator.model.verdict import Evidence
from validator.stats.spacing import (
    at_even_times,
    late_thinning,
    next_due,
    on_two_grids,
    pace_of_regular_gaps,
    thins_out,
)
from validator.text import format_duration

_EARLIER_S = 600.0
"""Time between the end of one heartbeat and the start of another that is no start-up."""

_DAMAGE = (
    *("garbage-header", "garbage-row", "garbage-cell", "short-row", "long-row", "nul-bytes"),
    *("garbage-line", "truncated-line", "no-timestamp", "no-message", "not-json", "not-utf8", "unreadable"),
    *("too-large", "empty"),
)

_CUT = frozenset({"truncated-line", "empty"})
"""What a kill leaves behind, and what a file that is still being written looks like."""

_MISSING = (
    "no-step-column",
    "missing-file",
    "missing-rank",
    "no-match",
    "missing-step",
    "several-sources",
    "several-keys",
)

_RATES = ("toks_per_s", "step_time_s")

_CORE = ("loss", *_RATES)

Flags = npt.NDArray[np.bool_]

_FEW = 6
"""Rows below which no even pace is known."""

_AGAIN, _MEANT = 3, 0.8
"""Gaps, and the share of them beside an evaluation, from which a trainer prints it in place of a row."""

_SILENT_S = 60.0


@rule("mixed-runs", "veto", of="run")
def mixed_runs(run: RunFacts) -> Iterator[Diagnosis]:
    """Two runs wrote one file, so that its numbers are of neither."""
    seen = run.irregular("mixed-runs")
    if seen:
        yield Diagnosis(
            f"{seen[0].path} holds more than one run: {seen[0].message}.",
            because=_irregularity_evidence(seen),
            next_step=f"Run again into an empty folder, and check that only one process writes {seen[0].path}, one row "
            "for each optimizer step and none for a rank or a micro-batch.",
        )


@rule("foreign-results", "veto", of="run")
def foreign_results(run: RunFacts) -> Iterator[Diagnosis]:
    """The files are older than the process, of ranks that were not started, or hold records of another rank."""
    seen = run.irregular("foreign-results", "rank-mismatch")
    if seen:
        certain = any(i.code == "foreign-results" for i in seen)
        yield Diagnosis(
            f"The measurements are not this run's: {seen[0].path}: {seen[0].message}.",
            confidence="high" if certain else "medium",
            because=_irregularity_evidence(seen),
            next_step="Point the trainer's output at this run's own folder with {out}, empty at the start, "
            "and run again.",
        )


@rule("foreign-results", "veto", of="run")
def changed_since(run: RunFacts) -> Iterator[Diagnosis]:
    """Files differ from what they were when the run had ended: edited, overwritten by another run, or lost."""
    seen = run.irregular("changed-since")
    if seen:
        yield Diagnosis(
            f"{seen[0].path} {seen[0].message}"
            + (f", and so of {len(seen) - 1} more files" if len(seen) > 1 else "")
            + ": what it says now is not what the run left.",
            because=_irregularity_evidence(seen),
            next_step="Restore the files from where they were copied, or run again; look for a process that outlived "
            "the run and writes there.",
        )


@rule("foreign-results", "veto", of="run")
def another_time(run: RunFacts) -> Iterator[Diagnosis]:
    """A heartbeat that ended before the run began, by the other ranks' clocks or by env.json: of an earlier run."""
    marks = run.evidence.heartbeats
    starts = [mark.first_ts for mark in marks.values() if mark.first_ts is not None]
    began = max([*starts, as_number(run.environment.get("time_unix_s")) or 0.0], default=0.0)
    old = [(rank, mark) for rank, mark in marks.items() if (mark.last_ts or began) < began - _EARLIER_S]
    if run.irregular("foreign-results", "clock-jump") or not old:
        return  # it is reported already, or the clock explains it
    rank, mark = old[0]
    ago = format_duration(began - (mark.last_ts or began))
    yield Diagnosis(
        f"The heartbeat of rank {rank} ends {ago} before this run began: it is of an earlier run.",
        because=[evidence(f"last record {ago} before the start", one.path) for _, one in old[:5]],
        next_step="Point the trainer's output at a folder of its own, empty at the start, and run again.",
    )


def _irregularity_evidence(irregularities: list[Irregularity]) -> list[Evidence]:
    return [evidence(i.message, i.path, f"line {i.line}" if i.line else None) for i in irregularities[:5]]


_STOPS = re.compile(r"(?i)\b(?:stopp?|halt|exit|abort|refus|quitt?)(?:s|ing|ed|es|e)?\b(?! (?:file|flag))")


@rule("stale-halt", "veto", of="run")
def stale_halt(run: RunFacts) -> Iterator[Diagnosis]:
    """A `.HALT` from before the start stopped the run, or would have."""
    seen, refused = run.irregular("stale-halt"), _refused(run)
    if not seen and not refused:
        return
    stopped = run.failed or bool(refused)
    halt = run.evidence.halt
    path = seen[0].path if seen else halt.path if halt is not None else None
    yield Diagnosis(
        f"A .HALT from before the start {'stopped this run' if stopped else 'lies in the output folder'}.",
        severity="veto" if stopped else "warning",
        confidence="high" if seen else "medium",
        because=[*_irregularity_evidence(seen), *(hit_evidence(hit) for hit in refused[:3])],
        next_step=f"Find out what wrote it, remove it (rm {path}) and run again."
        if path is not None
        else "Find it where the trainer writes (find . -name .HALT) and what wrote it, remove it and run again.",
    )


def _refused(run: RunFacts) -> list[LogHit]:
    """Lines that say that a `.HALT` kept the run from its first step. One that ends well must say that it stops."""
    started = run.steps_done or run.outcome is None or run.outcome.reason != "exited"
    return [] if started else [hit for hit in run.hits("stale_halt") if run.failed or _STOPS.search(hit.text)]


@rule("damaged-evidence", "veto", of="run")
def damaged_evidence(run: RunFacts) -> Iterator[Diagnosis]:
    """Lines or cells of what a run measured cannot be read, although the run ended well."""
    ended_well = run.outcome is not None and run.outcome.ok
    seen = [i for i in run.irregular(*_DAMAGE) if ended_well or i.code not in _CUT]
    relied_on = [i for i in seen if _relied_on(run, i)]
    seen = relied_on or seen
    because = _irregularity_evidence(seen)
    odd = [] if because else list(_impossible(run))
    if not because and not odd:
        return
    first = f"{seen[0].path}: {seen[0].message}" if seen else odd[0].text
    yield Diagnosis(
        f"What was measured cannot be read as a whole: {first}.",
        severity="veto" if ended_well and (relied_on or odd) else "warning",
        because=because or odd,
        next_step="Have the trainer append whole lines and flush each, replace whole files by rename, let only one "
        "process write a file, and leave a cell empty where nothing was measured; check the disk (dmesg, df -h), then "
        "run again.",
    )


def _relied_on(run: RunFacts, irregularity: Irregularity) -> bool:
    """Whether the runbook names the file as a source of measurements."""
    metrics, name = run.spec.metrics, PurePosixPath(irregularity.path).name
    declared = {PurePosixPath(one).name for one in (metrics.csv, metrics.env, metrics.metrics) if one}
    before, _, after = PurePosixPath(metrics.heartbeat or "").name.partition("{rank}")
    beat = bool(metrics.heartbeat) and name.startswith(before) and name.endswith(after)
    printed = metrics.reads_log and metrics.log is None and name in ("stdout.log", "stderr.log")
    if metrics.log_below is not None:
        printed = matcher(f"**/{metrics.log_below}").fullmatch(whole_name(irregularity.path)) is not None
    logged = any(
        matcher(f"**/{metrics.files.get(reader.name, files.glob)}").fullmatch(irregularity.path)
        for reader in metrics.readers
        for files in reader.files
    )
    return beat or printed or logged or name in declared or name in kind_of(run.spec.kind).relies_on


def _impossible(run: RunFacts) -> Iterator[Evidence]:
    """Rates and times of a step that cannot be: no numbers, or below zero, where they would cancel honest ones.

    Rows in which the clock was set are left out of every measurement, so they invalidate none.
    """
    jumps = [one.last_step for one in run.evidence.invalid_windows if one.clock_set]
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


@rule("missing-evidence", "veto", of="run")
def missing_evidence(run: RunFacts) -> Iterator[Diagnosis]:
    """A file that the runbook takes measurements from, rows of it, or the end of a heartbeat with steps is missing."""
    if run.failed or _refused(run):
        return  # a run that ended badly may well not have come so far
    seen = [evidence(i.message, i.path) for i in run.irregular(*_MISSING)]
    if run.training and run.outcome is not None:
        seen += _missing_rows(run)
    if run.training:
        seen += _missing_ends(run)
    if not seen:
        return
    printed = any(map(str.strip, run.result.log_tail))
    nothing_done = run.outcome is not None and run.outcome.ok and run.irregular("no-match") and not printed
    yield Diagnosis(
        f"Expected files or rows are missing: {'; '.join(e.text for e in seen[:4])}.",
        severity="veto" if run.outcome is not None else "warning",
        because=seen[:6],
        next_step="The trainer printed nothing and ended well, as one does that finds a checkpoint of an earlier run "
        "with all steps done: give each run an output folder of its own ({out}), or remove it."
        if nothing_done
        else "Let the trainer write these files, whole, into its own output folder ({out}), or take them out of "
        "trainer.metrics if it never will; a pattern is searched in each line that rank 0 prints. Rows may come "
        "at an even pace, on a schedule of time, or at increasing intervals by a rule, as at steps 1, 2, 4, 8.",
    )


def _missing_rows(run: RunFacts) -> Iterator[Evidence]:
    """Steps that are left out of a series that is otherwise written at an even pace, or that its neighbors have."""
    known = _written(run)
    first = {_pace(one): min(int(o.steps[0]) for o in known if _pace(o) == _pace(one)) for one in known}
    last = {_pace(one): max(int(o.steps[-1]) for o in known if _pace(o) == _pace(one)) for one in known}
    reported, redrawn = set(), _redrawn(run)
    for one in known:
        same_file = [other for other in known if other.source.path == one.source.path]
        if one.source.path == redrawn:
            continue
        places = run.evidence.places
        printed = places if places is not None and places.path == one.source.path else None
        epochs = () if printed is None else printed.epochs
        evaluated = [s for s in run.result.series.values() if s.name in OF_EVALUATION and s.source == one.source]
        pauses = [other.steps for other in evaluated] + ([] if printed is None else [printed.pauses])
        between = np.unique(np.concatenate(pauses)) if pauses else one.steps[:0]
        gap = _gap(one, same_file, epochs, between) if one.steps.size >= _FEW else _ends_early(one, same_file)
        if gap is None and not thins_out(one.steps):
            gap = _ends_early(one, [one, *evaluated])
        if gap is None and _late(one) > first[_pace(one)]:
            gap = f"{one.name} begins at step {one.steps[0]}, elsewhere at step {first[_pace(one)]}"
        if gap is None and _pace(one) is not None and one.steps[-1] < last[_pace(one)]:
            gap = f"{one.name} ends at step {one.steps[-1]}, elsewhere at step {last[_pace(one)]}"
        if gap is not None and one.source.path not in reported:
            reported.add(one.source.path)
            yield evidence(f"{gap} in {one.source.path}", one.source.path)


@rule("missing-evidence", "warning", of="run")
def rows_thin_out(run: RunFacts) -> Iterator[Diagnosis]:
    """From some step on, behind the start of the run, rows come less often in a regular pattern."""
    if run.failed or not run.training:
        return
    redrawn = _redrawn(run)
    for one in _written(run):
        found = late_thinning(one.steps)
        if found is None or one.source.path == redrawn:
            continue
        every = "every step" if found.before == 1 else f"every {found.before} steps"
        said = f"{one.name} has a row {every} up to step {found.step} and one every {found.after} steps behind it"
        rows = "row is" if found.missing == 1 else "rows are"
        yield Diagnosis(
            f"{said} in {one.source.path}: unless this is meant, {found.missing} {rows} missing.",
            confidence="medium",
            because=[evidence(said, one.source.path, f"step {found.step}")],
            next_step=f"Find out whether the trainer logs less often from step {found.step} on by a setting. "
            "If it does, log at one pace behind the start; if not, look for what loses lines: a filter, a limit of the "
            "logger, or another process that reads or writes the file.",
        )
        return


def _written(run: RunFacts) -> list[Series]:
    """Losses, rates and times that the trainer wrote, those of each rank too."""
    derived = run.evidence.derived
    written = {name: one for name, one in run.result.series.items() if name not in derived}
    groups = [written, *run.result.rank_series.values()]
    return [one for group in groups for name in _CORE if (one := group.get(name)) is not None and one.steps.size]


def _redrawn(run: RunFacts) -> str | None:
    """The log in which most rows are in one line with the row before, as those of a progress bar do.

    A bar shows a step when it is time to, and need not show the next.
    """
    places = run.evidence.places
    if places is None or len(places.lines) < _FEW:
        return None
    return places.path if float(np.mean(np.diff(places.lines) == 0)) > 1 / 2 else None


def _late(series: Series) -> int:
    """The first step; of a rate or a time the row before counts as there, since they need one to be measured from."""
    if series.name == "loss" or series.steps.size < 2:
        return int(series.steps[0])
    return int(2 * series.steps[0] - series.steps[1])


def _pace(series: Series) -> float | None:
    """Steps from one row to the next, as a rule; None when there are too few rows."""
    return float(np.median(np.diff(series.steps))) if series.steps.size >= _FEW else None


def _gap(series: Series, same_file: list[Series], epochs: tuple[tuple[int, int], ...], pauses: Steps) -> str | None:
    """Where rows are missing: between others that follow evenly, or at an end that a like series reaches.

    `epochs` are those of `PrintedPlaces`, `pauses` the steps of evaluations and of rows beside lines about them.
    """
    strides = np.diff(series.steps)
    usual = float(np.median(strides))
    if thins_out(series.steps):
        due, end = next_due(series.steps), max(int(other.steps[-1]) for other in same_file)
        return (
            f"{series.name} has no row at step {due}, which was due, where others continue to {end}"
            if due <= end
            else None
        )
    inside, meant = np.ones(len(strides), np.bool_), np.zeros(len(strides), np.bool_)
    if epochs:
        inside, meant = _at_borders(series.steps, epochs)
        usual = float(np.median(strides[inside] if inside.any() else strides))
    usual = float(pace_of_regular_gaps(strides[inside]) or usual)
    if at_even_times(np.cumsum(np.append(series.steps[:1], strides[inside]))):
        return None
    # A further row for the first or last step makes narrow strides only.
    wide = np.flatnonzero((strides > 1.5 * usual) & ~meant)
    if wide.size and not on_two_grids(series.steps) and not _in_place_of_rows(series.steps, wide, pauses, usual):
        low, high = int(series.steps[wide[0]]), int(series.steps[wide[0] + 1])
        again = f", and {len(wide) - 1} more such gaps" if len(wide) > 1 else ""
        return f"{series.name} has no row between steps {low} and {high}, where one comes every {usual:g} steps{again}"
    for other in same_file:
        if float(np.median(np.diff(other.steps))) != usual:
            continue
        if other.steps[0] < _late(series) or other.steps[-1] > series.steps[-1]:
            span, reached = (f"{s.steps[0]}–{s.steps[-1]}" for s in (series, other))
            return f"{series.name} has steps {span}, {other.name} {reached}"
    return None


def _in_place_of_rows(steps: Steps, wide: Steps, pauses: Steps, usual: float) -> bool:
    """Whether a trainer again and again prints an evaluation in place of a row: beside the gaps behind the rows `wide`,
    each of one row."""
    if len(wide) < _AGAIN or (np.diff(steps)[wide] != 2 * usual).any():
        return False
    within = np.searchsorted(pauses, steps[wide + 1], "right") > np.searchsorted(pauses, steps[wide], "left")
    return bool(within.mean() >= _MEANT)


def _at_borders(steps: Steps, epochs: tuple[tuple[int, int], ...]) -> tuple[Flags, Flags]:
    """Which strides `[n - 1]` are those within an epoch, and which of the others leave out no row that was due.

    A trainer that prints every so many batches of an epoch prints none for its last few, and often none for batch 0. A
    row was due where others of this trainer are at that place of their epochs, or where it fits into the printed
    length; what every epoch leaves out is the trainer's way of printing.
    """
    strides = np.diff(steps)
    before, begins = np.array([(0, steps[0]), *epochs], dtype=np.int64).T
    epoch = np.searchsorted(begins[1:], steps, side="right")
    inside, meant = np.diff(epoch) == 0, np.zeros(len(strides), np.bool_)
    borders = np.flatnonzero(np.diff(epoch) == 1)
    if not borders.size or not inside.any():
        return inside, meant
    usual = float(np.median(strides[inside]))
    own, lengths = steps - before[epoch], np.diff(before, append=2 * before[-1] - before[-2])
    last, first, length = own[borders], own[borders + 1], lengths[epoch[borders]]
    earliest = int(first.min()) if borders.size > 1 else int(min(first[0], own[0]))
    from_one = bool((own >= lengths[epoch]).any())  # then the last batch has the length of its epoch as its number
    nothing_due = (last + usual > length - (not from_one)) & (first - usual < earliest)
    always = borders.size > 1 and len(set(zip(length - last, first, strict=True))) == 1
    meant[borders] = nothing_due | always
    return inside, meant


def _ends_early(series: Series, same_file: list[Series]) -> str | None:
    """Where a few rows stop long before those of the same file, by the few's own pace."""
    end = max(int(other.steps[-1]) for other in same_file)
    stride = int(np.diff(series.steps).max()) if series.steps.size > 1 else end // 2
    if series.steps[-1] + 2 * stride > end or max(other.steps.size for other in same_file) < 2 * _FEW:
        return None
    rows, last = series.steps.size, series.steps[-1]
    return f"{series.name} has {rows} rows, the last at step {last}, where others continue to {end}"


def _missing_ends(run: RunFacts) -> Iterator[Evidence]:
    """Heartbeats that stop before those of other ranks, that begin when others are half-way, or that do not say that
    the rank is done as others do.

    What counts is the steps that they cover, not their lines: a rank that writes `boot` alone is one that reports no
    steps, and a rank may write more kinds of records than another. Of a run whose end is not known, a rank must have
    been silent for a while that others filled with steps.
    """
    marks = run.evidence.heartbeats
    stepping = {rank: mark for rank, mark in marks.items() if mark.last_step > 0}
    furthest = max((mark.last_step for mark in stepping.values()), default=0)
    earliest = min((mark.first_step for mark in stepping.values()), default=0)
    any_done = any(mark.done for mark in marks.values())
    ended = run.outcome is not None or any_done
    rows = [int(one.steps[-1]) for name in _CORE if (one := run.series(name)) is not None]
    if stepping and rows and ended and furthest < max(rows) / 2:
        path = next(iter(marks.values())).path
        yield evidence(f"no heartbeat gets beyond step {furthest}, where the table has {max(rows)} steps", path)
    for rank, mark in marks.items():
        behind = 0 < mark.last_step < furthest
        if behind and (ended or _silent(mark, stepping.values(), run.step_time_s)):
            yield evidence(
                f"the heartbeat of rank {rank} ends at step {mark.last_step}, another at {furthest}", mark.path
            )
        elif rank in stepping and furthest >= _FEW and mark.first_step > (earliest + furthest) / 2:
            yield evidence(
                f"the heartbeat of rank {rank} begins at step {mark.first_step}, another at {earliest}", mark.path
            )
        elif rank in stepping and any_done and not mark.done:
            yield evidence(f"the heartbeat of rank {rank} lacks its end (`done`), which others have", mark.path)


def _silent(mark: RankProgress, others: Iterable[RankProgress], step_s: float | None) -> bool:
    """Whether a rank has written nothing for a minute, and ten steps, in which another one did."""
    latest = max((other.last_ts for other in others if other.last_ts is not None), default=None)
    last = mark.last_ts
    return latest is not None and last is not None and latest - last > max(_SILENT_S, 10 * (step_s or 0.0))


@rule("clock-jump", "warning", of="run")
def clock_jump(run: RunFacts) -> Iterator[Diagnosis]:
    """The wall clock was set while the run was measured; what spans the jump is left out."""
    windows = [one for one in run.evidence.invalid_windows if one.clock_set]
    seen = run.irregular("clock-jump")
    if not windows and not seen:
        return
    said = windows[0].reason if windows else seen[0].message
    yield Diagnosis(
        f"{said[:1].upper()}{said[1:]} while the run was measured.",
        because=[
            *(evidence(w.reason, None, f"steps {w.first_step}–{w.last_step}") for w in windows[:4]),
            *(evidence(i.message, i.path) for i in seen[:2]),
        ],
        next_step="Let the clock be slewed, not set (chrony or ntpd), wait until it is in step (chronyc tracking), and "
        "measure again.",
    )

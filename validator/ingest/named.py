"""What the readers find that a runbook names: the files that they know, and what rank 0 printed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath

import numpy as np

from validator.ingest import logs
from validator.ingest.clock import ARRIVALS_FILE
from validator.ingest.log_files import LogFiles
from validator.ingest.read_log import ReadLog
from validator.ingest.readers import FoundFiles, find_files
from validator.ingest.readers.read import read_files
from validator.ingest.result_builder import ResultBuilder
from validator.ingest.table import StepTable
from validator.ingest.text_logs import TextLog, find_text_log
from validator.model.catalogue import METRICS
from validator.model.metrics import FED_LOGS, TrainerMetrics
from validator.model.readers import READERS, ReaderName
from validator.model.result import PrintedFormat, Series
from validator.stats.clock import Claim, Clock, is_running_mean
from validator.stats.spacing import covered_steps


def read_named(state: ResultBuilder, found: LogFiles) -> None:
    """What the readers that the runbook names find, one after the other: files first, then what was printed."""
    files = {one.reader.name: one for one in find_files(state.out, state.metrics)}
    for reader in state.metrics.readers:
        own = files.get(reader.name)
        tables = []
        if own is not None and own.paths:
            for path in own.paths:
                state.check_age(state.out / path, f"a file of {reader.name}")
            tables = list(read_files(own, state.out, state.metrics, state.read_log, ended=state.ended))
        if reader.two_streams:
            tables += _read_two_streams(state, found, optional=bool(tables))
            tables.sort(key=lambda table: -len(table.columns["loss"][0]) if "loss" in table.columns else 0)
        elif reader.pattern is not None and not any("loss" in table.columns for table in tables):
            printed = printed_table(state, found, reader.pattern)
            tables += [printed] if printed is not None else []
        for table in tables:
            state.add_printed(table)
        if own is not None and reader.files_alone and not own.paths:
            _note_no_file(state, own)


def printed_table(state: ResultBuilder, found: LogFiles, pattern: str) -> StepTable | None:
    """What a pattern finds in what rank 0 printed, or in the text log that the runbook names."""
    how = {"longest": state.texts is not None, "known": pattern != state.metrics.stdout}
    arrivals = state.evidence.arrivals
    if found.logged:
        *earlier, last = found.logged
        state.check_age(last, "the log")
        return logs.series(last, pattern, state.read_log, **how, arrivals=arrivals, earlier=tuple(earlier))
    texts = found.printed if state.texts is None else state.texts
    if state.metrics.log is not None:
        return None  # which is noted where it is looked for
    if not texts:
        state.read_log.note("missing-file", "there is no log of what rank 0 printed", state.out / "logs")
        return None
    table = logs.series_in(texts, pattern, state.read_log, **how, arrivals=arrivals)
    state.evidence.same_losses = _same_losses(state, found, pattern, table)
    return table


def _same_losses(state: ResultBuilder, found: LogFiles, pattern: str, table: StepTable | None) -> int:
    """Rows in which rank 1 prints the losses that rank 0 does, to the last digit; 0 unless these are all."""
    other, own = found.rank_out.get(1), None if table is None else table.columns.get("loss")
    if other is None or own is None:
        return 0
    beside = logs.series(other, pattern, ReadLog(state.read_log.root))
    theirs = None if beside is None else beside.columns.get("loss")
    same = theirs is not None and all(map(np.array_equal, own, theirs))
    return len(own[0]) if same and len(np.unique(own[1])) > 1 else 0


def with_text_log(state: ResultBuilder, found: LogFiles) -> LogFiles:
    """The logs with the parts of the text log that the runbook names; that there is none, or several, is noted."""
    glob = state.metrics.log_below
    if glob is None:
        return found
    log = find_text_log(state.out, glob)
    if log == TextLog():  # a sanitized copy of a run does not say that the path is an absolute one
        log = find_text_log(state.out, f"{FED_LOGS}/{PurePosixPath(glob).name}")
    if log.others:
        text = (
            f"{' and '.join(log.others[:2])} are both {state.metrics.log}, and which is this run's log is unknown; "
            "name it in log of trainer.metrics"
        )
        state.read_log.note("several-sources", text, state.out / log.others[0])
    elif not log.parts:
        text, where = f"no file {state.metrics.log} is below the run's output folder", state.out / glob
        if glob != state.metrics.log:
            text = f"nothing was added to {state.metrics.log} while the run lasted"
        state.read_log.note("missing-file", f"{text}; name the trainer's log in log of trainer.metrics", where)
    return replace(found, logged=tuple(state.out / part for part in log.parts))


def read_known_files(state: ResultBuilder, found: LogFiles) -> None:
    """The files of a logger in a folder that nothing was declared of; nothing where there is none, or of several."""
    alone = state.texts if state.texts == found.launcher and state.texts and len(state.texts) == 1 else ()
    file = alone[0].name if alone and not alone[0].is_dir() else None
    kinds: dict[ReaderName, TrainerMetrics] = {}
    for reader in READERS.values():
        if reader.files and (reader.files_alone or reader.two_streams) and (file is None or reader.name != "jsonl"):
            metrics = TrainerMetrics(reader=(reader.name,), files={} if file is None else {reader.name: file})
            if any(one.paths for one in find_files(state.out, metrics)):
                kinds[reader.name] = metrics
    if len(kinds) != 1:
        return
    ((name, metrics),) = kinds.items()
    for one in find_files(state.out, metrics):
        for table in read_files(one, state.out, metrics, state.read_log, ended=state.ended):
            state.add_printed(table)
        if state.series:
            path = state.read_log.name(state.out / one.paths[0])
            state.evidence.printed = PrintedFormat(path, name, pattern="", about=one.reader.about)


def _note_no_file(state: ResultBuilder, found: FoundFiles) -> None:
    glob = state.metrics.files.get(found.reader.name, found.kind.glob)
    name = found.reader.name
    text = f"no file {glob} of the reader {name} is below the run's output folder"
    fix = "let the trainer write below {out} (docs/readers.md says how)"
    if found.links:
        text, fix = (
            f"{found.links[0]}, for the reader {name}, is a link, which is not followed",
            "let it write the file",
        )
    elif found.cut:
        fix = f"it holds too many files to look through; name the path in files: {{{name}: …}}"
    state.read_log.note("missing-file", f"{text}; {fix}", state.out / glob)


def _read_two_streams(state: ResultBuilder, found: LogFiles, *, optional: bool) -> list[StepTable]:
    """The Trainer's bar and dictionaries; what is missing is no flaw where a file holds the same."""
    texts = found.logged or (found.printed if state.texts is None else state.texts[:2])
    arrivals = state.evidence.arrivals
    tables = logs.two_streams(texts, state.read_log, optional=optional, arrivals=arrivals) if texts else []
    if not tables and not optional:
        state.read_log.note(
            "no-match",
            "the log holds no dictionary of a loss with the step that its bar shows; print the bar "
            "(disable_tqdm=False), or let the trainer save trainer_state.json (trainer.save_state())",
            found.main or state.out / "logs",
        )
    return tables


def time_by_arrivals(state: ResultBuilder) -> None:
    """The time of a step by the validator's own clock, where the trainer reports none."""
    none = np.empty(0, np.int64), np.empty(0, np.float64)
    steps, seconds = max(state.evidence.arrivals.values(), key=lambda one: len(one[0]), default=none)
    source = state.read_log.sources.get(state.read_log.name(state.out / ARRIVALS_FILE))
    spans, strides = np.diff(seconds), np.diff(steps)
    usable = spans > 0
    if source is None or not usable.any():
        return
    state.series["step_time_s"] = Series(
        name="step_time_s",
        unit=METRICS["step_time_s"].unit,
        steps=steps[1:][usable],
        values=(spans / np.maximum(strides, 1))[usable],
        source=source,
    )
    state.evidence.derived.append("step_time_s")


def time_means_by_arrivals(state: ResultBuilder) -> None:
    """The same where what the trainer prints as the time of a step is the mean since its start, which follows no
    change: a pace that halves in the middle of a run would fade in over the rest of it. And where it is 0 in most rows,
    seconds that were printed as milliseconds: any bound from above held."""
    times = state.series.get("step_time_s")
    if times is None or "step_time_s" in state.evidence.derived or not np.isfinite(times.values).all():
        return
    if np.mean(times.values == 0) > 1 / 2 and any(len(steps) > 2 for steps, _ in state.evidence.arrivals.values()):
        del state.series["step_time_s"]
        time_by_arrivals(state)
        return
    stamps = state.evidence.arrivals.get(times.source.path)
    if stamps is None or len(stamps[0]) < 2 or len(times.steps) < 2:
        return
    seconds = covered_steps(times.steps) * times.values
    claim = Claim(times.name, times.source.path, times.steps, seconds, whole=False)
    if is_running_mean(claim, Clock("the validator's clock", *stamps, own=True)):
        del state.series["step_time_s"]
        time_by_arrivals(state)

"""The files of named readers become series, run by run; what two runs both hold is reported, and neither is taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from validator.ingest.read_log import ReadLog, read_raw, read_small
from validator.ingest.readers import WHOLE, FoundFiles, decoder_of, runs_of
from validator.ingest.readers.mlflow import SeveralRuns
from validator.ingest.readers.rows import FAULTS, LoggedColumns
from validator.ingest.readers.trainer_state import finished_steps
from validator.ingest.rows import Column
from validator.ingest.table import StepTable, read_table
from validator.model.metrics import TrainerMetrics
from validator.model.result import CoarseClock, SourceFile


@dataclass
class _Run:
    """One run's files as they were read: its columns, and the file with most rows."""

    place: str
    columns: dict[str, Column]
    derived: tuple[str, ...]
    source: SourceFile
    clocks: Mapping[str, CoarseClock] = field(default_factory=dict)


@dataclass
class _Files:
    """The event files of one folder, or whatever else makes one run."""

    read_log: ReadLog
    out: Path
    kind: str
    alone: bool
    metrics: TrainerMetrics
    columns: LoggedColumns = field(default_factory=LoggedColumns)
    spans: list[tuple[float, float, str]] = field(default_factory=list)
    source: SourceFile | None = None
    most: int = -1

    def read(self, name: str) -> None:
        path = self.out / name
        before, first, last = self.columns.rows, float("inf"), float("-inf")
        decoder = decoder_of(self.kind, name, self.metrics)
        if decoder is None:
            source = self._whole(path)
        else:
            source = None
            for data, done in read_raw(path, self.read_log, what="the file"):
                source = done
                for row in decoder.feed(data):
                    if row.time_s is not None:
                        first, last = min(first, row.time_s), max(last, row.time_s)
                    self.columns.add(row)
            decoder.close()
            if self.alone or self.columns.rows > before:  # a file without rows may be of something else
                decoder.faults.note(self.read_log, path, FAULTS)
        if first <= last:
            self.spans.append((first, last, name))
        if source is not None and self.columns.rows - before > self.most:
            self.most, self.source = self.columns.rows - before, source

    def _whole(self, path: Path) -> SourceFile | None:
        read = read_small(path, self.read_log, what="the file")
        if read is None:
            return None
        data, source = read
        decoder = WHOLE[self.kind]()
        try:
            for row in decoder.rows(data):
                self.columns.add(row)
        except SeveralRuns as error:
            text = f"{error}; give each run a store of its own: MLFLOW_TRACKING_URI=sqlite:///{{out}}/mlflow.db"
            self.read_log.note("several-sources", text, path)
        decoder.faults.note(self.read_log, path, FAULTS)
        return source

    def overlap(self) -> tuple[str, str] | None:
        """Two files that were written at the same time, which two processes did."""
        ordered = sorted(self.spans)
        for (_, last, one), (first, _, other) in pairwise(ordered):
            if first < last:
                return one, other
        return None


def read_files(
    found: FoundFiles, out: Path, metrics: TrainerMetrics, read_log: ReadLog, *, ended: bool
) -> Iterator[StepTable]:
    """The series of a reader's files, a table for each run that has any that no other has."""
    runs = list(_Reading(found, out, metrics, read_log, ended).runs())
    if not runs:
        text = f"the reader {found.reader.name} finds no row of a step with a number in {found.paths[0]}"
        read_log.note("no-match", text, out / found.paths[0])
    owners: dict[str, list[_Run]] = {}
    for run in runs:
        for name in run.columns:
            owners.setdefault(name, []).append(run)
    twice = {name: several for name, several in owners.items() if len(several) > 1 and name not in several[0].derived}
    if twice:
        _note_several("loss" if "loss" in twice else min(twice), twice, found, out, read_log)
    for run in runs:
        lone = "loss" in run.columns and "loss" not in twice
        own = {
            name: column
            for name, column in run.columns.items()
            if name not in twice and (name not in run.derived or len(owners[name]) == 1 or lone)
        }
        if own:
            derived = tuple(name for name in run.derived if name in own)
            yield StepTable(own, run.source, max(len(steps) for steps, _ in own.values()), derived, clocks=run.clocks)


def _note_several(name: str, twice: Mapping[str, list[_Run]], found: FoundFiles, out: Path, read_log: ReadLog) -> None:
    one, other, *more = twice[name]
    others = f", and in {len(more)} more" if more else ""
    place = f"{one.place}/*" if found.kind.format == "tensorboard" else one.place
    text = (
        f"{name} is in {one.source.path} and in {other.source.path}{others}; which one is this run's is unknown: name "
        f"it in trainer.metrics, as files: {{{found.reader.name}: {place}}}"
    )
    read_log.note("several-sources", text, out / other.source.path)


@dataclass
class _Reading:
    """The files that a reader found, and how they are read."""

    found: FoundFiles
    out: Path
    metrics: TrainerMetrics
    read_log: ReadLog
    ended: bool

    def runs(self) -> Iterator[_Run]:
        """Every run that has a series."""
        for place, paths in runs_of(self.found).items():
            run = self._table(place, paths[0]) if self.found.kind.format == "csv" else self._run(place, paths)
            if run is not None and run.columns:
                yield run

    def _table(self, place: str, path: str) -> _Run | None:
        table = read_table(self.out / path, self.read_log, ended=self.ended, series=self.metrics.series_of)
        return None if table is None else _Run(place, dict(table.columns), (), table.source)

    def _run(self, place: str, paths: tuple[str, ...]) -> _Run | None:
        kind = self.found.kind.format
        if kind == "trainer-state":
            paths = (max(paths, key=self._finished),)
        files = _Files(self.read_log, self.out, kind, alone=len(self.found.paths) == 1, metrics=self.metrics)
        for path in sorted(paths):
            files.read(path)
        both = files.overlap() if kind == "tensorboard" else None
        if both is not None:
            text = (
                f"{both[0]} and {both[1]} were written at the same time, by two processes; let rank 0 alone write them"
            )
            self.read_log.note(
                "several-sources", f"{text}, or name one in files of trainer.metrics", self.out / both[1]
            )
            return None
        if files.source is None:
            return None
        names = self.metrics.series_of
        where = self.out / files.source.path if len(paths) > 1 else self.out / paths[0]
        made = files.columns.table(names, lambda code, text, line: self.read_log.note(code, text, where, line))
        return _Run(place, made.columns, made.names, files.source, made.clocks)

    def _finished(self, path: str) -> int:
        read = read_small(self.out / path, self.read_log, what="the state of the trainer")
        return -1 if read is None else finished_steps(read[0])

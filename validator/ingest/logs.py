"""The series that a pattern finds in what a run printed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

import numpy as np

from validator.ingest.clock import NO_ARRIVALS, Arrivals
from validator.ingest.inferred import inferred_pattern
from validator.ingest.log_files import digested_lines, is_binary, log_lines
from validator.ingest.printed import Lines, PrintedRows
from validator.ingest.read_log import Digest, ReadLog, printable
from validator.ingest.readers.hf_trainer import TwoStreams
from validator.ingest.readers.rows import FAULTS, LoggedColumns
from validator.ingest.table import StepTable
from validator.model.budget import TooSlow, searching
from validator.model.evaluation_lines import Evaluations, chosen, evaluation_in, keep
from validator.model.pattern import LinePattern, StepCounter, line_pattern
from validator.model.print_formats import Recipe
from validator.model.print_tables import with_rows
from validator.model.print_words import MARK
from validator.model.recipes import recognize
from validator.model.result import ScalarValue

_INFERRED_FROM = 20_000
"""Lines from which a pattern is made: all of a trial, and the head of a long log."""

_STATED = re.compile(r"(?i)(?<![a-z])(?:step|iter(?:ation)?|update)\W{0,4}(\d{1,12})(?![\d.])")
"""The step that a line states."""

_COUNTER = re.compile(r"(?<![\d/])\d+ ?/ ?\d+(?![\d/])")
"""`3/40`, of the batches of an evaluation."""


def series_in(
    paths: tuple[Path, ...],
    pattern: str,
    read_log: ReadLog,
    *,
    longest: bool = False,
    known: bool = False,
    arrivals: Mapping[str, Arrivals] = NO_ARRIVALS,
) -> StepTable | None:
    """Series from the first of these logs in which the pattern matches a line, as `series` reads it."""
    for path in paths[1:]:
        if _matches(paths[0], pattern) or not _matches(path, pattern):
            continue
        return series(path, pattern, read_log, longest=longest, known=known, arrivals=arrivals)
    return series(paths[0], pattern, read_log, longest=longest, known=known, arrivals=arrivals)


def recognized(paths: Iterable[Path], *, in_words: bool = False) -> tuple[Path, Recipe] | None:
    """Of these logs the one with most rows in a known print format, or in one that goes by words, and that format."""
    best: tuple[int, Path, Recipe] | None = None
    for path in dict.fromkeys(paths):
        try:
            known = None if is_binary(path) else recognize(with_rows(log_lines(path)), in_words=in_words)
        except OSError:
            continue
        if known is not None and (best is None or known[1] > best[0]):
            best = known[1], path, known[0]
    return None if best is None else best[1:]


def inferred(path: Path) -> str | None:
    """A pattern made from the numbers of a log in no known format; None where they show no step and no loss."""
    try:
        lines = () if is_binary(path) else (text for _, text in islice(log_lines(path), _INFERRED_FROM))
        return inferred_pattern(lines)
    except OSError:
        return None


def _matches(path: Path, pattern: str) -> bool:
    wanted = line_pattern(pattern)
    try:
        return any(wanted.read(text) is not None for _, text in _searched(path, Digest(), pattern))
    except (OSError, TooSlow):
        return False


def _searched(path: Path, digest: Digest, pattern: str) -> Iterator[tuple[int, str]]:
    """The lines, under the limit on the time that searching them for a pattern may take; raises TooSlow beyond it."""
    lines = digested_lines(path, digest)
    with searching(pattern) as count:
        for numbered in with_rows(lines) if MARK in pattern else lines:
            count()
            yield numbered


def _parts(paths: tuple[Path, ...], digest: Digest, pattern: str) -> Iterator[tuple[int, str]]:
    """The lines of all parts of one log, numbered on; the digest is that of the last part."""
    before = 0
    for path in paths:
        number = 0
        for number, text in _searched(path, digest if path == paths[-1] else Digest(), pattern):
            yield before + number, text
        before += number


def _usual_total(lines: Lines, pattern: LinePattern) -> float | None:
    """The `steps_total` of training, where a log holds several progress bars; None where the pattern has no such
    group."""
    if "steps_total" not in pattern.names:
        return None
    counter = StepCounter()
    for _, text in lines:
        printed = pattern.read(text)
        if printed is not None:
            counter.step(printed)
    return counter.usual_total


def series(
    path: Path,
    pattern: str,
    read_log: ReadLog,
    *,
    longest: bool = False,
    known: bool = False,
    arrivals: Mapping[str, Arrivals] = NO_ARRIVALS,
    earlier: tuple[Path, ...] = (),
) -> StepTable | None:
    """Series from the named groups of `pattern`, searched in each line; `step` is the step, the rest are values.

    None when the log cannot be read. A pattern that never matches is an irregularity, not an error. With `longest` the
    longest of several runs or stages counts, else the last. `known` says that no user wrote the pattern. `arrivals` are
    the stamps of all files, by name. `earlier` are parts of the log before this one, whose lines come first.
    """
    digest, wanted = Digest(), line_pattern(pattern)
    try:
        total = _usual_total(_parts((*earlier, path), Digest(), pattern), wanted)
        rows = PrintedRows(wanted, StepCounter(total), given=not known).read(_parts((*earlier, path), digest, pattern))
    except TooSlow as error:
        read_log.note("no-match", str(error), path)
        return None
    except OSError as error:
        read_log.note("unreadable", f"the log cannot be read: {error.strerror or error}", path)
        return None
    source = read_log.add_source(path, sha256=digest.sha256, size=digest.size)
    _note_odd(rows, path, read_log)
    if not rows.steps and not rows.odd_steps:
        seen = rows.last_other
        last = f"; its last line is {printable(seen, limit=120)!r}" if seen else "; nothing was printed"
        read_log.note(
            "no-match", f"no line of the log matches the pattern {printable(pattern, limit=60)!r}{last}", path
        )
    if len(rows.steps) <= len(rows.odd_steps):
        return StepTable({}, source, 0)
    found, kept = rows.table(
        lambda code, text, line: read_log.note(code, text, path, line),
        longest=longest,
        stamps=arrivals.get(source.path),
    )
    return StepTable(found.columns, source, kept, found.names, rows.places, found.clocks)


def evaluations(path: Path, read_log: ReadLog, *, last: int) -> StepTable | None:
    """The loss of a validation on lines of its own, beside steps up to `last` from elsewhere; None without any.

    Lines that print no step are taken to be evenly apart, the last one behind the last step.
    """
    digest, found = Digest(), Evaluations()
    try:
        for number, text in digested_lines(path, digest):
            one = evaluation_in(text)
            if one is not None and (one.so_far or _COUNTER.search(text) is None):
                stated = _STATED.search(text)
                keep(found, int(stated[1]) if stated else -number, one)
    except OSError:
        return None
    own = [(place, one.loss) for place, one in chosen(found) if place <= last]
    if not own or last < len(own):
        return None
    steps = np.array([place for place, _ in own], dtype=np.int64)
    if (steps < 0).any() or (np.diff(steps) <= 0).any():
        steps = last * np.arange(1, len(own) + 1, dtype=np.int64) // len(own)
    source = read_log.add_source(path, sha256=digest.sha256, size=digest.size)
    return StepTable({"val_loss": (steps, np.array([loss for _, loss in own]))}, source, len(own))


def two_streams(
    paths: tuple[Path, ...], read_log: ReadLog, *, optional: bool, arrivals: Mapping[str, Arrivals] = NO_ARRIVALS
) -> list[StepTable]:
    """Series of the Trainer of Hugging Face: dictionaries and bar, wherever each is printed; empty without any.

    `optional` says that a file holds the same, so that dictionaries without a step are no flaw.
    """
    streams, columns = TwoStreams(), LoggedColumns()
    for path in paths:
        digest = Digest()
        try:
            for number, text in digested_lines(path, digest):
                for row in streams.take(number, text):
                    columns.add(row)
        except OSError as error:
            read_log.note("unreadable", f"the log cannot be read: {error.strerror or error}", path)
            continue
        read_log.add_source(path, sha256=digest.sha256, size=digest.size)
    streams.close()
    if not optional:
        streams.faults.note(read_log, paths[0], FAULTS)
    if "loss" not in columns.columns:
        return []
    known = [arrivals[name] for name in map(read_log.name, paths) if name in arrivals]
    stamps = max(known, key=lambda one: len(one[0]), default=None)
    found = columns.table({}, lambda code, text, line: None, stamps)
    source = read_log.sources[read_log.name(paths[0])]
    return [StepTable(found.columns, source, len(found.columns["loss"][0]), found.names, clocks=found.clocks)]


_POINT = " (print a decimal point)"
_PATTERN = " (let the pattern name what stands beside the number)"


def _note_odd(rows: PrintedRows, path: Path, read_log: ReadLog) -> None:
    """Lines that match, and hold no number where one belongs."""
    doubtful = rows.doubtful if len(rows.doubtful) == rows.losses else []
    for found, code, what, limit, advice in (
        (rows.cut, "garbage-cell", "lines hold a number of which the pattern takes a part alone", 120, _PATTERN),
        (rows.commas, "garbage-cell", "lines hold a number with a decimal comma", 80, _POINT),
        (doubtful, "garbage-cell", "losses, which are all, are thousands or have a decimal comma", 80, _POINT),
        (rows.odd_values, "no-number", "lines match, but hold no number there", 80, ""),
    ):
        if found:
            line, text = found[0]
            read_log.note(code, f"{len(found)} {what}; first: {printable(text, limit=limit)}{advice}", path, line)
    if rows.odd_steps:
        line, text = rows.odd_steps[0]
        message = (
            f"{len(rows.odd_steps)} lines match, but their step is no whole number; first: "
            f"{printable(text, limit=40)!r} "
            "(an epoch is no step: let the trainer print how many optimizer steps it has done)"
        )
        read_log.note("garbage-row", message, path, line)


def last_groups(path: Path, pattern: str, read_log: ReadLog) -> dict[str, ScalarValue]:
    """The last match of each named group over all lines, as `metrics.<group>`; a number where it reads as one."""
    digest, wanted = Digest(), line_pattern(pattern)
    found: dict[str, str] = {}
    numbers: dict[str, float] = {}
    cut: dict[str, str] = {}
    try:
        for _, text in _searched(path, digest, pattern):
            printed = wanted.read(text)
            if printed is None:
                continue
            step = {} if printed.step is None else {"step": printed.step}
            for name, shown in printed.texts.items():
                found[name] = shown
                cut.pop(name, None)
                numbers.pop(name, None)
            numbers |= {**printed.values, **step}
            if printed.odd is not None and printed.odd[1] != printed.texts[printed.odd[0]]:
                cut[printed.odd[0]] = printed.odd[1]
    except TooSlow as error:
        read_log.note("no-match", str(error), path)
        return {}
    except OSError as error:
        read_log.note("unreadable", f"the log cannot be read: {error.strerror or error}", path)
        return {}
    source = read_log.add_source(path, sha256=digest.sha256, size=digest.size)
    if not found:
        read_log.note("no-match", f"no line of the output matches the pattern {printable(pattern, limit=60)!r}", path)
    scalars = {}
    for name in sorted(cut):
        message = f"the pattern takes a part alone of the number that is {name}, {found[name]!r}; write {{{name}}}"
        read_log.note("garbage-cell", message, path)
    for name, text in found.items():
        if name in cut:
            continue
        number = numbers.get(name)
        value: float | str = printable(text) if number is None else number
        scalars[f"metrics.{name}"] = ScalarValue(value=value, source=source.path)
    return scalars

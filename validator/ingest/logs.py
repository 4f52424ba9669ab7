"""What a run printed: where its logs are, the series that a pattern finds in them, and signs of trouble.

Each file is read once, in bounds: trouble is looked for in the head and the tail of a log that is too long.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from validator.documents import parse_json
from validator.files import Tree, is_file, open_file, stat_file
from validator.ingest.clock import NO_ARRIVALS, Arrivals
from validator.ingest.inferred import inferred_pattern
from validator.ingest.printed import Lines, PrintedRows
from validator.ingest.read_log import SMALL_BYTES, Digest, ReadLog, blocks, clean, document_lines, printable
from validator.ingest.readers.hf_trainer import TwoStreams
from validator.ingest.readers.rows import FAULTS, LoggedColumns
from validator.ingest.table import StepTable
from validator.model.budget import TooSlow, searching
from validator.model.columns import without_colors
from validator.model.evaluation_lines import Evaluations, chosen, evaluation_in, keep
from validator.model.pattern import LinePattern, StepCounter, line_pattern, parse_number
from validator.model.print_formats import Recipe
from validator.model.print_tables import with_rows
from validator.model.print_words import MARK
from validator.model.recipes import recognize
from validator.model.result import CollectiveWait, LogHit, RankError, ScalarValue

MAX_LINE = 8192
TAIL_BYTES = 64 * 2**10
MAX_FILES = 256
_LOOKED_AT = 4096
_INFERRED_FROM = 20_000
"""Lines from which a pattern is made: all of a trial, and the head of a long log."""

_STATED = re.compile(r"(?i)(?<![a-z])(?:step|iter(?:ation)?|update)\W{0,4}(\d{1,12})(?![\d.])")
"""The step that a line states."""

_COUNTER = re.compile(r"(?<![\d/])\d+ ?/ ?\d+(?![\d/])")
"""`3/40`, of the batches of an evaluation."""

_COLLECTIVE = re.compile(
    r"\b(?:all_reduce|allreduce|all_gather(?:_into_tensor)?|reduce_scatter(?:_tensor)?|broadcast|barrier|all_to_all|"
    r"_verify_params_across_processes|monitored_barrier)\b"
)


@dataclass(frozen=True)
class LogFiles:
    """Logs of a run. `rank_out` and `rank_err` map ranks to files; `launcher` are the rest, `others` those of the nodes
    beside the one with rank 0. `logged` are the parts of the text file that is read in place of what rank 0 prints."""

    rank_out: Mapping[int, Path]
    rank_err: Mapping[int, Path]
    rank_error: Mapping[int, Path]
    launcher: tuple[Path, ...]
    others: tuple[Path, ...] = ()
    logged: tuple[Path, ...] = ()

    @property
    def main(self) -> Path | None:
        """What rank 0 printed: its own log, else the launcher's."""
        return (
            self.rank_out.get(0)
            or next((p for p in self.launcher if p.name == "stdout.log"), None)
            or (self.launcher[0] if self.launcher else None)
        )

    @property
    def printed(self) -> tuple[Path, ...]:
        """What rank 0 printed, on standard output and, where loggers write, on standard error."""
        beside = self.main.with_name("stderr.log") if self.main is not None and self.main.name == "stdout.log" else None
        return tuple(path for path in (self.main, beside) if path is not None and (path == self.main or is_file(path)))

    @property
    def all(self) -> tuple[Path, ...]:
        """Every log once, rank by rank, then the launcher's and those of other nodes."""
        ranks = sorted({*self.rank_out, *self.rank_err})
        files = [f for r in ranks for f in (self.rank_out.get(r), self.rank_err.get(r)) if f is not None]
        return tuple(dict.fromkeys([*files, *self.launcher, *self.logged, *self.others]))[:MAX_FILES]


def find_logs(out: Path) -> LogFiles:
    """Find logs below an output folder: torchrun's per-rank folders, the supervisor's files, and any other `*.log`.

    torchrun writes `ranks/<job>/attempt_<n>/<rank>/{stdout.log,stderr.log,error.json}`; of several attempts the last
    one counts for each rank. On a cluster the folder of each further node is `nodes/NAME`.
    """
    ranks: dict[str, dict[int, Path]] = {"stdout.log": {}, "stderr.log": {}, "error.json": {}}
    try:
        with Tree(out / "logs" / "ranks") as tree:
            files = (tree.given / one.path for one in tree.walk() if one.kind == "file")
            found = sorted(filter(is_file, files), key=_attempt)
    except OSError:
        found = []
    for path in found[: 64 * MAX_FILES]:
        if path.name in ranks and path.parent.name.isascii() and path.parent.name.isdigit():
            ranks[path.name][int(path.parent.name)] = path
    launcher = [p for p in (out / "logs" / "stdout.log", out / "logs" / "stderr.log") if is_file(p)]
    for folder in (out, out / "logs"):
        try:
            launcher += sorted(p for p in folder.glob("*.log") if is_file(p) and p not in launcher)
        except OSError:
            continue
    others = [path for folder in sorted(out.glob("nodes/*/logs")) for path in find_logs(folder.parent).all]
    return LogFiles(
        ranks["stdout.log"], ranks["stderr.log"], ranks["error.json"], tuple(launcher), tuple(others[:MAX_FILES])
    )


def _attempt(path: Path) -> tuple[tuple[int, ...], str]:
    numbers = tuple(int(m) for m in re.findall(r"attempt_(\d{1,9})", path.as_posix()))
    return numbers, path.as_posix()


def _lines(path: Path, digest: Digest) -> Iterator[tuple[int, str]]:
    """Numbered lines as a terminal shows them: without colors, and a carriage return also ends one, since progress bars
    redraw theirs. Long ones are cut. Of a file that is one JSON document, its records. Zero bytes are left out: they
    stand where a log was cut while its writer continued at the place where it was, and between letters in UTF-16."""
    number = 0
    if path.suffix == ".json" and stat_file(path).st_size <= SMALL_BYTES:
        with open_file(path) as file:
            data = file.read(SMALL_BYTES)
        records = list(document_lines(data.decode("utf-8-sig", "replace")))
        if records:
            digest.update(data)
            yield from records
            return
    for block in blocks(path, digest):
        for raw in block.split(b"\n") if not block.endswith(b"\n") else block[:-1].split(b"\n"):
            number += 1
            for part in raw.split(b"\r") if b"\r" in raw else (raw,):
                part = part.replace(b"\0", b"") if b"\0" in part else part
                yield number, without_colors(part[: 2 * MAX_LINE])[:MAX_LINE].decode("utf-8", "replace")


def log_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a log, numbered, as patterns see them.

    Raises:
        OSError: when it cannot be read.
    """
    return _lines(path, Digest())


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
            known = None if _is_binary(path) else recognize(with_rows(_lines(path, Digest())), in_words=in_words)
        except OSError:
            continue
        if known is not None and (best is None or known[1] > best[0]):
            best = known[1], path, known[0]
    return None if best is None else best[1:]


def inferred(path: Path) -> str | None:
    """A pattern made from the numbers of a log in no known format; None where they show no step and no loss."""
    try:
        lines = () if _is_binary(path) else (text for _, text in islice(_lines(path, Digest()), _INFERRED_FROM))
        return inferred_pattern(lines)
    except OSError:
        return None


_OF_TEXT = bytes({0, *b"\t\n\f\r\x08\x1b", *range(0x20, 0x7F), *range(0x80, 0x100)})
_FEW_OTHERS = 0.01
"""Bytes of text in ASCII, UTF-8 or UTF-16, with zeros, and the share of others that a text may hold."""


def _is_binary(path: Path) -> bool:
    """Whether a file holds zero bytes near its start and other bytes beside them that no text has; to search its long
    lines would take hours."""
    with open_file(path) as file:
        start = file.read(_LOOKED_AT)
        while start and not start.strip(b"\0"):
            start = file.read(_LOOKED_AT)
    others = start.translate(None, _OF_TEXT)
    return b"\0" in start and len(others) > _FEW_OTHERS * len(start)


def texts_of(folder: Path, found: LogFiles) -> tuple[Path, ...]:
    """Every file of a folder that may hold what rank 0 printed, the likely ones first."""
    suffixes = (".txt", ".out", ".jsonl", ".json")
    try:
        others = sorted(p for p in folder.iterdir() if p.suffix in suffixes and is_file(p))
    except OSError:
        others = []
    return tuple(dict.fromkeys((*found.printed, *found.all, *others)))[:MAX_FILES]


def _matches(path: Path, pattern: str) -> bool:
    wanted = line_pattern(pattern)
    try:
        return any(wanted.read(text) is not None for _, text in _searched(path, Digest(), pattern))
    except (OSError, TooSlow):
        return False


def _searched(path: Path, digest: Digest, pattern: str) -> Iterator[tuple[int, str]]:
    """`_lines`, under the limit on the time that searching them for a pattern may take; raises TooSlow beyond it."""
    lines = _lines(path, digest)
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
        for number, text in _lines(path, digest):
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
            for number, text in _lines(path, digest):
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


def find_texts(files: tuple[Path, ...], texts: tuple[str, ...], read_log: ReadLog) -> dict[str, LogHit | None]:
    """Where each wanted text first appears."""
    found: dict[str, LogHit | None] = dict.fromkeys(texts)
    for path in files:
        missing = [text for text in texts if found[text] is None]
        if not missing:
            break
        try:
            for number, line in _lines(path, Digest()):
                for text in missing:
                    if found[text] is None and text in line:
                        found[text] = LogHit(read_log.name(path), number, text)
        except OSError:
            continue
    return found


def waiting_in(out: Path, read_log: ReadLog) -> list[CollectiveWait]:
    """Collectives that stack dumps show, one for each dump.

    Stacks are the trainer's own (`stackdump_*`) and those that were saved when the run was stopped (`dump/`).
    """
    found = []
    places = [out, *sorted(out.glob("nodes/*"))]
    wanted = ("stackdump_*", "dump/*.txt", "dump/*stack*")
    dumps = list(dict.fromkeys(path for place in places for name in wanted for path in sorted(place.glob(name))))
    for path in filter(is_file, dumps[:MAX_FILES]):
        try:
            if stat_file(path).st_size > SMALL_BYTES:
                continue
            for number, line in _lines(path, Digest()):
                match = _COLLECTIVE.search(line)
                if match is not None:
                    collective = match[0].rstrip("(").strip()
                    found.append(CollectiveWait(read_log.name(path), number, printable(line), collective))
                    break
        except OSError:
            continue
    return list({hit.path: hit for hit in found}.values())


def tail(path: Path, *, lines: int = 40) -> tuple[str, ...]:
    """The last lines of a log, fit to be shown; empty when it cannot be read."""
    try:
        with open_file(path) as handle:
            size = handle.seek(0, 2)
            handle.seek(max(0, size - TAIL_BYTES))
            data = handle.read(TAIL_BYTES)
    except OSError:
        return ()
    if size > TAIL_BYTES:
        data = data[data.find(b"\n") + 1 :]
    shown = [printable(line, limit=500) for line in data.decode("utf-8", "replace").replace("\r", "\n").split("\n")]
    return tuple(line for line in shown if line)[-lines:]


def read_errors(logs: LogFiles, read_log: ReadLog) -> list[RankError]:
    """What ranks raised, from torchrun's `error.json`, the first in time first."""
    errors = []
    for rank, path in sorted(logs.rank_error.items()):
        try:
            with open_file(path) as file:
                content = parse_json(file.read(TAIL_BYTES))
        except (OSError, ValueError):
            continue
        message = content.get("message") if isinstance(content, dict) else None
        info = message.get("extraInfo") if isinstance(message, dict) else None
        text = message.get("message") if isinstance(message, dict) else message
        stamp = parse_number(str(info.get("timestamp"))) if isinstance(info, dict) else None
        errors.append(RankError(rank, read_log.name(path), printable(str(clean(text)), limit=500), stamp))
    return sorted(errors, key=lambda one: float("inf") if one.time_s is None else one.time_s)

"""`training.csv` and its like: numbers by step, with or without a header, whole or damaged.

Blocks without a flaw are read by numpy at once; only a block with a flaw is read cell by cell.
"""

from __future__ import annotations

import csv
import io
import re
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from validator.collect.header import odd_names
from validator.collect.intake import Digest, Intake, blocks, printable
from validator.collect.order import rising
from validator.collect.together import together
from validator.files import open_file
from validator.model.catalogue import METRICS
from validator.model.columns import HEADERLESS, contract_names
from validator.model.measure import SourceFile

__all__ = ["Places", "Table", "has_steps", "read_table"]

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

MAX_COLUMNS = 512
MAX_STEP = float(2**53)
_RIVALS, _RIVAL_SHARE = 3, 0.1
"""Rows that repeat a step with other values, at least, and their share of all, from which they are no accident."""

_GOES_ON = re.compile(r"time|stamp|clock|wall|elapsed|epoch|mem|tokens", re.I)
_OF_A_STEP = ("step_time_s", "compute_time_s")
"""Columns of the moment of writing: two rows of one step, of training and of validation, differ in them by rights."""

_EMPTY = -1.2345678901234567e308
"""Stands for an empty cell while numpy reads a block; no trainer measures this."""


@dataclass(frozen=True)
class Table:
    """Columns by name, each `(steps [n], values [n])`, steps rising. Cells that are empty or unreadable are absent.

    `derived` are columns that the trainer did not write, but that follow from those it wrote. `places` say where the
    rows of a log stand in it.
    """

    columns: Mapping[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]]
    source: SourceFile
    rows: int
    derived: tuple[str, ...] = ()
    places: Places | None = None


@dataclass(frozen=True)
class Places:
    """Steps and line numbers of the rows of a log, both `[n]`, and the steps of rows beside a line about a pause.

    `pauses` are steps before and after which the log names a validation, a checkpoint or the end of an epoch.
    """

    steps: npt.NDArray[np.int64]
    lines: npt.NDArray[np.int64]
    pauses: npt.NDArray[np.int64]


@dataclass
class _Parts:
    """Rows gathered so far, column by column; NaN in `data` with True in `absent` is a cell that was not there."""

    names: tuple[str, ...] = ()
    header: str | None = None
    data: list[array[float]] = field(default_factory=list)
    absent: list[tuple[int, npt.NDArray[np.bool_] | None]] = field(default_factory=list)
    lines: array[int] = field(default_factory=lambda: array("q"))
    restarts: list[int] = field(default_factory=list)
    rows: int = 0
    faults: dict[str, tuple[int, int, str]] = field(default_factory=dict)
    texts: dict[int, tuple[int, int, str]] = field(default_factory=dict)
    ended: bool = False

    def fault(self, code: str, line: int, sample: str, *, times: int = 1) -> None:
        """Count a flaw; the first of its kind is kept as a sample."""
        count, first, text = self.faults.get(code, (0, line, sample))
        self.faults[code] = (count + times, first, text)

    def text(self, column: int, line: int, sample: str) -> None:
        """Count a cell that holds no number."""
        count, first, text = self.texts.get(column, (0, line, sample))
        self.texts[column] = (count + 1, first, text)

    def judge_texts(self) -> None:
        """Cells without a number are a flaw, but for a column of the trainer's own that holds words by design."""
        for column, (count, line, sample) in sorted(self.texts.items()):
            known = self.names[column] in _KNOWN
            numbers = sum(rows if absent is None else int((~absent[:, column]).sum()) for rows, absent in self.absent)
            if known or count < _TEXT_SHARE * (count + numbers):
                self.fault("garbage-cell", line, f"{self.names[column]}={sample}", times=count)

    def add(
        self,
        data: npt.NDArray[np.float64],
        absent: npt.NDArray[np.bool_] | None,
        lines: npt.NDArray[np.int64],
    ) -> None:
        """Append rows."""
        if not len(data):
            return
        if not self.data:
            self.data = [array("d") for _ in self.names]
        for index, column in enumerate(self.data):
            column.frombytes(np.ascontiguousarray(data[:, index]).data.cast("B"))
        self.absent.append((len(data), absent))
        self.lines.frombytes(lines.data.cast("B"))
        self.rows += len(data)


_FAULTS = {
    "garbage-header": "flaws in the header",
    "garbage-row": "rows without a step number were left out",
    "garbage-cell": "cells hold no number and were left out",
    "short-row": "rows have fewer cells than there are columns",
    "long-row": "rows have more cells than there are columns; the surplus was left out",
    "nul-bytes": "lines hold NUL bytes, as a file does after a power cut",
    "truncated-line": "line at the end was cut short; what may be incomplete in it was left out",
}


_KNOWN = frozenset({*HEADERLESS, *METRICS})
_TEXT_SHARE = 0.5
"""Share of a column's cells that hold words from which these are what the column is for."""


def read_table(path: Path, intake: Intake, *, ended: bool = False) -> Table | None:
    """Read a CSV of numbers by step. `ended` says that its writer came to its end, so that its last line is whole.

    Returns None when the file cannot be opened; an empty file gives a table without columns. Never raises on content.
    """
    digest, parts, line = Digest(), _Parts(ended=ended), 1
    try:
        for block in blocks(path, digest):
            line += _take_block(block, line, parts)
    except OSError as error:
        intake.note("unreadable", f"the table cannot be read: {error.strerror or error}", path)
        return None
    source = intake.add_source(path, sha256=digest.sha256, size=digest.size)
    parts.judge_texts()
    for code, (count, first, sample) in parts.faults.items():
        intake.note(code, f"{count} {_FAULTS[code]}; first: {sample!r}", path, first)
    if parts.names and "step" not in parts.names:
        intake.note("no-step-column", f"no column is named step; columns: {', '.join(parts.names)}", path, 1)
        return Table({}, source, 0)
    if not parts.rows:
        intake.note("empty", "the table holds no rows", path)
        return Table({}, source, 0)
    return _finish(parts, source, path, intake)


def has_steps(path: Path) -> bool:
    """Whether a file begins with a header that names a column of steps."""
    try:
        with open_file(path) as file:
            head = file.readline(64 * MAX_COLUMNS).removeprefix(b"\xef\xbb\xbf")
    except OSError:
        return False
    return "step" in contract_names(
        [_unquoted(cell.strip(" \r\n")) for cell in head.decode("utf-8", "replace").split(",")]
    )


def _take_block(block: bytes, first_line: int, parts: _Parts) -> int:
    """Read one block into `parts`; the number of line ends in it."""
    count = block.count(b"\n")
    start = 0
    while not parts.names and start < len(block):  # the first line with anything on it names the columns
        end = block.find(b"\n", start)
        end = len(block) if end < 0 else end
        head = block[start:end]
        if head.strip(b"\0 \r\t"):
            if not _name_columns(head, first_line, parts):
                break
            start = end + 1
            first_line += 1
            break
        start = end + 1
        first_line += 1
    body = block[start:]
    if body and not _fast(body, first_line, parts):
        _careful(body, first_line, parts)
    return count


def _name_columns(head: bytes, line: int, parts: _Parts) -> bool:
    """Set the columns' names from the first line; whether that line was a header."""
    text = head.decode("utf-8", "replace")
    cells = [_unquoted(cell.strip(" \r")) for cell in _split(text.rstrip("\r\n"))][:MAX_COLUMNS]
    if _number(cells[0].strip("\0")) is not None:
        parts.names = HEADERLESS[: len(cells)] + tuple(f"column_{i + 1}" for i in range(4, len(cells)))
        if len(cells) > len(HEADERLESS):
            parts.fault("garbage-header", line, f"{len(cells)} columns, and no header to name them")
        return False
    other = _other_separator(text) if len(cells) == 1 else None
    if other is not None:
        parts.fault("garbage-header", line, f"its cells are separated by {other}; write commas, and decimal points")
    for wrong in odd_names(cells, contract_names(cells)) if other is None else ():
        parts.fault("garbage-header", line, wrong)
    text = text.replace("\0", "")
    parts.header = text.strip()
    cells = [cell.replace("\0", "").strip() for cell in cells]
    parts.names = _distinct(contract_names(cells))
    return True


def _split(text: str) -> list[str]:
    """The cells of a line; a comma between double quotes separates none."""
    if text.count('"') < 2:
        return text.split(",")
    try:
        return next(csv.reader([text], skipinitialspace=True), [])
    except csv.Error:  # a cell of more than 128 KiB: no quotes of a table's
        return text.split(",")


def _other_separator(text: str) -> str | None:
    """What stands between the names of a header in place of commas, if that is it."""
    marks = {"semicolons": ";", "tabs": "\t"}
    return next((name for name, mark in marks.items() if "step" in contract_names(text.strip().split(mark))), None)


def _unquoted(cell: str) -> str:
    """A name without the pair of quotes around it; a lone quote is no part of any format, and stays."""
    return cell[1:-1] if len(cell) > 1 and cell[0] == cell[-1] and cell[0] in "\"'" else cell


def _distinct(names: list[str]) -> tuple[str, ...]:
    seen: dict[str, int] = {}
    result = []
    for index, raw in enumerate(names):
        name = printable(raw, limit=100) or f"column_{index + 1}"
        seen[name] = seen.get(name, 0) + 1
        result.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return tuple(result)


def _fast(body: bytes, first_line: int, parts: _Parts) -> bool:
    """Read a flawless block of rows by numpy; False when anything about it is odd."""
    rows = body.count(b"\n")
    if not body.endswith(b"\n") or b"\0" in body or not body.strip():
        return False
    body = body.replace(b"\r\n", b"\n")
    gaps = b",," in body or b",\n" in body
    if gaps:
        empty = repr(_EMPTY).encode()
        body = body.replace(b",,", b"," + empty + b",").replace(b",,", b"," + empty + b",")
        body = body.replace(b",\n", b"," + empty + b"\n")
    data = _as_json(body, rows, len(parts.names))
    if data is None:
        data = _as_table(body)
    if data is None or data.shape != (rows, len(parts.names)):
        return False
    step = data[:, parts.names.index("step")] if "step" in parts.names else data[:, 0]
    if not (np.isfinite(step).all() and (step == np.floor(step)).all() and (np.abs(step) < MAX_STEP).all()):
        return False
    absent = data == _EMPTY if gaps else None
    parts.add(data, absent, np.arange(first_line, first_line + rows, dtype=np.int64))
    return True


def _as_json(body: bytes, rows: int, width: int) -> Floats | None:
    """Cells of a block as numbers `[rows, width]`; None where one is no number by JSON's rules (NaN is none).

    Several times as fast as numpy's reader. None also where `msgspec` is not installed.
    """
    decoder = _decoder()
    text = np.frombuffer(body, dtype=np.uint8)
    ends = np.flatnonzero((text == ord(",")) | (text == ord("\n")))
    if decoder is None or ends.size != rows * width or not (text[ends[width - 1 :: width]] == ord("\n")).all():
        return None
    try:
        cells = decoder(b"[" + body[:-1].replace(b"\n", b",") + b"]")
    except ValueError:
        return None
    return np.array(cells, dtype=np.float64).reshape(rows, width)


def _as_table(body: bytes) -> Floats | None:
    """Cells of a block by numpy's own reader, which knows more ways to write a number; None when one is none."""
    try:
        return np.loadtxt(io.BytesIO(body), delimiter=",", dtype=np.float64, ndmin=2, comments=None, encoding="ascii")
    except (ValueError, OverflowError, UnicodeError):
        return None


@cache
def _decoder() -> Callable[[bytes], list[float]] | None:
    try:
        from msgspec.json import Decoder
    except ImportError:
        return None
    return Decoder(list[float]).decode


def _number(cell: str) -> float | None:
    if "_" in cell:
        return None  # Python reads 1_0 as ten; nothing that writes a table means that
    try:
        return float(cell)
    except ValueError:
        return None


def _careful(body: bytes, first_line: int, parts: _Parts) -> None:
    """Read a block line by line, noting every flaw."""
    width = len(parts.names)
    at = parts.names.index("step") if "step" in parts.names else 0
    rows: list[list[float]] = []
    absent: list[list[bool]] = []
    lines: list[int] = []
    raw_lines = body.split(b"\n")
    for offset, raw in enumerate(raw_lines):
        line, cut = first_line + offset, offset == len(raw_lines) - 1
        if not raw.strip(b" \r\t\0"):
            if b"\0" in raw:
                parts.fault("nul-bytes", line, f"{len(raw)} bytes")
            continue
        text = raw.decode("utf-8", "replace")
        if "\0" in text:
            parts.fault("nul-bytes", line, printable(text.replace("\0", "␀"), limit=60))
            text = text.replace("\0", "")
        cells = [cell.strip().strip("\"'") for cell in _split(text.strip("\r"))]
        cut = cut and not (parts.ended and len(cells) == width)
        if cut:
            parts.fault("truncated-line", line, printable(text, limit=60))
            cells = cells[:-1]  # its last cell may lack digits
        if parts.header is not None and text.strip() == parts.header:
            parts.restarts.append(parts.rows + len(rows))
            continue
        step = _number(cells[at]) if at < len(cells) else None
        if step is None or not abs(step) < MAX_STEP or step != int(step):
            if not cut:
                parts.fault("garbage-row", line, printable(text, limit=60))
            continue
        if len(cells) != width and not cut:
            parts.fault("short-row" if len(cells) < width else "long-row", line, printable(text, limit=60))
        values, missing = _row(cells, width, line, parts)
        rows.append(values)
        absent.append(missing)
        lines.append(line)
    if rows:
        parts.add(np.array(rows, dtype=np.float64), np.array(absent), np.array(lines, dtype=np.int64))


def _row(cells: list[str], width: int, line: int, parts: _Parts) -> tuple[list[float], list[bool]]:
    values, missing = [], []
    for index in range(width):
        cell = cells[index] if index < len(cells) else ""
        number = _number(cell) if cell else None
        if number is None and cell:
            parts.text(index, line, printable(cell, limit=40))
        values.append(float("nan") if number is None else number)
        missing.append(number is None)
    return values, missing


def _note_rivals(parts: _Parts, steps: Rows, lines: Rows, path: Path, intake: Intake) -> None:
    """Many steps that are told twice, and otherwise: which of the two is the run's, nobody knows."""
    again = np.flatnonzero(np.diff(steps) == 0) + 1
    if again.size < _RIVALS or again.size < _RIVAL_SHARE * len(steps):
        return
    other = np.zeros(again.size, dtype=np.bool_)
    for name, column in zip(parts.names, parts.data, strict=True):
        if name != "step" and not _differs_by_rights(name):
            values = np.frombuffer(column, dtype=np.float64)
            before, after = values[again - 1], values[again]  # an empty cell is NaN or the mark of one; it says nothing
            told = ~(np.isnan(before) | np.isnan(after) | (before == _EMPTY) | (after == _EMPTY))
            other |= told & (before != after)
    if other.sum() >= max(_RIVALS, _RIVAL_SHARE * len(steps)):
        first = again[other][0]
        text = (
            f"{other.sum()} steps are written again with other values, first step {steps[first]}: two processes wrote "
            "this file, or a row is no optimizer step"
        )
        intake.note("mixed-runs", text, path, int(lines[first]))


def _join(parts: _Parts, steps: Rows) -> bool:
    """Make one row of those that tell of one step together; whether there were any."""
    columns = [np.array(column, dtype=np.float64) for column in parts.data]
    width = len(parts.names)
    absent = np.concatenate([np.zeros((n, width), bool) if mask is None else mask for n, mask in parts.absent])
    kept = together(steps, parts.names, columns, absent, goes_on=_differs_by_rights)
    if kept is None:
        return False
    parts.data = [array("d", column[kept].tobytes()) for column in columns]
    parts.absent = [(len(kept), absent[kept])]
    parts.lines = array("q", np.frombuffer(parts.lines, dtype=np.int64)[kept].tobytes())
    parts.restarts = [int(np.searchsorted(kept, row)) for row in parts.restarts]
    parts.rows = len(kept)
    return True


def _differs_by_rights(name: str) -> bool:
    """Whether a column is of the moment of writing, in which two rows of one step differ."""
    return name not in _OF_A_STEP and _GOES_ON.search(name) is not None


def _finish(parts: _Parts, source: SourceFile, path: Path, intake: Intake) -> Table:
    """Put the blocks together column by column, and keep the rows of one run."""
    at, flawed = parts.names.index("step"), any(mask is not None for _, mask in parts.absent)
    lines = np.frombuffer(parts.lines, dtype=np.int64)
    steps = np.frombuffer(parts.data[at], dtype=np.float64).astype(np.int64)
    if flawed and (np.diff(steps) == 0).any() and _join(parts, steps):
        return _finish(parts, source, path, intake)
    _note_rivals(parts, steps, lines, path, intake)
    kept = rising(steps, lines, tuple(parts.restarts), lambda code, text, line: intake.note(code, text, path, line))
    whole = len(kept) == len(steps)
    columns = {}
    for index, name in enumerate(parts.names):
        if name == "step":
            continue
        rows, values = kept, np.frombuffer(parts.data[index], dtype=np.float64)
        if flawed:
            masks = [np.zeros(n, bool) if mask is None else mask[:, index] for n, mask in parts.absent]
            rows = kept[~np.concatenate(masks)[kept]]
        if rows.size:
            everything = whole and rows.size == len(steps)
            columns[name] = (steps, values) if everything else (steps[rows], values[rows])
    return Table(columns, source, len(kept))

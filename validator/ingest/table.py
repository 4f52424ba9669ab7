"""`training.csv` and its like: numbers by step, with or without a header, whole or damaged.

Blocks without a flaw are read by numpy at once; only a block with a flaw is read cell by cell.
"""

from __future__ import annotations

import csv
import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from validator.files import open_file
from validator.ingest.derived import clocks, of_parts, with_derived
from validator.ingest.read_log import FaultLog, ReadLog, decode_numbers, load_numbers, printable, read_blocks
from validator.ingest.rows import Column, merge_rows_per_step, odd_names, rising
from validator.model.catalogue import METRICS
from validator.model.columns import HEADERLESS, contract_names, renamed, rows_count, separator, with_commas
from validator.model.logged_names import COUNTS_BY_ONE, plain_key, table_names
from validator.model.result import CoarseClock, Floats, PrintedPlaces, SourceFile, Steps

MAX_COLUMNS = 512
MAX_STEP = float(2**53)
_RIVALS, _RIVAL_SHARE = 3, 0.1
"""Rows that repeat a step with other values, at least, and their share of all, from which they are no accident."""

_OF_THE_MOMENT = re.compile(r"time|stamp|clock|wall|elapsed|epoch|mem|tokens", re.I)
_OF_A_STEP = ("step_time_s", "compute_time_s")
"""Columns of the moment of writing: rows of one step, of training and of validation, may differ in them."""

_FIRST_ROWS = 20
"""Lines that show whether epochs count on by one."""

_EMPTY = -1.2345678901234567e308
"""Marks an empty cell while numpy reads a block; no trainer measures this."""


_PACES = ("step_time_s", "toks_per_s", "samples_per_s")


@dataclass(frozen=True)
class StepTable:
    """Columns by name, each `(steps [n], values [n])`, steps rising. Cells that are empty or unreadable are absent.

    `derived` are columns that the trainer did not write, but that follow from those it wrote. `places` say where the
    rows of a log are in it, and `clocks` which of the derived columns follow from a coarse clock.
    """

    columns: Mapping[str, tuple[Steps, Floats]]
    source: SourceFile
    rows: int
    derived: tuple[str, ...] = ()
    places: PrintedPlaces | None = None
    clocks: Mapping[str, CoarseClock] = field(default_factory=dict)


@dataclass
class _Parts:
    """Rows gathered so far, column by column; NaN in `data` with True in `absent` is a cell that was not there.

    `texts` are the cells that hold no number, by the name of their column.
    """

    names: tuple[str, ...] = ()
    header: str | None = None
    data: list[array[float]] = field(default_factory=list)
    absent: list[tuple[int, npt.NDArray[np.bool_] | None]] = field(default_factory=list)
    lines: array[int] = field(default_factory=lambda: array("q"))
    restarts: list[int] = field(default_factory=list)
    rows: int = 0
    faults: FaultLog = field(default_factory=FaultLog)
    texts: FaultLog = field(default_factory=FaultLog)
    ended: bool = False
    series: Mapping[str, str] = field(default_factory=dict)
    mark: str = ","
    counted: bool = False
    """Whether the header names no step, and rows are counted."""
    numbered: int = 0

    def judge_texts(self) -> None:
        """Cells without a number are a flaw, but for a column of the trainer's own that holds words by design."""
        for column, name in enumerate(self.names):
            if name not in self.texts.seen:
                continue
            count, line, sample = self.texts.seen[name]
            numbers = sum(rows if absent is None else int((~absent[:, column]).sum()) for rows, absent in self.absent)
            if name in _KNOWN or count < _TEXT_SHARE * (count + numbers):
                self.faults.add("garbage-cell", line, f"{name}={sample}", times=count)

    def add(self, data: Floats, absent: npt.NDArray[np.bool_] | None, lines: Steps) -> None:
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
    "truncated-line": "line at the end is incomplete; what may be missing in it was left out",
}


_KNOWN = frozenset({*HEADERLESS, *METRICS})
_TEXT_SHARE = 0.5
"""Share of a column's cells that hold words from which these are what the column is for."""


def read_table(
    path: Path, read_log: ReadLog, *, ended: bool = False, series: Mapping[str, str] | None = None
) -> StepTable | None:
    """Read a CSV of numbers by step.

    Args:
        ended: whether its writer has finished, so that its last line is complete.
        series: what columns hold that have another name, by that name.

    Returns None when the file cannot be opened; an empty file gives a table without columns. Never raises on content.
    """
    parts = _Parts(ended=ended, series=series or {})
    source = read_blocks(path, read_log, lambda block, line: _take_block(block, line, parts), what="the table")
    if source is None:
        return None
    if parts.names and "step" not in parts.names:
        advice = "metrics.names says which it is: {step: COLUMN}"
        message = f"no column is named step; columns: {', '.join(parts.names)}; {advice}"
        parts.faults.seen.pop("garbage-row", None)  # no row can have one
        parts.faults.note(read_log, path, _FAULTS)
        read_log.note("no-step-column", message, path, 1)
        return StepTable({}, source, 0)
    parts.judge_texts()
    parts.faults.note(read_log, path, _FAULTS)
    if not parts.rows:
        read_log.note("empty", "the table holds no rows", path)
        return StepTable({}, source, 0)
    return _finish(parts, source, path, read_log)


def names_in(path: Path) -> dict[str, str] | None:
    """What columns of a table of steps hold under other names than the contract's, by the series; None where it has
    neither steps nor epochs that count on by one."""
    try:
        with open_file(path) as file:
            lines = [file.readline(64 * MAX_COLUMNS) for _ in range(_FIRST_ROWS)]
    except OSError:
        return None
    lines = [line for line in lines if line.strip() and not _is_comment(line, {})]
    mark = separator(lines[0].decode("utf-8-sig", "replace")) if lines else ","
    head, *rows = (*(with_commas(line, mark).decode("utf-8-sig", "replace") for line in lines), "")
    cells = [_unquoted(cell.strip(" \r\n")) for cell in head.lstrip("# ").split(",")]
    known = contract_names(cells)
    named = table_names(cells, known)
    if "step" in known or rows_count(contract_names(renamed(cells, {cell: name for name, cell in named.items()}))):
        return named
    at = cells.index(named["step"]) if "step" in named else len(cells)
    counts = [_cell_number(row.split(",")[at]) for row in rows if row.strip() and row.count(",") >= at]
    follow = all(b is not None and a is not None and b - a == 1 for a, b in pairwise(counts))
    return named if "step" in named and (plain_key(cells[at]) not in COUNTS_BY_ONE or follow) else None


def _take_block(block: bytes, first_line: int, parts: _Parts) -> int:
    """Read one block into `parts`; the number of line ends in it."""
    count = block.count(b"\n")
    start = 0
    while not parts.names and start < len(block):  # the first line with anything on it names the columns
        end = block.find(b"\n", start)
        end = len(block) if end < 0 else end
        head = block[start:end]
        if head.strip(b"\0 \r\t") and not _is_comment(head, parts.series):
            parts.mark = separator(head.decode("utf-8-sig", "replace"))
            if not _name_columns(with_commas(head, parts.mark), first_line, parts):
                break
        start = end + 1
        first_line += 1
    body = with_commas(block[start:], parts.mark)
    body = _with_counts(body, parts) if parts.counted else body
    if body and not _fast(body, first_line, parts):
        _careful(body, first_line, parts)
    return count


def _is_comment(line: bytes, series: Mapping[str, str]) -> bool:
    """Whether a line begins with `#` and does not name a step behind it, as numpy writes a header."""
    if not line.lstrip().startswith(b"#"):
        return False
    text = line.decode("utf-8", "replace").lstrip("# ").rstrip("\r")
    cells = [cell.strip() for cell in text.split(separator(text).strip() or None)]
    return "step" not in contract_names(renamed(cells, series))


def _name_columns(head: bytes, line: int, parts: _Parts) -> bool:
    """Set the columns' names from the first line; whether that line was a header."""
    text = head.decode("utf-8", "replace").lstrip("# ")
    cells = [_unquoted(cell.strip(" \r")) for cell in _split_cells(text.rstrip("\r\n"))][:MAX_COLUMNS]
    cells = renamed(cells, parts.series)
    if _cell_number(cells[0].strip("\0")) is not None:
        parts.names = HEADERLESS[: len(cells)] + tuple(f"column_{i + 1}" for i in range(4, len(cells)))
        if len(cells) > len(HEADERLESS):
            parts.faults.add("garbage-header", line, f"{len(cells)} columns, and no header to name them")
        return False
    for wrong in odd_names(cells, contract_names(cells)):
        parts.faults.add("garbage-header", line, wrong)
    text = text.replace("\0", "")
    parts.header = text.strip()
    cells = [cell.replace("\0", "").strip() for cell in cells]
    parts.names = _distinct(contract_names(cells))
    parts.counted = rows_count(parts.names)
    parts.names = ("step", *parts.names) if parts.counted else parts.names
    return True


def _with_counts(body: bytes, parts: _Parts) -> bytes:
    """The same rows, each behind its number."""
    numbered = []
    for line in body.split(b"\n"):
        whole = bool(line.strip(b" \r\t\0"))
        parts.numbered += whole
        numbered.append(b"%d,%s" % (parts.numbered, line) if whole else line)
    return b"\n".join(numbered)


def _split_cells(text: str) -> list[str]:
    """The cells of a line; a comma between double quotes separates none."""
    if text.count('"') < 2:
        return text.split(",")
    try:
        return next(csv.reader([text], skipinitialspace=True), [])
    except csv.Error:  # a cell of more than 128 KiB: no quotes of a table's
        return text.split(",")


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
    data = decode_numbers(body, rows, len(parts.names))
    if data is None:
        data = load_numbers(body)
    if data is None or data.shape != (rows, len(parts.names)):
        return False
    step = data[:, parts.names.index("step")] if "step" in parts.names else data[:, 0]
    if not (np.isfinite(step).all() and (step == np.floor(step)).all() and (np.abs(step) < MAX_STEP).all()):
        return False
    absent = data == _EMPTY if gaps else None
    parts.add(data, absent, np.arange(first_line, first_line + rows, dtype=np.int64))
    return True


def _cell_number(cell: str) -> float | None:
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
                parts.faults.add("nul-bytes", line, f"{len(raw)} bytes")
            continue
        text = raw.decode("utf-8", "replace")
        if "\0" in text:
            parts.faults.add("nul-bytes", line, printable(text.replace("\0", "␀"), limit=60))
            text = text.replace("\0", "")
        cells = [cell.strip().strip("\"'") for cell in _split_cells(text.strip("\r"))]
        cut = cut and not (parts.ended and len(cells) == width)
        if cut:
            parts.faults.add("truncated-line", line, printable(text, limit=60))
            cells = cells[:-1]  # its last cell may lack digits
        if parts.header is not None and text.strip() == parts.header:
            parts.restarts.append(parts.rows + len(rows))
            continue
        step = _cell_number(cells[at]) if at < len(cells) else None
        if step is None or not abs(step) < MAX_STEP or step != int(step):
            if not cut:
                parts.faults.add("garbage-row", line, printable(text, limit=60))
            continue
        if len(cells) != width and not cut:
            parts.faults.add("short-row" if len(cells) < width else "long-row", line, printable(text, limit=60))
        values, missing = _cell_values(cells, width, line, parts)
        rows.append(values)
        absent.append(missing)
        lines.append(line)
    if rows:
        parts.add(np.array(rows, dtype=np.float64), np.array(absent), np.array(lines, dtype=np.int64))


def _cell_values(cells: list[str], width: int, line: int, parts: _Parts) -> tuple[list[float], list[bool]]:
    values, missing = [], []
    for index in range(width):
        cell = cells[index] if index < len(cells) else ""
        number = _cell_number(cell) if cell else None
        if number is None and cell:
            parts.texts.add(parts.names[index], line, printable(cell, limit=40))
        values.append(float("nan") if number is None else number)
        missing.append(number is None)
    return values, missing


def _note_rivals(parts: _Parts, steps: Steps, lines: Steps, path: Path, read_log: ReadLog) -> None:
    """Many steps that are written twice with different values: which of the two is the run's is unknown."""
    again = np.flatnonzero(np.diff(steps) == 0) + 1
    if again.size < _RIVALS or again.size < _RIVAL_SHARE * len(steps):
        return
    other = np.zeros(again.size, dtype=np.bool_)
    for name, column in zip(parts.names, parts.data, strict=True):
        if name != "step" and not _may_differ(name):
            values = np.frombuffer(column, dtype=np.float64)
            before, after = values[again - 1], values[again]  # an empty cell is NaN or the mark of one; it says nothing
            present = ~(np.isnan(before) | np.isnan(after) | (before == _EMPTY) | (after == _EMPTY))
            other |= present & (before != after)
    if other.sum() >= max(_RIVALS, _RIVAL_SHARE * len(steps)):
        first = again[other][0]
        text = (
            f"{other.sum()} steps are written again with other values, first step {steps[first]}: two processes wrote "
            "this file, or a row is no optimizer step"
        )
        read_log.note("mixed-runs", text, path, int(lines[first]))


def _join(parts: _Parts, steps: Steps) -> bool:
    """Make one row of the several of one step; whether there were any."""
    columns = [np.array(column, dtype=np.float64) for column in parts.data]
    width = len(parts.names)
    absent = np.concatenate([np.zeros((n, width), bool) if mask is None else mask for n, mask in parts.absent])
    kept = merge_rows_per_step(steps, parts.names, columns, absent, may_differ=_may_differ)
    if kept is None:
        return False
    parts.data = [array("d", column[kept].tobytes()) for column in columns]
    parts.absent = [(len(kept), absent[kept])]
    parts.lines = array("q", np.frombuffer(parts.lines, dtype=np.int64)[kept].tobytes())
    parts.restarts = [int(np.searchsorted(kept, row)) for row in parts.restarts]
    parts.rows = len(kept)
    return True


def _may_differ(name: str) -> bool:
    """Whether a column is of the moment of writing, in which two rows of one step differ."""
    return name not in _OF_A_STEP and _OF_THE_MOMENT.search(name) is not None


def _finish(parts: _Parts, source: SourceFile, path: Path, read_log: ReadLog) -> StepTable:
    """Put the blocks together column by column, and keep the rows of one run."""
    at, flawed = parts.names.index("step"), any(mask is not None for _, mask in parts.absent)
    lines = np.frombuffer(parts.lines, dtype=np.int64)
    steps = np.frombuffer(parts.data[at], dtype=np.float64).astype(np.int64)
    if flawed and (np.diff(steps) == 0).any() and _join(parts, steps):
        return _finish(parts, source, path, read_log)
    _note_rivals(parts, steps, lines, path, read_log)
    kept = rising(steps, lines, tuple(parts.restarts), lambda code, text, line: read_log.note(code, text, path, line))
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
    derived = _derived(columns)
    return StepTable({**derived, **columns}, source, len(kept), tuple(derived))


def _derived(columns: Mapping[str, Column]) -> dict[str, Column]:
    """The loss where only its parts are there, and times of steps where only a clock is."""
    made = of_parts(columns)
    if columns.keys().isdisjoint(_PACES):
        timed = with_derived(clocks(columns))
        made |= {name: timed.columns[name] for name in _PACES if name in timed.columns}
    return made

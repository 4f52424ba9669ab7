"""Two ways to write: append a flushed line, or replace a whole file by temp, fsync and rename."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["AppendCsv", "cut_csv_after", "json_safe", "write_json", "write_text"]


def write_text(path: Path, text: str) -> None:
    """Replace `path` so that a reader sees the old content or the new, never a part, even after a power cut."""
    temp = path.with_name(f"{path.name}.tmp{os.getpid()}")
    try:
        with temp.open("w", encoding="utf-8") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        temp.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temp.unlink(missing_ok=True)
        raise


def json_safe(value: Any) -> Any:
    """`value` with NaN and infinities as strings, which strict JSON readers accept."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): json_safe(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_safe(v) for v in value]
    return value


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace `path` by indented JSON."""
    write_text(path, json.dumps(json_safe(value), indent=2, ensure_ascii=False, default=str) + "\n")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.9g}"
    return str(value)


class AppendCsv:
    """A CSV with fixed columns; each row is flushed. The header is written when the file is new.

    A file of a run that is resumed keeps the columns that its header names: a newer trainer may write others.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self._columns = tuple(columns)
        self._handle = path.open("a+", encoding="utf-8", buffering=1)
        self._handle.seek(0)
        header = self._handle.readline().rstrip("\n")
        self._written = tuple(header.split(",")) if header else self._columns
        if not header:
            self._handle.write(",".join(self._columns) + "\n")

    def row(self, values: Mapping[str, Any]) -> None:
        """Append one row; a missing value gives an empty cell, an unknown column is an error."""
        assert set(values) <= set(self._columns), f"unknown columns {set(values) - set(self._columns)}"
        self._handle.write(",".join(_cell(values.get(c)) for c in self._written) + "\n")
        self._handle.flush()

    def close(self) -> None:
        """Close the file. A row that could not be written was an error when it was handed over, not again here."""
        with contextlib.suppress(OSError):
            self._handle.close()


def cut_csv_after(path: Path, step: int) -> int:
    """Drop the rows whose first column exceeds `step`, and an incomplete last line, be it the header; returns how
    many.

    A resumed run calls this, so that steps in one file only ever rise.
    """
    if not path.exists():
        return 0
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for i, line in enumerate(lines) if line.endswith("\n") and (i == 0 or _is_at_most(line, step))]
    if len(kept) < len(lines):
        write_text(path, "".join(kept))
    return len(lines) - len(kept)


def _is_at_most(line: str, step: int) -> bool:
    first = line.partition(",")[0]
    return first.isdigit() and int(first) <= step

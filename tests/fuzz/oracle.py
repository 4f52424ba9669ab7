"""What is damaged, told apart from the code under test: a second, strict and simple reader of the contract's files.

Damaged means that evidence which the decision rests on was removed or garbled: a file is gone or is none, a line or a
cell that counts is no longer what its format prescribes, or a step or a rank's end is missing. A digit that became
another digit is another measurement, which no reader can know; neither are blank lines, or what stands
twice, or a number in quotation marks. A heartbeat of `boot` alone is that of a rank which reports no steps.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

__all__ = ["is_damaged"]

_RATES = (["toks_per_s"], ["tok_per_s"])
"""Names of the rate: the contract's, and the one most like it that other trainers use."""

_QUOTES = " '\""
_COUNTED = ("loss", "toks_per_s", "step_time_s")


def is_damaged(out: Path, *, steps: int, ranks: int) -> bool:
    """Whether the folder of a run of so many steps and ranks is damaged in what the decision rests on."""
    return (
        not _table_is_sound(out / "training.csv", steps)
        or not all(_beats_are_sound(out / f"heartbeat_rank{rank}.jsonl", steps) for rank in range(ranks))
        or not all(_is_object(out / name) for name in ("env.json", "metrics.json"))
    )


def _lines(path: Path) -> list[str] | None:
    """Lines with anything on them; None where the file is none, is not text, or ends in the middle of a line."""
    if not path.is_file() or path.is_symlink():
        return None
    data = path.read_bytes()
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    if text.rpartition("\n")[2].strip() or "\0" in text:
        return None
    return [line for line in text.split("\n") if line.strip()]


def _table_is_sound(path: Path, steps: int) -> bool:
    lines = _lines(path)
    if not lines:
        return False
    names = [cell.strip(" ") for cell in lines[0].rstrip("\r").split(",")]
    if names[:3] != ["step", "loss", "lr"] or names[3:4] not in _RATES or "step_time_s" not in names:
        return False
    seen: set[float] = set()
    for line in lines[1:]:
        cells = line.split(",")
        if len(cells) != len(names):
            return False
        row = dict(zip(names, cells, strict=True))
        try:
            first = float(row["step"]) == 1  # its rate and time may be unknown: there is no row to measure them from
            counted = ("step", "loss") if first else ("step", *_COUNTED)
            values = {name: float(cell.strip(_QUOTES)) for name, cell in row.items() if cell.strip() or name in counted}
        except ValueError:
            return False
        if not all(math.isfinite(values[name]) for name in ("step", *_COUNTED) if name in values):
            return False
        seen.add(values["step"])
    return seen >= set(range(1, steps + 1))


def _beats_are_sound(path: Path, steps: int) -> bool:
    lines = _lines(path)
    if not lines:
        return False
    seen, last = set(), ""
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            return False
        if not isinstance(record, dict) or not isinstance(record.get("ts"), (int, float)):
            return False
        if not isinstance(record.get("msg"), str):
            return False
        if isinstance(record.get("step_time_s"), (int, float)):
            seen.add(record.get("step"))
        last = str(record["msg"])
    if len(lines) == 1 and last == "boot":
        return True
    return seen >= set(range(2, steps + 1)) and last == "done"


def _is_object(path: Path) -> bool:
    if not path.is_file() or path.is_symlink():
        return False
    try:
        return isinstance(json.loads(path.read_bytes().decode("utf-8")), dict)
    except (ValueError, RecursionError):
        return False

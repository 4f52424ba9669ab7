"""Names and units under which trainers write the columns of the contract.

A table, a line of text and a heartbeat are read twice: while they grow, to supervise the run, and afterwards, to
measure it. Both readings take the names from here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from validator.model.catalogue import METRICS

HEADERLESS = ("step", "loss", "lr", "toks_per_s")
"""The columns of a table without a header; with one, the contract's first four."""

ALIASES: Mapping[str, str] = {
    "iter": "step",
    "iteration": "step",
    "global_step": "step",
    "optimizer_step": "step",
    "train_loss": "loss",
    "train/loss": "loss",
    "train_loss_step": "loss",
    "learning_rate": "lr",
    "tokens_per_s": "toks_per_s",
    "tokens_per_sec": "toks_per_s",
    "tokens_per_second": "toks_per_s",
    "tok_per_s": "toks_per_s",
    "tok/s": "toks_per_s",
    "toks/s": "toks_per_s",
    "gpu_mem_alloc": "gpu_mem_alloc_mib",
    "gpu_mem_reserved": "gpu_mem_reserved_mib",
}
"""Names that common trainers use for the contract's columns."""


class OtherUnit(NamedTuple):
    """A column of the contract in another unit: `name` is `factor` times the value, or `factor` over it."""

    name: str
    factor: float
    inverse: bool = False

    def converted(self, value: Any) -> Any:
        """The value, or an array of values, in the contract's unit."""
        return self.factor / value if self.inverse else self.factor * value


OTHER_UNITS: Mapping[str, OtherUnit] = {
    "step_time_ms": OtherUnit("step_time_s", 1e-3),
    "compute_time_ms": OtherUnit("compute_time_s", 1e-3),
    "dt_fetch_ms": OtherUnit("dt_fetch_s", 1e-3),
    "own_dt_fetch_ms": OtherUnit("own_dt_fetch_s", 1e-3),
    "mean_dt_fetch_ms": OtherUnit("mean_dt_fetch_s", 1e-3),
    "steps_per_s": OtherUnit("step_time_s", 1.0, inverse=True),
    "elapsed_ms": OtherUnit("elapsed_s", 1e-3),
    "elapsed_min": OtherUnit("elapsed_s", 60.0),
    "own_step_time_ms": OtherUnit("own_step_time_s", 1e-3),
    "interval_ms": OtherUnit("interval_s", 1e-3),
    "mean_step_time_ms": OtherUnit("mean_step_time_s", 1e-3),
    "mean_steps_per_s": OtherUnit("mean_step_time_s", 1.0, inverse=True),
    "ktoks_per_s": OtherUnit("toks_per_s", 1e3),
    "gpu_mem_alloc_gib": OtherUnit("gpu_mem_alloc_mib", 1024.0),
    "gpu_mem_reserved_gib": OtherUnit("gpu_mem_reserved_mib", 1024.0),
    "host_mem_gib": OtherUnit("host_mem_mib", 1024.0),
}
"""Columns whose name includes another unit, as trainers print them."""

PACES = frozenset(
    {"elapsed_s", "timestamp", "mean_step_time_s", "interval_s", "own_step_time_s", "any_time", "any_time_ms"}
)
"""Groups of a pattern from which the time of a step follows: a running time, a date, a running mean, the time since the
line before, the time of the one step that a line is about, where not every step has a line, and a time whose name does
not say which of these it is."""

WAITS = frozenset({"mean_dt_fetch_s", "own_dt_fetch_s"})
"""Groups from which the wait for data of a step follows: a running mean, and the wait of the one step that a line is
about, where not every step has a line."""

OF_EVALUATION = frozenset({"val_loss", "eval_train_loss"})
"""Groups of a line about an evaluation: of the validation's data, and of the training's."""

OF_VALIDATION = ("val_loss", "val.val_loss", "val.loss")
"""Series that may hold the loss of the validation: of a line, and of the trainer's own file by two of its names."""

TOTALS: Mapping[str, str] = {"tokens_seen": "toks_per_s", "samples_seen": "samples_per_s"}
"""Groups that count from the start of the run, and the rate that follows from each."""

NO_SERIES = PACES | WAITS | {"step", "row", "epoch", "steps_per_epoch", "steps_total"}
"""Groups that are read for what follows from them."""

_NO_MEASURE = NO_SERIES - PACES - WAITS | {"timestamp"}
"""Groups of a line without others that says nothing of a step: that a file was saved, or how many there will be."""

_KNOWN = frozenset({*HEADERLESS, *METRICS})
_COLOR = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")  # ESC[1;31m, and what clears a line or moves in it: ESC[K


def without_colors(printed: bytes) -> bytes:
    """A printed line without color codes, which loggers also write between a name and its number."""
    return _COLOR.sub(b"", printed) if b"\x1b" in printed else printed


def series_name(raw: str) -> str:
    """The series that a name means, whatever its unit."""
    other = OTHER_UNITS.get(raw)
    return ALIASES.get(raw, raw) if other is None else other.name


def says_nothing(values: Iterable[str], names: Iterable[str]) -> bool:
    """Whether a line with these groups names a step alone, though its pattern, with the groups `names`, measures more:
    a heading (`tokens/step: 512`), or the first line of a box."""
    return _NO_MEASURE.issuperset(values) and not _NO_MEASURE.issuperset(map(series_name, names))


def contract_values(values: Mapping[str, float]) -> dict[str, float]:
    """A row with the contract's names and units; a value under the contract's own name has precedence.

    A loss that the trainer leaves out or replaces because it is NaN is NaN: `nan_iterations` above 0 says so, or a loss
    of exactly 0 with a `grad_norm` of NaN.
    """
    found: dict[str, float] = {}
    for raw, value in values.items():
        other, name = OTHER_UNITS.get(raw), series_name(raw)
        if name == raw:
            found[name] = value
        elif name not in values and not (other is not None and other.inverse and value == 0):
            found.setdefault(name, value if other is None else other.converted(value))
    if found.get("nan_iterations", 0.0) > 0 or (found.get("loss") == 0 and math.isnan(found.get("grad_norm", 0.0))):
        found["loss"] = math.nan
    return found


def renamed(cells: Sequence[str], series: Mapping[str, str]) -> list[str]:
    """Columns by the series that they hold, where `series` has them. One that has such a name by itself holds something
    else, and loses it."""
    taken = {series[cell] for cell in cells if cell in series}
    return [series.get(cell, f"{cell} (unnamed)" if cell.lower() in taken else cell) for cell in cells]


_MAY_COUNT = re.compile(r"time|stamp|clock|wall|elapsed|epoch|tokens|samples|iter|batch|update", re.IGNORECASE)


def rows_count(names: Sequence[str]) -> bool:
    """Whether the rows of a table with these columns are steps by their number: a loss has no step beside it, and
    nothing that may show one."""
    return "loss" in names and "step" not in names and not any(map(_MAY_COUNT.search, names))


def separator(head: str) -> str:
    """What stands between the names of a header: a comma, else a semicolon, a tab, a bar, or blanks where a name is the
    step's."""
    if "," in head:
        return ","
    found = next((mark for mark in ";\t|" if mark in head.strip(f" |{chr(10)}{chr(13)}")), None)
    blanks = found is None and len(head.split()) > 1 and "step" in contract_names(head.lstrip("# ").split())
    return " " if blanks else found or ","


def with_commas(block: bytes, mark: str) -> bytes:
    """Lines of a table as if commas stood between its cells; a comma in one is then a decimal one, and becomes a
    point."""
    if mark == ",":
        return block
    block = block.replace(b",", b".")
    if mark == " ":
        return re.sub(rb" +", b",", re.sub(rb"(?m)^[# ]+| +$", b"", block))
    if mark == "|":
        block = re.sub(rb"(?m)^[ \t]*\||\|[ \t]*\r?$", b"", block)
    return block.replace(mark.encode(), b",")


def contract_names(cells: Sequence[str]) -> list[str]:
    """The contract's names for these columns, where they have one; others stay as they are.

    No alias is resolved to a name that the table has itself: next to `step`, an `iter` is something else.
    """
    own = {cell.lower() for cell in cells} & _KNOWN
    names: list[str] = []
    for cell in cells:
        small = cell.lower()
        meant = small if small in _KNOWN else ALIASES.get(small, cell)
        names.append(cell if small not in _KNOWN and (meant in own or meant in names) else meant)
    return names

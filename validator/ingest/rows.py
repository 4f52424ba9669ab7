"""Whether a table's header can be trusted: a garbled name makes a column vanish, and another takes its place."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from validator.ingest.read_log import printable
from validator.model.columns import HEADERLESS, TOTALS, series_name
from validator.model.loss_parts import part_name
from validator.model.result import Floats, Steps

_FURTHER = ("toks_per_s", "step_time_s", "compute_time_s", "grad_norm", "dt_fetch_s")
"""Names long enough that what looks like one of them, and is none, is most likely a garbled one."""

_JUNK = re.compile(r"[\x00-\x1f\x7f-\x9f\ufffd\u200b-\u200f\u2028-\u202e\u2066-\u2069<>{}\"'`\\|;&*!?$^~=]")
_LITERAL = re.compile(r"(?i:nan|[-+]?inf(inity)?|null|none|true|false|0x[\da-f]+|[-+]?[\d.][\d._e+-]*)")
_COMPARED = 0.9
"""Share of common steps at which two columns must be equal to be the same measurement."""

Column = tuple[Steps, Floats]


def odd_names(cells: Sequence[str], names: Sequence[str]) -> list[str]:
    """What is wrong with the cells of a header, in words; empty when nothing is.

    Args:
        cells: the names as written, without the blanks and quotes around them.
        names: the contract's names for them, where they have one.
    """
    wrong = []
    for place, cell in enumerate(cells):
        shown = printable(cell, limit=40)
        if _JUNK.search(cell) or _LITERAL.fullmatch(cell) or (not cell and place):
            wrong.append(f"column {place + 1} is named {shown!r}, which is no name")
        elif names[place] in names[:place]:
            wrong.append(f"two columns are named {shown!r}")
        elif (meant := _meant(place, names)) is not None:
            wrong.append(f"column {place + 1} is named {shown!r}, which must be {meant}")
    return wrong


def _meant(place: int, names: Sequence[str]) -> str | None:
    """The contract's column that a name was before it was garbled; None when it is a name of its own."""
    name = names[place]
    if series_name(name) != name or name in TOTALS.values():
        return None  # a unit of its own, which is converted, or a rate of something else
    if part_name(name) is not None:
        return None  # a loss of its own beside the others
    right = sum(ours == theirs for ours, theirs in zip(HEADERLESS, names, strict=False))
    first = HEADERLESS[place] if place < len(HEADERLESS) and HEADERLESS[place] not in names and right >= 2 else None
    if first is not None and _near(name, first, 0.5) and (right == len(HEADERLESS) - 1 or not _variant(name, first)):
        return first
    missing = [one for one in _FURTHER if one not in names and name not in _FURTHER]
    return next((one for one in missing if _near(name, one, 0.6) and not _variant(name, one)), None)


def _near(name: str, known: str, share: float) -> bool:
    """Whether beginning and end of a known name are still there, `share` of it in all."""
    most = min(len(name), len(known))
    head = next((i for i in range(most) if name[i] != known[i]), most)
    most -= head
    tail = next((i for i in range(most) if name[-1 - i] != known[-1 - i]), most)
    return head + tail >= share * len(known)


def _variant(name: str, known: str) -> bool:
    """Whether a name was made from a known one on purpose: by further words, or by another word at its end."""
    words, known_words = re.split(r"[^A-Za-z0-9]+", name), known.split("_")
    if not all(words):
        return False
    left = iter(words)
    if all(word in left for word in known_words):
        return True
    *most, _ = known_words
    rest = words[len(most) :]
    return words[: len(most)] == most and all(len(word) > 1 and word.isalpha() for word in rest)


def misnamed(table: Mapping[str, Column], heartbeat: Mapping[str, Column]) -> list[str]:
    """Columns of the table that hold, under another name, what rank 0 recorded under the contract's.

    Args:
        table: the table's columns, `(steps [n], values [n])`.
        heartbeat: rank 0's fields, in the same form.
    """
    missing = {
        name: heartbeat[name] for name in (*HEADERLESS[1:], *_FURTHER) if name in heartbeat and name not in table
    }
    unknown = {name: column for name, column in table.items() if name not in heartbeat and name not in HEADERLESS}
    return [
        f"its column {printable(other, limit=40)!r} holds what the heartbeat calls {name}"
        for name, field in missing.items()
        for other, column in unknown.items()
        if _same_measurement(field, column)
    ]


def _same_measurement(one: Column, other: Column) -> bool:
    """Whether two columns are the same varying measurement."""
    _, ours, theirs = np.intersect1d(one[0], other[0], assume_unique=True, return_indices=True)
    if ours.size < 2:
        return False
    left, right = one[1][ours], other[1][theirs]
    same = np.isclose(left, right, rtol=1e-6, atol=0.0)
    return bool(np.ptp(left[same]) > 0) if float(np.mean(same)) >= _COMPARED else False


# Steps of one file must rise. Where they do not, two runs share the file, and the last one counts.

Note = Callable[[str, str, "int | None"], None]


def rising(steps: Steps, lines: Steps, restarts: tuple[int, ...], note: Note) -> npt.NDArray[np.intp]:
    """Indices of the rows to keep, so that their steps rise strictly.

    A step that repeats the one before keeps its later row. A lone row that falls back while the rest continues is left
    out. A lasting fall back, or a row index in `restarts` (a second header), starts another run: the rows before it
    are left out. `steps` and `lines` are `[n]`; `note(code, message, line)` is called once for each kind.
    """
    kept = np.arange(len(steps), dtype=np.intp)
    if not restarts and (steps[1:] > steps[:-1]).all():
        return kept
    kept = _drop_repeats(steps, lines, kept, note)
    kept = _drop_strays(steps, lines, kept, note)
    return _keep_last_run(steps, lines, kept, restarts, note)


def _drop_repeats(steps: Steps, lines: Steps, kept: npt.NDArray[np.intp], note: Note) -> npt.NDArray[np.intp]:
    repeated = np.flatnonzero(np.diff(steps[kept]) == 0)
    if repeated.size:
        first = kept[repeated[0] + 1]
        note(
            "duplicate-step",
            f"{repeated.size} rows repeat the step before them, first step {steps[first]}; the later row counts",
            int(lines[first]),
        )
        kept = np.delete(kept, repeated)
    return kept


def _drop_strays(steps: Steps, lines: Steps, kept: npt.NDArray[np.intp], note: Note) -> npt.NDArray[np.intp]:
    own = steps[kept]
    falls = np.flatnonzero(np.diff(own) < 0)
    lone = [i for i in falls if i + 2 < len(own) and own[i + 2] > own[i]]
    if lone:
        at = kept[lone[0] + 1]
        note(
            "mixed-runs",
            f"{len(lone)} rows fall back among rows that continue, first step {steps[at]} after {own[lone[0]]}; "
            "two processes wrote this file",
            int(lines[at]),
        )
        kept = np.delete(kept, [i + 1 for i in lone])
    return kept


def _keep_last_run(
    steps: Steps, lines: Steps, kept: npt.NDArray[np.intp], restarts: tuple[int, ...], note: Note
) -> npt.NDArray[np.intp]:
    own = steps[kept]
    falls = [int(i) + 1 for i in np.flatnonzero(np.diff(own) < 0)]
    headers = [int(np.searchsorted(kept, r)) for r in restarts]
    starts = sorted({*falls, *(h for h in headers if 0 < h < len(kept))})
    if not starts:
        return kept
    at = starts[-1]
    why = "the step decreases" if at in falls else "a second header follows"
    note(
        "mixed-runs",
        f"{why}: step {own[at]} comes after step {own[at - 1]}; {len(starts) + 1} runs share this file "
        "and only what the last one did not repeat is kept of the others",
        int(lines[kept[at]]),
    )
    if headers:
        kept = kept[max((h for h in headers if h < len(kept)), default=0) :]
    return kept[below_all_later(steps[kept])]


def below_all_later(steps: Steps) -> npt.NDArray[np.bool_]:
    """Rows whose step no later row repeats or undercuts: the valid rows of a run resumed from an earlier step."""
    if len(steps) < 2:
        return np.ones(len(steps), dtype=np.bool_)
    least_later = np.minimum.accumulate(steps[::-1])[::-1]
    return np.append(steps[:-1] < least_later[1:], True)


# Several rows of one step: some trainers write one for training and another for validation.

Flags = npt.NDArray[np.bool_]


def merge_rows_per_step(
    steps: Steps,
    names: Sequence[str],
    columns: Sequence[Floats],
    absent: Flags,
    *,
    may_differ: Callable[[str], bool],
) -> npt.NDArray[np.intp] | None:
    """Indices of the rows that are left when rows of one step that do not contradict each other become one.

    Each of them must hold something that those before it leave empty; a row that only repeats values is a
    repetition, and stays for others to judge. The last row of a step takes what the earlier ones hold: `columns` and
    `absent` are changed in place. None when nothing belongs together.

    Args:
        steps: step of each row, `[n]`.
        names: names of the columns.
        columns: `[n]` each.
        absent: `[n, columns]`, True where a cell is empty.
        may_differ: whether two rows of one step differ in a column by rights, as in the time of writing.
    """
    rows = np.arange(len(steps))
    begins = np.concatenate([[True], np.diff(steps) != 0])
    start = np.maximum.accumulate(np.where(begins, rows, 0))
    adds, contradicts = np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.bool_)
    latest = []
    for index, name in enumerate(names):
        present = ~absent[:, index]
        last = np.maximum.accumulate(np.where(present, rows, -1))
        before = np.concatenate([[-1], last[:-1]])
        again = present & (before >= start)
        if name != "step":
            adds |= present & ~again
            if not may_differ(name):
                contradicts |= again & (columns[index] != columns[index][before])
        latest.append(last)
    group = np.cumsum(begins) - 1
    wrong = np.zeros(group[-1] + 1, np.bool_)
    wrong[group[~begins & (contradicts | ~adds)]] = True
    merged = ~wrong[group] & (np.bincount(group)[group] > 1)
    ends = np.append(begins[1:], True)
    if not merged.any():
        return None
    into = np.flatnonzero(merged & ends)
    for index, last in enumerate(latest):
        there = last[into] >= start[into]
        columns[index][into[there]] = columns[index][last[into[there]]]
        absent[into[there], index] = False
    return np.flatnonzero(~merged | ends)

"""Whether a table's header can be trusted: a garbled name makes a column vanish, and another stands in for it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from validator.collect.intake import printable
from validator.model.columns import HEADERLESS, series_name

__all__ = ["misnamed", "odd_names"]

_FURTHER = ("toks_per_s", "step_time_s", "compute_time_s", "grad_norm", "dt_fetch_s")
"""Names long enough that what looks like one of them, and is none, is most likely a garbled one."""

_JUNK = re.compile(r"[\x00-\x1f\x7f-\x9f\ufffd\u200b-\u200f\u2028-\u202e\u2066-\u2069<>{}\"'`\\|;&*!?$^~=]")
_LITERAL = re.compile(r"(?i:nan|[-+]?inf(inity)?|null|none|true|false|0x[\da-f]+|[-+]?[\d.][\d._e+-]*)")
_COMPARED = 0.9
"""Share of common steps at which two columns must be equal to be the same measurement."""

Column = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]


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
    if series_name(name) != name:
        return None  # a unit of its own, which is converted
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
        if _equal(field, column)
    ]


def _equal(one: Column, other: Column) -> bool:
    """Whether two columns are the same varying measurement."""
    _, ours, theirs = np.intersect1d(one[0], other[0], assume_unique=True, return_indices=True)
    if ours.size < 2:
        return False
    left, right = one[1][ours], other[1][theirs]
    same = np.isclose(left, right, rtol=1e-6, atol=0.0)
    return bool(np.ptp(left[same]) > 0) if float(np.mean(same)) >= _COMPARED else False

"""Rows that tell of one step together: some trainers write one for training and another for validation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["together"]

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


def together(
    steps: npt.NDArray[np.int64],
    names: Sequence[str],
    columns: Sequence[Floats],
    absent: Flags,
    *,
    goes_on: Callable[[str], bool],
) -> npt.NDArray[np.intp] | None:
    """Indices of the rows that are left when rows of one step that do not contradict each other become one.

    Each of them must tell something that those before it leave empty; a row that only says again what was said is a
    repetition, and stays for others to judge. The last row of a step takes what the earlier ones told: `columns` and
    `absent` are changed in place. None when nothing belongs together.

    Args:
        steps: step of each row, `[n]`.
        names: names of the columns.
        columns: `[n]` each.
        absent: `[n, columns]`, True where a cell is empty.
        goes_on: whether two rows of one step differ in a column by rights, as in the time of writing.
    """
    rows = np.arange(len(steps))
    begins = np.concatenate([[True], np.diff(steps) != 0])
    start = np.maximum.accumulate(np.where(begins, rows, 0))
    adds, contradicts = np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.bool_)
    latest = []
    for index, name in enumerate(names):
        told = ~absent[:, index]
        last = np.maximum.accumulate(np.where(told, rows, -1))
        before = np.concatenate([[-1], last[:-1]])
        again = told & (before >= start)
        if name != "step":
            adds |= told & ~again
            if not goes_on(name):
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

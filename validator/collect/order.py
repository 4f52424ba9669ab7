"""Steps of one file must rise. Where they do not, two runs share the file, and the last one counts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

__all__ = ["below_all_later", "rising"]

Steps = npt.NDArray[np.int64]
Note = Callable[[str, str, "int | None"], None]


def rising(steps: Steps, lines: Steps, restarts: tuple[int, ...], note: Note) -> npt.NDArray[np.intp]:
    """Indices of the rows to keep, so that their steps rise strictly.

    A step that repeats the one before keeps its later row. A lone row that falls back while the rest goes on is left
    out. A lasting fall back, or a row index in `restarts` (a second header), starts another run: the rows before it
    are left out. `steps` and `lines` are `[n]`; `note(code, message, line)` is told of each kind once.
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
            f"{len(lone)} rows fall back among rows that go on, first step {steps[at]} after {own[lone[0]]}; "
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
    why = "the step goes back" if at in falls else "a second header follows"
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
    """Rows whose step no later row repeats or undercuts: what a run that went on from an earlier step left valid."""
    if len(steps) < 2:
        return np.ones(len(steps), dtype=np.bool_)
    least_later = np.minimum.accumulate(steps[::-1])[::-1]
    return np.append(steps[:-1] < least_later[1:], True)

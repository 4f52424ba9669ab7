"""What a coarse clock leaves open of the time that rows took: a part of its unit at either end, not at each of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from validator.model.result import CoarseClock, Floats, Series, Steps
from validator.stats.spacing import covered_steps
from validator.text import format_percent


@dataclass(frozen=True, eq=False)
class Timing:
    """A coarse clock, and the time in seconds that each row spans by it: `spans_s [n]`."""

    clock: CoarseClock
    spans_s: Floats

    def end_share(self, part: slice | npt.NDArray[np.intp] = slice(None)) -> float:
        """What the first and the last row of a part may lack, over the time that it took."""
        total = float(self.spans_s[part].sum())
        return self.clock.end_s / total if total > 0 else math.inf

    @property
    def row_share(self) -> float:
        """The same of a row, over the time of all."""
        total = float(self.spans_s.sum())
        return self.clock.row_s / total if total > 0 else math.inf

    def note(self) -> str:
        """Where the times come from, and what is open."""
        unit = self.clock.unit_s
        printed = "whole seconds" if unit == 1 else "whole minutes" if unit == 60 else f"units of {unit:g} s"
        if self.clock.by_arrival:
            return f"timed by the arrival of its lines, which the trainer's clock of {printed} confirms"
        share = format_percent(self.end_share()) if len(self.spans_s) else "an unknown share"
        return f"by the trainer's clock of {printed}: up to {unit:g} s at the ends, {share}, is in the interval"


def timing_of(series: Series, others: Mapping[str, Series], steps: Steps) -> Timing | None:
    """What a coarse clock leaves open of the rows of these steps; None where the clock is fine."""
    times = series if series.unit == "s" else others.get("step_time_s")
    if series.clock is None or times is None:
        return None
    place = np.minimum(np.searchsorted(times.steps, steps), len(times.steps) - 1)
    return Timing(series.clock, (times.values * covered_steps(times.steps))[place])

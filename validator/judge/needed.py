"""What would decide a criterion whose interval holds its bound: how many steps of which phase, or how many runs.

An interval is made of what single steps vary by, which more steps average out, and of what whole runs vary by, which
only more runs do. Each phase of a criterion has its own two parts, so the phase that is too short has a name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from validator.model.catalogue import MIN_REPEATS
from validator.model.verdict import Needed
from validator.stats.estimate import NORMAL_975, SECOND_LEVEL
from validator.text import listed

_SURE = 0.9
"""Share of the distance to the bound that the interval may take: the next estimate of its width differs from this."""

_MOST = 20.0
"""Times as many steps as a phase has, beyond which nobody runs it."""

_AT_ONCE = 4.0
"""Times as many steps as are asked for at once: they halve the interval, and behind more of them the value moves."""

_SECOND = NormalDist().inv_cdf((1 + SECOND_LEVEL) / 2) / NORMAL_975
"""Width of an interval in a second look over that in the first."""


@dataclass(frozen=True)
class Share:
    """The part of one phase in the half width of a 95 % interval, from single steps and from whole runs.

    `steps` and `runs` are those that it had; a phase of the last GO has no steps, for it cannot become longer.
    """

    phase: str
    steps: int
    runs: int
    within: float
    between: float

    @property
    def whole(self) -> float:
        """Both parts."""
        return math.hypot(self.within, self.between)


def needed(distance: float, shares: Sequence[Share], *, own: str) -> Needed:
    """What would decide a difference that lies `distance` from 0, if what was observed is right.

    Args:
        shares: of each phase of the criterion.
        own: the phase whose criterion it is.
    """
    steps = min(_longer(_SURE * abs(distance), shares), key=lambda one: _cost(one, shares), default={})
    most = {one.phase: _round_up(_AT_ONCE * one.steps) for one in shares if one.steps}
    sure = bool(steps) and all(count <= most[phase] for phase, count in steps.items())
    # Where most of the width is that of one short phase, its value is the first that will move.
    steps = {phase: min(count, most[phase]) for phase, count in (steps or _first_of_all(shares)).items()}
    widest = max((one.between for one in shares if one.steps), default=0.0)
    few = [one.phase for one in shares if one.steps and one.runs < MIN_REPEATS and 0 < widest <= 2 * one.between]
    repeats = {} if steps else dict.fromkeys(few, MIN_REPEATS)
    return Needed(steps=steps, sure=sure, repeats=repeats, runs=_own_runs(abs(distance), shares, own))


def _longer(room: float, shares: Sequence[Share]) -> Iterator[dict[str, int]]:
    """Steps of one phase that alone would do, for each such phase; else of all phases together."""
    alone = False
    able = [one for one in shares if one.steps]
    for one in able:
        rest = _squares(shares) - one.within**2
        factor = one.within**2 / (room**2 - rest) if room**2 > rest else math.inf
        if 1 < factor <= _MOST:
            alone = True
            yield {one.phase: _round_up(factor * one.steps)}
    within = sum(one.within**2 for one in able)
    rest = _squares(shares) - within
    factor = within / (room**2 - rest) if room**2 > rest else math.inf
    if not alone and 1 < factor <= _MOST:
        yield {one.phase: _round_up(factor * one.steps) for one in able if one.within > 0}


def _first_of_all(shares: Sequence[Share]) -> dict[str, int]:
    """Steps at which the phase that most of the width comes from no longer has the widest part; nothing if none has."""
    between = sum(one.between**2 for one in shares)
    widest = max((one for one in shares if one.steps), key=lambda one: one.within, default=None)
    if widest is None or between == 0 or widest.within**2 <= _squares(shares) - widest.within**2:
        return {}
    factor = widest.within**2 / between
    return {widest.phase: _round_up(min(max(factor, 2.0), _MOST) * widest.steps)}


def _squares(shares: Sequence[Share]) -> float:
    return sum(one.within**2 + one.between**2 for one in shares)


def _cost(steps: dict[str, int], shares: Sequence[Share]) -> int:
    """Further steps in all."""
    return sum((steps[one.phase] - one.steps) * one.runs for one in shares if one.phase in steps)


def _own_runs(distance: float, shares: Sequence[Share], own: str) -> int | None:
    """Runs of the criterion's own phase, with those that there are, that would decide it in a second look; None where
    the other phases leave it open."""
    mine = next((one for one in shares if one.phase == own), None)
    if mine is None:
        return None
    room = (distance / _SECOND) ** 2 - sum(one.whole**2 for one in shares if one is not mine)
    return max(mine.runs + 1, math.ceil(mine.runs * mine.whole**2 / room)) if room > 0 else None


def _round_up(value: float) -> int:
    """Two significant digits."""
    scale = 10 ** max(0, math.floor(math.log10(value)) - 1)
    return int(math.ceil(value / scale) * scale)


def text_of(found: Needed, shares: Sequence[Share], *, own: str) -> str | None:
    """What would decide it, as a clause; None where no phase is known to need more."""
    had = {one.phase: one.steps for one in shares}
    named = " and ".join(f"{steps:,} steps of {phase} (it had {had[phase]:,})" for phase, steps in found.steps.items())
    widest = max(shares, key=lambda one: one.whole)
    where = "" if widest.phase == own or len(shares) < 2 else f"most of its width is that of {widest.phase}, and "
    if found.steps:
        sure = f"if the value is right, about {named} would decide it"
        return f"{where}{sure if found.sure else f'about {named} would show more'}"
    if found.repeats:
        return (
            f"{MIN_REPEATS} repeats of {listed(list(found.repeats))} would measure the variation between runs, which "
            "is assumed; more steps would not decide it"
        )
    return None

"""Whether a run with one setting changed did something else than runs as declared, by their losses or step times.

Runs of a sound trainer with a seed agree in every digit. Then a run that agrees with them as well did the same, if its
digits could have shown a difference, and one that differs by more than rounding did not. Where the runs as declared
differ, they may do so by rounding alone, from which a change stands out, or by their data and initial weights, from
which it does not.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Literal, NamedTuple

Losses = Mapping[int, float]
"""Step to loss."""

MIN_ROWS = 3
"""Rows without which nothing is concluded."""

_SAME_ROWS = 5
"""Rows that must agree for two runs to be the same."""

_CHANCE = 1e-6
"""Largest probability that the losses of different runs agree in every row by chance, as they are written."""

_ROUNDING = 1e-3
"""Largest relative difference of two runs that do the same, with another order of their sums."""

_CLEAR = 10.0
"""Times the difference between runs as declared from which another run differs clearly."""

_STEPS_BEFORE_LR = 2
"""Rows that a learning rate may leave as they are: none is updated before the first, and a warm-up starts at 0."""

_LR_DIGITS = 1e-4
"""Coarsest last digit, relative to the loss, that shows what another learning rate does in a few steps."""

_FLOAT32 = 2.0**-20
"""Smallest relative difference that counts: some units in the last place of a float32."""

_OTHER_PACE = 1.5
"""Ratio by which every step is faster, or slower, than all of those as declared."""

Outcome = Literal["different", "same", "open"]


class LossContrast(NamedTuple):
    """The answer, why in a clause, the rows that all runs have, and whether the runs as declared agree."""

    outcome: Outcome
    why: str
    steps: tuple[int, ...] = ()
    repeatable: bool = True
    others: bool = False
    """Whether each run has losses enough, of other steps than the next one."""


def contrast_losses(declared: Sequence[Losses], changed: Losses, *, after_update: bool = False) -> LossContrast:
    """Whether the losses of a changed run differ from those of the runs as declared.

    Args:
        after_update: whether the setting acts through updates of the weights alone, as the learning rate does.
    """
    steps = tuple(sorted(set(changed).intersection(*declared)))
    if len(steps) < MIN_ROWS:
        why = f"only {len(steps)} steps have a loss in every run"
        others = min(map(len, (*declared, changed))) >= 2 * MIN_ROWS
        return LossContrast("open", f"{why}, for each prints others" if others else why, steps, others=others)
    ours = [[run[step] for step in steps] for run in declared]
    theirs = [changed[step] for step in steps]
    if not all(math.isfinite(value) for run in ours for value in run):
        return LossContrast("open", "the loss as declared is not finite", steps)
    bad = next((step for step, value in zip(steps, theirs, strict=True) if not math.isfinite(value)), None)
    if bad is not None:
        return LossContrast("different", f"the loss is not finite at step {bad}, and as declared it is", steps)
    last = _last_digit([*ours, theirs])
    noise = [max(row) - min(row) for row in zip(*ours, strict=True)]
    apart = [min(abs(value - one) for one in row) for value, row in zip(theirs, zip(*ours, strict=True), strict=True)]
    if any(noise):
        return _among_noise(steps, ours[0], noise, apart, last)
    if any(apart):
        clear = max(apart) > 2.5 * last or sum(one > 0.5 * last for one in apart) >= max(MIN_ROWS, len(steps) / 2)
        return LossContrast("different", "the losses differ", steps) if clear else _only_rounding(steps)
    return _equal_losses(steps, ours[0], last, after_update=after_update)


def rows_needed(losses: Sequence[float], least: int, most: int) -> int:
    """Rows in which different runs, with losses written like these, cannot agree by chance; from `least` to `most`.

    The scatter of a few losses is known by a factor of two or so, thus half of it counts. `most` also where it is below
    the last digit, and rows may not be enough.
    """
    finite = [value for value in losses if math.isfinite(value)]
    scatter = _scatter(finite)
    if not scatter:
        return least
    same = 2 * _last_digit([finite]) / scatter
    return most if same >= 1 else min(most, max(least, math.ceil(math.log(_CHANCE) / math.log(same))))


def _only_rounding(steps: tuple[int, ...]) -> LossContrast:
    return LossContrast(
        "open", "the losses differ by no more than their last digit, as rounding alone may make them", steps
    )


def _equal_losses(steps: tuple[int, ...], losses: Sequence[float], last: float, *, after_update: bool) -> LossContrast:
    """Runs that agree in every digit: whether these could have shown a difference."""
    rows = f"the loss is the same in all of {len(steps)} rows, digit for digit"
    if len(steps) < _SAME_ROWS:
        return LossContrast("open", f"{rows}, which are too few", steps)
    level = max(abs(value) for value in losses)
    if after_update and (last > _LR_DIGITS * level or len(steps) < _SAME_ROWS + _STEPS_BEFORE_LR - 1):
        return LossContrast(
            "open", f"{rows}, which could not show another learning rate: they are too coarse or few", steps
        )
    scatter = _scatter(losses)
    chance = min(1.0, last / scatter) ** len(steps) if scatter > 0 else 1.0
    if chance > _CHANCE:
        return LossContrast("open", f"{rows}, but with so few digits that of different runs may be as well", steps)
    return LossContrast("same", rows, steps)


def _among_noise(
    steps: tuple[int, ...], losses: Sequence[float], noise: Sequence[float], apart: Sequence[float], last: float
) -> LossContrast:
    """Runs as declared that differ: whether by rounding, and whether the changed run differs by much more."""
    share = max(one / max(abs(value), 1e-12) for one, value in zip(noise, losses, strict=True))
    if share > _ROUNDING:
        why = f"runs as declared differ by up to {max(noise):.3g} themselves, from step {_first_step(steps, noise)} on"
        return LossContrast("open", why, steps, repeatable=False)
    largest, clear = 0.0, 0
    for own, other in zip(noise, apart, strict=True):
        largest = max(largest, own)
        clear += other > _CLEAR * (largest + last)
    # The first rows may be the same: a setting of the optimizer acts behind them.
    if clear >= max(2, (len(steps) - _STEPS_BEFORE_LR + 1) // 2):
        why = f"the losses differ by up to {max(apart):.3g}, those of runs as declared by {max(noise):.3g}"
        return LossContrast("different", why, steps, repeatable=False)
    why = f"the losses differ by up to {max(apart):.3g}, and those of runs as declared by {max(noise):.3g} themselves"
    return LossContrast("open", why, steps, repeatable=False)


def _first_step(steps: Sequence[int], noise: Sequence[float]) -> int:
    return next(step for step, one in zip(steps, noise, strict=True) if one)


def _last_digit(runs: Sequence[Sequence[float]]) -> float:
    """The smallest difference that the losses can show: their last digit, or that of the number format behind them."""
    values = [value for run in runs for value in run]
    level = max(abs(value) for value in values)
    decimals = max(_decimals(value) for value in values)
    written = max(10.0**-decimals, level * _FLOAT32)
    return max(written, 2.0 ** (math.frexp(level)[1] - 8)) if all(map(_is_bf16, values)) and decimals > 1 else written


def _decimals(value: float) -> int:
    digits, _, exponent = repr(value).partition("e")
    fraction = digits.partition(".")[2].rstrip("0")
    return max(0, len(fraction) - int(exponent or 0))


def _is_bf16(value: float) -> bool:
    try:
        packed = struct.pack(">f", value)
    except OverflowError:
        return False
    exact: float = struct.unpack(">f", packed)[0]
    return packed[2:] == bytes(2) and exact == value


def _scatter(losses: Sequence[float]) -> float:
    """Standard deviation of the rows about a straight line through each three of them; 0 where there are fewer."""
    bends = [a - 2 * b + c for a, b, c in zip(losses, losses[1:], losses[2:], strict=False)]
    return math.sqrt(sum(one * one for one in bends) / len(bends) / 6) if bends else 0.0


def contrast_times(declared: Sequence[Sequence[float]], changed: Sequence[float]) -> str | None:
    """How much faster or slower every step is than all of those as declared, as a clause; None where that is not clear.

    Args:
        declared: seconds of each step, the first ones left out, of each run as declared.
        changed: the same of the changed run.
    """
    ours = [value for run in declared for value in run]
    if min(map(len, (*declared, changed)), default=0) < MIN_ROWS or min((*ours, *changed)) <= 0:
        return None
    if max(changed) * _OTHER_PACE <= min(ours):
        return f"every step is faster than any as declared, {median(ours) / median(changed):.2g} times as a rule"
    if min(changed) >= max(ours) * _OTHER_PACE:
        return f"every step takes longer than any as declared, {median(changed) / median(ours):.2g} times as a rule"
    return None

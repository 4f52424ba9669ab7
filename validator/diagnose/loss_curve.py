"""What a healthy loss curve never does: fall to exactly 0, or freeze. How it may rise is in `divergence`."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from validator.diagnose.rule import Diagnosis, RunFacts, evidence, rule
from validator.model.result import Floats, Series
from validator.stats.means import print_step
from validator.text import format_number

_ABOVE_ZERO = 0.1
_NEAR_ZERO = 0.01
_ZERO_STRIKES = 3
_RETURNS, _OFTEN_ZERO = 5, 0.25
_ROUNDED_STEPS = 2
"""Steps of its print to which a loss comes near 0, so that another one is rounded to it."""

_FROZEN_ROWS = 8
_FROZEN_CHANCE = 1e-9
"""Chance of as many equal losses at the end, by those before, below which a loss has frozen."""

_SAME_EVALUATIONS, _EQUAL_BY_CHANCE = 4, 1e-3
"""Equal evaluations that no chance makes, and the chance of as many below which they are looked at."""

_LONGER, _FEW_ALIKE = 3, 0.2
"""Times as many evaluations are equal at the end as ever before, and the share that may be equal to the one before."""

_NEVER_MOVED, _VARYING_ROWS, _FINE = 8, 20, 1e-3
"""Evaluations that are all equal, beside as many different losses of the training, and the share of the value that the
last digit is at most: a coarse print shows no change of weights that have just begun to learn."""

_RECENT_ROWS = 30
_ALIKE = 0.5
"""Share of equal neighbors before, beyond which equal losses at the end show nothing."""

_FADED, _LEVEL = 1 / 3, 0.8
_OFTEN_ALIKE = 0.3
_VARIED_STEPS = 3.5
_SMALL_STEPS = 10
_ABRUPT_STEPS = 2.5
"""Steps of the print: by how many losses differ at least, up to how many a loss may be rounded to the same, and beyond
how many its last changes show that it did not settle. What settles changes by a step or two before it is the same."""


@rule("zero-loss", "veto", of="run")
def zero_loss(run: RunFacts) -> Iterator[Diagnosis]:
    """A loss of exactly 0 in three consecutive rows, or in the last, after it was above 0.1: a logger's.

    Loggers that leave out NaN print 0.0. A loss that sinks to 0 through ever smaller values, or begins there, is a
    warning, one that its few decimals round to 0 now and then is information; all zeros are `zero-grad`.
    """
    ranks = [own["loss"] for own in run.result.rank_series.values() if "loss" in own]
    series = next(
        (
            one
            for one in [run.series("loss"), *ranks]
            if one is not None and one.values.any() and (one.values == 0).any()
        ),
        None,
    )
    if series is None or not run.training:
        return
    zero = series.values == 0
    place = _dropped(series.values, zero)
    first = int(series.steps[place if place is not None else np.flatnonzero(zero)[0]])
    count = int(zero.sum())
    harmless = _comes_and_goes(zero) or _is_rounded(series.values, zero)
    yield Diagnosis(
        f"The loss is exactly 0 from step {first} on, in {count} rows in all, where it had been "
        f"{format_number(_before(series.values, place))}: no model reaches that, but a logger that leaves out NaN "
        "prints it."
        if place is not None
        else f"The loss is exactly 0 in {count} of {zero.size} rows, the first at step {first}.",
        severity="veto" if place is not None else "info" if harmless else "warning",
        because=[evidence(f"loss 0 in {count} of {zero.size} rows", series.source.path, f"step {first}")],
        next_step="Log the raw loss, NaN and all (transformers: logging_nan_inf_filter=False), and run again.",
    )


def _comes_and_goes(zero: npt.NDArray[np.bool_]) -> bool:
    """Whether the loss begins at 0 and often leaves it and comes back, as an objective does that is 0 by design."""
    returns = int((zero[1:] & ~zero[:-1]).sum())
    return bool(zero[0]) and returns >= _RETURNS and zero.mean() >= _OFTEN_ZERO


def _is_rounded(values: Floats, zero: npt.NDArray[np.bool_]) -> bool:
    """Whether losses that are written with few decimals come so near to 0, and leave it again."""
    others = values[~zero & np.isfinite(values)]
    return others.size > 0 and not zero[-1] and float(np.abs(others).min()) <= _ROUNDED_STEPS * print_step(others)


def _before(values: Floats, place: int) -> float:
    known = values[:place][np.isfinite(values[:place]) & (values[:place] != 0)]
    return float(known[-1])


def _dropped(values: Floats, zero: npt.NDArray[np.bool_]) -> int | None:
    """First row of three consecutive zeros, or of those at the end, after losses above 0.1 that had not faded to 0."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], zero.astype(np.int8), [0]))))
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        before = np.abs(values[:start][np.isfinite(values[:start]) & (values[:start] != 0)])
        lasting = end - start >= _ZERO_STRIKES or end == len(values)
        if lasting and before.size and before.max() > _ABOVE_ZERO and before[-10:].min() >= _NEAR_ZERO:
            return int(start)
    return None


@rule("zero-grad", "veto", of="run")
def frozen_loss(run: RunFacts) -> Iterator[Diagnosis]:
    """A loss that varied and then stays the same to the end, digit for digit: a meter that leaves out NaN does that.

    A warning where it varied by so few steps of its print that a loss that settles could look the same.
    """
    loss = run.series("loss")
    if not run.training or loss is None:
        return
    finite = np.isfinite(loss.values)
    values, steps = loss.values[finite], loss.steps[finite]
    frozen = _frozen(values)
    if frozen is None:
        return
    count, abrupt = frozen
    said = f"The loss is {values[-1]:.10g} in each of the last {count} of {len(values)} rows"
    yield Diagnosis(
        f"{said}, from step {steps[-count]} on, and varied before: it is no longer measured, as by a meter that leaves "
        "out NaN, or nothing is learned any more.",
        severity="veto" if abrupt else "warning",
        because=[evidence(said, loss.source.path, f"step {steps[-count]}")],
        next_step="Log the raw loss of each step, NaN and all, and run again from before that step; if it is finite, "
        "look at what the trainer logs.",
    )


def _frozen(values: Floats) -> tuple[int, bool] | None:
    """How many of the finite losses `[n]` are equal at the end, and whether they were so abruptly.

    None where losses like those before may give as many equal ones: equal neighbors were common, changes were becoming
    smaller, or the loss is a few steps of its print. A loss that is renewed every few rows is taken once each.
    """
    changed = np.flatnonzero(np.diff(values)) + 1
    if not changed.size:
        return None
    last = int(changed[-1])
    every = int(np.median(np.diff(changed))) if changed.size > 1 else 1
    repeats = (len(values) - last - 1) // every
    before = values[last::-every][::-1]
    changes = np.abs(np.diff(before))
    if repeats < _FROZEN_ROWS - 1 or len(changes) < _FROZEN_ROWS:
        return None
    recent, step = changes[-_RECENT_ROWS:], print_step(before[-_RECENT_ROWS:])
    ending = recent[-max(3, len(recent) // 3) :]
    alike = max(float((part == 0).mean()) for part in (changes, recent, ending))
    chance = max(alike, 1 / (len(changes) + 1)) ** repeats
    varied = np.ptp(before[-_RECENT_ROWS:]) >= _VARIED_STEPS * step and abs(values[-1]) >= _SMALL_STEPS * step
    longer = changes[-2 * _RECENT_ROWS :]
    level = len(longer) == 2 * _RECENT_ROWS and alike <= _OFTEN_ALIKE and ending.mean() >= _LEVEL * longer.mean()
    abrupt = bool(level or np.median(changes[-3:]) > _ABRUPT_STEPS * step)
    bends = np.abs(np.diff(before, 2))
    # At a third of their scatter, which could not fade that far unseen, losses would be equal as often as this.
    unlikely = _chance_of_equal(ending, step) ** repeats <= _FROZEN_CHANCE
    abrupt |= unlikely and not _has_faded(bends, abrupt=False)
    faded = _has_faded(changes, abrupt=abrupt) and _has_faded(bends, abrupt=abrupt)
    if alike > _ALIKE or chance > _FROZEN_CHANCE or faded or not varied:
        return None
    return len(values) - last, abrupt


def _has_faded(changes: Floats, *, abrupt: bool) -> bool:
    """Whether the last of the changes `[n]`, of a trend or of the scatter around it, are smaller than the recent."""
    recent = changes[-_RECENT_ROWS:]
    ending = recent[-max(3, len(recent) // 3) :]
    fainter = not abrupt and ending.mean() < _LEVEL * recent.mean()
    return bool(np.median(ending) < _FADED * np.median(recent) or fainter)


def _chance_of_equal(changes: Floats, step: float) -> float:
    """How often two losses, written to `step`, are equal by chance, where the changes `[n]` have shrunk to a third."""
    scatter = _FADED * 1.4826 * float(np.median(changes))
    return math.erf(step / 2 / scatter / math.sqrt(2.0)) if scatter > 0 else 1.0


@rule("zero-grad", "veto", of="run")
def frozen_validation(run: RunFacts) -> Iterator[Diagnosis]:
    """A loss of the validation that varied and is then the same to the last digit: the weights do not move.

    A veto from four equal evaluations on, a warning for three. A validation that settles changes by ever fewer steps of
    its print before. One that never varied beside a loss of the training that does is a warning from eight evaluations
    on, and a veto from twenty, if most rows of the training have none.
    """
    if not run.training:
        return
    for series in run.validations:
        equal = _equal_evaluations(series)
        if equal is None and _never_moved(run, series):
            said = f"{series.name} is {series.values[-1]:.10g} in all of {len(series.values)} evaluations"
            loss = run.series("loss")  # a row may have the value of the last evaluation, of which there was one
            apart = loss is not None and 2 * len(series.values) <= len(loss.values)
            yield Diagnosis(
                f"{said}, while the loss of the training varies: the weights do not move, or it is not measured.",
                severity="veto" if apart and len(series.values) >= _VARYING_ROWS else "warning",
                because=[evidence(said, series.source.path)],
                next_step=_WEIGHTS,
            )
            return
        if equal is None:
            continue
        count, since = equal
        said = f"{series.name} is {series.values[-1]:.10g} in each of the last {count} evaluations"
        yield Diagnosis(
            f"{said}, from step {since} on, and varied before: the weights no longer move, or it is not measured.",
            severity="veto" if count >= _SAME_EVALUATIONS else "warning",
            because=[evidence(said, series.source.path, f"step {since}")],
            next_step=_WEIGHTS,
        )
        return


_WEIGHTS = (
    "Look at whether the optimizer steps there (learning rate, loss scale, frozen parameters, an exception that is "
    "caught), and whether the evaluation uses the weights that are trained."
)


def _never_moved(run: RunFacts, validation: Series) -> bool:
    """Whether all evaluations are equal to the last digit, beside losses of the training that are not."""
    loss, values = run.series("loss"), validation.values
    if loss is None or loss is validation or len(values) < _NEVER_MOVED or values[0] == 0 or np.unique(values).size > 1:
        return False
    fine = print_step(values[:1]) <= _FINE * abs(values[0])
    return fine and np.unique(loss.values[np.isfinite(loss.values)]).size >= _VARYING_ROWS


def _equal_evaluations(validation: Series) -> tuple[int, int] | None:
    """How many evaluations are the same at the end, and the step of the first of them; None where chance makes that."""
    finite = np.isfinite(validation.values)
    values, steps = validation.values[finite], validation.steps[finite]
    changed = np.flatnonzero(np.diff(values)) + 1
    if not changed.size:
        return None
    last = int(changed[-1])
    repeats = len(values) - last - 1
    alike, longest = 1 - len(changed) / last, int(np.diff(changed, prepend=0).max())
    if alike > _FEW_ALIKE or (alike > 0 and (repeats <= _LONGER * longest or alike**repeats > _EQUAL_BY_CHANCE)):
        return None  # many before were the same, too, as where each row has the one of the last evaluation
    if repeats < 2 or _chance_of_equals(values[: last + 1], repeats) > _EQUAL_BY_CHANCE:
        return None
    return repeats + 1, int(steps[last])


def _chance_of_equals(before: Floats, repeats: int) -> float:
    """How likely as many evaluations as `repeats` are all rounded to the last of those `before`, where their changes
    shrink at the pace at which they did, as those of a loss that settles."""
    changes = np.abs(np.diff(before))[-3:]
    if len(changes) > 1:
        pace = min(max(_FADED, float(changes[-1] / changes[0]) ** (1 / (len(changes) - 1))), 1.0)
        size = _FADED * float(np.median(changes))
    else:
        pace, size = _FADED, float(changes[0])
    expected = size * pace ** np.arange(1, repeats + 1)
    return float(np.prod(np.minimum(1.0, print_step(before) / np.maximum(expected, 1e-300))))

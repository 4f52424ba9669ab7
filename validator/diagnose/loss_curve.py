"""What a healthy loss curve never does: leave the numbers, rise far above its minimum, fall to exactly 0, or freeze."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from validator.diagnose.repeated_data import learned_by_heart
from validator.diagnose.rule import Diagnosis, RunFacts, Severity, evidence, rule
from validator.model.result import Floats, Series
from validator.stats.means import fell, print_step
from validator.text import format_number

_MIN_ROWS = 10
_SMOOTH_SHARE = 20
"""Rows of a run over rows of a level: 1 in 20, but at least five (three below thirty rows)."""

_RISE_NOISE = 8.0
"""Rise over the minimum in units of the noise. See the table of false alarms in docs/findings.md."""

_RISE_SHARE = 0.25
"""Rise over the minimum as a share of its magnitude; a step of a curriculum costs a tenth."""

_DROP_SHARE = 0.10
"""Rise as a share of what had been learned: a loss that fell from 4 to 0.01 may end at 0.05."""

_MULTIPLIED, _MANY_ROWS = 3.0, 100
"""Times its minimum at which a loss ends whose noise may have grown with it, and rows that show the noise before."""

_JUMP, _LASTING_SHARE, _LASTING_ERRORS = 5.0, 0.02, 5.0
"""Times that a learning rate rises from one row to the next to begin again, and by how much the loss then ends higher:
as a share of what it was, and in standard errors."""

_BOTH_SIDES = 0.1
"""Share of the losses on either side of 0 from which a loss lies around it."""

_FEW_EVALUATIONS, _NEARLY_EACH, _EVALUATION_NOISE = 5, 0.8, 8.0
"""Evaluations of which nearly each is higher than the one before, and the rise in units of their noise."""

_CLEAR_RISE, _ROW_NOISE = {3: 0.4, 4: _RISE_SHARE}, 4.0
"""Evaluations from the minimum on, fewer than `_FEW_EVALUATIONS`, and their rise as a share of it, and in units of the
scatter of the training's rows: nothing shows their own."""

_REWARD = re.compile(
    r"(?:^|[_/])(?:ep(?:isode)?_?(?:rew(?:ard)?|return)|(?:mean|avg)_(?:rew(?:ard)?|return)|returns?)(?:_|$)"
)
"""What episodes reach on average; neither a reward of one sample nor one that a part of a loss has."""

_AGENT = re.compile(r"(?i)polic[iy]|value_loss|explained_var|advantage|(?<![a-z])(?:critic|actor|q_?(?:loss|mean))")
"""Names beside the loss of an agent."""

_EXPLODED = 100.0
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


def is_reward(name: str) -> bool:
    """Whether a column is what episodes reach on average."""
    return _REWARD.search(name) is not None


@rule("diverging", "veto", of="run")
def diverging(run: RunFacts) -> Iterator[Diagnosis]:
    """The loss ends far above its own minimum, or the gradient norm at a hundred times its usual value."""
    loss, norm = run.series("loss"), run.series("grad_norm")
    if not run.training:
        return
    risen = _loss_risen(run)
    if loss is not None and risen is not None:
        low, high, at, since = risen
        yield _diverges(
            f"The loss rises from {format_number(low)} near step {since} to {format_number(high)} at the end and does "
            "not come back.",
            "veto",
            loss,
            f"smoothed loss: minimum {format_number(low)} near step {at}, from step {since} on above it, end "
            f"{format_number(high)}",
        )
        return
    exploded = None if norm is None else _exploded(norm)
    if norm is not None and exploded is not None:
        usual, end, at = exploded
        learns = loss is not None and _at_its_minimum(loss)
        yield _diverges(
            f"The gradient norm is {end:.3g} from step {at} to the end, {end / usual:,.0f} times its usual {usual:.3g}"
            + (", though the loss is at its minimum." if learns else "."),
            "warning" if learns else "veto",
            norm,
            f"grad_norm: usually {usual:.3g}, {end:.3g} at the end",
        )


@rule("diverging", "veto", of="run")
def what_is_learned_is_lost(run: RunFacts) -> Iterator[Diagnosis]:
    """A loss of validation that ends far above its own minimum while that of training does not, as a warning; or a
    reward that ends far below its maximum: a veto where nothing is left of what it had gained, else a warning."""
    loss = run.series("loss")
    if not run.training or _loss_risen(run) is not None:
        return
    for series in run.validations:
        risen = _risen(series) or _risen_since(series, loss)
        if risen is None or learned_by_heart(run) is not None:
            continue
        low, high, at, since = risen
        yield _diverges(
            f"{series.name} rises from {format_number(low)} near step {since} to {format_number(high)} at the end, "
            "while the loss of the training does not.",
            "warning",
            series,
            f"smoothed {series.name}: minimum {format_number(low)} near step {at}, end {format_number(high)}",
        )
        return
    for name, series in run.result.series.items():
        if is_reward(name) and (risen := _risen(replace(series, values=-series.values))) is not None:
            low, high, at, since = risen
            finite = series.values[np.isfinite(series.values)]
            begins = float(np.median(finite[: max(3, len(finite) // _SMOOTH_SHARE)]))
            yield _diverges(
                f"{name} falls from {format_number(-low)} near step {since} to {format_number(-high)} at the end, and "
                f"began at {format_number(begins)}.",
                "veto" if -high <= begins + _DROP_SHARE * (-low - begins) else "warning",
                series,
                f"smoothed {name}: maximum {format_number(-low)} near step {at}, end {format_number(-high)}",
            )
            return


@rule("diverging", "warning", of="run")
def learning_rate_jumps(run: RunFacts) -> Iterator[Diagnosis]:
    """A learning rate that rises at once to a multiple, late in the run, and a loss that ends above what it was before:
    a schedule that begins again takes back what was learned."""
    loss, rates = run.series("loss"), run.series("lr")
    if not run.training or loss is None or rates is None or _loss_risen(run) is not None:
        return
    before, behind = rates.values[:-1], rates.values[1:]
    jumps = np.flatnonzero((before > 0) & (behind >= _JUMP * before) & (rates.steps[1:] > rates.steps[-1] / 3))
    if not jumps.size:
        return
    at = int(rates.steps[jumps[-1] + 1])
    values = loss.values[np.isfinite(loss.values)]
    first = int((loss.steps[np.isfinite(loss.values)] < at).sum())
    width = _levels(values)[1] if len(values) >= _MIN_ROWS else 0
    if not width or first < 3 * width or len(values) - first < 2 * width:
        return
    was, ends = (float(np.median(some)) for some in (values[first - width : first], values[-width:]))
    error = 1.2533 * math.sqrt(2 / width) * _row_scatter(values[:first], width)  # of a difference of two medians
    if ends - was < max(_LASTING_SHARE * abs(was), _LASTING_ERRORS * error):
        return
    rose = f"{rates.values[jumps[-1]]:.3g} to {rates.values[jumps[-1] + 1]:.3g}"
    yield _diverges(
        f"The learning rate rises from {rose} at step {at}, and the loss, {format_number(was)} before, ends at "
        f"{format_number(ends)}.",
        "warning",
        loss,
        f"lr {rose}; medians of {width} rows before step {at} and at the end: {format_number(was)}, "
        f"{format_number(ends)}",
    )


def _loss_risen(run: RunFacts) -> tuple[float, float, int, int] | None:
    """As `_risen`, of the training's loss. That of an agent may grow with its reward, and its noise with it."""
    loss = run.series("loss")
    of_agent = any(is_reward(name) or _AGENT.search(name) for name in run.result.series)
    if loss is None or of_agent:
        return None if loss is None else _risen(loss)
    found = _risen(loss, grown=True)
    if found is not None or len(loss.values) < _MANY_ROWS or not (loss.values > 0).all():
        return found
    # What grows by a factor with each step has its noise all along, but for its logarithm.
    found = _risen(replace(loss, values=np.log(loss.values)), of_logarithms=True)
    if found is None:
        return None
    low, high = math.exp(found[0]), math.exp(found[1])
    learned = _levels(loss.values[loss.steps <= found[2]])[0] if (loss.steps <= found[2]).sum() > _MIN_ROWS else None
    drop = 0.0 if learned is None else float(learned.max()) - low
    return None if high - low < _DROP_SHARE * drop else (low, high, *found[2:])


def _diverges(message: str, severity: Severity, series: Series, shown: str) -> Diagnosis:
    return Diagnosis(
        message,
        severity=severity,
        because=[evidence(shown, series.source.path)],
        next_step="Look at what changed at that step (learning rate, data, precision) and start again from before it "
        "with a lower learning rate, longer warm-up or tighter clipping.",
    )


def _levels(values: Floats) -> tuple[Floats, int]:
    """Running medians, and the rows in each: a spike narrower than half of them leaves no trace."""
    width = max(5, len(values) // _SMOOTH_SHARE) if len(values) >= 30 else 3
    return np.median(np.lib.stride_tricks.sliding_window_view(values, width), axis=1), width


def _row_scatter(values: Floats, width: int) -> float:
    """Scatter of one row, by how far rows that lie `width` apart are off a straight line: no trend and no spike enters.

    Rows side by side would understate what is autocorrelated. The noisier half of the curve counts, since noise may
    grow with the loss.
    """
    if len(values) <= 2 * width:
        return float(np.abs(np.diff(values)).max(initial=0.0))
    bent = np.abs(values[2 * width :] - 2 * values[width:-width] + values[: -2 * width])
    bent = bent[len(bent) // 4 :]  # a curve bends most where it begins
    parts = [half for half in np.array_split(bent, 2) if half.size]
    return max(float(np.median(half)) for half in parts) * 1.4826 / math.sqrt(6.0)


def _risen(loss: Series, *, grown: bool = False, of_logarithms: bool = False) -> tuple[float, float, int, int] | None:
    """Smoothed minimum, last level, the step of the minimum and that from which the loss is above it by a tenth of the
    rise, where it ends far above it. `grown`: of a loss that ends at a multiple of its minimum the noise before the
    rise counts alone. `of_logarithms`: of a loss that must end at a multiple."""
    finite = np.isfinite(loss.values)
    values, steps = loss.values[finite], loss.steps[finite]
    if len(values) < _MIN_ROWS:
        return None
    levels, width = _levels(values)
    lowest = int(levels.argmin())
    low, high = float(levels[lowest]), float(levels[-1])
    rise, drop = high - low, float(levels[: lowest + 1].max()) - low
    if rise <= 0:
        return None
    # A level is a median, so the first that is above has more than half of its rows behind the change.
    since = int(np.flatnonzero(levels < low + rise / 10)[-1]) + 1 + width // 2
    # A jump is no noise, nor is what comes at once behind it.
    cut = int(np.flatnonzero(levels < low + rise / 2)[-1]) + 1 + width // 2
    end = values[cut:][-max(4 * width, (len(values) - cut) // 2) :]
    beside = max(_row_scatter(values[:cut], width), _row_scatter(end, width))
    noise = min(_row_scatter(values, width), beside)
    if of_logarithms:
        noise = max(_row_scatter(values[:since], width), math.log(_MULTIPLIED) / _RISE_NOISE)
    elif around_zero(values[:cut]):  # where the middle is 0, a share of it is nothing, and only the scatter counts
        noise = max(noise, beside, 1.4826 * float(np.median(np.abs(values[:cut]))))
    elif grown and len(values) >= _MANY_ROWS and 0 < _MULTIPLIED * low <= high:  # above it are more noise, and spikes
        noise = min(noise, _row_scatter(values[:since], width))
    if rise < max(_RISE_SHARE * abs(low), _DROP_SHARE * drop, _RISE_NOISE * noise):
        return None
    if (values[-width:] < low + rise / 3).sum() > width // 3:
        return None  # some rows of the end are where the minimum is
    at, since = (int(steps[min(row, len(steps) - 1)]) for row in (lowest + width // 2, since))
    return low, high, at, since


def around_zero(values: Floats) -> bool:
    """Whether losses lie on both sides of 0, as those of a policy do whose advantages are centered."""
    return bool(min((values > 0).mean(), (values < 0).mean()) >= _BOTH_SIDES) if values.size else False


def _risen_since(validation: Series, loss: Series | None) -> tuple[float, float, int, int] | None:
    """As `_risen`, of evaluations of which nearly each is higher than the one before, from the minimum on.

    Three or four of them show no scatter of their own: each must be higher, and the rise is compared with that of the
    training's rows, which an evaluation of many batches does not reach, and the training's loss must fall.
    """
    finite = np.isfinite(validation.values)
    values, steps = validation.values[finite], validation.steps[finite]
    lowest = int(values.argmin()) if values.size else 0
    behind = values[lowest:]
    if len(behind) < min(_CLEAR_RISE) or np.mean(np.diff(behind) > 0) < _NEARLY_EACH:
        return None
    low, high, at = float(behind[0]), float(behind[-1]), int(steps[lowest])
    share = _CLEAR_RISE.get(len(behind), _RISE_SHARE)
    if len(behind) >= _FEW_EVALUATIONS:
        scatter = float(np.sqrt(np.mean(np.diff(behind, 2) ** 2) / 6))  # a row's scatter, as of a straight line
    else:
        rows = np.empty(0) if loss is None else loss.values[np.isfinite(loss.values)]
        if len(rows) < _MIN_ROWS or not fell(rows.tolist()):
            return None
        scatter = _row_scatter(rows, _levels(rows)[1]) * _ROW_NOISE / _EVALUATION_NOISE
    return None if high - low < max(share * abs(low), _EVALUATION_NOISE * scatter) else (low, high, at, at)


def _at_its_minimum(loss: Series) -> bool:
    values = loss.values[np.isfinite(loss.values)]
    if len(values) < _MIN_ROWS:
        return False
    levels, width = _levels(values)
    noise = _row_scatter(values, width)
    return bool(levels[-1] <= levels.min() + noise and levels[0] - levels[-1] > 3 * noise)


def _exploded(norm: Series) -> tuple[float, float, int] | None:
    """Usual norm, norm at the end, and the step since which it is a hundred times the usual one."""
    usable = (norm.values > 0) & np.isfinite(norm.values)  # 0 is not measured; others are `nonfinite-values`
    values, steps = norm.values[usable], norm.steps[usable]
    if len(values) < _MIN_ROWS:
        return None
    levels, width = _levels(values)
    usual = float(np.quantile(levels[: max(1, 3 * len(levels) // 4)], 0.25))
    if levels[-1] < _EXPLODED * usual or values[-width:].min() < _EXPLODED * usual / 10:
        return None
    calm = np.flatnonzero(values < _EXPLODED * usual / 10)
    return usual, float(levels[-1]), int(steps[calm[-1] + 1 if calm.size else 0])


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
    its print before.
    """
    if not run.training:
        return
    for series in run.validations:
        equal = _equal_evaluations(series)
        if equal is None:
            continue
        count, since = equal
        said = f"{series.name} is {series.values[-1]:.10g} in each of the last {count} evaluations"
        yield Diagnosis(
            f"{said}, from step {since} on, and varied before: the weights no longer move, or it is not measured.",
            severity="veto" if count >= _SAME_EVALUATIONS else "warning",
            because=[evidence(said, series.source.path, f"step {since}")],
            next_step="Look at whether the optimizer still steps there (learning rate, loss scale, frozen parameters, "
            "an exception that is caught), and whether the evaluation uses the weights that are trained.",
        )
        return


def _equal_evaluations(validation: Series) -> tuple[int, int] | None:
    """How many evaluations are the same at the end, and the step of the first of them; None where chance makes that."""
    finite = np.isfinite(validation.values)
    values, steps = validation.values[finite], validation.steps[finite]
    changed = np.flatnonzero(np.diff(values)) + 1
    if not changed.size or len(changed) < changed[-1]:
        return None  # some evaluations before were the same, too
    last = int(changed[-1])
    repeats = len(values) - last - 1
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

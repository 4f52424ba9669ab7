"""What was learned and is lost: a loss, a gradient norm or a loss of validation that rises far, a reward that falls."""

from __future__ import annotations

import math
import re
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from validator.diagnose.repeated_data import learned_by_heart
from validator.diagnose.rule import Diagnosis, RunFacts, Severity, evidence, rule
from validator.model.logged_names import is_reward
from validator.model.loss_parts import is_opposed
from validator.model.result import Floats, Series
from validator.stats.means import fell
from validator.text import format_number

_MIN_ROWS = 10
_SMOOTH_SHARE = 20
"""Rows of a run over rows of a level: 1 in 20, but at least five (three below thirty rows)."""

_WIDE_LEVEL = 100
"""Rows of a level above which numpy takes longer than a sorted list."""

_RISE_NOISE = 8.0
"""Rise over the minimum in units of the noise. See the table of false alarms in docs/findings.md."""

_RISE_SHARE = 0.25
"""Rise over the minimum as a share of its magnitude; a step of a curriculum costs a tenth."""

_DROP_SHARE = 0.10
"""Rise as a share of what had been learned: a loss that fell from 4 to 0.01 may end at 0.05."""

_BEFORE_ROWS, _BEHIND_ROWS, _LEARNED_SHARE, _LEARNED_SCATTERS, _TAKEN_BACK = 5, 3, 0.3, 10, 0.5
"""Rows whose medians are compared around a jump; how far a loss has fallen before it, as a share of its first values
and in changes from row to row, and the share of that which a jump takes back."""

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

_AGENT = re.compile(r"(?i)polic[iy]|value_loss|explained_var|advantage|(?<![a-z])(?:critic|actor|q_?(?:loss|mean))")
"""Names beside the loss of an agent."""

_EXPLODED = 100.0

_APART, _WIDE, _VANISHED = 5.0, 1000.0, 0.01
"""Times what it was at which a loss ends that another one works against, or that is of an agent; and the share of it at
which the other one has vanished."""


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
            begins = _begins(series.values[np.isfinite(series.values)])
            yield _diverges(
                f"{name} falls from {format_number(-low)} near step {since} to {format_number(-high)} at the end, and "
                f"began at {format_number(begins)}.",
                "veto" if -high <= begins + _DROP_SHARE * (-low - begins) else "warning",
                series,
                f"smoothed {name}: maximum {format_number(-low)} near step {at}, end {format_number(-high)}",
            )
            return
        if is_reward(name) and (fallen := _fallen(series.values[np.isfinite(series.values)])) is not None:
            was, is_now = map(format_number, fallen)
            yield _diverges(
                f"{name} falls from {was} to {is_now}: what the agent does becomes worse.",
                "warning",
                series,
                f"medians of the first and the last rows of {name}: {was}, {is_now}",
            )
            return


@rule("diverging", "warning", of="run")
def one_side_runs_away(run: RunFacts) -> Iterator[Diagnosis]:
    """Of losses that work against each other one that rises to the end, to several times what it was: the other side
    wins. A loss of values grows with what an agent earns, and has to grow a thousandfold."""
    if not run.training or run.series("loss") is not None:
        return
    opposed = {name: one for name, one in run.result.series.items() if is_opposed(name)}
    vanished = [name for name, one in opposed.items() if 0 <= _ends(one.values) < _VANISHED * _begins(one.values)]
    for name, series in opposed.items():
        values = series.values[np.isfinite(series.values)]
        if len(values) < _MANY_ROWS:
            continue
        parts = [float(np.median(part)) for part in np.array_split(values, 8)]
        was, times = float(np.median(values[: len(values) // 4])), _WIDE if _AGENT.search(name) else _APART
        on_and_on = parts[-1] >= times * was and all(one < two for one, two in pairwise(parts[3:]))
        others = [one for one in vanished if one != name]
        if was > 0 and (on_and_on or (others and parts[-1] >= times * _begins(values) > 0)):
            begins, ends = (format_number(one) for one in (was if on_and_on else _begins(values), parts[-1]))
            beside = f" {others[0]} vanishes." if others else ""
            yield _diverges(
                f"{name} rises from {begins} to {ends}, and works against another loss: one side wins.{beside}",
                "warning",
                series,
                f"medians of the first rows and of the last eighth of {name}: {begins}, {ends}",
            )
            return


def _begins(values: Floats) -> float:
    """The median of the first rows; NaN without any."""
    return float(np.median(values[: max(3, len(values) // _SMOOTH_SHARE)])) if len(values) else math.nan


def _ends(values: Floats) -> float:
    """The median of the last eighth."""
    return float(np.median(values[-max(1, len(values) // 8) :])) if len(values) else math.nan


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


@rule("diverging", "warning", of="run")
def learning_taken_back(run: RunFacts) -> Iterator[Diagnosis]:
    """A loss that rises from one row to the next by half of what it had fallen, and stays there for some rows, again
    and again: an older state is loaded, or the model starts again from nothing."""
    loss = run.series("loss")
    finite = None if loss is None else np.isfinite(loss.values)
    of_agent = any(is_reward(name) or _AGENT.search(name) for name in run.result.series)
    if not run.training or loss is None or finite is None or of_agent or finite.sum() < _MANY_ROWS:
        return
    if _loss_risen(run) is not None:
        return
    values, steps = loss.values[finite], loss.steps[finite]
    if around_zero(values):
        return
    windows = np.lib.stride_tricks.sliding_window_view
    before = np.median(windows(values, _BEFORE_ROWS), axis=1)[:-_BEHIND_ROWS]
    behind = np.median(windows(values[_BEFORE_ROWS:], _BEHIND_ROWS), axis=1)
    at_once = values[_BEFORE_ROWS : _BEFORE_ROWS + len(behind)]
    begins = float(np.median(values[:_BEHIND_ROWS]))
    learned = begins - before
    scatter = float(np.median(np.abs(np.diff(values))))
    back = learned > max(_LEARNED_SHARE * abs(begins), _LEARNED_SCATTERS * scatter)
    back &= np.minimum(at_once, behind) - before >= _TAKEN_BACK * learned
    rows = np.flatnonzero(back)
    rows = rows[np.diff(rows, prepend=-_BEFORE_ROWS) >= _BEFORE_ROWS]
    if rows.size < 2:
        return
    shown = ", ".join(f"{steps[row + _BEFORE_ROWS]:,}" for row in rows[:3]) + (", …" if rows.size > 3 else "")
    was, then = format_number(float(before[rows[-1]])), format_number(float(behind[rows[-1]]))
    yield _diverges(
        f"The loss jumps back by half or more of what it had fallen at steps {shown}, the "
        f"last time from {was} to {then}, as where an older state is loaded or the model starts again from nothing.",
        "warning",
        loss,
        f"medians of {_BEFORE_ROWS} rows before and {_BEHIND_ROWS} from step {steps[rows[-1] + _BEFORE_ROWS]} on: "
        f"{was}, {then}",
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


def _fallen(values: Floats) -> tuple[float, float] | None:
    """The first and the last level of a reward that ends below where it began, by far more than its scatter, or at the
    lowest value that it ever had."""
    if len(values) < _MANY_ROWS:
        return None
    levels, width = _levels(values)
    first, begins, ends = float(np.median(values[:3])), float(levels[0]), float(levels[-1])
    error = 1.2533 * math.sqrt(2 / width) * _row_scatter(values, width)
    if begins - ends > max(_DROP_SHARE * abs(begins), _LASTING_ERRORS * error):
        return begins, ends
    return (first, ends) if ends <= values.min() and first - ends > _DROP_SHARE * abs(first) else None


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
    return _running_medians(values, width), width


def _running_medians(values: Floats, width: int) -> Floats:
    if width <= _WIDE_LEVEL or np.isnan(values).any():
        return np.median(np.lib.stride_tricks.sliding_window_view(values, width), axis=1)
    # Of wide windows numpy copies and sorts each again: 800 MiB and 5 s for 45,000 rows.
    ordered, middle = sorted(values[:width].tolist()), (width - 1) // 2
    found = [(ordered[middle] + ordered[width // 2]) / 2]
    for out, into in zip(values[:-width].tolist(), values[width:].tolist(), strict=True):
        del ordered[bisect_left(ordered, out)]
        insort(ordered, into)
        found.append((ordered[middle] + ordered[width // 2]) / 2)
    return np.array(found)


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

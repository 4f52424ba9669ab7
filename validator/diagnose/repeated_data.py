"""Losses that say where the data come again: the same few batches again and again, learned by heart or not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from validator.diagnose.rule import Diagnosis, RunFacts, Severity, evidence, rule
from validator.model.result import Floats, Series
from validator.stats.means import print_step
from validator.text import format_number

_REPEATS = 0.7
_MIN_PERIODS = 4
_MIN_CYCLE, _CYCLE_ROWS, _MOST, _APART = 2, 18, 0.8, 1.8
"""The period that two tasks by turns have too, rows that are compared with those a period before and behind, the share
that must come again, since the end of an epoch shifts them, and how many times farther neighbors must be apart."""

_CYCLE_SHARE, _SAME_SHARE, _STEPS_OFF = 0.2, 1e-3, 1.5
"""How near what comes again must be: as a share of what neighbors differ by, of the loss, and in steps of its print."""

_SMOOTH_ROWS, _SMOOTH = 60, 5e-3
"""Rows in which a loss that falls to half shows the scatter of its batches, and the bends, as shares of it, below which
it has none."""

_FINE = 50.0
"""Steps of its print in a loss that shows its scatter."""

_FEW_BATCHES, _BY_HEART = 16, 0.1
"""Steps after which the same batches come again, up to which they are few, and the share of the first losses below
which they are learned by heart."""

_HARDLY_ANYTHING = 1 / 100
"""Share of its first value below which a loss without scatter, and no validation beside it, is of a batch learned by
heart."""

_NOT_LEARNED, _STAYS, _RISES, _SAME_KIND = 0.5, 0.95, 1.1, 2.0
"""What a loss of the validation ends at: as a share of the first loss of the training from which nothing is learned
that holds for other data; of its own first value, from which it stays; and of its own minimum, from which it rises.
Then its first value as a share of the training's, beyond which it is another kind of loss: a sum, or a placeholder."""

_SOON = 20 * _FEW_BATCHES
"""Steps within which no more than a few batches are learned by heart: some twenty passes."""

_MEMORY_ROWS = 8


@dataclass(frozen=True)
class _ByHeart:
    """What a loss of the validation says of a loss that nearly vanishes: `beside` is a sentence, and `surely` few data
    are learned by heart."""

    validation: Series
    stays: bool
    soon: bool
    beside: str

    @property
    def surely(self) -> bool:
        """Whether so little was learned so fast that only a few batches can be the reason."""
        return self.stays and self.soon


_LONG_PERIOD = 8
"""Different losses in a period that comes twice by no chance."""


@rule("repeated-data", "veto", of="run")
def repeated_data(run: RunFacts) -> Iterator[Diagnosis]:
    """The losses repeat with a period: digit for digit nothing is learned from data that come again, else few data,
    which is a veto where a few batches are learned by heart, and a warning where these may be tasks that take turns; or
    they fall without any scatter between batches, or to nearly nothing while the loss of the validation stays: a veto
    where it takes few steps."""
    loss = run.series("loss")
    if not run.training or loss is None:
        return
    values = loss.values[np.isfinite(loss.values)]
    exact, period, cycle = _exact_period(values), None, None
    if exact is None:
        curves = (values, *_as_it_falls(values))
        cycle = next(filter(None, map(_cycle, curves)), None)
        period = cycle or next(filter(None, map(_period, curves)), None)
    by_heart = learned_by_heart(run)
    if exact is None and period is None:
        yield from _of_one_batch(loss, values, by_heart, _overtaken(run, values))
        return
    few = exact is None and period is not None and period * int(np.median(np.diff(loss.steps))) <= _FEW_BATCHES
    begins, ends = (float(part.mean()) for part in (values[: period or 1], values[-(period or 1) :]))
    vanishes = few and 0 <= ends < _BY_HEART * begins
    severity: Severity = "warning" if exact or cycle or vanishes or by_heart is not None else "info"
    # Each batch of a few has one loss; that of a task has the scatter of its own batches.
    if (vanishes and cycle is not None) or (by_heart is not None and (few or by_heart.surely)):
        severity = "veto"
    beside = "" if by_heart is None else by_heart.beside
    if vanishes and by_heart is None:
        learned = "They are" if cycle is not None else "If these are no tasks that take turns, they are"
        beside = f" {learned} learned by heart: the loss ends at {format_number(ends)} of {format_number(begins)}."
    yield Diagnosis(
        f"The losses repeat digit for digit every {exact} rows: the same batches come again, and nothing is learned."
        if exact is not None
        else f"The losses go up and down alike every {period} rows, as when the same {period} batches come again."
        f"{beside}",
        severity=severity,
        confidence="high" if exact or cycle else "medium",
        because=[evidence(f"period of {exact or period} rows in {values.size}", loss.source.path)],
        next_step="Look at the sampler and at how many batches the data hold: a loss that falls on a few batches is "
        "memory, not learning.",
    )


@rule("repeated-data", "info", of="run")
def same_on_every_rank(run: RunFacts) -> Iterator[Diagnosis]:
    """Rank 1 prints the losses of rank 0 to the last digit: they are averaged, or both ranks have the same data."""
    rows, loss = run.evidence.same_losses, run.series("loss")
    if not run.training or loss is None or rows < _SMOOTH_ROWS:
        return
    yield Diagnosis(
        f"Rank 1 prints the same losses as rank 0, to the last digit of all {rows:,} rows: they are averaged over the "
        "ranks, or both have the same samples.",
        because=[evidence(f"{rows} rows of two ranks are equal", loss.source.path)],
        next_step="Print each rank's own loss, or what its first samples are, once: where they are the same, give each "
        "rank its part of the data (DistributedSampler, set_epoch, a seed that depends on the rank).",
    )


def learned_by_heart(run: RunFacts) -> _ByHeart | None:
    """Whether the loss nearly vanishes while that of the validation ends no better than half of the training's first,
    and stays where it was or rises; None where there is no validation, or it does not say so."""
    loss = run.series("loss")
    finite = None if loss is None else np.isfinite(loss.values)
    if loss is None or finite is None or finite.sum() < _MEMORY_ROWS:
        return None
    values, steps = loss.values[finite], loss.steps[finite]
    begins, ends = float(values[:3].max()), float(np.median(values[-max(3, len(values) // 20) :]))
    if not 0 <= ends <= _BY_HEART * begins:
        return None
    for series in run.validations:
        others = series.values[np.isfinite(series.values)]
        if len(others) < 2 or others[-1] < _NOT_LEARNED * begins or others[0] > _SAME_KIND * begins:
            continue
        stays = bool(others[-1] >= _STAYS * others[0])
        if not stays and others[-1] < _RISES * others.min():
            continue
        middle = np.median(np.lib.stride_tricks.sliding_window_view(values, 3), axis=1)
        at = int(steps[int(np.flatnonzero(middle <= _BY_HEART * begins)[0]) + 1])
        first, last = format_number(float(others[0])), format_number(float(others[-1]))
        beside = (
            f" The loss ends at {format_number(ends)} of {format_number(begins)}, and {series.name} at {last}, which "
            f"began at {first}: the data are learned by heart."
        )
        return _ByHeart(series, stays, at <= _SOON and not run.by_epochs, beside)
    return None


def _overtaken(run: RunFacts, values: Floats) -> str:
    """A sentence where the loss of a validation ends at twice that of the training, and above its own minimum."""
    found = next((one for one in run.validations if len(one.values) > 1), None)
    if found is None or not values.size or not found.values[-1] > max(2 * values[-1], found.values.min()):
        return ""
    ends, low = format_number(float(found.values[-1])), format_number(float(found.values.min()))
    return f" {found.name} ends at {ends}, and its minimum is {low}: the batch is learned by heart."


def _of_one_batch(loss: Series, values: Floats, by_heart: _ByHeart | None, overtaken: str) -> Iterator[Diagnosis]:
    """A loss without scatter: of one batch, or of all data in each step. A warning where the loss of a validation is
    overtaken, or hardly anything is left of the loss; a veto where the data are learned by heart. With scatter, those
    that are learned by heart."""
    rises = _without_scatter(values)
    if rises is None and by_heart is None:
        return
    begins, ends = (format_number(float(value)) for value in values[[0, -1]])
    severity: Severity = "info"
    if by_heart is not None:
        severity = "veto" if by_heart.surely or rises is not None else "warning"
    elif overtaken or (values[-1] <= _HARDLY_ANYTHING * values[0] and _is_smooth(values)):
        severity = "warning"
    beside = overtaken if by_heart is None else by_heart.beside
    seen = [] if rises is None else [f"largest rise from row to row {rises:.2g}"]
    seen += [] if by_heart is None else [f"{by_heart.validation.name} beside the loss"]
    yield Diagnosis(
        f"The loss falls from {begins} to {ends} without any scatter from row to row, as when each step has the same "
        f"batch, or all of the data.{beside}"
        if rises is not None
        else f"The loss nearly vanishes, and that of the validation does not follow it.{beside}",
        severity=severity,
        confidence="medium",
        because=[evidence(text, loss.source.path) for text in seen],
        next_step="Look at the sampler, and at how many batches the data hold: different batches have different "
        "losses. If each step has all of the data, or a few batches are meant, judge by the loss of a validation.",
    )


def _without_scatter(values: Floats) -> float | None:
    """The largest rise from row to row of a loss that falls to half and never rises by more than its last decimal;
    None where it rises, has too few rows, or is a running mean. Losses of few digits hide their scatter."""
    if len(values) < _SMOOTH_ROWS:
        return None
    coarse = np.flatnonzero(np.abs(values) < _FINE * print_step(values))
    values = values[: coarse[0]] if coarse.size else values
    if len(values) < _SMOOTH_ROWS or not 0 < values[-1] <= values[0] / 2:
        return None
    changes = np.diff(values)
    mean_of = values[1:] + np.arange(1, len(values)) * changes  # what would be averaged, were it a running mean
    if changes.max() > max(_STEPS_OFF * print_step(values), _SAME_SHARE / 10 * values[-1]) or mean_of.min() >= 0:
        return None
    return float(changes.max())


def _is_smooth(values: Floats) -> bool:
    """Whether neighbors in the later half of these losses, above 0, lie on a line but for their print: a fall may be
    steeper than its scatter."""
    tail = values[len(values) // 2 :]
    if tail.min() <= 0:
        return False
    bends = float(np.median(np.abs(np.diff(np.log(tail), 2))))
    return bends <= max(_SMOOTH, _STEPS_OFF * print_step(tail) / float(np.median(tail)))


def _as_it_falls(values: Floats) -> tuple[Floats, ...]:
    """The logarithms of losses that fall to a tenth, as the ups and downs of few batches sink with them; else none."""
    if not values.size or values.min() <= 0 or np.median(values[-max(3, len(values) // 20) :]) > _BY_HEART * values[0]:
        return ()
    return (np.log(values),)


def _cycle(values: Floats) -> int | None:
    """Rows, 3 to 16, after which the later half of the losses comes again but for a straight drift: to its last
    decimal or a thousandth, where neighbors differ by far more. Tasks that take turns have the scatter of batches."""
    tail = values[len(values) // 2 :]
    step = print_step(tail) if tail.size else 0.0
    apart = np.inf
    for period in range(1, min(_FEW_BATCHES, (len(tail) - _CYCLE_ROWS) // 2) + 1):
        off = np.abs(tail[2 * period :] - 2 * tail[period:-period] + tail[: -2 * period])  # a straight drift leaves 0
        same = max(_STEPS_OFF * step, min(_SAME_SHARE * float(np.abs(tail).mean()), _CYCLE_SHARE * apart))
        if period > _MIN_CYCLE and apart > _APART * same and np.quantile(off, _MOST) <= same:
            return period
        apart = min(apart, float(np.median(off)))
    return None


def _exact_period(values: Floats) -> int | None:
    """Rows after which the second half of the losses, or two long periods at their end, repeat digit for digit; None
    where no two periods fit."""
    for p in _repeats_at_end(values, _LONG_PERIOD):
        if (values[-p:] == values[-2 * p : -p]).all() and len(np.unique(values[-p:])) >= _LONG_PERIOD:
            return p
    tail = values[len(values) // 2 :]
    if len(np.unique(tail)) < 3:
        return None
    periods = _repeats_at_end(tail, 2)
    return next((p for p in periods if (tail[p:] == tail[:-p]).all() and len(np.unique(tail[:p])) >= 3), None)


def _repeats_at_end(values: Floats, shortest: int) -> list[int]:
    """Periods up to half of the values in which the last few of them come again: the only ones to compare as a whole,
    which of a million rows would take a minute."""
    periods = np.arange(shortest, len(values) // 2 + 1)
    for place in range(len(values) - 1, max(len(values) - 1 - _LONG_PERIOD, len(values) // 2), -1):
        periods = periods[values[place] == values[place - periods]]
    return [int(period) for period in periods]


def _period(values: Floats) -> int | None:
    """Rows after which what is left of the losses behind their trend comes again, at least four times."""
    if len(values) < 2 * _MIN_PERIODS + 16:
        return None
    trend = np.convolve(np.pad(values, 2, mode="edge"), np.full(5, 0.2), mode="valid")
    rest = (values - trend)[len(values) // 8 :]
    rest = rest - rest.mean()
    spread = 1.4826 * float(np.median(np.abs(rest)))
    if not spread > 1e-4 * float(np.abs(values).mean()):
        return None  # rounding alone
    rest = np.clip(rest, -4 * spread, 4 * spread)
    spectrum = np.abs(np.fft.rfft(rest, 2 * len(rest))) ** 2
    again = np.fft.irfft(spectrum)[: len(rest) // _MIN_PERIODS]
    again = again / np.arange(len(rest), len(rest) - len(again), -1) * len(rest) / again[0]
    strong = np.flatnonzero(again[3:-1] >= _REPEATS) + 3
    if not strong.size:
        return None
    # What only wanders is nearly as alike one row earlier and later.
    neighbor = max(float(again[strong[0] - 1]), float(again[strong[0] + 1]))
    return int(strong[0]) if neighbor < _REPEATS / 2 else None

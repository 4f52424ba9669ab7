"""What the training itself shows: losses, gradients and gates that are not those of a healthy run."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from validator.diagnose.rule import Diagnosis, RunFacts, Severity, as_number, evidence, hit_evidence, rule
from validator.judge.config import is_coarse
from validator.model.columns import OF_VALIDATION
from validator.model.result import Floats, Series
from validator.model.runbook import Watchdog
from validator.stats.means import ROUNDED_NORM, fell, print_step, says_nsa
from validator.text import format_number, format_percent

_VOCABULARIES = (256, 257, 258, 259, 260, 320, 384, 512, 32000, 32768, 50257, 50304, 65536, 100277, 128256, 151936)

_FLOOR_TOLERANCE_NAT = 0.02
_START_NAT = 1.0
"""How far above ln V a model begins at most; one that began higher has another vocabulary."""

_SAME_ROWS = 20
_SAME_COARSE_ROWS = 100
"""Rows from which losses of two decimals that are all the same are no chance either."""

_AT_ONCE = 0.1
"""The last learning rate before 0, as a share of the largest, from which it was switched off and not printed as 0."""

_SKIPPED = re.compile(r"\bstep=(?P<step>\d+), skipped=(?P<skipped>\d+)")
_SKIPPED_SHARE = 0.1
"""Share of the steps that an optimizer skips at least to be named, and does at most where it skips nearly all."""

_REPEATS = 0.7
_MIN_PERIODS = 4
_MIN_CYCLE, _CYCLE_ROWS, _MOST, _APART = 2, 18, 0.8, 1.8
"""The period that two tasks by turns have too, rows that are compared with those a period before and behind, the share
that must come again, since the end of an epoch shifts them, and how many times farther neighbors must be apart."""

_CYCLE_SHARE, _SAME_SHARE, _STEPS_OFF = 0.2, 1e-3, 1.5
"""How near what comes again must be: as a share of what neighbors differ by, of the loss, and in steps of its print."""

_SMOOTH_ROWS = 60
"""Rows in which a loss that falls to half shows the scatter of its batches."""

_FEW_BATCHES, _BY_HEART = 16, 0.1
"""Steps after which the same batches come again, up to which they are few, and the share of the first losses below
which they are learned by heart."""


@rule("zero-grad", "veto", of="run")
def zero_grad(run: RunFacts) -> Iterator[Diagnosis]:
    """A gradient norm of exactly zero: nothing is learned (information where the loss falls: it is not measured)."""
    series, loss = run.series("grad_norm"), run.series("loss")
    if series is None:
        return
    zero = series.values == 0
    at = _strikes(series, zero, min(2, len(series.values)))
    if at is None:
        return
    share = float(zero.mean())
    there = np.isin(loss.steps, series.steps[zero]) if loss is not None else np.zeros(0, dtype=np.bool_)
    rounded = float(np.nanmax(series.values)) <= ROUNDED_NORM
    losses = loss.values[there].tolist() if loss is not None and rounded else []
    if fell(losses):
        yield Diagnosis(
            f"The gradient norm is 0 in {format_percent(share)} of all rows while the loss falls from "
            f"{format_number(losses[0])} to {format_number(losses[-1])}: the norm is not measured, "
            "and nothing is known of gradients.",
            severity="info",
            because=[evidence(f"grad_norm 0 in {int(zero.sum())} rows", series.source.path)],
            next_step="Log the norm that clip_grad_norm_ returns (DeepSpeed: get_global_grad_norm() after a step), or "
            "leave the column out.",
        )
        return
    yield Diagnosis(
        f"The gradient norm is exactly zero at step {at} and in {format_percent(share)} of all rows: "
        "nothing is learned.",
        because=[evidence(f"grad_norm 0 in {int(zero.sum())} rows", series.source.path, f"step {at}")],
        next_step="Look for a detached loss, frozen parameters, or a loss scale that underflows; train one step on one "
        "process and print each parameter's gradient norm.",
    )


@rule("zero-grad", "veto", of="run")
def steps_skipped(run: RunFacts) -> Iterator[Diagnosis]:
    """The optimizer skips its steps, as DeepSpeed counts them: a veto for nearly all, a warning from a tenth on."""
    counts = [found for line in run.result.log_tail if (found := _SKIPPED.search(line)) is not None]
    if not run.training or not counts:
        return
    done, skipped = (int(counts[-1][name]) for name in ("step", "skipped"))
    if done < _SAME_ROWS or skipped < _SKIPPED_SHARE * done:
        return
    nearly_all = skipped >= (1 - _SKIPPED_SHARE) * done
    yield Diagnosis(
        f"The optimizer skipped {skipped:,} of {done:,} steps: "
        + ("nothing is learned." if nearly_all else "that much of the data is not learned from."),
        severity="veto" if nearly_all else "warning",
        because=[evidence(counts[-1][0], run.result.log_path, f"step {done}")],
        next_step="Look for gradients of NaN or infinity, which no loss scale mends (OVERFLOW in the log); train in "
        "bf16, or lower initial_scale_power where the scale only begins too high.",
    )


def _strikes(series: Series, bad: npt.NDArray[np.bool_], strikes: int) -> int | None:
    """Step of the last of the first `strikes` consecutive bad rows."""
    run_length = 0
    for step, flag in zip(series.steps, bad, strict=True):
        run_length = run_length + 1 if flag else 0
        if run_length >= strikes:
            return int(step)
    return None


@rule("zero-grad", "veto", of="run")
def nothing_learned(run: RunFacts) -> Iterator[Diagnosis]:
    """A learning rate of zero throughout or, all at once, for the later half; or a loss that never changes: steps are
    done, and nothing is learned.

    Where the loss falls, a learning rate of zero was rounded; a loss of two decimals may be the same for a while.
    """
    lr, loss = run.series("lr"), run.series("loss")
    if not run.training:
        return
    falls = False
    severity: Severity = "veto"
    if lr is not None and len(lr.values) >= _SAME_ROWS and not lr.values.any():
        said, source = f"The learning rate is 0 in all {len(lr.values)} rows", lr.source.path
        falls = loss is not None and fell(loss.values.tolist())
        severity = "info" if falls else "warning" if loss is None else "veto"
    elif lr is not None and (since := _switched_off(lr)) is not None:
        rows = int((lr.steps >= since).sum())
        source = lr.source.path
        said = f"The learning rate is 0 from step {since} on, in {rows} of {len(lr.values)} rows"
        falls = loss is not None and fell(loss.values[loss.steps >= since].tolist())
        severity = "info" if falls else "warning" if loss is None else "veto"
    elif loss is not None and len(loss.values) >= _SAME_ROWS and (loss.values == loss.values[0]).all():
        said, source = f"The loss is {loss.values[0]:g} in all {len(loss.values)} rows", loss.source.path
        few = len(loss.values) < _SAME_COARSE_ROWS
        severity = "warning" if loss.values[0] and few and is_coarse(loss.values[0]) else "veto"
    else:
        return
    yield Diagnosis(
        f"{said}, while the loss falls: it is written with too few digits."
        if falls
        else f"{said}: nothing is learned, or what is written is not measured.",
        severity=severity,
        because=[evidence(said, source)],
        next_step="Write the learning rate with more digits, such as 3.0e-06."
        if falls
        else "Look at the schedule and at what the trainer logs; require loss.last < loss.first.",
    )


def _switched_off(lr: Series) -> int | None:
    """The step from which a learning rate is 0 to the end, for half of the rows or more; None where it fell to that bit
    by bit, since its last digits are then not printed."""
    used = np.flatnonzero(lr.values)
    if not used.size or not np.isfinite(lr.values).all():
        return None
    first = int(used[-1]) + 1
    off = len(lr.values) - first
    if off < max(_SAME_ROWS, first) or lr.values[used[-1]] < _AT_ONCE * lr.values.max():
        return None
    return int(lr.steps[first])


@rule("gate-collapse", "veto", of="run")
def gate_collapse(run: RunFacts) -> Iterator[Diagnosis]:
    """The gates send nearly everything through one branch."""
    limits = run.spec.watchdog or Watchdog()
    if not (says_nsa(dict(run.effective)) if limits.gates is None else limits.gates):
        return  # columns of these names that another trainer writes may mean anything
    for name, side, limit, text in (
        ("gate_entropy_mean", -1, limits.gate_entropy_min, "gate entropy below"),
        ("gate_max_gate", 1, limits.gate_max, "largest gate above"),
        ("gate_collapse_frac", 1, limits.gate_collapse_frac, "collapsed share above"),
    ):
        series = run.series(name)
        if series is None:
            continue
        bad = side * series.values > side * limit
        at = _strikes(series, bad, limits.gate_strikes)
        if at is None:
            continue
        lasting: Severity = "veto" if bad[-1] else "warning"
        yield Diagnosis(
            f"The gates collapsed: {text} {limit:g} in {limits.gate_strikes} consecutive rows by step {at}"
            + (", to the end." if bad[-1] else ", and recovered later."),
            severity=lasting,
            because=[evidence(f"{name} is {series.values[-1]:.3g} at the end", series.source.path, f"step {at}")],
            next_step="Compare gate_branch_shares over time; lower the gates' learning rate or initialize them at "
            "equal shares, and check that every branch gets a gradient.",
        )
        return


@rule("random-data-floor", "warning", of="run")
def random_data_floor(run: RunFacts) -> Iterator[Diagnosis]:
    """A loss that stays at ln V has learned that all tokens are equally likely, which is not convergence.

    V is the vocabulary in use. Where it is not reported, a customary one is taken only if the loss began near its ln V.
    """
    series = run.series("loss")
    if not run.training or series is None or len(series.values) < 20:
        return
    tail = series.values[-max(10, len(series.values) // 2) :]
    if not np.isfinite(tail).all():
        return
    halves = [float(half.mean()) for half in np.array_split(tail, 2)]
    known = _vocabularies(run)
    start = float(np.median(series.values[: max(3, len(series.values) // 20)]))
    likely = known or [v for v in _VOCABULARIES if start <= math.log(v) + _START_NAT]
    floor = next((v for v in likely if all(abs(h - math.log(v)) <= _FLOOR_TOLERANCE_NAT for h in halves)), None)
    if floor is None or float(tail.std()) > 5 * _FLOOR_TOLERANCE_NAT:
        return
    uniform = str(run.setting("data", "dataset") or "").lower() in ("uniform", "random")
    yield Diagnosis(
        f"The loss stays at {halves[1]:.3f}, which is ln {floor:.0f}: that of guessing among all tokens"
        + (", as uniform random data allow no other." if uniform else "."),
        severity="info" if uniform else "warning",
        confidence="high" if known else "medium",
        because=[evidence(f"means of the last two quarters {halves[0]:.4f} and {halves[1]:.4f}", series.source.path)],
        next_step="Do not read this as convergence; train on data that can be learned (data: synthetic or local) and "
        "require loss.last < loss.first.",
    )


def _vocabularies(run: RunFacts) -> list[float]:
    """Tokens in use by the tokenizer, and by the model, which may be padded."""
    tokenizer = run.environment.get("tokenizer")
    own = as_number(tokenizer.get("vocab_size")) if isinstance(tokenizer, dict) else None
    return [v for v in (own, run.number("vocab_size", "padded_vocab_size", "n_vocab")) if v is not None and v > 1]


@rule("repeated-data", "veto", of="run")
def repeated_data(run: RunFacts) -> Iterator[Diagnosis]:
    """The losses repeat with a period: digit for digit nothing is learned from data that come again, else few data,
    which is a veto where a few batches are learned by heart; or they fall without any scatter between batches."""
    loss = run.series("loss")
    if not run.training or loss is None:
        return
    values = loss.values[np.isfinite(loss.values)]
    exact, period, cycle = _exact_period(values), None, None
    if exact is None:
        cycle = _cycle(values)
        period = cycle or _period(values)
    if exact is None and period is None:
        yield from _without_scatter(run, loss, values)
        return
    by_heart = ""
    if exact is None and period is not None and period * int(np.median(np.diff(loss.steps))) <= _FEW_BATCHES:
        begins, ends = float(values[:period].mean()), float(values[-period:].mean())
        if 0 <= ends < _BY_HEART * begins:
            by_heart = f" They are learned by heart: the loss ends at {format_number(ends)} of {format_number(begins)}."
    yield Diagnosis(
        f"The losses repeat digit for digit every {exact} rows: the same batches come again, and nothing is learned."
        if exact is not None
        else f"The losses go up and down alike every {period} rows, as when the same {period} batches come again."
        f"{by_heart}",
        severity="veto" if by_heart else "warning" if exact or cycle else "info",
        confidence="high" if exact or cycle else "medium",
        because=[evidence(f"period of {exact or period} rows in {values.size}", loss.source.path)],
        next_step="Look at the sampler and at how many batches the data hold: a loss that falls on a few batches is "
        "memory, not learning.",
    )


def _without_scatter(run: RunFacts, loss: Series, values: Floats) -> Iterator[Diagnosis]:
    """A loss that falls to half and never rises by more than its last decimal: of one batch, or of all data in each
    step. A warning where the loss of a validation ends at twice as much and above its own minimum."""
    if len(values) < _SMOOTH_ROWS or not 0 < values[-1] <= values[0] / 2:
        return
    changes = np.diff(values)
    mean_of = values[1:] + np.arange(1, len(values)) * changes  # what would be averaged, were it a running mean
    if changes.max() > max(_STEPS_OFF * print_step(values), _SAME_SHARE / 10 * values[-1]) or mean_of.min() >= 0:
        return
    series = run.result.series
    found = next((series[name] for name in OF_VALIDATION if name in series and len(series[name].values) > 1), None)
    above = found is not None and found.values[-1] > max(2 * values[-1], found.values.min())
    beside = ""
    if found is not None and above:
        ends, low = format_number(float(found.values[-1])), format_number(float(found.values.min()))
        beside = f" {found.name} ends at {ends}, and its minimum is {low}: the batch is learned by heart."
    fell_to = f"from {format_number(float(values[0]))} to {format_number(float(values[-1]))}"
    yield Diagnosis(
        f"The loss falls {fell_to} without any scatter from row to row, as when each step has the same batch, or all "
        f"of the data.{beside}",
        severity="warning" if above else "info",
        confidence="medium",
        because=[evidence(f"largest rise from row to row {float(changes.max()):.2g}", loss.source.path)],
        next_step="Look at the sampler: different batches have different losses. If each step has all of the data, "
        "judge by the loss of a validation.",
    )


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
    """Rows after which the second half of the losses repeats digit for digit; None where no two periods fit."""
    tail = values[len(values) // 2 :]
    if len(np.unique(tail)) < 3:
        return None
    return next(
        (p for p in range(2, len(tail) // 2 + 1) if (tail[p:] == tail[:-p]).all() and len(np.unique(tail[:p])) >= 3),
        None,
    )


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


@rule("dead-parameter", "warning", of="run")
def dead_parameter(run: RunFacts) -> Iterator[Diagnosis]:
    """Parameters that never get a gradient."""
    for name in ("dead_parameters", "dead_params", "params_without_grad", "unused_parameters"):
        value = run.environment.get(name)
        count = len(value) if isinstance(value, list) else run.scalar(f"metrics.{name}")
        if count:
            listed = ", ".join(map(str, value[:4])) if isinstance(value, list) else ""
            yield Diagnosis(
                f"{count:.0f} parameters never got a gradient{': ' + listed if listed else ''}.",
                because=[evidence(f"{name}: {listed or f'{count:.0f}'}")],
                next_step="Find why the branch they belong to does not reach the loss; freeze or remove them if meant.",
            )
            return
    hits = run.hits("dead_parameter")
    if hits:
        yield Diagnosis(
            "The log names parameters that got no gradient.",
            confidence="medium",
            because=[hit_evidence(hit) for hit in hits[:3]],
            next_step="List the parameters whose .grad is None after one backward pass on one process.",
        )


@rule("fused-unstable", "warning", of="run")
def fused_unstable(run: RunFacts) -> Iterator[Diagnosis]:
    """With the fused optimizer the run diverges, or its rate breaks down after it had been up."""
    value = run.setting("opt_fused", "fused", "fused_adamw")
    value = run.variable("NSA_OPT_FUSED") if value is None else value
    if not run.training or str(value).strip().lower() not in ("1", "true", "on", "yes"):
        return
    loss, rate = run.series("loss"), run.series("toks_per_s")
    broken = loss is not None and not np.isfinite(loss.values).all()
    fell = False
    if rate is not None and len(rate.values) >= 3:
        values = rate.values[np.isfinite(rate.values)]
        last = values[-max(1, len(values) // 4) :]
        fell = bool(values.size >= 3 and np.median(last) < 0.5 * values.max())
    hung = run.outcome is not None and run.outcome.reason == "stalled"
    if not (broken or fell or hung):
        return
    what = "the loss is not finite" if broken else "the run stalled" if hung else "the rate broke down"
    shown = rate if fell and rate is not None else loss
    yield Diagnosis(
        f"With the fused optimizer {what}"
        + (f": {rate.values.max():.0f} tok/s at best, {rate.values[-1]:.0f} at the end." if fell and rate else "."),
        confidence="medium" if broken or hung else "low",
        because=[evidence(f"fused optimizer {value}", shown.source.path if shown is not None else None)],
        next_step="Repeat with NSA_OPT_FUSED unset, interleaved at least four times each; keep it unset until the "
        "fused arm is as steady.",
    )

"""What the training itself shows: losses, gradients and gates that are not those of a healthy run."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from validator.diagnose.divergence import around_zero, diverging
from validator.diagnose.loss_curve import frozen_validation
from validator.diagnose.rule import Diagnosis, RunFacts, Severity, as_number, evidence, hit_evidence, rule
from validator.judge.config import is_coarse
from validator.model.logged_names import is_reward
from validator.model.result import Series
from validator.model.runbook import Watchdog
from validator.stats.means import ROUNDED_NORM, fell, print_step, says_nsa, trend
from validator.text import format_number, format_percent

_VOCABULARIES = (256, 257, 258, 259, 260, 320, 384, 512, 32000, 32768, 50257, 50304, 65536, 100277, 128256, 151936)

_FLOOR_TOLERANCE_NAT = 0.02
_START_NAT = 1.0
"""How far above ln V a model begins at most; one that began higher has another vocabulary."""

_SAME_ROWS = 20
_SAME_COARSE_ROWS = 100
"""Rows from which losses of two decimals that are all the same are no chance either."""

_STILL_ROWS, _STILL, _STILL_DIGITS, _ENDED = 40, 0.95, 200.0, 1e-4
"""Rows of a run, and the share of its second half with one loss, from which it stands still; how many steps of its
print such a loss has at least; and the share of its maximum at which a learning rate has all but ended."""

_CLEAR_ERRORS, _CLEAR_RISE = 5.0, 0.1
"""By how much the last third of a loss lies above the first if it rises: in errors of that, and as a share."""

_LEVEL_ROWS, _LEVEL_TREND = 100, 2.0
"""Rows from which a loss that does not fall is named, and Mann and Kendall's statistic of a fall at most."""

_AT_ONCE = 0.1
"""The last learning rate before 0, as a share of the largest, from which it was switched off and not printed as 0."""

_SKIPPED = re.compile(r"\bstep=(?P<step>\d+), skipped=(?P<skipped>\d+)")
_SKIPPED_SHARE = 0.1
"""Share of the steps that an optimizer skips at least to be named, and does at most where it skips nearly all."""


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
    """The optimizer skips its steps, as DeepSpeed counts them: a veto for nearly all of the run or of its later half, a
    warning from a tenth on."""
    lines = [hit.text for hit in run.hits("skipped_steps")]
    found = [match for line in lines if (match := _SKIPPED.search(line)) is not None]
    if not run.training or not found:
        return
    counts = [(int(match["step"]), int(match["skipped"])) for match in found]
    done, skipped = max(counts)
    half, before = max((count for count in counts if 2 * count[0] <= done), default=(0, 0))
    if done < _SAME_ROWS or skipped < _SKIPPED_SHARE * done:
        return
    nearly_all = skipped >= (1 - _SKIPPED_SHARE) * done
    late = done - half >= _SAME_ROWS and skipped - before >= (1 - _SKIPPED_SHARE) * (done - half)
    yield Diagnosis(
        f"The optimizer skipped {skipped:,} of {done:,} steps"
        + (
            ": nothing is learned."
            if nearly_all
            else f", and {skipped - before:,} of the last {done - half:,}: nothing is learned any more."
            if late
            else ": that much of the data is not learned from."
        ),
        severity="veto" if nearly_all or late else "warning",
        because=[evidence(found[counts.index((done, skipped))][0], run.hits("skipped_steps")[0].path, f"step {done}")],
        next_step="Look for gradients of NaN or infinity, which no loss scale mends (OVERFLOW in the log); train in "
        "bf16, or lower initial_scale_power where the scale only begins too high.",
    )


@rule("zero-grad", "veto", of="run")
def updates_skipped(run: RunFacts) -> Iterator[Diagnosis]:
    """Lines behind a tenth of the rows or more say that an update was skipped; the first quarter, in which a loss scale
    is found out, does not count."""
    places, loss = run.evidence.places, run.series("loss")
    if not run.training or loss is None or places is None or not places.skipped or run.hits("skipped_steps"):
        return
    rows = len(places.steps)
    first = rows // 4
    skipped = [row for row in places.skipped if row >= first]
    if rows - first < _SAME_ROWS or len(skipped) < _SKIPPED_SHARE * (rows - first):
        return
    nearly_all = len(skipped) >= (1 - _SKIPPED_SHARE) * (rows - first)
    at = int(places.steps[skipped[0]])
    yield Diagnosis(
        f"The log says of {len(skipped):,} of the last {rows - first:,} rows that an update was skipped: "
        + ("nothing is learned any more." if nearly_all else "that much of the data is not learned from."),
        severity="veto" if nearly_all else "warning",
        because=[evidence(f"an update skipped in {len(skipped)} rows", places.path, f"step {at}")],
        next_step="Look for gradients of NaN or infinity, which no loss scale mends; train in bf16, or let the loss "
        "scale grow less often.",
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


@rule("zero-grad", "warning", of="run")
def loss_stands_still(run: RunFacts) -> Iterator[Diagnosis]:
    """A loss that is the same to its last digit in nearly all rows of the second half, where the learning rate has all
    but ended: the weights no longer move. A loss alone may have settled."""
    loss, lr = run.series("loss"), run.series("lr")
    values = np.array([]) if loss is None else loss.values[np.isfinite(loss.values)]
    if not run.training or loss is None or lr is None or len(values) < _STILL_ROWS:
        return
    if not 0 <= float(np.median(lr.values[len(lr.values) // 2 :])) < _ENDED * float(lr.values.max()):
        return
    half = values[len(values) // 2 :]
    usual = float(np.median(half))
    same = float((half == usual).mean())
    if same < _STILL or abs(usual) < _STILL_DIGITS * print_step(values) or (values == usual).all():
        return
    yield Diagnosis(
        f"The loss is {usual:.10g} in {format_percent(same)} of the {len(half)} rows of the second half: the weights "
        "no longer move.",
        severity="warning",
        because=[evidence(f"loss = {usual:.10g}, row after row", loss.source.path)],
        next_step="Look at the learning rate's schedule, which may have ended, and at what is frozen; a longer run "
        "like this one learns nothing more.",
    )


@rule("zero-grad", "info", of="run")
def level_loss(run: RunFacts) -> Iterator[Diagnosis]:
    """A loss that does not fall over a hundred rows or more: weights that do not move give such a one, and so does a
    model that has nothing more to learn from these data."""
    loss = run.series("loss")
    if not run.training or loss is None or any(is_reward(name) for name in run.result.series):
        return
    values = loss.values[np.isfinite(loss.values)]
    if len(values) < max(_LEVEL_ROWS, 0.9 * len(loss.values)) or around_zero(values) or not np.ptp(values):
        return
    losses = values.tolist()
    if fell(losses) or trend(losses) < -_LEVEL_TREND:
        return
    of_the_same = (diverging, random_data_floor, zero_grad, steps_skipped, nothing_learned, frozen_validation)
    if any(next(other.look(run), None) is not None for other in of_the_same):
        return  # they say why
    first, last = values[: len(values) // 3], values[-(len(values) // 3) :]
    error = 2 * math.sqrt((first.var() + last.var()) / len(first))
    rise = float(last.mean() - first.mean())
    rises = rise > max(_CLEAR_ERRORS * error, _CLEAR_RISE * abs(float(first.mean())))
    yield Diagnosis(
        f"The loss {'rises' if rises else 'does not fall'} in {len(values)} rows: {format_number(float(first.mean()))} "
        f"in the first third, {format_number(float(last.mean()))} in the last, where a fall of {error:.2g} would show.",
        severity="warning" if rises else "info",
        because=[evidence(f"means of {len(first)} rows each", loss.source.path)],
        next_step="If this model should learn from these data, look at whether its weights move: print a parameter "
        "before and after a step, and compare what the optimizer was given with model.parameters(). Require "
        "loss.last < loss.first.",
    )


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
    printed = as_number(run.evidence.printed_config.get("vocab_size"))
    return [
        v for v in (own, printed, run.number("vocab_size", "padded_vocab_size", "n_vocab")) if v is not None and v > 1
    ]


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

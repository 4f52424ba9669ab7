"""Numbers that a healthy run never writes: NaN and infinity, in the loss, in its words, or in what is beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from validator.diagnose.rule import Diagnosis, RunFacts, Severity, evidence, hit_evidence, rule
from validator.model.columns import OF_EVALUATION
from validator.model.logged_names import logged_name
from validator.model.result import Series
from validator.stats.means import fell
from validator.text import format_number

_NAN_ROWS = 3

_UNMEASURED = 0.9
_RARE, _OFTEN, _MIN_NOT_FINITE = 0.005, 0.02, 3
"""Share of the rows behind the first quarter whose gradient norm is not finite: below the first one as a loss scale
makes it that tries to grow every 500 steps or more; from the second one, and so many rows, a veto. Rows whose norms are
nearly all so show none."""

_JUDGED = ("loss", "grad_norm")
"""Series that have rules of their own."""

_FIRST_ROWS = 5
"""First rows in which a number must be finite: what is not measured in each row, or not yet, is written as NaN too."""

_FIRST_EVALUATIONS = _LAST_EVALUATIONS = 2
"""The same of a loss that is never finite again, and how many rows are not: an evaluation has few. One that is not, the
last of a run, is a warning."""

_OF_LOSS = re.compile(
    r"(?i)loss|perplexity|(?<![a-z])(?:nll|bce|ce|mse|kl|kld|elbo|rec|recon\w*|ppl|grad\w*|norm|entropy)(?![a-z])"
)
_OF_NORM = re.compile(r"(?i)(?<![a-z])grad\w*norm")
"""A norm of gradients: one step that a loss scale skips makes the mean of an epoch infinite."""
_OF_SPEED = re.compile(
    r"(?i)/s|per_s|speed|throughput|(?<![a-z])(?:fps|ips|its|tps|eta|time|dt|mfu|remaining)(?![a-z])"
)
_LOG_RAW = (
    "Log the raw loss of each step, and which steps are skipped. In float16 look at the loss scale, or use bfloat16, "
    "in which no step should have one; else run the batch of such a step alone under "
    "torch.autograd.set_detect_anomaly(True)."
)


@rule("nan-loss", "veto", of="run")
def nan_loss(run: RunFacts) -> Iterator[Diagnosis]:
    """A loss of NaN or infinity, on any rank."""
    ranks = [one["loss"] for one in run.result.rank_series.values() if "loss" in one]
    for series in ([run.result.series["loss"]] if "loss" in run.result.series else []) + ranks:
        bad = np.flatnonzero(~np.isfinite(series.values))
        if not bad.size:
            continue
        at = int(series.steps[bad[0]])
        before = series.values[: bad[0]]
        last = f"; the last finite loss was {format_number(before[-1])}" if before.size else ""
        yield Diagnosis(
            f"The loss is {series.values[bad[0]]} from step {at} on rank {series.rank}{last}.",
            because=[evidence(f"{bad.size} of {len(series.values)} rows not finite", series.source.path, f"step {at}")],
            next_step="Run again from before that step in fp32 with a lower learning rate and gradient clipping; if it "
            "stays, look at that step's batch.",
        )
        return
    yield from _said_in_words(run, written=bool(ranks) or run.series("loss") is not None)


def _said_in_words(run: RunFacts, *, written: bool) -> Iterator[Diagnosis]:
    """A loss that only the log's words say not to be finite. `written`: whether there is a loss by steps, all finite.

    Then the words count where the run ended before its time, since it may have gone on behind a value that it names,
    where row after row of a table has it, or where more lines name it than there are rows of a loss: the loss by steps
    is then another number, or of a part of the log.
    """
    ended = run.failed or run.ended_early
    loss = run.series("loss")
    rows = 0 if loss is None else len(loss.steps)
    if len(run.hits("nan_row")) >= _NAN_ROWS or len(run.hits("nan_loss")) > max(_NAN_ROWS, rows):
        written = False
    kinds = (*(("nan_loss",) if ended or not written else ()), *(("nan_words",) if ended else ()))
    said = {hit.text: hit for kind in kinds for hit in run.hits(kind)}
    if not run.training or not said:
        return
    end = f", and the run ended after {format_number(run.steps_done or 0.0)} steps" if ended else ""
    yield Diagnosis(
        f"The log has a loss or a perplexity that is not finite{end}; no row of a loss by steps shows it.",
        because=[hit_evidence(hit) for hit in list(said.values())[:3]],
        next_step="Run again from before that step in fp32 with a lower learning rate and gradient clipping; if it "
        "stays, look at that step's batch."
        if ended
        else "Log the loss of each step, as the trainer's own settings allow, and run again: from which step "
        "on it is NaN is not known.",
    )


@rule("nonfinite-values", "veto", of="run")
def nonfinite_values(run: RunFacts) -> Iterator[Diagnosis]:
    """Gradient norms, or other numbers, that are NaN or infinite again and again where the loss stays finite.

    A warning where they are few, or no loss by their name; information at the start, and as rare as a loss scale that
    tries to grow makes them.
    """
    loss = run.series("loss")
    if not run.training or (loss is not None and not np.isfinite(loss.values).all()):
        return
    norm = run.series("grad_norm")
    if norm is not None and not np.isfinite(norm.values).all():
        yield _norms_not_finite(norm, loss)
    others = sorted(_others_not_finite(run), key=lambda one: one.severity != "veto")
    yield from others[:1]


def _norms_not_finite(norm: Series, loss: Series | None) -> Diagnosis:
    bad = ~np.isfinite(norm.values)
    said = f"The gradient norm is not finite in {int(bad.sum())} of {bad.size} rows"
    last = int(norm.steps[np.flatnonzero(bad)[-1]])
    because = [evidence(said, norm.source.path, f"step {last}")]
    losses = loss.values[np.isin(loss.steps, norm.steps[bad])].tolist() if loss is not None else []
    if bad.mean() >= _UNMEASURED and fell(losses):
        return Diagnosis(
            f"{said} while the loss falls: the norm is not measured, and nothing is known of gradients.",
            severity="info",
            because=because,
            next_step="Log the norm that clip_grad_norm_ returns (DeepSpeed: get_global_grad_norm() after a step), or "
            "leave the column out.",
        )
    late = bad[bad.size // 4 :]
    often = float(late.mean())
    severity: Severity = "info" if often < _RARE else "warning"
    if often >= _OFTEN and late.sum() >= _MIN_NOT_FINITE:
        severity = "veto"
    why = (
        "as a loss scale makes them that is being found out, or tries to grow"
        if severity == "info"
        else "these steps are skipped, or their loss is written without what is not finite"
    )
    return Diagnosis(
        f"{said}, the last at step {last}, and the loss that is written stays finite: {why}.",
        severity=severity,
        because=because,
        next_step=_LOG_RAW,
    )


def _others_not_finite(run: RunFacts) -> Iterator[Diagnosis]:
    """Series, and numbers of printed lines that no series has, which are finite at first and later often not, up to the
    end. Not the speed, which a burst of lines makes infinite, nor what is not measured in each row."""
    known = {name: ~np.isfinite(one.values) for name, one in run.result.series.items() if name not in _JUDGED}
    steps = {name: run.result.series[name].steps for name in known}
    places = run.evidence.places
    if places is not None:
        for name, rows in places.not_finite.items():
            if logged_name(name) not in (*known, *_JUDGED):
                known[name], steps[name] = np.isin(np.arange(len(places.steps)), rows), places.steps
    for name, bad in known.items():
        at = np.flatnonzero(bad)
        lost = bool(_OF_LOSS.search(name)) and at.size and at[0] >= _FIRST_EVALUATIONS and at.size == bad.size - at[0]
        fewest = _MIN_NOT_FINITE if not lost else 1 if name.rpartition(".")[2] in OF_EVALUATION else _LAST_EVALUATIONS
        few = at.size < max(fewest, _OFTEN * bad.size)
        skipped = _OF_NORM.search(name) and not bad[-_NAN_ROWS:].all()
        own = name.startswith("telemetry.") or _OF_SPEED.search(name)
        if own or few or (at[-1] < 0.75 * bad.size and not lost):
            continue
        if at[0] < _FIRST_ROWS and not lost:
            continue
        said = f"{name} is not finite in {at.size} of {bad.size} rows, from step {steps[name][at[0]]} on"
        yield Diagnosis(
            f"{said}, and was before" + (", while the loss stays finite." if run.series("loss") is not None else "."),
            severity="veto" if _OF_LOSS.search(name) and at.size >= _LAST_EVALUATIONS and not skipped else "warning",
            because=[evidence(said, run.source(name) or (places.path if places is not None else None))],
            next_step=_LOG_RAW,
        )

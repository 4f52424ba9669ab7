"""Figures held against what the trainer does not write itself: the clock, the hardware, and plain arithmetic.

A trainer's rate is its own word. That it echoes the settings that were asked for proves nothing either. But tokens take
time, which the heartbeats and the supervisor measure; weights take memory; and each rank is a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from validator.diagnose.facts import MICRO_BATCHES, RunFacts, ValidationFacts, as_number
from validator.diagnose.rule import Severity, evidence, found, percent
from validator.judge.window import covered_steps
from validator.model.result import Series
from validator.model.verdict import Finding

__all__ = [
    "beyond_the_hardware",
    "copied_figures",
    "one_process_for_all",
    "ran_on_cpu",
    "too_few_parameters",
    "tokens_counted_otherwise",
    "unused_gpu",
    "wall_clock_disagrees",
]

Floats = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int64]

_LEAST_SPAN_S = 5.0
"""Wall time below which a busy machine's delays outweigh what a trainer claims."""

_LEAST_CLAIM_S = 1.0
"""The same of the time that is claimed."""

_LEAST_OFF_S = 1.0
"""Difference that the moments at which records are written may make."""

_TOO_FAST, _TOO_SLOW, _NOTABLE = 1.1, 1.33, 1.05
"""Time that passed over time claimed, and the other way round, beyond which a figure is not of this run. A rate that is
claimed too high may pass a bound that it misses, so less of it is borne."""

_MOST_PAUSES = 0.1
"""Share of the steps at which a run may have been resumed."""

_SLACK_S, _SLACK = 2.0, 1.05
_COPY_ROWS, _COPY_VALUES = 20, 5
"""Rows, and different values among them, from which two runs do not measure the same by chance."""

_SAMPLES = 5
"""Samples of the machine from which a GPU that never worked is told from one that was not looked at."""

_PEAK_SLACK = 1.05
_PARAMETER_SLACK = 0.5


@dataclass(frozen=True)
class _Claim:
    """Time per step, `seconds [n]` at `steps [n]`, that follows from a series.

    `whole` says that it counts whatever ran in between, as a rate does; a time per step may leave out validation.
    `most` says that no step can have had more tokens than this rests on, so it took as long or less.
    """

    series: Series
    seconds: Floats
    whole: bool
    most: bool = False

    @property
    def steps(self) -> Steps:
        """Steps of the rows."""
        return self.series.steps

    def total_s(self, first: int, last: int) -> float:
        """Time claimed for the steps after `first` up to `last`."""
        inside = (self.steps > first) & (self.steps <= last)
        return float((covered_steps(self.steps) * self.seconds)[inside].sum())


def _claims(run: RunFacts) -> Iterator[_Claim]:
    """What the trainer's rate, and its time per step, say that a step took."""
    derived = run.result.extra.get("derived", ())
    accounts = (as_number(account.get("tokens_per_step")) for account in (run.environment, run.ran))
    told = next((tokens for tokens in accounts if tokens is not None and tokens > 0), None)
    tokens = _most_tokens(run) if told is None else told
    rate, times = run.series("toks_per_s"), run.series("step_time_s")
    if rate is not None and tokens and "toks_per_s" not in derived and _sound(rate):
        yield _Claim(rate, tokens / rate.values, whole=True, most=told is None)
    if times is not None and "step_time_s" not in derived and _sound(times):
        yield _Claim(times, times.values, whole=False)


def _sound(series: Series) -> bool:
    return bool((np.isfinite(series.values) & (series.values > 0)).all())


def wall_clock_disagrees(run: RunFacts) -> Iterator[Finding]:
    """A rate or a time per step that the clocks contradict: of other units, other tokens, or another run."""
    if not run.training or run.failed:
        return
    for claim in _claims(run):
        finding = _beside_heartbeat(run, claim) or _beside_duration(run, claim)
        if finding is not None:
            yield finding
            return


def _beside_heartbeat(run: RunFacts, claim: _Claim) -> Finding | None:
    """What was claimed against the time between the heartbeat's records of the same steps, behind warm-up."""
    steps, seconds = run.result.extra.get("step_times_s", (np.empty(0), np.empty(0)))
    both, rows, at = np.intersect1d(claim.steps, steps, return_indices=True)
    late = both > run.spec.warmup_steps
    if late.sum() < 3 or any("wall clock" in str(w["reason"]) for w in run.result.extra.get("invalid_windows", ())):
        return None
    both, rows, moments = both[late], rows[late], seconds[at[late]]
    passed_s, claimed_s = float(moments[-1] - moments[0]), claim.total_s(int(both[0]), int(both[-1]))
    for place in _pauses(moments, run.result.extra.get("resumed_s", ())):
        passed_s -= float(moments[place + 1] - moments[place])
        claimed_s -= claim.total_s(int(both[place]), int(both[place + 1]))
    if not claim.whole:
        # Medians, since single steps may hold what a time per step leaves out.
        covered = float(both[-1] - both[0])
        passed_s = covered * float(np.median(np.diff(moments) / np.diff(both)))
        claimed_s = covered * float(np.median(claim.seconds[rows]))
    if min(passed_s, moments[-1] - moments[0]) < _LEAST_SPAN_S and claimed_s < _LEAST_SPAN_S:
        return None
    if abs(passed_s - claimed_s) < _LEAST_OFF_S or claimed_s < _LEAST_CLAIM_S or passed_s <= 0:
        return None
    ratio = passed_s / claimed_s
    if 1 / _TOO_SLOW < ratio < _NOTABLE or (claim.most and ratio < 1):
        return None
    certain = ratio >= _TOO_FAST or ratio <= 1 / _TOO_SLOW
    passed = f"steps {both[0] + 1} to {both[-1]} took {passed_s:,.1f} s by the heartbeat's clock"
    return _contradicted(claim, passed, claimed_s, passed_s, severity="veto" if certain else "warning")


def _pauses(moments: Floats, resumed_s: Sequence[float]) -> list[int]:
    """Places `i` between whose moments, `i` and `i + 1`, another process went on; no claim covers how long the run had
    rested. No place at all where there are so many that they are no pauses any more."""
    places = sorted({int(np.searchsorted(moments, at)) - 1 for at in resumed_s if moments[0] < at <= moments[-1]})
    return places if len(places) <= _MOST_PAUSES * (len(moments) - 1) else []


def _beside_duration(run: RunFacts, claim: _Claim) -> Finding | None:
    """What was claimed against the time that the supervisor measured for everything, start-up included."""
    if run.outcome is None or claim.most:
        return None
    duration_s, claimed_s = run.outcome.duration_s, claim.total_s(int(claim.steps[0]), int(claim.steps[-1]))
    if claimed_s <= _SLACK * duration_s + _SLACK_S:
        return None
    passed = f"the whole run took {duration_s:,.1f} s by the supervisor's clock"
    return _contradicted(claim, passed, claimed_s, max(duration_s, 1e-3), severity="veto")


def _contradicted(claim: _Claim, passed: str, claimed_s: float, passed_s: float, *, severity: Severity) -> Finding:
    name = claim.series.name
    factor = max(claimed_s, passed_s) / min(claimed_s, passed_s)
    way = "fast" if claimed_s < passed_s else "slow"
    return found(
        "unit-mismatch",
        f"By its {name} the trainer needed {claimed_s:,.1f} s, yet {passed}: {name} is of a run {factor:.3g} times as "
        f"{way}.",
        severity=severity,
        confidence="high" if severity == "veto" else "medium",
        because=[evidence(f"{name} adds up to {claimed_s:,.1f} s", claim.series.source.path), evidence(passed)],
        next_step="Look at the unit of the time, at how tokens are counted (tokens_per_step, ranks, accumulation), and "
        "at what the timer leaves out (data, logging, validation); or the rows are not of this run.",
    )


def _most_tokens(run: RunFacts) -> float | None:
    """Tokens that a step has at most by the effective settings; None where they do not say, or tell of no ranks."""
    length, batch = (as_number(run.ran.get(name)) for name in ("seq_len", "batch_size"))
    if not length or not batch:
        return None
    micro = max((n for name in MICRO_BATCHES if (n := as_number(run.ran.get(name)))), default=1.0)
    most = max(length * batch * max(1.0, micro) * run.world_size, length * (run.number("global_batch_size") or 0.0))
    return most if most > 0 else None


def tokens_counted_otherwise(run: RunFacts) -> Iterator[Finding]:
    """More tokens a step than the effective settings can give: ranks or micro-batches counted twice; or no tokens."""
    told, most = as_number(run.environment.get("tokens_per_step")), _most_tokens(run)
    if not run.training or told is None:
        return
    if told <= 0:
        yield found(
            "unit-mismatch",
            f"tokens_per_step is {told:g}: a step without tokens trains nothing, and no rate follows from it.",
            severity="veto",
            because=[evidence(f"tokens_per_step {told:g}", None, "tokens_per_step")],
            next_step="Count the tokens of all ranks and micro-batches of an optimizer step; rates follow from them.",
        )
        return
    if most is None or told <= 1.01 * most:
        return
    yield found(
        "unit-mismatch",
        f"tokens_per_step is {told:,.0f}, {told / most:.3g} times what the effective settings give at most "
        f"({most:,.0f}: batch_size × accum × seq_len × ranks).",
        severity="veto",
        because=[evidence(f"tokens_per_step {told:,.0f}, world_size {run.world_size}", None, "tokens_per_step")],
        next_step="Count the tokens of all ranks once, and those of each micro-batch once; rates follow from them.",
    )


def beyond_the_hardware(run: RunFacts) -> Iterator[Finding]:
    """More arithmetic than the GPUs have: the tokens, the FLOPs per token or the peak are wrong."""
    for name in ("mfu_nsa", "mfu_dense_equivalent"):
        series = run.series(name)
        if series is None or name == "mfu_dense_equivalent":  # sparse attention may leave more than a peak undone
            continue
        values = run.inside(series)
        share = float(np.median(values)) if values.size else 0.0
        if share > _PEAK_SLACK:
            yield _too_good(f"{name} of {percent(share)}", series.source.path)
            return


def _too_good(what: str, path: str | None) -> Finding:
    return found(
        "unit-mismatch",
        f"A use of the hardware beyond its peak, {what}, is more than it can do.",
        severity="veto",
        because=[evidence(what, path)],
        next_step="Check the FLOPs per token, the token rate and the peak that was assumed.",
    )


def too_few_parameters(run: RunFacts) -> Iterator[Finding]:
    """Fewer parameters, or less memory, than the effective settings need: they are an echo of what was asked for."""
    told = as_number(run.environment.get("params"))
    layers = next((n for name in ("n_layers", "num_layers", "n_layer") if (n := as_number(run.ran.get(name)))), None)
    width = next(
        (n for name in ("dim", "d_model", "hidden_size", "n_embd") if (n := as_number(run.ran.get(name)))), None
    )
    if not run.training or not told or not layers or not width:
        return
    # Embedding, and in each layer at least one square matrix for attention and one for what follows it.
    least = (as_number(run.ran.get("vocab_size")) or 0.0) * width + 2 * layers * width**2
    if told >= _PARAMETER_SLACK * least:
        return
    yield found(
        "config-ignored",
        f"The trainer has {told:,.0f} parameters, and {layers:.0f} layers of width {width:.0f} need {least:,.0f} at "
        "least: what it tells as its effective config is not what it ran.",
        severity="veto",
        because=[evidence(f"params {told:,.0f}", None, "params")],
        next_step="Let the trainer read `effective` off the model that it built, not off its arguments.",
    )


def one_process_for_all(run: RunFacts) -> Iterator[Finding]:
    """The heartbeats of several ranks come from one process: the others were written for them, or not started."""
    by_pid: dict[int, list[int]] = {}
    for rank, mark in run.result.extra.get("heartbeats", {}).items():
        if mark.get("pid") is not None:
            by_pid.setdefault(mark["pid"], []).append(int(rank))
    shared = next(((pid, ranks) for pid, ranks in by_pid.items() if len(ranks) > 1), None)
    if shared is None or not run.training:
        return
    pid, ranks = shared
    marks = run.result.extra["heartbeats"]
    yield found(
        "foreign-results",
        f"The heartbeats of ranks {', '.join(map(str, ranks))} are all of process {pid}: they do not tell of "
        f"{len(ranks)} ranks.",
        severity="veto" if run.outcome is not None else "warning",
        because=[
            evidence(f"pid {pid} in the heartbeat of rank {rank}", str(marks[rank]["path"])) for rank in ranks[:4]
        ],
        next_step="Let every rank write its own heartbeat, and check that as many processes were started as the "
        "runbook's nproc says.",
    )


def ran_on_cpu(whole: ValidationFacts) -> Iterator[Finding]:
    """The runbook is about GPUs, and the trainer says that it ran without one."""
    if whole.record.runbook.hardware.gpus == 0:
        return
    for phase in whole.phases:
        for run in phase.runs if phase.record.phase.required else ():
            device = str(run.environment.get("device") or run.ran.get("device") or "").strip().lower()
            if not run.training or device.partition(":")[0] != "cpu":
                continue
            yield found(
                "config-ignored",
                f"{run.spec.id} ran on the CPU, where the runbook asks for {whole.record.runbook.hardware.gpus} GPUs.",
                severity="veto",
                because=[evidence(f"device {device}", None, "device")],
                next_step="Find out why the trainer sees no GPU (torch.cuda.is_available(), CUDA_VISIBLE_DEVICES, a "
                "build of torch without CUDA), then run again.",
                phase=phase.record.phase.id,
                run=run.spec.id,
            )
            return


def copied_figures(whole: ValidationFacts) -> Iterator[Finding]:
    """Two runs have the very same rates, digit for digit: one is a copy of the other, or neither was measured."""
    seen: dict[bytes, RunFacts] = {}
    for run in whole.runs:
        rate = run.series("toks_per_s") or run.series("step_time_s")
        if rate is None or len(rate.values) < _COPY_ROWS or len(np.unique(rate.values)) < _COPY_VALUES:
            continue
        first = seen.setdefault(rate.values.tobytes(), run)
        if first is run:
            continue
        required = any(p.record.phase.id == run.spec.phase and p.record.phase.required for p in whole.phases)
        yield found(
            "foreign-results",
            f"{run.spec.id} has the same {rate.name} as {first.spec.id} in all of {len(rate.values)} rows, digit for "
            "digit: no two runs take the same time.",
            severity="veto" if required else "warning",
            because=[evidence(f"{len(rate.values)} rows", one.source(rate.name), one.spec.id) for one in (first, run)],
            next_step="Let the trainer write into the folder of its own run, {out}, and measure time by a clock; look "
            "for results that are kept from an earlier run.",
            phase=run.spec.phase,
            run=run.spec.id,
        )
        return


def unused_gpu(whole: ValidationFacts) -> Iterator[Finding]:
    """Fewer GPUs worked than the run has processes: ranks share one, or train on the processor."""
    if whole.record.runbook.hardware.gpus == 0:
        return
    for run in (run for phase in whole.phases if phase.record.phase.required for run in phase.runs if run.training):
        names = [n for n in run.result.series if n.startswith("telemetry.gpu") and n.endswith("_util_pct")]
        used = [run.result.series[name] for name in names if not name.endswith("_mem_util_pct")]
        wanted = min(run.world_size, whole.record.runbook.hardware.gpus)
        if not used or max(len(one.values) for one in used) < _SAMPLES:
            continue
        busy = sum(float(one.values.max()) >= 1.0 for one in used)
        if busy >= wanted:
            continue
        yield found(
            "config-ignored",
            f"{busy} of {wanted} GPUs did anything while {run.spec.id} trained with {run.world_size} processes.",
            severity="veto",
            because=[evidence(f"{one.name} at most {one.values.max():g} %", one.source.path) for one in used[:8]],
            next_step="Let each rank take the GPU of its LOCAL_RANK, and check CUDA_VISIBLE_DEVICES and "
            "torch.cuda.is_available() in the trainer.",
            phase=run.spec.phase,
            run=run.spec.id,
        )
        return

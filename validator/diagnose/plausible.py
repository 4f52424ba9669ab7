"""Figures held against what the trainer does not write itself: the clock, the hardware, and plain arithmetic.

A trainer's rate is its own word. That it echoes the settings that were asked for proves nothing either. But tokens take
time, which the heartbeats and the supervisor measure; weights take memory; and each rank is a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from validator.diagnose.facts import MICRO_BATCHES, RunFacts, ValidationFacts, as_number
from validator.diagnose.rule import evidence, found, percent
from validator.judge.clock import HEARTBEAT, Claim, best_reading, claims, clock_for, timestamps, tokens_of
from validator.model.verdict import Finding

__all__ = [
    "beyond_the_hardware",
    "copied_figures",
    "one_process_for_all",
    "clock_unverified",
    "ran_on_cpu",
    "too_few_parameters",
    "tokens_counted_otherwise",
    "unused_gpu",
    "wall_clock_disagrees",
]

_SLACK_S, _SLACK = 2.0, 1.05
_COPY_ROWS, _COPY_VALUES = 20, 5
"""Rows, and different values among them, from which two runs do not measure the same by chance."""

_SAMPLES = 5
"""Samples of the machine from which a GPU that never worked is told from one that was not looked at."""

_PEAK_SLACK = 1.05
_PARAMETER_SLACK = 0.5


def wall_clock_disagrees(run: RunFacts) -> Iterator[Finding]:
    """A rate or a time per step that the clocks contradict: of other units, other tokens, or another run."""
    if not run.training or run.failed:
        return
    told = tokens_of(run.result)
    most = None if told is not None else _most_tokens(run)
    for claim in (*claims(run.result, tokens=told or most), *_dated(run)):
        # With the most tokens that a step can have, the claim is the longest time that the rate leaves room for.
        at_most = claim.name == "toks_per_s" and most is not None
        finding = _beside_clock(run, claim, at_most=at_most) or (None if at_most else _beside_duration(run, claim))
        if finding is not None:
            yield finding
            return


def _dated(run: RunFacts) -> Iterator[Claim]:
    """The heartbeat's timestamps, where the validator's own clock can say whether time passed like that."""
    steps, seconds = run.result.extra.get("step_times_s", (np.empty(0, np.int64), np.empty(0)))
    if run.result.extra.get("arrivals") and len(steps) > 1 and (np.diff(seconds) >= 0).all():
        yield Claim("ts of the heartbeat", "", steps, np.diff(seconds, prepend=seconds[0]), whole=True)


def _beside_clock(run: RunFacts, claim: Claim, *, at_most: bool) -> Finding | None:
    """What was claimed beside the validator's stamps; without any, beside the heartbeat's timestamps."""
    clock = clock_for(run.result, claim.source)
    if clock is None:
        clock = next((one for one in timestamps(run.result) if one.name == HEARTBEAT), None)
    if clock is None:
        return None
    _, found_ = best_reading(claim, clock, after_step=run.spec.warmup_steps)
    if found_ is None or found_.fits(whole=claim.whole) or (at_most and found_.ratio > 1):
        return None
    steps = f"steps {found_.first_step + 1} to {found_.last_step}"
    passed = f"{steps} took {found_.elapsed_s:,.1f} s by {clock.name} ({found_.stamps} stamps)"
    return _contradicted(run, claim, passed, found_.claimed_s, 1 / max(found_.ratio, 1e-9))


def _beside_duration(run: RunFacts, claim: Claim) -> Finding | None:
    """What was claimed against the time that the supervisor measured for everything, start-up included."""
    if run.outcome is None or claim.reading or not claim.source:
        return None
    clock = clock_for(run.result, claim.source)
    if clock is not None and best_reading(claim, clock, after_step=run.spec.warmup_steps)[1] is not None:
        return None
    duration_s, claimed_s = run.outcome.duration_s, float(claim.seconds[1:].sum())
    if claimed_s <= _SLACK * duration_s + _SLACK_S:
        return None
    passed = f"the whole run took {duration_s:,.1f} s by the supervisor's clock"
    return _contradicted(run, claim, passed, claimed_s, max(duration_s, 1e-3) / claimed_s)


def _contradicted(run: RunFacts, claim: Claim, passed: str, claimed_s: float, slower: float) -> Finding:
    """The finding; `slower` is elapsed over claimed time."""
    declared = claim.name == "toks_per_s" and run.spec.tokens_per_step is not None
    factor, way = (slower, "fast") if slower > 1 else (1 / slower, "slow")
    at = f", at the {run.spec.tokens_per_step:,} tokens_per_step that the runbook declares," if declared else ""
    because = evidence(f"{claim.name} adds up to {claimed_s:,.1f} s", claim.source or None)
    return found(
        "unit-mismatch",
        f"By its {claim.name}{at} the trainer needed {claimed_s:,.1f} s, yet {passed}: {claim.name} is of a run "
        f"{factor:.3g} times as {way}.",
        severity="veto",
        because=[because, evidence(passed)],
        next_step="Look at the unit of the time, at how tokens are counted (tokens_per_step of the trainer and of the "
        "runbook, ranks, accumulation), and at what the timer leaves out (data, logging); or the rows are not of this "
        "run.",
    )


def clock_unverified(whole: ValidationFacts) -> Iterator[Finding]:
    """No run has arrival stamps, so what the trainer says of time was compared with no clock but its own."""
    timed = [run for run in whole.runs if run.outcome is not None and run.result.series]
    if not timed or any(run.result.extra.get("arrivals") for run in timed):
        return
    yield found(
        "clock-unverified",
        "The rows have no arrival stamps, so rates and times per step rest on the trainer's own clock.",
        severity="info",
        because=[evidence(f"no arrivals.jsonl in the folder of {timed[0].spec.id}", None, timed[0].spec.id)],
        next_step="None for a folder of an earlier version; `validator run` stamps every row on arrival.",
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

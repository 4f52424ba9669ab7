"""What a run reports of its own speed and size, checked by arithmetic, by clocks, and by what the hardware can do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from validator.diagnose.rule import MICRO_BATCHES, Diagnosis, RunFacts, as_number, evidence, hit_evidence, rule
from validator.model.arguments import settings_in, stated_samples, stated_tokens
from validator.model.result import LogHit
from validator.stats.clock import (
    HEARTBEAT,
    Claim,
    Clock,
    best_reading,
    claims,
    clock_for,
    dates,
    meant,
    step_ends,
    timestamps,
)
from validator.stats.spacing import covered_steps
from validator.text import format_duration, format_number, format_percent

# "~2.5 h", "40 minutes", "1,200 s"
_SPAN = re.compile(
    r"(?:~|≈)?(?P<n>\d[\d,]*(?:\.\d+)?)\s*(?P<unit>days?|d|hours?|hrs?|h|minutes?|mins?|m|seconds?|secs?|s)(?![A-Za-z])",
    re.I,
)
_NEXT_SPAN = re.compile(r"(?:\s|,|and)*" + _SPAN.pattern, re.I)
_CLOCK = re.compile(r"(?:(?P<d>\d+)\s*days?,?\s*)?(?P<h>\d{1,4}):(?P<m>\d\d):(?P<s>\d\d)")  # "1 day, 02:30:00"
_STEPS = re.compile(r"(?P<n>\d[\d,]*)\s*steps?\b", re.I)  # "10,000 steps"
# "step 120/1000", "iter: [120 of 1000"
_AT = re.compile(
    r"\b(?:step|iter(?:ation)?|update|batch)\s*[:=]?\s*\[?\s*(?P<at>\d[\d,]*)(?:\s*(?:/|of)\s*(?P<total>\d[\d,]*))?",
    re.I,
)

_BETWEEN = re.compile(r"(?:[^\w~≈]|is\b|about\b|approx\w*|time\b){0,20}", re.I)
"""What may be between the word and the time."""

_UNIT_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}


@rule("not-significant", "info", of="run")
def too_few_rows(run: RunFacts) -> Iterator[Diagnosis]:
    """A mean over a handful of rows that differ widely."""
    series = run.series("toks_per_s")
    if not run.timed or series is None:
        return
    late = series.values[(series.steps > run.spec.warmup_steps) & np.isfinite(series.values)]
    if late.size < 2:
        late = series.values[1:][np.isfinite(series.values[1:])]
    if not 2 <= late.size <= 5 or late.mean() <= 0 or late.std() / late.mean() <= 0.1:
        return
    listed = ", ".join(f"{v:,.0f}" for v in late)
    yield Diagnosis(
        f"{late.mean():,.0f} ± {late.std():,.0f} tok/s over {late.size} rows ({listed}) is no measurement to "
        "compare by.",
        because=[evidence(f"toks_per_s: {listed}", series.source.path)],
        next_step="Log every step (log_every 1), run at least 200 steps and repeat each setting four times.",
    )


@rule("eta-wrong", "warning", of="run")
def eta_wrong(run: RunFacts) -> Iterator[Diagnosis]:
    """The last promise of an end, made a minute or more before it, contradicts the log's own step time.

    A trainer that validator ends promises the end of its own steps, which only its lines name.
    """
    step_s = run.step_time_s
    own_steps = None if run.spec.ended_at is not None else run.steps_requested
    if not run.training or step_s is None:
        return
    for hit in reversed(run.hits("eta")):
        claimed, at, named = _claimed_s(hit.text), _AT.search(hit.text), _STEPS.search(hit.text)
        if claimed is None:
            continue
        total = _count_of(at["total"]) if at else None
        total = total or (_count_of(named["n"]) if named else None) or own_steps
        if total is None:
            continue
        left = total - (_count_of(at["at"]) or 0.0 if at and not (named and not at["total"]) else 0.0)
        truth = left * step_s
        certain = at is not None or named is not None
        if not 60 <= truth < float("inf"):
            continue
        if not (claimed > 2 * truth or (certain and claimed < truth / 2)):
            return
        yield Diagnosis(
            f"The log promises {format_duration(claimed)} for {left:,.0f} steps; at {format_duration(step_s)} a step "
            f"it is {format_duration(truth)} ({truth / 3600:,.0f} h).",
            confidence="high" if certain else "medium",
            because=[hit_evidence(hit), evidence(f"step time {format_number(step_s)} s", run.source("step_time_s"))],
            next_step=f"Plan with {format_duration(truth)}: steps left × measured step time.",
        )
        return


def _claimed_s(text: str) -> float | None:
    """The time left that a line claims: directly behind ETA or "time left", before or behind "remaining"."""
    mark = re.search(r"\bETA\b|\bremaining\b|time left", text, re.I)
    if mark is not None and mark[0].lower() != "remaining":
        between = _BETWEEN.match(text, mark.end())
        at = between.end() if between is not None else mark.end()
        clock, span = _CLOCK.match(text, at), _SPAN.match(text, at)
    else:
        clock, span = _CLOCK.search(text), _SPAN.search(text)
    if clock is not None:
        return 86400.0 * int(clock["d"] or 0) + 3600.0 * int(clock["h"]) + 60.0 * int(clock["m"]) + int(clock["s"])
    claimed, smallest_s = None, float("inf")
    while (
        span is not None and (unit_s := _UNIT_S[span["unit"][0].lower()]) < smallest_s
    ):  # 1 h 30 min: one time in parts
        claimed = (claimed or 0.0) + float(span["n"].replace(",", "")) * unit_s
        span, smallest_s = _NEXT_SPAN.match(text, span.end()), unit_s
    return claimed


def _count_of(text: str | None) -> float | None:
    return float(text.replace(",", "")) if text else None


# "3.5x speedup", "12 × faster", "speed-up: 4"
_FACTOR = re.compile(
    r"(\d[\d,]*(?:\.\d+)?)\s?[x×]\s{0,2}(?:speed-?up|faster)|(?:speed-?up|faster)\D{0,12}(\d[\d,]*(?:\.\d+)?)", re.I
)

_WORD = re.compile(r"[a-z][a-z0-9_]+", re.I)

_PARAMETER = re.compile(r"\w+\s*=\s*[\w.]+")

_SAID_ANYWAY = frozenset(
    {"speedup", "speed", "up", "faster", "vs", "per", "the", "is", "of", "than", "rank", "info", "x"}
)

_MOST_ITERATIONS = 100


@rule("unit-mismatch", "veto", of="run")
def unit_mismatch(run: RunFacts) -> Iterator[Diagnosis]:
    """Values of the same thing that differ by a whole factor: totals against per-iteration, or wrong token counts."""
    claims = [(value, hit) for hit in run.hits("speedup") if (value := _speed_up(hit.text))]
    for (low, one), (high, other) in ((a, b) for a in claims for b in claims if b[0] > 1.5 * a[0] and a[0] > 1.5):
        ratio = high / low
        if (
            2 <= round(ratio) <= _MOST_ITERATIONS
            and abs(ratio / round(ratio) - 1) <= 0.02
            and _same_subject(one, other)
        ):
            yield Diagnosis(
                f"Two speed-ups are claimed of the same thing, {high:g}× and {low:g}×. They differ by a factor of "
                f"{round(ratio)}, as when a total of {round(ratio)} iterations is divided by the time of one.",
                severity="warning",
                confidence="medium",
                because=[hit_evidence(other), hit_evidence(one)],
                next_step="State time per call on both sides, measured the same way, and divide only like by like.",
            )
            break
    yield from _rate_counts_otherwise(run)


def _speed_up(text: str) -> float | None:
    factor = _FACTOR.search(text)
    return _count_of(factor[1] or factor[2]) if factor is not None else None


def _same_subject(one: LogHit, other: LogHit) -> bool:
    """Whether two lines speak of the same thing: a name in common, and no parameter in which they differ."""
    left, right = ({w.lower() for w in _WORD.findall(hit.text)} - _SAID_ANYWAY for hit in (one, other))
    parameters = [set(_PARAMETER.findall(hit.text)) for hit in (one, other)]
    return bool(left & right) and parameters[0] == parameters[1]


def _rate_counts_otherwise(run: RunFacts) -> Iterator[Diagnosis]:
    """Rate × step time against the trainer's own tokens per step; and a use of the hardware beyond its peak."""
    products, reported = run.tokens_by_rate, run.environment.get("tokens_per_step")
    if products.size >= 3 and isinstance(reported, (int, float)) and reported > 0:
        measured = float(np.median(products))
        if measured > 0 and abs(measured / reported - 1) > 0.2:
            yield Diagnosis(
                f"Rate × step time gives {measured:,.0f} tokens a step where the trainer reports {reported:,.0f}: a "
                f"factor of {measured / reported:.2g}.",
                confidence="medium",
                because=[evidence(f"toks_per_s × step_time_s ≈ {measured:,.0f}", run.source("toks_per_s"))],
                next_step="Check whether toks_per_s is per rank or global, and whether step_time_s is of a step or "
                "of a micro-batch (accumulation).",
            )
    elif products.size >= 3 and (counted := _counted_tokens(run)) is not None:
        of_a_rank = float(np.median(products)) / run.world_size
        if of_a_rank > 1.2 * counted[0]:
            yield Diagnosis(
                f"Rate × step time gives {of_a_rank:,.0f} tokens a step and rank where the trainer counts "
                f"{counted[0]:,.0f} of all: a factor of {of_a_rank / counted[0]:.2g}.",
                confidence="medium",
                because=[
                    evidence(f"toks_per_s × step_time_s / ranks ≈ {of_a_rank:,.0f}", run.source("toks_per_s")),
                    evidence(f"{counted[1]}: {counted[0]:,.0f} tokens in each step", run.source(counted[1])),
                ],
                next_step="Check the unit of the rate and of the time, and what the rate counts twice.",
            )
    mfu = run.scalar("metrics.mfu")
    if mfu is not None and mfu > 1:
        yield Diagnosis(
            f"A model FLOP utilization of {format_percent(mfu)} is more than the hardware can do.",
            because=[evidence(f"metrics.mfu {mfu:.3g}")],
            next_step="Check the FLOPs per token, the token rate and the peak that was assumed.",
        )


def _counted_tokens(run: RunFacts) -> tuple[float, str] | None:
    """The tokens that the trainer counts in a step, and in which series, or what the config that it lists gives; None
    unless each step has as many, since those that are not padding vary, and a rate may count padding too."""
    counted, seen = run.series("tokens_per_step"), run.series("tokens_seen")
    if counted is not None:
        found, name = counted.values, "tokens_per_step"
    elif seen is not None:
        found, name = np.diff(seen.values) / np.diff(seen.steps), "tokens_seen"
    else:
        given = stated_tokens(run.evidence.printed_config)
        return (float(given.tokens), given.text) if given is not None and given.exact else None
    usual = float(np.median(found)) if found.size >= 3 else 0.0
    return (usual, name) if usual > 0 and np.isclose(found, usual, rtol=1e-3).all() else None


_SLACK_S, _SLACK = 2.0, 1.05
_PEAK_SLACK = 1.05
_PARAMETER_SLACK = 0.5
_FAR_OFF = 3.0
"""Factor between a printed time and the log's own clock from which it is no timer that leaves out data or logging."""
_COUNTERS = ("samples_seen", "samples", "examples", "images", "n_samples", "num_samples", "consumed_samples")
_ROUND_RATE = 0.05
"""How near a round factor a rate's level is by the pace of its rows, whose timer may leave out some of the time."""
_UNITS, _ROUND = (10.0, 60.0, 100.0, 1000.0, 3600.0), 0.03
"""Factors between two units of time, or of a slip, and how near one is."""


@rule("unit-mismatch", "veto", of="run")
def wall_clock_disagrees(run: RunFacts) -> Iterator[Diagnosis]:
    """A rate or a time per step that the clocks contradict: of other units, other tokens, or another run."""
    if not run.training or run.failed:
        return
    tokens = run.evidence.tokens_per_step
    max_tokens = None if tokens is not None else _max_tokens(run)
    for claim in (*claims(run.result, tokens=tokens or max_tokens), *_dated(run)):
        # With the most tokens that a step can have, the claim is the longest time that the rate leaves room for.
        at_most = claim.name == "toks_per_s" and max_tokens is not None
        finding = _against_clock(run, claim, at_most=at_most) or (None if at_most else _against_duration(run, claim))
        if finding is not None:
            yield finding
            return


def _dated(run: RunFacts) -> Iterator[Claim]:
    """The heartbeat's timestamps, where the validator's own clock can say whether time passed like that."""
    steps, seconds = step_ends(run.result)
    if run.evidence.arrivals and len(steps) > 1 and (np.diff(seconds) >= 0).all():
        yield Claim("ts of the heartbeat", "", steps, np.diff(seconds, prepend=seconds[0]), whole=True)


def _against_clock(run: RunFacts, claim: Claim, *, at_most: bool) -> Diagnosis | None:
    """What was claimed, compared with the validator's stamps; without any, with the heartbeat's timestamps, or else
    with the clock that the log prints. That one warns where what a timer leaves out may be the reason."""
    clock = clock_for(run.result, claim.source)
    if clock is None:
        clock = next((one for one in timestamps(run.result) if one.name == HEARTBEAT), None)
    printed = dates(run.result) if clock is None else None
    clock = clock or printed
    if clock is None:
        return None
    found = _contradicted_by(run, claim, clock, at_most=at_most)
    if found is None:
        return None
    finding, factor = found
    sure = printed is None or _of_other_unit(printed, factor)
    return finding if sure else replace(finding, severity="warning")


def _of_other_unit(printed: Clock, factor: float) -> bool:
    """Whether no pause explains that a printed time is so far from the log's own clock: between the rows of every
    step there is room for none, and between others for one that is no round number of times as long."""
    if factor < _FAR_OFF:
        return False
    each = float(np.median(covered_steps(printed.steps))) <= 1
    return each or any(abs(factor / unit - 1) <= _ROUND for unit in _UNITS)


def _contradicted_by(run: RunFacts, claim: Claim, clock: Clock, *, at_most: bool) -> tuple[Diagnosis, float] | None:
    """What the clock says against the claim, and by what factor the two differ."""
    _, found_ = best_reading(claim, clock, after_step=run.spec.warmup_steps)
    if found_ is not None and found_.fits(whole=claim.whole) and found_.left_out is not None and not claim.whole:
        part = found_.left_out
        passed = f"steps {part.first_step} to {part.last_step} took {part.elapsed_s:,.1f} s by {clock.name}"
        slower = 1 / max(part.ratio, 1e-9)
        return _contradicted(run, claim, passed, part.claimed_s, slower, there=" in a part of it"), slower
    if found_ is None or found_.fits(whole=claim.whole) or (at_most and found_.ratio > 1):
        return None
    steps = f"steps {found_.first_step + 1} to {found_.last_step}"
    passed = f"{steps} took {found_.elapsed_s:,.1f} s by {clock.name} ({found_.stamps} stamps)"
    slower = 1 / max(found_.ratio, 1e-9)
    return _contradicted(run, claim, passed, found_.claimed_s, slower), max(slower, 1 / slower)


def _against_duration(run: RunFacts, claim: Claim) -> Diagnosis | None:
    """What was claimed against the time that the supervisor measured for everything, start-up included."""
    if run.outcome is None or claim.reading or not claim.source:
        return None
    clock, found_ = clock_for(run.result, claim.source), None
    if clock is not None:
        claim, found_ = best_reading(claim, clock, after_step=run.spec.warmup_steps)
    if found_ is not None and not found_.room:
        return None
    duration_s, claimed_s = run.outcome.duration_s, float(claim.seconds[1:].sum())
    if claimed_s <= _SLACK * duration_s + _SLACK_S:
        return None
    passed = f"the whole run took {duration_s:,.1f} s by the supervisor's clock"
    return _contradicted(run, claim, passed, claimed_s, max(duration_s, 1e-3) / claimed_s)


def _contradicted(
    run: RunFacts, claim: Claim, passed: str, claimed_s: float, slower: float, *, there: str = ""
) -> Diagnosis:
    """The finding; `slower` is elapsed over claimed time, and `there` says which part of the run it is seen in."""
    declared = claim.name == "toks_per_s" and run.spec.tokens_per_step is not None
    factor, way = (slower, "fast") if slower > 1 else (1 / slower, "slow")
    at = f", at the {run.spec.tokens_per_step:,} tokens_per_step that the runbook declares," if declared else ""
    because = evidence(f"{claim.name} adds up to {claimed_s:,.1f} s", claim.source or None)
    return Diagnosis(
        f"By its {claim.name}{at} the trainer needed {claimed_s:,.1f} s, yet {passed}: {claim.name} is of a run "
        f"{format_number(factor, digits=3)} times as {way}{there}.",
        because=[because, evidence(passed)],
        next_step="Look at the unit of the time, at how tokens are counted (tokens_per_step of the trainer and of the "
        "runbook, ranks, accumulation), and at what the timer leaves out (data, logging); or the rows are not of this "
        "run.",
    )


@rule("unit-mismatch", "veto", of="run")
def tokens_counted_otherwise(run: RunFacts) -> Iterator[Diagnosis]:
    """More tokens a step than the effective settings can give: ranks or micro-batches counted twice; or no tokens."""
    reported, max_tokens = as_number(run.environment.get("tokens_per_step")), _max_tokens(run)
    if not run.training or reported is None:
        return
    if reported <= 0:
        yield Diagnosis(
            f"tokens_per_step is {reported:g}: a step without tokens trains nothing, and no rate follows from it.",
            because=[evidence(f"tokens_per_step {reported:g}", None, "tokens_per_step")],
            next_step="Count the tokens of all ranks and micro-batches of an optimizer step; rates follow from them.",
        )
        return
    if max_tokens is None or reported <= 1.01 * max_tokens:
        return
    yield Diagnosis(
        f"tokens_per_step is {reported:,.0f}, {format_number(reported / max_tokens, digits=3)} times what the "
        f"effective settings give at most ({max_tokens:,.0f}: batch_size × accum × seq_len × ranks).",
        because=[evidence(f"tokens_per_step {reported:,.0f}, world_size {run.world_size}", None, "tokens_per_step")],
        next_step="Count the tokens of all ranks once, and those of each micro-batch once; rates follow from them.",
    )


@rule("unit-mismatch", "veto", of="run")
def samples_counted_otherwise(run: RunFacts) -> Iterator[Diagnosis]:
    """A rate of samples that, at the pace of its rows, means other samples a step than the trainer counts, or a round
    multiple of the batch that it was given."""
    series = run.series("samples_per_s")
    if not run.timed or series is None or series.name in run.evidence.derived:
        return
    clock = clock_for(run.result, series.source.path) or dates(run.result)
    word = None if clock is None else meant(series, clock, after_step=run.spec.warmup_steps)
    counted = _counted_samples(run)
    if clock is None or word is None or counted is None:
        return
    samples, said, several = counted
    exact = several == 0
    meant_by = {a * b for a in (1, run.world_size, 1 / run.world_size) for b in (1, max(1, several))}
    factors = [word.tokens / samples / of for of in meant_by]
    factor = min(factors, key=lambda one: abs(float(np.log(one))))
    off = max(factor, 1 / factor)
    if not (any(abs(off / unit - 1) <= _ROUND_RATE for unit in _UNITS) or (exact and off >= _FAR_OFF)):
        return
    yield Diagnosis(
        f"At the pace at which its rows come by {clock.name}, samples_per_s means {word.tokens:,.0f} samples a step, "
        f"and {said}: a factor of {format_number(factor, digits=3)}.",
        because=[evidence(f"samples_per_s means {word.tokens:,.0f} samples a step", series.source.path)],
        next_step="Check what the rate counts, and the unit of the time that it is divided by.",
    )


def _counted_samples(run: RunFacts) -> tuple[float, str, int] | None:
    """Samples of a step, what says so, and the micro-batches of a step that it may leave out: 0 where it counts them
    all. None where nothing says it."""
    for name in _COUNTERS:
        seen = run.series(name)
        if seen is not None and len(seen.steps) > 3:
            each = np.diff(seen.values) / np.diff(seen.steps)
            usual = float(np.median(each))
            if usual > 0 and np.isclose(each, usual, rtol=1e-3).mean() > 0.9:
                return usual, f"{name} grows by {usual:,.0f} in each", 0
    stated = stated_samples({**settings_in(run.spec.argv), **run.requested})
    return None if stated is None else (float(stated[1]), f"{stated[0]} is {stated[1]:,}", stated[2])


def _max_tokens(run: RunFacts) -> float | None:
    """Tokens that a step has at most by the effective settings; None where they do not say it."""
    length, batch = (run.effective_number(name) for name in ("seq_len", "batch_size"))
    if length is None or batch is None:
        return None
    micro = max((n for name in MICRO_BATCHES if (n := as_number(run.effective.get(name)))), default=1.0)
    largest = max(length * batch * max(1.0, micro) * run.world_size, length * (run.number("global_batch_size") or 0.0))
    return largest if largest > 0 else None


@rule("unit-mismatch", "veto", of="run")
def beyond_the_hardware(run: RunFacts) -> Iterator[Diagnosis]:
    """More arithmetic than the GPUs have: the tokens, the FLOPs per token or the peak are wrong."""
    series = run.series("mfu_nsa")  # sparse attention may leave more than a peak of the dense equivalent undone
    values = run.inside(series) if series is not None else np.empty(0)
    share = float(np.median(values)) if values.size else 0.0
    if series is not None and share > _PEAK_SLACK:
        what = f"mfu_nsa of {format_percent(share)}"
        yield Diagnosis(
            f"A use of the hardware beyond its peak, {what}, is more than it can do.",
            because=[evidence(what, series.source.path)],
            next_step="Check the FLOPs per token, the token rate and the peak that was assumed.",
        )


@rule("config-ignored", "veto", of="run")
def too_few_parameters(run: RunFacts) -> Iterator[Diagnosis]:
    """Fewer parameters than the effective settings need: the reported config only repeats the requested one."""
    reported = as_number(run.environment.get("params"))
    layers = run.effective_number("n_layers", "num_layers", "n_layer")
    width = run.effective_number("dim", "d_model", "hidden_size", "n_embd")
    if not run.training or not reported or not layers or not width:
        return
    # Embedding, and in each layer at least one square matrix for attention and one for what follows it.
    minimum = (as_number(run.effective.get("vocab_size")) or 0.0) * width + 2 * layers * width**2
    if reported >= _PARAMETER_SLACK * minimum:
        return
    yield Diagnosis(
        f"The trainer has {reported:,.0f} parameters, and {layers:.0f} layers of width {width:.0f} need at least "
        f"{minimum:,.0f}: the reported effective config does not match the model.",
        because=[evidence(f"params {reported:,.0f}", None, "params")],
        next_step="Let the trainer read `effective` off the model that it built, not off its arguments.",
    )


@rule("foreign-results", "veto", of="run")
def one_process_for_all(run: RunFacts) -> Iterator[Diagnosis]:
    """The heartbeats of several ranks come from one process: the others were written for them, or not started."""
    by_pid: dict[int, list[int]] = {}
    for rank, mark in run.evidence.heartbeats.items():
        if mark.pid is not None:
            by_pid.setdefault(mark.pid, []).append(rank)
    shared = next(((pid, ranks) for pid, ranks in by_pid.items() if len(ranks) > 1), None)
    if shared is None or not run.training:
        return
    pid, ranks = shared
    yield Diagnosis(
        f"The heartbeats of ranks {', '.join(map(str, ranks))} are all of process {pid}, so they cannot "
        f"come from {len(ranks)} ranks.",
        severity="veto" if run.outcome is not None else "warning",
        because=[
            evidence(f"pid {pid} in the heartbeat of rank {rank}", run.evidence.heartbeats[rank].path)
            for rank in ranks[:4]
        ],
        next_step="Let every rank write its own heartbeat, and check that as many processes were started as the "
        "runbook's nproc says.",
    )

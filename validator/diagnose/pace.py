"""How fast a run says that it went, and whether it was slow or stuck."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from validator.diagnose.facts import LogHit, RunFacts
from validator.diagnose.rule import evidence, found, percent
from validator.model.runbook import Watchdog
from validator.model.units import format_duration
from validator.model.verdict import Finding

__all__ = ["eta_wrong", "hang", "slow_not_hung", "unit_mismatch", "zero_rate"]

_NOTABLE_WAIT_S = 180.0
"""A wait that people begin to take for a hang; the default limit of the watchdog as well."""


def _silence(run: RunFacts) -> tuple[float, float, int] | None:
    """Seconds since the last finished step of the slowest rank, seconds until a record is due, and that rank."""
    marks = run.result.extra.get("heartbeats", {})
    step_s = run.step_time_s
    if not marks or step_s is None:
        return None
    rank = min(marks, key=lambda r: (marks[r]["last_step"], marks[r]["last_ts"] or 0))
    mark = marks[rank]
    if mark["last_ts"] is None:
        return None
    end = mark["last_ts"]
    if run.outcome is not None and run.failed and mark["first_ts"] is not None:
        end = max(end, mark["first_ts"] + run.outcome.duration_s)
    since = mark.get("last_progress_ts")
    series = run.series("loss") or run.series("toks_per_s")
    strides = np.diff(series.steps) if series is not None and len(series.steps) > 1 else np.array([1])
    return end - (since if since is not None else mark["last_ts"]), float(np.median(strides)) * step_s, int(rank)


def zero_rate(run: RunFacts) -> Iterator[Finding]:
    """The trainer writes rows and gets nowhere: a rate of zero or less, or the same step again and again."""
    limits = run.spec.watchdog or Watchdog()
    series = run.series("toks_per_s")
    last = run.outcome.last if run.outcome is not None and run.outcome.reason == "halted" else None
    frozen = run.irregular("duplicate-step") if last is not None else []
    halt = run.result.extra.get("halt") or {}
    if series is not None and longest_row(series.values <= 0) >= limits.frozen_rows:
        first = int(series.steps[np.flatnonzero(series.values <= 0)[0]])
        stays = bool(series.values[-1] <= 0)
        count = int((series.values <= 0).sum())
        message = f"toks_per_s is {series.values[series.values <= 0][0]:g} in {count} rows, from step {first} on."
        because = [evidence(f"{count} rows at zero or below", series.source.path, f"step {first}")]
    elif frozen:
        stays, message = True, f"The table stands still: {frozen[0].message}."
        because = [evidence(frozen[0].message, frozen[0].path, f"line {frozen[0].line}")]
    elif last is not None and halt.get("anomaly") == "frozen_rows":
        # Printed lines that repeat a step digit for digit are one row, and no irregularity.
        said = (last.detail or "rows repeat one step").rstrip(".")
        stays, message, because = True, f"The trainer stands still: {said}.", [evidence(said, halt["path"])]
    else:
        return
    yield found(
        "zero-rate",
        message,
        severity="veto" if stays else "warning",
        because=because,
        next_step="Find out what the trainer does instead of training (a loader without data, a retry loop, a counter "
        "that is not advanced); dump its stacks with SIGUSR1 while it happens.",
    )


def longest_row(flags: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> int:
    """Length of the longest unbroken row of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], flags.astype(np.int8), [0]))))
    return int((edges[1::2] - edges[::2]).max()) if edges.size else 0


def slow_not_hung(run: RunFacts) -> Iterator[Finding]:
    """A run taken for a hang although its next record is not yet due."""
    quiet = _silence(run)
    marks = run.result.extra.get("heartbeats", {})
    if not run.training or quiet is None or any(m["done"] for m in marks.values()):
        return
    if run.outcome is not None and (run.outcome.ok or run.outcome.reason in ("exited", "halted", "infrastructure")):
        return
    silent_s, due_s, rank = quiet
    if due_s < _NOTABLE_WAIT_S or silent_s > 1.5 * due_s or run.step_time_s is None:
        return
    done, asked = run.steps_done or 0.0, run.steps_asked
    rest = (
        f" The {asked - done:.0f} steps left need {format_duration((asked - done) * run.step_time_s)}." if asked else ""
    )
    yield found(
        "slow-not-hung",
        f"The run is slow, not stuck: a step takes {format_duration(run.step_time_s)} and a record comes every "
        f"{format_duration(due_s)}; the last one is {format_duration(silent_s)} old.{rest}",
        confidence="high" if silent_s <= due_s else "medium",
        because=[evidence(f"last step {marks[rank]['last_step']} on rank {rank}", str(marks[rank]["path"]))],
        next_step="Log every step (log_every 1), give the phase a timeout that fits, and find out why a step takes "
        "so long.",
    )


def hang(run: RunFacts) -> Iterator[Finding]:
    """No progress and no activity: which rank was last, and what it was doing."""
    if run.outcome is not None and run.outcome.ok:
        yield from _hung_before(run)
    if run.outcome is None or run.outcome.reason != "stalled":
        return
    last = run.outcome.last
    marks = run.result.extra.get("heartbeats", {})
    who, because = "", []
    if marks:
        rank = min(marks, key=lambda r: (marks[r]["last_step"], marks[r]["last_ts"] or 0))
        mark = marks[rank]
        who = f" Rank {rank} was last seen at step {mark['last_step']} ({mark['last_msg'] or 'no message'})."
        because.append(evidence(f"last record: step {mark['last_step']}, {mark['last_msg']}", str(mark["path"])))
        others = [m["last_step"] for r, m in marks.items() if r != rank]
        if others and min(others) > mark["last_step"]:
            who += f" The others had reached step {min(others)} and wait for it."
    because += [evidence("saved before the stop", path) for path in last.bundle[:6]]
    waiting = run.result.extra.get("waiting_in", [])
    because += [evidence(w["text"], w["path"], f"line {w['line']}") for w in waiting[:4]]
    if waiting:
        who += f" By {len(waiting)} stack dump(s), ranks wait in {waiting[0]['collective']}."
    because += [hit.evidence for hit in run.hits("nccl")[:2]]
    stacks = next((path for path in last.bundle if "stack" in path), None)
    yield found(
        "hang",
        f"The run stopped making progress: {last.detail or 'no step and no activity'}.{who}".replace("..", "."),
        severity="veto",
        because=because,
        next_step=(f"Read the stacks in {stacks}: " if stacks else "Dump the stacks with SIGUSR1 next time: ")
        + "ranks that wait in a collective are victims, the one that is elsewhere is the cause.",
    )


def _hung_before(run: RunFacts) -> Iterator[Finding]:
    """A run that ended well at a later attempt."""
    assert run.outcome is not None
    before = [attempt for attempt in run.outcome.attempts[:-1] if attempt.reason == "stalled"]
    if before:
        yield found(
            "hang",
            f"Attempt {before[0].number} stalled ({before[0].detail or 'no step and no activity'}); attempt "
            f"{run.outcome.last.number} ended well. A hang that comes and goes will come back in a run of days.",
            because=[evidence("saved before the stop", path) for attempt in before for path in attempt.bundle[:4]]
            or [evidence(before[0].detail or "stalled")],
            next_step="Read what the stalled attempt left, and repeat the phase until it has run several times without "
            "a stall.",
        )


_SPAN = re.compile(
    r"(?:~|≈)?(?P<n>\d[\d,]*(?:\.\d+)?)\s*(?P<unit>days?|d|hours?|hrs?|h|minutes?|mins?|m|seconds?|secs?|s)(?![A-Za-z])",
    re.I,
)
_NEXT_SPAN = re.compile(r"(?:\s|,|and)*" + _SPAN.pattern, re.I)
_CLOCK = re.compile(r"(?:(?P<d>\d+)\s*days?,?\s*)?(?P<h>\d{1,4}):(?P<m>\d\d):(?P<s>\d\d)")
_STEPS = re.compile(r"(?P<n>\d[\d,]*)\s*steps?\b", re.I)
_AT = re.compile(
    r"\b(?:step|iter(?:ation)?|update|batch)\s*[:=]?\s*\[?\s*(?P<at>\d[\d,]*)(?:\s*(?:/|of)\s*(?P<total>\d[\d,]*))?",
    re.I,
)
_BETWEEN = re.compile(r"(?:[^\w~≈]|is\b|about\b|approx\w*|time\b){0,20}", re.I)
"""What may stand between the word and the time."""

_UNIT_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}


def _count(text: str | None) -> float | None:
    return float(text.replace(",", "")) if text else None


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
    claimed, least = None, float("inf")
    while span is not None and (unit_s := _UNIT_S[span["unit"][0].lower()]) < least:  # 1 h 30 min: one time in parts
        claimed = (claimed or 0.0) + float(span["n"].replace(",", "")) * unit_s
        span, least = _NEXT_SPAN.match(text, span.end()), unit_s
    return claimed


def eta_wrong(run: RunFacts) -> Iterator[Finding]:
    """The last promise of an end, made a minute or more before it, contradicts the log's own step time."""
    step_s = run.step_time_s
    if not run.training or step_s is None:
        return
    for hit in reversed(run.hits("eta")):
        claimed, at, named = _claimed_s(hit.text), _AT.search(hit.text), _STEPS.search(hit.text)
        if claimed is None:
            continue
        total = _count(at["total"]) if at else None
        total = total or (_count(named["n"]) if named else None) or run.steps_asked
        if total is None:
            continue
        left = total - (_count(at["at"]) or 0.0 if at and not (named and not at["total"]) else 0.0)
        truth = left * step_s
        certain = at is not None or named is not None
        if not 60 <= truth < float("inf"):
            continue
        if not (claimed > 2 * truth or (certain and claimed < truth / 2)):
            return
        yield found(
            "eta-wrong",
            f"The log promises {format_duration(claimed)} for {left:,.0f} steps; at {format_duration(step_s)} a step "
            f"it is {format_duration(truth)} ({truth / 3600:,.0f} h).",
            confidence="high" if certain else "medium",
            because=[hit.evidence, evidence(f"step time {step_s:.4g} s", run.source("step_time_s"))],
            next_step=f"Plan with {format_duration(truth)}: steps left × measured step time.",
        )
        return


_FACTOR = re.compile(
    r"(\d[\d,]*(?:\.\d+)?)\s?[x×]\s{0,2}(?:speed-?up|faster)|(?:speed-?up|faster)\D{0,12}(\d[\d,]*(?:\.\d+)?)", re.I
)
_WORD = re.compile(r"[a-z][a-z0-9_]+", re.I)
_PARAMETER = re.compile(r"\w+\s*=\s*[\w.]+")
_SAID_ANYWAY = frozenset(
    {"speedup", "speed", "up", "faster", "vs", "per", "the", "is", "of", "than", "rank", "info", "x"}
)
_MOST_ITERATIONS = 100


def unit_mismatch(run: RunFacts) -> Iterator[Finding]:
    """Figures of the same thing that differ by a whole factor: totals against per-iteration, or wrong token counts."""
    claims = [(value, hit) for hit in run.hits("speedup") if (value := _speed_up(hit.text))]
    for (low, one), (high, other) in ((a, b) for a in claims for b in claims if b[0] > 1.5 * a[0] and a[0] > 1.5):
        ratio = high / low
        if (
            2 <= round(ratio) <= _MOST_ITERATIONS
            and abs(ratio / round(ratio) - 1) <= 0.02
            and _same_subject(one, other)
        ):
            yield found(
                "unit-mismatch",
                f"Two speed-ups are claimed of the same thing, {high:g}× and {low:g}×. They differ by a factor of "
                f"{round(ratio)}, as when a total of {round(ratio)} iterations is divided by the time of one.",
                confidence="medium",
                because=[other.evidence, one.evidence],
                next_step="State time per call on both sides, measured the same way, and divide only like by like.",
            )
            break
    yield from _rate_counts_otherwise(run)


def _speed_up(text: str) -> float | None:
    factor = _FACTOR.search(text)
    return _count(factor[1] or factor[2]) if factor is not None else None


def _same_subject(one: LogHit, other: LogHit) -> bool:
    """Whether two lines speak of the same thing: a name in common, and no parameter in which they differ."""
    left, right = ({w.lower() for w in _WORD.findall(hit.text)} - _SAID_ANYWAY for hit in (one, other))
    parameters = [set(_PARAMETER.findall(hit.text)) for hit in (one, other)]
    return bool(left & right) and parameters[0] == parameters[1]


def _rate_counts_otherwise(run: RunFacts) -> Iterator[Finding]:
    """Rate × step time against the trainer's own tokens per step; and a use of the hardware beyond its peak."""
    rate, times, told = run.series("toks_per_s"), run.series("step_time_s"), run.environment.get("tokens_per_step")
    if rate is not None and times is not None and isinstance(told, (int, float)) and told > 0:
        common, left, right = np.intersect1d(rate.steps, times.steps, return_indices=True)
        products = (rate.values[left] * times.values[right])[common > run.spec.warmup_steps]
        products = products[np.isfinite(products)]
        measured = float(np.median(products)) if products.size >= 3 else float(told)
        if measured > 0 and abs(measured / told - 1) > 0.2:
            yield found(
                "unit-mismatch",
                f"Rate × step time gives {measured:,.0f} tokens a step where the trainer says {told:,.0f}: a factor of "
                f"{measured / told:.2g}.",
                severity="veto",
                confidence="medium",
                because=[evidence(f"toks_per_s × step_time_s ≈ {measured:,.0f}", rate.source.path)],
                next_step="Check whether toks_per_s is per rank or global, and whether step_time_s is of a step or "
                "of a micro-batch (accumulation).",
            )
    mfu = run.scalar("metrics.mfu")
    if mfu is not None and mfu > 1:
        yield found(
            "unit-mismatch",
            f"A model FLOP utilization of {percent(mfu)} is more than the hardware can do.",
            severity="veto",
            because=[evidence(f"metrics.mfu {mfu:.3g}")],
            next_step="Check the FLOPs per token, the token rate and the peak that was assumed.",
        )

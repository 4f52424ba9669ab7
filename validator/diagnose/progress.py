"""Whether a run makes progress: stuck, standing still, or only slow."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from validator.diagnose import evidence_quality, not_finite
from validator.diagnose.rule import Diagnosis, RunFacts, evidence, hit_evidence, rule
from validator.model.runbook import Watchdog
from validator.stats.clock import clock_for
from validator.text import format_duration

_NOTABLE_WAIT_S = 180.0
"""A wait that people begin to take for a hang; the default limit of the watchdog as well."""


_SILENT_S = 2.0
"""Seconds behind the last row, at least, for which a process that only ends does not continue."""

_LOST_PEER = re.compile(r"[Cc]onnection (?:was )?(?:closed|reset) by (?:remote )?peer")
_ERROR = re.compile(r"Error\b|Exception\b|Interrupt\b|\bSIG[A-Z]+\b|[Ff]ail|\bexit(?:ed)?\b")

_RANKS = "host_run_ranks"
_LEFT_SAMPLES, _LEFT_SHARE = 3, 0.1
"""Samples, and share of the steps, for which the others continue without a rank: some take seconds longer to end."""


@rule("hang", "veto", of="run")
def hang(run: RunFacts) -> Iterator[Diagnosis]:
    """No progress and no activity: which rank was last, and what it was doing."""
    if run.outcome is not None and run.outcome.ok:
        yield from _hung_before(run)
    if run.outcome is None or run.outcome.reason != "stalled":
        return
    last = run.outcome.last
    marks = run.evidence.heartbeats
    who, because = "", []
    if marks:
        rank = min(marks, key=lambda r: (marks[r].last_step, marks[r].last_ts or 0))
        mark = marks[rank]
        who = f" Rank {rank} was last seen at step {mark.last_step} ({mark.last_msg or 'no message'})."
        because.append(evidence(f"last record: step {mark.last_step}, {mark.last_msg}", mark.path))
        others = [m.last_step for r, m in marks.items() if r != rank]
        if others and min(others) > mark.last_step:
            who += f" The others had reached step {min(others)} and wait for it."
    because += [evidence("saved before the stop", path) for path in last.bundle[:6]]
    waiting = run.evidence.waiting_in
    because += [hit_evidence(one) for one in waiting[:4]]
    if waiting:
        who += f" By {len(waiting)} stack dump(s), ranks wait in {waiting[0].collective}."
    because += [hit_evidence(hit) for hit in run.hits("nccl")[:2]]
    stacks = next((path for path in last.bundle if "stack" in path), None)
    yield Diagnosis(
        f"The run stopped making progress: {last.detail or 'no step and no activity'}.{who}".replace("..", "."),
        because=because,
        next_step=(f"Read the stacks in {stacks}: " if stacks else "Dump the stacks with SIGUSR1 next time: ")
        + "ranks that wait in a collective are victims, the one that is elsewhere is the cause.",
    )


def _hung_before(run: RunFacts) -> Iterator[Diagnosis]:
    """A run that ended well at a later attempt."""
    assert run.outcome is not None
    before = [attempt for attempt in run.outcome.attempts[:-1] if attempt.reason == "stalled"]
    if before:
        yield Diagnosis(
            f"Attempt {before[0].number} stalled ({before[0].detail or 'no step and no activity'}); attempt "
            f"{run.outcome.last.number} ended well. An intermittent hang will come back in a run of days.",
            severity="warning",
            because=[evidence("saved before the stop", path) for attempt in before for path in attempt.bundle[:4]]
            or [evidence(before[0].detail or "stalled")],
            next_step="Read what the stalled attempt left, and repeat the phase until it has run several times without "
            "a stall.",
        )


@rule("zero-rate", "veto", of="run")
def zero_rate(run: RunFacts) -> Iterator[Diagnosis]:
    """The trainer writes rows and gets nowhere: a rate of zero or less, or the same step again and again."""
    limits = run.spec.watchdog or Watchdog()
    series = run.series("toks_per_s")
    last = run.outcome.last if run.outcome is not None and run.outcome.reason == "halted" else None
    halt = run.evidence.halt
    other_end = halt is not None and halt.anomaly not in (None, "frozen_rows")
    frozen = run.irregular("duplicate-step") if last is not None and not other_end else []
    if series is not None and longest_row(series.values <= 0) >= limits.frozen_rows:
        first = int(series.steps[np.flatnonzero(series.values <= 0)[0]])
        stays = bool(series.values[-1] <= 0)
        count = int((series.values <= 0).sum())
        message = f"toks_per_s is {series.values[series.values <= 0][0]:g} in {count} rows, from step {first} on."
        because = [evidence(f"{count} rows at zero or below", series.source.path, f"step {first}")]
    elif frozen:
        stays, message = True, f"The table stands still: {frozen[0].message}."
        because = [evidence(frozen[0].message, frozen[0].path, f"line {frozen[0].line}")]
    elif last is not None and halt is not None and halt.anomaly == "frozen_rows":
        # Printed lines that repeat a step digit for digit are one row, and no irregularity.
        said = (last.detail or "rows repeat one step").rstrip(".")
        stays, message, because = True, f"The trainer stands still: {said}.", [evidence(said, halt.path)]
    else:
        return
    yield Diagnosis(
        message,
        severity="veto" if stays else "warning",
        because=because,
        next_step="Find out what the trainer does instead of training (a loader without data, a retry loop, a counter "
        "that is not advanced); dump its stacks with SIGUSR1 while it happens.",
    )


def longest_row(flags: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> int:
    """Number of consecutive true values in the longest run of them."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], flags.astype(np.int8), [0]))))
    return int((edges[1::2] - edges[::2]).max()) if edges.size else 0


@rule("rank-left", "veto", of="run")
def rank_left(run: RunFacts) -> Iterator[Diagnosis]:
    """A rank's process was gone while the others continued, or until they lost their connection to it."""
    if (left := left_before_the_others(run)) is not None:
        yield left
        return
    for node, samples in {"": run.evidence.samples, **run.evidence.node_samples}.items():
        if samples is None or samples.steps is None or _RANKS not in samples.columns:
            continue
        ranks = samples.columns[_RANKS]
        seen = np.isfinite(ranks) & (samples.steps >= 0)
        alive, steps = ranks[seen], samples.steps[seen]
        if not alive.size or alive.max() < 2:
            continue
        last = int(np.flatnonzero(alive == alive.max())[-1])
        on = int(steps[-1] - steps[last])
        if alive.size - 1 - last < _LEFT_SAMPLES or on < _LEFT_SHARE * (steps[-1] - steps[0]):
            continue
        gone, where = int(alive.max() - alive[last + 1 :].max()), f" on {node}" if node else ""
        yield Diagnosis(
            f"{gone} of {alive.max():g} ranks{where} ended at about step {steps[last]:,}, and the rest continued to "
            f"step {steps[-1]:,} without {'it' if gone == 1 else 'them'}.",
            because=[evidence(f"{_RANKS}: {alive.max():g}, then {alive[-1]:g}", samples.source.path)],
            next_step="Read the end of that rank's log (logs/ranks) for what ended it without an error: the end of its "
            "own data, a call of exit, a signal. Ranks that continue alone train on a part of the batch.",
        )
        return


def left_before_the_others(run: RunFacts) -> Diagnosis | None:
    """The finding on a rank that ended without an error, where the others then failed for the lost connection.

    A rank that fails has an exception, which is the last words of the run.
    """
    outcome, samples = run.outcome, run.evidence.samples
    if not run.training or outcome is None or outcome.reason != "exited" or outcome.rc in (0, None):
        return None
    words = outcome.last.words
    lost = next((line for line in reversed(run.result.log_tail) if _LOST_PEER.search(line)), None)
    if samples is None or _RANKS not in samples.columns or lost is None or run.evidence.errors:
        return None
    failed = words is not None and _ERROR.search(words.text) is not None
    if failed and words is not None and not _LOST_PEER.search(words.text):
        return None
    if words is None and "last words" in (outcome.last.detail or ""):
        return None  # an earlier version stored the sentence alone, and whether it is of an exception is not known
    ranks = samples.columns[_RANKS][np.isfinite(samples.columns[_RANKS])]
    if not ranks.size or ranks.max() < 2 or ranks[-1] >= ranks.max() or ranks[-1] < 1:
        return None
    which = f" (rank {words.rank})" if words is not None and words.rank is not None and not failed else ""
    gone = int(ranks.max() - ranks[-1])
    return Diagnosis(
        f"{gone} of {ranks.max():g} ranks{which} ended without an error in its log at about step "
        f"{run.steps_done or 0:,.0f}, and the rest failed when their connection was lost.",
        because=[
            evidence(f"{_RANKS}: {ranks.max():g}, then {ranks[-1]:g}", samples.source.path),
            evidence(lost.strip(), run.result.log_path),
        ],
        next_step="Read the end of that rank's log (logs/ranks) for what ended it without an error: the end of its own "
        "data, a call of exit, a signal.",
    )


@rule("ended-early", "warning", of="run")
def ended_early(run: RunFacts) -> Iterator[Diagnosis]:
    """The trainer ended by itself with exit code 0, as after a full run, before it had done its steps; or its rows
    stop, and its process continues for about as long as the other steps take."""
    if not run.training or not run.ended_early or _end_has_a_cause(run):
        return
    tail = [line for line in run.result.log_tail if line.strip()]
    silent_s = _without_rows_s(run)
    if silent_s is not None:
        yield Diagnosis(
            f"The rows stop at step {run.steps_done:,.0f} of {run.spec.steps:,}, and the process continued for "
            f"{format_duration(silent_s)} and ended with exit code 0: what it did there is not known.",
            because=[
                evidence(f"steps.done = {run.steps_done:g}, no row in the last {silent_s:.1f} s", "journal.jsonl"),
                *([evidence(tail[-1], run.result.log_path, "last line")] if tail else []),
            ],
            next_step="Find out why the trainer no longer prints rows: a loss of NaN whose rows are left out, a logger "
            "that failed or was closed, a step that is caught and skipped. Then run again.",
        )
        return
    yield Diagnosis(
        f"The trainer ended by itself at step {run.steps_done:,.0f} of {run.spec.steps:,}, with exit code 0.",
        because=[
            evidence(f"steps.done = {run.steps_done:g}, exit code 0", "journal.jsonl"),
            *([evidence(tail[-1], run.result.log_path, "last line")] if tail else []),
        ],
        next_step="Read the end of its log for what ended it: the end of the data or of the epochs, an early stop, a "
        "length of its own config that wins over the one that it was given, a call of exit. Then run again.",
    )


def _without_rows_s(run: RunFacts) -> float | None:
    """Seconds for which the process continued behind its last row; None where that is less than half of what the steps
    without a row would take at the pace of the others, as for the last checkpoint."""
    clock = clock_for(run.result)
    if run.outcome is None or clock is None or clock.steps[-1] <= clock.steps[0] or run.spec.steps is None:
        return None
    step_s = float(clock.seconds[-1] - clock.seconds[0]) / float(clock.steps[-1] - clock.steps[0])
    silent_s = run.outcome.last.duration_s - float(clock.seconds[-1])
    due_s = (run.spec.steps - (run.steps_done or 0.0)) * step_s
    return silent_s if silent_s >= max(_SILENT_S, due_s / 2) else None


def _end_has_a_cause(run: RunFacts) -> bool:
    """Whether another finding says why the run ended, so that the early end is no fact of its own."""
    named = any(True for one in (not_finite.nan_loss, evidence_quality.stale_halt) for _ in one.look(run))
    return named or bool(run.hits("oom") or run.hits("disk_full"))


@rule("slow-not-hung", "warning", of="run")
def slow_not_hung(run: RunFacts) -> Iterator[Diagnosis]:
    """A run taken for a hang although its next record is not yet due."""
    quiet = _silence(run)
    marks = run.evidence.heartbeats
    if not run.training or quiet is None or any(m.done for m in marks.values()):
        return
    if run.outcome is not None and (run.outcome.ok or run.outcome.reason in ("exited", "halted", "infrastructure")):
        return
    silent_s, due_s, rank = quiet
    if due_s < _NOTABLE_WAIT_S or silent_s > 1.5 * due_s or run.step_time_s is None:
        return
    done, requested = run.steps_done or 0.0, run.steps_requested
    rest = (
        f" The {requested - done:.0f} steps left need {format_duration((requested - done) * run.step_time_s)}."
        if requested
        else ""
    )
    yield Diagnosis(
        f"The run is slow, not stuck: a step takes {format_duration(run.step_time_s)} and a record comes every "
        f"{format_duration(due_s)}; the last one is {format_duration(silent_s)} old.{rest}",
        confidence="high" if silent_s <= due_s else "medium",
        because=[evidence(f"last step {marks[rank].last_step} on rank {rank}", marks[rank].path)],
        next_step="Log every step (log_every 1), give the phase a timeout that fits, and find out why a step takes "
        "so long.",
    )


def _silence(run: RunFacts) -> tuple[float, float, int] | None:
    """Seconds since the last finished step of the slowest rank, seconds until a record is due, and that rank."""
    marks = run.evidence.heartbeats
    step_s = run.step_time_s
    if not marks or step_s is None:
        return None
    rank = min(marks, key=lambda r: (marks[r].last_step, marks[r].last_ts or 0))
    mark = marks[rank]
    if mark.last_ts is None:
        return None
    end = mark.last_ts
    if run.outcome is not None and run.failed and mark.first_ts is not None:
        end = max(end, mark.first_ts + run.outcome.duration_s)
    since = mark.last_progress_ts
    series = run.series("loss") or run.series("toks_per_s")
    strides = np.diff(series.steps) if series is not None and len(series.steps) > 1 else np.array([1])
    return end - (since if since is not None else mark.last_ts), float(np.median(strides)) * step_s, rank

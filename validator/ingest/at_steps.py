"""Where validator ends a run behind its steps, the trainer has gone on meanwhile: what is judged is what was asked for.

A trainer is ended when its last step has been seen, some steps late as a rule, and later still where its output is
buffered. Rows behind the last step are left out, so that the same steps are judged however late that was.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from validator.ingest.result_builder import ResultBuilder, highest_step
from validator.model.launching import steps_before
from validator.model.result import Series

_CORE = ("loss", "toks_per_s", "step_time_s")


@dataclass(frozen=True)
class Asked:
    """What counts of a run: `done` finished steps, and its rows up to the step `last`, as the trainer counts them."""

    done: float | None
    last: int | None = None


def asked_of(state: ResultBuilder, done: float | None) -> Asked:
    """What was asked for of `done` finished steps; all of them where the trainer ends its runs itself.

    `done` is that of `result_builder.steps_done`: one more than the last step where they are counted from 0.
    """
    if state.ended_at is None or done is None:
        return Asked(done)
    first_rank = state.heartbeats[min(state.heartbeats)] if state.heartbeats else None
    highest = highest_step(state.series, first_rank, state.evidence.places) or 0
    core = [one.steps for name in _CORE if (one := state.series.get(name)) is not None and one.steps.size > 1]
    first = min((int(steps[0]) for steps in core), default=0)
    stride = max((int(steps[1] - steps[0]) for steps in core), default=1)
    end = steps_before(first, stride, warmup_steps=state.warmup_steps) + state.ended_at
    # A trainer that came to its own end there wrote its last row, and the evaluation behind it, whatever that counts.
    own_end = state.ends_there_itself and state.outcome is not None and state.outcome.exited_well
    return Asked(min(done, float(end)), end - (1 if done > highest and not own_end else 0))


def cut_behind(state: ResultBuilder, last: int | None) -> None:
    """Leave out every row behind the step `last`; cutting twice is harmless."""
    if last is None:
        return
    state.series = {name: _up_to(one, last) for name, one in state.series.items()}
    for rank, series in state.rank_series.items():
        state.rank_series[rank] = {name: _up_to(one, last) for name, one in series.items()}


def _up_to(series: Series, last: int) -> Series:
    kept = series.steps <= last
    return series if kept.all() else replace(series, steps=series.steps[kept], values=series.values[kept])

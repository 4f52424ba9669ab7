"""Which few of many differing settings explain a difference, found with few and noisy runs.

Delta debugging in the spirit of Zeller and Hildebrandt (2002), "Simplifying and Isolating Failure-Inducing Input", with
the binary search over prefixes of QuickXplain (Junker 2004): the shortest prefix of settings that reproduces the
difference ends in a setting that matters; it is kept, and the search continues in front of it until what is kept
reproduces the difference alone. k settings among n cost about k·log2(n) runs where ddmin costs up to n².

Runs are noisy: a combination whose share lies too near the threshold is run again, a bounded number of times. One that
does not run at all has no share; the search passes around it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from validator.model.catalogue import METRICS, Metric
from validator.stats.estimate import NORMAL_975, REPLICATES, Estimate, over_runs
from validator.text import format_change, format_percent, plural

ENOUGH = 0.8
"""Share of the difference that a set must reproduce to explain it: what is left is another, smaller cause or noise."""


class BudgetSpent(Exception):
    """No further run is allowed."""


class NoDifference(Exception):
    """The two ends do not differ significantly; the message says by how much they differ."""


@dataclass(frozen=True)
class Reply:
    """What is known of a combination: the share of the difference that it shows, 0 at good and 1 at bad.

    `low` and `high` are the 95 % interval; `share` is None when the combination did not run.
    """

    share: float | None
    low: float = -math.inf
    high: float = math.inf
    runs: int = 1

    @property
    def decided(self) -> bool:
        """Whether the whole interval is on one side of the threshold."""
        return self.share is not None and (self.low >= ENOUGH or self.high < ENOUGH)

    @property
    def reproduces(self) -> bool | None:
        """Whether it shows the difference; None when it did not run."""
        return None if self.share is None else self.share >= ENOUGH


Ask = Callable[[frozenset[str]], Reply]
"""Runs a combination and returns all that is known of it; called again for the same one, it runs it once more."""


@dataclass(frozen=True)
class Contribution:
    """What one setting of the explanation does.

    `share` is how much of the difference goes when it alone is put back, `alone` how much it shows by itself; None
    where that was not run.
    """

    names: tuple[str, ...]
    share: float | None = None
    alone: float | None = None


@dataclass(frozen=True)
class Explanation:
    """The smallest set found. `complete` is false when the budget ended the search: the cause is among `suspects`."""

    names: tuple[str, ...]
    contributions: tuple[Contribution, ...]
    complete: bool
    suspects: tuple[str, ...] = ()
    rest_share: float | None = None
    uncertain: tuple[frozenset[str], ...] = ()
    broken: tuple[frozenset[str], ...] = ()


@dataclass
class _Search:
    """The state of one search: every reply there is."""

    names: tuple[str, ...]
    ask: Ask
    repeats: int
    replies: dict[frozenset[str], Reply] = field(default_factory=dict)
    uncertain: list[frozenset[str]] = field(default_factory=list)
    broken: list[frozenset[str]] = field(default_factory=list)
    groups: list[tuple[str, ...]] = field(default_factory=list)
    suspects: tuple[str, ...] = ()

    def reply(self, subset: frozenset[str]) -> Reply:
        """The reply to a combination, run again while it is too near the threshold to be decided."""
        if subset not in self.replies:
            found = self.ask(subset)
            while found.share is not None and not found.decided and found.runs < self.repeats:
                found = self.ask(subset)
            self.replies[subset] = found
            if found.share is None:
                self.broken.append(subset)
            elif not found.decided:
                self.uncertain.append(subset)
        return self.replies[subset]

    @property
    def kept(self) -> frozenset[str]:
        return frozenset(name for group in self.groups for name in group)


def search(names: Sequence[str], ask: Ask, *, repeats: int = 3) -> Explanation:
    """The smallest set of `names` that reproduces the difference, as far as `ask` allows.

    Args:
        names: the settings that differ, in any order; those that matter most should come first.
        ask: runs good with the settings of the given set taken from bad.
        repeats: maximum of runs of one combination whose share is too near the threshold.

    Raises:
        NoDifference: when all settings together do not reproduce the difference.
    """
    state = _Search(tuple(names), ask, repeats, suspects=tuple(names))
    whole = frozenset(names)
    try:
        if not state.reply(whole).reproduces:
            share = state.replies[whole].share
            shown = "they do not run" if share is None else f"they show {format_percent(share)} of it"
            raise NoDifference(f"all settings together do not reproduce the difference: {shown}")
        _narrow(state)
    except BudgetSpent:
        return _explained(state, complete=False)
    with suppress(BudgetSpent):  # the explanation stands; only how much each does is not known in full
        _contributions(state)
    return _explained(state, complete=True)


def _narrow(state: _Search) -> None:
    """Keep the last setting of the shortest reproducing prefix, then search in front of it."""
    candidates = state.names
    while candidates:
        if state.groups and state.reply(state.kept).reproduces:
            break
        low, high = _boundary(state, candidates)
        state.groups.append(candidates[low:high])
        candidates = candidates[:low]
        state.suspects = candidates
    state.suspects = ()


def _boundary(state: _Search, candidates: tuple[str, ...]) -> tuple[int, int]:
    """(low, high): `high` first candidates reproduce the difference with what is kept, `low` first do not.

    They are neighbors unless every prefix in between does not run: those settings are kept together.
    """
    low, high = 0, len(candidates)
    while high - low > 1:
        middle = (low + high) // 2
        for length in sorted(range(low + 1, high), key=lambda length: abs(length - middle)):
            state.suspects = candidates[low:high]
            answer = state.reply(state.kept | frozenset(candidates[:length])).reproduces
            if answer is not None:
                break
        else:
            return low, high
        low, high = (low, length) if answer else (length, high)
    return low, high


def _contributions(state: _Search) -> None:
    """Run each kept setting put back, and the rest of the settings without the kept ones."""
    if len(state.groups) > 1:
        for group in list(state.groups):
            without = state.kept - frozenset(group)
            if without and state.reply(without).reproduces:
                # It is not needed after all: what was kept later makes up for it.
                state.groups.remove(group)
    if frozenset(state.names) - state.kept:
        state.reply(frozenset(state.names) - state.kept)
    if len(state.groups) > 2:
        for group in state.groups:
            state.reply(frozenset(group))


def _share_of(state: _Search, subset: frozenset[str]) -> float | None:
    if not subset:
        return 0.0
    found = state.replies.get(subset)
    return None if found is None else found.share


def _explained(state: _Search, *, complete: bool) -> Explanation:
    whole = _share_of(state, state.kept)
    if whole is None and complete:
        whole = 1.0
    contributions = []
    for group in state.groups:
        without = _share_of(state, state.kept - frozenset(group))
        contributions.append(
            Contribution(
                names=group,
                share=None if whole is None or without is None else whole - without,
                alone=_share_of(state, frozenset(group)),
            )
        )
    rest = frozenset(state.names) - state.kept
    return Explanation(
        names=tuple(name for group in state.groups for name in group),
        contributions=tuple(sorted(contributions, key=lambda one: -(one.share or 0.0))),
        complete=complete,
        suspects=() if complete else state.suspects,
        rest_share=_share_of(state, rest) if rest and complete else None,
        uncertain=tuple(state.uncertain),
        broken=tuple(state.broken),
    )


# Trials: short runs of combinations of settings, each measured and kept, so that a bisection can be resumed.


@dataclass(frozen=True)
class Trial:
    """One run of one combination. `value` is that of `metric`, None when the run gives none; `why` says why."""

    number: int
    names: frozenset[str]
    value: float | None
    half: float = 0.0
    why: str | None = None
    duration_s: float = 0.0
    metric: str | None = None


def statistic_of(metric: Metric, wanted: str) -> str:
    """What is taken of a metric: of a rate or a time what the user wants, of a loss its last value."""
    return wanted if metric.window == "steady" else metric.statistic


@dataclass(frozen=True)
class Ends:
    """Both ends as measured, and how their distance is counted.

    `works` is set when good runs to its end and bad does not: then a combination shows the difference by failing.
    """

    good: Estimate | None
    bad: Estimate | None
    works: bool

    def share(self, value: Estimate) -> tuple[float, float, float]:
        """Share of the distance from good to bad, in logarithms, with its 95 % interval."""
        assert self.good is not None, "a rate is compared only where good has one"
        assert self.bad is not None, "a rate is compared only where bad has one"
        total = math.log(self.good.point / self.bad.point)
        replicates = np.log(_positive(self.good) / _positive(value)) / total
        low, high = (float(end) for end in np.quantile(replicates, [0.025, 0.975]))
        return math.log(self.good.point / value.point) / total, low, high


def _positive(estimate: Estimate) -> np.ndarray:
    values = np.full(1, estimate.point) if estimate.replicates is None else estimate.replicates
    return np.maximum(values, 1e-9 * abs(estimate.point))


@dataclass
class Trials:
    """Runs combinations and remembers them. `start` carries out one trial; `budget` is the maximum of runs in all.

    `metric` is None until the first run that gives a value says what there is to compare; `known` are all that may be.
    `done` are all trials, those of earlier runner sessions first; the search has used the first `used` of them.
    """

    names: tuple[str, ...]
    metric: str | None
    statistic: str
    run_cv: float
    budget: int
    start: Callable[[int, frozenset[str]], Trial]
    known: Mapping[str, Metric] = field(default_factory=lambda: METRICS)
    done: list[Trial] = field(default_factory=list)
    used: int = 0
    ends: Ends | None = None
    asked: set[frozenset[str]] = field(default_factory=set)

    def next(self, names: frozenset[str]) -> tuple[Trial, ...]:
        """One more run of a combination (taken from an earlier session if there is one), with those before it.

        Raises:
            BudgetSpent: when no further run is allowed.
        """
        before = self._of(names)
        # Earlier sessions ran the same combinations in the same order, since the search has no other memory.
        if self.used < len(self.done) and self.done[self.used].names == names:
            trial = self.done[self.used]
        else:
            del self.done[self.used :]
            if len(self.done) >= self.budget:
                raise BudgetSpent
            trial = self.start(len(self.done) + 1, names)
            self.done.append(trial)
        self.used += 1
        self.metric = self.metric or trial.metric
        return (*before, trial)

    @property
    def compared(self) -> Metric:
        """The metric, or what it would have been where no run gave a value."""
        return self.known[self.metric or "toks_per_s"]

    @property
    def reference(self) -> str:
        """The metric with what is taken of it, as a criterion names it: `loss.last`."""
        return f"{self.compared.name}.{statistic_of(self.compared, self.statistic)}"

    def estimate(self, trials: tuple[Trial, ...]) -> Estimate | None:
        """The metric over the runs of one combination; None when none gave a value."""
        known = [trial for trial in trials if trial.value is not None and trial.value > 0]
        if not known:
            return None
        numbers = [trial.number for trial in known]
        rng = np.random.default_rng(numbers)
        runs = []
        for trial in known:
            point, error = float(trial.value or 0.0), trial.half / NORMAL_975
            runs.append(Estimate(point, point + error * rng.standard_normal(REPLICATES)))
        sign = -1 if self.compared.better == "higher" else 1
        return over_runs(runs, run_cv=self.run_cv, sign=sign, seed="/".join(map(str, numbers)))

    def ask(self, names: frozenset[str]) -> Reply:
        """The reply to a combination, by one more run."""
        assert self.ends is not None, "both ends are measured before the search begins"
        # All settings from bad are the bad end, which has been run before the search began.
        known = self._of(names) if names not in self.asked else ()
        self.asked.add(names)
        trials = known or self.next(names)
        failed = [trial for trial in trials if trial.value is None]
        if self.ends.works:
            share = 1.0 if failed else 0.0
            return Reply(share, share, share, runs=len(trials))
        value = self.estimate(trials)
        if value is None:
            return Reply(None, runs=len(trials))
        share, low, high = self.ends.share(value)
        return Reply(share, low, high, runs=len(trials))

    def _of(self, names: frozenset[str]) -> tuple[Trial, ...]:
        return tuple(trial for trial in self.done[: self.used] if trial.names == names)


def measured_ends(trials: Trials, *, repeats: int, min_effect: float) -> tuple[Ends | None, str]:
    """Both ends, run until they differ significantly or `repeats` is reached; (None, why) when they do not.

    They are run alternately, so that a drift of the machine affects both.

    Args:
        min_effect: smallest relative difference that counts.

    Raises:
        BudgetSpent: when no further run is allowed.
    """
    ratio = 1.0
    for _ in range(repeats):
        good, bad = trials.next(frozenset()), trials.next(frozenset(trials.names))
        if all(trial.value is None for trial in good):
            return None, f"good itself does not run: {good[-1].why}"
        good_rate, bad_rate = trials.estimate(good), trials.estimate(bad)
        if any(trial.value is None for trial in bad):
            return Ends(good_rate, None, works=True), ""
        assert good_rate is not None, "good has a value"
        assert bad_rate is not None, "bad has a value"
        ratio = bad_rate.point / good_rate.point
        if not _overlap(good_rate, bad_rate) and abs(ratio - 1.0) >= min_effect:
            return Ends(good_rate, bad_rate, works=False), ""
    return None, (
        f"good and bad do not differ significantly after {plural(repeats, 'run')} each: "
        f"{trials.compared.name} differs by {format_change(ratio - 1)}; the minimum is {format_percent(min_effect)}. "
        "Use more --steps or --repeats"
    )


def _overlap(one: Estimate, other: Estimate) -> bool:
    """Whether the 95 % intervals have values in common."""
    first, second = one.interval(), other.interval()
    return first is None or second is None or (first[0] <= second[1] and second[0] <= first[1])

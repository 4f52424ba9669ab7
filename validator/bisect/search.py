"""Which few of many differing settings explain a difference, found with few and noisy runs.

Delta debugging in the spirit of Zeller and Hildebrandt (2002), "Simplifying and Isolating Failure-Inducing Input", with
the binary search over prefixes of QuickXplain (Junker 2004): the shortest prefix of settings that reproduces the
difference ends in a setting that matters; it is kept, and the search goes on in front of it until what is kept
reproduces the difference alone. k settings among n cost about k·log2(n) runs where ddmin costs up to n².

A run is noisy, so an answer that lies too near the threshold is asked again, a bounded number of times. A combination
that does not run at all answers nothing; the search passes around it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

__all__ = ["BudgetSpent", "Contribution", "Explanation", "NoDifference", "Reply", "search"]

ENOUGH = 0.8
"""Share of the difference that a set must reproduce to explain it: what is left is another, smaller cause or noise."""


class BudgetSpent(Exception):
    """No further run is allowed."""


class NoDifference(Exception):
    """The two ends cannot be told apart; the message says by how much they differ."""


@dataclass(frozen=True)
class Reply:
    """What is known of a combination: the share of the difference that it shows, 0 at good and 1 at bad.

    `low` and `high` are the 95 % interval; `share` is None when the combination did not run.
    """

    share: float | None
    low: float = -math.inf
    high: float = math.inf
    runs: int = 1
    why: str | None = None

    @property
    def decided(self) -> bool:
        """Whether the whole interval is on one side of the threshold."""
        return self.share is not None and (self.low >= ENOUGH or self.high < ENOUGH)

    @property
    def reproduces(self) -> bool | None:
        """Whether it shows the difference; None when it did not run."""
        return None if self.share is None else self.share >= ENOUGH


Ask = Callable[[frozenset[str]], Reply]
"""Runs a combination and tells all that is known of it; asked again for the same one, it runs it once more."""


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
    """The state of one search: everything that was answered so far."""

    names: tuple[str, ...]
    ask: Ask
    repeats: int
    replies: dict[frozenset[str], Reply] = field(default_factory=dict)
    uncertain: list[frozenset[str]] = field(default_factory=list)
    broken: list[frozenset[str]] = field(default_factory=list)
    groups: list[tuple[str, ...]] = field(default_factory=list)
    suspects: tuple[str, ...] = ()

    def reply(self, subset: frozenset[str]) -> Reply:
        """The answer to a combination, asked again while it is too near the threshold to be told."""
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
        repeats: most runs of one combination whose answer is too near the threshold.

    Raises:
        NoDifference: when all settings together do not reproduce the difference.
    """
    state = _Search(tuple(names), ask, repeats, suspects=tuple(names))
    whole = frozenset(names)
    try:
        if not state.reply(whole).reproduces:
            share = state.replies[whole].share
            shown = "they do not run" if share is None else f"they show {100 * share:.0f} % of it"
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


def _share(state: _Search, subset: frozenset[str]) -> float | None:
    if not subset:
        return 0.0
    found = state.replies.get(subset)
    return None if found is None else found.share


def _explained(state: _Search, *, complete: bool) -> Explanation:
    whole = _share(state, state.kept)
    if whole is None and complete:
        whole = 1.0
    contributions = []
    for group in state.groups:
        without = _share(state, state.kept - frozenset(group))
        contributions.append(
            Contribution(
                names=group,
                share=None if whole is None or without is None else whole - without,
                alone=_share(state, frozenset(group)),
            )
        )
    rest = frozenset(state.names) - state.kept
    return Explanation(
        names=tuple(name for group in state.groups for name in group),
        contributions=tuple(sorted(contributions, key=lambda one: -(one.share or 0.0))),
        complete=complete,
        suspects=() if complete else state.suspects,
        rest_share=_share(state, rest) if rest and complete else None,
        uncertain=tuple(state.uncertain),
        broken=tuple(state.broken),
    )

"""Do comparisons keep their promises? How often `compare` and a sweep say what, when the truth is known.

    python -m benchmarks.comparing                  # the table of docs/comparing.md, some minutes
    python -m benchmarks.comparing --trials 500

Run means are drawn from a normal distribution around a known level and go through `contrast` and `compare_arms`, the
functions behind `validator compare` and the sweeps. Within a run nothing is drawn: from four runs a side on, only run
means decide.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from validator.compare import Side, contrast
from validator.judge.compare import ArmRuns, ComparisonRules, compare_arms
from validator.model.contrast import ContrastSide
from validator.model.result import MetricStats
from validator.model.verdict import RunReport

__all__ = ["CASES", "Case", "main", "tally"]

Answer = Callable[[Sequence[float], Sequence[float]], str]


@dataclass(frozen=True)
class Case:
    """Two sides: true relative difference, variation between runs, runs on each side, and the question."""

    question: str
    difference: float
    cv: float
    runs: int
    margin: float | None = None


CASES = (
    *(Case("compare", difference, cv, 4) for cv in (0.01, 0.02, 0.03, 0.05) for difference in (0.0, -0.02, -0.05)),
    *(Case("compare", difference, 0.02, 8) for difference in (0.0, -0.05)),
    *(Case("compare", 0.0, 0.01, runs) for runs in (6, 8)),
    *(Case("not worse", difference, cv, 4, 0.05) for cv in (0.01, 0.02, 0.03) for difference in (0.0, -0.05, -0.1)),
    *(Case("not worse", difference, 0.02, runs, 0.05) for runs in (5, 6) for difference in (0.0, -0.05)),
    *(Case("sweep", difference, cv, 4) for cv in (0.01, 0.03) for difference in (0.0, -0.05)),
    *(Case("prefer", difference, cv, 4) for cv in (0.005, 0.01) for difference in (0.0, -0.02, -0.05)),
)
"""Rows of the table."""


def _side(name: str, rates: Sequence[float]) -> Side:
    empty = dict.fromkeys(("stdev", "cv", "ci_low", "ci_high", "min", "p50", "p95", "p99", "max", "first", "last"))
    runs = tuple(
        RunReport(
            id=f"p/r{number}",
            metrics={
                "toks_per_s": MetricStats(
                    unit="tok/s", n=100, mean=rate, window=None, source=None, sha256=None, **empty
                )
            },
        )
        for number, rate in enumerate(rates, start=1)
    )
    return Side(ContrastSide(kind="validation", name=name), {("p", None): runs})


def _contrast(margin: float | None) -> Answer:
    return lambda a, b: contrast(_side("a", a), _side("b", b), not_worse_than=margin).verdict


def _arms(prefer: str | None) -> Answer:
    rules = ComparisonRules("toks_per_s.mean", "tok/s", "highest", 0.02, prefer=prefer)

    def answer(a: Sequence[float], b: Sequence[float]) -> str:
        arms = [ArmRuns(name, {}, tuple(values)) for name, values in (("a", a), ("b", b))]
        found = compare_arms(arms, rules=rules)
        if found.outcome == "significant":
            return "better" if found.recommended == "b" else "worse"
        return found.outcome

    return answer


def tally(case: Case, *, trials: int, seed: int = 0) -> Counter[str]:
    """How often each verdict on side b was given."""
    rng = np.random.default_rng([seed, case.runs, round(1e4 * case.cv), round(-1e4 * case.difference)])
    answer = {
        "compare": _contrast(None),
        "not worse": _contrast(case.margin),
        "sweep": _arms(None),
        "prefer": _arms("b"),
    }[case.question]
    counted: Counter[str] = Counter()
    for _ in range(trials):
        a = 100.0 * (1 + case.cv * rng.standard_normal(case.runs))
        b = 100.0 * (1 + case.difference) * (1 + case.cv * rng.standard_normal(case.runs))
        counted[answer(a.tolist(), b.tolist())] += 1
    return counted


def _row(case: Case, counted: Counter[str]) -> str:
    trials = counted.total()
    passed = sum(counted[word] for word in ("better", "no_difference", "not_worse"))
    question = f"not worse than {100 * case.margin:g} %" if case.margin is not None else case.question
    cells = (
        question,
        f"{case.runs} + {case.runs}",
        f"{100 * case.cv:g} %",
        f"{100 * case.difference:g} %" if case.difference else "0",
        *(f"{100 * count / trials:.1f} %" for count in (passed, counted["worse"], counted["not_decidable"])),
    )
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description="How often comparisons say what.")
    parser.add_argument("--trials", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    print("| question | runs | between runs | truth | exit 0 | exit 1 | exit 3 |")
    print("|---|---|---|---|---|---|---|")
    for case in CASES:
        print(_row(case, tally(case, trials=given.trials, seed=given.seed)), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

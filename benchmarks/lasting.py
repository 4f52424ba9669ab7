"""Does a soak find a lasting slow-down, and leave a machine alone that only wanders? By simulation.

    python -m benchmarks.lasting                 # a few runs of each kind, under a minute
    python -m benchmarks.lasting --trials 400    # a table of docs/statistics.md
    python -m benchmarks.lasting --trials 200 --rows 4000 --noise 'white 2 %' --spaced    # another, of uneven rows

Healthy runs have noise of their own (white, autocorrelated, or wandering about a mean), pauses, rare slow steps, and
levels that come and go; sick ones become slower and stay so. Each goes through the same `judge_phase` as a real soak.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.signal import lfilter

from benchmarks.calibration import record
from validator.judge import judge_phase
from validator.model.record import PhaseRecord, ValidationRecord
from validator.model.result import Steps
from validator.model.runbook import Runbook
from validator.stats.spacing import covered_steps

Floats = npt.NDArray[np.float64]
Shape = Callable[[np.random.Generator, int], Floats]
TOKENS = 100.0
RATE_BOUND = 0.9
"""Bound on the rate, over the rate at the healthy level, as `validator init` writes it."""


def ar1(rng: np.random.Generator, n: int, phi: float, cv: float) -> Floats:
    """Autocorrelated noise of that standard deviation."""
    raw = rng.standard_normal(n + 200) * np.sqrt(1 - phi**2)
    colored: Floats = cv * lfilter([1.0], [1.0, -phi], raw)[200:]
    return colored


NOISES: dict[str, Shape] = {
    "white 2 %": lambda rng, n: ar1(rng, n, 0.0, 0.02),
    "φ 0.9, 3 %": lambda rng, n: ar1(rng, n, 0.9, 0.03),
    # As a small trainer on a small virtual machine was seen to do: 3 % of slow wander under 3 % from row to row.
    "wander 3 %": lambda rng, n: ar1(rng, n, np.exp(-1 / 25), 0.033) + ar1(rng, n, 0.0, 0.027),
}


def paces(first: int, then: int, share: float) -> Callable[[np.random.Generator, int], Steps]:
    """A row each `first` steps, and after that share of the run each `then` steps."""
    return lambda rng, n: np.r_[first : int(share * n) : first, int(share * n) : n + 1 : then].astype(np.int64)


def bursts(rng: np.random.Generator, n: int) -> Steps:
    """Rows of 1 to 20 steps, as lines arrive from a buffer."""
    steps: Steps = np.cumsum(rng.integers(1, 21, n))
    return steps[steps <= n]


_EACH = "each step"
SPACINGS: dict[str, Callable[[np.random.Generator, int], Steps]] = {
    _EACH: lambda rng, n: np.arange(1, n + 1),
    "10, from 30 % on 50": paces(10, 50, 0.3),
    "1, from 20 % on 10": paces(1, 10, 0.2),
    "1, from 30 % on 50": paces(1, 50, 0.3),
    "50, from 60 % on 10": paces(50, 10, 0.6),
    "1 to 20": bursts,
}
"""The steps of the rows, in a run of so many."""


def flat(rng: np.random.Generator, n: int) -> Floats:
    """Always the same."""
    return np.ones(n)


def pauses(every: int, cost: float) -> Shape:
    """An evaluation at each of so many rows, which costs as much as that many of them."""
    return lambda rng, n: np.where((np.arange(n) + rng.integers(every)) % every == 0, 1 + cost, 1.0)


def slow_steps(rng: np.random.Generator, n: int) -> Floats:
    """Two rows of a hundred take half as long again."""
    return np.where(rng.random(n) < 0.02, 1.5, 1.0)


def comes_and_goes(least: int, most: int, width: float) -> Shape:
    """Levels of so many rows, anywhere within a band of this width."""

    def make(rng: np.random.Generator, n: int) -> Floats:
        lengths = rng.integers(least, most, size=n // least + 1)
        return np.repeat(1 + width * (rng.random(len(lengths)) - 0.5), lengths)[:n]

    return make


def start(rng: np.random.Generator, n: int) -> Floats:
    """A start that is a third slower for a tenth of the run."""
    return np.where(np.arange(n) < 0.1 * n, 1.33, 1.0)


def falls(at: float, lost: float, *, begins: float = 0.0) -> Shape:
    """The rate falls by this share at that part of the run; the part up to `begins` is a slow start."""

    def make(rng: np.random.Generator, n: int) -> Floats:
        where = np.arange(n) / n
        slow_start = np.where(where < begins, 1.2, 1.0)
        return slow_start * np.where(where >= at, 1 / (1 - lost), 1.0)

    return make


def drifts(lost: float) -> Shape:
    """The rate falls evenly, by this share to the end."""
    return lambda rng, n: 1 / (1 - lost * np.linspace(0, 1, n))


def stairs(lost: float, count: int) -> Shape:
    """The rate falls by this share to the end, in so many steps."""
    return lambda rng, n: 1 / (1 - lost * np.floor(np.linspace(0, 1, n, endpoint=False) * (count + 1)) / count)


@dataclass(frozen=True)
class Kind:
    """What runs of one kind look like, and whether they lastingly become slower by 5 % or more."""

    name: str
    shape: Shape
    sick: bool = False


KINDS = (
    Kind("steady", flat),
    Kind("evaluation every 50 rows", pauses(50, 1.5)),
    Kind("evaluation of 25 every 100 rows", pauses(100, 25.0)),
    Kind("evaluation of 10 every 20 rows", pauses(20, 10.0)),
    Kind("2 % of rows half as long again", slow_steps),
    Kind("slow start of a tenth", start),
    Kind("levels of 25 to 80 rows within 4 %", comes_and_goes(25, 80, 0.04)),
    Kind("levels of 25 to 80 rows within 8 %", comes_and_goes(25, 80, 0.08)),
    Kind("levels of 70 to 420 rows within 4 %", comes_and_goes(70, 420, 0.04)),
    Kind("levels of 70 to 420 rows within 8 %", comes_and_goes(70, 420, 0.08)),
    *(Kind(f"half the rate from {at:.0%} on", falls(at, 0.5), True) for at in (0.5, 0.8)),
    *(
        Kind(f"−{lost:.0%} from {at:.0%} on", falls(at, lost), True)
        for lost in (0.05, 0.07, 0.1, 0.2)
        for at in (0.1, 0.3, 0.5, 0.7, 0.85)
    ),
    *(Kind(f"−{lost:.0%}, evenly", drifts(lost), True) for lost in (0.1, 0.2)),
    *(Kind(f"−{lost:.0%}, in {count} steps", stairs(lost, count), True) for lost, count in ((0.09, 3), (0.2, 4))),
    *(
        Kind(f"slow up to {begins:.0%}, −{lost:.0%} from {at:.0%} on", falls(at, lost, begins=begins), True)
        for begins, at, lost in ((0.1, 0.7, 0.1), (0.2, 0.6, 0.1), (0.2, 0.6, 0.15), (0.3, 0.8, 0.15), (0.4, 0.8, 0.2))
    ),
)


def book(rows: int) -> Runbook:
    """A soak with a bound on its rate."""
    phase = {"id": "s", "kind": "soak", "steps": rows, "accept": [f"toks_per_s.mean >= {RATE_BOUND * TOKENS:g}"]}
    return Runbook.model_validate({"schema": 1, "name": "lasting", "phases": [phase]})


def judged(runbook: Runbook, relative: Floats, steps: Steps | None = None) -> tuple[str, str]:
    """The verdicts on a run whose steps take so long: whether its rate lasts, and whether it is high enough.

    It has rows of `steps`, else of every step.
    """
    done = np.append(0.0, np.cumsum(np.maximum(relative, 0.2)))
    steps = np.arange(1, len(done)) if steps is None else steps
    run = record("s/r1", np.diff(done[steps], prepend=0.0) / covered_steps(steps), np.zeros(len(steps)), 1, steps)
    phase = PhaseRecord(runbook.phases[0], "done", (run,))
    report = judge_phase(phase, validation=ValidationRecord(runbook, (phase,)), judged={})
    status = {one.id: one.status for one in report.criteria}
    return status["s.sustained_rate"], status["s.1"]


def tally(
    kind: Kind, noise: Shape, *, rows: int, trials: int, seed: int, spacing: str = _EACH
) -> tuple[Counter[str], Counter[str]]:
    """How often each verdict is given: on whether the rate lasts, and on the bound."""
    rng, runbook = np.random.default_rng([seed, rows, *kind.name.encode()]), book(rows)
    lasts, enough = Counter[str](), Counter[str]()
    for _ in range(trials):
        relative = kind.shape(rng, rows) * (1 + noise(rng, rows))
        one, other = judged(runbook, relative, SPACINGS[spacing](rng, rows))
        lasts[one] += 1
        enough[other] += 1
    return lasts, enough


def shares(counts: Counter[str]) -> str:
    """PASS / INCONCLUSIVE / FAIL in percent."""
    return " / ".join(f"{100 * counts[one] / counts.total():.0f}" for one in ("PASS", "INCONCLUSIVE", "FAIL"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table: PASS / INCONCLUSIVE / FAIL in percent, under each noise and spacing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10, help="runs of each kind and noise (default: 10)")
    parser.add_argument("--rows", type=int, default=500, help="rows of a run (default: 500)")
    parser.add_argument("--noise", choices=tuple(NOISES), nargs="*", default=tuple(NOISES))
    parser.add_argument("--spaced", action="store_true", help="also with rows that cover unequal numbers of steps")
    parser.add_argument("--only", default="", help="a part of a kind's name")
    parser.add_argument("--part", default="1/1", metavar="K/N", help="every N-th kind, from the K-th on")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    part, parts = (int(number) for number in options.part.split("/"))
    began = time.monotonic()
    columns = [(name, spacing) for name in options.noise for spacing in SPACINGS if options.spaced or spacing == _EACH]
    heads = [f"{name}{', ' + spacing if options.spaced else ''}: lasts | bound" for name, spacing in columns]
    print(f"| runs of {options.rows} rows | " + " | ".join(heads) + " |")
    print("|---" * (1 + 2 * len(columns)) + "|", flush=True)
    for kind in [one for one in KINDS if options.only in one.name][part - 1 :: parts]:
        cells = [
            shares(one)
            for name, spacing in columns
            for one in tally(
                kind,
                NOISES[name],
                rows=options.rows,
                trials=options.trials,
                seed=options.seed,
                spacing=spacing,
            )
        ]
        name = f"**{kind.name}**" if kind.sick else kind.name
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

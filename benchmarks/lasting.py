"""Does a soak find a lasting slow-down, and leave a machine alone that only wanders? By simulation.

    python -m benchmarks.lasting                 # a few runs of each kind, under a minute
    python -m benchmarks.lasting --trials 400    # the table of docs/statistics.md

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
from validator.model.runbook import Runbook

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


def flat(rng: np.random.Generator, n: int) -> Floats:
    """Always the same."""
    return np.ones(n)


def pauses(rng: np.random.Generator, n: int) -> Floats:
    """An evaluation at every 50th row, which makes it two and a half times as long."""
    return np.where((np.arange(n) + rng.integers(50)) % 50 == 0, 2.5, 1.0)


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
    Kind("evaluation every 50 rows", pauses),
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


def judged(runbook: Runbook, relative: Floats) -> tuple[str, str]:
    """The verdicts on a run whose steps take so long: whether its rate lasts, and whether it is high enough."""
    run = record("s/r1", np.maximum(relative, 0.2), np.zeros(len(relative)), 1)
    done = PhaseRecord(runbook.phases[0], "done", (run,))
    report = judge_phase(done, validation=ValidationRecord(runbook, (done,)), judged={})
    status = {one.id: one.status for one in report.criteria}
    return status["s.sustained_rate"], status["s.1"]


def tally(kind: Kind, noise: Shape, *, rows: int, trials: int, seed: int) -> tuple[Counter[str], Counter[str]]:
    """How often each verdict is given: on whether the rate lasts, and on the bound."""
    rng, runbook = np.random.default_rng([seed, rows, *kind.name.encode()]), book(rows)
    lasts, enough = Counter[str](), Counter[str]()
    for _ in range(trials):
        one, other = judged(runbook, kind.shape(rng, rows) * (1 + noise(rng, rows)))
        lasts[one] += 1
        enough[other] += 1
    return lasts, enough


def shares(counts: Counter[str]) -> str:
    """PASS / INCONCLUSIVE / FAIL in percent."""
    return " / ".join(f"{100 * counts[one] / counts.total():.0f}" for one in ("PASS", "INCONCLUSIVE", "FAIL"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table: PASS / INCONCLUSIVE / FAIL in percent, under each noise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10, help="runs of each kind and noise (default: 10)")
    parser.add_argument("--rows", type=int, default=500, help="rows of a run (default: 500)")
    parser.add_argument("--noise", choices=tuple(NOISES), nargs="*", default=tuple(NOISES))
    parser.add_argument("--only", default="", help="a part of a kind's name")
    parser.add_argument("--part", default="1/1", metavar="K/N", help="every N-th kind, from the K-th on")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    part, parts = (int(number) for number in options.part.split("/"))
    began = time.monotonic()
    print(f"| runs of {options.rows} rows | " + " | ".join(f"{one}: lasts | bound" for one in options.noise) + " |")
    print("|---" * (1 + 2 * len(options.noise)) + "|", flush=True)
    for kind in [one for one in KINDS if options.only in one.name][part - 1 :: parts]:
        cells = [
            shares(one)
            for name in options.noise
            for one in tally(kind, NOISES[name], rows=options.rows, trials=options.trials, seed=options.seed)
        ]
        name = f"**{kind.name}**" if kind.sick else kind.name
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

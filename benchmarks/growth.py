"""How often is a healthy soak held back for its memory, and a leak let through? By simulation.

    python -m benchmarks.growth                 # a sample, seconds
    python -m benchmarks.growth --trials 1000   # the table of docs/statistics.md

A sample a second, on a machine that has 22 GB left. Leaks fill it within three days, or take 50 MiB to 5 GiB during
the soak, whichever is more.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import numpy.typing as npt

from validator.kinds.soak import FARTHEST
from validator.stats.growth import LONG_RUN_S, lasting_growth

Floats = npt.NDArray[np.float64]
LEFT_MIB = 22_000.0
SAMPLES = (20, 60, 600, 3600)

HEALTHY = {
    "level, noise of 0.5 to 30 MiB": "level",
    "wanders by 64 MiB, φ 0.95": "wander",
    "sawtooth of up to 2 GiB, at least two periods": "saw",
    "sawtooth, one to two periods": "slow saw",
    "rises at one to three evaluations": "evaluations",
    "checkpoints that take up to 3 GiB": "checkpoints",
    "records of a heap that fragments": "records",
    "a log buffer of 4 to 40 kB a second": "log",
    "a cache of up to 3 GiB, τ a tenth of the soak": "cache 0.1",
    "τ a fifth": "cache 0.2",
    "τ two fifths": "cache 0.4",
    "τ the whole soak": "cache 1",
}
SICK = {
    "a leak": "",
    "beneath a sawtooth": "saw",
    "beneath checkpoints": "checkpoints",
    "in 7 to 40 steps": "many steps",
    "in 4 to 6 steps": "few steps",
    "beneath a cache, τ up to a fifth": "cache",
    "from 20 to 70 % on": "late",
}


def healthy(rng: np.random.Generator, n: int, shape: str) -> Floats:
    """Memory of a healthy soak, MiB."""
    t = np.arange(n, dtype=np.float64)
    base = _noise(rng, n)
    if shape == "wander":
        for i in range(1, n):
            base[i] = 5000 + 0.95 * (base[i - 1] - 5000) + rng.normal(0, 20)
    elif shape.endswith("saw"):
        period = rng.uniform(3, n / 2) if shape == "saw" else rng.uniform(n / 2, n)
        base += rng.uniform(20, 2000) * ((t + rng.uniform(0, period)) % period) / period
    elif shape == "evaluations":
        base += sum(rng.uniform(20, 500) * (t > at) for at in rng.uniform(0, 0.6 * n, rng.integers(1, 4)))
    elif shape == "checkpoints":
        base += _checkpoints(rng, t)
    elif shape == "records":
        base += rng.uniform(20, 200) * np.maximum.accumulate(rng.gumbel(0, 1, n))
    elif shape == "log":
        base += rng.uniform(0.004, 0.04) * t
    elif shape.startswith("cache"):
        base += rng.uniform(50, 3000) * (1 - np.exp(-t / (float(shape.split()[1]) * n)))
    return base


def sick(rng: np.random.Generator, n: int, shape: str) -> Floats:
    """Memory of a soak that leaks, MiB."""
    t = np.arange(n, dtype=np.float64)
    grown = max(10 ** rng.uniform(1.7, 3.7), 1.2 * LEFT_MIB * n / LONG_RUN_S)
    base, leak = _noise(rng, n), grown * t / n
    if shape == "saw":
        period = rng.uniform(2, max(3, n / 8))
        leak += grown * rng.uniform(0.05, 1) * ((t + rng.uniform(0, period)) % period) / period
    elif shape == "checkpoints":
        leak += _checkpoints(rng, t)
    elif shape.endswith("steps"):
        count = int(rng.integers(7, 41) if shape == "many steps" else rng.integers(4, 7))
        leak = np.floor(t / n * count + rng.uniform()) * grown / count
    elif shape == "cache":
        leak += rng.uniform(1, 5) * grown * (1 - np.exp(-t / (n * rng.uniform(0.02, 0.2))))
    elif shape == "late":
        leak = np.maximum(0.0, t - n * rng.uniform(0.2, 0.7)) * grown / n
    return base + leak


def _noise(rng: np.random.Generator, n: int) -> Floats:
    return 5000 + rng.normal(0, rng.choice([0.5, 5.0, 30.0]), n)


def _checkpoints(rng: np.random.Generator, t: Floats) -> Floats:
    period = rng.uniform(len(t) / 20, len(t) / 8)
    taken: Floats = rng.uniform(100, 3000) * (t % period < 0.1 * period)
    return taken


def status(mib: Floats) -> str:
    """What `sustained_memory` of a soak says, where nothing declares how long a run will be."""
    growth = lasting_growth(np.arange(len(mib), dtype=np.float64), np.round(mib, 1))
    if growth is None or LEFT_MIB / growth.mib_per_s > LONG_RUN_S:
        return "PASS"
    return "FAIL" if growth.steady and LEFT_MIB / growth.mib_per_s <= FARTHEST * growth.span_s else "INCONCLUSIVE"


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100, help="soaks of each cell")
    trials = parser.parse_args(argv).trials
    print("| memory |", " | ".join(f"{n:,} samples" for n in SAMPLES), "|")
    print("|---|" + "---|" * len(SAMPLES))
    for make, shapes, mark in ((healthy, HEALTHY, ""), (sick, SICK, "**")):
        for name, shape in shapes.items():
            cells = []
            for n in SAMPLES:
                found = [status(make(np.random.default_rng([n, trial]), n, shape)) for trial in range(trials)]
                shares = (100 * found.count(one) / trials for one in ("PASS", "INCONCLUSIVE", "FAIL"))
                cells.append(" / ".join(f"{one:.0f}" for one in shares))
            print(f"| {mark}{name}{mark} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

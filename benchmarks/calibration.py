"""Do the statistics keep their promises? Coverage, false decisions and decision rates by simulation.

    python benchmarks/calibration.py                        # a few cells, under a minute
    python benchmarks/calibration.py --full --trials 2000   # docs/statistics.md, 20 minutes of an idle core

Runs are simulated step by step: lag-1 autocorrelated step times, a rate that differs from run to run, and a shape (a
slow start, rare slow steps, heavy tails, regular pauses, a shift of the level). They go through the same `judge_phase`
as real ones. The truth is known, so each verdict is right, wrong or open.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.signal import lfilter

from validator.judge import judge_phase
from validator.judge.compare import ArmRuns, ComparisonRules, compare_arms
from validator.judge.data import measured
from validator.model.catalogue import MIN_REPEATS
from validator.model.plan import RunSpec
from validator.model.record import Attempt, Outcome, PhaseRecord, RunRecord, ValidationRecord
from validator.model.result import Result, ScalarValue, Series, SourceFile, Steps
from validator.model.runbook import Runbook
from validator.model.verdict import Extension

Floats = npt.NDArray[np.float64]
TOKENS, RATE, WARMUP = 100.0, 100.0, 20
EXTENSION = Extension(criteria=("p.1",), runs_before=1, runs_after=MIN_REPEATS)
SOURCE = SourceFile(path="training.csv", sha256="0" * 64, bytes=0)
EDGES, FAR = (1.0001, 0.9999), (0.9, 1.1, 0.5, 1.5)
"""Bounds on the rate, over the true one: at the edge, and 10 % and 50 % away, each on both sides."""

RUNS = ("1", "4", "extended")
"""What was judged at the edge: one run, four, and one that was extended to four where it stayed open."""

RULES = ComparisonRules(metric="toks_per_s.mean", unit="tok/s", direction="highest", min_effect=0.02)


@dataclass(frozen=True)
class Cell:
    """How runs behave: autocorrelation and noise of the steps, variation between runs, shape, length."""

    phi: float = 0.0
    run_cv: float = 0.02
    shape: str = "flat"
    steps: int = 300
    step_cv: float = 0.02

    @property
    def steady(self) -> bool:
        """Whether steps vary by `step_cv` alone, so that bounds 10 % away should be decided."""
        return self.shape == "flat"

    @property
    def name(self) -> str:
        """The cell as a row's first columns."""
        return f"{self.shape} | {self.steps} | {self.phi:g} | {100 * self.run_cv:g} %"


def simulated(cell: Cell, rng: np.random.Generator) -> tuple[Floats, Floats, float]:
    """(times per step, pauses after each step, true rate) of one run; the mean of true rates over runs is RATE."""
    burn_in, steps = 100, np.arange(cell.steps)
    noise = rng.standard_normal(cell.steps + burn_in) * np.sqrt(1 - cell.phi**2)
    relative = 1 + cell.step_cv * lfilter([1.0], [1.0, -cell.phi], noise)[burn_in:]
    pauses = np.zeros(cell.steps)
    if cell.shape == "ramp":
        relative = relative * (1 + 0.5 * np.exp(-steps / 15))
    if cell.shape == "bursts":
        relative = (relative + 0.5 * (rng.random(cell.steps) < 0.02)) / 1.01
    if cell.shape == "heavy tails":
        relative = relative + cell.step_cv * rng.standard_t(3, cell.steps)
    if cell.shape.startswith("pause"):
        every = int(cell.shape.rpartition(" ")[2])
        pauses[(steps + rng.integers(every)) % every == 0] = 5.0
        relative, pauses = relative / (1 + 5 / every), pauses / (1 + 5 / every)
    if cell.shape == "shift":
        # A tenth slower from a random step on; the truth is the mean over the steps after warm-up.
        profile = np.where(steps >= rng.integers(80, 240), 1.1, 1.0)
        relative = relative * profile / profile[WARMUP:].mean()
    rate = RATE * (1 + cell.run_cv * rng.standard_normal())
    return np.maximum(relative, 0.05) * TOKENS / rate, pauses * TOKENS / rate, rate


def record(run: str, times: Floats, pauses: Floats, repeat: int, steps: Steps | None = None) -> RunRecord:
    """A run that ended well, as it would have been collected: its rate counts pauses, its time per step does not.

    Its rows are those of `steps`, else of every step.
    """
    steps = np.arange(1, len(times) + 1) if steps is None else steps
    columns = {"toks_per_s": TOKENS / (times + pauses), "loss": np.linspace(5, 3, len(times))}
    if pauses.any():
        columns["step_time_s"] = times
    result = Result(
        run=run,
        series={name: Series(name, "", steps, values, SOURCE) for name, values in columns.items()},
        rank_series={},
        scalars={"steps.done": ScalarValue(value=float(steps[-1]))},
        requested=None,
        effective=None,
        environment=None,
        irregularities=(),
        sources=(SOURCE,),
    )
    attempt = Attempt(number=1, command=(), pid=1, started="", duration_s=1.0, rc=0, reason="exited")
    spec = RunSpec(
        id=run,
        phase="p",
        kind="train",
        repeat=repeat,
        launcher="torchrun",
        argv=(),
        env={},
        out=run,
        nproc=2,
        steps=int(steps[-1]),
        warmup_steps=WARMUP,
        timeout_s=1.0,
    )
    return RunRecord(spec, Outcome(run=run, attempts=(attempt,)), result)


def book(cell: Cell, shares: Sequence[float]) -> Runbook:
    """A runbook with one phase and a criterion for each bound."""
    accept = [f"toks_per_s.mean >= {share * RATE:.6g}" for share in shares]
    return Runbook.model_validate(
        {"schema": 1, "name": "c", "phases": [{"id": "p", "kind": "train", "steps": cell.steps, "accept": accept}]}
    )


def judged(runbook: Runbook, runs: Sequence[RunRecord], *, extended: bool = False) -> tuple[list[str], list[bool]]:
    """(verdicts on the bounds, which of them more runs may decide) when these runs were made."""
    done = PhaseRecord(runbook.phases[0], "done", tuple(runs), extended=EXTENSION if extended else None)
    report = judge_phase(done, validation=ValidationRecord(runbook, (done,)), judged={})
    declared = [one for one in report.criteria if one.text.startswith("toks_per_s.mean")]
    return [one.status for one in declared], [one.open_for is not None for one in declared]


@dataclass
class Tally:
    """What happened in the trials of one cell. Counts by number of runs: 1, 4, and 1 extended to 4."""

    trials: int = 0
    stated: int = 0
    held: int = 0
    settling: int = 0
    settling_held: int = 0
    false_winner: int = 0
    false_pass: dict[str, int] = field(default_factory=lambda: dict.fromkeys(RUNS, 0))
    false_fail: dict[str, int] = field(default_factory=lambda: dict.fromkeys(RUNS, 0))
    decided: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("0.1", "0.5"), 0))
    wrong: int = 0
    means: tuple[float, ...] = ()

    def verdicts(self, runs: str, statuses: Sequence[str]) -> None:
        """Count the verdicts on the bounds at the edge."""
        self.false_pass[runs] += statuses[0] == "PASS"
        self.false_fail[runs] += statuses[1] == "FAIL"

    def share(self, count: int, of: int | None = None) -> str:
        """A count as a percentage of the trials."""
        total = self.trials if of is None else of
        return f"{100 * count / total:.1f} %" if total else "–"


@dataclass(frozen=True)
class Books:
    """The runbooks of a cell: with every bound, and with those at the edge alone."""

    all: Runbook
    edges: Runbook


def trial(cell: Cell, books: Books, tally: Tally, rng: np.random.Generator) -> None:
    """Four runs: the first alone, all, the first extended to four; and all compared with those of the trial before."""
    made = [simulated(cell, rng) for _ in range(MIN_REPEATS)]
    runs = [record(f"p/r{n}", times, pauses, n) for n, (times, pauses, _) in enumerate(made, start=1)]
    tally.trials += 1
    means = [cover(run, truth, tally) for run, (_, _, truth) in zip(runs, made, strict=True)]
    alone, more = judged(books.all, runs[:1])
    tally.verdicts("1", alone)
    tally.verdicts("4", judged(books.edges, runs)[0])
    extended = judged(books.edges, runs, extended=True)[0] if any(more[:2]) else alone
    tally.verdicts(
        "extended",
        [after if may else before for before, may, after in zip(alone[:2], more[:2], extended[:2], strict=True)],
    )
    # Each trial has a bound on both sides of the truth, and counts for each.
    tally.decided["0.1"] += (alone[2] == "PASS") + (alone[3] == "FAIL")
    tally.decided["0.5"] += (alone[4] == "PASS") + (alone[5] == "FAIL")
    tally.wrong += "FAIL" in (alone[2], alone[4]) or "PASS" in (alone[3], alone[5])
    # The four runs of the trial before are of the same kind, so that a difference from them is a false one.
    others, tally.means = tally.means, tuple(means)
    arms = [ArmRuns(name, {}, values) for name, values in (("a", tally.means), ("b", others))]
    tally.false_winner += bool(others) and compare_arms(arms, rules=RULES).outcome == "significant"


def cover(run: RunRecord, truth: float, tally: Tally) -> float:
    """The run's rate, after counting whether its interval holds the true one."""
    measurement = measured(run)
    assert measurement is not None
    assert measurement.window_found is not None
    stats = measurement.metrics["toks_per_s"]
    assert stats.ci_low is not None
    assert stats.ci_high is not None
    holds, settling = stats.ci_low <= truth <= stats.ci_high, measurement.window_found.settling
    tally.stated += 1
    tally.held += holds
    tally.settling += settling
    tally.settling_held += settling and holds
    return stats.mean or 0.0


def simulate(cell: Cell, trials: int, seed: int) -> Tally:
    """All trials of one cell."""
    rng, tally = np.random.default_rng([seed, *cell.name.encode()]), Tally()
    books = Books(book(cell, (*EDGES, *FAR)), book(cell, EDGES))
    for _ in range(trials):
        trial(cell, books, tally, rng)
    return tally


def row(cell: Cell, tally: Tally) -> str:
    """One row of the table."""
    errors = [f"{tally.share(tally.false_pass[runs])} / {tally.share(tally.false_fail[runs])}" for runs in RUNS]
    parts = [
        cell.name,
        tally.share(tally.held, tally.stated),
        tally.share(tally.settling, tally.stated),
        tally.share(tally.held - tally.settling_held, tally.stated - tally.settling),
        *errors,
        tally.share(tally.decided["0.1"], 2 * tally.trials),
        tally.share(tally.decided["0.5"], 2 * tally.trials),
        tally.share(tally.wrong),
        tally.share(tally.false_winner),
    ]
    return f"| {' | '.join(parts)} |"


HEAD = (
    "| shape | steps | φ | run CV | coverage | settling | coverage of others | 1 run: false PASS / FAIL | 4 runs "
    "| 1 extended to 4 | decided at 10 % | at 50 % | wrong there | A/A differences |",
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
)


def cells(*, full: bool) -> Iterator[Cell]:
    """Every cell that the promises are checked for, or a few of them."""
    if not full:
        yield from (Cell(0.8, 0.02), Cell(0.95, 0.01), Cell(0.5, 0.02, "pause 25"), Cell(0.0, 0.02, "ramp"))
        return
    for phi in (0.0, 0.5, 0.8, 0.95):
        for run_cv in (0.01, 0.05):
            yield Cell(phi, run_cv)
    for phi in (0.8, 0.95):
        yield from (Cell(phi), Cell(phi, steps=120), Cell(phi, shape="pause 25"))
    for phi in (0.0, 0.8):
        yield from (Cell(phi, shape="ramp"), Cell(phi, shape="heavy tails"))
    yield from (Cell(0.8, shape="bursts"), Cell(0.8, shape="pause 70"), Cell(0.0, shape="shift"))
    yield Cell(0.5, shape="ramp", steps=120)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="every cell in place of a few")
    parser.add_argument("--trials", type=int, default=100, help="trials of each cell (default: 100)")
    parser.add_argument("--part", default="1/1", metavar="K/N", help="every N-th cell, from the K-th on")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    part, parts = (int(number) for number in options.part.split("/"))
    began = time.monotonic()
    print("\n".join(HEAD), flush=True)
    for cell in list(cells(full=options.full))[part - 1 :: parts]:
        print(row(cell, simulate(cell, options.trials, options.seed)), flush=True)
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Does the next healthy run pass the bound that one good run wrote? By simulation, over noise and its memory.

    python -m benchmarks.bounds                   # a few cells, under a minute
    python -m benchmarks.bounds --full --trials 400

Two runs of one kind are simulated as in `calibration`: the first gives the bound as `validator baseline` writes it, the
second is judged by it. Further columns say how far below the good run the bound lies, and how often a run that is a
tenth or a fifth slower passes all the same.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.calibration import Cell, record, simulated
from validator.baseline import bounds_of
from validator.judge import judge_phase
from validator.model.record import PhaseRecord, RunRecord, ValidationRecord
from validator.model.runbook import Runbook
from validator.model.verdict import PhaseReport, RunbookRef, ValidationReport

MARGIN = 0.02
"""As `validator baseline` has it by default."""

SLOWER = (1.0, 1.1, 1.2)
"""Time of a step in the second run, over that of the first."""

HEAD = (
    "| shape | steps | φ | run CV | step CV | bound below the run | healthy: PASS | FAIL | 10 % slower: PASS "
    "| 20 % slower: PASS |",
    "|---|---|---|---|---|---|---|---|---|---|",
)


def judged(book: Runbook, runs: Sequence[RunRecord]) -> PhaseReport:
    """The phase of these runs."""
    done = PhaseRecord(book.phases[0], "done", tuple(runs))
    return judge_phase(done, validation=ValidationRecord(book, (done,)), judged={})


def book_of(cell: Cell, *accept: str) -> Runbook:
    """A runbook with one phase."""
    phase = {"id": "p", "kind": "train", "steps": cell.steps, "accept": list(accept)}
    return Runbook.model_validate({"schema": 1, "name": "c", "phases": [phase]})


def written(cell: Cell, runs: Sequence[RunRecord]) -> tuple[str, float]:
    """The criterion on the rate that good runs give, and by what share it lies below their mean."""
    book = book_of(cell, "toks_per_s.mean >= ?")
    phase = judged(book, runs)
    report = ValidationReport(
        run_id="good",
        runbook=RunbookRef(name="c", path="c.yaml", sha256="0"),
        started="2025-01-01T00:00:00Z",
        finished=None,
        decision="INCONCLUSIVE",
        why="",
        exit_code=3,
        phases=(phase,),
        validator_version="0",
    )
    found = bounds_of([report], runbook=book, margin=MARGIN)
    bound = next(one for one in found if one.reference == "toks_per_s.mean")
    means = [run.metrics["toks_per_s"].mean or 0.0 for run in phase.runs]
    return bound.expr, 1 - bound.value / float(np.mean(means))


def simulate(cell: Cell, trials: int, seed: int) -> tuple[list[float], list[list[str]]]:
    """The distances of the bounds, and for each of `SLOWER` the verdicts on second runs."""
    rng = np.random.default_rng([seed, *cell.name.encode()])
    distances: list[float] = []
    verdicts: list[list[str]] = [[] for _ in SLOWER]
    for _ in range(trials):
        times, pauses, _ = simulated(cell, rng)
        expr, distance = written(cell, [record("p/r1", times, pauses, 1)])
        distances.append(distance)
        times, pauses, _ = simulated(cell, rng)
        for slower, own in zip(SLOWER, verdicts, strict=True):
            report = judged(book_of(cell, expr), [record("p/r1", times * slower, pauses * slower, 1)])
            own.append(next(one.status for one in report.criteria if one.text == expr))
    return distances, verdicts


def row(cell: Cell, distances: Sequence[float], verdicts: Sequence[Sequence[str]]) -> str:
    """One row of the table."""
    healthy, *slower = verdicts
    shares = [healthy.count("PASS"), healthy.count("FAIL"), *(own.count("PASS") for own in slower)]
    parts = [f"{100 * count / len(healthy):.1f} %" for count in shares]
    where = f"{100 * float(np.median(distances)):.1f} %"
    return f"| {cell.name} | {100 * cell.step_cv:g} % | {where} | {' | '.join(parts)} |"


def cells(*, full: bool) -> Iterator[Cell]:
    """Noise of a quiet machine, of a shared one and of a busy one, each with little and with long memory."""
    for step_cv in (0.02, 0.1, 0.3) if full else (0.02, 0.1):
        for phi in (0.0, 0.5, 0.8, 0.95) if full else (0.0, 0.8):
            for steps in (120, 300, 1500) if full else (300,):
                yield Cell(phi, 0.02, steps=steps, step_cv=step_cv)
    yield from (Cell(phi, 0.02, steps=steps, step_cv=0.07) for phi in (0.5, 0.9) for steps in (30, 60))
    if full:
        yield from (Cell(0.5, 0.02, "pause 25"), Cell(0.0, 0.02, "ramp"), Cell(0.8, 0.02, "bursts"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="every cell in place of a few")
    parser.add_argument("--trials", type=int, default=100, help="pairs of runs of each cell (default: 100)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    began = time.monotonic()
    print("\n".join(HEAD), flush=True)
    for cell in cells(full=options.full):
        print(row(cell, *simulate(cell, options.trials, options.seed)), flush=True)
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

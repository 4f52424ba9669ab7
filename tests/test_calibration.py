"""The promises of the statistics, by simulation: a sample here, every cell under the marker `long`."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.calibration import RUNS, Cell, Tally, cells, cover, main, record, simulate, simulated

SAMPLE = (Cell(0.8, 0.02), Cell(0.95, 0.01), Cell(0.5, 0.02, "pause 25"), Cell(0.0, 0.02, "ramp"))


def _most(share: float, trials: int) -> float:
    """A share that a true one of this size exceeds by chance in one of a thousand samples."""
    return share + 3.1 * (share * (1 - share) / trials) ** 0.5


def _keeps_its_promises(cell: Cell, tally: Tally) -> None:
    trials = tally.trials
    missed, of_settling = tally.stated - tally.held, tally.settling - tally.settling_held
    assert missed / tally.stated <= _most(0.07, tally.stated)
    if others := tally.stated - tally.settling:
        assert (missed - of_settling) / others <= _most(0.07, others)
    assert tally.false_pass["4"] / trials <= _most(0.05, trials)
    assert tally.false_fail["4"] / trials <= _most(0.05, trials)
    assert tally.false_winner / trials <= _most(0.05, trials)
    if cell.run_cv <= 0.02:
        assert tally.wrong == 0
    if cell.steady and cell.run_cv <= 0.02:
        assert 1 - tally.decided["0.1"] / (2 * trials) <= _most(0.05, 2 * trials)
        assert 1 - tally.decided["0.5"] / (2 * trials) <= _most(0.01, 2 * trials)


@pytest.mark.parametrize("cell", SAMPLE, ids=lambda cell: cell.name)
def test_a_sample_keeps_the_promises(cell: Cell) -> None:
    _keeps_its_promises(cell, simulate(cell, 25, seed=1))


def test_the_interval_allows_for_the_tail_of_a_start_that_fades_over_a_third_of_the_run() -> None:
    cell, tally, rng = Cell(0.5, shape="ramp", steps=120), Tally(), np.random.default_rng(1)
    for _ in range(400):
        times, pauses, truth = simulated(cell, rng)
        cover(record("p/r1", times, pauses, 1), truth, tally)
    assert tally.settling >= 0.8 * tally.stated
    assert tally.held >= 0.93 * tally.stated
    assert tally.held - tally.settling_held >= 0.93 * (tally.stated - tally.settling)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("cell", tuple(cells(full=True)), ids=lambda cell: cell.name)
def test_every_cell_keeps_the_promises(cell: Cell) -> None:
    _keeps_its_promises(cell, simulate(cell, 2000, seed=2))


def test_the_table_has_a_row_for_each_cell(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--trials", "1", "--part", "2/2"]) == 0
    head, line, *rows = capsys.readouterr().out.splitlines()
    assert [row.split(" | ")[0].strip("| ") for row in rows] == ["flat", "ramp"]
    assert {row.count("|") for row in (head, line, *rows)} == {len(RUNS) + 12}

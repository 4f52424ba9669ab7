"""The promises of the statistics, by simulation: a sample here, every cell under the marker `long`."""

from __future__ import annotations

import pytest

from benchmarks.calibration import RUNS, Cell, Tally, cells, main, simulate

SAMPLE = (Cell(0.8, 0.02), Cell(0.95, 0.01), Cell(0.5, 0.02, "pause 25"), Cell(0.0, 0.02, "ramp"))


def _most(share: float, trials: int) -> float:
    """A share that a true one of this size exceeds by chance in one of a thousand samples."""
    return share + 3.1 * (share * (1 - share) / trials) ** 0.5


def _keeps_its_promises(cell: Cell, tally: Tally) -> None:
    trials = tally.trials
    # A start that is called settling says of its interval that it is not of a long run.
    assert (tally.stated - tally.held) / (4 * trials) <= _most(0.07, 4 * trials)
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


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("cell", tuple(cells(full=True)), ids=lambda cell: cell.name)
def test_every_cell_keeps_the_promises(cell: Cell) -> None:
    _keeps_its_promises(cell, simulate(cell, 2000, seed=2))


def test_the_table_has_a_row_for_each_cell(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--trials", "1", "--part", "2/2"]) == 0
    head, line, *rows = capsys.readouterr().out.splitlines()
    assert [row.split(" | ")[0].strip("| ") for row in rows] == ["flat", "ramp"]
    assert {row.count("|") for row in (head, line, *rows)} == {len(RUNS) + 11}

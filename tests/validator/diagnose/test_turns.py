"""Pauses that fall into many rows of a log, with rows without one between them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.validator.diagnose.cases import of_run
from tests.validator.diagnose.test_steadiness import N, times
from tests.validator.ingest.folders import write_arrivals, write_csv
from validator.model.verdict import Finding


@pytest.mark.parametrize("pause", [5.0, 0.0])
def test_pauses_in_rows_of_unequal_steps(tmp_path: Path, pause: float) -> None:
    """Lines that arrive in bursts had no rhythm, and a row of 14 steps beside single ones was a pause."""
    ends = list(accumulate(s / 20 + (pause if i % 40 == 0 else 0) for i, s in enumerate(times(), 1)))
    pairs = sorted({*range(15, N + 1, 15), *range(16, N + 1, 15)})
    for name, steps in (("bursts", list(accumulate([1, 3, 2] * 39))), ("pairs", pairs)):
        folder = tmp_path / name
        rates = [4096 * (b - a) / (ends[b - 1] - (ends[a - 1] if a else 0)) for a, b in pairwise([0, *steps])]
        write_csv(folder, rates, losses=[4 + 2 / (i + 1) for i in range(len(steps))], steps=steps)
        shown = of_run(folder, steps=N, tokens_per_step=4096)
        assert pause or "periodic-stall" not in shown
        assert not pause or name == "pairs" or "about every 40 steps" in shown["periodic-stall"].message


@pytest.mark.parametrize("period", [10, 9, 25])
def test_a_pause_in_most_rows_of_a_bar(tmp_path: Path, period: int) -> None:
    """A bar of 14 ms a step with a pause of 1 s every 10 steps is drawn every 4 to 10 steps: no row stood out."""
    rng = random.Random(period)
    ends = list(accumulate(0.014 * rng.uniform(0.9, 1.1) + (i % period == 0) for i in range(1, 2 * N + 1)))
    steps = list(accumulate(rng.choice((4, 5, 6, 7, 9, 10)) for _ in range(60)))
    rates = [256 * (b - a) / (ends[b - 1] - (ends[a - 1] if a else 0)) for a, b in pairwise([0, *steps])]
    write_csv(tmp_path, rates, losses=[4 + 2 / (i + 1) for i in range(len(steps))], steps=steps)
    shown = of_run(tmp_path, steps=steps[-1], tokens_per_step=256)["periodic-stall"]
    assert f"every {period} steps (steps " in shown.message
    assert (shown.severity, shown.confidence) == ("warning", "high")


@pytest.mark.parametrize("seed", range(6))
def test_rows_of_a_bar_on_a_machine_of_two_speeds_have_no_period(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    steps = list(accumulate(rng.choice((4, 5, 6, 7, 9, 10)) for _ in range(60)))
    rates = [256 / (0.014 * rng.uniform(0.95, 1.05) * rng.choice((1.0, 3.0))) for _ in steps]
    write_csv(tmp_path, rates, losses=[4 + 2 / (i + 1) for i in range(len(steps))], steps=steps)
    stall = of_run(tmp_path, steps=steps[-1], tokens_per_step=256).get("periodic-stall")
    assert stall is None or "without a period" in stall.message


def of_rows(tmp_path: Path, lasted: Sequence[float], each: int, **more: Any) -> dict[str, Finding]:
    """What a run shows whose rows cover `each` steps and took these seconds."""
    steps = [each * (i + 1) for i in range(len(lasted))]
    losses = [4 + 2 / (i + 1) for i in range(len(lasted))]
    write_csv(tmp_path, [each * 256 / one for one in lasted], losses=losses, steps=steps)
    return of_run(tmp_path, steps=steps[-1], tokens_per_step=256, **more)


@pytest.mark.parametrize(("pause", "rows"), [(4.0, 29), (4.0, 30), (4.0, 14), (0.0, 29), (0.0, 14)])
def test_a_pause_in_every_other_row(tmp_path: Path, pause: float, rows: int) -> None:
    """Half of the rows hold one, so that the median may be one of them: rows of 20 steps, a pause every 40."""
    noise = times()
    shown = of_rows(tmp_path, [20 * 0.2 * noise[i] / 2 + (pause if i % 2 else 0) for i in range(rows)], 20)
    assert ("periodic-stall" in shown) == bool(pause)
    if pause:
        assert "s more every 40 steps (steps " in shown["periodic-stall"].message
        assert shown["periodic-stall"].severity == "warning"


@pytest.mark.parametrize("period", [12, 15, 17, 25, 35, 70])
def test_a_pause_whose_period_is_no_whole_number_of_rows(tmp_path: Path, period: int) -> None:
    """Two slow rows of three had been the usual ones, and two of five without a period."""
    noise = times()
    pauses = [sum(step % period == 0 for step in range(10 * i + 1, 10 * i + 11)) for i in range(60)]
    shown = of_rows(tmp_path, [noise[i] + 0.5 * n for i, n in enumerate(pauses)], 10)["periodic-stall"]
    assert f"every {period} steps (steps " in shown.message
    assert (shown.severity, shown.confidence) == ("warning", "high")


def test_a_validation_between_rows_is_declared(tmp_path: Path) -> None:
    noise = times()
    pauses = [sum(step % 25 == 0 for step in range(10 * i + 1, 10 * i + 11)) for i in range(60)]
    lasted = [noise[i] + 0.5 * n for i, n in enumerate(pauses)]
    assert "periodic-stall" not in of_rows(tmp_path, lasted, 10, pause_every=25)


@pytest.mark.parametrize("seed", range(6))
def test_a_machine_of_two_speeds_has_no_period(tmp_path: Path, seed: int) -> None:
    """Rows of 40 and 57 ms a step by turns of no length."""
    rng = random.Random(seed)
    shown = of_rows(tmp_path, [one * rng.choice((1.0, 1.4)) for one in times(seed=seed)[:40]], 10)
    stall = shown.get("periodic-stall")
    assert stall is None or "without a period" in stall.message


@pytest.mark.parametrize(("grows", "named"), [(0.5, True), (0.0, False)])
def test_a_validation_that_grows_is_named_though_it_is_declared(tmp_path: Path, grows: float, named: bool) -> None:
    """One of 0.9 s took 4.4 in the end, half of the run's time, and no cause was recognized."""
    noise = times()
    lasted = [2 * one + (2.0 + grows * i if i % 5 == 4 else 0.0) for i, one in enumerate(noise[:60])]
    stall = of_rows(tmp_path, lasted, 10, pause_every=50).get("periodic-stall")
    assert (stall is not None) is named
    if stall is not None:
        assert stall.severity == "warning"
        assert "They are declared, and grow" in stall.message


@pytest.mark.parametrize("burst", [2, 4, 5])
def test_rows_that_arrive_together_have_no_period(tmp_path: Path, burst: int) -> None:
    """A buffer that is written when it is full: all rows but the first of each burst take no time."""
    beats = [burst * 2.0 if i % burst == 0 else 0.0 for i in range(60)]
    write_arrivals(tmp_path, beats, steps=[10 * (i + 1) for i in range(60)])
    assert "periodic-stall" not in of_rows(tmp_path, [2 * one for one in times()[:60]], 10)

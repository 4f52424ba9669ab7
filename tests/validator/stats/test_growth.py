"""Memory that grows to the end of a run, and what only looks like it."""

from __future__ import annotations

import numpy as np
import pytest

from validator.model.result import Samples, SourceFile
from validator.stats.growth import COLUMN, MemoryGrowth, RunMemory, lasting_growth, outlasts_start, run_memory

N = 240
T = np.arange(N, dtype=float)
SAW = 300 * (T % 25) / 25


def noise(mib: float = 2.0) -> np.ndarray:
    return 4000 + np.random.default_rng(7).normal(0, mib, N)


@pytest.mark.parametrize(
    ("grown", "rate"),
    [
        (2.0 * T, 2.0),
        (2.0 * T + SAW, 2.0),  # a collection now and then
        (2.0 * T + 2000 * (T % 40 < 5), 2.0),  # beside checkpoints that give back what they took
        (40 * np.floor(T / 20), 2.0),  # at each evaluation
        (2.0 * T + 1500 * (1 - np.exp(-T / 8)), 2.0),  # beside a cache that fills at the start
    ],
    ids=["line", "sawtooth", "checkpoints", "evaluations", "cache"],
)
def test_a_leak_grows_to_the_end(grown: np.ndarray, rate: float) -> None:
    found = lasting_growth(T, noise() + grown)
    assert found is not None
    assert found.mib_per_s == pytest.approx(rate, rel=0.15)
    assert found.full_in_s(7200.0) == pytest.approx(3600, rel=0.15)


def test_a_leak_that_begins_late_or_grows_in_a_few_steps_is_seen_and_not_certain() -> None:
    for grown in (4.0 * np.maximum(0.0, T - 0.6 * N), 200 * np.floor(T / 48)):
        found = lasting_growth(T, noise() + grown)
        assert found is not None
        assert not found.steady


@pytest.mark.parametrize(
    "shape",
    [
        np.zeros(N),
        SAW,
        600 * ((T + 40) % 170) / 170,  # a slow collection, in the middle of its tooth at the end
        2000.0 * (T > 30) + 500 * (T > 90),  # the first evaluation and the first checkpoint
        900 * (1 - np.exp(-T / 15)),
        800 * np.clip((T - 40) / 100, 0, 1),  # a shuffle buffer that fills late
        3000 * (T % 60 < 6),
        0.004 * 10 * T,  # a log buffer: 4 kB a step, ten steps a second
    ],
    ids=["flat", "sawtooth", "slow sawtooth", "steps", "caches", "late plateau", "checkpoints", "log"],
)
def test_what_is_given_back_or_ends_in_a_plateau_is_no_growth(shape: np.ndarray) -> None:
    assert lasting_growth(T, noise() + shape) is None


def test_processes_that_end_do_not_hide_a_leak() -> None:
    """Samples of the end of a run are among those of its training: ranks end one after the other."""
    mib = np.r_[1000 + 5.0 * np.arange(60), 1100.0, 700.0, 40.0, 4.0, 4.0]
    for steps in (None, np.r_[np.arange(62), -1, -1, -1]):
        samples = Samples(SourceFile(path="t.csv", sha256="0" * 64, bytes=0), np.arange(65.0), {COLUMN: mib}, steps)
        found = run_memory(samples, 5)
        assert found is not None
        growth = lasting_growth(found.times_s, found.mib)
        assert growth is not None
        assert growth.mib_per_s == pytest.approx(5.0)


@pytest.mark.filterwarnings("error")
def test_odd_samples_are_no_error() -> None:
    source = SourceFile(path="t.csv", sha256="0" * 64, bytes=0)
    for mib in (-T, np.full(N, np.nan), np.zeros(N), np.r_[5.0, np.full(N - 1, np.nan)]):
        for times in (T, np.zeros(N), np.r_[T[:120], T[:120]]):
            found = run_memory(Samples(source, times, {COLUMN: mib, "host_mem_available_mib": mib}), 5)
            assert found is None or lasting_growth(found.times_s, found.mib) is None
    found = run_memory(Samples(source, np.r_[T[:120], T[:120]], {COLUMN: 4 * T}), 5)
    assert found is not None
    growth = lasting_growth(found.times_s, found.mib)
    assert growth is not None
    assert growth.mib_per_s == pytest.approx(4.0), "a clock that was set back hides nothing"


def test_few_samples_show_nothing() -> None:
    assert lasting_growth(T[:11], 50 * T[:11]) is None
    found = lasting_growth(T[:18], 50 * T[:18])
    assert found is not None
    assert not found.steady, "a buffer that fills looks like this, too"


def test_the_warm_up_and_what_comes_after_the_last_step_are_left_out() -> None:
    mib = np.r_[np.linspace(0, 3000, 20), np.full(20, 3000.0)]
    columns = {COLUMN: mib, "host_mem_available_mib": 9000 - mib}
    samples = Samples(SourceFile(path="t.csv", sha256="0" * 64, bytes=0), np.arange(40.0), columns)
    unknown = run_memory(samples, 100)
    assert unknown is not None
    assert len(unknown.mib) == 26, "without steps a quarter is the warm-up, and a tenth the end"
    steps = np.r_[np.full(5, -1), 10 * np.arange(30), np.full(5, -1)]
    known = run_memory(Samples(samples.source, samples.times_s, columns, steps), 150)
    assert known is not None
    assert (len(known.mib), known.step_s, known.left_mib) == (11, 0.1, 6000.0)
    assert run_memory(Samples(samples.source, samples.times_s, {}), 0) is None


@pytest.mark.parametrize(
    ("step_s", "span_s", "steady", "outlasts"),
    [
        (None, 13.0, False, False),  # twelve steps behind a start, as two H200 ran them
        (1.1, 13.0, False, False),
        (1.1, 32.0, False, False),
        (1.1, 40.0, True, True),
        (1.1, 61.0, False, True),
        (5.0, 61.0, True, False),
        (None, 120.0, True, False),
        (None, 301.0, False, True),
    ],
)
def test_what_a_start_takes_is_no_leak(step_s: float | None, span_s: float, *, steady: bool, outlasts: bool) -> None:
    memory = RunMemory(T, 100 * T, step_s, 2e5)
    assert outlasts_start(memory, MemoryGrowth(100.0, 1354.0, span_s, steady)) == outlasts

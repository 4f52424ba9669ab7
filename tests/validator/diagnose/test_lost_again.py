"""What a training learns and loses again: states that are loaded, rewards that fall, updates that are skipped."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.validator.ingest.folders import outcome, spec
from validator.diagnose import divergence
from validator.diagnose.engine import diagnose_run
from validator.ingest import collect_run
from validator.model.record import RunRecord
from validator.model.runbook import TrainerMetrics
from validator.pipeline.inspect import inspect_record


def losses(values: Sequence[float]) -> Iterable[str]:
    return (f"step {i} loss {value:.4f}" for i, value in enumerate(values, 1))


def found(folder: Path, lines: Iterable[str]) -> dict[str, str]:
    (folder / "log.txt").write_text("\n".join(lines) + "\n")
    return {one.code: one.severity for one in diagnose_run(inspect_record(folder / "log.txt"))}


def test_an_older_state_that_is_loaded_again_and_again_is_named(tmp_path: Path) -> None:
    rng = random.Random(2)
    calm = [0.5 + 2.2 * math.exp(-i / 25) + rng.gauss(0, 0.05) for i in range(400)]
    again = [0.5 + 2.2 * math.exp(-(i % 120) / 25) + rng.gauss(0, 0.05) for i in range(400)]
    assert "diverging" not in found(tmp_path, losses(calm))
    assert found(tmp_path, losses(again))["diverging"] == "warning"
    spikes = [value + (2.0 if i % 90 == 60 else 0.0) for i, value in enumerate(calm)]
    assert "diverging" not in found(tmp_path, losses(spikes)), "one row, which comes back by itself"
    assert "diverging" not in found(tmp_path, losses([value - 0.5 for value in calm])), "around 0"


@pytest.mark.parametrize(
    ("rewards", "seen"),
    [
        ([-1.1, -1.4, -0.8, *[-2.0] * 200], True),
        ([10 - 0.05 * i + random.Random(i).gauss(0, 0.5) for i in range(200)], True),
        ([10 + random.Random(i).gauss(0, 0.5) for i in range(200)], False),
        ([*[0.0] * 50, *(0.01 * i for i in range(150))], False),
        ([0.0] * 200, False),
    ],
)
def test_a_reward_that_only_falls_is_named(tmp_path: Path, rewards: list[float], seen: bool) -> None:
    header = "ep | return | policy_loss | entropy"
    rows = (f"{i} | {value:.3f} | {-0.5 + value / 10:.4f} | {1 / i:.3f}" for i, value in enumerate(rewards, 1))
    assert ("diverging" in found(tmp_path, [header, *rows])) is seen
    record = inspect_record(tmp_path / "log.txt")
    assert record.result is not None
    assert set(record.result.series) == {"mean_reward"}, "the entropy, which falls as a loss does, is none"


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("step={} loss=2.{} status=overflow, update not applied", True),
        ("step={} loss=2.{}\nGradient overflow. Skipping step, loss scaler 0 reducing loss scale to 32768.0", True),
        ("step={} loss=2.{}\nupdate skipped: gradients are not finite", True),
        ("step={} loss=2.{} overflow=False skipped=2", False),
        ("step={} loss=2.{}\nskipping evaluation", False),
        ("step={} loss=2.{} no overflow", False),
    ],
)
@pytest.mark.parametrize("every", [3, 40])
def test_updates_that_are_skipped_in_words_are_counted(tmp_path: Path, line: str, seen: bool, every: int) -> None:
    plain = "step={} loss=2.{}"
    lines = [(line if i % every == 0 else plain).format(i, f"{900 - 2 * i:03}") for i in range(1, 241)]
    assert found(tmp_path, lines).get("zero-grad") == ("warning" if seen and every == 3 else None)


def evaluated(validation: Sequence[float], folder: Path) -> str | None:
    rng = random.Random(1)
    lines = (
        f"step {10 * i} loss {4 - i / 100 + rng.gauss(0, 0.05):.4f} val_loss {value:.4f}"
        for i, value in enumerate(validation)
    )
    return found(folder, lines).get("zero-grad")


def test_an_equal_pair_before_does_not_hide_that_evaluations_stay_the_same(tmp_path: Path) -> None:
    """167 evaluations were the same to the last digit, without a word, since two neighbors among 33 were before."""
    moving = [2.0378 - 0.0013 * i**1.5 for i in range(33)]
    assert evaluated([*moving[:17], moving[16], *moving[17:], *[1.5861] * 60], tmp_path) == "veto"
    coarse = [round(2 - i / 40, 1) for i in range(40)]
    assert evaluated([*coarse, *[coarse[-1]] * 5], tmp_path) is None


@pytest.mark.parametrize(
    ("value", "count", "each", "severity"),
    [
        (5.7391, 50, 4, "veto"),
        (5.7391, 50, 1, "warning"),  # each row may have the value of the only evaluation
        (5.7391, 10, 4, "warning"),
        (5.7391, 5, 4, None),
        (5.7, 50, 4, None),
        (0.0, 50, 4, None),
    ],
)
def test_evaluations_that_never_move_are_named(
    value: float, count: int, each: int, severity: str | None, tmp_path: Path
) -> None:
    """Without optimizer.step() 51 evaluations were 5.739, and the advice was to run for longer."""
    rng = random.Random(2)
    lines = []
    for i in range(60 * each):
        lines.append(f"step {10 * i} loss {5.73 + rng.gauss(0, 0.05):.4f}")
        lines += [f"step {10 * i} val loss {value:.4f}"] if i % each == 0 and i < count * each else []
    assert found(tmp_path, lines).get("zero-grad", None) in ({severity} if severity else {None, "info"})


def test_a_column_that_holds_the_last_evaluation_is_no_veto(tmp_path: Path) -> None:
    assert evaluated([2 - (i // 10) / 30 for i in range(120)], tmp_path) is None
    assert evaluated([1.9371] * 120, tmp_path) == "warning", "of one evaluation, or of many without a change"


@pytest.mark.parametrize(("rows", "seen"), [(62, True), (47, False)])
def test_two_epochs_that_repeat_digit_for_digit_are_named(rows: int, seen: bool, tmp_path: Path) -> None:
    """With a learning rate of 0 from the second epoch on, 46 equal rows of 62 were not enough."""
    rng = random.Random(3)
    epoch = [3 + rng.gauss(0, 0.2) for _ in range(16)]
    values = [6 - i / 6 + rng.gauss(0, 0.1) for i in range(16)] + 4 * epoch
    assert ("repeated-data" in found(tmp_path, losses(values[:rows]))) is seen


@pytest.mark.parametrize(("seed", "seen"), [(0, True), (1, False)])
def test_ranks_that_print_the_same_losses_are_named(tmp_path: Path, seed: int, seen: bool) -> None:
    def printed(rank_seed: int) -> str:
        rng = random.Random(rank_seed)
        return "".join(f"step {i} loss {2 + 2 / i + rng.gauss(0, 0.1):.5f}\n" for i in range(1, 101))

    for rank, own in enumerate((0, seed)):
        log = tmp_path / f"logs/ranks/job/attempt_0/{rank}/stdout.log"
        log.parent.mkdir(parents=True)
        log.write_text(printed(own))
    given = spec(nproc=2, metrics=TrainerMetrics(stdout="step {step} loss {loss}"))
    result = collect_run(given, run_dir=tmp_path, outcome=outcome())
    codes = {one.code: one.severity for one in diagnose_run(RunRecord(given, outcome(), result))}
    assert codes.get("repeated-data") == ("info" if seen else None)


@pytest.mark.parametrize("width", [divergence._WIDE_LEVEL + 1, divergence._WIDE_LEVEL + 2, 700])
def test_medians_of_wide_windows_are_those_of_narrow_ones(width: int) -> None:
    values = np.random.default_rng(width).normal(size=1500).round(1)
    values[[3, 800]] = math.inf, -math.inf
    expected = np.median(np.lib.stride_tricks.sliding_window_view(values, width), axis=1)
    assert np.array_equal(divergence._running_medians(values, width), expected)
    values[900] = math.nan
    found = divergence._running_medians(values, width)
    assert np.array_equal(np.isnan(found), [np.isnan(values[at : at + width]).any() for at in range(len(found))])

"""Losses of data that come again: few batches in turn or by chance, one alone; and healthy runs that look like them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.validator.diagnose.test_curve import N, changed, falling, found


def test_the_same_few_batches_that_a_small_model_cannot_learn_by_heart(tmp_path: Path) -> None:
    """A loss of 2.0 on three batches, with 5.9 of the validation, was GO with an info."""
    batches = (-0.046, 0.049, -0.003)
    losses = [round(1.95 + 2.9 * 0.97**i + batches[i % 3], 3) for i in range(N)]
    assert found(tmp_path / "few", losses)["repeated-data"] == "warning"


@pytest.mark.parametrize("places", [2, 4])
@pytest.mark.parametrize("share", [0.005, 0.02])
def test_tasks_that_take_turns_have_the_scatter_of_batches(tmp_path: Path, places: int, share: float) -> None:
    noise = random.Random(5)
    losses = [round((3.0 + 0.2 * (i % 3)) * (1 + share * noise.gauss(0, 1)), places) for i in range(N)]
    assert found(tmp_path, losses).get("repeated-data") in (None, "info")


def test_a_loss_without_any_scatter_is_of_one_batch_or_of_all_data(tmp_path: Path) -> None:
    losses = [round(1.27 + 3.6 / (1 + math.exp((i - 40) / 8)), 3) for i in range(N)]
    assert found(tmp_path / "alone", losses)["repeated-data"] == "info"
    rises = [5.0 + 4.0 * (i // 20) / 10 for i in range(N)]
    assert found(tmp_path / "beside a validation", losses, val_loss=rises)["repeated-data"] == "warning"
    noise = random.Random(2)
    batches = [loss * (1 + 0.01 * noise.gauss(0, 1)) for loss in losses]
    assert "repeated-data" not in found(tmp_path / "batches", batches, val_loss=rises)
    smooth = [10.8 - 3.8 * i / N for i in range(N)]
    assert "repeated-data" not in found(tmp_path / "spike", changed(smooth, 150, [16.0, 12.0]))
    mean = [sum(batches[: i + 1]) / (i + 1) for i in range(N)]
    assert "repeated-data" not in found(tmp_path / "running mean", mean)


def by_heart(batches: int, *, order: str = "turns", left: float = 0.001, share: float = 0.0) -> list[float]:
    """A loss from 4.4 to `left` of it on as many batches, each with a level of its own, printed to three digits."""
    rng = random.Random(4)
    levels = [math.exp(0.2 * rng.gauss(0, 1)) for _ in range(batches)]
    losses = []
    for i in range(N):
        at = i % batches if order == "turns" else rng.randrange(batches)
        fell = left + (1 - left) / (1 + (i / 12) ** 3)
        losses.append(float(f"{4.4 * fell * levels[at] ** min(1, i / 20) * math.exp(share * rng.gauss(0, 1)):#.3g}"))
    return losses


def evaluated(tmp_path: Path, losses: Sequence[float], evaluations: Sequence[float]) -> str | None:
    """The severity of `repeated-data` for a run with these losses, and evaluations at even distances."""
    (tmp_path / "r").mkdir()
    each = len(losses) // len(evaluations)
    rows = "".join(f"{each * at},{loss}\n" for at, loss in enumerate(evaluations, 1))
    (tmp_path / "r" / "val.csv").write_text("step,val_loss\n" + rows)
    return found(tmp_path, losses).get("repeated-data")


@pytest.mark.parametrize("evaluations", [[4.3, 5.4, 8.1, 9.2], [4.5, 4.5], [4.3] * 8], ids=["rise", "stay", "level"])
@pytest.mark.parametrize(("batches", "order"), [(1, "turns"), (3, "turns"), (3, "chance"), (8, "chance")])
def test_few_batches_beside_a_validation_that_stays_or_rises_are_a_veto(
    tmp_path: Path, batches: int, order: str, evaluations: list[float]
) -> None:
    """Three batches by turns were a warning, and batches that come by chance were GO without a word."""
    assert evaluated(tmp_path, by_heart(batches, order=order, share=0.05), evaluations) == "veto"


@pytest.mark.parametrize(
    ("losses", "evaluations"),
    [
        (by_heart(8, order="chance", left=0.01, share=0.2), [3.4, 1.2, 0.4, 0.2]),  # what can be learned, and is
        (by_heart(8, order="chance", left=0.01, share=0.2), [1.1, 0.6, 0.7, 0.9]),  # overfitted, and far from guessing
        (by_heart(8, order="chance", left=0.2, share=0.05), [4.3, 4.1, 4.4, 4.3]),  # a fifth of the loss is left
        (falling(share=0.02, first=4.4, last=3.0), [4.3, 4.3, 4.3, 4.3]),
        (by_heart(8, order="chance", left=0.01, share=0.2), [99.0, 99.0, 99.0]),  # a placeholder, or a sum
    ],
    ids=["learned", "overfitted", "not by heart", "slowly", "another kind"],
)
def test_a_validation_that_follows_is_no_memory(tmp_path: Path, losses: list[float], evaluations: list[float]) -> None:
    assert evaluated(tmp_path, losses, evaluations) is None


def test_data_that_take_many_steps_to_be_learned_by_heart_are_a_warning(tmp_path: Path) -> None:
    """A small set of data that is passed over again and again is no loader that delivers the same few batches."""
    noise = random.Random(5)
    slow = [4.4 * 0.996**i * math.exp(0.1 * noise.gauss(0, 1)) for i in range(800)]
    assert evaluated(tmp_path, slow, [3.9, 4.1, 4.5, 5.2]) == "warning"


@pytest.mark.parametrize(("stride", "severity"), [(1, "veto"), (5, "warning")])
def test_ups_and_downs_that_sink_with_the_loss_come_again_too(tmp_path: Path, stride: int, severity: str) -> None:
    """Rows of every fifth step, of a loss that falls to a thousandth, said nothing of three batches by turns."""
    assert found(tmp_path, by_heart(3)[::stride]).get("repeated-data") == severity


@pytest.mark.parametrize("tasks", [2, 3])
@pytest.mark.parametrize("share", [0.08, 0.2])
def test_tasks_that_take_turns_and_are_learned_are_no_veto(tmp_path: Path, tasks: int, share: float) -> None:
    """Two tasks at levels of their own, both learned to a tenth, were a veto: four batches learned by heart."""
    noise = random.Random(7)
    levels = (8.0, 0.9, 3.0)
    fell = [0.08 + 0.92 * math.exp(-i / 40) for i in range(N)]
    losses = [round(levels[i % tasks] * fell[i] * (1 + share * noise.gauss(0, 1)), 4) for i in range(N)]
    assert found(tmp_path, losses).get("repeated-data") in (None, "info", "warning")


@pytest.mark.parametrize(("left", "severity"), [(1e-4, "warning"), (0.1, "info")])
def test_one_batch_of_which_hardly_any_loss_is_left(tmp_path: Path, left: float, severity: str) -> None:
    losses = [round(4.4 * (left + (1 - left) / (1 + (i / 8) ** 3)), 6) for i in range(N)]
    assert found(tmp_path, losses)["repeated-data"] == severity


def test_the_last_digit_of_a_small_loss_hides_its_scatter(tmp_path: Path) -> None:
    """A loss of 0.0003 with four decimals was a batch that is learned by heart."""
    noise = random.Random(4)
    losses = [round(max(0.135 * 0.93**i, 3e-4) * (1 + 0.05 * noise.gauss(0, 1)), 4) for i in range(300)]
    assert "repeated-data" not in found(tmp_path, losses)

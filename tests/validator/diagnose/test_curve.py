"""Loss curves that no healthy run has, and healthy ones that look like them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.validator.diagnose.cases import healthy, of_run
from tests.validator.ingest.folders import write_logs
from validator.model.runbook import TrainerMetrics

N = 200


def falling(n: int = N, *, share: float = 0.02, seed: int = 1, first: float = 6.0, last: float = 4.0) -> list[float]:
    """A loss that falls with autocorrelated noise."""
    noise, e, values = random.Random(seed), 0.0, []
    for i in range(n):
        e = 0.5 * e + noise.gauss(0, share)
        values.append((last + (first - last) * (1 + i) ** -0.5) * (1 + e))
    return values


def found(tmp_path: Path, losses: Sequence[float], **columns: Sequence[float]) -> dict[str, str]:
    """Code to severity of what a run with this loss shows."""
    rates = [845.0 * (1 + 0.003 * ((i * 7) % 5 - 2)) for i in range(len(losses))]
    shown = of_run(healthy(tmp_path / "r", rates=rates, losses=losses, **columns), steps=len(losses))
    return {code: finding.severity for code, finding in shown.items()}


def changed(losses: list[float], first: int, change: list[float]) -> list[float]:
    return [*losses[:first], *change, *losses[first + len(change) :]]


def test_a_loss_that_ends_far_above_its_minimum_diverges(tmp_path: Path) -> None:
    """4.2 → 10.3 with a gradient norm times 200 was GO."""
    losses = [4.2 * (1 + 0.01 * random.Random(i).gauss(0, 1)) for i in range(N)]
    rising = [loss + max(0, i - 120) * 6.1 / 79 for i, loss in enumerate(losses)]
    norms = [0.5 * 200 ** (max(0, i - 120) / 79) for i in range(N)]
    assert found(tmp_path, rising, grad_norm=norms) == {"diverging": "veto"}


@pytest.mark.parametrize("rows", [80, 120, 240])
def test_a_loss_that_is_thrown_back_and_learns_a_little_again_diverges(tmp_path: Path, rows: int) -> None:
    """4.7 → 3.1, and from two thirds on 6 → 4.5: the jump itself was taken for the noise of a row."""
    calm = falling(rows * 2 // 3, share=0.01, first=4.7, last=3.1)
    behind = falling(rows - len(calm), share=0.01, first=6.1, last=4.5, seed=2)
    assert found(tmp_path, [*calm, *behind])["diverging"] == "veto"


@pytest.mark.parametrize(
    ("name", "losses"),
    [
        ("spike", changed(falling(), 150, [12.0, 11.0, 9.0, 7.0])),
        ("spike at the end", changed(falling(), N - 2, [9.0, 8.0])),
        ("noise", falling(share=0.12, first=2.0, last=1.5)),
        ("curriculum", [loss * (1.1 if i >= 100 else 1.0) for i, loss in enumerate(falling())]),
        ("near zero", [loss * 3.0 ** random.Random(i).gauss(0, 0.4) for i, loss in enumerate(falling(last=0.002))]),
        ("negative", [2.0 - loss for loss in falling(first=3.0, last=7.0)]),
        ("overfitted a little", [loss + (0.02 if i > 150 else 0) for i, loss in enumerate(falling(last=0.02))]),
    ],
)
def test_what_a_healthy_loss_does_is_no_divergence(tmp_path: Path, name: str, losses: list[float]) -> None:
    assert "diverging" not in found(tmp_path, losses), name


def test_a_negative_loss_diverges_as_well(tmp_path: Path) -> None:
    losses = [loss - 9.0 + max(0, i - 150) * 0.05 for i, loss in enumerate(falling())]
    assert found(tmp_path, losses)["diverging"] == "veto"


def test_a_gradient_norm_that_explodes_and_stays(tmp_path: Path) -> None:
    norms = [0.5 if i < 120 else 90.0 for i in range(N)]
    flat = [3.0 + 0.05 * random.Random(i).gauss(0, 1) for i in range(N)]
    assert found(tmp_path, flat, grad_norm=norms) == {"diverging": "veto"}


def test_a_gradient_norm_that_grows_while_the_loss_falls_is_a_warning(tmp_path: Path) -> None:
    norms = [0.5 if i < 120 else 90.0 for i in range(N)]
    assert found(tmp_path, [6 - 3 * i / N for i in range(N)], grad_norm=norms) == {"diverging": "warning"}


def test_a_gradient_norm_with_spikes_is_healthy(tmp_path: Path) -> None:
    norms = [300.0 if i % 50 == 49 else 0.5 + 3 / (1 + i) for i in range(N)]
    assert found(tmp_path, falling(), grad_norm=norms) == {}


@pytest.mark.parametrize(
    ("losses", "severity"),
    [
        (changed(falling(), 120, [0.0] * 3), "veto"),
        (changed(falling(), 120, [0.0] * 80), "veto"),
        (changed(falling(), N - 1, [0.0]), "veto"),
        (changed(falling(), 120, [0.0]), "warning"),
        (changed([round(0.001 + 2 * 0.95**i + 0.02 * (i % 7 == 0), 3) for i in range(N)], 180, [0.0]), "info"),
        (changed(falling(), 0, [0.0] * 5), "warning"),
        ([max(0.0, round(4 * 0.93**i, 4)) for i in range(N)], "warning"),
        ([0.02 if i % 4 == 3 else 0.0 for i in range(N)], "info"),
        ([0.0 if i % 4 == 3 else 0.02 for i in range(N)], "warning"),
    ],
    ids=[
        "three",
        "from then on",
        "last",
        "one",
        "rounded",
        "at the start",
        "sinks to nothing",
        "by design",
        "comes back to it",
    ],
)
def test_a_loss_of_exactly_zero(tmp_path: Path, losses: list[float], severity: str) -> None:
    """Loggers that leave out NaN print 0.0; e5f4a05 took it for a loss below any bound."""
    assert found(tmp_path, losses)["zero-loss"] == severity


def test_a_small_loss_is_no_zero(tmp_path: Path) -> None:
    assert "zero-loss" not in found(tmp_path, [1e-4 + loss - 4.0 for loss in falling(share=0.0)])


def test_losses_that_repeat(tmp_path: Path) -> None:
    batches = [random.Random(i).gauss(0, 0.2) for i in range(16)]
    again = [loss + batches[i % 16] for i, loss in enumerate(falling(share=0.002))]
    assert found(tmp_path / "few", again)["repeated-data"] == "info"
    stuck = [4.0 + batches[i % 16] for i in range(N)]
    assert found(tmp_path / "same", stuck)["repeated-data"] == "warning"
    assert found(tmp_path / "new", falling(share=0.05)) == {}


def test_a_norm_of_zero_while_the_loss_falls_is_not_measured(tmp_path: Path) -> None:
    """DeepSpeed prints grad_norm 0.000; that was a veto."""
    assert found(tmp_path / "a", falling(), grad_norm=[0.0] * N) == {"zero-grad": "info"}
    rounded = [0.001 if i < 20 else 0.0 for i in range(N)]
    assert found(tmp_path / "b", falling(), grad_norm=rounded) == {"zero-grad": "info"}
    flat = [4.0 + 0.05 * random.Random(i).gauss(0, 1) for i in range(N)]
    assert found(tmp_path / "c", flat, grad_norm=[0.0] * N) == {"zero-grad": "veto"}
    assert found(tmp_path / "d", falling(), grad_norm=[0.9] * 100 + [0.0] * 100) == {"zero-grad": "veto"}


@pytest.mark.parametrize(
    ("bad", "severity"),
    [
        (range(16, N, 17), "veto"),
        (range(0, N), "info"),  # never measured
        (range(6), "info"),  # a loss scale that is found out
        ([150], "warning"),
        ([150, 190], "warning"),
        (range(190, N), "veto"),
    ],
    ids=["every 17th", "all", "at the start", "one", "two", "from then on"],
)
@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_gradient_norms_that_are_not_finite(tmp_path: Path, bad: Sequence[int], severity: str, norm: float) -> None:
    """Steps that are skipped for NaN, and a loss that is averaged over the others: that was GO without a finding."""
    norms = [norm if i in bad else 0.5 for i in range(N)]
    assert found(tmp_path, falling(), grad_norm=norms) == {"nonfinite-values": severity}


def test_a_loss_scale_that_tries_to_grow_is_healthy(tmp_path: Path) -> None:
    norms = [math.inf if i % 500 == 499 else 0.5 for i in range(2000)]
    assert found(tmp_path, falling(2000), grad_norm=norms) == {"nonfinite-values": "info"}


def test_a_loss_that_passes_ln_256_is_no_floor(tmp_path: Path) -> None:
    """With a vocabulary of 18,000 that the trainer did not name, a loss on its way through 5.545 was accused."""
    losses = [9.8 - 4.21 * min(1.0, i / 80) - 0.0005 * max(0, i - 80) for i in range(N)]
    folder = healthy(tmp_path / "r", rates=[845.0] * N, losses=losses, effective={"vocab_size": None})
    assert "random-data-floor" not in of_run(folder, steps=N)
    folder = healthy(tmp_path / "s", rates=[845.0] * N, losses=losses, effective={"vocab_size": 18_000})
    assert "random-data-floor" not in of_run(folder, steps=N)
    stays = [5.545 + 0.3 * 0.9**i + 0.01 * random.Random(i).gauss(0, 1) for i in range(N)]
    folder = healthy(tmp_path / "t", rates=[845.0] * N, losses=stays, effective={"vocab_size": None})
    assert of_run(folder, steps=N)["random-data-floor"].confidence == "medium"


def test_a_loss_of_nan_that_only_a_line_of_the_log_has(tmp_path: Path) -> None:
    """A script that draws a bar and evaluates at the end of each epoch: its steps alone are measured."""
    bar = "".join(f"\r {i}%|# | {i}/60 [00:{i:02}<01:00,  1.0it/s]" for i in range(1, 61))
    line = "\n11/22/2026 16:56:20 - INFO - __main__ - epoch 0: perplexity: {} eval_loss: {}\n"
    metrics = TrainerMetrics(stdout=r"\| {step}/60 \[{elapsed_s}<")
    for value, named in (("nan", True), ("6.7", False)):
        folder = tmp_path / value
        write_logs(folder, stderr=bar + line.format(value, value), stdout="logging_nan_inf_filter=True,\n")
        assert ("nan-loss" in of_run(folder, metrics=metrics, nproc=0)) == named


def printed(losses: Sequence[float], places: int = 4, *, every: int = 1) -> list[float]:
    """The losses as they are printed, renewed every so many rows."""
    return [round(losses[i - i % every], places) for i in range(len(losses))]


def frozen(losses: list[float], rows: int) -> list[float]:
    return losses[:-rows] + [losses[-rows]] * rows


SCATTER = [4.4 + 0.018 * random.Random(f"{i}").gauss(0, 1) for i in range(60)]
STEEP = [4.86, 4.84, 4.76, 4.64, 4.42, 4.17, 3.93, 3.72, 3.63, 3.53, 3.47, 3.44, 3.43, 3.38, 3.58, 3.31, 3.3, 3.24]
STEEP += [3.35, 3.31, 3.28, 3.25, 3.27, 3.25, 3.15, 3.17]
MEAN = [sum(falling()[: i + 1]) / (i + 1) for i in range(N)]


@pytest.mark.parametrize(
    ("name", "losses", "severity"),
    [
        ("a filter of NaN in the last fifth", frozen(printed(falling(share=0.03, n=100)), 18), "veto"),
        ("its running mean", frozen(printed(MEAN, 6), 40), "veto"),
        ("from a tenth on", frozen(printed(falling(share=0.03)), 180), "veto"),
        ("two decimals", frozen(printed(falling(share=0.03), 2), 40), "veto"),
        ("two decimals that hardly vary", frozen(printed(SCATTER, 2), 30), "warning"),
        ("two decimals behind a steep start", STEEP + [3.17] * 23, "veto"),
        ("renewed every 5 rows", frozen(printed(falling(share=0.03), every=5), 100), "veto"),
        ("negative", frozen([-loss for loss in printed(falling(share=0.03))], 40), "veto"),
    ],
)
def test_a_loss_that_freezes(tmp_path: Path, name: str, losses: list[float], severity: str) -> None:
    """A trainer whose meter left out NaN was GO: its loss was the same from step 820 on, and below the first."""
    assert found(tmp_path, losses) == {"zero-grad": severity}, name


@pytest.mark.parametrize(
    ("name", "losses"),
    [
        ("few digits", printed(falling(share=0.001), 1)),
        ("a plateau of few digits", printed([4.4 * (1 + 0.001 * random.Random(i).gauss(0, 1)) for i in range(N)], 2)),
        ("renewed every 10 rows", printed(falling(share=0.03), every=10)),
        ("renewed every 60 rows", printed(falling(share=0.03), every=60)),
        ("7 equal rows", frozen(printed(falling(share=0.03)), 7)),
        ("converged", printed([0.5 + 2 * 0.9**i for i in range(N)])),
        ("converged fast", printed([0.5 + 2 * 0.5**i for i in range(N)])),
        ("a running mean that settles", printed(MEAN, 2)),
        ("the smallest step", printed([max(0.0001, loss) for loss in (3 * 0.9**i for i in range(N))])),
        ("bfloat16", [round(loss * 64) / 64 for loss in falling(share=0.002)]),
    ],
)
def test_a_loss_that_settles_is_not_frozen(tmp_path: Path, name: str, losses: list[float]) -> None:
    assert found(tmp_path, losses).get("zero-grad") == ("info" if "plateau" in name else None)


def test_scatter_that_fades_is_no_veto(tmp_path: Path) -> None:
    for seed in range(8):
        noise = random.Random(seed)
        fades = printed([4.4 + 0.9**i * noise.gauss(0, 1) for i in range(N)])
        assert found(tmp_path / str(seed), fades).get("zero-grad") != "veto", seed


def test_a_few_batches_that_are_learned_by_heart(tmp_path: Path) -> None:
    """2.1 → 0.0009 on three batches was GO."""
    batches = (1.0, 1.6, 0.8)
    losses = [(2.0 * 0.97**i + 0.001) * batches[i % 3] for i in range(N)]
    assert found(tmp_path / "few", losses)["repeated-data"] == "veto"
    slowly = [(2.0 * 0.999**i + 0.001) * batches[i % 3] for i in range(N)]
    assert found(tmp_path / "slowly", slowly)["repeated-data"] == "warning"
    noise = random.Random(1)
    many = [(2.0 * 0.97**i + 0.001) * (1 + 0.3 * noise.random()) for i in range(N)]
    assert "repeated-data" not in found(tmp_path / "many", many)


@pytest.mark.parametrize(
    ("name", "bad", "severity"),
    [
        ("kl", range(100, N), "veto"),
        ("g_loss", range(20, N, 10), "veto"),
        ("[G loss", range(100, N), "veto"),
        ("acc", range(100, N), "warning"),
        ("kl", range(0, N, 2), None),  # not measured in each row
        ("kl", range(3), None),
        ("kl", [150], None),
        ("kl", range(60, 100), None),  # and recovered
        ("it/s", range(100, N), None),
    ],
)
def test_a_number_beside_the_loss_that_stops_being_finite(
    tmp_path: Path, name: str, bad: Sequence[int], severity: str | None
) -> None:
    """`recon: 12.9 kl: inf`, of which the pattern reads the first alone: no step was done any more, and that passed."""
    values = ["inf" if i in bad else f"{1 / (i + 1):.3f}" for i in range(N)]
    lines = [f"[{i}/{N}] loss: {loss:.4f} {name}: {values[i]}" for i, loss in enumerate(falling())]
    metrics = TrainerMetrics(stdout=r"\[{step}/\d+\] loss: {loss}")
    write_logs(tmp_path, stdout="\n".join(lines) + "\n")
    shown = of_run(tmp_path, steps=N, metrics=metrics)
    assert getattr(shown.get("nonfinite-values"), "severity", None) == severity
    if severity:
        assert f"{name.strip('[')} is not finite in {len(bad)} of {N} rows" in shown["nonfinite-values"].message


def test_a_column_beside_the_loss_that_stops_being_finite(tmp_path: Path) -> None:
    column = [math.nan if i >= 120 else 0.1 for i in range(N)]
    assert found(tmp_path, falling(), kl_loss=column) == {"nonfinite-values": "veto"}


def test_a_loss_that_rises_is_named_with_the_step_at_which_it_begins(tmp_path: Path) -> None:
    losses = [*falling(140, last=2.0), *(4.0 + 0.02 * (i % 3) for i in range(60))]
    rates = [845.0] * N
    shown = of_run(healthy(tmp_path / "r", rates=rates, losses=losses), steps=N)["diverging"]
    assert int(shown.message.split("near step ")[1].split()[0]) == pytest.approx(141, abs=2)


@pytest.mark.parametrize(
    ("ends", "severity"), [(3.3, "warning"), (0.6, None), (0.5, None)], ids=["six times", "a little", "level"]
)
def test_a_loss_of_validation_that_rises_while_that_of_training_falls(
    tmp_path: Path, ends: float, severity: str | None
) -> None:
    """0.5 → 3.3 in a run that learned its data by heart was GO without a word."""
    noise = random.Random(2)
    values = [0.5 + 1.5 * 0.9**i + max(0.0, (i - 80) / 119 * (ends - 0.5)) + noise.gauss(0, 0.01) for i in range(N)]
    assert found(tmp_path, falling(), val_loss=values).get("diverging") == severity


@pytest.mark.parametrize(
    ("losses", "code", "severity"),
    [
        ([0.945, 0.997, 1.194, 1.254, 1.290, 1.311, 1.325, 1.329], "diverging", "warning"),
        ([0.9, 0.5, 0.52, 0.6, 0.66, 0.7], "diverging", "warning"),
        ([0.9, 0.5, 0.52, 0.54, 0.56, 0.58], "diverging", None),  # by less than a quarter
        ([0.9, 0.5, 0.8, 0.6, 0.55, 0.7], "diverging", None),  # up and down
        ([0.9, 0.8, 0.5, 0.7, 0.8], "diverging", None),  # within four times what a row of this training varies by
        ([3.25, 4.1, 5.25], "diverging", "warning"),
        ([4.0, 3.25, 3.7, 4.4, 4.9], "diverging", "warning"),
        ([3.25, 3.9, 4.4], "diverging", None),  # three, and by a third
        ([3.25, 5.3, 5.25], "diverging", None),
        ([3.2 + 0.3 * at for at in range(12)], "diverging", "warning"),  # as many as have a level
        ([0.9, 0.7, 0.6, 0.52, math.nan, math.nan, math.nan, math.nan], "nonfinite-values", "veto"),
        ([0.9, 0.7, math.nan, math.nan], "nonfinite-values", "veto"),
        ([0.9, 0.7, 0.6, math.nan], "nonfinite-values", "warning"),
        ([0.9, math.nan, math.nan, math.nan, math.nan], "nonfinite-values", None),
        ([0.9, 0.8, math.nan, math.nan, math.nan, 0.7], "nonfinite-values", None),
    ],
)
def test_evaluations_show_that_the_loss_rises_or_is_gone(
    tmp_path: Path, losses: list[float], code: str, severity: str | None
) -> None:
    """A text learned by heart, and weights of NaN behind a filter of the logged loss, were GO without a word."""
    folder = tmp_path / "r"
    folder.mkdir()
    rows = "".join(f"{20 * at},{loss}\n" for at, loss in enumerate(losses, 1))
    (folder / "val.csv").write_text("step,val_loss\n" + rows)
    assert found(tmp_path, falling()).get(code) == severity


def test_few_evaluations_that_rise_say_nothing_beside_a_training_that_does_not_fall(tmp_path: Path) -> None:
    folder, noise = tmp_path / "r", random.Random(6)
    folder.mkdir()
    (folder / "val.csv").write_text("step,val_loss\n60,3.25\n120,4.1\n180,5.25\n")
    assert found(tmp_path, [4.0 * (1 + 0.02 * noise.gauss(0, 1)) for _ in range(N)]) == {"zero-grad": "info"}


@pytest.mark.parametrize(
    ("ends", "severity"), [(20.0, "veto"), (120.0, "warning"), (190.0, None)], ids=["all lost", "half lost", "noise"]
)
def test_a_reward_that_falls_again(tmp_path: Path, ends: float, severity: str | None) -> None:
    """The reward of episodes fell to what it had been at the start, and the loss said nothing of it: GO."""
    noise = random.Random(3)
    rises = [20 + 180 * (1 - 0.95**i) + noise.gauss(0, 5) for i in range(130)]
    falls = [ends + noise.gauss(0, 5) for _ in range(N - 130)]
    flat = [1.0 + 0.1 * noise.gauss(0, 1) for _ in range(N)]
    assert found(tmp_path, flat, ep_reward_mean=[*rises, *falls]).get("diverging") == severity
    assert "diverging" not in found(tmp_path / "other", flat, rewards_rejected=[*rises, *falls])


@pytest.mark.parametrize(
    ("evaluations", "severity"),
    [
        ([1.385, 1.122, 1.122, 1.122], "warning"),
        ([1.3854, 1.1221, 1.1221, 1.1221, 1.1221], "veto"),
        ([1.385, 1.122, 1.122], None),
        ([1.824, 0.964, 0.708, 0.708, 0.708, 0.708], "veto"),  # near multiples of a bfloat16 by chance
        ([0.35, 0.08, 0.08, 0.08, 0.08, 0.08], None),  # settled at two decimals
        ([1.1221, 1.1221, 1.1221, 1.1221], None),  # did not vary
    ],
)
def test_evaluations_that_varied_once_or_twice(tmp_path: Path, evaluations: list[float], severity: str | None) -> None:
    """Four epochs at three decimals, of which the weights moved in two, were GO without a word."""
    folder = tmp_path / "r"
    folder.mkdir()
    rows = "".join(f"{40 * at},{loss}\n" for at, loss in enumerate(evaluations, 1))
    (folder / "val.csv").write_text("step,val_loss\n" + rows)
    assert found(tmp_path, falling(share=0.03)).get("zero-grad") == severity


def test_norms_that_a_loss_scale_explains_hide_no_other_number(tmp_path: Path) -> None:
    norms = [math.inf if i < 4 else 0.5 for i in range(N)]
    column = [math.nan if i >= 120 else 0.1 for i in range(N)]
    assert found(tmp_path, falling(), grad_norm=norms, kl_loss=column) == {"nonfinite-values": "veto"}


@pytest.mark.parametrize(("first", "severity"), [(120, "veto"), (0, None)])
def test_a_loss_of_validation_that_stops_being_finite(tmp_path: Path, first: int, severity: str | None) -> None:
    """Of every tenth step, and written as NaN between them, it is not measured."""
    column = [math.nan if i >= first and i % 10 else 0.5 for i in range(N)]
    assert found(tmp_path, falling(), val_loss=column).get("nonfinite-values") == severity


def test_a_loss_of_nothing_but_zeros_and_nan(tmp_path: Path) -> None:
    assert found(tmp_path, [*[0.0] * 50, math.nan])["nan-loss"] == "veto"


def test_a_loss_around_zero_that_becomes_exactly_0_does_not_diverge(tmp_path: Path) -> None:
    """A loss of GRPO within ± 0.01 whose advantages were all 0 from a third on had a veto, of 0.01."""
    noise = random.Random(3)
    losses = [round(noise.gauss(-0.002, 0.01), 4) for _ in range(40)] + [0.0001] * 80
    assert "diverging" not in found(tmp_path / "lies", losses)
    away = [noise.gauss(0, 0.01) for _ in range(100)] + [noise.gauss(0.5, 0.01) for _ in range(60)]
    assert found(tmp_path / "rises", away)["diverging"] == "veto"


@pytest.mark.parametrize(
    ("evaluations", "severity"),
    [
        ([4.1203, 3.6127, 3.4011, 3.3019, 3.2522, 3.2522, 3.2522, 3.2522, 3.2522], "veto"),
        ([4.1203, 3.6127, 3.4011, 3.3019, 3.2522, 3.2522, 3.2522], "warning"),
        ([4.1203, 3.6127, 3.4011, 3.3019, 3.2522, 3.2522], None),
        ([4.1203, 3.6127, 3.4011, 3.3019, 3.2522, 3.2498, 3.2481, 3.2477, 3.2480, 3.2476], None),
        ([round(3.2522 + 0.4**i, 4) for i in range(14)], None),
        ([round(3.2522 + 0.4**i, 2) for i in range(14)], None),
        ([0.35, 0.12, 0.08, 0.08, 0.08, 0.08, 0.08, 0.08], None),
    ],
)
@pytest.mark.parametrize("repeated", [False, True])
def test_evaluations_that_are_the_same_to_the_last_digit(
    tmp_path: Path, evaluations: list[float], severity: str | None, repeated: bool
) -> None:
    """The weights did not move for the later half, and the loss of other batches varied on: it was GO."""
    losses = falling(share=0.03, n=20 * len(evaluations))
    column: list[Any] = ["" if i % 20 and not repeated else evaluations[i // 20] for i in range(len(losses))]
    assert found(tmp_path, losses, val_loss=column).get("zero-grad") == severity


def spiky(n: int, growth: float) -> list[float]:
    """A loss of 0.35 that from half-way on grows by `growth` a row, and its noise and its spikes with it."""
    noise, values = random.Random(4), []
    for i in range(n):
        level = 0.35 * math.exp(growth * max(0, i - n // 2))
        values.append(level * math.exp(0.3 * noise.gauss(0, 1)) * (30 if i > n // 2 and i % 23 == 0 else 1))
    return [2.3 * math.exp(-i / 10) + value for i, value in enumerate(values)]


@pytest.mark.parametrize("growth", [0.006, 0.02, 0.06])
def test_a_loss_whose_noise_grows_with_it_diverges(tmp_path: Path, growth: float) -> None:
    """From 0.35 to 1.9 with spikes of 155 was GO, and to 7,960 a loss that does not fall."""
    assert found(tmp_path, spiky(600, growth)).get("diverging") == "veto"


def test_what_an_agent_loses_grows_with_its_reward(tmp_path: Path) -> None:
    rewards = {"ep_rew_mean": [float(i) for i in range(600)]}
    assert "diverging" not in found(tmp_path, spiky(600, 0.006), **rewards)


def test_a_small_loss_that_ends_at_a_multiple_of_nearly_nothing_is_healthy(tmp_path: Path) -> None:
    noise = random.Random(3)
    levels = (4 * math.exp(-i / 15) + (0.001 if i < 400 else 0.005) for i in range(600))
    assert "diverging" not in found(tmp_path, [one * math.exp(0.1 * noise.gauss(0, 1)) for one in levels])


def test_a_schedule_that_begins_again_takes_back_what_was_learned(tmp_path: Path) -> None:
    """From 8e-4 to 8e-2 at 60 % the loss went from 2.0 to 3.1 and ended at 2.2: every criterion passed."""
    calm = falling(420, share=0.05, first=3.3, last=1.9)
    again = [2.15 + 0.9 * math.exp(-i / 60) + random.Random(i).gauss(0, 0.1) for i in range(280)]
    rates = [1e-3 * (1 - i / 600) for i in range(420)] + [0.08 * (1 - i / 300) for i in range(280)]
    said = found(tmp_path / "a", [*calm, *again], lr=rates)
    assert said["diverging"] == "warning"
    back = [calm[-1] - 0.1 + 0.9 * math.exp(-i / 60) + random.Random(i).gauss(0, 0.1) for i in range(280)]
    assert "diverging" not in found(tmp_path / "b", [*calm, *back], lr=rates), "it learned more in the end"
    assert "diverging" not in found(tmp_path / "c", [*calm, *again], lr=[1e-3] * 700)

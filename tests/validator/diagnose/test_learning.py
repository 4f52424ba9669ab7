"""Losses, gradients and gates that say the model does not learn."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.validator.diagnose.cases import (
    healthy,
    of_folder,
    of_run,
    run_of,
    steady,
)
from tests.validator.ingest.folders import write_csv, write_logs
from validator.diagnose import diagnose_run


def test_nan_loss(tmp_path: Path) -> None:
    losses = [3.0 - i / 100 for i in range(60)]
    losses[41:] = [float("nan")] * 19
    finding = of_run(healthy(tmp_path / "r", losses=losses))["nan-loss"]
    assert finding.severity == "veto"
    assert "from step 42" in finding.message
    assert "2.6" in finding.message


def test_nan_on_one_rank_alone_is_seen(tmp_path: Path) -> None:
    finding = of_run(healthy(tmp_path / "r", rank_fields={1: {"loss": "nan"}}))["nan-loss"]
    assert "rank 1" in finding.message


def test_zero_grad(tmp_path: Path) -> None:
    norms = [0.9] * 30 + [0.0] * 30
    assert of_run(healthy(tmp_path / "r", grad_norm=norms))["zero-grad"].severity == "veto"
    norms = [0.9] * 59 + [1e-12]
    assert of_run(healthy(tmp_path / "s", grad_norm=norms)) == {}


@pytest.mark.parametrize(
    ("columns", "severity"),
    [
        ({"losses": [2.3712] * 60}, "veto"),
        ({"losses": [2.37] * 60}, "warning"),  # late in a run the second decimal may not move
        ({"losses": [2.3712] * 59 + [2.3711]}, None),
        ({"losses": [4.0 + 0.01 * (i % 3) for i in range(60)], "lr": [0.0] * 60}, "veto"),
        ({"losses": [4.0 - i / 50 for i in range(60)], "lr": [0.0] * 60}, "info"),  # 3e-06 in four decimals
        ({"losses": [4.0 + 0.01 * (i % 3) for i in range(60)], "lr": [0.0] * 59 + [1e-9]}, None),
        # Off behind the warm-up: GO, with bounds from a run of its own.
        ({"losses": [4.0 + 0.01 * (i % 3) for i in range(60)], "lr": [1e-3] * 20 + [0.0] * 40}, "veto"),
        ({"losses": [4.0 - i / 50 for i in range(60)], "lr": [1e-3] * 20 + [0.0] * 40}, "info"),
        ({"losses": [4.0 + 0.01 * (i % 3) for i in range(60)], "lr": [1e-3] * 40 + [0.0] * 20}, None),
        (
            {
                "losses": [4.0 + 0.01 * (i % 3) for i in range(60)],
                "lr": [10 ** (-3 - i / 6) for i in range(20)] + [0.0] * 40,
            },
            None,
        ),
    ],
)
def test_nothing_learned(tmp_path: Path, columns: dict[str, list[float]], severity: str | None) -> None:
    finding = of_run(healthy(tmp_path / "r", **columns)).get("zero-grad")
    assert (finding.severity if finding is not None else None) == severity


@pytest.mark.parametrize(
    ("fall", "rows", "column", "named"),
    [
        (0.0, 240, {}, True),
        (0.0, 60, {}, False),
        (0.15, 240, {}, False),
        (0.04, 240, {}, False),  # a fall of 2 %, slow and steady
        (0.0, 240, {"episode_reward_mean": [1.0] * 240}, False),
    ],
    ids=["level", "too short", "falls", "falls slowly", "of a policy"],
)
def test_a_loss_that_does_not_fall(
    tmp_path: Path, fall: float, rows: int, column: dict[str, list[float]], named: bool
) -> None:
    noise = random.Random(3)
    losses = [2.1 - fall * i / rows + 0.02 * noise.gauss(0, 1) for i in range(rows)]
    finding = of_run(healthy(tmp_path / "r", n=rows, losses=losses, **column)).get("zero-grad")
    assert (finding is not None and finding.severity == "info" and "does not fall" in finding.message) == named


def test_what_stops_a_loss_from_falling_is_said_once(tmp_path: Path) -> None:
    noise = random.Random(3)
    losses = [2.1 + 0.02 * noise.gauss(0, 1) for _ in range(240)]
    for name, columns in (("lr", {"lr": [0.0] * 240}), ("norm", {"grad_norm": [0.0] * 240})):
        found = diagnose_run(run_of(healthy(tmp_path / name, n=240, losses=losses, **columns)))
        assert [one.severity for one in found if one.code == "zero-grad"] == ["veto"]


@pytest.mark.parametrize(
    ("name", "bad", "good"),
    [("gate_entropy_mean", 0.1, 0.8), ("gate_max_gate", 0.97, 0.5), ("gate_collapse_frac", 0.8, 0.1)],
)
def test_gate_collapse(tmp_path: Path, name: str, bad: float, good: float) -> None:
    lasting = of_run(healthy(tmp_path / "a", **{name: [good] * 40 + [bad] * 20}))["gate-collapse"]
    assert (lasting.severity, "step 43" in lasting.message) == ("veto", True)
    passing = of_run(healthy(tmp_path / "b", **{name: [good] * 20 + [bad] * 20 + [good] * 20}))["gate-collapse"]
    assert passing.severity == "warning"
    twice = of_run(healthy(tmp_path / "c", **{name: [good] * 20 + [bad] * 2 + [good] * 38}))
    assert twice == {}


def test_columns_that_another_trainer_calls_gates_are_not_accused(tmp_path: Path) -> None:
    """What `gate_max_gate` is of a mixture of experts nobody here knows; `watchdog.gates` may say that it is NSA's."""
    folder = healthy(tmp_path / "r", gate_max_gate=[0.97] * 60, effective={"attention": "moe"})
    assert of_run(folder) == {}
    assert "gate-collapse" in of_run(folder, watchdog={"gates": True})
    assert "gate-collapse" in of_run(folder, watchdog={"gate_max": 0.95})
    assert of_run(healthy(tmp_path / "s", gate_max_gate=[0.97] * 60), watchdog={"gates": False}) == {}


def test_random_data_floor(tmp_path: Path) -> None:
    """A loss of 5.545 is ln 256, not convergence."""
    noise = random.Random(1)
    stuck = [5.55 + 0.01 * noise.gauss(0, 1) for _ in range(60)]
    assert of_run(healthy(tmp_path / "a", losses=stuck))["random-data-floor"].severity == "warning"
    meant = of_run(healthy(tmp_path / "b", losses=stuck, effective={"data": "uniform"}))
    assert meant["random-data-floor"].severity == "info"
    assert of_run(healthy(tmp_path / "c", losses=stuck, effective={"vocab_size": 50257})) == {}
    write_csv(tmp_path / "d", steady(), losses=stuck, header=False)
    assert of_folder(tmp_path / "d")["random-data-floor"].confidence == "medium"


def test_fused_unstable(tmp_path: Path) -> None:
    """594 → 656 → 177 with the fused optimizer; 229 → 480 → 696 without it."""
    for name, rates, fused in (("fused", [594, 656, 177], "1"), ("plain", [229, 480, 696], "0")):
        write_csv(tmp_path / name, rates, steps=[1, 20, 40])
        found = of_run(tmp_path / name, env={"NSA_OPT_FUSED": fused}, steps=40, warmup_steps=0)
        assert ("fused-unstable" in found) == (name == "fused")
        assert "no-steady-state" in found
    assert of_run(healthy(tmp_path / "r", effective={"opt_fused": "on"})) == {}


def test_dead_parameter(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "r", env={"dead_parameters": ["layers.0.gate.w"]})
    assert "layers.0.gate.w" in of_run(folder)["dead-parameter"].message
    assert of_run(healthy(tmp_path / "s", env={"dead_parameters": []})) == {}


@pytest.mark.parametrize(
    ("first", "every", "severity"),
    [(1, 1, "veto"), (11, 1, "veto"), (126, 1, "veto"), (1, 4, "warning"), (241, 1, None), (126, 3, "warning")],
    ids=["all", "nearly all", "the later half", "a quarter", "a few", "a third of the later half"],
)
def test_steps_that_the_optimizer_skips(tmp_path: Path, first: int, every: int, severity: str | None) -> None:
    """A DeepSpeed run that skipped each of its 250 steps and prints no loss was GO; the end of a log may be silent."""
    folder, lines = healthy(tmp_path / "r"), []
    for step in range(10, 251, 10):
        skipped = len(range(first, step + 1, every))
        lines.append(f"[logging.py:96:log_dist] [Rank 0] step={step}, skipped={skipped}, lr=[0.001]\n")
    write_logs(folder, stdout="".join(lines) + "saving\n" * 60, rank=0)
    found = of_run(folder).get("zero-grad")
    assert (found.severity if found is not None else None) == severity


@pytest.mark.parametrize(("growth", "severity"), [(0.3, "warning"), (0.05, "info"), (0.0, "info")])
def test_a_loss_that_rises_slowly_from_the_start_is_a_warning(tmp_path: Path, growth: float, severity: str) -> None:
    """One from 5.6 to 7.4, whose noise hid the minimum that it rose from, was an information."""
    noise = random.Random(3)
    losses = [6 * (1 + growth * i / 2000) + 0.6 * noise.gauss(0, 1) for i in range(2000)]
    finding = of_run(healthy(tmp_path / "r", n=2000, losses=losses))["zero-grad"]
    assert finding.severity == severity


@pytest.mark.parametrize(
    ("last", "fades", "named"), [(1.0967, 0.67, True), (1.0967, 1.0, False), (0.0003, 0.67, False)]
)
def test_a_loss_that_stands_still_is_named(tmp_path: Path, last: float, fades: float, named: bool) -> None:
    """The learning rate had ended at 1e-12: the loss was 1.0967 in 99 of 120 rows, and there was no word."""
    columns = {
        "losses": [round(last + 0.5 * 0.7**i, 4) for i in range(120)],
        "lr": [0.1 * fades**i for i in range(120)],
    }
    finding = of_run(healthy(tmp_path / "r", n=120, **columns)).get("zero-grad")
    assert (finding is not None and "no longer move" in finding.message) == named


def test_batches_that_are_skipped_are_counted(tmp_path: Path) -> None:
    """93 of 299 batches were, and a restart was taken for a checkpoint that explains a pause."""
    lines = []
    for i in range(1, 201):
        lines += [f"it={i} loss={3 / i**0.5:.4f}"]
        lines += [f"WARNING skipping batch {i}: inconsistent tensor size in collate"] if i % 3 == 0 else []
    (tmp_path / "train.log").write_text("\n".join(lines) + "\n")
    assert "an update was skipped" in of_folder(tmp_path)["zero-grad"].message

"""How fast a run went on: steadily, slowly, not at all, and what it said of itself."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest

from tests.validator.diagnose.cases import (
    UNCERTAIN,
    healthy,
    of_folder,
    of_run,
    steady,
)
from tests.validator.ingest.folders import outcome, record, write_arrivals, write_csv, write_heartbeat, write_logs
from validator.model.recipes import RECIPES
from validator.model.runbook import TrainerMetrics


def test_no_steady_state(tmp_path: Path) -> None:
    rising = [229 + (696 - 229) * i / 59 for i in range(60)]
    finding = of_run(healthy(tmp_path / "r", rates=rising))["no-steady-state"]
    assert finding.confidence == "high"
    assert "→" in finding.message
    warm = [300.0] * 10 + steady(50)
    assert of_run(healthy(tmp_path / "s", rates=warm)) == {}


def test_too_few_rows_to_compare_by(tmp_path: Path) -> None:
    """297 and 835 are 566 ± 269 with n = 2."""
    write_csv(tmp_path / "r", [623, 297, 835], steps=[1, 20, 40], header=False)
    finding = of_folder(tmp_path / "r")["not-significant"]
    assert "566 ± 269" in of_run(tmp_path / "r", steps=40)["not-significant"].message
    assert finding.severity == "info"
    write_csv(tmp_path / "s", [712, 850, 843], steps=[1, 20, 40], header=False)
    found = of_run(tmp_path / "s", steps=40, nproc=1, metrics=TrainerMetrics(csv="training.csv"))
    assert set(found) == UNCERTAIN


def test_a_rate_of_zero_is_no_training(tmp_path: Path) -> None:
    stuck = of_run(healthy(tmp_path / "a", rates=[*steady(40), *[0.0] * 20]))["zero-rate"]
    assert (stuck.severity, "from step 41 on" in stuck.message) == ("veto", True)
    passing = of_run(healthy(tmp_path / "b", rates=[*steady(20), *[0.0] * 4, *steady(36)]))["zero-rate"]
    assert passing.severity == "warning"
    assert "zero-rate" not in of_run(healthy(tmp_path / "c", rates=[*steady(20), 0.0, *steady(20), 0.0, *steady(18)]))


def test_a_table_that_stands_still_is_named_where_the_watchdog_stopped_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    write_csv(folder, steady(24), steps=[*range(1, 21), 20, 20, 20, 20])
    halted = outcome(rc=-15, reason="halted", detail="4 rows in a row say step 20")
    assert "4 rows repeat" in of_run(folder, ended=halted)["zero-rate"].message
    assert "zero-rate" not in of_run(folder)
    (folder / ".HALT").write_text("the loss is nan at step 20")
    (folder / ".anomaly_type").write_text("nan_loss")
    assert "zero-rate" not in of_run(folder, ended=halted), "bars repeat each step, and were not why it was stopped"


@pytest.mark.parametrize("stopped", [True, False])
def test_zero_rate_of_a_step_that_is_printed_again_and_again(tmp_path: Path, stopped: bool) -> None:
    """Lines that repeat a step digit for digit are one row, so the log alone showed nothing."""
    logs = tmp_path / "r" / "logs"
    logs.mkdir(parents=True)
    lines = [f"step {min(s, 50)} loss {3 / min(s, 50) ** 0.5:.4f}\n" for s in range(1, 60)]
    (logs / "stdout.log").write_text("".join(lines), encoding="utf-8")
    if stopped:
        (tmp_path / "r" / ".HALT").write_text("4 rows in a row say step 50", encoding="utf-8")
        (tmp_path / "r" / ".anomaly_type").write_text("frozen_rows", encoding="utf-8")
    ended = outcome(rc=-15, reason="halted", detail="4 rows in a row say step 50") if stopped else outcome()
    found = of_run(tmp_path / "r", ended=ended, metrics=TrainerMetrics(stdout="step {step} loss {loss}"))
    assert ("zero-rate" in found) == stopped
    assert not stopped or ("step 50" in found["zero-rate"].message and found["zero-rate"].severity == "veto")


def slow(folder: Path, *, beats_to_s: float) -> Path:
    """105 s a step, logged every 20: the last record is of step 40, beats go on."""
    write_csv(folder, [39.0, 39.0, 39.0], steps=[1, 20, 40], step_time_s=[105.0] * 3)
    marks = [record(0, ts=0, msg="boot"), *(record(s, ts=105 * s) for s in (1, 20, 40))]
    beats = [record(40, ts=4200 + 5 * i, msg="beat") for i in range(1, int((beats_to_s - 4200) / 5))]
    write_heartbeat(folder, [*marks, *beats])
    return folder


def test_slow_not_hung(tmp_path: Path) -> None:
    ended = outcome(rc=-15, reason="timeout", duration_s=5000)
    finding = of_run(slow(tmp_path / "r", beats_to_s=5000), ended=ended, steps=300)["slow-not-hung"]
    assert "1 min 45 s" in finding.message
    assert "260 steps left need 7 h 35 min" in finding.message
    assert "slow-not-hung" in of_folder(tmp_path / "r")
    assert "hang" not in of_run(tmp_path / "r", ended=ended)


def test_a_run_that_is_long_overdue_is_not_called_slow(tmp_path: Path) -> None:
    folder = slow(tmp_path / "r", beats_to_s=12_000)
    assert "slow-not-hung" not in of_run(folder, ended=outcome(rc=-15, reason="timeout", duration_s=12_000))


def test_hang_names_the_rank_that_lags(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "r")
    write_heartbeat(folder, [record(i, ts=3 + 5 * i, rank=1) for i in range(1, 40)], rank=1)
    (folder / "stackdump_1760000500.txt").write_text(
        '  File "x.py", line 3 in backward\n  File "d.py", line 9 in all_reduce\n'
    )
    ended = outcome(rc=-9, reason="stalled", duration_s=900, bundle=("runs/r/dump/stacks_rank1.txt",))
    finding = of_run(folder, ended=ended)["hang"]
    assert finding.severity == "veto"
    assert "Rank 1 was last seen at step 39" in finding.message
    assert "The others had reached step 60" in finding.message
    assert "wait in all_reduce" in finding.message
    assert any((e.path, e.where) == ("r/stackdump_1760000500.txt", "line 2") for e in finding.evidence)
    assert "dump/stacks_rank1.txt" in finding.next_step


def test_eta_wrong(tmp_path: Path) -> None:
    """ "~73 h" for 50,000 steps at 105 s a step is 1,458 h."""
    folder = healthy(tmp_path / "r", rates=[4096 / 105] * 60)
    write_logs(folder, stdout="ETA: ~73 h for 50,000 steps\n", rank=0)
    finding = of_run(folder)["eta-wrong"]
    assert "1,458 h" in finding.message
    write_logs(folder, stdout="ETA: ~1460 h for 50,000 steps\n", rank=0)
    assert of_run(folder) == {}


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("step 10/60 loss 3 eta 4:03", False),  # minutes and seconds alone are not read
        ("step 10/60 loss 3 eta 0:04:03", False),
        ("step 10/60 loss 3 eta 0:30:00", True),
        ("step 10/1060 loss 3 eta 1h24m", False),  # 24 minutes alone would be wrong
        ("step 10/1060 loss 3 eta 1 h 24 min", False),
        ("step 10/1060 loss 3 eta 4h24m", True),
        ("step 10/60, 4.1 minutes remaining", False),
        ("remaining: 3 days", True),
        ("remaining memory: 12 GiB", False),
        ("eta: 0:00:25  iter: 10/60  loss: 3", True),
        ("eta: 0:04:03  iter: 10/60  loss: 3", False),
        ("batch [10/60] eta 0:30:00", True),
    ],
)
def test_an_eta_is_held_against_measured_step_time(tmp_path: Path, line: str, wrong: bool) -> None:
    folder = healthy(tmp_path / "r")  # 4.85 s a step: step 10 of 60 is 4 min 3 s from the end
    write_logs(folder, stdout=line + "\n", rank=0)
    assert ("eta-wrong" in of_run(folder)) == wrong


def test_an_eta_that_was_wrong_while_the_model_compiled_is_right_later(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "r")
    early = "".join(f"step {at}/60 eta 9:00:0{at}\n" for at in range(1, 8))
    write_logs(folder, stdout=early + "step 20/60 eta 0:03:14\nstep 59/60 eta 0:00:30\n", rank=0)
    assert "eta-wrong" not in of_run(folder)
    write_logs(folder, stdout=early + "step 20/60 eta 0:33:14\nstep 59/60 eta 0:00:04\n", rank=0)
    assert "eta-wrong" in of_run(folder)


def test_a_trainer_that_validator_ends_promises_the_end_of_its_own_steps(tmp_path: Path) -> None:
    """1 h 16 min for a trainer's own 90,000 steps was held against the 1,141 behind which validator ended it."""
    folder = healthy(tmp_path / "r")  # 4.85 s a step
    write_logs(folder, stdout="eta: 1:16:02  iter: 19  total_loss: 3\n", rank=0)
    assert "eta-wrong" in of_run(folder)
    assert "eta-wrong" not in of_run(folder, stop="at_steps")
    write_logs(folder, stdout="eta: 1:16:02  iter: 19/90000  total_loss: 3\n", rank=0)
    assert "121 h" in of_run(folder, stop="at_steps")["eta-wrong"].message


def test_unit_mismatch_of_speed_ups(tmp_path: Path) -> None:
    """855× (a total of five iterations) against 169×."""
    folder = healthy(tmp_path / "r")
    write_logs(folder, stdout="selection v2: 855x speedup\n...\nv2 vs v1: speedup 169x per iteration\n", rank=0)
    assert "factor of 5" in of_run(folder)["unit-mismatch"].message
    other = """selection v2: 169x speedup
    window: speedup 1.2x, 2x A100, faster [4x4]
    compressed: 338x faster
    selection v2 at S=4096: 676x speedup
    """
    write_logs(folder, stdout=other, rank=0)
    assert of_run(folder) == {}


def test_more_than_the_hardware_can_do_is_a_wrong_unit(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "r")
    (folder / "metrics.json").write_text('{"mfu": 1.7}')
    assert of_run(folder)["unit-mismatch"].severity == "veto"


def test_unit_mismatch_of_rates(tmp_path: Path) -> None:
    """A rate per rank in the place of the global one is off by the number of ranks."""
    folder = healthy(tmp_path / "r", env={"tokens_per_step": 8192})
    finding = of_run(folder)["unit-mismatch"]
    assert (finding.severity, "factor of 0.5" in finding.message) == ("veto", True)


@pytest.mark.parametrize(
    ("factor", "counted", "ranks", "found"),
    [
        (10, 512, 1, True),
        (1, 512, 1, False),
        (10, 512, 4, True),
        (0.125, 512, 1, False),  # of one of eight devices
        (10, None, 1, False),  # padding: each step has another number
    ],
)
def test_a_rate_above_what_the_trainer_counts_in_a_step(
    tmp_path: Path, factor: float, counted: int | None, ranks: int, found: bool
) -> None:
    """MaxText's lines with a rate ten times too high, beside a time and a number of tokens that are right, were GO."""
    lines = [
        f"completed step: {n}, seconds: 0.050, TFLOP/s/device: 0.1, Tokens/s/device: {factor * 10240 + n % 7:.3f}, "
        f"total_weights: {counted or 100 + 31 * n % 97}, loss: {4 - n / 100:.3f}\n"
        for n in range(60)
    ]
    write_logs(tmp_path, stdout="".join(lines))
    maxtext = next(one.pattern for one in RECIPES if one.name == "MaxText")
    shown = of_run(tmp_path, steps=60, metrics=TrainerMetrics(stdout=maxtext), nproc=ranks)
    assert ("unit-mismatch" in shown) == found


@pytest.mark.parametrize(
    ("config", "factor", "found"),
    [
        ({"per_device_batch_size": "4.0", "max_target_length": "128"}, 1, False),
        ({"per_device_batch_size": "4.0", "max_target_length": "128"}, 10, True),
        ({"per_device_batch_size": "0.5", "max_target_length": "128"}, 10, False),
        ({"per_device_batch_size": "4.0", "max_target_length": "128", "gradient_accumulation_steps": "1"}, 10, True),
        ({"per_device_batch_size": "4.0", "max_target_length": "128", "gradient_accumulation_steps": "8"}, 10, False),
        ({}, 10, False),
    ],
)
def test_a_rate_above_what_the_config_that_is_listed_gives(
    tmp_path: Path, config: dict[str, str], factor: int, found: bool
) -> None:
    """MaxText lists its config, defaults included, and without total_weights a rate ten times too high was GO."""
    lines = [f"Config param {name}: {value}\n" for name, value in {"vocab_size": "32000", **config}.items()]
    lines += [
        f"completed step: {n}, seconds: 0.050, TFLOP/s/device: 0.1, Tokens/s/device: {factor * 10240 + n % 7:.3f}, "
        f"loss: {10.373 + 0.004 * (7 * n % 5 - 2):.3f}\n"
        for n in range(60)
    ]
    write_logs(tmp_path, stdout="".join(lines))
    maxtext = next(one.pattern for one in RECIPES if one.name == "MaxText")
    shown = of_run(tmp_path, steps=60, metrics=TrainerMetrics(stdout=maxtext), nproc=1)
    assert ("unit-mismatch" in shown) == found
    assert shown["random-data-floor"].confidence == "high", "ln 32000 = 10.373 is that of the vocabulary in the config"
    assert f"lists {len(config) + 1} setting" in shown["config-unknown"].message


def dated(
    seconds: Callable[[int], float], printed: float, *, every: int = 1, rows: int = 60, unit: float = 1e-3
) -> str:
    """Lines with dates, whole to `unit` seconds, of steps that take `seconds(step)`, and a printed time per step."""
    chance, now, lines = random.Random(5), 1_772_000_000.0, []
    for step in range(1, every * rows + 1):
        now += seconds(step)
        if step % every == 0:
            at = datetime.fromtimestamp(now // unit * unit, timezone.utc)
            loss = 4 * step**-0.2 + chance.gauss(0, 0.03)
            lines.append(f"{at:%Y-%m-%d %H:%M:%S.%f} step {step} loss {loss:.4f} step_time {printed:.4f}s\n")
    return "".join(lines)


@pytest.mark.parametrize(
    ("log", "severity"),
    [
        (dated(lambda _: 0.5, 0.5), None),
        (dated(lambda _: 0.5, 0.05), "veto"),
        (dated(lambda _: 0.5, 0.05, every=20), "veto"),
        (dated(lambda _: 0.3, 0.03, unit=1.0, rows=400), "veto"),
        (dated(lambda _: 0.3, 0.3, unit=1.0, rows=400), None),
        (dated(lambda _: 0.5, 0.3), "warning"),
        (dated(lambda step: 0.5 if step < 120 else 1.0, 0.5, rows=240), "warning"),
        (dated(lambda step: 0.5 + 30 * (step % 20 == 0), 0.5), None),
        (dated(lambda step: 0.5 + 30 * (step % 20 == 0), 0.5, every=20), "warning"),
    ],
    ids=[
        "as it is",
        "ten times too small",
        "ten times too small, every 20 steps",
        "in whole seconds, ten times too small",
        "in whole seconds",
        "without its data",
        "while steps took twice as long",
        "without its evaluations",
        "with an evaluation before each line",
    ],
)
def test_a_printed_time_is_held_against_the_dates_of_its_lines(tmp_path: Path, log: str, severity: str | None) -> None:
    """Without the validator's clock nothing was said of a time ten times too small. A pause in each row may be one."""
    (tmp_path / "train.log").write_text(log)
    found = of_folder(tmp_path / "train.log").get("unit-mismatch")
    assert (found and found.severity) == severity
    assert found is None or "by the log's own clock" in found.message


@pytest.mark.parametrize(
    ("rate", "given", "severity"),
    [
        (24.0, ["--batch-size", "48"], None),
        (240.0, ["--batch-size", "48"], "veto"),
        (240.0, ["--batch-size", "48", "--gradient-accumulation-steps", "10"], None),
        (40.0, ["--batch-size", "48"], None),  # a timer that leaves something out, or something else that is counted
        (240.0, [], None),
    ],
)
def test_a_rate_of_samples_is_held_against_the_batch_at_the_pace_of_its_rows(
    tmp_path: Path, rate: float, given: list[str], severity: str | None
) -> None:
    """Samples per second that were ten times too high were GO, where the batch is in the command."""
    rows = (f"{i},{3 - i / 100},{rate + i % 3 / 10}" for i in range(1, 121))
    folder = tmp_path / "r"
    folder.mkdir()
    (folder / "training.csv").write_text("step,loss,samples_per_s\n" + "\n".join(rows) + "\n")
    write_arrivals(folder, [2.0] * 120)
    said = of_run(
        folder, steps=120, nproc=1, argv=("python", "t.py", *given), metrics=TrainerMetrics(csv="training.csv")
    )
    finding = said.get("unit-mismatch")
    assert (finding and finding.severity) == severity
    assert finding is None or "480 samples a step, and batch-size is 48" in finding.message

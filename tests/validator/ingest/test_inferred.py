"""Patterns from numbers alone: which number is the step, which the loss, and when neither is known."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from validator.ingest import collect_dir
from validator.ingest.inferred import inferred_pattern
from validator.model.pattern import line_pattern


def fall(i: int) -> float:
    return 3 / (i + 1) ** 0.5


@pytest.mark.parametrize(
    "form",
    [
        lambda i: f"[{5 * i}] ce {fall(i):.3f} | 412.{i % 3} | 0.0003",
        lambda i: f"2026-01-01 10:00:{i:02} INFO it {i} obj {fall(i):.3e} eta {100 - i}.5s",
        lambda i: f"({i}, {fall(i):.4f})",
        lambda i: f"{i} {fall(i):.4f}",
        lambda i: f"{i}%|{'█' * i}{' ' * (20 - i)}| {i}/100 [00:{i:02}<01:{59 - i}, 9.{i}it/s, loss={fall(i):.3}]",
        lambda i: f"acc 0.{50 + i} n={i:04} lr 0.{90 - i} err {fall(i):.4f}",
    ],
)
def test_step_and_loss_are_found(form) -> None:
    lines = [form(i) for i in range(12)]
    pattern = inferred_pattern(["starting", *lines, "saved"])
    assert pattern is not None
    read = [line_pattern(pattern).read(line) for line in lines]
    assert all(one is not None and one.odd is None for one in read), pattern
    steps = [one.step for one in read]
    assert len({b - a for a, b in pairwise(steps)}) == 1
    assert [one.values["loss"] for one in read] == [pytest.approx(fall(i), rel=2e-2) for i in range(12)]


def test_without_a_step_each_line_that_names_a_loss_is_one() -> None:
    lines = [f"train loss: {fall(i):.3f} lr 0.1" for i in range(12)]
    assert inferred_pattern(lines) == r"{row}train\s+loss:\s*{loss}"


def test_a_loss_of_the_validation_in_a_line_of_its_own_is_no_part_of_the_pattern(tmp_path: Path) -> None:
    """It is read by its words in every format (`evaluation_lines`)."""
    lines = []
    for i in range(12):
        lines += [f"Epoch {i + 1}/12", f"Training loss: {fall(i):.3f}", f"Validation loss: {fall(i) + 0.1:.3f}"]
    assert inferred_pattern(lines) == r"{row}Training\s+loss:\s*{loss}"
    (tmp_path / "train.log").write_text("\n".join(lines) + "\n")
    values = collect_dir(tmp_path).series["val_loss"].values
    assert values.tolist() == [pytest.approx(fall(i) + 0.1, abs=1e-3) for i in range(12)]


@pytest.mark.parametrize(
    ("unit", "group"),
    [("images/sec", "samples_per_s"), ("tok/s", "toks_per_s"), ("samples/s/gpu", None), ("widgets/s", None)],
)
def test_a_rate_is_known_by_its_unit(unit: str, group: str | None) -> None:
    lines = [f"Epoch 1 [{10 * i}/900] loss: {fall(i):.3f} throughput: {500 + i % 3} {unit}" for i in range(1, 13)]
    pattern = inferred_pattern(lines)
    assert pattern is not None
    assert pattern.endswith("{loss}" if group is None else f"{{{group}}}")


def test_a_word_that_names_another_measure_is_no_loss() -> None:
    """`Acc is` and `current lr is` were taken for the loss, for they fell; lines of an evaluation for a training."""
    rows = [f"{i}/900 in 0 epoch finished at 0:0{i % 9}, Loss is {fall(i):.4f} Acc is 0.{90 - i}" for i in range(12)]
    assert str(inferred_pattern(rows)).endswith(r"Loss\s+is\s+{loss}")
    assert inferred_pattern([f"Starting epoch {i} current lr is {0.01 / (i + 1):.4f}" for i in range(12)]) is None
    test = [f"Test: [{10 * i}/900] loss: {fall(i):.4f} acc1: {50 + i}.0" for i in range(12)]
    assert inferred_pattern(test) is None


def test_lines_in_chinese_are_read_by_their_words() -> None:
    lines = [f"第{i}轮 训练损失: {fall(i):.3f} 验证损失: {fall(i) + 0.1:.3f} 准确率: 0.{90 - i}" for i in range(1, 13)]
    assert inferred_pattern(lines) == r"第{step}轮\s+训练损失:\s*{loss}\s+验证损失:\s*{val_loss}"


def test_a_progress_bar_gives_the_running_time() -> None:
    lines = [f"{i}%|{'#' * i}| {i}/100 [00:{i:02}<01:{59 - i}, 1.0it/s, loss={fall(i):.3f}]" for i in range(12)]
    pattern = inferred_pattern(lines)
    assert pattern is not None
    found = line_pattern(pattern).read(lines[7])
    assert found is not None
    assert found.values["elapsed_s"] == 7.0


def test_a_later_nan_is_still_a_loss() -> None:
    pattern = inferred_pattern([f"[{i}] ce {fall(i):.3f}" for i in range(12)])
    assert pattern is not None
    found = line_pattern(pattern).read("[13] ce nan")
    assert found is not None
    assert found.step == 13


@pytest.mark.parametrize(
    "form",
    [
        lambda i: f"processed {i} files, {3 - i / 7:.3} s left",
        lambda i: f"step {i} done",
        lambda i: f"val loss {fall(i):.3f}",
        lambda i: f"packet loss {3 + i / 10:.3f}",
        lambda i: f"{i} accuracy {0.5 + i / 100:.2f}",
        lambda i: f"{i} explained_variance {fall(i):.3f}",
        lambda i: f"{i} ep_rew_mean {fall(i):.3f} fps {900 - i}.5 r2 {fall(i):.3f} approx_kl {fall(i):.4f}",
        lambda i: f"|  explained_variance | {fall(i):.3f} |",
        lambda i: f"| trace | {fall(i):.3f} |",
    ],
)
def test_other_numbers_are_no_training(form) -> None:
    assert inferred_pattern([form(i) for i in range(12)]) is None


@pytest.mark.parametrize("name", ["loss", "train/loss", "train_loss", "Loss"])
@pytest.mark.parametrize(
    "values", [[3 + i / 10 for i in range(12)], [float("nan")] * 12, [3 - i / 10 for i in range(12)]]
)
def test_a_row_that_is_called_loss_comes_before_any_number_that_falls(name: str, values: list[float]) -> None:
    """`explained_variance`, which fell by chance, had been the loss: its last letters are `ce`."""
    block = "| explained_variance | {0:.3} |\n| entropy_loss | {0:.3} |\n|   {1}    | {2:.3} |\n| value_loss | {0:.3} |"
    lines = [line for i, x in enumerate(values) for line in block.format(fall(i), name, x).splitlines()]
    pattern = inferred_pattern(lines)
    assert pattern is not None
    found = [line_pattern(pattern).read(line) for line in lines]
    assert [str(one.values["loss"]) for one in found if one] == [f"{float(f'{x:.3}')}" for x in values]


def test_of_several_losses_beside_a_step_its_own_name_counts() -> None:
    lines = [f"n={i} value_loss {fall(i):.3f} loss {fall(i) + 1:.3f} kl {fall(i):.4f}" for i in range(12)]
    pattern = inferred_pattern(lines)
    assert pattern is not None
    found = line_pattern(pattern).read(lines[3])
    assert found is not None
    assert found.values["loss"] == pytest.approx(2.5)


def test_a_loss_of_the_validation_in_the_same_line_is_read() -> None:
    """It rose by half while that of the training fell, and nothing said so."""
    lines = [f"[{i}]\ttrain-logloss:{fall(i):.5f}\tvalid-logloss:{0.6 + i / 50:.5f}" for i in range(12)]
    pattern = inferred_pattern(lines)
    assert pattern is not None
    found = line_pattern(pattern).read(lines[10])
    assert found is not None
    assert found.values["val_loss"] == pytest.approx(0.8)
    now_and_then = [line if i % 2 else line.split("\tvalid")[0] for i, line in enumerate(lines)]
    assert inferred_pattern(now_and_then) == r"\[{step}\]\s+train\-logloss:{loss}"


def test_the_pace_of_a_progress_bar_is_no_loss() -> None:
    pace = [9.1, 8.0, 7.2, 6.5, 6.1, 5.8, 5.6, 5.5]
    lines = [f"episode {i}: 10%|# | {i}/80 [00:{10 + i}<01:00, {x:.2f}s/it]" for i, x in enumerate(pace, 1)]
    assert inferred_pattern(lines) is None


@pytest.mark.parametrize(
    "form",
    [
        *("step {} ce {}", "step {} cost {}", "step {}: L={}", "{}: {}", "train | {} | {} | 0.001", "i={} l={}"),
        *("step {} loss tensor({}, grad_fn=<NllLossBackward0>)", "optimizer step {} | loss/train {}"),
        *("step {} Loss (train): {}", "{},{},0.001", "step {} cross_entropy={}", "train_step {} loss_train {}"),
    ],
)
@pytest.mark.parametrize("lost", [False, True], ids=["finite", "NaN at last"])
def test_what_fell_as_a_loss_does_is_one_also_where_it_becomes_nan(tmp_path: Path, form: str, lost: bool) -> None:
    losses = [round(2.0 + 2.5 * 0.97**i, 4) if i < 60 or not lost else math.nan for i in range(100)]
    text = "".join(form.format(i + 1, loss) + "\n" for i, loss in enumerate(losses))
    (tmp_path / "train.log").write_text(text)
    assert np.array_equal(collect_dir(tmp_path).series["loss"].values, losses, equal_nan=True)


def test_a_number_that_is_nan_now_and_then_is_none(tmp_path: Path) -> None:
    lines = (f"{i}: {'nan' if i % 3 == 0 else round(2 + 2.5 * 0.97**i, 4)}\n" for i in range(1, 100))
    (tmp_path / "train.log").write_text("".join(lines))
    assert "loss" not in collect_dir(tmp_path).series


def test_a_date_in_front_of_lines_of_no_known_format_times_them(tmp_path: Path) -> None:
    lines = [
        f"2024-10-26 01:0{i // 6}:{i % 6}8.956 | INFO | main:train:58 - [0.{30 + i}%] index={64 * i} crit={fall(i):.4f}"
        for i in range(1, 31)
    ]
    (tmp_path / "train.log").write_text("\n".join(lines) + "\n")
    assert collect_dir(tmp_path).series["step_time_s"].values[3:] == pytest.approx(10 / 64, rel=1e-6)


def test_of_a_row_of_nameless_numbers_none_is_taken_for_the_loss() -> None:
    """The learning rate was, and a weight: they fall as well."""
    rows = [
        f"{100 * i:8d} {fall(i):.3e} {fall(i) / 7:.3e} {fall(i) / 9:.3e} {1e-3 * 0.99**i:.1e}" for i in range(1, 40)
    ]
    assert inferred_pattern(rows) is None


def test_a_header_that_is_a_comment_names_the_columns(tmp_path: Path) -> None:
    rows = [f"{1000 * i:7d} {fall(i):.3e} {fall(i) / 7:.3e} {1e-3 * 0.99**i:.1e}" for i in range(1, 40)]
    (tmp_path / "lcurve.out").write_text("\n".join(["#  step rmse_trn rmse_e_trn lr", *rows]) + "\n")
    loss = collect_dir(tmp_path).series["loss"]
    assert loss.values.tolist() == pytest.approx([fall(i) for i in range(1, 40)], rel=1e-3)


def test_blanks_that_fill_a_number_up_are_gone_where_it_has_more_digits(tmp_path: Path) -> None:
    """`[ 9999/11000]` was read and `[10000/11000]` was not: a healthy trainer was NO-GO from there on."""
    pattern = inferred_pattern(f"[{i:5d}/11000] err={fall(i):.4f}" for i in range(1, 60))
    assert pattern is not None
    printed = line_pattern(pattern).read("[10000/11000] err=0.0123")
    assert printed is not None
    assert (printed.step, printed.values["loss"]) == (10000, 0.0123)

"""A loss that is shown in parts only: parts that are lowered together add up, and those that are opposed do not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from validator.ingest import collect_dir
from validator.model.loss_parts import is_opposed, parts_in, summed_parts
from validator.model.result import Result
from validator.pipeline.inspect import inspect


def fall(i: int) -> float:
    return round(3 / (1 + i / 40) ** 0.5, 4)


def written(folder: Path, line: Callable[[int], str], rows: int = 200, *, name: str = "train.log") -> Result:
    (folder / name).write_text("".join(f"{line(i)}\n" for i in range(1, rows + 1)))
    return collect_dir(folder)


def found_in(folder: Path) -> set[tuple[str, str]]:
    found = inspect(folder, warmup_steps=20).findings
    return {(one.code, one.severity) for one in found if one.severity != "info"}


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("step 5 | loss_cls 0.61 | loss_box: 1e-3 | lr 0.1", {"loss_cls": 0.61, "loss_box": 1e-3}),
        ("[0/5][3/50] Loss_D: 1.7 Loss_G: nan D(x): 0.6", {"loss_d": 1.7, "loss_g": math.nan}),
        ("0 [D loss: 0.7, acc.: 50.00%] [G loss: 0.9]", {"d_loss": 0.7, "g_loss": 0.9}),
        ("step 3 lossD=3.2 lossG=-1.2", {"loss_d": 3.2, "loss_g": -1.2}),
        ("iter 4: recon 100.2 kl 5.1", {"recon": 100.2, "kl": 5.1}),
        ('{"step": 3, "loss_g": 1.9, "loss_d": 0.6}', {"loss_g": 1.9, "loss_d": 0.6}),
        ("step 3 loss (cls): 2.1, loss (box): 3.1", {"loss_cls": 2.1, "loss_box": 3.1}),
        ("step 3 loss_scale 65536 loss 2.3 avg_loss 2.2 val_loss 2.5 best loss 2.1 loss_weight 0.3", {}),
    ],
)
def test_a_part_is_known_by_the_word_beside_loss(line: str, parts: dict[str, float]) -> None:
    assert parts_in(line) == pytest.approx(parts, nan_ok=True)


def test_parts_of_one_objective_are_summed_and_opposed_ones_are_not() -> None:
    assert summed_parts(["cls_loss", "lr", "box_loss"]) == ("cls_loss", "box_loss")
    assert summed_parts(["train/box_loss", "train/cls_loss", "val/box_loss", "val/cls_loss"], of="val") == (
        "val/box_loss",
        "val/cls_loss",
    )
    assert summed_parts(["d_loss", "g_loss"]) == summed_parts(["policy_loss", "value_loss"]) == ()
    assert summed_parts(["cls_loss"]) == ()
    assert is_opposed("loss_d")
    assert not is_opposed("loss_cls")


@pytest.mark.parametrize(
    "line",
    [
        lambda i: f"step {i} | loss_span {fall(i)} | loss_cls {fall(i) / 2:.5f} | 20.1 ms/step",
        lambda i: f"iter {i}: recon {fall(i)} kl {fall(i) / 2:.5f}",
        lambda i: f"epoch 0 [{i}/200] cls_loss={fall(i)}, box_loss={fall(i) / 2:.5f}",
    ],
)
def test_the_loss_is_the_sum_where_no_line_names_the_whole(tmp_path: Path, line: Callable[[int], str]) -> None:
    """The first part alone was read, and one that blew up had no word."""
    loss = written(tmp_path, line).series["loss"]
    assert loss.values.tolist() == pytest.approx([1.5 * fall(i) for i in range(1, 201)], rel=1e-4)


@pytest.mark.parametrize("line", ["loss: {x}, cls loss: {x}, box loss: 0.0", "cls loss {x} | box loss 0.0 | loss {x}"])
def test_a_whole_loss_beside_its_parts_is_the_loss_also_where_it_equals_one(tmp_path: Path, line: str) -> None:
    for name, last in (("nan", "nan"), ("equal", "0.5")):
        (tmp_path / name).mkdir()
        shown = written(
            tmp_path / name, lambda i, last=last: f"step {i} " + line.format(x=fall(i) if i < 150 else last)
        )
        values = shown.series["loss"].values
        assert len(values) == 200
        assert math.isnan(values[-1]) == (name == "nan")


def test_a_whole_loss_behind_its_parts_is_the_loss(tmp_path: Path) -> None:
    line = "step {} cls loss {} | box loss 0.1 | loss {:.4f}"
    values = written(tmp_path, lambda i: line.format(i, fall(i), fall(i) + 0.1)).series["loss"].values
    assert values.tolist() == [pytest.approx(fall(i) + 0.1, abs=1e-4) for i in range(1, 201)]


def test_a_part_that_blows_up_is_a_diverging_loss(tmp_path: Path) -> None:
    written(tmp_path, lambda i: f"step {i} loss_a {fall(i)} loss_b {fall(i) * 1.03 ** max(0, i - 100):.5f}")
    assert ("diverging", "veto") in found_in(tmp_path)


def test_a_table_of_parts_has_their_sum(tmp_path: Path) -> None:
    lines = ["step,recon_loss,kl_loss", *(f"{i},{fall(i)},{fall(i) / 2:.5f}" for i in range(1, 201))]
    (tmp_path / "training.csv").write_text("\n".join(lines) + "\n")
    values = collect_dir(tmp_path).series["loss"].values
    assert values.tolist() == pytest.approx([1.5 * fall(i) for i in range(1, 201)], rel=1e-4)


def test_one_side_that_wins_at_once_is_found(tmp_path: Path) -> None:
    """From 1.4 to 0.0001, and from 0.8 to 10, was GO."""
    rows = (f"{i},{1.4 * math.exp(-i / 15) + 1e-4:.6f},{10 - 9.2 * math.exp(-i / 40):.4f}" for i in range(200))
    (tmp_path / "losses.csv").write_text("\n".join(["iteration,loss_d,loss_g", *rows]) + "\n")
    assert found_in(tmp_path) == {("diverging", "warning")}


def test_keys_of_a_logger_that_are_parts_have_their_sum(tmp_path: Path) -> None:
    rows = [{"step": i, "loss/cls": fall(i), "loss/box": fall(i) / 2} for i in range(1, 201)]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    values = collect_dir(tmp_path).series["loss"].values
    assert values.tolist() == pytest.approx([1.5 * fall(i) for i in range(1, 201)], rel=1e-4)


def opposed(g_loss: Callable[[int], float]) -> Callable[[int], str]:
    return lambda i: f"[{i // 50}/4][{i % 50}/50] Loss_D: {0.6 + i % 7 / 50:.4f} Loss_G: {g_loss(i):.4f} D(x): 0.61"


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (opposed(lambda i: 1.5 + i % 5 / 10), ("loss_d", "loss_g")),
        (lambda i: f"{i} [D loss: {fall(i)}, acc.: {50 + i % 9}.00%] [G loss: 1.{i % 5}]", ("d_loss", "g_loss")),
        (
            lambda i: f"update {i} policy_loss -0.0{i % 5} value_loss {fall(i)} entropy 1.2",
            ("policy_loss", "value_loss"),
        ),
    ],
)
def test_opposed_losses_are_series_of_their_own(
    tmp_path: Path, line: Callable[[int], str], names: tuple[str, str]
) -> None:
    """No line of such a trainer was read: nothing was measured."""
    series = written(tmp_path, line).series
    assert [len(series[name].values) for name in names] == [200, 200]
    assert "loss" not in series


@pytest.mark.parametrize(
    ("g_loss", "found"),
    [
        (lambda i: 1.5 + i % 5 / 10, set()),
        (lambda i: 6 - 4 * math.exp(-i / 20) + i % 5 / 10, set()),  # it rises early, and settles
        (lambda i: 1.5 + 0.2 * i, {("diverging", "warning")}),
        (lambda i: 10 - 9 * math.exp(-i / 10), set()),  # the other one does not vanish
        (lambda i: math.nan if i > 150 else 1.5 + i % 5 / 10, {("nonfinite-values", "veto"), ("nan-loss", "veto")}),
    ],
)
def test_one_that_runs_away_or_is_not_finite_is_found(
    tmp_path: Path, g_loss: Callable[[int], float], found: set[tuple[str, str]]
) -> None:
    written(tmp_path, opposed(g_loss))
    assert found_in(tmp_path) == found

"""Whole logs in the forms of public ones: what is read of each, where something of another kind stands beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.validator.diagnose.cases import of_folder
from validator.ingest import collect_dir
from validator.model.metrics import TrainerMetrics


def loss(i: int) -> float:
    return 3 / (i + 1) ** 0.5


def last_of(folder: Path, lines: list[str]) -> Mapping[str, tuple[int, float]]:
    """The last step and value of each series of a log."""
    log = folder / "train.log"
    log.write_text("\n".join(lines) + "\n")
    found = collect_dir(log).series
    return {name: (int(one.steps[-1]), pytest.approx(float(one.values[-1]), abs=1e-4)) for name, one in found.items()}


def test_a_log_that_is_named_is_read_and_not_the_table_beside_it(tmp_path: Path) -> None:
    """A loss of NaN had no word where a table of another run lay in the folder."""
    (tmp_path / "metrics.csv").write_text("step,loss\n" + "".join(f"{i},{loss(i)}\n" for i in range(50)))
    (tmp_path / "train.log").write_text("".join(f"step {i} | loss: nan | dt: 3.2ms\n" for i in range(1, 9)))
    assert "nan-loss" in of_folder(tmp_path / "train.log")
    assert len(collect_dir(tmp_path).series["loss"].steps) == 50, "of a folder the table is what counts"


def test_a_unit_behind_the_loss_of_nanogpt(tmp_path: Path) -> None:
    lines = [f"iter {10 * i}: loss {loss(i):.4f} BPC, time 267.36ms, mfu 8.92%" for i in range(12)]
    lines.insert(6, "step 50: train loss 1.2 BPC, val loss 1.4 BPC")
    found = last_of(tmp_path, lines)
    assert found["loss"] == (110, loss(11))
    assert found["val_loss"] == (50, 1.4)
    assert "step_time_s" in found


def test_the_record_of_an_epoch(tmp_path: Path) -> None:
    """`log.txt` of DeiT, DETR and MAE: a mean over an epoch is infinite where a loss scale skips one of its steps."""
    records = [
        {"train_lr": 1e-4, "train_loss": loss(i), "train_loss_scale": 65536.0, "train_grad_norm": 0.1 + 0.01 * (i % 5)}
        | {"test_loss": loss(i) + 0.1, "epoch": i}
        for i in range(60)
    ]
    for i in range(9, 60, 9):
        records[i]["train_grad_norm"] = float("inf")
    found = last_of(tmp_path, [json.dumps(one) for one in records])
    assert (found["loss"], found["val_loss"]) == ((59, loss(59)), (59, loss(59) + 0.1))
    assert of_folder(tmp_path / "train.log")["nonfinite-values"].severity == "warning"
    for record in records[30:]:
        record["train_grad_norm"] = float("nan")
    last_of(tmp_path, [json.dumps(one) for one in records])
    assert of_folder(tmp_path / "train.log")["nonfinite-values"].severity == "veto", "and never finite again"


def test_the_line_of_an_epoch_of_keras(tmp_path: Path) -> None:
    lines = []
    for i in range(12):
        lines += [f"Epoch {i + 1}/12", f" - 341s - loss: {loss(i):.4f} - acc: 0.9 - val_loss: {loss(i) + 0.1:.4f}"]
    assert last_of(tmp_path, lines)["val_loss"] == (12, loss(11) + 0.1)


def test_a_library_that_prints_no_loss_leaves_that_to_the_trainer(tmp_path: Path) -> None:
    lines = []
    for i in range(12):
        lines.append(
            f"[2025-08-15 08:41:{i:02},638] [INFO] [logging.py:107:log_dist] [Rank 0] step={i}, skipped=0, lr=[1e-05], "
            "mom=[(0.9, 0.999)]"
        )
        lines.append(f"[Step {i}/100] Loss: {loss(i):.4f} | Tokens/s: 92.52 | Peak Mem: 33.51")
    assert last_of(tmp_path, lines)["loss"] == (11, loss(11))


def test_a_range_of_batches_and_losses_by_the_ends_of_names(tmp_path: Path) -> None:
    lines = [
        f"2018-10-11 09:{i:02}:49,200 INFO - Epoch[5] Batch [{20 * i}-{20 * i + 20}]\tSpeed: 25.77 samples/sec\t"
        f"RPNAcc=0.99\tRPNL1BboxLoss={loss(i):.6f}"
        for i in range(12)
    ]
    found = last_of(tmp_path, lines)
    assert (found["loss"][1], found["samples_per_s"][1]) == (loss(11), 25.77)


def test_a_loss_in_a_line_that_says_that_it_is_an_evaluation(tmp_path: Path) -> None:
    lines = [f"step   {10 * i} | loss {loss(i):.4f} | lr 1e-4" for i in range(12)]
    lines.insert(6, "  [eval] step   50 | val_loss 1.4749")
    assert last_of(tmp_path, lines)["val_loss"] == (50, 1.4749)


def test_losses_of_nan_that_most_lines_name_count_beside_a_few_that_are_read(tmp_path: Path) -> None:
    lines = [f"\tmean_loss: nan {i}" for i in range(30)] + [
        f"\tIter {i}00 Done. | loss: 1.48 | lr: 0.01" for i in (0, 1)
    ]
    last_of(tmp_path, lines)
    assert "nan-loss" in of_folder(tmp_path / "train.log")


def test_a_limit_of_watched_files_is_no_full_disk(tmp_path: Path) -> None:
    lines = [f"step {i} | loss {loss(i):.4f}" for i in range(12)]
    last_of(tmp_path, [*lines, "UCX  ERROR inotify_add_watch(/tmp) failed: No space left on device"])
    assert "disk-full" not in of_folder(tmp_path / "train.log")
    last_of(tmp_path, [*lines, "OSError: [Errno 28] No space left on device: '/out/a.pt'"])
    assert "disk-full" in of_folder(tmp_path / "train.log")


def test_of_losses_that_are_lowered_against_each_other_the_one_that_falls_counts(tmp_path: Path) -> None:
    lines = [
        f"(epoch: {1 + i // 6}, iters: {100 * (i % 6) + 100}, time: 0.092, data: 0.154) D_A: 0.508 G_A: 0.182 "
        f"cycle_A: {loss(i):.3f} idt_A: 0.142 D_B: 0.217"
        for i in range(12)
    ]
    found = last_of(tmp_path, lines)
    assert found["loss"][1] == pytest.approx(loss(11), abs=1e-3)
    assert found["step_time_s"][1] == 0.092
    assert found["dt_fetch_s"][1] == 0.154


def test_a_loss_by_the_name_of_its_function(tmp_path: Path) -> None:
    lines = [f"step {i} | mse {loss(i):.4f} | grad norm 0.146 | 17.6 ms/step" for i in range(12)]
    assert last_of(tmp_path, lines)["loss"] == (11, loss(11))
    both = [f"step {i} | mse 9.0 | loss {loss(i):.4f} | val mse 0.3" for i in range(12)]
    assert last_of(tmp_path, both)["loss"] == (11, loss(11))


def test_a_reward_by_its_name_judges_an_agent(tmp_path: Path) -> None:
    """Its policy's loss was read, said not to fall, and a reward that fell again was not seen."""
    lines = [
        f"update {i} mean_reward {0.2 + i / 100:.3f} policy_loss {0.1 - i % 3 / 10:.4f} fps 3980" for i in range(60)
    ]
    assert last_of(tmp_path, lines)["mean_reward"] == (59, 0.79)
    assert "zero-grad" not in of_folder(tmp_path / "train.log")


def test_the_record_of_a_whole_run_is_no_row(tmp_path: Path) -> None:
    """The last one of a `trainer_state.json` has a mean of the whole run under `train_loss`."""
    history = [{"step": 10 * i, "epoch": i / 10, "loss": loss(i)} for i in range(1, 13)]
    history.append({"step": 122, "epoch": 1.2, "total_flos": 1e15, "train_loss": 9.0})
    (tmp_path / "trainer_state.json").write_text(json.dumps({"global_step": 122, "log_history": history}))
    for metrics in (None, TrainerMetrics(reader=("hf-trainer",))):
        read = collect_dir(tmp_path, metrics=metrics).series["loss"]
        assert (len(read.steps), int(read.steps[-1])) == (12, 120)


LONG = "a_network_with_gates_for_tables_of_many_kinds_and_columns.models.components"


@pytest.mark.parametrize(
    "lines",
    [
        "Epoch [{i}/60], Train Loss: {x}, Train L1 Loss: 0.6\n"
        "Epoch [{i}/60], Validation Loss: {v}, Validation L1: 0.6, Smoothed Validation Loss: 10.6",
        "[NEW BEST] Epoch #{i}: train_loss={x}, val_loss={v}, time=0.31s, remaining=1.24min",
        "Epoch {i} - avg_train_loss: {x}  avg_val_loss: {v}  time: 20s",
        f"2026-02-13 15:00:{{i:02}},467 - {LONG} - INFO - Epoch {{i}}/60: train_loss={{x}}, val_loss={{v}}",
        "Epoch {i}/60\n16s - loss: {x} - acc: 0.3548 - val_loss: {v} - val_acc: 0.5060",
        "2021-03-21 02:50:{i:02},309 - Model - INFO - Training mean loss: {x}\n"
        "2021-03-21 02:50:{i:02},933 - Model - INFO - Eval mean loss: {v}",
        "======== Epoch {i} / 60 ========\n Average training loss: {x}\n"
        "Running Validation...\n Average validation loss: {v}",
        "Epoch {i}/60   1/1 [####................]  0.0s loss={x}\n    on unseen examples: loss={v} accuracy=0.739",
        "epoch:[ {i:3}/60 ] train step:{i}00   loss: {x} lr: 0.01\n"
        "[12/25 14:25:57] epoch:[ {i:3}/60 ] val step:0    loss: 9.27 top1: 0.1\n"
        "[12/25 14:26:56] END epoch:{i:<3}  val loss_avg: {v} top1_avg: 0.1",
        "Train Epoch {i}: 100%|██████████| 30/30 [00:04<00:00,  7.23it/s, Loss={x}, Dice=0.1]\n"
        "Validate: 100%|██████████| 8/8 [00:00<00:00, 19.12it/s, Val Loss={v}, Val Dice=0.0]",
        "Epoch {i}, Step {i}0: Reconstruction Loss=1.4, KL Loss=17.2, Total Loss={x}\nTest set: loss: {v}",
        "Epoch {i}[16/5011]: loss:{x}, lr:0.00000, batch time:0.4156, data time:1.6631\nValidation | loss {v}",
    ],
)
def test_epochs_with_the_loss_of_their_validation(tmp_path: Path, lines: str) -> None:
    log = tmp_path / "train.log"
    truth = [(round(loss(i), 4), round(loss(i) + 0.25, 4)) for i in range(1, 60)]
    log.write_text("".join(lines.format(i=i, x=x, v=v) + "\n" for i, (x, v) in enumerate(truth, 1)))
    found = collect_dir(log).series
    assert found["loss"].values.tolist() == [x for x, _ in truth]
    assert found["val_loss"].values.tolist() == [v for _, v in truth]


def test_measures_beside_a_loss_are_no_loss(tmp_path: Path) -> None:
    lines = [f"Epoch {i}/2000 train_eps_loss={loss(i):.6f} val_mae=371.8 val_rmse=595.3 lr=0.001" for i in range(50)]
    assert "val_loss" not in last_of(tmp_path, lines)
    lines = [
        f"Epoch {i}: Train {loss(i):.4f}/39% (skipped, last best_loss={'inf' if i < 9 else 0.3})" for i in range(50)
    ]
    assert last_of(tmp_path, lines)["loss"] == (49, loss(49))


def test_trainings_one_behind_the_other_are_told_apart_by_the_headings_of_epochs(tmp_path: Path) -> None:
    lines = []
    for name, epochs in (("SqueezeNet", 30), ("AlexNet", 50), ("ResNet", 20)):
        for i in range(epochs):
            lines += [f"{name} - Epoch {i}/{epochs - 1}", "----------", f"train Loss: {loss(i):.4f} Acc: 0.3"]
            lines += [f"test Loss: {loss(i) + 0.2:.4f} Acc: 0.2"]
    found = last_of(tmp_path, lines)
    assert found["loss"] == (50, loss(49))
    assert found["val_loss"] == (50, loss(49) + 0.2)
    assert "diverging" not in of_folder(tmp_path / "train.log")


def test_beside_a_bar_without_a_loss_lines_that_name_one_count(tmp_path: Path) -> None:
    """The bar was read, and 30,000 losses were not."""
    lines = []
    for i in range(1, 41):
        lines += [f"{100 * k // 6:3d}%|##        | {k}/6 [00:00<00:01,  8.11it/s]" for k in range(7)]
        lines += [f"Loss:  {loss(i):.4f}"]
    assert last_of(tmp_path, lines)["loss"] == (40, pytest.approx(loss(40), abs=1e-4))


def test_the_bar_of_pytorch_cifar_counts_batches_and_its_step_is_a_time(tmp_path: Path) -> None:
    """`Step: 455ms` was no number of a step, and the rate of the widely copied bar was not read."""

    def bar(i: int, of: int, value: float) -> str:
        total = f"{i // 4}s{250 * (i % 4)}ms" if i >= 4 else f"{250 * i}ms"
        return (
            f" [{'=' * (i - 1)}>{'.' * (of - i)}]  Step: 3s455ms | Tot: {total} | Loss: {value:.3f} | Acc: 9.4% (1/9)"
            + "\b" * 40
            + f" {i}/{of} "
        )

    lines = []
    for epoch in range(3):
        lines += ["", f"Epoch: {epoch}", "\r".join(bar(i, 25, loss(25 * epoch + i)) for i in range(1, 26))]
        lines += ["\r".join(bar(i, 5, 9.0) for i in range(1, 6)), "Saving.."]
    found = last_of(tmp_path, lines)
    assert found["loss"] == (75, pytest.approx(loss(75), abs=1e-3))
    assert found["step_time_s"][1] == pytest.approx(0.25)


def test_losses_named_before_what_they_are_of(tmp_path: Path) -> None:
    lines = [
        f"Epoch: {i + 1:04d} loss_train: {loss(i):.4f} acc_train: 0.2 loss_val: {loss(i) + 1:.4f} time: 0.2s"
        for i in range(40)
    ]
    found = last_of(tmp_path, lines)
    assert found == {"loss": (40, loss(39)), "val_loss": (40, loss(39) + 1)}

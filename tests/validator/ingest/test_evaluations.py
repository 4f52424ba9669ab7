"""The loss of a validation on a line of its own, in words of the trainer's, between steps of any format."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from validator.ingest import collect_dir
from validator.model.evaluation_lines import evaluation_in
from validator.model.result import Result
from validator.model.runbook import TrainerMetrics

N_STEPS, EVERY = 120, 10

NAMED = (
    "Valid Summary | Loss={} | Acc=0.51",
    "epoch 3 v_loss: {}",
    "[eval] vloss {}",
    "Validation: loss = {}, acc = 0.55",
    "Validation - Loss: {}",
    "Eval | epoch 3 | loss {} | ppl 9.11",
    "Test set: Average loss: {}, Accuracy: 51/100 (51%)",
    "Loss on validation set: {}",
    "Validation set loss: {}",
    "held-out loss: {}",
    "val nll {}",
    "val_ce={}",
    "Evaluation results: loss {}",
    "avg_val_loss: {}",
    "loss/val {}",
    "Loss (val): {}",
    "2026-11-02 10:31:11,123 - INFO - Valid: loss={} ppl=9.11",
    " * Val Loss {} Acc@1 51.2",
    "{{'eval': {{'loss': {}}}, 'step': 30}}",
    "dev: loss {} wer 11.2",
    "验证损失: {}",
    "eval at step 30: loss {}",
    "step 30 | eval loss {}",
    "step 30 eval: loss {}",
    "Eval loss (step 30): {}",
    "Validating... loss: {}",
    "val loss: tensor({}, device='cuda:0')",
    "Epoch 3: mean dev cross-entropy = {}",
)

UNNAMED = (
    "Epoch 00012: val_loss improved from 2.31 to 2.20, saving model to w.h5",
    "val_loss did not improve from 2.20",
    "Best validation loss so far 2.31 at step 300",
    "best_val_loss=2.31 patience 3/5",
    "args: val_loss_weight=0.5 test_loss=3",
    "Namespace(eval_loss=0.5, lr=0.1)",
    "interval_loss: 2.31",
    "evaluate every 100 steps, loss fn: mse",
    "tests/test_loss.py:30 loss 2.3",
    "update 30 v_loss 0.31 policy 0.2 entropy 0.1",
    "validation:  50%|##   | 15/30 [00:03<00:00, loss=2.31]",
    "eval train loss 2.31",
    "Valid loss: 95%",
    "Validation took 2.31 s",
    "val: 0.93",
)

STEPS: dict[str, Callable[[int, float], str]] = {
    "step": lambda i, x: f"step {i} loss {x} time 0.21s",
    "a line a step": lambda i, x: f"loss: {x}",
    "a batch of an epoch": lambda i, x: f"Epoch 1 Batch {i}/240 - loss: {x}",
    "in brackets": lambda i, x: f"[1/2][{i}/240] Loss: {x}",
    "no known words": lambda i, x: f"#{i} obj {x} |g| 0.31",
    "dictionary": lambda i, x: f"{{'loss': {x}, 'learning_rate': 1e-4, 'epoch': {i / 240:.2f}}}",
    "record": lambda i, x: json.dumps({"step": i, "loss": x}),
    "nanoGPT": lambda i, x: f"iter {i}: loss {x}, time 20.11ms, mfu 12.00%",
    "logger": lambda i, x: f"2026-11-02 10:{i // 60:02d}:{i % 60:02d},100 INFO train: step={i} loss={x}",
}


def train(i: int) -> float:
    return round(2.0 + 2.5 * math.exp(-i / 40) + 0.03 * math.sin(7.1 * i), 4)


def val(i: int) -> float:
    return round(train(i) + 0.31, 4)


def written(folder: Path, step: Callable[[int, float], str], *evaluation: str, last: str | None = None) -> Path:
    lines = []
    for i in range(1, N_STEPS + 1):
        lines.append(step(i, train(i)))
        if i % EVERY == 0:
            shown = last if last and i == N_STEPS else val(i)
            lines += [
                form.format(shown).replace("step 30", f"step {i}").replace(": 30}", f": {i}}}") for form in evaluation
            ]
    path = folder / "train.log"
    path.write_text("\n".join(lines) + "\n")
    return path


def read(folder: Path, pattern: str | None = None) -> Result:
    return collect_dir(folder, metrics=TrainerMetrics(stdout=pattern) if pattern else None)


@pytest.mark.parametrize("form", NAMED)
def test_a_line_that_names_the_loss_of_a_validation_is_one(form: str) -> None:
    for shown, loss in (("2.3121", 2.3121), ("1e-03", 1e-3), ("inf", math.inf)):
        found = evaluation_in(form.format(shown))
        assert found is not None
        assert found.loss == loss


@pytest.mark.parametrize("line", UNNAMED)
def test_settings_the_best_one_so_far_and_bars_are_none(line: str) -> None:
    assert evaluation_in(line) is None


@pytest.mark.parametrize("step", STEPS)
def test_each_belongs_to_the_step_before_and_is_no_step_of_the_training(tmp_path: Path, step: str) -> None:
    for form in NAMED[list(STEPS).index(step) % 3 :: 3]:
        written(tmp_path, STEPS[step], form)
        series = read(tmp_path).series
        assert series["loss"].values.tolist() == [train(i) for i in range(1, N_STEPS + 1)], form
        assert series["val_loss"].steps.tolist() == list(range(EVERY, N_STEPS + 1, EVERY)), form
        assert series["val_loss"].values.tolist() == [val(i) for i in range(EVERY, N_STEPS + 1, EVERY)], form


def test_one_that_is_nan_is_read_as_such(tmp_path: Path) -> None:
    written(tmp_path, STEPS["step"], "Validation: loss = {}, acc = 0.55", last="nan")
    values = read(tmp_path).series["val_loss"].values
    assert np.isnan(values[-1])
    assert np.isfinite(values[:-1]).all()


def test_of_two_kinds_the_validation_counts_and_not_the_test(tmp_path: Path) -> None:
    written(tmp_path, STEPS["step"], "test loss: 9.{}", "Validation: loss = {}")
    assert read(tmp_path).series["val_loss"].values[0] == val(EVERY)


def test_batches_of_an_evaluation_are_no_validation_unless_they_print_the_mean_so_far(tmp_path: Path) -> None:
    written(tmp_path, STEPS["step"], *(f"Eval [{k}/4] Loss {{}}{k}" for k in range(4)))
    assert "val_loss" not in read(tmp_path).series
    written(tmp_path, STEPS["step"], *(f"Eval [{k}/4] Loss 9.9 ( {{}}{k})" for k in range(4)))
    assert read(tmp_path).series["val_loss"].values[0] == pytest.approx(val(EVERY), abs=1e-3)


def test_what_a_given_pattern_takes_for_a_step_stays_one(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "stdout.log"
    path.parent.mkdir()
    path.write_text("".join(f"step {10 * i} val loss {val(i)}\n" for i in range(1, 60)))
    series = read(tmp_path, "step {step} val loss {loss}").series
    assert series["loss"].values.tolist() == [val(i) for i in range(1, 60)]
    assert "val_loss" not in series


@pytest.mark.parametrize("form", ["Validation: loss = {}", "step {step} | eval loss {}", "[eval] {step}: vloss {}"])
def test_beside_a_table_of_steps_the_log_is_looked_at_for_them(tmp_path: Path, form: str) -> None:
    (tmp_path / "logs").mkdir()
    rows = "".join(f"{i},{train(i)}\n" for i in range(1, N_STEPS + 1))
    (tmp_path / "training.csv").write_text("step,loss\n" + rows)
    evaluated = range(EVERY, N_STEPS + 1, EVERY)
    losses = [val(i) for i in evaluated[:-1]] + [math.nan]
    said = (form.replace("{step}", str(i)).format(loss) for i, loss in zip(evaluated, losses, strict=True))
    (tmp_path / "logs" / "stdout.log").write_text("ready\n" + "\n".join(said) + "\ndone\n")
    found = read(tmp_path).series["val_loss"]
    assert found.steps.tolist() == list(evaluated)
    assert np.array_equal(found.values, losses, equal_nan=True)
    assert found.source.path == "logs/stdout.log"


@pytest.mark.parametrize("batches", [5, 400])
@pytest.mark.parametrize(
    "given", [None, "Epoch {epoch} \\| Iter {step} \\| (?:Train Loss {loss}|Eval Loss {val_loss})"]
)
def test_batches_of_an_evaluation_that_count_from_0_are_no_steps(
    tmp_path: Path, batches: int, given: str | None
) -> None:
    """A healthy trainer under torchrun was vetoed as two runs in one log: its step fell from 1080 to 0."""
    lines = []
    for epoch in (1, 2, 3):
        lines += [f"[RANK0] Epoch {epoch} | Iter {i} | Train Loss {4 - epoch - i / 300:.4f}" for i in range(0, 200, 10)]
        lines += [f"[RANK0] Epoch {epoch} | Iter {i} | Eval Loss {3.5 - epoch:.4f}" for i in range(0, 10 * batches, 10)]
    log = tmp_path / "train.log"
    log.write_text("\n".join(lines) + "\n")
    result = collect_dir(log, metrics=None if given is None else TrainerMetrics(stdout=given))
    assert result.series["loss"].steps.tolist() == list(range(0, 600, 10))
    assert not result.irregularities

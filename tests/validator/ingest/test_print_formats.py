"""What is read of the print formats of public trainers: all that they print, or less, but nothing that is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest

from tests.validator.ingest.forms import EPOCH, FORMS, LOSSES, RANKS, ROWS, STEPS, TOKENS, Row, bar
from validator.diagnose.rule import RunFacts
from validator.ingest import collect_dir
from validator.model.columns import contract_values
from validator.model.metrics import TrainerMetrics
from validator.model.pattern import line_pattern
from validator.model.plan import RunSpec
from validator.model.print_formats import Recipe
from validator.model.recipes import RECIPES, recognize
from validator.model.result import Result
from validator.stats.measure import measure


def read(lines: Iterable[str], folder: Path) -> Result:
    (folder / "train.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return collect_dir(folder / "train.log")


def check_pace(result: Result, name: str, truth: Callable[[float], float]) -> None:
    """The series in both halves of the run; its rows are of one or more steps."""
    found = result.series[name]
    weights = np.diff(found.steps, prepend=2 * found.steps[0] - found.steps[1])
    for half, seconds in ((found.steps <= STEPS // 2, 0.8), (found.steps > STEPS // 2 + 12, 1.6)):
        if half.any():
            mean = float(np.average(found.values[half], weights=weights[half]))
            assert mean == pytest.approx(truth(seconds), rel=0.05), name


@pytest.mark.parametrize("name", FORMS)
def test_what_a_format_prints_is_read_for_what_it_is(name: str, tmp_path: Path) -> None:
    form, line, series = FORMS[name]
    result = read(map(line, ROWS), tmp_path)
    assert result.evidence.printed is not None
    assert result.evidence.printed.format == form
    found = result.series["loss"]
    first = int(found.steps[0])
    assert first in (0, 1)
    assert found.steps.tolist() == list(range(first, first + STEPS))
    assert found.values.tolist() == pytest.approx(LOSSES, abs=6e-3)
    for sign, key, truth in (
        ("t", "step_time_s", lambda t: t),
        ("r", "toks_per_s", lambda t: TOKENS / t),
        ("k", "toks_per_s_per_rank", lambda t: TOKENS / RANKS / t),
    ):
        if sign in series:
            check_pace(result, key, truth)
    if "t" not in series and "r" not in series:
        assert not {"step_time_s", "toks_per_s"} & result.series.keys()


EVALUATIONS = {
    "nanoGPT": "step {n}: train loss {t}, val loss {v}",
    "llm.c": "val loss {v}",
    "nanochat": "Step {n:05} | Validation bpb: {v}",
    "Megatron-LM": " validation loss at iteration {n} on validation set | lm loss value: {v} | lm loss PPL: 9.1 |",
    "GPT-NeoX": " validation results at iteration {n} | lm_loss value: {v} | lm_loss_ppl value: 9.1 |",
    "torchtitan": "validate step: {n}  loss:  {v}  memory: 9.1GiB(9.1%)  tps: 9,100",
    "ImageNet": "Test: [ 9/10]\tTime  0.1 ( 0.1)\tLoss 9.1e+00 ({v})\tAcc@1   9.1 (  9.1)",
    "Swin": "[2026-03-04 05:06:07 swin] (main.py 3): INFO Test: [9/10]\tTime 0.1 (0.1)"
    "\tLoss 9.1 ({v})\tAcc@1 9.1 (9.1)",
    "timm": "Test: [  0/9]  Time: 0.1 (0.1)  Loss:   9.123 ( 9.123)  Acc@1:   9.1 (  9.1)\n"
    "Test: [  9/9]  Time: 0.1 (0.1)  Loss:   9.123 ( {v})  Acc@1:   9.1 (  9.1)",
    "litgpt": "iter {n}: val loss {v}, val time: 9.10 ms",
    "fairseq": "2026-03-04 05:06:07 | INFO | valid | epoch 001 | valid on 'valid' subset | loss {v} | ppl 9.1 | "
    "num_updates {n} | best_loss 9.1",
    "fairseq, as JSON": '2026-03-04 05:06:07 | INFO | valid | {{"epoch": 1, "valid_loss": "{v}", "valid_ppl": "9.1", '
    '"valid_num_updates": "{n}"}}',
    "ESPnet": "[gpu01] 2026-03-04 05:06:07,1 (trainer:338) INFO: 1epoch results: [train] loss=9.1, [valid] "
    "loss_ctc=9.1, loss={v}, [att_plot] total_count=0",
    "MaxText": "eval metrics after step: {n}, loss={v}, total_weights=512",
    "word_language_model": "| end of epoch   1 | time: 9.10s | valid loss  {v} | valid ppl     9.1",
    "clu": "I0304 05:06:07.123456 139 logging_writer.py:48] [{n}] collection=eval accuracy=0.9, loss={v}",
    "TensorFlow Estimator": "INFO:tensorflow:Saving dict for global step {n}: accuracy = 0.9, "
    "global_step = {n}, loss = {v}",
    "llama2.c": "step {n}: train loss {t}, val loss {v}",
    "MLX": "Iter {n}: Val loss {v}, Val took 9.123s",
    "WeNet": "2026-03-04 05:06:07,123 INFO Epoch 0 CV info cv_loss {v}",
    "Marian": "[2026-03-04 05:06:07] [valid] Ep. 1 : Up. {n} : cross-entropy : {v} : new best",
    "build-nanogpt": "validation loss: {v}",
    "OLMo": "2026-03-04 05:06:07.123\thost:0\tolmo.train:9\tINFO\tv3-ppl-validation\n"
    "    eval/v3-ppl-validation/books/CrossEntropyLoss=9.123\n    eval/v3-ppl-validation/books/Perplexity=9.1\n"
    "    eval/v3-ppl-validation/web/CrossEntropyLoss={v}\n    eval/v3-ppl-validation/web/Perplexity=9.1",
    "OLMo-core": "Finished lm evals in 9.1 seconds. Metrics:\n    web-validation/CE loss={v}\n"
    "    web-validation/PPL=9.1",
    "Composer": "[Eval batch=9/9] Eval on eval data:\n\t Eval metrics/eval/LanguageCrossEntropy: {v}\n"
    "\t Eval metrics/eval/LanguagePerplexity: 9.1",
    "MMEngine": "03/04 05:06:07 - mmengine - INFO - Epoch(val) [1][9/9]    loss: {v}  acc: 9.1  "
    "data_time: 0.1  time: 0.1",
    "Levanter": "2026-03-04T05:06:07 - 0 - levanter.eval - INFO :: eval loss: {v}\n"
    "2026-03-04T05:06:07 - 0 - levanter.eval - INFO :: books loss: 9.123",
    "PyTorch MNIST example": "Test set: Average loss: {v}, Accuracy: 91/100 (91%)",
}
"""Lines about an evaluation, by the form in `FORMS` whose trainer prints them: `n` is the step, `v` its loss."""

OTHER_ROWS: dict[str, Callable[[Row], str]] = {
    "nanoGPT": lambda r: f"iter {r.i}: loss {r.x:.4f}, time {1e3 * r.t:.2f}ms, mfu 9.10%",
    "llm.c": lambda r: (
        f"step {r.i:4}/{STEPS} | loss {r.x:.6f} (+9.1z)| norm 9.1000 (+9.1z)| lr 3.00e-04 | {1e3 * r.t:.2f} ms | "
        "9.1% bf16 MFU | 9100 tok/s"
    ),
    "nanochat": lambda r: (
        f"step {r.i:05} ({r.i / STEPS:.2%}) | loss: {r.x:.6f} | dt: {1e3 * r.t:.2f}ms | tok/sec: 9,100"
    ),
    "Megatron-LM": lambda r: (
        f" iteration {r.i:8}/{STEPS:8} | elapsed time per iteration (ms): {1e3 * r.t:.1f} | learning rate: 2.0E-04 | "
        f"lm loss: {r.x:.6E} | grad norm: 9.1 | number of nan iterations:   0 |"
    ),
    "torchtitan": lambda r: f"step: {r.i:2}  loss:  {r.x:.4f}  memory:  9.10GiB(9.10%)  tps: 9,100  mfu: 9.10%",
    "ImageNet": lambda r: (
        f"Epoch: [{r.e - 1}][{r.b:3}/{EPOCH}]\tTime  {r.t:.3f} (  0.9)\tData  0.1 (  0.1)\tLoss {r.x:.4e} (9.1e+00)"
    ),
    "PyTorch MNIST example": lambda r: f"Train Epoch: {r.e} [{64 * r.b}/9100 ({r.b}%)]\tLoss: {r.x:.6f}",
}


@pytest.mark.parametrize("name", EVALUATIONS)
def test_the_loss_of_a_validation_is_read_where_it_is_printed(name: str, tmp_path: Path) -> None:
    """litgpt's and timm's were dropped, so that one of NaN, and one that rises, were GO without a word."""
    form = FORMS[name][1] if name in FORMS else OTHER_ROWS[name]
    lines, losses = [], {}
    for row in ROWS:
        lines.append(form(row))
        if row.i % 20 == 0:
            losses[row.i] = 3.0 - row.i / 100 if row.i < 100 else math.nan
            lines.append("\n" + EVALUATIONS[name].format(n=row.i, v=f"{losses[row.i]:.3f}", t="3.210") + "\n")
    result = read(lines, tmp_path)
    found = result.series["val_loss"]
    assert found.steps.tolist() == pytest.approx(list(losses), abs=1)
    np.testing.assert_allclose(found.values, list(losses.values()))
    assert result.series["loss"].values.tolist() == pytest.approx(LOSSES, abs=6e-3)


CARRIED: dict[str, Callable[[Row, str], str]] = {
    "Lightning's bar": lambda r, v: bar(
        r.b,
        EPOCH,
        r.c,
        before=f"Epoch {r.e - 1}: ",
        behind=f", v_num=9, train_loss={r.x:.3f}{f', val_loss={v}' * bool(v)}",
    ),
    "NeMo 2": lambda r, v: (
        f"Training epoch 0, iteration {r.i - 1}/119 | lr: 3e-05 | global_step: {r.i - 1} | reduced_train_loss: "
        f"{r.x:.3f} | train_step_timing in s: {r.t:.4f}{f' | val_loss: {v}' * bool(v)}"
    ),
    "detectron2": lambda r, v: (
        f"[{r.at('%m/%d %H:%M:%S')} d2.utils.events]:  eta: 0:00:09  iter: {r.i - 1}  total_loss: {r.x:.4g}  "
        f"loss_cls: 9.1{f'  validation_loss: {v}' * bool(v)}  time: 0.1  data_time: 0.1  lr: 0.001  max_mem: 99M"
    ),
}
"""Rows that hold the loss of the last evaluation, where there was one."""


@pytest.mark.parametrize("name", CARRIED)
def test_the_last_evaluation_stays_in_each_row(name: str, tmp_path: Path) -> None:
    lines, values = [], {at: f"{3.0 - at / 100:.3f}" for at in range(STEPS // 20 + 1)}
    for row in ROWS:
        lines.append(CARRIED[name](row, values[row.i // 20] if row.i >= 20 else ""))
    result = read(lines, tmp_path)
    assert result.series["loss"].values.tolist() == pytest.approx(LOSSES, abs=6e-3)
    own = RunSpec(id="r", phase="p", kind="train", launcher="python", argv=(), env={}, out=".", timeout_s=0)
    (found,) = RunFacts(own, result, None).validations
    assert found.values.tolist() == [float(values[at]) for at in range(1, STEPS // 20 + 1)]
    assert found.steps.tolist() == pytest.approx(range(20, STEPS + 1, 20), abs=1)


@pytest.mark.parametrize(
    "line",
    [
        "{n}% loss: 2.{n}",
        "{n}/300 loss: 2.{n}",
        "[{n}] loss: 2.{n}",
        "step 0.{n} loss 2.{n}",
        "step {n}% loss 2.{n}",
        "step {n} average loss: 2.{n}",
        "val step {n} loss 2.{n}",
        "Epoch:   {n}%|#  | {n}/9 [01:59<02:02, 61.20s/it, loss=2.{n}]",
        " {n}%|#  | {n}/60000 [01:59<02:02, 512.1img/s, loss=2.{n}]",
        " {n}%|#  | {n}/60 [01:59<02:02, 61.20s/it, train_loss=2.{n}, val_loss=9.1]",
        "Batch 0/5 loss 2.{n}",
    ],
)
def test_what_is_no_step_and_no_date_is_not_taken_for_one(line: str) -> None:
    assert recognize((n, line.format(n=n)) for n in range(1, 8)) is None


@pytest.mark.parametrize(
    ("lines", "form", "steps"),
    [
        (
            ("epoch  train_loss  valid_loss  time", "0  4.1  9.1  00:25", "1  3.9  9.1  00:25"),
            "table of epochs",
            [0, 1],
        ),
        (("step,loss,lr", "10,4.1,1e-4", "hello", "20,3.9,1e-4"), "table with names", [10, 20]),
        (("| step | loss |", "|------|------|", "| 10 | 4.1 |", "| 20 | 3.9 |"), "table with names", [10, 20]),
        (("step loss val loss", "1 2 3"), None, []),
        (("step,loss,train_loss", "10,4.1,4.0", "20,3.9,4.0"), None, []),
        (("E    #       LOSS TOK2VEC  LOSS NER", "0  0  4.1  36.1", "0  10  3.9  35.1"), None, []),
        (("Train Epoch: \t1, Loss: \t4.1", "Train Epoch: \t2, Loss: \t3.9"), "epochs", [1, 2]),
        (("epoch 0.13 loss: 4.1", "epoch 0.26 loss: 3.9"), "parts of epochs", [1, 2]),
        (
            [f"Epochs:  9%|#  | {n}/9 [00:0{n}<02:02, 1.20s/it, loss={x}]" for n, x in ((1, 4.1), (2, 3.9))],
            "progress bar of epochs",
            [1, 2],
        ),
    ],
)
def test_rows_without_names_and_epochs_are_read_where_that_is_safe(
    lines: Iterable[str], form: str | None, steps: list[int], tmp_path: Path
) -> None:
    result = read(lines, tmp_path)
    if form is None:
        assert "loss" not in result.series
        return
    assert result.evidence.printed is not None
    assert result.evidence.printed.format == form
    assert result.series["loss"].steps.tolist() == steps
    assert result.series["loss"].values.tolist() == [4.1, 3.9]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("step {n} loss 2.5 eta 00:1{n}:03", {}),
        ("step {n} | ETA: 2026-03-0{n} 05:00:00 | loss 2.5", {}),
        ("step {n} loss 2.5 remaining time 12{n}.3s", {}),
        ("step {n} loss 2.5 data time 0.{n}s", {}),
        ("step {n} loss 2.5 tok/s: 1.{n} M", {}),
        ("step {n} loss 2.5 tok/s: 900", {"toks_per_s": 900.0}),
        ("step {n} loss 2.5 | 900 samples/s (avg 99)", {"samples_per_s": 900.0}),
        ("iter {n}/500 - loss 2.5 - samples/sec: 19.25 - lr: 0.1", {"lr": 0.1, "samples_per_s": 19.25}),
        ("step {n} loss 2.5 | images/sec/gpu: 90 | eval samples/s 9 | avg samples/s 8", {}),
        ("Batch {n}/500 (loss=2.5, time/batch=0.432s)", {"step_time_s": 0.432}),
        ("loss at iter {n}: 2.5, tok/s: 900", {"toks_per_s": 900.0}),
        (
            "[Iteration {n}][Wall 1s] Throughput is 408.25 records/second. Loss is 2.5. Current learning rate is 0.1.",
            {"lr": 0.1, "samples_per_s": 408.25},
        ),
        ("Train loss (at step {n}) = 2.5, tok/s: 900", {"toks_per_s": 900.0}),
        ("step {n} loss 2.5 tok/s=900 (avg tok/s=99)", {"toks_per_s": 900.0}),
        ("step {n} loss 2.5 | throughput (avg): 900 tok/s", {}),
        ("step {n} loss 2.5 | 900 tokens per second per GPU", {"toks_per_s_per_rank": 900.0}),
        ("step {n} loss 2.5 | tokens/s/gpu 90 | tokens/s 900", {"toks_per_s": 900.0, "toks_per_s_per_rank": 90.0}),
        ("step {n} loss 2.5 12 34{n} tok/s", {}),
        ("step {n} loss 2.5 tok/s: 12'34{n}", {}),
        ("step {n} loss 2.5 tok/s: 12 34{n}", {}),
        ("step {n} loss 2.5 | peak tok/s 900 | per-gpu tok/s 90 | eval tok/s 9", {}),
        ("step {n} loss 2.5 | data: 3 ms/step | 1.2 it/s (avg)", {}),
        ("step {n} loss 2.5 fwd_time 10ms step_time 50ms", {"step_time_s": 0.05}),
        ("step {n} loss 2.5 elapsed: 1{n}.5m", {}),
        ("step {n} loss 2.5 dt 0.5", {}),
        ("step {n}: val loss 9.1, loss 2.5", {"val_loss": 9.1}),
        ("step {n}: best val loss 9.1, loss 2.5", {}),
        ("step {n} | packet loss 5% | loss 2.5", {}),
        ("step {n} loss 2.5 param_norm 200.5", {}),
        ("1048{n}76000 tokens step {n} loss 2.5", {}),
        ("step {n} tokens 1,234,567 loss 2.5", {}),
    ],
)
def test_a_number_is_what_its_name_and_unit_say(line: str, found: dict[str, float]) -> None:
    known = recognize((n, line.format(n=n)) for n in range(1, 8))
    assert known is not None
    printed = line_pattern(known[0].pattern).read(line.format(n=5))
    assert printed is not None
    assert (printed.step, printed.odd) == (5, None)
    assert contract_values(printed.values) == {"loss": 2.5, **found}


@pytest.mark.parametrize(("shown", "every", "truth"), [(1.0, 1, 1.0), (10.0, 10, 1.0), (1.0, 10, 1.0), (4.0, 10, None)])
@pytest.mark.parametrize("dated", [True, False])
def test_a_time_of_every_tenth_step_needs_a_clock_beside_it(
    shown: float, every: int, truth: float | None, dated: bool, tmp_path: Path
) -> None:
    """It may be that of ten steps or of one; the dates say which."""
    begin = datetime(2026, 3, 4, tzinfo=timezone.utc)
    rows = ((i, begin + timedelta(seconds=i)) for i in range(every, 41 * every, every))
    lines = (f"{f'{at:%Y-%m-%d %H:%M:%S} ' if dated else ''}step {i} loss 2.5 time {shown}s" for i, at in rows)
    found = read(lines, tmp_path).series.get("step_time_s")
    if every > 1 and not dated:
        assert found is None
    else:
        assert found is not None
        assert float(np.median(found.values)) == pytest.approx(1.0 if truth is None else truth)


@pytest.mark.parametrize(
    ("line", "series"),
    [
        (
            "Epoch {n}/9\n9/9 [=========] - 48s 471ms/step - loss: 2.{n} - acc: 0.6 - val_loss: 3.{n}",
            ("loss", "val_loss"),
        ),
        (
            "2/2 ━━━━━━━━━━ 1s 471ms/step - acc: 0.6 - loss: 2.{n} - val_acc: 0.6 - val_loss: 3.{n}",
            ("loss", "val_loss"),
        ),
        (
            "2016-09-08 23:35:2{n},963 Node[0] Epoch[0] Batch [{n}]\tSpeed: 875 samples/sec\tTrain-CrossEntropy=2.{n}",
            ("loss", "samples_per_s"),
        ),
        (
            " {n}: 2.{n}00000, 9.957489 avg loss, 0.001000 rate, 22.929898 seconds, 192 images",
            ("loss", "lr", "step_time_s"),
        ),
        ("2026-03-04 23:35:2{n},070 INFO:Epoch {n}: Train Loss=2.{n}, Val Loss=3.{n}", ("loss", "val_loss")),
        (
            "INFO:root:Epoch {n} - Average Loss: 2.{n}\nINFO:root:Evaluation Epoch {n} - Average Loss: 3.{n}",
            ("loss", "val_loss"),
        ),
        ("2024-06-17 16:43:1{n},838 - INFO - Epoch: {n}, Avg_loss: 2.{n}, Duration: 0.42s", ("loss",)),
        ("Epoch {n} done: train_loss=2.{n} val_loss=3.{n}", ("loss", "val_loss")),
        ("INFO - Epoch {n} Average Training Loss: 2.{n}, Validation Loss: 3.{n}\n" * 2, ("loss", "val_loss")),
        ("Iter: {n} | Train Loss: 2.{n} | Dev Loss: 3.{n} | Dev F1-macro: 0.1", ("loss", "val_loss")),
        ("step {n} - train loss 2.{n} - test loss 3.{n}", ("loss", "val_loss")),
        ("[batch {n}/152, epoch 1/15]: loss_rmse:0.5 loss_det:0.4 loss_total:2.{n} binary_loss:0.1", ("loss",)),
        (
            "2026-08-03 16:43:1{n}.071006: Epoch {n}\n2026-08-03 16:43:1{n}.071209: Current learning rate: 0.01\n"
            "2026-08-03 16:43:1{n}.493745: train_loss 2.{n}\n2026-08-03 16:43:1{n}.493920: val_loss 3.{n}\n"
            "2026-08-03 16:43:1{n}.493980: Epoch time: 1.43 s",
            ("loss", "val_loss", "step_time_s"),
        ),
        ("step: {n}, det loss: 9.0, bbox loss: 8.0, all_loss: 2.{n}", ("loss",)),
        ("step:{n} - actor/pg_loss:0.0 - actor/kl_loss:0.1 - actor/loss:2.{n} - actor/lr:3e-05", ("loss",)),
        ("{n} train 2.{n}\n{n} val 3.{n}", ("loss", "val_loss")),
    ],
    ids=[
        "Keras, the end of each bar",
        "Keras 3",
        "MXNet before gluon",
        "Darknet",
        "an epoch behind a date",
        "an evaluation of an epoch",
        "a mean of an epoch",
        "an epoch, in names",
        "an epoch of two ranks",
        "development",
        "test",
        "a total behind its parts",
        "nnU-Net",
        "all of the parts",
        "verl",
        "build-nanogpt's log.txt",
    ],
)
def test_older_lines_of_a_library_are_read_with_what_they_say(
    line: str, series: tuple[str, ...], tmp_path: Path
) -> None:
    """The rising loss of the validation, and the cross-entropy, were left out."""
    found = read((line.format(n=n) for n in range(1, 9)), tmp_path).series
    assert {*series} <= found.keys()
    assert found["loss"].values.tolist() == pytest.approx([2 + n / 10 for n in range(1, 9)])
    assert found["loss"].steps.tolist() == [*range(1, 9)]


@pytest.mark.parametrize(
    ("line", "form"),
    [
        ("Epoch: [{e}/9] Iter:[{b}/20], Time: {mean}, lr: [0.01, 0.1], Loss: {x}, Acc:0.7, IC loss: 0.6", "HRNet"),
        (
            "2026-03-04 1{e}:00:{b} - INFO - epoch: {e}, batch_id: {b}, AUC:0.8, loss:{x}, avg_reader_cost: 0.03 sec, "
            "avg_batch_cost: 0.5 sec, avg_samples: 64.0, ips: 128.0 ins/s",
            "batch and loss",
        ),
        (
            "[Train][Epoch {e}/9][Iter: {b}/20]lr: 0.1, loss: {x}, batch_cost: 0.5s, ips: 128.0 samples/s",
            "",
        ),
        ("iteration:{e} step:{b}/20, NER loss: {x}", "step and loss"),
    ],
)
def test_steps_that_begin_anew_in_each_epoch_are_counted_on(line: str, form: str, tmp_path: Path) -> None:
    """An epoch by another name, or in brackets of its own: each was taken for a run of its own, or lines for steps."""
    rows = [(e, b) for e in range(4) for b in range(10, 20, 2)]
    texts = (line.format(e=e, b=b, x=3 - (20 * e + b) / 100, mean=round(0.5 + 0.5 / b, 3)) for e, b in rows)
    result = read(texts, tmp_path)
    assert result.evidence.printed is not None
    assert form in result.evidence.printed.format
    found = result.series["loss"]
    assert found.values.tolist() == pytest.approx([3 - (20 * e + b) / 100 for e, b in rows])
    if "/20" in line:
        assert found.steps.tolist() == [20 * e + b for e, b in rows]
    assert (np.diff(found.steps) > 0).all()
    assert not [one for one in result.irregularities if "parts" in one.text or "decreases" in one.text]
    if "ips" in line:
        assert set(result.series["samples_per_s"].values) == {128.0}
        assert set(result.series["step_time_s"].values) == {0.5}


def test_a_line_for_the_first_step_of_each_epoch_alone_is_a_row_of_that_epoch(tmp_path: Path) -> None:
    texts = (f"[train] epoch:{e} iter:0/18 0.00% lr:0.001 loss:{2 - e / 10:.6f} ETA:0.0min" for e in range(9))
    found = read(texts, tmp_path).series["loss"]
    assert found.steps.tolist() == [18 * e for e in range(9)]


def test_the_rate_of_a_rank_is_the_one_that_is_printed(tmp_path: Path) -> None:
    """How many ranks a log is of is not known: the rate of all was taken for that of one."""
    result = read(map(FORMS["picotron"][1], ROWS), tmp_path)
    metrics = measure(result, warmup_steps=10).metrics
    assert metrics["toks_per_s"].mean == pytest.approx(RANKS * metrics["toks_per_s_per_rank"].mean, rel=0.15)


def test_samples_are_no_steps(tmp_path: Path) -> None:
    lines = (f"Train Epoch: 1 [{640 * i}/60000 ({i}%)]\tLoss: {x:.6f}" for i, x in enumerate(LOSSES))
    result = read(lines, tmp_path)
    assert result.series["loss"].steps.tolist() == list(range(1, STEPS + 1))
    assert "step_time_s" not in result.series


def test_a_bar_that_is_drawn_again_with_a_later_loss_is_no_repeated_row(tmp_path: Path) -> None:
    """tqdm sets the loss of a step before it counts it."""
    bars = (
        bar(r.i - 1, STEPS, r.c - r.t, behind=f", loss={r.x:.3f}") + bar(r.i, STEPS, r.c, behind=f", loss={r.x:.3f}")
        for r in ROWS
    )
    assert not read(bars, tmp_path).irregularities


def test_a_bar_has_a_reader_whose_name_stands_for_its_pattern(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "stderr.log").write_text("".join(map(FORMS["postfix"][1], ROWS)))
    (tmp_path / "logs" / "stdout.log").write_text("loading\n")
    found = collect_dir(tmp_path, metrics=TrainerMetrics(reader=("tqdm",))).series
    assert found["loss"].steps.tolist() == list(range(1, STEPS + 1))
    assert "step_time_s" in found


def test_a_mean_since_the_start_of_an_epoch_is_taken_apart(tmp_path: Path) -> None:
    bars = (
        f"\r{r.b}/{EPOCH} ━━━━━━━━━━ 12s {1e3 * r.since / r.b:.0f}ms/step - accuracy: 0.5 - loss: {r.x:.4f}"
        for r in ROWS
    )
    result = read(bars, tmp_path)
    assert result.series["step_time_s"].values[-1] == pytest.approx(1.6, rel=0.03)
    assert result.scalars["steps.done"].value == STEPS


PIECES = "loss 2.5 |step |1 tok/s |5 ms/step |12,345,|| |- |[|epoch 1 |time |x=1, |[1][ 5/10] |train/|\t| "


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda one: one.name)
def test_a_long_line_takes_time_in_proportion_to_its_length(recipe: Recipe) -> None:
    """A pattern that repeats what repeats itself would take minutes; the limit is on a search of a log (ADR 0019)."""
    pattern = line_pattern(recipe.pattern)
    for piece in PIECES.split("|"):
        for start in ("", "step 5 loss 2.5 ", recipe.words[0]):
            pattern.read((start + (piece or "|") * 2000)[:2000])


@pytest.mark.parametrize(
    "line",
    [
        "[Epoch 0/5] [Batch {i}/100] [D loss: {v:.3f}] [G loss: 1.{i:03}]",
        "step {i} discriminator loss {v:.3f} generator loss 1.{i:03}",
        "| policy_loss: {v:.4f} | value_loss: 0.{i:03} | update {i}",
    ],
)
def test_losses_that_are_lowered_against_each_other_are_no_loss(tmp_path: Path, line: str) -> None:
    """The discriminator's went back to ln 2, as it should: a veto for a loss that rises."""
    (tmp_path / "logs").mkdir()
    text = "\n".join(line.format(i=i, v=0.693 - 0.2 * math.sin(i / 20)) for i in range(1, 60))
    (tmp_path / "logs/stdout.log").write_text(text + "\n")
    assert "loss" not in collect_dir(tmp_path).series


def test_the_learning_rate_of_fairseq_is_read(tmp_path: Path) -> None:
    """All rows printed a rate of 0, which has a finding of its own."""
    (tmp_path / "logs").mkdir()
    row = (
        '2026-01-01 12:00:00 | INFO | train_inner | {"epoch": 1, "loss": "5.4", "wps": "2805.0", "num_updates": "%d", '
        '"lr": "0", "gnorm": "2.1"}'
    )
    (tmp_path / "logs/stdout.log").write_text("".join(row % i + "\n" for i in range(1, 40)))
    result = collect_dir(tmp_path)
    assert result.series["loss"].steps.tolist() == list(range(1, 40))
    assert not result.series["lr"].values.any()
    assert len(result.series["lr"].values) == 39

"""Lines in the print formats of public trainers, each made from one truth."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from itertools import accumulate
from typing import NamedTuple

STEPS, EPOCH, TOKENS, RANKS = 120, 40, 65_536, 8


class Row(NamedTuple):
    """One step: its number from 1, number `b` of epoch `e`; its seconds `t`, the clock `c` behind it, its loss `x`."""

    i: int
    t: float
    c: float
    x: float

    @property
    def e(self) -> int:
        return (self.i - 1) // EPOCH + 1

    @property
    def b(self) -> int:
        return (self.i - 1) % EPOCH + 1

    @property
    def since(self) -> float:
        """Seconds since the epoch began."""
        return self.c - (CLOCK[(self.e - 1) * EPOCH - 1] if self.e > 1 else 0.0)

    @property
    def rate(self) -> float:
        return TOKENS / self.t

    def at(self, form: str) -> str:
        return (datetime(2026, 3, 4, 23, 59, 10, tzinfo=timezone.utc) + timedelta(seconds=self.c)).strftime(form)


TIMES = [0.8 if i <= STEPS // 2 else 1.6 for i in range(1, STEPS + 1)]
CLOCK = list(accumulate(TIMES))
LOSSES = [4.0 - 2.0 * i / STEPS + 0.05 * math.sin(2.3 * i) for i in range(1, STEPS + 1)]
ROWS = [Row(i, TIMES[i - 1], CLOCK[i - 1], LOSSES[i - 1]) for i in range(1, STEPS + 1)]


def short(seconds: float) -> str:
    return f"{int(seconds) // 60:02}:{int(seconds) % 60:02}"


def bar(n: int, total: int, clock: float, *, before: str = "", behind: str = "", unit: str = "it") -> str:
    return f"\r{before}{100 * n // total:3}%|██      | {n}/{total} [{short(clock)}<00:10,  1.24{unit}/s{behind}]"


def evaluation(before: str, behind: str) -> str:
    return "".join(bar(k, 10, k / 10, before=before, behind=behind) for k in range(1, 11))


Line = Callable[[Row], str]

# Name: the format that it is read as, a line for each step, and the series besides the loss that are right: the time of
# a step (t), the rate (r), and the rate of a rank (k). The loss is left out with `-`.
FORMS: dict[str, tuple[str, Line, str]] = {
    "postfix": ("progress bar", lambda r: bar(r.i, STEPS, r.c, behind=f", loss={r.x:.3f}"), "t"),
    "postfix of several keys": (
        "progress bar",
        lambda r: bar(r.i, STEPS, r.c, before="train: ", behind=f", lr=1e-4, avg_loss=3, loss={r.x:.3f}, grad=0.5"),
        "t",
    ),
    "loss in the description": ("progress bar", lambda r: bar(r.i, STEPS, r.c, before=f"Loss: {r.x:.4f}: "), "t"),
    "torchtune": ("progress bar", lambda r: bar(r.i, STEPS, r.c, before=f"1|{r.i}|Loss: {r.x}: "), "t"),
    "diffusers": (
        "progress bar",
        lambda r: bar(r.i, STEPS, r.c, before="Steps: ", behind=f", lr=0.1, step_loss={r.x:.3f}"),
        "t",
    ),
    "a bar an epoch": (
        "progress bar",
        lambda r: (
            bar(r.b, EPOCH, r.since, before=f"Epoch {r.e}/3: ", behind=f", loss={r.x:.3f}")
            + (evaluation(f"Epoch {r.e}/3 [val]: ", ", loss=9.0") if r.b == EPOCH else "")
        ),
        "t",
    ),
    "a bar an epoch, without its number": (
        "progress bar",
        lambda r: (
            bar(r.b, EPOCH, r.since, behind=f", loss={r.x:.3f}")
            + (evaluation("", ", loss=9.0") if r.b == EPOCH else "")
        ),
        "t",
    ),
    "a bar without a total": (
        "progress bar",
        lambda r: f"\rtrain: {r.i}it [{short(r.c)},  1.24it/s, loss={r.x:.3f}]",
        "t",
    ),
    "NeMo's bar": (
        "Lightning progress bar",
        lambda r: bar(
            r.i, STEPS, r.c, before="Epoch 0: : ", behind=f", loss=3.3, v_num=, reduced_train_loss={r.x:.3f}, x=1.6e+3"
        ),
        "t",
    ),
    "MaxText": (
        "MaxText",
        lambda r: (
            f"completed step: {r.i - 1}, seconds: {r.t:.3f}, TFLOP/s/device: 201.5, Tokens/s/device: "
            f"{r.rate / RANKS:.3f}, total_weights: 65536, loss: {r.x:.3f}"
        ),
        "tk",
    ),
    "OLMo": (
        "OLMo and Composer",
        lambda r: (
            f"{r.at('%Y-%m-%d %H:%M:%S.%f')}\thost:0\tolmo.train:8\tINFO\t[step={r.i}/1000,epoch=0]\n"
            f"    optim/total_grad_norm=0.5\n    train/CrossEntropyLoss={r.x:.3f}\n    train/Perplexity=12.1\n"
            f"    throughput/total_tokens={r.i * TOKENS}\n    throughput/device/tokens_per_second=9023"
        ),
        "tr",
    ),
    "OLMo-core": (
        "OLMo and Composer",
        lambda r: (
            f"[step={r.i}/1000,epoch=1,eta=0:04]\n    train/CE loss={r.x:.3f}\n    throughput/device/TPS="
            f"{r.rate / RANKS:,.0f}\n    throughput/device/TPS (actual avg)=7,000"
        ),
        "k",
    ),
    "Composer": (
        "OLMo and Composer",
        lambda r: (
            f"{r.at('%Y-%m-%d %H:%M:%S,%f')}: rank0[1][MainThread]: INFO: composer.console: [batch={r.i}/300]:\n"
            f"\t Train time/batch: {r.i - 1}\n\t Train loss/train/total: {r.x:.4f}\n"
            f"\t Train throughput/tokens_per_sec: 1.0"
        ),
        "t",
    ),
    "torchtune's lines": (
        "step and loss",
        lambda r: f"Step {r.i} | loss:{r.x} lr:2e-05 tokens_per_second_per_gpu:{r.rate / RANKS} ",
        "k",
    ),
    "NeMo 2": (
        "NeMo",
        lambda r: (
            f"[default0]:Training epoch 0, iteration {r.i - 1}/119 | lr: 3e-05 | global_step: {r.i - 1} | "
            f"reduced_train_loss: {r.x:.3f} | train_step_timing in s: {r.t:.4f} | val_loss: 9.1"
        ),
        "t",
    ),
    "GPT-NeoX": (
        "Megatron-LM",
        lambda r: (
            f" samples/sec: 9.1 | iteration {r.i:8}/{STEPS:8} | elapsed time per iteration (ms): {1e3 * r.t:.1f} | "
            f"learning rate: 2.000E-04 | lm_loss: {r.x:.6E} | number of nan iterations:   0 |"
        ),
        "t",
    ),
    "litgpt": (
        "litgpt",
        lambda r: (
            f"Epoch 1 | iter {4 * r.i} step {r.i} | loss train: {r.x:.3f}, val: n/a | iter time: "
            f"{250 * r.t:.2f} ms (step)"
        ),
        "",
    ),
    "fairseq": (
        "fairseq",
        lambda r: (
            f"{r.at('%Y-%m-%d %H:%M:%S')} | INFO | train_inner | epoch 001:    {r.i} / 1891 loss={r.x:.3f}, ppl=9, "
            f"wps=9.9, ups=0.5, num_updates={r.i}, lr=8e-05, gnorm=1.5, train_wall=9, wall={r.c:.0f}"
        ),
        "t",
    ),
    "fairseq, as JSON": (
        "fairseq",
        lambda r: (
            f"{r.at('%Y-%m-%d %H:%M:%S')} | INFO | train_inner | "
            + json.dumps({"epoch": 1, "loss": f"{r.x:.3f}", "num_updates": str(r.i), "wall": f"{r.c:.0f}"})
        ),
        "t",
    ),
    "ESPnet": (
        "ESPnet",
        lambda r: (
            f"[gpu01:0/2] {r.at('%Y-%m-%d %H:%M:%S,%f')} (trainer:464) INFO: 1epoch:train:{r.i}-{r.i}batch: "
            f"iter_time=2.8e-04, loss={r.x:.3f}, loss_att=9.1, train_time=9.9"
        ),
        "t",
    ),
    "MMEngine": (
        "MMEngine",
        lambda r: (
            f"{r.at('%m/%d %H:%M:%S')} - mmengine - INFO - Epoch(train) [{r.e}][{r.b:4}/{EPOCH}]  lr: 5.9e-05  eta: "
            f"12:14:32  time: {r.t:.4f}  data_time: 0.0205  memory: 7657  loss: {r.x:.4f}  loss_cls: 9.1"
        ),
        "t",
    ),
    "timm": (
        "timm",
        lambda r: (
            f"Train: {r.e - 1} [{r.b - 1:4}/{EPOCH} ({r.b:3}%)]  Loss: {r.x:.3f} (3.1)  Time: {r.t:.3f}s,  "
            "99.0/s  (1.1s)"
        ),
        "t",
    ),
    "Swin": (
        "PyTorch examples",
        lambda r: (
            f"[{r.at('%Y-%m-%d %H:%M:%S')} swin] (main.py 2): INFO Train: [{r.e - 1}/3][{r.b - 1}/{EPOCH}]\teta "
            f"0:01:12 lr 0.00002\ttime {r.t:.4f} (1.1)\tloss {r.x:.4f} (3.1)\tmem 9000MB"
        ),
        "t",
    ),
    "MetricLogger": (
        "epoch and step in brackets",
        lambda r: (
            f"Epoch: [{r.e - 1}]  [{r.b - 1:4}/{EPOCH}]  eta: 0:01:12  lr: 0.0001  loss: {r.x:.4f} (3.1)  "
            "time: 0.2  data: 0"
        ),
        "",
    ),
    "word_language_model": (
        "word_language_model",
        lambda r: (
            f"| epoch {r.e:3} | {r.b:5}/{EPOCH:5} batches | lr 20.00 | ms/batch {1e3 * r.t:5.2f} | loss "
            f"{r.x:.3f} | ppl 9"
        ),
        "t",
    ),
    "an epoch and a batch": (
        "epoch and step in brackets",
        lambda r: f"[{r.e}, {r.b:5}] loss: {r.x:.3f}",
        "",
    ),
    "Epoch [1/3], Step [2/40]": ("step and loss", lambda r: f"Epoch [{r.e}/3], Step [{r.b}/40], Loss: {r.x:.4f}", ""),
    "clu": (
        "clu",
        lambda r: (
            f"I{r.at('%m%d %H:%M:%S.%f')} 140046 logging_writer.py:48] [{r.i}] accuracy=0.3, loss={r.x:.6f}, z_loss=9.1"
        ),
        "t",
    ),
    "TensorFlow Estimator": (
        "TensorFlow Estimator",
        lambda r: f"INFO:tensorflow:loss = {r.x:.6f}, step = {r.i} ({r.t:.3f} sec)",
        "t",
    ),
    "llama2.c": (
        "llama2.c",
        lambda r: f"{r.i - 1} | loss {r.x:.4f} | lr 5.0e-04 | {1e3 * r.t:.2f}ms | mfu 20%",
        "t",
    ),
    "Levanter": (
        "Levanter",
        lambda r: (
            f"{r.at('%Y-%m-%dT%H:%M:%S')} - 0 - tqdm_logger - INFO :: Progress on:train {r.i}it/{STEPS}it rate:1.2it/s "
            f"remaining:00:10 elapsed:{short(r.c)} postfix:loss={r.x:.3f}"
        ),
        "t",
    ),
    "nanotron": (
        "iteration and loss",
        lambda r: (
            f"{r.at('%m/%d/%Y %H:%M:%S')} [INFO|DP=0|PP=0|TP=0]: iteration: {r.i} / 300 | consumed_tokens: 7.8M | "
            f"elapsed_time_per_iteration_ms: {r.t:.3g}K | tokens_per_sec: {r.rate / 1e3:.3g}K | "
            f"tokens_per_sec_per_gpu: {r.rate / RANKS / 1e3:.3g}K | lm_loss: {r.x:.4g} | grad_norm: 1.5"
        ),
        "trk",
    ),
    "picotron": (
        "step and loss",
        lambda r: (
            f"[rank 0] Step: {r.i:<5d} | Loss: {r.x:6.4f} | Tokens/s: {r.rate / 1e3:.2f}K | Tokens/s/GPU: "
            f"{r.rate / RANKS / 1e3:.2f}K | Tokens: 1.00K/9.00M | MFU: 40.1%"
        ),
        "rk",
    ),
    "build-nanogpt": (
        "step and loss",
        lambda r: (
            f"step {r.i - 1:5d} | loss: {r.x:.6f} | lr 6.0000e-04 | norm: 1.5 | dt: {1e3 * r.t:.2f}ms | "
            f"tok/sec: {r.rate}"
        ),
        "tr",
    ),
    "icefall": (
        "batch and loss",
        lambda r: (
            f"{r.at('%Y-%m-%d %H:%M:%S,%f')} INFO [train.py:8] (0/4) Epoch {r.e}, batch {r.b - 1}, "
            f"loss[loss={r.x:.4f}, over 9 frames. ], tot_loss[loss=9.1], batch size: 40, lr: 2.99e-03"
        ),
        "t",
    ),
    "MLX": (
        "iteration and loss",
        lambda r: f"Iter {r.i}: Train loss {r.x:.3f}, It/sec {1 / r.t:.4f}, Tokens/sec {r.rate:.3f}, Trained Tokens 9",
        "tr",
    ),
    "a time of the day": ("step and loss", lambda r: f"[{r.at('%H:%M:%S.%f')}] step {r.i} loss {r.x:.4f}", "t"),
    "the day of the month behind the month": (
        "step and loss",
        lambda r: f"{r.at('%m/%d/%Y %H:%M:%S')} - INFO - step {r.i} loss {r.x:.4f}",
        "t",
    ),
    "a running time that is called time": ("step and loss", lambda r: f"step {r.i} loss {r.x} time {9 + r.c}s", "t"),
    "thousands": ("step and loss", lambda r: f"step {r.i:,} loss {r.x} {r.rate:,.0f} tok/s", "r"),
    "millions": ("step and loss", lambda r: f"step {r.i} | loss {r.x} | {r.rate / 1e6:.5f}M tokens/s", "r"),
    "K tokens": ("step and loss", lambda r: f"step {r.i} | loss {r.x} | {r.rate / 1e3:.2f} K tokens/s", "r"),
    "means": (
        "step and loss",
        lambda r: f"step {r.i} avg_loss 9.1 loss {r.x} | avg tok/s: 9 | avg step time: 9ms | eta 0:01:12",
        "",
    ),
    "validations between": (
        "step and loss",
        lambda r: f"step {r.i} loss {r.x}" + (f"\n[eval] step {r.i // 10} loss 9.1" if r.i % 10 == 0 else ""),
        "",
    ),
    "modded-nanogpt behind a rank": (
        "modded-nanogpt",
        lambda r: f"[rank0]: step:{r.i}/{STEPS} train_loss:{r.x:.4f} train_time:{1e3 * r.c:.0f}ms step_avg:9.00ms",
        "t",
    ),
    "WeNet": (
        "WeNet",
        lambda r: (
            f"{r.at('%Y-%m-%d %H:%M:%S,%f')} DEBUG TRAIN | steps_per_second 9.1 steps/sec| Batch {r.e}/{r.b - 1} loss "
            f"{r.x:.6f} loss_ctc 9.1 lr 0.00002 rank 0\n2026-01-01 00:00:00,000 DEBUG CV Batch 0/0 loss 9.1"
        ),
        "t",
    ),
    "Marian": (
        "Marian",
        lambda r: (
            f"[{r.at('%Y-%m-%d %H:%M:%S')}] Ep. 1 : Up. {r.i} : Sen. {9_000 + r.i:,} : Cost {r.x:.8f} * 9 : "
            f"Time {r.t:.2f}s : 79921.95 words/s : gNorm 1.1"
        ),
        "t",
    ),
}

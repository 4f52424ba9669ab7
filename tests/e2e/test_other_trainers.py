"""Trainers as people have them, each taken as it is: a logger's table, a logger's lines, a loop that prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.folders import decided

_HEAD = """import csv, logging, os, random, sys, time
steps, out = int(sys.argv[1]), sys.argv[2]
random.seed(1)
def loss_of(step): return 3 / (step + 1) * random.uniform(1, 1.05)
"""

_LIGHTNING = """
names, path = ["epoch", "lr", "step", "tokens_per_sec", "train_loss"], out + "/metrics.csv"
with open(path, "w", newline="") as file:
    csv.DictWriter(file, names).writeheader()
for step in range(steps):
    time.sleep(0.004)
    if (step + 1) % 5 == 0:
        with open(path, "a", newline="") as file:
            row = {"epoch": 0, "lr": 0.1, "step": step, "tokens_per_sec": 5e3 + step % 7, "train_loss": loss_of(step)}
            csv.DictWriter(file, names).writerow(row)
with open(path) as file:
    rows = list(csv.DictReader(file))
with open(path, "w", newline="") as file:
    table = csv.DictWriter(file, [*names, "val_loss"])
    table.writeheader()
    table.writerows([*rows, {"epoch": 0, "step": steps - 1, "val_loss": 0.5}])
"""
"""Counts from 0, logs at the end of every five steps, and writes the table anew when a column joins it."""

_TITAN = """
logging.basicConfig(level=logging.INFO, format="[titan] %(asctime)s - %(levelname)s - %(message)s")
for step in range(1, steps + 1):
    time.sleep(0.004)
    logging.info(f"\\x1b[31mstep: {step:2}  \\x1b[32mloss: {loss_of(step):7.4f}  \\x1b[34mtps: {5000 + step % 7:,}")
"""
"""Logs on standard error, in colors, the rate of one rank."""

_LOOP = """
for step in range(steps):
    time.sleep(0.004)
    if step % 5 == 0:
        print(f"iter {step}: loss {loss_of(step):.4f}, time {4 + step % 7 / 100:.2f}ms")
"""
"""Prints as most loops do: every so many steps, from 0, and not the last one."""


@pytest.mark.parametrize(
    ("trainer", "metrics", "bound"),
    [
        (_LIGHTNING, "csv: metrics.csv, extra: {val_loss: nat}", "val_loss.last < 1 nat"),
        (
            _TITAN,
            r"stdout: 'step: +(?P<step>\d+) +loss: +(?P<loss>[\d.]+) +tps: +(?P<toks_per_s_per_rank>[\d,]+)'",
            "toks_per_s.mean >= 4000 tok/s",
        ),
        (
            _LOOP,
            r"stdout: 'iter (?P<step>\d+): loss (?P<loss>[\d.]+), time (?P<step_time_ms>[\d.]+)ms'",
            "step_time_s.mean <= 0.1 s",
        ),
    ],
)
def test_it_is_judged_as_it_is(cli, workdir: Path, trainer: str, metrics: str, bound: str) -> None:
    (workdir / "theirs.py").write_text(_HEAD + trainer, encoding="utf-8")
    text = f"""\
schema: 1
name: theirs
trainer:
  command: [theirs.py, "{{steps}}", "{{out}}"]
  metrics: {{{metrics}}}
defaults: {{nproc: 0, timeout: 2m, warmup_steps: 20, watchdog: {{interval: 0.1s}}}}
phases:
  - {{id: baseline, kind: train, steps: 300, accept: [loss.last < loss.first, {bound}]}}
"""
    (workdir / "theirs.yaml").write_text(text, encoding="utf-8")
    result = decided(cli("run", "theirs.yaml"), workdir, 0, "GO")
    assert {one["code"] for one in result["findings"]} == {"config-unknown"}

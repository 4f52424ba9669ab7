"""Waits for data that trainers print: each format's, of one step, of all, and as a running mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.validator.diagnose.cases import of_folder
from validator.ingest import collect_dir
from validator.model.metrics import TrainerMetrics
from validator.model.resolve import series_of
from validator.model.result import Series

EPOCH, STEPS, EVERY, WORK_S = 400, 1200, 10, 0.1


class Row(NamedTuple):
    """A line behind step `i` from 1, number `b` of epoch `e`: waits, and times, of the steps of the epoch so far."""

    i: int
    e: int
    b: int
    clock: float
    waits: list[float]
    times: list[float]

    @property
    def at(self) -> datetime:
        return datetime(2026, 3, 4, tzinfo=timezone.utc) + timedelta(seconds=self.clock)

    @property
    def loss(self) -> float:
        return 5 - self.i / STEPS


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def imagenet(r: Row) -> str:
    return (
        f"Epoch: [{r.e}][{r.b:5}/{EPOCH}]\tTime {r.times[-1]:6.3f} ({mean(r.times):6.3f})\tData {r.waits[-1]:6.3f} "
        f"({mean(r.waits):6.3f})\tLoss {r.loss:.4e} (5.0e+00)\tAcc@1   0.00 (  0.00)"
    )


def timm(r: Row) -> str:
    return (
        f"Train: {r.e} [{r.b - 1:4}/{EPOCH} ({r.b:3}%)]  Loss: {r.loss:.3f} (5.1)  Time: {r.times[-1]:.3f}s,  99.0/s  "
        f"(0.11s,  99.0/s)  LR: 1.0e-05  Data: {r.waits[-1]:.3f} ({mean(r.waits):.3f})"
    )


def gnmt(r: Row) -> str:
    return (
        f"0: TRAIN [{r.e}][{r.b - 1}/{EPOCH}]\tTime {r.times[-1]:.3f} ({mean(r.times):.3f})\tData {r.waits[-1]:.2e} "
        f"({mean(r.waits):.2e})\tTok/s 9000 (9100)\tLoss/tok {r.loss:.4f} (5.0)\tLR 1e-3"
    )


def detectron2(r: Row) -> str:
    return (
        f"[{r.at:%m/%d %H:%M:%S} d2.utils.events]:  eta: 1:00:00  iter: {r.i}  total_loss: {r.loss:.4f}  loss_cls: 0.8"
        f"  time: 0.1000  last_time: 0.1  data_time: {mean(r.waits[-EVERY:]):.4f}  last_data_time: 9.1   lr: 0.002"
    )


def mmengine(r: Row) -> str:
    return (
        f"{r.at:%Y/%m/%d %H:%M:%S} - mmengine - INFO - Epoch(train) [{r.e + 1}][{r.b:4}/{EPOCH}]  lr: 5.9e-05"
        f"  eta: 1:00:00  time: {mean(r.times[-EVERY:]):.4f}  data_time: {mean(r.waits[-EVERY:]):.4f}  memory: 7657"
        f"  loss: {r.loss:.4f}"
    )


def mmcv_by_iterations(r: Row) -> str:
    return (
        f"{r.at:%Y-%m-%d %H:%M:%S},{r.at.microsecond // 1000:03} - mmseg - INFO - Iter [{r.i}/{STEPS}]\tlr: 9.9e-03, "
        f"eta: 1:00:00, time: {mean(r.times[-EVERY:]):.3f}, data_time: {mean(r.waits[-EVERY:]):.3f}, memory: "
        f"7657, decode.loss_ce: 2.1, loss: {r.loss:.4f}"
    )


def meters(r: Row) -> str:
    return (
        f"{r.at:%Y-%m-%d %H:%M:%S} Epoch: [{r.e}]  [{r.b - 1:4}/{EPOCH}]  eta: 0:01:12  lr: 0.0001  loss: {r.loss:.4f} "
        f"(5.1)  time: 0.2000  data: {mean(r.waits[-20:]):.4f}  max mem: 900"
    )


def megatron(r: Row) -> str:
    return (
        f" iteration {r.i:8}/{STEPS:8} | consumed samples: 99 | elapsed time per iteration (ms): "
        f"{1e3 * mean(r.times[-EVERY:]):.1f} | learning rate: 2.0E-04 | lm loss: {r.loss:.6E} | grad norm: 1.0 | "
        "number of nan iterations:   0 |\n(min, max) time across ranks (ms):\n    forward ....: (80.01, 90.20)\n"
        f"    batch-generator .....: (0.11, {1e3 * mean(r.waits[-EVERY:]):.2f})"
    )


AT_START = {imagenet, timm, gnmt, meters}
"""Formats whose lines are of the first step, and of each tenth behind it."""


def rows(wait: Callable[[int], float], *, starts: bool, restart_s: float = 0.8) -> Iterator[Row]:
    """The rows of a run whose loader takes `wait(i)` seconds, and `restart_s` more at the start of an epoch."""
    waits = [wait(i) + (restart_s if i % EPOCH == 0 else 0.0) for i in range(STEPS)]
    times = [one + WORK_S for one in waits]
    for i, clock in enumerate(accumulate(times)):
        e, b = divmod(i, EPOCH)
        if (b if starts else b + 1) % EVERY == 0:
            yield Row(i + 1, e, b + 1, clock, waits[e * EPOCH : i + 1], times[e * EPOCH : i + 1])


def healthy(i: int) -> float:
    return 0.0005 + 0.0005 * (i % 3)


def log(tmp_path: Path, lines: Iterator[str]) -> Path:
    (tmp_path / "train.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path / "train.log"


def waits_of(path: Path, pattern: str | None = None) -> Series:
    return collect_dir(path, metrics=None if pattern is None else TrainerMetrics(stdout=pattern)).series["dt_fetch_s"]


def level(found: Series, first: int, last: int) -> float:
    inside = (found.steps > first) & (found.steps <= last)
    return float(np.mean(found.values[inside]))


FORMS = (imagenet, timm, gnmt, detectron2, mmengine, mmcv_by_iterations, meters, megatron)


@pytest.mark.parametrize("form", FORMS)
def test_a_loader_that_stalls_is_seen_in_what_is_printed(form: Callable[[Row], str], tmp_path: Path) -> None:
    """From the middle of the second epoch each step waits as long as it works."""
    path = log(tmp_path, (form(r) for r in rows(lambda i: healthy(i) if i < 600 else 0.1, starts=form in AT_START)))
    found = waits_of(path)
    assert level(found, 20, 390) < 0.01
    assert level(found, 700, 800) > 0.05
    assert level(found, 820, 1200) == pytest.approx(0.1, rel=0.1)
    assert "loader takes" in of_folder(path)["loader-bound"].message


@pytest.mark.parametrize("share", [0.01, 0.1])
@pytest.mark.parametrize("form", FORMS)
def test_a_loader_that_keeps_up_is_no_finding(form: Callable[[Row], str], share: float, tmp_path: Path) -> None:
    """Its start in each epoch is on a line of its own in some formats: one step, where the next line is of ten."""
    path = log(tmp_path, (form(r) for r in rows(lambda _: share * WORK_S, starts=form in AT_START)))
    found = waits_of(path)
    assert level(found, 100, 390) == pytest.approx(share * WORK_S, abs=1.6e-3)
    assert "loader-bound" not in of_folder(path)


@pytest.mark.parametrize("unit", ["s", "ms"])
def test_the_groups_and_their_units(unit: str, tmp_path: Path) -> None:
    scale = 1e3 if unit == "ms" else 1.0
    for group, of in (("dt_fetch", lambda r: mean(r.waits[-EVERY:])), ("own_dt_fetch", lambda r: r.waits[-1])):
        lines = (f"update {r.i} wait {scale * of(r):.6f} cost {r.loss:.4f}" for r in rows(lambda _: 0.02, starts=False))
        pattern = f"update {{step}} wait {{{group}_{unit}}} cost {{loss}}"
        assert level(waits_of(log(tmp_path, lines), pattern), 20, 400) == pytest.approx(0.02)
        assert "dt_fetch_s" in series_of(TrainerMetrics(stdout=pattern))
        assert group == "dt_fetch" or f"{group}_s" not in series_of(TrainerMetrics(stdout=pattern))


@pytest.mark.parametrize("unit", ["s", "ms"])
def test_a_mean_over_the_whole_run_is_taken_apart(unit: str, tmp_path: Path) -> None:
    """No length of an epoch is printed; the first line, in which the loader starts, is only where the others begin."""
    scale = 1e3 if unit == "ms" else 1.0
    waits = [3.0, *(0.001 if i < 600 else 0.05 for i in range(1, STEPS))]
    sums = list(accumulate(waits))
    lines = (f"update {i} wait {scale * sums[i - 1] / i:.6f} cost 2.1" for i in range(EVERY, STEPS + 1, EVERY))
    found = waits_of(log(tmp_path, lines), f"update {{step}} wait {{mean_dt_fetch_{unit}}} cost {{loss}}")
    assert found.steps[0] == 2 * EVERY
    assert float(found.values.max()) < 0.06
    assert level(found, 20, 400) == pytest.approx(0.001, abs=2e-5)
    assert level(found, 800, STEPS) == pytest.approx(0.05, rel=0.2)
    assert float(found.values.sum()) * EVERY == pytest.approx(sum(waits[EVERY:]), rel=0.01)


def test_a_wait_of_a_sampled_step_counts_once(tmp_path: Path) -> None:
    """Each line at the start of an epoch is of a step that waited for the loader's start, as no other did."""
    lines = (f"[{r.e}][{r.b - 1}/{EPOCH}] wait {r.waits[-1]:.4f} cost 2.1" for r in rows(lambda _: 0.002, starts=True))
    pattern = r"\[{epoch}\]\[{step}/{steps_per_epoch}\] wait {own_dt_fetch_s} cost {loss}"
    found = waits_of(log(tmp_path, lines), pattern)
    assert found.values[found.steps == EPOCH + found.steps[0]] == pytest.approx(0.002 + 0.8 / EVERY)


@pytest.mark.parametrize("done", [1, 2])
def test_a_mean_of_one_or_two_lines(done: int, tmp_path: Path) -> None:
    lines = (f"update {10 * i} wait 0.01 took {0.1 * i} cost 2.1" for i in range(1, done + 1))
    pattern = "update {step} wait {mean_dt_fetch_s} took {elapsed_s} cost {loss}"
    found = collect_dir(log(tmp_path, lines), metrics=TrainerMetrics(stdout=pattern)).series.get("dt_fetch_s")
    assert found is None if done == 1 else found is not None and found.values.tolist() == [0.01]

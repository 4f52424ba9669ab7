"""The machine beside a run: what is kept of its samples, and what the charts of it say."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.validator.judge.samples import result
from tests.validator.report import pieces
from validator.model.result import RunEvidence, Samples, SourceFile
from validator.report.charts import phase_figures
from validator.report.specs import ChartData, MachineCharts, RunCharts
from validator.report.thinning import MAX_SAMPLES, machine_charts
from validator.report.timeline import MARKS

SOURCE = SourceFile(path="runs/baseline/r1/logs/telemetry.csv", sha256="0" * 64, bytes=1)
THERMAL, CAP, IDLE = 0x40, 0x4, 0x1


def samples(times: list[float], **columns: list[float]) -> Samples:
    return Samples(SOURCE, np.array(times), {name: np.array(values, dtype=float) for name, values in columns.items()})


def two_gpus(masks: tuple[int, ...] = (IDLE, 0, 0, 0)) -> Samples:
    return samples(
        [1000.0, 1001.0, 1002.0, 1003.0],
        host_cpu_pct=[10, 20, 30, 40],
        gpu0_util_pct=[0, 99, 98, 97],
        gpu1_util_pct=[1, 90, 91, 92],
        gpu0_power_w=[100, 300, 310, 305],
        gpu1_power_w=[100, 280, 290, float("nan")],
        gpu0_temperature_c=[40, 50, 60, 61],
        gpu1_temperature_c=[41, 49, 59, 70],
        gpu0_throttle_mask=list(masks),
    )


def charts_of(found: Samples, *, warmup_end: int | None = None, steps: Any = None) -> MachineCharts:
    made = machine_charts(result(evidence=RunEvidence(samples=found, step_times_s=steps)), warmup_end=warmup_end)
    assert made is not None
    return made


def drawn(**runs: MachineCharts) -> ChartData:
    return ChartData({f"baseline/{name}": RunCharts(f"baseline/{name}", machine=made) for name, made in runs.items()})


def test_each_gpu_has_a_line_and_all_of_them_one() -> None:
    made = charts_of(two_gpus())
    assert [line.device for line in made.lines["util_pct"]] == ["GPU 0", "GPU 1"]
    assert list(made.across["util_pct"].values) == [0, 90, 91, 92], "the least busy one at each moment"
    assert list(made.across["temperature_c"].values) == [41, 50, 60, 70], "the hottest one at each moment"
    assert list(made.across["power_w"].values) == [200, 580, 600], "a sum lacks nobody"
    assert made.across["power_w"].device == "sum of 2 GPUs"
    assert made.lines["host_cpu_pct"][0].steps == (0, 1, 2, 3)
    assert "sm_clock_mhz" not in made.lines


def test_warm_up_ends_when_its_last_step_did() -> None:
    steps = (np.array([1, 2, 3]), np.array([1000.5, 1001.5, 1002.5]))
    made = charts_of(two_gpus(), warmup_end=2, steps=steps)
    assert made.steady_s == 1.5
    assert charts_of(two_gpus(), warmup_end=2).steady_s is None


def test_a_stretch_ends_where_the_reason_does_and_idleness_is_none() -> None:
    made = charts_of(two_gpus((IDLE, THERMAL | CAP, THERMAL, 0)))
    assert [(slow.reason, slow.invalid, slow.from_s, slow.to_s) for slow in made.slowdowns] == [
        ("software power cap", False, 1.0, 2.0),
        ("hardware thermal slowdown", True, 1.0, 3.0),
    ]


def test_samples_behind_a_clock_that_was_set_back_have_no_place() -> None:
    made = charts_of(samples([10, 11, 5, 6, 12], gpu0_util_pct=[1, 2, 3, 4, 5]))
    assert made.lines["util_pct"][0].values == (1, 2, 5)


@pytest.mark.parametrize("times", [[], [1.0], [float("nan"), float("nan")], [3.0, 2.0]])
def test_hardly_a_sample_is_no_chart(times: list[float]) -> None:
    found = samples(times, gpu0_util_pct=[1.0] * len(times))
    assert machine_charts(result(evidence=RunEvidence(samples=found)), warmup_end=None) is None
    assert machine_charts(result(), warmup_end=None) is None


def test_garbage_in_a_mask_is_no_reason() -> None:
    made = charts_of(samples([1, 2, 3, 4], gpu0_throttle_mask=[float("nan"), -1, float("inf"), 1e300]))
    assert made.slowdowns == ()


def test_a_long_run_is_thinned_and_keeps_its_spikes() -> None:
    values = [50.0] * 20_000
    values[12_345] = 91.0
    made = charts_of(samples([float(i) for i in range(20_000)], gpu0_temperature_c=values))
    (line,) = made.lines["temperature_c"]
    assert len(line.values) <= MAX_SAMPLES + 2
    assert max(line.values) == 91.0


def test_the_charts_of_one_run_show_each_gpu() -> None:
    made = charts_of(two_gpus(), warmup_end=1, steps=(np.array([1, 2]), np.array([1001.0, 1002.0])))
    figures = {figure.title: figure for figure in phase_figures(pieces.baseline(), drawn(r1=made))}
    assert list(figures) == ["GPU utilization", "GPU power", "GPU temperature", "CPU"]
    hot = figures["GPU temperature"]
    assert "Lowest 40 °C, highest 70 °C, over 2 lines: GPU 0, GPU 1." in hot.summary
    assert "Gray: start and warm-up, to second 1." in hot.summary
    assert "seconds since the first sample" in hot.svg
    assert json.loads(hot.readout)["over"] == "Second"
    assert [row[1] for row in hot.table.rows] == ["GPU 0", "GPU 1"]


def test_several_runs_have_a_line_each() -> None:
    runs = tuple(pieces.run_report("baseline", repeat=i) for i in (1, 2))
    phase = pieces.baseline().model_copy(update={"runs": runs})
    made = charts_of(two_gpus((0, THERMAL, 0, 0)))
    figures = {figure.title: figure for figure in phase_figures(phase, drawn(r1=made, r2=made))}
    assert "over 2 runs: of each, highest of 2 GPUs." in figures["GPU temperature"].summary
    assert [row[0] for row in figures["GPU temperature"].table.rows] == ["baseline/r1", "baseline/r2"]
    assert "r2: hardware thermal slowdown" in figures["GPU throttling"].svg


def test_what_held_a_gpu_back_is_told_by_sign_share_and_table() -> None:
    made = charts_of(two_gpus((0, THERMAL | CAP, THERMAL, 0)))
    figure = phase_figures(pieces.baseline(), drawn(r1=made))[-1]
    assert figure.title == "GPU throttling"
    assert "hardware thermal slowdown 33.3 %" in figure.summary
    assert "these steps are not measured" in figure.summary
    assert MARKS["✕"] in figure.svg
    assert ("baseline/r1", "GPU 0", "hardware thermal slowdown", "yes", "1", "3") in figure.table.rows

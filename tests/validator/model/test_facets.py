"""A metric that is declared once is found wherever metrics are used: criteria, windows, charts, compare, baseline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.validator.judge.samples import CSV, ar1, judge_all, result, run_record, runbook, series, validation, verdict
from validator.baseline import bounds_of
from validator.compare import validation_side
from validator.compare.metrics import metric_differences
from validator.ingest.read_log import ReadLog
from validator.ingest.telemetry import read_telemetry
from validator.model.record import ValidationRecord
from validator.model.result import Samples
from validator.model.runbook import Runbook, TrainerMetrics
from validator.model.verdict import RunbookRef, ValidationReport
from validator.report.charts import phase_figures, record_charts

OWN = {"unit": "img/s", "better": "higher", "window": "steady", "headline": True}


def book(extra: Any) -> Runbook:
    phase = {"id": "baseline", "kind": "train", "steps": 300, "accept": ["images_per_s.mean >= 90 img/s"]}
    trainer = {"command": ["train.py"], "metrics": {"csv": "m.csv", "extra": {"images_per_s": extra}}}
    return runbook(phase, trainer=trainer, defaults={"nproc": 2})


def record_of(level: float, extra: Any = OWN) -> ValidationRecord:
    """Four runs whose first 20 steps, the warm-up, are ten times slower."""
    declared, runs = book(extra), []
    for n in range(1, 5):
        images = ar1(300, level=level, seed=n)
        images[:20] /= 10
        found = result(f"baseline/r{n}", series={"images_per_s": series("images_per_s", images, unit="img/s")})
        runs.append(run_record("baseline", repeat=n, found=found, metrics=declared.trainer.metrics))
    return validation(declared, {"baseline": runs})


def report_of(record: ValidationRecord) -> ValidationReport:
    return ValidationReport(
        run_id="20250101T000000Z-own",
        runbook=RunbookRef(name="own", path="own.yaml", sha256="0" * 64),
        started="2025-01-01T00:00:00Z",
        finished=None,
        validator_version="0",
        decision="GO",
        why="",
        exit_code=0,
        phases=tuple(judge_all(record).values()),
    )


def test_a_metric_of_the_runbook_is_judged_within_its_window() -> None:
    declared, unit_alone = (verdict(report_of(record_of(100.0, extra)).phases[0], "1") for extra in (OWN, "img/s"))
    assert (declared.status, declared.unit) == ("PASS", "img/s")
    assert declared.ci_low is not None
    assert declared.observed == pytest.approx(100.0, rel=0.01)
    assert (unit_alone.status, unit_alone.ci_low) == ("PASS", None), "every step counts where only the unit is given"
    assert unit_alone.observed == pytest.approx(94.0, rel=0.01)


def test_a_metric_of_the_runbook_is_charted() -> None:
    record = record_of(100.0)
    phases = report_of(record).phases
    figures = phase_figures(phases[0], record_charts(record, phases))
    drawn = next(one for one in figures if one.title == "images_per_s")
    assert "images_per_s.mean >= 90" in drawn.summary


def test_a_metric_of_the_runbook_decides_a_comparison() -> None:
    a, b = (validation_side(report_of(record_of(level)), runbook=book(OWN)) for level in (100.0, 50.0))
    found = {one.metric: one for one in metric_differences(a, b)}
    assert found["images_per_s.mean"].verdict == "worse"
    assert found["images_per_s.mean"].headline
    plain = (validation_side(report_of(record_of(100.0)), runbook=book("img/s")) for _ in "ab")
    assert "images_per_s.mean" not in {one.metric for one in metric_differences(*plain)}, "it has no good direction"


def test_a_good_run_bounds_a_headline_of_the_runbook() -> None:
    bounds = {one.reference: one for one in bounds_of([report_of(record_of(100.0))], runbook=book(OWN), margin=0.01)}
    assert bounds["images_per_s.mean"].operator == ">="
    assert 90 < bounds["images_per_s.mean"].value < 100


def test_a_declaration_is_stored_as_it_was_written() -> None:
    metrics = TrainerMetrics.model_validate({"extra": {"val_loss": "nat", "images_per_s": OWN}})
    stored = metrics.model_dump(mode="json")
    assert stored["extra"] == {"val_loss": "nat", "images_per_s": OWN}
    assert TrainerMetrics.model_validate(stored) == metrics
    with pytest.raises(ValueError, match="better: higher or better: lower"):
        TrainerMetrics.model_validate({"extra": {"images_per_s": {"headline": True}}})


def test_the_power_of_all_gpus_is_a_metric_like_others(tmp_path: Path) -> None:
    """Two GPUs whose powers add up, sampled while 300 steps of 1 s end."""
    sides = []
    for watts in (300.0, 400.0):
        samples = Samples(
            CSV, np.arange(0.5, 300.0), {f"gpu{n}_power_w": ar1(300, level=watts, seed=n) for n in (0, 1)}
        )
        ended = (np.arange(301), np.arange(301.0))
        found, _ = read_telemetry(samples, tmp_path / "telemetry.csv", ended, ReadLog(tmp_path))
        phase = {"id": "baseline", "kind": "train", "steps": 300, "accept": ["gpu_power_w.mean <= 700 W"]}
        declared = runbook(phase, hardware={"gpus": 2}, defaults={"nproc": 2})
        runs = [run_record("baseline", repeat=n, found=result(f"baseline/r{n}", series=found)) for n in range(1, 5)]
        report = report_of(validation(declared, {"baseline": runs}))
        sides.append((verdict(report.phases[0], "1"), validation_side(report, runbook=declared)))
    (low, a), (high, b) = sides
    assert (low.status, high.status) == ("PASS", "FAIL")
    assert low.observed == pytest.approx(600.0, rel=0.01)
    power = next(one for one in metric_differences(a, b) if one.metric == "gpu_power_w.mean")
    assert (power.verdict, power.headline) == ("worse", False)

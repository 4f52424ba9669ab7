"""When is a phase worth further runs, and what do they decide?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from validator.judge import extension_of
from validator.model.record import PhaseRecord, RunRecord, ValidationRecord
from validator.model.verdict import Extension, PhaseReport

from .samples import ar1, judge_all, outcome, result, run_record, runbook, verdict

ACCEPT = "toks_per_s.mean >= 99"


def _judged(
    runs: Sequence[RunRecord], *, accept: Sequence[Any] = (ACCEPT,), extended: Extension | None = None, **more: Any
) -> tuple[PhaseReport, Extension | None]:
    steps = runs[0].spec.steps
    book = runbook({"id": "baseline", "kind": "train", "steps": steps, "accept": list(accept), **more})
    record = PhaseRecord(book.phases[0], "done", tuple(runs), extended=extended)
    report = judge_all(ValidationRecord(book, (record,)))["baseline"]
    return report, extension_of(record, report, runbook=book)


def _runs(count: int, *, level: float = 1.0, steps: int = 300, phi: float = 0.0) -> list[RunRecord]:
    return [_run(n, level=level, steps=steps, phi=phi) for n in range(1, count + 1)]


def _run(repeat: int, *, level: float = 1.0, steps: int = 300, phi: float = 0.0) -> RunRecord:
    times = ar1(steps, cv=0.005, phi=phi, level=level, seed=repeat)
    return run_record("baseline", repeat=max(repeat, 1), steps=steps, found=result(times=times))


def test_a_straddling_run_is_extended_to_four_and_then_decided() -> None:
    """One run at 100 with 2 % assumed between runs does not prove 99; four that agree do."""
    report, extension = _judged(_runs(1))
    assert report.status == "INCONCLUSIVE"
    assert extension == Extension(criteria=("baseline.1",), runs_before=1, runs_after=4)
    report, again = _judged(_runs(4), extended=extension)
    assert report.status == "PASS"
    assert report.extended == extension
    assert "Extended from 1 to 4 runs, since baseline.1 was inconclusive." in report.message
    assert again is None


def test_four_runs_are_extended_to_eight_once_and_then_stay_open() -> None:
    scattered = [
        run_record("baseline", repeat=n, found=result(times=ar1(300, cv=0.005, level=level, seed=n)))
        for n, level in enumerate((0.97, 1.03, 0.97, 1.03), start=1)
    ]
    report, extension = _judged(scattered)
    assert report.status == "INCONCLUSIVE"
    assert extension.runs_after == 8
    assert _judged(scattered, extended=extension)[1] is None


def test_rows_too_few_for_an_interval_are_extended_where_no_reading_is_clear() -> None:
    """A single row after warm-up shows no spread; four runs have theirs between them."""
    rows = [
        run_record("baseline", repeat=n, steps=21, found=result(times=np.full(21, 1.0 + n / 1000))) for n in range(1, 5)
    ]
    report, extension = _judged(rows[:1], accept=["toks_per_s.mean >= 90"])
    assert verdict(report, "1").open_for == "rows"
    assert "a single row has no spread" in verdict(report, "1").message
    assert extension == Extension(criteria=("baseline.1",), runs_before=1, runs_after=4)
    assert _judged(rows, accept=["toks_per_s.mean >= 90"], extended=extension)[0].status == "PASS"


@pytest.mark.parametrize(
    ("runs", "more"),
    [
        (_runs(1, level=0.5), {}),  # decided: passed
        (_runs(1, level=2.0), {}),  # decided: failed
        (_runs(1), {"extend": False}),
        (_runs(1), {"accept": [{"expr": ACCEPT, "required": False}]}),  # nothing depends on it
        (_runs(1), {"accept": [ACCEPT, "gpu_mem_alloc_mib.max <= 1"]}),  # something else is missing too
        (_runs(1), {"kind": "soak"}),
        ([run_record("baseline", ended=outcome("baseline/r1", rc=1))], {}),
    ],
)
def test_nothing_else_is_extended(runs: list[RunRecord], more: dict[str, Any]) -> None:
    assert _judged(runs, **more)[1] is None


def test_a_value_on_its_bound_is_not_worth_further_runs() -> None:
    times = np.tile([0.99, 1.01], 150)
    report, extension = _judged([run_record("baseline", found=result(times=times))], accept=["toks_per_s.mean >= 100"])
    assert report.status == "INCONCLUSIVE"
    assert extension is None

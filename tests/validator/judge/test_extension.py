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
    assert "Extended from 1 to 4 runs, since toks_per_s.mean >= 99 was inconclusive." in report.message
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


RATIO = "toks_per_s.mean >= 0.9 * baseline.toks_per_s.mean"


def _long(
    baseline: np.ndarray, *soaks: np.ndarray, extended: Extension | None = None, accept: str = RATIO, **more: Any
) -> tuple[PhaseReport, Extension | None]:
    """A soak whose rate is compared with that of the baseline, as `init` writes it."""
    phases = (
        {"id": "baseline", "kind": "train", "steps": len(baseline), "accept": ["toks_per_s.mean >= 1"]},
        {"id": "soak", "kind": "soak", "steps": len(soaks[0]), "accept": [accept], **more},
    )
    book = runbook(*phases)
    short = run_record("baseline", steps=len(baseline), found=result(times=baseline))
    long = [
        run_record("soak", repeat=n, kind="soak", steps=len(times), found=result(times=times))
        for n, times in enumerate(soaks, start=1)
    ]
    records = (
        PhaseRecord(book.phases[0], "done", (short,)),
        PhaseRecord(book.phases[1], "done", tuple(long), extended=extended),
    )
    report = judge_all(ValidationRecord(book, records))["soak"]
    return report, extension_of(records[1], report, runbook=book)


def _noisy(steps: int, *, level: float, seed: int, cv: float = 0.3, phi: float = 0.7) -> np.ndarray:
    return np.maximum(ar1(steps, cv=cv, phi=phi, level=level, seed=seed), 0.05)


def test_a_soak_is_run_once_more_where_that_would_decide_it() -> None:
    """A long run that ended open was not extended, while a baseline of a minute was, to four runs."""
    baseline, first = _noisy(12000, level=1.0, seed=1), 1.05 * _noisy(600, level=1.0, seed=2)
    report, extension = _long(baseline, first)
    assert report.status == "INCONCLUSIVE"
    assert "about 930 steps of soak (it had 600) would decide it" in verdict(report, "1").message
    assert extension == Extension(criteria=("soak.1",), runs_before=1, runs_after=2)
    after, again = _long(baseline, first, _noisy(600, level=1.0, seed=5), extended=extension)
    assert after.status == "PASS"
    assert "Extended from 1 to 2 runs" in after.message
    assert again is None
    assert _long(baseline, first, extend=False)[1] is None


def test_a_soak_is_not_extended_where_the_baseline_is_what_is_uncertain() -> None:
    """The next step then names the baseline, and how many steps would show more."""
    report, extension = _long(_noisy(150, level=1.0, seed=1), _noisy(3000, level=1.0, seed=2))
    found = verdict(report, "1")
    assert (report.status, extension) == ("INCONCLUSIVE", None)
    assert found.needed is not None
    assert (found.needed.runs, found.needed.steps) == (None, {"baseline": 500})
    assert "most of its width is that of baseline, and about 500 steps of baseline (it had 150)" in found.message


@pytest.mark.parametrize("level", [0.9, 0.95, 1.0])  # the second on its bound
def test_no_more_than_four_times_the_steps_are_asked_for_at_once(level: float) -> None:
    """It asked for 4,000 steps in place of 200, where 800 decided it: with more rows the value moves, too."""
    baseline = _noisy(150, level=1.0, seed=1, cv=0.5)
    found = verdict(_long(baseline, level * _noisy(3000, level=1.0, seed=2))[0], "1")
    assert found.status == "INCONCLUSIVE"
    assert found.needed is not None
    assert 150 < found.needed.steps["baseline"] <= 600
    assert "would show more" in found.message


def test_a_soak_that_one_more_run_would_leave_open_is_left_as_it_is() -> None:
    report, extension = _long(_noisy(12000, level=1.0, seed=1), 1.08 * _noisy(600, level=1.0, seed=2))
    needed = verdict(report, "1").needed
    assert (report.status, extension) == ("INCONCLUSIVE", None)
    assert needed is not None
    assert needed.runs is not None
    assert needed.runs > 2


def test_where_only_repeats_can_decide_they_are_named() -> None:
    """Long steady runs whose distance from the bound is within the variation that is assumed between runs."""
    calm, other = (_noisy(2000, level=1.0, seed=seed, cv=0.01, phi=0.0) for seed in (1, 2))
    report, extension = _long(calm, 1.07 * other)
    found = verdict(report, "1")
    assert extension is None
    assert found.needed is not None
    assert found.needed.repeats == {"baseline": 4, "soak": 4}
    assert "4 repeats of soak, baseline would measure the variation between runs" in found.message

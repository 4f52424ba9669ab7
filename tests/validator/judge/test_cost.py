"""What tokens cost, as criteria, phases and `compare` see it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from tests.validator.judge.samples import judge_all, result, run_record, runbook, validation, verdict
from tests.validator.model.test_facets import report_of
from validator.compare.contrast import contrast
from validator.compare.metrics import Side, validation_side
from validator.model.record import RunRecord, ValidationRecord
from validator.model.result import RunEvidence
from validator.model.verdict import PhaseReport
from validator.report.build_runs import phase_facts

PRICE: dict[str, Any] = {"price_per_gpu_hour": 3.6, "currency": "USD"}
PER_MILLION = 20.0
"""Two GPUs for 7.2 an hour at 100 tok/s: 0.002 a second, 0.00002 a token."""


def record(
    *accept: str,
    tokens: float = 100.0,
    hardware: dict[str, Any] = PRICE,
    run: RunRecord | None = None,
    **more: Any,
) -> ValidationRecord:
    phase = {"id": "baseline", "kind": "train", "steps": 300, "accept": list(accept), **more.pop("phase", {})}
    book = runbook(phase, defaults={"nproc": 2}, hardware=hardware, **more)
    return validation(book, {"baseline": [run or run_record("baseline", found=result(tokens=tokens))]})


def judged(*accept: str, **more: Any) -> PhaseReport:
    return judge_all(record(*accept, **more))["baseline"]


def test_a_criterion_is_decided_by_the_interval_that_the_rate_gives_the_cost() -> None:
    texts = [f"cost.per_million_tokens <= {bound} USD" for bound in (25, 20.1, 15)]
    report = judged(*texts)
    assert [verdict(report, str(n)).status for n in (1, 2, 3)] == ["PASS", "INCONCLUSIVE", "FAIL"]
    found = verdict(report, "1")
    assert found.observed == pytest.approx(PER_MILLION, rel=0.005)
    assert found.unit == "USD"
    assert any("toks_per_s of baseline/r1" in one.text for one in found.evidence)
    rate = report.runs[0].metrics["toks_per_s"]
    scalar = report.scalars["cost.per_million_tokens"]
    assert scalar.unit == "USD"
    assert scalar.ci_low is not None
    assert scalar.ci_high is not None
    # One run: the interval holds that of its rate, and the variation between runs that is assumed.
    assert scalar.ci_low < 2000 / rate.ci_high
    assert scalar.ci_high > 2000 / rate.ci_low
    assert scalar.ci_low > 0.9 * PER_MILLION
    assert "3.6 USD per GPU and hour" in (scalar.note or "")
    shown = next(fact.value for fact in phase_facts(report) if fact.name == "cost.per_million_tokens")
    assert re.fullmatch(r"(19\.9|20(\.0)?)\d* USD \[19\.\d+, 20\.\d+\]", shown), shown


@pytest.mark.parametrize(
    ("trainer", "tokens"),
    [
        ({"planned_tokens": 5 * 10**9}, 5e9),
        ({"planned_steps": 1000, "tokens_per_step": 100}, 1e5),
        ({"planned_steps": 1000}, 1.5e5),
    ],
)
def test_the_planned_run_costs_its_tokens(trainer: dict[str, Any], tokens: float) -> None:
    run = run_record("baseline", found=result(evidence=RunEvidence(tokens_per_step=150.0)))
    report = judged(f"cost.planned_run <= {PER_MILLION * tokens / 1e6 * 1.2}", trainer=trainer, run=run)
    assert verdict(report, "1").status == "PASS"
    assert report.scalars["cost.planned_run"].value == pytest.approx(PER_MILLION * tokens / 1e6, rel=0.005)


def test_planned_steps_without_their_tokens_are_not_measured() -> None:
    report = judged("cost.planned_run <= 1", trainer={"planned_steps": 1000})
    assert verdict(report, "1").status == "INCONCLUSIVE"
    assert "planned_steps" in verdict(report, "1").message
    assert report.scalars["cost.planned_run"].value is None


def test_ranks_that_the_trainer_starts_itself_are_paid_for() -> None:
    found = result(evidence=RunEvidence(world_size=8))
    report = judged(phase={"nproc": 0}, run=run_record("baseline", found=found, nproc=0))
    assert report.scalars["cost.per_million_tokens"].value == pytest.approx(4 * PER_MILLION, rel=0.005)
    fewer = result(evidence=RunEvidence(world_size=1))
    report = judged(run=run_record("baseline", found=fewer))
    assert report.scalars["cost.per_million_tokens"].value == pytest.approx(PER_MILLION, rel=0.005)


def test_ranks_that_nobody_knows_cost_all_gpus_of_the_hardware() -> None:
    unknown, hardware = run_record("baseline", found=result(), nproc=0), {**PRICE, "gpus": 8}
    report = judged(phase={"nproc": 0}, run=unknown, hardware=hardware)
    assert report.scalars["cost.per_million_tokens"].value == pytest.approx(4 * PER_MILLION, rel=0.005)
    found = cost_difference(
        side(phase={"nproc": 0}, run=unknown, hardware=hardware), side(phase={"nproc": 2}, hardware=hardware)
    )
    assert (found.a.value, found.b.value) == (
        pytest.approx(4 * PER_MILLION, rel=0.005),
        pytest.approx(PER_MILLION, rel=0.005),
    )


def test_without_a_price_or_a_rate_there_is_no_cost() -> None:
    assert judged(hardware={}).scalars == {}
    report = judged("cost.per_million_tokens <= 25", run=run_record("baseline", found=result(without=("toks_per_s",))))
    assert verdict(report, "1").status == "INCONCLUSIVE"
    assert report.scalars["cost.per_million_tokens"].value is None


def test_a_run_that_fails_passes_no_cost() -> None:
    failed = run_record("baseline")
    assert failed.outcome is not None
    attempt = failed.outcome.last.model_copy(update={"rc": 1})
    failed = replace(failed, outcome=failed.outcome.model_copy(update={"attempts": (attempt,)}))
    assert verdict(judged("cost.per_million_tokens <= 25", run=failed), "1").status == "INCONCLUSIVE"


def side(**more: Any) -> Side:
    made = record(**more)
    return validation_side(report_of(made), runbook=made.runbook)


def cost_difference(a: Side, b: Side) -> Any:
    return next((one for one in contrast(a, b).metrics if one.metric == "cost.per_million_tokens"), None)


def test_compare_shows_the_cost_and_its_direction() -> None:
    found = cost_difference(side(), side(tokens=50.0))
    assert (found.a.value, found.b.value) == (pytest.approx(20, rel=0.005), pytest.approx(40, rel=0.005))
    assert found.unit == "USD"
    assert (found.verdict, found.headline) == ("worse", False)
    dearer = cost_difference(side(), side(hardware={**PRICE, "price_per_gpu_hour": 7.2}))
    assert dearer.verdict == "worse"
    assert cost_difference(side(), side()).verdict != "worse"


def test_compare_mixes_no_currencies_and_needs_both_prices() -> None:
    assert cost_difference(side(hardware={}), side()) is None
    found = cost_difference(side(), side(hardware={**PRICE, "currency": "EUR"}))
    assert found.verdict == "not_decidable"
    assert "USD there, in EUR here" in found.message

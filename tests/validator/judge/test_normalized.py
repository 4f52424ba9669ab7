"""Criteria that hold on another card: shares of what the machine was measured to do, and of another phase."""

from __future__ import annotations

import pytest

from validator.model.result import ScalarValue
from validator.model.verdict import Verdict

from .samples import ar1, judge_all, result, run_record, runbook, series, validation, verdict


def _judged(
    *accept: str, gemm: float | None = 700.0, bus: float | None = 450.0, rate: float = 100.0
) -> dict[str, Verdict]:
    """A preflight with probes, a baseline on four runs, and a later phase with these criteria."""
    book = runbook(
        {"id": "preflight", "kind": "preflight", "probe": True},
        {"id": "baseline", "kind": "train", "steps": 300},
        {"id": "later", "kind": "train", "steps": 300, "accept": list(accept)},
        hardware={"gpus": 2},
        defaults={"nproc": 2},
    )
    probes = {"probe.gemm_tflops": gemm, "probe.all_reduce_gb_s": bus}
    known = {name: ScalarValue(value=value) for name, value in probes.items() if value is not None}
    probe = run_record("preflight", kind="preflight", found=result(scalars=known, without=("toks_per_s",)), steps=None)
    runs = {
        "preflight": [probe],
        "baseline": [run_record("baseline", repeat=n, found=_found(100.0, n)) for n in range(1, 5)],
        "later": [run_record("later", repeat=n, found=_found(rate, 10 + n)) for n in range(1, 5)],
    }
    report = judge_all(validation(book, runs))["later"]
    return {text: verdict(report, str(n)) for n, text in enumerate(accept, start=1)}


def _found(rate: float, seed: int):  # type: ignore[no-untyped-def]
    times = ar1(300, cv=0.005, seed=seed)
    more = {
        "mfu_nsa": series("mfu_nsa", 0.004 * rate / times),
        "model_tflops_per_s_per_rank": series("model_tflops_per_s_per_rank", 3.5 * rate / times, unit="TFLOP/s"),
    }
    return result(tokens=rate, times=times, series=more)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("mfu_nsa.mean >= 0.35", "PASS"),
        ("mfu_nsa.mean >= 0.45", "FAIL"),
        ("model_tflops_per_s_per_rank.mean >= 0.45 * preflight.probe.gemm_tflops", "PASS"),
        ("model_tflops_per_s_per_rank.mean / preflight.probe.gemm_tflops >= 0.45", "PASS"),
        ("model_tflops_per_s_per_rank.mean >= 0.55 * preflight.probe.gemm_tflops", "FAIL"),
        ("preflight.probe.all_reduce_gb_s >= 400 GB/s", "PASS"),
        ("toks_per_s.mean >= 0.95 * baseline.toks_per_s.mean", "PASS"),
        ("toks_per_s.mean >= 1.05 * baseline.toks_per_s.mean", "FAIL"),
        ("toks_per_s.mean / baseline.toks_per_s.mean >= 0.95", "PASS"),
    ],
)
def test_a_share_is_judged_like_any_number(text: str, status: str) -> None:
    found = _judged(text)[text]
    assert found.status == status, found.message
    assert found.bound is not None


def test_a_faster_card_asks_for_more() -> None:
    """The same rate is half of what one card can do and a third of what another can."""
    text = "model_tflops_per_s_per_rank.mean >= 0.45 * preflight.probe.gemm_tflops"
    assert _judged(text)[text].status == "PASS"
    assert _judged(text, gemm=1050.0)[text].status == "FAIL"


def test_a_probe_that_was_not_made_passes_nothing() -> None:
    text = "model_tflops_per_s_per_rank.mean >= 0.45 * preflight.probe.gemm_tflops"
    found = _judged(text, gemm=None)[text]
    assert found.status == "INCONCLUSIVE"
    assert "probe.gemm_tflops" in found.message


def test_a_share_of_another_phase_carries_the_variation_of_both() -> None:
    ratio = "toks_per_s.mean / baseline.toks_per_s.mean >= 0.5"
    absolute = "toks_per_s.mean >= 50"
    found = _judged(ratio, absolute)
    widths = [
        (one.ci_high - one.ci_low) / float(one.observed)
        for one in (found[ratio], found[absolute])
        if one.ci_high is not None and one.ci_low is not None and one.observed is not None
    ]
    assert widths[0] > widths[1]

"""Comparisons and bisections in a terminal: within its width, in plain words, without control characters."""

from __future__ import annotations

import pytest

from tests.validator.report import samples
from tests.validator.report.test_terminal import paths
from validator.bisect.answer import Bisection, BisectTrial, Cause, DifferingSetting, bisection_lines
from validator.model.contrast import (
    ContrastReport,
    ContrastSide,
    CriterionDifference,
    FindingDifference,
    MetricDifference,
    Sample,
    SettingDifference,
)
from validator.report.contrast import contrast_lines
from validator.report.terminal.lines import text_width
from validator.report.terminal.summary import summary_lines

HOSTILE = "\x1b[2Jgone\u202e"


def contrast(*, verdict: str = "worse", name: str = "seq_len") -> ContrastReport:
    metric = MetricDifference(
        phase="baseline",
        metric="toks_per_s.mean",
        unit="tok/s",
        better="higher",
        a=Sample(value=100.0, runs=1),
        b=Sample(value=98.0, runs=1),
        change=-0.02,
        change_low=-0.07,
        change_high=0.04,
        verdict="not_decidable",
        repeats_needed=17,
        headline=True,
        message="100 → 98 tok/s: about 17 runs per side are needed.",
    )
    return ContrastReport.model_validate(
        {
            "a": ContrastSide(kind="validation", name="monday", decision="GO", machine="2 x H200, NVLink"),
            "b": ContrastSide(kind="validation", name="tuesday", decision="NO_GO"),
            "verdict": verdict,
            "message": "Worse: baseline.1 passed and now is FAIL.",
            "caveats": ("the machine is not the same: 2 x H200, NVLink against unknown",),
            "settings": (SettingDifference(name=name, a="2048", b=None, where="config", phases=("baseline",)),),
            "metrics": (metric,),
            "criteria": (CriterionDifference(id="baseline.1", text="x >= 1", required=True, a="PASS", b="FAIL"),),
            "findings_gained": (FindingDifference(code="host-bound", severity="warning", message="The host waits."),),
        }
    )


def bisection(outcome: str = "explained") -> Bisection:
    setting = DifferingSetting(name="env.NSA_PREFILL_BATCHED", good=None, bad=0)
    return Bisection.model_validate(
        {
            "good": "fast",
            "bad": "slow",
            "metric": "toks_per_s.mean",
            "unit": "tok/s",
            "outcome": outcome,
            "message": "env.NSA_PREFILL_BATCHED (unset → 0) explains 100 → 20 tok/s.",
            "differences": (setting, DifferingSetting(name="args.lr", good=1, bad=2)),
            "causes": (Cause(settings=(setting,), share=0.97, factor=4.9),),
            "trials": (
                BisectTrial(number=1, from_bad=(), value=100.0, share=0.0, duration_s=1.0),
                BisectTrial(number=2, from_bad=("args.lr",), value=None, duration_s=1.0, why=f"{HOSTILE} " * 30),
            ),
            "folder": "reports/x",
        }
    )


def test_a_comparison_tells_everything_that_differs() -> None:
    text = "\n".join(contrast_lines(contrast()))
    for part in ("WORSE", "monday", "! the machine", "seq_len", "2048", "toks_per_s.mean", "-2.0 %"):
        assert part in text
    assert "17 runs per side are needed" in " ".join(text.split())
    for part in ("baseline.1", "Findings gained or lost", "host-bound", "warning", "The host waits."):
        assert part in text


@pytest.mark.parametrize("width", [80, 120])
def test_comparisons_and_bisections_fit_the_width(width: int) -> None:
    for line in (*contrast_lines(contrast(), width=width), *bisection_lines(bisection(), width=width)):
        assert text_width(line) <= width


def test_foreign_text_cannot_steer_the_terminal() -> None:
    found = contrast(name=HOSTILE)
    found = found.model_copy(update={"b": found.b.model_copy(update={"machine": HOSTILE, "decision": HOSTILE})})
    text = "\n".join((*contrast_lines(found), *bisection_lines(bisection())))
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_a_bisection_shows_its_causes_its_runs_and_how_to_go_on() -> None:
    text = "\n".join(bisection_lines(bisection()))
    for part in ("FOUND", "97 %", "4.90×", "none: good as it is", "unset"):
        assert part in text
    assert "--resume" not in text
    assert "validator bisect --resume reports/x" in "\n".join(bisection_lines(bisection("budget_spent")))


def test_the_summary_tells_what_changed_since_the_last_go() -> None:
    report = samples.no_go().model_copy(update={"since": contrast()})
    text = " ".join("\n".join(summary_lines(report, paths())).split())
    assert "Since monday, the last GO that compares: Worse: baseline.1 passed" in text
    assert "Since" not in "\n".join(summary_lines(samples.no_go(), paths()))

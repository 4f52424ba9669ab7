"""The report that attacks every rendering: foreign text in each field that can hold some."""

from __future__ import annotations

from tests.validator.report.frame import report_of
from tests.validator.report.pieces import run_report, stats, verdict
from validator.model.contrast import (
    ContrastReport,
    ContrastSide,
    CriterionDifference,
    FindingDifference,
    MetricDifference,
    Sample,
    SettingDifference,
)
from validator.model.result import ScalarValue
from validator.model.verdict import (
    ArmComparison,
    Artifact,
    Check,
    ComparedArm,
    Evidence,
    Finding,
    PhaseReport,
    Recommendation,
    RunbookRef,
    ValidationReport,
)

__all__ = ["HOSTILE", "hostile"]

HOSTILE = (
    "</script></style></svg><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31mred\x1b[0m\x00\x07"
    '\u202eevil\u202c |cell| `code` ``` [link](javascript:alert(3)) {{ 7*7 }} {% raw %} $(rm -rf /) \'; rm "quoted" '
    "]]> & &amp; @everyone #1 https://evil.example/ \ud800 \ufffe"
)
"""Every trick that a log line or a file name may try."""


def hostile() -> ValidationReport:
    """Foreign text that attacks in every field that can hold some."""
    text = HOSTILE
    run = run_report(
        "baseline",
        arm=text,
        command=("python", text),
        env={"X": text},
        requested={text: text, "a": text},
        effective={text: "other", "deep": {"a": {"b": [text]}}},
        irregularities=(text,),
        out=text,
        log=text,
        outcome={
            "rc": 1,
            "reason": text,
            "duration_s": 1.0,
            "detail": text,
            "attempts": [
                {"number": text, "reason": text, "detail": text, "bundle": [text], "started": text, "duration_s": 1.0},
                {"number": 2, "rc": 1, "reason": text, "started": "2025-08-27T14:04:11Z", "duration_s": 1.0},
            ],
        },
        metrics={text: stats(1.0, unit=text, source=text, note=text), "loss": stats(2.0, unit="nat")},
        scalars={text: ScalarValue(value=text, unit=text, source="javascript:alert(1)")},
    )
    evidence = (
        Evidence(path="../../etc/passwd", where=text, text=text),
        Evidence(path="https://evil.example/", text=text),
    )
    phase = PhaseReport(
        id="baseline",
        kind="train",
        title=text,
        why=text,
        status="FAIL",
        message=text,
        runs=(run,),
        criteria=(verdict(text, text, "FAIL", observed=text, bound=text, unit=text, message=text, evidence=evidence),),
        checks=(
            Check(id=text, title=text, status="FAIL", observed=text, expected=text, message=text, evidence=evidence),
        ),
        comparison=ArmComparison(
            metric=text,
            unit=text,
            direction="highest",
            outcome="no_difference",
            recommended=text,
            min_effect=0.02,
            message=text,
            arms=tuple(
                ComparedArm(
                    arm=name, settings={text: text}, run_means=(1.0, 2.0), mean=1.5, ci_low=1.0, ci_high=2.0, stdev=0.5
                )
                for name in (text, "plain")
            ),
        ),
    )
    return report_of(
        "NO_GO",
        text,
        1,
        (phase,),
        run_id="hostile",
        environment={text: {text: [text]}, "list": [{text: text}]},
        runbook=RunbookRef(name=text, path=text, sha256=text, title=text, description=text, overrides=(text,)),
        findings=(
            Finding(
                code=text,
                severity="veto",
                confidence="low",
                phase=text,
                run=text,
                message=text,
                evidence=evidence,
                next_step=text,
            ),
        ),
        recommended=Recommendation(env={"GOOD": text, text: text}, command=text, because=(text,)),
        artifacts=(Artifact(path=text, bytes=1, sha256=text), Artifact(path="/etc/passwd", bytes=1, sha256=None)),
        since=_contrast(text),
        validator_version=text,
    )


def _contrast(text: str) -> ContrastReport:
    """A comparison with the last GO that says the text wherever it can."""
    metric = MetricDifference(
        phase=text,
        arm=text,
        metric=text,
        unit=text,
        better="higher",
        a=Sample(value=100.0, ci_low=99.0, ci_high=101.0, runs=1),
        b=Sample(value=90.0, runs=1),
        change=-0.1,
        change_low=-0.12,
        change_high=-0.08,
        verdict="not_decidable",
        repeats_needed=4,
        headline=True,
        message=text,
    )
    finding = FindingDifference(code=text, severity=text, phase=text, message=text)
    return ContrastReport(
        a=ContrastSide(kind="validation", name=text, path=text, decision="GO", started=text),
        b=ContrastSide(kind="validation", name=text),
        verdict="worse",
        message=text,
        caveats=(text,),
        settings=(SettingDifference(name=text, a=text, b=None, where="config", phases=(text,)),),
        metrics=(metric,),
        criteria=(CriterionDifference(id=text, text=text, required=True, a=text, b=None),),
        findings_gained=(finding,),
        findings_lost=(finding,),
    )

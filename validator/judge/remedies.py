"""What was tried after a phase had failed: told in full, and never taken for a pass of what was declared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from validator.judge.wording import listed
from validator.model.record import PhaseRecord
from validator.model.remedy import Remedy
from validator.model.verdict import PhaseReport, RemedyReport

__all__ = ["told_settings", "trigger_of", "with_remedies"]


def with_remedies(report: PhaseReport, record: PhaseRecord, judge: Callable[[PhaseRecord], PhaseReport]) -> PhaseReport:
    """The report of a phase with every go at it, each judged by the same criteria.

    Args:
        report: the phase as decided.
        judge: judges another go at the phase.
    """
    if not record.tried:
        return report
    goes = []
    for tried in record.tried:
        judged = judge(replace(record, runs=tried.runs, tried=(), remedy=tried.remedy))
        goes.append(_go(tried.remedy, judged, decides=False))
    decided = _go(record.remedy, report, decides=True)
    goes.insert(len(goes) if record.remedy is not None else 0, decided)
    message = report.message if record.state == "interrupted" else _message(report, goes)
    return report.model_copy(update={"remedies": tuple(goes), "message": message})


def _go(remedy: Remedy | None, judged: PhaseReport, *, decides: bool) -> RemedyReport:
    own = None if remedy is None else remedy.name
    return RemedyReport(
        name=own,
        settings={} if remedy is None else remedy.settings,
        keeps_config=remedy is None or remedy.keeps_config(judged.kind),
        decides=decides,
        status=judged.status,
        message=judged.message,
        runs=tuple(run.id for run in judged.runs if run.remedy == own),
    )


def _message(report: PhaseReport, goes: list[RemedyReport]) -> str:
    deciding = next(go for go in goes if go.decides)
    if deciding.name is not None:
        first = goes[0].message.rstrip(".")
        return f"{report.message.rstrip('.')}, after remedy {deciding.name}; before it: {first}."
    helped = [go for go in goes if go.name is not None and go.status == "PASS"]
    if helped:
        settings = told_settings(helped[0].settings)
        return f"{report.message} With remedy {helped[0].name} ({settings}) it passes; the declared config does not."
    names = listed([str(go.name) for go in goes if go.name is not None])
    return f"{report.message} Remedies tried in vain: {names}."


def told_settings(settings: Mapping[str, object]) -> str:
    """`NSA_DDP_BUCKET_MB=50, steps=50`."""
    pairs = [f"{key.split('.', 1)[-1]}={value}" for key, value in settings.items()]
    return ", ".join(pairs) or "no setting"


def trigger_of(record: PhaseRecord) -> str:
    """Why a phase failed, in the words of `on_failure`: a stall, another bad end, or a criterion."""
    outcomes = [run.outcome for run in record.runs if run.outcome is not None]
    if any(outcome.reason in ("stalled", "timeout") for outcome in outcomes):
        return "stall"
    return "error" if any(not outcome.ok for outcome in outcomes) else "criterion"

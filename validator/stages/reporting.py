"""From records to a decision and its reports: judge, diagnose, decide, write."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from validator.folder import RunFolder, utc_now
from validator.model.runbook import SoakPhase, TrainPhase
from validator.model.verdict import (
    Artifact,
    Decision,
    PhaseReport,
    Recommendation,
    RunbookRef,
    ValidationReport,
)
from validator.stages.disk import end_of, ending, events_of, last_runner, pending, reconstruct
from validator.stages.session import Session

if TYPE_CHECKING:
    from validator.model.record import PhaseRecord, ValidationRecord
    from validator.report.write import ReportPaths
    from validator.stages.phases import State

__all__ = [
    "assemble",
    "finish",
    "judge",
    "judge_latest",
    "render",
    "rerender",
]


def judge(record: ValidationRecord) -> tuple[PhaseReport, ...]:
    """Judge every phase in order; later phases may refer to earlier ones."""
    from validator.judge import judge_phase

    judged: dict[str, PhaseReport] = {}
    for phase in record.phases:
        judged[phase.phase.id] = judge_phase(phase, validation=record, judged=judged)
    return tuple(judged.values())


def judge_latest(folder: RunFolder, records: Sequence[PhaseRecord], judged: Mapping[str, PhaseReport]) -> PhaseReport:
    """Judge the phase that was run last, in the light of those before it."""
    from validator.judge import judge_phase

    return judge_phase(records[-1], validation=pending(folder, records), judged=judged)


def render(
    folder: RunFolder,
    record: ValidationRecord,
    phases: tuple[PhaseReport, ...],
    *,
    finished: str | None,
    duration_s: float | None,
    into: Path | None = None,
) -> tuple[ValidationReport, ReportPaths]:
    """Name causes, decide, and write result.json and its renderings, into the run folder unless told otherwise."""
    from validator.report.view import record_charts
    from validator.report.write import write_all
    from validator.stages.comparing import since_last_go
    from validator.stages.outlook import outlook_of
    from validator.stages.share import is_shared

    report = assemble(folder, record, phases, finished=finished, duration_s=duration_s)
    if report.decision == "IN_PROGRESS":
        report = report.model_copy(update={"outlook": outlook_of(folder)})
    elif not is_shared(folder):  # its neighbors are whoever's it was sent to
        try:
            report = report.model_copy(update={"since": since_last_go(folder, report)})
        except Exception as error:  # noqa: BLE001 -- a neighbor is foreign, and no part of this decision
            sys.stderr.write(f"the last GO cannot be compared with: {type(error).__name__}: {error}\n")
    return report, write_all(report, record_charts(record, phases), into or folder.root)


def assemble(
    folder: RunFolder,
    record: ValidationRecord,
    phases: tuple[PhaseReport, ...],
    *,
    finished: str | None,
    duration_s: float | None,
) -> ValidationReport:
    """Name causes and decide; nothing is written, and nothing is compared with other validations."""
    from validator.diagnose import diagnose
    from validator.judge import decide, recommend

    findings = diagnose(record, phases)
    decision, why = decide(phases, findings, pending=_pending(record))
    header = folder.header
    return ValidationReport(
        run_id=header.run_id,
        runbook=RunbookRef(
            name=header.runbook.name,
            path=header.runbook_path,
            sha256=header.runbook_sha256,
            title=header.runbook.title,
            description=header.runbook.description,
            overrides=header.overrides,
        ),
        started=header.started,
        finished=finished,
        duration_s=duration_s,
        decision=decision,
        why=_as_changed(why, header.overrides) if decision == "GO" else why,
        exit_code=_exit_code(decision, record),
        phases=phases,
        findings=findings,
        recommended=_recommended(recommend(phases, runbook=header.runbook, command=_launch_command(record))),
        environment=dict(record.environment),
        artifacts=() if decision == "IN_PROGRESS" else _artifacts(folder),
        validator_version=header.validator_version,
    )


def _artifacts(folder: RunFolder) -> tuple[Artifact, ...]:
    """Every file but the renderings. A name may hold a secret where the runner was killed before it was masked."""
    from validator.observe.redact import redact_output

    return tuple(
        Artifact(path=redact_output(path), bytes=size, sha256=digest) for path, size, digest in folder.artifacts()
    )


def _as_changed(why: str, overrides: Sequence[str]) -> str:
    """A GO is about what was declared; what the command line changed in that belongs into the same breath."""
    return f"{why} The runbook was changed by {', '.join(f'--set {one}' for one in overrides)}." if overrides else why


def _recommended(found: Recommendation) -> Recommendation:
    """Without secrets: sourcing `[redacted]` would take a user's own credentials away."""
    from validator.observe.redact import REDACTED

    return found.model_copy(update={"env": {name: value for name, value in found.env.items() if REDACTED not in value}})


def _launch_command(record: ValidationRecord) -> str | None:
    """The command to train with the declared settings: that of the widest train or soak phase that ran last."""
    import shlex

    from validator.plan import launch_words

    ran = [
        (run.spec.nproc, place, phase.phase, run.spec)
        for place, phase in enumerate(record.phases)
        if isinstance(phase.phase, (TrainPhase, SoakPhase))
        for run in phase.runs
    ]
    if not ran:
        return None
    *_, phase, spec = max(ran, key=lambda one: one[:2])
    return f"source recommended.env && {shlex.join(launch_words(record.runbook, phase, spec))}"


def _pending(record: ValidationRecord) -> tuple[str, ...]:
    return tuple(phase.phase.id for phase in record.phases if phase.state in ("pending", "running"))


def _exit_code(decision: Decision, record: ValidationRecord) -> int | None:
    """The decision's exit code; an interrupted run says so whatever its verdict."""
    from validator.judge import exit_code

    if any(phase.state == "interrupted" for phase in record.phases):
        return 130
    return exit_code(decision)


def finish(session: Session, state: State) -> tuple[ValidationReport, ReportPaths]:
    """Judge the whole once more in the light of every phase, write the reports, and show the decision."""
    session.so_far.close()  # what is written from here on is the last
    record = pending(session.folder, state.records)
    finished, duration_s = utc_now(), round(time.monotonic() - session.began, 3)
    session.journal.append(
        "interrupted" if session.cancel.requested else "finished", finished=finished, duration_s=duration_s
    )
    report, paths = render(session.folder, record, judge(record), finished=finished, duration_s=duration_s)
    try:
        session.observer.finished(report, paths)
    except Exception as error:  # noqa: BLE001 -- the decision is written, whatever becomes of its display
        sys.stderr.write(f"{report.decision}; it cannot be shown here: {type(error).__name__}: {error}\n")
    return report, paths


def rerender(folder: RunFolder) -> tuple[ValidationReport, ReportPaths]:
    """Judge a run folder again from what is on disk, and write its reports anew.

    A copy for strangers whose result.json had to be written without white space keeps it so, since its size is bounded.
    A validation that ended while this was at work is judged once more: its last report must not be an earlier one's.
    """
    from validator.stages.share import compact, is_compact, is_shared, readable

    was_compact = is_shared(folder) and is_compact(folder)
    with readable(folder) as unpacked:
        record, (finished, duration_s) = reconstruct(unpacked), end_of(folder)
    report, paths = render(folder, record, judge(record), finished=finished, duration_s=duration_s)
    if report.decision == "IN_PROGRESS" and ending(events_of(folder)):
        return rerender(folder)
    if not last_runner(folder, events_of(folder)).alive():
        shutil.rmtree(folder.drawing, ignore_errors=True)  # a runner that was killed could not
    if was_compact:
        compact(folder)
    return report, paths

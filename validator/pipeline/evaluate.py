"""From the records of a run folder to its report: judge, diagnose, decide; and the report that is stored there."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from validator.diagnose import diagnose
from validator.errors import ExitCode, FolderError
from validator.files import Tree
from validator.judge import decide, judge_phase, recommend
from validator.model.catalogue import METRICS, version_of
from validator.model.record import PhaseRecord, ValidationRecord
from validator.model.runbook import TrainingPhase
from validator.model.verdict import Artifact, Decision, PhaseReport, Recommendation, RunbookRef, ValidationReport
from validator.pipeline.fleet import fleet
from validator.plan import launch_words
from validator.runs.folder import RunFolder
from validator.runs.replay import RunEnd, end_of, events_of, pending, readable, reconstruct
from validator.secrets.redact import REDACTED, redact_output


def judge(record: ValidationRecord) -> tuple[PhaseReport, ...]:
    """Judge every phase in order; later phases may refer to earlier ones."""
    judged: dict[str, PhaseReport] = {}
    for phase in record.phases:
        judged[phase.phase.id] = judge_phase(phase, validation=record, judged=judged)
    return tuple(judged.values())


def judge_latest(folder: RunFolder, records: Sequence[PhaseRecord], judged: Mapping[str, PhaseReport]) -> PhaseReport:
    """Judge the phase that was run last, in the light of those before it."""
    return judge_phase(records[-1], validation=pending(folder, records), judged=judged)


def assemble(
    folder: RunFolder, record: ValidationRecord, phases: tuple[PhaseReport, ...], end: RunEnd
) -> ValidationReport:
    """Name causes and decide; nothing is written, and nothing is compared with other validations."""
    findings = diagnose(record, phases)
    decision, why = decide(phases, findings, pending=_pending(record))
    header = folder.header
    recommended = recommend(phases, decision, runbook=header.runbook, command=_launch_command(record))
    return ValidationReport(
        run_id=header.run_id,
        runbook=RunbookRef(
            name=header.runbook.name,
            path=header.runbook_path,
            sha256=header.runbook_sha256,
            title=header.runbook.title,
            description=header.runbook.description,
            overrides=header.overrides,
            only=header.only,
            skip=header.skip,
            command=header.command,
            max_steps=header.runbook.trainer.max_steps,
        ),
        started=header.started,
        finished=end.finished,
        duration_s=end.duration_s,
        decision=decision,
        why=_as_changed(why, header.overrides) if decision == "GO" else why,
        exit_code=_exit_code(decision, record),
        phases=phases,
        findings=findings,
        recommended=_recommended(recommended),
        environment=dict(record.environment),
        fleet=fleet(record, events_of(folder)),
        artifacts=() if decision == "IN_PROGRESS" else _artifacts(folder),
        validator_version=header.validator_version,
    )


def _artifacts(folder: RunFolder) -> tuple[Artifact, ...]:
    """Every file but the renderings. A name may hold a secret where the runner was killed before it was masked."""
    return tuple(
        Artifact(path=redact_output(path), bytes=size, sha256=digest) for path, size, digest in folder.artifacts()
    )


def _as_changed(why: str, overrides: Sequence[str]) -> str:
    """A GO is about what was declared; what the command line changed in that belongs into the same breath."""
    return f"{why} The runbook was changed by {', '.join(f'--set {one}' for one in overrides)}." if overrides else why


def _recommended(found: Recommendation) -> Recommendation:
    """Without secrets: sourcing `[redacted]` would take a user's own credentials away."""
    return found.model_copy(update={"env": {name: value for name, value in found.env.items() if REDACTED not in value}})


def _launch_command(record: ValidationRecord) -> str | None:
    """The command to train with the declared settings: that of the widest phase of one config that ran last."""
    ran = [
        (run.spec.nproc, place, phase.phase, run.spec)
        for place, phase in enumerate(record.phases)
        if isinstance(phase.phase, TrainingPhase) and phase.phase.one_config
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
    if any(phase.state == "interrupted" for phase in record.phases):
        return ExitCode.INTERRUPTED
    return ExitCode.of(decision)


def result_in(tree: Tree) -> ValidationReport:
    """The report in result.json as it is.

    Raises:
        OSError: when there is none that can be read.
        ValueError: when it is damaged, or of another version.
    """
    return ValidationReport.model_validate(tree.json("result.json"))


def stored_report(folder: RunFolder) -> ValidationReport:
    """The report of a run folder: result.json as it is, or judged from disk where there is none that can be read.

    It is judged from disk as well where a metric has another definition since, so that no comparison crosses one; as
    it is where the evidence for that is gone.

    Raises:
        FolderError: when the folder holds neither a result nor a journal.
    """
    try:
        with folder.tree() as tree:
            found = result_in(tree)
    except (OSError, ValueError):
        return _judged_again(folder)
    if not _outdated(found):
        return found
    try:
        again = _judged_again(folder)
    except FolderError:
        return found
    return found if _outdated(again) or _measured_metrics(found) - _measured_metrics(again) else again


def fresh_report(folder: RunFolder) -> ValidationReport:
    """The report as `stored_report` gives it, judged from disk where that still measures everything.

    A result of an earlier version lacks what is measured since, such as the noise of a row.

    Raises:
        FolderError: when the folder holds neither a result nor a journal.
    """
    found = stored_report(folder)
    try:
        again = _judged_again(folder)
    except FolderError:
        return found
    return found if _measured_metrics(found) - _measured_metrics(again) else again


def _judged_again(folder: RunFolder) -> ValidationReport:
    with readable(folder) as unpacked:
        record, end = reconstruct(unpacked), end_of(folder)
    return assemble(folder, record, judge(record), end)


def _outdated(report: ValidationReport) -> bool:
    """Whether a metric was computed by another definition than today's."""
    runs = (run for phase in report.phases for run in phase.runs)
    return any(stats.version != version_of(name) for run in runs for name, stats in run.metrics.items())


def _measured_metrics(report: ValidationReport) -> set[tuple[str, str]]:
    """Run and metric of everything that was measured under today's names."""
    runs = (run for phase in report.phases for run in phase.runs)
    return {(run.id, name) for run in runs for name, stats in run.metrics.items() if name in METRICS and stats.n}

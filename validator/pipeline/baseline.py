"""A runbook whose bounds come from good runs: the runs are read and checked, and its text is edited."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from validator.baseline import CannotEdit, MetricBound, bounds_of, left_out, with_bounds
from validator.errors import FolderError, disk_errors
from validator.files import replacing
from validator.kinds.registry import load
from validator.model.machine import machine_class
from validator.model.runbook import TrainingPhase
from validator.model.verdict import ValidationReport
from validator.pipeline.evaluate import fresh_report, stored_report
from validator.runs.folder import RunFolder

_HALF_AS_FAST = 2.0
"""Room of a bound from which it asks nothing of a machine."""


@dataclass(frozen=True)
class Baseline:
    """The bounds, the text of the runbook that holds them, and the runs that they come from.

    `notes` are sentences on bounds that were left out, and on those that may be too tight or too easy.
    """

    bounds: tuple[MetricBound, ...]
    text: str
    runs: tuple[str, ...]
    machine: str
    notes: tuple[str, ...] = ()


def make_baseline(
    folders: Sequence[Path],
    *,
    runbook: Path | None,
    out: Path | None = None,
    margin: float,
    allow_not_go: bool,
    phases: Sequence[str] = (),
) -> Baseline:
    """The runbook with bounds from these runs, written to `out` if given.

    Args:
        folders: run folders of one runbook on one class of machine.
        runbook: the file that receives the bounds; by default the copy in the newest of the folders.
        margin: share by which each bound is eased beyond what the runs' variation asks for.
        allow_not_go: whether runs count whose decision was not GO, that had overrides, or findings beyond information.
        phases: those that receive bounds; all by default.

    Raises:
        FolderError: when a run is not good, the runs do not belong together, or the text cannot be edited.
        RunbookError: when `runbook` is wrong, before or after the edit; nothing is written then.
        Unable: when `out` cannot be written.
    """
    opened = sorted((RunFolder.open(path) for path in folders), key=lambda folder: folder.header.started)
    reports = [_report(folder) for folder in opened]
    _require_alike(reports, allow_not_go=allow_not_go)
    if not allow_not_go:
        _require_sound(reports, phases)
    source = runbook if runbook is not None else opened[-1].root / "runbook.yaml"
    with opened[-1].tree() as tree:
        if runbook is None and not tree.has_file(source.name):
            raise FolderError(f"{source} is no regular file, so there is no runbook to edit; name one with --edit")
    loaded = load(source)
    lengths = {folder.header.run_id: _lengths(folder) for folder in opened}
    found = bounds_of(reports, runbook=loaded.runbook, margin=margin, lengths=lengths)
    without = left_out(reports, runbook=loaded.runbook, lengths=lengths)
    unknown = [phase for phase in phases if phase not in {one.id for one in loaded.runbook.phases}]
    if unknown:
        names = ", ".join(one.id for one in loaded.runbook.phases)
        raise FolderError(f"--phase {unknown[0]}: the runbook has no such phase; phases: {names}")
    without = (*without, *(_useless(bound) for bound in found if bound.room > _HALF_AS_FAST))
    found = tuple(one for one in found if (not phases or one.phase in phases) and one.room <= _HALF_AS_FAST)
    if not found and without:
        raise FolderError(without[0])
    if not found:
        raise FolderError(
            "these runs measured nothing that a bound could come from: no rate or time per step with an interval, no "
            "memory and no loss by today's definitions"
        )
    try:
        text = with_bounds(loaded.text, found)
    except CannotEdit as error:
        raise FolderError(f"{source} cannot be edited: {error}") from error
    if out is not None:
        _write_checked(text, out)
    careful = [f"{one.phase}: {one.reference}: {warning}" for one in found for warning in one.warnings]
    notes = (*(one for one in without if not phases or one.partition(":")[0] in phases), *careful)
    runs = tuple(report.run_id for report in reports)
    return Baseline(found, text, runs, machine_class(reports[-1].environment), notes)


def _useless(bound: MetricBound) -> str:
    """What is said of a bound that is left open."""
    return (
        f"{bound.phase}: no bound on {bound.reference}: so uneven was the run that it would be {bound.expr}, and a "
        "machine half as fast would pass; run it again, on a quiet machine or for more steps"
    )


def _report(folder: RunFolder) -> ValidationReport:
    """The stored report; judged again where a curve lacks what a bound on its end needs: whether it fell, and the noise
    of its rows."""
    found = stored_report(folder)
    curves = [run.metrics["loss"] for phase in found.phases for run in phase.measured if "loss" in run.metrics]
    return fresh_report(folder) if any(one.n and None in (one.noise, one.fell) for one in curves) else found


def _lengths(folder: RunFolder) -> dict[str, int]:
    """Steps of each training phase, as it was run: overrides included."""
    return {phase.id: phase.steps for phase in folder.header.runbook.phases if isinstance(phase, TrainingPhase)}


def _write_checked(text: str, out: Path) -> None:
    with disk_errors(out, command="validator baseline"), replacing(out) as file:
        file.write(text.encode())
        file.flush()
        load(out.with_name(file.name))  # a runbook that is wrong takes the place of none


def _require_sound(reports: Sequence[ValidationReport], phases: Sequence[str]) -> None:
    """Runs of the runbook as it is written, in which nothing looked wrong where the bounds come from."""
    for report in reports:
        if report.runbook.overrides:
            changes = " ".join(f"--set {one}" for one in report.runbook.overrides)
            raise FolderError(
                f"{report.run_id} ran with {changes}, so its results are not those of the runbook; write the change "
                "into the runbook and run it, or pass --allow-not-go if you know them to be good"
            )
        for one in report.findings:
            if one.severity != "info" and (not phases or one.phase is None or one.phase in phases):
                place = f" in phase {one.phase}" if one.phase else ""
                raise FolderError(
                    f"{report.run_id} has the {one.severity} {one.code}{place}: {one.message.rstrip('.')}; remove the "
                    "cause and run it again, or pass --allow-not-go if you know its results to be good"
                )


def _require_alike(reports: Sequence[ValidationReport], *, allow_not_go: bool) -> None:
    for report in reports:
        if report.decision != "GO" and not (allow_not_go and report.decision != "IN_PROGRESS"):
            raise FolderError(
                f"{report.run_id} ended {report.decision}, so its results are no baseline; leave it out, or pass "
                "--allow-not-go if you know them to be good"
            )
    for what, values in (
        ("runbook", [report.runbook.name for report in reports]),
        ("class of machine", [machine_class(report.environment) for report in reports]),
    ):
        if len(set(values)) > 1:
            raise FolderError(
                f"the runs are not of one {what}: {' and '.join(sorted(set(values)))}; give runs that belong together"
            )

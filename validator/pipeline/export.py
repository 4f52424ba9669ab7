"""A run folder, handed to an experiment tracker."""

from __future__ import annotations

from pathlib import Path

from validator.errors import UserError
from validator.export.content import Tracked, tracked
from validator.export.targets import Options, send
from validator.pipeline.evaluate import stored_report
from validator.runs.folder import RunFolder
from validator.runs.replay import readable, reconstruct


def export(run_dir: Path, *, to: str, options: Options) -> tuple[Tracked, tuple[str, ...]]:
    """Send a validation that has ended; returns what was sent, and lines that say where it is.

    Raises:
        FolderError: when `run_dir` is no run folder.
        UserError: when it is still in progress, or the tracker's library is missing.
        Unable: when the tracker does not take it.
    """
    folder = RunFolder.open(run_dir)
    report = stored_report(folder)
    if report.decision == "IN_PROGRESS":
        raise UserError(f"{report.run_id} is still in progress; export it when it is decided")
    with readable(folder) as unpacked:
        found = tracked(report, reconstruct(unpacked))
    return found, send(to, found, options)

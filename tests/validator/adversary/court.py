"""A validation laid out on disk as a runner leaves it, and judged as `validator report` does; nothing is rendered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from validator.model.plan import RunSpec
from validator.model.verdict import Check, Finding, ValidationReport, Verdict
from validator.pipeline.evaluate import assemble, judge
from validator.runs.folder import RunFolder
from validator.runs.replay import RunEnd, reconstruct
from validator.selftest.case import Sandbox
from validator.selftest.recorded_case import FakeRun, RecordedCase, book, train

__all__ = ["book", "codes", "judged", "laid_out", "lines", "rewritten", "train", "tried", "verdict"]


def laid_out(
    folder: Path,
    fake: FakeRun | Callable[[RunSpec], FakeRun],
    text: str | None = None,
    *,
    machine: Mapping[str, Any] | None = None,
    checks: Mapping[str, Sequence[Check]] | None = None,
) -> Path:
    """The run folder of a validation whose runs left these files."""
    written = RecordedCase(book() if text is None else text, fake, machine or {}, checks or {})
    return written.write(Sandbox(folder / "stage", "adversary"))


def judged(root: Path) -> ValidationReport:
    """What a run folder comes to."""
    folder = RunFolder.open(root)
    record = reconstruct(folder)
    return assemble(folder, record, judge(record), RunEnd())


def tried(
    folder: Path, fake: FakeRun | Callable[[RunSpec], FakeRun], text: str | None = None, **more: Any
) -> ValidationReport:
    """Lay a validation out and judge it."""
    return judged(laid_out(folder, fake, text, **more))


def codes(report: ValidationReport, *severities: str) -> set[str]:
    """Codes of the findings of these severities; of all where none is named."""
    return {one.code for one in report.findings if not severities or one.severity in severities}


def finding(report: ValidationReport, code: str) -> Finding:
    """The first finding of that code."""
    return next(one for one in report.findings if one.code == code)


def verdict(report: ValidationReport, id: str) -> Verdict:
    """A criterion's verdict by its id."""
    return next(one for phase in report.phases for one in phase.criteria if one.id == id)


def lines(path: Path) -> list[str]:
    """The lines of a file."""
    return path.read_text(encoding="utf-8").splitlines()


def rewritten(name: str, change: Callable[[list[str]], list[str]]) -> Callable[[Path], None]:
    """Damage that writes a file of the run's folder anew, from its lines."""

    def damage(out: Path) -> None:
        path = out / name
        path.write_text("\n".join(change(lines(path))) + "\n", encoding="utf-8")

    return damage

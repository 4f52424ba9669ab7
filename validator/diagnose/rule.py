"""What a rule is, and how its findings are said."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from validator.diagnose.facts import PhaseFacts, RunFacts, ValidationFacts
from validator.model.verdict import Evidence, Finding

__all__ = ["Confidence", "PhaseRule", "RunRule", "Severity", "ValidationRule", "evidence", "found", "percent"]

Severity = Literal["veto", "warning", "info"]
Confidence = Literal["high", "medium", "low"]


@dataclass(frozen=True)
class RunRule:
    """Looks at one run. `severity` is what its findings have at most."""

    code: str
    severity: Severity
    look: Callable[[RunFacts], Iterator[Finding]]


@dataclass(frozen=True)
class PhaseRule:
    """Looks at one phase with all its runs."""

    code: str
    severity: Severity
    look: Callable[[PhaseFacts], Iterator[Finding]]


@dataclass(frozen=True)
class ValidationRule:
    """Looks across phases."""

    code: str
    severity: Severity
    look: Callable[[ValidationFacts], Iterator[Finding]]


def evidence(text: str, path: str | None = None, where: str | None = None) -> Evidence:
    """A piece of evidence."""
    return Evidence(path=path, where=where, text=text)


def found(
    code: str,
    message: str,
    *,
    next_step: str,
    severity: Severity = "warning",
    confidence: Confidence = "high",
    because: Iterable[Evidence] = (),
    phase: str | None = None,
    run: str | None = None,
) -> Finding:
    """A finding; the engine adds the phase and the run that a rule was asked about, where these are not given."""
    return Finding(
        code=code,
        severity=severity,
        confidence=confidence,
        message=message,
        evidence=tuple(because),
        next_step=next_step,
        phase=phase,
        run=run,
    )


def percent(share: float) -> str:
    """A share for people: `34 %`, `0.4 %`."""
    value = 100 * share
    return f"{value:.0f} %" if abs(value) >= 1 else f"{value:.2g} %"

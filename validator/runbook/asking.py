"""What a phase asks of what it measures. A runbook that asks for nothing decides nothing.

A criterion carries a GO if it is required, could fail, and is about what its own phase measures. What every run is
asked anyway (exit code, number of steps) does not carry, and neither does the best moment of a rate or a time, which a
run reaches that is slow for the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from validator.model.catalogue import METRICS
from validator.model.expression import (
    Binary,
    Call,
    Comparison,
    Expression,
    ExpressionError,
    Number,
    Reference,
    parse_criterion,
    references,
)
from validator.model.resolve import Resolved, UnresolvedReference, resolve
from validator.model.runbook import (
    AuditPhase,
    Criterion,
    DataPhase,
    Phase,
    PreflightPhase,
    ProfilePhase,
    PytestPhase,
    Runbook,
    SoakPhase,
    TrainingPhase,
    TrainPhase,
)
from validator.model.settings import smoke_of
from validator.runbook.build import Built
from validator.runbook.certain import always_holds
from validator.runbook.document import mark_at
from validator.runbook.problems import Problem

__all__ = ["asks", "check_asking", "check_observing", "idle", "unasked"]

_ASKED_ANYWAY = ("outcome.rc", "steps.done")
_BEST = {"higher": ("max", "p95", "p99"), "lower": ("min",)}
"""Statistics that tell of the best moments, by the metric's good direction."""

_WAY = {"higher": 1, "lower": -1}


def asks(phase: Phase, runbook: Runbook) -> bool:
    """Whether a PASS of the phase can carry a GO."""
    if any(idle(criterion, phase, runbook) is None for criterion in phase.accept):
        return True
    if isinstance(phase, PreflightPhase):
        hardware = runbook.hardware
        declared = hardware.gpus or hardware.cpu_cores or hardware.memory or hardware.disk_free
        return bool(declared or phase.packages or phase.git_clean or phase.git_branch)
    if isinstance(phase, DataPhase):
        return runbook.trainer.metrics.heartbeat is not None or bool(smoke_of(runbook, phase)) or _told(phase)
    if isinstance(phase, ProfilePhase):
        return bool(phase.ranges) or _told(phase)
    return isinstance(phase, (PytestPhase, AuditPhase)) or _told(phase)


def _told(phase: Phase) -> bool:
    return isinstance(phase, TrainingPhase) and bool(phase.log_contains)


def unasked(phase: Phase, runbook: Runbook) -> str | None:
    """Why a phase that should ask for something forbids GO, as a clause; None where it does ask, or need not.

    A command, a sweep, an A/B and a profile may be there for what they leave behind. A run of the declared config that
    is held to nothing looks like a proof and is none, unless it is declared to observe.
    """
    if phase.observe or not isinstance(phase, (TrainPhase, SoakPhase, DataPhase)) or asks(phase, runbook):
        return None
    if not phase.accept:
        return "it has no criterion"
    reasons = [f"`{one.expr}` {idle(one, phase, runbook)}" for one in phase.accept]
    return "; ".join(reasons)


def idle(criterion: Criterion, phase: Phase, runbook: Runbook) -> str | None:
    """Why a criterion carries no GO, as a clause that follows it; None where it does."""
    if not criterion.required:
        return "is not required"
    try:
        comparison = parse_criterion(criterion.expr)
        resolved = {one: resolve(one, runbook=runbook, phase=phase) for one in references(comparison)}
    except (ExpressionError, UnresolvedReference):
        return "cannot be evaluated"
    if always_holds(comparison, resolved):
        return "holds whatever is measured"
    own = {one: meaning for one, meaning in resolved.items() if meaning.phase_id == phase.id and not meaning.stored}
    if not own:
        return "is not about what this phase measures"
    anyway = _ASKED_ANYWAY if isinstance(phase, TrainingPhase) else _ASKED_ANYWAY[1:]
    measured = {one: meaning for one, meaning in own.items() if not _is_asked_anyway(meaning, anyway)}
    if not measured:
        return "asks what every run is asked anyway"
    best = _best_moments(comparison, measured)
    names = {measured[one].name for one in best}
    if best and all(meaning.name in names for meaning in measured.values()):
        return "asks only for the best moment of the run"
    return None


def _is_asked_anyway(meaning: Resolved, anyway: tuple[str, ...]) -> bool:
    return meaning.name in anyway or meaning.name.startswith("requested.") or meaning.statistic == "n"


def _best_moments(comparison: Comparison, measured: Mapping[Reference, Resolved]) -> list[Reference]:
    """The references to the best moments of a rate or a time that are asked to be good."""
    if comparison.operator in ("==", "!="):
        return []
    way = 1 if comparison.operator in (">", ">=") else -1
    signs = {**dict(_signs(comparison.right, -way)), **dict(_signs(comparison.left, way))}
    return [one for one, meaning in measured.items() if _is_best(meaning, signs.get(one, 0))]


def _is_best(meaning: Resolved, sign: int) -> bool:
    better = METRICS[meaning.name].better if meaning.name in METRICS else None
    if better is None or meaning.window != "steady":
        return False
    return meaning.statistic in _BEST[better] and sign == _WAY[better]


def _signs(node: Expression, sign: int) -> Iterator[tuple[Reference, int]]:
    """Each reference with the way in which the criterion asks it to go: 1 up, -1 down, 0 not known."""
    if isinstance(node, Reference):
        yield node, sign
    elif isinstance(node, Call):
        for argument in node.arguments:
            yield from _signs(argument, 0 if node.function == "abs" else sign)
    elif isinstance(node, Binary):
        negative = isinstance(node.left, Number) and node.left.value < 0
        yield from _signs(node.left, sign)
        yield from _signs(node.right, -sign if node.operator in "-/" or negative else sign)


def check_observing(built: Built, runbook: Runbook, index: int) -> Iterator[Problem]:
    """A phase that is declared to observe must not ask for something at the same time."""
    phase = runbook.phases[index]
    if phase.observe and any(criterion.required for criterion in phase.accept):
        yield Problem.at(
            mark_at(built.root, ("phases", index, "observe"), key=True),
            f"phase {phase.id} is declared to observe, and has required criteria",
            "remove observe: true, or write required: false on its criteria",
        )


def check_asking(built: Built, runbook: Runbook) -> Iterator[Problem]:
    """Warnings: phases that ask for nothing, and a runbook that cannot end in GO because none asks."""
    for index, phase in enumerate(runbook.phases):
        why = unasked(phase, runbook) if phase.required else None
        if why is not None:
            yield Problem.at(
                mark_at(built.root, ("phases", index, "id")),
                f"phase {phase.id} asks for nothing that could fail on what it measures ({why}), so the decision "
                "cannot be GO",
                "give it a required criterion such as toks_per_s.mean >= 1000, or declare observe: true",
            )
    if not any(phase.required and asks(phase, runbook) for phase in runbook.phases):
        yield Problem.at(
            mark_at(built.root, ("phases",), key=True),
            "no required phase asks for anything that could fail on what it measures, so the decision cannot be GO",
            "give a phase a required criterion under accept, such as loss.last < loss.first",
        )

"""Which events of a journal can be relied on. One whose fields were garbled tells nothing, and is passed over.

A journal is written line by line and survives its runner; a disk or a hand may still damage it. What is then missing
is open: a run without its end has not ended, a phase without its end was interrupted. Nothing of it is a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, get_args

from validator.folder import Runner
from validator.model.extension import Extension
from validator.model.outcome import Attempt, Outcome
from validator.model.plan import RunSpec
from validator.model.record import PhaseState
from validator.model.verdict import Check

if TYPE_CHECKING:
    from validator.execute.journal import Event

__all__ = ["sound"]

_Fields = Mapping[str, Any]


def _ended(fields: _Fields) -> object:
    for name in ("finished", "reason"):
        if not isinstance(fields.get(name), (str, type(None))):
            raise TypeError(f"{name} {fields[name]!r} is no text")
    return float(fields.get("duration_s") or 0.0)


def _phase_ended(fields: _Fields) -> object:
    if fields["state"] not in get_args(PhaseState):
        raise ValueError(f"state {fields['state']!r} is none of a phase's")
    return str(fields["phase"]), _ended(fields)


_READERS: Mapping[str, Callable[[_Fields], object]] = {
    "run_started": lambda fields: RunSpec.model_validate(fields["spec"]),
    "run_ended": lambda fields: Outcome.model_validate(fields["outcome"]),
    "attempt_ended": lambda fields: Attempt.model_validate(fields["attempt"]),
    "run_read": lambda fields: {str(path): str(digest) for path, digest in fields["sources"].items()},
    "phase_checks": lambda fields: [Check.model_validate(check) for check in fields["checks"]],
    "phase_ended": _phase_ended,
    "phase_extended": lambda fields: Extension.model_validate(fields["extension"]),
    "remedy_ended": lambda fields: (fields["remedy"], fields["decides"]),
    "resumed": lambda fields: Runner.model_validate(fields["runner"]),
    "finished": _ended,
    "interrupted": _ended,
    "adopted": lambda fields: (str(fields["phase"]), dict(fields["settings"])),
}


def sound(events: Iterable[Event]) -> tuple[Event, ...]:
    """The events whose fields are what their kind has."""
    return tuple(event for event in events if _is_sound(event))


def _is_sound(event: Event) -> bool:
    if not all(isinstance(event.fields.get(name), (str, type(None))) for name in ("run", "phase")):
        return False
    try:
        _READERS.get(event.event, dict)(event.fields)
    except (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError):
        return False
    return True

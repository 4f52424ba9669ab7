"""Which events of a journal can be relied on. One whose fields were garbled tells nothing, and is passed over.

A journal is written line by line and survives its runner; a disk or a hand may still damage it. What is then missing
is open: a run without its end has not ended, a phase without its end was interrupted. Nothing of it is a pass.
"""

from __future__ import annotations

import math
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


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _ended(fields: _Fields) -> object:
    seconds = fields.get("duration_s")
    if seconds is not None and not (isinstance(seconds, (int, float)) and math.isfinite(seconds)):
        raise ValueError(f"{seconds!r} is no number of seconds")
    return [_text(fields.get(name) or "") for name in ("finished", "reason")]


def _phase_ended(fields: _Fields) -> object:
    if fields["state"] not in get_args(PhaseState):
        raise ValueError(f"state {fields['state']!r} is none of a phase's")
    return _text(fields["phase"]), _ended(fields)


def _remedy_ended(fields: _Fields) -> object:
    return _text(fields["remedy"] or ""), fields["decides"]


def _attempt_started(fields: _Fields) -> object:
    started = {"number": 1, "started": "", "duration_s": 0.0, "rc": None, "reason": "interrupted"}
    return Attempt.model_validate({**started, "command": fields.get("command") or (), "pid": fields.get("pid")})


_READERS: Mapping[str, Callable[[_Fields], object]] = {
    "run_started": lambda fields: (_text(fields["run"]), RunSpec.model_validate(fields["spec"])),
    "run_ended": lambda fields: (_text(fields["run"]), Outcome.model_validate(fields["outcome"])),
    "attempt_started": _attempt_started,
    "attempt_ended": lambda fields: Attempt.model_validate(fields["attempt"]),
    "run_read": lambda fields: {str(path): str(digest) for path, digest in fields["sources"].items()},
    "phase_checks": lambda fields: [Check.model_validate(check) for check in fields["checks"]],
    "phase_ended": _phase_ended,
    "phase_extended": lambda fields: Extension.model_validate(fields["extension"]),
    "remedy_ended": _remedy_ended,
    "resumed": lambda fields: Runner.model_validate(fields["runner"]),
    "finished": _ended,
    "interrupted": _ended,
    "adopted": lambda fields: (_text(fields["phase"]), dict(fields["settings"])),
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

"""The machine under a validation: its snapshot, and whether it is still the same when the validation is resumed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from validator.folder import RunFolder
from validator.model.resolve import LAST_GO
from validator.model.runbook import Runbook
from validator.stages.disk import events_of, last_go_digest
from validator.stages.session import Session, Unable

__all__ = ["changes", "facts_of", "note_machine", "require_same_machine"]

_HARDWARE = ("cpu.model", "cpu.cores_logical", "gpus")
"""Facts that make another machine. A host's name is none: a container gets a new one at each start."""

_COMPARED = (
    "host",
    "system",
    "python.",
    "packages.",
    "cpu.",
    "memory.total_gib",
    "git.",
    "gpu_driver.",
    "gpus.",
    "env.",
)
_PASSING = ("cpu.load_1m", "git.changed", "git.why_none")
_GPU_FACTS = ("name", "uuid", "memory_total_mib", "index")


def note_machine(session: Session) -> None:
    """Take the snapshot of the machine into environment.json; a resumed validation adds what has changed since."""
    from validator.observe import snapshot

    folder = session.folder
    found = snapshot(folder.root, trainer_python=folder.header.python)
    before = folder.load_environment()
    if session.past.resumed and before:
        changed = changes(before, found)
        for what, (was, now) in changed.items():
            session.observer.note(
                f"{what} has changed since the first part: {was or 'none'} before, {now or 'none'} now"
            )
        told = {what: f"{was or 'none'} before, {now or 'none'} now" for what, (was, now) in changed.items()}
        resumptions = {**before.get("resumed", {}), str(found["time"]): told or "on the same machine and software"}
        found = {**before, "resumed": resumptions}
    folder.save_environment(found)
    if not session.past.resumed and _names_last_go(folder.header.runbook):
        _keep_last_go(folder, found)
    session.journal.append("environment", path=folder.environment.name, last_go=last_go_digest(folder))


def _names_last_go(runbook: Runbook) -> bool:
    """Whether a criterion is held against an earlier validation."""
    return any(f"{LAST_GO}." in one.expr for phase in runbook.phases for one in phase.accept)


def _keep_last_go(folder: RunFolder, environment: Mapping[str, Any]) -> None:
    """Copy what the last GO measured into this folder, by today's definitions, before anything of this run is known."""
    from validator.report.write import render_json
    from validator.stages.comparing import last_go, stored_report

    earlier = last_go(folder, environment)
    if earlier is not None:
        folder.save_last_go(render_json(stored_report(earlier)))


def require_same_machine(folder: RunFolder, runbook: Runbook) -> None:
    """Figures of two machines must not end in one decision.

    Raises:
        Unable: when the processor, or a GPU that the runbook needs, is another than at the start, or nothing tells.
    """
    from validator.observe import snapshot

    before = folder.load_environment()
    if not before:
        if any(event.event == "run_ended" for event in events_of(folder)):
            raise Unable(
                f"{folder.environment} is gone or cannot be read, so nothing tells whether {folder.header.run_id} was "
                "begun on this machine; restore the file, or begin anew with `validator run`"
            )
        return
    changed = changes(before, snapshot(folder.root, trainer_python=folder.header.python))
    watched = _HARDWARE if runbook.hardware.gpus else _HARDWARE[:2]
    for what, (was, now) in changed.items():
        if what.startswith(watched):
            raise Unable(
                f"{folder.header.run_id} was begun on another machine: {what} was {was or 'none'} "
                f"and is {now or 'none'} here; resume it there, or begin anew with `validator run`"
            )


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Facts of two snapshots that bear on figures and differ, by dotted name: before and now, empty where absent."""
    old, new = facts_of(before), facts_of(now)
    return {
        name: (old.get(name, ""), new.get(name, ""))
        for name in sorted({*old, *new})
        if old.get(name, "") != new.get(name, "")
    }


def facts_of(environment: Mapping[str, Any]) -> dict[str, str]:
    """The facts of a snapshot that bear on figures, by dotted name."""
    return {name: value for name, value in _flat(environment) if name.startswith(_COMPARED) and name not in _PASSING}


def _flat(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None and (not prefix.startswith("gpus.") or key in _GPU_FACTS):
            yield f"{prefix}{key}", str(value)

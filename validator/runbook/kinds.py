"""Audits, profiles, data phases and remedies: nothing may undo what makes the phase what it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from validator.model.phases import Phase, ProcessPhase, TrainingPhase
from validator.model.remedy import Remedy
from validator.model.runbook import AbPhase, AuditPhase, DataPhase, ProfilePhase, Runbook, Setting, SweepPhase
from validator.model.settings import args_of, flat_name, kind_env, setting_text
from validator.runbook.build import Built
from validator.runbook.document import Path, mark_at
from validator.runbook.problems import Mark, Problem

__all__ = ["check_kinds"]

_FIELDS = {
    "NSA_SDPA_AUDIT": "sdpa_audit",
    "NSA_SDPA_FLASH_ONLY": "sdpa",
    "NSA_SDPA_NO_FLASH": "sdpa",
    "NSA_NVTX": "nvtx",
    "NSA_PROFILE_STEPS": "profile_steps",
    "NSA_TB_DISABLE": "tensorboard",
    "NSA_DISABLE_AUX_STATS": "aux_stats",
}
"""The setting of the bundled trainer behind each variable that a kind of phase sets."""

_AUDIT_STEPS = 3
"""The audit looks at the second step, so a run needs one more."""


def check_kinds(built: Built, runbook: Runbook, index: int) -> Iterator[Problem]:
    """Problems of the kind of the phase at `index`, and of its remedies."""
    phase = runbook.phases[index]
    if isinstance(phase, (AuditPhase, ProfilePhase)):
        yield from _undone(built, runbook, index, phase)
    if isinstance(phase, AuditPhase):
        yield from _audit(built, index, phase)
    if isinstance(phase, DataPhase):
        yield from _data(built, runbook, index, phase)
    if isinstance(phase, ProcessPhase):
        yield from _remedies(built, index, phase)


def _undone(built: Built, runbook: Runbook, index: int, phase: AuditPhase | ProfilePhase) -> Iterator[Problem]:
    """What the kind needs in the environment must not be set otherwise by the phase, nor overruled by an argument."""
    needed = dict(kind_env(phase))
    for name, value in needed.items():
        own = phase.env.get(name)
        if own is not None and setting_text(own) != setting_text(value):
            mark = mark_at(built.root, ("phases", index, "env", name), key=True)
            fix = "set profile_steps of the phase" if name == "NSA_PROFILE_STEPS" else f"remove {name}"
            message = f"{name} is {setting_text(own)}, but a phase of kind {phase.kind} needs {setting_text(value)}"
            yield Problem.at(mark, message, fix)
    if not runbook.trainer.bundled:
        return
    given = {flat_name(key): key for key in args_of(runbook, phase)}
    fields = {_FIELDS[name]: name for name in needed}
    if isinstance(phase, AuditPhase):
        fields["sdpa"] = "NSA_SDPA_FLASH_ONLY"
    for field, name in fields.items():
        if field in given:
            path = _given_at(runbook, index, given[field])
            message = f"args.{given[field]} overrules {name}, which phase {phase.id} needs as a {phase.kind}"
            yield Problem.at(mark_at(built.root, path, key=True), message, f"remove {given[field]} from args")


def _given_at(runbook: Runbook, index: int, key: str) -> Path:
    phase = runbook.phases[index]
    if isinstance(phase, TrainingPhase) and key in phase.args:
        return ("phases", index, "args", key)
    if key in runbook.defaults.args:
        return ("defaults", "args", key)
    return ("trainer", "trial_args" if key in runbook.trainer.trial_args else "args", key)


def _audit(built: Built, index: int, phase: AuditPhase) -> Iterator[Problem]:
    if phase.steps < _AUDIT_STEPS and built.sound("phases"):
        mark = mark_at(built.root, ("phases", index, "steps"))
        message = f"steps of {phase.id} is {phase.steps}, but an audit looks at the second step and needs one after it"
        yield Problem.at(mark, message, f"write steps: {_AUDIT_STEPS} or more")


def _data(built: Built, runbook: Runbook, index: int, phase: DataPhase) -> Iterator[Problem]:
    if not runbook.trainer.bundled:
        return
    source = next((value for key, value in args_of(runbook, phase).items() if flat_name(key) == "data"), None)
    if source in ("synthetic", "uniform"):
        mark = mark_at(built.root, ("phases", index))
        message = f"phase {phase.id} of kind data trains on data: {source}, which no loader reads"
        yield Problem.at(mark, message, "add args: {data: local, data-path: TEXTS}, or args: {data: fineweb_edu}")


def _remedies(built: Built, index: int, phase: ProcessPhase) -> Iterator[Problem]:
    seen: set[str] = set()
    for number, remedy in enumerate(phase.on_failure):
        place: Path = ("phases", index, "on_failure", number)
        if remedy.name in seen:
            message = f"on_failure of {phase.id} names {remedy.name} twice; each remedy is tried once"
            yield Problem.at(mark_at(built.root, place), message, "remove one of the two, or rename it")
        seen.add(remedy.name)
        yield from _remedy(built, place, phase, remedy)


def _remedy(built: Built, place: Path, phase: ProcessPhase, remedy: Remedy) -> Iterator[Problem]:
    mark = mark_at(built.root, place)
    if remedy.steps is not None:
        yield from _shortened(mark, phase, remedy, remedy.steps)
    if remedy.args and not isinstance(phase, TrainingPhase):
        message = f"remedy {remedy.name} sets args, but {phase.id} runs no trainer"
        yield Problem.at(mark, message, "use env, or remove it")
    varied = set(_varied(phase))
    for key in remedy.settings:
        if key.replace("-", "_") in varied:
            message = f"remedy {remedy.name} sets {key}, in which the arms of {phase.id} differ"
            yield Problem.at(mark, message, "remove it; the arms would be alike")


def _shortened(mark: Mark, phase: ProcessPhase, remedy: Remedy, steps: int) -> Iterator[Problem]:
    if not isinstance(phase, ProfilePhase):
        message = f"remedy {remedy.name} shortens {phase.id}, but only a profile says the same with fewer steps"
        yield Problem.at(mark, message, f"remove {remedy.name}, or its steps")
    elif not phase.profile_steps < steps < phase.steps:
        message = f"remedy {remedy.name} runs {steps} steps, where {phase.id} runs {phase.steps}"
        fix = f"give it between {phase.profile_steps + 1} and {phase.steps - 1} steps, or leave it out"
        yield Problem.at(mark, message, fix)


def _varied(phase: Phase | ProcessPhase) -> Iterator[str]:
    """The settings in which the arms of a phase differ."""
    if isinstance(phase, SweepPhase):
        yield from (key.replace("-", "_") for key in phase.over)
    if isinstance(phase, AbPhase):
        for family in ("env", "args"):
            sides: list[Mapping[str, Setting]] = [getattr(arm, family) for arm in phase.arms.values()]
            yield from (f"{family}.{key}".replace("-", "_") for side in sides for key in side)

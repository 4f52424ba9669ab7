"""Whether it was the declared GPU that was measured, and one kind of it: figures of another decide nothing here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from validator.diagnose.facts import RunFacts, ValidationFacts
from validator.diagnose.rule import evidence, found
from validator.model.runbook import PreflightPhase
from validator.model.verdict import Finding

__all__ = ["another_gpu", "undeclared_gpu"]

_DRIVER_NAMES = ("nvidia ", "tesla ", "geforce ", "quadro ", "titan ", "amd ")
"""How drivers, old ones too, begin the name of a GPU."""


def another_gpu(whole: ValidationFacts) -> Iterator[Finding]:
    """A required run trained on a GPU that is not the declared one, not this machine's, or not that of another run."""
    machine = _machine(whole)
    first: tuple[RunFacts, str] | None = None
    for run in _required(whole):
        name = run.environment.get("gpu_name")
        if not isinstance(name, str) or not name:
            continue
        declared = whole.record.runbook.hardware
        names = [name, *(other for other in machine if _alike(name, other))]
        said = None
        if not any(map(declared.fits, names)):
            said = f"the runbook asks for {declared.name!r}"
        elif machine and len(names) == 1:
            said = f"this machine has {', '.join(sorted(set(machine)))}"
        elif first is not None and not _alike(name, first[1]):
            said = f"{first[0].spec.id} on {first[1]}"
        first = first or (run, name)
        if said is not None:
            yield found(
                "foreign-results",
                f"{run.spec.id} trained on {name}, and {said}.",
                severity="veto",
                because=[evidence(f"gpu_name {name}", None, "gpu_name")],
                next_step="Start every run on the machine that is validated (look for ssh, srun or a scheduler in the "
                "trainer's command), and choose the runbook for its GPU (validator list).",
                phase=run.spec.phase,
                run=run.spec.id,
            )
            return


def undeclared_gpu(whole: ValidationFacts) -> Iterator[Finding]:
    """The machine's GPUs are not of the declared kind, and no required preflight would have said so."""
    hardware, machine = whole.record.runbook.hardware, _machine(whole)
    phases = whole.record.runbook.phases
    looked_at = any(isinstance(phase, PreflightPhase) and phase.required for phase in phases)
    if hardware.name is None or looked_at or not machine:
        return
    fitting = [name for name in machine if hardware.fits(name)]
    if len(fitting) >= hardware.gpus:
        return
    yield found(
        "config-ignored",
        f"The runbook asks for {hardware.gpus} GPUs named {hardware.name!r}, and this machine has "
        f"{', '.join(sorted(set(machine)))}.",
        severity="veto",
        because=[evidence(f"gpus {', '.join(machine)}", "environment.json", "gpus")],
        next_step="Run it where they are, or choose the runbook for this machine (validator list); a phase of kind "
        "preflight that is required says so before anything is measured.",
    )


def _required(whole: ValidationFacts) -> Iterator[RunFacts]:
    for phase in whole.phases:
        if phase.record.phase.required:
            yield from (run for run in phase.runs if run.training)


def _machine(whole: ValidationFacts) -> list[str]:
    """The names of the machine's GPUs by its snapshot."""
    gpus = whole.record.environment.get("gpus")
    facts = gpus.values() if isinstance(gpus, Mapping) else ()
    return [str(gpu["name"]) for gpu in facts if isinstance(gpu, Mapping) and gpu.get("name")]


def _alike(one: str, other: str) -> bool:
    """Whether two names may be of one kind of GPU.

    A part of a GPU is called by the whole's name and its size. A name that does not begin as the driver's do was
    shortened by the trainer (`A100`): it is that of every GPU that has all its words.
    """
    short, long = sorted((one.strip().lower(), other.strip().lower()), key=len)
    if long == short or long.startswith(f"{short} mig"):
        return True
    return not short.startswith(_DRIVER_NAMES) and set(_words(short)) <= set(_words(long))


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9.]+", name)

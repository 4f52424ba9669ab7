"""Where the results come from: the declared GPU, one trainer, one machine, and no copy of another run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np

from validator.diagnose.rule import Diagnosis, RunFacts, ValidationFacts, evidence, rule
from validator.model.runbook import PreflightPhase
from validator.times import unix_seconds

_DRIVER_NAMES = ("nvidia ", "tesla ", "geforce ", "quadro ", "titan ", "amd ")
"""How drivers, old ones too, begin the name of a GPU."""

_COPY_ROWS, _COPY_VALUES = 20, 5
"""Rows, and different values among them, from which two runs do not measure the same by chance."""

_SAMPLES = 5
"""Samples of the machine from which a GPU that never worked differs from one that was not sampled."""

_SOFTWARE = ("python", "torch", "cuda", "nccl")

_STACK = ("python.version", "packages.torch", "packages.triton", "gpu_driver.", "git.sha")

_STEERING = tuple(f"env.{prefix}" for prefix in ("NCCL_", "TORCH_", "PYTORCH_", "CUDA_", "CUBLAS_", "CUDNN_", "NSA_"))
_STEERING += tuple(f"env.{prefix}" for prefix in ("TRITON_", "OMP_", "MKL_", "GLOO_", "UCX_", "FI_"))
"""Facts of a snapshot that bear on every result: of the software, and of variables that a run inherits."""


@rule("config-ignored", "veto", of="validation")
def ran_on_cpu(whole: ValidationFacts) -> Iterator[Diagnosis]:
    """The runbook is about GPUs, and the trainer reports that it ran without one."""
    if whole.record.runbook.hardware.gpus == 0:
        return
    for run in whole.required_runs:
        device = str(run.environment.get("device") or run.effective.get("device") or "").strip().lower()
        if device.partition(":")[0] != "cpu":
            continue
        yield Diagnosis(
            f"{run.spec.id} ran on the CPU, where the runbook asks for {whole.record.runbook.hardware.gpus} GPUs.",
            because=[evidence(f"device {device}", None, "device")],
            next_step="Find out why the trainer sees no GPU (torch.cuda.is_available(), CUDA_VISIBLE_DEVICES, a "
            "build of torch without CUDA), then run again.",
            run=run,
        )
        return


@rule("config-ignored", "veto", of="validation")
def unused_gpu(whole: ValidationFacts) -> Iterator[Diagnosis]:
    """Fewer GPUs worked than the run has processes: ranks share one, or train on the CPU."""
    if whole.record.runbook.hardware.gpus == 0:
        return
    for run in whole.required_runs:
        used = run.gpu_use
        wanted = min(run.world_size, whole.record.runbook.hardware.gpus)
        if not used or max(len(one.values) for one in used) < _SAMPLES:
            continue
        busy = sum(float(one.values.max()) >= 1.0 for one in used)
        if busy >= wanted:
            continue
        yield Diagnosis(
            f"{busy} of {wanted} GPUs did anything while {run.spec.id} trained with {run.world_size} processes.",
            because=[evidence(f"{one.name} at most {one.values.max():g} %", one.source.path) for one in used[:8]],
            next_step="Let each rank take the GPU of its LOCAL_RANK, and check CUDA_VISIBLE_DEVICES and "
            "torch.cuda.is_available() in the trainer.",
            run=run,
        )
        return


@rule("config-ignored", "veto", of="validation")
def undeclared_gpu(whole: ValidationFacts) -> Iterator[Diagnosis]:
    """The machine's GPUs are not of the declared kind, and no required preflight would have said so."""
    hardware, machine = whole.record.runbook.hardware, _machine(whole)
    phases = whole.record.runbook.phases
    looked_at = any(isinstance(phase, PreflightPhase) and phase.required for phase in phases)
    if hardware.name is None or looked_at or not machine:
        return
    fitting = [name for name in machine if hardware.fits(name)]
    if len(fitting) >= hardware.gpus:
        return
    yield Diagnosis(
        f"The runbook asks for {hardware.gpus} GPUs named {hardware.name!r}, and this machine has "
        f"{', '.join(sorted(set(machine)))}.",
        because=[evidence(f"gpus {', '.join(machine)}", "environment.json", "gpus")],
        next_step="Run it where they are, or choose the runbook for this machine (validator list); a phase of kind "
        "preflight that is required says so before anything is measured.",
    )


@rule("foreign-results", "veto", of="validation")
def another_gpu(whole: ValidationFacts) -> Iterator[Diagnosis]:
    """A required run trained on a GPU that is not the declared one, not this machine's, or not that of another run."""
    machine = _machine(whole)
    first: tuple[RunFacts, str] | None = None
    for run in whole.required_runs:
        name = run.environment.get("gpu_name")
        if not isinstance(name, str) or not name:
            continue
        declared = whole.record.runbook.hardware
        names = [name, *(other for other in machine if _same_gpu_model(name, other))]
        said = None
        if not any(map(declared.fits, names)):
            said = f"the runbook asks for {declared.name!r}"
        elif machine and len(names) == 1:
            said = f"this machine has {', '.join(sorted(set(machine)))}"
        elif first is not None and not _same_gpu_model(name, first[1]):
            said = f"{first[0].spec.id} on {first[1]}"
        first = first or (run, name)
        if said is not None:
            yield Diagnosis(
                f"{run.spec.id} trained on {name}, and {said}.",
                because=[evidence(f"gpu_name {name}", None, "gpu_name")],
                next_step="Start every run on the machine that is validated (look for ssh, srun or a scheduler in the "
                "trainer's command), and choose the runbook for its GPU (validator list).",
                run=run,
            )
            return


def _machine(whole: ValidationFacts) -> list[str]:
    """The names of the machine's GPUs by its snapshot."""
    gpus = whole.record.environment.get("gpus")
    facts = gpus.values() if isinstance(gpus, Mapping) else ()
    return [str(gpu["name"]) for gpu in facts if isinstance(gpu, Mapping) and gpu.get("name")]


def _same_gpu_model(one: str, other: str) -> bool:
    """Whether two names may be of one kind of GPU.

    A part of a GPU is called by the whole's name and its size. A name that does not begin as the driver's do was
    shortened by the trainer (`A100`): it is that of every GPU that has all its words.
    """
    short, long = sorted((one.strip().lower(), other.strip().lower()), key=len)
    if long == short or long.startswith(f"{short} mig"):
        return True
    return not short.startswith(_DRIVER_NAMES) and set(_name_words(short)) <= set(_name_words(long))


def _name_words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9.]+", name)


@rule("foreign-results", "veto", of="validation")
def copied_results(whole: ValidationFacts) -> Iterator[Diagnosis]:
    """Two runs have the very same rates, digit for digit: one is a copy of the other, or neither was measured."""
    seen: dict[bytes, RunFacts] = {}
    for run in whole.runs:
        rate = run.series("toks_per_s") or run.series("step_time_s")
        if rate is None or len(rate.values) < _COPY_ROWS or len(np.unique(rate.values)) < _COPY_VALUES:
            continue
        first = seen.setdefault(rate.values.tobytes(), run)
        if first is run:
            continue
        required = any(p.record.phase.id == run.spec.phase and p.record.phase.required for p in whole.phases)
        yield Diagnosis(
            f"{run.spec.id} has the same {rate.name} as {first.spec.id} in all of {len(rate.values)} rows, digit for "
            "digit: no two runs take the same time.",
            severity="veto" if required else "warning",
            because=[evidence(f"{len(rate.values)} rows", one.source(rate.name), one.spec.id) for one in (first, run)],
            next_step="Let the trainer write into the folder of its own run, {out}, and measure time by a clock; look "
            "for results that are kept from an earlier run.",
            run=run,
        )
        return


@rule("mixed-runs", "veto", of="validation")
def changed_trainer(whole: ValidationFacts) -> Iterator[Diagnosis]:
    """A file that the trainer's command names, the commit, or the software differs for a later run."""
    first: dict[str, tuple[str, RunFacts]] = {}
    for run in whole.required_runs:
        for what, is_now in _made_of(run).items():
            was, other = first.setdefault(what, (is_now, run))
            if was != is_now:
                yield _changed_cause(what, was, is_now, other, run)
                return


def _made_of(run: RunFacts) -> dict[str, str]:
    """What a run was made of, as far as it is known."""
    made = {} if run.outcome is None else {f"the file {name}": digest for name, digest in run.outcome.last.code.items()}
    git = run.environment.get("git")
    if isinstance(git, Mapping) and git.get("sha"):
        made["the commit"] = str(git["sha"])
    return made | {name: str(run.environment[name]) for name in _SOFTWARE if run.environment.get(name)}


def _changed_cause(what: str, was: str, is_now: str, one: RunFacts, other: RunFacts) -> Diagnosis:
    return Diagnosis(
        f"{other.spec.id} did not run the trainer of {one.spec.id}: {what} was changed between them.",
        because=[evidence(f"{what}: {value[:12]}", None, run.spec.id) for value, run in ((was, one), (is_now, other))],
        next_step="Leave the trainer, its configuration and its packages alone while a validation is in progress, and "
        "until it is resumed; start a new validation for the trainer as it is now.",
        run=other,
    )


@rule("mixed-runs", "veto", of="validation")
def changed_between_parts(whole: ValidationFacts) -> Iterator[Diagnosis]:
    """A validation was resumed under another driver, torch, commit or variable than it was started with."""
    resumptions = whole.record.environment.get("resumed")
    for moment, changes in resumptions.items() if isinstance(resumptions, Mapping) else ():
        known = changes if isinstance(changes, Mapping) else {}
        stack = {what: how for what, how in known.items() if str(what).startswith(_STACK)}
        steering = {what: how for what, how in known.items() if str(what).startswith(_STEERING)}
        if not (stack or steering) or not _on_both_sides(whole, str(moment)):
            continue
        differs = {**stack, **steering}
        shown = "; ".join(f"{what}: {how}" for what, how in list(differs.items())[:3])
        yield Diagnosis(
            f"The validation was resumed at {moment} and is about two machines since: {shown}.",
            severity="veto" if stack else "warning",
            because=[evidence(f"{what}: {how}", "environment.json", "resumed") for what, how in differs.items()][:6],
            next_step="Resume under what the first part ran with, or start a new validation with `validator run`.",
        )
        return


def _on_both_sides(whole: ValidationFacts, moment: str) -> bool:
    """Whether required runs of the trainer were started before that moment, and others after it."""
    at = unix_seconds(moment)
    starts = [unix_seconds(run.outcome.last.started) for run in whole.required_runs if run.outcome is not None]
    known = [start for start in starts if start is not None]
    return at is not None and any(start < at for start in known) and any(start >= at for start in known)

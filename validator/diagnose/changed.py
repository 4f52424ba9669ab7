"""Whether all runs of a validation were of one trainer: code that is edited between two of them makes two trainers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from validator.collect.intake import parse_time_s
from validator.diagnose.facts import RunFacts, ValidationFacts
from validator.diagnose.rule import evidence, found
from validator.model.verdict import Finding

__all__ = ["changed_between_parts", "changed_trainer"]

_SOFTWARE = ("python", "torch", "cuda", "nccl")

_STACK = ("python.version", "packages.torch", "packages.triton", "gpu_driver.", "git.sha")
_STEERING = tuple(f"env.{prefix}" for prefix in ("NCCL_", "TORCH_", "PYTORCH_", "CUDA_", "CUBLAS_", "CUDNN_", "NSA_"))
_STEERING += tuple(f"env.{prefix}" for prefix in ("TRITON_", "OMP_", "MKL_", "GLOO_", "UCX_", "FI_"))
"""Facts of a snapshot that bear on every figure: of the software, and of variables that a run inherits."""


def changed_trainer(whole: ValidationFacts) -> Iterator[Finding]:
    """A file that the trainer's command names, the commit, or the software was another one for a later run."""
    first: dict[str, tuple[str, RunFacts]] = {}
    for phase in whole.phases:
        for run in phase.runs if phase.record.phase.required else ():
            for what, is_now in _is(run).items() if run.training else ():
                was, other = first.setdefault(what, (is_now, run))
                if was != is_now:
                    yield _changed(what, was, is_now, other, run)
                    return


def _is(run: RunFacts) -> dict[str, str]:
    """What a run was made of, as far as it is known."""
    made = {} if run.outcome is None else {f"the file {name}": digest for name, digest in run.outcome.last.code.items()}
    git = run.environment.get("git")
    if isinstance(git, Mapping) and git.get("sha"):
        made["the commit"] = str(git["sha"])
    return made | {name: str(run.environment[name]) for name in _SOFTWARE if run.environment.get(name)}


def _changed(what: str, was: str, is_now: str, one: RunFacts, other: RunFacts) -> Finding:
    return found(
        "mixed-runs",
        f"{other.spec.id} did not run the trainer of {one.spec.id}: {what} was changed between them.",
        severity="veto",
        because=[evidence(f"{what}: {value[:12]}", None, run.spec.id) for value, run in ((was, one), (is_now, other))],
        next_step="Leave the trainer, its configuration and its packages alone while a validation goes on, and until "
        "it is resumed; start a new validation for the trainer as it is now.",
        phase=other.spec.phase,
        run=other.spec.id,
    )


def changed_between_parts(whole: ValidationFacts) -> Iterator[Finding]:
    """A validation was resumed under another driver, torch, commit or variable than it was begun with."""
    resumptions = whole.record.environment.get("resumed")
    for moment, changes in resumptions.items() if isinstance(resumptions, Mapping) else ():
        told = changes if isinstance(changes, Mapping) else {}
        stack = {what: how for what, how in told.items() if str(what).startswith(_STACK)}
        steering = {what: how for what, how in told.items() if str(what).startswith(_STEERING)}
        if not (stack or steering) or not _on_both_sides(whole, str(moment)):
            continue
        differs = {**stack, **steering}
        shown = "; ".join(f"{what}: {how}" for what, how in list(differs.items())[:3])
        yield found(
            "mixed-runs",
            f"The validation was resumed at {moment} and is about two machines since: {shown}.",
            severity="veto" if stack else "warning",
            because=[evidence(f"{what}: {how}", "environment.json", "resumed") for what, how in differs.items()][:6],
            next_step="Resume under what the first part ran with, or begin a new validation with `validator run`.",
        )
        return


def _on_both_sides(whole: ValidationFacts, moment: str) -> bool:
    """Whether required runs of the trainer were started before that moment, and others after it."""
    at = parse_time_s(moment)
    starts = [
        parse_time_s(run.outcome.last.started)
        for phase in whole.phases
        for run in (phase.runs if phase.record.phase.required else ())
        if run.training and run.outcome is not None
    ]
    known = [start for start in starts if start is not None]
    return at is not None and any(start < at for start in known) and any(start >= at for start in known)

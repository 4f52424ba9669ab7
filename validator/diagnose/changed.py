"""Whether all runs of a validation were of one trainer: code that is edited between two of them makes two trainers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from validator.diagnose.facts import RunFacts, ValidationFacts
from validator.diagnose.rule import evidence, found
from validator.model.verdict import Finding

__all__ = ["changed_trainer"]

_SOFTWARE = ("python", "torch", "cuda", "nccl")


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

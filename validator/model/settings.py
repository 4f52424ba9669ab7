"""The values that hold for a phase once the runbook's defaults are taken into account.

`check` and `plan` both ask here, so that what is checked is what runs.
"""

from __future__ import annotations

from collections.abc import Mapping

from validator.model.remedy import Remedy
from validator.model.runbook import (
    AuditPhase,
    DataPhase,
    PhaseBase,
    PreflightPhase,
    ProcessPhase,
    ProfilePhase,
    Runbook,
    Setting,
    TrainingPhase,
    TrainPhase,
    Watchdog,
)

__all__ = [
    "accepted_at",
    "args_of",
    "env_of",
    "extends",
    "flat_name",
    "kind_env",
    "min_effect_of",
    "nproc_of",
    "pause_every_of",
    "probes",
    "remedies_of",
    "repeats_of",
    "retries_of",
    "setting_text",
    "smoke_of",
    "timeout_of",
    "tokens_of",
    "warmup_of",
    "watchdog_of",
]


def flat_name(key: str) -> str:
    """The name that `--batch-size`, `batch-size` and `batch_size` share: `batch_size`."""
    return key.lstrip("-").replace("-", "_")


def setting_text(value: Setting) -> str:
    """A setting as an environment variable or argument holds it; true and false become 1 and 0."""
    if isinstance(value, bool):
        return "1" if value else "0"
    return value if isinstance(value, str) else repr(value)


def nproc_of(runbook: Runbook, phase: PhaseBase) -> int:
    """Processes under torchrun; 0 means plain python, which is also what phases without a trainer have."""
    if not isinstance(phase, TrainingPhase):
        return 0
    return runbook.defaults.nproc if phase.nproc is None else phase.nproc


def warmup_of(runbook: Runbook, phase: TrainingPhase) -> int:
    """Steps that never count as steady."""
    return runbook.defaults.warmup_steps if phase.warmup_steps is None else phase.warmup_steps


def tokens_of(runbook: Runbook, phase: TrainingPhase) -> int | None:
    """Tokens of an optimizer step over all ranks, where the runbook declares them."""
    return runbook.trainer.tokens_per_step if phase.tokens_per_step is None else phase.tokens_per_step


def pause_every_of(runbook: Runbook, phase: TrainingPhase) -> int | None:
    """Steps from one pause for validation or a checkpoint to the next, where the runbook declares them."""
    return runbook.defaults.pause_every if phase.pause_every is None else phase.pause_every


def repeats_of(runbook: Runbook, phase: TrainingPhase) -> int:
    """Runs of each arm."""
    return runbook.defaults.repeats if phase.repeats is None else phase.repeats


def timeout_of(runbook: Runbook, phase: ProcessPhase) -> float:
    """Longest time of one run, in seconds."""
    return runbook.defaults.timeout if phase.timeout is None else phase.timeout


def extends(runbook: Runbook, phase: PhaseBase) -> bool:
    """Whether the phase is given further runs, once, when a required criterion stays open."""
    if not isinstance(phase, TrainPhase):
        return False
    return runbook.defaults.extend if phase.extend is None else phase.extend


def retries_of(runbook: Runbook, phase: ProcessPhase) -> int:
    """Further attempts after a stall or a failure of the infrastructure."""
    return runbook.defaults.retries if phase.retries is None else phase.retries


def remedies_of(phase: PhaseBase) -> tuple[Remedy, ...]:
    """What is tried when the phase fails; a preflight starts nothing that could be tried again."""
    return phase.on_failure if isinstance(phase, ProcessPhase) else ()


def accepted_at(runbook: Runbook, phase: PhaseBase | None) -> dict[str, str]:
    """Code of each accepted finding to the place in the runbook that accepts it; None asks for the defaults alone."""
    places = dict.fromkeys(runbook.defaults.accept_findings, "defaults")
    return places | (dict.fromkeys(phase.accept_findings, f"phase {phase.id}") if phase is not None else {})


def watchdog_of(runbook: Runbook, phase: TrainingPhase) -> Watchdog:
    """The watchdog's limits: the phase's own where it sets them, else the defaults', key by key.

    The gates of the bundled trainer are those that the limits are about; for another one that stays open.
    """
    limits = runbook.defaults.watchdog
    if phase.watchdog is not None:
        own = {key: getattr(phase.watchdog, key) for key in phase.watchdog.model_fields_set}
        limits = limits.model_copy(update=own)
    return limits.model_copy(update={"gates": True}) if limits.gates is None and runbook.trainer.bundled else limits


def min_effect_of(runbook: Runbook, phase: PhaseBase) -> float:
    """Smallest relative difference between arms that is worth a decision."""
    choose = getattr(phase, "choose", None)
    own = choose.min_effect if choose is not None else None
    return runbook.defaults.min_effect if own is None else float(own)


def kind_env(phase: PhaseBase) -> dict[str, Setting]:
    """What a kind of phase needs in the environment to be that kind: an audit must audit, a profile must trace."""
    if isinstance(phase, AuditPhase):
        return {"NSA_SDPA_AUDIT": 1}
    if isinstance(phase, ProfilePhase):
        return {
            "NSA_NVTX": 1,
            "NSA_PROFILE_STEPS": phase.profile_steps,
            "NSA_TB_DISABLE": 1,
            "NSA_DISABLE_AUX_STATS": 1,
        }
    return {}


def smoke_of(runbook: Runbook, phase: DataPhase) -> tuple[str, ...]:
    """What python is given to try the loader alone; empty where there is nothing to try it with."""
    if phase.smoke is not None:
        return phase.smoke
    return ("-m", "nsa.data", "--json") if runbook.trainer.bundled else ()


def probes(runbook: Runbook, phase: PreflightPhase) -> bool:
    """Whether a preflight measures what the machine can do."""
    return runbook.hardware.gpus > 0 if phase.probe is None else phase.probe


def env_of(
    runbook: Runbook,
    phase: ProcessPhase,
    *,
    adopted: Mapping[str, Setting] | None = None,
    arm: Mapping[str, Setting] | None = None,
) -> dict[str, Setting]:
    """Environment added to a run: defaults, adopted (`env.NAME`), the kind, the phase, the arm; later ones win."""
    won = adopted if isinstance(phase, TrainingPhase) and adopted else {}
    return {
        **runbook.defaults.env,
        **{key[4:]: value for key, value in won.items() if key.startswith("env.")},
        **kind_env(phase),
        **phase.env,
        **(arm or {}),
    }


def args_of(
    runbook: Runbook,
    phase: TrainingPhase,
    *,
    adopted: Mapping[str, Setting] | None = None,
    arm: Mapping[str, Setting] | None = None,
) -> dict[str, Setting]:
    """Arguments of the trainer: trainer, its trial's, defaults, adopted (`args.NAME`), phase, arm; later ones win.

    `batch-size` and `batch_size` are one argument; the last spelling is kept. The bundled trainer is always told
    `steps` and `out`, for a run that ignores either would not be the run that was declared.
    """
    won = {key[5:]: value for key, value in (adopted or {}).items() if key.startswith("args.")}
    merged: dict[str, tuple[str, Setting]] = {}
    trainer = runbook.trainer
    for layer in (trainer.args, trainer.trial_args, runbook.defaults.args, won, phase.args, arm or {}):
        for key, value in layer.items():
            merged.pop(flat_name(key), None)
            merged[flat_name(key)] = (key, value)
    if runbook.trainer.bundled:
        for name in ("steps", "out"):
            merged[name] = (name, f"{{{name}}}")
    return dict(merged.values())

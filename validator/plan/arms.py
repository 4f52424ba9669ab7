"""The configurations that a phase runs: what each adds to the command, and the name under which it is filed."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from validator.model.runbook import AbPhase, AuditPhase, Setting, SweepPhase, TrainingPhase
from validator.model.settings import setting_text

__all__ = ["VARIANT_ENV", "Arm", "arms_of"]

_MAX_ARM_CHARS = 80

VARIANT_ENV: Mapping[str, Mapping[str, Setting]] = {
    "plain": {},
    "flash_only": {"NSA_SDPA_FLASH_ONLY": 1},
    "no_flash": {"NSA_SDPA_NO_FLASH": 1},
}
"""What each variant of an audit adds to the environment."""


@dataclass(frozen=True)
class Arm:
    """One configuration of a phase; without a name where the phase has only one."""

    name: str | None = None
    env: Mapping[str, Setting] = field(default_factory=dict)
    args: Mapping[str, Setting] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Setting]:
        """What distinguishes it: `env.NAME` or `args.NAME` to value."""
        return {**{f"env.{k}": v for k, v in self.env.items()}, **{f"args.{k}": v for k, v in self.args.items()}}


def arms_of(phase: TrainingPhase) -> tuple[Arm, ...]:
    """The arms of a phase, in the order in which the first repeat runs them."""
    if isinstance(phase, AbPhase):
        return tuple(Arm(name, arm.env, arm.args) for name, arm in phase.arms.items())
    if isinstance(phase, AuditPhase):
        return tuple(Arm(name, VARIANT_ENV[name]) for name in phase.variants)
    if isinstance(phase, SweepPhase):
        return tuple(
            _swept(dict(zip(phase.over, values, strict=True))) for values in itertools.product(*phase.over.values())
        )
    return (Arm(),)


def _swept(settings: Mapping[str, Setting]) -> Arm:
    return Arm(
        _arm_name(settings),
        {key[4:]: value for key, value in settings.items() if key.startswith("env.")},
        {key[5:]: value for key, value in settings.items() if key.startswith("args.")},
    )


def _arm_name(settings: Mapping[str, Setting]) -> str:
    """A name fit for a folder: the value alone when one setting is swept, `name=value` pairs otherwise."""
    texts = {key.split(".", 1)[1]: _value_text(value) for key, value in settings.items()}
    name = next(iter(texts.values())) if len(texts) == 1 else ",".join(f"{k}={v}" for k, v in texts.items())
    safe = re.sub(r"[^A-Za-z0-9._=,+-]", "_", name)
    if safe == name and 0 < len(safe) <= _MAX_ARM_CHARS and not safe.startswith("."):
        return safe
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]  # two values may look alike once made safe
    return f"{safe[:_MAX_ARM_CHARS].lstrip('.')}-{digest}"


def _value_text(value: Setting) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return setting_text(value)

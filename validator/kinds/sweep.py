"""Every combination of some settings."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from validator.kinds.base import PlannedArm, Site, TrainingKind, safe_name
from validator.model.arms_phases import SweepPhase
from validator.model.runbook import Setting
from validator.model.settings import setting_text
from validator.runbook.meaning import check_reaches
from validator.runbook.problems import Problem


class Sweep(TrainingKind[SweepPhase]):
    """An arm for each combination."""

    schema = SweepPhase

    def check(self, phase: SweepPhase, site: Site) -> Iterator[Problem]:
        """Every setting reaches the runs."""
        yield from super().check(phase, site)
        for key in phase.over:
            yield from check_reaches(site.built, site.runbook, phase, site.path("over", key), key)

    def varied(self, phase: SweepPhase) -> Iterator[str]:
        """The settings that are swept."""
        yield from phase.over

    def arms(self, phase: SweepPhase) -> tuple[PlannedArm, ...]:
        """The last setting changes fastest."""
        return tuple(
            _swept(dict(zip(phase.over, values, strict=True))) for values in itertools.product(*phase.over.values())
        )


def _swept(settings: Mapping[str, Setting]) -> PlannedArm:
    return PlannedArm(
        _arm_name(settings),
        {key[4:]: value for key, value in settings.items() if key.startswith("env.")},
        {key[5:]: value for key, value in settings.items() if key.startswith("args.")},
    )


def _arm_name(settings: Mapping[str, Setting]) -> str:
    """A name fit for a folder: the value alone when one setting is swept, `name=value` pairs otherwise."""
    texts = {key.split(".", 1)[1]: _value_text(value) for key, value in settings.items()}
    name = next(iter(texts.values())) if len(texts) == 1 else ",".join(f"{k}={v}" for k, v in texts.items())
    return safe_name(name)


def _value_text(value: Setting) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return setting_text(value)

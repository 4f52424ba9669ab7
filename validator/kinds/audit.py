"""Which kernel did each branch of the attention run, by the profiler's evidence?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from validator.kinds.base import Found, ImplicitCriterion, JudgedRun, PlannedArm, Seen, Site, TrainingKind
from validator.model.runbook import Runbook, Setting
from validator.model.traced_phases import AuditPhase
from validator.runbook.problems import Problem
from validator.text import format_number, listed

_MIN_STEPS = 3
"""The audit looks at the second step, so a run needs one more."""

_VARIANTS: Mapping[str, Mapping[str, Setting]] = {
    "plain": {},
    "flash_only": {"NSA_SDPA_FLASH_ONLY": 1},
    "no_flash": {"NSA_SDPA_NO_FLASH": 1},
}
"""What each variant adds to the environment."""

_SETTINGS = {"NSA_SDPA_AUDIT": "sdpa_audit", "NSA_SDPA_FLASH_ONLY": "sdpa"}
"""The settings of the bundled trainer that an argument may not take from the audit."""

_SDPA = re.compile(r"flash|mem_efficient|cudnn|sdpa_math")
"""The backends of `scaled_dot_product_attention`, in a text such as `flash + triton`."""


class Audit(TrainingKind[AuditPhase]):
    """A run for each variant."""

    schema = AuditPhase
    restricts = ("sdpa",)  # a trainer need not use `scaled_dot_product_attention` at all
    asks_unwritten = (("audit", "fallback"), "the profiler names the kernels; nothing fell back")

    def check(self, phase: AuditPhase, site: Site) -> Iterator[Problem]:
        """The runs are long enough, and nothing turns the audit off."""
        yield from super().check(phase, site)
        yield from self.check_env(phase, site, _SETTINGS)
        if phase.steps < _MIN_STEPS and site.built.sound("phases"):
            message = (
                f"steps of {phase.id} is {phase.steps}, but an audit looks at the second step and needs one after it"
            )
            yield site.problem(message, f"write steps: {_MIN_STEPS} or more", "steps")

    def asks(self, phase: AuditPhase, runbook: Runbook) -> bool:
        """Attention can fall back."""
        return True

    def env(self, phase: AuditPhase) -> dict[str, Setting]:
        """The audit is on."""
        return {"NSA_SDPA_AUDIT": 1}

    def arms(self, phase: AuditPhase) -> tuple[PlannedArm, ...]:
        """An arm for each variant."""
        return tuple(PlannedArm(name, _VARIANTS[name]) for name in phase.variants)

    def criteria(self, phase: AuditPhase, runbook: Runbook) -> Iterator[ImplicitCriterion]:
        """The evidence is there, and shows no fallback."""
        yield ImplicitCriterion("audit", "the profiler's evidence names the kernels of the attention", _audit)
        yield ImplicitCriterion("fallback", "no branch falls back to another path than the one asked for", _fallback)


def _audit(run: JudgedRun) -> Found:
    ran = run.scalar("audit.attention")
    if ran is None:
        silent = (
            "wrote no sdpa_audit.json" if run.evidence.audit_entries is None else "names no branch of the attention"
        )
        return Found("INCONCLUSIVE", f"The audit is silent: the trainer {silent}, so what ran is not known.")
    parts = [f"{name} {text}" for name in ("cmp", "sel", "win") if (text := run.scalar(f"audit.{name}")) is not None]
    layers = run.scalar("audit.layers")
    message = f"{'; '.join(parts) or ran} in {format_number(layers) if layers is not None else '?'} layers."
    return Found("PASS", message, str(ran), None, (Seen(message, run.source("sdpa_audit.json")),))


def _fallback(run: JudgedRun) -> Found:
    """A counted fallback, another path than the requested one, or a backend that the variant rules out."""
    if run.scalar("audit.attention") is None:
        return Found("INCONCLUSIVE", "The audit is silent, so a fallback cannot be ruled out.")
    counted = run.evidence.fallbacks or {}
    calls = sum(counted.values())
    if calls:
        names = listed([f"{name} {count} times" for name, count in sorted(counted.items())])
        return Found(
            "FAIL",
            f"Attention fell back: {names}.",
            float(calls),
            0,
            (Seen(names, run.source("fallback_counters.csv")),),
        )
    ran = str(run.scalar("audit.attention"))
    served = set(_SDPA.findall(ran))
    variant = run.spec.arm or ""
    ruled_out = {"flash_only": served - {"flash"}, "no_flash": served & {"flash"}}.get(variant, served & {"sdpa_math"})
    if ruled_out:
        names = listed(sorted(ruled_out))
        where = (Seen(f"attention ran {ran}", run.source("sdpa_audit.json")),)
        wanted = {"flash_only": "flash alone", "no_flash": "anything but flash"}.get(variant, "a fused kernel")
        return Found("FAIL", f"Attention ran {names} where {wanted} was asked for.", ran, wanted, where)
    idle = "" if served or variant in ("", "plain") else "; no branch uses SDPA, so this variant restricts nothing"
    return Found("PASS", f"Nothing fell back; attention ran {ran}{idle}.", 0.0, 0)

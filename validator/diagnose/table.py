"""Every rule by its code. The codes are a contract: result.json, `inspect` and reports use them."""

from __future__ import annotations

from validator.diagnose import artifacts
from validator.diagnose.rule import PhaseRule, RunRule, ValidationRule

__all__ = ["CODES", "PHASE_RULES", "RUN_RULES", "VALIDATION_RULES"]

RUN_RULES: tuple[RunRule, ...] = (
    RunRule("mixed-runs", "veto", artifacts.mixed_runs),
    RunRule("foreign-results", "veto", artifacts.foreign_results),
    RunRule("stale-halt", "veto", artifacts.stale_halt),
)

PHASE_RULES: tuple[PhaseRule, ...] = ()

VALIDATION_RULES: tuple[ValidationRule, ...] = ()

CODES: tuple[str, ...] = tuple(dict.fromkeys(r.code for r in (*RUN_RULES, *PHASE_RULES, *VALIDATION_RULES)))
"""All codes that a finding may carry."""

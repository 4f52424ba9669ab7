"""Every rule by its code. The codes are a contract: result.json, `inspect` and reports use them."""

from __future__ import annotations

from validator.diagnose import (
    across,
    artifacts,
    changed,
    curve,
    failures,
    hardware,
    learning,
    pace,
    phases,
    plausible,
    ranks,
    records,
    resources,
    settings,
    steadiness,
)
from validator.diagnose.rule import PhaseRule, RunRule, ValidationRule

__all__ = ["CODES", "PHASE_RULES", "RUN_RULES", "SINGLE_RULES", "VALIDATION_RULES"]

RUN_RULES: tuple[RunRule, ...] = (
    RunRule("mixed-runs", "veto", artifacts.mixed_runs),
    RunRule("foreign-results", "veto", artifacts.foreign_results),
    RunRule("foreign-results", "veto", artifacts.changed_since),
    RunRule("foreign-results", "veto", artifacts.another_time),
    RunRule("stale-halt", "veto", artifacts.stale_halt),
    RunRule("damaged-evidence", "veto", records.damaged_evidence),
    RunRule("missing-evidence", "veto", records.missing_evidence),
    RunRule("clock-jump", "warning", records.clock_jump),
    RunRule("config-ignored", "veto", settings.config_ignored),
    RunRule("noop-compression", "warning", settings.noop_compression),
    RunRule("uncompiled", "warning", settings.uncompiled),
    RunRule("warmup-exceeds-run", "warning", settings.warmup_exceeds_run),
    RunRule("host-bound", "warning", settings.sequential_prefill),
    RunRule("nan-loss", "veto", learning.nan_loss),
    RunRule("diverging", "veto", curve.diverging),
    RunRule("zero-loss", "veto", curve.zero_loss),
    RunRule("zero-grad", "veto", learning.zero_grad),
    RunRule("zero-grad", "warning", learning.nothing_learned),
    RunRule("gate-collapse", "veto", learning.gate_collapse),
    RunRule("random-data-floor", "warning", learning.random_data_floor),
    RunRule("repeated-data", "warning", curve.repeated_data),
    RunRule("dead-parameter", "warning", learning.dead_parameter),
    RunRule("fused-unstable", "warning", learning.fused_unstable),
    RunRule("hang", "veto", pace.hang),
    RunRule("zero-rate", "veto", pace.zero_rate),
    RunRule("slow-not-hung", "warning", pace.slow_not_hung),
    RunRule("rate-shift", "warning", steadiness.rate_shift),
    RunRule("no-steady-state", "warning", steadiness.no_steady_state),
    RunRule("periodic-stall", "warning", steadiness.periodic_stall),
    RunRule("not-significant", "info", steadiness.too_few_rows),
    RunRule("eta-wrong", "warning", pace.eta_wrong),
    RunRule("unit-mismatch", "veto", pace.unit_mismatch),
    RunRule("unit-mismatch", "veto", plausible.wall_clock_disagrees),
    RunRule("unit-mismatch", "veto", plausible.tokens_counted_otherwise),
    RunRule("unit-mismatch", "veto", plausible.beyond_the_hardware),
    RunRule("config-ignored", "veto", plausible.too_few_parameters),
    RunRule("foreign-results", "veto", plausible.one_process_for_all),
    RunRule("oom", "warning", failures.oom),
    RunRule("nccl-error", "warning", failures.nccl_error),
    RunRule("port-in-use", "warning", failures.port_in_use),
    RunRule("disk-full", "veto", failures.disk_full),
    RunRule("crashed", "warning", failures.crashed),
    RunRule("over-budget", "warning", failures.over_budget),
    RunRule("leftover-process", "warning", failures.leftover_process),
    RunRule("low-headroom", "warning", resources.low_headroom),
    RunRule("memory-growth", "warning", resources.memory_growth),
    RunRule("straggler", "warning", ranks.straggler),
    RunRule("loader-bound", "warning", resources.loader_bound),
    RunRule("comm-bound", "warning", resources.comm_bound),
    RunRule("host-bound", "warning", resources.host_bound),
    RunRule("throttled", "warning", resources.throttled),
    RunRule("config-unknown", "info", settings.config_unknown),
    RunRule("not-judged", "info", records.not_judged),
)
"""Rules that one run's evidence satisfies; `inspect` uses these and `SINGLE_RULES`."""

PHASE_RULES: tuple[PhaseRule, ...] = (
    PhaseRule("skipped-as-pass", "veto", phases.skipped_as_pass),
    PhaseRule("selection-mismatch", "veto", phases.selection_mismatch),
    PhaseRule("silent-audit", "warning", phases.silent_audit),
    PhaseRule("vacuous-sweep", "veto", phases.vacuous_sweep),
    PhaseRule("not-significant", "info", phases.not_significant),
    PhaseRule("remedied", "warning", phases.remedied),
    PhaseRule("not-comm-bound", "info", phases.not_comm_bound),
    PhaseRule("unhealthy-gpu", "veto", phases.unhealthy_gpu),
    PhaseRule("leftover-process", "warning", phases.foreign_process),
    PhaseRule("throttled", "warning", phases.throttled),
    PhaseRule("disk-full", "warning", phases.disk_low),
)

SINGLE_RULES: tuple[PhaseRule, ...] = tuple(
    rule for rule in PHASE_RULES if rule.code in ("skipped-as-pass", "selection-mismatch", "silent-audit")
)
"""Rules of a phase that the evidence of a single run satisfies, where there is no phase."""

VALIDATION_RULES: tuple[ValidationRule, ...] = (
    ValidationRule("impossible-scaling", "veto", across.impossible_scaling),
    ValidationRule("config-ignored", "veto", across.rate_ignores_length),
    ValidationRule("config-ignored", "veto", across.another_config),
    ValidationRule("config-ignored", "veto", plausible.ran_on_cpu),
    ValidationRule("config-ignored", "veto", plausible.unused_gpu),
    ValidationRule("config-ignored", "veto", hardware.undeclared_gpu),
    ValidationRule("foreign-results", "veto", hardware.another_gpu),
    ValidationRule("foreign-results", "veto", plausible.copied_figures),
    ValidationRule("clock-unverified", "info", plausible.clock_unverified),
    ValidationRule("mixed-runs", "veto", changed.changed_trainer),
    ValidationRule("mixed-runs", "veto", changed.changed_between_parts),
    ValidationRule("superlinear-in-seq", "warning", across.superlinear_in_seq),
    ValidationRule("setting-to-blame", "warning", across.setting_to_blame),
)

CODES: tuple[str, ...] = tuple(
    dict.fromkeys(
        (
            *(rule.code for rule in RUN_RULES),
            *(rule.code for rule in PHASE_RULES),
            *(rule.code for rule in VALIDATION_RULES),
        )
    )
)
"""All codes that a finding may carry."""

"""The codes of all findings, which are a contract, and how a runbook answers each.

`accept_findings` answers any of them. `ANSWERS` names a better field where there is one: it describes the
trainer, so that the rule finds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator

from validator.text import nearest

DISTURBED = ("busy-host", "leftover-process", "throttled", "no-steady-state", "rate-shift", "clock-jump")
"""Findings by which the rate of a run is hardly that of the next one: no bound rests on it alone."""

ANSWERS: Mapping[str, str] = {
    "busy-gpu": "",
    "busy-host": "",
    "clock-jump": "",
    "clock-unverified": "`trainer.tokens_per_step`",
    "comm-bound": "",
    "config-ignored": "`trainer.args`, `args`, `hardware`",
    "config-unknown": "`trainer.metrics.env`",
    "crashed": "`retries`, `on_failure`",
    "damaged-evidence": "`trainer.metrics`",
    "dead-parameter": "",
    "device-corrupts": "",
    "device-slow": "",
    "devices-differ": "",
    "disk-full": "`hardware.disk_free`",
    "disk-slow": "`path`, `accept`",
    "diverging": "`accept` with a bound on `loss.last` says more",
    "ended-early": "`trainer.args` with `{steps}`, `steps`",
    "eta-wrong": "",
    "foreign-results": "`trainer.args` with `{out}`",
    "fused-unstable": "`args`, `env`",
    "gate-collapse": "`watchdog.gates`, `watchdog.gate_*`",
    "hang": "`watchdog.stall`, `watchdog.stall_factor`, `retries`",
    "host-bound": "",
    "impossible-scaling": "",
    "leftover-process": "",
    "link-slow": "",
    "loader-bound": "",
    "low-headroom": "",
    "memory-growth": "",
    "missing-evidence": "`trainer.metrics`",
    "mixed-runs": "`trainer.args` with `{out}`",
    "nan-loss": "",
    "nccl-error": "`retries`, `on_failure`",
    "no-steady-state": "`warmup_steps`, `steps`",
    "nonfinite-values": "",
    "noop-compression": "`args`, `env`",
    "not-comm-bound": "",
    "not-judged": "`trainer.metrics`",
    "not-significant": "`repeats`, `choose.min_effect`",
    "oom": "`args`, `on_failure`",
    "over-budget": "`timeout`, `steps`",
    "path-through-host": "",
    "periodic-stall": "`pause_every`",
    "port-in-use": "`retries`",
    "random-data-floor": "`args` (data)",
    "rank-late": "",
    "rank-left": "",
    "rate-shift": "`warmup_steps`",
    "remedied": "`args`, `env`",
    "repeated-data": "",
    "selection-mismatch": "",
    "setting-to-blame": "",
    "silent-audit": "`env`",
    "skipped-as-pass": "`allow_skipped`",
    "slow-collectives": "`env`",
    "slow-not-hung": "`timeout`, `watchdog.stall`",
    "stale-halt": "`trainer.args` with `{out}`",
    "straggler": "",
    "superlinear-in-seq": "",
    "throttled": "",
    "uncompiled": "",
    "unhealthy-gpu": "",
    "unit-mismatch": "`trainer.metrics`",
    "vacuous-sweep": "`over`, `arms`",
    "warmup-exceeds-run": "`trainer.trial_args`",
    "wrong-way-bound": "`why` of the criterion, `accept`",
    "zero-grad": "",
    "zero-loss": "",
    "zero-rate": "`watchdog.frozen_rows`",
}
"""Code to further runbook fields that answer it, as text; empty where only `accept_findings` does."""


def _known(code: str) -> str:
    if code not in ANSWERS:
        fix = nearest(code, ANSWERS, "docs/findings.md lists them all", cutoff=0.6)
        raise ValueError(f"accept_findings has {code!r}, which is not the code of a finding; {fix}")
    return code


FindingCode = Annotated[str, AfterValidator(_known)]
"""A code of `ANSWERS`."""

"""Whether the run had the machine for itself."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from validator.diagnose.rule import Diagnosis, RunFacts, evidence, rule

_FULL = 0.9
"""Share of all cores that is busy where a further program takes its time from the others."""

_OTHERS, _OTHER_CORES = 0.1, 0.25
"""Share of the machine, and number of cores, from which on what other programs use is no system's housekeeping."""

_MIN_SAMPLES = 10


@rule("busy-host", "warning", of="run")
def busy_host(run: RunFacts) -> Iterator[Diagnosis]:
    """Other programs used the CPU while the run was measured, and no core was idle: steps waited for them."""
    outcome, samples, cores = run.outcome, run.evidence.samples, run.cores
    cpu = None if samples is None else samples.columns.get("host_cpu_pct")
    if not run.timed or outcome is None or samples is None or cpu is None or cores is None:
        return
    own_s, duration_s = outcome.last.cpu_s, outcome.last.duration_s
    busy = cpu[np.isfinite(cpu)] / 100
    if own_s is None or duration_s <= 0 or busy.size < _MIN_SAMPLES or float(busy.mean()) < _FULL:
        return
    own = own_s / duration_s
    others = float(busy.mean()) * cores - own
    if others < max(_OTHERS * cores, _OTHER_CORES):
        return
    yield Diagnosis(
        f"Other programs used {others:.1f} of the machine's {cores:.0f} CPU cores while this run, with {own:.1f}, was "
        "measured, and no core was idle: its steps waited for them.",
        because=[
            evidence(f"host_cpu_pct: {100 * float(busy.mean()):.0f} % of {cores:.0f} cores", samples.source.path),
            evidence(f"CPU time of the run: {own_s:,.0f} s in {duration_s:,.0f} s", "journal.jsonl"),
        ],
        next_step="Look for them with top, end or move them, and validate again: what is measured beside them is not "
        "what this machine can do.",
    )

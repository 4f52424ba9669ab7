"""Whether the run had the machine for itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from validator.diagnose.rule import Diagnosis, RunFacts, evidence, rule
from validator.model.other_program import OtherProgram
from validator.model.result import Floats, InvalidWindow
from validator.stats.crowding import FULL_PCT, Stretch, least_others_pct, others_in
from validator.text import format_percent, listed

_CROWDED, _MIN_SAMPLES = 0.1, 10
"""Share of the samples in which it must be so, and the number of samples that are enough to say."""

ALONE = (
    "End the other programs (ps -eo pid,pcpu,args --sort=-pcpu; nvidia-smi), move them or wait for them, and run it "
    "again: what is measured beside them is not what this machine can do."
)
"""What to do about them; also of the findings on a rate that they changed."""

_MOST_SHOWN = 4

_MOST = 0.5
"""Share of a slow stretch in which another program used a GPU of the run, from which it explains it."""


class _Load(NamedTuple):
    """CPU by sample `[n]`, in percent of all cores: of everything, and of other programs; the file it is from."""

    busy: Floats
    others: Floats
    path: str

    def crowded(self, cores: float | None) -> Floats:
        """What others used in the samples in which the run had to wait for them; empty where those are few."""
        waits = (self.others >= least_others_pct(cores)) & (self.busy >= FULL_PCT)
        enough = waits.size >= _MIN_SAMPLES and float(waits.mean()) >= _CROWDED
        return self.others[waits] if enough else self.others[:0]


@rule("busy-host", "warning", of="run")
def busy_host(run: RunFacts) -> Iterator[Diagnosis]:
    """Other programs used the CPU while the run was measured, and hardly any was left, so steps may have waited."""
    load, said = _load(run), crowding(run)
    if not run.timed or load is None or not said:
        return
    means = ((name, float(values.mean())) for name, values in (("cpu", load.busy), ("other_cpu", load.others)))
    yield Diagnosis(
        f"{said.strip()} Steps may have waited for them.",
        because=[evidence(f"host_{name}_pct: {mean:.0f} % on average", load.path) for name, mean in means],
        next_step=ALONE,
    )


@rule("busy-gpu", "warning", of="run")
def busy_gpu(run: RunFacts) -> Iterator[Diagnosis]:
    """Another program used a GPU of the run while it was measured: its steps shared the GPU with it."""
    windows = [one for one in run.evidence.invalid_windows if one.shared]
    if not windows:
        yield from _without_steps(run.evidence.other_programs)
        return
    rates = run.evidence.node_rates
    node = f"{min(rates, key=lambda name: (rates[name], name))}: " if rates else ""
    where = [f"steps {one.first_step}–{one.last_step}" for one in windows]
    shown = list(zip(windows, where, strict=True))[:_MOST_SHOWN]
    more = f" and in {len(windows) - 1} more stretches" if windows[1:] else ""
    yield Diagnosis(
        f"{node}{windows[0].reason} in {where[0]}{more}. A rate that is measured beside it is not the GPU's.",
        because=[evidence(one.reason, one.source, at) for one, at in shown],
        next_step=_END,
        command=_WHO,
    )


_END = "End the other program (nvidia-smi lists it), or take a GPU that nobody else uses, and run it again."
_WHO = "nvidia-smi --query-compute-apps=gpu_bus_id,pid,name,used_memory --format=csv"


def _without_steps(programs: Sequence[OtherProgram]) -> Iterator[Diagnosis]:
    """The same of a run without steps. A program that only holds memory takes nothing from a rate."""
    for idle in (False, True):
        found = [one for one in programs if (one.computes is False) == idle]
        if not found:
            continue
        used = [
            f"GPU {one.gpu}: utilization {one.alone_pct:.0f} % without a process of the run; another process in "
            f"{format_percent(one.share)} of the samples"
            if one.alone_pct is not None
            else f"GPU {one.gpu}: another process in {format_percent(one.share)} of the samples"
            for one in found
        ]
        said = listed([one.text for one in found])
        known = all(one.computes is not None for one in found)
        yield Diagnosis(
            f"{said[0].upper()}{said[1:]}{', and computed nothing on it' if idle else ''}."
            + ("" if idle else " A rate that is measured beside it is not the GPU's."),
            severity="info" if idle else "warning",
            confidence="high" if known else "medium",
            because=[evidence(text, one.source) for text, one in zip(used, found, strict=True)],
            next_step="Nothing needs to be done; end it where its memory is needed." if idle else _END,
            command=_WHO,
        )


def explained(run: RunFacts, *, slow: Stretch, fast: Stretch) -> str:
    """A sentence, after a space: other programs explain that a stretch is slower than another. Empty where they do not.

    They do where they used a GPU of the run in most of it and less in the other, or took the CPU (`others_in`).
    """
    windows = [one for one in run.evidence.invalid_windows if one.shared]
    here, there = (_covered(windows, stretch) for stretch in (slow, fast))
    if here >= _MOST and here >= 2 * there:
        return f" Meanwhile {windows[0].reason}."
    taken = others_in(run.result.series, slow=slow, fast=fast)
    if taken is None:
        return ""
    return f" Other programs used {taken:.0f} % of the machine's CPU in the slower part, and hardly any was left."


def _covered(windows: Sequence[InvalidWindow], stretch: Stretch) -> float:
    """The share of a stretch of steps that these windows cover."""
    steps = np.arange(int(stretch[0]), int(stretch[1]) + 1)
    inside = [(steps >= one.first_step) & (steps <= one.last_step) for one in windows]
    return float(np.any(inside, axis=0).mean()) if inside and steps.size else 0.0


def crowding(run: RunFacts) -> str:
    """A sentence, after a space: other programs used the CPU that the run needs. Empty where some was left."""
    load = _load(run)
    taken = np.empty(0) if load is None else load.crowded(run.cores)
    if load is None or not taken.size:
        return ""
    return (
        f" Other programs used {taken.mean():.0f} % of the machine's CPU in "
        f"{format_percent(taken.size / load.others.size)} of the samples, and hardly any was left."
    )


def _load(run: RunFacts) -> _Load | None:
    """The samples of the steps that are measured; all of the run's where those are few, or no sample has a step."""
    names = ("host_cpu_pct", "host_other_cpu_pct")
    by_step = [run.series(f"telemetry.{name}") for name in names]
    busy, others = by_step
    if busy is not None and others is not None:
        _, left, right = np.intersect1d(busy.steps, others.steps, return_indices=True)
        inside = run.in_window(busy.steps[left])
        if inside.sum() >= _MIN_SAMPLES:
            return _Load(busy.values[left][inside], others.values[right][inside], others.source.path)
    samples = run.evidence.samples
    columns = [] if samples is None else [samples.columns[name] for name in names if name in samples.columns]
    if samples is None or len(columns) < len(names):
        return None
    known = np.isfinite(columns[0]) & np.isfinite(columns[1])
    return _Load(columns[0][known], columns[1][known], samples.source.path)

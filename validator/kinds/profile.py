"""Where does the time of a step go? A trace of some steps, with named ranges on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from validator.kinds.base import (
    Found,
    ImplicitCriterion,
    JudgedRun,
    PlannedArm,
    Planner,
    Rule,
    Seen,
    Site,
    TrainingKind,
    Words,
)
from validator.model.remedy import Remedy
from validator.model.runbook import Runbook, Setting
from validator.model.traced_phases import ProfilePhase
from validator.runbook.problems import Problem
from validator.text import format_number, listed

if TYPE_CHECKING:
    from validator.model.plan import RunSpec

_SUMMARY = "trace/summary.json"

_SETTINGS = {
    "NSA_NVTX": "nvtx",
    "NSA_PROFILE_STEPS": "profile_steps",
    "NSA_TB_DISABLE": "tensorboard",
    "NSA_DISABLE_AUX_STATS": "aux_stats",
}
"""The setting of the bundled trainer behind each variable that a trace needs."""


class Profile(TrainingKind[ProfilePhase]):
    """A traced run, and one under Nsight Systems where that is wanted and installed."""

    schema = ProfilePhase
    free = ("steps",)
    asks_unwritten = (("trace", "range.N"), "the steps are traced; the trace contains range N of `ranges`")

    def check(self, phase: ProfilePhase, site: Site) -> Iterator[Problem]:
        """Nothing turns the trace off."""
        yield from super().check(phase, site)
        yield from self.check_env(phase, site, _SETTINGS)

    def asks(self, phase: ProfilePhase, runbook: Runbook) -> bool:
        """A range could be absent."""
        return bool(phase.ranges) or super().asks(phase, runbook)

    def env(self, phase: ProfilePhase) -> dict[str, Setting]:
        """The trace is on, and what would show up in it is off."""
        return {
            "NSA_NVTX": 1,
            "NSA_PROFILE_STEPS": phase.profile_steps,
            "NSA_TB_DISABLE": 1,
            "NSA_DISABLE_AUX_STATS": 1,
        }

    def refuses_steps(self, phase: ProfilePhase, remedy: Remedy, steps: int) -> Words | None:
        """A shorter run traces the same steps, as long as it has them."""
        if phase.profile_steps < steps < phase.steps:
            return None
        message = f"remedy {remedy.name} runs {steps} steps, where {phase.id} runs {phase.steps}"
        return message, f"give it between {phase.profile_steps + 1} and {phase.steps - 1} steps, or leave it out"

    def runs(self, phase: ProfilePhase, planner: Planner) -> Iterator[RunSpec]:
        """The run once more under Nsight Systems goes without torch's profiler: both use the GPU's same interface."""
        yield from super().runs(phase, planner)
        outside = planner.runbook.trainer.container is None  # nsys would trace the engine's client
        program = shutil.which("nsys") if phase.nsys and outside else None
        if program is None:
            return
        plain = planner.training(phase, PlannedArm("nsys", {"NSA_PROFILE_STEPS": 0}), repeat=1)
        report = Path(os.path.abspath(planner.run_dir)) / plain.out / "nsys"  # noqa: PTH100 - as for {out}
        recorder = (program, "profile", "--output", str(report), "--force-overwrite", "true")
        options = ("--trace", "cuda,nvtx,osrt", "--sample", "none")
        yield plain.model_copy(update={"role": "nsys", "argv": (*recorder, *options, *plain.argv)})

    def criteria(self, phase: ProfilePhase, runbook: Runbook) -> Iterator[ImplicitCriterion]:
        """The steps are traced, and the ranges are in the trace."""
        steps = phase.profile_steps
        yield ImplicitCriterion("trace", f"{steps} steps are traced", lambda run: _trace(run, steps))
        for n, name in enumerate(phase.ranges, start=1):
            yield ImplicitCriterion(f"range.{n}", f"the trace holds the range {name}", _range_rule(name))


def _trace(run: JudgedRun, wanted: int) -> Found:
    if run.evidence.trace is None:
        return Found("INCONCLUSIVE", "The trainer wrote no trace/summary.json, so where the time goes is not known.")
    done = run.scalar("profile.steps")
    where = (Seen(f"{done or 'no'} steps", run.source(_SUMMARY)),)
    if not isinstance(done, (int, float)) or done < wanted:
        return Found(
            "FAIL", f"{format_number(done) if done else 'No'} of {wanted} steps were traced.", done, wanted, where
        )
    return Found("PASS", f"{format_number(done)} steps were traced.", done, wanted, where)


def _range_rule(pattern: str) -> Rule:
    return lambda run: _range(run, pattern)


def _range(run: JudgedRun, pattern: str) -> Found:
    trace = run.evidence.trace
    if trace is None or trace.ranges is None:
        return Found("INCONCLUSIVE", "There is no trace that names its ranges.", None, pattern)
    names = [name for name in trace.ranges if fnmatchcase(name, pattern)]
    text = f"{pattern}: {listed(names)}" if names else f"ranges: {listed(list(trace.ranges)) or 'none'}"
    where = (Seen(text, run.source(_SUMMARY), "ranges_seen"),)
    if not names:
        return Found("FAIL", f"The trace holds no range {pattern}; it has {text}.", "absent", pattern, where)
    return Found("PASS", f"The trace holds {listed(names)}.", "present", pattern, where)

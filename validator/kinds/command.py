"""Any program: it passes with exit code 0 and with every criterion."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

from validator.kinds.base import Planner, ProcessKind, Site
from validator.model.pattern import PatternError, line_pattern
from validator.model.phases import CommandPhase
from validator.model.settings import fill
from validator.runbook.problems import Problem

if TYPE_CHECKING:
    from validator.model.plan import RunSpec


class Command(ProcessKind[CommandPhase]):
    """A shell line, or words started without a shell."""

    schema = CommandPhase

    def check(self, phase: CommandPhase, site: Site) -> Iterator[Problem]:
        """An empty command, and a pattern that is none."""
        yield from super().check(phase, site)
        if not phase.run or (isinstance(phase.run, str) and not phase.run.strip()):
            yield site.problem(f"run of phase {phase.id} is empty", "write run: nvidia-smi", "run")
        if phase.stdout is not None:
            try:
                line_pattern(phase.stdout)
            except PatternError as error:
                reason, _, fix = str(error).partition("; ")
                message = f"stdout of phase {phase.id} is not a regular expression: {reason}"
                yield site.problem(message, fix, "stdout")

    def runs(self, phase: CommandPhase, planner: Planner) -> Iterator[RunSpec]:
        """One run. What its pattern finds is read by the same words as any log."""
        values = planner.values(phase, "r1")
        words = (*_shell(), phase.run) if isinstance(phase.run, str) else phase.run
        yield planner.process(phase, [fill(word, values) for word in words], launcher="exec", stdout=phase.stdout)


def _shell() -> tuple[str, ...]:
    """What carries out a shell line: bash, where a program that fails fails its pipe (`bench | tee log`), else sh."""
    bash = shutil.which("bash")
    return (bash, "-o", "pipefail", "-c") if bash is not None else ("/bin/sh", "-c")

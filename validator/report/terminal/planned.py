"""What is shown in a terminal before anything runs: the bundled runbooks, and the plan of one."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from validator.report.terminal.lines import paint, text_table, wrap
from validator.text import format_duration, one_line, plural

if TYPE_CHECKING:
    from validator.model.plan import PhasePlan, Plan, RunSpec
    from validator.plan.eta import Remaining
    from validator.runbook import RunbookInfo
    from validator.runbook.load import LoadedRunbook


def plan_lines(loaded: LoadedRunbook, plan: Plan, expected: Remaining | None, *, width: int, color: bool) -> list[str]:
    """Every phase with its runs: the exact command, what is added to the environment, the expected and longest time."""
    budget_s = sum(_budget_s(phase) for phase in plan.phases)
    lines = [
        paint(one_line(loaded.runbook.title or loaded.runbook.name), "bold", color=color),
        f"{one_line(loaded.path)}  sha256 {loaded.sha256[:12]}",
        f"{plural(len(plan.phases), 'phase')}, {plural(len(plan.runs), 'run')}{_expected_text(expected)}, "
        f"at most {format_duration(budget_s)}",
        "",
    ]
    rows = [_phase_row(number, phase) for number, phase in enumerate(plan.phases, start=1)]
    columns = ("#", "Phase", "Kind", "Runs", "Ranks", "Steps", "Expected", "At most", "Note")
    numeric = ("#", "Runs", "Ranks", "Steps", "Expected", "At most")
    lines += text_table(columns, rows, width=width, numeric=numeric, color=color)
    for phase in plan.phases:
        for run in phase.runs:
            lines += ["", *_run_lines(run, color=color)]
    return lines


def _phase_row(number: int, phase: PhasePlan) -> tuple[str, ...]:
    runs = phase.runs
    steps = {run.steps for run in runs if run.steps is not None}
    ranks = {run.world_size for run in runs}
    return (
        str(number),
        phase.phase,
        phase.kind,
        str(len(runs)) if runs else "–",
        "/".join(str(rank) for rank in sorted(ranks)) or "–",
        "/".join(f"{step:,}" for step in sorted(steps)) or "–",
        format_duration(phase.expected_s) if phase.expected_s is not None and phase.skipped is None else "–",
        format_duration(_budget_s(phase)) if runs else "–",
        phase.skipped or _phase_note(phase),
    )


def _phase_note(phase: PhasePlan) -> str:
    arms = list(dict.fromkeys(run.arm for run in phase.runs if run.arm))
    parts = [f"{plural(len(arms), 'arm')}: {', '.join(arms)}"] if arms else []
    parts += ["data-loader smoke test first"] if any(run.role == "smoke" for run in phase.runs) else []
    parts += [f"on failure: {', '.join(phase.remedies)}"] if phase.remedies else []
    return "; ".join(parts)


def _budget_s(phase: PhasePlan) -> float:
    """The longest that a phase can take: every run to its timeout, with every retry, and again for every remedy."""
    return sum(run.timeout_s * (1 + run.retries) for run in phase.runs) * (1 + len(phase.remedies))


def _expected_text(left: Remaining | None) -> str:
    if left is None:
        return ""
    return f", expected {'at least' if left.at_least else 'about'} {format_duration(left.seconds)}"


def _run_lines(run: RunSpec, *, color: bool) -> list[str]:
    """The run as it can be pasted, not wrapped: a terminal may fold it, a copy stays whole."""
    settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in run.env.items())
    if run.python is not None and "/" in run.python:
        settings = f'PATH={shlex.quote(str(Path(run.python).parent))}:"$PATH" {settings}'.rstrip()
    command = shlex.join(run.argv)
    lines = [paint(one_line(run.id), "bold", color=color)]
    lines += [f"  cd {shlex.quote(one_line(run.cwd))}"] if run.cwd else []
    lines += [f"  {one_line(settings, limit=20_000)} \\"] if settings else []
    return [*lines, f"  {one_line(command, limit=20_000)}"]


def runbook_lines(runbooks: Sequence[RunbookInfo], absent: str | None, *, width: int, color: bool) -> list[str]:
    """The runbooks that come with the package. `absent` says why the bundled trainer cannot be started, if so."""
    if not runbooks:
        return ["No runbook comes with this installation; give the path of one."]
    rows = [
        (
            f"{info.name} *" if absent and info.bundled_trainer else info.name,
            str(info.gpus) if info.gpus else "CPU",
            str(len(info.phases)),
            info.title or info.description,
        )
        for info in runbooks
    ]
    lines = text_table(
        ("Runbook", "GPUs", "Phases", "What it decides"),
        rows,
        width=width,
        numeric=("GPUs", "Phases"),
        styles=[("bold",)] * len(rows),
        color=color,
    )
    if absent:
        return [*lines, "", *wrap(f"* needs the bundled trainer: {absent}", width=width, indent="  ", first="")]
    return [*lines, "", f"Run one with: validator run {shlex.quote(runbooks[0].name)}"]

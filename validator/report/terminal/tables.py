"""The tables of `plan`, `list` and `inspect`, on stdout."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TextIO

from validator.model.catalogue import METRICS
from validator.model.measure import MetricStats
from validator.model.plan import PhasePlan, Plan, RunSpec
from validator.model.units import format_duration
from validator.model.verdict import RunReport
from validator.plan.eta import Eta
from validator.report.formats import format_interval, format_number, format_value, one_line, plural
from validator.report.terminal.lines import paint, stream_width, text_table, wrap
from validator.report.terminal.observer import wants_color
from validator.report.terminal.summary import by_severity, finding_lines

if TYPE_CHECKING:
    from validator.report.terminal import Inspected
    from validator.runbook import LoadedRunbook, RunbookInfo

__all__ = ["print_inspection", "print_plan", "print_runbooks"]

_ORDER = {name: index for index, name in enumerate(METRICS)}


def _print(lines: Iterable[str], stream: TextIO | None) -> None:
    out = stream or sys.stdout
    encoding = getattr(out, "encoding", None) or "utf-8"
    text = "\n".join(lines) + "\n"
    out.write(text.encode(encoding, "backslashreplace").decode(encoding))
    out.flush()


def print_plan(loaded: LoadedRunbook, plan: Plan, *, stream: TextIO | None = None) -> None:
    """Every phase with its runs: the exact command, what is added to the environment, the longest time."""
    out = stream or sys.stdout
    color, width = wants_color(out), stream_width(out)
    budget_s = sum(_budget_s(phase) for phase in plan.phases)
    lines = [
        paint(one_line(loaded.runbook.title or loaded.runbook.name), "bold", color=color),
        f"{one_line(loaded.path)}  sha256 {loaded.sha256[:12]}",
        f"{plural(len(plan.phases), 'phase')}, {plural(len(plan.runs), 'run')}{_expected(plan)}, "
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
    _print(lines, out)


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
        phase.skipped or _note(phase),
    )


def _note(phase: PhasePlan) -> str:
    arms = list(dict.fromkeys(run.arm for run in phase.runs if run.arm))
    parts = [f"{plural(len(arms), 'arm')}: {', '.join(arms)}"] if arms else []
    parts += ["loader first"] if any(run.role == "smoke" for run in phase.runs) else []
    parts += [f"on failure: {', '.join(phase.remedies)}"] if phase.remedies else []
    return "; ".join(parts)


def _budget_s(phase: PhasePlan) -> float:
    """The longest that a phase can take: every run to its timeout, with every retry, and again for every remedy."""
    return sum(run.timeout_s * (1 + run.retries) for run in phase.runs) * (1 + len(phase.remedies))


def _expected(plan: Plan) -> str:
    left = Eta(plan).remaining(now_s=0.0)
    if left is None:
        return ""
    return f", expected {'at least' if left.at_least else 'about'} {format_duration(left.seconds)}"


def _run_lines(run: RunSpec, *, color: bool) -> list[str]:
    """The run as it can be pasted, not wrapped: a terminal may fold it, a copy stays whole."""
    settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in run.env.items())
    command = shlex.join(run.argv)
    lines = [paint(one_line(run.id), "bold", color=color)]
    if run.cwd:
        lines.append(f"  cd {shlex.quote(one_line(run.cwd))}")
    if settings:
        lines.append(f"  {one_line(settings, limit=20_000)} \\")
    return [*lines, f"  {one_line(command, limit=20_000)}"]


def print_runbooks(runbooks: Sequence[RunbookInfo], *, stream: TextIO | None = None) -> None:
    """The runbooks that come with the package."""
    out = stream or sys.stdout
    if not runbooks:
        _print(["No runbook comes with this installation; give the path of one."], out)
        return
    rows = [
        (info.name, str(info.gpus) if info.gpus else "CPU", str(len(info.phases)), info.title or info.description)
        for info in runbooks
    ]
    color = wants_color(out)
    lines = text_table(
        ("Runbook", "GPUs", "Phases", "What it decides"),
        rows,
        width=stream_width(out),
        numeric=("GPUs", "Phases"),
        styles=[("bold",)] * len(rows),
        color=color,
    )
    example = runbooks[0].name
    _print([*lines, "", f"Run one with: validator run {shlex.quote(example)}"], out)


def print_inspection(inspected: Inspected, *, stream: TextIO | None = None) -> None:
    """One trainer folder: its metrics with their windows, its single numbers, its configuration, what looks wrong."""
    out = stream or sys.stdout
    color, width = wants_color(out), stream_width(out)
    run = inspected.run
    lines = [paint(one_line(inspected.directory), "bold", color=color)]
    printed = inspected.printed
    if printed:
        about = f" ({one_line(printed['about'])})" if printed["about"] else ""
        lines += wrap(
            f"{one_line(printed['path'])} is read as lines of {printed['format']}{about}; give --stdout PATTERN where "
            "that is wrong",
            width=width,
            indent="  ",
            first="",
        )
    if run.warmup_end_step is not None:
        lines.append(f"warm-up ends at step {run.warmup_end_step:,}")
    lines += ["", *_metric_table(run, width=width, color=color)]
    if run.scalars:
        rows = [(name, format_value(item.value, item.unit)) for name, item in run.scalars.items()]
        lines += ["", *text_table(("Number", "Value"), rows, width=width, color=color)]
    lines += _differences(run, width=width, color=color)
    for text in run.irregularities:
        lines += wrap(f"! {text}", width=width, indent="  ", first="")
    ordered = by_severity(inspected.findings)
    findings = [line for finding in ordered for line in finding_lines(finding, width=width, color=color)]
    lines += ["", *([paint("Findings", "bold", color=color), *findings] if findings else ["No finding."])]
    _print(lines, out)


def _metric_table(run: RunReport, *, width: int, color: bool) -> list[str]:
    if not run.metrics:
        return ["No series was found: no CSV, no heartbeat with steps, and no log in a known print format."]
    names = sorted(run.metrics, key=lambda name: (_ORDER.get(name, len(_ORDER)), name))
    rows = [_metric_row(name, run.metrics[name]) for name in names]
    columns = ("Metric", "Mean", "Stdev", "p50", "p95", "n", "Steps", "95 % interval", "Unit")
    return text_table(columns, rows, width=width, numeric=columns[1:8], color=color)


def _metric_row(name: str, stats: MetricStats) -> tuple[str, ...]:
    window = f"{stats.window.first_step:,}–{stats.window.last_step:,}" if stats.window else "–"
    numbers = [format_number(value) for value in (stats.mean, stats.stdev, stats.p50, stats.p95)]
    return (name, *numbers, f"{stats.n:,}", window, format_interval(stats.ci_low, stats.ci_high) or "–", stats.unit)


def _differences(run: RunReport, *, width: int, color: bool) -> list[str]:
    """Settings that ran otherwise than requested."""
    from validator.report.build_runs import config_table

    config = config_table(run.requested, run.effective)
    rows = [(row.key, row.requested, row.effective) for row in config.rows if row.differs]
    lines = ["", *text_table(("Setting", "Requested", "Effective"), rows, width=width, color=color)] if rows else []
    return [*lines, "", config.note] if config.note else lines

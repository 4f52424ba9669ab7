"""What is shown in a terminal of a validation and of its parts: the summary at its end, its plan, runbooks, one run."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from validator.errors import ExitCode
from validator.model.plan import PhasePlan, Plan, RunSpec
from validator.model.result import PrintedFormat
from validator.model.units import format_duration
from validator.model.verdict import Check, Finding, PhaseReport, RunReport, ValidationReport, Verdict
from validator.plan.eta import Eta
from validator.report.build_runs import config_table, metrics_table
from validator.report.page import decision_status, judged_items, status_view, too_short, waits_for_bounds
from validator.report.terminal.lines import paint, text_table, wrap
from validator.runs.folder import ReportPaths
from validator.text import clean, format_interval, format_value, one_line, plural

if TYPE_CHECKING:
    from validator.runbook import LoadedRunbook, RunbookInfo


MAX_OPEN = 12
"""Criteria that are listed; the report has them all."""

MAX_FINDINGS = 8

_FINDING_STYLE = {"veto": "bad bold", "warning": "warn", "info": "info"}


def summary_lines(report: ValidationReport, paths: ReportPaths, *, width: int = 80, color: bool = False) -> list[str]:
    """The summary as lines of about `width` columns."""
    view = decision_status(report.decision)
    lines = ["", paint(f"{view.word}  {one_line(report.runbook.name, limit=48)}", f"{view.tone} bold", color=color)]
    lines += wrap(clean(report.why), width=width)
    lines.append(paint(_counts_text(report), "muted", color=color))
    lines += _open_items(report, width=width, color=color)
    lines += _report_findings(report, width=width, color=color)
    if report.recommended.env:
        settings = " ".join(f"{k}={shlex.quote(v)}" for k, v in report.recommended.env.items())
        lines += ["", *wrap(f"Recommended: {settings}", width=width, indent="  ", first="")]
    if report.since is not None:
        since = f"Since   {report.since.a.name}, the last GO that compares: {report.since.message}"
        lines += ["", *wrap(since, width=width, indent="  ", first="")]
    lines += ["", f"Report  {shell_path(paths.html)}", f"Next    {next_command(report, paths.result.parent)}"]
    return lines


def _counts_text(report: ValidationReport) -> str:
    required = Counter(
        item.status for phase in report.phases if phase.required for item in judged_items(phase) if item.required
    )
    words = [
        f"{count} {status_view(status).word.lower()}" for status, count in sorted(required.items(), key=lambda p: -p[1])
    ]
    text = f"{plural(sum(required.values()), 'required criterion', 'required criteria')}: {', '.join(words) or 'none'}"
    text += f"; {plural(len(report.phases), 'phase')}"
    return text + (f" in {format_duration(report.duration_s)}" if report.duration_s is not None else "")


def _open_items(report: ValidationReport, *, width: int, color: bool) -> list[str]:
    """What has not passed: required before optional, failed before inconclusive, each with its sentence."""
    items = [
        (phase, item)
        for phase in report.phases
        for item in judged_items(phase)
        if item.status != "PASS" and (phase.ran or phase.status not in ("NOT_RUN", "SKIPPED"))
    ]
    order = ("FAIL", "INCONCLUSIVE", "SKIPPED", "NOT_RUN", "RUNNING")
    items.sort(key=lambda pair: (not (pair[0].required and pair[1].required), order.index(pair[1].status)))
    lines: list[str] = [""] if items else []
    for phase, item in items[:MAX_OPEN]:
        lines += _item_lines(phase, item, width=width, color=color)
    if len(items) > MAX_OPEN:
        lines.append(f"  … {len(items) - MAX_OPEN} more in the report")
    lines += _phases_not_run(report, width=width, color=color)
    return lines


def _item_lines(phase: PhaseReport, item: Verdict | Check, *, width: int, color: bool) -> list[str]:
    view = status_view(item.status)
    optional = "" if phase.required and item.required else " (not required)"
    text = item.text if isinstance(item, Verdict) else item.title
    lines = _marked(f"{view.sign} {view.word}", view.tone, f"{phase.id}: {text}{optional}", width=width, color=color)
    if isinstance(item, Verdict) and item.observed is not None and not item.message:
        observed = f"observed {format_value(item.observed, item.unit)} {format_interval(item.ci_low, item.ci_high)}"
        lines += wrap(observed, width=width, indent="    ")
    lines += wrap(item.message, width=width, indent="    ")
    return lines


def _marked(mark: str, style: str, text: str, *, width: int, color: bool) -> list[str]:
    """A sentence behind a painted mark, its further lines indented."""
    lines = wrap(text, width=width, indent="    ", first=f"  {mark} ")
    lines[0] = lines[0].replace(mark, paint(mark, style, color=color), 1)
    return lines


def _phases_not_run(report: ValidationReport, *, width: int, color: bool) -> list[str]:
    lines = []
    for phase in report.phases:
        if report.decision != "IN_PROGRESS" and not phase.ran and phase.status in ("NOT_RUN", "SKIPPED"):
            view = status_view(phase.status)
            why = f"{phase.id}: {phase.message}" if phase.message else phase.id
            why_lines = wrap(why, width=width, indent="    ", first=f"  {view.sign} {view.word} ")
            lines += [paint(why_lines[0], view.tone, color=color), *why_lines[1:]]
    return lines


def _report_findings(report: ValidationReport, *, width: int, color: bool) -> list[str]:
    findings = by_severity(report.findings)
    lines = ["", paint("Findings", "bold", color=color)] if findings else []
    for finding in findings[:MAX_FINDINGS]:
        lines += finding_lines(finding, width=width, color=color)
    if len(findings) > MAX_FINDINGS:
        lines.append(f"  … {len(findings) - MAX_FINDINGS} more in the report")
    return lines


def by_severity(findings: Sequence[Finding]) -> list[Finding]:
    """Vetoes first, then warnings, then information."""
    order = tuple(_FINDING_STYLE)
    return sorted(findings, key=lambda finding: order.index(finding.severity))


def finding_lines(finding: Finding, *, width: int, color: bool) -> list[str]:
    """One finding: severity, code, place, confidence, what it says and the next step."""
    place = finding.run or finding.phase
    head = f"{finding.code}{f' ({place})' if place else ''}, {finding.confidence} confidence: {finding.message}"
    lines = _marked(finding.severity.upper(), _FINDING_STYLE[finding.severity], head, width=width, color=color)
    return lines + wrap(f"→ {finding.next_step}", width=width, indent="    ")


# The command in the last line.


def next_command(report: ValidationReport, run_dir: Path) -> str:
    """The command to type next.

    Interrupted: resume. GO: use the settings, or read the report. Not GO: inspect the run that prevents it, or repeat
    its phase.
    """
    runbook = shlex.quote(one_line(report.runbook.path))
    if report.decision == "IN_PROGRESS":
        return f"validator report {shell_path(run_dir)}"
    if report.exit_code == ExitCode.INTERRUPTED:
        return f"validator run --resume {shell_path(run_dir)}"
    if report.decision == "GO":
        chosen = f". {shell_path(run_dir / 'recommended.env')}"
        return chosen if report.recommended.env else f"less {shell_path(run_dir / 'report.md')}"
    phase = _blocking_phase(report)
    if phase is None:
        return f"less {shell_path(run_dir / 'report.md')}"
    if waits_for_bounds(phase):
        written = Path(report.runbook.path).is_file()
        edit = f"validator baseline {shell_path(run_dir)} --edit {runbook} --allow-not-go"
        return edit if written else f"validator init --from-run {shell_path(run_dir)}"
    for run in phase.runs:
        outcome = run.outcome or {}
        ended_well = outcome.get("reason") == "exited" and outcome.get("rc") == 0
        if outcome and not ended_well and run.log:
            return f"tail -n 50 {shell_path(run_dir / run.log)}"
    if phase.status == "FAIL" and phase.runs and phase.runs[0].out and phase.runs[0].metrics:
        return f"validator inspect {shell_path(run_dir / phase.runs[0].out)}"
    return f"validator run {runbook} --only {shlex.quote(phase.id)}{_more_steps(phase)}"


def _more_steps(phase: PhaseReport) -> str:
    """Twice as many steps for a phase that had too few rows; as many as before would be too few again."""
    steps = [run.scalars["steps.done"].value for run in phase.runs if "steps.done" in run.scalars]
    counted = any("steps.done" in criterion.text for criterion in phase.criteria)
    if too_short(phase) is None or counted or not steps or not isinstance(steps[-1], float):
        return ""
    return f" --set {shlex.quote(phase.id)}.steps={2 * round(steps[-1])}"


def _blocking_phase(report: ValidationReport) -> PhaseReport | None:
    """The phase that prevents a GO most directly: failed before inconclusive before not run, required only."""
    for status in ("FAIL", "INCONCLUSIVE", "SKIPPED", "NOT_RUN"):
        for phase in report.phases:
            if phase.required and phase.status == status:
                return phase
    vetoed = {finding.phase for finding in report.findings if finding.severity == "veto"}
    return next((phase for phase in report.phases if phase.id in vetoed), None)


def shell_path(path: Path) -> str:
    """A path as it can be pasted: relative to the working directory when it lies below."""
    with suppress(ValueError):
        path = path.absolute().relative_to(Path.cwd())
    text = one_line(path)
    return shlex.quote(text if not text.startswith("-") else f"./{text}")


# The tables of `plan`, `list` and `inspect`.


def plan_lines(loaded: LoadedRunbook, plan: Plan, *, width: int, color: bool) -> list[str]:
    """Every phase with its runs: the exact command, what is added to the environment, the longest time."""
    budget_s = sum(_budget_s(phase) for phase in plan.phases)
    lines = [
        paint(one_line(loaded.runbook.title or loaded.runbook.name), "bold", color=color),
        f"{one_line(loaded.path)}  sha256 {loaded.sha256[:12]}",
        f"{plural(len(plan.phases), 'phase')}, {plural(len(plan.runs), 'run')}{_expected_text(plan)}, "
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


def _expected_text(plan: Plan) -> str:
    left = Eta(plan).remaining(now_s=0.0)
    if left is None:
        return ""
    return f", expected {'at least' if left.at_least else 'about'} {format_duration(left.seconds)}"


def _run_lines(run: RunSpec, *, color: bool) -> list[str]:
    """The run as it can be pasted, not wrapped: a terminal may fold it, a copy stays whole."""
    settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in run.env.items())
    command = shlex.join(run.argv)
    lines = [paint(one_line(run.id), "bold", color=color)]
    lines += [f"  cd {shlex.quote(one_line(run.cwd))}"] if run.cwd else []
    lines += [f"  {one_line(settings, limit=20_000)} \\"] if settings else []
    return [*lines, f"  {one_line(command, limit=20_000)}"]


def runbook_lines(runbooks: Sequence[RunbookInfo], *, width: int, color: bool) -> list[str]:
    """The runbooks that come with the package."""
    if not runbooks:
        return ["No runbook comes with this installation; give the path of one."]
    rows = [
        (info.name, str(info.gpus) if info.gpus else "CPU", str(len(info.phases)), info.title or info.description)
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
    return [*lines, "", f"Run one with: validator run {shlex.quote(runbooks[0].name)}"]


def inspection_lines(
    directory: Path,
    run: RunReport,
    findings: Sequence[Finding],
    printed: PrintedFormat | None,
    *,
    width: int,
    color: bool,
) -> list[str]:
    """One trainer folder: its metrics with their windows, its single numbers, its configuration, what looks wrong.

    `printed` is the print format by which a log was read where no pattern was given.
    """
    lines = [paint(one_line(directory), "bold", color=color)]
    if printed:
        about = f" ({one_line(printed.about)})" if printed.about else ""
        lines += wrap(
            f"{one_line(printed.path)} is read as lines of {printed.format}{about}; give --stdout PATTERN where "
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
    lines += _config_lines(run, width=width, color=color)
    for text in run.irregularities:
        lines += wrap(f"! {text}", width=width, indent="  ", first="")
    shown = [line for one in by_severity(findings) for line in finding_lines(one, width=width, color=color)]
    lines += ["", *([paint("Findings", "bold", color=color), *shown] if shown else ["No finding."])]
    return lines


def _metric_table(run: RunReport, *, width: int, color: bool) -> list[str]:
    if not run.metrics:
        return ["No series was found: no CSV, no heartbeat with steps, and no log in a known print format."]
    table = metrics_table(run)
    columns = ("Metric", "Mean", "Stdev", "p50", "p95", "n", "Steps", "95 % interval", "Unit")
    places = [table.columns.index(name) for name in columns]
    rows = [[row[place] for place in places] for row in table.rows]
    return text_table(columns, rows, width=width, numeric=columns[1:8], color=color)


def _config_lines(run: RunReport, *, width: int, color: bool) -> list[str]:
    """Settings whose effective value differs from the requested one."""
    config = config_table(run.requested, run.effective)
    rows = [(row.key, row.requested, row.effective) for row in config.rows if row.differs]
    lines = ["", *text_table(("Setting", "Requested", "Effective"), rows, width=width, color=color)] if rows else []
    return [*lines, "", config.note] if config.note else lines

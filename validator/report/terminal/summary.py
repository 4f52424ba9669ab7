"""What is shown in a terminal of what was measured: the summary at the end of a validation, and one run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from validator.model.result import PrintedFormat
from validator.model.verdict import Finding, RunReport, ValidationReport
from validator.report.advice import next_command, shell_path
from validator.report.build import build_page
from validator.report.build_criteria import MAX_OPEN, VETO
from validator.report.build_runs import config_table, metrics_table
from validator.report.page import OpenItem, Page, Tile
from validator.report.terminal.lines import paint, text_table, wrap
from validator.runs.folder import ReportPaths
from validator.text import format_duration, format_value, one_line, plural

# The summary at the end of a run: what the first screen of the page shows.

MAX_FINDINGS = 8

_FINDING_STYLE = {"veto": "bad bold", "warning": "warn", "info": "info"}


def summary_lines(report: ValidationReport, paths: ReportPaths, *, width: int = 80, color: bool = False) -> list[str]:
    """The summary as lines of about `width` columns."""
    page = build_page(report)
    view = page.decision
    lines = ["", paint(f"{view.word}  {one_line(report.runbook.name, limit=48)}", f"{view.tone} bold", color=color)]
    lines += wrap(page.why, width=width)
    for fact in page.undecided:
        lines += _marked("? Undecided", "warn", f"{fact.name}: {fact.value}.", width=width, color=color)
    lines.append(paint(_counts_text(page, report), "muted", color=color))
    lines += _tile_lines(page.tiles, width=width, color=color)
    lines += _open_lines(page.open_items, width=width, color=color)
    lines += _report_findings(report, width=width, color=color)
    if report.recommended.env:
        settings = " ".join(f"{k}={shlex.quote(v)}" for k, v in report.recommended.env.items())
        lines += ["", *wrap(f"Recommended: {settings}", width=width, indent="  ", first="")]
    if report.since is not None:
        since = f"Since   {report.since.a.name}, the last GO that compares: {report.since.message}"
        lines += ["", *wrap(since, width=width, indent="  ", first="")]
    return [*lines, "", *_next_lines(page, report, paths, width=width)]


def _next_lines(page: Page, report: ValidationReport, paths: ReportPaths, *, width: int) -> list[str]:
    """The report, the next step that it names, and the command to begin with."""
    step, indent = page.next_step, " " * 8
    lines = [f"Report  {shell_path(paths.html)}"]
    for one in step.reasons if step is not None else ():
        lines += wrap(one.value, width=width, indent=indent, first=f"{one.name:8}")
    lines += wrap(step.value, width=width, indent=indent, first="Next    ") if step is not None else []
    return [*lines, f"Command {next_command(report, paths.result.parent, step)}"]


def _counts_text(page: Page, report: ValidationReport) -> str:
    words = ", ".join(f"{count} {view.word}" for view, count in page.counts) or "none"
    text = f"Required criteria: {words}; {plural(len(report.phases), 'phase')}"
    return text + (f" in {format_duration(report.duration_s)}" if report.duration_s is not None else "")


def _tile_lines(tiles: Sequence[Tile], *, width: int, color: bool) -> list[str]:
    """The values that decide, a row each, and the chosen settings behind them."""
    values = [tile for tile in tiles if not tile.lines]
    rows = [
        (
            tile.status.sign if tile.status else "",
            tile.label,
            f"{tile.quantity} {tile.interval}".rstrip(),
            f"{tile.limit or 'no criterion'}, {tile.phase}",
        )
        for tile in values
    ]
    styles = [(tile.status.tone if tile.status else "",) for tile in values]
    columns = ("", "Value", "Observed, 95 %", "Bound, phase")
    lines = ["", *text_table(columns, rows, width=width, styles=styles, color=color)] if rows else []
    for tile in tiles:
        if not tile.lines or tile.status is None:
            continue
        text = f"{tile.label}: {tile.quantity}: {'; '.join(f'{line.name} {line.value}' for line in tile.lines)}"
        lines += _marked(tile.status.sign, tile.status.tone, text, width=width, color=color)
    return lines


def _open_lines(items: Sequence[OpenItem], *, width: int, color: bool) -> list[str]:
    """What has not passed, each with what was observed. Vetoes are among the findings, with their evidence."""
    items = [item for item in items if item.status != VETO]
    lines: list[str] = [""] if items else []
    for item in items[:MAX_OPEN]:
        optional = "" if item.required else " (not required)"
        mark, text = f"{item.status.sign} {item.status.word}", f"{item.place}: {item.text}{optional}"
        lines += _marked(mark, item.status.tone, text, width=width, color=color)
        if item.observed:
            bound = f", bound {item.bound}" if item.bound else ""
            lines += wrap(f"observed {item.observed}{bound}", width=width, indent="    ")
        lines += wrap(item.message, width=width, indent="    ")
    if len(items) > MAX_OPEN:
        lines.append(f"  … {len(items) - MAX_OPEN} more in the report")
    return lines


def _marked(mark: str, style: str, text: str, *, width: int, color: bool) -> list[str]:
    """A sentence behind a painted mark, its further lines indented."""
    lines = wrap(text, width=width, indent="    ", first=f"  {mark} ")
    lines[0] = lines[0].replace(mark, paint(mark, style, color=color), 1)
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


# One run, as `inspect` shows it.


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
        lines_of, option = ("lines of ", "--stdout PATTERN") if printed.pattern else ("", "--reader NAME")
        lines += wrap(
            f"{one_line(printed.path)} is read as {lines_of}{printed.format}{about}; give {option} where that is wrong",
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

"""A phase and its runs, as the page shows them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from validator.model.catalogue import catalogue_order
from validator.model.result import MetricStats, RunTable, ScalarValue
from validator.model.verdict import ArmComparison, PhaseReport, RunReport
from validator.report.elements import anchor, flatten, link
from validator.report.page import ConfigRow, ConfigTable, LabeledValue, RunView, Table
from validator.text import (
    clean,
    format_change,
    format_duration,
    format_interval,
    format_number,
    format_p_value,
    format_percent,
    format_value,
    listed,
    one_line,
)

MAX_COMMAND = 20_000

DIFFERS = "differs"
"""The verdict on a setting that differs from the request, by the same rule as in judgement."""


def run_view(run: RunReport, *, phase: str) -> RunView:
    """One run in full."""
    outcome = run.outcome or {}
    return RunView(
        id=one_line(run.id),
        anchor=anchor("run", phase, run.id),
        title=_run_title(run),
        repeat=run.repeat,
        tone=ended(outcome)[1],
        detail=clean(outcome.get("detail") or ""),
        command=_command_text(run),
        config=config_table(run.requested, run.effective),
        metrics=metrics_table(run),
        scalars=_scalar_facts(run.scalars),
        attempts=_attempts_table(outcome),
        irregularities=tuple(clean(text) for text in run.irregularities),
        links=_file_links(run, outcome),
        folder=link(run.out.rstrip("/") + "/") if run.out else None,
        tables=tuple(map(_run_table, run.tables)),
    )


def _run_table(found: RunTable) -> Table:
    """A table that the run left, numbers to the right."""
    numeric = frozenset(
        name
        for index, name in enumerate(found.columns)
        if found.rows and all(isinstance(row[index], (int, float, type(None))) for row in found.rows)
    )
    rows = tuple(tuple(format_value(cell) for cell in row) for row in found.rows)
    return Table(one_line(found.caption, limit=200), tuple(map(one_line, found.columns)), rows, numeric)


_ROLES = {"smoke": "data-loader smoke test", "nsys": "for Nsight Systems", "changed": "with another setting"}


def _run_title(run: RunReport) -> str:
    parts = [f"remedy {one_line(run.remedy)}"] if run.remedy else []
    parts += [_ROLES[run.role]] if run.role in _ROLES else []
    parts += [f"arm {one_line(run.arm)}"] if run.arm else []
    return ", ".join([*parts, f"run {run.repeat}"])


def runs_table(phase: PhaseReport) -> Table:
    """A row for each run of a phase: how it ended and, where some run has them, its rate and step time."""
    rated = has_rates(phase)
    columns = ["Run", "Arm", "Ended", "Duration", "Steps", "Rate (tok/s)", "95 % interval", "Step time (s)"]
    shown = [name for name in columns[: None if rated else 4] if name != "Arm" or len(phase.runs) > 1]
    shown += ["Nodes"] if any(run.nodes for run in phase.runs) else []
    rows = tuple(tuple(cells[name] for name in shown) for cells in map(_run_cells, phase.runs))
    caption = "Runs; mean ± standard deviation over the window"
    return Table(caption, tuple(shown), rows, frozenset(columns[3:]))


def has_rates(phase: PhaseReport) -> bool:
    """Whether some run of the phase has steps that were timed."""
    return any("toks_per_s" in run.metrics or "step_time_s" in run.metrics for run in phase.runs)


def _run_cells(run: RunReport) -> dict[str, str]:
    outcome = run.outcome or {}
    rate, steps = run.metrics.get("toks_per_s"), run.scalars.get("steps.done")
    return {
        "Run": one_line(run.id),
        "Arm": one_line(run.arm or "–"),
        "Ended": ended(outcome)[0],
        "Duration": _duration_text(outcome),
        "Steps": format_value(steps.value) if steps else "–",
        "Rate (tok/s)": _plus_minus(rate),
        "95 % interval": (format_interval(rate.ci_low, rate.ci_high) if rate else "") or "–",
        "Step time (s)": _plus_minus(run.metrics.get("step_time_s")),
        "Nodes": one_line(listed(run.nodes)) or "–",
    }


def ended(outcome: Mapping[str, Any]) -> tuple[str, str]:
    """How a run ended, as word and tone."""
    if not outcome:
        return "not ended", "muted"
    rc, reason = outcome.get("rc"), one_line(outcome.get("reason") or "unknown")
    if reason == "at_steps":
        return "at its steps", "good"
    if reason != "exited":
        return reason, "bad"
    if isinstance(rc, int) and rc < 0:
        return f"signal {-rc}", "bad"
    return f"exit {format_value(rc)}", "good" if rc == 0 else "bad"


def _duration_text(outcome: Mapping[str, Any]) -> str:
    seconds = outcome.get("duration_s")
    return format_duration(seconds) if isinstance(seconds, (int, float)) else "–"


def _plus_minus(stats: MetricStats | None) -> str:
    if stats is None or stats.mean is None:
        return "–"
    spread = f" ± {format_number(stats.stdev)}" if stats.stdev is not None else ""
    return format_number(stats.mean) + spread


def _command_text(run: RunReport) -> str:
    """The command as it can be pasted: settings in front, one a line. NUL cannot be part of one."""
    settings = [f"{name}={shlex.quote(value)} \\" for name, value in run.env.items()]
    return clean("\n".join([*settings, shlex.join(run.command)]), limit=MAX_COMMAND) if run.command else ""


def config_table(requested: Mapping[str, Any] | None, effective: Mapping[str, Any] | None) -> ConfigTable:
    """Both configs side by side, what differs first. A key that was not requested is a default, not a difference."""
    wanted, used = dict(flatten(dict(requested or {}))), dict(flatten(dict(effective or {})))
    rows = [_config_row(key, wanted, used) for key in {**wanted, **used} if key]
    rows.sort(key=lambda row: row.verdict != DIFFERS)
    note = ""
    if effective is None and requested is None:
        note = "The program records no configuration."
    elif effective is None:
        note = "The trainer does not record its effective configuration, so it cannot be compared."
    elif requested is None:
        note = "The trainer does not record the requested configuration."
    return ConfigTable(rows=tuple(rows), differing=sum(row.verdict == DIFFERS for row in rows), note=note)


def _config_row(key: str, wanted: Mapping[str, Any], used: Mapping[str, Any]) -> ConfigRow:
    if key not in wanted:
        verdict = "not requested"
    elif key not in used:
        verdict = "not recorded"
    else:
        from validator.judge.config import is_stated, same_value

        same = same_value(wanted[key], used[key])
        verdict = "yes" if same else DIFFERS if is_stated(key, wanted[key]) else "left to the trainer"
    return ConfigRow(
        key=one_line(key, limit=120),
        requested=_setting_text(wanted[key]) if key in wanted else "",
        effective=_setting_text(used[key]) if key in used else "",
        verdict=verdict,
    )


def _setting_text(value: Any) -> str:
    """A setting exactly as it is: numbers are not rounded, `none` differs from an empty text."""
    if value is None:
        return "none"
    return one_line(str(value).lower() if isinstance(value, bool) else value, limit=300) or '""'


_METRIC_COLUMNS = (
    *("Metric", "Unit", "Mean", "Stdev", "CV", "95 % interval", "n", "Steps"),
    *("Min", "p50", "p95", "p99", "Max", "First", "Last", "Source"),
)


def metrics_table(run: RunReport) -> Table:
    """Every metric of a run; the last column leads to the file that it comes from."""
    names = sorted(run.metrics, key=catalogue_order)
    measured = [run.metrics[name] for name in names]
    return Table(
        f"Metrics of {one_line(run.id)}, each over its window",
        _METRIC_COLUMNS,
        tuple(map(_metric_row, names, measured)),
        frozenset(_METRIC_COLUMNS[2:-1]),
        links=tuple(LabeledValue(clean(s.note or ""), one_line(s.source or ""), link(s.source)) for s in measured),
    )


def _metric_row(name: str, stats: MetricStats) -> tuple[str, ...]:
    window = stats.window
    spread = (stats.min, stats.p50, stats.p95, stats.p99, stats.max, stats.first, stats.last)
    return (
        one_line(name, limit=80),
        one_line(stats.unit, limit=20),
        format_number(stats.mean),
        format_number(stats.stdev),
        format_percent(stats.cv),
        format_interval(stats.ci_low, stats.ci_high) or "–",
        format_number(stats.n),
        f"{window.first_step:,}–{window.last_step:,}" if window else "–",
        *map(format_number, spread),
        one_line(stats.source or "–", limit=300),
    )


def _scalar_facts(scalars: Mapping[str, ScalarValue]) -> tuple[LabeledValue, ...]:
    return tuple(
        LabeledValue(one_line(name, limit=120), _scalar_text(item), link(item.source))
        for name, item in scalars.items()
        if not name.startswith(("requested.", "effective."))
    )


def _scalar_text(item: ScalarValue) -> str:
    """A derived number carries its interval."""
    interval = format_interval(item.ci_low, item.ci_high)
    return format_value(item.value, item.unit) + (f" {interval}" if interval else "")


def _attempts_table(outcome: Mapping[str, Any]) -> Table | None:
    """All attempts, where there was more than one."""
    attempts = outcome.get("attempts")
    if not isinstance(attempts, (list, tuple)) or len(attempts) < 2:
        return None
    rows = tuple(
        (
            format_value(attempt.get("number")),
            ended(attempt)[0],
            _duration_text(attempt),
            clean(attempt.get("detail") or "–"),
        )
        for attempt in attempts
    )
    columns = ("Attempt", "Ended", "Duration", "What happened")
    return Table("Attempts; the last one counts", columns, rows, frozenset({"Attempt", "Duration"}))


def _file_links(run: RunReport, outcome: Mapping[str, Any]) -> tuple[LabeledValue, ...]:
    """The run's folder, its log, and what was saved before it was stopped."""
    found = []
    if run.out:
        found.append(LabeledValue("Folder", one_line(run.out), link(run.out.rstrip("/") + "/")))
    if run.log:
        found.append(LabeledValue("Log", one_line(run.log), link(run.log)))
    attempts = outcome.get("attempts")
    for attempt in attempts if isinstance(attempts, (list, tuple)) else ():
        found += [LabeledValue("Evidence saved", one_line(path), link(path)) for path in attempt.get("bundle") or ()]
    return tuple(found)


def comparison_table(comparison: ArmComparison | None) -> Table | None:
    """The arms of a sweep or an A/B with their run-level intervals."""
    if comparison is None:
        return None
    unit = f" ({one_line(comparison.unit, limit=20)})" if comparison.unit else ""
    tie = any(arm.tie_value is not None for arm in comparison.arms)
    columns = ["Arm", "Settings", "Runs", f"Run means{unit}", f"Mean{unit}", "95 % interval", "Stdev of runs"]
    columns += ["Tie-breaker"] if tie else []
    means = columns[3]  # as many values as runs: a list that may wrap, not a number
    rows = []
    for arm in comparison.arms:
        chosen = arm.arm == comparison.recommended
        mark = (" ★ adopted" if comparison.adopted else " ★ recommended") if chosen else ""
        row = [
            one_line(arm.arm) + mark,
            ", ".join(f"{one_line(name)}={_setting_text(value)}" for name, value in arm.settings.items()),
            str(len(arm.run_means)),
            " · ".join(format_number(mean) for mean in arm.run_means) or "–",
            format_number(arm.mean),
            format_interval(arm.ci_low, arm.ci_high) or "–",
            format_number(arm.stdev),
            format_number(arm.tie_value),
        ]
        rows.append(tuple(row[: len(columns)]))
    caption = f"Arms compared by {one_line(comparison.metric)}, {comparison.direction} is better"
    return Table(caption, tuple(columns), tuple(rows), frozenset(columns[2:]) - {means}, _comparison_note(comparison))


def remedies_table(phase: PhaseReport) -> Table | None:
    """Every attempt at a phase that failed, where a remedy was tried."""
    if not phase.remedies:
        return None
    rows = tuple(
        (
            one_line(attempt.name or "as declared") + (" ★ decides" if attempt.decides else ""),
            ", ".join(f"{one_line(key)}={_setting_text(value)}" for key, value in attempt.settings.items()) or "–",
            "as declared" if attempt.keeps_config else "changed",
            attempt.status,
            clean(attempt.message, limit=600),
        )
        for attempt in phase.remedies
    )
    note = "A remedy that changes the config cannot make the phase pass: the decision is about the declared config."
    return Table("Remediation attempts", ("Attempt", "Settings", "Config", "Status", "Why"), rows, frozenset(), note)


def effects_table(phase: PhaseReport) -> Table | None:
    """What another value of each setting changed, for a phase that changes some."""
    if not phase.effects:
        return None
    rows = tuple(
        (
            one_line(one.setting, limit=80),
            one_line(one.declared if one.declared is not None else "–", limit=80),
            one_line(one.tried, limit=200),
            _first_losses(one.declared_losses),
            _first_losses(one.tried_losses),
            one.status,
            clean(one.message, limit=600),
        )
        for one in phase.effects
    )
    columns = ("Setting", "Declared", "Tried", "Loss as declared", "Loss as tried", "Status", "Why")
    note = "Settings that are not listed were not tried, so this says nothing of them."
    return Table("Settings tried with another value", columns, rows, frozenset(), note)


def _first_losses(losses: Sequence[float]) -> str:
    return ", ".join(f"{value:.7g}" for value in losses) or "–"


def _comparison_note(comparison: ArmComparison) -> str:
    parts = [f"Smallest effect worth a decision: {format_percent(comparison.min_effect)}"]
    if comparison.effect is not None:
        interval = ""
        if comparison.effect_ci is not None:
            interval = f", 95 % interval {format_interval(*comparison.effect_ci, format_change)}"
        parts.append(f"best over runner-up: {format_change(comparison.effect)}{interval}")
    if comparison.p_value is not None:
        parts.append(format_p_value(comparison.p_value))
    return "; ".join(parts) + "."


def phase_facts(phase: PhaseReport) -> tuple[LabeledValue, ...]:
    """Kind, duration and single values of a phase."""
    facts = [LabeledValue("Kind", one_line(phase.kind)), LabeledValue("Required", "yes" if phase.required else "no")]
    if phase.duration_s is not None:
        facts.append(LabeledValue("Duration", format_duration(phase.duration_s)))
    if phase.runs:
        facts.append(LabeledValue("Runs", str(len(phase.runs))))
    return (*facts, *_scalar_facts(phase.scalars))

"""A phase and its runs, as the page shows them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from validator.model.catalogue import METRICS
from validator.model.measure import MetricStats, ScalarValue
from validator.model.units import format_duration
from validator.model.verdict import Comparison, PhaseReport, RunReport, RunTable
from validator.report.formats import (
    clean,
    format_interval,
    format_margin,
    format_number,
    format_percent,
    format_value,
    one_line,
)
from validator.report.page import ConfigRow, ConfigTable, Fact, MetricRow, RunSummaryRow, RunView, Table
from validator.report.parts import anchor, flatten, link

__all__ = ["comparison_table", "config_table", "ended", "phase_facts", "remedies_table", "run_view"]

MAX_COMMAND = 20_000

DIFFERS = "differs"
"""The verdict on a setting that ran otherwise than requested, by the same rule as in judgement."""

_ORDER = {name: index for index, name in enumerate(METRICS)}


def run_view(run: RunReport, *, phase: str) -> RunView:
    """One run in full."""
    outcome = run.outcome or {}
    return RunView(
        id=one_line(run.id),
        anchor=anchor("run", phase, run.id),
        title=_title(run),
        summary=_summary(run),
        detail=clean(outcome.get("detail") or ""),
        command=_command(run),
        config=config_table(run.requested, run.effective),
        metrics=_metrics(run.metrics),
        scalars=_scalars(run.scalars),
        attempts=_attempts(outcome),
        irregularities=tuple(clean(text) for text in run.irregularities),
        links=_links(run, outcome),
        folder=link(run.out.rstrip("/") + "/") if run.out else None,
        tables=tuple(_table(one) for one in run.tables),
    )


def _table(told: RunTable) -> Table:
    """A table that the run left, numbers to the right."""
    numeric = frozenset(
        name
        for index, name in enumerate(told.columns)
        if told.rows and all(isinstance(row[index], (int, float, type(None))) for row in told.rows)
    )
    rows = tuple(tuple(format_value(cell) for cell in row) for row in told.rows)
    return Table(one_line(told.caption, limit=200), tuple(map(one_line, told.columns)), rows, numeric)


def _title(run: RunReport) -> str:
    parts = [f"remedy {one_line(run.remedy)}"] if run.remedy else []
    parts += [{"smoke": "the loader alone", "nsys": "for Nsight Systems"}[run.role]] if run.role != "measure" else []
    parts += [f"arm {one_line(run.arm)}"] if run.arm else []
    return ", ".join([*parts, f"run {run.repeat}"])


def _summary(run: RunReport) -> RunSummaryRow:
    outcome = run.outcome or {}
    rate = run.metrics.get("toks_per_s")
    time = run.metrics.get("step_time_s")
    duration = outcome.get("duration_s")
    steps = run.scalars.get("steps.done")
    word, tone = ended(outcome)
    return RunSummaryRow(
        id=one_line(run.id),
        arm=one_line(run.arm or "–"),
        repeat=str(run.repeat),
        outcome=word,
        tone=tone,
        duration=format_duration(duration) if isinstance(duration, (int, float)) else "–",
        steps=format_value(steps.value) if steps else "–",
        rate=_plus_minus(rate),
        rate_interval=format_interval(rate.ci_low, rate.ci_high) if rate else "",
        step_time=_plus_minus(time),
    )


def ended(outcome: Mapping[str, Any]) -> tuple[str, str]:
    """How a run ended, as word and tone."""
    if not outcome:
        return "not ended", "muted"
    rc, reason = outcome.get("rc"), one_line(outcome.get("reason") or "unknown")
    if reason != "exited":
        return reason, "bad"
    if isinstance(rc, int) and rc < 0:
        return f"signal {-rc}", "bad"
    return f"exit {format_value(rc)}", "good" if rc == 0 else "bad"


def _plus_minus(stats: MetricStats | None) -> str:
    if stats is None or stats.mean is None:
        return "–"
    spread = f" ± {format_number(stats.stdev)}" if stats.stdev is not None else ""
    return format_number(stats.mean) + spread


def _command(run: RunReport) -> str:
    """The command as it can be pasted: settings in front, one a line. NUL cannot be part of one."""
    settings = [f"{name}={shlex.quote(value)} \\" for name, value in run.env.items()]
    return clean("\n".join([*settings, shlex.join(run.command)]), limit=MAX_COMMAND) if run.command else ""


def config_table(requested: Mapping[str, Any] | None, effective: Mapping[str, Any] | None) -> ConfigTable:
    """Both configs side by side, what differs first. A key that was not asked for is a default, not a difference."""
    asked, ran = dict(flatten(dict(requested or {}))), dict(flatten(dict(effective or {})))
    rows = [_config_row(key, asked, ran) for key in {**asked, **ran} if key]
    rows.sort(key=lambda row: row.verdict != DIFFERS)
    note = ""
    if effective is None and requested is None:
        note = "The program records no configuration."
    elif effective is None:
        note = "The trainer does not record the configuration that it really ran with, so it could not be compared."
    elif requested is None:
        note = "The trainer does not record the configuration that it was asked for."
    return ConfigTable(rows=tuple(rows), differing=sum(row.verdict == DIFFERS for row in rows), note=note)


def _config_row(key: str, asked: Mapping[str, Any], ran: Mapping[str, Any]) -> ConfigRow:
    if key not in asked:
        verdict = "not asked for"
    elif key not in ran:
        verdict = "not recorded"
    else:
        from validator.judge.config import is_stated, same_value

        same = same_value(asked[key], ran[key])
        verdict = "yes" if same else DIFFERS if is_stated(key, asked[key]) else "left to the trainer"
    return ConfigRow(
        key=one_line(key, limit=120),
        requested=_setting(asked[key]) if key in asked else "",
        effective=_setting(ran[key]) if key in ran else "",
        verdict=verdict,
    )


def _setting(value: Any) -> str:
    """A setting exactly as it is: numbers are not rounded, `none` is told from an empty text."""
    if value is None:
        return "none"
    return one_line(str(value).lower() if isinstance(value, bool) else value, limit=300) or '""'


def _metrics(metrics: Mapping[str, MetricStats]) -> tuple[MetricRow, ...]:
    names = sorted(metrics, key=lambda name: (_ORDER.get(name, len(_ORDER)), name))
    return tuple(_metric(name, metrics[name]) for name in names)


def _metric(name: str, stats: MetricStats) -> MetricRow:
    window = stats.window
    return MetricRow(
        name=one_line(name, limit=80),
        unit=one_line(stats.unit, limit=20),
        n=format_number(stats.n),
        mean=format_number(stats.mean),
        stdev=format_number(stats.stdev),
        cv=format_percent(stats.cv),
        interval=format_interval(stats.ci_low, stats.ci_high) or "–",
        minimum=format_number(stats.min),
        p50=format_number(stats.p50),
        p95=format_number(stats.p95),
        p99=format_number(stats.p99),
        maximum=format_number(stats.max),
        first=format_number(stats.first),
        last=format_number(stats.last),
        window=f"{window.first_step:,}–{window.last_step:,}" if window else "–",
        source=one_line(stats.source or "–", limit=300),
        href=link(stats.source),
        note=clean(stats.note or ""),
    )


def _scalars(scalars: Mapping[str, ScalarValue]) -> tuple[Fact, ...]:
    return tuple(
        Fact(one_line(name, limit=120), _scalar(item), link(item.source))
        for name, item in scalars.items()
        if not name.startswith(("requested.", "effective."))
    )


def _scalar(item: ScalarValue) -> str:
    """A derived number carries its interval."""
    interval = format_interval(item.ci_low, item.ci_high)
    return format_value(item.value, item.unit) + (f" {interval}" if interval else "")


def _attempts(outcome: Mapping[str, Any]) -> Table | None:
    """All attempts, where there was more than one."""
    attempts = outcome.get("attempts")
    if not isinstance(attempts, (list, tuple)) or len(attempts) < 2:
        return None
    rows = []
    for attempt in attempts:
        seconds = attempt.get("duration_s")
        rows.append(
            (
                format_value(attempt.get("number")),
                ended(attempt)[0],
                format_duration(seconds) if isinstance(seconds, (int, float)) else "–",
                clean(attempt.get("detail") or "–"),
            )
        )
    columns = ("Attempt", "Ended", "Duration", "What happened")
    return Table("Attempts; the last one counts", columns, tuple(rows), frozenset({"Attempt", "Duration"}))


def _links(run: RunReport, outcome: Mapping[str, Any]) -> tuple[Fact, ...]:
    """The run's folder, its log, and what was saved before it was stopped."""
    found = []
    if run.out:
        found.append(Fact("Folder", one_line(run.out), link(run.out.rstrip("/") + "/")))
    if run.log:
        found.append(Fact("Log", one_line(run.log), link(run.log)))
    attempts = outcome.get("attempts")
    for attempt in attempts if isinstance(attempts, (list, tuple)) else ():
        found += [Fact("Evidence saved", one_line(path), link(path)) for path in attempt.get("bundle") or ()]
    return tuple(found)


def comparison_table(comparison: Comparison | None) -> Table | None:
    """The arms of a sweep or an A/B with their run-level intervals."""
    if comparison is None:
        return None
    unit = f" ({one_line(comparison.unit, limit=20)})" if comparison.unit else ""
    tie = any(arm.tie_value is not None for arm in comparison.arms)
    columns: tuple[str, ...] = (
        "Arm",
        "Settings",
        "Runs",
        "Run means" + unit,
        "Mean" + unit,
        "95 % interval",
        "Stdev of runs",
    )
    means = columns[3]  # as many as there were runs: a list that may break, not a number
    rows = []
    for arm in comparison.arms:
        chosen = arm.arm == comparison.recommended
        mark = (" ★ adopted" if comparison.adopted else " ★ recommended") if chosen else ""
        row = [
            one_line(arm.arm) + mark,
            ", ".join(f"{one_line(name)}={_setting(value)}" for name, value in arm.settings.items()),
            str(len(arm.run_means)),
            " · ".join(format_number(mean) for mean in arm.run_means) or "–",
            format_number(arm.mean),
            format_interval(arm.ci_low, arm.ci_high) or "–",
            format_number(arm.stdev),
        ]
        rows.append(tuple([*row, format_number(arm.tie_value)] if tie else row))
    if tie:
        columns = (*columns, "Tie-breaker")
    caption = f"Arms compared by {one_line(comparison.metric)}, {comparison.direction} is better"
    return Table(caption, columns, tuple(rows), frozenset(columns[2:]) - {means}, _comparison_note(comparison))


def remedies_table(phase: PhaseReport) -> Table | None:
    """Every go at a phase that failed, where a remedy was tried."""
    if not phase.remedies:
        return None
    rows = tuple(
        (
            one_line(go.name or "as declared") + (" ★ decides" if go.decides else ""),
            ", ".join(f"{one_line(key)}={_setting(value)}" for key, value in go.settings.items()) or "–",
            "as declared" if go.keeps_config else "changed",
            go.status,
            clean(go.message, limit=600),
        )
        for go in phase.remedies
    )
    note = "A remedy that changes the config cannot make the phase pass: the decision is about what was declared."
    return Table("Goes at this phase", ("Go", "Settings", "Config", "Status", "Why"), rows, frozenset(), note)


def _comparison_note(comparison: Comparison) -> str:
    parts = [f"Smallest effect worth a decision: {format_margin(comparison.min_effect).lstrip('+')}"]
    if comparison.effect is not None:
        interval = ""
        if comparison.effect_ci is not None:
            interval = f", 95 % interval [{', '.join(format_margin(end) for end in comparison.effect_ci)}]"
        parts.append(f"best over runner-up: {format_margin(comparison.effect)}{interval}")
    if comparison.p_value is not None:
        parts.append(f"p = {format_number(comparison.p_value)}")
    return "; ".join(parts) + "."


def phase_facts(phase: PhaseReport) -> tuple[Fact, ...]:
    """What a phase says of itself in a line."""
    facts = [Fact("Kind", one_line(phase.kind)), Fact("Required", "yes" if phase.required else "no")]
    if phase.duration_s is not None:
        facts.append(Fact("Duration", format_duration(phase.duration_s)))
    if phase.runs:
        facts.append(Fact("Runs", str(len(phase.runs))))
    return (*facts, *_scalars(phase.scalars))

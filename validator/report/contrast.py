"""Two runs compared: on the page what changed since the last GO, in the terminal what `compare` found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from validator.model.contrast import ContrastReport, ContrastVerdict, FindingDifference, MetricDifference, Sample
from validator.report.page import SinceView, StatusView, Table
from validator.report.terminal.lines import paint, text_table, wrap
from validator.text import MISSING, clean, format_change, format_interval, format_number, one_line, plural

VERDICTS: dict[ContrastVerdict, StatusView] = {
    "better": StatusView("BETTER", "↑", "good"),
    "worse": StatusView("WORSE", "↓", "bad"),
    "no_difference": StatusView("NO DIFFERENCE", "=", "muted"),
    "not_worse": StatusView("NOT WORSE", "=", "good"),
    "not_decidable": StatusView("INCONCLUSIVE", "?", "warn"),
}
MAX_ROWS = 60
"""Lines of one table; result.json has them all."""


def since_view(contrast: ContrastReport | None, names: tuple[str, str] = ("Last GO", "This run")) -> SinceView | None:
    """The comparison in words and tables; None when there is none. `names` are the columns of the two runs."""
    if contrast is None:
        return None
    return SinceView(
        status=VERDICTS[contrast.verdict],
        earlier=one_line(contrast.a.name, limit=200),
        started=one_line(contrast.a.started or "", limit=60),
        message=clean(contrast.message),
        caveats=tuple(clean(text) for text in contrast.caveats),
        tables=(*_metric_tables(contrast, names), *difference_tables(contrast, names)),
    )


def _metric_tables(contrast: ContrastReport, names: tuple[str, str]) -> Iterator[Table]:
    """The metrics that the verdict rests on come first."""
    metrics = sorted(contrast.metrics, key=lambda one: not one.headline)
    if metrics:
        columns = ("Phase", "Metric", *names, "Change", "95 % interval", "Verdict")
        caption = "Metrics; ★ marks those that the verdict rests on"
        yield _shortened(Table(caption, columns, tuple(map(_metric_row, metrics)), frozenset(columns[2:6])))


def _metric_row(one: MetricDifference) -> tuple[str, ...]:
    metric = ("★ " if one.headline else "") + one_line(one.metric) + (f" ({one_line(one.unit)})" if one.unit else "")
    return (
        phase_and_arm(one),
        metric,
        _sample_text(one.a),
        _sample_text(one.b),
        format_change(one.change),
        format_interval(one.change_low, one.change_high, format_change) or MISSING,
        verdict_text(one),
    )


def phase_and_arm(one: MetricDifference) -> str:
    """`sweep/large`: where a metric was measured."""
    return "/".join(one_line(part) for part in (one.phase, one.arm) if part) or "–"


def verdict_text(one: MetricDifference) -> str:
    """`worse`, or `inconclusive; 17 runs per side are needed`."""
    word = VERDICTS[one.verdict].word.lower()
    if one.verdict == "not_decidable" and one.repeats_needed is not None:
        word += f"; {one.repeats_needed} runs per side are needed"
    return word


def _sample_text(sample: Sample) -> str:
    interval = format_interval(sample.ci_low, sample.ci_high)
    return format_number(sample.value) + (f" {interval}" if interval else "")


def difference_tables(contrast: ContrastReport, names: tuple[str, str]) -> Iterator[Table]:
    """Criteria, findings and settings that differ. `names` are the columns of the two runs."""
    rows: Sequence[tuple[str, ...]]
    if contrast.criteria:
        rows = [
            (one_line(one.id), one_line(one.text, limit=300), one_line(one.a or "–"), one_line(one.b or "–"))
            for one in contrast.criteria
        ]
        yield _shortened(Table("Criteria with a different status", ("Criterion", "Text", *names), tuple(rows)))
    if contrast.findings_gained or contrast.findings_lost:
        rows = [
            *(_finding_row("gained", one) for one in contrast.findings_gained),
            *(_finding_row("lost", one) for one in contrast.findings_lost),
        ]
        columns = ("Finding", "Change", "Severity", "Phase", "Message")
        yield _shortened(Table("Findings gained or lost", columns, tuple(rows)))
    if contrast.settings:
        rows = [
            (
                one_line(one.name, limit=120),
                one.where,
                _setting_text(one.a),
                _setting_text(one.b),
                ", ".join(map(one_line, one.phases)) or "all",
            )
            for one in contrast.settings
        ]
        columns = ("Setting", "Kind", *names, "Phases")
        yield _shortened(Table("Settings and facts that differ", columns, tuple(rows)))


def _finding_row(change: str, one: FindingDifference) -> tuple[str, ...]:
    message = clean(one.message, limit=600)
    return (one_line(one.code), change, one_line(one.severity), one_line(one.phase or "–"), message)


def _setting_text(value: str | None) -> str:
    return "none" if value is None else one_line(value, limit=300)


def _shortened(table: Table) -> Table:
    left = len(table.rows) - MAX_ROWS
    note = f"{plural(left, 'more line')} in result.json." if left > 0 else ""
    return table._replace(rows=table.rows[:MAX_ROWS], note=note)


# The answer of `compare` in the terminal.


def contrast_lines(contrast: ContrastReport, *, width: int = 80, color: bool = False) -> list[str]:
    """The comparison as lines of about `width` columns."""
    view = VERDICTS[contrast.verdict]
    lines = [paint(view.word, f"{view.tone} bold", color=color), *wrap(contrast.message, width=width)]
    for letter, subject in (("A", contrast.a), ("B", contrast.b)):
        about = ", ".join(part for part in (subject.decision, subject.machine) if part)
        lines.append(f"{letter}  {one_line(subject.path or subject.name)}{f'  ({one_line(about)})' if about else ''}")
    for caveat in contrast.caveats:
        lines += wrap(f"! {caveat}", width=width, indent="  ", first="")
    lines += _metric_lines(contrast, width=width, color=color)
    lines += [f"{'Next    ' if not index else ' ' * 8}{text}" for index, text in enumerate(contrast.commands)]
    for table in difference_tables(contrast, ("A", "B")):
        lines += ["", paint(table.caption, "bold", color=color)]
        lines += text_table(table.columns, table.rows, width=width, color=color)
        lines += [f"… {table.note.replace('result.json', '--json')}"] if table.note else []
    return lines if contrast.settings else [*lines, "", "No setting differs."]


def _metric_lines(contrast: ContrastReport, *, width: int, color: bool) -> list[str]:
    """The metrics in fewer columns than on the page, and what would decide those that the verdict rests on."""
    if not contrast.metrics:
        return ["", "No metric was measured on both sides."]
    rows = [
        (
            phase_and_arm(one),
            one.metric,
            format_number(one.a.value),
            format_number(one.b.value),
            _change_text(one),
            verdict_text(one),
        )
        for one in contrast.metrics
    ]
    styles = [("", "", "", "", "", VERDICTS[one.verdict].tone) for one in contrast.metrics]
    columns = ("Phase", "Metric", "A", "B", "Change, 95 %", "Verdict")
    lines = ["", *text_table(columns, rows, width=width, numeric=("A", "B"), styles=styles, color=color)]
    for one in contrast.metrics:
        if one.headline and one.verdict == "not_decidable":
            name = " ".join(part for part in (one.phase, one.arm, one.metric) if part)
            lines += wrap(f"{name}: {one.message}", width=width, indent="  ", first="")
    return lines


def _change_text(one: MetricDifference) -> str:
    interval = format_interval(one.change_low, one.change_high, format_change)
    return f"{format_change(one.change)} {interval}".rstrip()

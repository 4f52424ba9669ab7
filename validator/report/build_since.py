"""What changed since the last GO that compares, as the page shows it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from validator.model.contrast import Contrast, ContrastVerdict, FindingDifference, MetricDifference, Sample
from validator.report.formats import clean, format_interval, format_margin, format_number, one_line, plural
from validator.report.page import SinceView, StatusView, Table

__all__ = ["since_view"]

_VERDICTS: dict[ContrastVerdict, StatusView] = {
    "better": StatusView("BETTER", "↑", "good"),
    "worse": StatusView("WORSE", "↓", "bad"),
    "no_difference": StatusView("NO DIFFERENCE", "=", "muted"),
    "not_worse": StatusView("NOT WORSE", "=", "good"),
    "not_decidable": StatusView("NOT DECIDABLE", "?", "warn"),
}
_MOST_ROWS = 60


def since_view(contrast: Contrast | None) -> SinceView | None:
    """The comparison in words and tables; None when there is none."""
    if contrast is None:
        return None
    return SinceView(
        status=_VERDICTS[contrast.verdict],
        earlier=one_line(contrast.a.name, limit=200),
        started=one_line(contrast.a.started or "", limit=60),
        message=clean(contrast.message),
        caveats=tuple(clean(text) for text in contrast.caveats),
        tables=tuple(_tables(contrast)),
    )


def _tables(contrast: Contrast) -> Iterator[Table]:
    """What differs, the metrics that the verdict rests on first."""
    rows: list[tuple[str, ...]]
    metrics = sorted(contrast.metrics, key=lambda one: not one.headline)
    if metrics:
        columns = ("Phase", "Metric", "Last GO", "This run", "Change", "95 % interval", "Verdict")
        numeric = frozenset(columns[2:6])
        yield _cut("Metrics; ★ marks those that the verdict rests on", columns, [*map(_metric, metrics)], numeric)
    if contrast.criteria:
        rows = [
            (one_line(one.id), one_line(one.text, limit=300), one_line(one.a or "–"), one_line(one.b or "–"))
            for one in contrast.criteria
        ]
        yield _cut("Criteria whose status is another", ("Criterion", "Text", "Last GO", "This run"), rows)
    if contrast.findings_gained or contrast.findings_lost:
        rows = [
            *(_finding("new", one) for one in contrast.findings_gained),
            *(_finding("gone", one) for one in contrast.findings_lost),
        ]
        yield _cut("Findings that only one of them has", ("Finding", "Is", "Severity", "Phase", "Message"), rows)
    if contrast.settings:
        rows = [
            (
                one_line(one.name, limit=120),
                one.where,
                _or_none(one.a),
                _or_none(one.b),
                ", ".join(map(one_line, one.phases)) or "all",
            )
            for one in contrast.settings
        ]
        yield _cut("Settings and facts that differ", ("Setting", "Kind", "Last GO", "This run", "Phases"), rows)


def _cut(
    caption: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]], numeric: frozenset[str] = frozenset()
) -> Table:
    left = len(rows) - _MOST_ROWS
    note = f"{plural(left, 'more line')} in result.json." if left > 0 else ""
    return Table(caption, columns, tuple(rows[:_MOST_ROWS]), numeric, note)


def _metric(one: MetricDifference) -> tuple[str, ...]:
    verdict = _VERDICTS[one.verdict].word.lower()
    if one.verdict == "not_decidable" and one.repeats_needed is not None:
        verdict += f"; {one.repeats_needed} runs on each side would tell"
    low, high = one.change_low, one.change_high
    return (
        "/".join(one_line(part) for part in (one.phase, one.arm) if part) or "–",
        ("★ " if one.headline else "") + one_line(one.metric) + (f" ({one_line(one.unit)})" if one.unit else ""),
        _sample(one.a),
        _sample(one.b),
        format_margin(one.change),
        "–" if low is None or high is None else f"[{format_margin(low)}, {format_margin(high)}]",
        verdict,
    )


def _sample(sample: Sample) -> str:
    interval = format_interval(sample.ci_low, sample.ci_high)
    return format_number(sample.value) + (f" {interval}" if interval else "")


def _finding(which: str, one: FindingDifference) -> tuple[str, ...]:
    return (
        one_line(one.code),
        which,
        one_line(one.severity),
        one_line(one.phase or "–"),
        clean(one.message, limit=600),
    )


def _or_none(value: str | None) -> str:
    return "none" if value is None else one_line(value, limit=300)

"""The tables of `compare`: one line of verdict, then settings, metrics, criteria and findings that differ."""

from __future__ import annotations

import sys
from typing import TextIO

from validator.model.contrast import Contrast, ContrastVerdict, FindingDifference, MetricDifference
from validator.report.formats import format_interval, format_number, one_line
from validator.report.terminal.lines import paint, stream_width, text_table, wrap
from validator.report.terminal.observer import wants_color

__all__ = ["contrast_lines", "print_contrast"]

WORDS: dict[ContrastVerdict, str] = {
    "better": "better",
    "worse": "worse",
    "no_difference": "no difference that matters",
    "not_worse": "not worse",
    "not_decidable": "not decidable",
}
_STYLES = {
    "better": "good bold",
    "worse": "bad bold",
    "no_difference": "muted",
    "not_worse": "good",
    "not_decidable": "warn",
}
_MOST_SETTINGS = 40


def print_contrast(contrast: Contrast, *, stream: TextIO | None = None) -> None:
    """Print the comparison, on stdout unless told otherwise."""
    out = stream or sys.stdout
    text = "\n".join(contrast_lines(contrast, width=stream_width(out), color=wants_color(out))) + "\n"
    encoding = getattr(out, "encoding", None) or "utf-8"
    out.write(text.encode(encoding, "backslashreplace").decode(encoding))
    out.flush()


def contrast_lines(contrast: Contrast, *, width: int = 80, color: bool = False) -> list[str]:
    """The comparison as lines of about `width` columns."""
    lines = [paint(WORDS[contrast.verdict].upper(), _STYLES[contrast.verdict], color=color)]
    lines += wrap(contrast.message, width=width)
    for letter, subject in (("A", contrast.a), ("B", contrast.b)):
        told = ", ".join(part for part in (subject.decision, subject.machine) if part)
        lines.append(f"{letter}  {one_line(subject.path or subject.name)}{f'  ({one_line(told)})' if told else ''}")
    for caveat in contrast.caveats:
        lines += wrap(f"! {caveat}", width=width, indent="  ", first="")
    lines += _settings(contrast, width=width, color=color)
    lines += _metrics(contrast, width=width, color=color)
    lines += _criteria(contrast, width=width, color=color)
    lines += _findings("Findings gained", contrast.findings_gained, width=width, color=color)
    lines += _findings("Findings lost", contrast.findings_lost, width=width, color=color)
    return lines


def _settings(contrast: Contrast, *, width: int, color: bool) -> list[str]:
    if not contrast.settings:
        return ["", "No setting differs."]
    rows = [
        (one.where, one.name, one.a if one.a is not None else "–", one.b if one.b is not None else "–", _where(one))
        for one in contrast.settings[:_MOST_SETTINGS]
    ]
    lines = ["", *text_table(("Kind", "Setting", "A", "B", "Phases"), rows, width=width, color=color)]
    left = len(contrast.settings) - len(rows)
    return [*lines, f"… {left} more with --json"] if left else lines


def _where(one: object) -> str:
    return ", ".join(getattr(one, "phases", ())) or "all"


def _metrics(contrast: Contrast, *, width: int, color: bool) -> list[str]:
    if not contrast.metrics:
        return ["", "No metric was measured on both sides."]
    rows = [_metric_row(one) for one in contrast.metrics]
    styles = [("", "", "", "", "", _STYLES[one.verdict].split()[0]) for one in contrast.metrics]
    columns = ("Phase", "Metric", "A", "B", "Change, 95 %", "Verdict")
    lines = ["", *text_table(columns, rows, width=width, numeric=("A", "B"), styles=styles, color=color)]
    open_ones = [one for one in contrast.metrics if one.headline and one.verdict == "not_decidable"]
    for one in open_ones:
        lines += wrap(f"{_name(one)}: {one.message}", width=width, indent="  ", first="")
    return lines


def _name(one: MetricDifference) -> str:
    return " ".join(part for part in (one.phase, one.arm, one.metric) if part)


def _metric_row(one: MetricDifference) -> tuple[str, ...]:
    change = "–" if one.change is None else f"{100 * one.change:+.1f} %"
    if one.change_low is not None and one.change_high is not None:
        change += f" {format_interval(100 * one.change_low, 100 * one.change_high)}"
    place = "/".join(part for part in (one.phase, one.arm) if part) or "–"
    word = WORDS[one.verdict]
    if one.verdict == "not_decidable" and one.repeats_needed is not None:
        word += f"; {one.repeats_needed} runs a side"
    return (place, one.metric, format_number(one.a.value), format_number(one.b.value), change, word)


def _criteria(contrast: Contrast, *, width: int, color: bool) -> list[str]:
    if not contrast.criteria:
        return []
    rows = [(one.id, one.text, one.a or "–", one.b or "–") for one in contrast.criteria]
    return ["", *text_table(("Criterion", "Text", "A", "B"), rows, width=width, color=color)]


def _findings(title: str, findings: tuple[FindingDifference, ...], *, width: int, color: bool) -> list[str]:
    if not findings:
        return []
    lines = ["", paint(title, "bold", color=color)]
    for one in findings:
        place = f" in {one.phase}" if one.phase else ""
        lines += wrap(f"{one.code} ({one.severity}){place}: {one.message}", width=width, indent="    ", first="  ")
    return lines

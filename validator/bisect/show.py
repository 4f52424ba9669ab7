"""A bisection in the terminal: the sentence, the causes, the trials."""

from __future__ import annotations

import sys
from typing import TextIO

from validator.model.bisection import Bisection, Cause
from validator.report.formats import format_number, one_line
from validator.report.terminal.lines import paint, stream_width, text_table, wrap
from validator.report.terminal.observer import wants_color

__all__ = ["lines_of", "print_bisection"]

_STYLES = {"explained": "good bold", "interrupted": "warn bold", "budget_spent": "warn bold"}
_WORDS = {
    "explained": "FOUND",
    "no_difference": "NO DIFFERENCE",
    "not_in_settings": "NOT IN THE SETTINGS",
    "budget_spent": "NOT FINISHED",
    "interrupted": "INTERRUPTED",
}


def print_bisection(found: Bisection, *, stream: TextIO | None = None) -> None:
    """Print the answer, on stdout unless told otherwise."""
    out = stream or sys.stdout
    text = "\n".join(lines_of(found, width=stream_width(out), color=wants_color(out))) + "\n"
    encoding = getattr(out, "encoding", None) or "utf-8"
    out.write(text.encode(encoding, "backslashreplace").decode(encoding))
    out.flush()


def lines_of(found: Bisection, *, width: int = 80, color: bool = False) -> list[str]:
    """The answer as lines of about `width` columns."""
    lines = [paint(_WORDS[found.outcome], _STYLES.get(found.outcome, "bad bold"), color=color)]
    lines += wrap(found.message, width=width)
    if found.causes:
        rows = [row for cause in found.causes for row in _cause_rows(cause)]
        columns = ("Setting", "Good", "Bad", "Share", "Alone", "Factor")
        lines += ["", *text_table(columns, rows, width=width, numeric=columns[3:], color=color)]
    for subset in found.uncertain:
        lines += wrap(f"! too near the threshold to be sure: {', '.join(subset)}", width=width, indent="  ", first="")
    if found.trials:
        rows = [
            (
                str(trial.number),
                format_number(trial.value),
                _share(trial.share),
                _settings(trial.from_bad, len(found.differences))
                + (f"; no value: {one_line(trial.why, limit=200)}" if trial.why else ""),
            )
            for trial in found.trials
        ]
        columns_of_trials = ("Run", f"{found.metric}, {found.unit}", "Share", "From bad")
        lines += ["", *text_table(columns_of_trials, rows, width=width, numeric=("Run", "Share"), color=color)]
    if found.folder:
        lines += ["", f"Runs    {one_line(found.folder)}"]
        if found.outcome in ("interrupted", "budget_spent"):
            lines.append(f"Next    validator bisect --resume {one_line(found.folder)}")
    return lines


def _cause_rows(cause: Cause) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for place, setting in enumerate(cause.settings):
        figures = ("", "", "") if place else (_share(cause.share), _share(cause.alone), _factor(cause.factor))
        rows.append((setting.name, _value(setting.good), _value(setting.bad), *figures))
    return rows


def _value(value: object) -> str:
    return "unset" if value is None else str(value)


def _share(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def _factor(factor: float | None) -> str:
    return "–" if factor is None else f"{factor:.2f}×"


def _settings(names: tuple[str, ...], total: int) -> str:
    if not names:
        return "none: good as it is"
    return "all: bad" if len(names) == total else ", ".join(names)

"""The criteria and checks of a phase as rows, and what of them failed or could not be decided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from validator.model.expression import ExpressionError, parse_criterion
from validator.model.verdict import Check, PhaseReport, Status, ValidationReport, Verdict
from validator.report.elements import anchor, evidence_views, status_view
from validator.report.page import CriterionRow, FindingView, OpenItem, StatusView
from validator.text import clean, format_change, format_interval, format_value, listed, one_line

VETO = StatusView("VETO", "✕", "bad")

MAX_OPEN = 12
"""Items that are listed before the criteria; the table of criteria has them all."""

_ORDER: tuple[Status, ...] = ("FAIL", "INCONCLUSIVE", "SKIPPED", "NOT_RUN", "RUNNING")


def criterion_row(verdict: Verdict, phase: PhaseReport, *, pending: bool = False) -> CriterionRow:
    """One criterion of a phase."""
    formal = is_expression(verdict.text)
    return CriterionRow(
        id=one_line(verdict.id),
        anchor=anchor("criterion", verdict.id),
        text=one_line(verdict.text, limit=500),
        formal=formal,
        required=verdict.required and phase.required,
        status=status_view(verdict.status, pending=pending),
        observed=_value_text(verdict, verdict.observed),
        interval=format_interval(verdict.ci_low, verdict.ci_high),
        bound=_value_text(verdict, verdict.bound),
        margin=margin_text(verdict),
        message=clean(verdict.message),
        evidence=evidence_views(verdict.evidence),
        routine=not formal and verdict.required and verdict.status == "PASS",
    )


_COUNTED = {"exit": "exit code {}", "steps": "{} steps", "config": "{} settings differ"}
"""What the numbers of implicit criteria count, by their name: a lone `0` beside a bound of `0` says nothing."""


_OUTCOMES = {"not_decidable": "undecided", "vacuous": "nothing compared", "no_difference": "no difference"}
"""How the outcome of a comparison that recommends no arm is written."""


def _value_text(verdict: Verdict, value: float | str | None) -> str:
    """A value with its unit, or with the words that its criterion has in place of one."""
    name = verdict.id.rpartition(".")[2]
    if name == "choice" and isinstance(value, str):
        return _OUTCOMES.get(value, format_value(value))
    words = _COUNTED.get(name)
    if words is None or verdict.unit or not isinstance(value, (int, float)):
        return format_value(value, verdict.unit)
    return words.format(format_value(value))


def margin_text(verdict: Verdict) -> str:
    """How far the observed value is from the bound in percent of it; of a bound of 0 there is no percentage."""
    nothing = not verdict.bound or verdict.observed == verdict.bound
    return format_change(None if nothing else verdict.margin)


def is_expression(text: str) -> bool:
    """Whether a criterion is one of the runbook's expressions; implicit criteria are sentences."""
    try:
        parse_criterion(text)
    except ExpressionError:
        return False
    return True


def check_row(check: Check, phase: PhaseReport) -> CriterionRow:
    """One check of the machine."""
    return CriterionRow(
        id=one_line(check.id),
        anchor=anchor("criterion", phase.id, check.id),
        text=one_line(check.title, limit=500),
        formal=False,
        required=check.required and phase.required,
        status=status_view(check.status),
        observed=clean(check.observed, limit=1000),
        interval="",
        bound=clean(check.expected or "–", limit=1000),
        margin="–",
        message=clean(check.message),
        evidence=evidence_views(check.evidence),
    )


def without_repeats(rows: tuple[CriterionRow, ...], message: str) -> tuple[tuple[CriterionRow, ...], str]:
    """Rows and the phase's message, with each sentence once: above the rows where all share it, else in its row."""
    shared = tuple(row._replace(message="") if row.message == message else row for row in rows)
    repeated = any(row.message and row.message in message and row.status.word != "PASS" for row in shared)
    return shared, "" if repeated else message


def exceptions(phase: PhaseReport) -> tuple[tuple[StatusView, int], ...]:
    """What did not pass in a phase that did, counted by status."""
    found: Counter[Status] = Counter(
        item.status for item in phase.judged if phase.status == "PASS" and item.status != "PASS"
    )
    return tuple((status_view(status), found[status]) for status in _ORDER if found[status])


# What failed or could not be decided.


def open_items(
    report: ValidationReport, findings: Sequence[FindingView], pending: Collection[str]
) -> tuple[OpenItem, ...]:
    """Vetoes, then what is required, then the rest; failed before inconclusive. Pending phases are no news."""
    vetoes = (
        OpenItem(VETO, view.code, True, True, view.place, f"#finding-{number}", "", "", view.message)
        for number, view in enumerate(findings, start=1)
        if view.severity == "veto"
    )
    found = [item for phase in report.phases if phase.id not in pending for item in _open_in(phase)]
    words = [status_view(status).word for status in _ORDER]
    return (*vetoes, *sorted(_merged(found), key=lambda item: (not item.required, words.index(item.status.word))))


def _merged(items: Sequence[OpenItem]) -> Iterator[OpenItem]:
    """The items, but what every phase lacks alike and the decision does not need once, with all its phases."""
    alike: dict[tuple[str, str], list[OpenItem]] = {}
    for item in items:
        if item.required or item.formal:
            yield item
        else:
            alike.setdefault((item.text, item.status.word), []).append(item)
    for first, *others in alike.values():
        yield first._replace(place=listed([first.place, *(item.place for item in others)]))


def _open_in(phase: PhaseReport) -> Iterator[OpenItem]:
    """The criteria and checks of a phase that have not passed; a phase in which nothing ran, as a whole."""
    if phase.status == "RUNNING":
        return
    items = [item for item in phase.judged if item.status != "PASS"]
    as_whole = not phase.ran and phase.status in ("NOT_RUN", "SKIPPED")
    if as_whole or (not items and phase.status != "PASS"):
        yield OpenItem(
            status=status_view(phase.status),
            text=one_line(phase.title, limit=200),
            formal=False,
            required=phase.required,
            place=one_line(phase.id),
            href=f"#{anchor('phase', phase.id)}",
            observed="",
            bound="",
            message=clean(phase.message),
        )
        return
    for item in items:
        row = criterion_row(item, phase) if isinstance(item, Verdict) else check_row(item, phase)
        yield OpenItem(
            status=row.status,
            text=row.text,
            formal=row.formal,
            required=row.required,
            place=one_line(phase.id),
            href=f"#{row.anchor}",
            observed=" ".join(part for part in (row.observed, row.interval) if part.strip("–")),
            bound=", ".join(part for part in (row.bound, row.margin) if part.strip("–")),
            message=_unsaid(row),
        )


def _unsaid(row: CriterionRow) -> str:
    """A row's message; of what failed without a first sentence that only repeats what was observed and the bound.

    Such a sentence begins with what was observed: `2 is not equal to 0.` One that names a device does not.
    """
    first, _, rest = row.message.partition(". ")
    known = row.observed.strip("–") and row.bound.strip("–")
    repeats = known and first.startswith(f"{row.observed} ") and row.bound in first
    return rest if repeats and row.status.tone == "bad" else row.message

"""Small pieces shared by all parts of the page: statuses, links, evidence, nested facts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from validator.report.page import EvidenceView, LabeledValue, StatusView
from validator.text import clean, format_value, one_line

if TYPE_CHECKING:
    from validator.model.verdict import Evidence, Status, ValidationReport

MAX_DEPTH = 8

_STATUS: dict[str, StatusView] = {
    "PASS": StatusView("PASS", "✓", "good"),
    "FAIL": StatusView("FAIL", "✕", "bad"),
    "INCONCLUSIVE": StatusView("INCONCLUSIVE", "?", "warn"),
    "SKIPPED": StatusView("SKIPPED", "–", "muted"),
    "NOT_RUN": StatusView("NOT RUN", "○", "muted"),
    "RUNNING": StatusView("RUNNING", "…", "info"),
}


PENDING = StatusView("PENDING", "○", "muted")


def status_view(status: Status, *, pending: bool = False) -> StatusView:
    """How a status is shown. A phase of a validation in progress that has not run yet is pending."""
    return PENDING if pending and status == "NOT_RUN" else _STATUS[status]


_DECISION: dict[str, StatusView] = {
    "GO": StatusView("GO", "✓", "good"),
    "NO_GO": StatusView("NO-GO", "✕", "bad"),
    "INCONCLUSIVE": StatusView("INCONCLUSIVE", "?", "warn"),
    "IN_PROGRESS": StatusView("IN PROGRESS", "…", "info"),
    "INTERRUPTED": StatusView("INTERRUPTED", "–", "muted"),
}


def decision_status(decision: str) -> StatusView:
    """How a decision is shown in a list of runs."""
    return _DECISION.get(decision, StatusView(one_line(decision), "?", "muted"))


def pending_phases(report: ValidationReport) -> frozenset[str]:
    """Ids of the phases that are still to come: those at the end that have not run, while it is in progress."""
    found = set()
    if report.decision == "IN_PROGRESS":
        for phase in reversed(report.phases):
            if phase.status != "NOT_RUN":
                break
            found.add(phase.id)
    return frozenset(found)


def anchor(*names: str) -> str:
    """An id for a heading: letters, digits, `-` and `.` only, so that it can be a link's target anywhere."""
    return "-".join(re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-") or "x" for name in names)


def link(path: str | None) -> str | None:
    """A relative link to a file of the run folder; None for anything that could lead out of it."""
    if not path or path.startswith(("/", "~", "\\")) or ".." in path.split("/") or ":" in path.split("/")[0]:
        return None
    return quote(path, safe="/-_.~=+,@", errors="replace")


def evidence_views(evidence: tuple[Evidence, ...]) -> tuple[EvidenceView, ...]:
    """Each piece of evidence with its link, once."""
    views = (
        EvidenceView(
            label=one_line(", ".join(part for part in (item.path, item.where) if part), limit=300),
            href=link(item.path),
            text=clean(item.text),
        )
        for item in evidence
    )
    return tuple(dict.fromkeys(views))


def flatten(value: Any, prefix: str = "", *, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """A nested mapping as dotted keys, in order; lists of mappings are numbered, other lists kept whole."""
    if isinstance(value, dict) and value and depth < MAX_DEPTH:
        for key, item in value.items():
            yield from flatten(item, f"{prefix}.{key}" if prefix else str(key), depth=depth + 1)
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value) and depth < MAX_DEPTH:
        for index, item in enumerate(value):
            yield from flatten(item, f"{prefix}[{index}]", depth=depth + 1)
    else:
        yield prefix, value


def facts_of(value: Any, *, limit: int = 400) -> tuple[LabeledValue, ...]:
    """A nested mapping as facts, at most `limit` of them."""
    facts = [LabeledValue(one_line(name, limit=120), clean(format_value(item))) for name, item in flatten(value)]
    if len(facts) > limit:
        return (*facts[:limit], LabeledValue("…", f"{len(facts) - limit:,} more in environment.json"))
    return tuple(facts)

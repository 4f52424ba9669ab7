"""The report as Markdown for a pull request: GitHub's tables, long parts folded away, text of the trainer inert.

Text of the trainer is escaped for Markdown and for HTML: it cannot notify users, link or leave its table cell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from validator.model.verdict import ValidationReport
from validator.report import page as views
from validator.report.build import build_page
from validator.report.build_criteria import MAX_OPEN
from validator.text import plural, shorten

_SPECIAL = re.compile(r"[\\`*_\[\]!|~]")
"""What Markdown would take as markup anywhere in a line."""

_BLOCK_START = re.compile(r"^([-+](?=\s|$)|\d{1,9}[.)](?=\s|$)|[-=]{2,}(?=\s*$))")
_ACTIVE = re.compile(r"(?i)([@#$])|((?:https?|ftp|mailto|xmpp):|www\.)")
_MAX_ATTEMPTS = _MAX_ARTIFACTS = _MAX_FACTS = 60
_MAX_DIFFERENCES = 25
_MAX_TEXT = 3000
_ICONS = {"good": "✅", "bad": "⛔", "warn": "⚠️", "info": "⏳"}
_METRIC_COLUMNS = ("Metric", "Unit", "Mean", "Stdev", "95 % interval", "p50", "p95", "First", "Last", "n", "Steps")
"""The columns of a run's metrics that have room here."""

MAX_LENGTH = 60_000
"""GitHub refuses comments above 65,536 characters; details are dropped from the end until the text fits."""


def render_markdown(report: ValidationReport) -> str:
    """The whole report. When it would be too long for a pull request, phases' details are left out, never verdicts."""
    page = build_page(report)
    head, tail = _joined(_head_blocks(page)), _joined(_tail_blocks(page))
    room = MAX_LENGTH - len(head) - len(tail)
    phases = []
    for phase in page.phases:
        text = _joined(_phase_blocks(phase))
        if len(text) <= room:
            room -= len(text) + 2
            phases.append(text)
    left_out = len(page.phases) - len(phases)
    note = f"_Details of {left_out} phases are in report.html only: they would be too long here._" if left_out else ""
    return _joined([head, "## Phases", *phases, note, tail]) + "\n"


def _joined(blocks: Iterable[str]) -> str:
    """Paragraphs, tables and other blocks with a blank line between them; empty ones are dropped."""
    return "\n\n".join(filter(None, blocks))


def escape(text: str) -> str:
    """Untrusted text as plain Markdown text on one line, fit for a table cell.

    GitHub turns `@name`, `#1` and addresses into links after Markdown is done, so an empty element keeps them apart.
    """
    flat = text.strip().replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    flat = _BLOCK_START.sub(lambda m: m[1][:-1] + "\\" + m[1][-1], _SPECIAL.sub(lambda m: "\\" + m[0], flat))
    flat = _ACTIVE.sub(lambda m: m[1] + "<span></span>" if m[1] else m[2][:-1] + "<span></span>" + m[2][-1], flat)
    return re.sub(r"[ \t]*\n\s*", "<br>", flat)


def code(text: str) -> str:
    """Untrusted text as inline code, fit for a table cell. Backticks and pipes cannot end it."""
    flat = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\n", "<br>")
    flat = re.sub(r"([\\`*_{}\[\]()#+!|~$@:^=-])", lambda m: f"&#{ord(m[1])};", flat)
    return f"<code>{flat}</code>" if flat else ""


def fenced(text: str) -> str:
    """Untrusted text as a block of shell code, with a fence longer than any in it; empty for no text."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}sh\n{text}\n{fence}" if text else ""


def _table_block(columns: Sequence[str], rows: Iterable[Iterable[str]], *, numeric: Iterable[str] = ()) -> str:
    """A table of cells that are Markdown already."""
    right = set(numeric)
    rule = ["---:" if name in right else "---" for name in columns]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, rule, *rows))


def _plain_table(value: views.Table) -> str:
    """A table of untrusted text with its caption and note."""
    rows = (map(escape, row) for row in value.rows)
    block = _table_block([*map(escape, value.columns)], rows, numeric=map(escape, value.numeric))
    return _joined([escape(value.caption), block, escape(value.note)])


def _folded(summary: str, blocks: Iterable[str]) -> str:
    """A part that GitHub shows folded away."""
    return _joined([f"<details><summary>{summary}</summary>", *blocks, "</details>"])


def _status(view: views.StatusView) -> str:
    return f"{view.sign} **{view.word}**"


def _head_blocks(page: views.Page) -> Iterator[str]:
    yield f"# {_ICONS[page.decision.tone]} {page.decision.word}: {escape(page.title)}"
    yield f"**{escape(page.why)}**"
    yield page.meaning
    yield "\n".join(f"- ? **Undecided:** {escape(one.name)}: {escape(one.value)}." for one in page.undecided)
    if page.next_step:
        yield from (f"**{reason.name}:** {escape(reason.value)}" for reason in page.next_step.reasons)
        yield f"**Next step:** {escape(page.next_step.value)} ({escape(page.next_step.name)})"
    yield _progress_block(page)
    yield from _first_blocks(page)
    yield escape(page.description)
    yield _table_block(("", ""), ([escape(fact.name), escape(fact.value)] for fact in page.facts))
    yield "## Criteria"
    for phase in page.phases:
        yield from _criteria_blocks(phase)
    if page.findings:
        yield "## Findings"
        yield from map(_finding_block, page.findings)
    yield from _recommended_blocks(page)
    yield from _fleet_blocks(page.fleet)
    if page.ticket:
        yield _folded("Text for the provider, also in ticket.txt", [fenced(shorten(page.ticket, limit=_MAX_TEXT))])
    yield _timeline_block(page)


def _first_blocks(page: views.Page) -> Iterator[str]:
    """The values that decide, and what failed or could not be decided."""
    if page.tiles:
        columns = ("Value", "Observed", "95 % interval", "Bound", "Margin", "Status", "Where")
        yield _table_block(columns, map(_tile_cells, page.tiles), numeric=columns[1:5])
    yield "Required criteria: " + (", ".join(f"{n} {view.word}" for view, n in page.counts) or "none") + "."
    if page.open_items:
        left = len(page.open_items) - MAX_OPEN
        yield "## Failed or not decided"
        yield "\n".join(map(_open_line, page.open_items[:MAX_OPEN]))
        yield f"{left} more in the criteria." if left > 0 else ""


def _tile_cells(tile: views.Tile) -> list[str]:
    lines = [f"{code(line.name)} {escape(line.value)}" for line in tile.lines]
    return [
        escape(tile.label) + (f" {code(tile.metric)}" if tile.metric else ""),
        "<br>".join([escape(tile.quantity), *lines]),
        *map(escape, (tile.interval, tile.bound, tile.margin)),
        _status(tile.status) if tile.status else "no criterion",
        escape(tile.place),
    ]


def _open_line(item: views.OpenItem) -> str:
    text = code(item.text) if item.formal else escape(item.text)
    optional = "" if item.required else " (not required)"
    bound = f", bound {escape(item.bound)}" if item.bound else ""
    observed = f": observed **{escape(item.observed)}**{bound}." if item.observed else "."
    return f"- {_status(item.status)} {text}, {escape(item.place)}{optional}{observed} {escape(item.message)}".rstrip()


def _criteria_blocks(phase: views.PhaseView) -> Iterator[str]:
    optional = "" if phase.required else " (not required)"
    message = f" {escape(phase.message)}" if phase.message else ""
    except_for = "".join(f", {n} not required {view.sign} {view.word}" for view, n in phase.exceptions)
    yield f"**{escape(phase.title)}** {_status(phase.status)}{except_for}{optional}{message}"
    shown = [row for row in phase.rows if not row.routine]
    if shown:
        columns = ("Status", "Criterion", "Required", "Observed", "95 % interval", "Bound", "Margin", "Why, evidence")
        yield _table_block(columns, map(_criterion_cells, shown), numeric=columns[3:7])
    routine = [f"- {escape(row.text)}: {escape(row.message)}" for row in phase.rows if row.routine]
    passed = f"{plural(len(routine), 'routine check')} passed"
    yield _folded(passed, ["\n".join(routine)]) if routine else ""
    yield phase.note


def _criterion_cells(row: views.CriterionRow) -> list[str]:
    why = [escape(row.message)] if row.message else []
    why += [_evidence(item) for item in row.evidence]
    return [
        _status(row.status),
        code(row.text) if row.formal else escape(row.text),
        "yes" if row.required else "no",
        *map(escape, (row.observed, row.interval, row.bound, row.margin)),
        "<br>".join(why),
    ]


def _evidence(item: views.EvidenceView) -> str:
    label = f"{code(item.label)} " if item.label else ""
    return label + escape(item.text)


def _finding_block(finding: views.FindingView) -> str:
    head = (
        f"- {_status(finding.status)} {code(finding.code)} ({escape(finding.place)}, "
        f"{finding.confidence} confidence): {escape(finding.message)}"
    )
    evidence = [f"  - Evidence: {_evidence(item)}" for item in finding.evidence]
    return "\n".join([head, *evidence, f"  - Next step: {escape(finding.next_step)}"])


def _recommended_blocks(page: views.Page) -> Iterator[str]:
    recommended = page.recommended
    yield "## Recommended settings"
    yield "\n".join(f"- {escape(reason)}" for reason in recommended.because)
    yield fenced(recommended.exports) or "No setting was chosen over another in this run."
    yield fenced(recommended.command)


def _fleet_blocks(fleet: views.FleetView | None) -> Iterator[str]:
    """The nodes of a cluster; what is long is folded away."""
    if fleet is None:
        return
    yield "## Nodes"
    yield escape(fleet.summary)
    yield ", ".join(f"{escape(fact.name)}: {escape(fact.value)}" for fact in fleet.facts)
    if fleet.outliers:
        columns = ("Result", "What", "Measure", "Effect", "Interval", "MADs", "p", "Repeats", "Why")
        rows = ([_status(one.status), *map(escape, one[1:])] for one in fleet.outliers)
        yield _table_block(columns, rows, numeric=columns[3:8])
        yield fleet.more
    yield "\n".join(f"- {escape(text)}" for text in fleet.together)
    yield from (_plain_table(one) for one in (fleet.scaling, fleet.differences) if one)
    yield from (_folded(escape(one.caption), [_map_block(one), escape(fleet.legend)]) for one in fleet.maps)
    for one in fleet.hand_over:
        yield _folded(escape(one.name), [fenced(shorten(one.value, limit=_MAX_TEXT))])


def _map_block(one: views.MapView) -> str:
    shown = one.rows[:_MAX_FACTS]
    rows = (
        [f"{escape(name)} {_status(status) if status else ''}", *(escape(f"{cell.text} {cell.sign}") for cell in cells)]
        for name, status, cells in shown
    )
    left = len(one.rows) - len(shown)
    table = _table_block(["Node", *map(escape, one.columns)], rows, numeric=map(escape, one.columns))
    return _joined([table, f"{left} more in report.html." if left else "", escape(one.note)])


def _phase_blocks(phase: views.PhaseView) -> Iterator[str]:
    yield (
        f"<details><summary>{phase.number}. <b>{escape(phase.title)}</b> "
        f"{phase.status.sign} {phase.status.word}</summary>"
    )
    yield escape(phase.why)
    yield ", ".join(f"{escape(fact.name)}: {escape(fact.value)}" for fact in phase.facts)
    if phase.checks:
        rows = (
            [_status(row.status), *map(escape, (row.text, row.observed, row.bound, row.message))]
            for row in phase.checks
        )
        yield _table_block(("Status", "Check", "Observed", "Expected", "Message"), rows)
    if phase.comparison:
        yield f"**{escape(phase.comparison_message)}**"
        yield _plain_table(phase.comparison)
    if phase.remedies:
        yield _plain_table(phase.remedies)
    if phase.effects:
        yield _plain_table(phase.effects)
    if phase.runs:
        rows = ([code(row[0]), *map(escape, row[1:])] for row in phase.summary.rows)
        yield _table_block(phase.summary.columns, rows, numeric=phase.summary.numeric)
        for run in phase.runs:
            yield from _run_blocks(run)
    yield "</details>"


def _run_blocks(run: views.RunView) -> Iterator[str]:
    remarks = [run.detail] if run.detail and run.tone != "good" else []
    yield "\n".join(f"- {code(run.id)}: {escape(text)}" for text in (*remarks, *run.irregularities))
    if run.config.differing:
        rows = ([code(row.key), code(row.requested), code(row.effective)] for row in run.config.rows if row.differs)
        yield f"{code(run.id)} ran with other settings than requested:"
        yield _table_block(("Setting", "Requested", "Effective"), rows)
    if run.metrics.rows:
        places = [run.metrics.columns.index(name) for name in _METRIC_COLUMNS]
        metrics = ([code(row[0]), *(escape(row[place]) for place in places[1:])] for row in run.metrics.rows)
        yield f"{code(run.id)}:"
        yield _table_block(_METRIC_COLUMNS, metrics, numeric=run.metrics.numeric)
    yield ", ".join(f"{code(fact.name)}: {escape(fact.value)}" for fact in run.scalars)
    yield from map(_plain_table, run.tables)
    yield fenced(run.command)


def _progress_block(page: views.Page) -> str:
    """What is running, what is pending, and how long that will take."""
    if page.progress is None:
        return ""
    parts = (("Running", page.progress.running), ("Pending", page.progress.pending))
    lines = [f"- {name}: {', '.join(escape(title) for title, _ in items)}" for name, items in parts if items]
    return "\n".join([*lines, f"- {page.progress.remaining}"])


def _timeline_block(page: views.Page) -> str:
    if page.timeline is None:
        return ""
    shown = _first_rows(page.timeline, _MAX_ATTEMPTS)
    return _folded(f"Timeline: {len(page.timeline.rows)} attempts at runs", [_plain_table(shown)])


def _first_rows(table: views.Table, limit: int) -> views.Table:
    left = len(table.rows) - limit
    note = f"{left} more in report.html. {table.note}".rstrip() if left > 0 else table.note
    return table._replace(rows=table.rows[:limit], note=note)


def _since_blocks(page: views.Page) -> Iterator[str]:
    """What changed since the last GO; the tables are folded away."""
    if page.since is None:
        return
    yield "## What changed since the last GO"
    yield f"{_status(page.since.status)} {escape(page.since.message)}"
    yield "\n".join(f"- {escape(caveat)}" for caveat in page.since.caveats)
    tables = (_plain_table(_first_rows(one, _MAX_DIFFERENCES)) for one in page.since.tables)
    yield _folded(f"Compared with {escape(page.since.earlier)}", tables)


def _tail_blocks(page: views.Page) -> Iterator[str]:
    yield from _since_blocks(page)
    if page.environment:
        yield "## Environment"
        yield _folded("Machine, software, settings", map(_value_group, page.environment))
    if page.artifacts:
        yield "## Artifacts"
        shown = page.artifacts[:_MAX_ARTIFACTS]
        rows = ([code(item.path), item.size, code(item.sha256[:16])] for item in shown)
        left = len(page.artifacts) - len(shown)
        files = _table_block(("File", "Size", "sha256 (first 16)"), rows, numeric=("Size",))
        yield _folded(f"{len(page.artifacts)} files", [files, f"{left} more in result.json." if left else ""])
    origin = f"validator {escape(page.version)}, run {escape(page.run_id)}"
    yield f"<sub>{origin}. result.json holds every number in full.</sub>"


def _value_group(group: views.ValueGroup) -> str:
    rows = ([escape(fact.name), escape(fact.value)] for fact in group.facts[:_MAX_FACTS])
    return _joined([f"**{escape(group.title)}**", _table_block(("", ""), rows)])

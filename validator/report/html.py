"""The report as one HTML file: no request, no dependence on scripts, every text of the trainer escaped.

Templates lay out a `Page`; they hold no logic of their own. Style and script are inlined and allowed by their hash in
a content security policy, so that even text which slipped through the escaping could neither run nor load anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter

from validator.model.verdict import Status, ValidationReport
from validator.report.build import build_page
from validator.report.build_criteria import MAX_OPEN
from validator.report.charts import all_figures
from validator.report.elements import status_view
from validator.report.figure import Figure, with_drawing
from validator.report.fleet_charts import fleet_figures
from validator.report.page import Page, RunView
from validator.report.specs import ChartData
from validator.report.templates import environment, policy_hash, style, text
from validator.report.timeline import timeline_figure

# The report as one HTML file: no request, no dependence on scripts, every text of the trainer escaped.

_EXPLAINED: tuple[Status, ...] = ("PASS", "FAIL", "INCONCLUSIVE", "SKIPPED", "NOT_RUN")

MAX_BYTES = 1_500_000
"""A report is mailed, attached and opened on phones."""

MAX_DRAWN = 700_000
"""Bytes of all drawings together."""


MAX_UNFOLDED = 12
"""Runs of a report up to which the details of a phase's only run are shown open."""


def render_html(report: ValidationReport, charts: ChartData) -> str:
    """The whole page. `charts` may be empty; then the page has no charts and the chart renderer is not loaded.

    A page above `MAX_BYTES` is written again with less: first without the charts that are not drawn for want of room,
    then without the details of repeats that ended well, then of every run that did. What is left out is said.
    """
    page = build_page(report, charts)
    figures, timeline = _figures(report, charts)
    fleet = [with_drawing(one) for one in fleet_figures(report.fleet)]
    html = _render(page, figures, timeline, fleet)
    drawn = [tuple(figure for figure in of_phase if figure.svg) for of_phase in figures]
    for keep in (attrgetter("detailed"), _first_or_bad, _bad):
        if len(html.encode(errors="replace")) <= MAX_BYTES:
            break
        html = _render(_with_details_of(page, keep), drawn, timeline, fleet, left_out=_missing(figures, drawn))
    return html


def _missing(figures: Sequence[Sequence[Figure]], drawn: Sequence[Sequence[Figure]]) -> Sequence[int]:
    """How many charts each phase lacks."""
    return [len(every) - len(shown) for every, shown in zip(figures, drawn, strict=True)]


def _figures(report: ValidationReport, charts: ChartData) -> tuple[Sequence[Sequence[Figure]], Figure | None]:
    """The figures of each phase, and the timeline; none without a run to draw."""
    if not charts.runs and all(phase.comparison is None for phase in report.phases):
        return [()] * len(report.phases), None
    timeline = timeline_figure(report)
    room = MAX_DRAWN - (len(timeline.svg) if timeline else 0)
    return _within(all_figures(report.phases, charts), limit=room), timeline


def _render(
    page: Page,
    figures: Sequence[Sequence[Figure]],
    timeline: Figure | None,
    fleet: Sequence[Figure],
    *,
    left_out: Sequence[int] = (),
) -> str:
    sheet, script = style(_frames([*figures, fleet], timeline)), report_script()
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            page=page,
            figures=figures,
            timeline=timeline,
            fleet=fleet,
            open_limit=MAX_OPEN,
            left_out=left_out or [0] * len(figures),
            unfold=sum(len(phase.runs) for phase in page.phases) <= MAX_UNFOLDED,
            statuses=[status_view(s) for s in _EXPLAINED],
            style=sheet,
            script=script,
            style_hash=policy_hash(sheet),
            script_hash=policy_hash(script),
        )
    )


def report_script() -> str:
    """The one script of a report."""
    return "\n".join(map(text, ("report.js", "filters.js", "charts.js")))


def _frames(figures: Sequence[Sequence[Figure]], timeline: Figure | None) -> str:
    """A rule for each size of drawing on the page.

    Nothing moves when a browser paints a drawing only as it comes near, and that halves the time until a long report
    is open.
    """
    every = [*chain.from_iterable(figures), *([timeline] if timeline else [])]
    sizes = {figure.frame: figure.size for figure in every if figure.size}
    return "".join(f".{name}{{width:{w}px;aspect-ratio:{w}/{h}}}" for name, (w, h) in sorted(sizes.items()))


def _within(figures: Sequence[Sequence[Figure]], *, limit: int) -> list[list[Figure]]:
    """The figures with drawings of at most `limit` bytes in all: every phase's first, then every second, and so on."""
    order = sorted((rank, phase) for phase, found in enumerate(figures) for rank in range(len(found)))
    kept = [list(found) for found in figures]
    for rank, phase in order:
        figure = kept[phase][rank] = with_drawing(kept[phase][rank]) if limit >= 0 else kept[phase][rank]
        limit -= len(figure.svg)
        if limit < 0:
            note = "Not drawn, to keep the report small; the table below holds the values."
            kept[phase][rank] = replace(figure, svg="", readout="", note=f"{figure.note} {note}".strip(), spec=None)
    return kept


def _first_or_bad(run: RunView) -> bool:
    return run.repeat == 1 or _bad(run)


def _bad(run: RunView) -> bool:
    return run.tone != "good" or bool(run.irregularities) or bool(run.config.differing)


def _with_details_of(page: Page, keep: Callable[[RunView], bool]) -> Page:
    """The page with the details of some runs only."""
    phases = (
        phase._replace(runs=tuple(run._replace(detailed=keep(run)) for run in phase.runs)) for phase in page.phases
    )
    return page._replace(phases=tuple(phases))

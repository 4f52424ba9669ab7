"""The report as one HTML file: no request, no dependence on scripts, every foreign text escaped.

Templates lay out a `Page`; they hold no logic of their own. Style and script are inlined and allowed by their hash in
a content security policy, so that even text which slipped through the escaping could neither run nor load anything.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import validator
from validator.model.verdict import Status, ValidationReport
from validator.report.build import build_page
from validator.report.page import Page, RunView
from validator.report.palette import chart_css
from validator.report.parts import status_view
from validator.report.view import ChartData

if TYPE_CHECKING:
    from jinja2 import BytecodeCache, Environment

    from validator.report.charts import Figure

__all__ = ["render_html", "templates_dir"]


_EXPLAINED: tuple[Status, ...] = ("PASS", "FAIL", "INCONCLUSIVE", "SKIPPED", "NOT_RUN")

MAX_BYTES = 1_500_000
"""A report is mailed, attached and opened on phones."""

MAX_DRAWN = 800_000
"""Bytes of all drawings together."""


def render_html(report: ValidationReport, charts: ChartData) -> str:
    """The whole page. `charts` may be empty; then the page has no charts and the chart renderer is not loaded.

    A page above `MAX_BYTES` is written again with fewer details: first those of repeats that ended well, then those of
    every run that did. What is left out is said, and is in result.json.
    """
    page = build_page(report)
    figures = _figures(report, charts)
    html = _render(page, figures)
    for keep in (_first_or_bad, _bad):
        if len(html.encode(errors="replace")) <= MAX_BYTES:
            break
        html = _render(_with_details_of(page, keep), figures)
    return html


def _figures(report: ValidationReport, charts: ChartData) -> Sequence[Sequence[Figure]]:
    """The figures of each phase; what draws them is imported only when there is something to draw."""
    if not charts.runs and all(phase.comparison is None for phase in report.phases):
        return [()] * len(report.phases)
    from validator.report.charts import all_figures

    return _within(all_figures(report.phases, charts), limit=MAX_DRAWN)


def _render(page: Page, figures: Sequence[Sequence[Figure]]) -> str:
    style, script = _style(), _text("report.js")
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            page=page,
            figures=figures,
            statuses=[status_view(s) for s in _EXPLAINED],
            style=style,
            script=script,
            style_hash=_hash(style),
            script_hash=_hash(script),
        )
    )


def _within(figures: Sequence[Sequence[Figure]], *, limit: int) -> list[list[Figure]]:
    """The figures with drawings of at most `limit` bytes in all: every phase's first, then every second, and so on."""
    order = sorted((rank, phase) for phase, found in enumerate(figures) for rank in range(len(found)))
    kept = [list(found) for found in figures]
    for rank, phase in order:
        figure = kept[phase][rank]
        limit -= len(figure.svg)
        if limit < 0 and figure.svg:
            note = "Not drawn, to keep the report small; the table below stands for it."
            kept[phase][rank] = replace(figure, svg="", note=f"{figure.note} {note}".strip())
    return kept


def _first_or_bad(run: RunView) -> bool:
    return run.summary.repeat == "1" or _bad(run)


def _bad(run: RunView) -> bool:
    return run.summary.tone != "good" or bool(run.irregularities) or bool(run.config.differing)


def _with_details_of(page: Page, keep: Callable[[RunView], bool]) -> Page:
    """The page with the details of some runs only."""
    phases = (
        phase._replace(runs=tuple(run._replace(detailed=keep(run)) for run in phase.runs)) for phase in page.phases
    )
    return page._replace(phases=tuple(phases))


def templates_dir() -> Path:
    """Where the templates are: in the installed package, or beside it in a source tree.

    Raises:
        FileNotFoundError: when the installation is damaged.
    """
    package = Path(validator.__file__).parent
    for folder in (package / "_data" / "templates", package.parent / "templates"):
        if (folder / "report.html.j2").is_file():
            return folder
    raise FileNotFoundError(f"the report's templates are missing from {package}; install the package again")


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(templates_dir()),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        auto_reload=False,
        bytecode_cache=_bytecode_cache(),
    )


def _bytecode_cache() -> BytecodeCache | None:
    """Compiled templates, kept in the user's own folder below the system's temporary one; None where that is unsafe.

    It halves the time of a report without charts. A changed template or another Python has another key. A cache that
    cannot be written, as on a full disk, costs time and nothing else.
    """
    from jinja2 import FileSystemBytecodeCache
    from jinja2.bccache import Bucket

    class Cache(FileSystemBytecodeCache):
        def load_bytecode(self, bucket: Bucket) -> None:
            with suppress(OSError, EOFError, ValueError, TypeError):
                super().load_bytecode(bucket)

        def dump_bytecode(self, bucket: Bucket) -> None:
            with suppress(OSError):
                super().dump_bytecode(bucket)

    try:
        return Cache()
    except (OSError, RuntimeError):
        return None


@lru_cache(maxsize=4)
def _text(name: str) -> str:
    return (templates_dir() / name).read_text(encoding="utf-8").strip()


@lru_cache(maxsize=1)
def _style() -> str:
    """The style sheet with both sets of colors: the reader's system decides, the page's switch overrides it."""
    light = f":root{{{_text('light.css')}}}{chart_css(dark=False)}"
    dark = f":root{{{_text('dark.css')}}}{chart_css(dark=True)}"
    forced = {
        "light": light.replace(":root{", ":root:has(#theme-light:checked){").replace(
            ".chart ", ":root:has(#theme-light:checked) .chart "
        ),
        "dark": dark.replace(":root{", ":root:has(#theme-dark:checked){").replace(
            ".chart ", ":root:has(#theme-dark:checked) .chart "
        ),
    }
    themes = f"{light}@media screen{{@media (prefers-color-scheme:dark){{{dark}}}{forced['light']}{forced['dark']}}}"
    return f"{themes}\n{_text('report.css')}"


def _hash(text: str) -> str:
    """The hash of an inlined style or script, as a content security policy names it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

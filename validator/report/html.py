"""The report as one HTML file: no request, no dependence on scripts, every foreign text escaped.

Templates lay out a `Page`; they hold no logic of their own. Style and script are inlined and allowed by their hash in
a content security policy, so that even text which slipped through the escaping could neither run nor load anything.
"""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import validator
from validator.model.verdict import ValidationReport
from validator.report.build import build_page
from validator.report.charts import phase_figures
from validator.report.palette import chart_css
from validator.report.parts import status_view
from validator.report.view import ChartData

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["render_html", "templates_dir"]


def render_html(report: ValidationReport, charts: ChartData) -> str:
    """The whole page. `charts` may be empty; then the page has no charts and the chart renderer is not loaded."""
    page = build_page(report)
    figures = {phase.id: phase_figures(phase, charts) for phase in report.phases}
    style, script = _style(), _text("report.js")
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            page=page,
            figures=[figures[phase.id] for phase in report.phases],
            statuses=[status_view(s) for s in ("PASS", "FAIL", "INCONCLUSIVE", "SKIPPED", "NOT_RUN", "RUNNING")],
            style=style,
            script=script,
            style_hash=_hash(style),
            script_hash=_hash(script),
        )
    )


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
    )


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

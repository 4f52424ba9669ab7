"""Writes every rendering of a report into the run folder, each file whole or not at all."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from validator.files import replace_file
from validator.model.verdict import ValidationReport
from validator.report.chart_data import ChartData
from validator.report.exports import render_junit, render_recommended_env
from validator.report.html import render_html
from validator.report.markdown import render_markdown
from validator.runs.folder import RENDERINGS


class ReportPaths(NamedTuple):
    """Where the renderings of one report are."""

    result: Path
    html: Path
    markdown: Path
    junit: Path
    recommended_env: Path


def write_all(report: ValidationReport, charts: ChartData, run_dir: Path) -> ReportPaths:
    """Write result.json, report.html, report.md, junit.xml and recommended.env into `run_dir`.

    result.json comes first: it is the truth, the others are renderings of it. Raises OSError when the disk refuses.
    """
    paths = ReportPaths(*(run_dir / name for name in RENDERINGS))
    replace_file(paths.result, render_json(report))
    replace_file(paths.html, render_html(report, charts))
    replace_file(paths.markdown, render_markdown(report))
    replace_file(paths.junit, render_junit(report))
    replace_file(paths.recommended_env, render_recommended_env(report))
    return paths


def render_json(report: ValidationReport) -> str:
    """result.json: strict JSON, whatever the trainer put into its files.

    What JSON cannot write is null, but for `observed`, which says "NaN" or "Infinity".
    """
    return (
        json.dumps(
            _strict(report.model_dump(mode="python", by_alias=True)), indent=2, ensure_ascii=False, allow_nan=False
        )
        + "\n"
    )


def _strict(value: Any, key: str = "") -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        name = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return name if key == "observed" else None
    if isinstance(value, dict):
        return {str(name): _strict(item, str(name)) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    return value if value is None or isinstance(value, (str, int, float)) else str(value)

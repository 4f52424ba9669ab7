"""Writes every rendering of a report into the run folder, each file whole or not at all."""

from __future__ import annotations

import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from validator.model.verdict import ValidationReport
from validator.report.html import render_html
from validator.report.junit import render_junit
from validator.report.markdown import render_markdown
from validator.report.recommended_env import render_recommended_env
from validator.report.view import ChartData

__all__ = ["ReportPaths", "render_json", "write_all", "write_atomic"]


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
    paths = ReportPaths(
        result=run_dir / "result.json",
        html=run_dir / "report.html",
        markdown=run_dir / "report.md",
        junit=run_dir / "junit.xml",
        recommended_env=run_dir / "recommended.env",
    )
    _replace(paths.result, render_json(report))
    _replace(paths.html, render_html(report, charts))
    _replace(paths.markdown, render_markdown(report))
    _replace(paths.junit, render_junit(report))
    _replace(paths.recommended_env, render_recommended_env(report))
    _sync_folder(run_dir)
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


def write_atomic(path: Path, text: str) -> None:
    """Replace a file's text at once: written beside it, synced, renamed. A reader never sees half of it."""
    _replace(path, text)
    _sync_folder(path.parent)


def _replace(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable; file systems that cannot sync a folder are left alone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        return
    finally:
        os.close(descriptor)

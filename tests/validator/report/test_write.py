from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from tests.validator.report import pieces, samples
from tests.validator.report.hostile import HOSTILE
from validator import files
from validator.files import replace_file
from validator.model.verdict import ValidationReport
from validator.pipeline.write import render_json, write_all
from validator.report.specs import ChartData


def test_all_renderings_are_written_and_nothing_else(tmp_path: Path) -> None:
    paths = write_all(samples.go(), ChartData(), tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["junit.xml", "recommended.env", "report.html", "report.md", "result.json"]
    assert all(path.parent == tmp_path and path.stat().st_size > 100 for path in paths)
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in paths), "readable by those who get the report"


def test_result_json_reads_back_as_the_report(tmp_path: Path) -> None:
    for report in (samples.go(), samples.no_go(), samples.inconclusive(), samples.in_progress()):
        assert ValidationReport.model_validate_json(render_json(report)) == report


def test_what_json_cannot_write_is_named_or_null() -> None:
    bad = pieces.verdict("b.1", "loss.last < 3", "FAIL", observed=math.nan, ci_low=math.inf, bound=3.0)
    phase = pieces.baseline(criteria=(bad,))
    text = render_json(samples.go().model_copy(update={"phases": (phase,), "environment": {"x": [math.nan]}}))

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    read = json.loads(text, parse_constant=refuse)
    verdict = read["phases"][0]["criteria"][0]
    assert (verdict["observed"], verdict["ci_low"], read["environment"]["x"]) == ("NaN", None, [None])


def test_a_failed_write_leaves_the_old_file_and_no_debris(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "report.md"
    replace_file(target, "old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        replace_file(target, "new")
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["report.md"]


def test_text_that_utf8_cannot_hold_is_still_written(tmp_path: Path) -> None:
    write_all(samples.hostile(), ChartData(), tmp_path)
    read = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert read["why"] == HOSTILE
    replace_file(tmp_path / "x", "\ud800")
    assert (tmp_path / "x").read_text(encoding="utf-8") == "\\ud800"

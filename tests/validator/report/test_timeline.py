"""When each run ran: every attempt, by its own clock, with its outcome in a word and a sign."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.validator.report import pieces, samples
from tests.validator.report.pages import parse
from validator.model.verdict import ValidationReport
from validator.report.html import render_html
from validator.report.markdown import render_markdown
from validator.report.specs import ChartData
from validator.report.timeline import MARKS, run_spans, timeline_figure, timeline_table


def report_with(*attempts: dict[str, Any]) -> ValidationReport:
    run = pieces.run_report("baseline", outcome={"rc": 0, "reason": "exited", "attempts": list(attempts)})
    return samples.go().model_copy(update={"phases": (pieces.baseline(run=run),)})


def test_each_attempt_is_placed_by_its_start_and_its_length() -> None:
    spans = [span for span in run_spans(samples.no_go()) if span.run == "soak/r1"]
    assert [(span.attempt, span.began_s, span.duration_s, span.outcome, span.tone) for span in spans] == [
        ("1", 60.0, 200.0, "stalled", "bad"),
        ("2", 270.0, 12.4, "signal 9", "bad"),
    ]


def test_the_table_is_in_the_order_of_time() -> None:
    table = timeline_table(run_spans(samples.no_go()))
    assert [row[:2] for row in table.rows] == [("baseline/r1", "1"), ("soak/r1", "1"), ("soak/r1", "2")]
    assert table.rows[-1][2:] == ("4 min 30 s", "12 s", "signal 9")


@pytest.mark.parametrize("started", [None, "", "yesterday", "9999-99-99T00:00:00Z", 12])
def test_an_attempt_without_a_time_is_left_out(started: object) -> None:
    assert run_spans(report_with({"number": 1, "started": started, "duration_s": 1.0})) == ()
    assert timeline_figure(report_with()) is None


def test_the_chart_says_outcomes_by_sign_and_word() -> None:
    figure = timeline_figure(samples.no_go())
    assert "3 attempts in 4 min 42 s: 1 exit 0, 1 stalled, 1 signal 9." in figure.summary
    assert all(MARKS[sign] in figure.svg for sign in "✓✕")
    assert "minutes since the start of the validation" not in figure.svg, "less than five minutes are told in seconds"
    assert "3  Baseline, two processes" in figure.svg


def test_it_needs_no_chart_renderer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    figure = timeline_figure(samples.no_go())
    assert figure.size is not None
    assert not figure.note


def test_it_stands_in_both_renderings_also_where_nothing_is_drawn() -> None:
    report = samples.no_go()
    section = next(s for s in parse(render_html(report, ChartData())).all("section") if s.all("h2", id="timeline"))
    assert "3 runs in the order in which they began" in section.text
    assert not section.all("svg")
    assert "Timeline: 3 attempts at runs" in render_markdown(report)

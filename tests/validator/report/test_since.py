"""What changed since the last GO, and what a validation in progress still has before it."""

from __future__ import annotations

import pytest

from tests.validator.report import samples
from tests.validator.report.pages import parse
from tests.validator.report.test_contrast import contrast
from validator.model.verdict import RemainingTime
from validator.report.build import build_page
from validator.report.html import render_html
from validator.report.markdown import render_markdown
from validator.report.specs import ChartData


def test_both_renderings_tell_what_changed() -> None:
    report = samples.no_go().model_copy(update={"since": contrast()})
    section = next(s for s in parse(render_html(report, ChartData())).all("section") if s.all("h2", id="since"))
    markdown = render_markdown(report)
    assert "↓WORSE" in section.text
    assert "↓ **WORSE**" in markdown
    assert "-2.0 %" in section.text
    for part in ("monday", "baseline.1", "host-bound", "inconclusive; 17 runs per side are needed"):
        assert part in section.text
        assert part in markdown
    assert "the machine is not the same" in section.text
    assert markdown.index("## What changed since the last GO") < markdown.index("## Environment")


def test_metrics_that_decide_come_first() -> None:
    base = contrast().metrics[0]
    other = base.model_copy(update={"metric": "loss.last", "headline": False})
    report = samples.no_go().model_copy(
        update={"since": contrast().model_copy(update={"metrics": (other, base, *[other] * 100)})}
    )
    since = build_page(report).since
    table = since.tables[0]
    assert [row[1] for row in table.rows[:2]] == ["★ toks_per_s.mean (tok/s)", "loss.last (tok/s)"]
    assert table.note == "42 more lines in result.json."
    assert "35 more in report.html. 42 more lines in result.json." in render_markdown(report)


def test_without_an_earlier_go_it_says_so() -> None:
    assert "there is no earlier GO" in parse(render_html(samples.no_go(), ChartData())).text
    assert "since the last GO" not in parse(render_html(samples.in_progress(), ChartData())).text


def test_in_progress_says_what_runs_what_is_to_come_and_when_it_ends() -> None:
    text = parse(render_html(samples.in_progress(), ChartData())).text
    assert "Running: Long run" in text
    assert "Pending: One process" in text
    assert "About 12 min 34 s remained at 2025-08-27 14:05:00 UTC; the expected end is about" in text
    assert "about 2025-08-27 14:17:34 UTC." in text
    assert "Phases without an expected duration are not included." in text
    markdown = render_markdown(samples.in_progress())
    assert "- Pending: One process" in markdown
    assert "About 12 min 34 s remained" in markdown
    assert "Pending:" not in parse(render_html(samples.no_go(), ChartData())).text


@pytest.mark.parametrize(
    "outlook", [None, RemainingTime(as_of="2025-08-27T14:05:00+00:00", remaining_s=None, at_least=False)]
)
def test_an_unknown_end_is_not_reported(outlook: RemainingTime | None) -> None:
    report = samples.in_progress().model_copy(update={"outlook": outlook})
    assert "The remaining time is not known" in render_markdown(report)


def test_a_time_that_is_none_costs_the_end_and_nothing_else() -> None:
    outlook = RemainingTime(as_of="soon", remaining_s=60.0, at_least=False)
    report = samples.in_progress().model_copy(update={"outlook": outlook})
    assert "About 1 min remained at soon." in " ".join(render_markdown(report).split())

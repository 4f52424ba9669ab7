"""The banner says what to do, and where in the page it stands."""

from __future__ import annotations

import pytest

from tests.validator.report import samples
from tests.validator.report.pages import parse
from validator.model.verdict import Recommendation, ValidationReport
from validator.report.build import build_page
from validator.report.html import render_html
from validator.report.markdown import render_markdown
from validator.report.view import ChartData


def test_what_forbids_go_says_the_next_step() -> None:
    page = build_page(samples.no_go())
    assert page.next_step is not None
    assert (page.next_step.name, page.next_step.href) == ("config-ignored", "#finding-1")
    assert page.next_step.value == page.findings[0].next_step
    banner = next(s for s in parse(render_html(samples.no_go(), ChartData())).all("section", klass="banner"))
    assert banner.all("a")[-1].attributes["href"] == "#finding-1"
    assert "**Next step:**" in render_markdown(samples.no_go())


@pytest.mark.parametrize(("status", "word"), [("FAIL", "compare"), ("INCONCLUSIVE", "again"), ("NOT_RUN", "run")])
def test_without_a_finding_the_phase_that_stands_against_go_is_named(status: str, word: str) -> None:
    report = samples.no_go()
    against = next(phase for phase in report.phases if phase.required and phase.status != "PASS")
    phases = tuple(
        phase.model_copy(update={"status": status if phase.id == against.id else "PASS"}) for phase in report.phases
    )
    page = build_page(report.model_copy(update={"phases": phases, "findings": ()}))
    assert page.next_step is not None
    assert page.next_step.name == against.id
    assert word in page.next_step.value
    assert page.next_step.href == f"#{next(p.anchor for p in page.phases if p.id == against.id)}"


def test_a_go_leads_to_its_settings_and_one_without_settings_says_nothing() -> None:
    report: ValidationReport = samples.go()
    chosen = report.model_copy(update={"recommended": Recommendation(env={"NSA_X": "1"})})
    page = build_page(chosen)
    assert page.next_step is not None
    assert page.next_step.href == "#recommended"
    assert build_page(report.model_copy(update={"recommended": Recommendation()})).next_step is None
    assert build_page(samples.in_progress()).next_step is None


def test_a_sentence_is_said_once() -> None:
    page = build_page(samples.no_go())
    for group in page.groups:
        said = [row.message for row in group.rows if row.message and row.status.word != "PASS"]
        assert not [text for text in said if text in group.message]
    waiting = build_page(samples.in_progress())
    assert not any(row.message == group.message != "" for group in waiting.groups for row in group.rows)
    assert all(fact.name != "Exit code" for fact in waiting.facts), "it has none yet"

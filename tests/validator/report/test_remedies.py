"""Tables that a run left, and the attempts at a phase that failed, on the page and in the Markdown."""

from __future__ import annotations

import pytest

from tests.validator.report import samples
from tests.validator.report.pages import parse
from validator.model.result import RunTable
from validator.model.verdict import RemedyReport, ValidationReport
from validator.report.html import render_html
from validator.report.markdown import render_markdown
from validator.report.specs import ChartData

KERNELS = RunTable(
    caption="Kernels that took most of the time",
    columns=("Kernel", "Calls", "Share (%)"),
    rows=(("_merge_kernel<script>", 1200, 31.5), ("ampere_gemm|x", 8, None)),
)


@pytest.fixture
def remedied() -> ValidationReport:
    report = samples.go()
    index = next(number for number, phase in enumerate(report.phases) if phase.runs)
    phase = report.phases[index]
    run = phase.runs[0].model_copy(update={"tables": (KERNELS,), "remedy": "port"})
    attempts = (
        RemedyReport(name=None, keeps_config=True, decides=False, status="FAIL", message="It stalled at step 3."),
        RemedyReport(name="port", keeps_config=True, decides=True, status="PASS", message="4 criteria passed."),
        RemedyReport(
            name="bucket_50",
            settings={"env.NSA_DDP_BUCKET_MB": 50},
            keeps_config=False,
            decides=False,
            status="PASS",
            message="4 criteria passed.",
        ),
    )
    changed = phase.model_copy(update={"runs": (run, *phase.runs[1:]), "remedies": attempts})
    return report.model_copy(update={"phases": (*report.phases[:index], changed, *report.phases[index + 1 :])})


def test_the_page_shows_every_attempt_and_every_table(remedied: ValidationReport) -> None:
    page = parse(render_html(remedied, ChartData()))
    captions = {table.all("caption")[0].text: table for table in page.all("table") if table.all("caption")}
    attempts = captions["Remediation attempts"].text
    assert "as declared" in attempts
    assert "port ★ decides" in attempts
    assert "env.NSA_DDP_BUCKET_MB=50" in attempts
    kernels = captions["Kernels that took most of the time"]
    assert "_merge_kernel<script>" in kernels.text, "foreign names are text, not markup"
    assert "1,200" in kernels.text


def test_the_markdown_shows_the_same(remedied: ValidationReport) -> None:
    text = render_markdown(remedied)
    assert "Remediation attempts" in text
    assert "Kernels that took most of the time" in text
    assert "ampere\\_gemm\\|x" in text

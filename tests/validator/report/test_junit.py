from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from tests.validator.report import pieces, samples
from validator.model.verdict import PhaseReport, Status
from validator.report.exports import render_junit


def read(report: object) -> ET.Element:
    return ET.fromstring(render_junit(report).encode())  # type: ignore[arg-type]


def is_green(root: ET.Element) -> bool:
    return root.get("failures") == "0" and root.get("errors") == "0"


@pytest.mark.parametrize("name", ["go", "no_go", "inconclusive", "in_progress"])
def test_only_go_is_green(name: str) -> None:
    assert is_green(read(getattr(samples, name)())) is (name == "go")


@pytest.mark.parametrize("status", ["FAIL", "INCONCLUSIVE", "SKIPPED", "NOT_RUN", "RUNNING"])
@pytest.mark.parametrize("required", [True, False])
def test_what_is_required_and_not_passed_is_red_and_what_is_optional_is_not(status: Status, required: bool) -> None:
    criteria = (pieces.verdict("p.1", "x", status),)
    phase = PhaseReport(id="p", kind="command", title="p", status="PASS", required=required, criteria=criteria)
    root = read(samples.go().model_copy(update={"phases": (phase,), "findings": ()}))
    case = root.find("./testsuite[@name='p']/testcase[@name='p.1: x']")
    assert case is not None
    wanted = "skipped" if not required else "failure" if status == "FAIL" else "error"
    assert [child.tag for child in case] == [wanted]
    assert is_green(root) is not required


def test_an_optional_criterion_of_a_required_phase_is_not_red() -> None:
    verdict = pieces.verdict("p.1", "x", "FAIL", required=False)
    phase = PhaseReport(id="p", kind="command", title="p", status="PASS", criteria=(verdict,))
    assert is_green(read(samples.go().model_copy(update={"phases": (phase,), "findings": ()})))


def test_counts_add_up() -> None:
    root = read(samples.no_go())
    suites = root.findall("testsuite")
    assert [suite.get("name") for suite in suites] == [
        "decision", "preflight", "sanity", "baseline", "single", "soak", "findings",
    ]  # fmt: skip
    for key, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(root.get(key, "")) == len(root.findall(f".//{tag}"))
        for suite in suites:
            assert int(suite.get(key, "")) == len(suite.findall(f".//{tag}"))


def test_a_failure_tells_observed_bound_and_evidence() -> None:
    failure = read(samples.no_go()).find(".//testcase[@name='baseline.1: toks_per_s.mean >= 39000']/failure")
    assert failure.get("message") == "FAIL: The whole interval lies below 39,000 tok/s."
    assert "bound: 39,000 tok/s" in str(failure.text)
    assert "runs/baseline/r1/training.csv" in str(failure.text)


def test_hostile_text_leaves_valid_xml() -> None:
    assert len(read(samples.hostile())) == 3

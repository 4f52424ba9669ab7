"""What GitHub Actions shows of a run: places in the runbook, escapes, limits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.validator.report import hostile, samples
from validator.model.verdict import PhaseReport, Status, ValidationReport, Verdict
from validator.report.annotations import LIMIT, Annotation, annotation_lines, of_problems, of_report
from validator.runbook import Mark, Problem
from validator.text import on_actions

BOOK = """\
schema: 1
phases:
  - id: first
    kind: train
    accept:
      - loss.last < 3
      - {expr: loss.last < 2, required: false}
  - kind: train
    id: second
    accept: [a.mean > 1,
             b.mean > 2]
"""


def report(*criteria: tuple[str, str, Status, bool], **more: object) -> ValidationReport:
    found = []
    for name in ("first", "second"):
        own = tuple(
            Verdict(id=id, text="x.mean > 1", status=status, required=required, message="It is not.")
            for at, id, status, required in criteria
            if at == name
        )
        found.append(PhaseReport(id=name, kind="train", title=name, status="FAIL", criteria=own))
    return samples.go().model_copy(update={"phases": tuple(found), "findings": (), **more})


def places(found: ValidationReport, text: str = BOOK) -> list[tuple[str, str, int | None, int | None]]:
    return [
        (one.level, one.title, one.mark and one.mark.line, one.mark and one.mark.column)
        for one in of_report(found, text, file="book.yaml")
    ]


def test_required_criteria_that_did_not_pass_are_shown_at_their_lines() -> None:
    found = report(
        ("first", "first.1", "FAIL", True),
        ("first", "first.2", "FAIL", False),
        ("first", "first.exit", "FAIL", True),
        ("second", "second.2", "INCONCLUSIVE", True),
        ("second", "second.1", "PASS", True),
    )
    assert places(found) == [
        ("error", "first.1", 6, 9),
        ("error", "first.exit", 3, 9),
        ("warning", "second.2", 11, 14),
    ]


@pytest.mark.parametrize("text", ["", "phases: 3", "phases: [3, {id: other}]", "{", "phases:\n  - id: first\n"])
def test_a_criterion_that_the_runbook_lacks_has_a_place_nevertheless(text: str) -> None:
    (found,) = of_report(report(("first", "first.7", "FAIL", True)), text, file="book.yaml")
    assert found.mark is not None
    assert found.mark.file == "book.yaml"
    assert found.mark.line in (1, 2)


def test_vetoes_are_errors_with_their_next_step() -> None:
    findings = tuple(samples.no_go().findings)
    shown = [one for one in of_report(report(findings=findings), BOOK, file="b") if one.title.startswith("veto ")]
    assert len(shown) == sum(one.severity == "veto" for one in findings) > 0
    assert all(one.level == "error" and "next step: " in one.message for one in shown)


def test_optional_phases_are_not_annotated() -> None:
    found = report(("first", "first.1", "FAIL", True))
    optional = tuple(one.model_copy(update={"required": False}) for one in found.phases)
    assert not list(of_report(found.model_copy(update={"phases": optional}), BOOK, file="b"))


def test_values_are_escaped_as_the_format_asks() -> None:
    one = Annotation("error", "a: b, 5 %", "100 % of\r\n::error::two: three, four", Mark("a,b:c%.yaml", 3, 4))
    (line,) = annotation_lines([one], {})
    assert line.startswith("::error file=a%2Cb%3Ac%25.yaml,line=3,col=4,title=a%3A b%2C 5 %25::100 %25 of")
    assert line.endswith("%0A::error::two: three, four")
    assert "\n" not in line
    assert "\r" not in line


@pytest.mark.parametrize("name", ["go", "no_go", "hostile"])
def test_every_line_is_one_command(name: str) -> None:
    made = hostile.hostile() if name == "hostile" else getattr(samples, name)()
    lines = list(annotation_lines(of_report(made, BOOK, file="book.yaml"), {}))
    assert all(re.fullmatch(r"::(error|warning) [^\x00-\x1f]*?::[^\x00-\x1f\x7f]*", line) for line in lines)
    assert len(lines) <= 2 * LIMIT


def test_of_each_level_ten_are_shown_and_the_rest_counted() -> None:
    problems = [Problem("a.yaml", n, 1, "wrong", "right") for n in range(1, 14)]
    every = [*of_problems(problems, "error"), *of_problems(problems[:10], "warning")]
    lines = list(annotation_lines(every, {}))
    assert [line.split()[0] for line in lines] == ["::error"] * 10 + ["::warning"] * 10
    assert lines[9].endswith("::wrong%0Afix: right (and 3 more)")
    assert all(line.endswith("fix: right") for line in (lines[8], lines[-1]))


def test_paths_begin_at_the_workspace(tmp_path: Path) -> None:
    (tmp_path / "repo/ml").mkdir(parents=True)
    environment = {"GITHUB_WORKSPACE": str(tmp_path / "repo")}

    def line(file: str) -> str:
        (found,) = annotation_lines(
            [Annotation("error", "t", "m", Mark(file, 3))], environment, cwd=str(tmp_path / "repo/ml")
        )
        return found

    assert line("book.yaml") == "::error file=ml/book.yaml,line=3,title=t::m"
    assert line(str(tmp_path / "repo/x.yaml")) == "::error file=x.yaml,line=3,title=t::m"
    assert line("../../outside.yaml") == "::error title=t::m"
    assert line("--set baseline.steps=1") == "::error title=t::m"


def test_only_a_job_is_annotated() -> None:
    assert [on_actions({"GITHUB_ACTIONS": value}) for value in ("true", "false", "")] == [True, False, False]
    assert not on_actions({})

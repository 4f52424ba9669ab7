from __future__ import annotations

import re

import pytest

from tests.validator.report import samples
from validator.report.markdown import MAX_LENGTH, code, escape, fenced, render_markdown


@pytest.mark.parametrize(
    ("name", "word"),
    [("go", "GO"), ("no_go", "NO-GO"), ("inconclusive", "INCONCLUSIVE"), ("in_progress", "IN PROGRESS")],
)
def test_it_begins_with_the_decision_and_why(name: str, word: str) -> None:
    lines = render_markdown(getattr(samples, name)()).splitlines()
    assert re.fullmatch(rf"# \S+ {word}: Smoke run on the CPU", lines[0])
    assert lines[2].startswith("**")


def test_it_holds_what_the_page_holds() -> None:
    text = render_markdown(samples.no_go())
    headings = re.findall(r"^## (.*)$", text, re.M)
    first = "Failed or not decided"
    assert headings == [first, "Criteria", "Findings", "Recommended settings", "Phases", "Environment", "Artifacts"]
    assert "12,840 tok/s" in text
    assert "-67.1 %" in text
    assert "ran with other settings than requested" in text
    assert "Next step: Pass --seq\\_len 512" in text
    assert text.index("config&#45;ignored") < text.index("<code>oom</code>"), "vetoes come first"


def rows_of(text: str) -> list[list[str]]:
    """Every table line's cells, split as GitHub splits them: at pipes without a backslash in front."""
    fence = re.compile(r"^(`{3,})\w*\n.*?^\1$", re.M | re.S)
    lines = [line for line in fence.sub("", text).splitlines() if line.startswith("|")]
    return [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]


@pytest.mark.parametrize("name", ["go", "no_go", "inconclusive", "in_progress", "hostile"])
def test_every_table_is_whole(name: str) -> None:
    width = None
    text = render_markdown(getattr(samples, name)())
    rows = rows_of(text)
    assert rows
    for row in rows:
        if all(re.fullmatch(r" -+:? ", cell) for cell in row):
            assert width == len(row)
        elif width is None or len(row) != width:
            width = len(row)
    rules = [row for row in rows if all(re.fullmatch(r" -+:? ", cell) for cell in row)]
    assert len(rules) >= 2


@pytest.mark.parametrize("name", ["go", "no_go", "hostile"])
def test_folded_parts_are_closed(name: str) -> None:
    text = render_markdown(getattr(samples, name)())
    assert text.count("<details>") == text.count("</details>") > 0
    assert text.count("<summary>") == text.count("</summary>")


def test_hostile_text_can_do_nothing() -> None:
    text = render_markdown(samples.hostile())
    outside = re.sub(r"^(`{3,})\w*\n.*?^\1$", "", text, flags=re.M | re.S)
    assert "<script" not in outside
    assert "<img" not in outside
    assert not re.search(r"(?<!\\)\[link(?<!\\)\]", outside), "no link"
    assert not re.search(r"@\w", outside), "nobody is notified"
    assert not re.search(r"#\d", re.sub(r"&#\d+;", "", outside)), "no issue is named"
    assert not re.search(r"https?:", outside), "no address is linked"
    assert not re.search("[\x00-\x08\x1b\u202a-\u202e\ud800-\udfff]", text)


def test_a_fence_is_longer_than_any_in_its_text() -> None:
    assert fenced("a\n````\nb").startswith("`````sh\n")
    assert fenced("plain") == "```sh\nplain\n```"


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a|b", "a\\|b"),
        ("*bold* _it_", "\\*bold\\* \\_it\\_"),
        ("<b>&", "&lt;b&gt;&amp;"),
        ("- item", "\\- item"),
        ("1. item", "1\\. item"),
        ("2.871 nat", "2.871 nat"),
        ("+48.4 %", "+48.4 %"),
        ("---", "--\\-"),
        ("two\nlines", "two<br>lines"),
        ("12-3 = 9", "12-3 = 9"),
        ("@me #12 $x$", "@<span></span>me #<span></span>12 $<span></span>x$<span></span>"),
        ("see https://x.example", "see https<span></span>://x.example"),
    ],
)
def test_escaping(text: str, escaped: str) -> None:
    assert escape(text) == escaped


def test_inline_code_cannot_be_left() -> None:
    assert code("a`|</code><b>") == "<code>a&#96;&#124;&lt;/code&gt;&lt;b&gt;</code>"
    assert code("") == ""


def test_a_long_report_still_fits_a_comment() -> None:
    report = samples.go()
    phases = tuple(report.phases[3].model_copy(update={"id": f"buckets{i}", "title": f"Sweep {i}"}) for i in range(12))
    text = render_markdown(report.model_copy(update={"phases": phases}))
    assert len(text) < MAX_LENGTH + 4000
    assert "phases are in report.html only" in text
    assert all(f"Sweep {i}" in text for i in range(12)), "every verdict stays"

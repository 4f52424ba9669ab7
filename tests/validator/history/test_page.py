"""The page and the terminal's table of past runs: what they say, and that foreign text stays text."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

from tests.validator.history.folders import make_run
from validator.history.page import blocks, history_lines, render_index, write_index
from validator.history.store import read_history
from validator.history.trend import Group, group_entries


def groups(parent: Path, *, runs: int = 24, drop_at: int = 12, **changes: object) -> tuple[Group, ...]:
    for number in range(runs):
        wobble = 1 + 0.004 * ((number * 7) % 5 - 2)
        torch = "2.11.0" if number < drop_at else "2.12.0"
        make_run(parent, number, scale=wobble * (1.0 if number < drop_at else 0.9), torch=torch, **changes)  # type: ignore[arg-type]
    return group_entries(read_history(parent))


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def tags(page: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = _Tags()
    parser.feed(page)
    return parser.found


def test_a_regression_is_named_with_its_run_size_and_what_differs(tmp_path: Path) -> None:
    page = render_index(groups(tmp_path))
    sentence = re.search(r"baseline: toks_per_s\.mean: worse by ([\d.]+)\s%\s*since (\S+) .*?differs: ([^<]+)<", page)
    assert abs(float(sentence[1]) - 10) < 1
    assert sentence[2].endswith("-0012")
    assert sentence[3].strip() == "torch 2.11.0 → 2.12.0"


def test_every_run_leads_to_its_report(tmp_path: Path) -> None:
    page = render_index(groups(tmp_path, runs=4))
    links = [attributes["href"] for tag, attributes in tags(page) if tag == "a" and attributes["href"]]
    for entry in read_history(tmp_path):
        assert f"{entry.folder}/report.html" in links
        assert (tmp_path / entry.folder).is_dir()


def test_the_page_loads_nothing_and_marks_each_change(tmp_path: Path) -> None:
    page = render_index(groups(tmp_path))
    assert "default-src 'none'" in page
    assert not re.search(r"""(?:src|href)=["']https?:""", page)
    assert [a["class"] for tag, a in tags(page) if tag == "line"].count("worse") >= 1
    assert all(a.get("aria-label") or a.get("aria-hidden") for tag, a in tags(page) if tag == "svg")


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    attack = '<script>alert(1)</script>"\x1b[31m\u202e'
    make_run(tmp_path, 0, why=attack, run_id=attack, decision=attack)
    found = group_entries(read_history(tmp_path))
    page = render_index(found)
    assert [tag for tag, _ in tags(page)].count("script") == 1
    assert not {"\x1b", "\u202e"} & set(page)
    text = "\n".join(history_lines(found, limit=5, width=80, color=False))
    assert not {"\x1b", "\u202e"} & set(text)


def test_the_terminal_says_the_same(tmp_path: Path) -> None:
    text = "\n".join(history_lines(groups(tmp_path), limit=5, width=80, color=False))
    assert "19 older runs not shown" in text
    assert re.search(r"baseline: toks_per_s\.mean: worse by", text)
    assert len(re.findall(r"✓ GO", text)) == 5


def test_a_sparkline_shows_the_drop_and_hides_noise() -> None:
    assert blocks([100.0] * 4 + [50.0] * 4) == "████▁▁▁▁"
    assert set(blocks([100.0, 100.2, 99.9, 100.1])) <= set("▃▄▅▆")
    assert blocks([]) == ""


def test_an_empty_history_has_a_page_too(tmp_path: Path) -> None:
    assert "No run folder is here yet" in write_index(tmp_path, ()).read_text(encoding="utf-8")


def test_what_was_compared_without_an_answer_and_what_is_left_out_is_said(tmp_path: Path) -> None:
    for number in range(3):
        make_run(tmp_path, number)
    path = make_run(tmp_path, 3) / "result.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    compared = next(phase for phase in found["phases"] if phase["comparison"] is not None)
    compared["comparison"]["outcome"] = "not_decidable"
    for phase in found["phases"]:
        for run in phase["runs"]:
            for stats in run["metrics"].values():
                stats["version"] = 7
    path.write_text(json.dumps(found), encoding="utf-8")
    groups = group_entries(read_history(tmp_path))
    assert groups[0].entries[-1].undecided == (compared["id"],)
    assert groups[0].entries[0].undecided == ()
    told = " ".join(" ".join(history_lines(groups, limit=9, width=400, color=False)).split())
    assert f"(inconclusive: {compared['id']})" in told
    assert "3 runs by another definition of it left out; `validator report RUN` judges a run again" in told
    assert f"inconclusive: {compared['id']}" in render_index(groups)

"""The documentation does what it says: every command shown is run, and prints what is shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import Command, FileBlock, matches, play, read_page

ROOT = Path(__file__).resolve().parents[2]

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])

SESSIONS = [page for page in PAGES if any(isinstance(step, Command) for step in read_page(page).steps)]

ELSEWHERE = {
    "README.md": 4,
    "ci.md": 1,
    "comparing.md": 4,
    "nightly.md": 1,
    "service.md": 4,
    "service_proxy.md": 2,
    "tour.md": 1,
}
"""Blocks of commands that are not run here, by page; a new one has to be argued for."""


@pytest.mark.parametrize("page", SESSIONS, ids=lambda page: page.name)
def test_a_reader_who_follows_the_page_sees_what_it_shows(page: Path, tmp_path: Path) -> None:
    for step in read_page(page).steps:
        if isinstance(step, FileBlock):
            (tmp_path / step.name).write_text(step.text, encoding="utf-8")
            continue
        code, printed = play(step, tmp_path)
        said = f"{page.name}:{step.line}: $ {step.words}\n--- exit code {code}, printed ---\n{printed}"
        assert code == 0 if step.output is None else matches(step.output, printed), said


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_needs_is_installed(page: Path) -> None:
    """A block that is passed over shows as a skipped test, not as one that passed."""
    if absent := read_page(page).absent:
        pytest.skip(f"{page.name}: its commands for {'; '.join(absent)} are not run")


def test_no_command_is_left_out_without_being_counted() -> None:
    found = {page.name: len(read_page(page).elsewhere) for page in PAGES}
    assert {name: count for name, count in found.items() if count} == ELSEWHERE


def test_every_link_between_pages_leads_somewhere() -> None:
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            if not target.startswith(("http://", "https://")):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_page_is_in_the_site() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert f": {page.name}" in nav, f"{page.name} is not in mkdocs.yml"


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a\n...\nd", "a\nb\nc\nd\n", True),
        ("rate ... tok/s", "rate 12 tok/s", True),
        ("a\n...", "b\nc", False),
        ("exit code 0", "exit code 1", False),
        ("", "anything", False),
    ],
)
def test_what_is_shown_is_held_against_what_is_printed(shown: str, printed: str, same: bool) -> None:
    assert matches(shown, printed) is same

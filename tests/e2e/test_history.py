"""Past runs, from the command line: what a user sees the morning after."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import Answer

RUNBOOK = """
schema: 1
name: twice
title: The same thing twice
phases:
  - {id: look, kind: command, run: "echo ok", accept: [outcome.rc == 0]}
"""


def test_each_run_joins_the_index_and_the_list_and_may_be_pinned(cli: Callable[..., Answer], workdir: Path) -> None:
    (workdir / "twice.yaml").write_text(RUNBOOK, encoding="utf-8")
    for _ in range(2):
        assert cli("run", "twice.yaml").rc == 0
    headers = [json.loads(path.read_text()) for path in (workdir / "reports").glob("*/run.json")]
    # By start: names have the second alone, and two runs may begin within one.
    runs = [header["run_id"] for header in sorted(headers, key=lambda one: one["started"])]
    page = (workdir / "reports" / "index.html").read_text(encoding="utf-8")
    assert all(f'href="{run}/report.html"' in page for run in runs)
    listed = cli("history")
    assert listed.rc == 0
    assert listed.out.count("✓ GO") == 2
    found = cli("history", "--json").json
    assert [entry["run_id"] for entry in found["groups"][0]["entries"]] == runs
    assert cli("history", "--pin", runs[0]).rc == 0
    assert "(pinned)" in cli("history").out
    assert cli("history", "--unpin", runs[0]).rc == 0
    assert "(pinned)" not in cli("history").out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("nowhere",), "nowhere is no folder"),
        ((".", "--runbook", "other"), "--runbook other"),
        ((".", "--pin", "other"), "other is no run folder"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(cli: Callable[..., Answer], arguments: tuple[str, ...], told: str) -> None:
    done = cli("history", *arguments)
    assert done.rc == 2
    assert told in done.err

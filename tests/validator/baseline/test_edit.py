"""Bounds in the text of a runbook: everything else stays as it was written."""

from __future__ import annotations

from pathlib import Path

import pytest

from validator.baseline import CannotEdit, MetricBound, with_bounds, without_criterion
from validator.kinds.registry import load

OPEN = """\
schema: 1
name: sample
phases:
  - id: baseline
    kind: train
    steps: 300
    accept:
      - toks_per_s.mean >= ? tok/s   # fill in
"""


def test_an_open_bound_is_filled_in() -> None:
    text = with_bounds(OPEN, [RATE])
    assert "      - toks_per_s.mean >= 38.5   # fill in\n" in text
    assert "?" not in text


def test_a_criterion_gives_place_to_the_reason_why_it_is_not_asked() -> None:
    line = "      - toks_per_s.mean >= ? tok/s   # fill in\n"
    text = OPEN.replace(line, "      - loss.last < loss.first\n" + line)
    without = without_criterion(text, "baseline", "loss.last < loss.first", why="It stays.")
    assert without == OPEN.replace(line, "      # It stays.\n" + line)
    assert without_criterion(without, "baseline", "loss.last < loss.first", why="It stays.") == without
    last = OPEN.replace(line, "      - loss.last < loss.first\n")  # a list without entries is none
    assert without_criterion(last, "baseline", "loss.last < loss.first", why="It stays.") == last


RATE = MetricBound("baseline", "toks_per_s.mean", ">=", 38.5, "tok/s", "3 good runs gave 40")
LOSS = MetricBound("baseline", "loss.last", "<=", 4.25, "nat", "3 good runs gave 4")

HEAD = """\
# why this runbook exists
schema: 1
name: sample   # short
phases:
"""

LAYOUTS = {
    "block": """\
  - id: baseline   # the one
    kind: train
    accept:
      # from the first day
      - loss.last < loss.first   # learns
      - {expr: steps.done == 300, why: "all of them, of course"}

    steps: 300
  # next comes
  - {id: soak, kind: soak, steps: 20}
""",
    "block, last": """\
  - id: baseline
    kind: train
    steps: 300
    accept:
      - expr: steps.done == 300
        why: >-
          folded over
          two lines
""",
    "block, no accept": """\
  - kind: train
    id: baseline
    steps: 300
    why: |
      literal text

  - {id: soak, kind: soak, steps: 20}
""",
    "flow list": """\
  - id: baseline
    kind: train
    accept: [loss.last < loss.first, "steps.done == 300"]   # both
    steps: 300
""",
    "empty flow list": "  - {id: baseline, kind: train, steps: 300, accept: []}\n",
    "flow phase": "  - {id: baseline, kind: train, steps: 300}",
    "flow over lines": """\
  - id: baseline
    kind: train
    steps: 300
    accept: [
      loss.last < loss.first,
      steps.done == 300,
    ]
""",
}


def _load(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "r.yaml"
    path.write_text(text, encoding="utf-8")
    return [criterion.expr for criterion in load(path).runbook.phase("baseline").accept]


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_bounds_are_added_and_nothing_is_lost(layout: str, tmp_path: Path) -> None:
    before = HEAD + layout
    after = with_bounds(before, [RATE, LOSS])
    assert _load(tmp_path, after) == [*_load(tmp_path, before), "toks_per_s.mean >= 38.5", "loss.last <= 4.25"]
    for bound in (RATE, LOSS):
        assert f"# from good runs: {bound.reference}: 3 good runs" in after
    for line in before.splitlines():
        if "accept" not in line and line.strip() not in ("]", "") and "{id: baseline" not in line:
            assert line.rstrip(",") in after
    assert all(comment in after for comment in ("# why this runbook exists", "# short"))


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_editing_again_replaces_the_number_and_its_comment(layout: str, tmp_path: Path) -> None:
    once = with_bounds(HEAD + layout, [RATE, LOSS])
    newer = [
        MetricBound("baseline", "toks_per_s.mean", ">=", 39.5, "tok/s", "5 good runs gave 41"),
        MetricBound("baseline", "loss.last", "<=", 4.25, "nat", "3 good runs gave 4"),
    ]
    twice = with_bounds(once, newer)
    assert _load(tmp_path, twice) == [expr.replace("38.5", "39.5") for expr in _load(tmp_path, once)]
    assert twice.count("# from good runs: toks_per_s.mean") == 1
    assert twice.count("# from good runs: loss.last") == 1
    assert "5 good runs gave 41" in twice


def test_an_existing_bound_keeps_its_reason_and_whether_it_is_required(tmp_path: Path) -> None:
    layout = """\
  - id: baseline
    kind: train
    steps: 300
    accept:
      - {expr: toks_per_s.mean >= 39 tok/s, required: false, why: from the vendor}
      - "loss.last < 5"
      - toks_per_s.mean <= 1000
"""
    after = with_bounds(HEAD + layout, [RATE, LOSS])
    assert "{expr: toks_per_s.mean >= 38.5, required: false, why: from the vendor}" in after
    assert _load(tmp_path, after) == ["toks_per_s.mean >= 38.5", "loss.last <= 4.25", "toks_per_s.mean <= 1000"]


def test_a_phase_that_is_not_there_is_named() -> None:
    with pytest.raises(CannotEdit, match="no phase other"):
        with_bounds(HEAD + LAYOUTS["block"], [MetricBound("other", "loss.last", "<=", 1, "", "")])


def test_a_shared_list_is_not_changed_for_all_who_share_it() -> None:
    layout = """\
  - {id: first, kind: train, steps: 3, accept: &both [loss.last < 9]}
  - {id: baseline, kind: train, steps: 3, accept: *both}
"""
    with pytest.raises(CannotEdit, match="list of its own"):
        with_bounds(HEAD + layout, [RATE])

"""Lines of one shape are found without a search, and read as if each had been searched."""

from __future__ import annotations

import random
import re

import pytest

from tests.validator.ingest.forms import FORMS, ROWS
from validator.model import line_search
from validator.model.line_search import LineSearch
from validator.model.pattern import LinePattern
from validator.model.print_words import BARS, GENERAL, RECORDS, TABLES

ODD = (
    "20241103-102233 step 5 loss 2.1",
    "I1103 10:22:33.123 t.py:3] step 5 loss 2.1",
    "1731000000 step 5 loss 2.1 0.3s",
    "[00:59:59] Step: 5, Loss: 3.1",
    " 5%| | 5/100 [00:01<00:10, 1.3it/s, loss=2]",
    "step1000 loss 2.1 top1=3 top5=9",
    "{'loss': 2.1, 'epoch': 0.3, 'acc1': 3, 'acc5': 4, 'step': 7}",
    "rank 0: step 3 loss 2.0 lr 3e-05",
    "epoch 0 batch 3/10 loss 0.3 time 0.3s",
)


@pytest.mark.parametrize("seed", range(2))
def test_what_is_remembered_reads_as_what_is_searched(seed: int) -> None:
    draw = random.Random(seed)
    known = [form[1](row) for form in FORMS.values() for row in (ROWS[0], ROWS[-1])]
    lines = [line for text in (*known, *ODD) for line in text.split("\n")]
    varied = [re.sub(r"\d", lambda one: draw.choice((one[0], str(draw.randrange(10)))), line) for line in 2 * lines]
    every = [*lines, *varied]
    draw.shuffle(every)
    for recipe in (*BARS, *TABLES, *RECORDS, *GENERAL):
        remembered, searched = LinePattern(recipe.pattern, alike=True), LinePattern(recipe.pattern)
        for line in every:
            if any(word in line.lower() for word in recipe.words):
                assert repr(remembered.read(line)) == repr(searched.read(line)), (recipe.name, line)


class Counted:
    """A compiled expression that counts its searches."""

    def __init__(self, text: str) -> None:
        self.searches, self._compiled = 0, re.compile(text)
        self.pattern, self.groupindex = text, self._compiled.groupindex

    def search(self, line: str) -> re.Match[str] | None:
        self.searches += 1
        return self._compiled.search(line)


def search(text: str) -> tuple[LineSearch, Counted]:
    expression = Counted(text)
    return LineSearch(expression, alike=True), expression  # type: ignore[arg-type]


def test_lines_that_differ_in_digits_are_searched_once() -> None:
    found, expression = search(r"step (?P<step>\d+)(?: loss (?P<loss>\S+))?")
    for step in range(10, 100):
        match = found.find(f"step {step} loss 2.{step}")
        assert match is not None
        assert {name: match.line[slice(*span)] for name, span in match.spans.items()} == {
            "step": str(step),
            "loss": f"2.{step}",
        }
    assert expression.searches == 1
    assert found.find("step 100") is not None
    assert found.find("no number here") is None
    assert found.find("no number here") is None
    assert expression.searches == 3


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("step 0/100", "step 5/100"),
        ("0 | 5/100", "5 | 0/100"),
        ("loss_1 2.0", "loss_2 2.0"),
        ("20241103-102233 a", "20241103-992233 a"),
        ("1731000000 a", "9731000000 a"),
    ],
)
def test_digits_that_an_expression_may_ask_for_make_another_shape(one: str, other: str) -> None:
    found, expression = search("x")
    for line in (one, other, one, other):
        found.find(line)
    assert expression.searches == 2


def test_lines_of_which_none_is_alike_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_search, "MANY_SHAPES", 10)
    found, expression = search(r"step(?P<step>\d+)")
    for step in (*range(100, 150), *range(100, 150)):
        match = found.find(f"step{step}")
        assert match is not None
        assert match.line[slice(*match.spans["step"])] == str(step)
    assert expression.searches == 90

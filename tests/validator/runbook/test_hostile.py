"""Whatever the file holds, the answer is a runbook or a list of problems: never a traceback, never a long wait."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from validator.kinds.registry import loads
from validator.runbook import Problem, RunbookError, available

QUICK = settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])

KEYS = st.sampled_from(
    (
        *("id", "kind", "steps", "needs", "accept", "over", "choose", "arms", "env", "args", "phases", "trainer"),
        *("metrics", "hardware", "defaults", "watchdog", "expr", "name", "schema", "run", "targets", "stdout", "x"),
    )
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10**30),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(["train", "sweep", "ab", "a", "loss.last < 3", "30m", "{out}", "{x}", "(", "env.X"]),
)
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=25
)
SHIPPED = [info.path.read_text(encoding="utf-8") for info in available()]


def problems(text: str, *overrides: str) -> tuple[Problem, ...]:
    try:
        loads(text, file="f", overrides=overrides)
    except RunbookError as error:
        return error.problems
    return ()


def answer(text: str) -> None:
    for problem in problems(text):
        assert problem.message.strip()
        assert problem.file == "f"


@QUICK
@given(TREES)
def test_any_tree(tree: Any) -> None:
    answer(yaml.safe_dump(tree, allow_unicode=True))


@QUICK
@given(st.lists(st.tuples(KEYS, TREES), max_size=4), TREES)
def test_any_phase(fields: list[tuple[str, Any]], phase: Any) -> None:
    phases = [{"id": "a", "kind": "sweep", "steps": 30, **dict(fields)}, phase]
    answer(yaml.safe_dump({"schema": 1, "name": "x", "phases": phases}, allow_unicode=True))


@QUICK
@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    answer(text)


@QUICK
@given(st.sampled_from(SHIPPED), st.integers(0, 10**6), st.integers(0, 60), st.text(max_size=3))
def test_a_sound_runbook_with_a_piece_cut_out(text: str, start: int, length: int, insert: str) -> None:
    start %= len(text)
    answer(text[:start] + insert + text[start + length :])


@QUICK
@given(st.text(max_size=40))
def test_any_override(override: str) -> None:
    for problem in problems(SHIPPED[0], override, f"baseline.{override}"):
        assert problem.file.startswith("--set ")


@pytest.mark.parametrize("pattern", ["A100|[[0-9]", "[a--b]", "[0-9&&5]", "(", "(?:a){99999999999}"])
def test_a_pattern_that_is_none_or_means_two_things_is_refused(pattern: str) -> None:
    """Python warns of sets that later versions may read otherwise; a warning is no answer, and may be an error."""
    phases = [{"id": "a", "kind": "command", "run": "true", "stdout": pattern}]
    book = {"schema": 1, "name": "x", "hardware": {"gpus": 1, "name": pattern}, "phases": phases}
    book["trainer"] = {"command": ["t.py"], "metrics": {"stdout": f"(?P<step>x){pattern}"}}
    found = [one.message for one in problems(yaml.safe_dump(book))]
    assert sum("is not a regular expression" in one for one in found) == 3, found

"""`--set KEY=VALUE`: what it reaches, and what it says when it reaches nothing."""

from __future__ import annotations

from typing import Any

import pytest

from validator.kinds.registry import loads
from validator.model.runbook import Runbook
from validator.runbook import RunbookError

TEXT = """schema: 1
name: test
defaults: &d {timeout: 30m, env: &e {A: 1}}
phases:
  - id: base
    kind: train
    steps: 50
    env: *e
    accept: [loss.last < 3]
  - id: buckets
    kind: sweep
    steps: 50
    env: *e
    over: {env.X: [1, 2]}
    choose: {highest: toks_per_s.mean}
"""


def with_set(*overrides: str) -> Runbook:
    return loads(TEXT, file="f", overrides=overrides)


def refused(override: str) -> str:
    with pytest.raises(RunbookError) as raised:
        with_set(override)
    (problem,) = raised.value.problems
    assert problem.file == f"--set {override}"
    return f"{problem.message} | {problem.fix}"


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("defaults.timeout=5m", ("defaults", "timeout"), 300.0),
        ("hardware.gpus=2", ("hardware", "gpus"), 2),
        ("phases.base.steps=60", ("phases", 0, "steps"), 60),
        ("base.steps=60", ("phases", 0, "steps"), 60),
        ("phases[1].steps=60", ("phases", 1, "steps"), 60),
        ("base.title=a: b = c".replace(": ", ":"), ("phases", 0, "title"), "a:b = c"),
        ("base.needs=[]", ("phases", 0, "needs"), ()),
        ("defaults.watchdog.stall=5m", ("defaults", "watchdog", "stall"), 300.0),
        ("base.watchdog.stall=5m", ("phases", 0, "watchdog", "stall"), 300.0),
        ("base.accept[0]=loss.last < 9", ("phases", 0, "accept", 0, "expr"), "loss.last < 9"),
        ("base.accept[1]=loss.last < 9", ("phases", 0, "accept", 1, "expr"), "loss.last < 9"),
        ("base.accept[0].required=false", ("phases", 0, "accept", 0, "required"), False),
        ("base.env.B=yes", ("phases", 0, "env", "B"), "yes"),
        ("buckets.over.env.X=[3, 4, 5]", ("phases", 1, "over", "env.X"), (3, 4, 5)),
        ("buckets.choose.adopt=true", ("phases", 1, "choose", "adopt"), True),
        ("title=", ("title",), None),
    ],
)
def test_a_value_is_replaced(override: str, path: tuple[str | int, ...], value: Any) -> None:
    found: Any = with_set(override)
    for step in path:
        found = found[step] if isinstance(step, int) or isinstance(found, dict) else getattr(found, step)
    assert found == value


def test_the_text_of_a_criterion_is_kept_when_its_flag_is_set() -> None:
    assert with_set("base.accept[0].required=false").phases[0].accept[0].expr == "loss.last < 3"


def test_later_overrides_win_and_shared_parts_stay_apart() -> None:
    runbook = with_set("base.env.A=2", "base.env.A=3")
    base, buckets = runbook.phases
    assert base.env == {"A": 3}  # type: ignore[union-attr]
    assert buckets.env == {"A": 1} == runbook.defaults.env, "an alias is one text, but not one value"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("base.stepss=3", "there is no key stepss in phases.base | did you mean steps?"),
        ("bas.steps=3", "neither a key nor a phase called bas | did you mean base?"),
        ("phases.bas.steps=3", "there is no phase called bas | did you mean base?"),
        ("default.timeout=5m", "neither a key nor a phase called default | did you mean defaults?"),
        ("defaults.timeot=5m", "there is no key timeot in defaults | did you mean timeout?"),
        (
            "base.accept[5]=x",
            "phases.base.accept has 1 entries, counted from 0 | write phases.base.accept[1] to append",
        ),
        ("base.steps.x=3", "phases.base.steps has no keys"),
        ("base.steps[0]=3", "phases.base.steps is not a list"),
        ("base.steps", "an override is written KEY=VALUE"),
        ("=3", "an override is written KEY=VALUE"),
        ("base..steps=3", "is not a path"),
        ("base.steps=many", "phases.base.steps is 'many'; it must be a whole number"),
        ("base.steps=[1", "not valid YAML"),
        ("defaults.timeout=5", "defaults.timeout: duration 5 has no unit | write 5s, 5m or 5h"),
        ("base.accept[0]=los.last < 3", "there is no metric called los | did you mean loss?"),
    ],
)
def test_a_wrong_override_is_named_with_the_nearest_right_one(override: str, message: str) -> None:
    assert message in refused(override)


def test_problems_of_the_file_and_of_overrides_come_together() -> None:
    with pytest.raises(RunbookError) as raised:
        loads(TEXT.replace("name: test", "nam: test"), file="f", overrides=["base.stepss=3"])
    assert [problem.file for problem in raised.value.problems] == ["f", "--set base.stepss=3"]

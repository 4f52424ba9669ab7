"""A runbook that asks for nothing decides nothing: what carries a GO, what does not, and what `check` says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from validator.kinds.registry import asks, load, loads, unasked
from validator.runbook import RunbookError
from validator.runbook.asking import idle

Tree = dict[str, Any]


def train(name: str = "a", **more: Any) -> Tree:
    return {"id": name, "kind": "train", "steps": 900, **more}


def weak(text: str, **more: Any) -> str | None:
    """Why a criterion of a train phase carries no GO."""
    book = loads(yaml.safe_dump({"schema": 1, "name": "t", "phases": [train("first"), train("here", accept=[text])]}))
    phase = book.phase("here")
    return idle(phase.accept[0].model_copy(update=more), phase, book)


def test_an_open_bound_carries_nothing_and_is_warned_of(tmp_path: Path) -> None:
    assert weak("toks_per_s.mean >= ?") == "has no bound yet"
    path = tmp_path / "open.yaml"
    accept = ["loss.last < loss.first", "toks_per_s.mean >= ? tok/s"]
    path.write_text(yaml.safe_dump({"schema": 1, "name": "t", "phases": [train(accept=accept)]}))
    (warning,) = load(path).warnings
    assert warning.message == "the bound of `toks_per_s.mean >= ? tok/s` is open, so the decision cannot be GO"


def test_only_a_bound_on_one_side_can_be_open() -> None:
    with pytest.raises(RunbookError, match="an open bound follows >=, >, <= or <, not =="):
        loads(yaml.safe_dump({"schema": 1, "name": "t", "phases": [train(accept=["steps.done == ?"])]}))


@pytest.mark.parametrize(
    "text",
    [
        "toks_per_s.mean >= 39",
        "39 <= toks_per_s.mean",
        "toks_per_s.min >= 10",
        "toks_per_s.p50 >= 10",
        "toks_per_s.min >= 0.5 * toks_per_s.max",
        "toks_per_s.max <= 2 * toks_per_s.mean",
        "toks_per_s.mean >= 0.9 * first.toks_per_s.mean",
        "step_time_s.max <= 5",
        "step_time_s.p99 <= 5",
        "step_time_s.cv <= 0.1",
        "loss.last < loss.first",
        "loss.max <= 8",
        "grad_norm.min > 0",
        "gpu_mem_reserved_mib.max <= 73700",
        "effective.seq_len == 2048",
        "heartbeat.max_gap_s <= 60",
        "outcome.duration_s <= 600",
        "abs(rate.drift_pct) <= 5",
    ],
)
def test_a_bound_on_what_the_phase_measures_carries(text: str) -> None:
    trainer = {"hardware": {"gpus": 2}}
    book = loads(
        yaml.safe_dump({"schema": 1, "name": "t", **trainer, "phases": [train("first"), train("here", accept=[text])]})
    )
    phase = book.phase("here")
    assert idle(phase.accept[0], phase, book) is None
    assert idle(phase.accept[0].model_copy(update={"required": False}), phase, book) == "is not required"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("toks_per_s.max >= 39", "best moment"),
        ("39 < toks_per_s.max", "best moment"),
        ("2 * toks_per_s.p99 - 5 >= 39", "best moment"),
        ("toks_per_s.max >= 0.9 * toks_per_s.mean", "best moment"),
        ("step_time_s.min <= 5", "best moment"),
        ("max(step_time_s.min, 2) <= 5", "best moment"),
        ("first.toks_per_s.mean >= 39", "not about what this phase measures"),
        ("last_go.toks_per_s.mean >= 39", "not about what this phase measures"),
        ("steps.done == 900", "asked anyway"),
        ("outcome.rc == 0", "asked anyway"),
        ("requested.seq_len == 2048", "asked anyway"),
        ("toks_per_s.n >= 10", "asked anyway"),
    ],
)
def test_what_cannot_fail_on_what_the_phase_measures_does_not(text: str, words: str) -> None:
    assert words in str(weak(text))


def book(*phases: Tree, **top: Any) -> Any:
    return loads(yaml.safe_dump({"schema": 1, "name": "t", **top, "phases": list(phases)}))


def test_kinds_ask_by_what_they_are() -> None:
    sweep = {"kind": "sweep", "over": {"env.X": [1, 2]}, "choose": {"highest": "toks_per_s.mean"}}
    for phase, carries, forbids in (
        ({"id": "a", "kind": "preflight"}, False, False),
        ({"id": "a", "kind": "preflight", "probe": True}, False, False),
        ({"id": "a", "kind": "preflight", "packages": ["numpy"]}, True, False),
        ({"id": "a", "kind": "pytest", "targets": ["x"]}, True, False),
        ({"id": "a", "kind": "command", "run": "true"}, False, False),
        ({"id": "a", "kind": "command", "run": "true", "accept": ["outcome.rc == 0"]}, True, False),
        (train(), False, True),
        (train(observe=True), False, False),
        (train(log_contains=["compression on"]), True, False),
        (train(kind="soak"), False, True),
        (train(**sweep), False, False),
        (train(**sweep, accept=["loss.last < loss.first"]), True, False),
        (train(kind="profile", profile_steps=4), False, False),
        (train(kind="profile", profile_steps=4, ranges=["nsa.cmp"]), True, False),
        (train(kind="audit"), True, False),
        (train(kind="data"), True, False),
    ):
        made = book(phase)
        assert asks(made.phases[0], made) is carries, phase
        assert (unasked(made.phases[0], made) is not None) is forbids, phase


def test_check_says_so_with_place_and_fix(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(
        "schema: 1\nname: t\nphases:\n  - id: fast\n    kind: train\n    steps: 50\n"
        "    accept: [toks_per_s.max >= 39]\n  - {id: look, kind: command, run: 'true'}\n"
    )
    first, second = load(path).warnings
    assert (first.line, first.column) == (4, 9)
    assert "phase fast asks for nothing" in first.message
    assert "`toks_per_s.max >= 39` asks only for the best moment of the run" in first.message
    assert "observe: true" in first.fix
    assert second.line == 3
    assert "no required phase asks for anything" in second.message
    assert load(path, overrides=["fast.accept[0]=toks_per_s.mean >= 39"]).warnings == ()
    (last,) = load(path, overrides=["fast.observe=true", "fast.accept=[]"]).warnings
    assert last.message == second.message


def test_a_phase_that_observes_asks_for_nothing_required() -> None:
    with pytest.raises(RunbookError, match="declared to observe, and has required criteria"):
        book(train(observe=True, accept=["loss.last < 3"]))
    followed = {"expr": "toks_per_s.mean >= 100", "required": False}
    assert book(train(observe=True, accept=[followed])).phases[0].observe

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


def warned(tmp_path: Path, *accept: object, kind: str = "train", **more: Any) -> list[str]:
    """What `check` says of criteria of a phase, as `message | fix`."""
    path = tmp_path / "way.yaml"
    trainer = {"command": ["-m", "nsa.train"], "metrics": {"csv": "a.csv", "extra": {"own": "x", "good": BETTER}}}
    phases = [train("first", accept=["loss.last < 3"]), train("here", kind=kind, accept=list(accept))]
    path.write_text(yaml.safe_dump({"schema": 1, "name": "t", "trainer": trainer, "phases": phases, **more}))
    return [f"{one.message} | {one.fix}" for one in load(path).warnings if one.message.startswith("`")]


BETTER = {"unit": "%", "better": "higher"}


@pytest.mark.parametrize(
    ("text", "turned", "accepts"),
    [
        ("toks_per_s.mean <= 15000 tok/s", "toks_per_s.mean >= 15000 tok/s", "any lower toks_per_s.mean"),
        ("15000 >= toks_per_s.mean", "15000 <= toks_per_s.mean", "any lower toks_per_s.mean"),
        ("toks_per_s.mean <= ?", "toks_per_s.mean >= ?", "any lower toks_per_s.mean"),
        ("loss.last > 0.7 * loss.first", "loss.last < 0.7 * loss.first", "any higher loss.last"),
        ("loss.last / loss.first >= 0.7", "loss.last / loss.first <= 0.7", "any higher loss.last"),
        ("loss.first - loss.last < 0.1", "loss.first - loss.last > 0.1", "any higher loss.last"),
        ("-1 * toks_per_s.mean >= -15000", "-1 * toks_per_s.mean <= -15000", "any lower toks_per_s.mean"),
        ("step_time_s.p95 >= 0.1", "step_time_s.p95 <= 0.1", "any higher step_time_s.p95"),
        ("good.mean <= 90 %", "good.mean >= 90 %", "any lower good.mean"),
        (
            "toks_per_s.mean <= 0.9 * last_go.toks_per_s.mean",
            "toks_per_s.mean >= 0.9 * last_go.toks_per_s.mean",
            "any lower toks_per_s.mean",
        ),
    ],
)
def test_a_bound_the_wrong_way_round_is_warned_of_and_carries_no_go(
    text: str, turned: str, accepts: str, tmp_path: Path
) -> None:
    (said,) = warned(tmp_path, text, "grad_norm.max < 100")
    assert f"`{text}` accepts {accepts}" in said
    assert f"| write {turned}, or add the " in said
    assert warned(tmp_path, turned, "grad_norm.max < 100") == []
    meant = {"expr": text, "why": "a limiter is tested"}
    assert warned(tmp_path, meant, "grad_norm.max < 100") == []
    assert warned(tmp_path, {"expr": text, "required": False}, "grad_norm.max < 100") == []


@pytest.mark.parametrize(
    "accept",
    [
        ["toks_per_s.mean >= 100", "toks_per_s.mean <= 1000000"],
        ["toks_per_s.p50 >= 100", "toks_per_s.max <= 1000000"],
        ["toks_per_s.mean >= 100", "step_time_s.min >= 0.0001"],
        ["loss.last <= 3", "loss.last >= 0.5"],
        ["loss.last <= 3", "loss.min >= 0.5"],
        ["toks_per_s.max <= 2 * toks_per_s.mean"],
        ["toks_per_s.mean <= 0.9 * first.toks_per_s.mean"],
        ["first.toks_per_s.mean >= 1.8 * toks_per_s.mean"],
        ["-1 * toks_per_s.mean <= -15000"],
        ["abs(loss.last - loss.first) <= 0.1"],
        ["toks_per_s.cv <= 0.1", "loss.first >= 2", "grad_norm.min > 0.1"],
        ["own.mean <= 90", "own.mean >= 1"],
        ["own.mean <= 90"],
        ["gpu_mem_reserved_mib.max >= 1000", "gpu_power_w.mean >= 100 W"],
    ],
)
def test_bounds_that_may_be_meant_are_not_warned_of(accept: list[str], tmp_path: Path) -> None:
    assert warned(tmp_path, *accept, hardware={"gpus": 1}) == []


def test_a_bound_on_the_largest_loss_is_not_the_other_side_of_one_on_the_last(tmp_path: Path) -> None:
    (said,) = warned(tmp_path, "loss.max < 20", "loss.last > 0.7 * loss.first")
    assert "accepts any higher loss.last" in said


def test_a_cost_is_better_when_it_is_lower(tmp_path: Path) -> None:
    price = {"gpus": 1, "price_per_gpu_hour": 2, "currency": "EUR"}
    (said,) = warned(tmp_path, "cost.per_million_tokens >= 0.05 EUR", hardware=price)
    assert "accepts any higher cost.per_million_tokens, and lower is better" in said


def test_a_bound_on_the_good_side_carries_no_go() -> None:
    assert weak("toks_per_s.mean <= 39") == "accepts any lower toks_per_s.mean, and higher is better"
    assert weak("toks_per_s.mean <= 39", why="a limiter is tested") is None

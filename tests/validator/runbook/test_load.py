"""Everything that is wrong is reported at once, where it is, in words, with the fix."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from validator.kinds.registry import load, loads
from validator.runbook import RunbookError

HEAD = "schema: 1\nname: test\n"
SOUND = HEAD + "phases:\n  - {id: a, kind: train, steps: 50, accept: [loss.last < loss.first]}\n"


def problems(text: str, *overrides: str) -> list[str]:
    """`line:column: message | fix` of each problem."""
    with pytest.raises(RunbookError) as raised:
        loads(text, file="f", overrides=overrides)
    return [f"{p.place.removeprefix('f:')}: {p.message} | {p.fix}" for p in raised.value.problems]


def train(body: str, *, head: str = "") -> str:
    """A runbook of one training phase; `body` is the rest of it, from line 7 on when `head` is empty."""
    return f"{HEAD}{head}phases:\n  - id: a\n    kind: train\n    steps: 50\n{body}"


def test_a_sound_runbook_keeps_its_source(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + SOUND.replace("\n", "\r\n").encode())
    loaded = load(file, overrides=["a.steps=60"])
    assert loaded.runbook.phases[0].id == "a"
    assert loaded.runbook.phase("a").steps == 60  # type: ignore[union-attr]
    assert loaded.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert loaded.overrides == ("a.steps=60",)
    assert (loaded.written_steps, load(file).written_steps) == ({"a": 50}, {})
    assert loaded.text.startswith("schema: 1")


def test_five_different_mistakes_are_reported_at_once() -> None:
    text = """schema: 1
name: five
defaults: {timeout: 30}
phases:
  - id: a
    kind: train
    needs: [b]
    steps: many
    acept: []
  - id: b
    kind: train
    needs: [a]
    steps: 30
    accept: [tok_per_s.mean >= 39]
"""
    assert problems(text) == [
        "3:21: defaults.timeout: duration 30 has no unit | write 30s, 30m or 30h",
        "7:13: the needs of phases form a cycle: a → b → a | remove b from the needs of a",
        "8:12: phases.a.steps is 'many'; it must be a whole number | "
        "write steps as a whole number, in digits and without quotes",
        "9:5: unknown key acept in phases.a | did you mean accept?",
        "14:14: there is no metric called tok_per_s | did you mean toks_per_s?",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "1:1: the file is empty"),
        ("# nothing\n", "1:1: the file is empty"),
        ("- a\n", "1:1: a runbook is a mapping"),
        ("schema: 2\nname: x\nphases: [{id: a, kind: preflight}]\n", "1:9: schema is 2; this version reads schema 1"),
        ("name: x\nphases: [{id: a, kind: preflight}]\n", "1:1: the runbook has no schema, which is required"),
        (HEAD, "1:1: the runbook has no phases, which is required"),
        (HEAD + "phases: []\n", "3:9: phases has 0 entries; it needs at least 1"),
        ("schema: 1\nname: My Runbook\nphases: [{id: a, kind: preflight}]\n", "2:7: name is 'My Runbook'"),
        (HEAD + "phases: [{id: A-1, kind: preflight}]\n", "3:15: phases.A-1.id is 'A-1', which is not a valid id"),
        (HEAD + "phases: [{kind: preflight}]\n", "3:10: phases[0] has no id, which is required"),
        (HEAD + "phases: [{id: a}]\n", "3:10: phases.a has no kind, which is required"),
        (HEAD + "phases: [{id: a, kind: trian, steps: 30}]\n", "3:24: phases.a.kind is 'trian', which is not a kind"),
        (HEAD + "phases: [{id: a, kind: train}]\n", "3:10: phases.a has no steps, which is required"),
        (
            HEAD + "defaults: {timeout: 0s}\nphases: [{id: a, kind: train, steps: 5}]\n",
            "3:21: defaults.timeout is '0s'; it must be greater than 0",
        ),
        (HEAD + "phases: [{id: a, kind: train, steps: true}]\n", "3:38: phases.a.steps is true; it must be a whole"),
        (HEAD + "phases: [{id: a, kind: train, steps: '5'}]\n", "3:38: phases.a.steps is '5'; it must be a whole"),
        (HEAD + "phases: [{id: a, kind: train, steps: 0}]\n", "3:38: phases.a.steps is 0; it must be at least 1"),
        (HEAD + "phases: [{id: a, kind: preflight, needs: b}]\n", "3:42: phases.a.needs is 'b'; it must be a list"),
        (HEAD + "phases: [a]\n", "3:10: phases[0] is 'a'; it must be a mapping"),
        (HEAD + "phases: {a: 1}\n", "3:9: phases is a mapping; it must be a list"),
        (HEAD + "hardware: 2\nphases: [{id: a, kind: preflight}]\n", "3:11: hardware is 2; it must be a mapping"),
        (HEAD + "hardware: {gpus: -1}\nphases: [{id: a, kind: preflight}]\n", "3:18: hardware.gpus is -1; it must be"),
        (HEAD + "hardware: {name: '['}\nphases: [{id: a, kind: preflight}]\n", "3:18: name '[' is not a regular"),
        (HEAD + "hardware: {disk_free: 5}\nphases: [{id: a, kind: preflight}]\n", "3:23: hardware.disk_free: size"),
        (HEAD + "hardware: {interconnect: pci}\nphases: [{id: a, kind: preflight}]\n", "3:26: hardware.interconnect"),
        (train("    args: {x: [1]}\n"), "7:15: phases.a.args.x is a list; it must be text, a number, true or false"),
        (train("    env: {X: }\n"), "7:14: phases.a.env.X is empty; it must be text, a number"),
        (train("    env: [A=1]\n"), "7:10: phases.a.env is a list; it must be a mapping"),
        (
            train("    over: {env.A: [1, 2]}\n"),
            "7:5: unknown key over in phases.a | over belongs to phases of kind sweep",
        ),
        (train("    accept: [{exp: loss.last < 1}]\n"), "7:15: unknown key exp in phases.a.accept[0]"),
        (train("    accept: [{required: false}]\n"), "7:14: phases.a.accept[0] has no expr, which is required"),
        (train("    accept: [5]\n"), "7:14: phases.a.accept[0] is 5; it must be a mapping"),
        (train("    why: [1]\n"), "7:10: phases.a.why is a list; it must be text"),
        (train("    required: maybe\n"), "7:15: phases.a.required is 'maybe'; it must be true or false"),
        (train("    watchdog: {stall: 30}\n"), "7:23: phases.a.watchdog.stall: duration 30 has no unit"),
        (
            train("    watchdog: {stall_factor: 0.5}\n"),
            "7:30: phases.a.watchdog.stall_factor is 0.5; it must be greater",
        ),
        (train("    accept: [{expr: loss.last < 1, why: it must, really}]\n"), "7:50: unknown key really"),
        (
            HEAD + "phases: [{id: a, kind: command, run: {x: 1}}]\n",
            "3:38: phases.a.run is a mapping; it must be a shell",
        ),
        (HEAD + "phases: [{id: a, kind: command, run: ' '}]\n", "3:38: run of phase a is empty"),
        (HEAD + "phases: [{id: a, kind: command, run: x, stdout: '('}]\n", "3:49: stdout of phase a is not a regular"),
        (HEAD + "phases: [{id: a, kind: pytest, targets: []}]\n", "3:41: phases.a.targets has 0 entries"),
        (HEAD + "trainer: {command: []}\nphases: [{id: a, kind: preflight}]\n", "3:20: trainer.command is empty"),
        (HEAD + "trainer: {metrics: {stdout: 'x'}}\nphases: [{id: a, kind: preflight}]\n", "3:29: stdout has no group"),
        (
            HEAD + "phases: [{id: a, kind: preflight}, {id: a, kind: preflight}]\n",
            "3:41: two phases are called a, first in line 3",
        ),
        (
            HEAD + "phases: [{id: a, kind: sweep, steps: 30, over: {NAME: [1, 2]}, choose: {highest: loss.last}}]\n",
            "3:48: over has 'NAME' | write env.NAME or args.NAME",
        ),
        (
            HEAD + "phases: [{id: a, kind: sweep, steps: 30, over: {env.A: [1]}, choose: {highest: loss.last}}]\n",
            "3:48: over.env.A needs at least two different values",
        ),
        (
            HEAD + "phases: [{id: a, kind: sweep, steps: 40, over: {env.A: [1, 2]}, choose: {}}]\n",
            "3:73: choose needs exactly one of `highest` and `lowest`",
        ),
        (
            HEAD + "phases: [{id: a, kind: ab, steps: 30, arms: {A: {}, b: {}}, choose: {highest: loss.last}}]\n",
            "3:46: A is not a valid name in phases.a.arms",
        ),
        (
            HEAD + "phases: [{id: a, kind: ab, steps: 30, arms: {a: {}, b: {}}, choose: {highest: loss.last}}]\n",
            "3:45: the arms a and b are the same",
        ),
    ],
)
def test_one_mistake_is_one_problem(text: str, expected: str) -> None:
    found = problems(text)
    assert len(found) == 1, found
    assert found[0].startswith(expected)
    assert not found[0].endswith("| "), "every problem has a fix"


def test_no_message_speaks_of_the_schema_library() -> None:
    text = train("    args: {x: [1]}\n    needs: {}\n    nproc: two\n    env: 3\n    repeats: 1.5\n    title: {}\n")
    for problem in problems(text):
        assert "Input" not in problem
        assert "valid integer" not in problem
        assert "pydantic" not in problem.lower()


def test_problems_follow_the_order_of_the_file() -> None:
    found = problems(train("    nproc: two\n    accept: [los.last < 1]\n    extra: 1\n", head="titel: x\n"))
    lines = [int(problem.split(":")[0]) for problem in found]
    assert lines == sorted(lines) == [3, 8, 9, 10]


def test_a_repair_never_makes_noise_of_its_own() -> None:
    """What follows from a value that was already reported is not reported again."""
    assert len(problems(train("    accept: [toks_per_s.mean > 1]\n").replace("steps: 50", "steps: many"))) == 1
    assert len(problems(train("    accept: [gpu_mem_alloc_mib.max < 5]\n", head="hardware: {gpus: two}\n"))) == 1
    broken_trainer = "trainer: {metrics: {stdout: '('}}\n"
    assert len(problems(train("    accept: [toks_per_s.mean > 1]\n", head=broken_trainer))) == 1
    unknown_kind = HEAD + "phases:\n  - {id: a, kind: xyz}\n  - {id: b, kind: preflight, needs: [a]}\n"
    assert len(problems(unknown_kind)) == 1
    bad_id = HEAD + "phases:\n  - {id: A, kind: preflight}\n  - {id: b, kind: preflight, needs: [a]}\n"
    assert any("phases.A.id" in problem for problem in problems(bad_id))


def test_an_unreadable_file_says_why(tmp_path: Path) -> None:
    with pytest.raises(RunbookError, match="cannot be read: no such file"):
        load(tmp_path / "none.yaml")
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"schema: 1\nname: caf\xe9\n")
    with pytest.raises(RunbookError, match=r"latin\.yaml:2:10: byte 0xe9 is not UTF-8"):
        load(latin)


def test_a_shared_part_is_reported_where_it_is_written_once() -> None:
    text = HEAD + ("phases:\n  - &base {id: a, kind: train, steps: 0}\n  - {<<: *base, id: b}\n")
    found = problems(text)
    assert [problem.split(": ")[0] for problem in found] == ["4:39", "4:39"]
    assert "phases.a.steps" in found[0]
    assert "phases.b.steps" in found[1]


@pytest.mark.parametrize(
    ("written", "fix"),
    [
        ("phases: [{id: a, kind: train, steps: '120'}]", "write steps: 120, without quotes"),
        ("phases: [{id: a, kind: train, steps: 1e3}]", "write steps: 1000"),
        ("phases: [{id: a, kind: train, steps: '1,500'}]", "write steps: 1500, without quotes"),
        ("phases: [{id: a, kind: train, steps: 2k}]", "write steps: 2000, without quotes"),
        ("phases: [{id: a, kind: train, steps: no}]", "write steps as a whole number, in digits and without quotes"),
        ("hardware: {price_per_gpu_hour: '2,5'}", "write price_per_gpu_hour: 2.5, without quotes"),
        ("hardware: {currency: $}", "write it in letters, such as currency: USD"),
        (
            "trainer: {command: 'toy.py --steps {steps} \"a b\"'}",
            "write command: [toy.py, --steps, '{steps}', 'a b']",
        ),
        ("phases: [{id: a, kind: train, steps: 30, needs: b}]", "write needs: [b]"),
        ("trainer: {metrics: {stdout: '({step}'}}", "escape special characters with \\"),
        ("hardware: {name: '('}", "escape special characters with \\"),
    ],
)
def test_a_fix_holds_the_value_that_was_written_or_its_kind(written: str, fix: str) -> None:
    text = HEAD + written + "\n" + ("" if written.startswith("phases") else "phases: [{id: a, kind: preflight}]\n")
    (said,) = problems(text)
    assert said.endswith(f" | {fix}")


@pytest.mark.parametrize(
    ("written", "fix"),
    [
        *((word, "write required: false, without quotes") for word in ('"false"', "no", "off", "0", '"0"', "'No'")),
        *((word, "write required: true, without quotes") for word in ('"true"', "yes", "on", "1")),
        ("maybe", "write required: true or required: false"),
    ],
)
def test_a_text_is_neither_true_nor_false(written: str, fix: str) -> None:
    (said,) = problems(train(f"    accept: [{{expr: loss.last < 3, required: {written}}}]\n"))
    assert said.endswith(f"it must be true or false | {fix}")


@pytest.mark.parametrize(
    ("criterion", "fix"),
    [
        ("toks_per_s.mean >= 15k tok/s", "write toks_per_s.mean >= 15000 tok/s"),
        ("toks_per_s.mean >= 15k", "write 15000"),
        ("toks_per_s.mean >= 15,000 tok/s", "write toks_per_s.mean >= 15000 tok/s"),
        ("loss.last <= 2,5", "write loss.last <= 2.5"),
        ("toks_per_s.mean => 15000", "write >="),
        ("loss.last =< 3", "write <="),
        ("outcome.rc = 0", "write >=, <= or =="),
        ("cost.per_million_tokens <= 2 USD", "declare hardware.currency: USD, or leave the unit out"),
    ],
)
def test_a_criterion_that_cannot_be_read_is_written_out(criterion: str, fix: str) -> None:
    priced = "hardware: {price_per_gpu_hour: 2.5}\n"
    (said,) = problems(train(f'    accept: ["{criterion}"]\n').replace("phases:", priced + "phases:"))
    assert said.endswith(f" | {fix}")

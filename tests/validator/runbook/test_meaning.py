"""Semantic checks: names that must exist, values that must fit together. Each with a sound twin."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.validator.runbook.trees import Tree, check
from validator.kinds.registry import loads
from validator.runbook import RunbookError


def phase(name: str = "a", **more: Any) -> Tree:
    return {"id": name, "kind": "train", "steps": 50, **more}


def sweep(**more: Any) -> Tree:
    return phase(kind="sweep", over={"env.X": [1, 2]}, choose={"highest": "toks_per_s.mean"}, **more)


def criterion(text: str, **more: Any) -> list[str]:
    top = {key: more.pop(key) for key in ("hardware", "trainer", "defaults") if key in more}
    return check(phase("first"), phase("here", accept=[text], **more), phase("later"), **top)


@pytest.mark.parametrize(
    "text",
    [
        "toks_per_s.mean >= 39",
        "toks_per_s.mean >= 39 tok/s",
        "toks_per_s.mean >= 0.9 * first.toks_per_s.mean",
        "loss.last < loss.first",
        "abs(loss.last - first.loss.last) <= 1e-4",
        "max(step_time_s.max, 2) < 5 * step_time_s.p50 s",
        "step_time_s.cv < 0.1",
        "outcome.duration_s < 300 s",
        "effective.dtype == 'bf16'",
        "effective.seq_len == 2048",
        "metrics.anything > 3",
        "steps.done == 50",
        "rate.drift_pct <= 5 %",
        "here.loss.last < 3",
        "-loss.last < 0",
    ],
)
def test_sound_criteria_pass(text: str) -> None:
    assert criterion(text) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tok_per_s.mean >= 39", "there is no metric called tok_per_s | did you mean toks_per_s?"),
        ("toks_per_s.men >= 39", "men is not a statistic | did you mean mean?"),
        ("toks_per_s >= 39", "toks_per_s has 1 part, a measurement has two or three | write toks_per_s.mean"),
        ("outcome.duration < 3", "there is no outcome.duration | did you mean outcome.duration_s?"),
        ("later.loss.last < 3", "phase later runs after here"),
        ("fist.loss.last < 3", "there is no phase called fist | did you mean first?"),
        ("1 < 2", "criterion '1 < 2' names no measurement"),
        ("loss.last <", "expected a number or metric.statistic, found 'the end'"),
        ("loss.last = 3", "unexpected '=' in criterion"),
        ("loss.last", "expected one of >=, <=, ==, !=, >, <, found 'the end'"),
        ("''", "expected one of"),
        ("gpu_mem_alloc_mib.max < 5", "gpu_mem_alloc_mib is measured on a GPU, and hardware.gpus is 0"),
        ("step_time_s.mean < 50 ms", "the criterion is written in ms, but step_time_s.mean is in s | write 0.05 s"),
        ("loss.last < 3 tok/s", "the criterion is written in tok/s, but loss.last is in nat"),
        ("step_time_s.cv < 3 s", "the criterion is written in s, but step_time_s.cv is a plain number"),
        ("toks_per_s.mean > loss.last", "compares tok/s with nat"),
        ("loss.last == 'low'", "loss.last is a number and is compared with the text 'low'"),
        ("scaling.efficiency > 0.9", "scaling.efficiency can never be known: phase here is not compared with another"),
        ("straggler.score > 0.7", "straggler.score can never be known: phase here has one process"),
        ("tests.passed > 1", "tests.passed is not known in a phase of kind train"),
        ("cost.planned_run < 9", "hardware.price_per_gpu_hour is not declared | declare hardware.price_per_gpu_hour"),
    ],
)
def test_a_criterion_that_could_never_be_judged_is_refused(text: str, message: str) -> None:
    found = criterion(text)
    assert len(found) == 1, found
    assert message in found[0]


def test_a_trainer_that_starts_its_own_ranks_has_a_straggler_score() -> None:
    own = {"command": ["t.py", "{steps}"], "metrics": {"csv": "t.csv", "heartbeat": "beat_{rank}.jsonl"}}
    assert criterion("straggler.score > 0.7", nproc=0, trainer=own) == []
    assert "one process" in criterion("straggler.score > 0.7", nproc=1, trainer=own)[0]


def test_metrics_must_have_a_source() -> None:
    stdout = {
        "command": ["t.py", "{steps}"],
        "args": {},
        "metrics": {"stdout": r"step (?P<step>\d+) loss (?P<loss>\S+)"},
    }
    assert criterion("loss.last < 3", trainer=stdout) == []
    assert (
        "toks_per_s can never be known: the trainer declares no source"
        in criterion("toks_per_s.mean > 3", trainer=stdout)[0]
    )
    assert "does not record its config" in criterion("effective.x == 3", trainer=stdout)[0]
    assert "declares no final metrics" in criterion("metrics.x == 3", trainer=stdout)[0]
    assert "declares no heartbeat" in criterion("heartbeat.max_gap_s < 3", trainer=stdout)[0]
    with_times = {**stdout, "metrics": {"stdout": "{step} {step_time_ms}"}}
    assert "declare trainer.tokens_per_step" in criterion("toks_per_s.mean > 3", trainer=with_times)[0]
    assert criterion("toks_per_s.mean > 3", trainer={**with_times, "tokens_per_step": 512}) == []
    with_rate = {**stdout, "metrics": {"stdout": r"(?P<step>\d+) (?P<toks_per_s>\S+) (?P<acc>\S+)"}}
    for text in ("toks_per_s_per_rank.mean > 3", "acc.last > 0.5", "rate.drift_pct < 3"):
        assert criterion(text, trainer=with_rate) == []


def test_declared_extra_metrics_exist_with_their_unit() -> None:
    trainer = {"metrics": {"csv": "t.csv", "extra": {"disk_wait_s": "s"}}}
    assert criterion("disk_wait_s.max < 3 s", trainer=trainer) == []
    assert "is in s" in criterion("disk_wait_s.max < 3 MiB", trainer=trainer)[0]


def test_what_other_kinds_of_phase_know() -> None:
    command = {"id": "c", "kind": "command", "run": "x", "stdout": r"rate (?P<rate>\S+)"}
    assert check({**command, "accept": ["metrics.rate > 3", "outcome.rc == 0"]}) == []
    assert "no `stdout` group called rat | did you mean rate?" in check({**command, "accept": ["metrics.rat > 3"]})[0]
    assert "measures no loss.last" in check({**command, "accept": ["loss.last > 3"]})[0]
    tests = {"id": "t", "kind": "pytest", "targets": ["x"], "accept": ["tests.passed >= 3", "tests.skipped == 0"]}
    assert check(tests) == []
    flight = {"id": "p", "kind": "preflight", "accept": ["loss.last < 3"]}
    assert "it has checks, not measurements" in check(flight)[0]


def test_a_steady_window_must_hold_half_of_the_steps() -> None:
    accept = ["toks_per_s.mean > 3", "loss.last < 5"]
    assert check(phase(steps=40, accept=accept)) == []
    (found,) = check(phase(steps=39, accept=accept))
    assert "less than half of the steps to be taken from: phase a has 39 steps" in found
    assert "set warmup_steps of a to 19 or less, or give it 40 steps" in found
    found = check(phase(steps=20, accept=accept))
    assert len(found) == 1
    assert "has no step to be taken from: phase a has 20 steps and warmup_steps is 20, from defaults" in found[0]
    assert check(phase(steps=20, warmup_steps=5, accept=accept)) == []
    assert "warmup_steps is 20" in check(sweep(steps=20))[0]


def test_a_percentile_of_few_rows_may_be_asked_for() -> None:
    """Rows that are all far from the bound decide it, and so do repeats."""
    assert check(phase(steps=40, accept=["step_time_s.p95 <= 2 * step_time_s.p50", "loss.p95 <= 3 nat"])) == []


def test_order_of_phases() -> None:
    assert check(phase("a"), phase("b", needs=["a"])) == []
    assert check(phase("a", needs=["b"]), phase("b")) == [
        "phase a needs b, which runs after it | move phase b in front of a"
    ]
    assert check(phase("base"), phase("b", needs=["bas"])) == [
        "phase b needs bas, which does not exist | did you mean base?"
    ]
    assert check(phase("a", needs=["a"])) == ["the needs of phases form a cycle: a → a | remove a from the needs of a"]
    long = check(phase("a", needs=["c"]), phase("b", needs=["a"]), phase("c", needs=["b"]))
    assert long == ["the needs of phases form a cycle: a → c → b → a | remove c from the needs of a"]


PRICE = {"price_per_gpu_hour": 2, "currency": "USD"}


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        ("cost.per_million_tokens <= 1 USD", {}, ""),
        ("cost.per_million_tokens <= 1 EUR", {}, "written in EUR, but cost.per_million_tokens is in USD"),
        ("cost.per_million_tokens >= 0", {}, "is never below 0"),
        (
            "cost.planned_run <= 900",
            {},
            "the length of the planned run is not declared | declare trainer.planned_tokens",
        ),
        ("cost.planned_run <= 900", {"trainer": {"planned_tokens": 10**9}}, ""),
        ("cost.planned_run <= 900", {"trainer": {"planned_steps": 10**4}}, ""),
        (
            "cost.planned_run <= 900",
            {"trainer": {"planned_steps": 9, "metrics": {"csv": "m.csv"}}},
            "nothing says how many tokens a planned step has | declare trainer.tokens_per_step",
        ),
        (
            "cost.per_million_tokens <= 1",
            {"trainer": {"metrics": {"stdout": "{step} {loss}"}}},
            "the trainer declares no source of toks_per_s",
        ),
        ("cost.per_million_tokens <= 1", sweep(), "exists in phases of kind train, soak"),
    ],
)
def test_a_cost_needs_a_price_a_rate_and_a_length(text: str, more: Tree, message: str) -> None:
    found = criterion(text, hardware=PRICE, **{**more, "id": "here"})
    assert len(found) == (1 if message else 0), found
    assert message in "".join(found)


def test_a_planned_run_has_one_length() -> None:
    (found,) = check(phase(), trainer={"planned_tokens": 5, "planned_steps": 5})
    assert "remove one of the two" in found


def test_scaling_needs_an_earlier_phase_of_more_processes() -> None:
    pair = phase("pair", nproc=2)
    accept = ["scaling.efficiency > 0.8"]
    assert check(pair, phase("one", nproc=0, scaling_against="pair", accept=accept)) == []
    assert "has 2 process(es) against 2" in check(pair, phase("one", nproc=2, scaling_against="pair"))[0]
    assert "names itself" in check(phase("one", scaling_against="one"))[0]
    assert "runs after it" in check(phase("one", scaling_against="pair"), pair)[0]
    assert "did you mean pair?" in check(pair, phase("one", nproc=0, scaling_against="pai"))[0]
    assert "without a rate" in check({"id": "p", "kind": "preflight"}, phase("one", scaling_against="p"))[0]


def test_processes_need_gpus() -> None:
    assert check(phase(nproc=2), hardware={"gpus": 2}) == []
    assert "starts 4 processes, but hardware.gpus is 2" in check(phase(nproc=4), hardware={"gpus": 2})[0]
    assert check(phase(nproc=4)) == [], "processes on the CPU are not bound to GPUs"


@pytest.mark.parametrize("text", ["{steps} {out}", "${HOME}/{phase}", "{{literal}}", '{"json": 1}', "{port}"])
def test_known_placeholders_and_other_braces_are_left_alone(text: str) -> None:
    assert check(phase(args={"x": text}, env={"Y": text})) == []


def test_unknown_placeholders_are_refused_wherever_they_are_filled_in() -> None:
    wrong = "{setps}"
    assert "there is no placeholder {setps} | did you mean steps?" in check(phase(args={"x": wrong}))[0]
    for tree in (
        {"trainer": {"command": ["x", wrong]}},
        {"trainer": {"cwd": wrong}},
        {"defaults": {"env": {"A": wrong}}},
    ):
        assert any("no placeholder {setps}" in problem for problem in check(phase(), **tree))
    assert "no placeholder {print}" in check({"id": "c", "kind": "command", "run": "awk {print}"})[0]
    assert (
        "{steps} has no value in a phase of kind command" in check({"id": "c", "kind": "command", "run": "{steps}"})[0]
    )


def test_a_setting_must_reach_the_runs() -> None:
    assert (
        "the launcher sets RANK itself"
        in check(phase(kind="sweep", over={"env.RANK": [0, 1]}, choose={"lowest": "loss.last"}))[0]
    )
    assert (
        "steps is set for each run"
        in check(phase(kind="sweep", over={"args.steps": [30, 40]}, choose={"lowest": "loss.last"}))[0]
    )
    hidden = phase(
        kind="sweep",
        over={"env.NSA_DDP_BUCKET_MB": [1, 2]},
        args={"ddp-bucket-mb": 25},
        choose={"lowest": "loss.last"},
    )
    assert "the command line wins | write args.ddp_bucket_mb here" in check(hidden)[0]
    assert "args.steps would be ignored" in check(phase(args={"steps": 9}))[0]
    assert check(phase(args={"steps": 9}), trainer={"command": ["t.py"], "args": {"o": "{out}"}}) == []


def test_a_foreign_trainer_must_be_told_where_to_write() -> None:
    assert "never given its output folder" in check(phase(), trainer={"command": ["t.py"], "args": {"n": 3}})[0]
    assert check(phase(), trainer={"command": ["t.py"]}) == [], "steps and out are passed by default"
    assert check(phase(env={"OUT": "{out}"}), trainer={"command": ["t.py"], "args": {}}) == []
    assert check(phase(), trainer={"command": ["t.py"], "args": {}, "cwd": "{out}"}) == []


def test_heartbeat_files_are_per_rank() -> None:
    assert "every rank would share one file" in check(phase(), trainer={"metrics": {"heartbeat": "beat.jsonl"}})[0]


def test_choose_names_a_series_of_its_own_phase() -> None:
    def choose(text: str) -> list[str]:
        return check(phase("first"), phase("s", kind="sweep", over={"env.X": [1, 2]}, choose={"highest": text}))

    assert choose("toks_per_s.mean") == []
    assert "no metric called tok" in choose("tok.mean")[0]
    assert "compares the arms of s | write highest: toks_per_s.mean" in choose("first.toks_per_s.mean")[0]
    assert "is outcome.rc, which is no series" in choose("outcome.rc")[0]
    assert "expected metric.statistic" in choose("2 * loss.last")[0]


def test_the_place_is_that_of_the_bad_word() -> None:
    text = (
        "schema: 1\nname: x\nphases:\n  - id: a\n    kind: train\n    steps: 50\n    accept:\n"
        "      - loss.last < 3\n      - {expr: 'loss.last < 2 * los.first', required: false}\n"
    )
    with pytest.raises(RunbookError) as raised:
        loads(text, file="book.yaml")
    assert [problem.place for problem in raised.value.problems] == ["book.yaml:9:33"]


@pytest.mark.parametrize(
    "text", ["torch", "torch>=2.6", "torch >= 2.6, <3", "nvidia-ml-py==12.*", "a[b]~=1.0", "x!=1.0+cu1"]
)
def test_packages_that_can_be_read(text: str) -> None:
    assert check({"id": "p", "kind": "preflight", "packages": [text]}) == []


@pytest.mark.parametrize("text", ["torch>>2", "torch 2.6", "torch>=", "", "-x", "torch>=2,", "a @ https://x"])
def test_packages_that_cannot(text: str) -> None:
    (found,) = check({"id": "p", "kind": "preflight", "packages": [text]})
    assert "cannot be read" in found


@pytest.mark.parametrize(
    ("command", "args"),
    [
        ("[train.py]", {"steps": "{steps}", "out": "{out}"}),
        ('[train.py, --max-steps, "{steps}"]', {"out": "{out}"}),
        ('[train.py, "{steps}", "--dir={out}"]', {}),
    ],
)
def test_a_trainer_is_told_once_how_long_and_where_to(command: str, args: dict[str, str]) -> None:
    text = f"schema: 1\nname: a\ntrainer: {{command: {command}}}\nphases: [{{id: a, kind: train, steps: 5}}]\n"
    assert loads(text).trainer.args == args


@pytest.mark.parametrize(
    ("metrics", "args"),
    [
        ({"stdout": r"(?P<step>\d+) (?P<loss>\S+)"}, {}),
        ({"stdout": r"(?P<step>\d+) (?P<loss>\S+)", "heartbeat": "beat{rank}.jsonl"}, {"out": "{out}"}),
        ({"csv": "log.csv"}, {"out": "{out}"}),
    ],
)
def test_a_trainer_that_only_prints_is_not_given_an_option_it_may_not_know(
    metrics: dict[str, str], args: dict[str, str]
) -> None:
    tree = {"schema": 1, "name": "a", "trainer": {"command": ["t.py", "{steps}"], "metrics": metrics}}
    assert loads(yaml.safe_dump({**tree, "phases": [phase()]})).trainer.args == args


@pytest.mark.parametrize(("steps", "problems"), [(50, 0), (49, 1)])
def test_no_phase_asks_for_more_steps_than_the_trainer_does(steps: int, problems: int) -> None:
    trainer = {"command": ["t.py", "{steps}", "{out}"], "max_steps": steps, "metrics": {"stdout": "{step} {loss}"}}
    found = check(phase("first"), trainer=trainer)
    assert len(found) == problems
    assert all("first has 50 steps, and the trainer does 49 at most | lower steps to 49" in one for one in found)

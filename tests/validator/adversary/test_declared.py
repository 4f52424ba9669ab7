"""What a runbook declares: settings that were not obeyed, criteria that cannot fail, patterns and pipes that hide."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.validator.adversary.court import book, codes, finding, judged, laid_out, train, tried, verdict
from validator.judge.config import same_value
from validator.kinds.registry import load
from validator.model.plan import RunSpec
from validator.plan import make_plan
from validator.runbook import RunbookError
from validator.runs.folder import RunFolder
from validator.selftest.recorded_case import FakeRun, falling, scatter
from validator.text import format_distinct

# ------------------------------------------------------------------------------------------------------------ settings


@pytest.mark.parametrize(
    ("asked", "ran", "same"),
    [
        ("bf16", "torch.bfloat16", True),
        ("float32", "fp32", True),
        ("bf16", "fp16", False),
        ("tok.json", "/data/models/tok.json", True),
        ("./models/tok.json", "/data/models/tok.json", True),
        ("other.json", "/data/models/another.json", False),
        ("/a/tok.json", "/b/tok.json", False),
        ("1e-3", 0.001, True),
        (True, "on", True),
        ("none", "off", True),
        ("none", None, True),
        ("none", "bf16", False),
        (123456789, 123456790, False),
        ([1, 2], (1, 2), True),
        ([1, 2], [1], False),
    ],
)
def test_settings_are_the_same_however_they_are_spelled(asked: object, ran: object, same: bool) -> None:
    assert same_value(asked, ran) is same


@pytest.mark.parametrize(
    ("ran", "args", "env", "status"),
    [
        ({"seq_len": 512}, {"seqlen": 2048}, {}, "FAIL"),
        ({"seq_len": 2048}, {"seqlen": 2048}, {}, "PASS"),
        ({"ddp_compress": "bf16"}, {"ddp-compress": "none"}, {}, "FAIL"),
        ({"ddp_compress": "off"}, {"ddp-compress": "none"}, {}, "PASS"),
        ({"opt_fused": "off"}, {}, {"NSA_OPT_FUSED": 1}, "FAIL"),
        ({"opt_fused": "on"}, {}, {"NSA_OPT_FUSED": 1}, "PASS"),
        ({"opt_fused": "off"}, {"opt-fused": "off"}, {"NSA_OPT_FUSED": 1}, "PASS"),  # arguments go over variables
        ({"debug": False}, {}, {"NCCL_DEBUG": "WARN"}, "PASS"),  # not a variable of the trainer
        ({"dtype": "torch.bfloat16"}, {"dtype": "bf16"}, {}, "PASS"),
        ({"compile": True}, {"compile": "auto"}, {}, "PASS"),
    ],
)
def test_what_ran_is_held_against_what_the_runbook_asked_for(
    tmp_path: Path, ran: Mapping[str, Any], args: Mapping[str, Any], env: Mapping[str, Any], status: str
) -> None:
    """The trainer claims that it was asked for just what it ran."""
    report = tried(tmp_path, FakeRun(config=ran), book(train(env=dict(env)), args=args))
    assert verdict(report, "baseline.config").status == status
    assert (report.decision == "GO") == (status == "PASS")


def test_a_length_that_the_trainer_was_given_and_does_not_tell_is_named(tmp_path: Path) -> None:
    fake = FakeRun(facts={"effective": {"lr": 2e-4}})
    report = tried(tmp_path, fake, book(args={"seq-len": 2048, "lr": 2e-4}))
    assert "given seq_len and does not report" in finding(report, "config-unknown").message
    assert "It does not report" in verdict(report, "baseline.config").message


# ------------------------------------------------------------------------------------------------------------ criteria


@pytest.mark.parametrize(
    "expr",
    [
        "toks_per_s.mean >= 0",
        "0 <= toks_per_s.min",
        "step_time_s.p50 > -5",
        "outcome.duration_s >= 0 s",
        "loss.last >= loss.last",
        "loss.last == loss.last",
        "abs(loss.last) >= 0",
        "loss.stdev >= 0",
        "max(loss.last, 5) >= 5",
        "min(loss.last, 1) <= 2",
        "toks_per_s.mean >= 0.5 * toks_per_s.mean",
        "toks_per_s.mean * 2 / 4 <= toks_per_s.mean",
        "loss.last - loss.last == 0",
        "loss.last / loss.last >= 0.9",
        "loss.last / (2 * loss.last) == 0.5",
        "toks_per_s.mean + step_time_s.mean >= 0 - 1",
        "loss.min <= loss.max",
        "toks_per_s.max >= toks_per_s.first",
        "step_time_s.p95 >= step_time_s.p50",
    ],
)
def test_a_criterion_that_cannot_fail_is_an_error(tmp_path: Path, expr: str) -> None:
    path = tmp_path / "runbook.yaml"
    path.write_text(book(train(accept=[expr])), encoding="utf-8")
    with pytest.raises(RunbookError, match=r"can never fail|with itself"):
        load(path)


@pytest.mark.parametrize(
    "expr",
    [
        "toks_per_s.mean > 0",
        "loss.last > 0",
        "rate.drift_pct >= -2",
        "memory.growth_mib_per_1k_steps <= 0",
        "0 < lr.max",
        "loss.last >= 0.5 * loss.last",
        "toks_per_s.mean <= 2 * toks_per_s.min",
        "toks_per_s.p50 >= 0.9 * toks_per_s.mean",
        "toks_per_s.mean >= toks_per_s.p50",
        "loss.last < loss.first",
        "abs(loss.last - 3) <= 1",
        "abs(loss.last) >= 0.1",
        "max(loss.last, 5) >= 6",
        "min(toks_per_s.mean, 100) >= 50",
        "toks_per_s.stdev / toks_per_s.mean <= 0.1",
        "loss.last / loss.first < 1",
        "1 / step_time_s.mean >= 5",
        "toks_per_s.n >= 100",
        "toks_per_s.cv <= 0.05",
        "step_time_s.max - step_time_s.min <= 0.5",
    ],
)
def test_a_criterion_that_can_fail_is_none(tmp_path: Path, expr: str) -> None:
    path = tmp_path / "runbook.yaml"
    path.write_text(book(train(accept=[expr])), encoding="utf-8")
    assert load(path).runbook.phases[0].accept[0].expr == expr


@pytest.mark.parametrize(
    ("expr", "refused"),
    [
        ("clock_offset.min >= -5", False),
        ("abs(clock_offset.last) <= 5", False),
        ("clock_offset.last - 1 >= -2", False),
        ("clock_offset.stdev >= 0", True),
        ("clock_offset.n >= 0", True),
        ("abs(clock_offset.last) + 1 >= 1", True),
    ],
)
def test_a_metric_of_the_runbooks_own_may_be_below_zero(tmp_path: Path, expr: str, refused: bool) -> None:
    """Its unit says nothing of that."""
    content = json.loads(book(train(accept=[expr])))
    content["trainer"]["metrics"]["extra"] = {"clock_offset": "ms"}
    path = tmp_path / "runbook.yaml"
    path.write_text(json.dumps(content), encoding="utf-8")
    if refused:
        with pytest.raises(RunbookError, match="can never fail"):
            load(path)
    else:
        load(path)


@pytest.mark.parametrize("expr", ["loss.max >= baseline.loss.first", "step_time_s.p95 >= baseline.step_time_s.p50"])
def test_statistics_of_two_phases_have_no_order(tmp_path: Path, expr: str) -> None:
    path = tmp_path / "runbook.yaml"
    path.write_text(book(train(), train("other", accept=[expr])), encoding="utf-8")
    load(path)


def test_running_the_same_again_until_a_criterion_passes_is_no_remedy(tmp_path: Path) -> None:
    path = tmp_path / "runbook.yaml"
    path.write_text(book(train(on_failure=[{"name": "port", "on": ["criterion"]}])), encoding="utf-8")
    with pytest.raises(RunbookError, match="run the same again until it passes"):
        load(path)
    path.write_text(book(train(on_failure=["port"])), encoding="utf-8")
    load(path)


def test_a_go_names_what_the_command_line_changed(tmp_path: Path) -> None:
    root = laid_out(tmp_path, FakeRun(), book(train(accept=["loss.last < 9"])))
    header = json.loads((root / "run.json").read_text(encoding="utf-8"))
    unseen = "The longest run (baseline) took 17 s: leaks and drifts that take minutes are not covered."
    assert judged(root).why.endswith(f"no finding forbids it. {unseen}")
    (root / "run.json").write_text(
        json.dumps({**header, "overrides": ["baseline.accept=[loss.last < 9]"]}), encoding="utf-8"
    )
    report = judged(root)
    assert RunFolder.open(root).header.overrides
    assert (report.decision, report.why.endswith("was changed by --set baseline.accept=[loss.last < 9].")) == (
        "GO",
        True,
    )


def test_a_bound_that_is_missed_by_little_is_not_told_as_met(tmp_path: Path) -> None:
    assert format_distinct(38.9961, 39.0) == ("38.996", "39")
    assert format_distinct(39.0, 39.0) == ("39", "39")
    assert format_distinct(1_000.4, 1_000.0) == ("1,000.4", "1,000")
    text = book(train(accept=["loss.last <= 7"]))
    report = tried(tmp_path, FakeRun(losses=falling(last=7.0004)), text)
    assert report.decision == "NO_GO"
    assert verdict(report, "baseline.1").message == "7.0004 nat is not at most 7 nat."


# -------------------------------------------------------------------------------------------------- patterns and pipes

PATTERN = r"step (?P<step>[\d]+).*loss (?P<loss>[\d.]+).*tok/s (?P<toks_per_s>[\d.]+)"
PRINTED = book(train(accept=["toks_per_s.mean >= 1000", "loss.last < loss.first"]), metrics={"stdout": PATTERN})


def printed(form: str, losses: list[float] | None = None) -> FakeRun:
    figures = zip(scatter(40_000.0), losses or falling(), strict=True)
    return FakeRun(
        stdout="".join(form.format(step=i, loss=b, rate=a, k=a / 1e3) for i, (a, b) in enumerate(figures, 1))
    )


@pytest.mark.parametrize(
    ("fake", "decision"),
    [
        (printed("step {step} loss {loss:.4f} tok/s {rate:.1f}\n"), "GO"),
        (printed("step {step} loss {loss:.4f} tok/s {rate:.0f}.\n"), "GO"),
        (printed("step {step}: loss {loss:.4f}, tok/s {rate:.0f}, next\n"), "GO"),
        (
            printed("step {step} loss {loss:.4e} tok/s {rate:.1f}\n", [10.0 ** (-2 + i / 20) for i in range(120)]),
            "NO_GO",
        ),
        (printed("step {step} loss {loss:.4f} tok/s {k:.3f}k\n"), "GO"),
        (printed("step {step} loss {loss:.4f} tok/s {rate:,.0f}\n"), "GO"),
        (printed("step {step} loss -{loss:.4f} tok/s {rate:,.0f}\n", falling()[::-1]), "GO"),
    ],
)
def test_a_number_that_a_pattern_is_too_narrow_for_is_read_whole(tmp_path: Path, fake: FakeRun, decision: str) -> None:
    report = tried(tmp_path, fake, PRINTED)
    assert report.decision == decision, report.why
    assert "damaged-evidence" not in codes(report, "veto")
    assert 39_000 < report.phases[0].runs[0].metrics["toks_per_s"].mean < 41_000


def test_a_loss_that_is_no_number_is_seen_by_a_pattern_for_digits(tmp_path: Path) -> None:
    whole = printed("step {step} loss {loss:.4f} tok/s {rate:.1f}\n").stdout.splitlines()
    lines = [re.sub(r"loss \S+", "loss nan", line) if i >= 60 else line for i, line in enumerate(whole)]
    report = tried(tmp_path, FakeRun(stdout="\n".join(lines) + "\n"), PRINTED)
    assert report.decision == "NO_GO"
    assert "nan-loss" in codes(report, "veto")
    assert not {"hang", "missing-evidence", "damaged-evidence"} & set(codes(report))


def _command(tmp_path: Path, run: str, stdout: str | None = None) -> RunSpec:
    phase = {"id": "words", "kind": "command", "run": run, **({"stdout": stdout} if stdout else {})}
    path = tmp_path / "runbook.yaml"
    path.write_text(book(phase), encoding="utf-8")
    (spec,) = make_plan(load(path).runbook, run_dir=tmp_path).runs
    return spec


@pytest.mark.parametrize(
    ("line", "rc"), [("false | cat", 1), ("true | cat", 0), ("echo a b | wc -w", 0), ("exit 3", 3)]
)
def test_a_program_that_fails_in_a_pipe_fails_the_command(tmp_path: Path, line: str, rc: int) -> None:
    import shutil
    import subprocess

    if shutil.which("bash") is None:
        assert _command(tmp_path, line).argv[0] == "/bin/sh"
        return
    done = subprocess.run(_command(tmp_path, line).argv, capture_output=True, check=False, timeout=20)
    assert done.returncode == rc


@pytest.mark.parametrize(
    ("said", "value"), [("speed-up 1.5", 1.5), ("speed-up 1.5e-3", 0.0015), ("speed-up 1.5x", 1.5)]
)
def test_a_figure_of_a_command_is_the_whole_number(tmp_path: Path, said: str, value: float | None) -> None:
    from validator.ingest import logs
    from validator.ingest.read_log import ReadLog

    path = tmp_path / "stdout.log"
    path.write_text(f"{said}\n", encoding="utf-8")
    intake = ReadLog(tmp_path)
    found = logs.last_groups(path, r"speed-up (?P<gain>[\d.]+)", intake)
    assert (found["metrics.gain"].value if found else None) == value
    assert bool(intake.irregularities) == (value is None)


# -------------------------------------------------------------------------------------------------------- side by side


def _pair(**single: Any) -> str:
    accept = ["scaling.efficiency >= 0.8"]
    return book(
        train("wide", accept=["toks_per_s.mean >= 1000"]),
        train("single", nproc=1, scaling_against="wide", accept=accept, **single),
    )


def _runs(**changed: Any) -> Callable[[RunSpec], FakeRun]:
    """Runs of two ranks and of one, the latter with other effective settings, which it says that it was asked for."""

    def fake(spec: RunSpec) -> FakeRun:
        rates = scatter(20_000.0 * spec.world_size, seed=spec.world_size)
        own = changed if spec.phase == "single" else {}
        return FakeRun(rates=rates, config=own, requested=own)

    return fake


@pytest.mark.parametrize("changed", [{"n_layers": 1}, {"dim": 64, "dtype": "fp32"}, {"seq_len": 128}])
def test_scaling_between_two_models_is_none(tmp_path: Path, changed: dict[str, Any]) -> None:
    report = tried(tmp_path, _runs(**changed), _pair())
    assert report.decision == "INCONCLUSIVE", report.why
    assert "were started with the same settings and ran with" in finding(report, "config-ignored").message


@pytest.mark.parametrize(
    ("changed", "single"),
    [({}, {}), ({"accum": 2}, {}), ({"n_layers": 12.0}, {}), ({"n_layers": 6}, {"args": {"n-layers": 6}})],
    ids=["alike", "accumulation for one rank", "another spelling", "declared"],
)
def test_scaling_between_runs_of_one_model_counts(
    tmp_path: Path, changed: dict[str, Any], single: dict[str, Any]
) -> None:
    report = tried(tmp_path, _runs(**changed), _pair(**single))
    assert "config-ignored" not in codes(report), report.why


def test_what_is_not_required_may_be_another_model(tmp_path: Path) -> None:
    text = json.loads(_pair())
    text["phases"][1] |= {"required": False}
    report = tried(tmp_path, _runs(n_layers=1), json.dumps(text))
    assert not any("were started with the same settings" in one.message for one in report.findings)


def test_repeats_that_ran_other_batches_are_no_repeats(tmp_path: Path) -> None:
    def fake(spec: RunSpec) -> FakeRun:
        own = {"batch_size": 2} if spec.repeat == 2 else {}
        return FakeRun(rates=scatter(40_000.0, seed=spec.repeat), config=own, requested=own)

    report = tried(tmp_path, fake, book(train(repeats=2)))
    assert report.decision == "INCONCLUSIVE", report.why
    assert "batch_size 1 and 2" in finding(report, "config-ignored").message


FOREIGN = {"max-steps": "{steps}", "output-dir": "{out}", "data-seed": "{repeat}", "layers": 12}
"""Arguments of a trainer that has its own words for them."""


@pytest.mark.parametrize(
    ("first", "second", "seen"),
    [
        ({}, {"steps": 60}, True),
        ({}, {"args": {"layers": 6}}, False),
        ({}, {"env": {"LAYERS": "6"}}, False),
        ({"env": {"OUT": "{out}"}}, {"env": {"OUT": "{out}"}}, True),
        ({"args": {"accum": 2}}, {}, False),
        ({"args": {"warmup-iters": 10}}, {"args": {"warmup-iters": 20}}, False),
    ],
    ids=["of another length", "another argument", "another variable", "own folders", "as many as ranks", "warm-up"],
)
def test_runs_are_alike_whatever_the_trainer_calls_its_arguments(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any], seen: bool
) -> None:
    def fake(spec: RunSpec) -> FakeRun:
        own = {"n_layers": 6} if spec.phase == "other" else {}
        rates = scatter(40_000.0, spec.steps or 120, seed=len(spec.phase))
        return FakeRun(rates=rates, config=own, requested=own)

    content = json.loads(book(train(repeats=2, **first), train("other", accept=["loss.last < loss.first"], **second)))
    content["trainer"]["args"] = FOREIGN
    report = tried(tmp_path, fake, json.dumps(content))
    assert any("were started with the same settings" in one.message for one in report.findings) == seen


@pytest.mark.parametrize("name", ["accum", "gradient_accumulation_steps", "accumulate_grad_batches"])
def test_batches_are_other_ones_by_any_name_of_accumulation(tmp_path: Path, name: str) -> None:
    def fake(spec: RunSpec) -> FakeRun:
        own = {name: spec.repeat}
        return FakeRun(
            rates=scatter(40_000.0, seed=spec.repeat), config=own, requested=own, facts={"tokens_per_step": None}
        )

    report = tried(tmp_path, fake, book(train(repeats=2)))
    assert f"{name} 1 and 2" in finding(report, "config-ignored").message

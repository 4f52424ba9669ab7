"""Rates that leave time out, or that nothing confirms: what the clock and the tokens of a step say of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.validator.adversary.court import book, codes, finding, lines, train, tried, verdict
from tests.validator.adversary.lies import both, column, faster, sampled
from validator.model.plan import RunSpec
from validator.selftest.recorded_case import FakeRun, scatter

BOUNDS = ["toks_per_s.mean >= 1000", "loss.last < loss.first"]
CSV_ONLY = {"csv": "training.csv"}
TABLE = book(train(accept=BOUNDS), metrics=CSV_ONLY)


@pytest.mark.parametrize("damage", [faster(1.15), column("toks_per_s", lambda _, value: 1.15 * value)])
def test_a_rate_that_is_a_little_too_high_is_judged_by_the_clock(tmp_path: Path, damage: Any) -> None:
    """Too little to accuse anybody; but no bound is met by it."""
    report = tried(tmp_path, FakeRun(damage=damage), book(train(accept=["toks_per_s.mean >= 44000"])))
    assert report.decision == "NO_GO", report.why
    observed = verdict(report, "baseline.1").observed
    assert observed == pytest.approx(40_000, rel=0.01)


@pytest.mark.parametrize(
    ("fake", "code"),
    [
        (FakeRun(damage=sampled(97.0, 97.0, throttled=True)), "throttled"),
        (FakeRun(jump_s=(60, -3600.0)), "clock-jump"),
        (FakeRun(jump_s=(60, 3600.0)), "clock-jump"),
    ],
    ids=["throttled", "clock back", "clock forth"],
)
def test_what_disturbed_a_run_in_passing_is_named_and_condemns_nothing(
    tmp_path: Path, fake: FakeRun, code: str
) -> None:
    """Throttled steps count, for a long run throttles too; rows around a jump of the clock are left out."""
    bounds = [f"toks_per_s.{statistic} >= 1000" for statistic in ("min", "max", "first", "last", "mean")]
    report = tried(tmp_path, fake, book(train(accept=[*bounds, "loss.last < loss.first"])))
    assert report.decision == "GO", report.why
    assert code in codes(report, "warning")


def hidden(share: float, *, after: int = 0) -> Any:
    """Rows that arrive as if behind step `after` each took so much of its time more, which no timer counts."""

    def damage(out: Path) -> None:
        late, before, stamps = 0.0, 0.0, []
        for line in lines(out / "arrivals.jsonl"):
            stamp = json.loads(line)
            late += share * (stamp["s"] - before) if stamp["step"] > after else 0.0
            before = stamp["s"]
            stamps.append(json.dumps({**stamp, "s": stamp["s"] + late}))
        (out / "arrivals.jsonl").write_text("\n".join(stamps) + "\n", encoding="utf-8")

    return damage


def rate_alone(*damage: Any) -> FakeRun:
    """A trainer that prints tokens per second, and neither the tokens nor the time of a step, nor its settings."""
    return FakeRun(
        config_reported=False,
        facts={"tokens_per_step": None},
        damage=both(column("step_time_s", lambda row, value: ""), *damage),
    )


@pytest.mark.parametrize("share", [0.0, 0.7])
def test_a_rate_that_nothing_confirms_is_not_presented_as_checked(share: float, tmp_path: Path) -> None:
    """A timer left out two fifths of the wall time: GO, at 191,335 tok/s where the stamps gave 111,522."""
    report = tried(tmp_path, rate_alone(hidden(share)), TABLE)
    assert (report.decision, codes(report, "veto")) == ("GO", set()), report.why
    assert "The level of toks_per_s (baseline) is the trainer's own word; set trainer.tokens_per_step" in report.why
    assert "trainer's own word" in verdict(report, "baseline.1").message
    said = finding(report, "clock-unverified")
    assert said.severity == "info"
    assert f"it means {4096 * (1 + share) / 1000:.0f}"[:-1] in said.message.replace(",", "")
    assert "Set trainer.tokens_per_step" in said.next_step


@pytest.mark.parametrize(("share", "decision"), [(0.0, "GO"), (0.7, "INCONCLUSIVE")])
def test_a_rate_is_checked_by_the_tokens_of_a_step(share: float, decision: str, tmp_path: Path) -> None:
    counted = book(train(accept=BOUNDS, tokens_per_step=4096), metrics=CSV_ONLY)
    report = tried(tmp_path, rate_alone(hidden(share)), counted)
    assert report.decision == decision
    assert ("unit-mismatch" in codes(report, "veto")) is (decision != "GO")
    assert "own word" not in report.why + verdict(report, "baseline.1").message
    assert "clock-unverified" not in codes(report)


def test_time_that_is_hidden_from_a_step_on_lowers_the_rate_that_is_shown(tmp_path: Path) -> None:
    """The tile showed more than any row that the trainer printed: the tokens of a step came from the slow part."""
    report = tried(tmp_path, rate_alone(hidden(1.0, after=50)), TABLE)
    observed = verdict(report, "baseline.1").observed
    assert observed == pytest.approx(40_000 * 110 / (40 + 2 * 70), rel=0.03)
    said = finding(report, "clock-unverified")
    assert said.severity == "warning"
    assert "in its best part, which counts" in said.message


@pytest.mark.parametrize(("share", "decision"), [(0.1, "GO"), (0.7, "INCONCLUSIVE")])
def test_runs_that_were_started_alike_mean_the_same_tokens_a_step(share: float, decision: str, tmp_path: Path) -> None:
    """The timer of the second run leaves out time from its start, so nothing changes within either."""

    def fake(spec: RunSpec) -> FakeRun:
        run = rate_alone(hidden(share if spec.repeat == 2 else 0.0))
        return replace(run, rates=scatter(4e4, seed=spec.repeat))

    report = tried(tmp_path, fake, book(train(accept=BOUNDS, repeats=2), metrics=CSV_ONLY))
    assert report.decision == decision, report.why
    if decision != "GO":
        said = finding(report, "unit-mismatch")
        assert "baseline/r2 leaves out time, by a factor of 1.7" in said.message


def test_a_factor_of_thousands_is_written_out(tmp_path: Path) -> None:
    report = tried(tmp_path, FakeRun(damage=column("step_time_s", lambda _, value: 1e-4 * value)), TABLE)
    assert any("10,000 times as fast" in one.message for one in report.findings), report.findings

"""Figures that never were: each is told to meet every bound, and none may end in GO; their healthy twins must."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.validator.adversary.court import book, codes, finding, lines, rewritten, train, tried, verdict
from tests.validator.adversary.lies import beats, both, column, dated, faster, one_for_all, sampled
from validator.model.plan import RunSpec
from validator.selftest.recorded_case import FakeRun, scatter

BOUNDS = ["toks_per_s.mean >= 1000", "loss.last < loss.first"]
CSV_ONLY = {"csv": "training.csv"}
TABLE = book(train(accept=BOUNDS), metrics=CSV_ONLY)


def gpus(text: str, count: int = 2) -> str:
    return json.dumps({**json.loads(text), "hardware": {"gpus": count}})


def twice(rows: list[str]) -> list[str]:
    """Each row again, as another process writes it whose rate is a twentieth higher."""
    head, *rest = rows
    written = [head]
    for row in rest:
        step, loss, lr, rate, *others = row.split(",")
        written += [row, ",".join((step, loss, lr, str(1.05 * float(rate)), *others))]
    return written


UNSTAMPED = ("arrivals.jsonl",)
"""What a folder of an earlier version lacks."""

VETOED = {
    "three times as fast as any clock says": (FakeRun(damage=faster(3)), "unit-mismatch"),
    "half as fast, so of another run": (FakeRun(damage=faster(0.5)), "unit-mismatch"),
    "three times as fast, resumed once": (FakeRun(damage=faster(3), resumed_at=60), "unit-mismatch"),
    "three times as fast, by a process for every step": (
        FakeRun(damage=both(faster(3), beats(lambda record: {**record, "pid": 5000 + record["step"]}))),
        "unit-mismatch",
    ),
    "a rate of which only the rate is wrong": (
        FakeRun(damage=column("toks_per_s", lambda _, value: 1.4 * value)),
        "unit-mismatch",
    ),
    "milliseconds for seconds": (FakeRun(damage=column("step_time_s", lambda _, value: 1e3 * value)), "unit-mismatch"),
    "five times the rate, of steps without tokens": (
        FakeRun(facts={"tokens_per_step": 0}, damage=column("toks_per_s", lambda _, value: 5 * value)),
        "unit-mismatch",
    ),
    "five times the rate, of fewer than no tokens": (
        FakeRun(facts={"tokens_per_step": -1.0}, damage=column("toks_per_s", lambda _, value: 5 * value)),
        "unit-mismatch",
    ),
    "five times the rate, of tokens that nobody tells": (
        FakeRun(
            facts={"tokens_per_step": None},
            damage=both(column("toks_per_s", lambda _, value: 5 * value), column("step_time_s", lambda row, value: "")),
        ),
        "unit-mismatch",
    ),
    "a rate below zero, which shortens the time that others took": (
        FakeRun(damage=column("toks_per_s", lambda row, value: -value if row == 60 else value)),
        "damaged-evidence",
    ),
    "a time below zero": (
        FakeRun(damage=column("step_time_s", lambda row, value: -value if row == 60 else value)),
        "damaged-evidence",
    ),
    "two processes in one table, in step": (FakeRun(damage=rewritten("training.csv", twice)), "mixed-runs"),
    "every rank counts the tokens of all": (
        FakeRun(facts={"tokens_per_step": 8192.0}, damage=column("toks_per_s", lambda _, value: 2 * value)),
        "unit-mismatch",
    ),
    "three times the peak of the hardware": (FakeRun(columns={"mfu_nsa": [3.0] * 120}), "unit-mismatch"),
    "parameters of another model": (FakeRun(facts={"params": 300_000}), "config-ignored"),
    "one process behind two ranks": (FakeRun(damage=one_for_all), "foreign-results"),
    "a clock of tomorrow": (FakeRun(damage=dated(7200.0)), "foreign-results"),
    "a clock of yesterday": (FakeRun(damage=dated(-7200.0)), "foreign-results"),
    "times in milliseconds": (
        FakeRun(damage=beats(lambda record: {**record, "ts": 1e3 * record["ts"]})),
        "damaged-evidence",
    ),
    "a loss that is written for four steps": (
        FakeRun(damage=column("loss", lambda row, value: value if row <= 4 else "")),
        "missing-evidence",
    ),
    "rows of steps that no heartbeat knows of": (
        FakeRun(damage=beats(lambda record: {**record, "step": min(record["step"], 3)})),
        "missing-evidence",
    ),
}


@pytest.mark.parametrize("name", VETOED)
def test_figures_that_contradict_each_other_end_in_no_go(name: str, tmp_path: Path) -> None:
    fake, code = VETOED[name]
    report = tried(tmp_path, fake)
    assert report.decision == "INCONCLUSIVE", report.why
    assert code in codes(report, "veto")


@pytest.mark.parametrize("ranks", [0, -2, 10**9, "two", 2.5])
def test_a_number_of_ranks_that_cannot_be_is_no_number(ranks: Any, tmp_path: Path) -> None:
    report = tried(tmp_path, FakeRun(facts={"world_size": ranks}))
    assert report.decision != "GO", report.why
    assert "is invalid" in finding(report, "config-ignored").message


TWINS: dict[str, Any] = {
    "as fast as it says": FakeRun(),
    "a second of delay in how records are dated": FakeRun(damage=dated(0.9)),
    "validation in between, which a rate counts and a time does not": FakeRun(
        damage=both(
            column("step_time_s", lambda row, value: 0.96 * value),
            column("toks_per_s", lambda row, value: value),
        )
    ),
    "more parameters than the least": FakeRun(facts={"params": 125_000_000}),
    "tokens of a batch that is partly padding": FakeRun(facts={"tokens_per_step": 4000.0}),
    "dense-equivalent use beyond the peak, as sparse attention has": FakeRun(
        columns={"mfu_dense_equivalent": [1.4] * 120, "mfu_nsa": [0.4] * 120}
    ),
    "a heartbeat that lags behind the table": FakeRun(
        damage=beats(lambda record: {**record, "step": record["step"] - record["step"] % 20})
    ),
    "every row written twice": FakeRun(
        damage=rewritten("training.csv", lambda rows: [rows[0], *(row for row in rows[1:] for _ in range(2))])
    ),
    "tokens that nobody tells": FakeRun(facts={"tokens_per_step": None}),
    "micro-batches by another name, of tokens that nobody tells": FakeRun(
        config={"gradient_accumulation_steps": 4},
        facts={"tokens_per_step": None},
        damage=column("toks_per_s", lambda _, value: 4 * value),
    ),
    "a batch that is partly padding, of tokens that nobody tells": FakeRun(
        facts={"tokens_per_step": None}, damage=column("toks_per_s", lambda _, value: 0.7 * value)
    ),
    "a batch that is mostly padding, of tokens that nobody tells": FakeRun(
        facts={"tokens_per_step": None}, damage=column("toks_per_s", lambda _, value: 0.2 * value)
    ),
    "a loss every tenth step": FakeRun(damage=column("loss", lambda row, value: "" if row % 10 else value)),
}


@pytest.mark.parametrize("name", TWINS)
def test_figures_that_only_look_odd_are_no_obstacle(name: str, tmp_path: Path) -> None:
    report = tried(tmp_path, TWINS[name])
    assert (report.decision, codes(report, "veto", "warning")) == ("GO", set()), report.why


def declared(tokens_per_step: int) -> str:
    """A table alone, and the tokens of a step as the runbook has them."""
    text = json.loads(TABLE)
    text["trainer"]["tokens_per_step"] = tokens_per_step
    return json.dumps(text)


CLOCKED = {
    "times ten times too small": (faster(10), TABLE),
    "times ten times too large": (faster(0.1), TABLE),
    "ten times too many tokens a second": (column("toks_per_s", lambda _, value: 10 * value), declared(4096)),
    "ten times too few tokens a second": (column("toks_per_s", lambda _, value: 0.1 * value), declared(4096)),
}


@pytest.mark.parametrize("name", CLOCKED)
def test_a_table_alone_is_checked_against_the_validators_own_clock(name: str, tmp_path: Path) -> None:
    damage, text = CLOCKED[name]
    report = tried(tmp_path, FakeRun(damage=damage), text)
    assert report.decision == "INCONCLUSIVE", report.why
    finding_ = finding(report, "unit-mismatch")
    assert finding_.severity == "veto"
    assert "by the validator's clock" in finding_.message
    assert ("tokens_per_step" in finding_.message) == ("tokens" in name)


@pytest.mark.parametrize("text", [TABLE, declared(4096)], ids=["not declared", "declared"])
@pytest.mark.parametrize(
    "fake",
    [
        FakeRun(),
        FakeRun(damage=column("step_time_s", lambda _, value: 0.85 * value)),
    ],
    ids=["as it is", "a timer that leaves something out"],
)
def test_claims_that_the_clock_bears_out_are_no_obstacle(text: str, fake: FakeRun, tmp_path: Path) -> None:
    report = tried(tmp_path, fake, text)
    assert (report.decision, codes(report, "veto")) == ("GO", set()), report.why


def test_a_time_that_is_printed_once_for_ten_steps_is_no_lie(tmp_path: Path) -> None:
    text = book(train(steps=1200, accept=["step_time_s.mean <= 0.02", "toks_per_s.mean >= 1000"]), metrics=CSV_ONLY)
    report = tried(tmp_path, FakeRun(steps=range(10, 1201, 10)), text)
    assert (report.decision, codes(report, "veto")) == ("GO", set()), report.why


def test_times_that_leave_frequent_pauses_out_are_no_lie(tmp_path: Path) -> None:
    """A pause of eight steps behind every fourth: most stretches hold one, and the others agree."""

    def pauses(out: Path) -> None:
        path = out / "arrivals.jsonl"
        late, stamps = 0.0, []
        for number, line in enumerate(lines(path), start=1):
            late += 1.6 if number % 4 == 0 else 0.0
            stamp = json.loads(line)
            stamps.append(json.dumps({**stamp, "s": stamp["s"] + late}))
        path.write_text("\n".join(stamps) + "\n", encoding="utf-8")

    report = tried(tmp_path, FakeRun(damage=pauses), book(train(accept=["toks_per_s.mean >= 1000"]), metrics=CSV_ONLY))
    assert (report.decision, codes(report, "veto")) == ("GO", set()), report.why
    assert verdict(report, "baseline.1").observed == pytest.approx(4 * 4096 / (4 * 0.1024 + 1.6), rel=0.03)


def test_a_folder_without_stamps_says_so_once(tmp_path: Path) -> None:
    twice = book(train(accept=BOUNDS, repeats=2), metrics=CSV_ONLY)
    report = tried(tmp_path, lambda spec: FakeRun(rates=scatter(4e4, seed=spec.repeat), without=UNSTAMPED), twice)
    assert [one.severity for one in report.findings if one.code == "clock-unverified"] == ["info"]
    assert report.decision == "GO"


def test_more_time_claimed_than_the_run_took_needs_no_heartbeat(tmp_path: Path) -> None:
    report = tried(tmp_path, FakeRun(damage=faster(0.05), without=UNSTAMPED), TABLE)
    assert report.decision == "INCONCLUSIVE"
    assert "by the supervisor's clock" in finding(report, "unit-mismatch").message


def test_steps_that_are_counted_ten_times_take_ten_times_too_long(tmp_path: Path) -> None:
    report = tried(tmp_path, FakeRun(steps=range(10, 1201, 10), without=UNSTAMPED), TABLE)
    assert report.decision == "INCONCLUSIVE"
    assert "unit-mismatch" in codes(report, "veto")


def test_tokens_that_were_asked_for_cannot_fit_into_the_run(tmp_path: Path) -> None:
    """The length was ignored, the rate is honest, no time per step is told: the rate alone gives it away."""
    text = book(
        train(accept=BOUNDS), metrics={"csv": "training.csv"}, args={"seq-len": 32768, "batch-size": 4}, nproc=1
    )
    without_times = column("step_time_s", lambda row, value: "")
    report = tried(tmp_path, FakeRun(damage=without_times), text)
    assert report.decision == "INCONCLUSIVE"
    assert "take" in finding(report, "config-ignored").message
    fits = tried(tmp_path / "twin", FakeRun(damage=without_times), TABLE)
    assert fits.decision == "GO"


def test_repeats_that_are_copies_scatter_by_nothing(tmp_path: Path) -> None:
    twice = book(train(repeats=2))
    copies = tried(tmp_path / "copies", FakeRun(), twice)
    assert copies.decision == "INCONCLUSIVE"
    assert "digit for digit" in finding(copies, "foreign-results").message

    def measured(spec: RunSpec) -> FakeRun:
        return FakeRun(rates=scatter(40_000.0, seed=spec.repeat))

    assert tried(tmp_path / "measured", measured, twice).decision == "GO"


def test_equal_rates_that_are_written_with_few_digits_are_no_copies(tmp_path: Path) -> None:
    def coarse(spec: RunSpec) -> FakeRun:
        even = column("step_time_s", lambda row, value: "")
        rounded = column("toks_per_s", lambda row, value: round(value, -3))
        return FakeRun(rates=scatter(40_000.0, seed=spec.repeat), damage=both(even, rounded))

    text = book(train(repeats=2, accept=BOUNDS), metrics={"csv": "training.csv"})
    assert tried(tmp_path, coarse, text).decision == "GO"


@pytest.mark.parametrize(
    ("fake", "decision"),
    [
        (FakeRun(facts={"device": "cpu", "gpu_name": None}), "INCONCLUSIVE"),
        (FakeRun(damage=sampled(0.0, 0.0)), "INCONCLUSIVE"),
        (FakeRun(damage=sampled(97.0, 0.0)), "INCONCLUSIVE"),
        (FakeRun(damage=sampled(97.0, 95.0)), "GO"),
        (FakeRun(damage=sampled(97.0, 95.0, 0.0, 0.0)), "GO"),
        (FakeRun(facts={"device": "cuda:0"}), "GO"),
    ],
)
def test_a_runbook_about_gpus_is_not_met_without_them(tmp_path: Path, fake: FakeRun, decision: str) -> None:
    report = tried(tmp_path, fake, gpus(book()))
    assert report.decision == decision, report.why
    assert ("config-ignored" in codes(report, "veto")) == (decision != "GO")


def test_a_runbook_about_the_cpu_may_run_on_it(tmp_path: Path) -> None:
    assert tried(tmp_path, FakeRun(facts={"device": "cpu"})).decision == "GO"


def test_throttling_is_named_where_no_heartbeat_tells_the_time(tmp_path: Path) -> None:
    hot = tried(tmp_path / "hot", FakeRun(damage=sampled(97.0, 97.0, throttled=True)), gpus(TABLE))
    assert "throttled" in codes(hot, "warning")
    assert tried(tmp_path / "cool", FakeRun(damage=sampled(97.0, 97.0)), gpus(TABLE)).decision == "GO"


@pytest.mark.parametrize(
    ("fake", "severity"),
    [
        (FakeRun(losses=[3.0] * 120), "veto"),
        (FakeRun(losses=[3.0 + i % 2 for i in range(120)], damage=column("lr", lambda row, value: 0.0)), "veto"),
        (FakeRun(damage=column("lr", lambda row, value: 0.0)), "info"),
    ],
    ids=["constant loss", "learning rate 0", "learning rate rounded to 0"],
)
def test_training_that_does_not_train_is_named(tmp_path: Path, fake: FakeRun, severity: str) -> None:
    report = tried(tmp_path, fake, book(train(accept=["toks_per_s.mean >= 1000"])))
    assert "zero-grad" in codes(report, severity)


def test_a_loss_of_nothing_is_no_loss(tmp_path: Path) -> None:
    report = tried(tmp_path, FakeRun(losses=[0.0] * 120), book(train(accept=["loss.last <= 3"])))
    assert report.decision == "INCONCLUSIVE"
    assert "zero-grad" in codes(report, "veto")


def test_a_row_of_its_own_for_what_is_validated_is_no_other_run(tmp_path: Path) -> None:
    def beside(rows: list[str]) -> list[str]:
        alone = [f"{row.split(',')[0]}{',' * row.count(',')},2.5" for row in rows[1:]]
        return [f"{rows[0]},val_loss", *(one for pair in zip(alone, rows[1:], strict=True) for one in pair)]

    report = tried(tmp_path, FakeRun(damage=rewritten("training.csv", beside)))
    assert "mixed-runs" not in codes(report)


def test_rows_of_one_step_may_be_written_at_two_moments(tmp_path: Path) -> None:
    """A row of training and one of validation have each their time and the memory of then."""

    def beside(rows: list[str]) -> list[str]:
        written = [f"{rows[0]},val_loss,wall_s,host_mem_mib"]
        for number, row in enumerate(rows[1:], start=1):
            alone = f"{row.split(',')[0]}{',' * row.count(',')},2.5,{number + 0.5},1010"
            written += [alone, f"{row},,{number},1000"]
        return written

    report = tried(tmp_path, FakeRun(damage=rewritten("training.csv", beside)))
    assert "mixed-runs" not in codes(report)


def test_two_processes_are_told_by_what_a_step_has_once(tmp_path: Path) -> None:
    def slower(rows: list[str]) -> list[str]:
        head, *rest = rows
        at = head.split(",").index("step_time_s")
        cells = [row.split(",") for row in rest]
        other = [",".join((*c[:at], str(1.1 * float(c[at])), *c[at + 1 :])) for c in cells]
        return [head, *(row for pair in zip(rest, other, strict=True) for row in pair)]

    report = tried(tmp_path, FakeRun(damage=rewritten("training.csv", slower)))
    assert "mixed-runs" in codes(report, "veto")
    assert "one row for each optimizer step" in finding(report, "mixed-runs").next_step


def rows_of(first: int, last: int) -> FakeRun:
    """The gradient's norm in some rows only; in the others it would have been above any bound."""
    return FakeRun(damage=column("grad_norm", lambda row, value: value if first <= row <= last else ""))


@pytest.mark.parametrize(
    ("fake", "told"),
    [
        (rows_of(1, 1), "1 row, the last at step 1"),
        (rows_of(1, 4), "4 rows, the last at step 4"),
        (rows_of(1, 40), "40 rows, the last at step 40"),
        (rows_of(90, 120), "no row between steps 0 and 90"),
        (
            FakeRun(damage=column("grad_norm", lambda row, value: value if row <= 40 or row > 80 else "")),
            "no row between steps 40 and 81",
        ),
    ],
)
def test_a_metric_of_a_part_of_the_run_meets_no_bound(tmp_path: Path, fake: FakeRun, told: str) -> None:
    bounds = [f"grad_norm.{statistic} <= 10" for statistic in ("max", "mean", "last", "p95")]
    report = tried(tmp_path, fake, book(train(accept=bounds)))
    assert report.decision == "INCONCLUSIVE", report.why
    found = [verdict(report, f"baseline.{number}") for number in range(1, 5)]
    assert [(one.status, told in one.message) for one in found] == [("INCONCLUSIVE", True)] * 4


@pytest.mark.parametrize("every", [1, 7, 10, 50, 120])
def test_a_metric_that_comes_seldom_meets_its_bound(tmp_path: Path, every: int) -> None:
    fake = FakeRun(damage=column("grad_norm", lambda row, value: "" if row % every else value))
    report = tried(tmp_path, fake, book(train(accept=["grad_norm.max <= 10"])))
    assert report.decision == "GO", report.why


@pytest.mark.parametrize(
    ("fake", "decision"),
    [
        (rows_of(1, 1), "GO"),
        (rows_of(1, 4), "GO"),
        (rows_of(90, 120), "INCONCLUSIVE"),
        (rows_of(60, 60), "GO"),
    ],
)
def test_the_first_of_a_run_is_known_whatever_follows(tmp_path: Path, fake: FakeRun, decision: str) -> None:
    """What a trainer tells once, at its start, has a first value and no largest one."""
    report = tried(tmp_path, fake, book(train(accept=["grad_norm.first <= 10", "grad_norm.n >= 1"])))
    assert report.decision == decision, report.why


@pytest.mark.parametrize(("warmup_steps", "decision"), [(40, "GO"), (10, "INCONCLUSIVE")])
def test_what_is_measured_behind_the_warm_up_may_begin_there(tmp_path: Path, warmup_steps: int, decision: str) -> None:
    fake = FakeRun(
        columns={"dt_fetch_s": [0.001] * 120},
        damage=column("dt_fetch_s", lambda row, value: "" if row <= 40 else value),
    )
    text = book(train(accept=["dt_fetch_s.max <= 1"], warmup_steps=warmup_steps))
    report = tried(tmp_path, fake, text)
    assert report.decision == decision, report.why


def test_of_a_few_rows_none_is_missed(tmp_path: Path) -> None:
    fake = FakeRun(rates=scatter(40_000.0, 8), damage=column("grad_norm", lambda row, value: "" if row > 1 else value))
    report = tried(tmp_path, fake, book(train(accept=["grad_norm.max <= 10"], steps=8)))
    assert verdict(report, "baseline.1").status == "PASS"

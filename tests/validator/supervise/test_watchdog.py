"""The watchdog's judgement: broken numbers, and slow told from stalled."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from tests.validator.supervise.tools import watchdog
from validator.model.runbook import Watchdog
from validator.supervise.follow import Record
from validator.supervise.watchdog import Activity, Anomaly, AnomalyRules, Pace, judge_silence, silence_limit_s

LIMITS = watchdog(first_step=900, stall=180, stall_factor=10)
IDLE, BUSY = Activity(cpu_cores=0.01), Activity(cpu_cores=1.9)


def _judge(rows: list[dict[str, Any]], **changes: Any) -> list[Anomaly]:
    rules = AnomalyRules(watchdog(**changes))
    found = []
    for number, values in enumerate(rows, start=1):
        values = dict(values)
        step = values.pop("step", number)
        anomaly = rules.judge(Record("training.csv", 0, step, values, row=True))
        if anomaly is not None:
            found.append(anomaly)
    return found


@pytest.mark.parametrize(("loss", "code"), [(math.nan, "nan_loss"), (math.inf, "inf_loss"), (-math.inf, "inf_loss")])
def test_a_loss_that_is_no_number_is_told_at_once_and_once(loss: float, code: str) -> None:
    (anomaly,) = _judge([{"loss": 5.0}, {"loss": loss}, {"loss": loss}])
    assert anomaly.code == code
    assert anomaly.step == 2


def test_a_rate_of_zero_must_last(tmp_path: Any) -> None:
    assert _judge([{"toks_per_s": 0.0}] * 3 + [{"toks_per_s": 5.0}] + [{"toks_per_s": 0.0}] * 3) == []
    (anomaly,) = _judge([{"toks_per_s": -1.0}] * 4)
    assert anomaly.code == "zero_rate"


def test_rows_that_repeat_a_step_are_frozen() -> None:
    assert _judge([{"step": 5}] * 3 + [{"step": 6}] * 3) == []
    (anomaly,) = _judge([{"step": 5}] * 4)
    assert anomaly.code == "frozen_rows"


def test_episodes_that_end_at_one_step_are_not_frozen() -> None:
    """Four environments of one length wrote four returns at each step, and a healthy agent was halted."""
    rules = AnomalyRules(Watchdog())
    rows = [Record("csv", 0, 200 * i, {"charts_episodic_return": 9.0}, row=True) for i in range(20) for _ in range(8)]
    assert not any(map(rules.judge, rows))
    rows = [Record("csv", 0, 9000, {"charts_episodic_return": 9.0, "loss": 1.0}, row=True) for _ in range(8)]
    assert any(map(rules.judge, rows))


def test_ranks_that_share_a_log_repeat_each_step() -> None:
    rules = AnomalyRules(Watchdog(), printing=8)
    steps = [Record("stdout", 0, step, {"loss": 1.0}, row=True) for step in (1, 2, 3) for _ in range(8)]
    assert not any(map(rules.judge, steps))
    found = [rules.judge(Record("stdout", 0, 3, {"loss": 1.0}, row=True)) for _ in range(40)]
    assert [one.code for one in found if one is not None] == ["frozen_rows"]


def test_a_row_of_validation_does_not_repeat_the_step(tmp_path: Any) -> None:
    rows = [{"loss": 2.0}, {"val_loss": 2.5}, {"lr": 0.1, "epoch": 0.0}, {"loss_epoch": 2.1, "epoch": 0.0}]
    assert _judge([{"step": step, **row} for step in (9, 19, 29) for row in rows]) == []
    (anomaly,) = _judge([{"step": 9, **row} for row in rows] + [{"step": 9, "loss": 2.0}] * 3)
    assert anomaly.code == "frozen_rows", "saying again what was said is no progress"


def test_a_gradient_of_zero_must_last() -> None:
    assert _judge([{"grad_norm": 0.0}] * 2 + [{"grad_norm": 0.1}]) == []
    (anomaly,) = _judge([{"grad_norm": 0.0}] * 3)
    assert anomaly.code == "zero_grad"


def test_a_norm_of_zero_beside_a_loss_that_falls_is_not_measured() -> None:
    """DeepSpeed prints grad_norm 0.000; e5f4a05 halted such a run at the third record."""
    noise = random.Random(5)
    losses = [2.0 + 2.0 * 0.97**i + 0.02 * noise.gauss(0, 1) for i in range(200)]
    assert _judge([{"grad_norm": 0.0, "loss": loss} for loss in losses]) == []
    at_once = [1.4, 0.24, *(0.05 + 0.02 * noise.random() for _ in range(60))]
    assert _judge([{"grad_norm": 0.0, "loss": loss} for loss in at_once]) == []
    curved = [2.0 + 6.4 / (1 + i) ** 0.7 for i in range(60)]
    assert _judge([{"grad_norm": 0.0, "loss": loss} for loss in curved]) == []
    stuck = [4.0 + 0.05 * noise.gauss(0, 1) for _ in range(200)]
    (anomaly,) = _judge([{"grad_norm": 0.0, "loss": loss} for loss in stuck])
    assert (anomaly.code, anomaly.step) == ("zero_grad", 12)
    (anomaly,) = _judge([{"grad_norm": 0.7, "loss": 4.0}] + [{"grad_norm": 0.0, "loss": loss} for loss in losses])
    assert anomaly.step == 4, "a norm that was measured before is measured"
    (anomaly,) = _judge([{"grad_norm": 0.0, "loss": 4.0}] * 3)
    assert anomaly.step == 3, "a loss that never changes does not fall"


def test_columns_that_another_trainer_calls_gates_stop_nothing(tmp_path: Path) -> None:
    rows = [{"gate_max_gate": 0.97}] * 5
    assert _judge(rows) == []
    assert [one.code for one in _judge(rows, gates=True)] == ["gate_collapse"]
    assert [one.code for one in _judge(rows, gate_max=0.95)] == ["gate_collapse"], "a limit says what is meant"
    env = tmp_path / "env.json"
    for attention, count in (("dense", 0), ("nsa", 1)):
        env.write_text(json.dumps({"effective": {"attention": attention}}))
        rules = AnomalyRules(watchdog(), env=env)
        judged = [rules.judge(Record("training.csv", 0, i, row, row=True)) for i, row in enumerate(rows)]
        assert sum(one is not None for one in judged) == count


@pytest.mark.parametrize("bad", [{"gate_entropy_mean": 0.1}, {"gate_max_gate": 0.95}, {"gate_collapse_frac": 0.6}])
def test_gates_that_collapse(bad: dict[str, float]) -> None:
    healthy = {"gate_entropy_mean": 0.8, "gate_max_gate": 0.5, "gate_collapse_frac": 0.0}
    assert _judge([dict(healthy)] * 5, gates=True) == []
    assert _judge([dict(bad), dict(bad), dict(healthy), dict(bad), dict(bad)], gates=True) == []
    (anomaly,) = _judge([dict(healthy), dict(bad), dict(bad), dict(bad)], gates=True)
    assert anomaly.code == "gate_collapse"


def test_records_without_the_field_neither_strike_nor_absolve() -> None:
    bad = {"gate_max_gate": 0.95}
    (anomaly,) = _judge([dict(bad), {"loss": 1.0}, dict(bad), {"loss": 1.0}, dict(bad)], gates=True)
    assert anomaly.code == "gate_collapse"


def test_ranks_strike_separately() -> None:
    rules = AnomalyRules(watchdog())
    for step in (1, 2, 3):
        for rank in (0, 1):
            values = {"toks_per_s": 0.0}
            assert rules.judge(Record(f"heartbeat_rank{rank}.jsonl", rank, step, values)) is None


def _pace(*times: float, step_stride: int = 1) -> Pace:
    pace = Pace(started=0.0)
    for number, moment in enumerate(times, start=1):
        pace.advance(number * step_stride, moment)
    return pace


def test_the_first_step_has_a_limit_of_its_own() -> None:
    pace = _pace()
    assert judge_silence(pace, LIMITS, IDLE, now=899).verdict == "fine"
    late = judge_silence(pace, LIMITS, IDLE, now=901)
    assert late.verdict == "stalled"
    assert "before the first step" in late.message


def test_the_limit_follows_the_pace_but_not_below_the_minimum() -> None:
    assert silence_limit_s(_pace(10, 11, 12), LIMITS) == 180
    assert silence_limit_s(_pace(10, 110, 210), LIMITS) == 1000


def test_thirty_five_minutes_between_two_log_lines_of_a_slow_trainer_are_no_hang() -> None:
    """Steps of 105 s, logged at 1, 5 and 20: the case that was once taken for a hang."""
    pace = Pace(started=0.0)
    pace.advance(1, 105)
    pace.advance(5, 525)
    just_before = 525 + 15 * 105 - 1
    assert judge_silence(pace, LIMITS, IDLE, now=just_before).verdict == "fine"


def test_past_the_limit_a_busy_run_is_slow_and_an_idle_one_stalled() -> None:
    pace = _pace(10, 11, 12)
    assert judge_silence(pace, LIMITS, IDLE, now=12 + 181).verdict == "stalled"
    slow = judge_silence(pace, LIMITS, BUSY, now=12 + 181)
    assert slow.verdict == "slow"
    assert "1.90 CPU cores" in slow.message


def test_patience_with_a_busy_run_ends() -> None:
    """A live-lock spins for ever; only the pace seen so far tells it from a long step."""
    assert judge_silence(_pace(10, 11, 12), LIMITS, BUSY, now=12 + 4 * 180 + 1).verdict == "stalled"


@pytest.mark.parametrize(
    ("activity", "busy"),
    [
        (Activity(cpu_cores=1.0, gpu_working=True, gpu_spinning=True), True),
        (Activity(cpu_cores=1.0, gpu_working=False, gpu_spinning=True), False),  # a collective waits for a lost rank
        (Activity(cpu_cores=1.0, gpu_working=False, gpu_spinning=False), True),  # data preparation
        (Activity(cpu_cores=0.0, gpu_working=True), True),
        (Activity(cpu_cores=1.0, stopped=(7,)), False),
        (Activity(cpu_cores=0.05), False),
        (Activity(), False),
    ],
)
def test_what_counts_as_busy(activity: Activity, busy: bool) -> None:
    assert activity.busy is busy
    assert activity.describe()


def test_a_jump_in_pace_is_believed_at_once() -> None:
    pace = _pace(1, 2, 3, 4, 64)
    assert pace.report_s == 60


def test_several_steps_in_one_look_do_not_inflate_the_pace() -> None:
    pace = Pace(started=0.0)
    pace.advance(10, 1.0, reports=10)
    pace.advance(20, 2.0, reports=10)
    assert pace.report_s == pytest.approx(0.1)
    assert pace.step_s == pytest.approx(0.1)


def test_the_time_to_the_end_is_computed_from_the_pace() -> None:
    """ "~73 h" was once claimed for 50,000 steps at 105 s; it is 1,458 h."""
    pace = _pace(105, 210, 315)
    assert pace.eta_s(50_000, 315) == pytest.approx((50_000 - 3) * 105)
    assert (pace.eta_s(50_000, 315) or 0) / 3600 == pytest.approx(1458, rel=0.001)
    assert pace.eta_s(3, 400) == 0
    assert _pace(1).eta_s(10, 2) is None


@pytest.mark.parametrize(("every", "due"), [(1, 10), (105, 1050)])
def test_a_pace_that_no_step_keeps_is_known_no_more(every: int, due: int) -> None:
    pace = _pace(every, 2 * every, 3 * every)
    last = 3 * every
    assert pace.eta_s(50_000, last + due) is not None
    assert pace.overdue_s(50_000, last + due) is None
    assert pace.eta_s(50_000, last + due + 1) is None
    assert pace.overdue_s(50_000, last + due + 1) == due + 1
    assert pace.eta_s(4, last + every) is None, "not 0 s while a step is missing"
    assert pace.overdue_s(3, last + due + 1) is None, "nothing is missing"

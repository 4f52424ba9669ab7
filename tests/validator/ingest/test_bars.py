"""The time of a step where a trainer shows nothing but a progress bar, whose clock has whole seconds."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.validator.ingest.bars import (
    START_S,
    Write,
    in_blocks,
    paused,
    polled,
    real,
    record_of,
    times,
    watched,
    with_losses,
    writes,
)
from validator.diagnose import diagnose_run
from validator.model.metrics import TrainerMetrics
from validator.model.record import RunRecord
from validator.model.result import CoarseClock
from validator.stats.measure import RunMeasurement, measure


def clock_of(record: RunRecord) -> CoarseClock:
    assert record.result is not None
    found = record.result.series["step_time_s"].clock
    assert found is not None
    return found


def measured(record: RunRecord) -> RunMeasurement:
    assert record.result is not None
    return measure(record.result, warmup_steps=20)


def halves(record: RunRecord, truth: float) -> float:
    """Half of the interval of the mean time of a step over that mean, which must hold the truth."""
    stats = measured(record).metrics["step_time_s"]
    assert stats.mean is not None
    assert stats.ci_low is not None
    assert stats.ci_high is not None
    assert stats.ci_low <= truth <= stats.ci_high
    return (stats.ci_high - stats.ci_low) / 2 / stats.mean


def without_stamps(folder: Path) -> Path:
    (folder / "arrivals.jsonl").unlink()
    return folder


def note_of(record: RunRecord) -> str:
    return measured(record).metrics["step_time_s"].note or ""


def test_the_bar_of_these_tests_is_the_one_of_tqdm() -> None:
    tqdm = pytest.importorskip("tqdm").tqdm
    seconds = paused(times(300), 50, 1.5)
    shown = re.compile(r"\r +\d+%\|.*\| (\d+)/300 \[(\d\d:\d\d)<")
    own, its = ([(at, shown.match(text)) for at, text in made] for made in (writes(seconds)[1:], real(seconds, tqdm)))
    drawn, its_drawn = ([(round(at, 6), found.groups()) for at, found in one if found] for one in (own, its))
    assert drawn == its_drawn
    assert len(drawn) > 80


def test_a_steady_bar_is_timed_by_its_lines_to_a_per_cent(tmp_path: Path) -> None:
    """600 steps of 44 ms had an interval of 25 % by the seconds of the bar."""
    seconds = times()
    record = record_of(watched(tmp_path / "r", writes(seconds)))
    clock = clock_of(record)
    assert clock.by_arrival
    assert clock.end_s < 0.15
    assert halves(record, float(np.mean(seconds[20:]))) < 0.02
    assert measured(record).metrics["step_time_s"].n > 100
    assert "timed by the arrival of its lines, which the trainer's clock of whole seconds confirms" in note_of(record)
    assert measured(record).steady


@pytest.mark.parametrize("seconds", [times(), times(60, each=2.7), times(2000, cv=0.4)], ids=["fast", "slow", "uneven"])
def test_without_stamps_the_rounding_is_at_the_ends_alone(tmp_path: Path, seconds: list[float]) -> None:
    record = record_of(without_stamps(watched(tmp_path / "r", writes(seconds))), steps=len(seconds))
    assert not clock_of(record).by_arrival
    span = sum(seconds[20:])
    assert halves(record, float(np.mean(seconds[20:]))) < 1.6 / span + 0.05
    assert "by the trainer's clock of whole seconds: up to 1 s at the ends" in note_of(record)


@pytest.mark.parametrize("stamped", [True, False])
def test_the_rate_and_its_drift_have_what_the_clock_leaves_open(tmp_path: Path, stamped: bool) -> None:
    """Each third of 26 s is known to a second by the bar alone: a drift of 20 % is then not excluded."""
    folder = watched(tmp_path / "r", writes(times()))
    record = record_of(folder if stamped else without_stamps(folder), tokens_per_step=4096)
    found = measured(record)
    rate, drift = found.metrics["toks_per_s"], found.scalars["rate.drift_pct"]
    assert rate.mean == pytest.approx(4096 / np.mean(times()[20:]), rel=0.005 if stamped else 0.03)
    assert rate.ci_low is not None
    assert 1 - rate.ci_low / rate.mean == pytest.approx(halves(record, float(np.mean(times()[20:]))), rel=0.1)
    if not stamped:
        assert (drift.ci_low, drift.ci_high) == (None, None)
        assert "too short to say how its rate drifts" in drift.note
        return
    assert drift.ci_low is not None
    assert drift.ci_high is not None
    assert drift.ci_low < 0 < drift.ci_high < drift.ci_low + 12


@pytest.mark.parametrize("stamped", [True, False])
def test_a_bar_that_becomes_half_as_fast_is_found(tmp_path: Path, stamped: bool) -> None:
    seconds = times(300) + times(300, each=0.088)
    folder = watched(tmp_path / "r", writes(seconds))
    record = record_of(folder if stamped else without_stamps(folder))
    found = measured(record)
    assert clock_of(record).by_arrival is stamped
    assert found.metrics["step_time_s"].mean == pytest.approx(np.mean(seconds[20:]), rel=0.02 if stamped else 0.05)
    assert found.window_found is not None
    assert found.window_found.slowed
    assert found.window_found.levels[-1].first_step == pytest.approx(301, abs=6 if stamped else 50)
    assert found.estimate("step_time_s", "mean").reach[1] > 0.085


@pytest.mark.parametrize("stamped", [True, False])
def test_a_pause_at_every_fiftieth_step_is_found_in_a_bar(tmp_path: Path, stamped: bool) -> None:
    seconds = paused(times(), 50, 2.0)
    folder = watched(tmp_path / "r", writes(seconds))
    record = record_of(folder if stamped else without_stamps(folder))
    assert clock_of(record).by_arrival is stamped
    truth = sum(seconds[20:]) / 580
    assert measured(record).metrics["step_time_s"].mean == pytest.approx(truth, rel=0.01 if stamped else 0.06)
    assert halves(record, truth) < (0.06 if stamped else 0.2)
    if stamped:
        (stall,) = (one for one in diagnose_run(record) if one.code == "periodic-stall")
        assert "2 s more about every 50 steps" in stall.message
        assert stall.severity == "warning"
        assert stall.confidence == "high"


@pytest.mark.parametrize("clumped", [False, True])
def test_the_bar_of_the_trainer_of_hugging_face_must_confirm_its_stamps_too(tmp_path: Path, clumped: bool) -> None:
    metrics = TrainerMetrics(reader=("hf-trainer",))
    made = list(with_losses(writes(times())))
    folder = watched(tmp_path / "r", in_blocks(made) if clumped else made, metrics=metrics)
    record = record_of(folder, metrics=metrics)
    assert clock_of(record).by_arrival is not clumped
    assert halves(record, float(np.mean(times()[20:]))) < (0.08 if clumped else 0.02)
    assert record.result is not None
    assert len(record.result.series["loss"].steps) == 10


def test_a_bar_that_begins_anew_in_each_epoch_is_timed_within_each(tmp_path: Path) -> None:
    """As the one of Lightning: the wait between two bars is no time of a step."""
    metrics = TrainerMetrics(stdout=r"^Epoch +{epoch}: +\d+%\|[^|]*\| (?!0/){step}/{steps_per_epoch} \[{elapsed_s}<")
    made: list[Write] = []
    for epoch in range(4):
        start = epoch * (sum(times(200)) + 3.0)
        made += [(at + start, text.replace("\r", f"\rEpoch {epoch}: ")) for at, text in writes(times(200))]
    record = record_of(watched(tmp_path / "r", made, metrics=metrics), metrics=metrics, steps=800)
    assert clock_of(record).by_arrival
    assert measured(record).metrics["step_time_s"].mean == pytest.approx(np.mean(times(200)), rel=0.02)
    assert record.result is not None
    assert record.result.scalars["steps.done"].value == 800


def test_what_is_logged_behind_a_bar_explains_its_pauses(tmp_path: Path) -> None:
    """A logger writes where the bar left the cursor, so its text ends the bar's line."""
    made = writes(paused(times(), 150, 1.0))
    at = [i for i, (now, _) in enumerate(made[:-3]) if made[i + 1][0] - now > 0.9]
    for i in at:
        made[i] = made[i][0], f"{made[i][1]}11/22/2026 - INFO - epoch 1: perplexity: 13.4\n"
    (stall,) = (one for one in diagnose_run(record_of(watched(tmp_path / "r", made))) if one.code == "periodic-stall")
    assert len(at) == 4
    assert "The log names a validation, a checkpoint or the end of an epoch there." in stall.message
    assert stall.severity == "info"


def test_a_bar_that_stands_still_and_catches_up_loses_no_time(tmp_path: Path) -> None:
    """The trainer tells its bar every 40 steps, and stops for 9 s within 40 of them."""
    seconds = times()
    seconds[310] += 9.0
    record = record_of(watched(tmp_path / "r", writes(seconds, by=40)))
    assert clock_of(record).by_arrival
    assert measured(record).metrics["step_time_s"].mean == pytest.approx(np.mean(seconds[40:]), rel=0.02)
    assert measured(record).metrics["step_time_s"].max == pytest.approx(0.044 + 9 / 40, rel=0.05)


LATE = {
    "blocks": in_blocks(writes(times(1200))),
    "small blocks": in_blocks(writes(times(1200)), 1000),
    "polled": polled(writes(times(1200)), 1.7),
    "held back from the middle on": [(at + (3.0 if at > 30 else 0.0), text) for at, text in writes(times(1200))],
    "ever later": [(at * 1.05, text) for at, text in writes(times(1200))],
}


@pytest.mark.parametrize("made", LATE.values(), ids=LATE)
def test_output_that_comes_late_or_in_clumps_is_timed_by_its_own_seconds(tmp_path: Path, made: list[Write]) -> None:
    record = record_of(watched(tmp_path / "r", made), steps=1200)
    clock = clock_of(record)
    truth = float(np.mean(times(1200)[20:]))
    assert halves(record, truth) < 0.06
    assert not clock.by_arrival or clock.end_s < 0.3


def test_a_few_late_lines_are_left_out(tmp_path: Path) -> None:
    made = [(at + (0.8 if i % 15 == 7 else 0.0), text) for i, (at, text) in enumerate(writes(times()))]
    record = record_of(watched(tmp_path / "r", sorted(made, key=lambda one: one[0])))
    assert halves(record, float(np.mean(times()[20:]))) < 0.05


def test_a_clock_that_stands_still_in_pauses_confirms_no_stamp(tmp_path: Path) -> None:
    """Its trainer subtracts what it does not want to count."""
    stopped = {round(at, 6): text for at, text in writes(times())}
    made = [(at + 2.0 * ((at - 4.37) // 5), text) for at, text in stopped.items()]
    record = record_of(watched(tmp_path / "r", made))
    assert not clock_of(record).by_arrival


def test_a_run_in_progress_is_read_as_it_is_read_afterwards(tmp_path: Path) -> None:
    folder = watched(tmp_path / "r", writes(times()))
    now, then = (record_of(folder, ended=ended).result for ended in (False, True))
    assert now is not None
    assert then is not None
    one, other = (found.series["step_time_s"] for found in (now, then))
    assert one.steps.tolist() == other.steps.tolist()
    assert one.values.tolist() == other.values.tolist()
    assert one.clock == other.clock


def test_a_bar_that_is_closed_late_has_done_all_its_steps(tmp_path: Path) -> None:
    """What shows the last steps is seen when the model is saved and the bar closed: the row has no time that its clock
    confirms, and a healthy run was NO-GO for 2 steps of 500."""

    def bar(step: int, seconds: float) -> Write:
        clock = f"{int(seconds) // 60:02}:{int(seconds) % 60:02}"
        return START_S + seconds, f"\r{step // 6:3}%|####      | {step}/600 [{clock}<00:10, 10.26it/s]"

    at = np.cumsum(times(600, each=0.0975))
    made = [bar(step, float(at[step - 1])) for step in range(2, 600, 2)]
    done, end = bar(600, float(at[599]))[1], START_S + float(at[599]) + 1.6
    rest = "\nModel weights saved in out/model.safetensors\n" + bar(600, float(at[599]) + 1.6)[1] + "\n"
    late = [(START_S, bar(0, 0.0)[1]), *made, (end, done + rest)]
    record = record_of(watched(tmp_path / "run", late))
    assert record.result is not None
    assert record.result.scalars["steps.done"].value == 600
    assert not [one for one in diagnose_run(record) if one.code == "ended-early"]

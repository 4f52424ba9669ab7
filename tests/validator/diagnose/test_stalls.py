"""Single steps that take longer than the others: pauses with a period or without, and which of them are meant."""

from __future__ import annotations

import json
import random
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.validator.diagnose.cases import healthy, of_folder, of_run
from tests.validator.diagnose.test_steadiness import LOG, N, alone, found, times
from tests.validator.ingest.folders import write_arrivals, write_csv
from validator.diagnose.stalls import _beside_evaluations, _period, _reason_if_meant
from validator.model.result import PrintedPlaces, Series
from validator.model.verdict import Finding


def test_a_pause_at_every_seventh_step(tmp_path: Path) -> None:
    finding = found(tmp_path, [s + (0.5 if i % 7 == 0 else 0) for i, s in enumerate(times(), 1)])["periodic-stall"]
    assert (finding.severity, finding.confidence) == ("warning", "high")
    assert "0.495 s more every 7 steps (steps 14, 21" in finding.message
    assert "3.42 % of the time" in finding.message


def test_small_delays_of_a_busy_machine_do_not_hide_the_period_of_large_pauses(tmp_path: Path) -> None:
    late = {31: 0.5, 54: 0.4, 107: 0.5, 173: 0.4}
    finding = found(tmp_path, [s + (3 if i % 20 == 0 else late.get(i, 0)) for i, s in enumerate(times(), 1)])
    stall = finding["periodic-stall"]
    assert stall.confidence == "high"
    assert "s more every 20 steps (steps 20, 40, 60" in stall.message


def test_a_pause_that_step_times_leave_out_is_seen_by_the_heartbeats_clock(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "r", rates=[4096 / one for one in times()], losses=[4 + 2 / (i + 1) for i in range(N)])
    for path in folder.glob("heartbeat_rank*.jsonl"):
        beats = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps({**one, "ts": one["ts"] + one["step"] // 25}) + "\n" for one in beats))
    finding = of_run(folder, steps=N)["periodic-stall"]
    assert "1 s more every 25 steps (steps 25, 50" in finding.message
    assert "between the heartbeats of two steps" in finding.message
    assert "periodic-stall" not in of_run(folder, steps=N, pause_every=25)


@pytest.mark.parametrize(("pause_s", "named"), [(1.0, False), (400.0, True)])
def test_pauses_that_are_meant_and_take_most_of_the_time_are_named(tmp_path: Path, pause_s: float, named: bool) -> None:
    """Pauses of 10 s at the end of each epoch took 75 % of the time, without a word, for a validation is there."""
    folder = healthy(tmp_path / "r", rates=[4096 / one for one in times()], losses=[4 + 2 / (i + 1) for i in range(N)])
    for path in folder.glob("heartbeat_rank*.jsonl"):
        beats = [json.loads(line) for line in path.read_text().splitlines()]
        late = [{**one, "ts": one["ts"] + pause_s * (one["step"] // 25)} for one in beats]
        path.write_text("".join(json.dumps(one) + "\n" for one in late))
    finding = of_run(folder, steps=N, pause_every=25).get("periodic-stall")
    assert (finding is not None) is named
    assert finding is None or (finding.severity, "more of the time than the training" in finding.message) == (
        "warning",
        True,
    )


def test_a_record_that_is_late_and_made_up_for_is_no_stall(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "r", rates=[4096 / one for one in times()], losses=[4 + 2 / (i + 1) for i in range(N)])
    for path in folder.glob("heartbeat_rank*.jsonl"):
        beats = [json.loads(line) for line in path.read_text().splitlines()]
        late = [{**one, "ts": one["ts"] + (0.8 if one["step"] % 10 == 1 else 0.0)} for one in beats]
        path.write_text("".join(json.dumps(one) + "\n" for one in late))
    assert "periodic-stall" not in of_run(folder, steps=N)


def test_pauses_now_and_then(tmp_path: Path) -> None:
    slow = {33, 71, 90, 148, 190, 201}
    finding = found(tmp_path, [s + (3.0 if i in slow else 0) for i, s in enumerate(times(), 1)])["periodic-stall"]
    assert (finding.severity, finding.confidence) == ("warning", "medium")
    assert "6 times without a period (steps 33, 71" in finding.message


def test_a_period_is_found_among_other_pauses(tmp_path: Path) -> None:
    """A validation at step 150 and a step that the machine delayed hid the period of a pause at every twentieth."""
    pauses = dict.fromkeys(range(19, N + 1, 20), 1.0) | {57: 0.6, 150: 3.0, 206: 0.7}
    seconds = [s + pauses.get(i, 0.0) for i, s in enumerate(times(), 1)]
    finding = found(tmp_path / "a", seconds)["periodic-stall"]
    assert (finding.severity, finding.confidence) == ("warning", "high")
    assert "every 20 steps (steps 19, 39, 59" in finding.message
    declared = found(tmp_path / "b", seconds, effective={"val_every": 20})["periodic-stall"]
    assert "3 times without a period (steps 57, 150, 206)" in declared.message, "the others are still said"


def test_pauses_are_in_seconds_where_only_a_rate_is_written(tmp_path: Path) -> None:
    """1,152 tokens a step: per token a pause of 0.2 s is 0.2 ms, and was taken for a hiccup of the machine."""
    slow = {33, 71, 90, 148, 149, 190, 201}
    write_csv(tmp_path, [1152 / (s / 40 + (0.2 if i in slow else 0)) for i, s in enumerate(times(), 1)])
    write_arrivals(tmp_path, [s / 40 + (0.2 if i in slow else 0) for i, s in enumerate(times(), 1)])
    finding = of_run(tmp_path, steps=N)["periodic-stall"]
    assert finding.severity == "warning"
    assert "takes 0.2 s more 7 times" in finding.message


def test_pauses_that_no_printed_time_holds_are_seen_between_two_lines(tmp_path: Path) -> None:
    """A line with the time of its own step leaves a validation out, and what it took had no name."""
    write_csv(tmp_path, times())
    write_arrivals(tmp_path, [s + (9.0 if i % 40 == 0 else 0) for i, s in enumerate(times(), 1)])
    finding = of_run(tmp_path, steps=N)["periodic-stall"]
    assert "takes 9.01 s more every 40 steps (steps 40, 80, 120" in finding.message
    assert "between the arrival of two lines" in finding.message


def _stamped(folder: Path, seconds: Sequence[float], *, apart_s: float) -> dict[str, Finding]:
    """What a run shows that writes a row every five steps, when each was over, and stamps of them `apart_s` or more
    from one another: each is of the last row before it."""
    ends, steps, gaps, last = list(accumulate(seconds)), [], [], 0.0
    while last < ends[-1]:
        due = last + apart_s
        row = max(bisect_right(ends, due), bisect_right(ends, last) + 1)  # it waits for a row where none is there
        at = max(due, ends[min(row, len(ends)) - 1])
        steps, gaps, last = [*steps, 5 * min(row, len(ends))], [*gaps, at - last], at
    rows = [f"{5 * i},{4 + 2 / i}" for i in range(1, len(ends) + 1)]
    folder.mkdir(exist_ok=True)
    (folder / "training.csv").write_text("\n".join(["step,loss", *rows, ""]))
    write_arrivals(folder, gaps, steps=steps)
    return of_run(folder, steps=5 * len(seconds))


@pytest.mark.parametrize("step_s", [0.0205, 0.0229, 0.0301, 0.0334, 0.041])
@pytest.mark.parametrize("late_s", [0.0, 0.004])
def test_stamps_that_hold_two_rows_or_three_show_no_pauses(tmp_path: Path, step_s: float, late_s: float) -> None:
    """Of rows that come more often than stamps, a stamp holds now one more and now one less, by a period of its own."""
    draw = random.Random(5)
    seconds = [step_s + abs(draw.gauss(0, late_s)) for _ in range(600)]
    assert "periodic-stall" not in _stamped(tmp_path, seconds, apart_s=0.05)


def test_a_stamp_that_is_late_by_one_is_no_pause(tmp_path: Path) -> None:
    """A bar is redrawn every 0.1 s, and its stamps are taken every 0.05: a healthy run lost 9 % of its time so."""
    draw = random.Random(7)
    folder = tmp_path / "r"
    write_csv(folder, [4096.0] * 240, losses=[4 + 2 / (i + 1) for i in range(240)])
    (folder / "training.csv").write_text("\n".join(["step,loss", *(f"{6 * i},{4 + 2 / i}" for i in range(1, 121)), ""]))
    gaps = [0.1508 if draw.random() < 0.15 else 0.1006 for _ in range(120)]
    write_arrivals(folder, gaps, steps=range(6, 721, 6))
    assert "periodic-stall" not in of_run(folder, steps=720)
    write_arrivals(folder, [gap + 0.3 * (i % 20 == 19) for i, gap in enumerate(gaps)], steps=range(6, 721, 6))
    assert "every 120 steps" in of_run(folder, steps=720)["periodic-stall"].message


def test_a_pause_that_is_longer_than_between_two_stamps_is_seen(tmp_path: Path) -> None:
    seconds = [0.0205 + (0.3 if i % 60 == 0 else 0) for i in range(1, 601)]
    message = _stamped(tmp_path, seconds, apart_s=0.05)["periodic-stall"].message
    assert "every 300 steps (steps 300, 600" in message


def test_pauses_stand_out_of_a_stretch_of_slow_steps(tmp_path: Path) -> None:
    """Other programs slowed the first third of a run, and pauses every 40 steps that took 20 % of it were not named."""
    noise = np.random.default_rng(0).uniform(1.2, 2.0, N)
    seconds = [s * (noise[i - 1] if i < 90 else 1) + (8.0 if i % 20 == 0 else 0) for i, s in enumerate(times(), 1)]
    assert "every 20 steps" in found(tmp_path, seconds)["periodic-stall"].message


def test_pauses_that_cost_little_are_information(tmp_path: Path) -> None:
    finding = found(tmp_path, [s + (0.6 if i % 40 == 0 else 0) for i, s in enumerate(times(), 1)])["periodic-stall"]
    assert finding.severity == "info"


def test_a_declared_cadence_and_a_recorded_validation_are_no_stalls(tmp_path: Path) -> None:
    seconds = [s + (0.5 if i % 20 == 0 else 0) for i, s in enumerate(times(), 1)]
    assert "periodic-stall" in found(tmp_path / "a", seconds)
    assert "periodic-stall" not in found(tmp_path / "b", seconds, effective={"val_every": 20})
    folder = tmp_path / "c" / "r"
    folder.mkdir(parents=True)
    rows = "".join(f"{step},3.0\n" for step in range(20, N + 1, 20))
    (folder / "val.csv").write_text("step,loss\n" + rows)
    assert "periodic-stall" not in found(tmp_path / "c", seconds)


@pytest.mark.parametrize("late", [{20: 5, 31: 6, 86: 6, 97: 7}, {30: 6, 60: 6, 90: 7}], ids=["missing", "few"])
def test_a_few_delays_of_milliseconds_keep_a_period_by_chance(tmp_path: Path, late: Mapping[int, float]) -> None:
    """Steps of 2 ms beside another program: four late ones of a hundred were pauses at every eleventh step."""
    short = [s / 1000 for s in times()]
    of_machine = [s + late.get(i, 0) / 1000 for i, s in enumerate(short, 1)]
    assert "periodic-stall" not in found(tmp_path / "a", of_machine)
    of_trainer = [s + (0.006 if i % 30 == 0 else 0) for i, s in enumerate(short, 1)]
    assert "every 30 steps" in found(tmp_path / "b", of_trainer)["periodic-stall"].message
    long = [s + 0.05 * late.get(i, 0) for i, s in enumerate(short, 1)]
    assert "periodic-stall" in found(tmp_path / "c", long), "what takes as long is said, with a period or without"


def test_pauses_that_the_log_names_are_information(tmp_path: Path) -> None:
    at = range(37, N + 1, 37)
    slow = [s + (2.0 if i in at else 0) for i, s in enumerate(times(), 1)]
    named = alone(tmp_path / "a", slow, dict.fromkeys(at, "evaluating on 64 batches"))["periodic-stall"]
    assert named.severity == "info"
    assert named.message.endswith("The log names a validation, a checkpoint or the end of an epoch there.")
    assert alone(tmp_path / "b", slow)["periodic-stall"].severity == "warning"
    stamped = {step - 1: "checkpoint written" for step in at}  # where stamps of arrival leave out the step before
    assert alone(tmp_path / "e", slow, stamped)["periodic-stall"].severity == "info"
    everywhere = alone(tmp_path / "c", slow, dict.fromkeys(range(2, N + 1), "epoch 1"))["periodic-stall"]
    assert everywhere.severity == "warning"
    elsewhere = alone(tmp_path / "d", slow, {step + 5: "checkpoint written" for step in at if step + 5 <= N})
    assert elsewhere["periodic-stall"].severity == "warning"


@pytest.mark.parametrize(
    ("evaluated", "meant"), [(range(50, 400, 50), True), (range(20, 400, 50), False), (range(1, 400, 2), False)]
)
def test_pauses_where_a_loss_of_the_validation_is_written_are_meant(evaluated: range, meant: bool) -> None:
    """Where a log is read as records no line names them: a healthy trainer had a warning for its evaluations."""

    series = {
        name: Series(name, "", np.array(steps), np.ones(len(steps)), LOG)
        for name, steps in (("loss", range(5, 401, 5)), ("val_loss", evaluated))
    }
    run = SimpleNamespace(series=series.get, result=SimpleNamespace(series=series))
    assert _beside_evaluations(run, np.array([51, 105, 155, 205, 255, 305, 353])) is meant  # type: ignore[arg-type]


def test_a_validation_between_two_rows_is_in_the_pause_of_the_later_one() -> None:
    """Rows of every 20 steps and evaluations of every 50: the rows at 60 and 120 are slow, and were a warning."""
    series = {
        name: Series(name, "", np.arange(0, 401, each), np.ones(400 // each + 1), LOG)
        for name, each in (("loss", 20), ("val_loss", 50))
    }
    run = SimpleNamespace(series=series.get, result=SimpleNamespace(series=series))
    assert _beside_evaluations(run, np.array([60, 120, 160, 220, 260, 320, 360]))  # type: ignore[arg-type]
    assert not _beside_evaluations(run, np.array([40, 100, 140, 200, 240, 300, 340]))  # type: ignore[arg-type]


def test_pauses_where_an_epoch_begins_are_meant() -> None:
    """A bar begins again there, whatever stands between: a table of the validation, say."""
    steps = np.arange(5, 401, 5)
    places = PrintedPlaces(steps, steps, steps[:0], epochs=((80, 85), (160, 165), (240, 245), (320, 325)))
    run = SimpleNamespace(
        evidence=SimpleNamespace(places=places),
        series=lambda name: None,
        planned=True,
        result=SimpleNamespace(series={}),
    )
    assert _reason_if_meant(run, np.array([85, 165, 245, 325]), 80).startswith(" They are where one epoch ends")  # type: ignore[arg-type]
    assert _reason_if_meant(run, np.array([50, 85, 120, 155]), 35) == ""  # type: ignore[arg-type]


def test_two_pauses_keep_no_period_where_their_steps_are_not_known_exactly() -> None:
    assert _period(np.array([342, 679]), 20, 5) is None
    assert _period(np.array([250, 500]), 20, 0) == 250


def test_a_pause_belongs_to_all_steps_of_the_row_that_holds_it() -> None:
    """Rows with a stamp come every few steps: a validation at 300 was looked for in the row of 302 alone."""
    steps = np.arange(1, 1201)
    run = SimpleNamespace(
        evidence=SimpleNamespace(places=PrintedPlaces(steps, steps, np.arange(100, 1201, 100))),
        series=lambda name: None,
        planned=True,
        result=SimpleNamespace(series={}),
    )
    at = np.array([201, 302, 502, 602, 902, 1002, 1102])
    assert _reason_if_meant(run, at, 100) == ""  # type: ignore[arg-type]
    assert _reason_if_meant(run, at, 100, reach=3).startswith(" The log names a validation")  # type: ignore[arg-type]


def test_a_period_that_somebody_set_is_information_in_a_log_by_itself(tmp_path: Path) -> None:
    """A runbook declares a pause that is meant; a log cannot."""
    slow = [s + (2.0 if i % 20 == 0 else 0) for i, s in enumerate(times(), 1)]
    assert alone(tmp_path / "a", slow)["periodic-stall"].severity == "info"
    assert found(tmp_path / "b", slow)["periodic-stall"].severity == "warning"
    slow = [s + (2.0 if i % 17 == 0 else 0) for i, s in enumerate(times(), 1)]
    assert alone(tmp_path / "c", slow)["periodic-stall"].severity == "warning"


def test_one_long_gap_among_pauses_that_are_named_is_a_warning(tmp_path: Path) -> None:
    slow = [s + (3000.0 if i == 100 else 2.0 if i % 20 == 0 else 0) for i, s in enumerate(times(), 1)]
    finding = alone(tmp_path, slow, dict.fromkeys(range(20, N + 1, 20), "evaluating"))["periodic-stall"]
    assert finding.severity == "warning"
    assert "The longest alone, at step 100, takes 50 min" in finding.message


def test_hiccups_that_cost_one_percent_are_information(tmp_path: Path) -> None:
    at = {33, 71, 90, 148, 190, 201}
    for extra, severity in ((1.1, "info"), (3.0, "warning")):
        slow = [s + (extra if i in at else 0) for i, s in enumerate(times(), 1)]
        assert alone(tmp_path / severity, slow)["periodic-stall"].severity == severity


def test_few_long_pauses_with_a_period_among_many_short_ones(tmp_path: Path) -> None:
    """Most slow steps keep no period; those that cost the time do."""
    late = dict.fromkeys((7, 31, 37, 54, 66, 83, 107, 129, 142, 173, 205, 222), 0.2)
    finding = found(tmp_path, [s + (9 if i % 40 == 0 else late.get(i, 0)) for i, s in enumerate(times(), 1)])
    assert "every 40 steps (steps 40, 80, 120" in finding["periodic-stall"].message


@pytest.mark.parametrize("first", [100, 101])
def test_two_validations_at_multiples_of_a_number_have_that_period(tmp_path: Path, first: int) -> None:
    """Recorded of nanoGPT: 601 steps, evaluations at 0, 250 and 500, of which warm-up hides the first, and steps that a
    busy machine delayed. "11 times without a period" was said, and `pause_every: 250` would have answered it."""
    pauses = {first: 20.0, first + 100: 15.0} | dict.fromkeys((133, 134, 136, 172, 202, 206), 1.0)
    shown = found(tmp_path, [s + pauses.get(i, 0.0) for i, s in enumerate(times(), 1)])["periodic-stall"]
    assert f"every 100 steps (steps {first}, {first + 100})" in shown.message
    assert shown.confidence == "high"


@pytest.mark.parametrize("pauses", [(90, 200), (110, 200), (61, 161)])
def test_two_pauses_elsewhere_have_none(tmp_path: Path, pauses: tuple[int, int]) -> None:
    late = dict.fromkeys(pauses, 20.0) | dict.fromkeys((133, 134, 136, 172, 202, 206), 1.0)
    shown = found(tmp_path, [s + late.get(i, 0.0) for i, s in enumerate(times(), 1)])["periodic-stall"]
    assert "times without a period" in shown.message


def test_a_late_line_of_an_earlier_step_is_no_pause(tmp_path: Path) -> None:
    """Rows of every tenth step, which are complete when the next line comes, were stamped among those of every step."""
    rates = times()
    folder = healthy(tmp_path / "r", rates=[845.0] * len(rates))
    path = write_arrivals(folder, [0.08] * len(rates))
    lines = path.read_text().splitlines()
    for line in range(15, len(lines), 10):
        entry = json.loads(lines[line])
        lines[line] = json.dumps({**entry, "step": entry["step"] - 6})
    path.write_text("\n".join(lines) + "\n")
    assert "periodic-stall" not in of_run(folder, steps=len(rates))


def test_a_rate_alone_gives_times_of_tokens(tmp_path: Path) -> None:
    """A row of 36 tok/s among 450 was said to be a step that takes 0.0256 s more, where no step's tokens are known."""
    lines = (f"step {i} loss {3 - i / 200:.3f} {36 if i % 20 == 0 else 450 + i % 7} tok/s" for i in range(1, 121))
    (tmp_path / "train.log").write_text("\n".join(lines) + "\n")
    found = of_folder(tmp_path / "train.log")["periodic-stall"]
    assert found.message.startswith("A token takes 0.0256 s more every 20 steps")
    assert found.evidence[0].text.startswith("median token 0.0022")

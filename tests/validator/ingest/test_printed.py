"""What logs of many print formats come to: rates, NaN, pauses, averages, epochs, several runs, several streams.

Each format is made here by a generator from the same times of the steps, so that the truth is known.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest

from validator.ingest import collect_dir
from validator.model.columns import contract_values
from validator.model.pattern import line_pattern
from validator.model.recipes import recognize
from validator.model.result import Result
from validator.model.runbook import TrainerMetrics

STEPS = 400
Times = list[float]
Form = Callable[[Times, list[float]], Iterator[str]]


def times(pause: float = 0.0, every: int = 100) -> Times:
    """Seconds of each step, with a pause at the end of every so many."""
    return [0.5 + 0.01 * (i % 7) + (pause if i % every == 0 else 0.0) for i in range(1, STEPS + 1)]


def losses() -> list[float]:
    return [4.0 - 2.5 * i / STEPS for i in range(STEPS)]


def running(own: Times) -> list[float]:
    return list(accumulate(own))


def clock(seconds: float) -> str:
    return f"{int(seconds) // 3600}:{int(seconds) // 60 % 60:02}:{int(seconds) % 60:02}"


def plain(own: Times, loss: list[float]) -> Iterator[str]:
    return (f"step {i} loss {x:.4f} time {1e3 * t:.2f}ms" for i, (t, x) in enumerate(zip(own, loss, strict=True), 1))


def one_in_ten(own: Times, loss: list[float]) -> Iterator[str]:
    """The time of the one step that the line is about; evaluations always fall on such a step."""
    return (f"iter {i}: loss {loss[i - 1]:.4f}, time {1e3 * own[i - 1]:.2f}ms" for i in range(10, STEPS + 1, 10))


def cumulative(own: Times, loss: list[float]) -> Iterator[str]:
    """A running time that starts again behind the tenth step, and lines of validation at steps that have a line."""
    for i, (t, x) in enumerate(zip(running(own), loss, strict=True), 1):
        shown = 1e3 * (t if i <= 10 else t - running(own[:10])[-1])
        mean = "nan" if i <= 10 else f"{shown / (i - 10):.2f}"
        yield f"step:{i}/{STEPS} train_loss:{x:.4f} train_time:{shown:.0f}ms step_avg:{mean}ms"
        if i % 100 == 0:
            yield f"step:{i}/{STEPS} val_loss:{x:.4f} train_time:{shown:.0f}ms step_avg:{mean}ms"


def whole_seconds(own: Times, loss: list[float]) -> Iterator[str]:
    for i, (t, x) in enumerate(zip(running(own), loss, strict=True), 1):
        yield json.dumps({"current_steps": i, "total_steps": STEPS, "loss": x, "elapsed_time": clock(t)})


def dated(own: Times, loss: list[float]) -> Iterator[str]:
    """Dates of a logger, `HH:MM:SS,mmm` past midnight."""
    for i, (t, x) in enumerate(zip(running(own), loss, strict=True), 1):
        at = datetime(2026, 3, 4, 23, 58, 20, tzinfo=timezone.utc) + timedelta(seconds=t)
        yield f"{at:%Y-%m-%d %H:%M:%S},{at.microsecond // 1000:03} INFO step {i} loss {x:.4f}"


def in_nameless_epochs(own: Times, loss: list[float]) -> Iterator[str]:
    """A bar that counts to 25 and begins again, without a number of the epoch."""
    for i, (dt, x) in enumerate(zip(own, loss, strict=True)):
        yield f"{i % 25 + 1}/25 ==== {1e3 * dt:.1f}ms/step - loss: {x:.4f}"


def in_epochs(own: Times, loss: list[float]) -> Iterator[str]:
    for i, (t, x) in enumerate(zip(own, loss, strict=True)):
        yield f"Epoch: [{i // 100}][{i % 100:3}/100]\tTime {t:6.3f} ({t:6.3f})\tLoss {x:.4e} (1.0e+00)"


def bar(own: Times, loss: list[float]) -> Iterator[str]:
    """A bar that is redrawn, a dictionary behind it every tenth step, and a shorter bar of an evaluation."""
    drawn = ""
    for i, (t, x) in enumerate(zip(running(own), loss, strict=True), 1):
        drawn += f"\r {100 * i // STEPS}%|##  | {i}/{STEPS} [{clock(t)[2:]}<00:10,  {1 / own[i - 1]:.2f}it/s]"
        if i % 10 == 0:
            yield drawn
            yield f"{{'loss': {x:.4f}, 'grad_norm': 1.5, 'learning_rate': 5e-05, 'epoch': 0.1}}"
            drawn = ""
        if i % 100 == 0:
            yield "".join(f"\r {k}%|##  | {k}/20 [00:00<00:01,  90.00it/s]" for k in range(21))


def mean_so_far(own: Times, loss: list[float]) -> Iterator[str]:
    for i, (t, x) in enumerate(zip(running(own), loss, strict=True), 1):
        yield f"iter {i} avg {1e3 * t / i:.4f} loss {x:.4f}"


FORMS: list[tuple[Form, str | None]] = [
    (plain, None),
    (one_in_ten, None),
    (cumulative, None),
    (whole_seconds, None),
    (dated, None),
    (in_epochs, None),
    (in_nameless_epochs, "{step}/{steps_per_epoch} .* {step_time_ms}ms/step - loss: {loss}"),
    (bar, None),
    (mean_so_far, "iter {step} avg {mean_step_time_ms} loss {loss}"),
]


def read(tmp_path: Path, lines: Iterator[str], pattern: str | None = None, name: str = "train.log") -> Result:
    (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return collect_dir(tmp_path / name, metrics=None if pattern is None else TrainerMetrics(stdout=pattern))


def test_a_box_of_lines_begins_with_the_step_alone(tmp_path: Path) -> None:
    """As learners print that show a table for each update; a line that says what was saved begins no box."""
    lines = (
        text
        for i, t in enumerate(times(), 1)
        for text in ("-" * 30, f"| iterations | {i} |", f"| fps | {100 / t:.6f} |", f"| loss | {4 - i / 200:.4f} |")
    )
    pattern = r"iterations +\| {step}|fps +\| {toks_per_s}|loss +\| {loss}|saved at {step}"
    found = read(tmp_path, lines, pattern).series
    assert found["loss"].steps.tolist() == found["toks_per_s"].steps.tolist() == list(range(1, STEPS + 1))
    assert found["loss"].values[-1] == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("pattern", "line", "loss"),
    [
        ("{step} .*{loss} nats", "7 in all 12.25 nats", 12.25),
        ("{step} .*{loss} nats", "7 in all -3.5 nats", -3.5),
        ("{step}.*{loss}, {lr}", "7, 3.5, 2.5e-4", 3.5),
        ("^{step},{loss},{lr}$", "7,3.5,2.5e-4", 3.5),
        ("{epoch}[.]{step}:{loss}", "3.7:2.5", 2.5),
    ],
)
def test_what_stands_before_a_number_takes_none_of_its_digits(pattern: str, line: str, loss: float) -> None:
    found = line_pattern(pattern).read(line)
    assert (found.step, found.values["loss"], found.odd) == (7, loss, None)


def test_a_clock_of_whole_seconds_times_a_run_of_a_few_seconds(tmp_path: Path) -> None:
    """Twelve seconds at 20 steps a second: each row that shows a new second is as exact as rows are frequent."""
    own = [0.05 + (0.6 if i in (100, 150) else 0.0) for i in range(1, 241)]
    lines = (f"{clock(t)} batch {i} cost 3.1" for i, t in enumerate(running(own), 1))
    found = read(tmp_path, lines, "^{elapsed_s} batch {step} cost {loss}").series["step_time_s"]
    assert len(found.values) >= 8
    assert found.steps[0] <= 41
    seconds = float((np.diff(found.steps) * found.values[1:]).sum())
    truth = sum(own[found.steps[0] : found.steps[-1]])
    assert seconds == pytest.approx(truth, abs=0.12)


def mean_time(result: Result, *, after: int = 0) -> float:
    """Seconds a step, each row weighted by the steps that it covers."""
    found = result.series["step_time_s"]
    weights = np.diff(found.steps, prepend=2 * found.steps[0] - found.steps[1])
    late = found.steps > after
    return float((found.values * weights)[late].sum() / weights[late].sum())


@pytest.mark.parametrize("pause", [0.0, 20.0])
@pytest.mark.parametrize(("form", "pattern"), FORMS, ids=lambda one: getattr(one, "__name__", ""))
def test_the_rate_is_right_in_every_format(tmp_path: Path, form: Form, pattern: str | None, pause: float) -> None:
    own = times(pause)
    result = read(tmp_path, form(own, losses()), pattern)
    truth = float(np.mean(own[20:]))
    assert mean_time(result, after=20) == pytest.approx(truth, rel=0.01 if not pause else 0.06)
    assert result.scalars["steps.done"].value == pytest.approx(STEPS, abs=1)
    assert result.series["loss"].values[0] == pytest.approx(4.0, abs=0.1)
    assert not {"mixed-runs", "garbage-row", "garbage-cell"} & {one.code for one in result.irregularities}


@pytest.mark.parametrize(("form", "pattern"), FORMS, ids=lambda one: getattr(one, "__name__", ""))
def test_nan_is_seen_in_every_format(tmp_path: Path, form: Form, pattern: str | None) -> None:
    sick = [x if i < 200 else math.nan for i, x in enumerate(losses())]
    result = read(tmp_path, form(times(), sick), pattern)
    values = result.series["loss"].values
    assert np.isnan(values[-1])
    assert np.isnan(values).mean() == pytest.approx(0.5, abs=0.05)
    assert result.scalars["steps.done"].value == pytest.approx(STEPS, abs=1)


def test_a_pause_in_one_of_ten_steps_counts_once(tmp_path: Path) -> None:
    own = times(20.0, every=50)
    result = read(tmp_path, one_in_ten(own, losses()))
    assert mean_time(result, after=20) == pytest.approx(float(np.mean(own[20:])), rel=0.03)


def test_a_log_that_knows_the_format_says_which(tmp_path: Path) -> None:
    printed = read(tmp_path, cumulative(times(), losses())).evidence.printed
    assert printed is not None
    assert (printed.path, printed.format) == ("train.log", "modded-nanogpt")


def test_a_log_of_several_stages_is_judged_by_its_longest(tmp_path: Path) -> None:
    lines = [*plain(times(), losses()), *plain([5.0] * 60, losses()[:60])]
    result = read(tmp_path, iter(lines))
    (noted,) = [one for one in result.irregularities if one.code == "several-parts"]
    assert "the log holds 2 parts, and the longest, from line 1 to 400, is judged" in noted.message
    assert mean_time(result) == pytest.approx(float(np.mean(times())), rel=0.01)


def test_a_run_that_was_resumed_from_an_earlier_step_is_one_part(tmp_path: Path) -> None:
    lines = list(plain(times(), losses()))
    result = read(tmp_path, iter([*lines[:250], *lines[200:]]))
    assert not [one for one in result.irregularities if one.code == "several-parts"]
    assert result.series["loss"].steps.tolist() == list(range(1, STEPS + 1))


def test_a_row_that_two_loggers_print_is_one_row(tmp_path: Path) -> None:
    lines = [line for line in plain(times(), losses()) for _ in range(2)]
    result = read(tmp_path, iter(lines))
    assert not result.irregularities
    assert len(result.series["loss"].values) == STEPS


def test_a_buffered_stream_that_comes_in_bunches_is_spread_evenly(tmp_path: Path) -> None:
    lines = list(bar(times(), losses()))
    bars, dictionaries = [one for one in lines if "%|" in one], [one for one in lines if "'loss'" in one]
    result = read(tmp_path, iter([*bars[:30], *dictionaries[:28], *bars[30:], *dictionaries[28:]]))
    assert len(result.series["loss"].values) == len(dictionaries)
    assert [one.code for one in result.irregularities] == ["no-step"]
    assert result.series["loss"].steps[-1] == pytest.approx(STEPS, abs=20)


def test_lines_without_any_step_are_counted(tmp_path: Path) -> None:
    result = read(tmp_path, (f"{{'loss': {x:.4f}, 'epoch': 0.1}}" for x in losses()))
    assert result.series["loss"].steps.tolist() == list(range(1, STEPS + 1))


def test_tokens_so_far_and_dates_give_the_rate_with_pauses(tmp_path: Path) -> None:
    own = times(20.0)
    at = running(own)
    lines = (f"{1.7e12 + 1e3 * t:.0f} ms, tokens {i * 65536:,}, took {own[i - 1]:.3f} s" for i, t in enumerate(at, 1))
    result = read(tmp_path, lines, "^{row}{timestamp} ms, tokens {tokens_seen}, took {step_time_s} s")
    rate = result.series["toks_per_s"]
    assert float(np.average(rate.values, weights=1 / rate.values)) == pytest.approx(65536 / np.mean(own), rel=0.05)


def test_the_history_of_a_trainer_in_one_document_is_read(tmp_path: Path) -> None:
    rows = [
        {"epoch": 0.1, "grad_norm": 0.5, "learning_rate": 1e-4, "loss": x, "step": i} for i, x in enumerate(losses(), 1)
    ]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"max_steps": 400, "log_history": rows}, indent=2))
    result = collect_dir(tmp_path / "trainer_state.json")
    assert result.series["loss"].steps.tolist() == list(range(1, STEPS + 1))
    assert set(result.series) == {"loss", "lr", "grad_norm"}


def test_a_log_with_no_row_says_so(tmp_path: Path) -> None:
    result = read(tmp_path, iter(["loading", "Traceback (most recent call last):", "OSError: no such shard"]))
    assert not result.series
    (noted,) = result.irregularities
    assert noted.code == "missing-file"
    assert "--stdout PATTERN" in noted.message


def test_a_folder_is_read_by_its_log_where_it_has_no_table(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("step one is to read this\n", encoding="utf-8")
    (tmp_path / "out.txt").write_text("\n".join(plain(times(), losses())), encoding="utf-8")
    result = collect_dir(tmp_path)
    assert result.evidence.printed is not None
    assert result.evidence.printed.path == "out.txt"
    (tmp_path / "training.csv").write_text("step,loss,lr,toks_per_s\n1,2,0.1,100\n2,2,0.1,100\n", encoding="utf-8")
    assert collect_dir(tmp_path).evidence.printed is None, "a table comes first"


def test_steps_without_a_line_are_counted_by_the_samples_seen(tmp_path: Path) -> None:
    """Lines were counted, so that a missing one made the next step twice as long."""
    at = running([5.0] * STEPS)
    lines = [f"{1e3 * (1.7e9 + t):.0f} ms, samples {i * 80}, loss 2.0" for i, t in enumerate(at, 1)]
    pattern = "^{row}{timestamp} ms, samples {samples_seen}, loss {loss}"
    result = read(tmp_path, iter([*lines[:100], *lines[103:]]), pattern)
    assert result.series["loss"].steps.tolist() == [*range(1, 101), *range(104, STEPS + 1)]
    assert mean_time(result) == pytest.approx(5.0, rel=1e-3)


def test_samples_that_no_step_explains_leave_lines_counted(tmp_path: Path) -> None:
    lines = (f"samples {i * 80 + i % 3}, loss {x:.3f}" for i, x in enumerate(losses(), 1))
    result = read(tmp_path, lines, "^{row}samples {samples_seen}, loss {loss}")
    assert result.series["loss"].steps.tolist() == list(range(1, STEPS + 1))


def test_a_line_that_says_that_a_file_was_saved_is_no_row(tmp_path: Path) -> None:
    """An upload of twenty minutes behind the last step was taken for a slow step."""
    rows = list(dated(times(), losses()))
    result = read(tmp_path, iter([*rows, "2026-03-05 00:59:00,000 INFO model saved at step 401"]))
    assert result.series["step_time_s"].steps[-1] == STEPS
    assert mean_time(result) == pytest.approx(float(np.mean(times())), rel=0.01)
    without_loss = (row.partition(" loss")[0] for row in rows)
    result = read(tmp_path, without_loss, "^{timestamp} INFO step {step}", name="dates.log")
    assert result.series["step_time_s"].steps[-1] == STEPS


def test_a_running_mean_that_begins_anew_in_each_epoch(tmp_path: Path) -> None:
    """Of one step in ten that is timed, each may take longer than the others do."""
    own = [0.6 if i % 10 == 0 else 0.5 for i in range(STEPS)]
    lines = []
    for i in range(0, STEPS, 10):
        mean = float(np.mean(own[i // 200 * 200 : i + 1]))
        shown = f"Time {own[i]:.3f} ({mean:.3f})\tData 0.001 (0.001)\tTok/s 9000 (9100)\tLoss/tok 3.1 (3.2)"
        lines.append(f"0: TRAIN [{i // 200}][{i % 200}/200]\t{shown}")
    result = read(tmp_path, iter(lines))
    found = result.series["wall_step_time_s"]
    strides = np.diff(found.steps, prepend=-1)
    assert float((found.values * strides).sum() / strides.sum()) == pytest.approx(0.51, rel=0.01)


def test_the_average_of_an_epoch_is_no_step(tmp_path: Path) -> None:
    lines = [f"2026-03-04 05:{i // 60:02}:{i % 60:02},000 - batch loss: {x:.3f}" for i, x in enumerate(losses()[:200])]
    lines[100:100] = ["2026-03-04 05:01:40,000 - epoch 1 - average train loss: 3.2"]
    assert read(tmp_path, iter(lines)).series["loss"].steps[-1] == 200


def test_rows_beside_a_line_about_a_pause_are_known(tmp_path: Path) -> None:
    lines = list(plain(times(), losses()))
    lines[100:100] = ["evaluating 64 batches", "checkpoint written"]
    lines[50:50] = ["a retrieval of intervals by the latest name"]
    places = read(tmp_path, iter(lines)).evidence.places
    assert places is not None
    assert places.pauses.tolist() == [100, 101]


@pytest.mark.parametrize(
    ("line", "step_time_s"),
    [
        ("step {n} | loss 2.{n} | 21 ms/step", 0.021),
        ("step {n} | loss 2.{n} | 21 ms / step 5000 tok/s", 0.021),
        ("iter {n} loss 2.{n} 0.35 s/it", 0.35),
        ("iter {n}: loss 2.{n} (2.5 it/s)", 0.4),
        ("step {n}, loss: 2.{n}, 2.5 steps/sec", 0.4),
        ("step {n} loss 2.{n} 0.35 sec per step", 0.35),
        ("step={n} loss=2.{n} s/it=0.35", 0.35),
        ("step {n} loss 2.{n} it/s: 2.5", 0.4),
        ("step {n} | loss 2.{n} | 25 ms/step | 40 it/s", 0.025),
        ("step {n} loss 2.{n} ms/step 21", None),
        ("step {n} loss 2.{n} 100 items/s, 5 samples/s, eta 10 s", None),
    ],
)
def test_the_time_of_a_step_is_known_by_its_unit(line: str, step_time_s: float | None) -> None:
    found = recognize((n, line.format(n=n)) for n in range(1, 6))
    assert found is not None
    printed = line_pattern(found[0].pattern).read(line.format(n=5))
    assert printed is not None
    values = contract_values(printed.values)
    assert values["loss"] == 2.5
    assert values.get("step_time_s") == (None if step_time_s is None else pytest.approx(step_time_s))


def test_a_bar_of_whole_seconds_is_read_to_its_last_step(tmp_path: Path) -> None:
    """A bar that ended within its sixth second was read to the beginning of it: 135 of 150 steps."""
    lines = [f"{100 * i // 150}%|##  | {i}/150 [{clock(i / 24)[2:]}<00:10,  23.52it/s]" for i in range(0, 151, 3)]
    result = read(tmp_path, iter(["\r".join(lines)]))
    assert result.scalars["steps.done"].value == 150
    assert result.series["step_time_s"].values.mean() == pytest.approx(1 / 24, rel=0.15)

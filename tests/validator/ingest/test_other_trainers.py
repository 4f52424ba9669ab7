"""What other trainers write: their names, units, tables and lines, read for what they mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.validator.ingest.folders import outcome, spec, write_logs
from validator.ingest import collect_dir, collect_run
from validator.ingest.read_log import ReadLog
from validator.ingest.table import StepTable, read_table
from validator.model.columns import contract_names
from validator.model.result import Result
from validator.model.runbook import TrainerMetrics
from validator.supervise.follow import RunFollower

LIGHTNING = """\
epoch,lr,step,train_loss,val_loss
0,0.001,9,3.0,
0,0.001,19,2.5,
0,,19,,2.75
1,0.001,29,2.25,
1,,29,,2.5
"""
"""As Lightning's CSVLogger writes: steps from 0, a row every ten, and another one for a validation of that step."""


def table(folder: Path, text: str) -> tuple[StepTable, list[str]]:
    (folder / "training.csv").write_text(text, encoding="utf-8")
    read_log = ReadLog(folder)
    found = read_table(folder / "training.csv", read_log)
    assert found is not None
    return found, [one.code for one in read_log.irregularities]


def column(found: StepTable, name: str) -> dict[int, float]:
    return dict(zip(*(one.tolist() for one in found.columns[name]), strict=True))


def collected(folder: Path, **metrics: str) -> Result:
    return collect_run(spec(metrics=TrainerMetrics(**metrics)), run_dir=folder, outcome=outcome())


def codes(result: Result) -> list[str]:
    return [one.code for one in result.irregularities]


@pytest.mark.parametrize(
    ("cells", "names"),
    [
        (["epoch", "lr", "step", "train_loss"], ["epoch", "lr", "step", "loss"]),
        (["Step", "Loss", "tokens_per_sec"], ["step", "loss", "toks_per_s"]),
        (["step", "global_step", "iter"], ["step", "global_step", "iter"]),
        (["iter", "global_step"], ["step", "global_step"]),
        (["step", "loss", "train_loss"], ["step", "loss", "train_loss"]),
        (["step", "step"], ["step", "step"]),
    ],
)
def test_a_column_is_called_by_one_name(cells: list[str], names: list[str]) -> None:
    assert contract_names(cells) == names


def test_rows_of_one_step_that_complete_each_other_are_one(tmp_path: Path) -> None:
    found, flaws = table(tmp_path, LIGHTNING)
    assert column(found, "loss") == {9: 3.0, 19: 2.5, 29: 2.25}
    assert column(found, "val_loss") == {19: 2.75, 29: 2.5}
    assert column(found, "lr") == {9: 0.001, 19: 0.001, 29: 0.001}
    assert flaws == []


def test_three_rows_of_one_step_are_one_as_well(tmp_path: Path) -> None:
    found, flaws = table(tmp_path, "step,loss,val_loss,wall_s,acc\n1,3,,1,\n2,2,,2,\n2,,4,2.5,\n2,,,,0.5\n")
    assert [column(found, name)[2] for name in ("loss", "val_loss", "wall_s", "acc")] == [2, 4, 2.5, 0.5]
    assert flaws == []


@pytest.mark.parametrize(
    ("rows", "loss"),
    [
        ("1,3,,\n2,2,,\n2,1,4,\n3,1,,\n", 1.0),  # told twice, and otherwise
        ("1,3,,\n2,2,,5\n2,2,,\n3,1,,\n", 2.0),  # told again, and nothing new
    ],
)
def test_rows_that_contradict_or_repeat_each_other_stay_apart(tmp_path: Path, rows: str, loss: float) -> None:
    found, flaws = table(tmp_path, f"step,loss,val_loss,acc\n{rows}")
    assert column(found, "loss")[2] == loss
    assert "duplicate-step" in flaws


def test_what_was_left_empty_is_not_taken_from_another_step(tmp_path: Path) -> None:
    found, _ = table(tmp_path, "step,loss,val_loss,acc\n1,3,9,\n2,,,1\n2,2,,\n")
    assert column(found, "val_loss") == {1: 9.0}
    assert column(found, "acc") == {2: 1.0}


def test_steps_at_the_end_of_every_ten_are_counted_from_zero(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(LIGHTNING, encoding="utf-8")
    assert collected(tmp_path, csv="metrics.csv").scalars["steps.done"].value == 30
    (tmp_path / "metrics.csv").write_text(LIGHTNING.replace(",29,", ",30,"), encoding="utf-8")
    assert collected(tmp_path, csv="metrics.csv").scalars["steps.done"].value == 30, "an uneven pace tells nothing"
    (tmp_path / "metrics.csv").write_text("step,loss\n5,3\n15,2\n25,1\n", encoding="utf-8")
    assert collected(tmp_path, csv="metrics.csv").scalars["steps.done"].value == 25, "nor does any even one"


def test_a_loss_at_step_zero_counts_from_zero_unless_nothing_was_done_there(tmp_path: Path) -> None:
    def done(text: str) -> object:
        (tmp_path / "metrics.csv").write_text(text, encoding="utf-8")
        return collected(tmp_path, csv="metrics.csv").scalars["steps.done"].value

    late = "step,loss,toks_per_s\n0,3,\n1,2,100\n2,1,100\n"
    assert done(late) == 3, "a rate needs the step before it, a loss does not"
    assert done("step,loss\n0,3\n10,2\n20,1\n") == 21
    assert done(late.replace("0,3,\n", "0,3,0\n")) == 2, "a rate of 0: the loss is that of the initial model"
    assert done("step,loss\n1,3\n2,1\n") == 2
    timed = "step,loss,step_time_s\n0,3,0.0\n10,2,0.1\n20,1,0.1\n"
    assert done(timed) == 21, "a trainer takes no time between the step before the first and the first"


def test_units_are_taken_from_names(tmp_path: Path) -> None:
    write_logs(tmp_path, stdout="".join(f"iter {n}: loss 2.5, time 12.50ms, 4k tok/s\n" for n in range(3)))
    pattern = r"iter (?P<step>\d+): loss (?P<train_loss>[\d.]+), time (?P<step_time_ms>[\d.]+)ms, (?P<ktoks_per_s>\d+)k"
    result = collected(tmp_path, stdout=pattern)
    assert result.series["step_time_s"].values.tolist() == pytest.approx([0.0125] * 3)
    assert result.series["step_time_s"].unit == "s"
    assert result.series["toks_per_s"].values.tolist() == [4000.0] * 3
    assert result.series["loss"].values.tolist() == [2.5] * 3


def test_steps_per_second_are_a_time_per_step(tmp_path: Path) -> None:
    found = "step,loss,steps_per_s,step_time_ms\n1,2,4,100\n2,2,5,100\n"
    (tmp_path / "t.csv").write_text(found.replace(",step_time_ms", "").replace(",100", ""), encoding="utf-8")
    assert collected(tmp_path, csv="t.csv").series["step_time_s"].values.tolist() == [0.25, 0.2]
    (tmp_path / "t.csv").write_text(found.replace("step_time_ms", "step_time_s"), encoding="utf-8")
    assert collected(tmp_path, csv="t.csv").series["step_time_s"].values.tolist() == [100, 100], "its own name wins"


def test_the_rate_of_one_rank_gives_that_of_all(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("step,loss,toks_per_s_per_rank\n1,2,500\n2,2,510\n", encoding="utf-8")
    metrics = TrainerMetrics(csv="t.csv")
    result = collect_run(spec(metrics=metrics, nproc=4), run_dir=tmp_path, outcome=outcome())
    assert result.series["toks_per_s"].values.tolist() == [2000.0, 2040.0]
    assert result.series["toks_per_s_per_rank"].values.tolist() == [500.0, 510.0]


LOGGED = r"step: +(?P<step>\d+) +loss: +(?P<loss>[\d.]+)"


def test_a_logger_writes_to_standard_error_in_colors(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    lines = "".join(f"[titan] INFO - \x1b[31mstep: {n}  \x1b[38;2;1;2;3mloss: {4 - n}.5\x1b[39m\n" for n in (1, 2))
    (tmp_path / "logs" / "stdout.log").write_text("hello\n", encoding="utf-8")
    (tmp_path / "logs" / "stderr.log").write_text(lines, encoding="utf-8")
    result = collected(tmp_path, stdout=LOGGED)
    assert result.series["loss"].values.tolist() == [3.5, 2.5]
    assert result.series["loss"].source.path == "logs/stderr.log"
    assert codes(result) == []


def test_standard_output_comes_first(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "stdout.log").write_text("step: 1 loss: 1.5\n", encoding="utf-8")
    (tmp_path / "logs" / "stderr.log").write_text("step: 1 loss: 9.5\nstep: 2 loss: 9.5\n", encoding="utf-8")
    assert collected(tmp_path, stdout=LOGGED).series["loss"].values.tolist() == [1.5]


def test_an_epoch_is_no_step_and_that_is_said(tmp_path: Path) -> None:
    write_logs(tmp_path, stdout="".join(f"loss 2.5 epoch {n / 4}\n" for n in range(1, 9)))
    result = collected(tmp_path, stdout=r"loss (?P<loss>[\d.]+) epoch (?P<step>[\d.]+)")
    assert not result.series, "the two whole epochs are no steps either"
    (noted,) = result.irregularities
    assert noted.code == "garbage-row"
    assert "6 lines match, but their step is no whole number; first: '0.25'" in noted.message


def test_a_pattern_that_never_matches_is_shown_beside_what_was_printed(tmp_path: Path) -> None:
    write_logs(tmp_path, stdout="loading\nstep=3 loss=2.5\n\n")
    (noted,) = collected(tmp_path, stdout=LOGGED).irregularities
    assert noted.code == "no-match"
    assert noted.message.endswith("its last line is 'step=3 loss=2.5'")


@pytest.mark.parametrize("comma", [".", ","], ids=["a point", "a comma"])
@pytest.mark.parametrize("mark", [";", "\t", "|", " | ", "  "])
@pytest.mark.parametrize("header", ["{}", "# {}", "# a run of today\n{}", "# a run, of today\n# {}"])
def test_a_table_without_commas_is_read(tmp_path: Path, mark: str, comma: str, header: str) -> None:
    rows = [mark.join(("step", "loss", "toks_per_s")), *(mark.join((str(i), f"2{comma}5", "900")) for i in range(1, 9))]
    (tmp_path / "training.csv").write_text(header.format("\n".join(rows)) + "\n", encoding="utf-8")
    read_log = ReadLog(tmp_path)
    table = read_table(tmp_path / "training.csv", read_log, ended=True)
    assert table is not None
    assert table.columns["loss"][1].tolist() == [2.5] * 8
    assert table.columns["toks_per_s"][0].tolist() == list(range(1, 9))
    assert not read_log.irregularities
    follower = RunFollower(tmp_path, TrainerMetrics(csv="training.csv"))
    assert [(one.step, one.values["loss"]) for one in follower.look()] == [(i, 2.5) for i in range(1, 9)]


def test_a_folder_is_inspected_by_its_only_table(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(LIGHTNING, encoding="utf-8")
    (tmp_path / "hparams.csv").write_text("name,value\nlr,0.1\n", encoding="utf-8")
    (tmp_path / "val.csv").write_text("step,val_loss\n1,2\n", encoding="utf-8")
    assert collect_dir(tmp_path).series["loss"].source.path == "metrics.csv"
    (tmp_path / "other.csv").write_text(LIGHTNING, encoding="utf-8")
    assert "loss" not in collect_dir(tmp_path).series, "which of the two, nothing tells"
    (tmp_path / "training.csv").write_text("1,2,0.1,100\n", encoding="utf-8")
    assert collect_dir(tmp_path).series["loss"].source.path == "training.csv"


def test_tokens_of_a_step_are_no_step(tmp_path: Path) -> None:
    """A line before the first row names how much a step is."""
    rows = "".join(f"step {n:>6}  loss {5 - n / 10:6.3f}  lr 1e-4  {34.5 + n % 3:7.1f}k tok/s\n" for n in range(10, 40))
    write_logs(tmp_path, stdout=f"params: 279,232\ntokens/step: 512   total: 0.00B\n{rows}", rank=0)
    steps = collect_dir(tmp_path).series["toks_per_s"].steps.tolist()
    assert steps == list(range(10, 40))
    assert "step 512" not in str(collect_dir(tmp_path).irregularities)

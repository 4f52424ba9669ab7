"""A trainer that logs to a text file alone: which file it is, and that it is read as what is printed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from tests.validator.ingest.folders import START_S, codes, outcome, spec, write_logs
from validator.ingest import collect_dir, collect_run
from validator.ingest.text_logs import TextLog, find_text_log
from validator.init.reading import _VARIES, what_is_missing
from validator.model.runbook import TrainerMetrics
from validator.supervise.follow import RunFollower

PATTERN = "{timestamp} step {step} loss {loss}"


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def rows(first: int, last: int) -> str:
    return "".join(f"2026-03-04 05:{i:02}:00 step {i} loss {9 - i / 10:.2f}\n" for i in range(first, last + 1))


@pytest.mark.parametrize(
    ("names", "glob", "parts"),
    [
        (["train.log", "logs/stdout.log"], "**/*.log", [0]),
        (["a/b/run.txt"], "**/run.txt", [0]),
        (["train.log", "train.log.2", "train.log.1", "train.log.10"], "train.log", [3, 1, 2, 0]),
        (["t.log", "t.2026-03-04_05-06-07_89.log", "t.2026-03-03_05-06-07_89.log"], "t.log", [2, 1, 0]),
        (["log_rank1.txt", "log_rank0.txt", "log_rank10.txt"], "log_*.txt", [1]),
        (["rank_3/train.log", "rank_2/train.log"], "**/train.log", [1]),
        (["train_20260304_050607.log"], "train_*.log", [0]),
        (["train_a.log", "train_b.log"], "train_*.log", []),
        (["train.log"], "other.log", []),
    ],
)
def test_the_log_is_found_with_its_older_parts(names: list[str], glob: str, parts: list[int], tmp_path: Path) -> None:
    write(tmp_path, dict.fromkeys(names, "x\n"))
    found = find_text_log(tmp_path, glob)
    assert found.parts == tuple(names[part] for part in parts)
    assert found.others == (tuple(names) if len(names) == 2 and not parts else ())


def test_a_rotated_log_is_one_series_timed_by_its_dates(tmp_path: Path) -> None:
    write(tmp_path, {"train.log.2": rows(1, 9), "train.log.1": rows(10, 19), "train.log": rows(20, 30)})
    write_logs(tmp_path, stdout="step 1 loss 99\n")
    metrics = TrainerMetrics(log="train.log", stdout=PATTERN)
    result = collect_run(spec(metrics=metrics), run_dir=tmp_path, outcome=outcome(started_s=START_S))
    assert result.series["loss"].steps.tolist() == list(range(1, 31))
    assert set(result.series["step_time_s"].values.tolist()) == {60.0}
    assert result.series["loss"].source.path == "train.log"
    assert codes(result) == set()


def test_a_log_that_is_missing_or_one_of_several_is_no_evidence(tmp_path: Path) -> None:
    write(tmp_path, {"train_a.log": rows(1, 9), "train_b.log": rows(1, 9)})
    for log, code in (("train_*.log", "several-sources"), ("x.log", "missing-file"), ("/tmp/x/*.log", "missing-file")):
        metrics = TrainerMetrics(log=log, stdout=PATTERN)
        result = collect_run(spec(metrics=metrics), run_dir=tmp_path, outcome=outcome(started_s=START_S))
        assert codes(result) == {code}
        assert not result.series


def test_a_log_that_appears_late_and_is_rotated_is_followed(tmp_path: Path) -> None:
    follower = RunFollower(out=tmp_path, metrics=TrainerMetrics(log="logs/train.log", stdout=PATTERN))
    assert follower.look() == ()
    write(tmp_path, {"logs/train.log": rows(1, 9), "logs/stdout.log": "step 99 loss 1\n"})
    follower._next_search_s = 0.0
    follower.look()
    assert (follower.step, follower.stamped()) == (9, (tmp_path / "logs/train.log",))
    (tmp_path / "logs/train.log").rename(tmp_path / "logs/train.log.1")
    write(tmp_path, {"logs/train.log": rows(10, 12)})
    assert [record.step for record in follower.look()] == [10, 11, 12]


def test_a_log_needs_something_that_reads_it() -> None:
    with pytest.raises(ValueError, match="nothing says how it is read"):
        TrainerMetrics(log="train.log")
    with pytest.raises(ValueError, match="leaves the output folder"):
        TrainerMetrics(log="../train.log", reader=("nanogpt",))


def test_names_need_a_file_whose_columns_or_keys_they_are() -> None:
    """They had no effect with lines that are printed, and nobody was told."""
    with pytest.raises(ValueError, match="names is for csv and readers of files"):
        TrainerMetrics(names={"loss": "L"}, stdout="{step} {loss}")
    with pytest.raises(ValueError, match="names has step: n, and files of tensorboard count their steps themselves"):
        TrainerMetrics.model_validate({"reader": "tensorboard", "names": {"step": "n"}})
    assert TrainerMetrics.model_validate({"reader": ["tensorboard", "jsonl"], "names": {"step": "n"}}).series_of
    assert TrainerMetrics(names={"loss": "L"}, csv="progress.csv").series_of == {"L": "loss"}


def test_nothing_is_there_in_a_folder_that_is_gone(tmp_path: Path) -> None:
    assert find_text_log(tmp_path / "gone", "*.log") == TextLog()


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("log_2026-03-04_05-06-07.txt", "log_*.txt"),
        ("outputs/2026-03-04/05-06-07/train.log", "outputs/*/*/train.log"),
        ("train_20260304_050607.log", "train_*.log"),
        ("run-1772600767.log", "run-*.log"),
        ("version_0/rank0.log", "version_0/rank0.log"),
    ],
)
def test_what_differs_between_runs_in_a_name_is_left_open(name: str, written: str) -> None:
    assert _VARIES.sub("*", name) == written


def test_several_losses_are_named_where_nothing_is_read() -> None:
    assert "(Loss_D, Loss_G)" in what_is_missing(["[0/3][0/100]\tLoss_D: 4.0157\tLoss_G: 2.1"])
    assert what_is_missing(["hello", "loss 3"]) == ""


def test_zero_bytes_are_not_of_the_text(tmp_path: Path) -> None:
    """A log that was cut while its writer continued, and one that PowerShell wrote; a checkpoint holds them too."""
    lines = "".join(f"step {n} loss {3 - n / 100:.2f} tok/s {900 + n}\r\n" for n in range(1, 60))
    for content in (b"\0" * 300_000 + lines.encode(), lines.encode("utf-16")):
        (tmp_path / "train.log").write_bytes(content)
        found = collect_dir(tmp_path / "train.log").series
        assert found["loss"].values.tolist() == pytest.approx([3 - n / 100 for n in range(1, 60)])
        assert found["toks_per_s"].steps[-1] == 59
    (tmp_path / "train.log").write_bytes(bytes(range(256)) * 99 + lines.encode())
    assert not collect_dir(tmp_path / "train.log").series


@pytest.mark.parametrize(
    ("said", "name", "value"),
    [
        ("80.5 ex/s", "samples_per_s", 80.5),
        ("steps_per_sec=2.5", "step_time_s", 0.4),
        ("(397.5 ms)", "step_time_s", 0.3975),
        ("0.397 secs", "step_time_s", 0.397),
        ("(0.397s)", "step_time_s", 0.397),
        ("duration=0.397s", "step_time_s", 0.397),
        ("wall time 0.397s", "step_time_s", 0.397),
        ("(0.397s), eta 3.0s", None, None),
        ("data (0.397s)", None, None),
        ("dt=0.397", None, None),
        ("0.397 sector", None, None),
    ],
)
def test_a_speed_is_read_by_its_unit_where_nothing_else_is_about_time(
    tmp_path: Path, said: str, name: str | None, value: float | None
) -> None:
    lines = "".join(f"step {i} | loss {4 - i / 100:.3f} | {said}\n" for i in range(1, 100))
    (tmp_path / "train.log").write_text(lines)
    series = collect_dir(tmp_path).series
    if name is None:
        assert not {"step_time_s", "samples_per_s", "toks_per_s"} & series.keys()
    else:
        assert np.median(series[name].values) == pytest.approx(value)


def test_a_total_time_that_rises_is_that_of_the_run(tmp_path: Path) -> None:
    lines = "".join(f"step {i} | loss {4 - i / 100:.3f} | total time {0.4 * i:.2f}s\n" for i in range(1, 100))
    (tmp_path / "train.log").write_text(lines)
    assert np.median(collect_dir(tmp_path).series["step_time_s"].values) == pytest.approx(0.4)


@pytest.mark.parametrize(
    "date",
    [
        *("%d.%m.%Y %H:%M:%S", "[%a %b %d %H:%M:%S %Y]", "%b %d %H:%M:%S host python[88]:", "%Y%m%d_%H%M%S"),
        *("%d %b %Y %H:%M:%S", "%Y-%m-%d %H:%M.%S [info]", "%m/%d/%Y %I:%M:%S %p", "%m-%d %H:%M:%S INFO"),
    ],
)
def test_a_line_of_words_is_timed_by_its_date_however_that_is_written(tmp_path: Path, date: str) -> None:
    began = datetime(2026, 3, 4, 11, 58, 0)
    shown = ((began + timedelta(seconds=20 * i)).strftime(date) for i in range(1, 100))
    lines = (f"{when} step {i} | loss {4 - i / 100:.3f}\n" for i, when in enumerate(shown, 1))
    (tmp_path / "train.log").write_text("".join(lines))
    assert set(collect_dir(tmp_path).series["step_time_s"].values.tolist()) == {20.0}

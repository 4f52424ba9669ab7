"""Readers by name while their files grow: every row once, and the step that each log is at."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest

from validator.model.metrics import TrainerMetrics
from validator.supervise.follow import Record, RunFollower

LOGGED = Path(__file__).resolve().parents[1] / "ingest" / "logged"


def follower(folder: Path, name: str) -> RunFollower:
    return RunFollower(out=folder, metrics=TrainerMetrics(reader=(name,)))


def losses(records: list[Record]) -> list[tuple[int | None, float]]:
    return [(record.step, record.values["loss"]) for record in records if "loss" in record.values]


@pytest.mark.parametrize(
    ("folder", "name", "rows", "stride"),
    [
        ("tensorboard", "tensorboard", 10, 1),
        ("tensorboardX", "tensorboard", 10, 1),
        ("wandb-offline", "wandb-offline", 36, 2),
    ],
)
def test_a_file_that_grows_byte_by_byte_gives_each_row_once(
    folder: str, name: str, rows: int, stride: int, tmp_path: Path
) -> None:
    (path,) = (LOGGED / folder).iterdir()
    data, seen, now = path.read_bytes(), [], 0.0
    (tmp_path / "deep").mkdir()
    watcher = follower(tmp_path, name)
    assert watcher.has_source
    with (tmp_path / "deep" / path.name).open("wb", buffering=0) as file:
        for begin in range(0, len(data), 997):
            file.write(data[begin : begin + 997])
            now += 3
            seen += watcher.look(now=now)
    found = losses(seen)
    assert [step for step, _ in found] == [stride * i for i in range(rows)]
    assert [math.isnan(loss) for _, loss in found] == [i == 7 for i in range(rows)]
    assert watcher.stamped() == (tmp_path / "deep" / path.name,)
    assert all(record.row and record.path == tmp_path / "deep" / path.name for record in seen)


@pytest.mark.parametrize("store", ["mlflow.db", "mlruns"])
def test_mlflows_stores_are_followed(store: str, tmp_path: Path) -> None:
    source = LOGGED / "mlflow-local" / store
    (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / store)
    watcher = follower(tmp_path, "mlflow-local")
    found = losses(list(watcher.look(now=0.0)))
    assert sorted(step for step, _ in found if step is not None) == list(range(12))
    assert losses(list(watcher.look(now=100.0))) == []
    assert watcher.step == 11


def test_the_trainers_two_streams_are_paired_as_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    dictionaries = (LOGGED / "hf-trainer" / "nan_stdout.log").read_bytes().splitlines(keepends=True)
    bars = (LOGGED / "hf-trainer" / "nan_stderr.log").read_bytes().split(b"\r\r")
    watcher, seen = follower(tmp_path, "hf-trainer"), []
    logs = tmp_path / "logs"
    with (logs / "stdout.log").open("wb", buffering=0) as out, (logs / "stderr.log").open("wb", buffering=0) as err:
        for number, part in enumerate(bars):
            err.write(part + b"\r\r")
            out.write(dictionaries[number] if number < len(dictionaries) else b"")
            seen += watcher.look(now=float(number))
    found = losses(seen)
    assert [step for step, _ in found] == list(range(1, 13))
    assert [math.isnan(loss) for _, loss in found] == [False] * 8 + [True] * 4, "the filter's 0 is none"
    assert watcher.step == 12


def test_lightnings_table_is_followed_where_it_is_found(tmp_path: Path) -> None:
    shutil.copytree(LOGGED / "lightning" / "lightning_logs", tmp_path / "lightning_logs")
    watcher = follower(tmp_path, "lightning")
    first = losses(list(watcher.look(now=0.0))) + losses(list(watcher.look(now=5.0)))
    assert [step for step, _ in first] == list(range(25))


def test_lightnings_bar_is_followed(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    shutil.copy(LOGGED / "lightning" / "tqdm.log", tmp_path / "logs" / "stdout.log")
    watcher = follower(tmp_path, "lightning")
    assert dict(losses(list(watcher.look(now=0.0)))).keys() == set(range(1, 26))


def test_a_file_that_is_replaced_is_read_from_its_start(tmp_path: Path) -> None:
    path, watcher = tmp_path / "a.jsonl", follower(tmp_path, "jsonl")
    path.write_text('{"step": 5, "loss": 2.0}\n{"step": 6, ')
    assert losses(list(watcher.look(now=0.0))) == [(5, 2.0)]
    (tmp_path / "b").write_text('{"step": 1, "loss": 3.0}\n')
    (tmp_path / "b").replace(path)
    assert losses(list(watcher.look(now=1.0))) == [(1, 3.0)]

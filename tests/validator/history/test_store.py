"""The index: a copy of what the folders say, and no more than that."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.validator.history.folders import make_run
from validator.history import store
from validator.history.read import PIN
from validator.history.store import DATABASE, read_history


def test_what_is_read_again_is_what_was_read(tmp_path: Path) -> None:
    for number in range(3):
        make_run(tmp_path, number, scale=1 + number / 10)
    first = read_history(tmp_path)
    assert [entry.run_id for entry in first] == sorted(entry.run_id for entry in first)
    assert len(first) == 3
    point = next(p for p in first[0].points if p.metric == "toks_per_s.mean" and p.phase == "baseline")
    assert (point.unit, point.better) == ("tok/s", "higher")
    assert point.value > 0
    assert read_history(tmp_path) == first
    (tmp_path / DATABASE).unlink()
    assert read_history(tmp_path) == first, "deleting the database loses nothing"
    assert read_history(tmp_path, rebuild=True) == first


def test_only_what_changed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [make_run(tmp_path, number) for number in range(4)]
    read_history(tmp_path)
    read: list[str] = []
    genuine = store.read_entry
    monkeypatch.setattr(store, "read_entry", lambda folder: read.append(folder.name) or genuine(folder))
    make_run(tmp_path, 4)
    (folders[1] / PIN).touch()
    shutil.rmtree(folders[0])
    found = read_history(tmp_path)
    assert sorted(read) == sorted([folders[1].name, found[-1].folder])
    assert [entry.pinned for entry in found] == [True, False, False, False]


def test_a_run_that_was_judged_again_is_read_again(tmp_path: Path) -> None:
    make_run(tmp_path, 0)
    assert read_history(tmp_path)[0].decision == "GO"
    shutil.rmtree(next(path for path in tmp_path.iterdir() if path.name.endswith("0000")))
    make_run(tmp_path, 0, decision="NO_GO")
    assert read_history(tmp_path)[0].decision == "NO_GO"


@pytest.mark.parametrize("damage", [b"", b"not a database at all" * 100])
def test_a_damaged_index_is_made_anew(tmp_path: Path, damage: bytes) -> None:
    make_run(tmp_path, 0)
    wanted = read_history(tmp_path)
    (tmp_path / DATABASE).write_bytes(damage)
    assert read_history(tmp_path) == wanted


def test_an_index_of_another_version_is_made_anew(tmp_path: Path) -> None:
    make_run(tmp_path, 0)
    wanted = read_history(tmp_path)
    with sqlite3.connect(tmp_path / DATABASE) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    assert read_history(tmp_path) == wanted


def test_a_folder_without_a_readable_result_is_left_out(tmp_path: Path) -> None:
    make_run(tmp_path, 0)
    (tmp_path / "20260102T020000Z-half").mkdir()
    broken = make_run(tmp_path, 2)
    (broken / "result.json").write_text('{"run_id": "x", "runb', encoding="utf-8")
    (make_run(tmp_path, 3)).rename(tmp_path / "sample-2xh200")
    assert [entry.folder[-4:] for entry in read_history(tmp_path)] == ["0000"]


def test_where_nothing_can_be_written_the_answer_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path, 0)
    wanted = read_history(tmp_path)
    genuine = store._usable

    def read_only(path: Path | None) -> sqlite3.Connection:
        if path is not None:
            raise sqlite3.OperationalError("attempt to write a readonly database")
        return genuine(path)

    monkeypatch.setattr(store, "_usable", read_only)
    assert read_history(tmp_path) == wanted
    assert (tmp_path / DATABASE).is_file(), "a database that cannot be written is nobody's to remove"


def test_only_the_runs_that_decide_a_phase_are_followed(tmp_path: Path) -> None:
    """A failed first go, or a run that only leaves evidence, is no point of a trend."""
    folder = make_run(tmp_path, 1)
    told = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    phase = next(one for one in told["phases"] if one["kind"] in ("train", "soak"))
    (run,) = phase["runs"]
    wild = json.loads(json.dumps(run))
    wild["metrics"]["toks_per_s"]["mean"] = 1.0
    phase["remedies"] = [{"name": None, "decides": False}, {"name": "port", "decides": True}]
    phase["runs"] = [{**run, "remedy": "port"}, {**wild, "remedy": None}, {**wild, "remedy": "port", "role": "nsys"}]
    (folder / "result.json").write_text(json.dumps(told), encoding="utf-8")
    (entry,) = read_history(tmp_path)
    rate = next(one for one in entry.points if (one.phase, one.metric) == (phase["id"], "toks_per_s.mean"))
    assert rate.value == run["metrics"]["toks_per_s"]["mean"]


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 3000 + "1" + "}" * 3000,
        json.dumps({"duration_s": 10**400}),
        "9" * 5000,
        "null",
        '{"run_id": "x", "runbook": {"name": ["\\ud800"], "title": {}}, "decision": {}, "started": 1, "phases": []}',
    ],
)
def test_a_neighbor_that_cannot_be_read_costs_nobody_anything(tmp_path: Path, text: str) -> None:
    make_run(tmp_path, 0)
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "result.json").write_text(text)
    entries = read_history(tmp_path)
    assert [entry.folder for entry in entries if entry.folder != "strange"] == [make_run(tmp_path / "b", 0).name]


@pytest.mark.parametrize(
    "change",
    [
        {"finished": {"a": 1}},
        {"duration_s": 10**400},
        {"duration_s": 1e308},
        {"why": "\ud800"},
        {"environment": {"packages": {"torch": 10**30}}},
    ],
)
def test_a_neighbor_with_odd_values_is_listed(tmp_path: Path, change: dict[str, Any]) -> None:
    for number in range(4):
        make_run(tmp_path, number, **(change if number == 1 else {}))
    assert len(read_history(tmp_path)) == len(read_history(tmp_path)) == 4


@pytest.mark.timeout(20)
def test_a_result_that_is_no_regular_file_is_no_result(tmp_path: Path) -> None:
    for number in range(3):
        make_run(tmp_path, number)
    victims = sorted(tmp_path.glob("*/result.json"))
    victims[0].unlink()
    os.mkfifo(victims[0])
    victims[1].unlink()
    victims[1].symlink_to(victims[2])
    assert len(read_history(tmp_path)) == 1


def test_an_index_that_is_a_link_is_replaced_and_what_it_led_to_is_left_alone(tmp_path: Path) -> None:
    make_run(tmp_path / "reports", 0)
    other = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(other)) as database:
        database.execute("CREATE TABLE theirs (a)")
        database.commit()
    (tmp_path / "reports" / DATABASE).symlink_to(other)
    assert len(read_history(tmp_path / "reports")) == 1
    with closing(sqlite3.connect(other)) as database:
        assert database.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]


def test_a_link_to_the_latest_run_counts_once(tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(make_run(tmp_path, 0).name)
    assert len(read_history(tmp_path)) == 1

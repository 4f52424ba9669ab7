"""The index: a copy of what the folders say, and no more than that."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.validator.history.folders import make_run
from validator.files import Tree
from validator.history import store
from validator.history.read import PIN
from validator.history.store import INDEX, read_history


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
    (tmp_path / INDEX).unlink()
    assert read_history(tmp_path) == first, "deleting the index loses nothing"
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


@pytest.mark.parametrize("damage", [b"", b"no index at all" * 100, b"[]", b"[" * 100_000])
def test_a_damaged_index_is_made_anew(tmp_path: Path, damage: bytes) -> None:
    make_run(tmp_path, 0)
    wanted = read_history(tmp_path)
    (tmp_path / INDEX).write_bytes(damage)
    assert read_history(tmp_path) == wanted


def _changed(told: dict[str, Any], change: str) -> dict[str, Any]:
    """The index with one thing in it that no run folder says."""
    run = next(iter(told["runs"].values()))
    point = run[1]["points"][0]
    match change:
        case "version":
            told["version"] = 99
        case "no version":
            del told["version"]
        case "a list of runs":
            told["runs"] = [run]
        case "a number that cannot be squared":
            point["value"] = 1e308
        case "a truth for a number":
            point["value"] = True
        case "one field too many":
            point["further"] = 1
        case "no points":
            run[1]["points"] = None
        case "a list for a text":
            run[1]["why"] = ["x"]
        case "a key less":
            del run[1]["host"]
    return told


@pytest.mark.parametrize(
    "change",
    [
        *("version", "no version", "a list of runs", "a number that cannot be squared", "a truth for a number"),
        *("one field too many", "no points", "a list for a text", "a key less"),
    ],
)
def test_an_index_that_is_not_as_it_is_written_is_made_anew(tmp_path: Path, change: str) -> None:
    make_run(tmp_path, 0)
    wanted = read_history(tmp_path)
    path = tmp_path / INDEX
    sound = path.read_text()
    changed = _changed(json.loads(sound), change)
    path.write_text(json.dumps(changed, separators=(",", ":"), ensure_ascii=False))
    assert read_history(tmp_path) == wanted
    assert path.read_text() == sound


@pytest.mark.timeout(20)
def test_an_index_that_is_a_database_is_not_opened(tmp_path: Path) -> None:
    """Opening a database carries out what it holds: a view without end, or a journal that has another file deleted."""
    make_run(tmp_path, 0)
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in (INDEX, ".history.sqlite"):
        _hostile_database(tmp_path / name, victim)
    assert len(read_history(tmp_path)) == 1
    assert victim.read_text() == "mine"


def _hostile_database(path: Path, victim: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 2")
    database.execute(
        "CREATE VIEW runs AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) "
        "SELECT x AS folder, x AS stamp FROM c WHERE x < 0"
    )
    database.commit()
    database.close()
    # What a crash leaves of a transaction over several files: SQLite removes the file that the journal names.
    magic, name = bytes.fromhex("d9d505f920a163d7"), str(victim).encode()
    header = magic + struct.pack(">IIIII", 0, 0, path.stat().st_size // 4096, 512, 4096)
    record = struct.pack(">I", 2**30 // 4096 + 1) + name + struct.pack(">II", len(name), sum(name)) + magic
    path.with_name(f"{path.name}-journal").write_bytes(header.ljust(512, b"\0") + record)


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
    make_run(tmp_path, 1)
    before = (tmp_path / INDEX).read_bytes()

    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Tree, "write", read_only)
    assert read_history(tmp_path)[:1] == wanted
    assert len(read_history(tmp_path)) == 2
    assert (tmp_path / INDEX).read_bytes() == before


def test_a_run_that_is_removed_meanwhile_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = make_run(tmp_path, 0), make_run(tmp_path, 1)
    genuine = store.stamp_of

    def removing(folder: Path) -> str:
        shutil.rmtree(first, ignore_errors=True)
        return genuine(folder)

    monkeypatch.setattr(store, "stamp_of", removing)
    assert [entry.folder for entry in read_history(tmp_path)] == [second.name]


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
    other = tmp_path / "other.json"
    other.write_text("theirs")
    (tmp_path / "reports" / INDEX).symlink_to(other)
    assert len(read_history(tmp_path / "reports")) == 1
    assert not (tmp_path / "reports" / INDEX).is_symlink()
    assert other.read_text() == "theirs"


def test_a_link_to_the_latest_run_counts_once(tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(make_run(tmp_path, 0).name)
    assert len(read_history(tmp_path)) == 1


@pytest.mark.timeout(20)
def test_an_index_that_is_no_file_blocks_nobody(tmp_path: Path) -> None:
    make_run(tmp_path, 0)
    os.mkfifo(tmp_path / INDEX)
    assert len(read_history(tmp_path)) == len(read_history(tmp_path)) == 1


def test_a_link_to_a_folder_elsewhere_is_not_followed(tmp_path: Path) -> None:
    make_run(tmp_path / "reports", 0)
    other = make_run(tmp_path / "other", 1)
    (tmp_path / "reports" / "linked").symlink_to(other)
    assert [one.folder for one in read_history(tmp_path / "reports")] == [path.name for path in _folders(tmp_path)]


def _folders(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "reports").iterdir() if path.is_dir() and not path.is_symlink()]

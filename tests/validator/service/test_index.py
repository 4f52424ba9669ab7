"""The index: what it finds, and that the folders alone decide what is in it."""

from __future__ import annotations

import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from tests.validator.history.folders import make_run
from validator.errors import FolderError
from validator.service.index import RunFilter, RunIndex, index_path


def opened(tmp_path: Path, *, rebuild: bool = False) -> RunIndex:
    return RunIndex(tmp_path / "reports", tmp_path / "state" / "index.sqlite", rebuild=rebuild)


ALL = RunFilter()


def names(index: RunIndex, wanted: RunFilter = ALL, *, limit: int = 50, offset: int = 0) -> list[str]:
    index.refresh(full=True)
    return [entry.folder[-4:] for entry in index.find(wanted, limit=limit, offset=offset)[0]]


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    for number in range(5):
        make_run(tmp_path / "reports", number, decision="NO_GO" if number == 3 else "GO", gpus=8 if number == 4 else 2)
    return tmp_path / "reports"


def test_runs_are_filtered_and_paged_latest_first(reports: Path, tmp_path: Path) -> None:
    index = opened(tmp_path)
    assert names(index) == ["0004", "0003", "0002", "0001", "0000"]
    assert names(index, limit=2, offset=1) == ["0003", "0002"]
    assert names(index, RunFilter(decision="NO_GO")) == ["0003"]
    assert names(index, RunFilter(machine="8 x NVIDIA H200, NVLink")) == ["0004"]
    assert names(index, RunFilter(runbook="' OR 1=1 --")) == []
    assert index.find(RunFilter(decision="GO"), limit=1)[1] == 4
    assert [entry.folder[-4:] for entry in index.latest("machine")] == ["0004", "0003"]
    assert dict.fromkeys(index.choices()["decision"]) == {"GO": None, "NO_GO": None}


def test_a_branch_is_what_the_snapshot_says(tmp_path: Path) -> None:
    make_run(tmp_path / "reports", 0)
    result = make_run(tmp_path / "reports", 1) / "result.json"
    found = json.loads(result.read_text(encoding="utf-8"))
    found["environment"]["git"] = {"sha": "0" * 40, "branch": "fix/rates"}
    result.write_text(json.dumps(found), encoding="utf-8")
    assert names(opened(tmp_path), RunFilter(branch="fix/rates")) == ["0001"]


def test_a_run_that_goes_leaves_the_index_to_other_servers(reports: Path, tmp_path: Path) -> None:
    index = opened(tmp_path)
    assert len(names(index)) == 5
    next(reports.glob("*0001")).rename(tmp_path / "elsewhere")
    assert len(names(index)) == 4
    with closing(sqlite3.connect(index.path, timeout=0)) as other:
        other.execute("BEGIN IMMEDIATE")


def test_what_changes_in_the_folders_changes_in_the_index(reports: Path, tmp_path: Path) -> None:
    index = opened(tmp_path)
    assert len(names(index)) == 5
    before = index.version()
    gone = next(reports.glob("*0001"))
    gone.rename(tmp_path / "elsewhere")
    make_run(reports, 9)
    assert names(index) == ["0009", "0004", "0003", "0002", "0000"]
    assert index.version() != before
    assert index.path_of(gone.name) is None
    index.close()
    reports.rename(tmp_path / "all")
    reports.mkdir()
    assert names(opened(tmp_path)) == []


def test_a_folder_is_found_whose_header_comes_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runner makes the folder first: a look in between must not hide the run until the next look at all folders."""
    monkeypatch.setattr("validator.service.index._FRESH_S", 0.0)
    folder = tmp_path / "reports" / "20260101T000000Z-a-host-0000"
    folder.mkdir(parents=True)
    index = opened(tmp_path)
    assert index.open_folders() == ()
    (folder / "run.json").write_text("{}", encoding="utf-8")
    assert index.open_folders() == (folder.name,)


def test_a_run_is_found_as_soon_as_it_is_there(reports: Path, tmp_path: Path) -> None:
    """The queue names the run that it has started; its stop page was not found for up to a second."""
    index = opened(tmp_path)
    assert index.path_of("none") is None
    new = make_run(reports, 7)
    assert index.path_of(new.name) == new
    assert index.path_of(str(new)) is None
    assert index.path_of("..") is None


def test_a_damaged_or_older_index_is_built_again(reports: Path, tmp_path: Path) -> None:
    opened(tmp_path).close()
    path = tmp_path / "state" / "index.sqlite"
    path.write_bytes(b"no database at all" * 300)
    index = opened(tmp_path)
    assert len(names(index)) == 5
    index.close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")
    assert len(names(opened(tmp_path))) == 5
    assert len(names(opened(tmp_path, rebuild=True))) == 5


def test_two_servers_share_one_index(reports: Path, tmp_path: Path) -> None:
    one, other = opened(tmp_path), opened(tmp_path)
    assert names(one) == names(other)
    make_run(reports, 8)
    assert names(one) == names(other)
    assert names(one)[0] == "0008"


def test_servers_that_start_at_once_make_one_index(reports: Path, tmp_path: Path) -> None:
    """One that was made after another one had begun to fill it ended with: table runs already exists."""
    for _ in range(5):
        with ThreadPoolExecutor(4) as pool:
            made = list(pool.map(lambda _: opened(tmp_path), range(4)))
        assert [len(names(one)) for one in made] == [5] * 4
        for one in made:
            one.close()
        for path in (tmp_path / "state").iterdir():
            path.unlink()


def test_links_hidden_folders_and_others_are_no_runs(reports: Path, tmp_path: Path) -> None:
    outside = make_run(tmp_path / "outside", 7)
    (reports / "latest").symlink_to(outside)
    (reports / ".removed-x").mkdir()
    (reports / "notes").mkdir()
    (reports / "broken").mkdir()
    (reports / "broken" / "result.json").write_text("{", encoding="utf-8")
    index = opened(tmp_path)
    assert len(names(index)) == 5
    for name in ("latest", ".removed-x", "notes", "broken", "", ".", "..", "../outside", f"../outside/{outside.name}"):
        assert index.path_of(name) is None, name


def test_the_index_lies_outside_of_the_folder_that_others_write_to(tmp_path: Path) -> None:
    assert not index_path(tmp_path).is_relative_to(tmp_path)
    assert index_path(tmp_path) == index_path(tmp_path / "." / ".")
    with pytest.raises(FolderError, match="is no folder"):
        RunIndex(tmp_path / "none", tmp_path / "index.sqlite")

"""What may be cleared away, and what never."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from tests.validator.history.folders import BEGIN, make_run
from validator.history.read import PIN
from validator.history.store import Retention, expired, folder_bytes, read_history, remove


def gone(parent: Path, retention: Retention, *, day: int = 10) -> list[str]:
    found = expired(parent, read_history(parent), retention, now=BEGIN + timedelta(days=day))
    return [entry.folder[-4:] for entry, _ in found]


def test_the_oldest_beyond_the_count_go(tmp_path: Path) -> None:
    for number in range(6):
        make_run(tmp_path, number)
    assert gone(tmp_path, Retention(count=4)) == ["0000", "0001"]
    assert gone(tmp_path, Retention()) == []


def test_the_last_go_of_each_machine_pinned_open_and_newest_runs_stay(tmp_path: Path) -> None:
    make_run(tmp_path, 0)  # the last GO of two cards
    make_run(tmp_path, 1, gpus=1)  # the last GO of one card
    (make_run(tmp_path, 2, decision="NO_GO") / PIN).touch()
    make_run(tmp_path, 3, decision="IN_PROGRESS")
    make_run(tmp_path, 4, decision="NO_GO")
    make_run(tmp_path, 5, decision="NO_GO")
    assert gone(tmp_path, Retention(count=1)) == ["0004"]
    assert gone(tmp_path, Retention(age_days=0.1), day=100) == ["0004"]
    assert gone(tmp_path, Retention(bytes=1)) == ["0004"]


def test_age_counts_from_the_start_of_a_run(tmp_path: Path) -> None:
    for number in range(5):
        make_run(tmp_path, number)
    assert gone(tmp_path, Retention(age_days=2.5), day=4) == ["0000", "0001"]


def test_size_is_that_of_what_is_kept(tmp_path: Path) -> None:
    size = folder_bytes(make_run(tmp_path, 0))
    for number in range(1, 5):
        make_run(tmp_path, number)
    assert gone(tmp_path, Retention(bytes=3 * size + size // 2)) == ["0000", "0001"]


def test_a_time_that_cannot_be_read_removes_nothing(tmp_path: Path) -> None:
    make_run(tmp_path, 0, started="sometime", decision="NO_GO")
    make_run(tmp_path, 1)
    assert gone(tmp_path, Retention(age_days=1.0), day=500) == []


def test_removed_folders_are_gone_from_the_history_and_the_others_whole(tmp_path: Path) -> None:
    for number in range(4):
        make_run(tmp_path, number)
    entries = read_history(tmp_path)
    remove(tmp_path, entries[:2])
    assert [entry.folder[-4:] for entry in read_history(tmp_path)] == ["0002", "0003"]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".removed")]


def test_only_what_validator_run_made_is_ever_removed(tmp_path: Path) -> None:
    """A folder of somebody's own may hold a copy of a result.json; a link leads to somebody's own folder."""
    (make_run(tmp_path, 0, decision="NO_GO") / "run.json").unlink()
    (make_run(tmp_path, 1, decision="NO_GO") / "run.json").write_text('{"run_id": "another"}')
    mine = make_run(tmp_path.parent / f"{tmp_path.name}-mine", 2, decision="NO_GO")
    (tmp_path / mine.name).symlink_to(mine)
    for number in range(3, 6):
        make_run(tmp_path, number, decision="NO_GO")
    assert gone(tmp_path, Retention(count=1)) == ["0003", "0004"]

"""A log outside the output folder: what a run adds to it is copied, whatever its handler does to the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from validator.supervise.feed import LogFeed


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("there", "out"):
        (tmp_path / name).mkdir()
    return tmp_path / "there", tmp_path / "out"


def add(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_lines_of_earlier_runs_are_left_out_and_all_parts_are_copied(places: tuple[Path, Path]) -> None:
    there, out = places
    log, copy = there / "train.log", out / "logs/trainer/train.log"
    add(log, "earlier\n")
    feed = LogFeed(str(log), out)
    feed.take()
    assert not copy.exists()
    add(log, "one\n")
    feed.take()
    add(log, "two\n")
    log.rename(there / "train.log.1")
    add(log, "three\n")
    feed.take()
    log.write_text("4\n")
    feed.take()
    assert copy.read_text() == "one\ntwo\nthree\n4\n"
    feed.close()


def test_a_new_file_of_a_pattern_is_copied_and_a_link_is_not(places: tuple[Path, Path]) -> None:
    there, out = places
    add(there / "run_1.log", "earlier\n")
    feed = LogFeed(str(there / "run_*.log"), out)
    add(there / "run_2.log", "new\n")
    (there / "run_3.log").symlink_to(there / "run_1.log")
    feed.take()
    feed.close()
    assert {path.name: path.read_text() for path in (out / "logs/trainer").iterdir()} == {"run_2.log": "new\n"}


def test_what_could_not_be_written_is_copied_later_and_a_file_that_goes_is_no_error(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    there, out = places
    log, copy = there / "train.log", out / "logs/trainer/train.log"
    feed = LogFeed(str(there / "*.log"), out)
    add(log, "one\n")
    with monkeypatch.context() as full:
        full.setattr("validator.supervise.feed.Tree.write_at", _no_room)
        feed.take()
    add(log, "two\n")
    listed = [str(log), str(there / "gone.log")]
    monkeypatch.setattr(LogFeed, "_files", lambda _: listed)
    feed.take()
    assert copy.read_text() == "one\ntwo\n"
    feed.close()


def _no_room(*_: object) -> None:
    raise OSError(28, "No space left on device")

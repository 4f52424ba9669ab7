"""Capped logs: head and tail survive, writers are not disturbed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from validator.supervise.capture import LogCap, compact, logs_below, trim_while_written

CAP = LogCap(head=8192, tail=16384)


def _lines(first: int, last: int) -> bytes:
    return b"".join(b"line %07d\n" % number for number in range(first, last))


def test_a_short_log_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(_lines(0, 100))
    assert not trim_while_written(path, cap=CAP)
    assert compact(path, cap=CAP) == 0
    assert path.read_bytes() == _lines(0, 100)


def test_a_long_log_keeps_whole_lines_of_head_and_tail_and_says_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(_lines(0, 100_000))
    left_out = compact(path, cap=CAP)
    head, note, tail = path.read_text().partition("\n[… ")[0], path.read_text(), path.read_bytes()
    assert head.splitlines() == _lines(0, len(head.splitlines())).decode().splitlines()
    assert f"{left_out:,} bytes" in note
    assert tail.endswith(_lines(99_000, 100_000))
    kept = [line for line in path.read_bytes().splitlines() if line.startswith(b"line ")]
    assert len(kept) * 13 + left_out == 100_000 * 13
    assert all(len(line) == 12 for line in kept)
    assert path.stat().st_size <= CAP.total + 200


def test_trimming_gives_blocks_back_while_a_writer_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    with path.open("wb", buffering=0) as writer:  # as torchrun opens its logs: at a position, not in append mode
        writer.write(_lines(0, 100_000))
        before = path.stat().st_blocks
        if not trim_while_written(path, cap=CAP):
            pytest.fail("the file system of the temporary folder makes no holes; run the tests on ext4, xfs or tmpfs")
        assert path.stat().st_blocks * 512 < CAP.total + 3 * 4096 < before * 512
        writer.write(_lines(100_000, 100_010))
        trim_while_written(path, cap=CAP)
    compact(path, cap=CAP)
    data = path.read_bytes()
    assert data.startswith(_lines(0, 600))
    assert data.endswith(_lines(99_500, 100_010))
    assert b"\0" not in data


def test_one_endless_line_is_capped_too(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"x" * 1_000_000)
    assert compact(path, cap=CAP) > 0
    assert path.stat().st_size <= CAP.total + 200


def test_a_cap_that_keeps_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="give positive sizes"):
        LogCap(head=0, tail=0)


def test_logs_of_ranks_are_found_and_links_are_not_followed(tmp_path: Path) -> None:
    rank = tmp_path / "ranks" / "x" / "attempt_0" / "0"
    rank.mkdir(parents=True)
    (rank / "stdout.log").touch()
    (rank / "error.json").touch()
    os.symlink("/etc/passwd", rank / "link.log")
    assert list(logs_below(tmp_path)) == [rank / "stdout.log"]


def test_a_missing_log_is_no_error(tmp_path: Path) -> None:
    assert compact(tmp_path / "none.log", cap=CAP) == 0
    assert not trim_while_written(tmp_path / "none.log", cap=CAP)

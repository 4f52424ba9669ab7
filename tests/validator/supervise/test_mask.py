"""Masking the files of a run: only what has to change is rewritten, as a whole, and nothing else is lost."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from validator.supervise import capture as module
from validator.supervise.capture import mask_file, mask_files


def hide(block: bytes) -> bytes:
    return block.replace(b"SECRET", b"[redacted]")


def test_only_files_with_something_to_hide_are_rewritten(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    told, quiet = tmp_path / "logs" / "stdout.log", tmp_path / "env.json"
    told.write_text("a\nSECRET\nb\n")
    quiet.write_text("{}")
    os.utime(told, ns=(10**18, 10**18))
    told.chmod(0o640)
    before = quiet.stat().st_ino
    assert mask_files(tmp_path, mask=hide) == (told,)
    assert told.read_text() == "a\n[redacted]\nb\n"
    assert (told.stat().st_mtime_ns, told.stat().st_mode & 0o777) == (10**18, 0o640), (
        "its age and mode tell whose it is"
    )
    assert quiet.stat().st_ino == before
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["env.json", "logs", "stdout.log"]


def test_binary_files_and_links_are_left_alone(tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("SECRET")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "link.txt").symlink_to(outside)
    (folder / "model.pt").write_bytes(b"PK\0\0SECRET")
    (folder / "empty.log").touch()
    os.mkfifo(folder / "pipe.log")
    assert mask_files(folder, mask=hide) == ()
    assert outside.read_text() == "SECRET"


def test_a_log_with_zeros_is_still_a_log(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    path.write_bytes(b"\0" * 10 + b"SECRET\n")
    assert mask_files(tmp_path, mask=hide) == (path,)


@pytest.mark.parametrize("place", [0, 9, 20, 29])
def test_pieces_end_where_lines_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    monkeypatch.setattr(module, "_PIECE", 50)
    lines = [f"line {number} {'x' * (number % 7)}" for number in range(30)]
    lines[place] += " SECRET"
    path = tmp_path / "stdout.log"
    path.write_text("\n".join(lines))
    seen: list[bytes] = []

    def watch(block: bytes) -> bytes:
        seen.append(block)
        return hide(block)

    assert mask_file(path, mask=watch)
    assert path.read_text() == "\n".join(lines).replace("SECRET", "[redacted]")
    assert all(block.endswith(b"\n") for block in seen[:-1])
    assert len(seen) > 5


def test_a_line_longer_than_a_piece_is_not_kept_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PIECE", 10)
    path = tmp_path / "stdout.log"
    path.write_text("y" * 95 + "\nSECRET\n")
    assert mask_file(path, mask=hide)
    assert path.read_text() == "y" * 95 + "\n[redacted]\n"


def test_a_file_that_cannot_be_rewritten_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "stdout.log"
    path.write_text("SECRET\n")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert not mask_file(path, mask=hide)
    assert path.read_text() == "SECRET\n"
    assert [one.name for one in tmp_path.iterdir()] == ["stdout.log"]


def test_names_are_masked_as_contents_are(tmp_path: Path) -> None:
    (tmp_path / "run-SECRET" / "SECRET").mkdir(parents=True)
    (tmp_path / "run-SECRET" / "SECRET" / "a-SECRET.txt").write_text("one")
    (tmp_path / "run-SECRET" / "SECRET" / "a-[redacted].txt").write_text("two")
    (tmp_path / "SECRET").symlink_to("/etc")
    mask_files(tmp_path, mask=hide)
    kept = tmp_path / "run-[redacted]" / "[redacted]"
    assert sorted(path.read_text() for path in kept.iterdir()) == ["one", "two"]
    assert not any("SECRET" in path.name for path in tmp_path.rglob("*"))
    assert (tmp_path / "[redacted]").is_symlink()


def test_what_a_link_leads_to_is_masked(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("/data/SECRET/b")
    (tmp_path / "c").symlink_to("/data/b")
    mask_files(tmp_path, mask=hide)
    assert [os.readlink(tmp_path / name) for name in "ac"] == ["/data/[redacted]/b", "/data/b"]


def test_folders_nested_deeper_than_python_calls_itself_are_masked_too(tmp_path: Path) -> None:
    depth = sys.getrecursionlimit() + 100
    deepest = tmp_path / "/".join("d" * depth)
    for level in range(1, depth + 1):
        (tmp_path / "/".join("d" * level)).mkdir()
    (deepest / "a.txt").write_text("secret\n")
    assert mask_files(tmp_path, mask=lambda block: block.replace(b"secret", b"hidden")) == (deepest / "a.txt",)
    assert (deepest / "a.txt").read_text() == "hidden\n"
    (deepest / "a.txt").unlink()
    for level in range(depth, 0, -1):  # Python up to 3.11 cannot remove them either
        (tmp_path / "/".join("d" * level)).rmdir()

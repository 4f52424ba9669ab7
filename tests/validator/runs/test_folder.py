"""Where a validation writes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.validator.report import samples
from validator.errors import FolderError
from validator.kinds.registry import load
from validator.model.verdict import ValidationReport
from validator.runs.folder import RunFolder, last_go, runbook_was_edited


def write_book(folder: Path) -> Path:
    book = folder / "a.yaml"
    book.write_text("schema: 1\nname: a\nphases: [{id: a, kind: command, run: 'true'}]\n", encoding="utf-8")
    return book


def create(book: Path, *, parent: Path) -> RunFolder:
    return RunFolder.create(load(book), parent=parent, python="python", only=(), skip=())


def test_a_path_that_is_no_utf_8_is_refused_in_a_sentence(tmp_path: Path) -> None:
    book = write_book(tmp_path)
    parent = tmp_path / os.fsdecode(b"caf\xe9")
    with pytest.raises(FolderError, match=r"caf\?.* is not in UTF-8, as every record of it would be; rename it"):
        create(book, parent=parent)
    assert not parent.exists()
    create(book, parent=tmp_path / "café 目录")


@pytest.mark.parametrize("name", ["../../evil", "/evil", "..", "a/b", "x\nsecrets: [A]", "x\u2028y", "", "a" * 300])
def test_a_name_that_is_none_of_a_run_folder_is_refused(tmp_path: Path, name: str) -> None:
    """`report --share` makes a folder called after it, and `baseline` writes it into a runbook."""
    folder = create(write_book(tmp_path), parent=tmp_path)
    assert RunFolder.open(folder.root).header == folder.header
    header = json.loads((folder.root / "run.json").read_text(encoding="utf-8"))
    (folder.root / "run.json").write_text(json.dumps({**header, "run_id": name}), encoding="utf-8")
    with pytest.raises(FolderError, match="cannot be read"):
        RunFolder.open(folder.root)
    told = samples.go().model_dump(by_alias=True)
    assert ValidationReport.model_validate(told) == samples.go()
    with pytest.raises(ValidationError, match="run_id"):
        ValidationReport.model_validate({**told, "run_id": name})


def test_a_runbook_that_was_edited_since_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = write_book(tmp_path)
    monkeypatch.chdir(tmp_path)
    folder = create(Path("a.yaml"), parent=tmp_path)
    monkeypatch.chdir("/")
    assert not runbook_was_edited(folder)
    book.write_text(book.read_text(encoding="utf-8").replace("true", "false"), encoding="utf-8")
    assert runbook_was_edited(folder)
    book.unlink()
    assert not runbook_was_edited(folder)


def test_the_largest_files_are_listed_without_a_hash_where_all_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of sparse files, each within the limit, kept a report from being written for minutes."""
    folder = create(write_book(tmp_path), parent=tmp_path)
    for name, size in (("a", 3000), ("b", 10), ("c", 2000), ("d", 4000)):
        (folder.root / name).write_bytes(b"x" * size)
    own = (folder.root / "run.json").stat().st_size + (folder.root / "runbook.yaml").stat().st_size
    assert all(digest for _, _, digest in folder.artifacts())
    monkeypatch.setattr("validator.runs.folder._MAX_HASHED", own + 6000)
    assert [(path, digest is None) for path, _, digest in folder.artifacts() if len(path) == 1] == [
        ("a", False), ("b", False), ("c", False), ("d", True),
    ]  # fmt: skip


def test_the_last_go_began_before_whatever_the_names_of_one_second_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They end at random: every other short run was held against none, or not against the last."""
    book, made = write_book(tmp_path), list[RunFolder]()
    for milliseconds, end in ((100, "cccc"), (500, "aaaa"), (900, "bbbb")):
        monkeypatch.setattr("validator.runs.folder.utc_now", lambda ms=milliseconds: f"2026-11-23T08:00:00.{ms}Z")
        monkeypatch.setattr("validator.runs.folder.secrets.token_hex", lambda _, end=end: end)
        made.append(create(book, parent=tmp_path / "reports"))
        (made[-1].root / "result.json").write_text('{"decision": "GO"}', encoding="utf-8")
    last = [found and found.root for found in (last_go(one, {}) for one in made)]
    assert last == [None, made[0].root, made[1].root]

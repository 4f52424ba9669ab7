"""Where a validation writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from validator.folder import FolderError, RunFolder, runbook_was_edited
from validator.runbook import load


def test_a_path_that_is_no_utf_8_is_refused_in_a_sentence(tmp_path: Path) -> None:
    book = tmp_path / "a.yaml"
    book.write_text("schema: 1\nname: a\nphases: [{id: a, kind: command, run: 'true'}]\n", encoding="utf-8")
    parent = tmp_path / os.fsdecode(b"caf\xe9")
    with pytest.raises(FolderError, match=r"caf\?.* is not in UTF-8, as every record of it would be; rename it"):
        RunFolder.create(load(book), parent=parent, python="python", only=(), skip=())
    assert not parent.exists()
    RunFolder.create(load(book), parent=tmp_path / "café 目录", python="python", only=(), skip=())


def test_a_runbook_that_was_edited_since_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = tmp_path / "a.yaml"
    book.write_text("schema: 1\nname: a\nphases: [{id: a, kind: command, run: 'true'}]\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    folder = RunFolder.create(load(Path("a.yaml")), parent=tmp_path, python="python", only=(), skip=())
    monkeypatch.chdir("/")
    assert not runbook_was_edited(folder)
    book.write_text(book.read_text(encoding="utf-8").replace("true", "false"), encoding="utf-8")
    assert runbook_was_edited(folder)
    book.unlink()
    assert not runbook_was_edited(folder)

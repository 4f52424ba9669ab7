"""The files of code and configuration that a command names."""

from __future__ import annotations

import hashlib
from pathlib import Path

from validator.supervise.launch import named_files


def test_files_are_found_by_the_words_of_the_command(tmp_path: Path) -> None:
    for name in ("train.py", "conf/a.yaml", "conf/b.json", "package/module.py", "corpus.txt", "reports/own.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name, encoding="utf-8")
    command = ("python", "-m", "package.module", "train.py", "--config", "conf/a.yaml", "--more=conf/b.json")
    found = named_files((*command, "corpus.txt", "reports/own.yaml", "no.py"), cwd=tmp_path, out=tmp_path / "reports")
    assert found == {
        name: hashlib.sha256(name.encode()).hexdigest()
        for name in ("train.py", "conf/a.yaml", "conf/b.json", "package/module.py")
    }


def test_what_is_large_or_no_file_is_no_code(tmp_path: Path) -> None:
    (tmp_path / "data.json").write_bytes(b" " * (5 << 20))
    (tmp_path / "folder.py").mkdir()
    words = ("data.json", "folder.py", "a\0b.py", "x" * 5000 + ".py")
    assert named_files(words, cwd=tmp_path, out=tmp_path / "out") == {}

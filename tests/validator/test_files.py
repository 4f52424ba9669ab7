"""Files below a folder: nothing outside is read or written, and nothing blocks."""

from __future__ import annotations

import ast
import gzip
import json
import math
import os
from pathlib import Path

import pytest

import validator
from validator.documents import parse_json, parse_yaml, unpack
from validator.files import Tree, Unreadable


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret.txt").write_text("secret")
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "x.txt").write_text("x")
    return folder


@pytest.mark.parametrize("name", ["../outside/secret.txt", "/etc/hostname", "", "a/../../outside/secret.txt", "a\0b"])
def test_only_paths_below_the_folder_are_opened(root: Path, outside: Path, name: str) -> None:
    with Tree(root) as tree:
        with pytest.raises(Unreadable):
            tree.read(name)
        with pytest.raises(Unreadable):
            tree.write(name, "planted")
    assert (outside / "secret.txt").read_text() == "secret"


def test_no_link_is_followed(root: Path, outside: Path) -> None:
    (root / "file").symlink_to(outside / "secret.txt")
    (root / "folder").symlink_to(outside)
    with Tree(root) as tree:
        for name in ("file", "folder/secret.txt"):
            with pytest.raises(OSError, match="link"):
                tree.read(name)
        with pytest.raises(OSError, match="link"):
            tree.write("folder/new.txt", "planted")
        tree.write("file", "own")
        assert {(entry.path, entry.kind) for entry in tree.walk()} == {
            ("a", "folder"),
            ("a/x.txt", "file"),
            ("file", "file"),
            ("folder", "link"),
        }
    assert (root / "file").read_text() == "own", "a link is replaced, what it led to is left alone"
    assert [path.name for path in outside.iterdir()] == ["secret.txt"]
    assert (outside / "secret.txt").read_text() == "secret"


def test_the_folder_itself_may_be_reached_by_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(root)
    with Tree(tmp_path / "latest") as tree:
        assert tree.read("a/x.txt") == b"x"
    (tmp_path / "round").symlink_to(tmp_path / "round")
    with pytest.raises(OSError, match="links"):
        Tree(tmp_path / "round")


@pytest.mark.timeout(10)
def test_only_regular_files_are_opened_and_none_blocks(root: Path) -> None:
    os.mkfifo(root / "pipe")
    with Tree(root) as tree:
        for name in ("pipe", "a"):
            with pytest.raises(Unreadable, match="not a regular file"):
                tree.read(name)
        assert not tree.has_file("pipe")
        tree.write("pipe", "own")
        assert tree.read("pipe") == b"own"


def test_a_read_has_a_limit_that_a_sparse_file_cannot_exceed(root: Path) -> None:
    with (root / "sparse").open("wb") as file:
        file.truncate(10 * 2**30)
    with Tree(root) as tree, pytest.raises(Unreadable, match="larger than 1000 bytes"):
        tree.read("sparse", limit=1000)


def test_a_file_is_replaced_whole_and_follows_the_umask(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0o077)
    try:
        with Tree(root) as tree:
            tree.write("new/deep/file.txt", "one")
            assert (root / "new/deep/file.txt").stat().st_mode & 0o777 == 0o600
            monkeypatch.setattr(os, "replace", lambda *args, **kwargs: (_ for _ in ()).throw(OSError(28, "full")))
            with pytest.raises(OSError, match="full"):
                tree.write("new/deep/file.txt", "two")
    finally:
        os.umask(before)
    assert [path.name for path in (root / "new/deep").iterdir()] == ["file.txt"], "nothing half written is left"
    assert (root / "new/deep/file.txt").read_text() == "one"


def test_json_of_others_is_bounded() -> None:
    assert parse_json('{"a": [1, NaN, -Infinity, 12345678901234567890123]}')["a"][0] == 1
    assert parse_json("9" * 5000) == math.inf
    assert parse_json('{"\\ud800": "a\\udfffb", "ok": "\\ud83d\\ude00"}') == {"\ufffd": "a\ufffdb", "ok": "\U0001f600"}
    for text in ("[" * 100_000 + "]" * 100_000, "[" * 70 + "]" * 70, '{"a":' * 70 + "1" + "}" * 70):
        with pytest.raises(ValueError, match="nested deeper"):
            parse_json(text)
    assert parse_json("[" * 60 + "]" * 60)
    assert json.dumps(parse_json(b'"\xff"')) == '"\\ufffd"'


def test_what_is_unpacked_is_bounded() -> None:
    assert unpack(gzip.compress(b"abc")) == b"abc"
    with pytest.raises(ValueError, match="more than 1000 bytes"):
        unpack(gzip.compress(b"\0" * 2**24), limit=1000)
    with pytest.raises(ValueError, match="truncated"):
        unpack(gzip.compress(b"abc" * 1000)[:-9])
    with pytest.raises(ValueError, match="not a sound gzip"):
        unpack(b"no gzip")


def test_yaml_of_others_is_bounded() -> None:
    assert parse_yaml("a: &x {b: 1}\nc: *x\nd: {<<: *x, e: 2}")["d"] == {"b": 1, "e": 2}
    bomb = "\n".join(
        ["a0: &a0 [x, x, x, x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 8)}]" for n in range(1, 12))]
    )
    deep = ("[" * 200 + "]" * 200, "- " * 5000 + "1", "{a: " * 100_000)
    for text in (bomb, "&a [*a]", "!!python/object/apply:os.system [ls]", "a: [", "\0", *deep):
        with pytest.raises(ValueError, match="it "):
            parse_yaml(text)


_OPENING = {"open", "read_text", "read_bytes", "write_text", "write_bytes"}
_PARSING = {("json", "loads"), ("json", "load"), ("yaml", "load"), ("yaml", "safe_load"), ("os", "open")}
_OWN = {"Tree", "tree", "Journal", "RunFolder", "Gpus", "self", "trainer", "webbrowser"}
"""Names whose `open` is another one."""

_ALLOWED = {
    "files.py": "the place",
    "documents.py": "the place for what is parsed",
    "cli.py": "standard streams",
    "runbook/starting.py": "the first bytes of a program that the operator's command names",
    "runbook/load.py": "the operator's own runbook, by a limit",
    "runbook/find.py": "runbooks that come along, and the operator's own",
    "runbook/offered.py": "the operator's own runbook",
    "report/templates.py": "templates that come along",
    "report/exports.py": "the file that the CI names",
    "nightly/settings.py": "the user's own settings",
    "nightly/schedule.py": "the user's own unit files",
    "nightly/job.py": "logs in the user's own state folder, and what its own process printed",
    "bisect/side.py": "a config that the operator names, read as YAML by parse_yaml",
    "bisect/work.py": "a folder that the command has just made",
    "kinds/storage.py": "the disk that it measures, /proc, and what its own process printed",
    "service/queue.py": "the queue in the user's own state folder, and the operator's own runbook",
    "supervise/lock.py": "the private folder of locks",
    "runs/journal.py": "the journal of this runner, which it holds",
    "supervise/launch.py": "logs of a run that has not started; files that the operator's command names",
    "supervise/watch.py": "a log of its own, of what it reads from a pipe",
    "supervise/dump.py": "pipes of the flight recorder, without blocking",
    "supervise/guardian.py": "a program that imports nothing",
    "system/processes.py": "/proc and /sys",
    "supervise/capture.py": "holes in a log that is being written",
    "system/xid.py": "/dev/kmsg",
    "system/software.py": "what its own process printed",
    "system/packages.py": "the source of a launcher in the operator's environment",
    "ingest/read_log.py": "lines in bounds, whose errors are caught",
}
"""Who may open or parse by itself, and what."""


def test_what_others_wrote_is_opened_in_one_place() -> None:
    package = Path(validator.__file__).parent
    found: dict[str, list[str]] = {}
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        if name.startswith("selftest/"):  # it lays out its own folders
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and (what := _opens(node.func)):
                found.setdefault(name, []).append(f"{name}:{node.lineno}: {what}")
    strange = [line for name, lines in found.items() if name not in _ALLOWED for line in lines]
    assert not strange, (
        "\n".join(strange)
        + "\nuse Tree and open_file of validator.files, parse_json and parse_yaml of validator.documents"
    )
    assert sorted(set(_ALLOWED) - set(found)) == [], "these need no exception any more"


def _opens(called: ast.expr) -> str | None:
    if isinstance(called, ast.Name):
        return "open" if called.id == "open" else None
    if not isinstance(called, ast.Attribute):
        return None
    owner = called.value.id if isinstance(called.value, ast.Name) else ""
    if (owner, called.attr) in _PARSING or (called.attr in _OPENING and owner not in _OWN):
        return f"{owner}.{called.attr}"
    return None

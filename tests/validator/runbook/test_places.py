"""Paths of a runbook, the files of its environment, and what is not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from validator.kinds.registry import load
from validator.plan import make_plan
from validator.runbook import RunbookError
from validator.runbook.load import LoadedRunbook
from validator.secrets.masking import clean_runbook, mask_of


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runbook's folder, which is not where validator is started."""
    for name in ("books", "elsewhere"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "books"


def read(folder: Path, trainer: str, *overrides: str, more: str = "", nproc: int = 0) -> LoadedRunbook:
    (folder / "one.yaml").write_text(
        f"""\
schema: 1
name: one
trainer: {{command: [train.py, "{{out}}"], {trainer}}}
{more}
phases: [{{id: a, kind: train, steps: 50, nproc: {nproc}, accept: [loss.last < 3]}}]
"""
    )
    return load(os.path.relpath(folder / "one.yaml"), overrides=overrides)


def environment(loaded: LoadedRunbook) -> dict[str, str]:
    (run,) = make_plan(loaded.runbook, run_dir=Path("/runs"), python="/py").runs
    return run.env


def test_paths_are_relative_to_the_runbook(folder: Path) -> None:
    (folder / ".env").write_text("A=1\n")
    (folder / "src").mkdir()
    (folder / "venv" / "bin").mkdir(parents=True)
    (folder / "venv" / "bin" / "python").symlink_to("/bin/sh")
    loaded = read(folder, "workdir: src, python: venv, env_file: .env")
    trainer = loaded.runbook.trainer
    assert (trainer.workdir, trainer.python) == (str(folder / "src"), str(folder / "venv"))
    assert trainer.env_file == (str(folder / ".env"),)
    assert loaded.absent == ()
    (run,) = make_plan(loaded.runbook, run_dir=Path("/runs"), python="/py").runs
    assert (run.argv[0], run.cwd) == (f"{folder}/venv/bin/python", f"{folder}/src")


def test_what_the_command_line_sets_is_relative_to_where_it_is_typed(folder: Path) -> None:
    trainer = read(folder, "workdir: .", "trainer.workdir=sub").runbook.trainer
    assert trainer.workdir == str(folder.parent / "elsewhere" / "sub")


def test_without_them_nothing_is_changed(folder: Path) -> None:
    trainer = read(folder, "cwd: here").runbook.trainer
    assert (trainer.cwd, trainer.workdir, trainer.python, trainer.env_file) == ("here", None, None, ())


def test_a_name_alone_is_a_program_on_the_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(folder, "python: sh").runbook.trainer.python == "sh"
    (folder / "sh").mkdir()
    assert read(folder, "python: sh").runbook.trainer.python == str(folder / "sh")


@pytest.mark.parametrize(
    ("trainer", "words"),
    [
        ("python: ../venv", "does not exist; name a Python"),
        ("python: no-such-python", "is neither beside the runbook nor on PATH"),
        ("python: empty", "is a folder without bin/python"),
        ("workdir: nowhere", "is no folder; make it"),
        ("env_file: [.env]", "does not exist; write it"),
        ("launcher: mpirun", "launcher mpirun is not on PATH; install an MPI"),
    ],
)
def test_what_is_absent_is_no_mistake_of_the_runbook(
    folder: Path, monkeypatch: pytest.MonkeyPatch, trainer: str, words: str
) -> None:
    (folder / "empty").mkdir()
    monkeypatch.setenv("PATH", str(folder))
    (found,) = read(folder, trainer, nproc=int("launcher" in trainer)).absent
    assert words in f"{found.message}; {found.fix}"
    assert found.line == 3


def test_the_runbook_wins_over_its_files_and_the_later_file_over_the_earlier(folder: Path) -> None:
    (folder / "a").write_text("ONE=a\nTWO=a\nTHREE=a\n")
    (folder / "b").write_text("TWO=b\nTHREE=b\n")
    env = environment(read(folder, "env_file: [a, b]", more="defaults: {env: {THREE: c}}"))
    assert [env[name] for name in ("ONE", "TWO", "THREE")] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("V=plain text", "plain text"),
        ("export V=1", "1"),
        ("  V = spaced  ", "spaced"),
        ("V=", ""),
        ("V='single # \\n'", "single # \\n"),
        ('V="a \\"b\\" \\\\ \\n"  # said', 'a "b" \\ \n'),
        ("V=value # said", "value"),
        ("V=a#b", "a#b"),
        ("V=${HOME} {steps} {{x}}", "${HOME} {steps} {{x}}"),
        ("V=a=b==", "a=b=="),
        ("\ufeffV=marked", "marked"),
    ],
)
def test_lines_are_read_as_they_are_meant(folder: Path, line: str, value: str) -> None:
    (folder / ".env").write_text(f"{line}\n# a comment\n\n", encoding="utf-8")
    assert environment(read(folder, "env_file: .env"))["V"] == value


@pytest.mark.parametrize("line", ["no assignment", "1A=2", "A-B=2", "=2", 'A="open', "A='open", 'A="x" y'])
def test_another_line_is_named_by_its_place(folder: Path, line: str) -> None:
    (folder / ".env").write_text(f"# first\n{line}\n")
    with pytest.raises(RunbookError) as error:
        read(folder, "env_file: .env")
    (problem,) = error.value.problems
    assert (problem.file, problem.line) == (str(folder / ".env"), 2)


def test_only_a_regular_file_of_some_size_is_read(folder: Path) -> None:
    (folder / "text").write_text("A=1\n")
    (folder / "link").symlink_to("text")
    os.mkfifo(folder / "pipe")
    (folder / "large").write_text("A=" + "x" * (2 << 20))
    (folder / "binary").write_bytes(b"A=\xff\xfe")
    for name in ("link", "pipe", "large", "binary"):
        with pytest.raises(RunbookError) as error:
            read(folder, f"env_file: [{name}]")
        assert "cannot be read" in str(error.value), name


def test_secrets_of_a_file_are_secrets(folder: Path) -> None:
    (folder / ".env").write_text("HF_TOKEN={hunter-2-hunter}\nHARMLESS=word\nOWN=declared-secret\n")
    loaded = read(folder, "env_file: .env", more="secrets: [OWN]")
    env = environment(loaded)
    assert env["HF_TOKEN"] == "{hunter-2-hunter}"
    (run,) = make_plan(loaded.runbook, run_dir=Path("/runs"), python="/py").runs
    assert b"hunter-2" not in mask_of(run).block(b"it printed {hunter-2-hunter} here\n")
    stored = clean_runbook(loaded.runbook)
    assert "hunter" not in stored.model_dump_json()
    assert stored.defaults.env["HARMLESS"] == "word"

"""Processes of the validator's own do not see what lies in the folder that they are started in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import validator
from validator.startup import call_argv, inline_argv

_IN_THE_WAY = ("types.py", "random.py", "json.py", "typer.py", "validator.py")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a trainer has modules named like everything that matters."""
    for name in _IN_THE_WAY:
        (tmp_path / name).write_text(f"raise SystemExit('this is {name}')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _said(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_function_of_this_package_is_called_with_its_arguments(folder: Path) -> None:
    assert _said(*call_argv("validator.cli", "main"), "--version") == f"validator {validator.__version__}"


def test_what_a_function_returns_is_the_exit_code(folder: Path) -> None:
    done = subprocess.run(
        [*call_argv("validator.cli", "main"), "check", "nothing.yaml"], capture_output=True, check=False
    )
    assert done.returncode == 2


def test_code_runs_in_another_interpreter(folder: Path) -> None:
    code = "import random, sys, types\nfor word in sys.argv[1:]: print(word)"
    assert _said(*inline_argv(sys.executable, code), "one", "two").split() == ["one", "two"]


def test_packages_of_pythonpath_are_found_all_the_same(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path_factory.mktemp("packages")
    (place / "its_package.py").write_text("answer = 42", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(place))
    assert _said(*inline_argv(sys.executable, "import its_package; print(its_package.answer)")) == "42"


def test_the_environment_is_captured_beside_a_trainers_modules(folder: Path) -> None:
    from validator.system.preflight import _captures

    command = next(one.command for one in _captures(sys.executable, torch=True) if one.file == "collect_env.txt")
    assert "PyTorch version" in _said(*command)

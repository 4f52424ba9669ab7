"""What is wrong with how a trainer is to be started: each mistake with its sound twin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.validator.runbook.test_meaning import check, phase

METRICS = {"stdout": "step {step} loss {loss}"}


def problems(*command: str, nproc: int = 1, **trainer: Any) -> list[str]:
    trainer = {"command": [*command, "{out}"], "metrics": METRICS, **trainer}
    return check(phase(nproc=nproc), trainer=trainer)


@pytest.mark.parametrize("word", ["python", "python3.12", "/usr/bin/python3", "../venv/bin/python", "pypy3"])
@pytest.mark.parametrize("launcher", [None, "python", "torchrun", "accelerate", "deepspeed", "mpirun"])
def test_an_interpreter_is_not_given_to_an_interpreter(word: str, launcher: str | None) -> None:
    (found,) = problems(word, "train.py", launcher=launcher)
    assert f"an interpreter, {word!r}" in found
    assert "leave it out (trainer.python names the interpreter), or write launcher: plain" in found
    assert problems("train.py", launcher=launcher) == []
    assert problems(word, "train.py", launcher="plain") == []


@pytest.mark.parametrize(("word", "launcher"), [("torchrun", "torchrun"), ("/v/bin/mpiexec", "mpirun")])
def test_a_launcher_is_declared_and_not_given_to_python(word: str, launcher: str) -> None:
    (found,) = problems(word, "train.py")
    assert f"write launcher: {launcher} and its options in launcher_args" in found


@pytest.mark.parametrize("word", ["./run.sh", "bash", "srun"])
def test_another_program_is_plain(word: str) -> None:
    (found,) = problems(word)
    assert "write launcher: plain" in found
    assert problems(word, launcher="plain") == []


def test_the_file_itself_says_that_it_is_no_python(tmp_path: Path) -> None:
    (tmp_path / "compiled").write_bytes(b"\x7fELF\x02\x01\0\0")
    (tmp_path / "script").write_text("#!/usr/bin/env bash\n")
    (tmp_path / "pythonic").write_text("#!/usr/bin/env python3\n")
    for name, sound in (("compiled", False), ("script", False), ("pythonic", True), ("absent", True)):
        assert (problems(f"./{name}", cwd=str(tmp_path)) == []) == sound, name


def test_plain_names_a_program() -> None:
    for command in (("-m", "pkg.train"), ("train.py",)):
        (found,) = problems(*command, launcher="plain")
        assert "no program | name the program first, or write launcher: python" in found
    assert problems("./train.py", launcher="plain") == []
    (found,) = problems("./run", launcher="plain", launcher_args=["-x"])
    assert "launcher_args has no launcher to go to" in found


def test_a_launcher_of_ranks_starts_one_at_least() -> None:
    (found,) = problems("train.py", launcher="deepspeed", nproc=0)
    assert "phase a has nproc: 0, and launcher: deepspeed starts at least one rank | write nproc: 1" in found
    assert problems("train.py", nproc=0) == []


def test_accelerate_with_cpu_starts_one_process() -> None:
    (found,) = problems("train.py", launcher="accelerate", launcher_args=["--cpu"], nproc=2)
    assert "accelerate starts one process with --cpu" in found


def test_one_working_directory() -> None:
    (found,) = problems("train.py", workdir=".", cwd=".")
    assert "workdir and cwd are both given" in found


def test_placeholders_of_launchers_are_known() -> None:
    (found,) = problems("train.py", launcher="torchrun", launcher_args=["{prot}"])
    assert "there is no placeholder {prot}" in found


@pytest.mark.parametrize("word", ["--name", "--name=mine", "-d", "--detach", "--restart=always"])
def test_a_container_is_waited_for_and_ended_by_its_name(word: str) -> None:
    boxed = {"engine": "docker", "image": "i", "args": ["--gpus", "all", word]}
    (found,) = problems("train.py", container=boxed)
    assert f"container.args has {word!r}" in found
    assert problems("train.py", container={**boxed, "args": ["--gpus", "all"]}) == []
    assert problems("train.py", container={**boxed, "engine": "apptainer"}) == []


def test_packages_of_an_image_are_not_looked_up() -> None:
    first = {"id": "first", "kind": "preflight", "packages": ["torch>=2.6"]}
    trainer = {"command": ["train.py", "{out}"], "metrics": METRICS}
    assert check(first, phase(), trainer=trainer) == []
    (found,) = check(first, phase(), trainer={**trainer, "container": {"engine": "enroot", "image": "i"}})
    assert "requires packages, and those of trainer.container are not looked into" in found


def test_an_end_behind_the_steps_needs_steps() -> None:
    (found,) = problems("train.py", stop="at_steps", metrics={"metrics": "m.json"})
    assert "stop: at_steps needs to read steps while the trainer runs" in found
    assert problems("train.py", stop="at_steps") == []

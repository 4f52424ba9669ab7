"""Trainers of other environments and under other launchers, each started as its people start it."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import venv
from importlib.util import find_spec
from pathlib import Path

import pytest

_LOOP = """
import os, sys, time
rank = int(os.environ.get("RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or 0)
for step in range(1, int(sys.argv[1]) + 1):
    time.sleep(0.004)
    if rank == 0:
        print(f"step {step} loss {3 / step:.4f} tok/s {5000 + step % 7}", flush=True)
"""

_RUNBOOK = """\
schema: 1
name: started
trainer:
  command: {command}
  metrics: {{stdout: 'step {{step}} loss {{loss}} tok/s {{toks_per_s}}'}}
{trainer}
defaults: {{timeout: 60s, warmup_steps: 5, nproc: {nproc}}}
phases: [{{id: baseline, kind: train, steps: 60, accept: [toks_per_s.mean >= 4000 tok/s]}}]
"""


def write(folder: Path, command: str, trainer: str = "", *, nproc: int = 0) -> Path:
    lines = "\n".join(f"  {line}" for line in trainer.splitlines())
    path = folder / "started.yaml"
    path.write_text(_RUNBOOK.format(command=command, trainer=lines, nproc=nproc), encoding="utf-8")
    return path


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def run_of(workdir: Path) -> Path:
    (folder,) = (workdir / "reports").glob("*/runs/baseline/r1")
    return folder


def test_a_trainer_of_another_environment_finds_nothing_of_ours(cli, workdir: Path, tmp_path: Path) -> None:
    """Its package has the name of the bundled trainer's, and its environment has no package at all."""
    repository = tmp_path / "repository"
    venv.create(repository / "venv", with_pip=False, symlinks=True)
    (repository / "venv" / "bin" / "helper").symlink_to("/bin/true")
    package = repository / "nsa"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text(
        "import importlib.util as util, os, shutil, sys\n"
        "print('theirs', __file__, sys.prefix, os.environ['VIRTUAL_ENV'], shutil.which('helper'))\n"
        "print('ours', util.find_spec('validator'), util.find_spec('pydantic'))" + _LOOP,
        encoding="utf-8",
    )
    trainer = "workdir: .\npython: venv\nenv_file: .env"
    (repository / ".env").write_text("HF_TOKEN=hunter2hunter2\n")
    answer = cli("run", str(write(repository, '[-m, nsa.train, "{steps}"]', trainer)))
    assert answer.rc == 0, answer.out + answer.err
    environment = f"{repository}/venv"
    theirs, ours, *_ = (run_of(workdir) / "logs" / "stdout.log").read_text().splitlines()
    assert theirs == f"theirs {package}/train.py {environment} {environment} {environment}/bin/helper"
    assert ours == "ours None None"
    everything = b"".join(path.read_bytes() for path in (workdir / "reports").rglob("*") if path.is_file())
    assert b"hunter2" not in everything


def test_a_plain_program_is_started_as_it_is(cli, workdir: Path) -> None:
    (workdir / "loop.py").write_text(_LOOP)
    program(workdir / "run.sh", f'#!/bin/sh\nexec "{sys.executable}" loop.py "$1"\n')
    answer = cli("run", str(write(workdir, '[./run.sh, "{steps}"]', "launcher: plain")))
    assert answer.rc == 0, answer.out + answer.err


def test_ranks_that_print_into_one_log_do_not_stand_still(cli, workdir: Path) -> None:
    (workdir / "loop.py").write_text(_LOOP.replace("if rank == 0:", "for rank in range(8):"))
    answer = cli("run", str(write(workdir, '[loop.py, "{steps}"]', "launcher: python", nproc=8)))
    assert answer.rc == 0, answer.out + answer.err


def test_deepspeed_is_started_by_its_module(cli, workdir: Path) -> None:
    """A double takes the options that deepspeed has, and starts the ranks as it does."""
    double = workdir / "deepspeed" / "launcher"
    double.mkdir(parents=True)
    (double.parent / "__init__.py").touch()
    (double / "__init__.py").touch()
    (double / "runner.py").write_text(
        """
import argparse, os, subprocess, sys
parser = argparse.ArgumentParser()
for name in ("--num_gpus", "--master_port"):
    parser.add_argument(name, type=int, required=True)
parser.add_argument("--master_addr", required=True)
parser.add_argument("--module", action="store_true")
parser.add_argument("script")
parser.add_argument("rest", nargs=argparse.REMAINDER)
args = parser.parse_args()
assert args.module and args.master_addr == "127.0.0.1"
command = [sys.executable, "-u", "-m", args.script, *args.rest]
ranks = [subprocess.Popen(command, env={**os.environ, "RANK": str(rank)}) for rank in range(args.num_gpus)]
sys.exit(max(rank.wait() for rank in ranks))
"""
    )
    (workdir / "loop.py").write_text(_LOOP)
    answer = cli("run", str(write(workdir, '[-m, loop, "{steps}"]', "launcher: deepspeed", nproc=2)))
    assert answer.rc == 0, answer.out + answer.err


_ACCELERATE = """
import argparse, os, pathlib, subprocess, sys
parser = argparse.ArgumentParser()
for name in ("--num_processes", "--num_machines", "--main_process_port"):
    parser.add_argument(name, type=int, required=True)
for name in ("--main_process_ip", "--log_dir", "--tee", "--mixed_precision"):
    parser.add_argument(name, required=True)
parser.add_argument("--multi_gpu", action="store_true", required=True)
parser.add_argument("script")
parser.add_argument("rest", nargs=argparse.REMAINDER)
args = parser.parse_args()
ranks = []
for rank in range(args.num_processes):
    folder = pathlib.Path(FOLDER, "none_1", "attempt_0", str(rank))
    folder.mkdir(parents=True)
    with open(folder / "stdout.log", "w") as log:
        command = [sys.executable, "-u", args.script, *args.rest]
        ranks.append(subprocess.Popen(command, stdout=log, env={**os.environ, "RANK": str(rank)}))
sys.exit(max(rank.wait() for rank in ranks))
"""
"""As much of `accelerate launch` as is asked of it; FOLDER is that of the ranks' logs."""


@pytest.mark.parametrize("log_dir", ["option", "variable"])
def test_accelerate_is_started_by_its_module(cli, workdir: Path, log_dir: str) -> None:
    """A double takes the options that accelerate has, and writes each rank's log as torch's launcher does. Before 0.31
    it had no `--log_dir`, and ended with `unrecognized arguments`; torch's launcher takes the folder by a variable."""
    package = workdir / "accelerate" / "commands"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "launch.py").write_text(
        (_ACCELERATE if log_dir == "option" else _ACCELERATE.replace('"--log_dir", ', "")).replace(
            "FOLDER", "args.log_dir" if log_dir == "option" else "os.environ['PET_LOG_DIR']"
        )
    )
    (workdir / "loop.py").write_text(_LOOP)
    trainer = "launcher: accelerate\nlauncher_args: [--mixed_precision, bf16]"
    answer = cli("run", str(write(workdir, '[loop.py, "{steps}"]', trainer, nproc=2)))
    assert answer.rc == 0, answer.out + answer.err


@pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate is not installed; its double is tested")
def test_accelerate_itself(cli, workdir: Path) -> None:
    (workdir / "loop.py").write_text(_LOOP)
    answer = cli("run", str(write(workdir, '[loop.py, "{steps}"]', "launcher: accelerate", nproc=2)))
    assert answer.rc == 0, answer.out + answer.err
    assert len(list(run_of(workdir).glob("logs/ranks/*/attempt_0/*/stdout.log"))) == 2


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no MPI is installed; its double is tested")
def test_mpirun_itself(cli, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open MPI starts nothing for root unless it is asked twice."""
    monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT", "1")
    monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    (workdir / "loop.py").write_text(_LOOP)
    for stop, steps in (("trainer", "{steps}"), ("at_steps", "100000")):
        trainer = f"launcher: mpirun\nlauncher_args: [--oversubscribe]\nstop: {stop}"
        answer = cli("run", str(write(workdir, f'[loop.py, "{steps}"]', trainer, nproc=2)))
        assert answer.rc == 0, answer.out + answer.err


def test_mpirun_is_found_on_the_path(cli, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(
        workdir / "bin" / "mpirun",
        f"""#!{sys.executable}
import os, subprocess, sys
assert sys.argv[1] == "-np" and sys.argv[3] == "--quiet", sys.argv
assert os.environ["MASTER_ADDR"] == "127.0.0.1" and int(os.environ["MASTER_PORT"]) > 0
ranks = [
    subprocess.Popen(sys.argv[4:], env={{**os.environ, "OMPI_COMM_WORLD_RANK": str(rank)}}, start_new_session=True)
    for rank in range(int(sys.argv[2]))
]
sys.exit(max(rank.wait() for rank in ranks))
""",
    )
    monkeypatch.setenv("PATH", f"{workdir}/bin:{os.environ['PATH']}")
    (workdir / "loop.py").write_text(_LOOP)
    trainer = "launcher: mpirun\nlauncher_args: [--quiet]"
    answer = cli("run", str(write(workdir, '[loop.py, "{steps}"]', trainer, nproc=2)))
    assert answer.rc == 0, answer.out + answer.err


def test_what_is_absent_warns_when_checked_and_refuses_when_run(cli, workdir: Path) -> None:
    (workdir / "loop.py").write_text(_LOOP)
    path = write(workdir, '[loop.py, "{steps}"]', "python: ../no-venv")
    checked = cli("check", str(path))
    assert checked.rc == 0
    assert "warning: trainer.python" in checked.err
    answer = cli("run", str(path))
    assert answer.rc == 4
    assert "does not exist; name a Python or the folder of a virtual environment" in answer.err
    assert not list(workdir.glob("reports/*"))


def test_an_interpreter_in_the_command_is_a_mistake(cli, workdir: Path) -> None:
    answer = cli("check", str(write(workdir, '[python, loop.py, "{steps}"]')))
    assert answer.rc == 2
    assert "leave it out (trainer.python names the interpreter), or write launcher: plain" in answer.err

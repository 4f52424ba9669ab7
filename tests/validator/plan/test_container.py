"""The command line of each engine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.validator.plan.test_plan import book, only_run, train
from validator.model.plan import RunSpec
from validator.plan import launch_words, make_plan
from validator.plan.container import passed_names

OUT = "/runs/one/runs/a/r1"
INNER = ("python", "train.py", f"--out={OUT}", "50")


def boxed(engine: str, *, workdir: str = "/code", phase: dict[str, Any] | None = None, **more: Any) -> RunSpec:
    trainer = {
        "command": ["train.py", "--out={out}", "{steps}"],
        "container": {"engine": engine, "image": "repo/img:tag", "args": ["--own", 1]},
        "workdir": workdir,
        **more,
    }
    return only_run(phase or train(nproc=0, env={"SECRET_TOKEN": "hunter2"}), trainer=trainer)


def names(run: RunSpec, option: str) -> list[str]:
    return [run.argv[at + 1] for at, word in enumerate(run.argv) if word == option]


@pytest.mark.parametrize(
    ("engine", "uid", "user"),
    [
        ("docker", 1000, ("--user", "1000:7")),
        ("docker", 0, ("--user", "0:7")),
        ("podman", 1000, ("--userns", "keep-id", "--user", "1000:7")),
        ("podman", 0, ("--user", "0:7")),
    ],
)
def test_docker_and_podman(monkeypatch: pytest.MonkeyPatch, engine: str, uid: int, user: tuple[str, ...]) -> None:
    monkeypatch.setattr(os, "getuid", lambda: uid)
    monkeypatch.setattr(os, "getgid", lambda: 7)
    run = boxed(engine)
    passed = tuple(word for name in passed_names(run.env) for word in ("--env", name))
    assert run.argv == (
        *(engine, "run", "--rm", "--init", "--name", "{container}", "--label", "validator", *user),
        *("--mount", "type=bind,source=/runs/one,target=/runs/one"),
        *("--mount", "type=bind,source=/code,target=/code", "--workdir", "/code"),
        *(*passed, "--own", "1", "repo/img:tag", *INNER),
    )
    assert {"SECRET_TOKEN", "PYTHONUNBUFFERED", "VALIDATOR_RUN_TOKEN"} <= set(passed)
    assert not any("hunter2" in word for word in run.argv)
    assert (run.cwd, run.python) == ("/code", None)


def test_apptainer() -> None:
    assert boxed("apptainer").argv == (
        *("apptainer", "exec", "--cleanenv", "--bind", "/runs/one:/runs/one", "--bind", "/code:/code"),
        *("--pwd", "/code", "--own", "1", "repo/img:tag", *INNER),
    )


def test_enroot() -> None:
    run = boxed("enroot")
    assert run.argv[:6] == ("enroot", "start", "--mount", "/runs/one:/runs/one", "--mount", "/code:/code")
    assert run.argv[run.argv.index("repo/img:tag") + 1 :] == (
        *("sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", "/code"),
        *INNER,
    )
    assert "SECRET_TOKEN" in names(run, "--env")


def test_a_run_folder_in_the_working_directory_is_mounted_with_it() -> None:
    assert names(boxed("docker", workdir="/runs"), "--mount") == ["type=bind,source=/runs,target=/runs"]


def test_launchers_start_their_ranks_inside() -> None:
    run = boxed("docker", launcher="torchrun", python="python3", phase=train(nproc=2))
    inside = run.argv[run.argv.index("repo/img:tag") + 1 :]
    assert inside[:5] == ("python3", "-m", "torch.distributed.run", "--nproc-per-node", "2")
    assert "TORCH_FR_BUFFER_SIZE" in names(run, "--env")


def test_commands_run_outside_and_the_probes_inside() -> None:
    command = boxed("docker", phase={"id": "c", "kind": "command", "run": ["nvidia-smi"]})
    assert (command.argv, command.container) == (("nvidia-smi",), None)
    probe = boxed("docker", phase={"id": "p", "kind": "preflight", "probe": True})
    assert any(mount.endswith("/nsa,readonly") for mount in names(probe, "--mount"))
    assert probe.argv[probe.argv.index("repo/img:tag") + 1] == "python"


@pytest.mark.parametrize(
    ("engine", "typed"),
    [
        ("podman", "podman run --rm --own 1 repo/img:tag torchrun --nproc-per-node=2 train.py --out=OUT STEPS"),
        ("apptainer", "apptainer exec --own 1 repo/img:tag torchrun --nproc-per-node=2 train.py --out=OUT STEPS"),
    ],
)
def test_the_recommended_command_names_the_container(engine: str, typed: str) -> None:
    trainer = {
        "command": ["train.py", "--out={out}", "{steps}"],
        "container": {"engine": engine, "image": "repo/img:tag", "args": ["--own", 1]},
    }
    declared = book(train(nproc=2), trainer=trainer)
    (run,) = make_plan(declared, run_dir=Path("/runs/one"), python="/py").runs
    assert " ".join(launch_words(declared, declared.phases[0], run)) == typed


@pytest.mark.skipif(shutil.which("docker") is None, reason="docker's client is not installed")
def test_docker_itself_reads_the_options(tmp_path: Path) -> None:
    """Without a service it fails at the connection, behind the reading of its options."""
    run = boxed("docker")
    argv = [word for word in run.argv if word not in ("--own", "1")]
    here = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    done = subprocess.run(argv, env=here, capture_output=True, text=True, check=False)
    assert "daemon" in done.stderr or "connect" in done.stderr.lower(), done.stderr
    assert "unknown flag" not in done.stderr

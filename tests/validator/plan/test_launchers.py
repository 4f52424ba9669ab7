"""How the trainer is started: the words of each launcher, and the Python that they are given to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.validator.plan.test_plan import book, only_run, train
from validator.plan import FLIGHT_RECORDER, launch_words, make_plan

OUT = "/runs/one/runs/a/r1"
COMMAND = {"command": ["train.py", "--n={steps}", "--out={out}"]}
WORDS = ("train.py", "--n=50", f"--out={OUT}")


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in FLIGHT_RECORDER:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("launcher", "words"),
    [
        ("python", ("/py", "-u", *WORDS)),
        (
            "torchrun",
            (
                *("/py", "-m", "torch.distributed.run", "--nproc-per-node", "2"),
                *("--master-addr", "127.0.0.1", "--master-port", "{port}"),
                *("--log-dir", f"{OUT}/logs/ranks", "--redirects", "3", "-u", *WORDS),
            ),
        ),
        (
            "accelerate",
            (
                *("/py", "-m", "accelerate.commands.launch", "--num_processes", "2", "--num_machines", "1"),
                *("--main_process_ip", "127.0.0.1", "--main_process_port", "{port}"),
                *("--log_dir", f"{OUT}/logs/ranks", "--tee", "3", "--multi_gpu", "-u", *WORDS),
            ),
        ),
        (
            "deepspeed",
            (
                *("/py", "-m", "deepspeed.launcher.runner", "--num_gpus", "2"),
                *("--master_addr", "127.0.0.1", "--master_port", "{port}", "-u", *WORDS),
            ),
        ),
        ("mpirun", ("mpirun", "-np", "2", "-u", "/py", *WORDS)),
    ],
)
def test_each_launcher_is_given_its_ranks_its_arguments_and_the_command(launcher: str, words: tuple[str, ...]) -> None:
    run = only_run(train(nproc=2), trainer={**COMMAND, "launcher": launcher, "launcher_args": ["-u"]})
    assert run.argv == words
    assert (run.launcher, run.nproc, run.ranks) == (launcher, 2, 2)
    assert ("TORCH_FR_BUFFER_SIZE" in run.env) == (launcher != "python")


def test_mpirun_says_where_the_ranks_meet() -> None:
    env = only_run(train(nproc=2), trainer={**COMMAND, "launcher": "mpirun"}).env
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("127.0.0.1", "{port}")


def test_a_plain_command_is_started_as_it_is() -> None:
    run = only_run(train(), trainer={"command": ["./run.sh", "{steps}"], "launcher": "plain", "metrics": {"csv": "t"}})
    assert run.argv == ("./run.sh", "50", "--out", OUT)
    assert (run.nproc, run.ranks, run.world_size) == (0, None, 1)
    assert run.env == {"PYTHONUNBUFFERED": "1"}


@pytest.mark.parametrize("launcher", ["plain", "python"])
def test_the_ranks_that_a_trainer_starts_itself_are_declared(launcher: str) -> None:
    trainer = {"command": ["./run", "{out}"], "launcher": launcher}
    assert only_run(train(nproc=4), trainer=trainer).ranks == 4
    declared = book(train(), trainer=trainer, defaults={"nproc": 2})
    assert declared.defaults.nproc == 2
    # What is stored and read again is the same runbook.
    unknown = book(train(), trainer=trainer)
    assert type(unknown).model_validate(unknown.model_dump(mode="json", by_alias=True)).defaults.nproc == 0


def test_accelerate_is_not_told_twice_what_to_launch() -> None:
    trainer = {**COMMAND, "launcher": "accelerate"}
    assert "--multi_gpu" not in only_run(train(nproc=1), trainer=trainer).argv
    for given in (["--use_deepspeed"], ["--use-fsdp"], ["--config_file=a.yaml"]):
        assert "--multi_gpu" not in only_run(train(nproc=2), trainer={**trainer, "launcher_args": given}).argv


def test_deepspeed_has_its_own_word_for_a_module() -> None:
    trainer = {"command": ["-m", "pkg.train", "{out}"], "launcher": "deepspeed"}
    assert only_run(train(nproc=1), trainer=trainer).argv[9:12] == ("--module", "pkg.train", OUT)


def test_launcher_arguments_have_placeholders() -> None:
    given = ["--rdzv-endpoint", "localhost:{port}", "--rdzv-id", "{phase}-{repeat}"]
    argv = only_run(train(nproc=2), trainer={**COMMAND, "launcher": "torchrun", "launcher_args": given}).argv
    assert argv[-7:-3] == ("--rdzv-endpoint", "localhost:{port}", "--rdzv-id", "a-1")


def test_a_virtual_environment_is_named_by_its_folder(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    run = only_run(train(nproc=0), trainer={**COMMAND, "python": str(tmp_path)})
    assert run.argv[0] == run.python == f"{tmp_path}/bin/python"
    named = only_run(train(nproc=0, args={"py": "{python}"}), trainer={**COMMAND, "python": "/opt/py/bin/python3"})
    assert named.argv[0] == named.python == named.argv[-1] == "/opt/py/bin/python3"
    assert only_run(train(nproc=0), trainer=COMMAND).python is None


def test_tests_and_the_loaders_trial_run_in_the_trainers_python() -> None:
    phases = (
        {"id": "tests", "kind": "pytest", "targets": ["tests"]},
        {"id": "data", "kind": "data", "steps": 50, "smoke": ["load.py"]},
        {"id": "shell", "kind": "command", "run": ["true"]},
    )
    runs = make_plan(
        book(*phases, trainer={**COMMAND, "python": "/t/bin/python", "launcher": "plain"}),
        run_dir=Path("/runs/one"),
        python="/py",
    ).runs
    assert [(run.argv[0], run.python) for run in runs] == [
        ("/t/bin/python", "/t/bin/python"),
        ("/t/bin/python", "/t/bin/python"),
        ("train.py", "/t/bin/python"),
        ("true", None),
    ]


@pytest.mark.parametrize("gpus", [0, 2])
def test_the_probes_bring_their_own_package(gpus: int) -> None:
    phase = {"id": "first", "kind": "preflight", "probe": True}
    top = {"hardware": {"gpus": gpus}, "trainer": {**COMMAND, "python": "/t/bin/python"}}
    argv = only_run(phase, **top).argv
    assert "-m" not in argv[argv.index("-c") :]
    assert (argv[0], "--no-python" in argv) == ("/t/bin/python", gpus > 1)
    assert argv[argv.index("-c") + 2].endswith("/nsa")
    assert only_run(phase, hardware={"gpus": gpus}).argv[0] == "/py"


@pytest.mark.parametrize(
    ("launcher", "typed"),
    [
        ("python", "python train.py --n=STEPS --out=OUT"),
        ("torchrun", "torchrun --nproc-per-node=2 train.py --n=STEPS --out=OUT"),
        ("accelerate", "accelerate launch --num_processes=2 --num_machines=1 --multi_gpu train.py --n=STEPS --out=OUT"),
        ("deepspeed", "deepspeed --num_gpus=2 train.py --n=STEPS --out=OUT"),
        ("mpirun", "mpirun -np 2 python train.py --n=STEPS --out=OUT"),
        ("plain", "train.py --n=STEPS --out=OUT"),
    ],
)
def test_the_recommended_command_is_what_a_person_types(launcher: str, typed: str) -> None:
    declared = book(train(nproc=2), trainer={**COMMAND, "launcher": launcher})
    (run,) = make_plan(declared, run_dir=Path("/runs/one"), python="/py").runs
    assert " ".join(launch_words(declared, declared.phases[0], run)) == typed
    own = book(train(nproc=2), trainer={**COMMAND, "launcher": launcher, "python": "/t/bin/python"})
    words = launch_words(own, own.phases[0], run)
    assert launcher in ("plain", "mpirun") or words[0].startswith("/t/bin/")

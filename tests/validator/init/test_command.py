"""What a person's command means: launcher, processes, settings of length and folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from validator.errors import UserError
from validator.init.command import understand
from validator.init.launch import CommandLaunch, launch_of
from validator.init.settings import (
    chosen_from,
    long_names,
    meaning_of,
    not_listed,
    offered_by_help,
    offered_in,
    with_placeholders,
)

PROGRAMS = ("torchrun", "accelerate", "deepspeed", "mpirun", "python", "python3.11", "srun-like", "uv")


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment whose programs are on PATH, and a working folder with a script."""
    folder = tmp_path / "venv" / "bin"
    folder.mkdir(parents=True)
    (folder.parent / "pyvenv.cfg").touch()
    for name in PROGRAMS:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(work)
    return folder


def words(line: str) -> tuple[str, ...]:
    return tuple(line.split())


@pytest.mark.parametrize(
    ("line", "launcher", "nproc", "args", "started"),
    [
        ("torchrun --nproc-per-node 2 train.py --lr 1", "torchrun", 2, "", "train.py --lr 1"),
        ("torchrun --standalone --nproc_per_node=4 -m pkg.train x=1", "torchrun", 4, "", "-m pkg.train x=1"),
        ("python -m nsa.launch --nproc-per-node 2 -m nsa.train --lr 1", "torchrun", 2, "", "-m nsa.train --lr 1"),
        (
            "torchrun --rdzv-backend c10d --max-restarts=1 train.py",
            "torchrun",
            1,
            "--rdzv-backend c10d --max-restarts=1",
            "train.py",
        ),
        (
            "python -m torch.distributed.run --nproc-per-node 2 --master-port 295 train.py",
            "torchrun",
            2,
            "",
            "train.py",
        ),
        (
            "accelerate launch --num_processes 2 --mixed_precision bf16 train.py",
            "accelerate",
            2,
            "--mixed_precision bf16",
            "train.py",
        ),
        (
            "accelerate launch --config_file a.yaml train.py --x",
            "accelerate",
            None,
            "--config_file a.yaml",
            "train.py --x",
        ),
        ("deepspeed --num_gpus 2 train.py --deepspeed ds.json", "deepspeed", 2, "", "train.py --deepspeed ds.json"),
        (
            "mpirun -np 2 --bind-to none -x NCCL_DEBUG python train.py",
            "mpirun",
            2,
            "--bind-to none -x NCCL_DEBUG",
            "train.py",
        ),
        ("mpirun --mca btl tcp -n 2 ./train", "plain", 2, "", "mpirun --mca btl tcp -n 2 ./train"),
        ("python -u train.py --lr 1", "python", 0, "", "train.py --lr 1"),
        ("python3.11 -m pkg.train", "python", 0, "", "-m pkg.train"),
        ("python -X dev train.py", "plain", 0, "", "python -X dev train.py"),
        ("train.py --lr 1", "python", 0, "", "train.py --lr 1"),
        ("-m pkg.train", "python", 0, "", "-m pkg.train"),
        ("uv run train.py", "plain", 0, "", "uv run train.py"),
    ],
)
def test_the_launcher_is_cut_off(line: str, launcher: str, nproc: int | None, args: str, started: str) -> None:
    found = launch_of(words(line))
    assert (found.launcher, found.nproc, found.args, found.words) == (launcher, nproc, words(args), words(started))


def test_the_python_of_a_launcher_is_that_of_its_environment(programs: Path) -> None:
    assert launch_of(words("torchrun train.py")).python == str(programs / "python")
    assert launch_of(words("python train.py")).python == str(programs / "python")
    assert launch_of((sys.executable, "train.py")).python is None


def test_variables_in_front_are_kept() -> None:
    found = launch_of(words("env OMP_NUM_THREADS=1 NAME=a=b python train.py"))
    assert (found.env, found.words) == ({"OMP_NUM_THREADS": "1", "NAME": "a=b"}, ("train.py",))


@pytest.mark.parametrize("line", ["", "A=1", "no-such-thing x", "torchrun --nnodes 2 train.py", "torchrun"])
def test_what_starts_nothing_here_is_refused(line: str) -> None:
    with pytest.raises(UserError):
        launch_of(words(line))


@pytest.mark.parametrize(
    ("line", "made"),
    [
        ("t.py --max_iters 600 --out_dir out", "t.py --max_iters {steps} --out_dir {out}"),
        ("t.py --max-steps=1e5 --output-dir=/data/x", "t.py --max-steps={steps} --output-dir={out}"),
        ("t.py --training.steps 5 --job.dump_folder x", "t.py --training.steps {steps} --job.dump_folder {out}"),
        (
            "t.py max_steps=5 hydra.run.dir=x +trainer.max_epochs=3",
            "t.py max_steps={steps} hydra.run.dir={out} +trainer.max_epochs=3",
        ),
        ("t.py --output_dir o --logging_dir l", "t.py --output_dir {out} --logging_dir {out}/logging_dir"),
        ("t.py --output model.pt", "t.py --output {out}/model.pt"),
        ("t.py --eval.steps 5 --warmup_steps 3 --save_steps 9", "t.py --eval.steps 5 --warmup_steps 3 --save_steps 9"),
        ("t.py --max_steps 5 --steps 7", "t.py --max_steps {steps} --steps 7"),
        ("t.py --num_train_epochs 3", "t.py --num_train_epochs 3"),
        ("t.py max_steps_per_epoch=500 epochs=1", "t.py max_steps_per_epoch={steps} epochs=1"),
        ("t.py --max_steps_per_epoch 500 --epochs 3", "t.py --max_steps_per_epoch 500 --epochs 3"),
        ("t.py --max_steps_per_epoch 500 --max_steps 9", "t.py --max_steps_per_epoch 500 --max_steps {steps}"),
        ("t.py --out --lr 3", "t.py --out --lr 3"),
        ("t.py --total-timesteps 1e5 --num-steps 128", "t.py --total-timesteps 1e5 --num-steps 128"),
        ("t.py --num-envs=4 --n_steps=128", "t.py --num-envs=4 --n_steps=128"),
        (
            "t.py train.num_steps=9 env.num_envs=4 max_steps=7",
            "t.py train.num_steps=9 env.num_envs=4 max_steps={steps}",
        ),
        ("t.py --num-steps 128 --total-steps 9000", "t.py --num-steps 128 --total-steps {steps}"),
        ("t.py --num-steps 128 --num_iterations 9000", "t.py --num-steps 128 --num_iterations {steps}"),
        ("t.py --num-steps 9000", "t.py --num-steps {steps}"),
        ("t.py --filter {split} --max_iters 5", "t.py --filter {{split}} --max_iters {steps}"),
    ],
)
def test_length_and_folder_become_placeholders(line: str, made: str) -> None:
    assert with_placeholders(words(line))[0] == words(made)


def test_epochs_are_the_length_where_rows_are_epochs() -> None:
    made, ours = with_placeholders(words("t.py --epochs 10"), length="epochs")
    assert made == words("t.py --epochs {steps}")
    assert ours[0].count == 10


def test_a_length_that_is_no_number_above_zero_is_none() -> None:
    (setting,) = with_placeholders(words("t.py --max_steps -1"))[1]
    assert setting.count is None
    assert setting.written == "--max_steps {steps}"


def test_what_the_program_offers_is_added(tmp_path: Path) -> None:
    Path("train.py").write_text("import argparse\n")
    text = "usage: train.py [-h] [--lr LR]\n --max_steps N how long\n --eval_steps N\n --output_dir DIR\n --out FILE\n"
    asked: list[CommandLaunch] = []

    def help_of(launch: CommandLaunch) -> str:
        asked.append(launch)
        return text

    found = understand(words("python train.py --lr 1"), help_of=help_of)
    assert found.words == words("train.py --lr 1 --max_steps {steps} --output_dir {out}")
    assert len(asked) == 1
    assert understand(words("python train.py --max_steps 9 --output_dir x"), help_of=help_of).words == words(
        "train.py --max_steps {steps} --output_dir {out}"
    )
    assert len(asked) == 1, "the command says all"


HELP = """usage: train.py [-h] [-b N] [-j N] [-s S]
  -b N, --batch-size N  images of a step, -x or not
  --steps N, -n N
  -o DIR, --output-dir DIR
│ --workers  -j      INTEGER  [default: 4]  │
  -v, --verbose
  -s S, --seq-len S
  -s S, --size S        of another command
  -q  says less, --quiet or not
"""


def test_the_long_names_of_short_options_are_those_that_help_lists() -> None:
    assert long_names(HELP) == {
        **{"-b": "--batch-size", "-n": "--steps", "-o": "--output-dir", "-j": "--workers", "-v": "--verbose"}
    }
    for commands in ("Commands:\n  train", "╭─ Commands ───╮", "positional arguments:\n  {train,eval}"):
        assert long_names(f"{HELP}{commands}") == {}, "theirs may be others"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("-b 256 -j4 -s 9", "--batch-size 256 --workers=4 -s 9 --steps {steps} --output-dir {out}"),
        ("-b=8 -n 500 -o out -v", "--batch-size=8 --steps {steps} --output-dir {out} -v"),
        ("-v --steps 5 -o out -q 1", "-v --steps {steps} --output-dir {out} -q 1"),
    ],
)
def test_short_options_are_written_by_their_long_names(line: str, expected: str) -> None:
    """So that they mean the same everywhere: length, folder, batch."""
    Path("train.py").write_text("import argparse\n")
    found = understand(words(f"python train.py {line}"), help_of=lambda _: HELP)
    assert found.words == words(f"train.py {expected}")
    assert found.shown == f"python train.py {line}", "as it was typed"
    for short, name in found.renamed:
        assert f"{short} is written as {name}, its long name by --help" in list(found.notes())


def test_short_options_stay_where_nothing_says_what_they_mean() -> None:
    for given in ("python train.py -b 256 -n 4", "uv -b 256 -n 4"):
        assert understand(words(given), help_of=lambda _: HELP).launch.words[-4:] == words("-b 256 -n 4")
    assert understand(words("python -m pkg -b 8"), help_of=lambda _: HELP).words[:4] == words("-m pkg --batch-size 8")


def test_length_and_folder_in_capitals_are_known() -> None:
    made, ours = with_placeholders(words("t.py --resume SOLVER.MAX_ITER 90000 OUTPUT_DIR out SOLVER.BASE_LR 0.02"))
    assert made == words("t.py --resume SOLVER.MAX_ITER {steps} OUTPUT_DIR {out} SOLVER.BASE_LR 0.02")
    assert [(one.what, one.value) for one in ours] == [("steps", "90000"), ("out", "out")]


def test_a_script_without_a_parser_is_not_asked() -> None:
    found = understand(words("python train.py"), help_of=lambda _: pytest.fail("it would start to train"))
    assert (found.length, found.folder) == (None, None)
    assert any("no setting of the length" in note for note in found.notes())


@pytest.mark.parametrize("given", ["", "--max_steps 50"])
def test_where_lines_are_steps_the_command_keeps_its_length(given: str) -> None:
    Path("train.py").write_text("import argparse\n")
    found = understand(words(f"python train.py {given}"), help_of=lambda _: "--max_steps N")
    assert "{steps}" in found.words
    assert found.by_lines().words == words(f"train.py {given}")
    assert found.by_lines().length is None


def test_a_configurator_offers_its_global_variables() -> None:
    source = "out_dir = 'out'\nmax_iters = 600000\nif max_iters == 3: pass\nexec(open('configurator.py').read())\n"
    offered = offered_in(source)
    assert chosen_from(offered, "steps") == "--max_iters="
    assert chosen_from(offered, "out") == "--out_dir="
    assert offered_in(source.replace("configurator", "other")) == ()


def test_the_steps_of_a_rollout_are_no_length() -> None:
    """`--num-steps {steps}` changed what a PPO learns from, and not how long it ran."""
    for offered, chosen in (
        ("--num-steps N --num-envs N --total-timesteps N --num-iterations N", None),
        ("--num-steps N --num-envs N --max-iterations N", "--max-iterations"),
        ("--num-steps N --lr LR", "--num-steps"),
    ):
        assert chosen_from(offered_by_help(offered), "steps") == chosen


def test_a_file_is_no_folder_and_the_likelier_name_is_taken() -> None:
    offered = offered_by_help("--output FILE\n--total_steps N (see --max_steps)\n")
    assert chosen_from(offered, "steps") == "--max_steps"
    assert chosen_from(offered, "out") is None
    assert meaning_of("--train.log_dir") == "out"
    assert meaning_of("--save_steps") is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--lr 1 --lerning-rate 0.1", [("--lerning-rate", "--learning_rate")]),
        ("--lr 1 --zzz=0.1", [("--zzz", None)]),
        ("--lerning-rate 0.1", [("--lerning-rate", "--learning_rate")]),
        ("--learning-rate 1 --learn 2 --no-compile --compile", []),
        ("fit --zzz 1 --model.depth=3", []),  # a command of the program has settings of its own
        ("-x 1 lr=3 --", []),
    ],
)
def test_a_setting_that_help_does_not_list_is_named(line: str, expected: list[tuple[str, str | None]]) -> None:
    offered = offered_by_help(
        "usage: train.py [--lr LR] [--learning_rate X]\n  --compile, --no-compile  torch.compile\n"
    )
    assert list(not_listed(words(line), offered)) == expected
    assert list(not_listed(words(line), ())) == []


def test_in_a_folder_of_its_own_paths_are_absolute() -> None:
    Path("conf.yaml").touch()
    made = understand(words("python train.py --config=conf.yaml --name conf"), help_of=lambda _: "").in_its_folder()
    here = Path.cwd()
    assert made.words == (f"{here}/train.py", f"--config={here}/conf.yaml", "--name", "conf")


def test_in_a_folder_of_its_own_the_variables_of_the_command_keep_their_meaning() -> None:
    """A config that a variable names, and packages beside the script and elsewhere."""
    Path("conf").mkdir()
    Path("conf/small.yaml").touch()
    line = "CONFIG=conf/small.yaml PYTHONPATH=.:/elsewhere MODE=train python -m pkg.train"
    env = understand(words(line), help_of=lambda _: "").in_its_folder().launch.env
    here = Path.cwd()
    assert env["CONFIG"] == f"{here}/conf/small.yaml"
    assert env["PYTHONPATH"] == f"{here}{os.pathsep}{here}{os.pathsep}/elsewhere"
    assert env["MODE"] == "train"

"""`validator init -- COMMAND` and `validator run -- COMMAND`: trainers as people have them, without any change."""

from __future__ import annotations

import glob
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.e2e.folders import result_of
from tests.processes import wait_until
from validator.kinds.registry import load
from validator.model.findings import DISTURBED

_ARGUMENTS = """
import argparse, json, os, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("{length}", type=int, default=10**6, dest="steps")
parser.add_argument("{folder}", default="out", dest="out")
parser.add_argument("--lr", type=float, default=0.1)
args = parser.parse_args()
os.makedirs(args.out, exist_ok=True)
first, last = int(os.environ.get("RANK", 0)), args.steps
def fall(step):
    return 3 / (step + 1) ** 0.3
"""

_TRAINERS = {
    "nanogpt": (
        "--max_iters",
        "--out_dir",
        """
for step in range(args.steps + 1):
    time.sleep({s})
    print(f"iter {{step}}: loss {{fall(step):.4f}}, time {{1e3 * {s} + step % 3 / 10:.2f}}ms, mfu 12.30%")
""",
    ),
    "torchtitan": (
        "--training.steps",
        "--job.dump_folder",
        """
import logging
logging.basicConfig(level=logging.INFO, format="[titan] %(asctime)s - root - %(levelname)s - %(message)s")
for step in range(1, args.steps + 1):
    time.sleep({s})
    logging.info(f"\\x1b[31mstep: {{step:2}}  \\x1b[32mloss: {{fall(step):7.4f}}  \\x1b[38;2;180;60;0mgrad_norm:  1.2  "
                 f"\\x1b[34mtps: {{5000 + step % 7:,}}  \\x1b[36mtflops: 40.50\\x1b[39m")
""",
    ),
    "text file": (
        "--max-iters",
        "--output-dir",
        """
import logging
logging.basicConfig(filename="train.log", level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
for step in range(1, args.steps + 1):
    time.sleep({s})
    logging.info("Step %d, train loss: %.4f", step, fall(step))
""",
    ),
    "json lines": (
        "--max-steps",
        "--output-dir",
        """
for step in range(1, args.steps + 1):
    time.sleep({s})
    print(json.dumps({{"step": step, "loss": fall(step), "lr": 0.1, "step_time": {s} + step % 3 / 1e4}}))
""",
    ),
    "lightning bar": (
        "--max_steps",
        "--default_root_dir",
        """
for step in range(1, args.steps + 1):
    time.sleep({s})
    done, gone = 100 * step // args.steps, step * {s}
    sys.stderr.write(f"\\rEpoch 0: {{done:3}}%|{{'█' * (done // 10):10}}| {{step}}/{{args.steps}} "
                     f"[{{int(gone) // 60:02}}:{{int(gone) % 60:02}}<00:10, {{1 / {s}:.2f}}it/s, v_num=0, "
                     f"train_loss={{fall(step):.3f}}]")
    sys.stderr.flush()
""",
    ),
    "csv": (
        "--steps",
        "--out",
        """
with open(args.out + "/metrics.csv", "w", buffering=1) as table:
    table.write("step,train_loss,learning_rate,tokens_per_sec\\n")
    for step in range(1, args.steps + 1):
        time.sleep({s})
        table.write(f"{{step}},{{fall(step):.4f}},0.1,{{5000 + step % 7}}\\n")
""",
    ),
    "dictionaries of GRPO": (
        "--max_steps",
        "--output_dir",
        """
for step in range(1, args.steps + 1):
    time.sleep({s})
    sys.stderr.write(f"\\r{{100 * step // args.steps:3}}%|██      | {{step}}/{{args.steps}} "
                     f"[00:{{int(step * {s}):02}}<00:10, {{1 / {s}:.2f}}it/s]")
    sys.stderr.write("\\r" + 80 * " " + "\\r")  # as tqdm.write clears the bar
    sys.stderr.flush()
    print(str({{"loss": round(fall(step), 4), "grad_norm": 0.4, "learning_rate": 0.1, "num_tokens": 4096.0 * step,
               "reward": 0.5, "kl": 0.01, "epoch": round(step / 500, 3)}}), flush=True)
""",
    ),
    "numbers alone": (
        "--steps",
        "--log_dir",
        """
for step in range(1, args.steps + 1):
    time.sleep({s})
    print(f"[{{step}}] {{fall(step):.4f}} | 12.5 | 0.0003")
""",
    ),
}


def _write(folder: Path, form: str, *, seconds: float = 0.02) -> Path:
    length, place, body = _TRAINERS[form]
    script = folder / "my_train.py"
    head = _ARGUMENTS.replace("{length}", length).replace("{folder}", place)
    script.write_text(head + body.format(s=seconds), encoding="utf-8")
    return script


def _rows(answer) -> list[dict[str, float]]:
    rows = answer.json["rows"]
    assert rows, answer.err
    assert all(row["loss"] < 3 for row in rows)
    return rows


_READ_ELSEWHERE = ("nanogpt", "torchtitan", "lightning bar", "dictionaries of GRPO")
"""Forms whose lines have tests beside their readers; a run of each takes ten seconds."""


@pytest.mark.parametrize(
    "form", [pytest.param(one, marks=[pytest.mark.long] * (one in _READ_ELSEWHERE)) for one in _TRAINERS]
)
def test_a_trainer_is_recognized_and_its_runbook_runs(
    form: str, cli, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workdir)
    script = _write(workdir, form)
    length, place, _ = _TRAINERS[form]
    # One command gives length and folder, the other none of them: then --help names both.
    given = (
        (length, "5000", f"{place}=elsewhere")
        if form in ("nanogpt", "torchtitan", "csv", "dictionaries of GRPO")
        else ()
    )
    answer = cli("init", "--json", "--", "python", script.name, "--lr", "0.3", *given)
    assert answer.rc == 0, answer.err + answer.out
    _rows(answer)
    assert answer.json["guessed"] == (form == "numbers alone")
    command = " ".join(answer.json["command"])
    assert "{steps}" in command
    assert "{out}" in command
    assert "elsewhere" not in command
    assert not (workdir / "elsewhere").exists(), "what is watched writes to a folder of its own"
    path = workdir / "my-train.yaml"
    assert answer.json["runbook"] == path.name
    loaded = load(path)
    assert {"the bound of" in warning.message for warning in loaded.warnings} <= {True}
    short = ("--set", "baseline.steps=60", "--set", "baseline.warmup_steps=10")
    ended = cli("run", path.name, "--only", "baseline", *short)
    result = result_of(workdir)
    statuses = {one["id"]: one["status"] for phase in result["phases"] for one in phase["criteria"]}
    assert (ended.rc, result["decision"]) == (3, "INCONCLUSIVE"), result["why"]
    assert result["phases"][0]["id"] == "settings", "--lr is tried by its effect"
    assert {statuses[f"baseline.{name}"] for name in ("exit", "steps", "finite", "1")} == {"PASS"}, statuses


def test_a_runbook_of_a_run_is_written_and_run_in_another_folder_too(cli, workdir: Path, tmp_path: Path) -> None:
    script = _write(workdir, "json lines")
    first = cli("run", "--steps", "80", "--", "python", script.name)
    assert (first.rc, "INCONCLUSIVE" in first.out) == (3, True), first.out + first.err
    (run,) = (workdir / "reports").glob("*my-train*")
    typed = json.loads((run / "result.json").read_text(encoding="utf-8"))["runbook"]["command"]
    assert typed == ["--steps", "80", "--", "python", script.name]
    again = f"run --steps 80 -- python {script.name}"
    disturbed = any(f"WARNING {code}" in first.out for code in DISTURBED)  # by what runs beside this test
    assert f"Command validator {again if disturbed else f'init --from-run reports/{run.name}'}\n" in first.out
    there = tmp_path / "else"
    there.mkdir()
    listed = sorted(glob.glob(f"{workdir}/reports/*"))
    assert listed == [str(run), str(run.parent / "index.html")]
    second = cli("init", "--from-run", *listed, cwd=there)
    assert second.rc == 0, second.err
    assert "step_time_s.mean <= " in second.out
    text = (there / "my-train.yaml").read_text(encoding="utf-8")
    assert "<= ?" not in text
    made = yaml.safe_load(text)
    assert [phase["id"] for phase in made["phases"]] == ["baseline", "soak"]
    assert made["trainer"]["workdir"] == "../work", "the trainer starts where the run did"
    third = cli("run", "else/my-train.yaml", "--only", "baseline", cwd=tmp_path)
    statuses = {phase["id"]: phase["status"] for phase in result_of(tmp_path)["phases"]}
    assert (third.rc, statuses) == (3, {"baseline": "PASS", "soak": "SKIPPED"}), third.out + third.err


@pytest.mark.parametrize(
    ("command", "out", "workdir_key"),
    [
        (("python", "train.py"), "my-train.yaml", "."),
        (("./go.sh", "--max-steps", "9000", "--output-dir", "o"), "ci/gpu/my-train.yaml", "../.."),
    ],
)
def test_its_runbook_runs_from_any_folder(
    command: tuple[str, ...], out: str, workdir_key: str, cli, workdir: Path, tmp_path: Path
) -> None:
    _write(workdir, "json lines").rename(workdir / "train.py")
    (workdir / "ci" / "gpu").mkdir(parents=True)
    (workdir / "go.sh").write_text(f"#!/bin/sh\nexec {sys.executable} train.py $*\n", encoding="utf-8")
    (workdir / "go.sh").chmod(0o755)
    (tmp_path / "else").mkdir()
    (workdir / out).write_text("another runbook", encoding="utf-8")
    made = cli("init", "--force", "-o", out, "--", *command)
    assert made.rc == 0, made.err
    short = ("--set", "baseline.steps=60", "--only", "baseline")
    ended = cli("run", str(workdir / out), *short, cwd=tmp_path / "else")
    assert ended.rc == 3, ended.out + ended.err
    assert yaml.safe_load((workdir / out).read_text())["trainer"]["workdir"] == workdir_key


def test_a_command_whose_loss_rises_is_no_go(cli, workdir: Path) -> None:
    script = _write(workdir, "nanogpt")
    script.write_text(script.read_text().replace("return 3 /", "return 0.5 *").replace("** 0.3", "** 0.4"))
    answer = cli("run", "--steps", "60", "--", "python", script.name)
    assert answer.rc == 1, answer.out + answer.err


def test_ranks_of_torchrun(cli, workdir: Path) -> None:
    script = _write(workdir, "nanogpt", seconds=0.05)
    answer = cli(
        *(
            "init",
            "-o",
            "two.yaml",
            "--json",
            "--",
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node=2",
        ),
        *("--master-port", "29511", script.name, "--max_iters", "900"),
    )
    assert answer.rc == 0, answer.err + answer.out
    assert (answer.json["launcher"], answer.json["nproc"]) == ("torchrun", 2)
    assert "what rank 0 prints" in answer.json["source"]
    declared = yaml.safe_load((workdir / "two.yaml").read_text())
    assert declared["defaults"]["nproc"] == 2
    assert declared["trainer"]["command"] == ["my_train.py", "--max_iters", "{steps}", "--out_dir", "{out}"]


def test_a_module_and_a_program(cli, workdir: Path) -> None:
    package = workdir / "pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    _write(workdir, "csv").rename(package / "train.py")
    module = cli("init", "--json", "--", "-m", "pkg.train", "--steps=700", "--out", "here")
    assert module.rc == 0, module.err + module.out
    assert module.json["command"] == ["-m", "pkg.train", "--steps={steps}", "--out", "{out}"]
    assert module.json["runbook"] == "train.yaml"
    program = workdir / "go.sh"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} -m pkg.train --steps 10000 --out $1\n", encoding="utf-8")
    program.chmod(0o755)
    answer = cli("init", "--json", "--", "./go.sh", "here")
    assert (answer.rc, answer.json["launcher"]) == (2, "plain"), "its table is in a folder that no setting names"
    assert "here/metrics.csv" in answer.json["outside"]
    load(workdir / "go.yaml")


def test_what_is_not_recognized_gets_a_skeleton(cli, workdir: Path) -> None:
    script = workdir / "quiet.py"
    script.write_text("import time\nprint('hello')\nopen('notes.txt', 'w').write('x')\ntime.sleep(20)\n")
    began = time.monotonic()
    answer = cli("init", "--seconds", "2s", "--", "python", "quiet.py")
    assert time.monotonic() - began < 18
    assert answer.rc == 2
    for text in (
        "Nothing that it writes",
        "hello",
        "notes.txt",
        "metrics: {stdout:",
        "{row}.*loss {loss}",
        "it printed 1 line, and 10 are needed",
        "docs/own-trainer.md",
        "Written quiet.yaml",
    ):
        assert text in answer.out, text
    load(workdir / "quiet.yaml")
    again = cli("init", "--", "python", "quiet.py")
    assert (again.rc, "quiet.yaml exists" in again.err) == (2, True)
    run = cli("run", "--seconds", "2s", "--", "python", "quiet.py")
    assert run.rc == 2
    assert not (workdir / "reports").exists()


def test_a_command_that_fails_says_how(cli, workdir: Path) -> None:
    (workdir / "broken.py").write_text("raise SystemExit('no such config: x.yaml')\n")
    answer = cli("init", "--", "python", "broken.py", "--config", "x.yaml")
    assert answer.rc == 2
    assert "no such config: x.yaml" in answer.err
    assert "Mend what it names. Once the command by itself prints steps, type this again." in answer.err
    assert not (workdir / "broken.yaml").exists()


PARSED = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--learning_rate", type=float, default=1e-3)
args = parser.parse_args()
for step in range(1, args.steps + 1):
    print(f"step {step} loss {3 - step / 100:.3f} time 10.0ms", flush=True)
"""


def test_a_misspelled_setting_is_named_whether_the_trainer_refuses_it_or_not(cli, workdir: Path) -> None:
    (workdir / "strict.py").write_text(PARSED)
    (workdir / "lax.py").write_text(PARSED.replace("args = parser.parse_args()", "args, _ = parser.parse_known_args()"))
    command = ("--steps", "20", "--lerning-rate", "0.1")
    answer = cli("init", "--", "python", "strict.py", *command)
    assert answer.rc == 2
    assert "error: unrecognized arguments: --lerning-rate 0.1" in answer.err
    meant = "--lerning-rate, which --help does not list (--learning_rate may be meant)"
    assert f"The trainer does not take the command: mend {meant}." in answer.err
    taken = cli("init", "--", "python", "lax.py", *command)
    assert taken.rc == 0
    assert f"{meant}: the trainer does not refuse it, and may ignore it" in " ".join(taken.out.split())


@pytest.mark.parametrize(
    "refusal",
    [
        "if os.path.isdir(args.out) and os.listdir(args.out):\n"
        "    raise ValueError(f'Output directory ({args.out}) already exists and is not empty.')\n",
        "os.makedirs(args.out)\n",
    ],
)
def test_a_trainer_that_wants_a_new_folder_gets_one(refusal: str, cli, workdir: Path) -> None:
    """Examples of transformers refuse a folder that is not empty, and a run's own holds its logs from the start."""
    script = _write(workdir, "json lines")
    script.write_text(script.read_text().replace("os.makedirs(args.out, exist_ok=True)\n", refusal))
    answer = cli("run", "--steps", "60", "--", "python", script.name, "--output-dir", "out")
    assert answer.rc == 3, answer.out + answer.err
    assert "refuses an output folder that is there already" in answer.err
    (run,) = (workdir / "reports").glob("*my-train*")
    assert cli("init", "--from-run", f"reports/{run.name}").rc == 0
    assert "{out}/trained" in (workdir / "my-train.yaml").read_text(encoding="utf-8")


_RANDOM_TOKENS = """
import argparse, random, time
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
args = parser.parse_args()
for step in range(1, args.steps + 1):
    time.sleep(0.01)
    print(f"step {step} loss {[5.68, 5.65, 5.66][step % 3] + step % 7 / 500:.4f}", flush=True)
"""


def test_no_fall_is_asked_of_a_loss_that_stays(cli, workdir: Path) -> None:
    """The first row is among the lowest, so that the last one misses it."""
    (workdir / "train.py").write_text(_RANDOM_TOKENS)
    answer = cli("run", "--steps", "200", "--seconds", "2s", "--", "python", "train.py")
    assert answer.rc == 3, answer.out + answer.err
    assert "One row varies by" in " ".join(answer.out.split())
    (run,) = (workdir / "reports").glob("*train*")
    made = cli("init", "--from-run", f"reports/{run.name}")
    assert made.rc == 0
    assert "Note    baseline: no fall of the loss is asked: it went from 5.652 to 5.668 nat, and" in made.out
    asked = {phase.id: [one.expr for one in phase.accept] for phase in load(workdir / "train.yaml").runbook.phases}
    assert "loss.last < loss.first" not in [*asked["baseline"], *asked["soak"]]
    text = (workdir / "train.yaml").read_text(encoding="utf-8")
    assert "    reader: steps\n" in text  # a person reads it, and the pattern has 8,000 characters
    assert max(map(len, text.splitlines())) < 500
    (end,) = [one for one in asked["baseline"] if one.startswith("loss.last <= 6")]
    assert end in asked["soak"]


_ITS_OWN_FOLDER = """
import argparse, os, time
parser = argparse.ArgumentParser()
parser.add_argument("--max-steps", type=int, default=10**6)
parser.add_argument("{folder}", default="out", dest="out")
args = parser.parse_args()
open("data/text.txt").read()
os.makedirs(args.out, exist_ok=True)
with open(args.out + "/metrics.csv", "w") as table:
    table.write("epoch,step,train_loss\\n")
    for step in range(args.max_steps):
        time.sleep(0.02)
        table.write(f"{{step // 50}},{{step}},{{3 / (step + 1) ** 0.3:.4f}}\\n")
        if step % 100 == 99:
            table.flush()
print("Epoch 8/-2 ━━━━━━━━━━━━━━━━━ 4/4 0:00:00 • 0:00:00 5.95it/s v_num: 2.000")
print(29 * " " + "train_loss: 0.249")
"""


@pytest.mark.parametrize(("folder", "rc"), [("--out", 3), ("--where", 2)])
def test_metrics_below_the_working_folder_are_found_by_the_setting_that_moves_them(
    folder: str, rc: int, cli, workdir: Path
) -> None:
    """Lightning with rich prints one line at its end, and this trainer needs a file beside it: a run was NO-GO for 4 of
    its steps, those of the last epoch."""
    (workdir / "data").mkdir()
    (workdir / "data" / "text.txt").write_text("text")
    (workdir / "light.py").write_text(_ITS_OWN_FOLDER.format(folder=folder))
    answer = cli("run", "--steps", "60", "--seconds", "8", "--", "python", "light.py")
    assert answer.rc == rc, answer.out + answer.err
    if rc == 3:
        assert "watching it again with --out {out}" in answer.err
        assert "step_time_s.mean <= ? s" in answer.out
    else:
        assert "it writes out/metrics.csv to its working folder" in " ".join(answer.err.split())


def test_a_trainer_that_breaks_off_is_written_down_with_a_note(cli, workdir: Path) -> None:
    script = _write(workdir, "nanogpt")
    script.write_text(
        script.read_text().replace("    time.sleep", "    assert step < 30, 'out of memory'\n    time.sleep")
    )
    answer = cli("init", "--", "python", script.name)
    assert answer.rc == 0, answer.err
    assert "it did not come to its end while it was watched" in " ".join(answer.out.split())
    assert cli("run", "--", "python", script.name).rc == 1


def test_nothing_is_left_behind(cli, workdir: Path) -> None:
    mark = f"sleep-{os.getpid()}-{time.time_ns()}"
    script = _write(workdir, "nanogpt")
    sleeper = [sys.executable, "-c", "import time; time.sleep(99)", mark]
    detached = f"import subprocess; subprocess.Popen({sleeper!r}, start_new_session=True)\n"
    script.write_text(detached + script.read_text())
    assert cli("init", "--", "python", script.name).rc == 0
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert mark.encode() not in process.read_bytes()
        except OSError:
            continue


def test_an_interrupt_ends_everything_and_writes_nothing(workdir: Path, tmp_path: Path) -> None:
    script = _write(workdir, "nanogpt")
    script.write_text("import pathlib\npathlib.Path('began').touch()\n" + script.read_text().replace("iter {", "x {"))
    runner = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "validator",
            "init",
            "--",
            "python",
            script.name,
            "--max_iters",
            "9000",
            "--out_dir",
            "o",
        ],
        cwd=workdir,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until((workdir / "began").exists, "the start of the trainer")
    runner.send_signal(signal.SIGINT)
    _, said = runner.communicate(timeout=60)
    assert (runner.returncode, "interrupted; nothing is left running" in said) == (130, True), said
    assert not (workdir / "my-train.yaml").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give the trainer's command behind --"),
        (("train.py",), "write -- before the trainer's command: validator init -- train.py"),
        (("--", "no-such-program-here"), "is no program on PATH"),
        (("--", "torchrun", "--nnodes", "2", "x.py"), "several machines"),
        (("--from-run", "nowhere"), "is not a run folder"),
        (
            ("--from-run", "reports/one", "train.py"),
            "takes run folders, without train.py",
        ),
    ],
)
def test_wrong_uses_say_what_to_write(
    words: tuple[str, ...], message: str, cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    answer = cli("init", *words)
    assert (answer.rc, message in answer.err) == (2, True), answer.err


def test_a_runbook_is_run_as_before_and_options_do_not_mix(cli, train_runbook) -> None:
    assert cli("run", str(train_runbook(steps=60)), "--dry-run").rc == 0
    mixed = cli("run", "x.yaml", "--", "python", "train.py")
    assert (mixed.rc, "omit RUNBOOK" in mixed.err) == (2, True)
    assert json.loads(cli("run", "--json", "--steps", "50").out)["exit_code"] == 2

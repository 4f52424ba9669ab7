"""The command line, driven as a user drives it: a process of its own in a folder of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.processes import python

REPOSITORY = Path(__file__).resolve().parents[2]
LINE_TRAINER = REPOSITORY / "tests" / "contract" / "line_trainer.py"
FAULTY_TRAINER = Path(__file__).with_name("faulty_trainer.py")

RATED_TRAINER = """\
import argparse, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
parser.add_argument("--out", type=pathlib.Path)
parser.add_argument("--rate", type=float, default=100)
args = parser.parse_args()
with (args.out / "training.csv").open("w") as table:
    table.write("step,loss,lr,toks_per_s\\n")
    for step in range(1, args.steps + 1):
        table.write(f"{step},{3 - step / args.steps},0.1,{args.rate + step % 2}\\n")
"""
"""It says of itself how fast it is; the decision depends on no clock but the validator's."""


@dataclass(frozen=True)
class Answer:
    """What a command printed and how it ended."""

    rc: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def cli(workdir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answer]:
    """Run `validator …` in the work folder or in `cwd`, with the environment as it is then.

    Its lock files are its own, so that tests may run side by side.
    """
    (tmp_path / "runtime").mkdir()
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):  # where the tests themselves run in a job
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str, timeout_s: float = 120, cwd: Path = workdir) -> Answer:
        own = {"XDG_RUNTIME_DIR": str(tmp_path / "runtime"), "NO_COLOR": "1"}
        done = python("-m", "validator", *arguments, cwd=cwd, env=own, timeout_s=timeout_s)
        return Answer(done.returncode, done.stdout, done.stderr)

    return call


@pytest.fixture
def train_runbook(workdir: Path) -> Callable[..., Path]:
    """A runbook with one train phase, `baseline`, of a trainer in plain Python."""

    def write(
        *, fault: str | None = None, steps: int = 300, accept: tuple[str, ...] = (), metrics: str = "", extra: str = ""
    ) -> Path:
        script = LINE_TRAINER if fault is None else FAULTY_TRAINER
        arguments = '{steps: "{steps}", out: "{out}"' + (f", fault: {fault}" if fault else "") + "}"
        criteria = "\n".join(f"      - {line}" for line in accept) or "      []"
        text = f"""\
schema: 1
name: tiny
trainer:
  command: ["{script}"]
  args: {arguments}
  metrics: {metrics or '{csv: training.csv, heartbeat: "heartbeat_rank{rank}.jsonl"}'}
defaults: {{nproc: 0, timeout: 60s, warmup_steps: 10}}
phases:
  - id: baseline
    kind: train
    steps: {steps}
    accept:
{criteria}
{extra}"""
        path = workdir / "tiny.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write

"""Bisecting real processes: a trainer whose speed is arithmetic on its settings, and the bundled one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from validator.runs.journal import read, sound

from .conftest import Answer

TRAINER = """\
import argparse, os, pathlib, sys
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
parser.add_argument("--out", type=pathlib.Path)
for name in "abcdefg":
    parser.add_argument(f"--{name}", type=int, default=0)
args = parser.parse_args()
if args.g == 2:
    sys.exit("g cannot be 2")
rate = 1000.0
if os.environ.get("SLOW") == "1":
    rate /= 3
if args.b and args.f:
    rate /= 4
rate *= 1 + 0.01 * args.c
with (args.out / "training.csv").open("w") as table:
    table.write("step,loss,lr,toks_per_s\\n")
    for step in range(1, args.steps + 1):
        table.write(f"{step},2.0,0.1,{rate * (1 + 0.001 * (step % 3))}\\n")
"""

RUNBOOK = """\
schema: 1
name: tiny
trainer:
  command: [{trainer}]
  args: {{steps: "{{steps}}", out: "{{out}}"}}
  metrics: {{csv: training.csv}}
defaults: {{nproc: 0, timeout: 60s, warmup_steps: 4, env: {env}}}
phases:
  - {{id: baseline, kind: train, steps: 24, args: {args}}}
"""


@pytest.fixture
def ends(workdir: Path) -> Callable[..., None]:
    """Write good.yaml and bad.yaml, which differ in the given arguments and variables."""
    trainer = workdir / "trainer.py"
    trainer.write_text(TRAINER, encoding="utf-8")

    def write(args: dict[str, int], env: dict[str, int] | None = None) -> None:
        for name, chosen, variables in (("good", {}, {}), ("bad", args, env or {})):
            text = RUNBOOK.format(trainer=json.dumps(str(trainer)), env=json.dumps(variables), args=json.dumps(chosen))
            (workdir / f"{name}.yaml").write_text(text, encoding="utf-8")

    return write


def _bisect(cli: Callable[..., Answer], *more: str) -> Answer:
    return cli("bisect", "good.yaml", "bad.yaml", "--no-lock", "--json", *more)


def _causes(answer: Answer) -> set[str]:
    return {setting["name"] for cause in answer.json["causes"] for setting in cause["settings"]}


ALL = dict.fromkeys("abcdefg", 1)


def test_one_variable_among_eight_settings(cli: Callable[..., Answer], ends: Callable[..., None]) -> None:
    ends({**ALL, "f": 0}, {"SLOW": 1, "OTHER": 1})
    answer = _bisect(cli)
    assert answer.rc == 0, answer.err
    assert _causes(answer) == {"env.SLOW"}
    (cause,) = answer.json["causes"]
    assert cause["factor"] == pytest.approx(3.0, rel=0.05)
    assert abs(answer.json["rest_share"]) < 0.1
    assert len(answer.json["trials"]) <= 12


def test_a_series_that_the_runbook_declares(
    cli: Callable[..., Answer], ends: Callable[..., None], workdir: Path
) -> None:
    ends({"a": 1}, {"SLOW": 1})
    (workdir / "trainer.py").write_text(TRAINER.replace(",toks_per_s", ",images"))
    assert "it must be one of toks_per_s" in cli("bisect", "good.yaml", "bad.yaml", "--metric", "images").err
    for name, extra, rc in (("images", "{unit: img}", 2), ("images", "{unit: img, better: higher, window: steady}", 0)):
        for path in workdir.glob("*.yaml"):
            text = path.read_text().partition("csv: training.csv")[0] + f"csv: training.csv, extra: {{{name}: {extra}}}"
            path.write_text(text + "}\n" + path.read_text()[path.read_text().index("defaults:") :])
        answer = _bisect(cli, "--metric", name)
        assert answer.rc == rc, answer.out + answer.err
    assert _causes(answer) == {"env.SLOW"}


def test_what_makes_it_fail(cli: Callable[..., Answer], ends: Callable[..., None], workdir: Path) -> None:
    ends({**ALL, "g": 2})
    answer = cli("bisect", "good.yaml", "bad.yaml", "--no-lock")
    assert answer.rc == 0, answer.err
    assert "args.g (unset → 2) makes it fail" in " ".join(answer.out.split())


def test_two_that_matter_only_together_and_a_finished_part_is_not_run_again(
    cli: Callable[..., Answer], ends: Callable[..., None]
) -> None:
    ends(ALL, {"OTHER": 1})
    first = _bisect(cli, "--max-runs", "5")
    assert first.rc == 3
    assert first.json["outcome"] == "budget_spent"
    assert {"args.b", "args.f"} & set(first.json["suspects"])
    folder = Path(first.json["folder"])
    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    (folder / "request.json").write_text(json.dumps({**request, "max_runs": 12}), encoding="utf-8")
    second = cli("bisect", "--resume", str(folder), "--no-lock", "--json")
    assert _causes(second) == {"args.b", "args.f"}
    assert len(second.json["trials"]) <= 12
    assert second.json["trials"][:5] == [
        {**trial, "share": pytest.approx(trial["share"])} for trial in first.json["trials"]
    ]
    assert second.err.count("run 5 of") == 0
    events = read(folder / "journal.jsonl")
    assert "resumed" in {event.event for event in events}
    assert sound(events) == events, "a mark in a line that is not sound would leave its processes running"


def test_ends_with_the_same_settings_are_an_answer(cli: Callable[..., Answer], ends: Callable[..., None]) -> None:
    ends({})
    assert _bisect(cli).rc == 3


def test_the_bundled_trainer_by_its_own_folders(workdir: Path, cli: Callable[..., Answer]) -> None:
    """Two folders that the trainer wrote, sequential prefill the cause among three settings."""

    def account(**more: Any) -> dict[str, Any]:
        model = {"dim": 32, "n_layers": 1, "n_heads": 2, "n_kv_groups": 1, "d_k": 16, "d_v": 16}
        shape = {"l_cmp": 8, "d_cmp": 4, "l_sel": 8, "n_sel": 3, "w": 16, "seq_len": 96, "batch_size": 1}
        return {**model, **shape, "dtype": "fp32", "device": "cpu", "threads": 1, "prefill": "batched", **more}

    for name, requested in (("fast", account()), ("slow", account(lr=1e-3, prefill="sequential", grad_clip=0.5))):
        (workdir / name).mkdir()
        (workdir / name / "env.json").write_text(json.dumps({"requested": requested}), encoding="utf-8")
    answer = cli(
        *("bisect", "fast", "slow", "--no-lock", "--json", "--statistic", "p50"),
        *("--steps", "6", "--warmup-steps", "1"),
        timeout_s=280,
    )
    assert answer.rc == 0, answer.err
    # A machine that other tests use as well may add a setting, and slows fast steps of 10 ms by more than slow ones; it
    # never hides the one that costs a factor of ten.
    assert "args.prefill" in _causes(answer)
    assert answer.json["good_value"] > 1.5 * answer.json["bad_value"]


def test_no_secret_of_an_end_is_written(
    cli: Callable[..., Answer], ends: Callable[..., None], workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends({"b": 1, "f": 1})
    given = {"DB_PASSWORD": "pwd-Zx81kQ77vv", "PLAIN": "a-pwd-Zx81kQ77vv", "OWN": "declared-Zx82"}
    for name in ("good", "bad"):
        path = workdir / f"{name}.yaml"
        text = path.read_text(encoding="utf-8").replace("env: {}", f"env: {json.dumps(given)}")
        path.write_text(text.replace("trainer:", "secrets: [OWN]\ntrainer:", 1), encoding="utf-8")
    answer = _bisect(cli)
    assert answer.rc == 0, answer.err
    (folder,) = (workdir / "reports").iterdir()
    written = [path for path in folder.rglob("*") if path.is_file() and b"Zx8" in path.read_bytes()]
    assert not written
    assert "Zx8" not in answer.out + answer.err
    refused = cli("bisect", "--resume", str(folder))
    assert "was redacted and is not stored; set it in the environment" in refused.err

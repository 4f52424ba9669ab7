"""What newcomers write: each mistake is warned of at its place with its fix, and each has a twin that is silent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from validator.kinds.registry import load
from validator.runbook import RunbookError, available, find

BOOK = """\
schema: 1
name: mine
trainer:
  command: [train.py, "{steps}"]
  metrics: {stdout: 'step {step} loss {loss}'}
phases:
  - {id: a, kind: train, steps: 200, accept: [loss.last < loss.first]}
"""
COMMAND = '[train.py, "{steps}"]'


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a trainer, from which validator is started."""
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(text: str, name: str = "mine.yaml") -> list[str]:
    """Each warning, or each problem where it cannot be read, as `line:column: message | fix`."""
    Path(name).write_text(text, encoding="utf-8")
    try:
        found = load(name).warnings
    except RunbookError as error:
        found = error.problems
    return [f"{one.line}:{one.column}: {one.message} | {one.fix}" for one in found]


def with_command(command: str, more: str = "") -> str:
    return BOOK.replace(COMMAND, command + more)


@pytest.mark.parametrize("name", [info.name for info in available()])
def test_no_shipped_runbook_is_warned_of(name: str) -> None:
    assert load(find(name)).warnings == ()


@pytest.mark.parametrize(
    "command",
    [
        COMMAND,
        "[-m, mine.train, '{steps}']",
        "[-c, 'print(1)', '{steps}']",
        "['{run_dir}/train.py', '{steps}']",
        "[train.py, --max-steps, '200']",
        "[train.py, --max-steps=200, '--out_dir={out}']",
        "[train.py, '{steps}', --out-dir, '{out}', --log_dir, '{run_dir}/{phase}-{repeat}']",
        "[train.py]\n  args: {max_steps: 200, output_dir: '{out}'}",
        "[train.py]\n  args: {n: '{steps}', outlier: x, save: true}",
        "[train.py]",
    ],
)
def test_sound_commands_are_silent(command: str) -> None:
    assert said(with_command(command)) == []


def test_a_script_that_is_not_there_is_looked_up_where_the_trainer_starts(here: Path) -> None:
    (found,) = said(with_command("[trian.py, '{steps}']"))
    assert found.startswith("4:13: the trainer's script trian.py is not in the folder where validator was started")
    assert str(here) in found
    (here / "code").mkdir()
    (here / "code/trian.py").touch()
    assert said(with_command("[trian.py, '{steps}']", "\n  cwd: code")) == []
    (found,) = said(with_command("[train.py, '{steps}']", "\n  cwd: code"))
    assert "is not in trainer.cwd" in found


def test_a_script_beside_the_runbook_is_found_for_the_user(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    (found,) = said(BOOK, "../mine.yaml")
    assert f"train.py lies beside the runbook: set trainer.workdir: ., or start validator in {here}" in found


@pytest.mark.parametrize("command", ["[train.py]\n  args: {lr: 0.1}", "[train.py, config.yaml]\n  args: {}"])
def test_a_trainer_that_never_learns_its_steps(command: str) -> None:
    (found,) = said(with_command(command))
    assert found.startswith("4:12: the trainer is never given its number of steps, so it may not do the 200 of a")
    assert '"--max_steps={steps}"' in found


@pytest.mark.parametrize(
    ("command", "place", "value", "fix"),
    [
        ("[train.py, '{steps}', --out_dir=out/x]", "4:44", "--out_dir is out/x", '"--out_dir={out}"'),
        ("[train.py, '{steps}', --save-dir, out]", "4:46", "--save-dir is out", '"{out}"'),
        ("[train.py, '{steps}', --job.dump_folder, out]", "4:53", "--job.dump_folder is out", '"{out}"'),
        ("[train.py]\n  args: {n: '{steps}', output_dir: res}", "5:36", "output_dir is res", 'output_dir: "{out}"'),
    ],
)
def test_an_output_folder_that_all_runs_share(command: str, place: str, value: str, fix: str) -> None:
    (found,) = said(with_command(command))
    assert found.startswith(f"{place}: {value} in every run")
    assert f"write {fix}; each run gets a folder of its own" in found


def test_metrics_in_a_folder_that_is_never_passed_are_a_mistake_at_its_place() -> None:
    text = with_command("[train.py, '{steps}', --out_dir=out]\n  args: {}").replace(
        "{stdout: 'step {step} loss {loss}'}", "{csv: t.csv}"
    )
    (found,) = said(text)
    assert found.startswith("4:44: --out_dir is out in every run")
    assert "and t.csv can never be read" in found


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("c.yaml", "lr: 0.1\ntrain:\n  output_dir: runs/x  # here\n", "3:3"),
        ("c.py", "lr = 0.1\nout_dir = 'out-shakespeare'\n", "2:1"),
        ("c.json", '{\n "output_dir": "x",\n "lr": 1\n}\n', "2:3"),
        ("c.toml", '[job]\ndump_folder = "./outputs"\n', "2:1"),
    ],
)
def test_an_output_folder_in_the_trainers_own_config(name: str, text: str, place: str, here: Path) -> None:
    (here / name).write_text(text, encoding="utf-8")
    (found,) = said(with_command(f"[train.py, '{{steps}}', {name}]"))
    assert found.startswith(f"{place}: ")
    assert "so runs would share one folder" in found
    assert said(with_command(f"[train.py, '{{steps}}', {name}, '--out={{out}}']")) == []


def test_a_config_that_fixes_no_folder_or_is_no_file_is_silent(here: Path) -> None:
    (here / "c.yaml").write_text("out_dir: null\nlayout: x\nlog_dir:\n", encoding="utf-8")
    os.mkfifo(here / "pipe.yaml")
    assert said(with_command("[train.py, '{steps}', c.yaml, pipe.yaml, none.yaml, '{phase}.yaml']")) == []


@pytest.mark.parametrize(
    ("text", "place", "fix"),
    [
        (with_command("[train.py, {steps}]"), "4:23", 'write "{steps}", with quotes'),
        (with_command("[train.py]\n  args: {n: {steps}}"), "5:13", 'write "{steps}", with quotes'),
        (with_command("[train.py, --n={steps}]"), "4:27", "the whole value that contains --n={steps}"),
        (with_command("[train.py]\n  args:\n    d: {out}/x"), "6:13", "the whole value that contains {out}/x"),
        (BOOK.replace("'step {step} loss {loss}'", "step {step} loss {loss}"), "5:26", "value that contains {step}"),
    ],
)
def test_braces_without_quotes(text: str, place: str, fix: str) -> None:
    found = said(text)[0]
    assert found.startswith(f"{place}: "), found
    assert found.endswith(fix), found


@pytest.mark.parametrize("steps", [20, 200])
def test_a_warm_up_of_all_steps(steps: int) -> None:
    text = BOOK.replace("steps: 200,", f"steps: {steps}, warmup_steps: 200,")
    (found,) = said(text)
    assert f"warmup_steps is 200, and phase a has {steps} steps: none is left to measure" in found
    assert f"set it to {steps // 4}" in found
    by_default = BOOK.replace("steps: 200,", "steps: 10,")
    assert said(by_default) == [], "nobody wrote a warm-up"


def test_a_unit_that_nothing_declares_is_not_checked_and_warned_of() -> None:
    printed = BOOK.replace("loss {loss}", "loss {loss} goodput {goodput}")
    (said,) = said_of(printed, "goodput.mean >= 90 furlongs")
    assert said == (
        "7:66: nothing declares the unit of goodput, so 'furlongs' is not checked | "
        "declare trainer.metrics.extra: {goodput: 'furlongs'}, or leave the unit out"
    )
    assert said_of(printed, "goodput.mean >= 90") == []
    assert said_of(printed, "goodput.cv <= 0.1") == []
    declared = printed.replace("goodput}'}", "goodput}', extra: {goodput: '%'}}")
    assert said_of(declared, "goodput.mean >= 90 %") == []
    (refused,) = said_of(declared, "goodput.mean >= 90 furlongs")
    assert "the criterion is written in furlongs, but goodput.mean is in %" in refused


def said_of(text: str, criterion: str) -> list[str]:
    return said(text.replace("loss.last < loss.first", criterion))


def test_what_is_declared_and_not_in_the_pattern_is_said_so() -> None:
    declared = BOOK.replace("loss {loss}'", "loss {loss}', extra: {other: '%'}")
    (refused,) = said_of(declared, "other.mean >= 3 %")
    assert (
        "other is declared in trainer.metrics.extra, and can never be known: the pattern of stdout has no {other}"
        in refused
    )
    assert refused.endswith(
        "| write {other} in trainer.metrics.stdout where it is printed, or declare csv or heartbeat"
    )

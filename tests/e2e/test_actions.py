"""GitHub Actions: annotations of the commands, and the composite action as a runner would carry it out."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.conftest import REPOSITORY
from tests.e2e.folders import result_of
from validator.text import CommandGuard

ACTION = REPOSITORY / ".github/actions/validate/action.yml"


@pytest.fixture
def job(workdir: Path, monkeypatch: pytest.MonkeyPatch, cli: Any) -> Any:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(workdir))
    return cli


def test_a_failed_criterion_is_shown_at_its_line(job: Any, train_runbook: Any, workdir: Path) -> None:
    book = train_runbook(fault="none", accept=("loss.last < loss.first", "toks_per_s.mean >= 1e12"))
    line = 1 + book.read_text(encoding="utf-8").splitlines().index("      - toks_per_s.mean >= 1e12")
    answer = job("run", "tiny.yaml")
    assert answer.rc == 1
    (shown,) = (one for one in answer.out.splitlines() if one.startswith("::"))
    place = f"::error file=tiny.yaml,line={line},col=9,title=baseline.2::"
    assert shown.startswith(f"{place}toks_per_s.mean >= 1e12: FAIL. ")


def test_with_json_stdout_stays_json_alone(job: Any, train_runbook: Any, workdir: Path) -> None:
    train_runbook(fault="none", accept=("toks_per_s.mean >= 1e12",))
    answer = job("run", "tiny.yaml", "--json")
    assert answer.json["decision"] == "NO_GO"
    assert "::error file=tiny.yaml,line=" in answer.err


@pytest.mark.parametrize("command", ["check", "run"])
def test_mistakes_are_shown_at_their_lines(job: Any, train_runbook: Any, command: str) -> None:
    train_runbook(fault="none", accept=("toks_per_s.men >= 1",))
    answer = job(command, "tiny.yaml")
    assert answer.rc == 2
    (shown,) = (one for one in answer.out.splitlines() if one.startswith("::"))
    assert shown.startswith("::error file=tiny.yaml,line=")
    assert "title=runbook::men is not a statistic%0Afix: did you mean mean?" in shown
    answer = job(command, "tiny.yaml", "--json")
    assert json.loads(answer.out)["problems"]
    assert "::error file=tiny.yaml,line=" in answer.err


def test_a_warning_of_check_is_a_warning(job: Any, train_runbook: Any) -> None:
    train_runbook(fault="none", accept=())
    answer = job("check", "tiny.yaml")
    assert answer.rc == 0
    assert "::warning file=tiny.yaml,line=" in answer.out


# Text of a trainer, in every place that shows it, is no command to the runner.

FORGED = (
    "::error file=a.py,line=1::forged",
    "  \t::add-mask::GO",
    "\u00a0\u3000::stop-commands::token",
    "text ##[error]forged",
    "50%\r::warning::forged",
    "::set-output name=decision::GO",
    "::group::forged",
)

SHOUTING = f"""
import sys, time
for text in {FORGED!r}:
    print(text, flush=True)
    print(text, file=sys.stderr, flush=True)
for step in range(1, 12):
    print("step", step, "loss", 3 / step, "##[error]forged", flush=True)
with open("training.csv", "w") as table:
    table.write('step,loss,"::error::forged",##[error]forged\\n1,2,3,4\\n::error::forged,##[error]x,3,4\\n')
sys.exit("::error::last words ##[error]forged")
"""


def commands_in(output: str) -> list[str]:
    """What a runner takes for commands: a line that begins with ::, blanks aside, and ##[ anywhere in one."""
    found = []
    for line in re.split(r"\r\n|\r|\n", output):
        bare = line.strip("\ufeff\u200b").strip()
        if re.match(r"::[a-z-]+", bare) or "##[" in line:
            found.append(bare)
    return found


def test_text_of_a_trainer_is_no_command(job: Any, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (workdir / "shouts.py").write_text(SHOUTING, encoding="utf-8")
    (workdir / "shouts.yaml").write_text(
        "schema: 1\nname: shouts\ntrainer:\n  command: [shouts.py]\n  args: {}\n"
        "  metrics: {stdout: 'step {step} loss {loss}'}\ndefaults: {nproc: 0, timeout: 60s}\n"
        "phases: [{id: a, kind: train, steps: 11, log_contains: ['##[error]absent']}]\n",
        encoding="utf-8",
    )
    answers = [
        job("run", "shouts.yaml"),
        job("inspect", "training.csv"),
        job("init", "--seconds", "5s", "-o", "x.yaml", "--", "python", "shouts.py"),
        job("plan", "shouts.yaml"),
    ]
    (folder,) = (path.parent for path in workdir.glob("reports/*/run.json"))
    log = folder / "runs/a/r1/logs/stdout.log"
    answers += [job("inspect", str(log)), job("inspect", str(log), "--json"), job("report", str(folder))]
    for answer in answers:
        shown = [line for text in (answer.out, answer.err) for line in commands_in(text)]
        assert [one for one in shown if not re.match(r"::(error|warning) file=shouts\.yaml,line=8,col=15,", one)] == []
    assert answers[0].rc == 1
    assert any("last words" in answer.out + answer.err for answer in answers), "it is shown, and harmless"
    assert json.loads(answers[5].out)["directory"] == str(log)
    piped = subprocess.run(
        [sys.executable, "-m", "validator", "watch", "-", "--stdout", "step {step} loss {loss}", "--interval", "1s"],
        input=log.read_bytes(),
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        cwd=workdir,
        timeout=60,
    )
    assert commands_in(piped.stdout.decode() + piped.stderr.decode()) == []
    assert b"::error" in log.read_bytes()
    assert b"step 11 loss" in piped.stdout


def test_commands_in_pieces_are_none_either() -> None:
    for text in ("\n".join(FORGED), "x\r\n : :: ##[", "##[##[a]", ":", "::", "\ufeff::error::x"):
        for size in (1, 2, 3, 100):
            guard, other = CommandGuard(), CommandGuard()
            pieces = [text[at : at + size] for at in range(0, len(text), size)]
            assert commands_in("".join(map(guard.guarded, pieces))) == []
            raw = text.encode()
            shown = b"".join(other.guarded_bytes(raw[at : at + size]) for at in range(0, len(raw), size))
            assert commands_in(shown.decode()) == []
    assert json.loads(CommandGuard().guarded(json.dumps({"a": "##[x] ::y"}))) == {"a": "##[x] ::y"}
    plain = "a::b  c: d\n# [x]\n##\n[y]\n"
    assert CommandGuard().guarded(plain) == plain


def test_elsewhere_nothing_is_annotated(cli: Any, train_runbook: Any) -> None:
    train_runbook(fault="none", accept=("toks_per_s.men >= 1",))
    answer = cli("check", "tiny.yaml")
    assert "::" not in answer.out + answer.err


# The composite action.


def action() -> dict[str, Any]:
    return yaml.safe_load(ACTION.read_text(encoding="utf-8"))


def test_the_action_has_the_shape_of_a_composite_action() -> None:
    found = action()
    assert found["runs"]["using"] == "composite"
    assert found["inputs"]["runbook"]["required"] is True
    steps = found["runs"]["steps"]
    for step in steps:
        assert step["shell"] == "bash"
        assert "${{" not in step["run"], "an input pasted into a script could be a command"
        for value in step["env"].values():
            assert value.removeprefix("${{ inputs.").removesuffix(" }}") in found["inputs"]
    written = set(steps[-1]["run"].split("printf", 1)[1].replace('"', " ").replace("=", " ").split())
    for name, output in found["outputs"].items():
        assert output["value"] == f"${{{{ steps.{steps[-1]['id']}.outputs.{name} }}}}"
        assert name in written
    assert (ACTION.parent / "../../..").resolve() == REPOSITORY
    assert "$GITHUB_ACTION_PATH/../../.." in steps[0]["run"]


@pytest.mark.parametrize(("bound", "code", "decision"), [("10", 0, "GO"), ("1e12", 1, "NO-GO")])
def test_the_action_runs_a_runbook(
    train_runbook: Any, workdir: Path, tmp_path: Path, bound: str, code: int, decision: str
) -> None:
    train_runbook(fault="none", accept=("loss.last < loss.first",))
    output, summary = tmp_path / "output", tmp_path / "summary"
    own = {
        "RUNBOOK": "tiny.yaml",
        "ARGS": "--set baseline.steps=200 --fail-fast",
        "OUT": "reports",
        "PYTHON": sys.executable,
        "PYTHONPATH": str(REPOSITORY),
        "GITHUB_ACTIONS": "true",
        "GITHUB_WORKSPACE": str(workdir),
        "GITHUB_OUTPUT": str(output),
        "GITHUB_STEP_SUMMARY": str(summary),
        "XDG_RUNTIME_DIR": str(tmp_path),
    }
    book = workdir / "tiny.yaml"
    book.write_text(book.read_text().replace("loss.last < loss.first", f"toks_per_s.mean >= {bound}"))
    script = action()["runs"]["steps"][-1]["run"]
    words = ("bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", script)
    done = subprocess.run(words, cwd=workdir, env={**os.environ, **own}, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    written = dict(line.split("=", 1) for line in output.read_text().splitlines())
    assert (written["decision"], written["exit-code"]) == (decision, str(code))
    assert (workdir / written["folder"] / "report.html").is_file()
    assert result_of(workdir)["runbook"]["overrides"] == ["baseline.steps=200"]
    assert summary.read_text().startswith("# ")
    assert ("::error file=tiny.yaml" in done.stdout) == (code == 1)

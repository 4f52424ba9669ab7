"""A kind from a plugin folder is a kind like any other: checked, planned, run, read, judged and reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PLUGINS = Path(__file__).with_name("plugins")

RUNBOOK = """
schema: 1
name: copying
phases:
  - {id: quick, kind: copy, size: 4000000, accept: [copy.mb_s >= 2 MB/s]}
  - {id: slow, kind: copy, size: 1000, at_least: 1.0e+12, required: false}
"""


def validator(*words: str | Path, plugins: Path | str | None = PLUGINS, expected: int = 0) -> str:
    """What a command prints on both streams."""
    env = {key: value for key, value in os.environ.items() if key != "VALIDATOR_PLUGINS"}
    env |= {} if plugins is None else {"VALIDATOR_PLUGINS": str(plugins)}
    done = subprocess.run(
        [sys.executable, "-m", "validator", *map(str, words)], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == expected, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of a validation with two phases of the kind, one of which is too slow."""
    folder = tmp_path_factory.mktemp("copying")
    (folder / "book.yaml").write_text(RUNBOOK)
    validator("run", folder / "book.yaml", "--out", folder / "reports", "--no-lock")
    (run,) = (path.parent for path in (folder / "reports").glob("*/result.json"))
    return run


def test_it_is_run_and_judged_by_its_own_criteria(run: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    assert (result["decision"], result["exit_code"]) == ("GO", 0)
    quick, slow = result["phases"]
    assert (quick["kind"], quick["status"], quick["asks"]) == ("copy", "PASS", True)
    assert [one["id"] for one in quick["criteria"]] == ["quick.exit", "quick.fast", "quick.1"]
    scalar = quick["runs"][0]["scalars"]["copy.mb_s"]
    assert (scalar["unit"], scalar["source"]) == ("MB/s", "runs/quick/r1/copy.json")
    assert (slow["status"], slow["criteria"][1]["status"]) == ("FAIL", "FAIL"), "the sick twin"
    assert "copies 1 MB/s" in (run / "report.md").read_text() + (run / "report.html").read_text()


def test_its_run_folder_is_judged_again_only_where_the_kind_is_known(run: Path) -> None:
    validator("report", run)
    refused = validator("report", run, plugins=None, expected=2)
    assert "'copy' is no kind of phase; known: preflight, command, pytest, " in refused
    assert "VALIDATOR_PLUGINS" in refused


def test_it_is_checked_and_planned(tmp_path: Path) -> None:
    book = tmp_path / "book.yaml"
    book.write_text(RUNBOOK.replace("size: 1000,", "size: 0,").replace("copy.mb_s", "copy.mb_x"))
    found = validator("check", book, expected=2)
    assert "book.yaml:6:34: size of slow is 0, which copies nothing" in found
    assert "did you mean copy.mb_s?" in found
    book.write_text(RUNBOOK)
    planned = json.loads(validator("plan", book, "--json"))
    assert [one["kind"] for phase in planned["phases"] for one in phase["runs"]] == ["copy", "copy"]
    without = validator("check", book, plugins=None, expected=2)
    assert "phases.quick.kind is 'copy'" in without
    assert "kinds: preflight, command" in without


def test_the_schema_and_the_reference_describe_it() -> None:
    schema = json.loads(validator("schema"))
    assert schema["properties"]["phases"]["items"]["discriminator"]["mapping"]["copy"] == "#/$defs/CopyPhase"
    reference = validator("schema", "--markdown")
    assert "### `kind: copy`" in reference
    assert "| `copy.mb_s` | MB/s | copy | rate of one copy |" in reference
    assert "| `PHASE.fast` | copy | the copy reaches `at_least` |" in reference


def test_plugins_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    (tmp_path / "half.py").write_text("KINDS = (")
    (tmp_path / "none.py").write_text("ONE = 1")
    (tmp_path / "twice.py").write_text("from validator.kinds.train import Train\nKINDS = (Train(),)")
    based = "from validator.kinds.base import ProcessKind\nclass Greet(ProcessKind):\n    pass\n"
    (tmp_path / "bare.py").write_text(f"{based}KINDS = (Greet(),)")
    (tmp_path / "type.py").write_text(f"{based}KINDS = (Greet,)")
    found = validator("check", "smoke_cpu", plugins=f"{tmp_path}{os.pathsep}{tmp_path / 'gone'}", expected=2)
    assert f"{tmp_path / 'half.py'}: the kinds in this file cannot be used: SyntaxError" in found
    assert f"{tmp_path / 'none.py'}: the kinds in this file cannot be used: ValueError: there is no KINDS" in found
    assert "Train has the schema TrainPhase, which is that of the kind train" in found
    assert "Greet has no schema, the model of its keys" in found
    assert found.count("write `schema = MyPhase` in class ") == 2
    assert "write KINDS = (Greet(),)" in found
    assert f"{tmp_path / 'gone'}: this is no folder" in found
    assert "Traceback" not in found

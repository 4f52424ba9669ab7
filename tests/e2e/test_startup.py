"""What a command that starts nothing must not import: seconds of start-up for a list of options."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
import typer

from tests.processes import python
from tests.validator.history.folders import make_run
from validator import commands
from validator.commands.app import COMMANDS

HEAVY = ("torch", "nsa", "scipy", "numpy", "vl_convert", "jinja2", "pytest", "psutil", "pynvml", "email", "zipfile")
PROBE = """
import sys
from validator.startup import trim_imports
trim_imports()
from validator.commands.app import app
try:
    app({arguments!r}, prog_name="validator")
except SystemExit as ended:
    code = ended.code
loaded = sorted(({{name.partition(".")[0] for name in sys.modules}} | set(sys.modules)) & set({heavy!r}))
print(code, loaded, file=sys.stderr)
"""


def imports_none_of(modules: tuple[str, ...], arguments: list[str], folder: Path) -> str:
    """Run a command, which has to end well without these modules; returns what it printed."""
    done = python("-c", PROBE.format(arguments=arguments, heavy=modules), cwd=folder)
    assert done.stderr.splitlines()[-1] == "0 []", done.stderr
    return done.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["check", "smoke_cpu"], ["run", "--help"]])
def test_nothing_heavy_is_imported(arguments: list[str], tmp_path: Path) -> None:
    imports_none_of(HEAVY, arguments, tmp_path)


@pytest.mark.parametrize(
    ("arguments", "unwanted"),
    [
        (["--help"], ("pydantic.main", "yaml", "json", "unicodedata")),
        (
            ["check", "smoke_cpu"],
            (
                "validator.model.result",
                "validator.model.verdict",
                "validator.model.nodes",
                "validator.report",
            ),
        ),
        (
            ["check", "smoke_cpu"],  # none of its phases is of such a kind
            (
                *(f"validator.kinds.{name}" for name in ("storage", "network", "tools", "burnin", "settings")),
                "validator.kinds.determinism",
                "validator.model.machine_phases",
                "validator.model.repeated_phases",
                "validator.cluster.alike",
                "validator.cluster.fleet",
                "statistics",
                "mmap",
                "json",
                "unicodedata",
            ),
        ),
        (["list"], ("validator.kinds", "validator.plan", "validator.model", "validator.runbook.load")),
        (["serve", "--help"], ("validator.service", "starlette", "uvicorn", "anyio", "sqlite3", "prometheus_client")),
        (["token", "list"], ("starlette", "uvicorn", "validator.runbook", "numpy", "validator.service.index")),
        (["nightly", "install", "--help"], ("validator.nightly", "validator.runbook", "validator.model")),
        (["nightly", "status"], ("numpy", "jinja2", "validator.history", "validator.report", "validator.runbook")),
    ],
)
def test_nothing_is_imported_that_the_command_does_not_use(
    arguments: list[str], unwanted: tuple[str, ...], tmp_path: Path
) -> None:
    imports_none_of(unwanted, arguments, tmp_path)


def test_history_imports_no_pipeline(tmp_path: Path) -> None:
    """It only reads what others wrote: a second of start-up would be most of what it takes."""
    for number in range(8):
        make_run(tmp_path / "reports", number, scale=1.0 + number % 3 / 100)
    unwanted = ("vl_convert", "psutil", "validator.pipeline.validate", "validator.judge", "validator.runbook")
    assert imports_none_of(unwanted, ["history"], tmp_path).count("✓ GO") == 8
    models = ("model.phases", "model.runbook", "model.contrast", "model.verdict", "model.result", "report.specs")
    unwanted = tuple(f"validator.{name}" for name in models)
    assert imports_none_of(unwanted, ["history"], tmp_path).count("✓ GO") == 8, "the index has all of it"


def test_check_makes_few_data_classes_and_evaluates_no_annotation_of_a_model(tmp_path: Path) -> None:
    """Each data class takes 0.3 ms, five times as long as a named tuple; a field that is a text is compiled."""
    code = """
import dataclasses, sys
from pydantic import BaseModel
from validator.kinds import registry
modules = [module for name, module in sys.modules.items() if name.startswith("validator.")]
classes = {one for module in modules for one in vars(module).values() if isinstance(one, type)}
own = [one for one in classes if one.__module__.startswith("validator.")]
print(*sorted(one.__name__ for one in own if dataclasses.is_dataclass(one)))
models = [one for one in own if issubclass(one, BaseModel)]
print(*sorted(f"{one.__name__}.{key}" for one in models for key, of in vars(one).get("__annotations__", {}).items()
              if isinstance(of, str)))
"""
    done = python("-c", code, cwd=tmp_path)
    made, texts = done.stdout.split("\n")[:2]
    evidence = {"DiskRecord", "LoaderTrial", "Measured", "SelectedTests"}
    assert set(made.split()) <= {"Built", "YamlNode", "OpenBound", *evidence}
    assert texts == ""


def test_expressions_of_modules_are_compiled_when_they_are_used(tmp_path: Path) -> None:
    """In a command until its work begins; never in a program that imports the package."""
    code = """
import copy, re, sys
from validator.startup import end_trimming, trim_imports
if sys.argv[1:]:
    trim_imports()
import typer, yaml
class Place:
    word = re.compile("([a-z]+)-?", re.IGNORECASE)
print(type(yaml.reader.Reader.NON_PRINTABLE) is re.Pattern, type(Place.word) is re.Pattern, end=" ")
print(isinstance(Place.word, re.Pattern), re.sub(Place.word, r"<\\1>", "A-b"), re.compile(Place.word).groups, end=" ")
print(copy.copy(Place.word).fullmatch("C")[1], (lambda: type(re.compile("a")) is re.Pattern)(), end=" ")
end_trimming()
print(type(re.compile("b")) is re.Pattern, yaml.load("{day: 2026-01-02, low: -0.5}", Loader=yaml.SafeLoader))
"""
    read = "True <A><b> 1 C True True {'day': datetime.date(2026, 1, 2), 'low': -0.5}"
    for arguments, made in (["command"], "False False"), ([], "True True"):
        assert python("-c", code, *arguments, cwd=tmp_path).stdout == f"{made} {read}\n"


def test_the_table_of_commands_is_what_each_command_says_itself() -> None:
    modules = {path.stem for path in Path(commands.__path__[0]).glob("*.py")}
    assert modules - {"__init__", "app", "common"} == set(COMMANDS)
    for name, line in COMMANDS.items():
        command = import_module(f"validator.commands.{name}").command
        text = command.info.help if isinstance(command, typer.Typer) else command.__doc__
        assert str(text).splitlines()[0] == line, name


def test_a_command_imports_no_other_commands_module(tmp_path: Path) -> None:
    others = ("validator.commands.watch", "validator.commands.inspect")
    imports_none_of(others, ["check", "smoke_cpu"], tmp_path)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("validator nig", ["nightly"]),
        ("validator check smo", ["smoke_cpu"]),
        ("validator nightly ins", ["install"]),
        ("validator run --skip", ["--skip"]),
    ],
)
def test_the_shell_completes_commands_options_and_runbooks(typed: str, offered: list[str], tmp_path: Path) -> None:
    words = typed.split()
    asks = {"_VALIDATOR_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)}
    answer = python("-c", "from validator.cli import main; main()", cwd=tmp_path, env=asks)
    assert answer.stdout.split() == offered

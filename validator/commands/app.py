"""The command line: a table of commands. A command's module is imported when it is typed, so that all start quickly."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

import validator
from validator.commands.common import SETTINGS

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter


COMMANDS = {
    "init": "Watch a trainer's command for a short while, as it is, and write a runbook for it.",
    "run": "Run a runbook to a decision and write its report.",
    "check": "Read runbooks and report every mistake with its place and its fix; warn of what can never end in GO.",
    "plan": "Show exactly what would be started: every run with its command, environment and budget.",
    "list": "List the bundled runbooks.",
    "inspect": "Measure one trainer folder or log, ours or another's, and name what looks wrong.",
    "report": "Judge a run folder again from what is on disk, and rewrite its reports.",
    "export": "Send a validation to Weights & Biases, MLflow or OpenTelemetry: decision, criteria, results, series.",
    "history": "List past runs by runbook and machine, and how their metrics changed, and write index.html.",
    "compare": "Compare one run with another: settings, metrics with intervals, criteria and findings.",
    "baseline": "Write a runbook whose bounds come from good runs, each with a comment that says which runs and how.",
    "bisect": "Find which of the settings that differ make one run slow, or fail, by short runs of their combinations.",
    "watch": "Watch a trainer that is running, ours or another's, until it ends; exit code 1 when something is wrong.",
    "doctor": "Say which bundled runbooks this machine can run, and what to install.",
    "selftest": "Inject known faults and check that verdict and cause come out right; exit code 1 if any does not.",
    "nightly": "Run a runbook on a schedule: with log, retention, notification and metrics; no root needed.",
    "serve": "Serve the run folders as pages: what runs now, past runs, the fleet, starts; with an API and metrics.",
    "token": "Make, list and revoke the tokens of `validator serve`; only their hashes are stored.",
    "push": "Hand in a run folder to a service on another machine; a push that broke continues where it stopped.",
    "submit": "Write the batch file of a validation on a Slurm cluster, and submit it with --now.",
    "schema": "Print the JSON Schema of runbooks, for editors.",
}
"""Name → first line of its help. `validator/commands/NAME.py` defines `command`: a function, or a `typer.Typer`."""


@cache
def _load(name: str) -> Command:
    """A command from its module: one of a function, or a group from a `typer.Typer`."""
    what = import_module(f"validator.commands.{name}").command
    if isinstance(what, typer.Typer):
        made = get_command(what)
    else:
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        parsed_by = getattr(what, "parsed_by", None)
        single.command(name, cls=parsed_by, epilog=getattr(what, "epilog", None), context_settings=SETTINGS)(what)
        made = get_command(single)
    made.name = name
    return made


class _LazyGroup(TyperGroup):
    """A group that lists its commands from the table and imports the one that is used."""

    def __init__(self, **attributes: Any) -> None:
        named = {name: TyperCommand(name, help=text) for name, text in COMMANDS.items()}
        super().__init__(**{**attributes, "commands": named})

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        """The command itself; `self.commands` has only its name and help."""
        return _load(cmd_name) if cmd_name in COMMANDS else None

    def invoke(self, ctx: Context) -> Any:
        """Typer ends these two with exit code 1, which here says NO-GO."""
        try:
            return super().invoke(ctx)
        except (BrokenPipeError, EOFError) as error:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        """From the table: typer would import every command for its help."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


app = typer.Typer(
    cls=_LazyGroup,
    add_completion=True,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=SETTINGS,
    help="Decides, with evidence, whether a machine and a training config are fit for a run that costs days.",
    epilog="Exit codes: 0 GO, 1 NO-GO, 2 bad usage or runbook, 3 INCONCLUSIVE, 4 the machine could not do it, "
    "130 interrupted.",
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"validator {validator.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass

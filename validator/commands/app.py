"""The command line: a table of commands. Each one's module is imported when it is typed, so that all start quickly."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

import validator

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter

__all__ = ["COMMANDS", "app"]

COMMANDS: dict[str, tuple[str, str, str]] = {
    "run": ("running", "run", "Run a runbook to a decision and write its report."),
    "check": (
        "running",
        "check",
        "Read runbooks and report every mistake with its place and its fix; warn of what can never end in GO.",
    ),
    "plan": (
        "running",
        "plan",
        "Show exactly what would be started: every run with its command, environment and budget.",
    ),
    "list": ("running", "list_", "List the bundled runbooks."),
    "inspect": (
        "reading",
        "inspect",
        "Measure one trainer folder or log, ours or another's, and name what looks wrong.",
    ),
    "report": ("reading", "report", "Judge a run folder again from what is on disk, and write its reports anew."),
    "history": (
        "history",
        "history",
        "List past runs by runbook and machine, with what their figures did, and write index.html.",
    ),
    "compare": (
        "comparing",
        "compare",
        "Set one run against another: settings, metrics with intervals, criteria and findings.",
    ),
    "baseline": (
        "comparing",
        "baseline",
        "Write a runbook whose bounds come from good runs, each with a comment that says which runs and how.",
    ),
    "bisect": (
        "bisecting",
        "bisect",
        "Find which of the settings that differ make one run slow, or fail, by short runs of their combinations.",
    ),
    "watch": (
        "standing",
        "watch",
        "Watch a trainer that is running, ours or another's, until it ends; exit code 1 when something is wrong.",
    ),
    "doctor": ("standing", "doctor", "Say which bundled runbooks this machine can run, and what to install."),
    "selftest": (
        "proving",
        "selftest",
        "Bring about faults on purpose and check that verdict and cause come out right; exit code 1 if any does not.",
    ),
    "nightly": (
        "nightly",
        "app",
        "Run a runbook by the clock: with log, retention, notification and metrics; no root needed.",
    ),
    "schema": ("schema", "schema", "Print the JSON Schema of runbooks, for editors."),
}
"""Name → module of `validator.commands`, function (or `typer.Typer` of a group), first line of its help."""

_SETTINGS = {"help_option_names": ["-h", "--help"]}


class _Commands(MutableMapping[str, "Command"]):
    """The commands by name, each made from its function when it is asked for."""

    def __init__(self) -> None:
        self._made: dict[str, Command] = {}

    def __getitem__(self, name: str) -> Command:
        if name not in self._made:
            module, attribute, _ = COMMANDS[name]
            self._made[name] = _made(name, getattr(import_module(f"validator.commands.{module}"), attribute))
        return self._made[name]

    def __setitem__(self, name: str, command: Command) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


def _made(name: str, what: Any) -> Command:
    """A command from its function, or a group of commands from its `typer.Typer`."""
    if isinstance(what, typer.Typer):
        made = get_command(what)
    else:
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(name, epilog=getattr(what, "epilog", None), context_settings=_SETTINGS)(what)
        made = get_command(single)
    made.name = name
    return made


class _LazyGroup(TyperGroup):
    """A group that lists its commands from the table, and imports only the one that is used."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**{**attributes, "commands": None})
        self.commands = _Commands()

    def invoke(self, ctx: Context) -> Any:
        """Typer ends these two with exit code 1, which here says NO-GO."""
        try:
            return super().invoke(ctx)
        except (BrokenPipeError, EOFError) as error:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    def list_commands(self, ctx: Context) -> list[str]:
        return list(COMMANDS)

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])


app = typer.Typer(
    cls=_LazyGroup,
    add_completion=True,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=_SETTINGS,
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

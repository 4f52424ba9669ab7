"""What the commands share: options, JSON on stdout, and failures reported in one sentence."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TextIO, TypeVar

import typer
from typer.core import TyperCommand

from validator.errors import ExitCode, UserError
from validator.startup import end_trimming
from validator.text import on_actions

if TYPE_CHECKING:
    from validator.report.annotations import Annotation

SETTINGS = {"help_option_names": ["-h", "--help"]}
"""Of typer, for every command and group."""


def command_group(help_: str) -> typer.Typer:
    """A command that has commands of its own, such as `validator token add`."""
    return typer.Typer(
        help=help_,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings=SETTINGS,
    )


def complete_runbook(incomplete: str) -> list[str]:
    """Names of bundled runbooks, for the shell; files are completed by the shell itself."""
    from validator.runbook import available

    return [info.name for info in available() if info.name.startswith(incomplete)]


RunbookArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUNBOOK", help="A path, or the name of a bundled runbook.", autocompletion=complete_runbook
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Replace one value: baseline.steps=50. May be repeated."),
]
Only = Annotated[list[str] | None, typer.Option(metavar="PHASE", help="Run this phase and what it needs.")]
Skip = Annotated[list[str] | None, typer.Option(metavar="PHASE", help="Leave this phase out.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON alone on stdout.")]

Command = TypeVar("Command", bound=Callable[..., Any])


AfterDashes = Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND", show_default=False)]
"""Words without `--` before them; those behind it are in `context.meta`, where `behind_dashes` has put them."""


class CommandBehindDashes(TyperCommand):
    """A command whose words behind the first `--` are those of another program, and are not looked at."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse what stands before `--`."""
        if "--" in args:
            at = args.index("--")
            ctx.meta["behind_dashes"] = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)


def behind_dashes(command: Command) -> Command:
    """Let a command take a program's words behind `--`."""
    command.__dict__["parsed_by"] = CommandBehindDashes
    return command


def example(*lines: str) -> Callable[[Command], Command]:
    """Give a command the examples that end its help."""

    def add(command: Command) -> Command:
        label = "Example: " if len(lines) == 1 else "Examples: "
        command.__dict__["epilog"] = label + " · ".join(lines)
        return command

    return add


def print_json(value: Any) -> None:
    """Print a value as JSON, alone on stdout."""
    import json

    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def answer(json_of: Callable[[], Any], lines_of: Callable[..., Iterable[str]], *values: object, as_json: bool) -> None:
    """Print an answer: what `json_of()` gives, or the lines that `lines_of(*values, width=, color=)` makes."""
    from validator.report.terminal.lines import show

    if as_json:
        print_json(json_of())
    else:
        show(lines_of, *values)


def fail(message: str, *, as_json: bool, code: ExitCode = ExitCode.USAGE, **details: Any) -> typer.Exit:
    """Say why on stderr (or as JSON on stdout) and give the exit to raise."""
    if as_json:
        print_json({"error": message, "exit_code": code, **details})
    else:
        typer.echo(message, err=True)
    return typer.Exit(code)


def annotate(annotations: Iterable[Annotation], *, as_json: bool, cwd: str | None = None) -> None:
    """On GitHub Actions: print what went wrong as the runner shows it, on stderr where stdout is JSON alone."""
    if on_actions(os.environ):
        from validator.report.annotations import annotation_lines

        for line in annotation_lines(annotations, os.environ, cwd=cwd):
            _write_command(line, sys.stderr if as_json else sys.stdout)


def _write_command(line: str, stream: TextIO) -> None:
    """A command to the runner: the only text that the stream does not keep from being one."""
    write = getattr(stream, "write_command", None)
    if write is None:  # a stream that is not the process's own
        stream.write(f"{line}\n")
    else:
        write(line)


@contextmanager
def reported(*, as_json: bool = False) -> Iterator[None]:
    """Turn every expected failure into its sentence and exit code."""
    end_trimming()
    try:
        yield
    except UserError as error:
        raise fail(str(error), code=error.exit_code, as_json=as_json, **error.details()) from None
    except OSError as error:
        raise fail(f"the machine refuses it: {error}", code=ExitCode.UNABLE, as_json=as_json) from None


@contextmanager
def after_decision() -> Iterator[None]:
    """The decision is computed and written: what fails from here on is said, and changes no exit code."""
    try:
        yield
    except Exception as error:  # noqa: BLE001
        sys.stderr.write(f"the decision stands, but cannot be shown here: {type(error).__name__}: {error}\n")


def duration(option: str, text: str, *, as_json: bool) -> float:
    """A duration of the command line in seconds; a number alone is seconds."""
    from validator.model.units import parse_duration

    try:
        value = float(text) if text.replace(".", "", 1).isdigit() else parse_duration(text)
    except ValueError as error:
        raise fail(f"{option} {text}: {error}", as_json=as_json) from None
    if value <= 0:
        raise fail(f"{option} {text}: must be more than zero; write 30s or 2m", as_json=as_json)
    return value

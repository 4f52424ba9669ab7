"""`validator check`: mistakes of runbooks, with place and fix."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from validator.commands.common import (
    AsJson,
    Overrides,
    after_decision,
    annotate,
    complete_runbook,
    example,
    print_json,
)
from validator.errors import ExitCode
from validator.text import on_actions

if TYPE_CHECKING:
    from validator.runbook import Problem
    from validator.runbook.load import LoadedRunbook


@example("validator check runbooks/*.yaml")
def command(
    runbooks: Annotated[
        list[str],
        typer.Argument(
            metavar="RUNBOOK...", help="Paths or names of bundled runbooks.", autocompletion=complete_runbook
        ),
    ],
    set_: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Read runbooks and report every mistake with its place and its fix; warn of what can never end in GO."""
    from validator.kinds.registry import load
    from validator.runbook import RunbookError, find

    problems: list[Problem] = []
    good: list[LoadedRunbook] = []
    for name in runbooks:
        try:
            good.append(load(find(name), overrides=tuple(set_ or ())))
        except RunbookError as error:
            problems.extend(error.problems)
    if as_json:
        warnings = [warning._asdict() for loaded in good for warning in _warnings(loaded)]
        mistakes = [problem._asdict() for problem in problems]
        print_json({"ok": not problems, "problems": mistakes, "warnings": warnings})
    else:
        for loaded in good:
            typer.echo(f"{loaded.path}: ok, {len(loaded.runbook.phases)} phases")
            for warning in _warnings(loaded):
                typer.echo(f"{warning.place}: warning: {warning.message}\n  fix: {warning.fix}", err=True)
        for problem in problems:
            typer.echo(str(problem), err=True)
        if problems:
            typer.echo(f"{len(problems)} problem{'s' if len(problems) > 1 else ''}", err=True)
    if on_actions(os.environ):
        from validator.report.annotations import of_problems

        with after_decision():
            warned = (warning for loaded in good for warning in loaded.warnings)
            annotate((*of_problems(problems, "error"), *of_problems(warned, "warning")), as_json=as_json)
    raise typer.Exit(ExitCode.USAGE if problems else 0)


def _warnings(loaded: LoadedRunbook) -> tuple[Problem, ...]:
    """What is absent here may be present on the machine that the runbook is for."""
    return (*loaded.warnings, *loaded.absent)

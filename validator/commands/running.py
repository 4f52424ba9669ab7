"""Commands that start runs, or say what would be started: run, check, plan, list."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from validator.commands.common import (
    USAGE,
    AsJson,
    Only,
    Overrides,
    RunbookArgument,
    Skip,
    after_decision,
    complete_runbook,
    example,
    fail,
    print_json,
    reported,
)

if TYPE_CHECKING:
    from validator.runbook import LoadedRunbook, Problem
    from validator.workflow import Finished

__all__ = ["check", "list_", "plan", "run"]


@example("validator run runbooks/smoke_cpu.yaml --set baseline.steps=100")
def run(
    runbook: Annotated[
        str | None,
        typer.Argument(
            metavar="RUNBOOK", help="A path, or the name of a bundled runbook.", autocompletion=complete_runbook
        ),
    ] = None,
    only: Only = None,
    skip: Skip = None,
    set_: Overrides = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder that receives the run folder.")] = Path("reports"),
    resume: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Go on with a run folder whose runner was killed or interrupted."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and start nothing.")] = False,
    as_json: AsJson = False,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop after the first phase that fails.")] = False,
    no_lock: Annotated[
        bool, typer.Option("--no-lock", help="Run although another validation uses the machine.")
    ] = False,
) -> None:
    """Run a runbook to a decision and write its report."""
    if resume is not None:
        given = {"--only": only, "--skip": skip, "--dry-run": dry_run}
        _refuse_with_resume([name for name, value in given.items() if value], as_json=as_json)
    elif runbook is None:
        raise fail(
            "name a runbook (`validator list` shows those that come along), or --resume RUN", USAGE, as_json=as_json
        )
    elif dry_run:
        plan(runbook, only=only, skip=skip, set_=set_, as_json=as_json)
        return
    from validator import workflow

    with reported(as_json=as_json):
        if resume is not None:
            finished = workflow.resume(
                resume,
                runbook=runbook,
                overrides=tuple(set_ or ()),
                fail_fast=fail_fast,
                lock=not no_lock,
                quiet=as_json,
            )
        else:
            request = workflow.Request(
                runbook=runbook or "",
                only=tuple(only or ()),
                skip=tuple(skip or ()),
                overrides=tuple(set_ or ()),
                parent=out,
                fail_fast=fail_fast,
                lock=not no_lock,
            )
            finished = workflow.execute(request, quiet=as_json)
    with after_decision():
        _show_finished(finished, as_json=as_json)
    with after_decision():
        _tell_job(finished)
    raise typer.Exit(finished.exit_code)


def _refuse_with_resume(names: list[str], *, as_json: bool) -> None:
    """A validation goes on as it was begun, so that its figures belong together."""
    if names:
        raise fail(
            f"{' and '.join(names)} cannot be given with --resume: a validation goes on as it was begun; "
            "leave it out, or begin anew without --resume",
            USAGE,
            as_json=as_json,
        )


def _show_finished(finished: Finished, *, as_json: bool) -> None:
    """What is left to show of a validation: JSON, or the decision of one that had nothing left to do."""
    if as_json:
        sys.stdout.write(finished.text)
    elif finished.had_ended:
        from validator.report import terminal

        typer.echo(f"{finished.folder.name} had come to its end already; there is nothing to resume", err=True)
        terminal.print_summary(finished.report, finished.paths)


def _tell_job(finished: Finished) -> None:
    """On GitHub Actions: the report on the job's page. What cannot be written there costs no decision."""
    import os

    from validator.report.step_summary import VARIABLE, append_step_summary

    if finished.had_ended or not os.environ.get(VARIABLE):
        return
    try:
        append_step_summary(finished.markdown, os.environ)
    except OSError as error:
        typer.echo(f"{VARIABLE}: the step's summary cannot be written: {error.strerror or error}", err=True)


@example("validator check runbooks/*.yaml")
def check(
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
    from validator.runbook import RunbookError, find, load

    problems: list[Problem] = []
    good: list[LoadedRunbook] = []
    for name in runbooks:
        try:
            good.append(load(find(name), overrides=tuple(set_ or ())))
        except RunbookError as error:
            problems.extend(error.problems)
    if as_json:
        warnings = [dataclasses.asdict(warning) for loaded in good for warning in loaded.warnings]
        told = [dataclasses.asdict(problem) for problem in problems]
        print_json({"ok": not problems, "problems": told, "warnings": warnings})
    else:
        for loaded in good:
            typer.echo(f"{loaded.path}: ok, {len(loaded.runbook.phases)} phases")
            for warning in loaded.warnings:
                typer.echo(f"{warning.place}: warning: {warning.message}\n  fix: {warning.fix}", err=True)
        for problem in problems:
            typer.echo(str(problem), err=True)
        if problems:
            typer.echo(f"{len(problems)} problem{'s' if len(problems) > 1 else ''}", err=True)
    raise typer.Exit(USAGE if problems else 0)


@example("validator plan ddp_2xa100 --only baseline")
def plan(
    runbook: RunbookArgument,
    only: Only = None,
    skip: Skip = None,
    set_: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Show exactly what would be started: every run with its command, environment and budget."""
    from validator import workflow

    with reported(as_json=as_json):
        loaded, planned = workflow.preview(
            runbook, overrides=tuple(set_ or ()), only=tuple(only or ()), skip=tuple(skip or ())
        )
    if as_json:
        print_json(planned.model_dump(mode="json"))
    else:
        from validator.report import terminal

        terminal.print_plan(loaded, planned)


@example("validator list")
def list_(as_json: AsJson = False) -> None:
    """List the bundled runbooks."""
    from validator.runbook import available

    found = available()
    if as_json:
        print_json([dataclasses.asdict(info) for info in found])
    else:
        from validator.report import terminal

        terminal.print_runbooks(found)

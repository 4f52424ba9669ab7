"""`validator run`: a runbook to its decision."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from validator.commands import common
from validator.text import on_actions

if TYPE_CHECKING:
    from validator.pipeline.validate import RunRequest
    from validator.pipeline.write import Finished


_WATCH = "60s"


@common.behind_dashes
@common.example("validator run runbooks/smoke_cpu.yaml --set baseline.steps=100", "validator run -- torchrun train.py")
def command(
    context: typer.Context,
    runbook: Annotated[
        str | None,
        typer.Argument(
            metavar="RUNBOOK | -- COMMAND",
            help="A path, the name of a bundled runbook, or behind -- a trainer's command, which is judged without "
            "bounds.",
            autocompletion=common.complete_runbook,
        ),
    ] = None,
    only: common.Only = None,
    skip: common.Skip = None,
    set_: common.Overrides = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder that receives the run folder.")] = Path("reports"),
    resume: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Resume a run folder whose runner was killed or interrupted."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and start nothing.")] = False,
    steps: Annotated[
        int | None, typer.Option(min=10, metavar="N", help="Steps of the run of a COMMAND; default: about 2 minutes.")
    ] = None,
    seconds: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Longest time to watch a COMMAND before its run; ending it takes up to 15 s more, --help and a second "
            "watch their own.",
        ),
    ] = _WATCH,
    as_json: common.AsJson = False,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop after the first phase that fails.")] = False,
    no_lock: Annotated[
        bool, typer.Option("--no-lock", help="Run although another validation uses the machine.")
    ] = False,
) -> None:
    """Run a runbook to a decision and write its report."""
    words = tuple(context.meta.get("behind_dashes") or ())
    if words:
        taken: dict[str, object] = {"RUNBOOK": runbook, "--resume": resume, "--only": only, "--skip": skip}
        wrong = [name for name, value in {**taken, "--set": set_, "--dry-run": dry_run}.items() if value]
        if wrong:
            message = f"a command behind -- is judged as it is; omit {' and '.join(wrong)}"
            raise common.fail(message, as_json=as_json)
    elif steps is not None:
        message = "--steps belongs to a command behind --; for a runbook write --set PHASE.steps=N"
        raise common.fail(message, as_json=as_json)
    elif resume is not None:
        # A resumed validation keeps its settings, so that its results belong together.
        given = [name for name, value in {"--only": only, "--skip": skip, "--dry-run": dry_run}.items() if value]
        if given:
            raise common.fail(
                f"--resume keeps the original settings. Omit {' and '.join(given)}, or start a new run without "
                "--resume.",
                as_json=as_json,
            )
    elif runbook is None:
        raise common.fail(
            "name a runbook (`validator list` shows those that come along), a trainer's command behind --, or "
            "--resume RUN",
            as_json=as_json,
        )
    elif dry_run:
        from validator.commands import plan

        plan.command(runbook, only=only, skip=skip, set_=set_, as_json=as_json)
        return
    from validator.pipeline import validate

    watch_s = common.duration("--seconds", seconds, as_json=as_json)
    with common.reported(as_json=as_json), _annotated_problems(as_json=as_json):
        if words:
            request = validate.RunRequest(runbook="", parent=out, fail_fast=fail_fast, lock=not no_lock)
            options = {
                "--steps": "" if steps is None else str(steps),
                "--seconds": seconds if seconds != _WATCH else "",
            }
            typed = (word for option, value in options.items() if value for word in (option, value))
            request = dataclasses.replace(request, command=(*typed, "--", *words))
            request = _request_for(words, steps=steps, watch_s=watch_s, request=request, quiet=as_json)
            finished = validate.execute(request, quiet=as_json)
        elif resume is not None:
            finished = validate.resume(
                resume,
                runbook=runbook,
                overrides=tuple(set_ or ()),
                fail_fast=fail_fast,
                lock=not no_lock,
                quiet=as_json,
            )
        else:
            request = validate.RunRequest(
                runbook=runbook or "",
                only=tuple(only or ()),
                skip=tuple(skip or ()),
                overrides=tuple(set_ or ()),
                parent=out,
                fail_fast=fail_fast,
                lock=not no_lock,
            )
            finished = validate.execute(request, quiet=as_json)
    with common.after_decision():
        _show_finished(finished, as_json=as_json)
    with common.after_decision():
        _write_step_summary(finished)
    with common.after_decision():
        _annotate(finished, as_json=as_json)
    raise typer.Exit(finished.report.exits_with)


def _request_for(
    words: tuple[str, ...], *, steps: int | None, watch_s: float, request: RunRequest, quiet: bool
) -> RunRequest:
    """Watch a trainer's command and make a runbook without bounds for it: GO is not possible."""
    from validator.init.work import InitRequest, runbook_for

    def note(line: str) -> None:
        if not quiet:
            typer.echo(line, err=True)

    made = runbook_for(InitRequest(words, seconds=watch_s, lock=request.lock), steps=steps, note=note)
    note(f"it reads {made.source}")
    return dataclasses.replace(request, runbook=str(made.loaded.path), loaded=made.loaded)


def _show_finished(finished: Finished, *, as_json: bool) -> None:
    """What is left to show of a validation: JSON, or the decision of one that had nothing left to do."""
    if as_json:
        sys.stdout.write(finished.text)
    elif finished.had_ended:
        from validator.report.terminal import lines, summary

        typer.echo(f"{finished.folder.name} has already finished; nothing to resume", err=True)
        lines.show(summary.summary_lines, finished.report, finished.paths)


@contextmanager
def _annotated_problems(*, as_json: bool) -> Iterator[None]:
    """On GitHub Actions: mistakes of the runbook at their lines as well."""
    from validator.report.annotations import of_problems
    from validator.runbook import RunbookError

    try:
        yield
    except RunbookError as error:
        common.annotate(of_problems(error.problems, "error"), as_json=as_json)
        raise


def _annotate(finished: Finished, *, as_json: bool) -> None:
    """On GitHub Actions: what kept the decision from being GO, at the lines of the runbook."""
    from validator.report.annotations import of_report

    if on_actions(os.environ):
        text, header = finished.runbook
        annotations = of_report(finished.report, text, file=header.runbook_path)
        common.annotate(annotations, as_json=as_json, cwd=header.cwd)


def _write_step_summary(finished: Finished) -> None:
    """On GitHub Actions: the report on the job's page. What cannot be written there costs no decision."""
    from validator.report.exports import VARIABLE, append_step_summary

    if finished.had_ended or not os.environ.get(VARIABLE):
        return
    try:
        append_step_summary(finished.markdown, os.environ)
    except OSError as error:
        typer.echo(f"{VARIABLE}: the step's summary cannot be written: {error.strerror or error}", err=True)

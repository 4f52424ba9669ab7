"""`validator init`: a runbook for a trainer's command."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from validator.commands.common import AfterDashes, AsJson, behind_dashes, duration, example, fail, print_json, reported
from validator.report.terminal import lines

if TYPE_CHECKING:
    from validator.init.work import Initiated


@behind_dashes
@example(
    "validator init -- torchrun --nproc-per-node 2 train.py --config x.yaml", "validator init --from-run reports/RUN"
)
def command(
    context: typer.Context,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="The runbook; default is PROGRAM.yaml.")
    ] = None,
    from_run: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Write the runbook of this run, with bounds from it, in place of a COMMAND; of several the last.",
        ),
    ] = None,
    seconds: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Longest time to watch the command; ending it takes up to 15 s more, --help and a second watch "
            "their own.",
        ),
    ] = "60s",
    force: Annotated[bool, typer.Option("--force", help="Overwrite the runbook if it exists.")] = False,
    no_lock: Annotated[
        bool, typer.Option("--no-lock", help="Start it although a validation uses the machine.")
    ] = False,
    as_json: AsJson = False,
    words: AfterDashes = None,
) -> None:
    """Watch a trainer's command for a short while, as it is, and write a runbook for it."""
    from validator.init import work

    given = tuple(context.meta.get("behind_dashes") or ())
    shown = " ".join(map(shlex.quote, words or ()))
    if words and from_run is not None:
        chosen = work.last_run([from_run, *map(Path, words)])
        if chosen is None:
            raise fail(f"--from-run takes run folders, without {shown}; name one folder alone", as_json=as_json)
        if chosen != from_run and not as_json:
            typer.echo(f"Run     {chosen}, the last of those that are named")
        from_run = chosen
    elif words:
        raise fail(f"write -- before the trainer's command: validator init -- {shown}", as_json=as_json)
    if bool(given) == (from_run is not None):
        raise fail("give the trainer's command behind --, or --from-run RUN", as_json=as_json)
    if from_run is not None:
        with reported(as_json=as_json):
            made = work.from_run(from_run, out=out, force=force)
        if as_json:
            print_json(
                {
                    "schema_version": 1,
                    "runbook": str(made.path),
                    "bounds": list(made.bounds),
                    "warnings": list(made.warnings),
                    "notes": list(made.notes),
                }
            )
            return
        for bound in made.bounds:
            typer.echo(bound)
        if made.warnings:
            typer.echo(f"Note    that run had {', '.join(made.warnings)}: bounds from it may be too easy to pass")
        for note in made.notes:
            typer.echo(f"Note    {note}")
        typer.echo(f"Written {made.path}\nNext    validator run {shlex.quote(str(made.path))}")
        return
    watch_s = duration("--seconds", seconds, as_json=as_json)
    request = work.InitRequest(given, seconds=watch_s, out=out, force=force, lock=not no_lock)
    with reported(as_json=as_json):
        initiated = work.init(request, note=lambda line: typer.echo(line, err=True))
    if as_json:
        print_json(initiated.as_dict())
    else:
        _show(initiated)
    raise typer.Exit(initiated.exit_code)


def _show(initiated: Initiated) -> None:
    """What was understood, and what to type next."""
    from validator.report.terminal.watched import unrecognized_lines, watched_lines

    path = shlex.quote(str(initiated.path))
    phases = ", ".join(f"{phase.id} of {getattr(phase, 'steps', 0):,} steps" for phase in initiated.runbook.phases)
    if initiated.watched.reading is None:
        lines.show(unrecognized_lines, initiated.as_dict())
        typer.echo(f"Written {path}, in which metrics is still to be filled in\nThen    validator run {path}")
        return
    lines.show(watched_lines, initiated.as_dict())
    typer.echo(f"Written {path}: {phases}\nNext    validator run {path}")

"""Commands that read what runs left behind: inspect, report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from validator.commands.common import GO, NO_GO, USAGE, AsJson, after_decision, example, fail, print_json, reported

__all__ = ["inspect", "report"]


@example("validator inspect reports/LATEST/runs/baseline/r1")
def inspect(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A folder that a trainer wrote, or one log of it.")],
    stdout: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="How its log is read: 'step {step} loss {loss} tok/s {toks_per_s}'."),
    ] = None,
    runbook: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The runbook that says where its measurements are.")
    ] = None,
    warmup_steps: Annotated[
        int | None,
        typer.Option(metavar="N", help="Steps that never count as steady; default is the runbook's, else 20."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure one trainer folder or log, ours or another's, and name what looks wrong."""
    from validator import workflow

    if stdout is not None and runbook is not None:
        raise fail("--stdout and --runbook both say how the log is read; give one of them", USAGE, as_json=as_json)
    with reported(as_json=as_json):
        inspection = workflow.inspect(path, warmup_steps=warmup_steps, stdout=stdout, runbook=runbook)
    if as_json:
        print_json(inspection.as_dict())
    else:
        from validator.report import terminal

        terminal.print_inspection(inspection)
    raise typer.Exit(NO_GO if inspection.vetoed else GO)


@example("validator report reports/LATEST --share")
def report(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, wherever it lies now.")],
    share: Annotated[
        bool, typer.Option("--share", help="Write a copy without names of machines, people and places as well.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="With --share: the folder to write; default is beside RUN.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Judge a run folder again from what is on disk, and write its reports anew."""
    from validator import workflow

    if out is not None and not share:
        raise fail("--out belongs to --share; leave it out, or add --share", USAGE, as_json=as_json)
    with reported(as_json=as_json):
        finished = workflow.share(run_dir, out=out) if share else workflow.report(run_dir)
    with after_decision():
        if as_json:
            sys.stdout.write(finished.text)
        else:
            from validator.report import terminal

            terminal.print_summary(finished.report, finished.paths)
            if isinstance(finished, workflow.Shared):
                typer.echo(finished.summary)
    raise typer.Exit(finished.exit_code)

"""`validator report`: judge a run folder again and write its reports."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from validator.commands.common import AsJson, after_decision, example, fail, reported


@example("validator report reports/RUN --share")
def command(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, wherever it is now.")],
    share: Annotated[
        bool, typer.Option("--share", help="Write a copy without names of machines, people and places as well.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="With --share: the folder to write; default is beside RUN.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Judge a run folder again from what is on disk, and rewrite its reports."""
    if out is not None and not share:
        raise fail("--out belongs to --share; leave it out, or add --share", as_json=as_json)
    from validator.pipeline import share as sharing
    from validator.pipeline import write
    from validator.report.terminal.lines import show
    from validator.report.terminal.summary import summary_lines

    advice = ""
    with reported(as_json=as_json):
        if share:
            shared = sharing.share(run_dir, out=out)
            finished, advice = shared.copy, shared.summary
        else:
            finished = write.report(run_dir)
    with after_decision():
        if as_json:
            sys.stdout.write(finished.text)
        else:
            show(summary_lines, finished.report, finished.paths)
            if advice:
                typer.echo(advice)
    raise typer.Exit(finished.report.exits_with)

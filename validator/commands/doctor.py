"""`validator doctor`: which bundled runbooks this machine can run, and what works on the nodes of one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from validator.commands.common import AsJson, Overrides, answer, complete_runbook, example, reported


@example("validator doctor")
def command(
    runbook: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUNBOOK]", help="Look at the nodes of its `cluster` too.", autocompletion=complete_runbook
        ),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder that would receive run folders.")] = Path("reports"),
    set_: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Say which bundled runbooks this machine can run, and what to install."""
    from validator.pipeline.doctor import cluster_of, examination_lines, examine

    with reported(as_json=as_json):
        cluster = cluster_of(runbook, overrides=tuple(set_ or ())) if runbook else None
        examination = examine(reports=out, cluster=cluster, runbook=runbook or "")
    answer(examination.as_dict, examination_lines, examination, as_json=as_json)
    raise typer.Exit(examination.exit_code)

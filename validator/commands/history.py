"""`validator history`: past runs and their trends."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from validator.commands.common import AsJson, answer, example, fail, reported


@example("validator history", "validator history reports --runbook smoke-cpu --limit 30", "validator history --pin RUN")
def command(
    reports: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the run folders.")] = Path("reports"),
    runbook: Annotated[str | None, typer.Option(metavar="NAME", help="Only runs of this runbook.")] = None,
    node: Annotated[str | None, typer.Option(metavar="NAME", help="How this node of a cluster did.")] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Runs to list of each runbook and machine.")] = 10,
    pin: Annotated[
        str | None, typer.Option(metavar="RUN", help="Keep this run folder whatever retention says, and end.")
    ] = None,
    unpin: Annotated[str | None, typer.Option(metavar="RUN", help="Take the pin away, and end.")] = None,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Read every run folder again.")] = False,
    as_json: AsJson = False,
) -> None:
    """List past runs by runbook and machine, and how their metrics changed, and write index.html."""
    from validator.history.page import history_lines, node_lines
    from validator.history.store import look_back, set_pin

    if pin and unpin:
        raise fail("--pin and --unpin cannot be given together", as_json=as_json)
    with reported(as_json=as_json):
        if pin or unpin:
            set_pin(reports, pin or unpin or "", keep=pin is not None)
            return
        past = look_back(reports, runbook=runbook, rebuild=rebuild)
    if node is not None:
        entries = sorted((entry for group in past.groups for entry in group.entries), key=lambda entry: entry.started)
        answer(past.as_dict, partial(node_lines, limit=limit), entries, node, as_json=as_json)
        return
    answer(past.as_dict, partial(history_lines, limit=limit), past.groups, as_json=as_json)
    if past.page is not None and not as_json:
        typer.echo(f"\n{past.page}", err=True)

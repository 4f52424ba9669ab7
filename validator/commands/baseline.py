"""`validator baseline`: bounds for a runbook from good runs."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import typer

from validator.commands.common import AsJson, example, fail, print_json, reported


@example(
    "validator baseline reports/MON reports/TUE --out mine.yaml", "validator baseline reports/MON --edit mine.yaml"
)
def command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders that ended GO, of one runbook.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="New runbook, from the runs' own; stdout if left out.")
    ] = None,
    edit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Runbook that receives the bounds; all else in it stays.")
    ] = None,
    phase: Annotated[list[str] | None, typer.Option(metavar="PHASE", help="Bounds for this phase alone.")] = None,
    margin: Annotated[float, typer.Option(metavar="PERCENT", min=0, max=50, help="Ease each bound by this.")] = 2.0,
    allow_not_go: Annotated[
        bool, typer.Option("--allow-not-go", help="Use runs that are not GO, had --set, or have findings, as well.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite --out if it exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a runbook whose bounds come from good runs, each with a comment that says which runs and how."""
    from validator.pipeline.baseline import make_baseline

    if out is not None and edit is not None:
        raise fail("--out writes a new runbook and --edit changes one; give one of them", as_json=as_json)
    if out is not None and out.exists() and not force:
        raise fail(f"{out} exists; choose another --out, or pass --force", as_json=as_json)
    with reported(as_json=as_json):
        made = make_baseline(
            runs,
            runbook=edit,
            out=out or edit,
            margin=margin / 100,
            allow_not_go=allow_not_go,
            phases=tuple(phase or ()),
        )
    if as_json:
        bounds = [dataclasses.asdict(one) for one in made.bounds]
        print_json({"bounds": bounds, "runs": made.runs, "text": made.text, "notes": made.notes})
        return
    for note in made.notes:
        typer.echo(f"Note    {note}", err=out is None and edit is None)
    if out is None and edit is None:
        sys.stdout.write(made.text)
        return
    for one in made.bounds:
        typer.echo(f"{one.phase}: {one.expr} {one.unit}  ({one.why})")
    typer.echo(f"Written {out or edit}, for {made.machine}")
    typer.echo(f"Next    validator run {out or edit}")

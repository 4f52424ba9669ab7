"""Commands that set results against each other, or make them the measure of further ones: compare, baseline."""

from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path
from typing import Annotated

import typer

from validator.commands.common import GO, INCONCLUSIVE, NO_GO, USAGE, AsJson, example, fail, print_json, reported

__all__ = ["baseline", "compare"]

_EXIT_CODES = {
    "better": GO,
    "no_difference": GO,
    "not_worse": GO,
    "worse": NO_GO,
    "not_decidable": INCONCLUSIVE,
}


@example("validator compare reports/MONDAY reports/TUESDAY", "validator compare out/a out/b --not-worse-than 5%")
def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="The accepted side: a run folder, or a trainer's folder.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The side that is judged, of the same kind.")],
    warmup_steps: Annotated[
        int, typer.Option(metavar="N", help="Steps of trainers' folders that never count as steady.")
    ] = 20,
    not_worse_than: Annotated[
        str | None, typer.Option(metavar="PERCENT", help="Ask only whether B is worse by less than this, such as 5%.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Set one run against another: settings, metrics with intervals, criteria and findings.

    Exit code 0: B is better, or equal within the minimum effect; with --not-worse-than, worse by less than that.
    1: B is worse. 3: not decidable with these repeats.
    """
    from validator import workflow

    margin = None if not_worse_than is None else _share(not_worse_than, as_json=as_json)
    with reported(as_json=as_json):
        contrast = workflow.compare(a, b, warmup_steps=warmup_steps, not_worse_than=margin)
    if as_json:
        print_json(contrast.model_dump(mode="json"))
    else:
        from validator.report import terminal

        terminal.print_contrast(contrast)
    raise typer.Exit(_EXIT_CODES[contrast.verdict])


def _share(text: str, *, as_json: bool) -> float:
    """`5%`, `5 %` or `5` as 0.05."""
    try:
        share = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        share = math.nan
    if not 0 < share < 1:
        message = f"--not-worse-than is {text!r}, which is no percentage between 0 and 100; write --not-worse-than 5%"
        raise fail(message, USAGE, as_json=as_json)
    return share


@example(
    "validator baseline reports/MON reports/TUE --out mine.yaml", "validator baseline reports/MON --edit mine.yaml"
)
def baseline(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders that ended GO, of one runbook.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="New runbook, from the runs' own; stdout if left out.")
    ] = None,
    edit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Runbook that receives the bounds; all else in it stays.")
    ] = None,
    phase: Annotated[list[str] | None, typer.Option(metavar="PHASE", help="Bounds for this phase alone.")] = None,
    margin: Annotated[float, typer.Option(metavar="PERCENT", min=0, max=50, help="Ease each bound by this.")] = 2.0,
    allow_not_go: Annotated[bool, typer.Option("--allow-not-go", help="Use runs that did not end GO as well.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite --out if it exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a runbook whose bounds come from good runs, each with a comment that says which runs and how."""
    from validator import workflow

    if out is not None and edit is not None:
        raise fail("--out writes a new runbook and --edit changes one; give one of them", USAGE, as_json=as_json)
    if out is not None and out.exists() and not force:
        raise fail(f"{out} exists; choose another --out, or pass --force", USAGE, as_json=as_json)
    with reported(as_json=as_json):
        made = workflow.baseline(
            runs,
            runbook=edit,
            out=out or edit,
            margin=margin / 100,
            allow_not_go=allow_not_go,
            phases=tuple(phase or ()),
        )
    if as_json:
        print_json({"bounds": [dataclasses.asdict(one) for one in made.bounds], "runs": made.runs, "text": made.text})
        return
    if out is None and edit is None:
        sys.stdout.write(made.text)
        return
    for one in made.bounds:
        typer.echo(f"{one.phase}: {one.expr} {one.unit}  ({one.why})")
    typer.echo(f"Written {out or edit}, for {made.machine}")
    typer.echo(f"Next    validator run {out or edit}")

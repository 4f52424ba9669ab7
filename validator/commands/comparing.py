"""Commands that set results against each other: compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from validator.commands.common import GO, INCONCLUSIVE, NO_GO, AsJson, example, print_json, reported

__all__ = ["compare"]

_EXIT_CODES = {"better": GO, "no_difference": GO, "worse": NO_GO, "not_decidable": INCONCLUSIVE}


@example("validator compare reports/MONDAY reports/TUESDAY", "validator compare out/fast out/slow --json")
def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="The accepted side: a run folder, or a trainer's folder.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The side that is judged, of the same kind.")],
    warmup_steps: Annotated[
        int, typer.Option(metavar="N", help="Steps of trainers' folders that never count as steady.")
    ] = 20,
    as_json: AsJson = False,
) -> None:
    """Set one run against another: settings, metrics with intervals, criteria and findings.

    Exit code 0: B is better, or not significantly different. 1: B is worse. 3: not decidable with these repeats.
    """
    from validator import workflow

    with reported(as_json=as_json):
        contrast = workflow.compare(a, b, warmup_steps=warmup_steps)
    if as_json:
        print_json(contrast.model_dump(mode="json"))
    else:
        from validator.report import terminal

        terminal.print_contrast(contrast)
    raise typer.Exit(_EXIT_CODES[contrast.verdict])

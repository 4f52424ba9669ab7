"""`validator inspect`: one trainer folder or log, measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from validator.commands.common import AsJson, answer, example, fail, reported
from validator.errors import ExitCode


@example("validator inspect reports/RUN/runs/baseline/r1")
def command(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A folder that a trainer wrote, or one log of it.")],
    stdout: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="How its log is read: 'step {step} loss {loss} tok/s {toks_per_s}'."),
    ] = None,
    reader: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A reader that knows it: hf-trainer; repeatable."),
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
    from validator.pipeline.inspect import inspect
    from validator.report.terminal.summary import inspection_lines

    given = [name for name, one in (("--stdout", stdout), ("--reader", reader), ("--runbook", runbook)) if one]
    if len(given) > 1:
        raise fail(f"{' and '.join(given)} all say how it is read; give one of them", as_json=as_json)
    with reported(as_json=as_json):
        inspection = inspect(path, warmup_steps=warmup_steps, stdout=stdout, runbook=runbook, readers=reader or ())
    shown = (inspection.directory, inspection.run, inspection.findings, inspection.printed)
    answer(inspection.as_dict, inspection_lines, *shown, as_json=as_json)
    raise typer.Exit(ExitCode.GO if inspection.trusted else ExitCode.NO_GO)

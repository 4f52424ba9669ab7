"""`validator compare`: two validations, or two runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from validator.commands.common import AsJson, answer, example, fail, reported
from validator.errors import ExitCode

_EXIT_CODES = {
    "better": ExitCode.GO,
    "no_difference": ExitCode.GO,
    "not_worse": ExitCode.GO,
    "worse": ExitCode.NO_GO,
    "not_decidable": ExitCode.INCONCLUSIVE,
}


@example("validator compare reports/MONDAY reports/TUESDAY", "validator compare out/a out/b --not-worse-than 5%")
def command(
    a: Annotated[
        Path, typer.Argument(metavar="A", help="The accepted side: a run folder, or a trainer's folder or log.")
    ],
    b: Annotated[Path, typer.Argument(metavar="B", help="The side that is judged, of the same kind.")],
    warmup_steps: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Steps of trainers' folders that never count as steady; default is the runbook's, else 20.",
        ),
    ] = None,
    stdout: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="How trainers' logs are read: 'step {step} loss {loss}'."),
    ] = None,
    not_worse_than: Annotated[
        str | None, typer.Option(metavar="PERCENT", help="Ask only whether B is worse by less than this, such as 5%.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare one run with another: settings, metrics with intervals, criteria and findings.

    Exit code 0: B is better, or equal within the minimum effect; with --not-worse-than, worse by less than that.
    1: B is worse. 3: inconclusive with these repeats.
    """
    from validator.pipeline.inspect import compare
    from validator.report.contrast import contrast_lines

    margin = None if not_worse_than is None else _share(not_worse_than, as_json=as_json)
    with reported(as_json=as_json):
        contrast = compare(a, b, warmup_steps=warmup_steps, not_worse_than=margin, stdout=stdout)
    answer(lambda: contrast.model_dump(mode="json"), contrast_lines, contrast, as_json=as_json)
    raise typer.Exit(_EXIT_CODES[contrast.verdict])


def _share(text: str, *, as_json: bool) -> float:
    """`5%`, `5 %` or `5` as 0.05."""
    try:
        share = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        share = math.nan
    if not 0 < share < 1:
        message = f"--not-worse-than is {text!r}, which is no percentage between 0 and 100; write --not-worse-than 5%"
        raise fail(message, as_json=as_json)
    return share

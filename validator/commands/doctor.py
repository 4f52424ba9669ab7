"""`validator doctor`: which bundled runbooks this machine can run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from validator.commands.common import AsJson, answer, example


@example("validator doctor")
def command(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder that would receive run folders.")] = Path("reports"),
    as_json: AsJson = False,
) -> None:
    """Say which bundled runbooks this machine can run, and what to install."""
    from validator.pipeline.doctor import examination_lines, examine

    examination = examine(reports=out)
    answer(examination.as_dict, examination_lines, examination, as_json=as_json)
    raise typer.Exit(examination.exit_code)

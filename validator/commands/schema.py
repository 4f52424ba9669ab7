"""`validator schema`: the runbook format, for editors and for people."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from validator.commands.common import example, print_json, reported


@example("validator schema > runbook.schema.json")
def command(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the reference for people instead.")] = False,
) -> None:
    """Print the JSON Schema of runbooks, for editors."""
    from validator.kinds.registry import json_schema, reference_markdown

    with reported():
        if markdown:
            sys.stdout.write(reference_markdown())
        else:
            print_json(json_schema())

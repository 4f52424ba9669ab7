"""`validator list`: the bundled runbooks."""

from __future__ import annotations

import dataclasses

from validator.commands.common import AsJson, example, print_json


@example("validator list")
def command(as_json: AsJson = False) -> None:
    """List the bundled runbooks."""
    from validator.runbook import available

    found = available()
    if as_json:
        print_json([dataclasses.asdict(info) for info in found])
    else:
        from validator.report.terminal import lines, tables

        lines.show(tables.runbook_lines, found)

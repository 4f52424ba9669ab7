"""`validator list`: the bundled runbooks."""

from __future__ import annotations

import dataclasses

from validator.commands.common import AsJson, example, print_json
from validator.report.terminal.lines import show
from validator.report.terminal.summary import runbook_lines
from validator.runbook import available


@example("validator list")
def command(as_json: AsJson = False) -> None:
    """List the bundled runbooks."""
    found = available()
    if as_json:
        print_json([dataclasses.asdict(info) for info in found])
    else:
        show(runbook_lines, found)

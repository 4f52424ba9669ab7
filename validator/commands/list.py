"""`validator list`: the bundled runbooks."""

from __future__ import annotations

import dataclasses

from validator.commands.common import AsJson, answer, example


@example("validator list")
def command(as_json: AsJson = False) -> None:
    """List the bundled runbooks."""
    from validator.report.terminal.summary import runbook_lines
    from validator.runbook import available

    found = available()
    answer(lambda: [dataclasses.asdict(info) for info in found], runbook_lines, found, as_json=as_json)

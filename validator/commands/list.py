"""`validator list`: the bundled runbooks."""

from __future__ import annotations

from validator.commands.common import AsJson, answer, example


@example("validator list")
def command(as_json: AsJson = False) -> None:
    """List the bundled runbooks."""
    from validator.report.terminal.planned import runbook_lines
    from validator.runbook import available
    from validator.system.packages import no_bundled_trainer

    found = available()
    absent = no_bundled_trainer() if any(info.bundled_trainer for info in found) else None
    answer(
        lambda: [{**info._asdict(), "missing": absent if info.bundled_trainer else None} for info in found],
        runbook_lines,
        found,
        absent,
        as_json=as_json,
    )

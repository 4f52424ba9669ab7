"""`validator list`: the bundled runbooks."""

from __future__ import annotations

import dataclasses

from validator.commands.common import AsJson, example, print_json


@example("validator list")
def command(as_json: AsJson = False) -> None:
    """List the bundled runbooks."""
    from validator.runbook import available
    from validator.system.packages import no_bundled_trainer

    found = available()
    absent = no_bundled_trainer() if any(info.bundled_trainer for info in found) else None
    if as_json:
        missing = {info.name: absent if info.bundled_trainer else None for info in found}
        print_json([{**dataclasses.asdict(info), "missing": missing[info.name]} for info in found])
    else:
        from validator.report.terminal import lines, tables

        lines.show(tables.runbook_lines, found, absent)

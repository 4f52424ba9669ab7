"""`recommended.env`: the settings that the validation chose, to be sourced by a shell."""

from __future__ import annotations

import re
import shlex

from validator.model.verdict import ValidationReport
from validator.report.formats import one_line

__all__ = ["export_lines", "render_recommended_env"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def export_lines(env: dict[str, str]) -> tuple[str, ...]:
    """`export NAME=value` for each setting, quoted for a POSIX shell, in the order given.

    A name that no shell accepts is left out: it could only come from a damaged result.json.
    """
    return tuple(
        f"export {name}={shlex.quote(value.replace(chr(0), ''))}"
        for name, value in env.items()
        if _NAME.fullmatch(name)
    )


def render_recommended_env(report: ValidationReport) -> str:
    """The file's text: what it comes from, why each setting was chosen, and the exports."""
    recommended = report.recommended
    comments = [
        f"Recommended settings of validation {report.run_id}, runbook {report.runbook.name}.",
        f"Decision: {report.decision.replace('_', '-')}. {report.why}",
        "Use it with: . ./recommended.env",
        *recommended.because,
    ]
    if recommended.command:
        comments.append(f"Command: {recommended.command}")
    if not recommended.env:
        comments.append("No setting was chosen over another in this run.")
    lines = [f"# {one_line(comment)}" for comment in comments]
    return "\n".join([*lines, *export_lines(recommended.env)]) + "\n"

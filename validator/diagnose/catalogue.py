"""The table of all findings for people, which ends docs/findings.md."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from validator.diagnose.table import PHASE_RULES, RUN_RULES, VALIDATION_RULES
from validator.model.findings import ANSWERS

__all__ = ["findings_table"]

_EFFECT = {"veto": "no GO", "warning": "none", "info": "none"}
_ORDER = ("veto", "warning", "info")


def findings_table() -> str:
    """Every code with its severity, its effect on the decision, the runbook fields that answer it, and its causes."""
    rules: dict[str, list[tuple[str, str, str]]] = {}
    for place, group in (("a run", RUN_RULES), ("a phase", PHASE_RULES), ("several runs", VALIDATION_RULES)):
        for rule in group:
            rules.setdefault(rule.code, []).append((rule.severity, place, _meaning(rule.look)))
    rows = ["| code | severity, at most | effect on the decision | answered by | cause |", "|---|---|---|---|---|"]
    for code in sorted(rules):
        severity = min((one[0] for one in rules[code]), key=_ORDER.index)
        answers = ", ".join(filter(None, (ANSWERS[code], "`accept_findings`" if severity != "info" else "")))
        causes = " · ".join(dict.fromkeys(f"{meaning} ({place})" for _, place, meaning in rules[code]))
        rows.append(f"| `{code}` | {severity} | {_EFFECT[severity]} | {answers or '–'} | {causes} |")
    return "\n".join(rows) + "\n"


def _meaning(look: Callable[..., object]) -> str:
    """First paragraph of a rule's docstring, on one line."""
    return " ".join((inspect.getdoc(look) or "").split("\n\n")[0].split()).rstrip(".").replace("|", "\\|")


if __name__ == "__main__":
    print(findings_table(), end="")  # noqa: T201 - its purpose

"""The list of all findings for people: docs/findings.md."""

from __future__ import annotations

import inspect

from validator.diagnose.table import PHASE_RULES, RUN_RULES, VALIDATION_RULES

__all__ = ["findings_markdown"]

_HEAD = """# Findings

<!-- Generated from the rules in validator/diagnose; `python -m validator.diagnose.catalogue` prints it. -->

A finding names a cause that the evidence shows, how sure that is, and the next step. It stands in `result.json`, in the
report, and in what `validator inspect` prints. A **veto** forbids GO whatever the criteria say; where the decision does
not rest on what it is about (a phase with `required: false`, an arm that is not recommended) it becomes a warning. A
**warning** wants attention, an **info** says what is not known or should not be read into a figure. A rule may speak
below the severity given here when its evidence is weaker.

| code | at most | seen in | cause |
|---|---|---|---|
"""


def findings_markdown() -> str:
    """The page that documents every code."""
    rows = [
        (rule.code, rule.severity, place, _meaning(rule.look))
        for place, rules in (("a run", RUN_RULES), ("a phase", PHASE_RULES), ("several runs", VALIDATION_RULES))
        for rule in rules
    ]
    lines = [f"| `{code}` | {severity} | {place} | {meaning} |" for code, severity, place, meaning in sorted(rows)]
    return _HEAD + "\n".join(lines) + "\n"


def _meaning(look: object) -> str:
    """First paragraph of a rule's docstring, on one line."""
    return " ".join((inspect.getdoc(look) or "").split("\n\n")[0].split()).replace("|", "\\|")


if __name__ == "__main__":
    print(findings_markdown(), end="")  # noqa: T201 - its purpose

"""What went wrong, as GitHub Actions shows it in a job's log and beside the lines of a runbook.

Such a line is a command to the runner: `::error file=a.yaml,line=3,col=5,title=…::message`. Everything in it is
escaped, so that no text of a trainer or of a runbook ends it or begins another.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from validator.runbook.document import YamlNode, mark_at, node_at, parse
from validator.runbook.problems import Mark, Problem
from validator.text import clean, one_line

if TYPE_CHECKING:
    from validator.model.verdict import Status, ValidationReport

LIMIT = 10
"""Annotations of each level that GitHub shows of a step."""

Level = Literal["error", "warning"]


class Annotation(NamedTuple):
    """One line: how bad, what it is called, what is wrong, and where, as far as that is known."""

    level: Level
    title: str
    message: str
    mark: Mark | None = None


def annotation_lines(
    annotations: Iterable[Annotation], environment: Mapping[str, str], *, cwd: str | None = None
) -> Iterator[str]:
    """The lines to print, of each level the first `LIMIT`; the last says how many more there are.

    `cwd` is where paths begin, by default the working directory; the runner wants them from its workspace on.
    """
    every = list(annotations)
    for level in ("error", "warning"):
        found = [one for one in every if one.level == level]
        more = len(found) - LIMIT
        for number, one in enumerate(found[:LIMIT], start=1):
            tail = f" (and {more} more)" if more > 0 and number == LIMIT else ""
            yield _line(one._replace(message=one.message + tail), environment, cwd)


def _line(one: Annotation, environment: Mapping[str, str], cwd: str | None) -> str:
    properties = {"title": one_line(one.title, limit=200)}
    file = None if one.mark is None else _in_workspace(one.mark.file, environment, cwd)
    if one.mark is not None and file is not None:
        place = {"file": file, "line": one.mark.line, "col": one.mark.column}
        properties = {**{name: str(value) for name, value in place.items() if value is not None}, **properties}
    written = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{one.level} {written}::{_escaped(clean(one.message))}"


def _in_workspace(file: str, environment: Mapping[str, str], cwd: str | None) -> str | None:
    """A file's path below the job's workspace; None where it is outside, or is no file (`--set KEY=VALUE`)."""
    if file.startswith("--"):
        return None
    workspace = environment.get("GITHUB_WORKSPACE")
    if not workspace:
        return file
    path = os.path.relpath(os.path.realpath(Path(cwd or Path.cwd()) / file), os.path.realpath(workspace))
    return None if path == ".." or path.startswith("../") else path


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """A value in front of the message: it may hold neither of the separators."""
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")


def of_problems(problems: Iterable[Problem], level: Level) -> Iterator[Annotation]:
    """Mistakes of a runbook, each at its place."""
    for one in problems:
        message = f"{one.message}\nfix: {one.fix}" if one.fix else one.message
        yield Annotation(level, "runbook", message, Mark(one.file, one.line, one.column))


_LEVELS: dict[Status, Level] = {"FAIL": "error", "INCONCLUSIVE": "warning", "SKIPPED": "warning", "NOT_RUN": "warning"}


def of_report(report: ValidationReport, text: str, *, file: str) -> Iterator[Annotation]:
    """What kept a decision from being GO: required criteria and checks that did not pass, and vetoes.

    Args:
        text: of the runbook, in which each criterion is looked up.
        file: what the runbook is called.
    """
    root, _ = parse(text, file=file)
    for phase in report.phases:
        for item in phase.judged if phase.required else ():
            level = _LEVELS.get(item.status)
            if level is not None and item.required:
                what = getattr(item, "text", None) or getattr(item, "title", "")
                message = f"{what}: {item.status.replace('_', ' ')}. {item.message}".rstrip()
                yield Annotation(level, item.id, message, _place(root, file, phase.id, item.id))
    for finding in report.findings:
        if finding.severity == "veto":
            message = f"{finding.message}\nnext step: {finding.next_step}"
            yield Annotation("error", f"veto {finding.code}", message, _place(root, file, finding.phase, ""))


def _place(root: YamlNode | None, file: str, phase: str | None, id: str) -> Mark:
    """The line of a criterion, `PHASE.NUMBER`; of any other the phase's, of the whole validation the first."""
    phases = None if root is None else node_at(root, ("phases",))
    listed: Sequence[YamlNode] = phases.value if phases is not None and isinstance(phases.value, list) else ()
    for index, node in enumerate(listed):
        named = node_at(node, ("id",))
        if root is None or named is None or named.value != phase:
            continue
        number = re.fullmatch(r"[1-9][0-9]{0,5}", id.removeprefix(f"{phase}."))
        criterion = ("phases", index, "accept", int(number[0]) - 1) if number else ()
        if criterion and node_at(root, criterion) is not None:
            return mark_at(root, criterion)
        return named.mark
    return Mark(file, 1)

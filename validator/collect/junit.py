"""JUnit XML as pytest writes it: how many tests passed, and the names of those that did not.

A test that was begun and not ended has an entry without a name, and those after it have none: that they were to be run
only the log tells.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from validator.collect.intake import Intake, printable, read_small
from validator.files import open_file
from validator.model.measure import ScalarValue

__all__ = ["read_junit", "tests_to_run"]

_LISTED = 500
_HEAD_BYTES = 1 << 20
_COLLECTED = re.compile(rb"^(?:collecting \.\.\. ?)?collected (?P<every>\d{1,9}) items?(?P<rest>[^\n]*)$", re.M)
_COUNT = re.compile(rb" (?P<count>\d{1,9}) (?P<what>selected|skipped)\b")
_COLOR = re.compile(rb"\x1b\[[0-9;]*[A-Za-z]")


def tests_to_run(log: Path) -> int | None:
    """How many entries pytest meant to make, by what it printed at the start; None where it did not say (`-q`).

    A file that is skipped as a whole is none of the collected items and has an entry all the same.
    """
    try:
        with open_file(log) as file:
            head = _COLOR.sub(b"", file.read(_HEAD_BYTES)).replace(b"\r", b"\n")
    except OSError:
        return None
    found = _COLLECTED.search(head)
    if found is None:
        return None
    counts = {one["what"]: int(one["count"]) for one in _COUNT.finditer(found["rest"])}
    return counts.get(b"selected", int(found["every"])) + counts.get(b"skipped", 0)


def read_junit(path: Path, intake: Intake) -> tuple[dict[str, ScalarValue], dict[str, Any]] | None:
    """Counts as `tests.*` scalars, and `{failed, errors, skipped}` as lists of `{name, message}`.

    Cases are counted one by one rather than taken from the suite's attributes, so that a file with a wrong summary
    cannot pass. A document type is refused, since it can make a parser expand without bound.
    """
    read = read_small(path, intake, what="the test report")
    if read is None:
        return None
    data, source = read
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        intake.note("not-junit", "the test report declares a document type and was not read", path)
        return None
    try:
        root = ET.fromstring(data)
    except (ET.ParseError, ValueError, LookupError) as error:
        intake.note("not-junit", f"the test report is not XML: {error}", path)
        return None
    counts = {"passed": 0, "failed": 0, "errors": 0, "skipped": 0}
    named: dict[str, Any] = {"failed": [], "errors": [], "skipped": []}
    for case in root.iter("testcase"):
        if not (case.get("name") or case.get("classname")):
            continue
        kind, message = _verdict(case)
        counts[kind] += 1
        if kind != "passed" and len(named[kind]) < _LISTED:
            name = "::".join(part for part in (case.get("classname"), case.get("name")) if part)
            named[kind].append({"name": printable(name), "message": printable(message)})
    counts["total"] = sum(counts.values())
    scalars = {
        f"tests.{name}": ScalarValue(value=float(count), unit="tests", source=source.path)
        for name, count in counts.items()
    }
    return scalars, named


def _verdict(case: ET.Element) -> tuple[str, str]:
    for tag, kind in (("error", "errors"), ("failure", "failed"), ("skipped", "skipped")):
        child = case.find(tag)
        if child is not None:
            return kind, child.get("message") or (child.text or "").strip()
    return "passed", ""

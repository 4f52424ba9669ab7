"""The ticket of a single machine that fails: the text for its provider."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from validator.model.schemas import reported
from validator.model.verdict import Check, PhaseReport, ValidationReport, Verdict
from validator.text import format_value, one_line

_OWN_AFFAIRS = ("git", "package_", "torch_cuda", "load", "disk", "gpu_processes")
"""Checks, by the beginning of their ids, that are about what the user brought."""

_OWN_CAUSES = ("busy-gpu", "path-through-host")
"""Findings that may be the user's own doing."""

_GPU = re.compile(r"GPU (\d+)")


def machine_ticket(report: ValidationReport) -> str:
    """What a provider needs to find the fault of a machine: what failed, with bounds and commands, and the cards.

    Of required criteria and checks of phases that measure the machine; empty where none failed, and on a cluster.
    """
    failed = [(phase, one) for phase in report.phases for one in _failed(phase)] if report.fleet is None else []
    if not failed:
        return ""
    environment = report.environment
    driver = environment.get("gpu_driver")
    version = driver.get("driver") if isinstance(driver, Mapping) else None
    facts = (
        f"Host {environment.get('host', 'unknown')}",
        str(environment.get("system", "")),
        f"driver {version}" if version else "",
        f"measured {report.started}",
    )
    head = f"This machine does not pass its acceptance (validation {report.run_id})\n\n"
    lines = [head + one_line(", ".join(filter(None, facts))) + "\n"]
    lines += [_of_failure(number, phase, one, report) for number, (phase, one) in enumerate(failed, start=1)]
    lines += recognized_causes(report)
    named = {int(index) for _, one in failed for index in _GPU.findall(_texts(one))}
    cards = [text for index in sorted(named) if (text := _of_card(environment.get("gpus"), index))]
    lines += ["Cards that are named above\n" + "\n".join(cards) + "\n"] if cards else []
    return "\n".join(lines)


def recognized_causes(report: ValidationReport) -> list[str]:
    """The causes that were found in phases that measure the machine and failed, as the report names them.

    Another program is to be ended first, and a variable of the user's own to be unset.
    """
    phases = {one.id for one in report.phases if one.status == "FAIL" and reported(one.kind).of_machine}
    found = [one for one in report.findings if one.phase in phases and one.severity != "info"]
    lines = [f"  {one_line(one.code)}: {one_line(one.message, limit=1000)}\n" for one in found]
    lines += [f"  Before this is sent: {one_line(one.next_step)}\n" for one in found if one.code in _OWN_CAUSES]
    return ["What was recognized\n" + "".join(lines)] if lines else []


def _failed(phase: PhaseReport) -> Iterator[Verdict | Check]:
    if phase.required and reported(phase.kind).of_machine:
        for one in phase.judged:
            own = isinstance(one, Check) and one.id.startswith(_OWN_AFFAIRS)
            if one.status == "FAIL" and one.required and not own:
                yield one


def _texts(one: Verdict | Check) -> str:
    return " ".join((one.message, *(seen.text for seen in one.evidence)))


def _of_failure(number: int, phase: PhaseReport, one: Verdict | Check, report: ValidationReport) -> str:
    title, bound, unit = (one.title, one.expected, "") if isinstance(one, Check) else (one.text, one.bound, one.unit)
    observed = one.observed
    values = "" if observed is None else f"   observed {format_value(observed, unit)}"
    values += "" if bound is None or not values else f", expected {format_value(bound, unit)}"
    book = report.runbook
    sets = [word for text in book.overrides for word in ("--set", text)]
    command = shlex.join(["validator", "run", book.path, "--only", phase.id, *sets])
    lines = [f"{number}. {phase.title}: {title}", f"   {one.message}", values]
    lines += [f"   source: {seen.text}" for seen in one.evidence if "https://" in seen.text]
    return "\n".join(one_line(line, limit=1000) for line in (*lines, f"   again: {command}") if line.strip()) + "\n"


def _of_card(gpus: Any, index: int) -> str:
    found = gpus.get(f"gpu{index}") if isinstance(gpus, Mapping) else None
    if not isinstance(found, Mapping):
        return ""
    known = (("", "name"), ("UUID ", "uuid"), ("serial number ", "serial"), ("PCI ", "pci_bus_id"), ("VBIOS ", "vbios"))
    parts = (f"{word}{one_line(found[key], limit=60)}" for word, key in known if found.get(key))
    return f"  GPU {index}: {', '.join(parts)}"

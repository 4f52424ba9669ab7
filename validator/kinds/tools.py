"""What the tools say that others have written for GPUs and links, where they are installed.

nccl-tests, nvbandwidth, ib_write_bw and `dcgmi diag`: each runs for a bounded time, and its version is recorded. One
that is not there is said, and fails nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from validator.kinds.base import Found, ImplicitCriterion, JudgedRun, Planner, ProcessKind, Rule, Seen
from validator.model.machine_phases import ToolsPhase
from validator.model.runbook import Runbook
from validator.startup import call_argv
from validator.text import format_number, listed, one_line

if TYPE_CHECKING:
    from pathlib import Path

    from validator.ingest.result_builder import ResultBuilder
    from validator.model.plan import RunSpec

_RECORD = "tools.json"
_TIMEOUT_S = 1200.0

_TOOLS = {
    "nccl_tests": "nccl-tests reduces without a wrong element",
    "nvbandwidth": "nvbandwidth copies between host and devices",
    "ib": "ib_write_bw writes through each InfiniBand adapter",
    "dcgm": "no test of dcgmi diag fails",
}


class ToolRecord(NamedTuple):
    """What one tool said: a text with its version and values, what failed, or why it was `skipped`."""

    text: str
    failed: tuple[str, ...]
    skipped: str | None


class ToolsRecord(NamedTuple):
    """All tools by name."""

    tools: Mapping[str, ToolRecord]
    source: str


class Tools(ProcessKind[ToolsPhase]):
    """One run of all tools, one after the other."""

    schema = ToolsPhase
    relies_on = (_RECORD,)
    asks_unwritten = (("nccl_tests", "nvbandwidth", "ib", "dcgm"), "no test of an installed tool fails")

    def runs(self, phase: ToolsPhase, planner: Planner) -> Iterator[RunSpec]:
        """By validator's own Python, which needs to know no GPU."""
        values = planner.values(phase, "r1")
        words = (str(planner.runbook.hardware.gpus), f"{values['out']}/{_RECORD}")
        argv = (*call_argv("validator.system.gpu_tools", "main"), *words)
        limit_s = None if phase.timeout is not None else _TIMEOUT_S
        yield planner.process(phase, argv, launcher="exec", timeout_s=limit_s, retries=0)

    def read(self, spec: RunSpec, gathered: ResultBuilder, log: Path | None) -> None:
        """Values by their catalogued names, and a table with versions."""
        read = gathered.json_object(gathered.out / _RECORD, what="what the tools said")
        found = None if read is None else read[0].get("tools")
        if read is None or not isinstance(found, Mapping):
            return
        tools = {name: _tool(one) for name in _TOOLS if isinstance(one := found.get(name), Mapping)}
        gathered.evidence.own = ToolsRecord(tools, read[1])
        known = ToolsPhase.known_scalars()
        for name in tools:
            for key, value in _values(found[name]).items():
                if f"{name}.{key}" in known:
                    gathered.add_scalar(f"{name}.{key}", value, read[1])
        rows = ((name, one.text or None, one.skipped) for name, one in tools.items())
        gathered.add_shown_table("Tools of the machine", ("Tool", "Version and values", "Why not"), rows)

    def criteria(self, phase: ToolsPhase, runbook: Runbook) -> Iterator[ImplicitCriterion]:
        """One for each tool, which decides where it ran."""
        for name, text in _TOOLS.items():
            yield ImplicitCriterion(name, text, _ran_well(name), required=_decides(name))


def _values(one: Mapping[str, Any]) -> dict[str, float]:
    found = one.get("values")
    pairs = found.items() if isinstance(found, Mapping) else ()
    return {
        str(key): float(value)
        for key, value in pairs
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e15
    }


def _tool(one: Mapping[str, Any]) -> ToolRecord:
    if one.get("skipped"):
        return ToolRecord("", (), one_line(one["skipped"], limit=300))
    notes, values = one.get("notes"), _values(one)
    failed = tuple(one_line(note, limit=300) for note in notes) if isinstance(notes, list) and one.get("bad") else ()
    shown = [f"{key} {format_number(value)}" for key, value in values.items()]
    return ToolRecord(f"{one_line(one.get('version') or 'unknown', limit=60)}: {', '.join(shown)}", failed, None)


def _decides(name: str) -> Callable[[Sequence[JudgedRun]], bool]:
    def decides(runs: Sequence[JudgedRun]) -> bool:
        records = [record.tools.get(name) for run in runs if (record := run.own(ToolsRecord)) is not None]
        return any(one is not None and one.skipped is None for one in records)

    return decides


def _ran_well(name: str) -> Rule:
    def rule(run: JudgedRun) -> Found:
        record = run.own(ToolsRecord)
        one = None if record is None else record.tools.get(name)
        if record is None or one is None:
            return Found("INCONCLUSIVE", "It left no record; see the run's log.")
        if one.skipped is not None:
            return Found("SKIPPED", f"Not looked at: {one.skipped}.")
        seen = (Seen(f"{name} {one.text}", record.source),)
        if one.failed:
            return Found("FAIL", f"{listed(list(one.failed))}.", float(len(one.failed)), 0, seen)
        return Found("PASS", f"Version {one.text}.", None, None, seen)

    return rule

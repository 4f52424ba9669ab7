"""What a trainer shows of the inside of its steps: the audit of its attention, the trace of its time, its fallbacks.

Everything here is read off the profiler's evidence in `sdpa_audit.json` and `trace/summary.json`; nothing is concluded
from a setting.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping
from typing import Any

from validator.files import is_file
from validator.ingest.accounts import scalar
from validator.ingest.read_log import printable
from validator.ingest.result_builder import ResultBuilder
from validator.model.result import ScalarValue, TraceSummary

ATTENTION_BRANCHES = ("cmp", "sel", "win", "query", "dense", "fused")
"""Branches whose backend an audit is about; `query` and `fused` are kernels that serve several at once."""

_FALLBACKS = "fallback_counters.csv"
UNRECOGNIZED = "unrecognized"
_MOVES = re.compile(r"^Mem(?:set|cpy)\b|\bFillFunctor\b|copy_kernel")
"""Names of kernels that set or copy memory, and so are no attention."""
_PARTS = ("cmp", "sel", "win")
_MAX_DIGITS = 15
_SHARES = ("gpu_busy_share", "exposed_comm_share", "host_bound_share", "comm_share")


def read_instruments(state: ResultBuilder) -> None:
    """The audit, the trace and the fallback counters of a run, as far as they are there."""
    state.evidence.fallbacks = fallbacks = _fallbacks(state)
    if fallbacks is not None:
        state.add_shown_table("Fallbacks since the start", ("Counter", "Calls"), sorted(fallbacks.items()))
    audit = _json(state, "sdpa_audit.json", "attention backends")
    if audit is not None:
        entries = tuple(name for name, entry in audit[0].items() if entry and name != "schema_version")
        state.evidence.audit_entries = entries
        found = _audit_scalars(audit[0], audit[1])
        state.scalars |= found
        _add_audit_table(state, audit[0])
        if "audit.layers" in found:
            source = audit[1] if fallbacks is None else state.read_log.name(state.out / _FALLBACKS)
            state.add_scalar("audit.fallbacks", float(sum((fallbacks or {}).values())), source)
    trace = _json(state, "trace/summary.json", "trace summary")
    if trace is not None:
        ranges = trace[0].get("ranges_seen")
        state.evidence.trace = TraceSummary(tuple(ranges) if isinstance(ranges, dict) else None)
        state.scalars |= _trace_scalars(trace[0], trace[1])
        _add_trace_tables(state, trace[0])


def _json(state: ResultBuilder, name: str, what: str) -> tuple[dict[str, Any], str] | None:
    return state.json_object(state.out / name, what=what) if is_file(state.out / name) else None


def _fallbacks(state: ResultBuilder) -> dict[str, int] | None:
    """Counter to its highest count; None when the file was not written, which by the contract means no fallback."""
    path = state.out / _FALLBACKS
    read = state.small_file(path, what="fallback counters")
    if read is None:
        return None
    counts: dict[str, int] = {}
    try:
        for row in csv.DictReader(io.StringIO(read[0].decode("utf-8", "replace").replace("\0", ""))):
            name, count = printable(str(row.get("counter") or ""), limit=80), str(row.get("count") or "")
            if name and count.isascii() and count.isdigit() and len(count) <= _MAX_DIGITS:
                counts[name] = max(counts.get(name, 0), int(count))
    except csv.Error as error:
        state.read_log.note("garbage-row", f"the fallback counters cannot be read to their end: {error}", path)
    return counts


def _entries(audit: Mapping[str, Any]) -> Iterator[tuple[str, str, str, float, Any]]:
    """Branch, direction, backend, microseconds and layer of each sound entry; those that only set or copy memory are
    left out, for they say nothing of what computes."""
    layers = audit.get("layers")
    for entry in layers if isinstance(layers, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("branch"), str):
            backend = str(entry.get("backend") or "none")
            kernels = entry.get("kernels")
            if backend == "none" and isinstance(kernels, dict) and kernels and all(map(_MOVES.search, kernels)):
                continue
            time_us = entry.get("time_us")
            yield (
                entry["branch"],
                str(entry.get("direction") or "forward"),
                UNRECOGNIZED if backend == "none" else backend,
                float(time_us) if isinstance(time_us, (int, float)) else 0.0,
                entry.get("layer"),
            )


def _audit_scalars(audit: Mapping[str, Any], source: str) -> dict[str, ScalarValue]:
    """The backend of each attention branch; several, joined by ` + `, where layers or directions differ."""
    ran: dict[str, set[str]] = {}
    layers = set()
    for branch, _, backend, _, layer in _entries(audit):
        if branch in ATTENTION_BRANCHES:
            ran.setdefault(branch, set()).add(backend)
            layers.add(str(layer))
    if not ran:
        return {}
    if "fused" in ran:
        for part in _PARTS:
            ran.setdefault(part, set()).update(ran["fused"])
    found = {f"audit.{branch}": " + ".join(sorted(ran[branch])) for branch in _PARTS if branch in ran}
    found["audit.attention"] = " + ".join(sorted(set().union(*ran.values())))
    scalars = {name: ScalarValue(value=text, source=source) for name, text in found.items()}
    return scalars | scalar("audit.layers", float(len(layers)), source)


def _add_audit_table(state: ResultBuilder, audit: Mapping[str, Any]) -> None:
    times: dict[tuple[str, str, str], list[float]] = {}
    for branch, direction, backend, time_us, _ in _entries(audit):
        times.setdefault((branch, direction, backend), []).append(time_us)
    rows = [(*key, len(spent), round(sum(spent) / 1e3, 3)) for key, spent in sorted(times.items())]
    columns = ("Branch", "Direction", "Backend", "Layers", "Time (ms)")
    state.add_shown_table(f"What attention ran in step {audit.get('step', '?')}", columns, rows)


def _trace_scalars(trace: Mapping[str, Any], source: str) -> dict[str, ScalarValue]:
    found: dict[str, ScalarValue] = {}
    for name in _SHARES:
        found |= scalar(f"profile.{name}", _number(trace.get(name)), source)
    wall_ms = _number(trace.get("wall_ms"))
    traced = _count(trace.get("steps"))
    timed = _count(trace.get("timed_steps")) or traced
    if traced:
        found |= scalar("profile.steps", float(traced), source)
    if wall_ms:
        found |= scalar("profile.step_time_ms", wall_ms / timed if timed else None, source)
        for key, name in (("top_kernels", "top_kernel_share"), ("top_operators", "top_operator_share")):
            first = next(iter(_timed(trace.get(key))), None)
            found |= scalar(f"profile.{name}", None if first is None else first[2] / wall_ms, source)
    ranges = trace.get("ranges_seen")
    if isinstance(ranges, dict):
        found |= scalar("profile.ranges", float(len(ranges)), source)
    return found


def _count(value: object) -> int:
    return len(value) if isinstance(value, list) else 0


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _timed(entries: object) -> list[tuple[str, float, float]]:
    """Name, count and milliseconds of the sound entries of a list like `top_kernels`."""
    found = []
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and (time_ms := _number(entry.get("time_ms"))) is not None:
            found.append((str(entry.get("name") or "?"), _number(entry.get("count")) or 0.0, time_ms))
    return found


def _add_trace_tables(state: ResultBuilder, trace: Mapping[str, Any]) -> None:
    wall_ms = _number(trace.get("wall_ms")) or 0.0
    ranges = trace.get("ranges_seen")
    named = [
        {"name": name, **entry}
        for name, entry in (ranges if isinstance(ranges, dict) else {}).items()
        if isinstance(entry, dict)
    ]
    for title, what, entries in (
        ("Kernels that took most of the time", "Kernel", trace.get("top_kernels")),
        ("Operators that took most of the host's time", "Operator", trace.get("top_operators")),
        ("Named ranges", "Range", named),
    ):
        rows = [
            [
                printable(name, limit=120),
                int(count),
                round(time_ms, 3),
                round(100 * time_ms / wall_ms, 1) if wall_ms else None,
            ]
            for name, count, time_ms in _timed(entries)
        ]
        state.add_shown_table(title, (what, "Calls", "Time (ms)", "Share of the traced time (%)"), rows)

"""How long do collectives take by their size?

`nsa/collectives.py` measures with torch's own backend, as a trainer uses it. Time by size is fitted by a latency and a
bandwidth, with intervals. The public bounds of such a machine and the last GO say whether a value is usual.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from validator.kinds.base import Found, ImplicitCriterion, JudgedRun, Planner, Rule, Seen
from validator.kinds.machine import EachDevice, processes_of, where_gpus
from validator.model.bounds import ALL_REDUCE, NO_BOUND, bounds_for, gpu_name
from validator.model.machine_phases import NetworkPhase
from validator.model.network import Curve, FitValue, NetworkRecord, Pair
from validator.model.runbook import Runbook
from validator.text import (
    format_change,
    format_interval,
    format_number,
    format_percent,
    format_size,
    listed,
    plural,
)

if TYPE_CHECKING:
    from pathlib import Path

    from validator.ingest.result_builder import ResultBuilder
    from validator.model.plan import RunSpec
    from validator.model.record import PhaseRecord, ValidationRecord

_RECORD = "collectives.json"
_TIMEOUT_S = 600.0
_UNUSUAL = 0.1
"""Share below the last GO from which a bandwidth is worth a look."""


class Network(EachDevice[NetworkPhase]):
    """One run, one process on each device."""

    schema = NetworkPhase
    looks_back = True
    asks_unwritten = (
        ("collectives", "late", "paths", "collective.all_reduce_bus_gb_s", "usual.NAME"),
        "every answer is right; no rank is late; GPUs that NVLink joins reach each other directly; the all-reduce "
        "reaches its public bound, and each rate the last GO's",
    )

    def runs(self, phase: NetworkPhase, planner: Planner) -> Iterator[RunSpec]:
        """By the trainer's Python, which has torch."""
        gpus, nproc = processes_of(planner.runbook)
        values = planner.values(phase, "r1", nproc=nproc)
        options = ["--device", "cuda" if gpus else "cpu", "--out", f"{values['out']}/{_RECORD}"]
        if phase.max_size is not None:
            options += ["--max-bytes", str(phase.max_size)]
        limit_s = None if phase.timeout is not None else _TIMEOUT_S
        argv = (*planner.probe(nproc, values, "collectives"), *options)
        yield planner.process(phase, argv, launcher="torchrun", nproc=nproc, timeout_s=limit_s, retries=0)

    def read(self, spec: RunSpec, gathered: ResultBuilder, log: Path | None) -> None:
        """Curves with their fits, and a table by size."""
        from validator.ingest.network import read_network  # numpy, which `check` does without

        read = gathered.json_object(gathered.out / _RECORD, what="the record of the collectives")
        if read is None:
            return
        record = read_network(*read)
        gathered.evidence.own = record
        for name, value in _scalars(record).items():
            gathered.add_scalar(f"collective.{name}", value, record.source)
        sizes = sorted({size for curve in record.curves for size in curve.n_bytes})
        columns = ("Size", *(f"{_title(one.name)}, {unit}" for one in record.curves for unit in ("us", "bus GB/s")))
        gathered.add_shown_table("Time of a collective by size", columns, (_row(size, record) for size in sizes))
        gathered.add_shown_table("Latency and bandwidth, t = a + n / B", _FIT_COLUMNS, map(_fit_row, record.curves))
        pairs = (_pair_row(one, record) for one in record.transports.pairs)
        gathered.add_shown_table("Transport of each pair of GPUs", _PAIR_COLUMNS, pairs)

    def criteria(self, phase: NetworkPhase, runbook: Runbook) -> Iterator[ImplicitCriterion]:
        """Right answers decide, and on GPUs that no rank is late: the cores of a CPU are shared with others."""
        gpus, decides = runbook.hardware.gpus, where_gpus(runbook)
        late = f"no rank begins a collective {format_number(1e3 * phase.max_late)} ms after the first"
        yield ImplicitCriterion("collectives", "every answer of a collective is right", _right(gpus))
        yield ImplicitCriterion("late", late, _late(phase.max_late), required=decides)
        if gpus > 1:
            direct = "GPUs that NVLink joins reach each other directly"
            yield ImplicitCriterion("paths", direct, _paths, required=lambda runs: any(map(_path_known, runs)))

    def measured_criteria(self, record: PhaseRecord, validation: ValidationRecord) -> Iterator[ImplicitCriterion]:
        """Whether the all-reduce reaches the public bound of such a machine, which decides, and whether each bandwidth
        is as it was in the last GO, which is worth a look."""
        gpus = validation.runbook.hardware.gpus
        if gpus > 1 and not (record.runs and record.runs[0].spec.groups):
            yield _public(validation.environment, gpus)
        earlier = _earlier(record.phase.id, validation)
        for name, value in earlier.items():
            text = f"{name} >= {format_number((1 - _UNUSUAL) * value)} GB/s, a tenth below the last GO"
            yield ImplicitCriterion(f"usual.{name}", text, _usual(name, value), required=lambda runs: False)


def _scalars(record: NetworkRecord) -> dict[str, float]:
    values: dict[str, float] = {"errors": float(sum(record.wrong.values()))}
    for one in record.curves:
        values[f"{one.name}_bus_gb_s"] = one.bus_gb_s[-1]
        if one.latency_us is not None:
            values[f"{one.name}_latency_us"] = one.latency_us.value
        if one.fit_gb_s is not None:
            values[f"{one.name}_fit_gb_s"] = one.fit_gb_s.value
    if record.latest is not None:
        values["late_ms"] = 1e3 * record.latest[0]
    known = NetworkPhase.known_scalars()
    return {name: value for name, value in values.items() if f"collective.{name}" in known}


_FIT_COLUMNS = (
    "Collective",
    "Largest size",
    "Bus GB/s there",
    "Latency, us",
    "Interval",
    "Fit, bus GB/s",
    "Its interval",
)


def _title(name: str) -> str:
    return name.replace("_", "-")


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _fit_row(one: Curve) -> tuple[str | float | None, ...]:
    def shown(line: FitValue | None) -> tuple[float | None, str | None]:
        return (None, None) if line is None else (_rounded(line.value), format_interval(line.low, line.high))

    largest = format_size(one.n_bytes[-1])
    return (_title(one.name), largest, _rounded(one.bus_gb_s[-1]), *shown(one.latency_us), *shown(one.fit_gb_s))


def _row(size: int, record: NetworkRecord) -> tuple[str | float | None, ...]:
    cells: list[str | float | None] = [format_size(size)]
    for one in record.curves:
        at = one.n_bytes.index(size) if size in one.n_bytes else None
        cells += [None, None] if at is None else [_rounded(1e6 * one.times_s[at]), _rounded(one.bus_gb_s[at])]
    return tuple(cells)


_PAIR_COLUMNS = ("GPUs", "Transport", "Path", "NVLink", "Peer copy, GB/s")
_PATHS = {
    "direct": "from GPU to GPU",
    "host": "through the host's memory",
    "network": "over the network",
    "unknown": "not known",
}


def _pair_row(one: Pair, record: NetworkRecord) -> tuple[str | float | None, ...]:
    names = " and ".join(record.device(rank).partition(" (")[0] for rank in one.ranks)
    linked = None if one.linked is None else "yes" if one.linked else "no"
    copied = None if one.copy_gb_s is None else _rounded(one.copy_gb_s)
    return (names, ", ".join(one.by) or None, _PATHS[one.path], linked, copied)


# What is judged.


def _record(run: JudgedRun) -> NetworkRecord | Found:
    found = run.own(NetworkRecord)
    return found or Found("INCONCLUSIVE", "The collectives left no record; see the run's log.")


def _right(gpus: int) -> Rule:
    def rule(run: JudgedRun) -> Found:
        record = _record(run)
        if isinstance(record, Found):
            return record
        if record.wrong:
            bad = [f"{plural(n, 'wrong element')} sent by {record.device(rank)}" for rank, n in record.wrong.items()]
            message = f"{listed(bad)}: the link or the memory of that device corrupts data."
            return Found("FAIL", message, float(sum(record.wrong.values())), 0, (Seen(message, record.source),))
        if len(record.devices) == 1:
            return Found("PASS", "One GPU: there is nothing to measure between GPUs.", 0, 0)
        if not record.curves:
            return Found("INCONCLUSIVE", f"No collective was measured: {listed(list(record.skipped.values()))}.")
        texts = [f"{_title(one.name)} {format_number(one.bus_gb_s[-1])} GB/s" for one in record.curves]
        where = f"{len(record.devices)} ranks by {record.backend}"
        notes = "".join(f" {name}: {why}." for name, why in record.skipped.items())
        if not gpus:
            notes += " Without GPUs this is this host's memory, not a network."
        evidence = tuple(Seen(one, record.source) for one in record.devices)
        return Found("PASS", f"{where}, at the largest size: {', '.join(texts)}.{notes}", 0, 0, evidence)

    return rule


def _late(limit_s: float) -> Rule:
    def rule(run: JudgedRun) -> Found:
        record = _record(run)
        if isinstance(record, Found):
            return record
        if len(record.devices) == 1:
            return Found("PASS", "One GPU waits for no other.")
        if record.latest is None:
            return Found("INCONCLUSIVE", "The record says nothing of when ranks began.")
        late_s, name, rank = record.latest
        after = f"{format_number(1e3 * late_s)} ms after the first, in the median"
        text = f"{record.device(rank)} begins the {_title(name)} {after}"
        seen = (Seen(text, record.source),)
        if late_s > limit_s:
            message = f"{text}: every collective waits for it. Look for other programs on its cores or its GPU."
            return Found("FAIL", message, 1e3 * late_s, 1e3 * limit_s, seen, "ms")
        return Found("PASS", f"{text}.", 1e3 * late_s, 1e3 * limit_s, seen, "ms")

    return rule


def _path_known(run: JudgedRun) -> bool:
    record = run.own(NetworkRecord)
    return record is not None and (record.transports.known or bool(record.outpaced))


def _paths(run: JudgedRun) -> Found:
    """Whether GPUs that NVLink joins reach each other directly."""
    record = _record(run)
    if isinstance(record, Found):
        return record
    found = record.transports
    if record.forced or record.outpaced:
        return _forced(record, run)
    if not found.known:
        return Found("SKIPPED", f"The transports are not known: NCCL{_version(record)} did not print them as expected.")
    counts = {path: [one for one in found.pairs if one.path == path] for path in _PATHS}
    parts = [f"{plural(len(of), 'pair')} {_PATHS[path]} ({_transports(of)})" for path, of in counts.items() if of]
    parts += [f"between machines {', '.join(found.between)}"] if found.between else []
    seen = tuple(Seen(f"{_pair_name(one, record)}: {', '.join(one.by)}", one.source) for one in found.pairs[:8])
    away = [one for one in found.pairs if one.path in ("host", "network")]
    note = " No NVLink is known to join those that are not direct." if away else ""
    return Found("PASS", f"{'; '.join(parts)}.{note}", evidence=seen)


def _forced(record: NetworkRecord, run: JudgedRun) -> Found:
    """Pairs that could be direct: what NCCL takes instead, what that costs, and why."""
    pairs, found, curve = record.forced or record.outpaced, record.transports, record.all_reduce
    named = listed([_pair_name(one, record) for one in pairs], most=3)
    if record.forced:
        how = f"reach each other {_PATHS[pairs[0].path]} ({_transports(pairs)})"
    else:
        how = "do not use the path between them: NCCL did not print which one it takes"
    copies = [one.copy_gb_s for one in pairs if one.copy_gb_s is not None]
    joined = [f"{_link(record)} joins them"] if any(one.linked for one in pairs) else []
    joined += [f"copies between them reach {format_number(min(copies))} GB/s"] if copies else []
    message = f"{named} {how}, although {' and '.join(joined)}"
    if curve is not None:
        message += f": the all-reduce carries {format_number(curve.bus_gb_s[-1])} GB/s"
    settings = found.forbidding(pairs[0].path)
    why = [f"{name}={value} ({_origin(name, record, run)})" for name, value in settings.items()]
    forbids = "forbids" if len(why) == 1 else "forbid"
    message += f". {listed(why)} {forbids} the direct path." if why else f". {_refusal(record)}"
    seen = tuple(
        Seen(f"{_pair_name(one, record)}: {', '.join(one.by) or 'not known'}", one.source) for one in pairs[:8]
    )
    seen += tuple(Seen(f"NCCL: {line}", pairs[0].source) for line in (*why, *found.refused[:3]))
    observed = None if curve is None else curve.bus_gb_s[-1]
    return Found("FAIL", message, observed, min(copies, default=None), seen, "GB/s")


def _refusal(record: NetworkRecord) -> str:
    refused = record.transports.refused
    return f"NCCL says: {refused[0].rstrip('.')}." if refused else "NCCL does not say why."


def _origin(name: str, record: NetworkRecord, run: JudgedRun) -> str:
    """Who has set a variable."""
    if name in record.transports.configured:
        return "set in NCCL's own file, /etc/nccl.conf or ~/.nccl.conf"
    return "set by the runbook" if name in run.spec.env else "set in the environment"


def _pair_name(one: Pair, record: NetworkRecord) -> str:
    return " and ".join(map(record.device, one.ranks))


def _transports(pairs: Sequence[Pair]) -> str:
    return listed(sorted({name for one in pairs for name in one.by}))


def _link(record: NetworkRecord) -> str:
    return "XGMI" if any("AMD" in one for one in record.devices) else "NVLink"


def _version(record: NetworkRecord) -> str:
    return f" {record.transports.version}" if record.transports.version else ""


_PUBLIC = "collective.all_reduce_bus_gb_s"


def _public(environment: Mapping[str, Any], gpus: int) -> ImplicitCriterion:
    """The bus bandwidth of the all-reduce at its largest size; bounds are of one host."""
    bound = next((one for one in bounds_for(environment, gpus=gpus) if one.name == ALL_REDUCE), None)
    if bound is None:
        said = f"{gpu_name(environment, gpus=gpus) or 'GPUs of several kinds'}: {NO_BOUND}."
        text = f"a public bound of {_PUBLIC}"
        return ImplicitCriterion(
            _PUBLIC, text, lambda run: Found("SKIPPED", said, run.number(_PUBLIC)), required=lambda runs: False
        )

    def rule(run: JudgedRun) -> Found:
        record, value = run.own(NetworkRecord), run.number(_PUBLIC)
        curve = None if record is None else record.all_reduce
        least = None if curve is None else bound.at(curve.n_bytes[-1] / 2**30)
        source = (Seen(f"{bound.basis} ({bound.source})"),)
        if value is None or curve is None or least is None:
            message = "It was not measured with a payload that can be compared."
            return Found("INCONCLUSIVE", message, value, bound.least, source, "GB/s")
        message = (
            f"{format_number(value)} GB/s at {format_size(curve.n_bytes[-1])}, {format_percent(value / least)} of it"
        )
        status: Literal["PASS", "FAIL"] = "PASS" if value >= least else "FAIL"
        message += "." if status == "PASS" else ": look at links, topology and other programs."
        return Found(status, message, value, least, source, "GB/s", value / least - 1)

    text = f"{_PUBLIC} >= {format_number(bound.least)} GB/s"
    return ImplicitCriterion(_PUBLIC, text, rule, required=lambda runs: bound.required)


def _earlier(phase: str, validation: ValidationRecord) -> dict[str, float]:
    """Bandwidths of the same phase in the last GO."""
    if validation.last_go is None:
        return {}
    found = next((one for one in validation.last_go.phases if one.id == phase), None)
    runs = found.runs if found is not None else ()
    return {
        name: float(one.value)
        for run in runs
        for name, one in run.scalars.items()
        if name.endswith("_bus_gb_s") and isinstance(one.value, (int, float))
    }


def _usual(name: str, earlier: float) -> Rule:
    def rule(run: JudgedRun) -> Found:
        value = run.number(name)
        if value is None:
            return Found("INCONCLUSIVE", "It was not measured.", None, (1 - _UNUSUAL) * earlier, (), "GB/s")
        bound, change = (1 - _UNUSUAL) * earlier, value / earlier - 1
        message = f"{format_number(value)} GB/s, {format_change(change)} against the last GO"
        if value >= bound:
            return Found("PASS", f"{message}.", value, bound, (), "GB/s", value / bound - 1)
        return Found("FAIL", f"{message}: look for what changed.", value, bound, (), "GB/s", value / bound - 1)

    return rule

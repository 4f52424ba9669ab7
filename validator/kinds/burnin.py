"""Does every device give right answers, at a steady rate, at full load for a time?

`nsa/burnin.py` loads the devices and writes a line a round. Here wrong answers are given to devices, rates are compared
between devices and over time, and the samples of the machine say how hot it became and whether it throttled.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from validator.documents import number_at
from validator.kinds.base import Found, ImplicitCriterion, JudgedRun, Planner, Rule, Seen
from validator.kinds.machine import EachDevice, processes_of, where_gpus
from validator.model.bounds import NO_BOUND, Bound, cards, gemm_bound
from validator.model.burnin import BurninRecord, Device, RelativeChange
from validator.model.machine_phases import BurninPhase
from validator.model.runbook import Runbook
from validator.stats.distributions import t_quantile
from validator.text import format_number, format_percent, listed, plural

if TYPE_CHECKING:
    from pathlib import Path

    from validator.ingest.result_builder import ResultBuilder
    from validator.model.plan import RunSpec
    from validator.model.record import PhaseRecord, ValidationRecord

_ON_GPU_S, _ON_CPU_S = 120.0, 20.0
_SETUP_S = 300.0
"""Beyond the time under load: start, answers, the last look at memory."""

_THROTTLED = 0.01
"""Share of the samples with a thermal or power slowdown from which the machine is not healthy."""

_SUSTAINED = 0.75
"""Of the public bound of a GPU's matrix products, what it must hold at full load.

The bound is about the best product of a cool card, burn-in about the mean of minutes at its power limit: three H200
held 1.03 to 1.05 of it, and cards with less room below their limit hold less. A program beside it that computes as well
takes half, and left 0.52 on an H200.
"""


class Burnin(EachDevice[BurninPhase]):
    """One run, one process on each device."""

    schema = BurninPhase
    relies_on = ("burnin_rank0.jsonl",)
    looks = True
    asks_unwritten = (
        ("right", "even", "steady", "cool", "rate"),
        "every answer is right; no GPU is slower than the others or three quarters of its public bound, loses speed, "
        "or throttles",
    )

    def runs(self, phase: BurninPhase, planner: Planner) -> Iterator[RunSpec]:
        """One run, by the trainer's Python, which has torch."""
        gpus, nproc = processes_of(planner.runbook)
        seconds = lasts(phase, gpus)
        values = planner.values(phase, "r1", nproc=nproc)
        options = ("--device", "cuda" if gpus else "cpu", "--seconds", f"{seconds:g}", "--out", str(values["out"]))
        argv = (*planner.probe(nproc, values, "burnin"), *options)
        limit_s = None if phase.timeout is not None else seconds * 1.5 + _SETUP_S
        yield planner.process(phase, argv, launcher="torchrun", nproc=nproc, timeout_s=limit_s, retries=0)

    def read(self, spec: RunSpec, gathered: ResultBuilder, log: Path | None) -> None:
        """Devices from what each rank wrote, the machine from its samples."""
        from validator.ingest.burnin import read_burnin  # numpy, which `check` does without

        record = read_burnin(gathered, planned=spec.nproc)
        if record is None:
            return
        gathered.evidence.own, devices = record, record.devices
        for name, value in _scalars(record).items():
            gathered.add_scalar(f"burnin.{name}", value, devices[0].source)
        gathered.add_shown_table("Devices under load", _COLUMNS, (_row(one, record) for one in devices))

    def criteria(self, phase: BurninPhase, runbook: Runbook) -> Iterator[ImplicitCriterion]:
        """Right answers decide everywhere; rates and temperature on GPUs, for cores are shared with others."""
        decides = where_gpus(runbook)
        share = format_percent(phase.max_slower)
        several = runbook.hardware.gpus != 1
        yield ImplicitCriterion(
            "right", "every answer of every device is right", _right(lasts(phase, runbook.hardware.gpus))
        )
        if several:
            yield ImplicitCriterion(
                "even", f"no device is {share} slower than the others", _even(phase), required=decides
            )
        yield ImplicitCriterion("steady", f"no device loses {share} of its rate", _steady(phase), required=decides)
        yield ImplicitCriterion("cool", "no GPU slows itself down for temperature or power", _cool, required=decides)

    def measured_criteria(self, record: PhaseRecord, validation: ValidationRecord) -> Iterator[ImplicitCriterion]:
        """Whether each GPU alone holds what is public of its model: a single one has no other to be compared with."""
        if validation.runbook.hardware.gpus:
            nodes = [(node.node, node.facts) for run in record.runs for node in run.evidence.nodes]
            bounds = _bounds(dict(nodes) or {"": dict(validation.environment)})
            text = f"every GPU holds {format_percent(_SUSTAINED)} of the public bound of its model"
            yield ImplicitCriterion("rate", text, _held(bounds), required=lambda runs: _judges(runs, bounds))


def lasts(phase: BurninPhase, gpus: int) -> float:
    """Seconds under load."""
    return phase.lasts if phase.lasts is not None else _ON_GPU_S if gpus else _ON_CPU_S


# What is shown.

_COLUMNS = (
    *("Device", "Identity", "TFLOP/s", "Against the others", "Last third against the first", "Memory, GB/s"),
    *("Wrong answers", "Hottest, °C", "Mean power, W", "Mean clock, MHz", "Throttled"),
)


def _row(one: Device, record: BurninRecord) -> tuple[str | float | None, ...]:
    slower, sag = record.slower.get(one.rank), record.sag.get(one.rank)
    load = record.loads.get(one.rank)
    rounded = [
        None if value is None else float(f"{value:.4g}")
        for value in (one.rate, one.memory_gb_s, *((load.temperature_c, load.power_w, load.clock_mhz) if load else ()))
    ]
    machine = rounded[2:] if load else [None] * 3
    throttled = None if load is None or load.throttled is None else format_percent(load.throttled)
    changes = (slower.text if slower else None, sag.text if sag else None)
    return (one.label, one.identity or None, rounded[0], *changes, rounded[1], float(one.wrong), *machine, throttled)


def _scalars(record: BurninRecord) -> dict[str, float | None]:
    devices, loads, slowest = record.devices, record.loads.values(), record.slowest
    by_part = {
        part: float(sum(one.errors.get(part, 0) for one in devices)) for part in ("gemm", "memory", "collective")
    }
    slower = None if slowest is None else record.slower.get(slowest.rank)
    known = record.whole or any(by_part.values())
    memory = [one.memory_gb_s for one in devices if one.memory_gb_s is not None]
    load = record.loads.get(slowest.rank) if slowest is not None else None
    return {
        **({f"{part}_errors": count for part, count in by_part.items()} if known else {}),
        "errors": float(sum(by_part.values())) if known else None,
        "tflops": None if slowest is None else slowest.rate,
        "slowest_share": None if slower is None else 1 + slower.effect,
        "sag_pct": min((100 * one.effect for one in record.sag.values()), default=None),
        "memory_gb_s": min(memory, default=None),
        "temperature_c": max((one.temperature_c for one in loads if one.temperature_c is not None), default=None),
        "power_w": min((one.power_w for one in loads if one.power_w is not None), default=None),
        "clock_mhz": None if load is None else load.clock_mhz,
        "throttled_pct": max((100 * one.throttled for one in loads if one.throttled is not None), default=None),
    }


# What is judged.


def _record(run: JudgedRun) -> BurninRecord | Found:
    found = run.own(BurninRecord)
    return found or Found("INCONCLUSIVE", "No device left a record; see the run's log.")


def _evidence(*devices: Device) -> tuple[Seen, ...]:
    return tuple(Seen(f"{one.label}: {one.identity or 'a share of the cores'}", one.source) for one in devices)


def _right(seconds: float) -> Rule:
    def rule(run: JudgedRun) -> Found:
        record = _record(run)
        if isinstance(record, Found):
            return record
        bad = [one for one in record.devices if one.wrong]
        if bad:
            text = "; ".join(f"{one.label}: {plural(one.wrong, 'wrong answer')}, first {one.seen}" for one in bad)
            total = float(sum(one.wrong for one in bad))
            message = f"{text}. Such a device corrupts a training run silently: have it replaced."
            return Found("FAIL", message, total, 0, _evidence(*bad))
        silent = [one.label for one in record.devices if not one.done]
        ranks = len(record.devices)
        if not record.whole:
            who = listed(silent) if silent else f"{record.planned - ranks} of {record.planned} devices"
            return Found("INCONCLUSIVE", f"{who} did not come to the end, so nothing shows that all answers are right.")
        rounds = min(len(one.rates) for one in record.devices)
        done = f"{plural(ranks, 'device')}, {plural(rounds, 'round')} in {seconds:g} s"
        message = f"{done}: every answer is right in every bit."
        return Found("PASS", message, 0, 0, _evidence(*record.devices))

    return rule


def _even(phase: BurninPhase) -> Rule:
    def rule(run: JudgedRun) -> Found:
        record = _record(run)
        if isinstance(record, Found):
            return record
        slowest = record.slowest
        change = None if slowest is None else record.slower.get(slowest.rank)
        if slowest is None or change is None:
            return Found("INCONCLUSIVE", "Too few rounds to compare devices: raise lasts.")
        others = "the other" if len(record.devices) == 2 else "the median of the others"
        text = f"{slowest.label} is the slowest: {change.text} against {others}"
        return _judged(change, phase.max_slower, slowest, text, run)

    return rule


def _steady(phase: BurninPhase) -> Rule:
    def rule(run: JudgedRun) -> Found:
        record = _record(run)
        if isinstance(record, Found):
            return record
        if not record.sag:
            return Found("INCONCLUSIVE", "Too few rounds to compare the end with the start: raise lasts.")
        rank, change = min(record.sag.items(), key=lambda item: item[1].effect)
        device = next(one for one in record.devices if one.rank == rank)
        text = f"{device.label} lost most: {change.text} from the first third of the time to the last"
        load = record.loads.get(device.rank)
        hottest = (
            "" if load is None or load.temperature_c is None else f", {format_number(load.temperature_c)} °C at most"
        )
        return _judged(change, phase.max_slower, device, text + hottest, run)

    return rule


_FIX = "look for other programs on it, its cooling, its power and its clocks"


def _judged(change: RelativeChange, most: float, device: Device, text: str, run: JudgedRun) -> Found:
    evidence, bound = _evidence(device), -100 * most
    observed = 100 * change.effect
    if change.high <= -most:
        return Found("FAIL", f"{text}; {_FIX}.{_beside(run, device)}", observed, bound, evidence, "%")
    if change.effect <= -most:
        return Found("INCONCLUSIVE", f"{text}, which is not sure: raise lasts.", observed, bound, evidence, "%")
    return Found("PASS", f"{text}.", observed, bound, evidence, "%")


def _beside(run: JudgedRun, device: Device) -> str:
    """A sentence, after a space, on the other programs that were seen on the device."""
    seen = [one.text for one in run.evidence.other_programs if device.label.endswith(one.place)]
    return f" Meanwhile {listed(seen)}." if seen else ""


_Bounds = Mapping[tuple[str, "int | None"], tuple[Bound, float]]
"""By node and GPU, the required bound of its matrix products and what it must hold of it."""


def _bounds(machines: Mapping[str, Mapping[str, Any]]) -> _Bounds:
    """By the snapshot of each node. What is to be held follows the power limit: a lowered one is the owner's choice,
    the rate falls with it, and never faster."""
    found: dict[tuple[str, int | None], tuple[Bound, float]] = {}
    for node, card in ((node, card) for node, facts in machines.items() for card in cards(facts)):
        bound, index = gemm_bound(card), card.get("index")
        if bound is not None and isinstance(index, int):
            limits = [number_at(card, name) for name in ("power_limit_w", "power_limit_default_w")]
            share = min(1.0, limits[0] / limits[1]) if limits[0] and limits[1] else 1.0
            found[node, index] = bound, _SUSTAINED * share * bound.least
    return found


def _judges(runs: Sequence[JudgedRun], bounds: _Bounds) -> bool:
    records = [run.own(BurninRecord) for run in runs]
    return any((one.node, one.gpu) in bounds for record in records if record is not None for one in record.devices)


def _held(bounds: _Bounds) -> Rule:
    def rule(run: JudgedRun) -> Found:
        record = _record(run)
        if isinstance(record, Found):
            return record
        known = [one for one in record.devices if (one.node, one.gpu) in bounds and one.rate is not None]
        if not known:
            names = dict.fromkeys(one.identity.partition(",")[0] for one in record.devices if one.identity)
            return Found(
                "SKIPPED",
                f"{listed(list(names)) or 'Devices'}: {NO_BOUND}.",
                None if record.slowest is None else record.slowest.rate,
            )
        found = [_holds(one, *bounds[one.node, one.gpu], run) for one in known]
        worst = min(found, key=lambda one: (("FAIL", "INCONCLUSIVE", "PASS").index(one.status), one.margin or 0.0))
        others = listed([one.label for one in record.devices if (one.node, one.gpu) not in bounds])
        return worst._replace(message=f"{worst.message} {others}: {NO_BOUND}.") if others else worst

    return rule


def _holds(device: Device, bound: Bound, least: float, run: JudgedRun) -> Found:
    """One device: by all parts of the time, else by the interval of their mean."""
    parts, rate = device.blocks, device.rate or 0.0
    error = statistics.stdev(parts) / math.sqrt(len(parts)) if len(parts) > 1 else math.inf
    reach = t_quantile(0.975, len(parts) - 1) * error if len(parts) > 1 else error
    evidence = (*_evidence(device), Seen(f"{bound.basis} ({bound.source})"))
    text = (
        f"{device.label} held {format_number(rate)} TFLOP/s, {format_percent(rate / bound.least)} of its public bound"
    )
    more: Any = (rate, least, evidence, "TFLOP/s", rate / least - 1.0)
    if min(parts) >= least or rate - reach >= least:
        return Found("PASS", f"{text}.", *more)
    if max(parts) < least or rate + reach < least:
        return Found("FAIL", f"{text}; {_FIX}.{_beside(run, device)}", *more)
    return Found("INCONCLUSIVE", f"{text}, which is not sure: raise lasts.{_beside(run, device)}", *more)


def _cool(run: JudgedRun) -> Found:
    record = _record(run)
    if isinstance(record, Found):
        return record
    if not any(one.gpu is not None for one in record.devices):
        return Found("SKIPPED", "No GPU: temperature, clocks, power and throttling are not looked at.")
    labels = {one.rank: one.label for one in record.devices}
    known = {labels[rank]: one for rank, one in record.loads.items() if one.throttled is not None}
    if not known:
        return Found("INCONCLUSIVE", "The driver reports no reasons of its clocks, so throttling is not known.")
    text = "; ".join(
        f"{label}: {format_number(one.temperature_c)} °C at most, {format_number(one.power_w)} W and "
        f"{format_number(one.clock_mhz)} MHz on average"
        for label, one in known.items()
    )
    label, worst = max(known.items(), key=lambda item: item[1].throttled or 0.0)
    share = worst.throttled or 0.0
    if share > _THROTTLED:
        why = ", ".join(worst.reasons)
        message = f"{label} slowed itself down in {format_percent(share)} of the samples: {why}. {text}."
        return Found("FAIL", message, 100 * share, 100 * _THROTTLED, _evidence(*record.devices), "%")
    return Found(
        "PASS", f"{text}; none slowed itself down.", 100 * share, 100 * _THROTTLED, _evidence(*record.devices), "%"
    )

"""What the probes of a preflight must reach: bounds for the GPUs and links that the machine says it has.

Public figures, at 16 GiB where a size matters. Host to device, peer to peer and all-reduce: azurehpc-health-checks.
Copy within memory: DCGM's diagnostics. Matrix product: the maximum achievable rates of Stas Bekman's "Machine Learning
Engineering", of which nine tenths are asked; those are best ones, so the best repeat is held against them. A machine
that is in no list is measured and not judged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from validator.judge.wording import number, quoted
from validator.model.record import PhaseRecord, RunRecord, ValidationRecord
from validator.model.runbook import PreflightPhase
from validator.model.verdict import Evidence, Status, Verdict

__all__ = ["Bound", "bounds_for", "probe_verdicts"]

_GEMM_SHARE = 0.9
_LATER_SHARE = 0.8
"""Of a figure that is only known as "about"."""

_TITLES = {
    "gemm": ("probe.gemm_best_tflops", "TFLOP/s"),
    "copy": ("probe.copy_gb_s", "GB/s"),
    "host": ("probe.host_to_device_gb_s", "GB/s"),
    "peer": ("probe.peer_gb_s", "GB/s"),
    "all_reduce": ("probe.all_reduce_gb_s", "GB/s"),
}


@dataclass(frozen=True)
class Bound:
    """The least that a probe must reach. `of` says for what; a bound of a relative is told and not required."""

    name: str
    least: float
    unit: str
    of: str
    required: bool = True


@dataclass(frozen=True)
class _Family:
    """Cards that share bounds. `linked`, `unlinked` hold for two or more of them with and without NVLink."""

    pattern: str
    of: str
    alone: Mapping[str, float]
    linked: Mapping[str, float]
    unlinked: Mapping[str, float]
    linked_gpus: tuple[int, ...] = ()
    relative: bool = False


_FAMILIES = (
    _Family(
        r"A100.*PCIe|A100-PCIE|A100-PCIe",
        "A100 PCIe",
        {"gemm": _GEMM_SHARE * 253, "copy": 970.0, "host": 21.0},
        {"peer": 238.0, "all_reduce": 193.0},
        {"all_reduce": _LATER_SHARE * 25},
        linked_gpus=(2,),
    ),
    _Family(
        r"A100.*SXM",
        "A100 SXM",
        {"gemm": _GEMM_SHARE * 271, "copy": 970.0},
        {"all_reduce": 228.0},
        {},
        linked_gpus=(8,),
    ),
    _Family(
        r"H100.*(?:HBM3|SXM)",
        "H100 SXM",
        {"gemm": _GEMM_SHARE * 795, "host": 48.0},
        {"peer": 335.0, "all_reduce": 460.0},
        {},
        linked_gpus=(8,),
    ),
    _Family(
        r"\bH200\b(?!.*NVL)",
        "H100 SXM, whose processor and links an H200 has",
        {"gemm": _GEMM_SHARE * 795, "host": 48.0},
        {"peer": 335.0, "all_reduce": 460.0},
        {},
        linked_gpus=(8,),
        relative=True,
    ),
)


def bounds_for(environment: Mapping[str, Any], *, gpus: int) -> tuple[Bound, ...]:
    """The bounds of a machine by its snapshot, for the first `gpus` of its GPUs; none for cards of several kinds."""
    found = environment.get("gpus")
    used = [one for one in (found.values() if isinstance(found, Mapping) else ()) if isinstance(one, Mapping)][:gpus]
    names = {str(one.get("name")) for one in used}
    if not used or len(names) != 1:
        return ()
    family = next((one for one in _FAMILIES if re.search(one.pattern, next(iter(names)))), None)
    if family is None:
        return ()
    linked = all(one.get("nvlinks_active") for one in used)
    figures = dict(family.alone)
    if len(used) > 1:
        figures |= {
            what: least
            for what, least in (family.linked if linked else family.unlinked).items()
            if what != "all_reduce" or not linked or len(used) in family.linked_gpus
        }
    return tuple(
        Bound(*_named(what, least), of=family.of, required=not family.relative) for what, least in figures.items()
    )


def _named(what: str, least: float) -> tuple[str, float, str]:
    name, unit = _TITLES[what]
    return name, round(least, 1), unit


def probe_verdicts(record: PhaseRecord, validation: ValidationRecord) -> tuple[Verdict, ...]:
    """The verdicts on a preflight's probes: that they were made, what they reached, and that PCIe was at its best."""
    if not isinstance(record.phase, PreflightPhase) or not record.runs:
        return ()
    return tuple(_verdicts(record, record.runs[0], validation))


def _verdicts(record: PhaseRecord, run: RunRecord, validation: ValidationRecord) -> Iterator[Verdict]:
    yield _made(record, run)
    gpus = validation.runbook.hardware.gpus
    for bound in bounds_for(validation.environment, gpus=gpus):
        yield _reached(record, run, bound)
    if gpus > 0:
        yield from _link(record, run, validation.environment, gpus)


def _made(record: PhaseRecord, run: RunRecord) -> Verdict:
    status: Status = "PASS"
    message = "The probes ran and left their record."
    if run.outcome is None:
        status, message = "INCONCLUSIVE", "The probes have not ended."
    elif not run.outcome.ok:
        detail = run.outcome.last.detail or f"exit code {run.outcome.rc}"
        status, message = "FAIL", f"The probes could not be made: {detail.rstrip('.')}; see the run's log."
    elif _value(run, "probe.gemm_tflops") is None:
        status, message = "FAIL", "The probes ended and left no record, so what the machine can do is not known."
    rc = None if run.outcome is None else run.outcome.rc
    text = "the probes run to their end"
    return Verdict(id=f"{record.phase.id}.probe", text=text, required=True, status=status, observed=rc, message=message)


def _reached(record: PhaseRecord, run: RunRecord, bound: Bound) -> Verdict:
    value = _value(run, bound.name)
    status: Status
    if value is None:
        status, message = "INCONCLUSIVE", f"{bound.name} was not measured."
    else:
        share = value / bound.least
        status = "PASS" if value >= bound.least else "FAIL"
        told = f"{number(value)} {bound.unit}, {share:.0%} of the least that is expected of {bound.of}"
        message = f"{told}." if status == "PASS" else f"{told}; check clocks, cooling, links and other programs."
    return Verdict(
        id=f"{record.phase.id}.{bound.name}",
        text=f"{bound.name} >= {number(bound.least)} {bound.unit}",
        required=bound.required,
        status=status,
        observed=value,
        unit=bound.unit,
        bound=bound.least,
        margin=None if value is None else value / bound.least - 1.0,
        message=message,
        evidence=_evidence(run, bound.name),
    )


def _link(record: PhaseRecord, run: RunRecord, environment: Mapping[str, Any], gpus: int) -> Iterator[Verdict]:
    """Generation and lanes while data were copied, against the most that card and slot can have.

    Not required: virtual machines tell links that are not there. A link that is really narrow misses the bound of
    the transfer, which is.
    """
    cards = [one for one in environment.get("gpus", {}).values() if isinstance(one, Mapping)][:gpus]
    for name, most in (("probe.pcie_gen", "pcie_gen_max"), ("probe.pcie_width", "pcie_width_max")):
        wanted = min((one[most] for one in cards if isinstance(one.get(most), int)), default=None)
        value = _value(run, name)
        if wanted is None or value is None:
            continue
        ok = value >= wanted
        what = "generation" if name.endswith("gen") else "lanes"
        message = f"PCIe {what} under load: {number(value)} of {wanted}"
        yield Verdict(
            id=f"{record.phase.id}.{name}",
            text=f"{name} >= {wanted}",
            required=False,
            status="PASS" if ok else "FAIL",
            observed=value,
            bound=wanted,
            message=f"{message}." if ok else f"{message}; reseat the card, or look for a shared slot or a riser.",
            evidence=_evidence(run, name),
        )


def _value(run: RunRecord, name: str) -> float | None:
    scalar = None if run.result is None else run.result.scalars.get(name)
    value = None if scalar is None else scalar.value
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _evidence(run: RunRecord, name: str) -> tuple[Evidence, ...]:
    scalar = None if run.result is None else run.result.scalars.get(name)
    if scalar is None:
        return ()
    text = f"{name} = {quoted(scalar.value)} {scalar.unit}".rstrip()
    return (Evidence(path=scalar.source, where=run.spec.id, text=text),)

"""What kinds that measure the machine share: a process on each device, its rates compared with public bounds, and its
PCIe links under load.

No kind by itself. The bounds are in `validator/model/bounds.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from validator.kinds.base import Found, ImplicitCriterion, JudgedRun, ProcessKind, Rule, Seen
from validator.model.bounds import ALL_REDUCE, NO_BOUND, Bound, bounds_for, cards, gpu_name, model_of
from validator.model.phases import ProcessPhase
from validator.model.runbook import Runbook, Setting
from validator.model.schemas import SCALARS
from validator.text import format_number, format_percent, listed, quoted

if TYPE_CHECKING:
    from validator.model.plan import RunSpec

_WORKERS = 2
"""Processes that share the cores where there are no GPUs."""

Q = TypeVar("Q", bound=ProcessPhase)


class EachDevice(ProcessKind[Q]):
    """A kind with one process on each GPU, which checks answers that are known."""

    def asks(self, phase: Q, runbook: Runbook) -> bool:
        """An answer can be wrong."""
        return True

    def env(self, phase: Q) -> dict[str, Setting]:
        """GPUs are numbered as the driver numbers them."""
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

    def sample_s(self, spec: RunSpec) -> float | None:
        """Once a second, as a training run."""
        return 1.0


def processes_of(runbook: Runbook) -> tuple[int, int]:
    """GPUs, and processes of such a kind."""
    return runbook.hardware.gpus, runbook.hardware.gpus or _WORKERS


def where_gpus(runbook: Runbook) -> Callable[[Sequence[JudgedRun]], bool]:
    """Required on GPUs alone: the cores of a CPU are shared with others."""
    return lambda runs: runbook.hardware.gpus > 0


PAYLOAD = "probe.all_reduce_gib"
"""The payload that `probe.all_reduce_gb_s` was measured with."""

_COSTS = {
    "probe.gemm_best_tflops": "every step computes that much longer",
    "probe.copy_gb_s": "layers that wait for memory (norms, attention, the optimizer) take that much longer",
    "probe.host_to_device_gb_s": "loading batches and offloading take that much longer",
    "probe.device_to_host_gb_s": "checkpoints and offloading take that much longer",
    "probe.peer_gb_s": "pipeline and tensor parallel transfers take that much longer",
    "probe.all_reduce_gb_s": "the gradients' share of a step that computation does not hide takes that much longer",
}
"""What a rate below its bound costs a training run."""


def bound_criteria(
    environment: Mapping[str, Any], gpus: int, rates: Sequence[str], *, one_host: bool = True
) -> Iterator[ImplicitCriterion]:
    """A criterion for each public bound of the machine on one of `rates`, and one that names the rates without any.

    Args:
        environment: the snapshot of the machine, as in `environment.json`.
        gpus: how many of its GPUs are used.
        rates: scalars that the kind measures.
        one_host: False where ranks of several hosts reduce together: the bounds are about one.
    """
    bounds = [one for one in bounds_for(environment, gpus=gpus) if one.name in rates]
    if not one_host:
        bounds = [one for one in bounds if one.name != ALL_REDUCE]
    name = gpu_name(environment, gpus=gpus)
    for bound in bounds:
        text = f"{bound.name} >= {format_number(bound.least)} {SCALARS[bound.name].unit}"
        yield ImplicitCriterion(bound.name, text, _reached(bound, name or ""), required=_decides(bound))
    if gpus > 0:
        without = [one for one in rates if one not in {bound.name for bound in bounds}]
        text = "public bounds of this GPU"
        yield ImplicitCriterion("bounds", text, _without_bound(name, without), required=lambda runs: False)


def link_criteria(environment: Mapping[str, Any], gpus: int) -> Iterator[ImplicitCriterion]:
    """Generation and lanes while data were copied, compared with the most that card and slot can have.

    Not required: virtual machines report links that are not there. A link that is really narrow misses the bound of
    the transfer, which is.
    """
    used = cards(environment)[:gpus]
    for name, most in (("probe.pcie_gen", "pcie_gen_max"), ("probe.pcie_width", "pcie_width_max")):
        wanted = min((one[most] for one in used if isinstance(one.get(most), int)), default=None)
        if wanted is not None:
            yield ImplicitCriterion(name, f"{name} >= {wanted}", _wide(name, wanted), required=lambda runs: False)


def counter_criteria(runs: Sequence[JudgedRun]) -> Iterator[ImplicitCriterion]:
    """Errors that links and memories counted while the machine, or each node, was measured by any of these runs; only
    grave ones are required."""
    counted = [one for run in runs for one in run.evidence.counted]
    grown = [one for each in counted for one in each.worse()]
    nodes = dict.fromkeys(node.node for run in runs for node in run.evidence.nodes)
    silent = [node for node in nodes if node not in {one.node for one in counted}]

    def rule(run: JudgedRun) -> Found:
        if not counted:
            return Found("SKIPPED", "Nobody counted: the machine has no such link, or the run did not end.")
        evidence = tuple(
            Seen(", ".join(filter(None, (one.node, f"{name} +{by}"))), one.path)
            for one in counted
            for name, by in one.grown.items()
        )
        if not grown:
            lack = f"; nobody counted on {listed(silent)}" if silent else ""
            return Found("PASS", f"No link or memory counted more errors than it may{lack}.", 0, 0, evidence)
        message = f"{'; '.join(one.text for one in grown)}; reset the card or replace the cable, and measure again."
        return Found("FAIL", message, len(grown), 0, evidence)

    text = "links and memories count no errors under load"
    yield ImplicitCriterion("counters", text, rule, required=lambda _: any(one.grave for one in grown), whole=True)


def scalar_evidence(run: JudgedRun, name: str) -> tuple[Seen, ...]:
    """Where the value of a scalar was read."""
    scalar = None if run.result is None else run.result.scalars.get(name)
    if scalar is None:
        return ()
    return (Seen(f"{name} = {quoted(scalar.value)} {scalar.unit}".rstrip(), scalar.source, run.spec.id),)


def _least(bound: Bound, run: JudgedRun) -> float | None:
    """The bound for the payload that the run measured with."""
    return bound.at(run.number(PAYLOAD)) if bound.name == ALL_REDUCE else bound.least


def _decides(bound: Bound) -> Callable[[Sequence[JudgedRun]], bool]:
    return lambda runs: bound.required and any(_least(bound, run) is not None for run in runs)


def _reached(bound: Bound, gpu: str) -> Rule:
    model = model_of(gpu)
    source = (Seen(f"{model.name if model else gpu}: {bound.basis} ({bound.source})"),)

    def rule(run: JudgedRun) -> Found:
        value, unit, least = run.number(bound.name), SCALARS[bound.name].unit, _least(bound, run)
        evidence = (*scalar_evidence(run, bound.name), *source)
        if value is None:
            return Found("INCONCLUSIVE", f"{bound.name} was not measured.", None, least, evidence, unit)
        if least is None:
            message = f"{format_number(value)} {unit} with a payload too small to be compared with the bound."
            return Found("SKIPPED", message, value, None, evidence, unit)
        scalar = None if run.result is None else run.result.scalars.get(bound.name)
        note = f" ({scalar.note})" if scalar is not None and scalar.note else ""
        share = format_percent(value / least)
        message = f"{format_number(value)} {unit}{note}, {share} of the least that is expected of {gpu}"
        if value >= least:
            return Found("PASS", f"{message}.", value, least, evidence, unit, value / least - 1.0)
        message += f": {_COSTS[bound.name]}; check clocks, cooling, links and other programs."
        return Found("FAIL", message, value, least, evidence, unit, value / least - 1.0)

    return rule


def _without_bound(gpu: str | None, rates: Sequence[str]) -> Rule:
    def rule(run: JudgedRun) -> Found:
        seen = [one for one in rates if run.number(one) is not None]
        if gpu is None:
            return Found("SKIPPED", "The GPUs are of several kinds or partitioned, so no public bound is about them.")
        if not seen:
            return Found("PASS", f"Every rate measured on {gpu} has a public bound.")
        evidence = tuple(part for one in seen for part in scalar_evidence(run, one))
        return Found("SKIPPED", f"{gpu}, {NO_BOUND}: {listed(list(seen))}.", evidence=evidence)

    return rule


def _wide(name: str, wanted: int) -> Rule:
    def rule(run: JudgedRun) -> Found:
        value = run.number(name)
        if value is None:
            return Found("SKIPPED", f"{name} was not sampled.", None, wanted)
        what = "generation" if name.endswith("gen") else "lanes"
        message = f"PCIe {what} under load: {format_number(value)} of {wanted}"
        if value >= wanted:
            return Found("PASS", f"{message}.", value, wanted, scalar_evidence(run, name))
        message += f": {_COSTS['probe.host_to_device_gb_s']}; reseat the card, or look for a shared slot or a riser."
        return Found("FAIL", message, value, wanted, scalar_evidence(run, name))

    return rule

"""What tokens cost: the price of the GPUs of a phase over its rate, and of the run that is planned."""

from __future__ import annotations

from collections.abc import Sequence

from validator.model.catalogue import COST
from validator.model.record import RunRecord
from validator.model.resolve import Resolved
from validator.model.result import MetricStats
from validator.model.runbook import Phase, Runbook, TrainingPhase
from validator.model.settings import planned_tokens_of
from validator.stats.estimate import Estimate, combine, exact
from validator.stats.measure import NotMeasured

COSTS = frozenset(scalar.name for scalar in COST)

PER_MILLION, PLANNED = (scalar.name for scalar in COST)


def rate_behind(resolved: Resolved) -> Resolved:
    """The global rate where a cost is asked for, for it varies as the rate does; else what is resolved itself."""
    if resolved.kind != "scalar" or resolved.name not in COSTS:
        return resolved
    return Resolved(resolved.phase_id, "series", "toks_per_s", "mean", "tok/s", "steady", better="higher")


def cost_of(name: str, rate: Estimate, *, runbook: Runbook, phase: Phase, runs: Sequence[RunRecord]) -> Estimate:
    """A cost in the runbook's currency, with the interval that follows from that of the rate in tokens per second.

    Raises:
        NotMeasured: without a price, a rate above 0, or for the planned run its number of tokens.
    """
    price = runbook.hardware.price_per_gpu_hour
    if price is None or not isinstance(phase, TrainingPhase):
        raise NotMeasured("the runbook declares no hardware.price_per_gpu_hour")
    if not rate.point > 0:
        raise NotMeasured(f"phase {phase.id} has no rate above 0")
    tokens = 1e6 if name == PER_MILLION else _planned_tokens(runbook, phase, runs)
    return combine("/", (exact(_per_second(price, _gpu_count(runs, runbook.hardware.gpus)) * tokens), rate))


def _per_second(price: float, gpus: int) -> float:
    return price * gpus / 3600.0


def _gpu_count(runs: Sequence[RunRecord], declared: int) -> int:
    """As many as ranks: those that were planned, or more where a trainer that starts its own reports them. Where it
    reports none, those of `hardware`: they are paid for."""
    reported = [run.result.evidence.world_size for run in runs if run.result is not None]
    known = [ranks for ranks in (*reported, *(run.spec.ranks for run in runs)) if ranks]
    return max(known, default=max(1, declared))


def _planned_tokens(runbook: Runbook, phase: TrainingPhase, runs: Sequence[RunRecord]) -> float:
    reported = {run.result.evidence.tokens_per_step for run in runs if run.result is not None}
    known = planned_tokens_of(runbook, phase, reported=reported.pop() if len(reported) == 1 else None)
    if known is None:
        raise NotMeasured(
            f"the tokens of the planned run are not known: neither trainer.planned_tokens nor, for planned_steps, the "
            f"tokens of a step in phase {phase.id}"
        )
    return known


def cost_stats(
    rate: MetricStats, per_rank: MetricStats | None, *, price: float, nproc: int, unit: str, judged: float | None
) -> MetricStats:
    """The cost per million tokens of one stored run, as `compare` compares it: the interval of the rate turned over.

    `judged` is the cost of its phase; it shows how many GPUs were counted where neither plan nor trainer says it.
    """
    gpus = round(rate.mean / per_rank.mean) if per_rank is not None and rate.mean and per_rank.mean else 1
    if nproc == 0 and gpus == 1 and judged and rate.mean:
        gpus = round(judged * rate.mean / (_per_second(price, 1) * 1e6))
    factor = _per_second(price, max(1, nproc, gpus)) * 1e6

    def turned(value: float | None) -> float | None:
        return factor / value if value is not None and value > 0 else None

    empty = dict.fromkeys(("stdev", "cv", "min", "p50", "p95", "p99", "max", "first", "last"))
    changed = {
        "unit": unit,
        "mean": turned(rate.mean),
        "ci_low": turned(rate.ci_high),
        "ci_high": turned(rate.ci_low),
    }
    return rate.model_copy(update={**empty, **changed})

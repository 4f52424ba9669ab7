"""The seam between what was measured and what is drawn.

`ChartData` is all that the charts know of a run: short series of plain numbers, already thinned, and the spread of each
rank. It is rebuilt from the run folder whenever a report is, so nothing of it is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from validator.model.record import ValidationRecord
    from validator.model.result import Result, Series
    from validator.model.verdict import PhaseReport
    from validator.report.machine_view import MachineCharts

__all__ = ["ChartData", "ChartSeries", "RankSpread", "RunCharts", "chart_data", "extremes", "record_charts"]

MAX_POINTS = 600
"""Points kept of a series: more than the pixels of a chart's width would only make the file larger."""

MAX_NON_FINITE = 50
"""Steps with NaN or infinities that are marked one by one."""

DRAWN_METRICS = frozenset(
    (
        "toks_per_s",
        "step_time_s",
        "loss",
        "gpu_mem_alloc_mib",
        "gpu_mem_reserved_mib",
        "host_mem_mib",
        "gate_entropy_mean",
        "gate_entropy_min",
        "gate_branch_shares_0",
        "gate_branch_shares_1",
        "gate_branch_shares_2",
        "grad_norm",
    )
)
"""The metrics that a chart exists for; thinning the others would take longer than drawing these."""

SPREAD_METRICS = ("compute_time_s", "step_time_s")
"""What is compared between ranks, best first: own work tells a slow rank from one that waits for it."""


@dataclass(frozen=True)
class ChartSeries:
    """One line of a chart, thinned so that each bucket's lowest and highest value stay.

    `steps` (optimizer steps; seconds in charts of the machine) and `values` have the same length; values are finite.
    `n` counts the values before thinning, `non_finite_steps` names (at most `MAX_NON_FINITE`) steps whose value was
    NaN or infinite, of `non_finite` in all.
    """

    metric: str
    unit: str
    steps: tuple[float, ...]
    values: tuple[float, ...]
    n: int
    source: str | None = None
    rank: int | None = None
    non_finite: int = 0
    non_finite_steps: tuple[int, ...] = ()


@dataclass(frozen=True)
class RankSpread:
    """Percentiles of one rank's times after warm-up, in `unit`."""

    rank: int
    metric: str
    unit: str
    n: int
    p5: float
    p25: float
    p50: float
    p75: float
    p95: float


@dataclass(frozen=True)
class RunCharts:
    """What can be drawn of one run: global series by metric, the ranks' spread (empty below two ranks), the machine."""

    run: str
    series: Mapping[str, ChartSeries] = field(default_factory=dict)
    ranks: tuple[RankSpread, ...] = ()
    machine: MachineCharts | None = None


@dataclass(frozen=True)
class ChartData:
    """What can be drawn of a validation, by run id as in `RunReport.id`. Empty means a report without charts."""

    runs: Mapping[str, RunCharts] = field(default_factory=dict)


def record_charts(record: ValidationRecord, phases: Sequence[PhaseReport]) -> ChartData:
    """The charts' data of a whole validation, with each run's warm-up as it was judged."""
    warmup_end = {run.id: run.warmup_end_step for phase in phases for run in phase.runs}
    results = (run.result for phase in record.phases for run in phase.runs if run.result is not None)
    return chart_data(results, warmup_end=warmup_end)


def chart_data(results: Iterable[Result], *, warmup_end: Mapping[str, int | None] | None = None) -> ChartData:
    """The charts' data of some runs. `warmup_end` gives, by run id, the last step of warm-up where one was found."""
    from validator.report.machine_view import machine_charts

    ends = warmup_end or {}
    return ChartData(
        runs={
            result.run: RunCharts(
                run=result.run,
                series={
                    name: _thin(series)
                    for name, series in result.series.items()
                    if name in DRAWN_METRICS and len(series.steps)
                },
                ranks=_spread(result.rank_series, ends.get(result.run)),
                machine=machine_charts(result.extra, warmup_end=ends.get(result.run)),
            )
            for result in results
        }
    )


def _thin(series: Series) -> ChartSeries:
    import numpy as np

    finite = np.isfinite(series.values)
    steps, values = series.steps[finite], series.values[finite]
    keep = extremes(values, MAX_POINTS)
    bad = series.steps[~finite]
    return ChartSeries(
        metric=series.name,
        unit=series.unit,
        steps=tuple(steps[keep].tolist()),
        values=tuple(values[keep].tolist()),
        n=len(series.steps),
        source=series.source.path,
        rank=series.rank,
        non_finite=len(bad),
        non_finite_steps=tuple(bad[:MAX_NON_FINITE].tolist()),
    )


def extremes(values: npt.NDArray[np.float64], points: int) -> npt.NDArray[np.int64]:
    """Positions of the first, the last, and each bucket's lowest and highest value, in order."""
    import numpy as np

    count = len(values)
    if count <= points:
        return np.arange(count, dtype=np.int64)
    size = -(-2 * count // points)
    whole = count // size * size
    rows = values[:whole].reshape(-1, size)
    starts = np.arange(0, whole, size)
    rest = values[whole:]
    tail = [whole + int(rest.argmin()), whole + int(rest.argmax())] if len(rest) else []
    found: npt.NDArray[np.int64] = np.unique(
        np.concatenate(([0, count - 1, *tail], starts + rows.argmin(axis=1), starts + rows.argmax(axis=1)))
    ).astype(np.int64)
    return found


def _spread(ranks: Mapping[int, Mapping[str, Series]], warmup_end: int | None) -> tuple[RankSpread, ...]:
    """Each rank's percentiles of the first of `SPREAD_METRICS` that at least two ranks report."""
    for metric in SPREAD_METRICS:
        rows = [
            row
            for rank in sorted(ranks)
            if (series := ranks[rank].get(metric)) is not None
            and (row := _rank_spread(rank, series, warmup_end)) is not None
        ]
        if len(rows) >= 2:
            return tuple(rows)
    return ()


def _rank_spread(rank: int, series: Series, warmup_end: int | None) -> RankSpread | None:
    import numpy as np

    steady = np.isfinite(series.values)
    if warmup_end is not None:
        steady &= series.steps > warmup_end
    values = series.values[steady]
    if not len(values):
        return None
    p5, p25, p50, p75, p95 = (float(v) for v in np.percentile(values, (5, 25, 50, 75, 95)))
    return RankSpread(
        rank=rank, metric=series.name, unit=series.unit, n=len(values), p5=p5, p25=p25, p50=p50, p75=p75, p95=p95
    )

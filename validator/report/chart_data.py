"""The values that charts are drawn from.

`ChartData` is all that the charts know of a run: short series of plain numbers, already thinned, and the spread of each
rank. It is rebuilt from the run folder whenever a report is, so nothing of it is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from validator.model.catalogue import METRICS, Across, Metric

MACHINE_QUANTITIES: Mapping[str, Metric] = {
    metric.column: metric for metric in METRICS.values() if metric.across and metric.chart
}
"""Columns of the samples that are drawn."""

ACROSS_GPUS: Mapping[str, Across] = {
    name: metric.across for name, metric in MACHINE_QUANTITIES.items() if metric.across and metric.across != "host"
}
"""Columns that each GPU has, and which value represents all GPUs of a run."""


@dataclass(frozen=True)
class ChartSeries:
    """One line of a chart, thinned so that each bucket's lowest and highest value stay.

    `chart` is the title of the chart. `steps` (optimizer steps; in charts of the machine, seconds since the first
    sample) and `values` have the same length; values are finite. `device` is `GPU 0`, `host` or `lowest of 8 GPUs` in
    charts of the machine.
    `non_finite_steps` names (at most `MAX_NON_FINITE`) steps whose value was NaN or infinite, of `non_finite` in all.
    """

    metric: str
    unit: str
    steps: tuple[float, ...]
    values: tuple[float, ...]
    device: str = ""
    chart: str = ""
    non_finite: int = 0
    non_finite_steps: tuple[int, ...] = ()


@dataclass(frozen=True)
class Slowdown:
    """An interval in which a GPU was throttled. One that is `invalid` invalidates the measurement; the power cap does
    not.
    """

    device: str
    reason: str
    invalid: bool
    from_s: float
    to_s: float


@dataclass(frozen=True)
class MachineCharts:
    """What can be drawn of the machine during one run.

    `lines` has, by quantity, a line per device; `across` the one line that represents all GPUs. `steady_s` is when
    warm-up ended, in seconds since the first sample; None where that is not known.
    """

    duration_s: float
    lines: Mapping[str, tuple[ChartSeries, ...]] = field(default_factory=dict)
    across: Mapping[str, ChartSeries] = field(default_factory=dict)
    slowdowns: tuple[Slowdown, ...] = ()
    steady_s: float | None = None

    @property
    def gpus(self) -> int:
        """GPUs that were sampled."""
        return max((len(self.lines.get(name, ())) for name in ACROSS_GPUS), default=0)


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
    """What can be drawn of one run: global series by metric, the ranks' spread (empty below two ranks), the machine.

    `sparks` are series without a chart of their own that a tile of the first screen draws.
    """

    run: str
    series: Mapping[str, ChartSeries] = field(default_factory=dict)
    ranks: tuple[RankSpread, ...] = ()
    machine: MachineCharts | None = None
    sparks: Mapping[str, ChartSeries] = field(default_factory=dict)


@dataclass(frozen=True)
class ChartData:
    """What can be drawn of a validation, by run id as in `RunReport.id`. Empty means a report without charts."""

    runs: Mapping[str, RunCharts] = field(default_factory=dict)

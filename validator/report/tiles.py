"""The values that a reader comes for, as tiles: throughput, scaling, memory, steadiness, settings.

A tile is about one name, as criteria have it. Its value is that of the criterion which decides most: one that failed
before one that is open before one that passed, of the widest and longest phase; without a criterion it is what the
widest and longest training measured. A trainer that does not report a value has no tile of it. A validation that trains
nothing, such as the acceptance of a machine, shows what the machine can do.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from validator.model.catalogue import METRICS, STATISTICS, TILES
from validator.model.expression import Call, Expression, ExpressionError, Number, Reference, parse_criterion
from validator.model.result import ScalarValue
from validator.model.verdict import ArmComparison, PhaseReport, RunReport, ValidationReport, Verdict
from validator.report.build_criteria import criterion_row, margin_text
from validator.report.elements import anchor, status_view
from validator.report.page import LabeledValue, Spark, Tile
from validator.report.sparks import spark_of
from validator.report.specs import ChartData
from validator.text import format_change, format_interval, format_number, format_value, one_line, plural

MAX_TILES = 8
"""Two rows of four: more is a table, and the page has one."""

_PER_RANK, _DRIFT = "toks_per_s_per_rank", "rate.drift_pct"

_SETTINGS = "Chosen settings"

_ORDER: tuple[tuple[str, ...], ...] = (
    ("Throughput", "Throughput without pauses", "Step time", "Step time, pauses included"),
    ("Throughput per rank",),
    ("Scaling efficiency",),
    ("MFU", "MFU, dense equivalent", "Model FLOP/s per rank"),
    ("Peak GPU memory", "Peak GPU memory, allocated", "Peak host memory"),
    ("Drift of the rate", "Longest silence"),
    (_SETTINGS,),
    ("Cost", "Cost of a million tokens"),
    ("Loss",),
)
"""Labels of the catalogue's tiles in the order of the report; the first of a row that was measured is shown.

Other labels follow as the catalogue has them, and behind them what else required criteria ask for.
"""

_MACHINE = {
    "probe.gemm_best_tflops": "Matrix product",
    "probe.copy_gb_s": "Memory copy",
    "probe.host_to_device_gb_s": "Host to GPU",
    "probe.peer_gb_s": "GPU to GPU",
    "collective.all_reduce_bus_gb_s": "All-reduce",
    "links.min_gb_s": "Slowest link",
    "burnin.errors": "Wrong answers in burn-in",
    "collective.errors": "Wrong answers of collectives",
    "storage.checkpoint_mb_s": "Checkpoint, written",
    "probe.device_to_host_gb_s": "GPU to host",
    "storage.read_mb_s": "File, read",
}
"""Labels of what a machine can do, in the order in which a validation without a trainer shows it."""

_LABELS = ChainMap(TILES, _MACHINE)

_SCATTER = ("cv", "stdev", "n")

_PLAIN = ("effective.", "requested.", "outcome.", "tests.", "steps.", "audit.", "probe.", "profile.", "smoke.")
"""Families of scalars that say what ran or what the machine can do, not how the training did."""

_TRAINED = ("train", "soak")
"""Kinds whose runs are measured as they are meant to run: no arms, no profiler."""

_BOUNDS = {">=": "at least", ">": "above", "<=": "at most", "<": "below", "==": "exactly", "!=": "not"}


@dataclass(frozen=True)
class _Candidate:
    """A value that a tile could show: of a criterion where there is one, else of a phase's runs.

    `name` is as in `TILES`, `text` as in criteria; `weight` is smaller for what the decision depends on more.
    """

    name: str
    text: str
    phase: PhaseReport
    verdict: Verdict | None
    value: float | None
    unit: str
    low: float | None
    high: float | None
    weight: tuple[float, ...]


def tiles_of(report: ValidationReport, charts: ChartData) -> tuple[Tile, ...]:
    """The tiles, at most `MAX_TILES`: what keeps a phase from passing first, then in the order of `_ORDER`."""
    found: dict[str, list[_Candidate]] = {}
    measured = {name for phase in report.phases for run in phase.measured for name in run.metrics}
    trains = any(name in TILES and name in METRICS and METRICS[name].across is None for name in measured)
    for candidate in _candidates(report, trains=trains):
        found.setdefault(candidate.name, []).append(candidate)
    best = {name: min(several, key=lambda one: one.weight) for name, several in found.items()}
    tiles: list[tuple[float, Tile]] = []
    shown: list[_Candidate] = []
    for labels in (*_ORDER, *((label,) for label in _others())):
        settings = _settings_tile(report.phases) if labels == (_SETTINGS,) else None
        if settings is not None:
            tiles.append((_UNASKED, settings))
        if (one := _first_known(labels, best)) is not None:
            shown.append(one)
            tiles.append((one.weight[0], _tile(one, best, charts)))
    asked = [one for one in best.values() if one not in shown and one.weight[0] <= _WEIGHTS["PASS"]]
    tiles += ((one.weight[0], _tile(one, best, charts)) for one in sorted(asked, key=lambda one: one.name not in TILES))
    tiles.sort(key=lambda pair: min(pair[0], _WEIGHTS["PASS"]))
    return tuple(tile for _, tile in tiles[:MAX_TILES])


def _others() -> list[str]:
    placed = {label for labels in _ORDER for label in labels}
    return [label for label in dict.fromkeys((*TILES.values(), *_MACHINE.values())) if label not in placed]


def _first_known(labels: Sequence[str], best: Mapping[str, _Candidate]) -> _Candidate | None:
    """The first of these labels that has a value; else the first that a criterion asks for."""
    known = [best[name] for label in labels for name, its in _LABELS.items() if its == label and name in best]
    return next((one for one in known if one.value is not None), known[0] if known else None)


# The candidates.

_WEIGHTS = {"FAIL": 0, "INCONCLUSIVE": 1, "RUNNING": 1, "PASS": 2, "SKIPPED": 5, "NOT_RUN": 5}
_OPTIONAL, _UNASKED = 3, 4


def _candidates(report: ValidationReport, *, trains: bool) -> Iterator[_Candidate]:
    phases = {phase.id: phase for phase in report.phases}
    for phase in report.phases:
        for verdict in phase.criteria:
            found = _of_verdict(verdict, phase, phases)
            if found is not None and (not found.name.startswith(_PLAIN) or (found.name in _MACHINE and not trains)):
                yield found
    for phase in report.phases:
        yield from _of_runs(phase) if trains else _of_machine(phase)


def _of_verdict(verdict: Verdict, phase: PhaseReport, phases: Mapping[str, PhaseReport]) -> _Candidate | None:
    """The value that a criterion is about; None where it is a text, a calculation, or says what ran."""
    text = _subject(verdict.text)
    if text is None or isinstance(verdict.observed, str) or verdict.status == "RUNNING":
        return None
    parts = text.split(".")
    about = phases.get(parts[0], phase) if len(parts) > 2 else phase
    known = ".".join(parts[-2:])
    weight = _WEIGHTS[verdict.status]
    if not (verdict.required and phase.required):
        weight = max(weight, _OPTIONAL)
    return _Candidate(
        name=_name_of(known),
        text=known,
        phase=phase,
        verdict=verdict,
        value=verdict.observed,
        unit=verdict.unit,
        low=verdict.ci_low,
        high=verdict.ci_high,
        weight=(weight, *_width(about), verdict.margin if verdict.margin is not None else 0.0),
    )


def _subject(text: str) -> str | None:
    """The one name on the left of a criterion, perhaps in `abs(…)`."""
    try:
        left: Expression = parse_criterion(text).left
    except ExpressionError:
        return None
    if isinstance(left, Call) and left.function == "abs":
        left = left.arguments[0]
    return left.name if isinstance(left, Reference) else None


def _name_of(text: str) -> str:
    """`toks_per_s` for `toks_per_s.p50`, since any level of a series is one subject; its scatter is another."""
    metric, _, statistic = text.rpartition(".")
    return metric if statistic in STATISTICS and statistic not in _SCATTER else text


def _width(phase: PhaseReport) -> tuple[float, float]:
    """A key that sorts phases by ranks and then by rows, most first."""
    runs = phase.measured
    rows = max((stats.n for run in runs for stats in run.metrics.values()), default=0)
    return -max(map(_ranks, runs), default=0), -rows


def _ranks(run: RunReport) -> int:
    """Ranks of a run, by its two rates; 0 where it does not report them."""
    whole, each = (run.metrics[name].mean if name in run.metrics else None for name in ("toks_per_s", _PER_RANK))
    ratio = whole / each if whole and each else 0.0
    return round(ratio) if math.isfinite(ratio) else 0


def _of_machine(phase: PhaseReport) -> Iterator[_Candidate]:
    """What the probes of a phase measured, whether or not a criterion asks for it."""
    for name in _MACHINE:
        found = _of_scalars(name, [run.scalars for run in phase.measured])
        if found is not None:
            yield _Candidate(name, name, phase, None, *found, (_UNASKED, 0.0, 0.0, 0.0))


def _of_runs(phase: PhaseReport) -> Iterator[_Candidate]:
    """What the runs of a phase measured, whether or not a criterion asks for it."""
    if phase.comparison is not None:
        runs = [run for run in phase.measured if run.arm == phase.comparison.recommended]
    else:
        runs = [run for run in phase.measured if phase.kind in _TRAINED]
    if not runs or (runs[0].arm and phase.comparison is None):
        return
    weight = (_UNASKED + 0.5 * (phase.comparison is not None), *_width(phase), 0.0)
    for name in TILES:
        found = _measured_value(name, runs) or _of_scalars(name, (phase.scalars,))
        lone = name == _PER_RANK and max(map(_ranks, runs)) <= 1
        if found is not None and not lone:
            text = f"{name}.{METRICS[name].statistic}" if name in METRICS else name
            yield _Candidate(name, text, phase, None, *found, weight)


_Measured = tuple[float, str, float | None, float | None]
"""Value, unit, and both ends of the interval where there is one."""


def _measured_value(name: str, runs: Sequence[RunReport]) -> _Measured | None:
    """A name's value over some runs: a lone run's own, else the mean of the runs."""
    if name not in METRICS:
        return _of_scalars(name, [run.scalars for run in runs])
    several = [run.metrics[name] for run in runs if name in run.metrics]
    values = [value for stats in several if (value := getattr(stats, METRICS[name].statistic)) is not None]
    if not several or len(values) != len(runs):
        return None
    # The interval is that of a lone run's mean; that over runs is computed in judgement alone.
    known = len(several) == 1 and METRICS[name].statistic == "mean"
    interval = (several[0].ci_low, several[0].ci_high) if known else (None, None)
    return _mean(values), several[0].unit, *interval


def _of_scalars(name: str, several: Sequence[Mapping[str, ScalarValue]]) -> _Measured | None:
    """The mean of a scalar that all of them have; a lone one with its interval."""
    found = [scalars[name] for scalars in several if name in scalars]
    values = [one.value for one in found if isinstance(one.value, (int, float))]
    if not found or len(values) != len(several):
        return None
    interval = (found[0].ci_low, found[0].ci_high) if len(found) == 1 else (None, None)
    if name == _DRIFT and interval == (None, None) and len(found) == 1:
        return None  # the run is too short to say, and the value alone would
    return _mean(values), found[0].unit, *interval


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


# The tiles.


def _tile(one: _Candidate, best: Mapping[str, _Candidate], charts: ChartData) -> Tile:
    one = _share_of_rate(one, best.get("toks_per_s"))
    verdict = one.verdict
    bound = _bound_text(verdict) if verdict is not None else ""
    if verdict is not None and one.value is not None and verdict.status == "INCONCLUSIVE" and verdict.bound is None:
        bound = one_line(f"{bound}. {verdict.message}", limit=100)  # next to a value that alone looks clear
    label = _LABELS.get(one.name, one.text)
    if one.name == _PER_RANK and any(name.startswith("gpu_mem") for run in one.phase.runs for name in run.metrics):
        label = "Throughput per GPU"
    return Tile(
        label=one_line(label, limit=80),
        metric=one_line(one.text, limit=120),
        status=status_view(verdict.status) if verdict is not None else None,
        value=format_number(one.value) if one.value is not None else "not measured",
        unit=one_line(one.unit, limit=20) if one.value is not None else "",
        interval=format_interval(one.low, one.high),
        bound=bound,
        margin=margin_text(verdict).strip("–") if verdict is not None else "",
        phase=one_line(one.phase.id),
        place=one_line(one.phase.title, limit=200),
        href=f"#{criterion_row(verdict, one.phase).anchor if verdict else anchor('phase', one.phase.id)}",
        spark=_spark(one, charts),
    )


def _share_of_rate(one: _Candidate, rate: _Candidate | None) -> _Candidate:
    """A rank's rate without a criterion of its own: the rate's value and interval over the ranks."""
    ranks = max(map(_ranks, rate.phase.measured), default=0) if rate is not None else 0
    if one.name != _PER_RANK or one.verdict is not None or rate is None or rate.value is None or not ranks:
        return one
    low, high = (None if side is None else side / ranks for side in (rate.low, rate.high))
    return _Candidate(one.name, one.text, rate.phase, None, rate.value / ranks, rate.unit, low, high, one.weight)


def _bound_text(verdict: Verdict) -> str:
    """`at least 9,000 tok/s`; in the criterion's own words where nothing was judged."""
    relation = parse_criterion(verdict.text)
    operator, right = relation.operator, relation.right
    if verdict.bound is None and isinstance(right, Number):
        return f"{_BOUNDS[operator]} {format_value(right.value, relation.unit or verdict.unit)}"
    if verdict.bound is None:
        return f"{_BOUNDS[operator]} {one_line(verdict.text.partition(operator)[2].strip(), limit=80)}"
    return f"{_BOUNDS[operator]} {format_value(verdict.bound, verdict.unit)}"


def _spark(one: _Candidate, charts: ChartData) -> Spark | None:
    """The series behind a value, from the first of the phase's runs that has it."""
    metric = "toks_per_s" if one.name in (_PER_RANK, _DRIFT) else one.name.split(".")[0]
    bound = one.verdict.bound if one.verdict is not None and one.name == metric else None
    for run in one.phase.measured:
        drawn = charts.runs.get(run.id)
        series = drawn and (drawn.series.get(metric) or drawn.sparks.get(metric))
        if series:
            stats = run.metrics.get(metric)
            return spark_of(
                series, stats.window if stats else None, bound if isinstance(bound, float) else None, run.id
            )
    return None


def _settings_tile(phases: Sequence[PhaseReport]) -> Tile | None:
    """What the sweeps and comparisons chose, a line each."""
    compared = [(phase, phase.comparison) for phase in phases if phase.comparison is not None]
    if not compared:
        return None
    undecided = sum(one.outcome in ("not_decidable", "vacuous") for _, one in compared)
    return Tile(
        label=_SETTINGS,
        metric="",
        status=status_view("INCONCLUSIVE" if undecided else "PASS"),
        value=f"{len(compared) - undecided} of {len(compared)}",
        unit="decided",
        interval="",
        bound="",
        margin="",
        phase="",
        place=plural(len(compared), "comparison"),
        href="#recommended",
        lines=tuple(_choice_line(phase, one) for phase, one in compared),
    )


def _choice_line(phase: PhaseReport, comparison: ArmComparison) -> LabeledValue:
    """`NSA_DDP_BUCKET_MB=4` and why; of a comparison without an answer its phase."""
    href = f"#{anchor('phase', phase.id)}"
    arm = next((one for one in comparison.arms if one.arm == comparison.recommended), None)
    if arm is None:
        why = "either will do" if comparison.outcome == "no_difference" else "undecided"
        return LabeledValue(one_line(phase.id), why, href)
    settings = ", ".join(f"{key.split('.', 1)[-1]}={value}" for key, value in arm.settings.items()) or arm.arm
    effect = format_change(comparison.effect)
    reasons = {"significant": effect, "no_difference": "as good as the others", "not_worse": "not worse"}
    return LabeledValue(one_line(settings, limit=80), reasons.get(comparison.outcome, comparison.outcome), href)

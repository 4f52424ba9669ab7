"""What an audit, a profile, a data and a soak phase must satisfy unasked: their evidence is there and says so."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from validator.judge.data import measured
from validator.judge.measure import RunMeasurement
from validator.judge.wording import listed, number
from validator.model.expression import Binary, ExpressionError, Number, parse_criterion, references
from validator.model.record import PhaseRecord, RunRecord
from validator.model.runbook import AuditPhase, DataPhase, Phase, ProfilePhase, SoakPhase
from validator.model.verdict import Evidence, Status

__all__ = ["Found", "Rule", "kind_names", "kind_rules", "unreachable"]


@dataclass(frozen=True)
class Found:
    """What one run says about one implicit criterion."""

    status: Status
    message: str
    observed: float | str | None = None
    bound: float | str | None = None
    evidence: tuple[Evidence, ...] = ()


_MIN_SLOW_DOWN = 5.0
"""Per cent: 1 to 2 % of thermal settling is healthy."""

Rule = Callable[[RunRecord], Found]


def kind_names(phase: Phase) -> Iterator[tuple[str, str]]:
    """Name and text of the implicit criteria that only this kind of phase has."""
    if isinstance(phase, AuditPhase):
        yield "audit", "the profiler's evidence names the kernels of the attention"
        yield "fallback", "no branch falls back to another path than the one asked for"
    if isinstance(phase, ProfilePhase):
        yield "trace", f"{phase.profile_steps} steps are traced"
        yield from ((f"range.{n}", f"the trace holds the range {name}") for n, name in enumerate(phase.ranges, start=1))
    if isinstance(phase, DataPhase):
        limit = f"{number(phase.first_batch)} s"
        yield "smoke", f"the loader alone delivers its first batch within {limit}"
        yield "first_batch", f"every rank has its first batch within {limit}"
    if isinstance(phase, SoakPhase):
        limit = number(_slow_down_limit(phase))
        yield "sustained_rate", f"the run does not lastingly become slower by {limit} % or more"


def kind_rules(phase: Phase) -> Iterator[tuple[str, Rule]]:
    """The rule of each name."""
    if isinstance(phase, AuditPhase):
        yield from (("audit", _audit), ("fallback", _fallback))
    if isinstance(phase, ProfilePhase):
        yield "trace", lambda run: _trace(run, phase.profile_steps)
        yield from ((f"range.{n}", _range_rule(name)) for n, name in enumerate(phase.ranges, start=1))
    if isinstance(phase, DataPhase):
        yield "smoke", lambda run: _smoke(run, phase.first_batch)
        yield "first_batch", lambda run: _first_batch(run, phase.first_batch)
    if isinstance(phase, SoakPhase):
        yield "sustained_rate", lambda run: _sustained_rate(run, _slow_down_limit(phase))


def _extra(run: RunRecord, name: str) -> Any:
    return None if run.result is None else run.result.extra.get(name)


def _scalar(run: RunRecord, name: str) -> Any:
    found = None if run.result is None else run.result.scalars.get(name)
    return None if found is None else found.value


def _source(run: RunRecord, ending: str) -> str | None:
    sources = () if run.result is None else run.result.sources
    return next((source.path for source in sources if source.path.endswith(ending)), None)


def _audit(run: RunRecord) -> Found:
    ran = _scalar(run, "audit.attention")
    if ran is None:
        silent = "wrote no sdpa_audit.json" if _extra(run, "sdpa_audit") is None else "names no branch of the attention"
        return Found("INCONCLUSIVE", f"The audit is silent: the trainer {silent}, so what ran is not known.")
    parts = [f"{name} {text}" for name in ("cmp", "sel", "win") if (text := _scalar(run, f"audit.{name}")) is not None]
    layers = _scalar(run, "audit.layers")
    message = f"{'; '.join(parts) or ran} in {number(layers) if layers is not None else '?'} layers."
    return Found("PASS", message, str(ran), None, (Evidence(path=_source(run, "sdpa_audit.json"), text=message),))


_SDPA = re.compile(r"flash|mem_efficient|cudnn|sdpa_math")


def _fallback(run: RunRecord) -> Found:
    """A counted fallback, another path than the requested one, or a backend that the variant rules out."""
    if _scalar(run, "audit.attention") is None:
        return Found("INCONCLUSIVE", "The audit is silent, so a fallback cannot be ruled out.")
    counted: Mapping[str, int] = _extra(run, "fallbacks") or {}
    calls = sum(counted.values())
    if calls:
        names = listed([f"{name} {count} times" for name, count in sorted(counted.items())])
        where = (Evidence(path=_source(run, "fallback_counters.csv"), text=names),)
        return Found("FAIL", f"Attention fell back: {names}.", float(calls), 0, where)
    ran = str(_scalar(run, "audit.attention"))
    served = set(_SDPA.findall(ran))
    ruled_out = {
        "flash_only": served - {"flash"},
        "no_flash": served & {"flash"},
    }.get(run.spec.arm or "", served & {"sdpa_math"})
    if ruled_out:
        names = listed(sorted(ruled_out))
        where = (Evidence(path=_source(run, "sdpa_audit.json"), text=f"attention ran {ran}"),)
        wanted = {"flash_only": "flash alone", "no_flash": "anything but flash"}.get(
            run.spec.arm or "", "a fused kernel"
        )
        return Found("FAIL", f"Attention ran {names} where {wanted} was asked for.", ran, wanted, where)
    idle = (
        "" if served or run.spec.arm in (None, "plain") else "; no branch uses SDPA, so this variant restricts nothing"
    )
    return Found("PASS", f"Nothing fell back; attention ran {ran}{idle}.", 0.0, 0)


def _trace(run: RunRecord, wanted: int) -> Found:
    if _extra(run, "trace") is None:
        return Found("INCONCLUSIVE", "The trainer wrote no trace/summary.json, so where the time goes is not known.")
    done = _scalar(run, "profile.steps")
    where = (Evidence(path=_source(run, "trace/summary.json"), text=f"{done or 'no'} steps"),)
    if not isinstance(done, (int, float)) or done < wanted:
        return Found("FAIL", f"{number(done) if done else 'No'} of {wanted} steps were traced.", done, wanted, where)
    return Found("PASS", f"{number(done)} steps were traced.", done, wanted, where)


def _range_rule(pattern: str) -> Rule:
    return lambda run: _range(run, pattern)


def _range(run: RunRecord, pattern: str) -> Found:
    trace = _extra(run, "trace")
    seen = trace.get("ranges_seen") if isinstance(trace, Mapping) else None
    if not isinstance(seen, Mapping):
        return Found("INCONCLUSIVE", "There is no trace that names its ranges.", None, pattern)
    names = [name for name in seen if fnmatchcase(str(name), pattern)]
    text = f"{pattern}: {listed(names)}" if names else f"ranges: {listed([str(name) for name in seen]) or 'none'}"
    where = (Evidence(path=_source(run, "trace/summary.json"), where="ranges_seen", text=text),)
    if not names:
        return Found("FAIL", f"The trace holds no range {pattern}; it has {text}.", "absent", pattern, where)
    return Found("PASS", f"The trace holds {listed(names)}.", "present", pattern, where)


def _smoke(run: RunRecord, limit_s: float) -> Found:
    told = _extra(run, "smoke")
    bound = limit_s
    if not isinstance(told, Mapping):
        return Found(
            "INCONCLUSIVE", "The loader's trial printed no JSON, so nothing is known of the loader.", None, bound
        )
    path = None if run.result is None else run.result.log_path
    if told.get("error"):
        why = str(told.get("message") or "no reason was given").rstrip(".")
        where = (Evidence(path=path, text=why),)
        return Found("FAIL", f"The loader's trial failed ({told['error']}): {why}.", str(told["error"]), bound, where)
    wait_s = _scalar(run, "smoke.first_batch_s")
    if not isinstance(wait_s, (int, float)):
        return Found("INCONCLUSIVE", "The loader's trial does not tell when its first batch came.", None, bound)
    return _within(run, float(wait_s), limit_s, "The loader alone had its first batch", path)


def _first_batch(run: RunRecord, limit_s: float) -> Found:
    error = _extra(run, "loader_error")
    if error:
        where = (Evidence(path=error.get("path"), text=str(error.get("error"))),)
        return Found("FAIL", f"Rank {error.get('rank')} got no batch: {error.get('error')}.", "none", limit_s, where)
    found = None if run.result is None else run.result.scalars.get("startup.first_batch_s")
    if found is None or not isinstance(found.value, (int, float)):
        return Found("INCONCLUSIVE", "No heartbeat tells when the first batch came.", None, limit_s)
    return _within(run, float(found.value), limit_s, "The slowest rank had its first batch", found.source)


def _within(run: RunRecord, wait_s: float, limit_s: float, what: str, path: str | None) -> Found:
    message = f"{what} after {number(wait_s)} s" + ("." if wait_s <= limit_s else f", not within {number(limit_s)} s.")
    where = (Evidence(path=path, where=run.spec.id, text=message),)
    return Found("PASS" if wait_s <= limit_s else "FAIL", message, wait_s, limit_s, where)


def unreachable(record: PhaseRecord) -> str | None:
    """Why the data of a phase could not be reached from this machine, in the loader's words; None when they could."""
    if not isinstance(record.phase, DataPhase):
        return None
    for run in record.runs:
        told, error = _extra(run, "smoke"), _extra(run, "loader_error")
        if isinstance(told, Mapping) and told.get("error") == "unreachable":
            return str(told.get("message") or "the loader says no more")
        if isinstance(error, Mapping) and error.get("unreachable"):
            return str(error.get("error"))
    return None


def _slow_down_limit(phase: SoakPhase) -> float:
    """Per cent by which a soak may become slower: as a bound on `rate.drift_pct` declares, and never below 5 %."""
    limits = [_MIN_SLOW_DOWN]
    for criterion in phase.accept:
        with suppress(ExpressionError):
            comparison = parse_criterion(criterion.expr)
            sides = [side.right if isinstance(side, Binary) else side for side in (comparison.left, comparison.right)]
            if [one.name for one in references(comparison)] == ["rate.drift_pct"]:
                limits += [abs(side.value) for side in sides if isinstance(side, Number)]
    return max(limits)


def _sustained_rate(run: RunRecord, limit: float) -> Found:
    """Whether the last level is slower than the fastest before it, by more than its interval leaves in doubt."""
    measurement = measured(run)
    window = None if measurement is None else measurement.window_found
    if measurement is None or window is None:
        return Found("INCONCLUSIVE", "Whether the rate lasts is not known: the run was not measured.", None, limit)
    if not window.levels:
        return _over_few_rows(measurement, window.note, limit)
    if not window.slowed:
        return Found("PASS", "The run does not lastingly become slower.", 0.0, limit)
    *earlier, last = window.levels
    fastest = min(earlier, key=lambda level: level.mean)
    lost, least = 100 * (1 - fastest.mean / last.mean), 100 * (1 - fastest.high / last.low)
    message = (
        f"From step {last.first_step} on the rate is {number(lost)} % lower than in steps {fastest.first_step} to "
        f"{fastest.last_step}, at least {number(max(least, 0.0))} % by its interval"
    )
    if lost < limit:
        return Found("PASS", f"{message}; less than {number(limit)} % is allowed.", lost, limit)
    if least < limit:
        return Found("INCONCLUSIVE", f"{message}; more steps would show whether it is {number(limit)} %.", lost, limit)
    return Found("FAIL", f"{message}.", lost, limit)


def _over_few_rows(measurement: RunMeasurement, why: str, limit: float) -> Found:
    """The same where too few rows show levels: no row may be slower than another by the limit."""
    found = (measurement.windows.get(name) for name in ("step_time_s", "toks_per_s"))
    values = next((rows.values for rows in found if rows is not None and len(rows.values) > 1), None)
    if values is None or not (values > 0).all():
        return Found("INCONCLUSIVE", f"Whether the rate lasts is not known: {why}.", None, limit)
    lost = 100 * (1 - float(values.min() / values.max()))
    if lost < limit:
        return Found("PASS", f"The {len(values)} rows differ by {number(lost)} % at most.", lost, limit)
    message = f"The {len(values)} rows differ by up to {number(lost)} %, and so few show no lasting level: {why}."
    return Found("INCONCLUSIVE", message, lost, limit)

"""`collectives.json`: the time of each collective by size, and its fit. Anybody may have written it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from validator.documents import number_at
from validator.ingest.transports import read_transports
from validator.model.network import Curve, FitValue, NetworkRecord
from validator.stats.distributions import t_quantile
from validator.text import one_line


def read_network(record: Mapping[str, Any], source: str) -> NetworkRecord:
    """The record of a file `source`, with the fit of each collective."""
    found, wrong = record.get("collectives"), dict[int, int]()
    late: dict[str, tuple[float, ...]] = {}
    curves = []
    for name, listed_rows in found.items() if isinstance(found, Mapping) else ():
        rows = [row for row in listed_rows if isinstance(row, Mapping)] if isinstance(listed_rows, list) else []
        late[one_line(name, limit=30)] = _late(rows)
        for row in rows:
            for sender, count in _wrong(row.get("wrong")):
                wrong[sender] = wrong.get(sender, 0) + count
        curve = _curve(one_line(name, limit=30), rows)
        curves += [curve] if curve is not None else []
    skipped, ranks = record.get("skipped"), record.get("devices")
    devices = [one for one in ranks if isinstance(one, Mapping)] if isinstance(ranks, list) else []
    hosts = len({str(one.get("host")) for one in devices})
    return NetworkRecord(
        backend=one_line(record.get("backend") or "unknown", limit=20),
        devices=tuple(_device(one, hosts) for one in devices),
        curves=tuple(curves),
        late_s={name: each for name, each in late.items() if each},
        wrong=wrong,
        skipped={one_line(key, limit=30): one_line(why, limit=200) for key, why in skipped.items()}
        if isinstance(skipped, Mapping)
        else {},
        source=source,
        transports=read_transports(record.get("connections"), source),
    )


def _late(rows: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
    """By rank, the median over all sizes; empty where a row does not say it."""
    every = [row.get("late_s") for row in rows]
    known = [one for one in every if isinstance(one, list) and all(isinstance(value, (int, float)) for value in one)]
    ranks = min((len(one) for one in known), default=0)
    return tuple(statistics.median(float(one[rank]) for one in known) for rank in range(ranks))


def _wrong(found: Any) -> Iterator[tuple[int, int]]:
    """Rank that sent, and count, of what each rank received wrong."""
    for each in found.values() if isinstance(found, Mapping) else ():
        for sender, count in each.items() if isinstance(each, Mapping) else ():
            if str(sender).isdecimal() and isinstance(count, int):
                yield int(sender), count


def _device(found: Mapping[str, Any], hosts: int) -> str:
    """Of several hosts with the host's name: each has a GPU 0."""
    where = f"{one_line(found.get('host') or 'unknown host', limit=60)}, " if hosts > 1 else ""
    rank, index = int(number_at(found, "rank", least=0) or 0), number_at(found, "index", least=0)
    if index is None:
        return f"{where}CPU worker {rank}"
    known = filter(None, (one_line(found.get(key) or "", limit=60) for key in ("name", "uuid")))
    return f"{where}GPU {int(index)} ({', '.join(known)})"


def _curve(name: str, rows: Sequence[Mapping[str, Any]]) -> Curve | None:
    known = [
        (int(n), seconds, bus)
        for row in rows
        if (n := number_at(row, "bytes", least=0))
        and (seconds := number_at(row, "seconds", least=0))
        and (bus := number_at(row, "bus_gb_s", least=0))
    ]
    if not known:
        return None
    n_bytes, times_s, bus_gb_s = (tuple(column) for column in zip(*known, strict=True))
    factor = bus_gb_s[-1] * times_s[-1] * 1e9 / n_bytes[-1]
    latency, bandwidth = fit(n_bytes, times_s)
    in_us = None if latency is None else FitValue(*(1e6 * part for part in (latency.value, latency.low, latency.high)))
    in_gb = (
        None
        if bandwidth is None
        else FitValue(*(factor * part / 1e9 for part in (bandwidth.value, bandwidth.low, bandwidth.high)))
    )
    return Curve(name, n_bytes, times_s, bus_gb_s, in_us, in_gb)


def fit(n_bytes: Sequence[int], times_s: Sequence[float]) -> tuple[FitValue | None, FitValue | None]:
    """Latency in seconds and bandwidth in bytes per second of t = a + n / B, with 95 % intervals.

    Every size counts by its relative error, since times span orders of magnitude. The interval is from the residuals:
    a library that changes its algorithm with the size makes it wide. None with fewer than three sizes.
    """
    if len(n_bytes) < 3:
        return None, None
    # Columns 1/t and n/t, target 1: least squares of relative errors.
    ones, slopes = [1 / t for t in times_s], [n / t for n, t in zip(n_bytes, times_s, strict=True)]
    aa, ab, bb = (
        math.fsum(x * y for x, y in zip(one, other, strict=True))
        for one, other in ((ones, ones), (ones, slopes), (slopes, slopes))
    )
    determinant = aa * bb - ab * ab
    if determinant <= 0:
        return None, None
    a = (bb * math.fsum(ones) - ab * math.fsum(slopes)) / determinant
    b = (aa * math.fsum(slopes) - ab * math.fsum(ones)) / determinant
    rest = [1 - a * one - b * slope for one, slope in zip(ones, slopes, strict=True)]
    freedom = len(n_bytes) - 2
    variance = math.fsum(one * one for one in rest) / freedom
    reach = t_quantile(0.975, freedom)
    half_a, half_b = (reach * math.sqrt(variance * part / determinant) for part in (bb, aa))
    latency = FitValue(max(a, 0.0), max(a - half_a, 0.0), max(a + half_a, 0.0))
    if b <= 0:
        return latency, None
    return latency, FitValue(1 / b, 1 / (b + half_b), 1 / (b - half_b) if b > half_b else math.inf)

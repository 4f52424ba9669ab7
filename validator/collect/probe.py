"""`probe.json` and the telemetry beside it: what the machine can do, measured before anything is trained on it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from validator.collect.derive import scalar
from validator.collect.intake import Intake, printable, read_small
from validator.collect.trainer import read_json_object
from validator.files import is_file
from validator.model.measure import ScalarValue

__all__ = ["read_probe"]

_RATES = {
    "gemm_bf16": "probe.gemm_tflops",
    "copy": "probe.copy_gb_s",
    "host_to_device": "probe.host_to_device_gb_s",
    "device_to_host": "probe.device_to_host_gb_s",
    "peer_to_peer": "probe.peer_gb_s",
    "all_reduce": "probe.all_reduce_gb_s",
}
_LINK = {"_pcie_gen": "probe.pcie_gen", "_pcie_width": "probe.pcie_width"}


def read_probe(out: Path, intake: Intake) -> tuple[dict[str, ScalarValue], dict[str, Any]]:
    """The slowest rank's rate of each probe, the best state of the worst PCIe link, and a table by rank.

    What was not measured is absent. `extra["probe"]` holds the record as written.
    """
    read = read_json_object(out / "probe.json", intake, what="the probes' record")
    if read is None:
        return {}, {}
    record, source = read
    rates, told = record.get("rates"), record.get("ranks")
    ranks = [one for one in (told if told and isinstance(told, list) else [rates]) if isinstance(one, Mapping)]
    scalars: dict[str, ScalarValue] = {}
    for key, name in _RATES.items():
        values = [value for one in ranks if (value := _value(one, key)) is not None]
        scalars |= scalar(name, min(values) if values else None, source.path)
    best = [value for one in ranks if (value := _number(one.get("gemm_bf16"), "best")) is not None]
    scalars |= scalar("probe.gemm_best_tflops", min(best) if best else None, source.path)
    latency = _number(rates.get("all_reduce") if isinstance(rates, Mapping) else None, "latency_us")
    scalars |= scalar("probe.all_reduce_latency_us", latency, source.path)
    scalars |= _links(out / "logs" / "telemetry.csv", intake)
    return scalars, {"probe": record, "tables": [_table(ranks)]}


def _value(rates: Mapping[str, Any], key: str) -> float | None:
    return _number(rates.get(key), "value")


def _number(found: Any, key: str) -> float | None:
    value = found.get(key) if isinstance(found, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def _links(path: Path, intake: Intake) -> dict[str, ScalarValue]:
    """Idle links lower their generation, so of each GPU the best sample counts, and of the GPUs the worst."""
    read = read_small(path, intake, what="the machine's telemetry") if is_file(path) else None
    if read is None:
        return {}
    lines = [line.split(",") for line in read[0].decode("utf-8", "replace").splitlines() if line.strip()]
    header, rows = (lines or [[]])[0], lines[1:]
    found: dict[str, ScalarValue] = {}
    for ending, name in _LINK.items():
        columns = [index for index, column in enumerate(header) if column.endswith(ending)]
        best = [max(values) for column in columns if (values := list(_numbers(rows, column)))]
        found |= scalar(name, min(best) if best else None, read[1].path)
    return found


def _numbers(rows: list[list[str]], column: int) -> Iterator[float]:
    for row in rows:
        if column < len(row) and row[column].strip().isdecimal():
            yield float(row[column])


def _table(ranks: list[Mapping[str, Any]]) -> dict[str, Any]:
    """A line for each probe: its rate on every rank, with what it was measured on."""
    rows = []
    for key in dict.fromkeys(key for one in ranks for key in one):
        first = next(one[key] for one in ranks if key in one)
        unit = printable(str(first.get("unit", ""))) if isinstance(first, Mapping) else ""
        values = [_value(one, key) for one in ranks]
        rows.append([printable(str(key)), unit, *(None if value is None else round(value, 2) for value in values)])
    columns = ["Probe", "Unit", *(f"Rank {rank}" for rank in range(len(ranks)))]
    return {"caption": "What the machine can do", "columns": columns, "rows": rows}

"""A run across nodes: how the part of each ended, and what it measured where each worked alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from validator.files import parsed_file
from validator.model.machine import NODES_ALONE
from validator.model.nodes import NodeRecord, NodeRecords, failed
from validator.model.plan import RunSpec
from validator.model.result import Floats, Result, RunTable, ScalarValue


def read_nodes(out: Path) -> tuple[NodeRecord, ...]:
    """The nodes of a run, by the record that its step left; empty where there is none."""
    found = parsed_file(out / "nodes.json", NodeRecords.model_validate_json)
    return () if found is None else found.nodes


def slowest_group(spec: RunSpec, collect: Callable[[RunSpec], Result], *, run_dir: Path) -> Result:
    """What the slowest of several groups left, for no node may be slower than the bound; with the rates of all.

    Args:
        collect: reads the folder of one group, which reads like a run of its own.
    """
    nodes = read_nodes(run_dir / spec.out)
    found: list[tuple[float, str, Result]] = []
    for index, group in enumerate(spec.groups):
        result = collect(spec.model_copy(update={"out": f"{spec.out}/g{index}", "groups": (group,)}))
        name = next((one.node for one in nodes if one.group == index and one.rank == 0), f"g{index}")
        found.append((_steps_per_s(result, np.median, warmup_steps=spec.warmup_steps), name, result))
    rates = {name: rate for rate, name, _ in found}
    means = {name: _steps_per_s(result, np.mean, warmup_steps=spec.warmup_steps) for _, name, result in found}
    slowest = min(found, key=lambda one: (one[0], one[1]))[2]
    bad = next(iter(failed(nodes)), None)
    if bad is not None:  # what it printed explains the run's end, not what the slowest one did
        log = found[bad.group][2]
        slowest = replace(slowest, log_path=log.log_path, log_tail=log.log_tail)
    counted = tuple(replace(one, node=name) for _, name, result in found for one in result.evidence.counted)
    others = {name: one for _, name, part in found if part is not slowest and (one := part.evidence.samples)}
    evidence = replace(slowest.evidence, nodes=nodes, node_rates=means, counted=counted, node_samples=others)
    evidence.tables = (*evidence.tables, _table(rates))
    return replace(slowest, evidence=evidence, scalars={**slowest.scalars, **least_of(rates)})


def least_of(rates: dict[str, float]) -> dict[str, ScalarValue]:
    """`nodes.min`: the least of the nodes' rates, as a share of their median."""
    values = list(rates.values())
    middle = float(np.median(values)) if values else 0.0
    if not middle > 0:
        return {}
    slowest = min(rates, key=lambda name: (rates[name], name))
    return {"nodes.min": ScalarValue(value=rates[slowest] / middle, note=f"{slowest} is the slowest of {len(rates)}")}


def _steps_per_s(result: Result, middle: Callable[[Floats], np.floating[Any]], *, warmup_steps: int) -> float:
    """By the `middle` of the steps' times; 0 where nothing was measured, which is slower than everything."""
    for name in ("step_time_s", "toks_per_s"):
        series = result.series.get(name)
        if series is not None:
            values = series.values[(series.steps > warmup_steps) & np.isfinite(series.values) & (series.values > 0)]
            if values.size:
                return 1.0 / float(middle(values if name == "step_time_s" else 1.0 / values))
    return 0.0


def _table(rates: dict[str, float]) -> RunTable:
    middle = float(np.median(list(rates.values())))
    rows = tuple((name, rate, rate / middle if middle > 0 else None) for name, rate in rates.items())
    return RunTable(caption=NODES_ALONE, columns=("Node", "Steps per second", "Of the median"), rows=rows)

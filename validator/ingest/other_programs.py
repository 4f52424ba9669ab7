"""Other programs on the GPUs of a run that has no steps: a probe, a burn-in, collectives.

Training runs leave the steps out that were shared; here the whole run is one measurement, so that it is only said who
was there, and whether that program computed. NVML gives the utilization of a GPU and not of a process: what others use
shows in the samples in which no process of the run is on the GPU yet, or any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from validator.files import is_file
from validator.ingest.read_log import ReadLog
from validator.ingest.telemetry import OTHER_PROCESSES, other_processes, read_samples
from validator.model.nodes import NodeRecord
from validator.model.other_program import BUSY_PCT, OtherProgram
from validator.model.result import Samples
from validator.text import one_line

_SETTLED_S = 1.0
"""NVML's utilization is that of up to a second before: the first samples may be of the run before."""

_FEW = 3


def read_other_programs(
    out: Path, nodes: tuple[NodeRecord, ...], groups: int, read_log: ReadLog
) -> tuple[OtherProgram, ...]:
    """Each GPU of the run, by node, on which another program was seen, or which computed before the run was on it."""
    found: list[OtherProgram] = []
    for node, folder in log_folders(out, nodes, groups):
        path = folder / "telemetry.csv"
        samples = read_samples(path, read_log) if is_file(path) else None
        if samples is not None:
            found += _on_node(node, samples, other_processes(path.with_name("gpu_processes.jsonl"), read_log))
    return tuple(found)


def log_folders(out: Path, nodes: tuple[NodeRecord, ...], groups: int) -> Iterator[tuple[str, Path]]:
    """The logs of each node: those of the first of a group lie in the group's own folder."""
    if not nodes:
        yield "", out / "logs"
    for one in nodes:
        group = out / f"g{one.group}" if groups > 1 else out
        yield one.node, group / "logs" if one.rank == 0 else group / "nodes" / one_line(one.node) / "logs"


def _on_node(node: str, samples: Samples, names: Mapping[str, str]) -> Iterator[OtherProgram]:
    for column, others in samples.columns.items():
        gpu = column.removesuffix(OTHER_PROCESSES)
        processes, used = (samples.columns.get(f"{gpu}_{name}") for name in ("processes", "util_pct"))
        if gpu == column or not gpu.removeprefix("gpu").isdecimal() or processes is None:
            continue
        own = processes > others  # NaN compares as False
        if not own.any():
            continue  # a GPU that the run does not use, or a container in which NVML lists no process of it
        known = np.isfinite(processes) & np.isfinite(others)
        without = known & ~own & (samples.times_s >= samples.times_s[0] + _SETTLED_S)
        present = known & (others > 0)
        alone = without & present if present.any() else without & (samples.times_s < samples.times_s[own][0])
        level = None if used is None else used[alone & np.isfinite(used)]
        pct = None if level is None or level.size < _FEW else float(np.median(level))
        if present.any() or (pct is not None and pct >= BUSY_PCT):
            share = float(present.sum() / known.sum())
            yield OtherProgram(node, int(gpu[3:]), names.get(gpu, ""), share, pct, samples.source.path)

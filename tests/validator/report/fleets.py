"""Fleets to render: a simulated search, and the facts that nodes leave."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.fleet import MEASURES, Fleet, searched
from validator.cluster.values import fleet_of
from validator.model.fleet import Fleet as FleetValues
from validator.model.fleet import ScalingPoint
from validator.model.nodes import NodeRecord

__all__ = ["facts", "fleet", "record"]


def facts(number: int, **changes: Any) -> dict[str, Any]:
    """The snapshot of a node with eight GPUs; `changes` replace top-level keys."""
    gpus = {
        f"gpu{index}": {
            "index": index,
            "uuid": f"GPU-{number:08x}-0000-4000-8000-{index:012x}",
            "name": "NVIDIA H100 80GB HBM3",
            "serial": f"16{number:04d}{index:04d}",
            "power_limit_w": 700.0,
            "sm_clock_max_mhz": 1980,
            "vbios": "96.00.89.00.01",
        }
        for index in range(8)
    }
    return {
        "system": "Linux 6.8.0 x86_64",
        "python": {"version": "3.11.9"},
        "packages": {"torch": "2.13.0", "nvidia-nccl-cu12": "2.27.5"},
        "cpu": {"model": "AMD EPYC 9654", "cores_logical": 192},
        "memory": {"total_gib": 1511.0},
        "gpu_driver": {"driver": "570.86.15"},
        "gpus": gpus,
        "mounts": {"/data": "nfs4"},
        **changes,
    }


def record(number: int, *, known: dict[str, Any] | None = None, **changes: Any) -> NodeRecord:
    """What a node leaves of a run that ended well."""
    values = {
        "node": f"n{number:03d}",
        "group": number,
        "rank": 0,
        "host": f"gpu-{number}.dc1",
        "ended": "exited",
        "rc": 0,
    }
    return NodeRecord(
        **{**values, "clock_offset_s": 0.01, "facts": facts(number) if known is None else known, **changes}
    )


def fleet(size: int = 8, fault: str = "slow GPU", count: int = 1, seed: int = 3, **changes: Any) -> FleetValues:
    """A fleet of so many nodes after its search, with the environment of all alike."""
    judgement, _ = searched(Fleet(size, fault, "normal", count, np.random.default_rng(seed)))
    scaling = (ScalingPoint(nodes=1, value=50_000.0, low=49_600.0, high=50_400.0),
               ScalingPoint(nodes=2, value=98_200.0, low=97_000.0, high=99_400.0),
               ScalingPoint(nodes=4, value=189_000.0, low=186_000.0, high=192_000.0))  # fmt: skip
    given = {
        "judgement": judgement,
        "measures": MEASURES,
        "records": tuple(record(number) for number in range(size)),
        "wanted": size,
        "engine": "slurm",
        "scaling": scaling,
    }
    return fleet_of(**{**given, **changes})

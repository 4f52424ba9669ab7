"""Cases of the machine: memory, devices, links, data, and what preflight finds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from validator.model.verdict import Check
from validator.selftest.case import Case, Expected
from validator.selftest.runbooks import book, train
from validator.selftest.scene import Play, scene
from validator.selftest.sheet import Sheet, scatter

__all__ = ["MACHINERY"]

_MACHINE: Mapping[str, Any] = {"cpu": {"cores_logical": 16}, "gpus": {"gpu0": {"memory_total_mib": 81_920.0}}}


def telemetry(*, gpu_pct: float, throttled: range = range(0)) -> dict[str, str]:
    """A sample of the machine every tenth of a second over the run's length; `throttled` counts samples."""
    import time

    start_s = time.time() - 20.0
    rows = (f"{start_s + 0.1 * i:.3f},12,{gpu_pct},{0x40 if i in throttled else 0}" for i in range(220))
    return {"logs/telemetry.csv": "\n".join(("ts,host_cpu_pct,gpu0_util_pct,gpu0_throttle_mask", *rows)) + "\n"}


def sampled(sheet: Sheet, *, gpu_pct: float, throttled: range = range(0)) -> Play:
    """A run beside which the machine was sampled."""
    from dataclasses import replace

    def play(stage: Any) -> Any:
        own = replace(sheet, files=telemetry(gpu_pct=gpu_pct, throttled=throttled))
        return scene(book(), lambda spec: own, machine=_MACHINE)(stage)

    return play


def failed_check(id: str, message: str) -> Play:
    """A preflight in which one check fails, and a healthy baseline behind it."""
    bad = Check(id=id, title=id, status="FAIL", observed="3", expected="0", message=message)
    good = Check(id="disk_free", title="free space", status="PASS", observed="900 GiB")
    phases = ({"id": "preflight", "kind": "preflight"}, train())
    return scene(book(*phases), lambda spec: Sheet(), checks={"preflight": (good, bad)})


def _case(name: str, title: str, expect: Expected, sheet: Sheet | Play, *codes: str) -> Case:
    play = scene(book(), lambda spec: sheet, machine=_MACHINE) if isinstance(sheet, Sheet) else sheet
    return Case(name, title, "machine", expect, play, codes)


def ramp(first: float, per_step: float, n: int = 120) -> list[float]:
    """A value that rises by as much every step."""
    return [first + per_step * i for i in range(n)]


_NCCL = "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3384, unhandled system error\n"
_RATES = scatter(40_000.0)

MACHINERY: tuple[Case, ...] = (
    _case(
        "memory-nearly-full",
        "94 % of the GPU's memory is taken",
        *("GO", Sheet(columns={"gpu_mem_reserved_mib": [77_000.0] * 120}), "low-headroom"),
    ),
    _case(
        "memory-leak",
        "memory rises by 5 MiB a step to the end",
        *("GO", Sheet(columns={"host_mem_mib": ramp(1000.0, 5.0)}), "memory-growth"),
    ),
    _case(
        "slow-data",
        "41 % of a step is spent waiting for a batch",
        "GO",
        Sheet(fields={"dt_fetch_s": 0.042}),
        "loader-bound",
    ),
    _case("slow-links", "even the busiest rank waits for 60 % of a step", "GO", Sheet(compute_share=0.4), "comm-bound"),
    _case(
        "straggler", "rank 1 needs twice as long", "GO", Sheet(rank_fields={0: {"compute_time_s": 0.048}}), "straggler"
    ),
    _case(
        "idle-gpu",
        "the GPU is busy for 24 % of the time, the processor is not idle",
        *("GO", sampled(Sheet(), gpu_pct=24.0), "host-bound"),
    ),
    _case(
        "throttled-gpu",
        "the GPU slows itself down for heat while it is measured: its rate counts, as a long run's does",
        *("GO", sampled(Sheet(), gpu_pct=97.0, throttled=range(80, 130)), "throttled"),
    ),
    _case(
        "unhealthy-gpu",
        "uncorrectable memory errors",
        *("NO_GO", failed_check("gpu_ecc", "3 uncorrectable ECC errors since the last reset."), "unhealthy-gpu"),
    ),
    _case(
        "somebody-else-on-the-gpu",
        "a foreign process before anything was started",
        *("NO_GO", failed_check("gpu_processes", "process 4711 holds 8 GiB on GPU 0."), "leftover-process"),
    ),
    _case(
        "disk-nearly-full",
        "less free space than the runbook asks for",
        *("NO_GO", failed_check("disk_free_space", "3 GiB are free, 50 GiB are needed."), "disk-full"),
    ),
    _case(
        "nccl-error",
        "communication between ranks fails",
        *("NO_GO", Sheet(rc=1, stderr=_NCCL, detail="exited with code 1", without=("metrics.json",)), "nccl-error"),
    ),
)

"""`python -m nsa.probe`, alone or under torchrun: what this machine can do, as JSON.

Matrix products, memory copies, transfers between host and device and between devices, and, with several processes,
the all-reduce. Rates are medians over repeats after a warm-up, so that one disturbed repeat does not count.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from nsa.interrupt import answer_ctrl_c, leave_at_ctrl_c

if __name__ == "__main__":
    leave_at_ctrl_c()

import torch
import torch.distributed as dist

from nsa.argument_types import positive_int
from nsa.parallel import World, hand_out, measure_in_world
from nsa.telemetry.environment import software

__all__ = ["bus_bandwidth_gb_s", "main", "peer_copy", "probe", "transfer"]

SCHEMA_VERSION = 1
GB = 1e9


def _seconds(work: Callable[[], object], device: torch.device, *, repeats: int) -> list[float]:
    """Seconds of each of `repeats` runs of `work`, after two that do not count."""
    times = []
    for _ in range(repeats + 2):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - began)
    return times[2:]


def _rate(amount: float, unit: str, times: list[float], **facts: Any) -> dict[str, Any]:
    """A measured rate with its spread: `value` from the median time, `best` and `worst` from the extremes, `values` of
    each repeat."""
    return {
        "value": amount / statistics.median(times),
        "unit": unit,
        "best": amount / min(times),
        "worst": amount / max(times),
        "values": [amount / one for one in times],
        **facts,
    }


def _gemm(device: torch.device, size: int, dtype: torch.dtype, repeats: int) -> dict[str, Any]:
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    inner = 10 if device.type == "cuda" else 1
    timing = _seconds(lambda: [a @ b for _ in range(inner)], device, repeats=repeats)
    return _rate(2 * size**3 * inner / 1e12, "TFLOP/s", timing, size=size, dtype=str(dtype).removeprefix("torch."))


def _copy(device: torch.device, n_bytes: int, repeats: int) -> dict[str, Any]:
    source = torch.zeros(n_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    timing = _seconds(lambda: target.copy_(source), device, repeats=repeats)
    return _rate(2 * n_bytes / GB, "GB/s", timing, bytes=n_bytes, counts="bytes read and written")


def _in_turn(world: World, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """One rank after the other, since devices may share a link to the host; every rank's own result."""
    mine: dict[str, Any] = {}
    for rank in range(world.size):
        if rank == world.rank:
            mine = work()
        if world.backend:
            dist.barrier()
    return mine


def transfer(device: torch.device, n_bytes: int, repeats: int, *, to_device: bool) -> dict[str, Any]:
    """The rate of copies between pinned memory of the host and a GPU."""
    host = torch.zeros(n_bytes, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(n_bytes, dtype=torch.uint8, device=device)
    source, target = (host, there) if to_device else (there, host)
    timing = _seconds(lambda: target.copy_(source, non_blocking=True), device, repeats=repeats)
    return _rate(n_bytes / GB, "GB/s", timing, bytes=n_bytes, memory="pinned")


def peer_copy(device: torch.device, other: torch.device, n_bytes: int, repeats: int) -> dict[str, Any]:
    """The rate of copies from this GPU to another one, and whether the driver lets them reach each other."""
    assert device.index is not None
    source = torch.zeros(n_bytes, dtype=torch.uint8, device=device)
    target = torch.empty(n_bytes, dtype=torch.uint8, device=other)

    def copy() -> None:
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize(other)

    direct = torch.cuda.can_device_access_peer(device.index, other.index or 0)
    return _rate(n_bytes / GB, "GB/s", _seconds(copy, device, repeats=repeats), bytes=n_bytes, direct=direct)


def _peer(device: torch.device, n_bytes: int, repeats: int) -> dict[str, Any]:
    """Copy from this device to the next visible one."""
    assert device.index is not None
    other = torch.device("cuda", (device.index + 1) % torch.cuda.device_count())
    return peer_copy(device, other, n_bytes, repeats)


def bus_bandwidth_gb_s(n_bytes: int, world_size: int, seconds: float) -> float:
    """The all-reduce's bus bandwidth as nccl-tests defines it: 2·(n−1)/n of the bytes over the time."""
    return n_bytes / GB / seconds * 2 * (world_size - 1) / world_size


def _all_reduce(world: World, n_bytes: int, repeats: int) -> dict[str, Any]:
    buffer = torch.zeros(n_bytes // 4, dtype=torch.float32, device=world.device)
    times = _seconds(lambda: dist.all_reduce(buffer), world.device, repeats=repeats)
    latency_s = statistics.median(_seconds(lambda: dist.all_reduce(buffer[:1]), world.device, repeats=repeats))
    return _rate(
        bus_bandwidth_gb_s(n_bytes, world.size, 1.0),
        "GB/s",
        times,
        bytes=n_bytes,
        counts="bus bandwidth",
        world_size=world.size,
        backend=world.backend,
        latency_us=latency_s * 1e6,
    )


def probe(world: World, *, gemm_size: int, mib: int, repeats: int, only: Collection[str] = ()) -> dict[str, Any]:
    """Measure everything this device and process group offer, or what `only` names of it; what is not there is absent,
    never zero."""
    device, n_bytes, cuda = world.device, mib * 2**20, world.on_cuda
    peers = cuda and torch.cuda.device_count() > 1
    offered: dict[str, tuple[bool, Callable[[], dict[str, Any]]]] = {
        "gemm_bf16": (True, lambda: _gemm(device, gemm_size, torch.bfloat16, repeats)),
        "gemm_fp32": (not cuda, lambda: _gemm(device, gemm_size, torch.float32, repeats)),
        "copy": (True, lambda: _copy(device, n_bytes, repeats)),
        "host_to_device": (cuda, lambda: _in_turn(world, lambda: transfer(device, n_bytes, repeats, to_device=True))),
        "device_to_host": (cuda, lambda: _in_turn(world, lambda: transfer(device, n_bytes, repeats, to_device=False))),
        "peer_to_peer": (peers, lambda: _in_turn(world, lambda: _peer(device, n_bytes, repeats))),
        "all_reduce": (world.size > 1, lambda: _all_reduce(world, n_bytes, repeats)),
    }
    rates = {name: work() for name, (there, work) in offered.items() if there and (not only or name in only)}
    assert all(math.isfinite(rate["value"]) for rate in rates.values())
    return {
        "schema_version": SCHEMA_VERSION,
        "time_unix_s": time.time(),
        **software(device),
        "rank": world.rank,
        "world_size": world.size,
        "repeats": repeats,
        "rates": rates,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nsa.probe",
        description="Measure what this machine can do, and print it as JSON. Start it alone or under torchrun.",
    )
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: CUDA where present")
    parser.add_argument("--gemm-size", type=positive_int, help="rows of the square matrices; 8192 on a GPU, else 512")
    parser.add_argument("--mib", type=positive_int, help="size of copies and reductions, MiB; 1024 on a GPU, else 16")
    parser.add_argument("--repeats", type=positive_int, default=10, help="runs of each measurement; 10 if not given")
    parser.add_argument(
        "--only", action="append", default=[], help="measure this alone, such as all_reduce; repeatable"
    )
    parser.add_argument("--out", type=Path, help="write rank 0's record to this file instead of standard output")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Probe and print rank 0's record, with every rank's rates under `ranks`; 0, 2 when there is no such device, 130
    when interrupted."""
    args = _parser().parse_args(argv)

    def work(world: World) -> None:
        size = args.gemm_size or (8192 if world.on_cuda else 512)
        mib = args.mib or (1024 if world.on_cuda else 16)
        record = probe(world, gemm_size=size, mib=mib, repeats=args.repeats, only=args.only)
        ranks: list[Any] = [None] * world.size
        if world.backend:
            dist.all_gather_object(ranks, record["rates"])
        else:
            ranks = [record["rates"]]
        hand_out({**record, "ranks": ranks}, world, args.out)

    place, lost = Path(os.curdir), "; nothing was written"
    return measure_in_world("nsa.probe", work, device=args.device, timeout_s=120.0, out=place, lost=lost)


if __name__ == "__main__":
    answer_ctrl_c()
    sys.exit(main())

"""`python -m nsa.collectives` under torchrun: how long each collective takes by its size, as JSON.

Sizes and bus bandwidth are those of nccl-tests: the bytes of the whole buffer of one rank, and the bytes that a link
must carry at least. Every answer is known: the values are whole numbers, so that a sum is exact in any order.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsa.interrupt import answer_ctrl_c, leave_at_ctrl_c

if __name__ == "__main__":
    leave_at_ctrl_c()

import torch
import torch.distributed as dist

from nsa.argument_types import positive_int
from nsa.nccl_log import Connections, NcclLog
from nsa.parallel import World, hand_out, measure_in_world
from nsa.probe import peer_copy, transfer
from nsa.telemetry.environment import software

__all__ = ["COLLECTIVES", "Collective", "main", "make"]

SCHEMA_VERSION = 1
KIB, MIB, GIB = 2**10, 2**20, 2**30
WORD = 4
"""Bytes of a float32, in which values and their sums over ranks are exact."""

# Their names up to torch 2.12, and from then on.
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

_PERIOD = 1009
"""The values repeat after a prime number of elements, so that a block that lands elsewhere is not the right one."""

_MAX_ON_GPU, _MAX_ON_CPU = 4 * GIB, 4 * MIB
_SHARE = 0.12
"""Of the free memory for one buffer: there are up to five of them while one is made."""

_LEAST_S = 0.05
"""Time of one repeat, so that a late start counts for little: at 4 GiB on two H200 a single call showed 1.3 % more."""

_MOST_CALLS = 50

_PEER_BYTES, _PEER_REPEATS = 256 * MIB, 5
"""Of a copy between two GPUs, which takes a millisecond over NVLink and ten through the host."""


@dataclass(frozen=True)
class Collective:
    """One collective on one buffer size: `start` posts it, `wrong` counts wrong elements of the last answer by the
    rank that sent them; a sum is everybody's, and counts for the rank that received it."""

    name: str
    n_bytes: int
    start: Callable[[], Any]
    wrong: Callable[[], dict[int, int]]


def _values(count: int, device: torch.device) -> torch.Tensor:
    return (torch.arange(count, device=device, dtype=torch.int32) % _PERIOD).to(torch.float32)


def _waited(world: World) -> bool:
    """Whether a call is posted, and then waited for, which tells the two apart in time. NCCL only posts anyway."""
    return not world.on_cuda


def _unequal(found: torch.Tensor, right: torch.Tensor) -> int:
    """Elements that differ in any bit."""
    return int((found.view(torch.int32) != right.view(torch.int32)).sum())


def _sum_of(world: World) -> int:
    return world.size * (world.size + 1) // 2


def _all_reduce(world: World, words: int) -> tuple[Callable[[], Any], Callable[[], dict[int, int]]]:
    plain = _values(words, world.device)
    mine, right = plain * (world.rank + 1), plain * _sum_of(world)
    found = mine.clone()

    def wrong() -> dict[int, int]:
        found.copy_(mine)  # it is reduced in place, as trainers do, so that a second call sums sums
        dist.all_reduce(found)
        count = _unequal(found, right)
        return {world.rank: count} if count else {}

    return lambda: dist.all_reduce(found, async_op=_waited(world)), wrong


def _all_gather(world: World, words: int) -> tuple[Callable[[], Any], Callable[[], dict[int, int]]]:
    part = words // world.size
    plain, found = _values(part, world.device), torch.empty(part * world.size, device=world.device)
    mine = plain * (world.rank + 1)
    return (
        lambda: _gather(found, mine, async_op=_waited(world)),
        lambda: _by_sender(found.fill_(-1), lambda: _gather(found, mine), plain, world),
    )


def _all_to_all(world: World, words: int) -> tuple[Callable[[], Any], Callable[[], dict[int, int]]]:
    part = words // world.size
    plain, found = _values(part, world.device), torch.empty(part * world.size, device=world.device)
    mine = (plain * (world.rank + 1)).repeat(world.size)
    return (
        lambda: dist.all_to_all_single(found, mine, async_op=_waited(world)),
        lambda: _by_sender(found.fill_(-1), lambda: dist.all_to_all_single(found, mine), plain, world),
    )


def _by_sender(found: torch.Tensor, call: Callable[[], Any], plain: torch.Tensor, world: World) -> dict[int, int]:
    call()
    parts = enumerate(found.view(world.size, -1))
    return {rank: count for rank, part in parts if (count := _unequal(part, plain * (rank + 1)))}


def _reduce_scatter(world: World, words: int) -> tuple[Callable[[], Any], Callable[[], dict[int, int]]]:
    part = words // world.size
    plain = _values(part * world.size, world.device)
    mine, found = plain * (world.rank + 1), torch.empty(part, device=world.device)
    right = (plain * _sum_of(world))[world.rank * part : (world.rank + 1) * part]

    def wrong() -> dict[int, int]:
        found.fill_(-1)
        _scatter(found, mine)
        count = _unequal(found, right)
        return {world.rank: count} if count else {}

    return lambda: _scatter(found, mine, async_op=_waited(world)), wrong


COLLECTIVES: dict[str, tuple[Callable[[World, int], Any], Callable[[int], float]]] = {
    "all_reduce": (_all_reduce, lambda n: 2 * (n - 1) / n),
    "all_gather": (_all_gather, lambda n: (n - 1) / n),
    "reduce_scatter": (_reduce_scatter, lambda n: (n - 1) / n),
    "all_to_all": (_all_to_all, lambda n: (n - 1) / n),
}
"""What makes each, and the share of its bytes that a link carries among n ranks."""


def make(name: str, world: World, n_bytes: int) -> Collective:
    """A collective with buffers of `n_bytes`, rounded down to equal parts for every rank."""
    words = max(world.size, n_bytes // WORD // world.size * world.size)
    start, wrong = COLLECTIVES[name][0](world, words)
    return Collective(name, words * WORD, start, wrong)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _timed(one: Collective, world: World, calls: int) -> tuple[float, float]:
    """Seconds of a call, the mean of some in a row, and when this rank had posted the first, on the host's clock."""
    dist.barrier()
    _synchronize(world.device)
    began = time.perf_counter()
    posted = 0.0
    for _ in range(calls):
        work = one.start()
        posted = posted or time.clock_gettime(time.CLOCK_MONOTONIC)
        if work is not None:
            work.wait()
    _synchronize(world.device)
    return (time.perf_counter() - began) / calls, posted


def _everyones(mine: Any, world: World) -> list[Any]:
    if not world.backend:
        return [mine]
    found: list[Any] = [None] * world.size
    dist.all_gather_object(found, mine)
    return found


def _calls(one: Collective, world: World) -> int:
    """How many calls fill a repeat: the same on every rank."""
    _timed(one, world, 2)
    slowest_s = max(_everyones(_timed(one, world, 2)[0], world))
    return max(1, min(_MOST_CALLS, int(_LEAST_S / max(slowest_s, 1e-9))))


def measure(name: str, world: World, n_bytes: int, repeats: int) -> dict[str, Any]:
    """A row: the median of the repeats, each as slow as its slowest rank; how late each rank was; wrong elements."""
    one = make(name, world, n_bytes)
    calls = _calls(one, world)
    rows = [_everyones(_timed(one, world, calls), world) for _ in range(repeats)]
    times = [max(seconds for seconds, _ in row) for row in rows]
    late = [[posted - min(at for _, at in row) for _, posted in row] for row in rows]
    wrong = _everyones(one.wrong(), world)
    seconds = statistics.median(times)
    return {
        "bytes": one.n_bytes,
        "calls": calls,
        "seconds": seconds,
        "times_s": times,
        "bus_gb_s": one.n_bytes / seconds / 1e9 * COLLECTIVES[name][1](world.size),
        "late_s": [statistics.median(each) for each in zip(*late, strict=True)],
        "wrong": {str(rank): found for rank, found in enumerate(wrong) if found},
    }


def sizes(world: World, most: int | None) -> Iterator[int]:
    """From 1 KiB in steps of four, up to `most`, or to 4 GiB on a GPU and 4 MiB elsewhere, as far as memory allows."""
    limit = most or (_MAX_ON_GPU if world.on_cuda else _MAX_ON_CPU)
    if world.on_cuda:
        free = min(_everyones(torch.cuda.mem_get_info(world.device)[0], world))
        limit = min(limit, int(free * _SHARE))
    n_bytes = KIB
    while n_bytes <= limit:
        yield n_bytes
        n_bytes *= 4


def device_facts(world: World) -> dict[str, Any]:
    """What identifies the device of this rank, as far as torch knows it."""
    facts: dict[str, Any] = {"rank": world.rank, "type": world.device.type, "host": os.uname().nodename}
    facts |= {"group": os.environ.get("GROUP_RANK")}  # ranks of one launcher are on one machine, whatever its name is
    if world.on_cuda:
        found = torch.cuda.get_device_properties(world.device)
        facts |= {"name": found.name, "uuid": _uuid(world.device), "index": world.device.index}
    return facts


def connections(world: World, log: NcclLog, devices: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How the ranks reach each other, by NCCL's log of each, and how fast copies between GPUs are where that matters:
    where a connection of one machine is not direct, or nothing is known of any."""
    group = devices[world.rank]["group"]
    mine = [at for at, one in enumerate(devices) if one["group"] == group] if group is not None else [world.rank]
    near = range(min(mine), max(mine) + 1)  # a launcher numbers its ranks in a row
    found = Connections.read(log.lines()).of_ranks(near, world.rank)
    configured = sorted(name for name in found["settings"] if name not in log.given)
    ranks = _everyones({"log": log.path.name, **found, "configured": configured}, world)
    copies = _copies(world, near, _to_measure(ranks, near, world.rank), devices)
    return {"ranks": ranks, "copies": [one for each in _everyones(copies, world) for one in each]}


def _to_measure(ranks: Sequence[dict[str, Any]], near: range, rank: int) -> list[int]:
    """The ranks of this machine to which this one copies: each pair is measured once, by its lower rank."""
    every = [one for each in ranks for one in each["via"]]
    if not any(one["via"] or one["far"] for one in ranks):
        return [near[(rank - near[0] + 1) % len(near)]] if len(near) > 1 else []
    pairs = {tuple(sorted(one[:2])) for one in every}
    direct = {tuple(sorted(one[:2])) for one in every if one[2].startswith("P2P/")}
    return sorted(other for low, other in pairs - direct if low == rank and other in near)


def _copies(world: World, near: range, to: Sequence[int], devices: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Copies to the GPUs of other ranks as far as this process sees them, one rank of a machine after the other."""
    visible = {_uuid(torch.device("cuda", at)): at for at in range(torch.cuda.device_count())}
    found: list[dict[str, Any]] = []
    for turn in range(max(_everyones(len(near) if to else 0, world))):
        for other in to if near[0] + turn == world.rank else ():
            at = visible.get(devices[other].get("uuid") or "unknown")
            if at is None or at == world.device.index:
                continue
            with suppress(RuntimeError):  # no memory left there, say: then it is not known, and the others wait for us
                found.append({"from": world.rank, "to": other, **_copied(world.device, torch.device("cuda", at))})
        dist.barrier()
    return found


def _copied(device: torch.device, other: torch.device) -> dict[str, Any]:
    """GB/s from one GPU to another and, the better direction, between the first and the host."""
    peer = peer_copy(device, other, _PEER_BYTES, _PEER_REPEATS)
    host = (transfer(device, _PEER_BYTES, _PEER_REPEATS, to_device=to_device) for to_device in (True, False))
    return {"gb_s": peer["value"], "direct": peer["direct"], "host_gb_s": max(one["value"] for one in host)}


def _uuid(device: torch.device) -> str:
    return str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))


def _skipped(name: str, world: World) -> str | None:
    """Why the backend cannot carry a collective out; None where it can. All ranks find the same."""
    try:
        make(name, world, KIB).wrong()
    except (NotImplementedError, RuntimeError) as error:
        return f"{world.backend} does not carry it out: {str(error).splitlines()[0][:200]}"
    return None


def record_of(
    world: World, *, most: int | None, repeats: int, only: Sequence[str], log: NcclLog | None = None
) -> dict[str, Any]:
    """Everything that was measured, the same on every rank; `log` is what NCCL writes."""
    found: dict[str, Any] = {}
    skipped: dict[str, str] = {}
    for name in (one for one in COLLECTIVES if world.size > 1 and (not only or one in only)):
        why = _skipped(name, world)
        if why is not None:
            skipped[name] = why
            continue
        found[name] = [measure(name, world, n_bytes, repeats) for n_bytes in sizes(world, most)]
        if world.on_cuda:
            torch.cuda.empty_cache()
    devices = _everyones(device_facts(world), world)
    reached = connections(world, log, devices) if log is not None and world.on_cuda and found else {}
    return {
        "schema_version": SCHEMA_VERSION,
        **software(world.device),
        "backend": world.backend,
        "world_size": world.size,
        "repeats": repeats,
        "devices": devices,
        "connections": reached,
        "collectives": found,
        "skipped": skipped,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nsa.collectives",
        description="Measure collectives by size, and print the times as JSON. Start it under torchrun.",
    )
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: CUDA where present")
    parser.add_argument("--max-bytes", type=positive_int, help="largest buffer; 4 GiB on a GPU, else 4 MiB")
    parser.add_argument("--repeats", type=positive_int, default=5, help="repeats of each size; 5 if not given")
    parser.add_argument("--only", action="append", default=[], choices=list(COLLECTIVES), help="this one; repeatable")
    parser.add_argument("--out", type=Path, help="write the record to this file instead of standard output")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print or write rank 0's record; 0, 2 when there is no such device, 130 when interrupted."""
    args = _parser().parse_args(argv)
    rank = os.environ.get("RANK") if args.device != "cpu" else None
    log = NcclLog.begin(rank, args.out.parent if args.out else None) if rank is not None else None
    done = False

    def work(world: World) -> None:
        nonlocal done
        record = record_of(world, most=args.max_bytes, repeats=args.repeats, only=args.only, log=log)
        hand_out(record, world, args.out)
        done = True

    place, lost = Path(os.curdir), "; nothing was written"
    try:
        return measure_in_world("nsa.collectives", work, device=args.device, timeout_s=120.0, out=place, lost=lost)
    finally:
        if log is not None:
            log.end(failed=not done)


if __name__ == "__main__":
    answer_ctrl_c()
    sys.exit(main())

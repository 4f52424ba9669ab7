"""`python -m nsa.burnin`, alone or under torchrun: every device at full load for a time, with every answer known.

Matrix products near the power limit, patterns in memory, collectives: round by round until the time is over. All
values are whole numbers, small enough that a product is exact whatever the order of its sums, so an answer is right in
every bit or wrong, on each device and on all alike. Each rank appends a line a round to `burnin_rank{R}.jsonl`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nsa.interrupt import answer_ctrl_c, leave_at_ctrl_c

if __name__ == "__main__":
    leave_at_ctrl_c()

import torch
import torch.distributed as dist

from nsa.argument_types import positive, positive_int
from nsa.collectives import COLLECTIVES, MIB, Collective, device_facts, make
from nsa.parallel import World, measure_in_world
from nsa.telemetry.environment import software
from nsa.telemetry.files import json_safe

__all__ = ["main"]

SCHEMA_VERSION = 1
SEED = 20_26_11
_LARGEST = 127
"""Of the values: seven bits, which bf16 and TF32 hold; sums of 8192 products stay below 2**24, which fp32 holds."""

_LARGEST_FP16 = 7
"""Sums of 8192 products stay below 65504, where fp16 ends."""

_SAMPLED_ROWS = 16
"""Rows of the answer that the CPU computes as well, so that it is not the device's word alone."""

_SHOWN = 4
_SLICES = 8
"""Parts of memory, of which a round reads one and writes it anew; so a pattern rests for as many rounds."""

_CHUNK = 2**24
_WORD = 8


@dataclass
class Stopwatch:
    """Seconds of the work between `start` and `stop`, by the device's own clock on a GPU."""

    device: torch.device
    marks: list[Any] = field(default_factory=list)

    def mark(self) -> None:
        """An end of a piece of work, and the start of the next."""
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self.marks.append(event)
        else:
            self.marks.append(time.perf_counter())

    def seconds(self) -> float:
        """Of every second piece: between the first mark and the second, the third and the fourth. Waits for them."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            pairs = zip(self.marks[::2], self.marks[1::2], strict=True)
            return float(sum(one.elapsed_time(other) for one, other in pairs)) / 1e3
        return float(sum(other - one for one, other in zip(self.marks[::2], self.marks[1::2], strict=True)))


_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def differs(found: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Which elements differ in any bit."""
    bits = _BITS[found.element_size()]
    return found.view(bits) != right.view(bits)


@dataclass
class Product:
    """A matrix product of one type with its answer. `share` is that of the time of a round."""

    name: str
    a: torch.Tensor
    b: torch.Tensor
    right: torch.Tensor
    out: torch.Tensor
    share: float
    batch: int = 1

    def run(self, seconds: float) -> dict[str, Any]:
        """Multiply again and again for some time, and compare each answer."""
        device, flop = self.a.device, 2.0 * self.a.shape[0] ** 3
        wrong = torch.zeros((), dtype=torch.int64, device=device)
        done, busy_s, until = 0, 0.0, time.perf_counter() + seconds
        while done == 0 or time.perf_counter() < until:
            watch = Stopwatch(device)
            for _ in range(self.batch):
                watch.mark()
                torch.mm(self.a, self.b, out=self.out)
                watch.mark()
                wrong += differs(self.out, self.right).sum()
            busy_s += watch.seconds()
            done += self.batch
        row: dict[str, Any] = {"products": done, "tflops": flop * done / busy_s / 1e12, "wrong": int(wrong)}
        if row["wrong"]:
            row["again"] = self.again()
        return row

    def again(self) -> list[dict[str, Any]]:
        """The first wrong elements of one more product: empty where the fault does not come again."""
        torch.mm(self.a, self.b, out=self.out)
        places = differs(self.out, self.right).nonzero()[:_SHOWN].tolist()
        return [
            {"row": i, "column": j, "found": float(self.out[i, j]), "right": float(self.right[i, j])} for i, j in places
        ]


def _whole_numbers(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same on every rank, and on every machine."""
    seeded = torch.Generator().manual_seed(SEED)
    a, b = (torch.randint(-_LARGEST, _LARGEST + 1, (size, size), generator=seeded, dtype=torch.int8) for _ in range(2))
    return a, b


def products(device: torch.device, size: int) -> tuple[list[Product], int, str]:
    """The products, elements of the sampled rows that the CPU finds otherwise, and a sum over the bits of the answer.

    The answer is the device's own product in fp64, whose arithmetic the other types do not share.
    """
    a, b = _whole_numbers(size)
    types: dict[str, tuple[torch.dtype, int, float]] = {
        "fp32": (torch.float32, 1, 0.8),
        "fp64": (torch.float64, 1, 0.2),
    }
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32, as trainers have it
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False  # sums in bf16 would not be exact
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        small = _LARGEST // _LARGEST_FP16
        types = {
            "bf16": (torch.bfloat16, 1, 0.7),
            "fp16": (torch.float16, small, 0.1),
            "tf32": (torch.float32, 1, 0.1),
            "fp64": (torch.float64, 1, 0.1),
        }
    found: list[Product] = []
    answers: dict[int, torch.Tensor] = {}
    unlike = 0
    for name, (dtype, divisor, share) in types.items():
        whole = [one if divisor == 1 else torch.div(one, divisor, rounding_mode="trunc") for one in (a, b)]
        if divisor not in answers:
            left, right = (one.to(device, torch.float64) for one in whole)
            answers[divisor] = torch.mm(left, right)
            unlike += _unlike_on_cpu(whole, answers[divisor])
        first, second = (one.to(device).to(dtype) for one in whole)
        # Sums are below 2**24: fp32 holds each, and the one rounding is that of the type itself.
        answer = answers[divisor] if dtype == torch.float64 else answers[divisor].to(torch.float32).to(dtype)
        found.append(Product(name, first, second, answer, torch.empty_like(answer), share))
    bits = (answers[1].to(torch.int64) * torch.arange(1, size + 1, device=device)).sum()
    return found, unlike, str(int(bits))


def _unlike_on_cpu(whole: Sequence[torch.Tensor], answer: torch.Tensor) -> int:
    rows = torch.linspace(0, len(answer) - 1, _SAMPLED_ROWS).to(torch.int64)
    right = torch.zeros(len(rows), answer.shape[1], dtype=torch.int64)
    left = whole[0][rows].to(torch.float64)
    for start in range(0, answer.shape[1], 1024):  # a whole fp64 copy of 8192 columns for every rank would be 4 GiB
        part = slice(start, start + 1024)
        right[:, part] = (left @ whole[1][:, part].to(torch.float64)).to(torch.int64)
    return int((answer[rows.to(answer.device)].cpu().to(torch.int64) != right).sum())


def calibrate(every: Sequence[Product]) -> None:
    """Products in a row without a look at the clock: about a tenth of a second."""
    for one in every:
        one.run(0.0)
        began = time.perf_counter()
        one.run(0.0)
        one.batch = max(1, min(200, int(0.1 / max(time.perf_counter() - began, 1e-6))))


# Memory.

_PATTERNS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "address": lambda at: at * 0x9E3779B97F4A7C1 + 1,
    "0x55": lambda at: torch.full_like(at, 0x5555555555555555),
    "0xAA": lambda at: torch.full_like(at, -0x5555555555555556),
    "walking": lambda at: torch.ones_like(at) << (at % 64),
    "inverse address": lambda at: ~at,
}


@dataclass
class Memory:
    """Words of 8 bytes that hold one pattern each slice, which the next visit reads and replaces."""

    words: torch.Tensor
    holds: list[str] = field(default_factory=list)

    @classmethod
    def filled(cls, device: torch.device, n_bytes: int) -> Memory:
        """As much as asked for, every slice with its first pattern."""
        memory = cls(torch.empty(max(_SLICES, n_bytes // _WORD), dtype=torch.int64, device=device))
        names = list(_PATTERNS)
        memory.holds = [names[part % len(names)] for part in range(_SLICES)]
        for part, name in enumerate(memory.holds):
            for start, chunk in memory._chunks(part):
                chunk.copy_(memory._right(name, start, len(chunk)))
        return memory

    def _chunks(self, part: int) -> Iterator[tuple[int, torch.Tensor]]:
        edges = [len(self.words) * edge // _SLICES for edge in (part, part + 1)]
        for start in range(edges[0], edges[1], _CHUNK):
            yield start, self.words[start : min(start + _CHUNK, edges[1])]

    def _right(self, name: str, start: int, count: int) -> torch.Tensor:
        return _PATTERNS[name](torch.arange(start, start + count, device=self.words.device))

    def visit(self, part: int) -> dict[str, Any]:
        """Read one slice, compare it, and write the next pattern."""
        name, names = self.holds[part], list(_PATTERNS)
        following = names[(names.index(name) + 1) % len(names)]
        device, moved = self.words.device, 0
        wrong = torch.zeros((), dtype=torch.int64, device=device)
        watch = Stopwatch(device)
        places: list[int] = []
        watch.mark()
        for start, chunk in self._chunks(part):
            differing = chunk != self._right(name, start, len(chunk))
            wrong += differing.sum()
            if bool(differing.any()) and len(places) < _SHOWN:
                places += [start + int(at) for at in differing.nonzero()[:_SHOWN].flatten()]
            chunk.copy_(self._right(following, start, len(chunk)))
            moved += 2 * len(chunk) * _WORD
        watch.mark()
        self.holds[part] = following
        row: dict[str, Any] = {"pattern": name, "bytes": moved, "gb_s": moved / watch.seconds() / 1e9}
        row["wrong"] = int(wrong)
        if places:
            row["bytes_at"] = [at * _WORD for at in places[:_SHOWN]]
        return row


# Rounds.


def exchange(every: Sequence[Collective], number: int) -> dict[str, Any]:
    """One collective with its answer checked: the next one each round."""
    if not every:
        return {}
    one = every[number % len(every)]
    began = time.perf_counter()
    wrong = one.wrong()
    row: dict[str, Any] = {"name": one.name, "seconds": time.perf_counter() - began, "wrong": sum(wrong.values())}
    if wrong:
        row["from"] = {str(rank): count for rank, count in wrong.items()}
    return row


def _collectives(world: World, n_bytes: int) -> list[Collective]:
    found = []
    for name in COLLECTIVES if world.size > 1 else ():
        try:
            one = make(name, world, n_bytes)
            one.wrong()
        except (NotImplementedError, RuntimeError):
            continue  # a backend may lack one; all ranks find the same
        found.append(one)
    return found


def _all_done(world: World, *, mine: bool) -> bool:
    """Whether rank 0 is at the end, which every rank learns in the same round."""
    if world.size == 1:
        return mine
    flag = torch.tensor([int(mine)], dtype=torch.int32, device=world.device)
    dist.broadcast(flag, 0)
    return bool(flag.item())


def burn(world: World, args: argparse.Namespace, log: Callable[[dict[str, Any]], None]) -> None:
    """The first line says what is measured on what, each further one is a round, the last says `done`."""
    cuda = world.on_cuda
    size = args.size or (8192 if cuda else 512)
    round_s = args.round_s or min(30.0, max(2.0 if cuda else 0.5, args.seconds / 100))
    every, unlike, bits = products(world.device, size)
    calibrate(every)
    exchanged = _collectives(world, (args.collective_mib or (64 if cuda else 1)) * MIB)
    free = torch.cuda.mem_get_info(world.device)[0] if cuda else 0
    memory = Memory.filled(world.device, args.mib * MIB if args.mib else int(0.8 * free) if cuda else 64 * MIB)
    log(
        {
            "schema_version": SCHEMA_VERSION,
            **software(world.device),
            "device": device_facts(world),
            "world_size": world.size,
            "size": size,
            "memory_bytes": memory.words.numel() * _WORD,
            "answer": {"bits": bits, "unlike_on_cpu": unlike},
            "started": time.time(),
            "seconds": args.seconds,
        }
    )
    until, number = time.monotonic() + args.seconds, 0
    while True:
        row: dict[str, Any] = {"round": number, "t": time.time()}
        row["products"] = {one.name: one.run(round_s * one.share) for one in every}
        row["memory"] = memory.visit(number % _SLICES)
        row["collective"] = exchange(exchanged, number)
        log(row)
        number += 1
        if _all_done(world, mine=time.monotonic() >= until):
            break
    for part in range(_SLICES):  # what rests in memory since its last visit
        log({"round": number, "t": time.time(), "memory": memory.visit(part)})
    log({"done": True, "t": time.time(), "rounds": number})


def _own_cores() -> None:
    """On a CPU each rank is a device of its own: its share of the cores, so that a slow core shows as a slow rank."""
    rank, ranks = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    cores = sorted(os.sched_getaffinity(0))
    mine = cores[rank::ranks] or [cores[rank % len(cores)]]
    os.sched_setaffinity(0, mine)
    torch.set_num_threads(len(mine))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nsa.burnin",
        description="Load every device for a time, and check every answer. Start it alone or under torchrun.",
    )
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: CUDA where present")
    parser.add_argument("--seconds", type=positive, default=60.0, help="how long; 60 if not given")
    parser.add_argument("--round-s", type=positive, help="length of a round; a hundredth of the time, 2 to 30 s")
    parser.add_argument("--size", type=positive_int, help="rows of the square matrices; 8192 on a GPU, else 512")
    parser.add_argument("--mib", type=positive_int, help="memory to test, MiB; four fifths of a GPU's, else 64")
    parser.add_argument("--collective-mib", type=positive_int, help="buffer of a collective; 64 on a GPU, else 1")
    parser.add_argument("--out", type=Path, default=Path(), help="folder of the records")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Burn in; 0 whatever was found, for the records say it, 2 when there is no such device, 130 when interrupted."""
    args = _parser().parse_args(argv)
    if args.device != "cuda" and (args.device == "cpu" or not torch.cuda.is_available()):
        _own_cores()

    def work(world: World) -> None:
        with (args.out / f"burnin_rank{world.rank}.jsonl").open("w", encoding="utf-8", buffering=1) as file:
            burn(world, args, lambda row: print(json.dumps(json_safe(row)), file=file))

    return measure_in_world("nsa.burnin", work, device=args.device, timeout_s=600.0, out=args.out)


if __name__ == "__main__":
    answer_ctrl_c()
    sys.exit(main())

"""Time attention: ``python -m benchmarks.attention [--parts speed,growth,ranges,long] [--device cpu] [--out DIR]``.

Prints Markdown tables and writes the same figures, with the machine they were taken on, to ``attention.json``. Each
figure is the best of several calls: what else runs on the machine can only add to it. ``cpu_s`` is the processor time
of the same call, which a busy machine disturbs less than wall time.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.machine import need_gpu
from nsa.attention import Geometry, nsa_attention
from nsa.attention.ranges import ranges_v1, ranges_v2
from nsa.attention.select import select_blocks

SHAPES = {  # heads, groups, Dk, Dv
    "125M": (12, 2, 64, 64),
    "125M-mha": (12, 12, 64, 64),
    "125M-mqa": (16, 1, 64, 64),
    "wide": (64, 4, 128, 128),
    "paper": (64, 4, 192, 128),
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
GIB = 1024**3


def tensors(shape: str, seq_len: int, *, device: str, dtype: torch.dtype, grad: bool) -> list[Tensor]:
    """Random ``q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates`` of batch 1."""
    H, G, Dk, Dv = SHAPES[shape]
    rng = torch.Generator(device).manual_seed(0)
    sizes = [(H, Dk), *[(G, Dk), (G, Dv)] * 3]
    xs = [torch.randn(1, seq_len, *size, generator=rng, device=device).to(dtype) for size in sizes]
    xs.append(torch.rand(1, seq_len, H, 3, generator=rng, device=device))
    return [x.requires_grad_(grad) for x in xs]


def best(call: Callable[[], object], *, repeats: int, device: str) -> dict[str, float]:
    """Least wall and processor time of ``repeats`` calls, in seconds."""
    wall, cpu = math.inf, math.inf
    for _ in range(repeats):
        wall_0, cpu_0 = time.perf_counter(), time.process_time()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        wall, cpu = min(wall, time.perf_counter() - wall_0), min(cpu, time.process_time() - cpu_0)
    return {"wall_s": wall, "cpu_s": cpu}


def step(xs: list[Tensor], impl: str, *, backward: bool) -> Callable[[], object]:
    """One forward pass, or one forward and backward pass."""

    def run() -> object:
        with torch.set_grad_enabled(backward):
            o = nsa_attention(*xs, impl=impl)  # type: ignore[arg-type]
        return torch.autograd.grad(o, xs, torch.ones_like(o)) if backward else o

    return run


def speed(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Each implementation at one length, forward and forward+backward, in rounds that take turns, so that what else
    the machine does falls on all of them; the best of each counts. ``sequential`` is called once a round."""
    rows = []
    for shape in args.shapes:
        for backward in (False, True):
            xs = tensors(shape, args.seq_len, device=args.device, dtype=DTYPES[args.dtype], grad=backward)
            taken = {impl: {"wall_s": math.inf, "cpu_s": math.inf} for impl in args.impl}
            for _ in range(args.rounds):
                for impl, least in taken.items():
                    repeats = 1 if impl == "sequential" else args.repeats
                    found = best(step(xs, impl, backward=backward), repeats=repeats, device=args.device)
                    taken[impl] = {name: min(least[name], found[name]) for name in least}
            slow = taken.get("sequential")
            for impl, least in taken.items():
                rows.append({
                    "shape": shape, "S": args.seq_len, "impl": impl,
                    "pass": "forward+backward" if backward else "forward", **least,
                    "times_faster_than_sequential": slow["wall_s"] / least["wall_s"] if slow else None,
                    "times_less_cpu": slow["cpu_s"] / least["cpu_s"] if slow else None,
                })  # fmt: skip
    return rows


def growth(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Forward+backward of ``batched`` from 2k to 32k, and the exponent of S from the shortest."""
    rows: list[dict[str, Any]] = []
    for shape in args.shapes:
        base: dict[str, Any] | None = None
        for seq_len in args.lengths:
            xs = tensors(shape, seq_len, device=args.device, dtype=DTYPES[args.dtype], grad=True)
            repeats = args.repeats if seq_len <= 4096 else max(args.repeats // 3, 1)
            taken = best(step(xs, "batched", backward=True), repeats=repeats, device=args.device)
            row: dict[str, Any] = {"shape": shape, "S": seq_len, **taken, "exponent": None, "exponent_cpu": None}
            if base is not None:
                octaves = math.log(seq_len / base["S"])
                row["exponent"] = math.log(taken["wall_s"] / base["wall_s"]) / octaves
                row["exponent_cpu"] = math.log(taken["cpu_s"] / base["cpu_s"]) / octaves
            base = base or row
            rows.append(row)
    return rows


def ranges(args: argparse.Namespace) -> list[dict[str, Any]]:
    """One call of v1 and of v2 on the same selection: B=2, S=2048, G=2, n_sel=16."""
    geometry, S = Geometry(), 2048
    position = torch.arange(S, device=args.device)
    score = torch.rand(2, 2, S, geometry.n_blocks(S), generator=torch.Generator().manual_seed(0)).to(args.device)
    blocks = select_blocks(score, position, geometry).transpose(1, 2).contiguous()
    rows: list[dict[str, Any]] = []
    for name, convert, repeats in (("v1", ranges_v1, 3), ("v2", ranges_v2, 30)):
        taken = best(lambda c=convert: c(blocks, position, l_sel=64, seq_len=S), repeats=repeats, device=args.device)
        rows.append({"version": name, "rows": blocks[..., 0].numel(), **taken})
    rows[1]["times_faster_than_v1"] = rows[0]["wall_s"] / rows[1]["wall_s"]
    rows[1]["times_less_cpu"] = rows[0]["cpu_s"] / rows[1]["cpu_s"]
    return rows


def long(args: argparse.Namespace) -> list[dict[str, Any]]:
    """One forward+backward of ``batched`` at 65,536 tokens, and the most memory that the process ever held."""
    rows = []
    for shape in args.shapes:
        xs = tensors(shape, 65_536, device=args.device, dtype=DTYPES[args.dtype], grad=True)
        taken = best(step(xs, "batched", backward=True), repeats=1, device=args.device)
        if args.device == "cuda":
            peak_gib = torch.cuda.max_memory_allocated() / GIB
        else:
            peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB
        rows.append({"shape": shape, "S": 65_536, **taken, "peak_mem_gib": peak_gib})
    return rows


PARTS: dict[str, Callable[[argparse.Namespace], list[dict[str, Any]]]] = {
    "speed": speed, "growth": growth, "ranges": ranges, "long": long,
}  # fmt: skip


def as_markdown(rows: list[dict[str, Any]]) -> str:
    """A table with the keys of the rows as its head."""
    keys = list(dict.fromkeys(key for row in rows for key in row))

    def cell(value: object) -> str:
        return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)

    lines = ["| " + " | ".join(keys) + " |", "|" + "---|" * len(keys)]
    lines += ["| " + " | ".join(cell(row.get(key)) for key in keys) + " |" for row in rows]
    return "\n".join(lines)


def machine(device: str) -> dict[str, Any]:
    """What the figures were taken on."""
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    return {
        "device": name, "cores": os.cpu_count(), "threads": torch.get_num_threads(), "torch": torch.__version__,
        "load_1min": os.getloadavg()[0],
    }  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Run the parts asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.attention", description=(__doc__ or "").split("\n\n")[1]
    )

    def names(text: str) -> list[str]:
        return text.split(",")

    parser.add_argument(
        "--parts", type=names, help=f"any of {','.join(PARTS)}; all, or on a GPU the fused kernels' suite"
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=list(DTYPES), default="fp32")
    parser.add_argument("--shapes", type=names, default=["125M"], help=f"any of {','.join(SHAPES)}")
    parser.add_argument("--impl", type=names, default=["sequential", "batched"], help="for the part speed")
    parser.add_argument("--seq-len", type=int, default=1024, help="for the part speed")
    parser.add_argument(
        "--lengths", type=lambda t: [int(n) for n in t.split(",")], default=[2048, 4096, 8192, 16384, 32768]
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3, help="for the part speed: turns that the implementations take")
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"))
    args = parser.parse_args(argv)
    if args.device == "cuda":
        need_gpu("attention")
    if args.parts is None and args.device == "cuda":
        from benchmarks.attention_gpu import run  # needs Triton

        return run(args.out)
    args.parts = args.parts or list(PARTS)
    unknown = [p for p in args.parts if p not in PARTS] + [s for s in args.shapes if s not in SHAPES]
    if unknown:
        parser.error(f"unknown part or shape: {', '.join(unknown)}")
    args.out.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"schema_version": 1, "machine": machine(args.device), "dtype": args.dtype}
    print(f"machine: {result['machine']}")
    for part in args.parts:
        result[part] = PARTS[part](args)
        print(f"\n### {part}\n\n{as_markdown(result[part])}", flush=True)
        (args.out / "attention.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

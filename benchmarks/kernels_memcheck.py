"""One forward and backward pass for a memory checker: ``compute-sanitizer python -m benchmarks.kernels_memcheck``;
with ``--decode``, steps of decoding that fill a cache of the shape instead: as the GPU does them, by Triton in one
launch each, and by parts.

``--every-lane``: in Hopper's own kernels each lane of a warp arrives at barriers for itself, where else the first lane
does for all of them, for a race checker that does not follow order from lane to lane.

``--tile dq=64,32,4,3`` replaces one entry of the tile table, to find out whether a candidate is safe before it
is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from dataclasses import replace
from typing import Any
from unittest import mock

import torch

from benchmarks.decode_gpu import without_clusters
from benchmarks.kernels_device import SIZES, call, make
from benchmarks.machine import need_gpu
from nsa.attention.cache import NSACache
from nsa.attention.geometry import Geometry
from nsa.kernels import config, problem, step
from nsa.kernels.config import Tile
from nsa.kernels.hopper import program
from nsa.kernels.hopper.program import source


def decode(B: int, S: int, H: int, G: int, Dk: int, Dv: int) -> bool:
    """Fill a cache in steps from the last four compressed tokens' worth of positions on; whether all is finite."""
    bf16: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    cache = NSACache(geometry=Geometry(), batch=B, max_len=S, n_kv_groups=G, d_k=Dk, d_v=Dv, **bf16)
    caches = [cache.k_raw, cache.v_raw, cache.k_cmp, cache.v_cmp, cache.k_sel, cache.v_sel, cache.k_win, cache.v_win]
    for x in caches:
        x.normal_()
    q, gates = torch.randn(B, 1, H, Dk, **bf16), torch.rand(B, 1, H, 3, device="cuda")
    new = [torch.randn(B, 1, G, width, **bf16) for _ in range(3) for width in (Dk, Dv)]
    finite = True
    for way in ("usual", "triton", "parts"):
        lengths = torch.full((B, G), max(S - 20, 0), device="cuda", dtype=torch.int32)
        for _ in range(22):  # the last two find the rows full
            if way == "parts":
                step.decode_append(new, *caches, lengths, SIZES[0], SIZES[1])
                o, _ = step.decode_attention(q, gates, *caches[2:], lengths, list(SIZES), Dk**-0.5)
                finite &= bool(torch.isfinite(o).all())
                continue
            with without_clusters() if way == "triton" else contextlib.nullcontext():
                o, _ = step.decode_step(q, gates, new, *caches, lengths, cache.arrivals, list(SIZES), Dk**-0.5)
            finite &= bool(torch.isfinite(o).all())
    return finite


def every_lane(name: str, constants: program.Constants) -> str:
    """:func:`nsa.kernels.hopper.program.source` with ``EVERY_LANE``."""
    return "#define EVERY_LANE 1\n" + source(name, constants)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="1,1100,32,2,128,128", help="B,S,H,G,Dk,Dv")
    parser.add_argument("--tile", action="append", default=[], help="kernel=bm,bn,warps,stages[,registers]")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--decode", action="store_true")
    parser.add_argument("--every-lane", action="store_true")
    arguments = parser.parse_args()
    need_gpu("kernels_memcheck")
    B, S, H, G, Dk, Dv = map(int, arguments.shape.split(","))
    if arguments.decode:
        print("finite:", decode(B, S, H, G, Dk, Dv))
        return 0
    tiles = config.choose_tiles(config.split_head_dim(Dk, Dv), itemsize=2, hopper=True)
    for entry in arguments.tile:
        name, _, sizes = entry.partition("=")
        changed: dict[str, Any] = {name: Tile(*map(int, sizes.split(",")))}
        tiles = replace(tiles, **changed)
    x = make(B, S, H, G, Dk, Dv, torch.bfloat16)
    with (
        mock.patch.object(problem, "choose_tiles", return_value=tiles),
        mock.patch.object(program, "source", every_lane) if arguments.every_lane else contextlib.nullcontext(),
    ):
        for _ in range(arguments.repeats):
            o = call(x, SIZES)
            grads = torch.autograd.grad(o, x, torch.ones_like(o))
    torch.cuda.synchronize()
    print("finite:", all(bool(torch.isfinite(t).all()) for t in (o, *grads)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

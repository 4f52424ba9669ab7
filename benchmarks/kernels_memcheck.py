"""One forward and backward pass for a memory checker: ``compute-sanitizer python -m benchmarks.kernels_memcheck``.

``--tile dq=64,32,4,3`` replaces one entry of the tile table, to find out whether a candidate is safe before it
is measured.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import Any
from unittest import mock

import torch

from benchmarks.kernels_device import SIZES, call, make
from nsa.kernels import config, problem
from nsa.kernels.config import Tile


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="1,1100,32,2,128,128", help="B,S,H,G,Dk,Dv")
    parser.add_argument("--tile", action="append", default=[], help="kernel=bm,bn,warps,stages[,registers]")
    parser.add_argument("--repeats", type=int, default=1)
    arguments = parser.parse_args()
    B, S, H, G, Dk, Dv = map(int, arguments.shape.split(","))
    tiles = config.choose_tiles(config.split_head_dim(Dk, Dv), itemsize=2, hopper=True)
    for entry in arguments.tile:
        name, _, sizes = entry.partition("=")
        changed: dict[str, Any] = {name: Tile(*map(int, sizes.split(",")))}
        tiles = replace(tiles, **changed)
    x = make(B, S, H, G, Dk, Dv, torch.bfloat16)
    with mock.patch.object(problem, "choose_tiles", return_value=tiles):
        for _ in range(arguments.repeats):
            o = call(x, SIZES)
            grads = torch.autograd.grad(o, x, torch.ones_like(o))
    torch.cuda.synchronize()
    print("finite:", all(bool(torch.isfinite(t).all()) for t in (o, *grads)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

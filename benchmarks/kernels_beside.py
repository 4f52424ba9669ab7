"""Hopper's own kernels beside Triton's in one run: ``python -m benchmarks.kernels_beside [--shapes wide64k,wide8k]``.

A line of JSON for each shape: medians in ms of a forward pass and of one with its backward pass, in turns; the latter
from a CUDA graph for short sequences; and peak memory. What is timed is checked by ``benchmarks.kernels_device`` and
by ``pytest -m gpu``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch

from benchmarks.kernels_device import BATCH, LARGE, SIZES, call, ceilings, graphed, make, time_ms
from benchmarks.machine import need_gpu
from nsa.kernels.precompile import Shape, warm

SHAPES = {name: shape for name, shape in LARGE.items() if name not in BATCH} | {
    "small64k": (65536, 32, 8, 128, 128),
    "small8k": (8192, 32, 8, 128, 128),
    "one32k": (32768, 16, 16, 128, 128),
}


def by_triton() -> AbstractContextManager[object]:
    """Triton's kernels in the place of Hopper's own."""
    return mock.patch.dict(os.environ, {"HOPPER_KERNELS": "0"})


def beside_triton(name: str, turns: int = 2) -> dict[str, Any]:
    """Times and memory of a shape by Triton's kernels and by Hopper's own."""
    S, H, G, Dk, Dv = SHAPES[name]
    x = make(1, S, H, G, Dk, Dv, torch.bfloat16)
    do = torch.randn(1, S, H, Dv, device="cuda", dtype=torch.bfloat16)

    def both() -> None:
        torch.autograd.grad(call(x, SIZES), x, do)

    def forward() -> None:
        with torch.no_grad():
            call(x, SIZES)

    row: dict[str, Any] = {"shape": name, "triton_forward": [], "now_forward": [], "triton": [], "now": []}
    for _ in range(turns):
        for way in ("triton", "now"):
            with by_triton() if way == "triton" else contextlib.nullcontext():
                row[f"{way}_forward"].append(time_ms(forward, rep=150))
                row[way].append(time_ms(both, rep=250))
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                both()
                row[f"{way}_gib"] = torch.cuda.max_memory_allocated() / 2**30
                row[f"{way}_graph"] = graphed(both) if S <= 8192 else None
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    names = parser.parse_args().shapes.split(",")
    need_gpu("kernels_beside")
    os.environ.pop("HOPPER_KERNELS", None)  # or both ways would be Triton's
    warm([Shape(*SHAPES[name]) for name in names])
    print(torch.cuda.get_device_name(), torch.__version__, ceilings(), flush=True)
    for name in names:
        print(json.dumps(beside_triton(name)), flush=True)
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())

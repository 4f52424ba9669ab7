"""Shared memory, registers and spills of every kernel, without a GPU.

``python -m benchmarks.kernels_compile --capability 90``
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

import torch

from nsa.kernels.precompile import Launch, Shape, record, resources

SHAPES = {
    "wide": Shape(65536, 64, 4, 128, 128),
    "paper": Shape(65536, 64, 4, 192, 128),
    "125M": Shape(65536, 12, 2, 64, 64),
    "256": Shape(8192, 16, 4, 256, 256),
    "fp32": Shape(4096, 16, 4, 64, 64, dtype=torch.float32),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--capability", type=int, default=90, choices=(80, 86, 89, 90))
    parser.add_argument("--shapes", default=",".join(SHAPES))
    arguments = parser.parse_args()
    limit = {80: 163, 86: 99, 89: 99, 90: 227}[arguments.capability] * 1024
    over = 0
    for name in arguments.shapes.split(","):
        launches: dict[str, Launch] = {}
        for one in record(replace(SHAPES[name], capability=arguments.capability)):
            launches.setdefault(one.name, one)
        for one in launches.values():
            used = resources(one, arguments.capability)
            over += used.shared_bytes > limit
            print(
                f"{name:6s} {one.name:24s} {used.shared_bytes / 1024:6.1f} KiB {used.registers:4d} registers "
                f"{used.spill_bytes:5d} bytes spilled, grid {one.grid}",
                flush=True,
            )
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())

"""What a benchmark needs of the machine, told in one line where it is not there."""

from __future__ import annotations

import sys

__all__ = ["CANNOT", "need_gpu"]

CANNOT = 4
"""Exit code of what this machine cannot do, as of `validator`."""


def need_gpu(module: str) -> None:
    """End with exit code 4 where torch sees no CUDA device."""
    import torch

    if not torch.cuda.is_available():
        print(f"benchmarks.{module}: not run, it needs a CUDA device", file=sys.stderr)
        raise SystemExit(CANNOT)

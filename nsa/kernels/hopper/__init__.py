"""Kernels by Hopper's own means: asynchronous products, tensor-map copies, warps with roles of their own.

CUDA C++ compiled at first use by NVRTC, as :mod:`nsa.kernels.cluster`. Where they cannot run, Triton's kernels do,
which compute the same and are their twins in the tests.
"""

from __future__ import annotations

from nsa.kernels.hopper.launch import HopperBackward, Run, RunTurn, scratch, sums_queries, why_no_gather, why_no_wgmma
from nsa.kernels.hopper.program import second_stream
from nsa.kernels.hopper.window import why_no_window

__all__ = [
    "HopperBackward", "Run", "RunTurn", "scratch", "second_stream", "sums_queries", "why_no_gather", "why_no_wgmma",
    "why_no_window",
]  # fmt: skip

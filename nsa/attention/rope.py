"""Rotary position embedding: pairs of channels (i, i + D/2) turn by an angle proportional to the position.

Angles are computed in float32 whatever the type of the activations: bfloat16 cannot represent neighboring positions
beyond a few hundred distinctly.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

__all__ = ["RopeTable", "apply_rope", "prefix_table", "rope_table"]

RopeTable = tuple[Tensor, Tensor]
"""Cosines and sines, each ``[S, D / 2]`` float32, one row for each position."""


def rope_table(positions_S: Tensor, *, dim: int, base: float) -> RopeTable:
    """Cosines and sines for the given positions, each ``[S, dim / 2]`` float32."""
    exponent = torch.arange(0, dim, 2, device=positions_S.device, dtype=torch.float64) / dim
    angle = positions_S.to(torch.float64)[:, None] * base**-exponent
    return angle.cos().float(), angle.sin().float()


@functools.lru_cache(maxsize=8)
def _prefix_table(length: int, dim: int, base: float, device: torch.device) -> RopeTable:
    # A tensor born in inference mode could not be used in training later.
    with torch.inference_mode(False), torch.no_grad():
        return rope_table(torch.arange(length, device=device), dim=dim, base=base)


def prefix_table(seq_len: int, *, dim: int, base: float, device: torch.device) -> RopeTable:
    """Cosines and sines of positions 0 to ``seq_len - 1``, kept between calls.

    Traced code (torch.compile) computes its own: tracing bypasses the cache, and torch warns of it. To compile a layer,
    make the table outside and pass it in.
    """
    if torch.compiler.is_compiling():
        return rope_table(torch.arange(seq_len, device=device), dim=dim, base=base)
    # Rounding the length up to a power of two keeps growing sequences from filling the table's cache.
    cos, sin = _prefix_table(1 << max(seq_len - 1, 1).bit_length(), dim, base, device)
    return cos[:seq_len], sin[:seq_len]


def apply_rope(x_BSHK: Tensor, table: RopeTable) -> Tensor:
    """Rotate ``x [B, S, H, D]`` by a table of ``[S, D / 2]``, in float32 or wider; returned in the type of x."""
    cos, sin = (part[:, None, :] for part in table)
    wide = x_BSHK if x_BSHK.dtype == torch.float64 else x_BSHK.float()
    first, second = wide.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x_BSHK.dtype)

"""The partial results of a decode step's shares: one per branch and share, and their merge into the output.

``part_o [B*G, 3, P, HP, DV]`` with its maximum and sum of weights ``[B*G, 3, P, HP]`` in float32; an empty one has
weight 0.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["CMP", "SEL", "WIN", "load_part", "merge_part", "store_part"]

# Branches, in the order of the gates.
CMP = tl.constexpr(0)
SEL = tl.constexpr(1)
WIN = tl.constexpr(2)


@triton.jit
def store_part(
    part_o, part_m, part_l, bg, branch, p, acc, m, total, P: tl.constexpr, HP: tl.constexpr, DV: tl.constexpr
):
    """One share's partial result of one branch."""
    row = ((bg.to(tl.int64) * 3 + branch) * P + p) * HP + tl.arange(0, HP)
    tl.store(part_m + row, m)
    tl.store(part_l + row, total)
    tl.store(part_o + row[:, None] * DV + tl.arange(0, DV)[None, :], acc)


@triton.jit
def load_part(part_o, part_m, part_l, bg, branch, p, P: tl.constexpr, HP: tl.constexpr, DV: tl.constexpr):
    """What :func:`store_part` stored."""
    row = ((bg.to(tl.int64) * 3 + branch) * P + p) * HP + tl.arange(0, HP)
    acc = tl.load(part_o + row[:, None] * DV + tl.arange(0, DV)[None, :])
    return acc, tl.load(part_m + row), tl.load(part_l + row)


@triton.jit
def merge_part(
    gates, part_o, part_m, part_l, o, b, g, bg, p,
    G: tl.constexpr, HPG: tl.constexpr, HP: tl.constexpr, P: tl.constexpr, MERGED: tl.constexpr, DV: tl.constexpr,
):  # fmt: skip
    """Merge the shares of every ``P``-th head from ``p`` and gate the branches: ``o [B, 1, H, DV]``; ``MERGED`` heads
    in one tile."""
    r = tl.arange(0, MERGED * 4 * P)
    branch = r // P % 4
    cv = tl.arange(0, DV)
    for i in tl.static_range((HPG + P * MERGED - 1) // (P * MERGED)):
        h = p + (i * MERGED + r // (4 * P)) * P
        ok = (branch < 3) & (h < HPG)
        row = ((bg.to(tl.int64) * 3 + branch) * P + r % P) * HP + h
        m = tl.load(part_m + row, mask=ok, other=-1e30)
        total = tl.load(part_l + row, mask=ok, other=0.0)
        gate = tl.load(gates + ((b * G + g) * HPG + h) * 3 + branch, mask=ok, other=0.0).to(tl.float32)
        x = tl.load(part_o + row[:, None] * DV + cv[None, :], mask=ok[:, None], other=0.0)
        m = tl.reshape(m, [MERGED * 4, P])
        weight = tl.math.exp2(m - tl.max(m, 1)[:, None])
        # A branch that sees nothing has sums of zero and stays zero.
        share = tl.maximum(tl.sum(weight * tl.reshape(total, [MERGED * 4, P]), 1), 1e-30)
        weight = tl.reshape(weight / share[:, None], [MERGED * 4 * P]) * gate
        out = tl.sum(tl.reshape(x * weight[:, None], [MERGED, 4 * P, DV]), 1)
        head = p + (i * MERGED + tl.arange(0, MERGED)) * P
        at = ((b * G + g) * HPG + head)[:, None] * DV + cv[None, :]
        tl.store(o + at, out.to(o.dtype.element_ty), mask=(head < HPG)[:, None])

"""Dense attention of packed row tiles: the compressed branch, and the window with the forced blocks.

Both kernels are FlashAttention-shaped: a tile of ``BM`` rows stays on chip while its keys stream past. They differ in
which keys a row sees (:mod:`nsa.kernels.tiles`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from nsa.kernels.tiles import CMP, FORCED, WIN, attend

__all__ = ["compressed_kernel", "local_kernel"]


@triton.jit(do_not_specialize=["S"])
def compressed_kernel(
    q,
    k,
    v,
    o,
    lse,
    sqb,
    sqs,
    sqh,
    skb,
    skn,
    skg,
    svb,
    svn,
    svg,
    S,
    scale2,
    H: tl.constexpr,
    G: tl.constexpr,
    HPG: tl.constexpr,
    BT: tl.constexpr,
    L: tl.constexpr,
    D: tl.constexpr,
    LS: tl.constexpr,
    W: tl.constexpr,
    DK0: tl.constexpr,
    DK1: tl.constexpr,
    DV: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    PREC: tl.constexpr,
):
    """``o [B, S, H, DV]`` and base-2 ``lse [B, S, H]`` over the visible compressed tokens. Grid (tiles, B * G)."""
    # Late tiles see the most keys: they go first, so that the last wave is made of short ones.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    bg = tl.program_id(1)
    b = (bg // G).to(tl.int64)
    g = bg % G
    r = tl.arange(0, BM)
    t0 = tile * BT
    t = t0 + r // HPG
    row_ok = (r < BT * HPG) & (t < S)
    t1 = tl.minimum(t0 + BT, S) - 1
    qp = q + b * sqb + t0.to(tl.int64) * sqs + ((r // HPG) * sqs + (g * HPG + r % HPG) * sqh)[:, None]
    q0 = tl.load(qp + tl.arange(0, DK0)[None, :], mask=row_ok[:, None], other=0.0)
    q1 = tl.load(qp + DK0 + tl.arange(0, DK1)[None, :], mask=row_ok[:, None], other=0.0) if DK1 > 0 else q0
    kp = k + b * skb + g * skg
    vp = v + b * svb + g * svg
    out, lse_rows = attend(
        q0, q1, kp, vp, skn, svn, t, t0, t1, scale2, CMP, L, D, LS, W, DK0, DK1, DV, BM, BN, PREC
    )  # fmt: skip
    row0 = (b * S + t0) * H
    row = (r // HPG) * H + g * HPG + r % HPG
    tl.store(lse + row0 + row, lse_rows, mask=row_ok)
    op = o + row0 * DV + (row * DV)[:, None] + tl.arange(0, DV)[None, :]
    tl.store(op, out.to(o.dtype.element_ty), mask=row_ok[:, None])


@triton.jit(do_not_specialize=["S"])
def local_kernel(
    q,
    k_sel,
    v_sel,
    k_win,
    v_win,
    o_sel,
    o_win,
    lse_sel,
    lse_win,
    sqb,
    sqs,
    sqh,
    sksb,
    sksn,
    sksg,
    svsb,
    svsn,
    svsg,
    skwb,
    skwn,
    skwg,
    svwb,
    svwn,
    svwg,
    S,
    scale2,
    H: tl.constexpr,
    G: tl.constexpr,
    HPG: tl.constexpr,
    BT: tl.constexpr,
    L: tl.constexpr,
    D: tl.constexpr,
    LS: tl.constexpr,
    W: tl.constexpr,
    DK0: tl.constexpr,
    DK1: tl.constexpr,
    DV: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    PREC: tl.constexpr,
):
    """Window attention, and attention to the three forced blocks, of one row tile. Grid (tiles, B * G).

    The forced blocks are shared by neighbouring queries, so they are done densely here; their output and
    ``lse_sel`` are merged with the scored blocks later.
    """
    tile = tl.program_id(0)
    bg = tl.program_id(1)
    b = (bg // G).to(tl.int64)
    g = bg % G
    r = tl.arange(0, BM)
    t0 = tile * BT
    t = t0 + r // HPG
    row_ok = (r < BT * HPG) & (t < S)
    t1 = tl.minimum(t0 + BT, S) - 1
    qp = q + b * sqb + t0.to(tl.int64) * sqs + ((r // HPG) * sqs + (g * HPG + r % HPG) * sqh)[:, None]
    q0 = tl.load(qp + tl.arange(0, DK0)[None, :], mask=row_ok[:, None], other=0.0)
    q1 = tl.load(qp + DK0 + tl.arange(0, DK1)[None, :], mask=row_ok[:, None], other=0.0) if DK1 > 0 else q0
    row0 = (b * S + t0) * H
    row = (r // HPG) * H + g * HPG + r % HPG
    cols = (row * DV)[:, None] + tl.arange(0, DV)[None, :]
    kp = k_win + b * skwb + g * skwg
    vp = v_win + b * svwb + g * svwg
    out, lse_rows = attend(
        q0, q1, kp, vp, skwn, svwn, t, t0, t1, scale2, WIN, L, D, LS, W, DK0, DK1, DV, BM, BN, PREC
    )  # fmt: skip
    tl.store(lse_win + row0 + row, lse_rows, mask=row_ok)
    tl.store(o_win + row0 * DV + cols, out.to(o_win.dtype.element_ty), mask=row_ok[:, None])
    kp = k_sel + b * sksb + g * sksg
    vp = v_sel + b * svsb + g * svsg
    out, lse_rows = attend(
        q0, q1, kp, vp, sksn, svsn, t, t0, t1, scale2, FORCED, L, D, LS, W, DK0, DK1, DV, BM, BN, PREC
    )  # fmt: skip
    tl.store(lse_sel + row0 + row, lse_rows, mask=row_ok)
    tl.store(o_sel + row0 * DV + cols, out.to(o_sel.dtype.element_ty), mask=row_ok[:, None])
